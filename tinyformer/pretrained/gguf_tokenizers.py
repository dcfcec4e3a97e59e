"""Tokenizers in GGUF files, described as tokenizer.json describes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tinyformer.common.errors import shortened
from tinyformer.pretrained.families import PretrainedSettings
from tinyformer.pretrained.gguf import read_gguf, whole
from tinyformer.tokenizers.bpe import GPT2_WORDS
from tinyformer.tokenizers.pipeline import PipelineTokenizer, Section, read_from
from tinyformer.tokenizers.tokenizer_json import (
    BYTE_LEVEL,
    LLAMA3_WORDS,
    QWEN2_WORDS,
    added_token,
    around,
    characters_decoder,
    split_by,
)
from tinytensor.device.backend import host

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # types of tokens
_SPACE = "▁"  # what SentencePiece has in place of spaces
_MOST_MERGES = 3_000_000  # of SentencePiece's tokens; those of published ones have up to 600,000

_ONE_CASE_WORDS = "|".join(  # Mistral's: a word ends where a small letter is followed by a capital one
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]{first}[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]{second}"
    for first, second in ("*+", "+*")
) + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # fmt: skip


class _Words(NamedTuple):
    """How a byte-level tokenizer cuts texts into words: by ``patterns``, one after the other, and in a ``normal_form``. With
    ``ignore_merges`` a word that is a token is that, whatever its merges are. With ``has_start`` a token begins a text where
    the file does not say whether, as in llama.cpp."""

    patterns: tuple[str, ...]
    normal_form: str = ""
    ignore_merges: bool = False
    has_start: bool = False


# By the name in tokenizer.ggml.pre; each as the model's own tokenizer.json has it.
_LLAMA3 = _Words((LLAMA3_WORDS,), ignore_merges=True, has_start=True)
_QWEN2 = _Words((QWEN2_WORDS,), "NFC")
WORDS = {
    "gpt-2": _Words((GPT2_WORDS,)),
    "smollm": _Words((r"\p{N}", GPT2_WORDS)),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "tekken": _Words((_ONE_CASE_WORDS,), ignore_merges=True, has_start=True),
}


def gguf_chat_template(path: str | Path) -> tuple[str, dict[str, str]] | None:
    """The template in a GGUF file that makes a text of the messages of a chat, and the special tokens that it may name, such as
    {"bos_token": "<s>"}; None if it has none. Raises UserError as ``read_gguf`` does."""
    said = PretrainedSettings(path, read_gguf(path).metadata)
    template = said.read(str, "tokenizer.chat_template", "")
    if not template:
        return None
    tokens = said.read(list[str], "tokenizer.ggml.tokens", [])
    ids = {name: said.values.get(f"tokenizer.ggml.{given}_token_id") for name, given in _IN_TEMPLATES.items()}
    return template, {name: tokens[i] for name, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}


_IN_TEMPLATES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def gguf_tokenizer(path: Path) -> PipelineTokenizer:
    """The tokenizer of a GGUF file: byte pairs of bytes, or of characters as SentencePiece makes them.

    Raises UserError, which names the file, if it has none or one of another kind, and as ``read_gguf`` does.
    """
    said = PretrainedSettings(path, read_gguf(path).metadata)
    kind = said.read(str, "tokenizer.ggml.model")
    if kind not in _MODELS:
        raise said.error(f"the tokenizer {shortened(repr(kind), 40)} is not known; there are {', '.join(_MODELS)}. {_REMEDY}")
    with whole(path):
        tokens = said.read(list[str], "tokenizer.ggml.tokens")
        types = said.values.get("tokenizer.ggml.token_type", host.full(len(tokens), _NORMAL)).tolist()
        if len(types) != len(tokens) or len(set(tokens)) < len(tokens):
            raise ValueError("its tokens have not one type each, or one of them occurs twice")
        kinds = {i: kind for i, kind in enumerate(types) if kind != _UNUSED}
        content = _MODELS[kind](said, tokens, kinds)
        content["added_tokens"] = [
            added_token(tokens[i], special=kind != _USER_DEFINED) | {"id": i}
            for i, kind in kinds.items()
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
        content["post_processor"] = _around(said, tokens, kind)
    with read_from(path):
        return PipelineTokenizer({"version": "1.0", **content})


_REMEDY = "Where the model's own tokenizer.json lies beside the file, pass the folder: it counts then"


def _of_bytes(said: PretrainedSettings, tokens: Sequence[str], kinds: dict[int, int]) -> Section:
    name = said.read(str, "tokenizer.ggml.pre", "default")
    if name not in WORDS:
        known = ", ".join(WORDS)
        raise said.error(
            f"how the tokenizer cuts words, {shortened(repr(name), 40)} (tokenizer.ggml.pre), is not known; there are {known}. "
            f"{_REMEDY}"
        )
    words = WORDS[name]
    model = {
        "type": "BPE",
        "vocab": {tokens[i]: i for i, kind in kinds.items() if kind in (_NORMAL, _BYTE)},
        "merges": said.read(list[str], "tokenizer.ggml.merges"),
        "ignore_merges": words.ignore_merges,
    }
    return {
        "normalizer": {"type": words.normal_form} if words.normal_form else None,
        "pre_tokenizer": split_by(*words.patterns),
        "decoder": BYTE_LEVEL,
        "model": model,
    }


def _of_characters(said: PretrainedSettings, tokens: Sequence[str], kinds: dict[int, int]) -> Section:
    """SentencePiece's byte pairs. A space comes before a text, and characters that are no token become bytes."""
    has_space = said.read(bool, "tokenizer.ggml.add_space_prefix", True)
    vocabulary = {tokens[i]: i for i, kind in kinds.items() if kind in (_NORMAL, _UNKNOWN, _BYTE)}
    scores = said.values["tokenizer.ggml.scores"]
    made = {token: float(scores[i]) for token, i in vocabulary.items() if kinds[i] == _NORMAL}
    before = [{"type": "Prepend", "prepend": _SPACE}] if has_space else []
    model = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": _merges(made, vocabulary),
        "unk_token": tokens[said.read(int, "tokenizer.ggml.unknown_token_id", 0)],
        "byte_fallback": True,
        "fuse_unk": True,
    }
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, spaces]},
        "decoder": characters_decoder(has_space),
        "model": model,
    }


