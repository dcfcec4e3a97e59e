"""What created a run, according to its config.json, and the command that uses a folder's content.

A folder may hold a run, a pretrained model, word vectors, or the folders of several runs. Code that cannot use a folder finds
the right command here.

The first versions did not record what created a run. Later versions recorded scripts whose work is now done by commands.
Pretrained models and word vectors have no record.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyformer.common.errors import SettingError, UserError, print_line, shortened
from tinyformer.common.files import parse_json, read_file
from tinyformer.common.settings import check_fields, read_dataclass
from tinytensor.common.wording import a_or_an, counted

NAME = "tinyformer"  # name of the installed command
RECORD = "made_by"  # config.json section that holds a ``Maker``
PRETRAINED = "pretrained model"
RUNS = "runs"  # where the commands put their runs
LONGEST_NAME = 255  # bytes; the limit of most file systems

# The run types, each with the words that train it and those that use it.
LANGUAGE_MODEL, MASKED_MODEL, TRANSLATOR = "language model", "masked language model", "translator"
_FILL = ("fill", "a sentence with a [MASK]")
_TRANSLATE = ("translate", "a sentence")
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    LANGUAGE_MODEL: (("train", "gpt"), ("sample",)),
    MASKED_MODEL: (("train", "bert"), _FILL),
    TRANSLATOR: (("train", "translator"), _TRANSLATE),
}
# What earlier versions' scripts created, as recorded in their runs. No command uses the last three types any more.
_SCRIPTS = {
    "char_gpt.py": LANGUAGE_MODEL,
    "fill_mask.py": MASKED_MODEL,
    "translate.py": TRANSLATOR,
    "dial_tones.py": "dial tone transcriber",
    "memory.py": "recall network",
    "algorithms.py": "problem solver",
}
# Commands of earlier versions, and the scripts to run instead.
GONE = {
    "algorithms": "algorithms.py",
    "markov": "markov.py",
    "memory": "memory.py",
    **dict.fromkeys(("tones", "transcribe", "record"), "dial_tones.py"),
}
# The config.json section and setting that reveal the type of a run without a record.
_SIGNS = {("text", "bpe_tokens"): LANGUAGE_MODEL, ("text", "wordpieces"): MASKED_MODEL, ("task", "length_penalty"): TRANSLATOR}
# The words that use a pretrained model, by Hugging Face model_type. All others continue text.
_PRETRAINED = {"bert": (*_FILL, "--model"), "marian": (*_TRANSLATE, "--model")}


def tinyformer_command(*words: str) -> str:
    """Return a ``tinyformer`` command line to paste into a shell."""
    return shlex.join([*([NAME] if shutil.which(NAME) else ["python", "-m", NAME]), *words])


@dataclass(frozen=True)
class Maker:
    """A run's type and the program that created it: a section of config.json.

    - ``kind``: type of model, such as "language model". Programs use any run of their type.
    - ``program``: file name, such as my_gpt.py; or tinyformer for the command of that name.
    - ``use``: arguments with which that program uses the run, such as ["sample"].
    - ``several``: True if the program creates several runs in the folder --out. ``use`` then creates one of them.
    - ``train``: arguments with which the program trains, if any.

    Raises SettingError for anything but a file name.

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
        if not _is_file_name(self.program):  # shown in commands to paste into a shell
            raise SettingError(f"program must be the name of a file, got {shortened(repr(self.program), 40)}")

    @classmethod
    def of_kind(cls, kind: str) -> Maker:
        """Return the maker of runs of this type that a ``tinyformer`` command trains."""
        train, use = KINDS.get(kind, ((), ()))
        return cls(kind, NAME, list(use), train=list(train))

    @property
    def what(self) -> str:
        """A phrase such as "a run of my_gpt.py" or "a run of a language model"."""
        return f"a run of {a_or_an(self.kind) if self.program == NAME else shortened(self.program, 60)}"

    def use_command(self, folder: str | Path) -> str:
        """Return the command that uses the run in a folder."""
        return self._command(*self.use, "--out", str(Path(folder).parent if self.several else folder))

    def train_command(self, folder: str | Path) -> str:
        """Return the command that trains in a folder. Flags may be appended."""
        return self._command(*self.train, "--out", str(folder))

    def resume_command(self, folder: str | Path) -> str:
        """Return the command that resumes the run in a folder."""
        return self.use_command(folder) if self.several else f"{self.train_command(folder)} --resume"

    def _command(self, *words: str) -> str:
        return tinyformer_command(*words) if self.program == NAME else shlex.join(["python", self.program, *words])


