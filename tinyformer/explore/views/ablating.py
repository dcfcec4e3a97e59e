"""Ablation: set modules of a model to zero or to their mean over the passage, and show how its predictions change.

See ``tinyformer.models.intervening``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError, shortened
from tinyformer.explore.views.attending import Reading, read
from tinyformer.explore.views.passages import Answer, Named, OfPassage, Passage
from tinyformer.explore.views.reading import Kept, probabilities
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.explore.views.writing import threads_for
from tinyformer.models.attention import MultiHeadAttention
from tinyformer.models.blocks import Block
from tinyformer.models.evaluating import evaluating
from tinyformer.models.intervening import (
    WAYS,
    AttentionRow,
    BlockOff,
    HeadOff,
    Intervention,
    MeanAttention,
    NetworkOff,
    NeuronOff,
    intervening,
    recording_means,
)
from tinytensor.device.backend import host

MOST_KEPT = 32 * 2**20  # bytes of cached results for unmodified models
MOST_CHANGED = 10  # tokens in an answer
ROUNDING = 1e-6  # probability change that may be due to summation order
MOST_OFF = 10_000  # modules that are off together

_kept = Kept(MOST_KEPT)


@dataclass(frozen=True)
class Off:
    """A disabled module: a "head" of an attention layer, the "network" (MLP) of a block, a "neuron" of that network, or a
    complete "block". ``name`` is the name of the layer, network or block, and ``index`` the head or neuron. Its output is
    replaced ``by`` "zero" or by its "mean" over the passage. A head may also lose its "choice": all tokens then attend alike
    (see ``mean_attention``)."""

    kind: str
    name: str
    index: int = 0
    by: str = "zero"

    def intervention(self) -> Intervention:
        """Return the intervention for this module. Raises UserError for an unknown type."""
        if self.kind == "head":
            return HeadOff(self.name, self.index, self.by)
        if self.kind == "choice":
            return MeanAttention(self.name, self.index)
        if self.kind == "network":
            return NetworkOff(self.name, self.by)
        if self.kind == "neuron":
            return NeuronOff(self.name, self.index, self.by)
        if self.kind == "block":
            return BlockOff(self.name, self.by)
        raise UserError(f"kind must be head, choice, network, neuron or block, got {shortened(self.kind, 40)!r}")


def blocks(subjects: Subjects, asked: Named) -> Answer:
    """List the ``blocks`` of a model in order, and what can be disabled in them. Each has a ``name``, a ``stack`` ("encoder" or
    "decoder", "" if there is only one), ``attention`` layers with ``name``, ``kind`` ("self" or "cross") and number of
    ``heads``, and a ``network`` with ``name`` and number of ``neurons``. If nothing can be disabled, ``why`` is a sentence with
    the reason, otherwise null."""
    subject = subjects.get(asked.model)
    return {"blocks": _blocks_of(subject), "why": _why_not(subject)}


def _why_not(subject: Subject) -> str | None:
    if not any(isinstance(module, Block) for module in subject.model.modules()):
        return "This model is a recurrent network: it has no heads or MLPs that could be switched off."
    if subject.kind == "encoder":
        return "This model predicts no tokens, so there are no predictions that could change."
    return None


def _blocks_of(subject: Subject) -> list[dict[str, Any]]:
    found = []
    for name, block in subject.model.named_modules():
        if not isinstance(block, Block):
            continue
        layers = [(part, layer) for part, layer in block.named_modules(name) if isinstance(layer, MultiHeadAttention)]
        found.append(
            {
                "name": name,
                "stack": name.partition(".")[0] if subject.kind == "translation" else "",
                "attention": [
                    {"name": part, "kind": "cross" if layer.cross else "self", "heads": layer.num_heads}
                    for part, layer in layers
                ],
                "network": {"name": f"{name}.feed_forward", "neurons": block.feed_forward.down.weight.shape[1]},
            }
        )
    return found


@dataclass(frozen=True)
class Ablated:
    """A passage, and the modules that are ``off`` while the model reads it."""

    passage: Passage
    off: list[Off] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.off) > MOST_OFF:
            raise UserError(f"at most {MOST_OFF:,} parts can be off together")


def ablated(subjects: Subjects, asked: Ablated) -> Answer:
    """Return the predictions after the passage, or at its first mask, ``before`` and ``after`` disabling modules. ``tokens``
    lists the ten tokens whose probability changes most (or the most likely), with ``id``, ``text`` and both probabilities.
    ``divergence`` is D(before ‖ after) in nats. ``loss_before`` and ``loss_after`` are mean losses of the passage, null for a
    BERT and for a single token. ``place`` is the position of the prediction: the last token or the mask."""
    return _compared(subjects, asked.passage, [part.intervention() for part in asked.off])


@dataclass(frozen=True)
class Edited:
    """A passage and an edited row of its attention: the attention of the ``query`` position in a ``head`` of a ``layer``, as
    ``weights`` that sum to 1, one per key. For positions, see ``attention_rows``. Other modules may be ``off``."""

    passage: Passage
    layer: str
    head: int
    query: int
    weights: list[float]
    off: list[Off] = field(default_factory=list)


def edited(subjects: Subjects, asked: Edited) -> Answer:
    """Return the predictions before and after replacing a row of attention. See ``ablated``."""
    row = AttentionRow(asked.layer, asked.head, asked.query, tuple(asked.weights))
    return _compared(subjects, asked.passage, [*(part.intervention() for part in asked.off), row])


@dataclass(frozen=True)
class Clean:
    """Results for a passage with the unmodified model: the ``logits`` of the predicted token, the ``loss`` of the passage, and
    the ``means`` of module outputs."""

    logits: Any
    loss: float | None
    means: Mapping[str, tt.Tensor]

    @property
    def num_bytes(self) -> int:
        """The size of the arrays in bytes."""
        return int(self.logits.nbytes) + sum(mean.data.nbytes for mean in self.means.values())


def can_intervene(subject: Subject) -> None:
    """Raise UserError, with the reason from ``blocks``, for a model that does not support interventions."""
    why = _why_not(subject)
    if why is not None:
        raise UserError(why)


def clean_of(reading: Reading) -> Clean:
    """Return the results of the unmodified model. Recent results are cached. The caller must hold the models' lock."""
    return _kept.get(reading.subject.model, (reading.ids, reading.source), lambda: _clean(reading), lambda made: made.num_bytes)


