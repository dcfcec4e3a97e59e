"""The commands of ``tinyformer`` for what a folder holds, and how runs that do not say what they are tell it.

A run says in its config.json what made it (``makers.Maker``). Runs of the first versions do not. Those of later ones name a
script; what most of these did, commands do now. Pretrained models and word vectors have no such record.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from typing import Any

NAME = "tinyformer"  # the command, as it is installed
FILL = ("fill", "a sentence with a [MASK]")
TRANSLATE = ("translate", "a sentence")

# By the kind of a run, the words that train it, and those that use it.
OF_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "language model": (("train", "gpt"), ("sample",)),
    "masked language model": (("train", "bert"), FILL),
    "translator": (("train", "translator"), TRANSLATE),
}
# What the scripts of before made, as their runs name them. No command uses the last three kinds any more.
_SCRIPTS = {
    "char_gpt.py": "language model",
    "fill_mask.py": "masked language model",
    "translate.py": "translator",
    "dial_tones.py": "dial tone transcriber",
    "memory.py": "recall network",
    "algorithms.py": "problem solver",
}
# The commands of before, and the scripts to run instead.
GONE = {
    "algorithms": "algorithms.py",
    "markov": "markov.py",
    "memory": "memory.py",
    **dict.fromkeys(("tones", "transcribe", "record"), "dial_tones.py"),
}
# The part of config.json and the setting in it by which the kind of a run without a record is known.
_SIGNS = {
    ("text", "bpe_tokens"): "language model",
    ("text", "wordpieces"): "masked language model",
    ("task", "length_penalty"): "translator",
}
# The words that use a pretrained model, by its model_type in Hugging Face's files; all others continue texts.
_PRETRAINED = {"bert": (*FILL, "--model"), "marian": (*TRANSLATE, "--model")}


def record(kind: str) -> dict[str, Any]:
    """What a run of ``tinyformer`` says of what made it."""
    train, use = OF_KINDS.get(kind, ((), ()))
    return {"kind": kind, "program": NAME, "train": list(train), "use": list(use)}


def record_of_script(script: str) -> dict[str, Any] | None:
    """The record of a run that a script of before made; None for any other script."""
    return record(_SCRIPTS[script]) if script in _SCRIPTS else None


def record_of_before(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a run of the first versions would say of what made it, from its other settings; None if it is of no known kind."""
    for (part, name), kind in _SIGNS.items():
        found = settings.get(part)
        if isinstance(found, Mapping) and name in found:
            return record(kind)
    model = settings.get("model")
    if set(settings) == {"model", "training", "data"} and isinstance(model, Mapping) and "block_size" in model:
        return record("language model")  # as the first version of all wrote it
    return None


def of_pretrained(model_type: str) -> tuple[str, ...]:
    """The words that use a pretrained model of this type, before its folder."""
    return _PRETRAINED.get(model_type, ("generate",))


def command(*words: str) -> str:
    """A command line of ``tinyformer``, to be pasted into a shell."""
    return shlex.join([*([NAME] if shutil.which(NAME) else ["python", "-m", NAME]), *words])
