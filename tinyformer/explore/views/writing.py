"""Generation questions: the most likely tokens at a position, and sampled text."""

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

SEED = 1337  # default seed, so that a question always has the same answer
MOST_TOKENS = 5_000  # maximum to generate per question
BEST = 10  # most likely tokens to show at a position
SMALL = 16 * 2**20  # model parameters for which one thread is enough
MOST_REMEMBERED = 8  # positions with cached logits, so that new sampling settings do not need the model


class WatchedDecoder:
    """A decoder that stores the last logits of the decoder that it wraps."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.logits: Any = None

    def next_logits(self, new: Any) -> Any:
        """Return the logits (batch, vocab_size) after the new ids (batch, count)."""
        self.logits = self.decoder.next_logits(new)
        return self.logits

    def select(self, rows: Any) -> None:
        """Keep these rows of the batch."""
        self.decoder.select(rows)


class Remembered:
    """A cache of the logits at each model's most recently requested positions. Hold the subjects' lock while using it."""

    def __init__(self) -> None:
        self.of_models: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    def logits(self, model: Any, place: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the cached result for this position, or call ``compute``."""
        known = self.of_models.setdefault(model, {})
        found = known.pop(place, None)
        known[place] = compute() if found is None else found  # as the newest entry
        while len(known) > MOST_REMEMBERED:
            del known[next(iter(known))]
        return known[place]


_remembered = Remembered()


@dataclass(frozen=True)
class Next:
    """A passage, and how to choose the next token. ``chosen`` is a token whose probability is also returned."""

    passage: Passage
    sampling: Sampling = field(default_factory=Sampling)
    chosen: int | None = None


def next_token(subjects: Subjects, asked: Next) -> Answer:
    """Return the token distribution after a passage. See ``distribution``."""
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
    """A passage of a BERT, the position to fill in, and how to choose a token there."""

    passage: Passage
    place: int
    sampling: Sampling = field(default_factory=Sampling)


def fill(subjects: Subjects, asked: Fill) -> Answer:
    """Return the token distribution at one position, usually a [MASK]. See ``distribution``."""
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
    """Yield the tokens that continue a passage, one per line: ``id``, ``text``, ``probability``, and the ``distribution`` that
    it was sampled from. Tokens match ``sample``. An encoder-decoder generates no longer sequences than its Translator."""
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
    """Context manager that limits BLAS to one thread for a small model. Its products for one token take microseconds. Threads
    that wait for each other take milliseconds if the browser and other programs also use the cores."""
    return one_blas_thread() if num_weights(subject.model) < SMALL else nullcontext()


def distribution(
    subject: Subject, logits: Any, sampling: Sampling, chosen: int | None = None, text: Sequence[int] = (), written: int = 0
) -> Answer:
    """Apply ``sampling`` to logits (vocab_size,), given the ids of a ``text`` of which ``written`` were generated. Return the
    ``best`` tokens with their probabilities, most likely first; the ``entropy`` in nats; the number of ``possible`` tokens; and
    the ``probability`` of the ``chosen`` token. Raises UserError if the model has no such token."""
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
        "entropy": max(0.0, float(-(positive * host.log(positive)).sum())),  # avoids -0.0
        "possible": len(positive),
        "probability": None if chosen is None else float(probabilities[chosen]),
    }
