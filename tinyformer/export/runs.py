"""Runs whose models can be exported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinyformer.common.errors import UserError
from tinyformer.models.bert import BertForMaskedLM
from tinyformer.models.gpt import GPT
from tinyformer.models.transformer import Transformer
from tinyformer.tokenizers import Tokenizer
from tinyformer.training.opening import kind_of
from tinyformer.training.run_folder import RunFolder


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
    if "model_type" in folder.read_settings():  # as in Hugging Face's files
        how = f"export_onnx(from_pretrained({str(path)!r}), 'model.onnx')"
        raise UserError(f"{path} holds a pretrained model, not a run: export it in Python, with {how}")
    kind = kind_of(folder, "exported to ONNX")
    opened = kind.load(folder, folder.best)
    if not isinstance(opened.model, (GPT, BertForMaskedLM, Transformer)):
        what = f"a recurrent network ({type(opened.model).__name__})"
        raise UserError(f"{path} holds {what}: only Transformers can be exported to ONNX")
    return TrainedRun(opened.model, opened.tokenizer, *kind.sample(opened, folder))
