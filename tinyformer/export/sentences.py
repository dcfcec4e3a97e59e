"""What makes one vector of a text, as nodes of a graph."""

from __future__ import annotations

from tinyformer.export.graph import BOOL, FLOAT, Value
from tinyformer.export.layers import linear
from tinyformer.models.sentences import WEIGHTINGS, Pooling, Projection
from tinytensor.nn import Module


def pooled(layer: Pooling, x: Value, is_token: Value) -> Value:
    """x (batch, length, width), and the numbers (batch, length) that are 1 for tokens -> (batch, width * number of kinds)."""
    graph, counted = x.graph, is_token.astype(FLOAT)
    number, total = graph.node("CumSum", counted, 1), counted.sum()
    parts = []
    for kind in layer.kinds:
        if kind == "max":
            seen = graph.where(is_token.astype(BOOL).unsqueeze(2), x, float("-inf"))
            parts.append(graph.node("ReduceMax", seen, [1], keepdims=0))
            continue
        weights = WEIGHTINGS[kind](counted, number, total, number)
        size = total.function("Sqrt") if kind == "mean_sqrt_len_tokens" else weights.sum()
        parts.append(graph.node("Squeeze", (weights / size).unsqueeze(1) @ x, [1]))
    return parts[0] if len(parts) == 1 else graph.concatenate(parts, axis=1)


def of_sentence(layer: Module, x: Value) -> Value:
    """A ``Projection`` or ``Normalize`` of (batch, width)."""
    if isinstance(layer, Projection):
        return layer.FUNCTIONS[layer.function][1](linear(layer.linear, x))
    return x / x.graph.node("Max", (x * x).sum().function("Sqrt"), 1e-12)
