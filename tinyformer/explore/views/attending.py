"""Questions about attention weights.

All are those of ``recording_attention``, from one forward pass over the passage. For a GPT it is the pass that all views share
(``reading_of_gpt``): each layer's weights are computed from the residual stream before it. The last weights are cached.
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

SIDE = 32  # the most rows and columns of a small map
MOST_NUMBERS = 65_536  # that one question gets
MOST_KEPT = 64 * 2**20  # bytes of weights that are kept from one question to the next
LARGEST = 48 * 2**20  # bytes of the weights of one layer, as GPT-2's: nobody can interrupt the pass that computes them


@dataclass(frozen=True)
class AttentionLayer:
    """An attention layer as the page is told of it.

    - ``name``: as ``recording_attention`` names it.
    - ``kind``: "self" (tokens look at those of the same text) or "cross" (those of the target look at those of the source).
    - ``queries`` and ``keys``: whose tokens look, and whose are looked at: "source" or "target"; "text" if there is only one.
    - ``causal``: whether no token sees the tokens after it.
    - ``heads``: how many heads there are.
    """

    name: str
    kind: str
    queries: str
    keys: str
    causal: bool
    heads: int


def attention_layers(subject: Subject) -> dict[str, AttentionLayer]:
    """The attention layers of a model by name, in the order in which it has them. None for a model without attention."""
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
    """What a model reads of a passage: the last ``ids`` that fit into a GPT, of which ``first`` is the place in the passage;
    for an encoder-decoder also the ``source``."""

    subject: Subject
    ids: tuple[int, ...]
    source: tuple[int, ...]
    first: int

    def length(self, side: str) -> int:
        """How many tokens a side of a layer has: "text", "source" or "target"."""
        return len(self.source if side == "source" else self.ids)

    def numbers(self, layer: AttentionLayer) -> int:
        """How many weights a layer has."""
        return layer.heads * self.length(layer.queries) * self.length(layer.keys)

    def unseen(self) -> list[int]:
        """The places of padding, which no token looks at: in the source if there is one, and in the text otherwise."""
        config = self.subject.model.config
        pad = getattr(config, "source_pad", getattr(config, "pad", None))
        return [place for place, i in enumerate(self.source or self.ids) if i == pad]

    def run(self) -> None:
        """One forward pass over all tokens."""
        if self.source:
            self.subject.model(tt.tensor([self.source]), tt.tensor([self.ids]))
        else:
            below_output(self.subject.model)(tt.tensor([self.ids]))


def read(subjects: Subjects, passage: Passage) -> Reading:
    """Return what a model reads of a passage: all, or the last tokens that fit into a GPT. Raises UserError for more tokens
    than another model reads, and for weights of one layer above LARGEST bytes."""
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


_kept = Kept(MOST_KEPT)  # whoever uses it holds a Subjects' lock


def _known(reading: Reading, what: str, layer: AttentionLayer) -> Any:
    """The array of a layer that is kept, or None."""
    return _kept.find(reading.subject.model, (reading.ids, reading.source, what, layer.name))


def _keep(reading: Reading, what: str, layer: AttentionLayer, array: Any) -> Any:
    """Keep an array of a layer, and return it."""
    return _kept.add(reading.subject.model, (reading.ids, reading.source, what, layer.name), array, array.nbytes)


def weights_of(reading: Reading, layer: AttentionLayer) -> Any:
    """Return the weights (heads, queries, keys) of a layer, as an array on the host.

    One pass computes those of all layers, if they take at most MOST_KEPT bytes together. Otherwise only the layer's own are
    cached: GPT-2's take 48 MiB a layer for 1,024 tokens. A GPT's layer is computed alone; other models take a pass each time.
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
    """Whether the weights of all layers may be kept at once."""
    return 4 * sum(map(reading.numbers, attention_layers(reading.subject).values())) <= MOST_KEPT


