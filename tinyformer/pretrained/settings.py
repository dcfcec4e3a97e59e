"""The settings of a config.json, read with checks of their types and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_json
from tinyformer.common.settings import read_value
from tinyformer.models.activations import names_of_published, published_names

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
