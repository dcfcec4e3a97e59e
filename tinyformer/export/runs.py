"""Runs whose models can be exported: those of three scripts in examples/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyformer.comparison import read_translations
from tinyformer.data.pair_files import one_line
from tinyformer.decoding.filling import with_wordpieces
from tinyformer.errors import UserError
from tinyformer.models.bert import BertConfig, BertForMaskedLM
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.transformer import Transformer
from tinyformer.tokenizers import Tokenizer, load_tokenizer
from tinyformer.training.runs import RunFolder, load_weights
from tinyformer.translation import trained_translator


@dataclass(frozen=True)
class TrainedRun:
    """What a run trained, with its best weights; a ``text`` to try it with, and how many tokens it may write after that."""

    model: GPT | BertForMaskedLM | Transformer
    tokenizer: Tokenizer
    text: str
    max_tokens: int


def load_run(path: str | Path) -> TrainedRun:
    """The run in a folder. Raises UserError for a folder without a run, for a damaged one, and for a run whose model cannot be
    exported."""
    folder = RunFolder(path)
    settings = folder.read_settings()
    if "model_type" in settings:  # as in Hugging Face's files
        how = f"export_onnx(from_pretrained({str(path)!r}), 'model.onnx')"
        raise UserError(f"{path} holds a pretrained model, not a run: export it in Python, with {how}")
    script, architecture = _made_by(settings)
    if script not in _READERS:
        what = f"a run of {script}" if script else "a run of another script"
        raise UserError(f"{path} holds {what}: only those of {', '.join(_READERS)} can be exported to ONNX")
    if architecture not in ("gpt", "transformer", None):
        raise UserError(f"{path} holds a recurrent network ({architecture}): only Transformers can be exported to ONNX")
    return _READERS[script](folder)


# The setting, and the part of config.json that it is in, by which the runs of a script are known.
_SCRIPTS = {
    "char_gpt.py": ("text", "bpe_tokens"),
    "fill_mask.py": ("text", "wordpieces"),
    "translate.py": ("task", "length_penalty"),
    "dial_tones.py": ("task", "snr"),
    "memory.py": ("task", "distance"),
}


def _made_by(settings: Mapping[str, Any]) -> tuple[str | None, Any]:
    """The script that made a run with these settings, and the architecture that it was given; None if they do not say."""
    for script, (part, name) in _SCRIPTS.items():
        found = settings.get(part)
        if isinstance(found, Mapping) and name in found:
            return script, found.get("architecture")
    return None, None


def _language_model(folder: RunFolder) -> TrainedRun:
    config = folder.read_part("model", GPTConfig)
    tokenizer = load_tokenizer(folder.tokenizer, config.vocab_size)
    model = GPT(config)
    load_weights(model, folder.best)
    known = getattr(tokenizer, "characters", "\n")
    text = "\n" if "\n" in known else known[0]
    return TrainedRun(model, tokenizer, text, min(50, config.block_size - len(tokenizer.encode(text))))


def _masked_model(folder: RunFolder) -> TrainedRun:
    config = folder.read_part("model", BertConfig)
    tokenizer = with_wordpieces(load_tokenizer(folder.tokenizer, config.vocab_size), folder.tokenizer)
    model = BertForMaskedLM(config)
    load_weights(model, folder.best)
    text = "[CLS]to be or [MASK] to be[SEP]"
    fits = len(tokenizer.encode(text, allow_special=True)) <= config.max_length
    return TrainedRun(model, tokenizer, text if fits else "[MASK]", 0)


def _translation(folder: RunFolder) -> TrainedRun:
    translator = trained_translator(folder)
    model, task = translator.model, translator.task
    assert isinstance(model, Transformer)
    text = read_translations(folder.sample)[0].source if folder.sample.exists() else "hello"
    return TrainedRun(model, translator.tokenizer, one_line(text, task.lowercase), task.max_tokens + 1)


_READERS: dict[str, Callable[[RunFolder], TrainedRun]] = {
    "char_gpt.py": _language_model,
    "fill_mask.py": _masked_model,
    "translate.py": _translation,
}
