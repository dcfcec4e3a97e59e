"""The answer to a name that is not here, such as ``x.view`` or ``tt.manual_seed``: what is written in its place.

The answers are the rows of ``names_of_pytorch.md``, of which the guide for users of PyTorch has the tables.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Where a name is looked up that is missing there: PyTorch's name for it begins like this in the table.
_PLACES = {
    "tinytensor": ("torch", "F", "nn"),
    "tinytensor.functional": ("F", "torch", "nn"),
    "tinytensor.nn": ("nn", "F"),
    "tinytensor.nn.init": ("nn.init",),
    "tinytensor.optim": ("optim", "nn.utils", "optim.lr_scheduler"),
    "tinytensor.random": ("torch",),
    "Tensor": ("x", "torch"),
    "Module": ("model",),
    "Optimizer": ("optimizer",),
}
KEYWORDS = {  # PyTorch's names of arguments
    "dim": "axis",
    "dims": "axis",
    "dim0": "axis1",
    "dim1": "axis2",
    "keepdim": "keepdims",
    "size": "shape",
    "correction": "ddof",
    "input": "x",
    "other": "y",
    "tensor": "x",
    "p": "ord",
    "unbiased": "ddof",
    "repeats": "reps",
    "value": "fill_value",
}


@functools.lru_cache(maxsize=1)
def _answers() -> dict[str, str]:
    """By PyTorch's name, such as "x.view": its example, what is written here, and what to know."""
    found: dict[str, str] = {}
    for line in Path(__file__).with_name("names_of_pytorch.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) < 2 or cells[0] == "PyTorch":
            continue
        theirs, ours = re.findall(r"`([^`]*)`", cells[0]), re.findall(r"`([^`]*)`", cells[1])
        for place, example in enumerate(theirs):
            here = ours[place] if len(ours) == len(theirs) else cells[1].replace("`", "")
            note = f" ({cells[2].replace('`', '')})" if len(cells) > 2 and cells[2] else ""
            name = re.match(r"[\w.]+", example)
            if name:
                found.setdefault(name[0].rstrip("."), f"PyTorch's {example} is {here}{note}" if here else f"not here{note}")
    return found


def missing(place: str, name: str, owner: Any, called: str = "") -> AttributeError:
    """The error for a missing attribute of ``owner``: a module of this library, or an object of the class ``place``."""
    answers = _answers() if not name.startswith("_") else {}
    answer = next((answers[f"{root}.{name}"] for root in _PLACES[place] if f"{root}.{name}" in answers), "")
    text = f"{called or place} has no {name!r}" + (f": {answer}" if answer else "")
    return AttributeError(text, name=name, obj=owner)


class Count(int):
    """``x.size``: a number, which says what to write where it is called as PyTorch's ``x.size()`` is."""

    def __call__(self, *axes: Any) -> Any:
        raise TypeError("x.size is the number of elements here: PyTorch's x.size() is x.shape, and x.size(0) is x.shape[0]")


def unknown_argument(function: str, name: str, known: Sequence[str]) -> TypeError:
    """The error for an argument of a name that the function does not have."""
    ours = KEYWORDS.get(name, "")
    hint = f"PyTorch's {name} is {ours} here, and " if ours in known else ""
    hint = "nothing is moved to a device, and " if name == "device" else hint
    return TypeError(f"{function} has no argument {name!r}: {hint}its arguments are {', '.join(known)}")
