"""The decoders of tokenizer.json: each changes the tokens that become a text. Another one is a row of the table.

A decoder takes and gives tokens one by one, so that a text can be shown while it is written. Some join all tokens to one. What
they give then are the parts of this token, and the next decoder must know that.
"""

from __future__ import annotations

import codecs
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator

import regex

from tinyformer.tokenizers.byte_letters import can_be_hidden, hidden
from tinyformer.tokenizers.normalizers import normalizer_of
from tinyformer.tokenizers.pre_tokenizers import metaspace_scheme, pre_tokenizer_of
from tinyformer.tokenizers.sections import Section, Unsupported, allow, parts, shown

Decoder = Callable[[Iterable[str]], Iterator[str]]

_JOINING = ("ByteLevel", "Fuse")  # after these there is one token


def decoder_of(section: Section | None) -> Decoder:
    """What a section makes of tokens: a text in pieces. Raises Unsupported for a decoder that is not in the table."""
    steps: list[Decoder] = [] if section else [_with_spaces]
    changes = [part for part in parts(section, "decoders") if part["type"] == "Replace"]
    normalizer_of({"type": "Sequence", "normalizers": changes})  # raises if together they make a text very long
    is_one = False
    for part in parts(section, "decoders"):
        if part["type"] not in _TABLE:
            raise Unsupported(f"the decoder {shown(part['type'])}; there are {', '.join(_TABLE)}")
        step = _TABLE[part["type"]](part)
        if is_one and part["type"] == "Strip" and part["stop"] == 0:
            steps.append(_strip_beginning(part["content"], part["start"]))
        else:
            steps += [_joined, step] if is_one else [step]
        is_one = is_one or part["type"] in _JOINING
    return lambda tokens: functools.reduce(lambda changed, step: step(changed), steps, iter(tokens))


def _with_spaces(tokens: Iterable[str]) -> Iterator[str]:
    for place, token in enumerate(tokens):
        yield f" {token}" if place else token


def _joined(tokens: Iterable[str]) -> Iterator[str]:
    yield "".join(tokens)


def _fuse(section: Section) -> Decoder:
    allow(section, "Fuse")
    return iter


def _byte_level(section: Section) -> Decoder:
    allow(section, "ByteLevel", add_prefix_space=..., trim_offsets=..., use_regex=...)

    def decode(tokens: Iterable[str]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield decoder.decode(hidden([token])[0] if can_be_hidden(token) else token.encode())
        yield decoder.decode(b"", final=True)

    return decode


def _byte_fallback(section: Section) -> Decoder:
    allow(section, "ByteFallback")

    def decode(tokens: Iterable[str]) -> Iterator[str]:
        run: list[int] = []  # bytes that are a text together, or none of them is
        for token in tokens:
            if (byte := byte_of(token)) is not None:
                run.append(byte)
                continue
            yield from _text_of(run)
            run.clear()
            yield token
        yield from _text_of(run)

    return decode


def byte_of(token: str) -> int | None:
    """The byte that a token such as <0x0A> stands for; None for other tokens."""
    is_byte = len(token) == 6 and token.startswith("<0x") and regex.fullmatch(r"<0x[0-9A-Fa-f]{2}>", token)
    return int(token[3:5], 16) if is_byte else None


def _text_of(run: list[int]) -> Iterator[str]:
    try:
        if run:
            yield bytes(run).decode()
    except UnicodeDecodeError:
        yield from ["\ufffd"] * len(run)  # a token for each byte, to what comes next


def _strip(section: Section) -> Decoder:
    allow(section, "Strip", content=..., start=..., stop=...)
    content, start, stop = section["content"] + "", section["start"] + 0, section["stop"] + 0

    def decode(tokens: Iterable[str]) -> Iterator[str]:
        for token in tokens:
            token = token[_run_of(content, token, start) :]
            yield token[: len(token) - _run_of(content, token[::-1], stop)]

    return decode


def _strip_beginning(content: str, most: int) -> Decoder:
    """Strip of one token that comes in parts."""

    def decode(parts: Iterable[str]) -> Iterator[str]:
        left = most
        for part in parts:
            cut = _run_of(content, part, left)
            left = left - cut if cut == len(part) else 0
            yield part[cut:]

    return decode


def _run_of(content: str, text: str, most: int) -> int:
    """With how many of a character a text begins, at most so many."""
    return len(list(itertools.takewhile(content.__eq__, text[:most])))


def _replace(section: Section) -> Decoder:
    allow(section["pattern"], "the decoder Replace", String=...)  # a regular expression could take long for each token
    change = normalizer_of(section)
    return lambda tokens: map(change, tokens)


def _metaspace(section: Section) -> Decoder:
    pre_tokenizer_of(section)  # it has the same settings
    mark, scheme = section["replacement"], metaspace_scheme(section)

    def decode(tokens: Iterable[str]) -> Iterator[str]:
        for place, token in enumerate(tokens):
            yield token.replace(mark, "" if place == 0 and scheme != "never" else " ")

    return decode


def _word_piece(section: Section) -> Decoder:
    allow(section, "the decoder WordPiece", prefix=..., cleanup=(False, True))
    prefix, cleanup = section["prefix"] + "", section["cleanup"]

    def decode(tokens: Iterable[str]) -> Iterator[str]:
        for place, token in enumerate(tokens):
            if place:
                token = token[len(prefix) :] if token.startswith(prefix) else f" {token}"
            if cleanup:
                for old, new in _CLEANUP:
                    token = token.replace(old, new)
            yield token

    return decode


_CLEANUP = [(f" {sign}", sign) for sign in (".", "?", "!", ",")] + [(" ' ", "'"), (" n't", "n't"), (" 'm", "'m")]
_CLEANUP += [(" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")]
_TABLE: dict[str, Callable[[Section], Decoder]] = {
    "ByteLevel": _byte_level,
    "ByteFallback": _byte_fallback,
    "Fuse": _fuse,
    "Strip": _strip,
    "Replace": _replace,
    "Metaspace": _metaspace,
    "WordPiece": _word_piece,
}
