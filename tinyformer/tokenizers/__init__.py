"""Tokenizers: convert text to token ids and back.

Read ``base`` first, then ``char``, ``word``, ``bpe`` and ``wordpiece``. ``pipeline`` runs published tokenizers with the
``tokenizers`` package. This package imports only common/.
"""

from __future__ import annotations

from pathlib import Path

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_json
from tinyformer.tokenizers.base import Tokenizer
from tinyformer.tokenizers.bpe import BPETokenizer
from tinyformer.tokenizers.char import CharTokenizer
from tinyformer.tokenizers.marian import MarianTokenizer
from tinyformer.tokenizers.pipeline import PipelineTokenizer, read_from
from tinyformer.tokenizers.tokenizer_json import content_of_saved
from tinyformer.tokenizers.word import WordTokenizer
from tinyformer.tokenizers.wordpiece import WordPieceTokenizer
from tinytensor.common.wording import counted

__all__ = [
    "BPETokenizer",
    "CharTokenizer",
    "MarianTokenizer",
    "PipelineTokenizer",
    "Tokenizer",
    "WordPieceTokenizer",
    "WordTokenizer",
    "load_tokenizer",
]

TOKENIZERS = (CharTokenizer, WordTokenizer, BPETokenizer, WordPieceTokenizer, MarianTokenizer, PipelineTokenizer)
# entries in published byte-pair tokenizers saved by earlier versions
_OF_PUBLISHED = {"rules", "added", "ignore_merges", "before", "after", "unknown", "fuse_unknown"}


def load_tokenizer(path: str | Path, vocab_size: int | None = None) -> Tokenizer:
    """Load a tokenizer from a file written by ``save``. Raises UserError for any other file, or if ``vocab_size`` is passed and
    differs."""
    saved = read_json(Path(path))
    name = saved.get("kind")
    tokenizer_class = next((one for one in TOKENIZERS if one.kind == name), None)
    if tokenizer_class is None:
        known = ", ".join(one.kind for one in TOKENIZERS)
        raise UserError(f"{path} has no tokenizer: its kind must be one of {known}, got {shortened(repr(name), 40)}")
    tokenizer: Tokenizer
    if (name == "bpe" and not _OF_PUBLISHED.isdisjoint(saved)) or (name == "wordpiece" and "cleanup" in saved):
        with read_from(path):
            tokenizer = PipelineTokenizer(content_of_saved(saved))
    else:
        tokenizer = tokenizer_class.load(path)
    if vocab_size is not None and tokenizer.vocab_size != vocab_size:
        raise UserError(f"{path} has {counted(tokenizer.vocab_size, 'token')}, but the model has {vocab_size}")
    return tokenizer
