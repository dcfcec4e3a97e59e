"""Settings as typed dataclasses, and their flags on a command line; what the command lines of the examples share."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyformer.old_names import new_value, old_names


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
        how: dict[str, Any] = {"type": _reader(field.name, kind_of), "metavar": kind_of.__name__.upper()}
        if kind_of is bool:
            how = {"action": argparse.BooleanOptionalAction}
        text = f"{field.metadata['help']} (default: {field.default})"
        group.add_argument(_flag(field.name), default=argparse.SUPPRESS, help=text, **how)
        for old in map(_flag, old_names(field.name)):  # such as --d-inner for --d-ff
            group.add_argument(old, dest=field.name, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **how)


def _reader(name: str, kind: type) -> Callable[[str], Any]:
    """What turns a flag's text into the setting's value."""

    def read(text: str) -> Any:
        return new_value(name, kind(text))

    read.__name__ = kind.__name__  # argparse names it in its messages
    return read


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def as_flags(settings: Mapping[str, Any]) -> str:
    """Settings as one would give them: --d-model 64 --norm-first."""
    return " ".join(_as_flag(name, value) for name, value in settings.items())


def _as_flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _flag(name) if value else _flag(f"no_{name}")
    return f"{_flag(name)} {value}"


# -------------------------------------------------------------------------------------------------------- runs


def some_path(text: str) -> str:
    """The ``type`` of a flag for a path: an empty one, as from a variable of the shell that is not set, is refused."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty")
    return text


def add_run_flags(parser: argparse.ArgumentParser, out: str, help: str = "the run's folder") -> None:
    """Give the parser --out, and for a run that is there already --resume, --resume-changed and --overwrite.

    ``arguments.resume`` is False, True, or "changed".
    """
    text = f"{help} (default: {out}, or for --data its name behind that)"
    parser.add_argument("--out", help=text, type=some_path, metavar="FOLDER")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--resume", help="go on with what is in --out, exactly as if not stopped", action="store_true")
    choice.add_argument(
        "--resume-changed",
        help="go on with what is in --out, but with the training settings given here, or written in its config.json since",
        action="store_const",
        const="changed",
        dest="resume",
        default=False,
    )
    choice.add_argument(
        "--overwrite", help="replace what is in --out, once the new run has trained a step", action="store_true"
    )


def folder_for(out: str, data: str | None) -> str:
    """The folder of a run that was not told one: ``out``; for data of one's own ``out`` and their name."""
    if data is None:
        return out
    name = re.sub(r"(\.(txt|tsv|gz))+$", "", Path(data).resolve().name)
    name = re.sub(r"[^\w.-]+", "_", name)
    return f"{out}-{name or 'data'}"


def parse_command(parser: argparse.ArgumentParser, commands: Container[str], words: Sequence[str]) -> argparse.Namespace:
    """Parse words that begin with one of the parser's ``commands``; without one, they are for ``train``."""
    return parser.parse_args(words if words and words[0] in commands else ["train", *words])


def next_command(out: str, default: str, *words: str) -> str:
    """A command of this script for the run in ``out``, as a shell takes it; the default folder goes without saying."""
    return shlex.join(["python", sys.argv[0], *words, *([] if out == default else ["--out", out])])
