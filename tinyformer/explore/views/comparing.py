"""Comparison questions: next-token predictions of two models, and the loss of each token of a text."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.decoding.beam_search import log_softmax
from tinyformer.decoding.sampling import Sampling
from tinyformer.decoding.token_losses import token_losses_in_parts
from tinyformer.explore.views.passages import LONGEST_TEXT, Answer, Passage
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.explore.views.writing import distribution
from tinyformer.models.evaluating import evaluating
from tinyformer.training.evaluation import perplexity
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

SOON = 0.1  # seconds of computing losses before others get the lock


@dataclass(frozen=True)
class Two:
    """A passage as ids of one model, and as ids of another."""

    a: Passage
    b: Passage


def divergence(subjects: Subjects, asked: Two) -> Answer:
    """Return two models' predictions after a passage, or at its first mask: ``a`` and ``b`` as from ``distribution``, and
    whether their vocabularies are ``alike``. If so, also return ``tokens``, the ten most likely of either with ``text`` and
    probabilities ``a`` and ``b``, and the divergences ``a_to_b``, the sum of p_a log(p_a / p_b) in nats, and ``b_to_a``."""
    passages = asked.a, asked.b
    first, second = (passage.subject(subjects) for passage in passages)
    alike = _same_vocabulary(first, second)
    logits = [_predicted(subjects, subject, passage) for subject, passage in zip((first, second), passages)]
    a, b = (distribution(subject, row, Sampling()) for subject, row in zip((first, second), logits))
    found: dict[str, Any] = {"a": a, "b": b, "alike": alike, "tokens": None, "a_to_b": None, "b_to_a": None}
    if alike:
        p, q = (_log_probabilities(subject, row) for subject, row in zip((first, second), logits))
        found |= {"tokens": _likeliest_of_both(first, a, b, p, q), "a_to_b": _divergence(p, q), "b_to_a": _divergence(q, p)}
    return found


def _predicted(subjects: Subjects, subject: Subject, passage: Passage) -> Any:
    """Return the logits (vocab_size,) for the token after the passage, or for its first mask."""
    with subjects.lock:
        if subject.kind != "masked":
            return subjects.decoder(subject, len(passage.ids), passage.source).next_logits([passage.ids])[0]
        if subject.mask not in passage.ids:
            raise UserError("there is no mask in the text to compare predictions for")
        _check_length(subject, passage.ids)
        places = ([0], [passage.ids.index(subject.mask)])
        with tt.no_grad(), evaluating(subject.model):
            return subject.model(tt.tensor([passage.ids]), places=tuple(map(tt.tensor, places))).numpy()[0]


def _log_probabilities(subject: Subject, logits: Any) -> Any:
    """Return the tokens' log-probabilities (vocab_size,), float64; -inf for tokens that are never generated."""
    logits = logits.astype(host.float64)
    logits[list(subject.forbidden)] = -host.inf
    return log_softmax(logits)


def _divergence(p: Any, q: Any) -> float:
    """Return the Kullback-Leibler divergence of two distributions in nats, given log-probabilities."""
    possible = host.isfinite(p) & host.isfinite(q)
    return float(tt.kl_div(tt.tensor(q[possible]), tt.tensor(p[possible]), "sum", log_target=True).item())


def _likeliest_of_both(subject: Subject, a: Answer, b: Answer, p: Any, q: Any) -> list[dict[str, Any]]:
    """Return the most likely tokens of either distribution, by mean probability."""
    ids = dict.fromkeys(token["id"] for one in (a, b) for token in one["best"])
    order = sorted(ids, key=lambda i: -(host.exp(p[i]) + host.exp(q[i])))
    return [
        {"id": i, "text": text, "a": float(host.exp(p[i])), "b": float(host.exp(q[i]))}
        for i, text in zip(order, subject.texts(order))
    ]


def _same_vocabulary(a: Subject, b: Subject) -> bool:
    """Return True if each id represents the same text in both models."""
    if a.tokenizer is b.tokenizer:
        return True
    if a.num_tokens != b.num_tokens or a.tokenizer.kind != b.tokenizer.kind or a.tokenizer.special != b.tokenizer.special:
        return False
    ids = range(min(a.num_tokens, a.tokenizer.vocab_size))
    return a.tokenizer.vocab_size == b.tokenizer.vocab_size and a.texts(ids) == b.texts(ids)


