"""Beam search as a tree of hypotheses, next to greedy search."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Queue
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.decoding.beam_search import BeamCandidate, BeamStep, Hypothesis, beam_search
from tinyformer.explore.views.passages import Answer, Passage
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.explore.views.writing import threads_for

WIDEST_BEAM = 16
MOST_STEPS = 200


@dataclass(frozen=True)
class Search:
    """A passage to continue by up to ``length`` tokens, with this ``beam`` width. Returns the ``n_best`` sequences."""

    passage: Passage
    beam: int
    length: int
    n_best: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.beam <= WIDEST_BEAM:
            raise UserError(f"beam must be from 1 to {WIDEST_BEAM}, got {self.beam}")
        if not 1 <= self.length <= MOST_STEPS:
            raise UserError(f"length must be from 1 to {MOST_STEPS}, got {self.length}")
        if not 1 <= self.n_best <= self.beam:
            raise UserError(f"n_best must be from 1 to the beam, {self.beam}, got {self.n_best}")


def search(subjects: Subjects, asked: Search) -> Iterator[Answer]:
    """Yield the tree of a beam search as it grows, then the hypotheses. All scores are those of ``beam_search``.

    The first line holds the maximum ``length``, which an encoder-decoder may limit. Then comes a line for each ``step``:
    whether it belongs to the ``greedy`` search, which runs second, and the new ``nodes``, numbered from 1. Node 0 is the
    passage. A node has a ``parent``, an ``id`` with its ``text``, the ``log_probability`` of all tokens up to it, its ``step``,
    a ``score`` if its text has ended, and a ``state``: "kept", "finished", or "greedy" if only the greedy search went there.

    The last line has the ``hypotheses`` of the beam search, best first, and that of the ``greedy`` search. Each has its ``ids``
    and their ``texts``, the ``end`` token or null, the ``text``, ``score``, ``log_probability``, ``probability`` and ``nodes``.
    """
    subject = asked.passage.subject(subjects)
    if subject.kind not in ("language", "translation"):
        what = "it fills in masks" if subject.kind == "masked" else "it predicts no tokens"
        raise UserError(f"this model does not write: {what}")
    length = subject.room(asked.passage.ids, asked.length)
    tree = Tree(subject)
    yield {"length": length}
    hypotheses: list[Hypothesis] = []
    for found in _steps(subjects, subject, asked, length, asked.beam, asked.n_best):
        if isinstance(found, BeamStep):
            yield {"step": found.step, "greedy": False, "nodes": tree.grow(found)}
        else:
            hypotheses = found
    greedy: list[BeamCandidate] = []
    for found in _steps(subjects, subject, asked, length, 1, 1):
        if isinstance(found, BeamStep):
            greedy.append(found.candidates[0])  # the one that continues or has ended
            yield {"step": found.step, "greedy": True, "nodes": tree.follow_greedily(greedy[-1])}
        else:
            (best,) = found
    yield {
        "hypotheses": [tree.described(hypothesis) for hypothesis in hypotheses],
        "greedy": tree.described(best, greedy[-1].log_probability),
    }


class _PoliteDecoder:
    """A decoder that holds the lock only while computing, so that other questions are answered during a long search."""

    def __init__(self, subjects: Subjects, subject: Subject, asked: Search, length: int):
        self.lock = subjects.lock
        with self.lock:
            self.decoder = subjects.decoder(subject, len(asked.passage.ids) + length, asked.passage.source)

    def next_logits(self, new: Any) -> Any:
        """Return the logits (batch, vocab_size) after the new ids (batch, count)."""
        with self.lock:
            return self.decoder.next_logits(new)

    def select(self, rows: Any) -> None:
        """Keep these rows of the batch."""
        with self.lock:
            self.decoder.select(rows)


def _steps(subjects: Subjects, subject: Subject, asked: Search, length: int, beam: int, n_best: int) -> Iterator[Any]:
    """Yield each BeamStep of a search, then its hypotheses. An encoder-decoder searches as its Translator does."""
    translator = subject.translator
    rule, force_end = (translator.rule, translator.force_end) if translator is not None else (None, False)

    def work(tell: Tell) -> list[Hypothesis]:
        decoder = _PoliteDecoder(subjects, subject, asked, length)
        prompts, forbidden, rules = [asked.passage.ids], subject.forbidden, subject.rules
        with threads_for(subject):
            (found,) = beam_search(
                decoder, prompts, subject.ends, beam, length, n_best, rule, forbidden, force_end, tell, rules
            )
        return found

    return follow(work)


class Tree:
    """The sequences that a beam search has kept, as numbered nodes. Node 0 is the passage."""

    def __init__(self, subject: Subject):
        self.subject = subject
        self.nodes: list[dict[str, Any]] = [{"log_probability": 0.0}]
        self._children: dict[tuple[int, int], int] = {}  # by parent and token
        self._kept = [0]  # in the last step, in order
        self._greedy = 0  # current node of the greedy search

    def grow(self, step: BeamStep) -> list[Answer]:
        """Return the nodes added by a step of the beam search."""
        first = len(self.nodes)
        kept = []
        for candidate in step.candidates:
            state = "finished" if candidate.kept is None else "kept"
            number = self._add(self._kept[candidate.parent], candidate, step.step, state)
            if candidate.kept is not None:
                kept.append(number)
        self._kept = kept
        return list(self.nodes[first:])

    def follow_greedily(self, candidate: BeamCandidate) -> list[Answer]:
        """Return the node added by a step of the greedy search, if it is new."""
        parent = self._greedy
        known = self._children.get((parent, candidate.token))
        if known is not None:
            self._greedy = known
            return []
        self._greedy = self._add(parent, candidate, self.nodes[parent].get("step", 0) + 1, "greedy")
        return [self.nodes[self._greedy]]

    def described(self, hypothesis: Hypothesis, log_probability: float | None = None) -> Answer:
        """Return a hypothesis in the page's format. Its log-probability is its last node's, unless passed."""
        written = (*hypothesis.ids, *(() if hypothesis.end is None else (hypothesis.end,)))
        nodes = [0]
        for token in written:
            nodes.append(self._children[nodes[-1], token])
        if log_probability is None:
            log_probability = self.nodes[nodes[-1]]["log_probability"]
        translator, decode = self.subject.translator, self.subject.tokenizer.decode
        return {
            "ids": list(hypothesis.ids),
            "texts": self.subject.texts(hypothesis.ids),
            "end": hypothesis.end,
            "text": decode(hypothesis.ids) if translator is None else translator.text(hypothesis),
            "score": hypothesis.score,
            "log_probability": log_probability,
            "probability": math.exp(log_probability),
            "nodes": nodes,
        }

    def _add(self, parent: int, candidate: BeamCandidate, step: int, state: str) -> int:
        number = len(self.nodes)
        self._children[parent, candidate.token] = number
        self.nodes.append(
            {
                "parent": parent,
                "id": candidate.token,
                "text": self.subject.texts([candidate.token])[0],
                "log_probability": candidate.log_probability,
                "score": candidate.score,
                "step": step,
                "state": state,
            }
        )
        return number


Tell = Callable[[Any], None]


class _GivenUp(Exception):
    """Nobody is waiting for the computation any more."""


def follow(work: Callable[[Tell], Any]) -> Iterator[Any]:
    """Yield each value that ``work`` passes to its argument, then its result.

    The work runs in a thread that waits until the next value is requested. Closing the iterator ends the work at its next
    value. Errors from the work are raised here.
    """
    asked: Queue[bool] = Queue()
    told: Queue[tuple[bool, Any]] = Queue()  # with a flag: True for the last value

    def tell(news: Any) -> None:
        told.put((False, news))
        if not asked.get():
            raise _GivenUp

    def run() -> None:
        try:
            found = work(tell) if asked.get() else None
        except _GivenUp:
            return
        except BaseException as error:
            told.put((True, error))
        else:
            told.put((True, found))

    threading.Thread(target=run, daemon=True).start()
    is_last = False
    try:
        while not is_last:
            asked.put(True)
            is_last, news = told.get()
            if is_last and isinstance(news, BaseException):
                raise news
            yield news
    finally:
        asked.put(False)
