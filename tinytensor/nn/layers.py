"""Layers: the functions of ``tinytensor.functional`` as modules that hold their parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytensor import functional, ops
from tinytensor.autograd.inputs import check_probability
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.common.wording import counted
from tinytensor.nn import init
from tinytensor.nn.module import Module
from tinytensor.nn.weights import embedding, linear
from tinytensor.ops.shapes import normalize_axis

__all__ = [
    "ELU",
    "GELU",
    "Dropout",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "Identity",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "RMSNorm",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
]  # fmt: skip


class Linear(Module):
    """A linear layer y = x @ weight.T + bias with a weight (out_features, in_features).

    Weight and bias are initialized uniformly between -1/sqrt(in_features) and 1/sqrt(in_features).

    >>> layer = tt.nn.Linear(3, 2)
    >>> layer.weight.shape, layer(tt.zeros((5, 3))).shape
    ((2, 3), (5, 2))
    """

    @checked
    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        bound = 1.0 / math.sqrt(in_features) if in_features > 0 else 0.0
        self.weight = init.uniform_(init.new_parameter((out_features, in_features)), -bound, bound)
        self.bias = init.uniform_(init.new_parameter(out_features), -bound, bound) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        out_features, in_features = self.weight.shape
        return f"{in_features}, {out_features}" + ("" if self.bias is not None else ", bias=False")


class Embedding(Module):
    """A lookup table with one vector for each id. The weight (num_embeddings, embedding_dim) starts as standard normal samples.

    The vector at ``padding_idx`` gets no gradient from this layer. A negative index counts from the end.

    >>> tt.nn.Embedding(10, 4)(tt.tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    @checked
    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None):
        self.weight = init.normal_(init.new_parameter((num_embeddings, embedding_dim)))
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"Embedding: padding_idx {padding_idx} is outside a table of {counted(num_embeddings, 'row')}")
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings

    def forward(self, ids: Tensor) -> Tensor:
        """Integer ids (...) -> (..., embedding_dim)."""
        vectors = embedding(ids, self.weight)
        if self.padding_idx is None:
            return vectors
        return ops.where((ids == self.padding_idx).reshape(*ids.shape, 1), vectors.detach(), vectors)

    def extra_repr(self) -> str:
        return ", ".join(str(n) for n in self.weight.shape)


class LayerNorm(Module):
    """Layer normalization over the last axis or axes; see ``functional.layer_norm``.

    ``normalized_shape`` is the length of the axis or a sequence of lengths, and the shape of the weight and bias. If
    ``elementwise_affine`` is False, there is no weight or bias.

    >>> tt.nn.LayerNorm(2, eps=0.0)(tt.tensor([[1.0, 3.0], [5.0, -5.0]]))
    tensor([[-1.,  1.],
            [ 1., -1.]], op=layer_norm)
    """

    @checked
    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True
    ):
        shape = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
        if not shape:
            raise ValueError("LayerNorm: normalized_shape needs at least one axis")
        self.normalized_shape = tuple(shape)
        self.eps = eps
        self.weight = init.ones_(init.new_parameter(shape)) if elementwise_affine else None
        self.bias = init.new_parameter(shape) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) -> (..., *normalized_shape)."""
        if len(self.normalized_shape) == 1 and self.weight is not None:
            return functional.layer_norm(x, self.weight, self.bias, self.eps)
        return self._over_axes(x)

    def _over_axes(self, x: Tensor) -> Tensor:
        """Normalize several axes as one row. Check their lengths even if there is no weight."""
        count = len(self.normalized_shape)
        if x.shape[-count:] != self.normalized_shape:
            raise ValueError(f"LayerNorm takes (..., {str(self.normalized_shape)[1:-1]}), got {x.shape}")
        row = math.prod(self.normalized_shape)
        weight, bias = [None if p is None else p.reshape(row) for p in (self.weight, self.bias)]
        return functional.layer_norm(x.reshape(*x.shape[:-count], row), weight, bias, self.eps).reshape(*x.shape)

    def extra_repr(self) -> str:
        shape = self.normalized_shape
        text = f"{shape if len(shape) > 1 else shape[0]}, eps={self.eps}"
        if self.weight is None:
            return text + ", elementwise_affine=False"
        return text + ("" if self.bias is not None else ", bias=False")


class GroupNorm(Module):
    """Group normalization of channels; see ``functional.group_norm``. If ``affine``, weight and bias are (num_channels,).

    >>> tt.nn.GroupNorm(2, 6)(tt.ones((4, 6, 5, 5))).shape
    (4, 6, 5, 5)
    """

    @checked
    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True):
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: {counted(num_channels, 'channel')} cannot be divided into {counted(num_groups, 'group')}"
            )
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = init.ones_(init.new_parameter(num_channels)) if affine else None
        self.bias = init.new_parameter(num_channels) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, num_channels, ...) -> the same shape."""
        if x.shape[1:2] != (self.num_channels,):
            raise ValueError(f"GroupNorm takes (batch, {self.num_channels}, ...), got {x.shape}")
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        affine = "" if self.weight is not None else ", affine=False"
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}{affine}"


