"""Direct logit attribution: what each head and feed-forward network adds to a logit."""

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

BEST = 10  # candidate tokens
LONGEST_TOKEN = 100  # maximum characters of a text whose first token is used


@dataclass(frozen=True)
class Attribution:
    """A position in a passage, counted from the first token that the model reads, and the logit to explain: a ``token`` by its
    id, or the first token of a text (default: the most likely token). If ``other`` is set, explain the difference of the two
    logits."""

    passage: Passage
    place: int
    token: int | str | None = None
    other: int | str | None = None


def attribution(subjects: Subjects, asked: Attribution) -> Answer:
    """Return the contributions to a token's logit at a position, or to the difference of two logits (direct logit attribution,
    with the scale of the final norm held fixed).

    - ``token`` and ``other``: ``id`` and ``text`` of the tokens; ``other`` may be null.
    - ``embedding``, ``position`` (null if none is added), ``biases`` and ``rest``: their contributions.
    - ``layers``: for each block, the ``name`` of its attention, and the contributions of its ``heads`` and ``feed_forward``.
    - ``sum``: sum of all contributions. ``logit``: the model's actual value. They differ only by rounding. ``rounded`` is true
      if the model has low-precision weights, whose products are rounded too.
    - ``best``: most likely tokens at this position, each with ``id``, ``text``, ``logit`` and ``probability``. ``next``: the
      next token of the passage, in the same form, or null.

    Supports only GPTs. For other models, the error states the reason (see ``inside``).
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
    """Raise UserError if ``why_no_shares`` gives a reason for this model."""
    why = why_no_shares(subject)
    if why is not None:
        raise UserError(why.rstrip("."))


def read_ids(subject: Subject, passage: Passage) -> list[int]:
    """Return the passage ids that a GPT reads: the last that fit, as in ``inside``."""
    return passage.ids[-min(subject.longest or LONGEST, LONGEST) :]


def recorded(subject: Subject, ids: list[int], place: int) -> SubLayers:
    """Return the sub-layer activations of a GPT at one position, from the pass shared by all views. The caller must hold the
    lock. Raises UserError for values that are not finite."""
    found = reading_of_gpt(subject, tuple(ids)).of_gpt
    assert found is not None
    return sub_layers(subject.model, found, place)


def _attentions(model: GPT) -> list[tuple[str, Any]]:
    blocks: Any = model.blocks
    attentions = {id(block.attention) for block in blocks}
    return [(name, module) for name, module in model.named_modules() if id(module) in attentions]


def _id(subject: Subject, token: int | str | None, likeliest: int) -> int:
    """Return the id of the requested token. Raises UserError if there is none."""
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
