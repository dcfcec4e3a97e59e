"""What the arrays lie on: the choice between NumPy and CuPy, memory, cores, sums, and work that a GPU records.

The lowest room: it imports no other.
"""
