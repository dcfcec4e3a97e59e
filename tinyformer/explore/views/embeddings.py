"""Questions about a model's tables: token embeddings in two dimensions, and positions."""

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
MOST_POSITIONS = 8192  # maximum rows of a table of unlimited or very many positions

_kept = Kept(MOST_KEPT)


@dataclass(frozen=True)
class Embedded:
    """A model. If ``source`` is set, the encoder's token embeddings of an encoder-decoder, otherwise the decoder's."""

    model: str
    source: bool = False


def embeddings(subjects: Subjects, asked: Embedded) -> Answer:
    """Project the embeddings of a model's tokens onto their first two principal components.

    ``texts`` by id; ``coordinates``, two each, as little-endian float32 in base64; the ``explained`` fraction of variance per
    axis; the ``width`` of an embedding. A run with snapshots uses the axes of the last one, of this ``step``, so that points do
    not jump. ``extent``: [left, right, bottom, top] of the vectors that define the axes.
    """
    subject, (step, last, stamp) = subjects.get(asked.model), _last_snapshot(subjects, asked.model)
    # Without the models' lock: nothing is recorded, and a large vocabulary takes seconds.
    make = partial(_in_two_dimensions, subject, asked.source, step, last)
    return _kept.get(subject.model, (asked.source, stamp), make, _size)


def _last_snapshot(subjects: Subjects, model: str) -> tuple[int | None, Subject | None, Hashable]:
    """Return a run's last readable snapshot: its step, and a value that changes when its file is replaced."""
    for step, name in reversed(subjects.snapshots(model).items()):
        with suppress(UserError):
            return step, subjects.get(name), subjects.stamp(name)
    return None, None, None


def _rows(subject: Subject, source: bool) -> Array:
    weight = token_embedding(subject, source)
    return weight.numpy()[: subject.tokenizer.vocab_size]  # some models have more rows than tokens


def _in_two_dimensions(subject: Subject, source: bool, step: int | None, last: Subject | None) -> Answer:
    rows = _rows(subject, source)
    found = in_two_dimensions(subject, rows, None if last is None else _rows(last, source))
    return {"step": step, "texts": token_texts(subject.tokenizer, range(len(rows)), source), **found}


def in_two_dimensions(subject: Subject, rows: Array, of: Array | None = None) -> Answer:
    """Return the ``coordinates`` of a model's vectors (rows, width), their ``extent``, the fractions ``explained``, and the
    ``width`` (see ``embeddings``). The axes are those of the vectors ``of`` (default: the same vectors). Raises UserError for
    values that are not finite."""
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
    """Return a model's token embeddings (tokens, width). If ``source`` is set, return an encoder-decoder's source embeddings.
    Raises UserError for a ``source`` of other models."""
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
    """A table of positions: its ``name``, ``kind`` and size, and a function that returns ``count`` rows from ``first``."""

    name: str
    kind: str
    rows: int
    columns: int
    part: Callable[[int, int], Tensor]


def position_tables(subjects: Subjects, asked: Named) -> Answer:
    """List the ``tables`` of a model's positions (empty for a recurrent network), each with its ``name``; its ``kind``,
    "learned", "sinusoidal", "sinusoidal_halves" or "rotary"; the number of ``rows`` (positions) and ``columns`` (dimensions, or
    pairs of dimensions rotated together); and the ``largest`` absolute value."""
    subject = subjects.get(asked.model)
    with subjects.lock:
        return {"tables": [_told(table) for table in tables_of(subject)]}


def _told(table: Table) -> Answer:
    largest = 1.0 if table.kind != "learned" else float(abs(table.part(0, table.rows).numpy()).max())
    if not math.isfinite(largest):
        raise UserError(NOT_FINITE)
    return {"name": table.name, "kind": table.kind, "rows": table.rows, "columns": table.columns, "largest": largest}


def tables_of(subject: Subject) -> list[Table]:
    """Return the tables of a model's positions."""
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
        if config.positions != "learned":  # both are the same
            sides = [("positions", model.target_embedding)]
        return [_absolute(name, side.positions, config.positions, config.max_length, config.d_model) for name, side in sides]
    if isinstance(model, EncoderDecoder) or not hasattr(config, "positions"):
        return []
    bert = getattr(model, "bert", model)
    return [_absolute("positions", bert.position_embedding, config.positions, config.max_length, config.d_model)]


def _absolute(name: str, positions: Any, kind: str, longest: int, width: int) -> Table:
    return Table(name, kind, min(longest, MOST_POSITIONS), width, lambda first, count: positions(count, first))


def _cosines(rotary: RotaryPositions, first: int, count: int) -> Tensor:
    """Return the cosines of the angles by which each pair of dimensions is rotated, (count, d_head / 2)."""
    return rotary.table_for(first + count, "float32")[first : first + count, : len(rotary.frequencies)]


@dataclass(frozen=True)
class PositionPart:
    """A slice of a position table: ``count`` rows from ``first``, and in them, ``columns`` columns from ``first_column``."""

    model: str
    table: str
    first: int
    count: int
    first_column: int
    columns: int


def positions(subjects: Subjects, asked: PositionPart) -> Answer:
    """Return the ``values`` of a slice of a position table, by row. For rotary positions, they are cosines of the angles."""
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
    """Sentences for a model in a sentence-transformers folder."""

    model: str
    sentences: list[str]


def sentences(subjects: Subjects, asked: Sentences) -> Answer:
    """Project sentence vectors onto their first two principal components, as ``embeddings`` does. For each sentence, also
    return its ``nearest`` neighbors, with ``sentence`` (index) and ``cosine``, in descending order."""
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
    host.fill_diagonal(cosines, -host.inf)  # each sentence is nearest to itself
    order = (-cosines).argsort(axis=1, kind="stable")[:, : min(NEAREST, len(given) - 1)]
    nearest = [[{"sentence": int(j), "cosine": float(row[j])} for j in first] for row, first in zip(cosines, order)]
    return {**answer, "nearest": nearest}
