"""Support for short scripts: flags, one-line errors, a results folder, and steps with a progress bar.

Start a script with ``import tinyformer.commands.script as script``. From then on, errors end it with one line and status 2, as
in ``plain_errors``, even errors in its other imports. This file therefore imports only fast modules.
"""

from __future__ import annotations

import atexit
import sys
from contextlib import ExitStack

from tinyformer.common.errors import tell_errors_plainly

TYPE_CHECKING = False  # for type checkers; importing typing is slow
if TYPE_CHECKING:
    import argparse
    import pathlib
    from collections.abc import Iterator
    from typing import Any

    from tinyformer.common.progress import Progress

HELP = {
    "data": "a UTF-8 text file or a folder of them (default: Tiny Shakespeare, downloaded once)",
    "model": "a pretrained model: a folder in Hugging Face format, a GGUF file, or a name on the hub",
    "prompt": "prompt",
    "steps": "training steps",
    "task": "task to learn",
}

tell_errors_plainly()
_held = ExitStack()  # folders locked by this process until it ends
atexit.register(_held.close)


def flags(about: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse the script's flags. ``about`` is its docstring; --help shows the first paragraph.

    Each keyword is a flag, and its value the default: a number for a count of at least 1, a string for a string, several
    strings for a choice (the first is the default), and None for a path. ``HELP`` has the help of each name. An invalid command
    line ends the script.

    ::

        flags = script.flags(__doc__, steps=1500, data=None)
    """
    from os.path import basename

    from tinyformer.commands.command_line import Parser, some_path
    from tinyformer.common.settings import as_flag

    parser = Parser(prog=basename(sys.argv[0]), description=(about or "").partition("\n\n")[0])
    for name, default in defaults.items():
        options: dict[str, Any] = {"type": some_path, "metavar": "PATH"}
        if isinstance(default, int):
            options = {"type": _count, "metavar": "INT"}
        elif isinstance(default, str):
            options = {"metavar": "TEXT"}
        elif default is not None:
            default, options = default[0], {"choices": default}
        parser.add_argument(as_flag(name), default=default, help=HELP[name], **options)
    return parser.parse_args()


def _count(text: str) -> int:
    from argparse import ArgumentTypeError

    if (count := int(text)) < 1:
        raise ArgumentTypeError(f"it must be at least 1, got {count}")
    return count


_count.__name__ = "int"  # argparse's name for it in messages


def new_folder(path: str) -> pathlib.Path:
    """Create a folder for the script's results: ``path`` or, if it is not empty, PATH-2 and so on (with a notice). Nothing is
    ever overwritten.

    This process locks the folder until it ends, and removes it if empty. Raises OSError if it cannot be created.
    """
    import itertools
    import pathlib

    from tinyformer.common.errors import UserError, print_line
    from tinyformer.training.run_folder import RunFolder

    def is_free(folder: pathlib.Path) -> bool:
        if folder.is_dir():
            return all(file.name == ".lock" for file in folder.iterdir())  # left by a killed process
        return not (folder.exists() or folder.is_symlink())

    folders = (pathlib.Path(path if number == 1 else f"{path}-{number}") for number in itertools.count(1))
    for folder in filter(is_free, folders):
        try:
            _held.enter_context(RunFolder(folder).held())
        except UserError:  # another process has locked it
            continue
        if str(folder) != path:
            print_line(f"{path} is not empty; saving to {folder} instead")
        break
    return folder


class Steps:
    """Iterate over the steps of a long task, from 1 to ``count``, with a progress bar on a terminal, otherwise lines.

    ::

        steps = script.Steps(flags.steps)
        for step in steps:
            ...
            steps.print(f"step {step}: loss {loss:.4f}")
    """

    def __init__(self, count: int, what: str = "training"):
        self.count = count
        self.what = what
        self._bar: Progress | None = None

    def __iter__(self) -> Iterator[int]:
        from tinyformer.common.progress import show_progress

        with show_progress(self.what, self.count, "step") as self._bar:
            for step in range(1, self.count + 1):
                yield step
                self._bar.update()
        self._bar = None

    def print(self, text: str) -> None:
        """Print a line without breaking the bar."""
        print(text) if self._bar is None else self._bar.write(text)
