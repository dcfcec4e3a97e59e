"""tinyformer: Transformers on tinytensor.

- ``models``: the networks, and the parts that they are built from.
- ``tokenizers``: from text to ids and back.
- ``data``: from files to batches.
- ``training``: the loop, losses, evaluation, and the folder of a run with its checkpoints.
- ``decoding``: from logits to text.
- In this folder: settings and command lines, names of earlier versions, errors, JSON files and their schema, pictures, progress
  bars, and checks of memory.

``from tinyformer import GPT`` works for every name below, and loads only the files that the name needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; a test checks that it equals the table below
    from tinyformer.data.batches import Batch, Batches
    from tinyformer.data.labelled import LabelledBatches
    from tinyformer.data.masking import MaskedBatches, Masking
    from tinyformer.data.pairs import PairBatches, Specials, encode_pairs, read_tsv, read_two_files, split_pairs
    from tinyformer.data.reading import default_text, open_text, read_text
    from tinyformer.data.text import TextBatches
    from tinyformer.decoding.beam_search import Hypothesis, beam_search
    from tinyformer.decoding.decoders import Decoder, GPTDecoder, TransformerDecoder
    from tinyformer.decoding.sampling import Sampling, generate, sample
    from tinyformer.decoding.streaming import stream_text
    from tinyformer.errors import SettingError, UserError, plain_errors
    from tinyformer.models.attention import MultiHeadAttention, recording_attention
    from tinyformer.models.bert import Bert, BertConfig, BertForClassification, BertForMaskedLM
    from tinyformer.models.blocks import Block, BlockConfig
    from tinyformer.models.evaluating import evaluating
    from tinyformer.models.gpt import GPT, GPTConfig
    from tinyformer.models.transformer import Transformer, TransformerConfig
    from tinyformer.tokenizers import (
        BPETokenizer,
        CharTokenizer,
        Tokenizer,
        WordPieceTokenizer,
        WordTokenizer,
        load_tokenizer,
    )
    from tinyformer.training.config import TrainingConfig
    from tinyformer.training.evaluation import accuracy, evaluate, perplexity
    from tinyformer.training.losses import class_loss, masked_token_loss, next_token_loss, translation_loss
    from tinyformer.training.runs import RunFolder
    from tinyformer.training.trainer import Trainer

_NAMES = {
    "data.batches": "Batch Batches",
    "data.labelled": "LabelledBatches",
    "data.masking": "MaskedBatches Masking",
    "data.pairs": "PairBatches Specials encode_pairs read_tsv read_two_files split_pairs",
    "data.reading": "default_text open_text read_text",
    "data.text": "TextBatches",
    "decoding.beam_search": "Hypothesis beam_search",
    "decoding.decoders": "Decoder GPTDecoder TransformerDecoder",
    "decoding.sampling": "Sampling generate sample",
    "decoding.streaming": "stream_text",
    "errors": "SettingError UserError plain_errors",
    "models.attention": "MultiHeadAttention recording_attention",
    "models.bert": "Bert BertConfig BertForClassification BertForMaskedLM",
    "models.blocks": "Block BlockConfig",
    "models.evaluating": "evaluating",
    "models.gpt": "GPT GPTConfig",
    "models.transformer": "Transformer TransformerConfig",
    "tokenizers": "BPETokenizer CharTokenizer Tokenizer WordPieceTokenizer WordTokenizer load_tokenizer",
    "training.config": "TrainingConfig",
    "training.evaluation": "accuracy evaluate perplexity",
    "training.losses": "class_loss masked_token_loss next_token_loss translation_loss",
    "training.runs": "RunFolder",
    "training.trainer": "Trainer",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'tinyformer' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"tinyformer.{_HOMES[name]}"), name)
        globals()[name] = value  # so that the next use finds it without this function
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})

    __all__ = sorted(_HOMES)
