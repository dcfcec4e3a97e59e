"""The steps of a traced program, which ``tt.trace`` writes down and ``fuse`` may join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One call of a kernel. Its arguments and its result are numbers of slots; see ``trace.Program``."""

    name: str  # of the op or function of this library; "" for any other, and where arguments or results are converted
    kernel: Callable[..., Any]
    arguments: tuple[int, ...]
    is_fused: bool  # the kernel then returns (result, residuals)
    result: int


def fuse(steps: list[Step], values: list[Any], num_inputs: int, result: int) -> list[Step]:
    """The same program in fewer steps, where the kernels have a way. Here they have none: the steps as they are.

    ``values`` has the value of each slot in the call that was traced: first the inputs. ``result`` is the slot of the program's
    result.
    """
    return steps
