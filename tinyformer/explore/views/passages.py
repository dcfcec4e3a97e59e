"""Passages as ids, and questions about models and texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.export.web import web_weights
from tinyformer.models.gpt import GPT
from tinytensor.common.wording import a_or_an, counted

LONGEST_TEXT = 200_000  # characters
MOST_IDS = 20_000

Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Passage:
    """The subject of most questions: ``ids`` that a model reads or has generated. For an encoder-decoder, they belong to the
    target, from the start token on, and ``source`` holds the ids of the source sentence."""

    model: str
    ids: list[int]
    source: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.ids or len(self.ids) > MOST_IDS or len(self.source) > MOST_IDS:
            raise UserError(f"ids must have 1 to {counted(MOST_IDS, 'id')}, and source at most {MOST_IDS}")

    def subject(self, subjects: Subjects) -> Subject:
        """Return the model of the passage. Raises UserError for ids that it does not know."""
        subject = subjects.get(self.model)
        subject.check(self.ids, self.source)
        return subject


@dataclass(frozen=True)
class OfPassage:
    """A question about an entire passage."""

    passage: Passage


@dataclass(frozen=True)
class About:
    """``about`` takes no arguments."""


def about(subjects: Subjects, asked: About) -> Answer:
    """Return the folders, the names of their models, and other runs ``beside`` these folders, which were not named."""
    return {"folders": subjects.folders, "models": subjects.names, "beside": subjects.beside()}


@dataclass(frozen=True)
class Named:
    """A model by name."""

    model: str


def facts(subjects: Subjects, asked: Named) -> Answer:
    """Return a model's type, class, size and settings, the ids of its start, end and mask tokens, and the ``labels`` of its
    classes, or null."""
    return subjects.get(asked.model).facts()


def tokens(subjects: Subjects, asked: Named) -> Answer:
    """Return the ``texts`` of all tokens of a model, by id."""
    subject = subjects.get(asked.model)
    return {"texts": subject.texts(range(subject.num_tokens))}


def weights(subjects: Subjects, asked: Named) -> bytes:
    """Return a GPT's float32 weights and its program, as a safetensors file from ``web_weights``. Raises UserError for a model
    that a page cannot compute."""
    subject = subjects.get(asked.model)
    if not isinstance(subject.model, GPT):
        raise UserError(f"a page computes only a GPT, not {a_or_an(type(subject.model).__name__)}")
    return web_weights(subject.model, subject.tokenizer, numbers=True)


@dataclass(frozen=True)
class Text:
    """A text to tokenize. If ``source`` is set, it is an encoder-decoder's source."""

    model: str
    text: str
    source: bool = False

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST_TEXT:
            raise UserError(f"the text has {counted(len(self.text), 'character')}, more than {LONGEST_TEXT}: shorten it")


def encode(subjects: Subjects, asked: Text) -> Answer:
    """Tokenize a text. Return ``ids`` and ``texts``, including the tokens that the model needs around the text."""
    subject = subjects.get(asked.model)
    ids = subject.encode(asked.text, asked.source)
    if len(ids) > MOST_IDS:
        raise UserError(f"the text has {counted(len(ids), 'token')}, more than {MOST_IDS}: shorten it")
    return {"ids": ids, "texts": subject.texts(ids, asked.source)}
