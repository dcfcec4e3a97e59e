"""From text to token ids and back."""

from __future__ import annotations

from pathlib import Path

from tinyformer.command_line import read_json
from tinyformer.errors import UserError
from tinyformer.tokenizers.base import Tokenizer
from tinyformer.tokenizers.bpe import BPETokenizer
from tinyformer.tokenizers.char import CharTokenizer
from tinyformer.tokenizers.word import WordTokenizer
from tinyformer.tokenizers.wordpiece import WordPieceTokenizer

__all__ = ["BPETokenizer", "CharTokenizer", "Tokenizer", "WordPieceTokenizer", "WordTokenizer", "load_tokenizer"]


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read what any tokenizer's ``save`` wrote. Raises UserError for anything else."""
    kind = read_json(Path(path)).get("kind")
    if kind == CharTokenizer.kind:
        return CharTokenizer.load(path)
    if kind == WordTokenizer.kind:
        return WordTokenizer.load(path)
    if kind == BPETokenizer.kind:
        return BPETokenizer.load(path)
    if kind == WordPieceTokenizer.kind:
        return WordPieceTokenizer.load(path)
    raise UserError(f"{path} holds no tokenizer: its kind is {kind!r}, not 'char', 'word', 'bpe' or 'wordpiece'")
