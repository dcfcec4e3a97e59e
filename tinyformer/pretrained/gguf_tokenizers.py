"""Convert tokenizers in GGUF files to tokenizer.json format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tinyformer.common.errors import shortened
from tinyformer.pretrained.families import PretrainedSettings
from tinyformer.pretrained.gguf import plain_errors, read_gguf
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

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # token types
_SPACE = "▁"  # SentencePiece's space
_MOST_MERGES = 3_000_000  # for a SentencePiece tokenizer; published ones have up to 600,000

_ONE_CASE_WORDS = "|".join(  # Mistral's: a word ends between a lowercase and an uppercase letter
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]{first}[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]{second}"
    for first, second in ("*+", "+*")
) + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # fmt: skip


class _Words(NamedTuple):
    """How a byte-level tokenizer splits text into words: apply ``normal_form``, then ``patterns`` in turn. If
    ``ignore_merges``, a word that is a token is not merged. ``has_start`` is llama.cpp's default: whether a token starts a
    sequence."""

    patterns: tuple[str, ...]
    normal_form: str = ""
    ignore_merges: bool = False
    has_start: bool = False


# By the name in tokenizer.ggml.pre, each as in the model's tokenizer.json.
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
    """Return a GGUF file's chat template and the special tokens that it may use, such as {"bos_token": "<s>"}. Return None if
    there is no template. Raises UserError as ``read_gguf`` does."""
    settings = PretrainedSettings(path, read_gguf(path).metadata)
    template = settings.read(str, "tokenizer.chat_template", "")
    if not template:
        return None
    tokens = settings.read(list[str], "tokenizer.ggml.tokens", [])
    ids = {name: settings.values.get(f"tokenizer.ggml.{role}_token_id") for name, role in _IN_TEMPLATES.items()}
    return template, {name: tokens[i] for name, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}


_IN_TEMPLATES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def gguf_tokenizer(path: Path) -> PipelineTokenizer:
    """Return a GGUF file's tokenizer: byte pairs of bytes, or of characters as in SentencePiece.

    Raises UserError, with the file name, if it has none or an unsupported type, and as ``read_gguf`` does.
    """
    settings = PretrainedSettings(path, read_gguf(path).metadata)
    model = settings.read(str, "tokenizer.ggml.model")
    if model not in _MODELS:
        raise settings.error(
            f"unknown tokenizer {shortened(repr(model), 40)}: only {', '.join(_MODELS)} can be loaded. {_REMEDY}"
        )
    with plain_errors(path):
        tokens = settings.read(list[str], "tokenizer.ggml.tokens")
        types = settings.values.get("tokenizer.ggml.token_type", host.full(len(tokens), _NORMAL)).tolist()
        if len(types) != len(tokens) or len(set(tokens)) < len(tokens):
            raise ValueError("its tokens must be distinct and have one type each")
        used = {i: token_type for i, token_type in enumerate(types) if token_type != _UNUSED}
        content = _MODELS[model](settings, tokens, used)
        content["added_tokens"] = [
            added_token(tokens[i], special=token_type != _USER_DEFINED) | {"id": i}
            for i, token_type in used.items()
            if token_type in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
        content["post_processor"] = _around(settings, tokens, model)
    with read_from(path):
        return PipelineTokenizer({"version": "1.0", **content})


_REMEDY = "If the model's tokenizer.json is beside the file, pass their folder, to use it instead"


def _of_bytes(settings: PretrainedSettings, tokens: Sequence[str], types: dict[int, int]) -> Section:
    name = settings.read(str, "tokenizer.ggml.pre", "default")
    if name not in WORDS:
        known = ", ".join(WORDS)
        raise settings.error(f"unknown tokenizer.ggml.pre {shortened(repr(name), 40)}: only {known} can be loaded. {_REMEDY}")
    words = WORDS[name]
    model = {
        "type": "BPE",
        "vocab": {tokens[i]: i for i, token_type in types.items() if token_type in (_NORMAL, _BYTE)},
        "merges": settings.read(list[str], "tokenizer.ggml.merges"),
        "ignore_merges": words.ignore_merges,
    }
    return {
        "normalizer": {"type": words.normal_form} if words.normal_form else None,
        "pre_tokenizer": split_by(*words.patterns),
        "decoder": BYTE_LEVEL,
        "model": model,
    }


def _of_characters(settings: PretrainedSettings, tokens: Sequence[str], types: dict[int, int]) -> Section:
    """Return SentencePiece character pairs: a space precedes the text, and unknown characters become bytes."""
    has_space = settings.read(bool, "tokenizer.ggml.add_space_prefix", True)
    vocabulary = {tokens[i]: i for i, token_type in types.items() if token_type in (_NORMAL, _UNKNOWN, _BYTE)}
    scores = settings.values["tokenizer.ggml.scores"]
    made = {token: float(scores[i]) for token, i in vocabulary.items() if types[i] == _NORMAL}
    before = [{"type": "Prepend", "prepend": _SPACE}] if has_space else []
    model = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": _merges(made, vocabulary),
        "unk_token": tokens[settings.read(int, "tokenizer.ggml.unknown_token_id", 0)],
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
    """Return the merges that SentencePiece leaves implicit: it always merges the adjacent pair whose token has the highest
    score."""
    merges: list[tuple[float, str, str]] = []
    prefixes: list[str] = []  # tokens that are prefixes of this token; sorted, they come before it
    for token in sorted(vocabulary):
        while prefixes and not token.startswith(prefixes[-1]):
            prefixes.pop()
        if token in scores:
            merges += [(scores[token], left, right) for left in prefixes if (right := token[len(left) :]) in vocabulary]
        prefixes.append(token)
        if len(merges) > _MOST_MERGES:
            raise ValueError(f"its tokens can be split in more than {_MOST_MERGES:,} ways")
    rank = {token: i for i, token in enumerate(scores)}
    ordered = sorted(merges, key=lambda merge: (-merge[0], rank[merge[1] + merge[2]], len(merge[1])))
    return [[left, right] for _, left, right in ordered]


def _around(settings: PretrainedSettings, tokens: Sequence[str], model: str) -> Section | None:
    """Return the post-processor that adds tokens around a sequence. By default, SentencePiece and some byte-level tokenizers
    add one at the start."""
    has_start = model == "llama" or WORDS[settings.read(str, "tokenizer.ggml.pre")].has_start
    sides: list[list[tuple[str, int]]] = []
    for name, default in (("bos", has_start), ("eos", False)):
        i = settings.values.get(f"tokenizer.ggml.{name}_token_id")
        is_there = settings.read(bool, f"tokenizer.ggml.add_{name}_token", default)
        sides.append([(tokens[i], int(i))] if is_there and i is not None else [])
    return around(*sides)
