"""A family maps the settings and tensors of one Hugging Face architecture to one of our models."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_json
from tinyformer.common.settings import read_value
from tinyformer.models.activations import names_of_published, published_names
from tinyformer.models.gpt import GPT, GPTVectors
from tinytensor.device.backend import Array, default_dtype
from tinytensor.nn import Module

ACTIVATION, PROBABILITY = "activation", "probability"  # setting types read by the methods of these names


class Row(NamedTuple):
    """Maps a config.json setting to a setting of our model, with transformers' ``default`` (None: required).

    ``theirs`` is one name or several, separated by spaces. All are written; the first is read. The ``common`` name, which
    transformers accepts for every architecture, takes precedence in a file.
    """

    ours: str
    theirs: str
    type: Any
    default: Any = None
    common: str = ""


class PretrainedSettings:
    """The settings in a JSON file. Each method raises UserError with the file and the setting."""

    def __init__(self, path: str | Path, values: Mapping[str, Any] | None = None):
        self.path = Path(path)
        self.values = read_json(self.path) if values is None else values

    def error(self, problem: str) -> UserError:
        """Return an error about these settings."""
        return UserError(f"{self.path}: {problem}")

    def read(self, expected: Any, name: str, default: Any = None) -> Any:
        """Return a setting of type ``expected``, or the default if it is missing or null. Without a default, it is required."""
        value = self.values.get(name)
        if value is None:
            if default is None and expected is not None:
                raise self.error(f"{name} is missing: is the file complete?")
            return default
        try:
            return read_value(expected, value, name)
        except UserError as error:
            raise self.error(str(error)) from None

    def by_own_names(self, rows: Sequence[Row]) -> PretrainedSettings:
        """Return the settings with common names replaced by the architecture's own names."""
        common = {row.theirs.split()[0]: self.values.get(row.common) for row in rows if row.common}
        renamed = {name: value for name, value in common.items() if value is not None}
        return PretrainedSettings(self.path, {**self.values, **renamed})

    def ours(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return our model's settings for these rows."""
        settings, values = self.by_own_names(rows), dict[str, Any]()
        for ours, theirs, dtype, default, _ in rows:
            name = theirs.split()[0]
            values[ours] = (
                getattr(settings, dtype)(name, default) if isinstance(dtype, str) else settings.read(dtype, name, default)
            )
        return values

    def probability(self, name: str, default: float | None) -> Any:
        """Return a dropout probability, or the default (possibly None) if it is missing or null."""
        value = default if self.values.get(name) is None else self.read(float, name)
        if value is not None and not 0.0 <= value < 1.0:
            raise self.error(f"{name} must be at least 0 and less than 1, got {value}")
        return value

    def given(self) -> dict[str, Any]:
        """Return all settings that are not null."""
        return {name: value for name, value in self.values.items() if value is not None}

    def activation(self, name: str, default: str) -> str:
        """Return our name of the activation in a setting."""
        published = self.read(str, name, default)
        known = names_of_published()
        if published not in known:
            raise self.error(f"unknown {name} {shortened(repr(published), 40)}: only {', '.join(sorted(known))} can be loaded")
        return known[published]

    def refuse(self, **allowed: Any) -> None:
        """Check that each setting is missing or has the only supported value."""
        for name, value in allowed.items():
            actual = self.values.get(name)
            if actual is not None and actual != value:
                raise self.error(f"{name} {shortened(repr(actual), 40)} is not supported: it must be {value!r}")

    def refuse_others(self, *known: str) -> None:
        """Check that all other settings are off: null, false, 0 or empty."""
        self.refuse(**{name: None for name, value in self.values.items() if name not in known and value})

    def same(self, *names: str) -> None:
        """Check that these settings have the same value where present."""
        present = {name: self.values[name] for name in names if self.values.get(name) is not None}
        if len(set(map(str, present.values()))) > 1:
            values = ", ".join(shortened(str(value), 40) for value in present.values())
            raise self.error(f"{' and '.join(present)} must be equal, got {values}")


def described(rows: Sequence[Row], config: Any) -> dict[str, Any]:
    """Return the config.json settings for these rows, given our model's configuration."""
    values = dict[str, Any]()
    for row in rows:
        value = getattr(config, row.ours)
        values |= dict.fromkeys(row.theirs.split(), published_names()[value] if row.type == ACTIVATION else value)
    return values


def must_be(architecture: str, config: Any, **values: Any) -> None:
    """Raise UserError if a setting of our model differs from the value or values that this architecture supports."""
    for name, value in values.items():
        actual, allowed = getattr(config, name), value if isinstance(value, tuple) else (value,)
        if actual not in allowed:
            choices = " or ".join(map(repr, allowed))
            raise UserError(f"cannot save this model as {architecture}: {name} must be {choices}, got {actual!r}")


# ------------------------------------------------------------------------------------------------------------------ the tensors

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # block number in a layer name


@dataclass(frozen=True)
class Family:
    """An architecture, with or without a head.

    ``names`` maps our name of a layer (or of a tensor outside layers) to the name in the file. In it:

    - ``*`` stands for the number of a block.
    - ``[q,k,v]`` stands for several layers that are a single layer here. Their outputs are concatenated.
    - Suffix ``^T``: the weight is stored as (inputs, outputs). ``^1``: a vector is stored as (1, n). ``^-1``: a weight is
      stored minus 1.

    ``make`` builds the model from config.json settings. ``describe`` does the reverse for a model of class ``model_class`` that
    satisfies ``suits``, or raises UserError if the architecture cannot express it.

    A config.json belongs to the family with its ``model_type`` and one of its ``architectures``. Otherwise, it belongs to the
    first family whose ``matches`` accepts the settings and tensor names.

    ``prefix`` starts all names except those of heads. Some files omit it. ``copies`` maps a tensor's name to another tensor
    with the same values. Files contain both or either.

    Four fields are regular expressions. ``ignored`` matches names in files to skip, ``unused`` layer names to skip with a
    warning. ``optional`` matches our names that a file may lack, and ``biases`` our names of biases that files must have, even
    if the model lacks them.
    """

    name: str
    model_types: tuple[str, ...]
    names: Mapping[str, str]
    make: Callable[[PretrainedSettings], Module]
    describe: Callable[[Any], dict[str, Any]]
    model_class: type[Module]
    suits: Callable[[Any], bool] = lambda model: True
    architectures: tuple[str, ...] = ()
    matches: Callable[[PretrainedSettings, Collection[str]], bool] = lambda settings, names: True
    prefix: str = ""
    copies: Mapping[str, str] = field(default_factory=dict)
    ignored: str = r"(?!)"
    unused: str = r"(?!)"
    optional: str = r"(?!)"
    biases: str = r"(?!)"

    def ignores(self, name: str, pattern: str) -> bool:
        """Return True if a tensor name in a file, with or without the prefix, matches the pattern."""
        return any(re.fullmatch(pattern, spelling) for spelling in (name, self.prefix + name))

    def source(self, name: str) -> Source:
        """Return the source of our tensor ``name``."""
        layer, _, parameter = name.rpartition(".")
        if name in self.names:
            layer, parameter = name, ""
        theirs, _, layout = self.names[_NUMBER.sub("*", layer)].partition("^")
        for number in _NUMBER.findall(layer):
            theirs = theirs.replace("*", number, 1)
        ending = f".{parameter}" if parameter else ""
        return Source(tuple(part + ending for part in _expanded(theirs)), "" if parameter == "bias" else layout)


# For each layout, the functions from ours to theirs and back.
_LAYOUTS: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "": (lambda x: x, lambda x: x),
    "T": (lambda x: x.T, lambda x: x.T),
    "1": (lambda x: x[None], lambda x: x[0]),
    "-1": (lambda x: x - 1, lambda x: x.astype(default_dtype) + 1),
}


