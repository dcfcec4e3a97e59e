"""The lowest package, with no imports from other packages: NumPy or CuPy, memory, cores, sums, files and forks."""
