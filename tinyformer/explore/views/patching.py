"""Activation patching: where in the model is the information that distinguishes two prompts?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.decoding.sampling import likeliest
from tinyformer.explore.views.ablating import can_intervene, place_of
from tinyformer.explore.views.attending import Reading, read
from tinyformer.explore.views.passages import Answer, Passage
from tinyformer.explore.views.reading import probabilities
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.explore.views.writing import threads_for
from tinyformer.models.blocks import Block
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinyformer.models.intervening import BlockOutput, intervening
from tinyformer.models.recording import recording_outputs
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

MOST_TOKENS = 128  # per prompt
AT_ONCE = 1024  # tokens per pass; each sequence has a different token patched
CANDIDATES = 5  # most likely tokens of each prompt, to choose from


@dataclass(frozen=True)
class Patched:
    """Two prompts of one model, of equal length, and what to measure: the logit of ``token`` minus that of ``against``, or if
    ``against`` is omitted, the probability of ``token``. By default, they are the most likely tokens of ``b`` and of ``a``. If
    these are equal, use the tokens whose probability rises and falls most from ``a`` to ``b``."""

    a: Passage
    b: Passage
    token: int | None = None
    against: int | None = None

    def __post_init__(self) -> None:
        if self.token is None and self.against is not None:
            raise UserError("against needs a token")
        if self.a.model != self.b.model:
            raise UserError("both prompts must be of one model")
        for name in ("ids", "source"):
            first, second = len(getattr(self.a, name)), len(getattr(self.b, name))
            if first != second:
                raise UserError(
                    f"the prompts have {counted(first, 'token')} and {counted(second, 'token')}: "
                    "change one of them, as they must have as many"
                )
        if len(self.a.ids) > MOST_TOKENS:
            raise UserError(f"a prompt may have at most {MOST_TOKENS} tokens, not {len(self.a.ids)}: shorten both")


@dataclass(frozen=True)
class Measure:
    """What to measure of logits. See ``Patched``."""

    subject: Subject
    token: int
    against: int | None

    def of(self, logits: Any) -> list[float]:
        """Return one value per row of logits (rows, vocab_size)."""
        if self.against is None:
            return list(map(float, probabilities(self.subject, logits)[:, self.token]))
        rows = logits.astype(host.float64)
        return list(map(float, rows[:, self.token] - rows[:, self.against]))


def patched(subjects: Subjects, asked: Patched) -> Iterator[Answer]:
    """Measure how far the prediction for prompt ``a`` moves to that of ``b`` if a block's output at one token comes from ``b``.

    The first line lists the ``blocks``; the ``candidates`` (most likely tokens of either prompt, and measured tokens), each
    with ``id``, ``text`` and probabilities ``a`` and ``b``; the ids ``token`` and ``against`` to measure; and the measure of
    each unchanged prompt, ``a`` and ``b``. Each later line has the ``values`` of the measure for a ``block`` (index from 0) and
    the tokens from ``first`` on. For an encoder-decoder, these are decoder blocks.
    """
    subject = asked.a.subject(subjects)
    can_intervene(subject)
    with subjects.for_long():
        a, b = read(subjects, asked.a), read(subjects, asked.b)
        if a.first:
            raise UserError(f"the model reads at most {counted(len(a.ids), 'token')}: shorten both prompts")
        place = place_of(a)
        if place_of(b) != place:
            raise UserError("the first masks of both prompts must be at the same place: change one of them")
        (first,) = _logits(a, 1, place)
        with recording_outputs(subject.model, Block) as recorded:
            (second,) = _logits(b, 1, place)
    names = [name for name in recorded if subject.kind != "translation" or name.startswith("decoder")]
    measure = _measure(subject, asked, first, second)
    candidates = _candidates(measure, first, second)
    before, after = measure.of(host.stack([first, second]))
    told = {"token": measure.token, "against": measure.against, "a": before, "b": after}
    yield {"blocks": names, "candidates": candidates, **told}
    count = len(a.ids)
    step = max(1, AT_ONCE // count)
    for i, name in enumerate(names):
        (output,) = recorded[name]
        for start in range(0, count, step):
            places = range(start, min(start + step, count))
            change = BlockOutput(name, places, output[0, start : start + step])
            with subjects.for_long(), intervening(subject.model, [change]):
                logits = _logits(a, len(places), place)
            yield {"block": i, "first": start, "values": measure.of(logits)}


def _logits(reading: Reading, copies: int, place: int) -> Any:
    """Return the logits (copies, vocab_size) at a position in this many copies of a sequence."""
    subject = reading.subject
    texts = (reading.source, reading.ids) if reading.source else (reading.ids,)
    inputs: list[Tensor] = [tt.tensor([text] * copies) for text in texts]
    with tt.no_grad(), evaluating(subject.model), threads_for(subject):
        if isinstance(subject.model, GPT):
            return subject.model(inputs[0], last_only=True)[:, 0].numpy()
        return subject.model(*inputs)[:, place].numpy()


def _measure(subject: Subject, asked: Patched, first: Any, second: Any) -> Measure:
    for name in ("token", "against"):
        chosen = getattr(asked, name)
        if chosen is not None and not 0 <= chosen < len(first):
            raise UserError(f"{name} must be the id of a token, from 0 to {len(first) - 1}, got {chosen}")
    if asked.token is not None:
        return Measure(subject, asked.token, asked.against)
    a, b = probabilities(subject, host.stack([first, second]))
    token, against = int(b.argmax()), int(a.argmax())
    if token == against:
        token, against = int((b - a).argmax()), int((a - b).argmax())
    return Measure(subject, token, against if against != token else None)


def _candidates(measure: Measure, first: Any, second: Any) -> list[dict[str, Any]]:
    a, b = probabilities(measure.subject, host.stack([first, second]))
    best = [likeliest(p, min(CANDIDATES, int((p > 0).sum()))).tolist() for p in (b, a)]
    measured = [i for i in (measure.token, measure.against) if i is not None and b[i] > 0]  # an output may have no token
    ids = list(dict.fromkeys(best[0] + best[1] + measured))
    texts = measure.subject.texts(ids)
    return [{"id": i, "text": text, "a": float(a[i]), "b": float(b[i])} for i, text in zip(ids, texts)]
