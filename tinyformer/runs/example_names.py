"""The programs in examples/ by their names, for what does not say itself which program uses it.

A run says in its config.json what made it (``makers.Maker``). Runs of earlier versions do not, and neither do pretrained models
and word vectors. No other file of the library names a program in examples/.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILL = ("fill", "a sentence with a [MASK]")
TRANSLATE = ("translate", "a sentence")

# The part of config.json and the setting in it by which runs of before are known; what made them, and how they are used.
_OF_BEFORE: dict[tuple[str, str], tuple[str, str, tuple[str, ...]]] = {
    ("text", "bpe_tokens"): ("language model", "char_gpt.py", ("sample",)),
    ("text", "wordpieces"): ("masked language model", "fill_mask.py", FILL),
    ("task", "length_penalty"): ("translator", "translate.py", TRANSLATE),
    ("task", "snr"): ("dial tone transcriber", "dial_tones.py", ("transcribe", "FILE.wav")),
    ("task", "distance"): ("recall network", "memory.py", ()),
}
_PROBLEMS = {"num_layers", "num_heads", "d_model", "dropout"}  # all that algorithms.py let its users choose of a model

# The words that use a pretrained model, by its model_type in Hugging Face's files; all others continue texts.
_PRETRAINED = {"bert": ("fill_mask.py", *FILL), "marian": ("translate.py", *TRANSLATE)}
OF_VECTORS = "word_vectors.py"
_NAMES = {"generate.py", "algorithms.py", OF_VECTORS, *(program for _, program, _ in _OF_BEFORE.values())}


def record_of_before(settings: Mapping[str, Any], folder: str) -> dict[str, Any] | None:
    """What a run of an earlier version would say of what made it, from its other settings and the name of its folder; None if
    it was none of these programs."""
    for (part, name), (kind, program, use) in _OF_BEFORE.items():
        found = settings.get(part)
        if isinstance(found, Mapping) and name in found:
            several = not use  # then one of several runs in a folder, each in one that has the name of its model
            return _record(kind, program, (folder, "--resume") if several else use, several)
    model = settings.get("model")
    if set(settings) == {"model", "training", "data"} and isinstance(model, Mapping) and "block_size" in model:
        return _record("language model", "char_gpt.py", ("sample",))  # as its first version wrote it
    if set(settings) == {"model", "training"} and isinstance(model, Mapping) and set(model) == _PROBLEMS:
        problem, _, architecture = folder.partition("-")
        return _record("problem solver", "algorithms.py", (problem, "--model", architecture, "--resume"), several=True)
    return None


def _record(kind: str, program: str, use: tuple[str, ...], several: bool = False) -> dict[str, Any]:
    return {"kind": kind, "program": program, "use": list(use), "several": several}


def of_pretrained(model_type: str) -> tuple[str, ...]:
    """The program that uses a pretrained model of this type, and its words."""
    return _PRETRAINED.get(model_type, ("generate.py",))


def path_of(program: str) -> Path:
    """Where a program is found: one of these in examples/, any other under its own name."""
    return Path("examples") / program if program in _NAMES else Path(program)
