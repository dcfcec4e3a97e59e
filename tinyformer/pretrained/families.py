"""A family: how models of one architecture, in Hugging Face's layout, correspond to models here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tinyformer.pretrained.settings import PretrainedSettings
from tinytensor.nn import Module

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a block, in the name of a layer


@dataclass(frozen=True)
class Family:
    """What is known of one architecture.

    ``names`` maps the name of a layer here to theirs, or of a tensor that belongs to no layer. In it:

    - ``*`` stands for the number of a block.
    - ``[q,k,v]`` stands for several layers, which here are one: their outputs lie side by side.
    - ``^T`` at the end says that their weight is stored as (inputs, outputs).

    ``make`` builds the model for the settings of a config.json, and ``describe`` gives those settings for a model, or raises
    UserError if the architecture cannot be that model. ``prefix`` begins all of their names, but some files leave it out.
    ``ignored`` is a regular expression of names in files that say nothing new, ``optional`` one of names here that a file may
    lack, and ``biases`` one of the names that biases have here and that files must have, even where a model has no bias.
    """

    name: str
    model_types: tuple[str, ...]
    names: Mapping[str, str]
    make: Callable[[PretrainedSettings], Module]
    describe: Callable[[Any], dict[str, Any]]
    prefix: str = ""
    ignored: str = r"(?!)"
    optional: str = r"(?!)"
    biases: str = r"(?!)"

    def source(self, name: str) -> Source:
        """Where the tensor ``name`` of a model here comes from."""
        layer, _, kind = name.rpartition(".")
        if name in self.names:
            layer, kind = name, ""
        pattern = self.names[_NUMBER.sub("*", layer)]
        theirs = pattern.removesuffix("^T")
        for number in _NUMBER.findall(layer):
            theirs = theirs.replace("*", number, 1)
        ending = f".{kind}" if kind else ""
        return Source(tuple(part + ending for part in _expanded(theirs)), pattern.endswith("^T") and kind == "weight")


@dataclass(frozen=True)
class Source:
    """The tensors of a file that together are one tensor here: put together along the first axis, after transposing each if
    ``is_transposed``."""

    names: tuple[str, ...]
    is_transposed: bool


def _expanded(name: str) -> list[str]:
    """The names that a name with a list in brackets stands for."""
    found = re.fullmatch(r"(.*)\[(.*)\](.*)", name)
    return [name] if found is None else [f"{found[1]}{choice}{found[3]}" for choice in found[2].split(",")]
