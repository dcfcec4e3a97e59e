"""Which program made what a folder holds, and the command that uses it.

A folder may hold a run, a pretrained model, word vectors, or the folders of several runs. Whoever gets one that it cannot use
asks this file for a message that helps.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.common.files import parse_json, read_file

# The setting, and the part of config.json that it is in, by which the runs of a script in examples/ are known; and the words
# with which that script uses a run.
_SCRIPTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "char_gpt.py": ("text", "bpe_tokens", ("sample",)),
    "fill_mask.py": ("text", "wordpieces", ("fill", "a sentence with a [MASK]")),
    "translate.py": ("task", "length_penalty", ("translate", "a sentence")),
    "dial_tones.py": ("task", "snr", ("transcribe", "FILE.wav")),
    "memory.py": ("task", "distance", ()),
}
_ALGORITHMS = {"num_layers", "num_heads", "d_model", "dropout"}  # all that algorithms.py lets its users choose of a model
# The words that use a pretrained model, by its model_type in Hugging Face's files; all others continue texts.
_PRETRAINED = {
    "bert": ("fill_mask.py", "fill", "a sentence with a [MASK]"),
    "marian": ("translate.py", "translate", "a sentence"),
}


@dataclass(frozen=True)
class Found:
    """What a folder holds, in words: "a run of char_gpt.py". ``script`` made it, or uses it, with the ``command``."""

    what: str
    script: str
    command: str

    def refusal(self, path: str | Path, wanted: str) -> UserError:
        """The error for a folder that should hold something else."""
        return UserError(f"{path} holds {self.what}, not {wanted}: use it with {self.command}")


def made_by(settings: Mapping[str, Any]) -> tuple[str | None, Any]:
    """The script that made a run with these settings, and the architecture that it was given; None if they do not say."""
    for script, (part, name, _) in _SCRIPTS.items():
        found = settings.get(part)
        if isinstance(found, Mapping) and name in found:
            return script, found.get("architecture")
    model = settings.get("model")
    if set(settings) == {"model", "training", "data"} and isinstance(model, Mapping) and "block_size" in model:
        return "char_gpt.py", None  # as its first version wrote it
    if set(settings) == {"model", "training"} and isinstance(model, Mapping) and set(model) == _ALGORITHMS:
        return "algorithms.py", None
    return None, None


def found_in(path: str | Path) -> Found | None:
    """What a folder holds, if a script is known that uses it."""
    folder = Path(path)
    settings = _settings(folder)
    script, _ = made_by(settings)
    if script in ("memory.py", "algorithms.py"):
        return _of_several(script, folder)
    if script is not None:
        return _found(script, *_SCRIPTS[script][-1], "--out", str(folder))
    if "model_type" in settings:  # as in Hugging Face's files
        script, *words = _PRETRAINED.get(str(settings["model_type"]), ("generate.py",))
        return Found("a pretrained model", script, _command(script, *words, "--model", str(folder)))
    if (folder / "vectors.txt").is_file():
        vectors = str(folder / "vectors.txt")
        return Found("word vectors", "word_vectors.py", _command("word_vectors.py", "--vectors", vectors))
    return None


def _of_several(script: str, folder: Path) -> Found:
    """A run of a script that makes several in one folder, and uses them as it makes them."""
    kind, _, model = folder.resolve().name.partition("-")
    words = [kind, "--model", model] if script == "algorithms.py" else [folder.resolve().name]
    return _found(script, *words, "--resume", "--out", str(folder.parent))


def check_made_by(script: str, path: str | Path) -> None:
    """Raise UserError if a folder holds what another script uses, with the command for it. A script that is not in examples/
    knows its own runs."""
    if script in (*_SCRIPTS, "algorithms.py"):
        found = found_in(path)
        if found is not None and found.what != f"a run of {script}":
            raise found.refusal(path, f"a run of {script}")


def resume_command(path: str | Path, part: Path | None = None) -> str:
    """The command that goes on with the run in a folder. Its config.json is in another folder, ``part``, while its files are
    moved into place. Where no script is known that made it, the flag alone."""
    script, _ = made_by(_settings(part or Path(path)))
    if script in ("memory.py", "algorithms.py"):
        return _of_several(script, Path(path)).command
    return _command(script, "--resume", "--out", str(path)) if script else "--resume"


def runs_below(path: str | Path) -> list[Path]:
    """The folders in a folder that hold runs."""
    return sorted(file.parent for file in Path(path).glob("*/config.json"))


def _settings(folder: Path) -> Mapping[str, Any]:
    """What config.json holds; nothing if it is missing or damaged, which is told by whoever needs it."""
    try:
        return parse_json(read_file(folder / "config.json").decode("utf-8"))
    except (OSError, ValueError):
        return {}


def _found(script: str, *words: str) -> Found:
    return Found(f"a run of {script}", script, _command(script, *words))


def _command(script: str, *words: str) -> str:
    """A command to paste into a shell. The script is named as this one was, if it lies beside it."""
    beside = Path(sys.argv[0]).with_name(script)
    return shlex.join(["python", str(beside if beside.exists() else Path("examples") / script), *words])
