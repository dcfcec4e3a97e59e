"""The ops that have kernels, and some that do not, at the sizes of training: many blocks of threads, and odd lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinytensor as tt

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class OpCase:
    """A function of tensors, and their shapes: "large" ones for a GPU, "small" ones for the fake CuPy.

    With ``num_ids`` the last is of ids below that number for its size.
    """

    f: Callable[..., tt.Tensor]
    large: Shapes
    small: Shapes
    num_ids: tuple[int, int] | None = None

    def arrays(self, size: str) -> list[Any]:
        """The inputs: multiples of 1/32 up to 4, which are the same numbers in bfloat16, float32 and float64."""
        rng = np.random.default_rng(3)
        shapes = self.large if size == "large" else self.small
        inputs: list[Any] = [exact(rng, shape) for shape in shapes]
        if self.num_ids:
            inputs[-1] = rng.integers(0, self.num_ids[size == "small"], shapes[-1])
        return inputs


def exact(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Numbers near the normal distribution's that bfloat16 holds exactly."""
    return np.clip(np.round(32 * rng.standard_normal(shape)), -128, 128) / 32


def padding(query: tt.Tensor, key: tt.Tensor) -> tt.Tensor:
    """A mask (batch, 1, 1, keys) that hides all keys of the second sequence, and the last third of those after it."""
    batch, keys = query.shape[0], key.shape[-2]
    mask = np.ones((batch, 1, 1, keys), bool)
    mask[2:, ..., -(keys // 3) :] = False
    mask[1] = False
    return tt.tensor(mask)


def until(lengths: tuple[int, ...], steps: int) -> tt.Tensor:
    """A mask (steps, batch) of sequences of these lengths."""
    return tt.tensor(np.arange(steps)[:, None] < lengths)


def recurrent(length: int, batch: int, width: int, gates: int, *others: tuple[int, ...]) -> Shapes:
    """The shapes of a recurrent layer's projected inputs, its weight, what its gates need besides, and a state."""
    return ((length, batch, gates * width), (gates * width, width), *others, (batch, width))


def alike(*shape: int, count: int = 3) -> Shapes:
    return (shape,) * count


attention = tt.scaled_dot_product_attention
ODD, SMALL_ODD = ((1_000_003,),), ((5_003,),)  # no multiple of what a block or a wide load works on

OPS = {
    "layer norm": OpCase(tt.layer_norm, ((8192, 768), (768,), (768,)), ((70, 64), (64,), (64,))),
    "layer norm, odd": OpCase(tt.layer_norm, ((4099, 385), (385,), (385,)), ((37, 33), (33,), (33,))),
    "layer norm, wide": OpCase(tt.layer_norm, ((65, 50304), (50304,)), ((3, 1500), (1500,))),
    "rms norm": OpCase(tt.rms_norm, ((8192, 768), (768,)), ((70, 64), (64,))),
    "residual and layer norm": OpCase(
        lambda x, w, b: x + tt.layer_norm(x, w, b), ((8192, 768), (768,), (768,)), ((70, 64), (64,), (64,))
    ),
    "residual and rms norm, odd": OpCase(lambda x, w: x + tt.rms_norm(x, w), ((4099, 385), (385,)), ((37, 33), (33,))),
    "gelu, exact": OpCase(tt.gelu, ODD, SMALL_ODD),
    "gelu, tanh": OpCase(lambda x: tt.gelu(x, approximate="tanh"), ODD, SMALL_ODD),
    "erf": OpCase(tt.erf, ODD, SMALL_ODD),
    "exp": OpCase(tt.exp, ODD, SMALL_ODD),
    "residual": OpCase(lambda x, y, bias: x + y + bias, ((8192, 768), (8192, 768), (768,)), ((70, 33), (70, 33), (33,))),
    "softmax": OpCase(tt.softmax, ((4099, 1027),), ((37, 65),)),
    "log softmax": OpCase(tt.log_softmax, ((4099, 1027),), ((37, 65),)),
    "sigmoid": OpCase(tt.sigmoid, ODD, SMALL_ODD),
    "silu": OpCase(tt.silu, ODD, SMALL_ODD),
    "swiglu": OpCase(tt.swiglu, ODD * 2, SMALL_ODD * 2),
    "rotation": OpCase(lambda x: tt.rotate_pairs(x, tt.full(32, 0.8), tt.full(32, 0.6)), ((16, 6, 300, 64),), ((2, 3, 5, 64),)),
    "norms and rotation of heads": OpCase(
        lambda x, q, k: tt.norm_and_rotate(x, 6, 2, q, k, rotation=tt.full((300, 64), 0.7)[: x.shape[1], : q.shape[0]]),
        ((16, 300, 640), (64,), (64,)),
        ((2, 5, 160), (16,), (16,)),
    ),
    "sum": OpCase(lambda x: x.sum(axis=0), ((16384, 385),), ((300, 33),)),
    "mean": OpCase(lambda x: x.mean(), ((2_000_003,),), SMALL_ODD),
    "max": OpCase(lambda x: x.max(axis=-1), ((4099, 1027),), ((37, 65),)),  # with many ties
    "linear": OpCase(tt.linear, ((32, 256, 384), (1536, 384), (1536,)), ((3, 17, 24), (40, 24), (40,))),
    "products of a batch": OpCase(
        lambda x, y: x.swapaxes(-1, -2) @ y, alike(64, 6, 64, 256, count=2), alike(2, 3, 5, 9, count=2)
    ),
    "dropout": OpCase(lambda x: tt.dropout(x, 0.2), ODD, SMALL_ODD),
    "dropout and residual": OpCase(
        lambda x, y: tt.dropout(x, 0.3, residual=y), alike(64, 256, 385, count=2), alike(7, 5, 33, count=2)
    ),
    "attention": OpCase(attention, alike(16, 6, 300, 64), alike(2, 2, 40, 16)),
    "attention, causal": OpCase(lambda *x: attention(*x, is_causal=True), alike(16, 6, 256, 64), alike(2, 2, 40, 16)),
    "multi-head attention": OpCase(lambda x: tt.multi_head_attention(x, 6, is_causal=True), ((16, 256, 1152),), ((2, 40, 90),)),
    "multi-head attention, odd": OpCase(lambda x: tt.multi_head_attention(x, 5), ((3, 130, 495),), ((2, 70, 45),)),
    "multi-head attention, memory": OpCase(
        lambda x, memory: tt.multi_head_attention(x, 6, memory), ((16, 256, 384), (16, 300, 768)), ((2, 40, 30), (2, 33, 60))
    ),
    "attention, long": OpCase(lambda *x: attention(*x, is_causal=True), alike(2, 3, 2048, 64), alike(1, 2, 300, 8)),
    "attention, dropout": OpCase(
        lambda *x: attention(*x, is_causal=True, dropout_p=0.2), alike(16, 6, 256, 64), alike(2, 2, 40, 16)
    ),
    # Of bfloat16, these are flash attention: each width of a head that it does, and lengths that are no multiples of its tiles.
    "flash attention, 32 wide": OpCase(lambda *x: attention(*x, is_causal=True), alike(16, 6, 333, 32), alike(1, 2, 70, 32)),
    "flash attention, 128 wide": OpCase(
        lambda *x: attention(*x, dropout_p=0.2), alike(8, 6, 333, 128), ((1, 2, 3, 128), *alike(1, 2, 70, 128, count=2))
    ),
    "flash attention, 16 wide": OpCase(lambda *x: attention(*x, is_causal=True), alike(2, 3, 4099, 16), alike(1, 1, 200, 16)),
    "flash attention, more keys": OpCase(
        lambda *x: attention(*x, is_causal=True, dropout_p=0.2),
        ((4, 6, 200, 64), *alike(4, 6, 301, 64, count=2)),
        ((1, 2, 60, 16), *alike(1, 2, 77, 16, count=2)),
    ),
    "multi-head flash attention": OpCase(
        lambda x: tt.multi_head_attention(x, 6, is_causal=True, dropout_p=0.2), ((16, 256, 1152),), ((2, 70, 288),)
    ),
    "multi-head flash attention, memory": OpCase(
        lambda x, memory: tt.multi_head_attention(x, 6, memory, dropout_p=0.2),
        ((16, 100, 96), (16, 257, 192)),
        ((2, 40, 96), (2, 70, 192)),
    ),
    "attention, padding": OpCase(
        lambda q, k, v: attention(q, k, v, mask=padding(q, k)),
        ((8, 6, 100, 64), *alike(8, 6, 300, 64, count=2)),
        ((3, 2, 10, 16), *alike(3, 2, 30, 16, count=2)),
    ),
    "attention, bias": OpCase(
        lambda q, k, v, bias: attention(q, k, v, mask=bias, is_causal=True),
        (*alike(8, 6, 300, 64), (6, 300, 300)),
        (*alike(3, 2, 30, 16), (2, 30, 30)),
    ),
    "attention, bias of the keys": OpCase(
        lambda q, k, v, bias: attention(q, k, v, mask=bias, dropout_p=0.2),
        (*alike(1, 2, 1500, 64), (1500,)),
        (*alike(1, 2, 530, 8), (530,)),
    ),
    "cross-entropy": OpCase(tt.cross_entropy, ((2051, 50304), (2051,)), ((37, 65), (37,)), (50304, 65)),
    "linear cross-entropy": OpCase(
        # Divided by 16, x is as exact as before, and logits are a few units: at 100 bfloat16's are half a unit apart.
        lambda x, weight, ids: tt.linear_cross_entropy(x / 16, weight, ids),
        ((4, 256, 384), (50304, 384), (4, 256)),
        ((3, 17, 24), (65, 24), (3, 17)),
        (50304, 65),
    ),
    # Weights are multiples of 1/32 here, but should be about 1 / sqrt(width): so states stay where the functions have slopes.
    "rnn": OpCase(lambda p, w, h: tt.rnn(p, w / 32, h), recurrent(20, 65, 257, 1), recurrent(5, 3, 9, 1)),
    # Nothing that ReLU gets is close to 0, where rounding would decide whether its slope is 0 or 1.
    "rnn, relu": OpCase(
        lambda p, w, h: tt.rnn(tt.where(p < 0, p - 1, p + 1), w / 512, h, activation="relu"),
        recurrent(20, 65, 257, 1),
        recurrent(5, 3, 9, 1),
    ),
    "gru": OpCase(lambda p, w, b, h: tt.gru(p, w / 32, b, h), recurrent(20, 65, 257, 3, (771,)), recurrent(5, 3, 9, 3, (27,))),
    "lstm": OpCase(
        lambda p, w, h, c: tt.lstm(p, w / 32, h, c), recurrent(20, 65, 257, 4, (65, 257)), recurrent(5, 3, 9, 4, (3, 9))
    ),
    "lstm, padding, reversed": OpCase(
        lambda p, w, h, c: tt.lstm(p, w / 32, h, c, until((0, 3, *[4] * (len(h) - 2)), len(p)), True),
        recurrent(20, 65, 257, 4, (65, 257)),
        recurrent(5, 3, 9, 4, (3, 9)),
    ),
    "embedding, few rows": OpCase(lambda w, i: tt.embedding(i, w), ((65, 384), (64, 256)), ((7, 24), (9, 30)), (65, 7)),
    "embedding, many rows": OpCase(
        lambda w, i: tt.embedding(i, w), ((50304, 768), (8, 1024)), ((200, 24), (9, 30)), (50304, 200)
    ),
    "embedding, added to a gradient": OpCase(
        lambda w, i: tt.concatenate([tt.embedding(i.reshape(-1), w), w * 2.0]),
        ((65, 385), (64, 256)),
        ((7, 25), (9, 30)),
        (65, 7),
    ),
}
