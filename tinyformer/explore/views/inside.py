"""Questions about a model's internal values for a passage: residual streams, logit lens, states and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError, shortened
from tinyformer.decoding.beam_search import log_softmax
from tinyformer.decoding.sampling import Sampling
from tinyformer.explore.views.passages import Answer, OfPassage, Passage
from tinyformer.explore.views.reading import (
    NOT_FINITE,
    Reading,
    is_recurrent,
    predicting,
    probabilities,
    reading,
    uncertainty,
    why_no_shares,
)
from tinyformer.explore.views.subjects import LONGEST, Subject, Subjects
from tinyformer.explore.views.writing import distribution
from tinyformer.models.bert import BertForQuestionAnswering, BertForTokenClassification, BertHead
from tinyformer.models.evaluating import evaluating
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

MOST_PLACES = 128  # per answer
MOST_NUMBERS = 20_000  # per answer
HIDDEN_AT_ONCE = 2048  # tokens per pass over copies of a text, each with a different token masked


def check_part(count: int, first: int, length: int, most: int, what: str) -> None:
    """Raise UserError unless ``first`` to ``first + count`` is within ``length`` and small enough for an answer."""
    if not 1 <= count <= most:
        raise UserError(f"the number of {what} must be from 1 to {most}, got {count}")
    if not 0 <= first <= length - count:
        raise UserError(f"{first} to {first + count - 1} are not among the {what}, whose number is {length}")


def inside(subjects: Subjects, asked: OfPassage) -> Answer:
    """Describe what can be shown about a model that has read a passage.

    - ``first`` and ``count``: which tokens of the passage it read, if the passage exceeds its limit.
    - ``stacks``: for each stack of Transformer blocks, its ``name``, number of ``tokens``, names of ``rows`` (embeddings and
      each block), ``means`` over the tokens of each row's norm, and ``smallest`` and ``largest`` norm.
    - ``states``: for each type of recurrent state, its ``name``, the number of ``layers``, ``tokens`` and ``units``, the number
      of ``directions`` that share the units, whether the tokens are ``reversed`` (except the last), and the ``largest``
      absolute value per layer.
    - ``predicts``: the "next" token, the token "here", or null.
    - ``lens``: names of the rows of ``lens``, or null if there is none.
    - ``no_shares``: a sentence on why there is no ``attribution``, or null if there is.

    If there are two stacks, or states with names starting with "encoder", the first covers the source.
    """
    subject = asked.passage.subject(subjects)
    with subjects.for_long():
        found = reading(subjects, subject, asked.passage)
        name = predicting(subject, found)
        return {
            "first": found.first,
            "count": len(found.ids),
            "stacks": [] if is_recurrent(subject) else [_stack(name, stack) for name, stack in found.streams.items()],
            "states": [_kind_of_state(subject, *item) for item in found.streams.items()] if is_recurrent(subject) else [],
            "predicts": {"encoder": None, "masked": "here"}.get(subject.kind, "next"),
            "lens": None if name is None else _row_names(subject, len(found.streams[name])),
            "no_shares": why_no_shares(subject),
        }


def _row_names(subject: Subject, count: int) -> list[str]:
    if is_recurrent(subject):
        return [f"layer {i}" for i in range(1, count + 1)]
    return ["embeddings", *(f"layer {i}" for i in range(1, count))]


def _stack(name: str, stack: Sequence[Tensor]) -> Answer:
    norms = host.stack([norms_of(row) for row in stack])
    return {
        "name": name,
        "tokens": norms.shape[1],
        "rows": ["embeddings", *(f"layer {i}" for i in range(1, len(stack)))],
        "means": norms.mean(1).tolist(),
        "smallest": float(norms.min()),
        "largest": float(norms.max()),
    }


def norms_of(row: Tensor) -> Any:
    """Return the Euclidean norm of each vector of a residual stream (length, d_model): (length,) float64."""
    return host.linalg.norm(row.numpy().astype(host.float64), axis=-1)


def _kind_of_state(subject: Subject, name: str, layers: Sequence[Tensor]) -> Answer:
    config = subject.model.config
    tokens, units = layers[0].shape
    return {
        "name": name,
        "layers": len(layers),
        "tokens": tokens,
        "units": units,
        "directions": units // config.d_model,
        "reversed": name.startswith("encoder") and config.reverse_source,
        "largest": [float(abs(layer.numpy()).max()) for layer in layers],
    }


@dataclass(frozen=True)
class Norms:
    """A slice of a stack's tokens: ``count`` tokens from ``first``, counted from the first token of the stack."""

    passage: Passage
    stack: str
    first: int
    count: int


