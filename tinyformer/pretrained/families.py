"""A family: how the settings and tensors of one architecture, in Hugging Face's layout, correspond to a model here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_json
from tinyformer.common.schema import read_value
from tinyformer.models.activations import names_of_published, published_names
from tinyformer.models.gpt import GPT, GPTVectors
from tinytensor.device.backend import Array, default_dtype
from tinytensor.nn import Module

ACTIVATION, PROBABILITY = "activation", "probability"  # types of settings, besides Python's: each is read by that method


class Row(NamedTuple):
    """A setting of a model here and in a config.json, whose ``default`` is that of transformers. None: it must be there.

    ``theirs`` are one name or several, with spaces between them: all are written, and the first is read. Where a file has the
    ``common`` name, too, that one counts: transformers takes it for any architecture.
    """

    ours: str
    theirs: str
    type: Any
    default: Any = None
    common: str = ""


class PretrainedSettings:
    """The settings in a JSON file. Each method raises UserError, which names the file and the setting."""

    def __init__(self, path: str | Path, values: Mapping[str, Any] | None = None):
        self.path = Path(path)
        self.values = read_json(self.path) if values is None else values

    def error(self, problem: str) -> UserError:
        """An error about these settings."""
        return UserError(f"{self.path}: {problem}")

    def read(self, kind: Any, name: str, default: Any = None) -> Any:
        """The setting, which must have the type ``kind``. Where it is missing or null, the default; without a default it must
        be there."""
        value = self.values.get(name)
        if value is None:
            if default is None and kind is not None:
                raise self.error(f"{name} is missing")
            return default
        try:
            return read_value(kind, value, name)
        except UserError as error:
            raise self.error(str(error)) from None

    def by_own_names(self, rows: Sequence[Row]) -> PretrainedSettings:
        """The same settings, with those that have a common name by the architecture's own."""
        common = {row.theirs.split()[0]: self.values.get(row.common) for row in rows if row.common}
        own = {name: value for name, value in common.items() if value is not None}
        return PretrainedSettings(self.path, {**self.values, **own})

    def ours(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The settings of a model here that the rows name."""
        settings, values = self.by_own_names(rows), dict[str, Any]()
        for ours, theirs, kind, default, _ in rows:
            name = theirs.split()[0]
            values[ours] = (
                getattr(settings, kind)(name, default) if isinstance(kind, str) else settings.read(kind, name, default)
            )
        return values

    def probability(self, name: str, default: float | None) -> Any:
        """The probability of dropping that a setting says; where it is missing or null, the default, which may be None."""
        found = default if self.values.get(name) is None else self.read(float, name)
        if found is not None and not 0.0 <= found < 1.0:
            raise self.error(f"{name} must be at least 0 and less than 1, not {found}")
        return found

    def given(self) -> dict[str, Any]:
        """The settings that are not null."""
        return {name: value for name, value in self.values.items() if value is not None}

    def activation(self, name: str, default: str) -> str:
        """The activation that a setting names, by its name here."""
        found = self.read(str, name, default)
        known = names_of_published()
        if found not in known:
            raise self.error(f"{name} {shortened(repr(found), 40)} is not known; there are {', '.join(sorted(known))}")
        return known[found]

    def refuse(self, **allowed: Any) -> None:
        """Check that each setting has the one value with which the model can be built here, or is missing."""
        for name, value in allowed.items():
            found = self.values.get(name)
            if found is not None and found != value:
                raise self.error(f"{name} {shortened(repr(found), 40)} cannot be used here; only {value!r} can")

    def refuse_others(self, *known: str) -> None:
        """Check that all settings but those that are known are off, such as null, false or empty."""
        self.refuse(**{name: None for name, value in self.values.items() if name not in known and value})

    def same(self, *names: str) -> None:
        """Check that these settings, where they are given, have one value."""
        found = {name: self.values[name] for name in names if self.values.get(name) is not None}
        if len(set(map(str, found.values()))) > 1:
            values = ", ".join(shortened(str(value), 40) for value in found.values())
            raise self.error(f"{' and '.join(found)} must be equal here, not {values}")


def described(rows: Sequence[Row], config: Any) -> dict[str, Any]:
    """The settings of a config.json that the rows name, of a model here."""
    values = dict[str, Any]()
    for row in rows:
        value = getattr(config, row.ours)
        values |= dict.fromkeys(row.theirs.split(), published_names()[value] if row.type == ACTIVATION else value)
    return values


def must_be(architecture: str, config: Any, **values: Any) -> None:
    """Raise UserError if a setting of a model here is not the value, or one of the values, that this architecture can have."""
    for name, value in values.items():
        found, allowed = getattr(config, name), value if isinstance(value, tuple) else (value,)
        if found not in allowed:
            choices = " or ".join(map(repr, allowed))
            raise UserError(
                f"{architecture} has {name} {choices}, and this model {found!r}: it cannot be written as {architecture}"
            )


# ------------------------------------------------------------------------------------------------------------------ the tensors

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a block, in the name of a layer


@dataclass(frozen=True)
class Family:
    """What is known of one architecture, with one head or without.

    ``names`` maps the name of a layer here to theirs, or of a tensor that belongs to no layer. In it:

    - ``*`` stands for the number of a block.
    - ``[q,k,v]`` stands for several layers, which here are one: their outputs lie side by side.
    - ``^T`` at the end says that their weight is stored as (inputs, outputs), ``^1`` that a vector is stored as (1, n), and
      ``^-1`` that a weight is stored less 1.

    ``make`` builds the model for the settings of a config.json. ``describe`` gives those settings for a model of the class
    ``kind`` for which ``suits`` is true, or raises UserError if the architecture cannot be that model.

    A config.json is of this family if its ``model_type`` and one of its ``architectures`` are here. Where no family has these
    architectures, it is the first for which ``found`` is true, of the settings and the names of the file's tensors.

    ``prefix`` begins the names of all layers but heads, and some files leave it out. ``copies`` maps the name of a tensor to
    that of another which it shares its values with: files have both, or either.

    Four are regular expressions: ``ignored`` of names in files that say nothing new, ``unused`` of those whose layers are left
    out, which is told, ``optional`` of names here that a file may lack, and ``biases`` of the names that biases have here and
    that files must have, even where a model has none.
    """

    name: str
    model_types: tuple[str, ...]
    names: Mapping[str, str]
    make: Callable[[PretrainedSettings], Module]
    describe: Callable[[Any], dict[str, Any]]
    kind: type[Module]
    suits: Callable[[Any], bool] = lambda model: True
    architectures: tuple[str, ...] = ()
    found: Callable[[PretrainedSettings, Collection[str]], bool] = lambda settings, names: True
    prefix: str = ""
    copies: Mapping[str, str] = field(default_factory=dict)
    ignored: str = r"(?!)"
    unused: str = r"(?!)"
    optional: str = r"(?!)"
    biases: str = r"(?!)"

    def ignores(self, name: str, pattern: str) -> bool:
        """Whether the name of a tensor in a file, with the prefix or without, is one of those of a pattern."""
        return any(re.fullmatch(pattern, whole) for whole in (name, self.prefix + name))

    def source(self, name: str) -> Source:
        """Where the tensor ``name`` of a model here comes from."""
        layer, _, kind = name.rpartition(".")
        if name in self.names:
            layer, kind = name, ""
        theirs, _, layout = self.names[_NUMBER.sub("*", layer)].partition("^")
        for number in _NUMBER.findall(layer):
            theirs = theirs.replace("*", number, 1)
        ending = f".{kind}" if kind else ""
        return Source(tuple(part + ending for part in _expanded(theirs)), "" if kind == "bias" else layout)


# Of each layout: from ours to theirs, and back.
_LAYOUTS: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "": (lambda x: x, lambda x: x),
    "T": (lambda x: x.T, lambda x: x.T),
    "1": (lambda x: x[None], lambda x: x[0]),
    "-1": (lambda x: x - 1, lambda x: x.astype(default_dtype) + 1),
}


@dataclass(frozen=True)
class Source:
    """The tensors of a file that are one tensor here, one after the other along its first axis. ``layout`` says how the file
    has each: "T" transposed, "1" with a first axis of 1, "-1" less 1, "" as it is here."""

    names: tuple[str, ...]
    layout: str = ""

    def as_theirs(self, part: Array) -> Array:
        """A part of the tensor here, as the file has it."""
        return _LAYOUTS[self.layout][0](part)

    def as_ours(self, part: Array) -> Array:
        """A tensor of the file, as it is here."""
        return _LAYOUTS[self.layout][1](part)

    def lengths(self, model: Module, length: int) -> list[int]:
        """How long each part is of a tensor of ``model`` whose first axis has this length."""
        parts = len(self.names)
        if isinstance(model, (GPT, GPTVectors)) and parts == 3:  # queries, and fewer keys and values
            key_value_heads, d_head = model.config.block.head_sizes
            return [length - 2 * key_value_heads * d_head, key_value_heads * d_head, key_value_heads * d_head]
        return [length // parts] * parts


def _expanded(name: str) -> list[str]:
    """The names that a name with a list in brackets stands for."""
    found = re.fullmatch(r"(.*)\[(.*)\](.*)", name)
    return [name] if found is None else [f"{found[1]}{choice}{found[3]}" for choice in found[2].split(",")]
