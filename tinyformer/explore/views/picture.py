"""The picture of a model that has read a passage: small maps of its streams, heads and neurons, and its prediction."""

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

TALL, WIDE = 64, 48  # maximum rows and columns of a stream map
NEURONS = 256  # maximum cells of a neuron map


@dataclass(frozen=True)
class Picture:
    """A passage, a ``place`` (position among the tokens that the model reads), and the ``token`` whose logit to explain.
    Defaults: the last token, or a BERT's first mask, and the most likely prediction there."""

    passage: Passage
    place: int | None = None
    token: int | None = None


def picture(subjects: Subjects, asked: Picture) -> Answer:
    """Return the data of the model's picture.

    - ``first``, ``count``, ``place``: first token read, number of tokens read, and position of the prediction.
    - ``stacks``: for each stack of blocks, its ``name``, and ``maps`` of the residual stream before the first block and after
      each block: base64 of ``height`` by ``width`` signed bytes, 127 * value / largest absolute value. A cell shows the value
      of largest magnitude in a patch of the (tokens, d_model) values. A recurrent network has maps of its hidden states after
      each layer instead.
    - ``layers``: the attention layers with their maps, as in ``attention``.
    - ``best``: the most likely tokens at the position; empty for a model that predicts none.
    - ``shares``: direct logit attribution of the ``token``: contributions of each block's ``heads`` and ``feed_forward``, and
      ``neurons``, maps of the units of each block's feed-forward network at the position. Null if a logit is not a sum of
      contributions.
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
    """Pool values along an axis to at most ``most``, taking the value of largest magnitude in each patch."""
    length = values.shape[axis]
    starts = [i * length // min(length, most) for i in range(min(length, most))]
    high, low = (extreme.reduceat(values, starts, axis) for extreme in (host.maximum, host.minimum))
    return host.where(high > -low, high, low)


def _grid(neurons: Any) -> Any:
    """Arrange activations (n,) in a roughly square grid, padded with zeros."""
    cells = _pooled(neurons, 0, NEURONS)
    width = math.isqrt(len(cells) - 1) + 1
    return host.pad(cells, (0, -len(cells) % width)).reshape(-1, width)


def _map(values: Any) -> Answer:
    """Return a map of values (rows, columns) in the form described in ``picture``."""
    values = _pooled(_pooled(values, 0, TALL), 1, WIDE)
    scaled = host.rint(127 * values / max(float(abs(values).max()), 1e-30)).astype(host.int8)
    return {"height": values.shape[0], "width": values.shape[1], "cells": base64.b64encode(scaled.tobytes()).decode()}