def norms(subjects: Subjects, asked: Norms) -> Answer:
    """Return the residual stream ``norms``: for each row of the stack (see ``inside``), one norm per token."""
    subject = asked.passage.subject(subjects)
    with subjects.for_long():
        stack = None if is_recurrent(subject) else reading(subjects, subject, asked.passage).streams.get(asked.stack)
        if stack is None:
            raise UserError(f"this model has no {shortened(asked.stack, 40)!r}")
        check_part(asked.count, asked.first, len(stack[0]), MOST_PLACES, "tokens")
        return {"norms": [norms_of(row[asked.first : asked.first + asked.count]).tolist() for row in stack]}


@dataclass(frozen=True)
class Places:
    """A slice of the tokens that the model has read: ``count`` tokens from ``first``, counted from the first token read."""

    passage: Passage
    first: int
    count: int


def lens(subjects: Subjects, asked: Places) -> Answer:
    """Logit lens (nostalgebraist 2020): what the model would predict if it ended after each block or layer.

    For each row (see ``inside``) and position, return ``ids``, ``texts`` and ``probabilities`` of the most likely token. The
    last row is the model's actual prediction.
    """
    subject = asked.passage.subject(subjects)
    answer: dict[str, list[Any]] = {"ids": [], "texts": [], "probabilities": []}
    with subjects.for_long():
        for row in _lens_rows(subject, reading(subjects, subject, asked.passage)):
            check_part(asked.count, asked.first, len(row), MOST_PLACES, "tokens")
            found = probabilities(subject, logits_of(subject, row[asked.first : asked.first + asked.count]))
            best = found.argmax(-1)
            answer["ids"].append(best.tolist())
            answer["texts"].append(subject.texts(best.tolist()))
            answer["probabilities"].append(found[host.arange(len(best)), best].tolist())
    return answer


@dataclass(frozen=True)
class Cell:
    """A row of the lens, and a position that the model has read."""

    passage: Passage
    row: int
    place: int


def lens_cell(subjects: Subjects, asked: Cell) -> Answer:
    """Return the prediction at a position if the model ended after a row of the lens. See ``distribution``."""
    subject = asked.passage.subject(subjects)
    with subjects.for_long():
        rows = _lens_rows(subject, reading(subjects, subject, asked.passage))
        check_part(1, asked.row, len(rows), 1, "rows")
        check_part(1, asked.place, len(rows[0]), 1, "tokens")
        logits = logits_of(subject, rows[asked.row][asked.place : asked.place + 1])
    return distribution(subject, logits[0], Sampling())


def _lens_rows(subject: Subject, found: Reading) -> Sequence[Tensor]:
    name = predicting(subject, found)
    if name is None:
        raise UserError("this model makes no predictions of what a layer gives")
    return found.streams[name]


def logits_of(subject: Subject, stream: Tensor) -> Any:
    """Return the logits (positions, vocab_size) of a residual stream (positions, d_model), as a CPU array."""
    with tt.no_grad(), evaluating(subject.model):
        return subject.model.logits_of(stream[None])[0].numpy()


def entropies(subjects: Subjects, asked: Places) -> Answer:
    """Return the ``entropies`` of the predictions at each position, and the ``losses`` of their target tokens, in nats. The
    loss is null if there is no target.

    A BERT's tokens are masked in turn and predicted from all others (pseudo-log-likelihood, Salazar et al. 2020), with a pass
    for each position. Both are null for the tokens around a text, and the loss is null for a mask.
    """
    subject = asked.passage.subject(subjects)
    if subject.kind == "encoder":
        raise UserError("this model predicts no tokens")
    first, stop = asked.first, asked.first + asked.count
    with subjects.for_long():
        found = reading(subjects, subject, asked.passage)
        check_part(asked.count, first, len(found.ids), MOST_PLACES, "tokens")
        if found.entropies:
            return {"entropies": found.entropies[first:stop], "losses": found.losses[first:stop]}
        sure: Sequence[float | None]
        if subject.kind == "masked":
            sure, losses = _hidden_in_turn(subjects, subject, found.ids, range(first, stop))
        else:
            logits = logits_of(subject, _lens_rows(subject, found)[-1][first:stop])
            sure, losses = uncertainty(subject, logits, found.ids[first + 1 : stop + 1])
        return {"entropies": sure, "losses": losses}


