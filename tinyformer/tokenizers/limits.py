"""What a tokenizer.json may ask for. It is a small program by others, so it may be made to take all time and memory."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinytensor.common.wording import counted

_MOST_AROUND = 1000  # ids before and after a text
# Published files have up to 8 parts in a section, literals of up to 20 characters, regular expressions of up to 700, and words
# of up to 200; and what they replace makes a text up to 36 times as long.
_MOST_PARTS, _LONGEST_LITERAL, _LONGEST_PATTERN, _LONGEST_WORD, _MOST_GROWTH = 20, 200, 10_000, 1000, 100
_SECTIONS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


def check_content(content: dict[str, Any]) -> None:
    """Raise UserError for the content of a tokenizer.json that asks for too much, that would give other ids each time, or that
    lacks its unknown token."""
    growth = 1.0
    for name, within in _SECTIONS.items():
        growth *= 1 if name == "decoder" else _growth(name, parts_of(content.get(name), within))
    decoder = _growth("decoder", parts_of(content.get("decoder"), "decoders"))
    if (most := max(growth, decoder)) > _MOST_GROWTH:
        raise UserError(f"the parts make a text up to {most:.3g}x as long; {_MOST_GROWTH}x is the most")
    model = content["model"]
    if model.get("dropout"):
        raise UserError(f"dropout = {model['dropout']!r} of the model is not supported: the ids would be different each time")
    if "max_input_chars_per_word" in model and model["unk_token"] not in model["vocab"]:  # WordPiece, which needs it
        raise UserError(f"the unknown token {shortened(repr(model['unk_token']), 40)} is not in the vocabulary")
    if (longest := model.get("max_input_chars_per_word") or 0) > _LONGEST_WORD:
        raise UserError(f"max_input_chars_per_word is {longest:,}; {_LONGEST_WORD:,} is the most")


def parts_of(section: Any, within: str) -> list[dict[str, Any]]:
    """The parts of a section that may be missing, one part, or a sequence. Raises UserError for too many."""
    parts: list[dict[str, Any]] = []
    count, waiting = 0, [section] if section else []
    while waiting:
        part = waiting.pop()
        count += 1
        if count > _MOST_PARTS:
            raise UserError(f"there are more than {_MOST_PARTS} {within}")
        if part["type"] == "Sequence":
            waiting += reversed(part[within][: _MOST_PARTS + 1])
        else:
            parts.append(part)
    return parts


def _growth(name: str, parts: list[dict[str, Any]]) -> float:
    """By how much the parts of a section make a text longer, at most. Raises UserError for a part that takes too long."""
    growth = 1.0
    for part in parts:
        for key, literal in _literals(part):
            most = _LONGEST_PATTERN if key == "Regex" else _LONGEST_LITERAL
            if len(literal) > most:
                size = counted(len(literal), "character")
                raise UserError(f"{key} of {part['type']} in the {name} has {size}; {most:,} is the most")
        if part["type"] == "Replace":
            growth *= max(1, len(part["content"]) / max(1, len(part["pattern"].get("String", "x"))))
        elif part["type"] == "ByteLevel" and name == "pre_tokenizer":
            growth *= 2
        elif part["type"] == "Precompiled":
            block = base64.b64decode(part["precompiled_charsmap"] or "")
            growth *= max(1, *map(len, block[4 + int.from_bytes(block[:4], "little") :].split(b"\0")))
        elif part["type"] == "TemplateProcessing":
            named = {piece["SpecialToken"]["id"] for piece in part["single"] if "SpecialToken" in piece}
            if lacking := named - set(part["special_tokens"]):
                raise UserError(f"the post-processor has no ids for {shortened(', '.join(sorted(lacking)), 80)}")
            counts = {name: len(part["special_tokens"][name]["ids"]) for name in named}
            if sum(counts[piece["SpecialToken"]["id"]] for piece in part["single"] if "SpecialToken" in piece) > _MOST_AROUND:
                raise UserError(f"the post-processor puts more than {_MOST_AROUND} ids around a text")
    return growth


def _literals(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The strings of a part by their names, those of a pattern among them."""
    for key, value in part.items():
        if key == "pattern" and isinstance(value, dict):
            yield from ((kind, text) for kind, text in value.items() if isinstance(text, str))
        elif isinstance(value, str) and key != "precompiled_charsmap":
            yield key, value
