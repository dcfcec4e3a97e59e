"""What made a run and what the run is, as its config.json says; and the command that uses what a folder holds.

A folder may hold a run, a pretrained model, word vectors, or the folders of several runs. Whoever gets one that it cannot use
asks this file for a message that helps.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyformer.common.errors import SettingError, UserError, shortened
from tinyformer.common.files import parse_json, read_file
from tinyformer.common.schema import check_fields, read_dataclass
from tinyformer.runs import example_names

RECORD = "made_by"  # the part of config.json that holds a ``Maker``
PRETRAINED = "pretrained model"
LONGEST_NAME = 255  # bytes, of a file on most systems


@dataclass(frozen=True)
class Maker:
    """What a run is, and the program that made it: a part of the run's config.json.

    - ``kind``: what was trained, such as "language model". Programs use any run of their kind.
    - ``program``: the file's name, such as my_gpt.py.
    - ``use``: the words with which that program uses the run, such as ["sample"].
    - ``several``: whether the program makes several runs in one folder, and --out names that folder. ``use`` then makes one of
      them.

    Raises SettingError for anything but the name of a file.

    >>> from tinyformer import Maker
    >>> Maker("language model", "my_gpt.py", ["sample"]).what
    'a run of my_gpt.py'
    """

    kind: str
    program: str
    use: list[str] = field(default_factory=list)
    several: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if not _is_file_name(self.program):  # it is shown in commands to paste into a shell
            raise SettingError(f"program must be the name of a file, not {shortened(repr(self.program), 40)}")

    @property
    def what(self) -> str:
        """A run in words, as in "a run of my_gpt.py"."""
        return f"a run of {shortened(self.program, 60)}"

    def use_command(self, folder: str | Path) -> str:
        """The command that uses the run in a folder."""
        return _command(self.program, *self.use, "--out", str(Path(folder).parent if self.several else folder))

    def resume_command(self, folder: str | Path) -> str:
        """The command that goes on with the run in a folder."""
        return self.use_command(folder) if self.several else _command(self.program, "--resume", "--out", str(folder))


@dataclass(frozen=True)
class Found:
    """What a folder holds: its ``kind``, and in words "a run of my_gpt.py". ``program`` uses it, with the ``command``."""

    kind: str
    what: str
    program: str
    command: str

    def refusal(self, path: str | Path, wanted: str) -> UserError:
        """The error for a folder that should hold something else."""
        return UserError(f"{path} holds {self.what}, not {wanted}: use it with {self.command}")


def maker_of(settings: Mapping[str, Any], folder: Path) -> Maker | None:
    """What made a run with these settings in this folder; None if nothing tells. Raises UserError for a damaged record."""
    if RECORD in settings:
        return read_dataclass(Maker, settings[RECORD], RECORD)
    record = example_names.record_of_before(settings, folder.resolve().name)
    return None if record is None else Maker(**record)


def found_in(path: str | Path) -> Found | None:
    """What a folder holds, if a program is known that uses it."""
    folder = Path(path)
    settings = _settings(folder)
    with suppress(UserError):  # a damaged record is told by whoever needs it
        maker = maker_of(settings, folder)
        if maker is not None:
            return Found(maker.kind, maker.what, maker.program, maker.use_command(folder))
    if "model_type" in settings:  # as in Hugging Face's files
        program, *words = example_names.of_pretrained(str(settings["model_type"]))
        return Found(PRETRAINED, f"a {PRETRAINED}", program, _command(program, *words, "--model", str(folder)))
    vectors = folder / "vectors.txt"
    if vectors.is_file():
        program = example_names.OF_VECTORS
        return Found("word vectors", "word vectors", program, _command(program, "--vectors", str(vectors)))
    return None


def check_kind(kind: str, path: str | Path) -> None:
    """Raise UserError if a folder holds something else than a run of this kind, with the command that uses it."""
    found = found_in(path)
    if found is not None and found.kind != kind:
        raise found.refusal(path, f"a run of a {kind}")


def resume_command(path: str | Path, part: Path | None = None) -> str:
    """The command that goes on with the run in a folder. Its config.json is in another folder, ``part``, while its files are
    moved into place. Where no program is known that made it, the flag alone."""
    with suppress(UserError):
        maker = maker_of(_settings(part or Path(path)), Path(path))
        if maker is not None:
            return maker.resume_command(path)
    return "--resume"


def runs_below(path: str | Path) -> list[Path]:
    """The folders in a folder that hold runs."""
    return sorted(file.parent for file in Path(path).glob("*/config.json"))


def _is_file_name(name: str) -> bool:
    """Whether this names a file in a folder and nothing else, such as a folder above or a flag."""
    is_name = Path(name).name == name and name not in ("", "..") and not name.startswith("-")
    return is_name and name.isprintable() and len(name.encode()) <= LONGEST_NAME


def _settings(folder: Path) -> Mapping[str, Any]:
    """What config.json holds; nothing if it is missing or damaged, which is told by whoever needs it."""
    try:
        return parse_json(read_file(folder / "config.json").decode("utf-8"))
    except (OSError, ValueError):
        return {}


def _command(program: str, *words: str) -> str:
    """A command to paste into a shell. The program is named as this one was, if it lies beside it."""
    beside = Path(sys.argv[0]).with_name(program)
    return shlex.join(["python", str(beside if beside.exists() else example_names.path_of(program)), *words])
