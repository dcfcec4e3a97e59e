"""Masked language models, which fill in hidden tokens: how those of runs and of pretrained folders are opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinyformer.decoding.filling import with_wordpieces
from tinyformer.models.bert import Bert, BertConfig, BertForMaskedLM, BertHead
from tinyformer.tokenizers import load_tokenizer
from tinyformer.tokenizers.special import mask_name
from tinyformer.training.checkpoints import class_in
from tinyformer.training.opened import Opened, without_tokens
from tinyformer.training.run_folder import RunFolder, load_weights

KIND = "masked language model"


def open_run(folder: RunFolder, checkpoint: Path) -> Opened:
    """The model of a run with the weights of a checkpoint. Raises UserError for a damaged run."""
    config = folder.read_part("model", BertConfig)
    tokenizer = with_wordpieces(load_tokenizer(folder.tokenizer, config.vocab_size), folder.tokenizer)
    model = class_in(checkpoint, BertForMaskedLM)(config)
    load_weights(model, checkpoint)
    return opened(model, tokenizer)


def opened(model: Bert | BertForMaskedLM | BertHead, tokenizer: Any) -> Opened:
    """A BERT, or one of its relatives, with its tokenizer."""
    special = tokenizer.special
    name = mask_name(special)
    return Opened(
        "masked" if isinstance(model, BertForMaskedLM) else "encoder",
        model,
        tokenizer,
        before=tuple(tokenizer.before),
        after=tuple(tokenizer.after),
        forbidden=tuple(without_tokens(model.config.vocab_size, tokenizer)),
        longest=model.config.max_length,
        mask=None if name is None else special[name],
    )


def sample_text(opened: Opened, folder: RunFolder) -> tuple[str, int]:
    """A text to try the model with; it writes nothing after that."""
    text = "[CLS]to be or [MASK] to be[SEP]"
    fits = len(opened.tokenizer.encode(text, allow_special=True)) <= (opened.longest or 0)
    return (text if fits else "[MASK]"), 0
