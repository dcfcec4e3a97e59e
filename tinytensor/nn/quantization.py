"""Quantization to low-precision weights, which use less memory and decode faster. They cannot be trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tinytensor import kernels
from tinytensor.autograd.tensor import Tensor, wrap
from tinytensor.common.arguments import checked
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import Array, xp
from tinytensor.kernels.numpy.quantized import BLOCK_TYPES, LARGEST_WEIGHT
from tinytensor.nn.layers import Embedding, LayerNorm, Linear
from tinytensor.nn.module import Module
from tinytensor.nn.weights import BlockWeight, StandIn, replace_weight

DTYPES = ("int8", "int4", "bfloat16")
_AT_ONCE = 1 << 16  # weights rounded at a time, to fit in a core's cache

AnyModule = TypeVar("AnyModule", bound=Module)


@checked
def quantize_(model: AnyModule, dtype: str = "int8", tables: Sequence[Tensor] = ()) -> AnyModule:
    """Quantize the linear layers of a model in place to "int8", "int4" or "bfloat16". Returns the model in evaluation mode.

    In int8, 32 weights share a float16 scale (Q8_0 in llama.cpp). In int4, 32 weights share a scale and a minimum (Q4_K, or
    Q4_1 if the row length is not a multiple of 256), and embeddings use 6 or 8 bits (Q6_K, Q8_0).

    ``tables`` are embedding weights to quantize as well. Other parameters, such as biases and norms, do not change. A gradient
    through a quantized weight is an error, unless ``add_lora`` adds trainable parameters.

    Raises ValueError if the dtype is unknown, if a layer with matrices is neither linear nor an embedding, if the model is
    already quantized to another dtype, if a table is not in the model, or if weights are infinite or NaN. In the last case,
    some layers may already be quantized.

    >>> layer = tt.nn.quantize_(tt.nn.Linear(3, 2))
    >>> layer.weight
    BlockWeight((2, 3), Q8_0)
    """
    for name in quantizable(model, dtype, tables):
        quantize_weight(model, name, dtype)
    return model.eval()


def quantizable(model: Module, dtype: str, tables: Sequence[Tensor] = ()) -> list[str]:
    """Return the names of the weights that ``quantize_`` rounds. Raises ValueError like ``quantize_``."""
    if dtype not in DTYPES:
        raise ValueError(f"quantize_: dtype must be {' or '.join(DTYPES)}, got {dtype!r}")
    if (before := quantized_dtype(model)) not in (None, dtype):
        raise ValueError(f"quantize_: the model is {before} already: quantize a model whose weights are float32")
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
        elif parameter.ndim > 1 and id(parameter) not in embeddings | norms:
            layer = model.get_submodule(name.rpartition(".")[0])
            if isinstance(layer, StandIn):
                raise ValueError(f"quantize_: {name} has additions: quantize before add_lora, or after merge_lora")
            raise ValueError(f"quantize_: {name} is a weight of {a_or_an(type(layer).__name__)}, which cannot be quantized")
    return chosen


def block_type_of(dtype: str, inputs: int, is_table: bool) -> str:
    """Return the block type for a dtype. For "int4", return the best one that the row length allows.

    Embedding tables use 6 or 8 bits: a 4-bit output layer would cost more accuracy than all other layers together.
    """
    is_whole = inputs % BLOCK_TYPES["Q4_K"].size == 0
    if dtype == "bfloat16":
        return "BF16"
    if dtype == "int8" or (is_table and not is_whole):
        return "Q8_0"
    return ("Q6_K" if is_table else "Q4_K") if is_whole else "Q4_1"


def quantize_weight(model: Module, name: str, dtype: str, done: Callable[[Array], Any] = lambda rows: None) -> None:
    """Quantize one weight of a model, wherever it is used. Call ``done`` with each group of rows that is no longer needed.

    Raises ValueError if weights are infinite, NaN, or too large for float16 scales.
    """
    weight = dict(model.named_parameters())[name]
    outputs, inputs = weight.shape
    is_table = any(isinstance(layer, Embedding) and layer.weight is weight for layer in model.modules())
    block_type = block_type_of(dtype, inputs, is_table)
    values = xp.empty((outputs, BLOCK_TYPES[block_type].row_bytes(inputs)), xp.uint8)
    count = max(1, _AT_ONCE // max(1, inputs))
    for start in range(0, outputs, count):
        rows = weight.data[start : start + count]
        if not xp.isfinite(rows).all():
            raise ValueError(f"{name} has NaN or infinite values, which cannot be quantized")
        if rows.size and abs(rows).max() > (limit := LARGEST_WEIGHT.get(dtype, math.inf)):
            raise ValueError(f"{name} has values beyond {limit:.3g}, which {dtype} cannot hold: use bfloat16")
        values[start : start + count] = kernels.pack_rows(rows, block_type)
        done(rows)
    put_weight(model, name, BlockWeight(wrap(values.reshape(-1)), ((block_type, outputs),), inputs))


def put_weight(model: Module, name: str, quantized: BlockWeight) -> None:
    """Replace the weight with this name with a quantized one, wherever it is used."""
    replace_weight(model, dict(model.named_parameters())[name], quantized)


def quantized_dtype(model: Module) -> str | None:
    """Return the dtype of a model's quantized weights (the one with the fewest bits), or None if all weights are float32."""
    dtypes = {weight.kind for _, weight in quantized_weights(model)}
    return next((dtype for dtype in ("int4", "int8", "bfloat16") if dtype in dtypes), None)


def quantized_weights(model: Module) -> Iterator[tuple[str, BlockWeight]]:
    """Iterate over the names and quantized weights of a model."""
    for name, module in model.named_modules():
        if isinstance(module, BlockWeight):
            yield name, module
