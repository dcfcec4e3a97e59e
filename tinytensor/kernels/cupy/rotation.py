"""Norm and rotation of queries and keys, with this backend's RMS norm. kernels/numpy/rotation.py has the rest."""

from tinytensor.kernels.cupy.normalization import rms_norm_backward, rms_norm_forward
from tinytensor.kernels.numpy.rotation import norm_and_rotate, rotate_pairs

__all__ = ["norm_and_rotate_backward", "norm_and_rotate_forward", "rotate_pairs"]

norm_and_rotate_forward, norm_and_rotate_backward = norm_and_rotate(rms_norm_forward, rms_norm_backward)
