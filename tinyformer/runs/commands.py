"""The commands of ``tinyformer`` for what a folder holds, and how runs that do not say what they are tell it.

A run says in its config.json what made it (``makers.Maker``). Runs of the first versions do not. Those of later ones name a
script, each of which is a command now. Pretrained models and word vectors have no such record.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from typing import Any

NAME = "tinyformer"  # the command, as it is installed
FILL = ("fill", "a sentence with a [MASK]")
TRANSLATE = ("translate", "a sentence")

# By the kind of a run, the words that train it, and those that use it. A kind without the latter has several runs in a folder,
# each in one that has the name of its model.
OF_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "language model": (("train", "gpt"), ("sample",)),
    "masked language model": (("train", "bert"), FILL),
    "translator": (("train", "translator"), TRANSLATE),
    "dial tone transcriber": (("train", "tones"), ("transcribe", "FILE.wav")),
    "recall network": (("train", "memory"), ()),
    "problem solver": (("train", "algorithms"), ()),
}
# The scripts that are commands now, as runs of before name them.
_SCRIPTS = {
    "char_gpt.py": "language model",
    "fill_mask.py": "masked language model",
    "translate.py": "translator",
    "dial_tones.py": "dial tone transcriber",
    "memory.py": "recall network",
    "algorithms.py": "problem solver",
}
# The part of config.json and the setting in it by which the kind of a run without a record is known.
_SIGNS = {
    ("text", "bpe_tokens"): "language model",
    ("text", "wordpieces"): "masked language model",
    ("task", "length_penalty"): "translator",
    ("task", "snr"): "dial tone transcriber",
    ("task", "distance"): "recall network",
}
_PROBLEMS = {"num_layers", "num_heads", "d_model", "dropout"}  # all that one could choose of a model that solves problems
# The words that use a pretrained model, by its model_type in Hugging Face's files; all others continue texts.
_PRETRAINED = {"bert": (*FILL, "--model"), "marian": (*TRANSLATE, "--model")}


def record(kind: str, model: str = "") -> dict[str, Any]:
    """What a run of ``tinyformer`` says of what made it. ``model``: the name of its folder, where its kind has several runs in
    one, such as lstm or sort-gpt."""
    train, use = OF_KINDS[kind]
    if not use:
        problem, _, architecture = model.partition("-")
        use = (*train, problem, *(("--model", architecture) if architecture else ()), "--resume")
    return {"kind": kind, "program": NAME, "train": list(train), "use": list(use), "several": bool(model)}


def record_of_script(script: object, folder: str) -> dict[str, Any] | None:
    """The record of a run that a script of before made, in a folder of this name; None for any other script."""
    return _record_in(_SCRIPTS[script], folder) if isinstance(script, str) and script in _SCRIPTS else None


def record_of_before(settings: Mapping[str, Any], folder: str) -> dict[str, Any] | None:
    """What a run of the first versions would say of what made it, from its other settings and the name of its folder; None if
    it is of no known kind."""
    for (part, name), kind in _SIGNS.items():
        found = settings.get(part)
        if isinstance(found, Mapping) and name in found:
            return _record_in(kind, folder)
    model = settings.get("model")
    if set(settings) == {"model", "training", "data"} and isinstance(model, Mapping) and "block_size" in model:
        return record("language model")  # as the first version of all wrote it
    if set(settings) == {"model", "training"} and isinstance(model, Mapping) and set(model) == _PROBLEMS:
        return _record_in("problem solver", folder)
    return None


def _record_in(kind: str, folder: str) -> dict[str, Any]:
    return record(kind, "" if OF_KINDS[kind][1] else folder)


def of_pretrained(model_type: str) -> tuple[str, ...]:
    """The words that use a pretrained model of this type, before its folder."""
    return _PRETRAINED.get(model_type, ("generate",))


def command(*words: str) -> str:
    """A command line of ``tinyformer``, to be pasted into a shell."""
    return shlex.join([*([NAME] if shutil.which(NAME) else ["python", "-m", NAME]), *words])
