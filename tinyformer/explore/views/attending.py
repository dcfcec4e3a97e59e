"""Questions about attention weights.

All weights come from ``recording_attention``, in one forward pass over the passage. A GPT uses the pass shared by all views
(``reading_of_gpt``). Each layer's weights are then computed from its input residual stream. Recent weights are cached.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.explore.views.passages import Answer, OfPassage, Passage
from tinyformer.explore.views.reading import NOT_FINITE, Kept, reading_of_gpt
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.explore.views.writing import threads_for
from tinyformer.models.attention import MultiHeadAttention, RecordsAttention, recording_attention
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinyformer.models.recording import attention_rollout, below_output
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

SIDE = 32  # maximum rows and columns of a small map
MOST_NUMBERS = 65_536  # per answer
MOST_KEPT = 64 * 2**20  # bytes of weights cached between questions
LARGEST = 48 * 2**20  # bytes of one layer's weights, as in GPT-2; the pass that computes them cannot be interrupted


@dataclass(frozen=True)
class AttentionLayer:
    """An attention layer, as described to the page.

    - ``name``: its name in ``recording_attention``.
    - ``kind``: "self" (tokens attend to the same sequence) or "cross" (target tokens attend to the source).
    - ``queries`` and ``keys``: the side of the queries and of the keys: "source" or "target"; "text" if there is only one.
    - ``causal``: True if no token attends to later tokens.
    - ``heads``: the number of heads.
    """

    name: str
    kind: str
    queries: str
    keys: str
    causal: bool
    heads: int


def attention_layers(subject: Subject) -> dict[str, AttentionLayer]:
    """Return a model's attention layers by name, in order. The dict is empty for a model without attention."""
    modules = subject.model.named_modules()
    return {name: _layer(subject, name, module) for name, module in modules if isinstance(module, RecordsAttention)}


def _layer(subject: Subject, name: str, module: RecordsAttention) -> AttentionLayer:
    heads = module.num_heads if isinstance(module, MultiHeadAttention) else 1  # additive attention has one
    if subject.kind != "translation":
        return AttentionLayer(name, "self", "text", "text", subject.kind == "language", heads)
    if not isinstance(module, MultiHeadAttention) or module.cross:
        return AttentionLayer(name, "cross", "target", "source", False, heads)
    side = "target" if name.startswith("decoder") else "source"
    return AttentionLayer(name, "self", side, side, side == "target", heads)


@dataclass(frozen=True)
class Reading:
    """What a model reads of a passage: the last ``ids`` that fit into a GPT, starting at position ``first`` of the passage. For
    an encoder-decoder, also the ``source``."""

    subject: Subject
    ids: tuple[int, ...]
    source: tuple[int, ...]
    first: int

    def length(self, side: str) -> int:
        """Return the number of tokens on a side of a layer: "text", "source" or "target"."""
        return len(self.source if side == "source" else self.ids)

    def numbers(self, layer: AttentionLayer) -> int:
        """Return the number of weights of a layer."""
        return layer.heads * self.length(layer.queries) * self.length(layer.keys)

    def unseen(self) -> list[int]:
        """Return the positions of padding, which no token attends to: in the source if there is one, otherwise in the text."""
        config = self.subject.model.config
        pad = getattr(config, "source_pad", getattr(config, "pad", None))
        return [place for place, i in enumerate(self.source or self.ids) if i == pad]

    def run(self) -> None:
        """Run one forward pass over all tokens."""
        if self.source:
            self.subject.model(tt.tensor([self.source]), tt.tensor([self.ids]))
        else:
            below_output(self.subject.model)(tt.tensor([self.ids]))


def read(subjects: Subjects, passage: Passage) -> Reading:
    """Return what a model reads of a passage: all of it, or the last tokens that fit into a GPT. Raises UserError if it is too
    long for another model, or if one layer's weights exceed LARGEST bytes."""
    subject = passage.subject(subjects)
    ids, longest = passage.ids, subject.longest
    if longest is not None and subject.kind == "language":
        ids = ids[-longest:]
    elif longest is not None and max(len(ids), len(passage.source)) > longest:
        raise UserError(
            f"the text has {counted(max(len(ids), len(passage.source)), 'token')}, more than the {longest} that this "
            "model reads: shorten it"
        )
    reading = Reading(subject, tuple(ids), tuple(passage.source), len(passage.ids) - len(ids))
    size = max((4 * reading.numbers(layer) for layer in attention_layers(subject).values()), default=0)
    if size > LARGEST:
        message = f"the attention weights of a layer would take {size >> 20} MiB, more than {LARGEST >> 20}: shorten the text"
        raise UserError(message)
    return reading


