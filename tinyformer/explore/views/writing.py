"""Questions about writing: the likeliest tokens at a place, and a text as it is sampled."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from tinyformer.common.errors import UserError
from tinyformer.decoding.filling import filling_logits
from tinyformer.decoding.generation import Decoder, sample
from tinyformer.decoding.sampling import Sampling, TokenRules, likeliest
from tinyformer.explore.views.passages import Answer, Passage
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.models.quantizing import num_weights
from tinytensor.device.backend import host
from tinytensor.parallel import one_blas_thread

SEED = 1337  # of texts for which none is asked, so that a question always has the same answer
MOST_TOKENS = 5_000  # that one question may have written
BEST = 10  # the likeliest tokens that are shown at a place
SMALL = 16 * 2**20  # parameters of a model for which one thread is enough
MOST_REMEMBERED = 8  # places whose logits are kept, so that a change of the sampling is answered without the model


class WatchedDecoder:
    """A decoder that keeps the last logits of the one it stands for."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.logits: Any = None

    def next_logits(self, new: Any) -> Any:
        """The logits (batch, vocab_size) after the new ids (batch, count)."""
        self.logits = self.decoder.next_logits(new)
        return self.logits

    def select(self, rows: Any) -> None:
        """Go on with these rows of the batch."""
        self.decoder.select(rows)


class Remembered:
    """The logits of the places of each model that were asked about last. Use it while the subjects' lock is held."""

    def __init__(self) -> None:
        self.of_models: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    def logits(self, model: Any, place: Hashable, compute: Callable[[], Any]) -> Any:
        """What ``compute`` returned when this place was last asked about; or what it returns now."""
        known = self.of_models.setdefault(model, {})
        found = known.pop(place, None)
        known[place] = compute() if found is None else found  # as the newest
        while len(known) > MOST_REMEMBERED:
            del known[next(iter(known))]
        return known[place]


_remembered = Remembered()


@dataclass(frozen=True)
class Next:
    """A passage, and how the token after it would be chosen. ``chosen`` is a token whose probability is wanted, too."""

    passage: Passage
    sampling: Sampling = field(default_factory=Sampling)
    chosen: int | None = None


def next_token(subjects: Subjects, asked: Next) -> Answer:
    """The distribution of the token after a passage: see ``distribution``."""
    passage = asked.passage
    subject = passage.subject(subjects)

    def compute() -> Any:
        decoder = subjects.decoder(subject, len(passage.ids), passage.source)
        return decoder.next_logits([passage.ids])[0]

    with subjects.lock, threads_for(subject):
        logits = _remembered.logits(subject.model, (tuple(passage.ids), tuple(passage.source)), compute)
    return distribution(subject, logits, asked.sampling, asked.chosen, passage.ids)


@dataclass(frozen=True)
class Fill:
    """A passage of a BERT, and the place in it that is to be filled in, by how a token would be chosen there."""

    passage: Passage
    place: int
    sampling: Sampling = field(default_factory=Sampling)


def fill(subjects: Subjects, asked: Fill) -> Answer:
    """The distribution of the token at a place of a passage, which usually holds a [MASK]: see ``distribution``."""
    passage, place = asked.passage, asked.place
    subject = passage.subject(subjects)
    if subject.kind != "masked":
        raise UserError("this model fills in no masks")
    with subjects.lock, threads_for(subject):
        logits = _remembered.logits(
            subject.model, (tuple(passage.ids), place), lambda: filling_logits(subject.model, passage.ids, [place])[0]
        )
    return distribution(subject, logits, asked.sampling)


@dataclass(frozen=True)
class Write:
    """A passage to continue by up to ``length`` tokens."""

    passage: Passage
    length: int
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if not 0 <= self.length <= MOST_TOKENS:
            raise UserError(f"length must be from 0 to {MOST_TOKENS}, got {self.length}")


def write(subjects: Subjects, asked: Write) -> Iterator[Answer]:
    """The tokens that continue a passage, one a line: its ``id``, ``text`` and ``probability``, and the ``distribution`` from
    which it was picked. They are those that ``sample`` gives. An encoder-decoder writes no longer texts than its Translator."""
    subject, sampling = asked.passage.subject(subjects), asked.sampling
    sampling = replace(sampling, seed=SEED) if sampling.seed is None else sampling
    length = subject.room(asked.passage.ids, asked.length)
    with subjects.lock:
        decoder = WatchedDecoder(subjects.decoder(subject, len(asked.passage.ids) + length, asked.passage.source))
    steps = sample(decoder, [asked.passage.ids], length, sampling, subject.ends, subject.forbidden, False, subject.rules)
    text = list(asked.passage.ids)
    with threads_for(subject):
        while True:
            with subjects.lock:
                ids = next(steps, None)
            if ids is None:
                return
            written = len(text) - len(asked.passage.ids)
            found = distribution(subject, decoder.logits[0], asked.sampling, int(ids[0]), text, written)
            text.append(int(ids[0]))
            yield {"id": int(ids[0]), "text": subject.texts(ids)[0], **found}


def threads_for(subject: Subject) -> AbstractContextManager[None]:
    """A context with one thread of BLAS for a small model. Its products for one token take some microseconds, and threads that
    wait for each other take milliseconds where the browser and other programs use the cores, too."""
    return one_blas_thread() if num_weights(subject.model) < SMALL else nullcontext()


def distribution(
    subject: Subject, logits: Any, sampling: Sampling, chosen: int | None = None, text: Sequence[int] = (), written: int = 0
) -> Answer:
    """Logits (vocab_size,) as what ``sampling`` makes of them after the ids of a ``text``, of which so many were
    ``written``: the ``best`` tokens with their probabilities, likeliest first; the ``entropy`` in nats; how many tokens are
    ``possible``; and the ``probability`` of the ``chosen`` token. Raises UserError if the model has no such token."""
    if chosen is not None and not 0 <= chosen < len(logits):
        raise UserError(f"chosen must be the id of a token, from 0 to {len(logits) - 1}, got {chosen}")
    tokens = TokenRules(None, subject.forbidden, rules=subject.rules if text else ())
    (logits,) = tokens.restrict(logits[None], False, host.array([text], host.int64), written)
    probabilities = sampling.probabilities(logits)
    positive = probabilities[probabilities > 0]
    order = likeliest(probabilities, min(BEST, len(positive))).tolist()
    return {
        "best": [
            {"id": i, "text": text, "probability": float(probabilities[i])} for i, text in zip(order, subject.texts(order))
        ],
        "entropy": max(0.0, float(-(positive * host.log(positive)).sum())),  # not -0.0
        "possible": len(positive),
        "probability": None if chosen is None else float(probabilities[chosen]),
    }
