"""What made a run and what the run is, as its config.json says; and the command that uses what a folder holds.

A folder may hold a run, a pretrained model, word vectors, or the folders of several runs. Whoever gets one that it cannot use
asks this file for a message that helps.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyformer.common import commands
from tinyformer.common.errors import SettingError, UserError, print_line, shortened
from tinyformer.common.files import parse_json, read_file
from tinyformer.common.schema import check_fields, read_dataclass
from tinytensor.common.wording import a_or_an, counted

RECORD = "made_by"  # the part of config.json that holds a ``Maker``
PRETRAINED = "pretrained model"
RUNS = "runs"  # the folder where the commands put their runs
LONGEST_NAME = 255  # bytes, of a file on most systems


@dataclass(frozen=True)
class Maker:
    """What a run is, and the program that made it: a part of the run's config.json.

    - ``kind``: what was trained, such as "language model". Programs use any run of their kind.
    - ``program``: the file's name, such as my_gpt.py; or tinyformer, for the command of that name.
    - ``use``: the words with which that program uses the run, such as ["sample"].
    - ``several``: whether the program makes several runs in one folder, and --out names that folder. ``use`` then makes one of
      them.
    - ``train``: the words with which the program trains, where it needs any.

    Raises SettingError for anything but the name of a file.

    >>> from tinyformer import Maker
    >>> Maker("language model", "my_gpt.py", ["sample"]).what
    'a run of my_gpt.py'
    """

    kind: str
    program: str
    use: list[str] = field(default_factory=list)
    several: bool = False
    train: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_fields(self)
        if not _is_file_name(self.program):  # it is shown in commands to paste into a shell
            raise SettingError(f"program must be the name of a file, not {shortened(repr(self.program), 40)}")

    @classmethod
    def of_kind(cls, kind: str) -> Maker:
        """What a run of a command of ``tinyformer`` says, by the kind of the run."""
        return cls(**commands.record(kind))

    @property
    def what(self) -> str:
        """A run in words, as in "a run of my_gpt.py" or "a run of a language model"."""
        return f"a run of {a_or_an(self.kind) if self.program == commands.NAME else shortened(self.program, 60)}"

    def use_command(self, folder: str | Path) -> str:
        """The command that uses the run in a folder."""
        return self._command(*self.use, "--out", str(Path(folder).parent if self.several else folder))

    def train_command(self, folder: str | Path) -> str:
        """The command that trains in a folder, to which flags may be added."""
        return self._command(*self.train, "--out", str(folder))

    def resume_command(self, folder: str | Path) -> str:
        """The command that goes on with the run in a folder."""
        return self.use_command(folder) if self.several else f"{self.train_command(folder)} --resume"

    def _command(self, *words: str) -> str:
        return commands.command(*words) if self.program == commands.NAME else shlex.join(["python", self.program, *words])


@dataclass(frozen=True)
class Found:
    """What a folder holds: its ``kind``, and in words "a run of my_gpt.py"; the ``command`` that uses it, and the one that
    writes it as a pretrained model, if any do."""

    kind: str
    what: str
    command: str
    saving: str = ""

    def refusal(self, path: str | Path, wanted: str) -> UserError:
        """The error for a folder that should hold something else."""
        saving = f", or write {wanted} with {self.saving}" if self.saving and PRETRAINED in wanted else ""
        remedy = f"use it with {self.command}{saving}" if self.command else "choose another folder"
        return UserError(f"{path} holds {self.what}, not {wanted}: {remedy}")


def maker_of(settings: Mapping[str, Any]) -> Maker | None:
    """What made a run with these settings; None if nothing tells. Raises UserError for a damaged record."""
    if RECORD in settings:
        maker = read_dataclass(Maker, settings[RECORD], RECORD)
        record = commands.record_of_script(maker.program)
        return maker if record is None else Maker(**record)
    record = commands.record_of_before(settings)
    return None if record is None else Maker(**record)


def found_in(path: str | Path) -> Found | None:
    """What a folder holds, if a program is known that uses it."""
    folder = Path(path)
    settings = _settings(folder)
    with suppress(UserError):  # a damaged record is told by whoever needs it
        maker = maker_of(settings)
        if maker is not None:
            text = settings.get("text")
            is_gpt = maker.kind == "language model" and not (
                isinstance(text, dict) and text.get("architecture", "gpt") != "gpt"
            )
            saving = commands.command("save", str(folder), f"{folder}-pretrained") if is_gpt else ""
            is_gone = maker.program == commands.NAME and maker.kind not in commands.OF_KINDS
            return Found(maker.kind, maker.what, "" if is_gone else maker.use_command(folder), saving)
    if "model_type" in settings:  # as in Hugging Face's files
        words = commands.of_pretrained(str(settings["model_type"]))
        return Found(PRETRAINED, f"a {PRETRAINED}", commands.command(*words, str(folder)))
    vectors = folder / "vectors.txt"
    if vectors.is_file():
        return Found("word vectors", "word vectors", commands.command("vectors", str(vectors)))
    return None


def check_kind(kind: str, path: str | Path) -> None:
    """Raise UserError if a folder holds something else than a run of this kind, with the command that uses it."""
    found = found_in(path)
    if found is not None and found.kind != kind:
        raise found.refusal(path, f"a run of {a_or_an(kind)}")


def resume_command(path: str | Path, part: Path | None = None) -> str:
    """The command that goes on with the run in a folder. Its config.json is in another folder, ``part``, while its files are
    moved into place. Where no program is known that made it, the flag alone."""
    with suppress(UserError):
        maker = maker_of(_settings(part or Path(path)))
        if maker is not None:
            return maker.resume_command(path)
    return "--resume"


def runs_below(path: str | Path) -> list[Path]:
    """The folders in a folder that hold runs."""
    return sorted(file.parent for file in Path(path).glob("*/config.json"))


def newest_runs(path: str | Path, kinds: Container[str]) -> list[Path]:
    """The folders in a folder that hold runs of these ``kinds`` with a checkpoint, the newest first."""
    runs = []
    for folder in runs_below(path):
        contents = found_in(folder)
        written = [file.stat().st_mtime for file in folder.glob("*.safetensors") if file.stem in ("best", "latest")]
        if written and contents is not None and contents.kind in kinds:
            runs.append((max(written), folder))
    return [folder for _, folder in sorted(runs, reverse=True)]


def newest_run(kinds: Container[str]) -> Path | None:
    """The newest run of these ``kinds`` in runs, or None. If there are others, a line on stderr names some."""
    runs = newest_runs(RUNS, kinds)
    if len(runs) > 1:
        others = ", ".join(map(str, runs[1:5]))
        print_line(f"{runs[0]} is the newest of {counted(len(runs), 'run')} in {RUNS}. Others: {others}", sys.stderr)
    return runs[0] if runs else None


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