_MODELS = {"gpt2": _of_bytes, "llama": _of_characters}


def _merges(scores: dict[str, float], vocabulary: dict[str, int]) -> list[list[str]]:
    """The merges that SentencePiece does not write down: of all pairs of neighbors it merges the one whose token has the
    highest score."""
    found: list[tuple[float, str, str]] = []
    prefixes: list[str] = []  # all tokens that a token begins with, as in the order of the alphabet they come before it
    for token in sorted(vocabulary):
        while prefixes and not token.startswith(prefixes[-1]):
            prefixes.pop()
        if token in scores:
            found += [(scores[token], left, right) for left in prefixes if (right := token[len(left) :]) in vocabulary]
        prefixes.append(token)
        if len(found) > _MOST_MERGES:
            raise ValueError(f"its tokens can be divided in more than {_MOST_MERGES:,} ways")
    rank = {token: place for place, token in enumerate(scores)}
    ordered = sorted(found, key=lambda merge: (-merge[0], rank[merge[1] + merge[2]], len(merge[1])))
    return [[left, right] for _, left, right in ordered]


def _around(said: PretrainedSettings, tokens: Sequence[str], kind: str) -> Section | None:
    """What puts the tokens that begin and end a text around it. Where a file says nothing, one of SentencePiece has the one
    that begins it, and so do some of bytes."""
    has_start = kind == "llama" or WORDS[said.read(str, "tokenizer.ggml.pre")].has_start
    sides: list[list[tuple[str, int]]] = []
    for name, default in (("bos", has_start), ("eos", False)):
        i = said.values.get(f"tokenizer.ggml.{name}_token_id")
        is_there = said.read(bool, f"tokenizer.ggml.add_{name}_token", default)
        sides.append([(tokens[i], int(i))] if is_there and i is not None else [])
    return around(*sides)
