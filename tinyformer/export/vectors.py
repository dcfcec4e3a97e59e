"""Vectors as the source of an encoder, as nodes of a graph."""

from __future__ import annotations

from tinyformer.export.graph import BOOL, FLOAT, INT, Graph, Value
from tinyformer.export.positions import add_positions, count_from_zero
from tinyformer.models.vectors import StridedConvolution, VectorAndPosition


def read_vectors(graph: Graph, layer: VectorAndPosition) -> tuple[Value, Value]:
    """New inputs: ``input_features`` (batch, frames, features), and ``attention_mask`` (batch, frames), which is 0 for padding
    behind a sequence.

    Returns the encoder's input (batch, frames / stride, d_model), and its mask (batch, frames / stride), also of 1 and 0.
    """
    convolution = layer.convolution
    features = convolution.projection.weight.shape[1] // (2 * convolution.stride - 1)
    values = graph.input("input_features", FLOAT, "batch_size", "frames", features)
    is_token = graph.input("attention_mask", INT, "batch_size", "frames")
    values = graph.where(is_token.astype(BOOL).unsqueeze(2), values, 0.0)
    x = _convolve(convolution, values)
    lengths = (is_token.sum() + (convolution.stride - 1)) / convolution.stride  # rounded down, as integers are
    mask = (graph.range(x.length(1)) < lengths).astype(INT)
    return add_positions(layer.positions, x, count_from_zero(x)), mask


def _convolve(layer: StridedConvolution, values: Value) -> Value:
    """(batch, frames, features) -> (batch, frames / stride, width). ONNX has the features before the frames."""
    graph, size, reach = values.graph, 2 * layer.stride - 1, layer.stride - 1
    width = layer.projection.weight.shape[0]
    kernel = graph.weight(layer.projection.weight).reshape(width, size, -1).transpose(0, 2, 1)
    bias = layer.projection.bias
    assert bias is not None
    x = values.transpose(0, 2, 1)
    out = graph.node("Conv", x, kernel, graph.weight(bias), kernel_shape=[size], strides=[layer.stride], pads=[reach, reach])
    return out.transpose(0, 2, 1)
