"""Pretrained folders with small BERTs that tell classes, by the name of what they do."""

from __future__ import annotations

from pathlib import Path

from explored import PIECES

import tinytensor as tt
from tinyformer.models.bert import (
    Bert,
    BertConfig,
    BertForClassification,
    BertForNextSentence,
    BertForQuestionAnswering,
    BertForTokenClassification,
)
from tinyformer.pretrained.loading import save_pretrained
from tinyformer.pretrained.tokenizers import save_pretrained_tokenizer
from tinyformer.tokenizers import WordPieceTokenizer

HEADS = {
    "texts": lambda config: BertForClassification(config, 3, ("sad", "glad", "<b>neither")),
    "number": lambda config: BertForClassification(config, 1),
    "tokens": lambda config: BertForTokenClassification(config, 3, ("none", "name", "place")),
    "answers": BertForQuestionAnswering,
    "sentences": BertForNextSentence,
    "vectors": Bert,
}


def head_folder(folder: Path, name: str, seed: int = 0) -> Path:
    """A folder with such a model. Its weights are random."""
    tokenizer = WordPieceTokenizer(PIECES)
    config = BertConfig(tokenizer.vocab_size, num_layers=1, num_heads=2, d_model=16, d_ff=32, max_length=24)
    tt.seed(seed)
    model = HEADS[name](config)
    for parameter in model.parameters():  # larger weights make less uniform predictions
        parameter.assign(parameter * 3)
    save_pretrained(model, folder)
    save_pretrained_tokenizer(tokenizer, folder)
    return folder
