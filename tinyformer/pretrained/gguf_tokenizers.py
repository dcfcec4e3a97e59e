"""Tokenizers in GGUF files, described as tokenizer.json describes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tinyformer.common.errors import shortened
from tinyformer.pretrained.gguf_file import read_gguf, whole
from tinyformer.pretrained.settings import PretrainedSettings
from tinyformer.tokenizers.patterns import GPT2_WORDS, LLAMA3_WORDS
from tinyformer.tokenizers.sections import Section
from tinyformer.tokenizers.tokenizer_json import Read, tokenizer_of
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # types of tokens
_SPACE = "▁"  # what SentencePiece has in place of spaces
_LONGEST = 1000  # characters of a token of SentencePiece, of which every division is looked at

_ONE_CASE_WORDS = "|".join(  # Mistral's: a word ends where a small letter is followed by a capital one
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]{first}[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]{second}"
    for first, second in ("*+", "+*")
) + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # fmt: skip


class _Words(NamedTuple):
    """How a byte-level tokenizer cuts texts into words: by ``patterns``, one after the other, and in a ``normal_form``. With
    ``ignore_merges`` a word that is a token is that, whatever its merges are."""

    patterns: tuple[str, ...]
    normal_form: str = ""
    ignore_merges: bool = False


# By the name in tokenizer.ggml.pre; each as the model's own tokenizer.json has it.
_LLAMA3 = _Words((LLAMA3_WORDS,), ignore_merges=True)
_QWEN2 = _Words((LLAMA3_WORDS.replace("{1,3}", ""),), "NFC")
WORDS = {
    "gpt-2": _Words((GPT2_WORDS,)),
    "smollm": _Words((r"\p{N}", GPT2_WORDS)),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "tekken": _Words((_ONE_CASE_WORDS,), ignore_merges=True),
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


def gguf_tokenizer(path: Path) -> Read:
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
            _ADDED | {"id": i, "content": tokens[i], "special": kind != _USER_DEFINED}
            for i, kind in kinds.items()
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
        content["post_processor"] = _around(said, tokens, kind)
    return tokenizer_of(content, path)


_REMEDY = "Where the model's own tokenizer.json lies beside the file, pass the folder: it counts then"
_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _of_bytes(said: PretrainedSettings, tokens: Sequence[str], kinds: dict[int, int]) -> Section:
    name = said.read(str, "tokenizer.ggml.pre", "default")
    if name not in WORDS:
        known = ", ".join(WORDS)
        raise said.error(
            f"how the tokenizer cuts words, {shortened(repr(name), 40)} (tokenizer.ggml.pre), is not known; there are {known}. "
            f"{_REMEDY}"
        )
    words = WORDS[name]
    cutters: list[Section] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} for pattern in words.patterns
    ]
    bytes_as_letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {
        "type": "BPE",
        "vocab": {tokens[i]: i for i, kind in kinds.items() if kind in (_NORMAL, _BYTE)},
        "merges": said.read(list[str], "tokenizer.ggml.merges"),
        "ignore_merges": words.ignore_merges,
    }
    return {
        "normalizer": {"type": words.normal_form} if words.normal_form else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cutters, bytes_as_letters]},
        "decoder": bytes_as_letters,
        "model": model,
    }


def _of_characters(said: PretrainedSettings, tokens: Sequence[str], kinds: dict[int, int]) -> Section:
    """SentencePiece's byte pairs. A space comes before a text, and characters that are no token become bytes."""
    has_space = said.read(bool, "tokenizer.ggml.add_space_prefix", True)
    vocabulary = {tokens[i]: i for i, kind in kinds.items() if kind in (_NORMAL, _UNKNOWN, _BYTE)}
    scores = said.values["tokenizer.ggml.scores"]
    made = {token: float(scores[i]) for token, i in vocabulary.items() if kinds[i] == _NORMAL}
    before = [{"type": "Prepend", "prepend": _SPACE}] if has_space else []
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_space else []
    steps: list[Section] = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}]
    steps += [{"type": "ByteFallback"}, {"type": "Fuse"}, *after]
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
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": model,
    }


_MODELS = {"gpt2": _of_bytes, "llama": _of_characters}


def _merges(scores: dict[str, float], vocabulary: dict[str, int]) -> list[list[str]]:
    """The merges that SentencePiece does not write down: of all pairs of neighbours it merges the one whose token has the
    highest score."""
    found: list[tuple[float, str, str]] = []
    for token, score in scores.items():
        if len(token) > _LONGEST:
            raise ValueError(f"a token has {counted(len(token), 'character')}")
        divided = [(token[:end], token[end:]) for end in range(1, len(token))]
        found += [(score, *pair) for pair in divided if pair[0] in vocabulary and pair[1] in vocabulary]
    return [[left, right] for _, left, right in sorted(found, key=lambda merge: -merge[0])]


def _around(said: PretrainedSettings, tokens: Sequence[str], kind: str) -> Section | None:
    """What puts the tokens that begin and end a text around it. Where a file says nothing, one of SentencePiece or Llama 3 has
    the one that begins it."""
    has_start = kind == "llama" or WORDS[said.read(str, "tokenizer.ggml.pre")] is _LLAMA3
    parts: list[Section] = [{"Sequence": {"id": "A", "type_id": 0}}]
    names: Section = {}
    for name, place, default in (("bos", 0, has_start), ("eos", 2, False)):
        i = said.values.get(f"tokenizer.ggml.{name}_token_id")
        if said.read(bool, f"tokenizer.ggml.add_{name}_token", default) and i is not None:
            token = tokens[i]
            names[token] = {"id": token, "ids": [i], "tokens": [token]}
            parts.insert(place, {"SpecialToken": {"id": token, "type_id": 0}})
    return {"type": "TemplateProcessing", "single": parts, "pair": [], "special_tokens": names} if names else None
