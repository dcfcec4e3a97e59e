"""The picture of a whole model that has read a passage: small maps of its streams, heads and neurons, and its prediction."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, replace
from typing import Any

from tinyformer.decoding.sampling import Sampling
from tinyformer.explore.views.attending import attention
from tinyformer.explore.views.attributing import recorded
from tinyformer.explore.views.inside import check_part, logits_of
from tinyformer.explore.views.passages import Answer, OfPassage, Passage
from tinyformer.explore.views.reading import is_recurrent, predicting, reading, why_no_shares
from tinyformer.explore.views.subjects import Subjects
from tinyformer.explore.views.writing import Next, distribution, next_token
from tinyformer.models.attribution import logit_shares
from tinytensor.device.backend import host

TALL, WIDE = 64, 48  # the most rows and columns of a map of a stream
NEURONS = 256  # the most cells of a map of neurons


@dataclass(frozen=True)
class Picture:
    """A passage, a ``place`` among the tokens that the model reads, and the ``token`` whose logit is explained. By default they
    are the last token, or a BERT's first mask, and the likeliest prediction there."""

    passage: Passage
    place: int | None = None
    token: int | None = None


def picture(subjects: Subjects, asked: Picture) -> Answer:
    """Return what the picture of the model shows.

    - ``first``, ``count``, ``place``: the first token read, the number of tokens read, and the position of the prediction.
    - ``stacks``: for each stack of blocks its ``name``, and ``maps`` of the residual stream before the first block and after
      each block: base64 of ``height`` by ``width`` signed bytes, 127 * value / largest absolute value. A cell stands for a
      patch of the (tokens, d_model) values: the one with the largest absolute value. A recurrent network has maps of its
      hidden states after each layer instead.
    - ``layers``: the attention layers with their maps, as ``attention`` gives them.
    - ``best``: the likeliest tokens at the position; empty for a model that predicts none.
    - ``shares``: the direct logit attribution of the ``token``: the shares of the ``heads`` and the
      ``feed_forward`` of each block; and ``neurons``, maps of the units of each block's feed-forward network at the position.
      Null where a logit is no sum of shares.
    """
    passage, subject = asked.passage, asked.passage.subject(subjects)
    shares: Any = None
    best: Any = None
    with subjects.for_long():
        held = reading(subjects, subject, passage)
        mask = subject.mask if subject.kind == "masked" else None
        last = held.ids.index(mask) if mask in held.ids else len(held.ids) - 1
        place = last if asked.place is None else asked.place
        check_part(1, place, len(held.ids), 1, "tokens")
        name = predicting(subject, held)
        if name is not None:
            logits = logits_of(subject, held.streams[name][-1][place : place + 1])[0]
            best = distribution(subject, logits, Sampling())["best"]
        if best and why_no_shares(subject) is None:
            parts = recorded(subject, held.ids, place)
            token = best[0]["id"] if asked.token is None else asked.token
            check_part(1, token, subject.num_tokens, 1, "ids of tokens")
            logit = logit_shares(subject.model, parts, token)
            neurons = [_map(_grid(layer)) for layer in parts.neurons]
            shares = {"token": token, "heads": logit.heads, "feed_forward": logit.feed_forward, "neurons": neurons}
    if best is None and subject.kind == "translation":
        best = next_token(subjects, Next(replace(passage, ids=passage.ids[: place + 1])))["best"]
    stacks = {name: stack for name, stack in held.streams.items() if not (is_recurrent(subject) and name.endswith("cell"))}
    return {
        "first": held.first,
        "count": len(held.ids),
        "place": place,
        "stacks": [{"name": name, "maps": [_map(x.numpy()) for x in stack]} for name, stack in stacks.items()],
        "layers": attention(subjects, OfPassage(passage))["layers"],
        "best": best or [],
        "shares": shares,
    }


def _pooled(values: Any, axis: int, most: int) -> Any:
    """At most so many values along an axis: of each patch the one with the largest absolute value."""
    length = values.shape[axis]
    starts = [i * length // min(length, most) for i in range(min(length, most))]
    high, low = (extreme.reduceat(values, starts, axis) for extreme in (host.maximum, host.minimum))
    return host.where(high > -low, high, low)


def _grid(neurons: Any) -> Any:
    """Activations (n,) as a grid with about as many rows as columns. Zeros fill the last row."""
    cells = _pooled(neurons, 0, NEURONS)
    width = math.isqrt(len(cells) - 1) + 1
    return host.pad(cells, (0, -len(cells) % width)).reshape(-1, width)


def _map(values: Any) -> Answer:
    """A map of values (rows, columns), as ``picture`` describes it."""
    values = _pooled(_pooled(values, 0, TALL), 1, WIDE)
    scaled = host.rint(127 * values / max(float(abs(values).max()), 1e-30)).astype(host.int8)
    return {"height": values.shape[0], "width": values.shape[1], "cells": base64.b64encode(scaled.tobytes()).decode()}
