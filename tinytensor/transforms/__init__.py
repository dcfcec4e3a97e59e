"""Transformations of functions: derivatives, gradient checks, and checkpoints, which run a function again in backward.

Read ``gradcheck`` first, then ``checkpoint`` and ``derivatives``. This package imports ops/ and what they import.
"""
