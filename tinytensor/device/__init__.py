"""The lowest package, which imports no other: NumPy or CuPy, memory, cores, sums, files and forks."""