_kept = Kept(MOST_KEPT)  # use it only while holding a Subjects lock


def _known(reading: Reading, what: str, layer: AttentionLayer) -> Any:
    """Return a layer's cached array, or None."""
    return _kept.find(reading.subject.model, (reading.ids, reading.source, what, layer.name))


def _keep(reading: Reading, what: str, layer: AttentionLayer, array: Any) -> Any:
    """Cache an array of a layer and return it."""
    return _kept.add(reading.subject.model, (reading.ids, reading.source, what, layer.name), array, array.nbytes)


def weights_of(reading: Reading, layer: AttentionLayer) -> Any:
    """Return a layer's weights (heads, queries, keys) as an array on the host.

    If all layers fit in MOST_KEPT bytes, one pass computes them together. Otherwise, only this layer is cached: GPT-2 needs 48
    MiB per layer for 1,024 tokens. A GPT's layer is computed alone. Other models run a pass each time.
    """
    found = _known(reading, "weights", layer)
    if found is not None:
        return found
    if not _fits(reading):
        (array,) = _record(reading, [layer]).values()
        return _keep(reading, "weights", layer, array)
    layers = attention_layers(reading.subject)
    recorded = _record(reading, layers.values())
    for name, array in recorded.items():
        _keep(reading, "weights", layers[name], array)
    return recorded[layer.name]


def _fits(reading: Reading) -> bool:
    """Return True if the weights of all layers fit in the cache together."""
    return 4 * sum(map(reading.numbers, attention_layers(reading.subject).values())) <= MOST_KEPT


def _record(
    reading: Reading, layers: Collection[AttentionLayer], keep: Callable[[Tensor], Tensor] = lambda weights: weights
) -> Mapping[str, Any]:
    """Return the result of ``keep`` on the weights (batch, heads, queries, keys) of these layers, by name, without the batch
    axis, as arrays on the host."""
    subject = reading.subject
    modules = dict(subject.model.named_modules())
    with ExitStack() as stack:
        stack.enter_context(threads_for(subject))
        if isinstance(subject.model, GPT):
            return {layer.name: keep(_of_gpt(reading, modules[layer.name]))[0].numpy() for layer in layers}
        recorded = {layer.name: stack.enter_context(recording_attention(modules[layer.name], keep)) for layer in layers}
        reading.run()
    # A recurrent network attends once per token.
    calls = {name: next(iter(of_one.values())) for name, of_one in recorded.items()}
    return {name: tt.concatenate(found, -2)[0].numpy().astype(host.float32) for name, found in calls.items()}


def _of_gpt(reading: Reading, layer: Any) -> Tensor:
    """Return the weights (1, heads, queries, keys), float32, of a GPT's attention layer."""
    model: Any = reading.subject.model
    (streams,) = reading_of_gpt(reading.subject, reading.ids).streams.values()
    stream, block = next(pair for pair in zip(streams, model.blocks) if pair[1].attention is layer)
    with recording_attention(block) as recorded, evaluating(model):
        block(stream[None], model.window_mask(len(reading.ids)), is_causal=True)
    return recorded["attention"][0].astype(host.float32)