def _record(
    reading: Reading, layers: Collection[AttentionLayer], keep: Callable[[Tensor], Tensor] = lambda weights: weights
) -> Mapping[str, Any]:
    """What ``keep`` makes of the weights (batch, heads, queries, keys) of these layers, by name, without the batch: arrays on
    the host."""
    subject = reading.subject
    modules = dict(subject.model.named_modules())
    with ExitStack() as stack:
        stack.enter_context(threads_for(subject))
        if isinstance(subject.model, GPT):
            return {layer.name: keep(_of_gpt(reading, modules[layer.name]))[0].numpy() for layer in layers}
        recorded = {layer.name: stack.enter_context(recording_attention(modules[layer.name], keep)) for layer in layers}
        reading.run()
    # A recurrent network attends once for each token.
    calls = {name: next(iter(of_one.values())) for name, of_one in recorded.items()}
    return {name: tt.concatenate(found, -2)[0].numpy().astype(host.float32) for name, found in calls.items()}


def _of_gpt(reading: Reading, layer: Any) -> Tensor:
    """The weights (1, heads, queries, keys), float32, of an attention layer of a GPT."""
    model: Any = reading.subject.model
    (streams,) = reading_of_gpt(reading.subject, reading.ids).streams.values()
    stream, block = next(pair for pair in zip(streams, model.blocks) if pair[1].attention is layer)
    with recording_attention(block) as recorded, evaluating(model):
        block(stream[None], model.window_mask(len(reading.ids)), is_causal=True)
    return recorded["attention"][0].astype(host.float32)


def of_each(reading: Reading, what: str, shrink: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return what ``shrink`` makes of each layer's weights (batch, heads, queries, keys), by name, without the batch. It is
    cached as ``what``."""
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
    """The attention ``layers`` of the model, each as ``AttentionLayer`` describes it, with a small map of each head in
    ``maps``: base64 of ``rows`` by ``columns`` bytes, 255 times the largest weight of a patch. Row i of a map begins with the
    query i * queries // rows; so do the columns with the keys. No layers: the model has no attention.

    ``first`` is the place in the passage of the first token that the model sees, as a GPT sees only the last block_size ones;
    ``unseen`` are places of padding among the keys of the source, or of the text if there is no source. ``special`` and
    ``source_special`` are the places of tokens that stand for no text, such as [CLS]: see ``Subject.special_places``.
    """
    with subjects.for_long():
        reading = read(subjects, asked.passage)
        maps = of_each(reading, "small", small_maps)
    layers = []
    for name, layer in attention_layers(reading.subject).items():
        heads = small_maps(tt.tensor(maps[name])[None])[0].numpy()  # those of a recurrent network came row by row
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
    """Weights of a ``layer``, by its name: of a ``head`` (from 0 on), the "mean" over all heads, or the "rollout" through all
    layers up to this one. They are those of ``count`` queries from ``first`` on, and of ``keys`` keys (without it: all) from
    ``first_key`` on. Places count from 0 among the tokens that the model sees."""

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
    """The ``weights`` of some queries: a list for each, with a number for each key. They are not rounded. Raises UserError for
    a layer, head or places that are not there, and for more than MOST_NUMBERS numbers."""
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
    """The places after the last query and key that are asked for."""
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
    """``attention_rollout`` (queries, keys) through the self-attention layers of the same text, up to this one. Raises
    UserError for a cross-attention."""
    if layer.kind != "self":
        raise UserError("rollout is for layers of self-attention: this one looks at another text")
    found = _known(reading, "rollout", layer)
    if found is not None:
        return found
    layers = attention_layers(reading.subject)
    stack = [one for one in layers.values() if (one.kind, one.keys) == (layer.kind, layer.keys)]
    if _fits(reading):
        weights = {one.name: weights_of(reading, one) for one in stack}
    else:  # rollout needs no more than the means
        weights = dict(_record(reading, stack, lambda x: x.mean(axis=1, keepdims=True)))
    through = attention_rollout([tt.tensor(weights[one.name])[None] for one in stack])
    arrays = {one.name: tensor[0].numpy() for one, tensor in zip(stack, through)}
    for one in stack:
        _keep(reading, "rollout", one, arrays[one.name])
    return arrays[layer.name]