@dataclass(frozen=True)
class Contents:
    """The content of a folder: its ``kind``, and ``what`` as a phrase, such as "a run of my_gpt.py". ``command`` uses it, and
    ``saving`` saves it as a pretrained model. Both may be ""."""

    kind: str
    what: str
    command: str
    saving: str = ""

    def refusal(self, path: str | Path, wanted: str) -> UserError:
        """Return the error for a folder that should contain something else."""
        saving = f", or write {wanted} with {self.saving}" if self.saving and PRETRAINED in wanted else ""
        remedy = f"use it with {self.command}{saving}" if self.command else "choose another folder"
        return UserError(f"{path} holds {self.what}, not {wanted}: {remedy}")


def maker_of(settings: Mapping[str, Any]) -> Maker | None:
    """Return what created a run with these settings, or None if unknown. Raises UserError for a damaged record."""
    if RECORD in settings:
        maker = read_dataclass(Maker, settings[RECORD], RECORD)
        return Maker.of_kind(_SCRIPTS[maker.program]) if maker.program in _SCRIPTS else maker
    for (part, name), kind in _SIGNS.items():
        if isinstance(settings.get(part), Mapping) and name in settings[part]:
            return Maker.of_kind(kind)
    model = settings.get("model")
    if set(settings) == {"model", "training", "data"} and isinstance(model, Mapping) and "block_size" in model:
        return Maker.of_kind(LANGUAGE_MODEL)  # written by the very first version
    return None


def contents_of(path: str | Path) -> Contents | None:
    """Return a folder's content, or None if no known program uses it."""
    folder = Path(path)
    settings = _settings(folder)
    with suppress(UserError):  # code that needs a damaged record reports it
        maker = maker_of(settings)
        if maker is not None:
            text = settings.get("text")
            architecture = text.get("architecture", "gpt") if isinstance(text, dict) else "gpt"
            is_gpt = maker.kind == LANGUAGE_MODEL and architecture == "gpt"
            saving = tinyformer_command("save", str(folder), f"{folder}-pretrained") if is_gpt else ""
            is_gone = maker.program == NAME and maker.kind not in KINDS
            return Contents(maker.kind, maker.what, "" if is_gone else maker.use_command(folder), saving)
    if "model_type" in settings:  # as in Hugging Face files
        words = _PRETRAINED.get(str(settings["model_type"]), ("generate",))
        return Contents(PRETRAINED, f"a {PRETRAINED}", tinyformer_command(*words, str(folder)))
    vectors = folder / "vectors.txt"
    if vectors.is_file():
        return Contents("word vectors", "word vectors", tinyformer_command("vectors", str(vectors)))
    return None


def check_kind(kind: str, path: str | Path) -> None:
    """Raise UserError if a folder contains anything but a run of this type. The message includes the command that uses it."""
    contents = contents_of(path)
    if contents is not None and contents.kind != kind:
        raise contents.refusal(path, f"a run of {a_or_an(kind)}")


def resume_command(path: str | Path, part: Path | None = None) -> str:
    """Return the command that resumes a run, or only the flag if its program is unknown. ``part`` is the folder that holds
    config.json while the run's files are being moved."""
    with suppress(UserError):
        maker = maker_of(_settings(part or Path(path)))
        if maker is not None:
            return maker.resume_command(path)
    return "--resume"


def runs_below(path: str | Path) -> list[Path]:
    """Return the subfolders that contain runs."""
    return sorted(file.parent for file in Path(path).glob("*/config.json"))


def newest_runs(path: str | Path, kinds: Container[str]) -> list[Path]:
    """Return the subfolders with runs of these ``kinds`` and a checkpoint, newest first."""
    runs = []
    for folder in runs_below(path):
        contents = contents_of(folder)
        written = [file.stat().st_mtime for file in folder.glob("*.safetensors") if file.stem in ("best", "latest")]
        if written and contents is not None and contents.kind in kinds:
            runs.append((max(written), folder))
    return [folder for _, folder in sorted(runs, reverse=True)]


def newest_run(kinds: Container[str]) -> Path | None:
    """Return the newest run of these ``kinds`` in runs, or None. If there are more, list some on stderr."""
    runs = newest_runs(RUNS, kinds)
    if len(runs) > 1:
        names = ", ".join(map(str, runs[1:5]))
        print_line(f"{runs[0]} is the newest of {counted(len(runs), 'run')} in {RUNS}. Others: {names}", sys.stderr)
    return runs[0] if runs else None


def _is_file_name(name: str) -> bool:
    """Return True if this is a plain file name, not a parent folder or a flag, for example."""
    is_name = Path(name).name == name and name not in ("", "..") and not name.startswith("-")
    return is_name and name.isprintable() and len(name.encode()) <= LONGEST_NAME


def _settings(folder: Path) -> Mapping[str, Any]:
    """Return the content of config.json, or nothing if it is missing or damaged. Code that needs it reports the problem."""
    try:
        return parse_json(read_file(folder / "config.json").decode("utf-8"))
    except (OSError, ValueError):
        return {}