def _hidden_in_turn(
    subjects: Subjects, subject: Subject, ids: Sequence[int], places: Sequence[int]
) -> tuple[list[float | None], list[float | None]]:
    """Return entropies and losses at these positions of a BERT's sequence, masking one position at a time."""
    around = {*subject.before, *subject.after}
    predicted = [place for place in places if ids[place] not in around]
    sure: dict[int, float] = {}
    lost: dict[int, float | None] = {}
    step = max(1, HIDDEN_AT_ONCE // len(ids))
    for start in range(0, len(predicted), step):
        some = predicted[start : start + step]
        rows = host.tile(host.array(ids), (len(some), 1))
        rows[host.arange(len(some)), some] = subject.mask
        with tt.no_grad(), evaluating(subject.model):
            logits = subject.model(tt.tensor(rows), places=(tt.arange(len(some)), tt.tensor(some))).numpy()
        entropies, losses = uncertainty(subject, logits, [ids[place] for place in some])
        sure |= zip(some, entropies)
        lost |= {place: None if ids[place] == subject.mask else loss for place, loss in zip(some, losses)}
        subjects.lock.let_others()
    return [sure.get(place) for place in places], [lost.get(place) for place in places]


@dataclass(frozen=True)
class StatePart:
    """A slice of a recurrent network's states of one ``kind`` and ``layer``: the units ``first_unit`` to ``first_unit + units``
    after the tokens ``first`` to ``first + count``."""

    passage: Passage
    kind: str
    layer: int
    first: int
    count: int
    first_unit: int
    units: int


def hidden_states(subjects: Subjects, asked: StatePart) -> Answer:
    """Return the ``values`` of a recurrent network's state: for each unit, one value after each token."""
    subject = asked.passage.subject(subjects)
    with subjects.for_long():
        layers = reading(subjects, subject, asked.passage).streams.get(asked.kind) if is_recurrent(subject) else None
    if layers is None:
        raise UserError(f"this model has no state {shortened(asked.kind, 40)!r}")
    check_part(1, asked.layer, len(layers), 1, "layers")
    tokens, width = layers[asked.layer].shape
    check_part(asked.count, asked.first, tokens, MOST_PLACES, "tokens")
    check_part(asked.units, asked.first_unit, width, MOST_NUMBERS // asked.count, "units")
    units = slice(asked.first_unit, asked.first_unit + asked.units)
    part = layers[asked.layer][asked.first : asked.first + asked.count, units]
    return {"values": part.numpy().astype(float).T.tolist()}


def classes(subjects: Subjects, asked: OfPassage) -> Answer:
    """Return a classifier's output for a passage.

    - ``of``: "text" (one class), "tokens" (one class per token), or "places" (the positions where an answer starts and ends).
    - ``labels``: names of the classes.
    - ``probabilities``: for each class, one probability for the text or a list with one per token. They sum to 1 over classes,
      or with "places", over tokens.
    - ``value``: output of a model with a single class, which is not a probability; null for other models.

    Tokens after the first end token, such as BERT's [SEP], are read as the second segment. All other questions read the passage
    as one segment.
    """
    subject = asked.passage.subject(subjects)
    model = subject.model
    if not isinstance(model, BertHead):
        raise UserError("this model tells no classes: it has no head for them")
    count, longest = len(asked.passage.ids), subject.longest or LONGEST
    if count > longest:
        raise UserError(f"the text has {counted(count, 'token')}, more than the {longest} that this model reads: shorten it")
    with subjects.for_long(), tt.no_grad(), evaluating(model):
        logits = model(tt.tensor([asked.passage.ids]), _segments(subject, asked.passage.ids)).numpy()[0].astype(host.float64)
    if not host.isfinite(logits).all():
        raise UserError(NOT_FINITE)
    found: dict[str, Any] = {"labels": list(model.labels), "value": None}
    if isinstance(model, BertForQuestionAnswering):
        return {**found, "of": "places", "probabilities": host.exp(log_softmax(logits.T)).tolist()}
    if isinstance(model, BertForTokenClassification):
        return {**found, "of": "tokens", "probabilities": host.exp(log_softmax(logits)).T.tolist()}
    if len(logits) == 1:
        found["value"] = float(logits[0])
    return {**found, "of": "text", "probabilities": host.exp(log_softmax(logits)).tolist()}


def _segments(subject: Subject, ids: Sequence[int]) -> Tensor | None:
    """Return the segments (1, length): 0 up to the first end token, 1 after it. None for a model without two segments."""
    if subject.model.config.num_segments < 2:
        return None
    ends = [i in subject.after for i in ids]
    return tt.tensor([[int(any(ends[:place])) for place in range(len(ids))]])
