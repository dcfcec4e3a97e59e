"""Layers as nodes of a graph. Each function here does what the layer's ``forward`` does in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable

from tinyformer.common.errors import UserError
from tinyformer.export.graph import Value
from tinyformer.models.blocks import FeedForward
from tinytensor.nn import Embedding, LayerNorm, Linear, Module, RMSNorm


def linear(layer: Linear, x: Value) -> Value:
    """(..., in_features) -> (..., out_features)."""
    y = x @ x.graph.weight(layer.weight, transposed=True)
    return y if layer.bias is None else y + x.graph.weight(layer.bias)


def embedding(layer: Embedding, ids: Value) -> Value:
    """Ids (...) -> (..., width)."""
    return ids.graph.weight(layer.weight).take(ids)


def tied_linear(table: Embedding, x: Value) -> Value:
    """An embedding as output layer: (..., width) -> (..., number of tokens). The graph holds its table once."""
    return x @ x.graph.weight(table.weight).transpose(1, 0)


def norm(layer: Module, x: Value) -> Value:
    """(..., width) -> (..., width)."""
    if isinstance(layer, LayerNorm):
        parameters = [x.graph.weight(p) for p in (layer.weight, layer.bias) if p is not None]
        return x.graph.node("LayerNormalization", x, *parameters, axis=-1, epsilon=layer.eps)
    if isinstance(layer, RMSNorm):
        scale = ((x * x).mean() + layer.eps).function("Sqrt")
        return x / scale * x.graph.weight(layer.weight)
    raise UserError(f"the norm {type(layer).__name__} cannot be exported: choose layer or rms")


def gelu(x: Value, approximate: str = "none") -> Value:
    """gelu(x); ``approximate`` is "none" or "tanh"."""
    return x.function("Gelu", approximate=approximate)


def silu(x: Value) -> Value:
    """x * sigmoid(x)."""
    return x * x.function("Sigmoid")


ACTIVATIONS: dict[str, Callable[..., Value]] = {
    "relu": lambda x: x.function("Relu"),
    "gelu_tanh": lambda x: gelu(x, "tanh"),
    "gelu_exact": gelu,
    "silu": silu,
    "swiglu": lambda gate, x: silu(gate) * x,
}


def activation(name: str, *inputs: Value) -> Value:
    """An activation by its name. It takes one value or, if it is a gated one, the gate and what that multiplies."""
    if name not in ACTIVATIONS:
        raise UserError(f"the activation {name} cannot be exported: choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name](*inputs)


def feed_forward(layer: FeedForward, x: Value) -> Value:
    """(..., d_model) -> (..., d_model)."""
    gate = [] if layer.gate is None else [linear(layer.gate, x)]
    return linear(layer.down, activation(layer.activation, *gate, linear(layer.up, x)))
