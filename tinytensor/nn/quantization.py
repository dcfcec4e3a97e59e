"""Models whose weights have fewer bits. They take less memory, write faster, and only compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tinytensor.autograd.calling import wrap
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import Array, xp
from tinytensor.nn.layers import Embedding, LayerNorm, Linear
from tinytensor.nn.module import Module
from tinytensor.nn.weights import BFloat16Weight, Int8Weight, QuantizedWeight, StandIn, replace_weight

KINDS: dict[str, type[QuantizedWeight]] = {kind.kind: kind for kind in (Int8Weight, BFloat16Weight)}
_AT_ONCE = 1 << 20  # numbers that are quantized at a time: a large weight needs no second copy
_MOST_INPUTS = 1 << 17  # products of so many 8-bit integers have a sum that 32 bits hold

AnyModule = TypeVar("AnyModule", bound=Module)


@checked
def quantize_(model: AnyModule, dtype: str = "int8", tables: Sequence[Tensor] = ()) -> AnyModule:
    """Round the weights of a model's linear layers, in place: to "int8" or "bfloat16". Returns the model, in evaluation mode.

    ``tables`` are weights of embeddings to be rounded, too: those that are also the weight of the output. Everything else,
    such as biases and norms, stays as it is. The model then only computes: a gradient through a rounded weight is refused,
    unless ``add_lora`` adds something to learn.

    Raises ValueError for another dtype, for a layer with matrices that is neither linear nor an embedding, which cannot be
    quantized, for a model that is already quantized to the other dtype, for a table that the model does not have, and for
    weights that are infinite or NaN; the last ones may leave some of the layers quantized.

    >>> layer = tt.nn.quantize_(tt.nn.Linear(3, 2))
    >>> layer.weight
    Int8Weight((2, 3), int8)
    """
    for name in quantizable(model, dtype, tables):
        quantize_weight(model, name, dtype)
    return model.eval()


def quantizable(model: Module, dtype: str, tables: Sequence[Tensor] = ()) -> list[str]:
    """The names of the weights that ``quantize_`` rounds. Raises ValueError as ``quantize_``."""
    kind = kind_of(dtype)
    for name, weight in quantized_weights(model):
        if not isinstance(weight, kind):
            raise ValueError(f"quantize_: {name} is {weight.kind} already: quantize a model whose weights are float32")
    linear, embeddings = (
        {id(layer.weight) for layer in model.modules() if isinstance(layer, of)} for of in (Linear, Embedding)
    )
    wanted = linear.union(map(id, tables))
    if not wanted.issubset(linear | embeddings):
        raise ValueError("quantize_: tables must be the weights of embeddings of this model, such as [model.embedding.weight]")
    norms = {id(each) for layer in model.modules() if isinstance(layer, LayerNorm) for each in layer.parameters()}
    chosen = []
    for name, parameter in model.named_parameters():
        if id(parameter) in wanted:
            chosen.append(name)
            if parameter.shape[1] > _MOST_INPUTS:
                raise ValueError(f"quantize_: {name} of shape {parameter.shape} has more than {_MOST_INPUTS:,} inputs")
        elif parameter.ndim > 1 and id(parameter) not in embeddings | norms:
            layer = model.get_submodule(name.rpartition(".")[0])
            if isinstance(layer, StandIn):
                raise ValueError(f"quantize_: {name} has additions: quantize before add_lora, or after merge_lora")
            raise ValueError(f"quantize_: {name} is a weight of {a_or_an(type(layer).__name__)}, which cannot be quantized")
    return chosen


def kind_of(dtype: str) -> type[QuantizedWeight]:
    """The kind of weight for a dtype. Raises ValueError if there is none."""
    if dtype not in KINDS:
        raise ValueError(f"a model can be quantized to {' or '.join(KINDS)}, not to {dtype!r}")
    return KINDS[dtype]


def quantize_weight(model: Module, name: str, dtype: str, done: Callable[[Array], Any] = lambda rows: None) -> None:
    """Round one weight of a model, wherever the model has it. ``done`` is called with some rows of it after the other, when
    they are no longer needed. Raises ValueError for weights that are infinite or NaN."""
    kind = kind_of(dtype)
    weight = dict(model.named_parameters())[name]
    kept: dict[str, list[Array]] = {}
    count = max(1, _AT_ONCE // max(1, weight.shape[1]))
    for start in range(0, max(1, weight.shape[0]), count):
        rows = weight.data[start : start + count]
        if not xp.isfinite(rows).all():
            raise ValueError(f"{name} has NaN or infinite numbers, which cannot be quantized")
        for each, array in kind.of(rows).items():
            kept.setdefault(each, []).append(array)
        done(rows)
    put_weight(model, name, kind(**{each: wrap(xp.concatenate(arrays)) for each, arrays in kept.items()}))


def put_weight(model: Module, name: str, quantized: QuantizedWeight) -> None:
    """Put a quantized weight in the place of the one of this name, wherever the model has that."""
    replace_weight(model, dict(model.named_parameters())[name], quantized)


def quantized_weights(model: Module) -> Iterator[tuple[str, QuantizedWeight]]:
    """The quantized weights of a model, with their names."""
    for name, module in model.named_modules():
        if isinstance(module, QuantizedWeight):
            yield name, module
