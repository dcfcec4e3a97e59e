"""What kernels may join to fewer passes: the steps of a traced program, which ``tt.trace`` writes down, and the operations of
an elementwise op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One call of a kernel. Its arguments and its result are numbers of slots; see ``trace.Program``."""

    name: str  # by which kernels know the op or function, if nothing is converted before or after it; otherwise ""
    kernel: Callable[..., Any]
    arguments: tuple[int, ...]
    is_fused: bool  # the kernel then returns (result, residuals)
    result: int


def fuse(steps: list[Step], values: list[Any], num_inputs: int, result: int) -> list[Step]:
    """The same program in fewer steps. These kernels join none: only those of kernels/numba do (programs.py).

    ``values`` has the value of each slot in the call that was traced: first the ``num_inputs`` inputs. ``result`` is the slot
    of the program's result.
    """
    return steps


def elementwise(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of arrays that computes each element by itself, as one pass over memory. These kernels leave it as it is: only
    those of kernels/numba compile it (elementwise.py). The name is its own among all."""
    return function
