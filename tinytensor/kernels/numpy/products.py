"""Products of matrices: NumPy's own, which BLAS does, reading transposed and strided operands as they are."""

from tinytensor.backend import xp

matmul = xp.matmul
