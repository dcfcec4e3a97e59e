"""Questions about what a model of sentences holds to be alike."""

from __future__ import annotations

from dataclasses import dataclass

from tinyformer.common.errors import UserError
from tinyformer.explore.views.embeddings import in_two_dimensions
from tinyformer.explore.views.passages import Answer
from tinyformer.explore.views.subjects import Subjects
from tinytensor.device.backend import host

MOST, AT_ONCE, NEAREST = 200, 16, 5  # sentences: in a question, before others get their turns, and told of each


@dataclass(frozen=True)
class Sentences:
    """Sentences for a model whose folder is one of sentence-transformers."""

    model: str
    sentences: list[str]


def sentences(subjects: Subjects, asked: Sentences) -> Answer:
    """The vectors of sentences on their first two principal components, as ``embeddings`` gives those of tokens; and for each
    sentence the ``nearest`` others: which ``sentence``, by its place, and the ``cosine``, the largest first."""
    subject, given = subjects.get(asked.model), asked.sentences
    if subject.sentences is None:
        raise UserError("this is no model of sentences: its folder has no modules.json")
    if not 1 <= len(given) <= MOST:
        raise UserError(f"the map shows 1 to {MOST} sentences, not {len(given):,}")
    found = []
    for first in range(0, len(given), AT_ONCE):
        with subjects.for_long():
            found.append(subject.sentences().encode(given[first : first + AT_ONCE]))
    vectors = host.concatenate(found).astype(host.float64)
    answer = in_two_dimensions(subject, vectors)
    units = vectors / host.maximum(host.sqrt((vectors**2).sum(1, keepdims=True)), 1e-12)
    cosines = units @ units.T
    host.fill_diagonal(cosines, -host.inf)  # each is nearest to itself
    order = (-cosines).argsort(axis=1, kind="stable")[:, : min(NEAREST, len(given) - 1)]
    nearest = [[{"sentence": int(j), "cosine": float(row[j])} for j in first] for row, first in zip(cosines, order)]
    return {**answer, "nearest": nearest}