class RMSNorm(Module):
    """Root-mean-square normalization over the last axis; see ``functional.rms_norm``."""

    @checked
    def __init__(self, width: int, eps: float = 1e-5):
        self.eps = eps
        self.weight = init.ones_(init.new_parameter(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        return functional.rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


class Dropout(Module):
    """Dropout of elements with probability p, active only in training; see ``functional.dropout``.

    >>> layer = tt.nn.Dropout(0.5).eval()
    >>> layer(tt.ones(3))
    tensor([1., 1., 1.])
    """

    @checked
    def __init__(self, p: float = 0.5):
        check_probability(p)
        self.p = p

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Apply dropout in training. Add a ``residual`` of the same shape, if given."""
        if residual is None and not (self.training and self.p):
            return x  # fast path, because dropout is often off
        return functional.dropout(x, self.p, self.training, residual)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _WithoutSettings(Module):
    """The base class of layers without arguments: ``nn.ReLU(inplace=True)`` raises an error."""

    @checked
    def __init__(self) -> None:
        pass


class Identity(_WithoutSettings):
    """A layer that returns its input."""

    def forward(self, x: Any) -> Any:
        return x


class Flatten(Module):
    """A layer that flattens the axes from ``start_axis`` to ``end_axis``, inclusive.

    >>> tt.nn.Flatten()(tt.zeros((5, 2, 3))).shape
    (5, 6)
    """

    @checked
    def __init__(self, start_axis: int = 1, end_axis: int = -1):
        self.start_axis, self.end_axis = start_axis, end_axis

    def forward(self, x: Tensor) -> Tensor:
        """Flatten x, keeping the order of its elements. Raises ValueError if the end comes before the start."""
        start = normalize_axis(self.start_axis, x.ndim, "start_axis")
        end = normalize_axis(self.end_axis, x.ndim, "end_axis")
        if end < start:
            raise ValueError(f"Flatten: end_axis {self.end_axis} comes before start_axis {self.start_axis} of {x.shape}")
        return x.reshape(*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])

    def extra_repr(self) -> str:
        return f"start_axis={self.start_axis}, end_axis={self.end_axis}"


class ReLU(_WithoutSettings):
    """``relu`` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu(x)


class LeakyReLU(Module):
    """``leaky_relu`` as a module."""

    @checked
    def __init__(self, negative_slope: float = 0.01):
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return ops.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"{self.negative_slope}"


class ELU(Module):
    """``elu`` as a module."""

    @checked
    def __init__(self, alpha: float = 1.0):
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return ops.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"{self.alpha}"


class GELU(Module):
    """``gelu`` as a module; ``approximate`` is "none" or "tanh"."""

    @checked
    def __init__(self, approximate: str = "none"):
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(_WithoutSettings):
    """``silu`` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.silu(x)


class Softplus(Module):
    """``softplus`` as a module."""

    @checked
    def __init__(self, beta: float = 1.0):
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        return ops.softplus(x, self.beta)

    def extra_repr(self) -> str:
        return "" if self.beta == 1 else f"{self.beta}"


class Sigmoid(_WithoutSettings):
    """``sigmoid`` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.sigmoid(x)


class Tanh(_WithoutSettings):
    """``tanh`` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanh(x)


class Softmax(Module):
    """``softmax`` along an axis, as a module."""

    @checked
    def __init__(self, axis: int = -1):
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return ops.softmax(x, self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"
