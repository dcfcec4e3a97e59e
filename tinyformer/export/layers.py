"""Layers as nodes of a graph. Each function here does what the layer's ``forward`` does in evaluation mode."""

from __future__ import annotations

from tinyformer.common.errors import UserError
from tinyformer.export.graph import Value
from tinyformer.models.activations import ACTIVATIONS
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


def feed_forward(layer: FeedForward, x: Value) -> Value:
    """(..., d_model) -> (..., d_model)."""
    gate = [] if layer.gate is None else [linear(layer.gate, x)]
    return linear(layer.down, ACTIVATIONS[layer.activation].exported(*gate, linear(layer.up, x)))
