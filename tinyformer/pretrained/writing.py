"""Generation settings of a pretrained model: generation_config.json, applied like ``generate`` in transformers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyformer.common.errors import SettingError, escaped, shortened
from tinyformer.decoding.sampling import (
    ForbiddenFirst,
    ForbiddenSequences,
    ForcedAfterStart,
    LogitsRule,
    MinimalLength,
    NoRepeatedNgrams,
    Renormalized,
    RepetitionPenalty,
    Sampling,
)
from tinyformer.pretrained.decoders import MARIAN
from tinyformer.pretrained.families import PretrainedSettings
from tinyformer.pretrained.folders import model_folder, read_settings

TOP_K = 50  # transformers' default when sampling
# Unsupported settings, each with the values that have no effect.
UNSUPPORTED: Mapping[str, Sequence[Any]] = {
    "assistant_early_exit": (), "constraints": (), "diversity_penalty": (0,), "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,), "encoder_repetition_penalty": (1,), "exponential_decay_length_penalty": (),
    "force_words_ids": (), "guidance_scale": (1,), "max_time": (), "num_beam_groups": (1,), "penalty_alpha": (0,),
    "remove_invalid_values": (False,), "sequence_bias": (), "stop_strings": (), "token_healing": (False,),
    "watermarking_config": (),
}  # fmt: skip
ONLY_SAMPLING: Mapping[str, Sequence[Any]] = {
    "epsilon_cutoff": (0,), "eta_cutoff": (0,), "top_h": ()
}  # fmt: skip

# Settings with the same names in ``Writing`` and the file, and settings written even with their default value.
SAME_NAMES = (
    "max_length", "length_penalty", "early_stopping", "max_new_tokens", "num_beams", "min_length", "min_new_tokens",
    "repetition_penalty", "no_repeat_ngram_size", "renormalize_logits", "do_sample", "temperature", "top_k", "top_p", "min_p",
    "typical_p",
)  # fmt: skip
TELLING = ("length_penalty", "early_stopping", "do_sample", "temperature", "top_k", "top_p")


@dataclass(frozen=True)
class Writing:
    """The generation settings of a model.

    - ``start`` is the start token and ``ends`` the end tokens. ``forbidden`` tokens are never generated.
    - ``forced_end``, one of the ``ends``, is generated when a sequence reaches ``max_length`` tokens, including the start.
      ``max_new_tokens``, which excludes the prompt, takes precedence.
    - ``length_penalty`` and ``early_stopping`` configure ``HuggingFaceRule``, for beam search with ``num_beams``.
    - ``forced_start`` follows a one-token prompt. Tokens in ``forbidden_first`` are never generated first, and
      ``forbidden_sequences`` never occur.
    - No sequence ends before ``min_length`` tokens, including the prompt, and ``min_new_tokens`` new ones. If a file sets both,
      only the second counts.
    - ``repetition_penalty`` makes repeated tokens less likely, and no n-gram of ``no_repeat_ngram_size`` tokens repeats.
      ``renormalize_logits`` scales the remaining probabilities to sum to 1.
    - ``do_sample``, ``temperature``, ``top_k``, ``top_p``, ``min_p`` and ``typical_p`` control sampling. None: not set.
    - ``unsupported`` lists the settings that have no effect here.
    """

    start: int | None = None
    ends: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()
    forced_end: int | None = None
    max_length: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    max_new_tokens: int | None = None
    num_beams: int | None = None
    forced_start: int | None = None
    forbidden_first: tuple[int, ...] = ()
    forbidden_sequences: tuple[tuple[int, ...], ...] = ()
    min_length: int = 0
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    renormalize_logits: bool = False
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    unsupported: tuple[str, ...] = ()

    def rules(self) -> tuple[LogitsRule, ...]:
        """Return the rules that change token scores, for ``generate``, ``sample`` and ``beam_search``. ``forbidden`` tokens and
        a forced end are separate."""
        needs_length = self.ends and (self.min_length or self.min_new_tokens)
        rules: list[LogitsRule | None] = [
            RepetitionPenalty(self.repetition_penalty) if self.repetition_penalty != 1 else None,
            NoRepeatedNgrams(self.no_repeat_ngram_size) if self.no_repeat_ngram_size else None,
            ForbiddenSequences(self.forbidden_sequences) if self.forbidden_sequences else None,
            MinimalLength(self.ends, self.min_length, self.min_new_tokens) if needs_length else None,
            ForcedAfterStart(self.forced_start) if self.forced_start is not None else None,
            ForbiddenFirst(self.forbidden_first, self.forced_start is not None) if self.forbidden_first else None,
            Renormalized() if self.renormalize_logits else None,
        ]
        return tuple(rule for rule in rules if rule is not None)

    def sampling(self) -> dict[str, Any]:
        """Return the ``Sampling`` settings. Without ``do_sample``, a model is greedy. With it, unset values get the
        transformers defaults."""
        if self.do_sample is False:
            return {"temperature": 0.0}
        usual: dict[str, Any] = {"temperature": 1.0, "top_k": TOP_K, "top_p": 1.0} if self.do_sample else {}
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p")
        return usual | {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def length(self, prompt: int, usual: int) -> int:
        """Return the number of new tokens after a prompt of this length: ``max_new_tokens``, or else ``usual``, limited by the
        remaining ``max_length``, but at least 1."""
        if self.max_new_tokens:
            return self.max_new_tokens
        return usual if self.max_length is None else max(1, min(usual, self.max_length - prompt))

    def settings(self) -> dict[str, Any]:
        """Return the settings for a generation_config.json."""
        words = [[word] for word in self.forbidden if word not in self.ends]
        named: dict[str, Any] = {
            "bos_token_id": self.start,
            "decoder_start_token_id": self.start,
            "eos_token_id": list(self.ends),
            "forced_bos_token_id": self.forced_start,
            "forced_eos_token_id": self.forced_end,
            "bad_words_ids": words + [list(sequence) for sequence in self.forbidden_sequences],
            "suppress_tokens": [word for word in self.forbidden if word in self.ends],
            "begin_suppress_tokens": list(self.forbidden_first),
        }
        named |= {name: getattr(self, name) for name in SAME_NAMES}
        usual = Writing()
        return {
            name: value
            for name, value in named.items()
            if value not in (None, []) and (name in TELLING or value != getattr(usual, name, None))
        }


class _Reader:
    """Reads each setting from the first file that has it. Ids of ``size`` (the vocabulary size) or more are ignored."""

    def __init__(self, files: Sequence[PretrainedSettings], size: int):
        self.files = files
        self.size = size

    def said(self, name: str) -> PretrainedSettings:
        """Return the first file that has the setting."""
        return next((file for file in self.files if file.values.get(name) is not None), self.files[-1])

    def value(self, expected: Any, name: str, default: Any) -> Any:
        """Return a setting of this type."""
        return self.said(name).read(expected, name, default)

    def optional(self, expected: Any, name: str) -> Any:
        """Return a setting of this type, or None."""
        return self.value(expected, name, None) if self.said(name).values.get(name) is not None else None

    def count(self, name: str, default: int | None = 0) -> Any:
        """Return a setting that must be a number of at least 0."""
        value = self.optional(int, name)
        if value is not None and value < 0:
            raise self.said(name).error(f"{name} must be at least 0, got {value}")
        return default if value is None else value

    def ids(self, name: str) -> list[int]:
        """Return a setting (one id, several, or none) as a list."""
        value = self.value(int | list[int], name, [])
        return [i for i in (value if isinstance(value, list) else [value]) if 0 <= i < self.size]

    def names_of(self, settings: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return the names of the settings whose values have an effect."""
        values = {name: self.said(name).values.get(name) for name in settings}
        return [name for name, value in values.items() if value not in (None, [], {}, *settings[name])]


