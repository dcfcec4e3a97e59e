"""Questions about writing: the likeliest next tokens, and a text as it is sampled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tinyformer.decoding.decoders import Decoder
from tinyformer.decoding.sampling import Sampling, sample
from tinyformer.errors import UserError
from tinyformer.explore.passages import Answer, Passage
from tinyformer.explore.subjects import Subject, Subjects
from tinytensor.backend import host

MOST_TOKENS = 5_000  # that one question may have written
BEST = 10  # the likeliest tokens that are shown at a place


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


@dataclass(frozen=True)
class Next:
    """A passage, and how the token after it would be chosen."""

    passage: Passage
    sampling: Sampling = field(default_factory=Sampling)


def next_token(subjects: Subjects, asked: Next) -> Answer:
    """The distribution of the token after a passage: see ``distribution``."""
    subject = asked.passage.subject(subjects)
    with subjects.lock:
        decoder = subject.decoder(len(asked.passage.ids), asked.passage.source)
        logits = decoder.next_logits([asked.passage.ids])[0]
    return distribution(subject, logits, asked.sampling)


@dataclass(frozen=True)
class Write:
    """A passage to continue by up to ``length`` tokens."""

    passage: Passage
    length: int
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if not 0 <= self.length <= MOST_TOKENS:
            raise UserError(f"length must be from 0 to {MOST_TOKENS}, not {self.length}")


def write(subjects: Subjects, asked: Write) -> Iterator[Answer]:
    """The tokens that continue a passage, one a line: its ``id``, ``text`` and ``probability``, and the ``distribution`` from
    which it was picked. They are those that ``sample`` gives."""
    subject = asked.passage.subject(subjects)
    with subjects.lock:
        longest = len(asked.passage.ids) + asked.length
        decoder = WatchedDecoder(subject.decoder(longest, asked.passage.source))
    steps = sample(decoder, [asked.passage.ids], asked.length, asked.sampling, subject.ends, subject.forbidden)
    while True:
        with subjects.lock:
            ids = next(steps, None)
        if ids is None:
            return
        found = distribution(subject, decoder.logits[0], asked.sampling, int(ids[0]))
        yield {"id": int(ids[0]), "text": subject.texts(ids)[0], **found}


def distribution(subject: Subject, logits: Any, sampling: Sampling, chosen: int | None = None) -> Answer:
    """Logits (vocab_size,) as what ``sampling`` makes of them: the ``best`` tokens with their probabilities, likeliest first;
    the ``entropy`` in nats; how many tokens are ``possible``; and the ``probability`` of the ``chosen`` token."""
    if subject.forbidden:
        logits = logits.copy()
        logits[list(subject.forbidden)] = -host.inf
    probabilities = sampling.probabilities(logits)
    order = host.argsort(-probabilities, kind="stable")[:BEST].tolist()
    positive = probabilities[probabilities > 0]
    return {
        "best": [
            {"id": i, "text": text, "probability": float(probabilities[i])}
            for i, text in zip(order, subject.texts(order))
            if probabilities[i] > 0
        ],
        "entropy": float(-(positive * host.log(positive)).sum()),
        "possible": len(positive),
        "probability": None if chosen is None else float(probabilities[chosen]),
    }
