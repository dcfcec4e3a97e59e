"""Questions about a model's tables: the embeddings of its tokens, in two dimensions, and its positions."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.explore.views.inside import MOST_NUMBERS, check_part
from tinyformer.explore.views.passages import Answer, Named
from tinyformer.explore.views.reading import NOT_FINITE, Kept
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.explore.views.writing import threads_for
from tinyformer.models.attention import MultiHeadAttention
from tinyformer.models.gpt import GPT
from tinyformer.models.positions import RotaryPositions
from tinyformer.models.seq2seq import EncoderDecoder
from tinyformer.models.transformer import Transformer
from tinyformer.tokenizers.texts import token_texts
from tinyformer.word_vectors.components import principal_components
from tinytensor import Tensor
from tinytensor.device.backend import Array, host
from tinytensor.nn.weights import BlockWeight

MOST_KEPT = 64 * 2**20  # bytes
MOST_POSITIONS = 8192  # of which a table shows the first, where a model has no last one or very many

_kept = Kept(MOST_KEPT)


@dataclass(frozen=True)
class Embedded:
    """A model; with ``source``, the embeddings of the tokens that an encoder-decoder reads, not of those that it writes."""

    model: str
    source: bool = False


def embeddings(subjects: Subjects, asked: Embedded) -> Answer:
    """Return the embeddings of a model's tokens on their first two principal components.

    ``texts`` by id; ``coordinates``, two each, as little-endian float32 in base64; the ``explained`` fraction of the variance
    along each axis; the ``width`` of an embedding. A run with snapshots has the axes of its last one, of this ``step``,
    so that points do not jump. ``extent``: [left, right, bottom, top] of the vectors whose axes they are.
    """
    subject, (step, last, stamp) = subjects.get(asked.model), _last_snapshot(subjects, asked.model)
    # Without the lock of the models: nothing is recorded, and a large vocabulary takes seconds.
    make = partial(_in_two_dimensions, subject, asked.source, step, last)
    return _kept.get(subject.model, (asked.source, stamp), make, _size)


def _last_snapshot(subjects: Subjects, model: str) -> tuple[int | None, Subject | None, Hashable]:
    """The last snapshot of a model's run that can be read: its step, and what differs once its file was replaced."""
    for step, name in reversed(subjects.snapshots(model).items()):
        with suppress(UserError):
            return step, subjects.get(name), subjects.stamp(name)
    return None, None, None


def _rows(subject: Subject, source: bool) -> Array:
    weight = token_embedding(subject, source)
    return weight.numpy()[: subject.tokenizer.vocab_size]  # some models have more rows than there are tokens


def _in_two_dimensions(subject: Subject, source: bool, step: int | None, last: Subject | None) -> Answer:
    rows = _rows(subject, source)
    found = in_two_dimensions(subject, rows, None if last is None else _rows(last, source))
    return {"step": step, "texts": token_texts(subject.tokenizer, range(len(rows)), source), **found}


def in_two_dimensions(subject: Subject, rows: Array, of: Array | None = None) -> Answer:
    """The ``coordinates`` of a model's vectors (rows, width), their ``extent``, what they ``explained``, and the ``width``: see
    ``embeddings``. The axes are those of the vectors ``of``, by default of these. Raises UserError for numbers that are not
    finite."""
    if not all(host.isfinite(vectors).all() for vectors in (rows, of) if vectors is not None):
        raise UserError(NOT_FINITE)
    with threads_for(subject):
        coordinates, explained = principal_components(rows, 2, of)
        theirs = coordinates if of is None else principal_components(of, 2)[0]
    return {
        "coordinates": base64.b64encode(coordinates.astype("<f4").tobytes()).decode(),
        "extent": [float(end) for axis in theirs.T for end in (axis.min(), axis.max())],
        "explained": explained.tolist(),
        "width": rows.shape[1],
    }


def _size(answer: Answer) -> int:
    return len(answer["coordinates"]) + sum(60 + 2 * len(text) for text in answer["texts"])


def token_embedding(subject: Subject, source: bool = False) -> Tensor | BlockWeight:
    """The embeddings of a model's tokens, (tokens, width); with ``source``, of those that an encoder-decoder reads. Raises
    UserError for a ``source`` of other models."""
    model: Any = subject.model
    if source and subject.kind != "translation":
        raise UserError("this model has no source")
    if isinstance(model, Transformer):
        return _embedding_of(model, source).tokens.weight
    if isinstance(model, EncoderDecoder):
        return _embedding_of(model, source).weight
    return getattr(model, "bert", model).token_embedding.weight


def _embedding_of(model: Any, source: bool) -> Any:
    return model.source_embedding if source else model.target_embedding


@dataclass(frozen=True)
class Table:
    """A table of positions: its ``name``, its ``kind`` and size, and what gives ``count`` of its rows from ``first`` on."""

    name: str
    kind: str
    rows: int
    columns: int
    part: Callable[[int, int], Tensor]


