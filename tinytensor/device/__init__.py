"""What the arrays lie on: the choice between NumPy and CuPy, memory, cores, sums, files and forks.

The lowest room: it imports no other.
"""
