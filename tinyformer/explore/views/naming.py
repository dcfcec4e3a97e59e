"""Questions about the roles of heads: their names and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import tinytensor as tt
from tinyformer.explore.views.attending import AttentionLayer, attention_layers, of_each, read, weights_of
from tinyformer.explore.views.passages import Answer, Named, OfPassage
from tinyformer.explore.views.reading import Kept
from tinyformer.explore.views.subjects import LONGEST, Subject, Subjects
from tinyformer.explore.views.writing import threads_for
from tinyformer.models.attention import recording_attention
from tinyformer.models.evaluating import evaluating
from tinyformer.models.named_heads import KINDS, head_scores, names_of, repeated_tokens
from tinyformer.models.recording import below_output
from tinytensor import Tensor
from tinytensor.device.backend import host

TEXTS = 4  # sequences of random tokens
LEAST = 4  # minimum number of random tokens per sequence

_kept = Kept(2**20)  # bytes


def head_names(subjects: Subjects, asked: Named) -> Answer:
    """Name a model's self-attention heads by their scores on repeated random tokens, which are always the same.

    - ``kinds``: possible names: ``name``, ``short``, ``lens_name`` in TransformerLens (or ""), ``threshold`` of the score, and
      ``definition``.
    - ``layers``: the fields of ``AttentionLayer``, with ``heads`` as a list of ``names``, ``scores`` in the order of ``kinds``
      (or null), and the positional score's ``distance``: tokens back from the query, negative ahead.
    - ``texts`` and ``tokens``: number of random sequences, and of tokens in each.
    """
    subject = subjects.get(asked.model)
    with subjects.for_long():
        return _kept.get(subject.model, None, lambda: _names(subject), lambda answer: 10 * len(str(answer)))


def _names(subject: Subject) -> Answer:
    layers = _self_attention(subject)
    ids, source = (_random(subject, False), _random(subject, True)) if layers else (None, None)
    found: dict[str, tuple[Any, Any]] = {}
    if ids is not None:
        inputs = [tt.tensor(x, dtype=int) for x in (source, ids) if x is not None]
        with recording_attention(subject.model) as recorded, evaluating(subject.model), threads_for(subject):
            (below_output(subject.model) if source is None else subject.model)(*inputs)
        for name, layer in layers.items():
            (weights,) = recorded[name]
            found[name] = head_scores(weights.numpy(), source if layer.keys == "source" else ids, layer.causal)
    return {
        "kinds": [asdict(kind) for kind in KINDS],
        "layers": [{**asdict(layers[name]), "heads": _told(*scores, named=True)} for name, scores in found.items()],
        "texts": TEXTS,
        "tokens": 0 if ids is None else ids.shape[1],
    }


def _self_attention(subject: Subject) -> dict[str, AttentionLayer]:
    return {name: layer for name, layer in attention_layers(subject).items() if layer.kind == "self"}


def _random(subject: Subject, source: bool) -> Any:
    """Return repeated random tokens between the tokens that the model needs around a sequence: (TEXTS, length). Return None if
    there is no room, and if ``source`` (an encoder-decoder's input) is set for other models."""
    if source and subject.kind != "translation":
        return None
    config, tokenizer = subject.model.config, subject.tokenizer
    before = () if source else (subject.before or subject.start)[:1]
    size = config.source_vocab_size if source else min(subject.num_tokens, tokenizer.vocab_size)
    pads = (getattr(config, name, None) for name in ("source_pad", "target_pad", "pad"))
    special = {
        *getattr(tokenizer, "special", {}).values(),
        *subject.ends,
        *subject.start,
        *subject.forbidden,
        subject.mask,
        *pads,
    }
    usual = [i for i in range(size) if i not in special]
    last = subject.after[-1:]
    room = min(subject.longest or LONGEST, LONGEST) - len(before) - len(last)
    if room < LEAST or len(usual) < 2:
        return None
    ids = repeated_tokens(usual, room, TEXTS, seed=int(source))
    return host.concatenate([_around(before, ids), ids, _around(last, ids)], 1)


def _around(tokens: Sequence[int], ids: Any) -> Any:
    return host.tile(host.asarray(tokens, dtype=ids.dtype), (len(ids), 1))


def text_scores(subjects: Subjects, asked: OfPassage) -> Answer:
    """Return the scores of ``head_names`` for a passage: ``layers`` with ``name`` and ``heads``, and for each head, ``scores``
    in the order of the names (null if the passage has nothing to score) and ``distance``."""
    with subjects.for_long():
        reading = read(subjects, asked.passage)
        layers = _self_attention(reading.subject)
        if reading.source:
            sides = {"source": host.asarray([reading.source]), "target": host.asarray([reading.ids])}
            found = {
                name: head_scores(weights_of(reading, layer)[None], sides[layer.keys], layer.causal)
                for name, layer in layers.items()
            }
        else:
            causal, ids = reading.subject.kind == "language", host.asarray([reading.ids])
            both = of_each(reading, "scores", lambda weights: _in_one(*head_scores(weights.numpy(), ids, causal)))
            found = {name: (both[name][:, :-1], both[name][:, -1]) for name in layers}
    return {"layers": [{"name": name, "heads": _told(*scores)} for name, scores in found.items()]}


def _in_one(scores: Any, distances: Any) -> Tensor:
    """Combine scores and distances in one tensor (1, heads, len(KINDS) + 1)."""
    return tt.tensor(host.concatenate([scores, distances[:, None]], 1)[None], dtype=host.float32)


def _told(scores: Any, distances: Any, named: bool = False) -> list[dict[str, Any]]:
    """Return each head's entry in an answer."""
    return [
        {
            **({"names": names_of(of_head)} if named else {}),
            "scores": [float(score) if math.isfinite(score) else None for score in of_head],
            "distance": int(distance),
        }
        for of_head, distance in zip(scores, distances)
    ]
