"""How an encoder reads vectors instead of tokens: through a convolution over time that shortens them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tinytensor as tt
from tinyformer.common.vectors import Vectors
from tinyformer.models.positions import absolute_positions, add_positions
from tinytensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.nn import Dropout, Linear, Module

if TYPE_CHECKING:
    from tinyformer.models.transformer import TransformerConfig


@checked
def length_mask(lengths: Tensor, count: int) -> Tensor:
    """Lengths (batch,) -> a mask (batch, count), True for the places before each length."""
    return tt.arange(count) < lengths.reshape(-1, 1)


class StridedConvolution(Module):
    """A convolution over time that shortens it. Its windows are centred on every ``stride``-th frame, and overlap: each ends
    one frame before the middle of the next. With a stride of 1 it is a linear layer of each frame.

    Frames before the beginning and behind the end of a sequence count as zeros.
    """

    def __init__(self, features: int, width: int, stride: int):
        self.stride = stride
        self.projection = Linear((2 * stride - 1) * features, width)

    def forward(self, source: Vectors) -> Vectors:
        """Vectors (batch, frames, features) -> (batch, frames / stride, width), rounded up; so are the lengths."""
        values, lengths = source
        batch, frames, features = values.shape
        count, reach = -(-frames // self.stride), self.stride - 1
        values = tt.where(length_mask(lengths, frames).reshape(batch, frames, 1), values, 0.0)
        padded = tt.pad(values.astype(self.projection.weight.dtype), ((0, 0), (reach, reach), (0, 0)))
        places = self.stride * tt.arange(count)[:, None] + tt.arange(2 * self.stride - 1)
        windows = padded[:, places].reshape(batch, count, (2 * self.stride - 1) * features)
        return Vectors(self.projection(windows), (lengths + reach) // self.stride)


class VectorAndPosition(Module):
    """Vectors through a ``StridedConvolution``, plus positions, then dropout: for vectors what token embeddings are for ids."""

    def __init__(self, config: TransformerConfig):
        self.convolution = StridedConvolution(config.source_features, config.d_model, config.source_stride)
        self.positions = absolute_positions(config.positions, config.max_length, config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, source: Vectors) -> Vectors:
        """Vectors (batch, frames, source_features) -> (batch, frames / source_stride, d_model)."""
        x, lengths = self.convolution(source)
        return Vectors(self.dropout(add_positions(x, self.positions)), lengths)
