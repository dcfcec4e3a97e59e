"""Settings as typed dataclasses, and their flags on a command line; what the command lines of the examples share."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import textwrap
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tinyformer.errors import UserError

Settings = TypeVar("Settings")


def setting(default: Any, help: str) -> Any:
    """A dataclass field that ``add_settings`` turns into a flag with this help text."""
    return dataclasses.field(default=default, metadata={"help": help})


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults, but not that a switch is off unless it is given; does not cut a flag in two at its hyphens."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.nargs == 0 else super()._get_help_string(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = textwrap.wrap(" ".join(text.split()), width - len(indent), break_on_hyphens=False)
        return "\n".join(indent + line for line in lines)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose --help shows every default, and whose errors are one line (status 2)."""

    def __init__(self, **options: Any):
        super().__init__(**{"formatter_class": _Help, "allow_abbrev": False, **options})

    def error(self, message: str) -> Any:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def add_settings(parser: argparse.ArgumentParser, kind: type, title: str) -> None:
    """Give the parser a flag for each ``setting`` of the dataclass: d_model becomes --d-model.

    The parsed arguments hold only the flags that were given; ``settings_from`` leaves the rest to the dataclass.
    """
    group = parser.add_argument_group(title)
    for field in dataclasses.fields(kind):
        if "help" not in field.metadata:
            continue
        kind_of = type(field.default)
        how: dict[str, Any] = {"type": kind_of, "metavar": kind_of.__name__.upper()}
        if kind_of is bool:
            how = {"action": argparse.BooleanOptionalAction}
        text = f"{field.metadata['help']} (default: {field.default})"
        group.add_argument(_flag(field.name), default=argparse.SUPPRESS, help=text, **how)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def settings_from(kind: type[Settings], values: Mapping[str, Any], **more: Any) -> Settings:
    """The dataclass from a mapping (such as ``vars(arguments)``) that may hold other things, too."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names}, **more)


def changed_settings(kind: type, values: Mapping[str, Any], saved: Any) -> list[str]:
    """The flags of ``kind`` in ``values`` (such as ``vars(arguments)``) that are not what ``saved`` says."""
    names = [field.name for field in dataclasses.fields(kind)]
    return [_flag(name) for name in names if name in values and values[name] != getattr(saved, name)]


def as_flags(settings: Mapping[str, Any]) -> str:
    """Settings as one would give them: --d-model 64 --norm-first."""
    return " ".join(_as_flag(name, value) for name, value in settings.items())


def _as_flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _flag(name) if value else _flag(f"no_{name}")
    return f"{_flag(name)} {value}"


# -------------------------------------------------------------------------------------------------------- runs


def add_run_flags(parser: argparse.ArgumentParser, out: str, help: str = "the run's folder") -> None:
    """Give the parser --out, and for a run that is there already --resume and --overwrite."""
    parser.add_argument("--out", help=help, default=out, metavar="FOLDER")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--resume", help="go on with what is in --out, exactly as if not stopped", action="store_true")
    choice.add_argument("--overwrite", help="replace what is in --out", action="store_true")


def parse_command(parser: argparse.ArgumentParser, commands: Container[str], words: Sequence[str]) -> argparse.Namespace:
    """Parse words that begin with one of the parser's ``commands``; without one, they are for ``train``."""
    return parser.parse_args(words if words and words[0] in commands else ["train", *words])


def next_command(out: str, default: str, *words: str) -> str:
    """A command of this script for the run in ``out``, as a shell takes it; the default folder goes without saying."""
    return shlex.join(["python", sys.argv[0], *words, *([] if out == default else ["--out", out])])


# -------------------------------------------------------------------------------------------------------- files


@contextmanager
def damaged(what: object) -> Iterator[None]:
    """Whatever goes wrong inside is told as damage to ``what`` (a path, or several)."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError(f"{what} is damaged: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's object. Raises UserError that names the file where it is missing or is no such thing."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: is {path.parent} the folder of a run?") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, dataclasses as objects; an existing file stays until the new one is whole."""
    from tinytensor.io import atomic_write

    with atomic_write(path) as temporary:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=dataclasses.asdict)
        temporary.write_text(text + "\n", encoding="utf-8")
