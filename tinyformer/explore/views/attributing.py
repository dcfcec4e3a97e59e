"""Who wrote this token: what each head and each feed-forward network adds to a logit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.explore.views.inside import check_part
from tinyformer.explore.views.passages import Answer, Passage
from tinyformer.explore.views.reading import probabilities, reading_of_gpt, why_no_shares
from tinyformer.explore.views.subjects import LONGEST, Subject, Subjects
from tinyformer.models.attribution import SubLayers, logit_shares, sub_layers
from tinyformer.models.gpt import GPT
from tinytensor.device.backend import host
from tinytensor.nn.quantization import quantized_weights

BEST = 10  # tokens that are offered
LONGEST_TOKEN = 100  # characters of a text of which the first token is taken


@dataclass(frozen=True)
class Attribution:
    """A place of a passage, of those that the model has read (0 is the first of them), and whose logit is asked for: a
    ``token`` by its id, or the first token of a text; without it the likeliest one. With an ``other`` token it is the
    difference of the two logits."""

    passage: Passage
    place: int
    token: int | str | None = None
    other: int | str | None = None


def attribution(subjects: Subjects, asked: Attribution) -> Answer:
    """The shares of a token's logit at a place, or of the difference of two tokens' logits (direct logit attribution, with the
    scale of the final norm held at what it is there).

    - ``token`` and ``other``: the ``id`` and ``text`` of the tokens; ``other`` may be null.
    - ``embedding``, ``position`` (null where none is added), ``biases`` and the ``rest``: the shares of these.
    - ``layers``: of each block the ``name`` of its attention, the shares of its ``heads``, and that of its ``feed_forward``.
    - ``sum``: of all shares. ``logit``: what the model itself computes. They differ by rounding alone; ``rounded`` says whether
      the model has weights of fewer bits, whose products are rounded, too.
    - ``best``: the likeliest tokens at this place, each with ``id``, ``text``, ``logit`` and ``probability``; ``next``: the
      token that stands after it in the passage, as these are, or null.

    Only for GPTs, see ``inside``: the answer says why where there is none.
    """
    subject = asked.passage.subject(subjects)
    with subjects.for_long():
        refuse_others(subject)
        ids = read_ids(subject, asked.passage)
        check_part(1, asked.place, len(ids), 1, "tokens")
        found = recorded(subject, ids, asked.place)
        odds = probabilities(subject, found.logits[None])[0]
        best = host.argsort(-odds, kind="stable")[:BEST].tolist()
        token = _id(subject, asked.token, best[0])
        other = None if asked.other is None else _id(subject, asked.other, best[0])
        shares = logit_shares(subject.model, found, token, other)

    def told(i: int) -> dict[str, Any]:
        return {"id": i, "text": subject.texts([i])[0], "logit": float(found.logits[i]), "probability": float(odds[i])}

    names = [name for name, _ in _attentions(subject.model)]
    return {
        "token": told(token),
        "other": None if other is None else told(other),
        "embedding": shares.embedding,
        "position": shares.position,
        "layers": [
            {"name": name, "heads": heads, "feed_forward": feed_forward}
            for name, heads, feed_forward in zip(names, shares.heads, shares.feed_forward)
        ],
        "biases": shares.biases,
        "rest": shares.rest,
        "sum": shares.sum,
        "logit": shares.logit,
        "rounded": any(True for _ in quantized_weights(subject.model)),
        "best": [told(i) for i in best],
        "next": told(ids[asked.place + 1]) if asked.place + 1 < len(ids) else None,
    }


def refuse_others(subject: Subject) -> None:
    """Raise UserError for a model for which ``why_no_shares`` says why not."""
    why = why_no_shares(subject)
    if why is not None:
        raise UserError(why.rstrip("."))


def read_ids(subject: Subject, passage: Passage) -> list[int]:
    """The ids of a passage that a GPT reads: the last that fit, as ``inside`` has them."""
    return passage.ids[-min(subject.longest or LONGEST, LONGEST) :]


def recorded(subject: Subject, ids: list[int], place: int) -> SubLayers:
    """What the sub-layers of a GPT compute at a place of these ids, from the pass over them that all views share. The caller
    holds the lock. Raises UserError for numbers that are not finite."""
    found = reading_of_gpt(subject, tuple(ids)).of_gpt
    assert found is not None
    return sub_layers(subject.model, found, place)


def _attentions(model: GPT) -> list[tuple[str, Any]]:
    blocks: Any = model.blocks
    attentions = {id(block.attention) for block in blocks}
    return [(name, module) for name, module in model.named_modules() if id(module) in attentions]


def _id(subject: Subject, token: int | str | None, likeliest: int) -> int:
    """The id of a token that is asked for. Raises UserError if there is none."""
    if token is None:
        return likeliest
    if isinstance(token, str):
        ids = subject.tokenizer.encode(token[:LONGEST_TOKEN], allow_special=True)
        if not len(ids):
            raise UserError("type the text of a token: it is empty")
        token = int(ids[0])
    if not 0 <= token < subject.num_tokens:
        raise UserError(f"the model has no token {shortened(str(token), 20)}: its ids are 0 to {subject.num_tokens - 1}")
    return token
