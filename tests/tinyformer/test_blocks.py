"""A block's two halves, written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.blocks import Block, FeedForward


def norm_by_hand(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def gelu_by_hand(x: np.ndarray) -> np.ndarray:
    """The tanh form, which GPT-2 was trained with."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((2, 5, 12)).astype(np.float32)


def randomised(module):
    """Every parameter random, norms and biases too, so that each has something to show."""
    tt.seed(4)
    for parameter in module.parameters():
        tt.nn.init.normal_(parameter, std=0.5)
    return module


@pytest.mark.parametrize("bias", [False, True])
def test_feed_forward(x: np.ndarray, bias: bool) -> None:
    layer = randomised(FeedForward(12, 20, bias=bias))
    p = {name: value.numpy().astype(np.float64) for name, value in layer.named_parameters()}
    inner = gelu_by_hand(x @ p["expand.weight"].T + p.get("expand.bias", 0.0))
    expected = inner @ p["contract.weight"].T + p.get("contract.bias", 0.0)
    assert p["expand.weight"].shape == (20, 12)
    np.testing.assert_allclose(layer(tt.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_block_is_two_residual_additions_of_normed_parts(x: np.ndarray, bias: bool, is_causal: bool) -> None:
    block = randomised(Block(12, 3, bias=bias))
    p = {name: value.numpy().astype(np.float64) for name, value in block.named_parameters()}

    def part(layer, values: np.ndarray, **options: object) -> np.ndarray:
        return layer(tt.tensor(values.astype(np.float32)), **options).numpy()

    normed = norm_by_hand(x.astype(np.float64), p["attention_norm.weight"], p.get("attention_norm.bias", 0.0))
    middle = x + part(block.attention, normed, is_causal=is_causal)
    normed = norm_by_hand(middle, p["feed_forward_norm.weight"], p.get("feed_forward_norm.bias", 0.0))
    expected = middle + part(block.feed_forward, normed)
    np.testing.assert_allclose(block(tt.tensor(x), is_causal=is_causal).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_block_passes_the_mask_on(x: np.ndarray) -> None:
    block = randomised(Block(12, 3))
    mask = tt.tensor(np.tri(5, dtype=bool))
    masked = block(tt.tensor(x), mask).numpy()
    np.testing.assert_allclose(masked, block(tt.tensor(x), is_causal=True).numpy(), rtol=1e-5, atol=1e-5)
    assert np.abs(masked - block(tt.tensor(x)).numpy()).max() > 1e-2


def test_feed_forward_drops_in_training_only(x: np.ndarray) -> None:
    layer = randomised(FeedForward(12, 20, dropout=0.5))
    plain = randomised(FeedForward(12, 20))(tt.tensor(x)).numpy()
    out = layer(tt.tensor(x)).numpy()
    assert 0.2 < (out == 0).mean() < 0.8
    np.testing.assert_allclose(out[out != 0], 2 * plain[out != 0], rtol=1e-6)
    assert layer.eval()(tt.tensor(x)).numpy().tobytes() == plain.tobytes()