def read_writing(folder: Path, with_beams: bool = False) -> Writing:
    """Return the generation settings of the model in a folder, from generation_config.json. The tokens around a sequence and
    beam search settings may also come from config.json. Ids outside the vocabulary are ignored: a small model may still list
    ids of a larger one. The "tinyformer" logger warns about unsupported settings. ``with_beams``: use ``num_beams`` for a model
    that does not translate, unless it samples."""
    folder = model_folder(folder)
    config = read_settings(folder)
    size = config.read(int, "decoder_vocab_size", config.read(int, "vocab_size", sys.maxsize))
    path = folder / "generation_config.json"
    generation = PretrainedSettings(path) if path.exists() else config
    either, rules = _Reader([generation, config], size), _Reader([generation], size)
    ends = tuple(either.ids("eos_token_id"))
    words = either.value(list[list[int]], "bad_words_ids", [])
    if [] in words:
        raise either.said("bad_words_ids").error("bad_words_ids has an empty sequence: remove it")
    words = [word for word in words if all(0 <= i < size for i in word)]
    single = [i for i, *more in words if not more and i not in ends]  # transformers also lets a sequence end there
    translates = config.values.get("model_type") in MARIAN.model_types
    forced_ends = either.ids("forced_eos_token_id")
    forces_others = not set(forced_ends) <= set(ends)  # not an end token
    writing = Writing(
        start=next(iter(either.ids("decoder_start_token_id") or either.ids("bos_token_id")), None),
        ends=ends,
        forbidden=tuple(dict.fromkeys([*single, *rules.ids("suppress_tokens")])),
        forced_end=None if forces_others else next(iter(forced_ends), None),
        max_length=either.count("max_length") or None,
        length_penalty=either.value(float, "length_penalty", 1.0),
        early_stopping=_early_stopping(either),
        max_new_tokens=rules.count("max_new_tokens") or None,
        num_beams=rules.count("num_beams") or None,
        forced_start=next(iter(rules.ids("forced_bos_token_id")), None),
        forbidden_first=tuple(rules.ids("begin_suppress_tokens")),
        forbidden_sequences=tuple(tuple(word) for word in words if len(word) > 1),
        min_length=rules.count("min_length") if rules.count("min_new_tokens", None) is None else 0,
        min_new_tokens=rules.count("min_new_tokens"),
        repetition_penalty=rules.value(float, "repetition_penalty", 1.0),
        no_repeat_ngram_size=rules.count("no_repeat_ngram_size"),
        renormalize_logits=rules.value(bool, "renormalize_logits", False),
        do_sample=rules.optional(bool, "do_sample"),
        temperature=rules.optional(float, "temperature"),
        top_k=rules.count("top_k", None),
        top_p=rules.optional(float, "top_p"),
        min_p=rules.optional(float, "min_p"),
        typical_p=rules.optional(float, "typical_p"),
        unsupported=tuple(sorted([*_unsupported(rules, translates, with_beams), *["forced_eos_token_id"] * forces_others])),
    )
    try:
        writing.rules()
        Sampling(**writing.sampling())
    except SettingError as error:
        raise generation.error(str(error)) from None
    if writing.unsupported:
        listed = escaped(", ".join(writing.unsupported))
        logging.getLogger("tinyformer").warning(
            "%s: these settings have no effect, so texts may differ from transformers': %s", escaped(generation.path), listed
        )
    return writing


def _early_stopping(reader: _Reader) -> bool | str:
    value: bool | str = reader.value(bool | str, "early_stopping", False)
    if value not in (True, False, "never"):
        problem = f"early_stopping must be true, false or 'never', got {shortened(repr(value), 40)}"
        raise reader.said("early_stopping").error(problem)
    return value


def _unsupported(reader: _Reader, translates: bool, with_beams: bool) -> list[str]:
    """Return the names of unsupported settings. A translator does not sample, and no model samples with several beams."""
    settings, samples = dict(UNSUPPORTED), reader.files[0].values.get("do_sample")
    settings |= {"do_sample": (False,)} if translates else {"num_beams": (1,)} if samples or not with_beams else {}
    if not translates and samples is not False:
        settings |= ONLY_SAMPLING
    return reader.names_of(settings)
