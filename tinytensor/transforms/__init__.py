"""Transformations of functions: derivatives, gradient checks, and gradient checkpointing.

Read ``gradcheck`` first, then ``checkpoint`` and ``derivatives``. This package imports ops/ and their imports.
"""
