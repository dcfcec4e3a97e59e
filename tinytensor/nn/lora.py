"""LoRA (Hu et al. 2021): freeze a model's weights and train small matrices in parallel.

The product of two low-rank matrices is added to a weight. They have far fewer values than the weight, so gradients, optimizer
states and saved files are small. The frozen weights may be quantized (QLoRA, Dettmers et al. 2023); see ``nn.quantization``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from tinytensor.autograd.modes import no_grad
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.nn import init
from tinytensor.nn.containers import ModuleList
from tinytensor.nn.layers import Dropout, Linear
from tinytensor.nn.module import Module, Parameter
from tinytensor.nn.weights import BlockWeight, StandIn, embedding, linear, replace_weight
from tinytensor.ops.shapes import pad

__all__ = ["add_lora", "lora_state", "merge_lora", "unmerge_lora"]

AnyModule = TypeVar("AnyModule", bound=Module)


class Addition(Module):
    """A product scale * up @ down added to rows ``first`` to ``last`` of a weight. The paper calls down (rank, inputs) A and up
    (rows, rank) B. up starts at zero, so nothing is added at first.

    The scale is alpha / rank, or alpha / sqrt(rank) if ``rank_stabilized`` (Kalajdzievski 2023). Raises ValueError if the rank
    is below 1, if alpha is not positive, or if rows lie outside the weight.
    """

    def __init__(
        self,
        weight: Parameter | StandIn,
        rank: int,
        alpha: float,
        dropout: float = 0.0,
        rank_stabilized: bool = False,
        rows: Sequence[int] | None = None,
    ):
        self.outputs, inputs = weight.shape
        if rows is not None and len(rows) != 2:
            raise ValueError(f"add_lora: rows must be two numbers, the first and the last, got {len(rows)}")
        self.first, self.last = (0, self.outputs) if rows is None else rows
        if rank < 1 or not 0 < alpha < math.inf:
            raise ValueError(f"add_lora: rank must be at least 1 and alpha positive, got {rank} and {alpha}")
        if not 0 <= self.first < self.last <= self.outputs:
            raise ValueError(f"add_lora: a weight {weight.shape} has no rows {self.first} to {self.last}")
        self.alpha, self.rank_stabilized = alpha, rank_stabilized
        self.down = init.kaiming_uniform_(init.new_parameter((rank, inputs)), gain=3**-0.5)  # up to 1/sqrt(inputs)
        self.up = init.zeros_(init.new_parameter((self.last - self.first, rank)))
        self.dropout = Dropout(dropout)

    @property
    def scale(self) -> float:
        """The factor by which the product is scaled."""
        rank = self.down.shape[0]
        return self.alpha / (math.sqrt(rank) if self.rank_stabilized else rank)

    def forward(self, x: Tensor) -> Tensor:
        """Return the contribution to the layer's outputs: (..., inputs) -> (..., outputs)."""
        part = linear(linear(self.dropout(x), self.down) * self.scale, self.up)
        return self._at_its_rows(part, axis=-1)

    def rows(self) -> Tensor:
        """Return the matrix (outputs, rank) by which down is multiplied."""
        return self._at_its_rows(self.up * self.scale, axis=0)

    def _at_its_rows(self, x: Tensor, axis: int) -> Tensor:
        """Pad x along ``axis`` with zeros for the other outputs."""
        if x.shape[axis] == self.outputs:
            return x
        width = [(0, 0)] * x.ndim
        width[axis] = (self.first, self.outputs - self.last)
        return pad(x, width)

    def extra_repr(self) -> str:
        rank = self.down.shape[0]
        part = "" if len(self.up) == self.outputs else f", rows {self.first} to {self.last}"
        return f"rank={rank}, alpha={self.alpha:g}" + (", rank_stabilized=True" if self.rank_stabilized else "") + part