def of_each(reading: Reading, what: str, shrink: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return the result of ``shrink`` on each layer's weights (batch, heads, queries, keys), by name, without the batch axis.
    It is cached as ``what``."""
    layers = attention_layers(reading.subject)
    found = {name: _known(reading, what, layer) for name, layer in layers.items()}
    if any(array is None for array in found.values()):
        if _fits(reading):
            found = {name: shrink(tt.tensor(weights_of(reading, layer))[None])[0].numpy() for name, layer in layers.items()}
        else:
            found = dict(_record(reading, layers.values(), shrink))
        for name, array in found.items():
            _keep(reading, what, layers[name], array)
    return found


def small_maps(weights: Tensor) -> Tensor:
    """Reduce weights (batch, heads, queries, keys) to at most SIDE by SIDE: the maximum of each patch."""
    array = weights.numpy()
    for axis in (-2, -1):
        length = array.shape[axis]
        array = host.maximum.reduceat(array, [i * length // min(length, SIDE) for i in range(min(length, SIDE))], axis)
    return tt.tensor(array)


def attention(subjects: Subjects, asked: OfPassage) -> Answer:
    """Return the model's attention ``layers`` (see ``AttentionLayer``), each with a small map per head in ``maps``: base64 of
    ``rows`` by ``columns`` bytes, 255 times the largest weight of a patch. Row i of a map starts at query i * queries // rows,
    and columns likewise at keys. The list is empty for a model without attention.

    ``first`` is the passage position of the first token that the model reads: a GPT reads only the last block_size tokens.
    ``unseen`` lists positions of padding among the keys of the source, or of the text if there is no source. ``special`` and
    ``source_special`` list positions of tokens that represent no text, such as [CLS] (see ``Subject.special_places``).
    """
    with subjects.for_long():
        reading = read(subjects, asked.passage)
        maps = of_each(reading, "small", small_maps)
    layers = []
    for name, layer in attention_layers(reading.subject).items():
        heads = small_maps(tt.tensor(maps[name])[None])[0].numpy()  # a recurrent network's weights came row by row
        if not host.isfinite(heads).all():
            raise UserError(NOT_FINITE)
        shown = host.rint(255 * heads).astype(host.uint8)
        texts = [base64.b64encode(head.tobytes()).decode() for head in shown]
        layers.append({**asdict(layer), "rows": heads.shape[1], "columns": heads.shape[2], "maps": texts})
    places = reading.subject.special_places
    special = {"special": places(reading.ids), "source_special": places(reading.source)}
    return {"layers": layers, "first": reading.first, "unseen": reading.unseen(), **special}


@dataclass(frozen=True)
class Rows:
    """Weights of a ``layer``, by its name: of a ``head`` (from 0), the "mean" over all heads, or the "rollout" through all
    layers up to this one. Covers ``count`` queries from ``first``, and ``keys`` keys (default: all) from ``first_key``.
    Positions count from 0 among the tokens that the model reads."""

    passage: Passage
    layer: str
    head: int | str
    first: int
    count: int
    first_key: int = 0
    keys: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.head, str) and self.head not in ("mean", "rollout"):
            raise UserError('head must be a number, "mean" or "rollout"')
        if min(self.first, self.first_key) < 0 or self.count < 1 or (self.keys is not None and self.keys < 1):
            raise UserError("first and first_key must be at least 0, and count and keys at least 1")


def attention_rows(subjects: Subjects, asked: Rows) -> Answer:
    """Return the ``weights`` of some queries: one list per query, with one unrounded value per key. Raises UserError for an
    unknown layer, head or position, and for more than MOST_NUMBERS values."""
    with subjects.for_long():
        reading = read(subjects, asked.passage)
        layer = attention_layers(reading.subject).get(asked.layer)
        if layer is None:
            raise UserError("there is no attention layer of this name")
        last, last_key = _ends(reading, layer, asked)
        part = (slice(asked.first, last), slice(asked.first_key, last_key))
        if asked.head == "mean":
            found = weights_of(reading, layer)[:, part[0], part[1]].mean(0)
        elif asked.head == "rollout":
            found = rollout_of(reading, layer)[part]
        elif isinstance(asked.head, int) and 0 <= asked.head < layer.heads:
            found = weights_of(reading, layer)[asked.head][part]
        else:
            raise UserError(f"head must be from 0 to {layer.heads - 1}, got {asked.head}")
    return {"weights": found.tolist()}


def _ends(reading: Reading, layer: AttentionLayer, asked: Rows) -> tuple[int, int]:
    """Return the end positions of the requested queries and keys."""
    queries, keys = reading.length(layer.queries), reading.length(layer.keys)
    last = min(asked.first + asked.count, queries)
    last_key = keys if asked.keys is None else min(asked.first_key + asked.keys, keys)
    if asked.first >= last or asked.first_key >= last_key:
        raise UserError(
            f"of {counted(queries, 'query')} and {counted(keys, 'key')} there is none from {asked.first} and "
            f"{asked.first_key} on"
        )
    if (last - asked.first) * (last_key - asked.first_key) > MOST_NUMBERS:
        raise UserError(f"these are more than {MOST_NUMBERS:,} numbers: ask for fewer queries or keys")
    return last, last_key


def rollout_of(reading: Reading, layer: AttentionLayer) -> Any:
    """Return ``attention_rollout`` (queries, keys) through the self-attention layers of the same sequence, up to this one.
    Raises UserError for cross-attention."""
    if layer.kind != "self":
        raise UserError("rollout is for layers of self-attention: this one attends to another text")
    found = _known(reading, "rollout", layer)
    if found is not None:
        return found
    layers = attention_layers(reading.subject)
    stack = [one for one in layers.values() if (one.kind, one.keys) == (layer.kind, layer.keys)]
    if _fits(reading):
        weights = {one.name: weights_of(reading, one) for one in stack}
    else:  # rollout needs only the means
        weights = dict(_record(reading, stack, lambda x: x.mean(axis=1, keepdims=True)))
    through = attention_rollout([tt.tensor(weights[one.name])[None] for one in stack])
    arrays = {one.name: tensor[0].numpy() for one, tensor in zip(stack, through)}
    for one in stack:
        _keep(reading, "rollout", one, arrays[one.name])
    return arrays[layer.name]
