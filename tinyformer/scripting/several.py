"""Programs that train several models in one go, each with a run's folder in the folder ``--out``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from tinyformer.common.errors import UserError
from tinyformer.runs.makers import found_in
from tinyformer.runs.run_folder import RunFolder
from tinyformer.scripting.command_line import Parser

_AGAIN = ("--resume", "--resume-changed", "--overwrite")


def parse_names(parser: Parser, words: Sequence[str], what: str, known: Sequence[str], out: str) -> argparse.Namespace:
    """The parsed flags of such a program. Its positional argument, ``what`` and an s, names what to train.

    Each name is there once, by default all that are ``known``; the flag ``out`` has this default; and ``words`` are those that
    were given, without the flags that say what becomes of runs that are there. A name that is not known ends the script.
    """
    arguments = parser.parse_args(words)
    names = getattr(arguments, f"{what}s")
    for name in names:
        if name not in known:
            parser.error(f"there is no {what} {name!r}: choose among {', '.join(known)}")
    setattr(arguments, f"{what}s", list(dict.fromkeys(names or known)))
    arguments.out = arguments.out or out
    arguments.words = [word for word in words if word not in _AGAIN]
    return arguments


def check_resumed(
    arguments: argparse.Namespace, names: Sequence[str], folder_of: Callable[[str, argparse.Namespace], RunFolder]
) -> None:
    """Raise UserError where --resume is given and none of the names has a run. The last ones were perhaps not begun."""
    if arguments.resume and not any(folder_of(name, arguments).is_there() for name in names):
        found = found_in(arguments.out)
        if found is not None:
            raise found.refusal(arguments.out, "folders of runs")
        raise UserError(f"{arguments.out} holds no run of {', '.join(names)} to resume: check --out")