class LoraWeight(StandIn):
    """A frozen weight with one or more additions. They may share rows."""

    base: Parameter | BlockWeight

    def __init__(self, base: Parameter | BlockWeight):
        self.base = base
        self.additions = ModuleList()

    @property
    def shape(self) -> tuple[int, ...]:
        """(outputs, inputs)."""
        return self.base.shape

    @property
    def dtype(self) -> Any:
        """The dtype in which outputs are computed."""
        return self.base.dtype

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x @ weight.T + bias: (..., inputs) -> (..., outputs).

        x is multiplied by the low-rank matrices one after the other, without forming their product.
        """
        out = linear(x, self.base, bias)
        for addition in self.additions:
            out = out + addition(x)
        return out

    def rows(self, ids: Any) -> Tensor:
        """Return the rows at integer ids (...): (..., inputs)."""
        out = embedding(ids, self.base)
        for addition in cast("Iterator[Addition]", self.additions):
            out = out + embedding(ids, addition.rows()) @ addition.down
        return out

    def change(self) -> Tensor:
        """Return the sum of all additions: (outputs, inputs)."""
        products = [addition.rows() @ addition.down for addition in cast("Iterator[Addition]", self.additions)]
        return sum(products[1:], products[0])

    def extra_repr(self) -> str:
        return str(self.shape)


@checked
def add_lora(
    model: AnyModule,
    rank: int = 8,
    alpha: float = 16.0,
    targets: str | Sequence[str] | None = None,
    dropout: float = 0.0,
    rank_stabilized: bool = False,
    rows: Sequence[int] | None = None,
) -> AnyModule:
    """Freeze a model in place and add trainable low-rank products to the weights of its linear layers. Returns the model.

    At first the outputs stay identical to the bit. ``targets`` are names of linear layers or suffixes of names, as in
    ``["query_key_value", "feed_forward.up"]``, or a regular expression for full names. The default is every linear layer.
    ``rows`` (first, last) selects outputs; another call may add to others. ``rank`` is the inner width of a product. The
    product is scaled by ``alpha`` / rank, or by alpha / sqrt(rank) if ``rank_stabilized``. ``dropout`` applies to its inputs in
    training.

    The weights may be quantized with ``quantize_``; gradients then flow through them. Additions from earlier calls stay
    trainable. To train other parameters, such as a new head, call ``model.head.requires_grad_()``.

    Raises ValueError, before any change, if a target is not a linear layer, if rank or alpha is not positive, or if rows lie
    outside a weight.

    >>> model = tt.nn.add_lora(tt.nn.Sequential(tt.nn.Linear(64, 64), tt.nn.ReLU(), tt.nn.Linear(64, 2)), rank=4, targets=["0"])
    >>> sum(p.size for p in model.parameters() if p.requires_grad), model.num_parameters()
    (512, 4802)
    """
    layers = _linear_layers(model, targets)
    additions = [Addition(layer.weight, rank, alpha, dropout, rank_stabilized, rows) for layer in layers]
    for layer, addition in zip(layers, additions):
        attach(model, layer, addition)
    freeze_base(model)
    return model


def attach(model: Module, layer: Linear, addition: Addition) -> None:
    """Attach an addition to the weight of a layer, wherever the model uses that weight."""
    weight: Any = layer.weight
    if not isinstance(weight, LoraWeight):
        weight = LoraWeight(weight)
        replace_weight(model, layer.weight, weight)
    weight.additions.append(addition.astype(weight.dtype))
    weight.train(layer.training)


def freeze_base(model: Module) -> None:
    """Freeze all parameters except the additions, discard their gradients, and let gradients flow through quantized weights."""
    learned = {id(p) for _, weight in lora_weights(model) for p in weight.additions.parameters()}
    for p in model.parameters():
        p.requires_grad = id(p) in learned
        if not p.requires_grad:
            p.grad = None
    for module in model.modules():
        if isinstance(module, BlockWeight):
            module.passes_gradient = True


def _linear_layers(model: Module, targets: str | Sequence[str] | None) -> list[Linear]:
    """Return the target layers, one for each weight. Raises ValueError if a target matches no linear layer."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    if targets is None:
        wanted = {"at all": ".*"}
    elif isinstance(targets, str):
        wanted = {f"that {targets!r} matches": targets}
    else:
        wanted = {f"named {target!r}": rf"(.*\.)?{re.escape(target)}" for target in targets}
    if not wanted:
        raise ValueError("add_lora: targets are empty: omit them to use all linear layers")
    chosen = set[str]()
    for words, pattern in wanted.items():
        try:
            matches = {name for name in layers if re.fullmatch(pattern, name)}
        except re.error as error:
            raise ValueError(f"add_lora: the regular expression {pattern!r} is wrong: {error}") from None
        if not matches:
            known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in layers)) or "none"
            raise ValueError(f"add_lora: the model has no linear layer {words}: there are {known}")
        chosen |= matches
    return list({id(layer.weight): layer for name, layer in layers.items() if name in chosen}.values())


def lora_weights(model: Module) -> Iterator[tuple[str, LoraWeight]]:
    """Iterate over the names and weights that have additions."""
    for name, module in model.named_modules():
        if isinstance(module, LoraWeight):
            yield name, module


def lora_state(model: Module) -> dict[str, Tensor]:
    """Return all trainable values by name: a model's additions and its other trainable parameters.

    ``model.load_state_dict(state, strict=False)`` loads them into a model with the same additions.

    >>> list(tt.nn.lora_state(tt.nn.add_lora(tt.nn.Linear(3, 2))))
    ['weight.additions.0.down', 'weight.additions.0.up']
    """
    added = {id(p) for _, weight in lora_weights(model) for p in weight.additions.parameters()}
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad or id(p) in added}


def merge_lora(model: Module) -> dict[str, Module]:
    """Add the learned products to the weights in place, and remove the additions.

    The merged model has plain layers, gives the same results up to rounding, and is as fast as the original. Quantized weights
    become float32. All weights stay frozen. Trace functions of the model again (``tt.trace``): an old program would add the
    change twice.

    Returns the merged additions by weight name, for ``unmerge_lora`` (empty if there were none).

    >>> layer = tt.nn.add_lora(tt.nn.Linear(3, 2))
    >>> merged = tt.nn.merge_lora(layer)
    >>> type(layer.weight), sorted(merged)
    (<class 'tinytensor.nn.module.Parameter'>, ['weight'])
    """
    merged = dict(lora_weights(model))
    with no_grad():
        for weight in merged.values():
            base = weight.base
            if isinstance(base, BlockWeight):
                base = Parameter(base.numpy(), requires_grad=False)
            base.assign(base + weight.change())
            replace_weight(model, weight, base)
    return {**merged}


@checked
def unmerge_lora(model: Module, merged: Mapping[str, Any]) -> None:
    """Undo ``merge_lora``: restore the weights (up to rounding; quantized weights exactly) and reattach the additions.

    Raises ValueError if the model does not have these weights.
    """
    parameters = {name: dict(model.named_parameters()).get(name) for name in merged}
    for name, parameter in parameters.items():
        if parameter is None or parameter.shape != merged[name].shape:
            raise ValueError(f"unmerge_lora: the model has no weight {name} of shape {merged[name].shape}")
    with no_grad():
        for name, weight in merged.items():
            parameter = cast(Parameter, parameters[name])
            if not isinstance(weight.base, BlockWeight):
                parameter.assign(parameter - weight.change())
                weight.base = parameter
            weight.additions.astype(weight.dtype)
            weight.train(model.get_submodule(name.rpartition(".")[0]).training)
            replace_weight(model, parameter, weight)