@dataclass(frozen=True)
class Losses:
    """A text whose losses to compute. For an encoder-decoder, it is a translation of ``source``."""

    model: str
    text: str
    source: str = ""

    def __post_init__(self) -> None:
        for name, text in (("text", self.text), ("source", self.source)):
            if len(text) > LONGEST_TEXT:
                raise UserError(f"{name} has {counted(len(text), 'character')}, more than {LONGEST_TEXT}: shorten it")


def losses(subjects: Subjects, asked: Losses) -> Iterator[Answer]:
    """Yield the loss of each token of a text, in nats, in chunks. Each line has the ``texts`` and ``losses`` of some tokens,
    the number ``done`` out of all ``tokens``, and over the tokens done, the ``mean`` and its ``perplexity`` (null on overflow).
    The last line adds ``bits_per_character``, for comparing models with different tokens. ``uniform`` is the loss of a uniform
    prediction.

    A language model reads the text after its start token. For an encoder-decoder, the losses cover the translation and its end,
    given ``source``. For a BERT, they give the pseudo-log-likelihood (Salazar et al. 2020): each token is masked in turn, and
    predicted from all others.
    """
    if not asked.text:
        raise UserError("the text is empty: type or paste one")
    subject = subjects.get(asked.model)
    ids, first, last = _read(subject, subject.encode(asked.text))
    texts = subject.texts(ids[first:last])
    if not texts:
        raise UserError("the text has no tokens: type or paste another")
    done, total = 0, 0.0
    for part in _within(_losses(subjects, subject, ids, asked.source), first, last):
        if not host.isfinite(part).all():
            raise UserError("a loss is not finite: the model's training diverged, or its weights are damaged")
        total += float(part.sum())
        begin, done = done, done + len(part)
        uncertainty = perplexity(total / done)
        yield {
            "texts": texts[begin:done],
            "losses": part.tolist(),
            "done": done,
            "tokens": len(texts),
            "mean": total / done,
            "perplexity": uncertainty if math.isfinite(uncertainty) else None,
            "bits_per_character": total / math.log(2) / len(asked.text) if done == len(texts) else None,
            "uniform": math.log(subject.num_tokens),
        }


def _read(subject: Subject, ids: list[int]) -> tuple[list[int], int, int]:
    """Return the ids that a model reads for a text's ids, and the range of the text's ids in them, from ``first`` to ``last``
    (exclusive). Raises UserError if there are too many."""
    if subject.kind == "encoder":
        raise UserError("this model predicts no tokens, so they have no losses")
    if subject.kind == "translation":
        ids = [*ids, *subject.ends[:1]]
        _check_length(subject, ids[:-1])  # the end token is not read
        return ids, len(subject.start), len(ids)
    if subject.kind == "masked":
        _check_length(subject, ids)
        return ids, len(subject.before), len(ids) - len(subject.after)
    if not subject.before:
        ids = [*subject.start, *ids]
    return ids, len(subject.before or subject.start), len(ids)


def _losses(subjects: Subjects, subject: Subject, ids: list[int], source: str) -> Iterator[Any]:
    """Yield the chunks of ``token_losses_in_parts``, merged if they come fast. Between chunks, others may use the model."""
    with subjects.lock:
        read = subject.encode(source, source=True) if subject.kind == "translation" else None
        mask = subject.mask if subject.kind == "masked" else None
        parts = token_losses_in_parts(subject.model, ids, read, mask)
    while True:
        with subjects.lock:
            begun, found = time.monotonic(), []
            for part in parts:
                found.append(part)
                if time.monotonic() - begun > SOON:
                    break
        if not found:
            return
        yield host.concatenate(found)


def _within(parts: Iterator[Any], first: int, last: int) -> Iterator[Any]:
    """Yield the losses from ``first`` to ``last`` (exclusive)."""
    place = 0
    for part in parts:
        kept = part[max(first - place, 0) : max(last - place, 0)]
        place += len(part)
        if len(kept):
            yield kept


def _check_length(subject: Subject, ids: Sequence[int]) -> None:
    if subject.longest is not None and len(ids) > subject.longest:
        raise UserError(
            f"the text has {counted(len(ids), 'token')}, with those around it, more than the {subject.longest} that this "
            "model reads: "
            "shorten it"
        )