@dataclass(frozen=True)
class Source:
    """File tensors that are concatenated into one of our tensors. ``layout`` is the form of each in the file: "T" transposed,
    "1" with a leading axis of 1, "-1" minus 1, or "" unchanged."""

    names: tuple[str, ...]
    layout: str = ""

    def as_theirs(self, part: Array) -> Array:
        """Convert a slice of our tensor to the file's layout."""
        return _LAYOUTS[self.layout][0](part)

    def as_ours(self, part: Array) -> Array:
        """Convert a tensor of the file to our layout."""
        return _LAYOUTS[self.layout][1](part)

    def lengths(self, model: Module, length: int) -> list[int]:
        """Return the length of each part of a tensor of ``model`` whose first axis has this length."""
        parts = len(self.names)
        if isinstance(model, (GPT, GPTVectors)) and parts == 3:  # queries, and possibly fewer keys and values
            key_value_heads, d_head = model.config.block.head_sizes
            return [length - 2 * key_value_heads * d_head, key_value_heads * d_head, key_value_heads * d_head]
        return [length // parts] * parts


def _expanded(name: str) -> list[str]:
    """Expand a name with a bracketed list into all names."""
    match = re.fullmatch(r"(.*)\[(.*)\](.*)", name)
    return [name] if match is None else [f"{match[1]}{choice}{match[3]}" for choice in match[2].split(",")]
