"""A program: a few lines of Python, each computing one value from earlier ones."""

from __future__ import annotations

import functools
import re
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinytensor as tt


@dataclass
class Program:
    """Lines of Python over leaves. Floating-point leaves require gradients. ``out`` is the result."""

    leaves: dict[str, Any]
    steps: dict[str, str]  # the line of each value that is no leaf
    dtypes: dict[str, str]  # which each value must have
    out: str = ""

    def __str__(self) -> str:
        made = [written_out(name, array) for name, array in self.leaves.items()]
        return "\n".join(["import numpy as np", "import tinytensor as tt", *made, *self.lines()])

    def lines(self) -> list[str]:
        """The steps. Dropout draws the same numbers in each run."""
        seeded = "with tt.random.using(np.random.default_rng(5)): "
        return [f"{seeded * ('dropout' in text)}{name} = {text}" for name, text in self.steps.items()]

    @functools.cached_property
    def code(self) -> Any:
        return compile("\n".join(self.lines()), "<program>", "exec")

    def tensors(self) -> dict[str, tt.Tensor]:
        return {name: tt.tensor(array, requires_grad=array.dtype.kind == "f") for name, array in self.leaves.items()}

    def run(self, leaves: dict[str, tt.Tensor] | None = None, as_far_as_it_goes: bool = False) -> dict[str, tt.Tensor]:
        """Every value by name."""
        values = {"tt": tt, "np": np, **(leaves or self.tensors())}
        with suppress(Exception) if as_far_as_it_goes else nullcontext():
            exec(self.code, values)
        return {name: values[name] for name in (*self.leaves, *self.steps) if name in values}

    def ending_at(self, out: str) -> Program:
        """The program with another result, without the lines that this does not need."""
        wanted, steps = {out}, {}
        for name, text in reversed(self.steps.items()):
            if name in wanted:
                steps[name] = text
                wanted |= set(operands(text))
        leaves = {name: array for name, array in self.leaves.items() if name in wanted}
        return Program(leaves, dict(reversed(steps.items())), self.dtypes, out)

    def with_leaf(self, name: str, array: Any) -> Program:
        """The program with a line replaced by a leaf."""
        steps = {other: text for other, text in self.steps.items() if other != name}
        return Program({**self.leaves, name: array}, steps, self.dtypes).ending_at(self.out)


def written_out(name: str, array: Any) -> str:
    """The line of Python that makes a leaf."""
    shape = "" if array.size else f".reshape({array.shape})"  # a list of nothing has lost the other lengths
    wants = ", requires_grad=True" if array.dtype.kind == "f" else ""
    return f"{name} = tt.tensor(np.array({array.tolist()}, {str(array.dtype)!r}){shape}{wants})"


def operands(text: str) -> list[str]:
    return re.findall(r"\bv\d+\b", text)