def _clean(reading: Reading) -> Clean:
    with recording_means(reading.subject.model) as means:
        logits, loss = predicted(reading)
    return Clean(logits, loss, means)


def predicted(reading: Reading) -> tuple[Any, float | None]:
    """Return the logits (vocab_size,) of the predicted token, and the mean loss of the passage's tokens, if defined."""
    subject, targets = reading.subject, reading.ids[1:]
    texts = (reading.source, reading.ids) if reading.source else (reading.ids,)
    with tt.no_grad(), evaluating(subject.model), threads_for(subject):
        logits = subject.model(*(tt.tensor([text]) for text in texts))[0]
        loss = None
        if targets and subject.kind != "masked":
            loss = float(tt.cross_entropy(logits[:-1], tt.tensor(targets)).item())
    return logits[place_of(reading)].numpy(), loss


def place_of(reading: Reading) -> int:
    """Return the position of the model's prediction among the tokens that it reads: the last token, or a BERT's first mask.
    Raises UserError if there is no mask."""
    if reading.subject.kind != "masked":
        return len(reading.ids) - 1
    if reading.subject.mask not in reading.ids:
        raise UserError("there is no mask in the text: put one where a token is to be predicted")
    return reading.ids.index(reading.subject.mask)


def _compared(subjects: Subjects, passage: Passage, interventions: Sequence[Intervention]) -> Answer:
    subject = passage.subject(subjects)
    can_intervene(subject)
    with subjects.for_long():
        reading = read(subjects, passage)
        clean = clean_of(reading)
        with intervening(subject.model, interventions, clean.means):
            logits, loss = predicted(reading)
    before, after = probabilities(subject, host.stack([clean.logits, logits]))
    change = abs(after - before)
    change[change < ROUNDING] = 0.0
    order = host.lexsort((-before, -change))[:MOST_CHANGED].tolist()
    return {
        "tokens": [
            {"id": i, "text": text, "before": float(before[i]), "after": float(after[i])}
            for i, text in zip(order, subject.texts(order))
        ],
        "divergence": divergence_of(before, after),
        "loss_before": clean.loss,
        "loss_after": loss,
        "place": reading.first + place_of(reading),
    }


def divergence_of(p: Any, q: Any) -> float:
    """Return the Kullback-Leibler divergence D(p ‖ q) of two distributions in nats."""
    positive = (p > 0) & (q > 0)
    return max(0.0, float((p[positive] * host.log(p[positive] / q[positive])).sum()))  # avoids -0.0


def ranking(subjects: Subjects, asked: OfPassage) -> Iterator[Answer]:
    """Measure how much worse the model predicts a passage without each of its heads and networks (MLPs), one at a time.

    The first line has the number of ``parts``, the ``measure``, and the ``loss`` of the intact model. Each later line describes
    one module: its ``kind``, ``name`` and ``index``, as in ``ablated``, and the measure with the module at ``zero`` and at its
    ``mean``. The measure is "loss", the increase in the passage's mean loss. If tokens have no loss (see ``ablated``), it is
    "divergence", that of the prediction. Other questions may run in between.
    """
    subject = asked.passage.subject(subjects)
    can_intervene(subject)
    parts = [
        Off(kind, name, i)
        for block in _blocks_of(subject)
        for kind, name, count in [
            *(("head", layer["name"], layer["heads"]) for layer in block["attention"]),
            ("network", block["network"]["name"], 1),
        ]
        for i in range(count)
    ]
    with subjects.for_long():
        reading = read(subjects, asked.passage)
        clean = clean_of(reading)
    has_loss = clean.loss is not None
    yield {"parts": len(parts), "measure": "loss" if has_loss else "divergence", "loss": clean.loss}
    (before,) = probabilities(subject, clean.logits[None])
    for part in parts:
        found = {}
        for by in WAYS:
            changed = Off(part.kind, part.name, part.index, by).intervention()
            with subjects.for_long(), intervening(subject.model, [changed], clean.means):
                logits, loss = predicted(reading)
            if loss is None or clean.loss is None:
                found[by] = divergence_of(before, probabilities(subject, logits[None])[0])
            else:
                found[by] = loss - clean.loss
        yield {"kind": part.kind, "name": part.name, "index": part.index, **found}
