"""Tokenizers: from text to token ids and back.

Read ``base`` first, then ``char``, ``word``, ``bpe`` and ``wordpiece``. ``pipeline`` runs published ones, with the package
tokenizers. The room imports common/ alone.
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
# What earlier versions saved of published tokenizers of byte pairs, besides what our own have.
_OF_PUBLISHED = {"rules", "added", "ignore_merges", "before", "after", "unknown", "fuse_unknown"}


def load_tokenizer(path: str | Path, vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer that any tokenizer's ``save`` wrote to a file. Raises UserError for any other file, and, if ``vocab_size``
    is given, for a tokenizer with another number of tokens."""
    saved = read_json(Path(path))
    kind = saved.get("kind")
    tokenizers = [one for one in TOKENIZERS if one.kind == kind]
    if not tokenizers:
        known = "'char', 'word', 'bpe', 'wordpiece', 'marian' or 'pipeline'"
        raise UserError(f"{path} holds no tokenizer: its kind is {shortened(repr(kind), 40)}, not {known}")
    tokenizer: Tokenizer
    if (kind == "bpe" and not _OF_PUBLISHED.isdisjoint(saved)) or (kind == "wordpiece" and "cleanup" in saved):
        with read_from(path):
            tokenizer = PipelineTokenizer(content_of_saved(saved))
    else:
        tokenizer = tokenizers[0].load(path)
    if vocab_size is not None and tokenizer.vocab_size != vocab_size:
        raise UserError(f"{path} has {counted(tokenizer.vocab_size, 'token')}, but the model has {vocab_size}")
    return tokenizer
