"""What all sections of a tokenizer.json share: how they are read, and how what is not supported is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.schema import read_value
from tinyformer.tokenizers.added import AddedToken
from tinyformer.tokenizers.bpe import MOST_AROUND, gaps_in

Section = dict[str, Any]

_DEEPEST, _MOST_PARTS = 20, 100  # of sequences; published files have one in another at most, and 6 parts
_REMEDY = "the package tokenizers reads it: Tokenizer.from_file(path).encode(text).ids are ids for the model"


class Unsupported(Exception):
    """A file asks for something that is not done here. It is no ValueError: the file is not damaged."""


@contextmanager
def supported(path: object) -> Iterator[None]:
    """A context that turns Unsupported into a UserError, which names the file and a way on."""
    try:
        yield
    except Unsupported as error:
        raise UserError(f"{path} asks for something that is not supported: {error} ({_REMEDY})") from None


def allow(section: Mapping[str, Any], where: str, **allowed: Any) -> None:
    """Raise Unsupported if a section has a key that is not named, or another value than those in its tuple. ``...`` stands for
    any value. A ``type`` is allowed in every section."""
    for key, value in section.items():
        if key == "type" or (key in allowed and (allowed[key] is ... or _is_one_of(value, allowed[key]))):
            continue
        there = [choice for choice in allowed.get(key, ()) if choice is not None]
        choices = f"; it can be {' or '.join(map(repr, there))}" if there else ""
        raise Unsupported(f"{key} = {shown(value)} of {where}{choices}")


def _is_one_of(value: Any, choices: tuple[Any, ...]) -> bool:
    return any(type(value) is type(choice) and value == choice for choice in choices)  # 0 is not false


def shown(value: Any) -> str:
    """A value for a message."""
    return shortened(repr(value), 80)


def parts(section: Section | None, within: str, depth: int = 0) -> list[Section]:
    """The parts of a section that may be missing, one part, or a sequence."""
    if section is None:
        return []
    if section["type"] != "Sequence":
        return [section]
    if depth == _DEEPEST:
        raise Unsupported(f"more than {_DEEPEST} sequences of {within} in one another")
    found = [part for inner in section[within] for part in parts(inner, within, depth + 1)]
    if len(found) > _MOST_PARTS:
        raise Unsupported(f"{len(found):,} {within} one after the other; there can be {_MOST_PARTS}")
    return found


def added_tokens(whole: Section, vocabulary: Mapping[str, int]) -> list[AddedToken]:
    """The added tokens, in the order of their ids. Ids that no token has become special tokens with names of their own."""
    added = []
    for fields in whole.get("added_tokens") or []:
        token = read_value(AddedToken, fields, "added_tokens")
        if vocabulary.get(token.content, token.id) != token.id:
            raise UserError(f"the added token {token.content!r} has the id {token.id}, but another one in the vocabulary")
        if token.content:  # an empty one is never found
            added.append(token)
    unused = gaps_in({**vocabulary, **{token.content: token.id for token in added}})
    if taken := next((name for name in unused if name in vocabulary), None):
        raise UserError(f"the id {unused[taken]} has no token, but its name would be that of another one, {taken}")
    return sorted([*added, *(AddedToken(name, i, special=True) for name, i in unused.items())], key=lambda token: token.id)


def ends(whole: Section) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and after a text."""
    templates = []
    for part in parts(whole.get("post_processor"), "processors"):
        if part["type"] == "TemplateProcessing":
            allow(part, "the post-processor", single=..., pair=..., special_tokens=...)
            templates.append(_template_ends(part["single"], part["special_tokens"]))
        elif part["type"] in ("RobertaProcessing", "BertProcessing"):
            templates.append(([int(part["cls"][1])], [int(part["sep"][1])]))
        elif part["type"] != "ByteLevel":  # that one is about places in the text only
            there = "TemplateProcessing, RobertaProcessing, BertProcessing and ByteLevel"
            raise Unsupported(f"the post-processor {shown(part['type'])}; there are {there}")
    # Each one puts its tokens around what is there: that of the first is inside.
    before = [i for template in reversed(templates) for i in template[0]]
    return before, [i for template in templates for i in template[1]]


def _template_ends(template: list[Section], tokens: Section) -> tuple[list[int], list[int]]:
    found: tuple[list[int], list[int]] = [], []
    places = [place for place, part in enumerate(template) if "Sequence" in part]
    if len(places) != 1 or any(len(part) != 1 for part in template):
        raise Unsupported(f"the template {shown(template)}, which does not have the text once")
    for place, part in enumerate(template):
        if "Sequence" not in part:
            found[place > places[0]].extend(int(i) for i in tokens[part["SpecialToken"]["id"]]["ids"])
            if len(found[0]) + len(found[1]) > MOST_AROUND:
                raise Unsupported(f"a template with more than {MOST_AROUND} ids around the text")
    return found
