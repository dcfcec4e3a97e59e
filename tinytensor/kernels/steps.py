"""What kernels may fuse: the steps of a traced program (``tt.trace``), and the operations of an elementwise op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class KernelCall(NamedTuple):
    """One call of a kernel. Its arguments and its result are slot numbers; see ``trace.Program``."""

    name: str  # of the op or function, for kernels; "" if something is converted before or after it
    kernel: Callable[..., Any]
    arguments: tuple[int, ...]
    is_fused: bool  # the kernel then returns (result, residuals)
    result: int


def fuse(steps: list[KernelCall], values: list[Any], num_inputs: int, result: int) -> list[KernelCall]:
    """Return the same program in fewer steps. Only kernels/numba fuses steps (programs.py); here they stay as they are.

    ``values`` has each slot's value in the traced call, first the ``num_inputs`` inputs. ``result`` is the slot of the
    program's result.
    """
    return steps


def elementwise(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that computes each element by itself, in one pass over memory. Only kernels/numba compiles it
    (elementwise.py); here it stays as it is. The name is unique."""
    return function
