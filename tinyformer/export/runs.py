"""Runs whose models can be exported: those of three scripts in examples/."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinyformer.comparison import read_translations
from tinyformer.data.pair_files import one_line
from tinyformer.errors import UserError, shortened
from tinyformer.models.bert import BertForMaskedLM
from tinyformer.models.gpt import GPT
from tinyformer.models.transformer import Transformer
from tinyformer.tokenizers import Tokenizer
from tinyformer.trained import READERS, Trained, load_trained
from tinyformer.training.makers import made_by
from tinyformer.training.runs import RunFolder


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
    script, architecture = made_by(settings)
    if script not in READERS:
        what = f"a run of {script}" if script else "a run of another script"
        raise UserError(f"{path} holds {what}: only those of {', '.join(READERS)} can be exported to ONNX")
    if architecture not in ("gpt", "transformer", None):
        kind = shortened(str(architecture), 40)
        raise UserError(f"{path} holds a recurrent network ({kind}): only Transformers can be exported to ONNX")
    return _with_text(load_trained(folder), folder)


def _with_text(trained: Trained, folder: RunFolder) -> TrainedRun:
    """A run with a text that its model can read."""
    model, tokenizer = trained.model, trained.tokenizer
    if isinstance(model, GPT):
        known = getattr(tokenizer, "characters", "\n")
        text = "\n" if "\n" in known else known[0]
        return TrainedRun(model, tokenizer, text, min(50, model.config.block_size - len(tokenizer.encode(text))))
    if isinstance(model, BertForMaskedLM):
        text = "[CLS]to be or [MASK] to be[SEP]"
        fits = len(tokenizer.encode(text, allow_special=True)) <= model.config.max_length
        return TrainedRun(model, tokenizer, text if fits else "[MASK]", 0)
    assert isinstance(model, Transformer) and trained.translator is not None
    task = trained.translator.task
    text = read_translations(folder.sample)[0].source if folder.sample.exists() else "hello"
    return TrainedRun(model, tokenizer, one_line(text, task.lowercase), task.max_tokens + 1)
