"""From text to token ids and back."""

from tinyformer.tokenizers.char import CharTokenizer

__all__ = ["CharTokenizer"]