def position_tables(subjects: Subjects, asked: Named) -> Answer:
    """The ``tables`` of a model's positions, none for a recurrent network. Of each its ``name``; its ``kind``, "learned",
    "sinusoidal", "sinusoidal_halves" or "rotary"; the number of its ``rows`` (positions) and ``columns`` (dimensions, or pairs
    of dimensions that are rotated together); and the ``largest`` absolute value."""
    subject = subjects.get(asked.model)
    with subjects.lock:
        return {"tables": [_told(table) for table in tables_of(subject)]}


def _told(table: Table) -> Answer:
    largest = 1.0 if table.kind != "learned" else float(abs(table.part(0, table.rows).numpy()).max())
    if not math.isfinite(largest):
        raise UserError(NOT_FINITE)
    return {"name": table.name, "kind": table.kind, "rows": table.rows, "columns": table.columns, "largest": largest}


def tables_of(subject: Subject) -> list[Table]:
    """The tables of a model's positions."""
    config = subject.model.config
    model: Any = subject.model
    rotary = next((layer.rotary for layer in model.modules() if isinstance(layer, MultiHeadAttention) and layer.rotary), None)
    if rotary is not None:
        rows = min(config.block_size if isinstance(model, GPT) else config.max_length, MOST_POSITIONS)
        return [Table("positions", "rotary", rows, len(rotary.frequencies), partial(_cosines, rotary))]
    if isinstance(model, GPT):
        return [_absolute("positions", model.position_embedding, config.positions, config.block_size, config.d_model)]
    if isinstance(model, Transformer):
        sides: list[tuple[str, Any]] = [("encoder", model.source_embedding), ("decoder", model.target_embedding)]
        if config.positions != "learned":  # both have the same
            sides = [("positions", model.target_embedding)]
        return [_absolute(name, side.positions, config.positions, config.max_length, config.d_model) for name, side in sides]
    if isinstance(model, EncoderDecoder) or not hasattr(config, "positions"):
        return []
    bert = getattr(model, "bert", model)
    return [_absolute("positions", bert.position_embedding, config.positions, config.max_length, config.d_model)]


def _absolute(name: str, positions: Any, kind: str, longest: int, width: int) -> Table:
    return Table(name, kind, min(longest, MOST_POSITIONS), width, lambda first, count: positions(count, first))


def _cosines(rotary: RotaryPositions, first: int, count: int) -> Tensor:
    """The cosines of the angles by which each pair of dimensions is rotated, (count, d_head / 2)."""
    return rotary.table_for(first + count, "float32")[first : first + count, : len(rotary.frequencies)]


@dataclass(frozen=True)
class PositionPart:
    """A part of a table of positions: the rows ``first`` to ``first + count``, and of these the columns ``first_column`` to
    ``first_column + columns``."""

    model: str
    table: str
    first: int
    count: int
    first_column: int
    columns: int


def positions(subjects: Subjects, asked: PositionPart) -> Answer:
    """The ``values`` of a part of a table of positions, by row. For rotary positions they are the cosines of the angles."""
    subject = subjects.get(asked.model)
    with subjects.lock, tt.no_grad():
        for table in tables_of(subject):
            if table.name == asked.table:
                check_part(asked.count, asked.first, table.rows, MOST_NUMBERS, "positions")
                check_part(asked.columns, asked.first_column, table.columns, MOST_NUMBERS // asked.count, "columns")
                found = table.part(asked.first, asked.count)
                columns = slice(asked.first_column, asked.first_column + asked.columns)
                return {"values": found[:, columns].numpy().astype(float).tolist()}
    raise UserError("this model has no such table of positions")


MOST_SENTENCES, SENTENCES_AT_ONCE, NEAREST = (200, 16, 5)  # in a question; between turns; in an answer


@dataclass(frozen=True)
class Sentences:
    """Sentences for a model whose folder is one of sentence-transformers."""

    model: str
    sentences: list[str]


def sentences(subjects: Subjects, asked: Sentences) -> Answer:
    """Return sentence vectors on their first two principal components, as ``embeddings`` does; and for each its
    ``nearest`` neighbours, ``sentence`` (the index) and ``cosine``, largest first."""
    subject, given = subjects.get(asked.model), asked.sentences
    if subject.sentences is None:
        raise UserError("this is no model of sentences: its folder has no modules.json")
    if not 1 <= len(given) <= MOST_SENTENCES:
        raise UserError(f"the map shows 1 to {MOST_SENTENCES} sentences, not {len(given):,}")
    found = []
    for first in range(0, len(given), SENTENCES_AT_ONCE):
        with subjects.for_long():
            found.append(subject.sentences().encode(given[first : first + SENTENCES_AT_ONCE]))
    vectors = host.concatenate(found).astype(host.float64)
    answer = in_two_dimensions(subject, vectors)
    units = vectors / host.maximum(host.sqrt((vectors**2).sum(1, keepdims=True)), 1e-12)
    cosines = units @ units.T
    host.fill_diagonal(cosines, -host.inf)  # each is nearest to itself
    order = (-cosines).argsort(axis=1, kind="stable")[:, : min(NEAREST, len(given) - 1)]
    nearest = [[{"sentence": int(j), "cosine": float(row[j])} for j in first] for row, first in zip(cosines, order)]
    return {**answer, "nearest": nearest}
