"""A block's parts, written out in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.blocks import NORMS, Block, BlockCache, BlockConfig, Cache, FeedForward
from tinytensor.device.backend import to_numpy


def norm_by_hand(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def gelu_by_hand(x: np.ndarray) -> np.ndarray:
    """The tanh form, which GPT-2 was trained with."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((2, 5, 12)).astype(np.float32)


def config(**changes: object) -> BlockConfig:
    return BlockConfig(**{"d_model": 12, "num_heads": 3, "d_ff": 20, **changes})


def randomised(module):
    """Every parameter random, norms and biases too, so that each has something to show."""
    tt.seed(4)
    for parameter in module.parameters():
        tt.nn.init.normal_(parameter, std=0.5)
    return module


@pytest.mark.parametrize("bias", [False, True])
def test_feed_forward(x: np.ndarray, bias: bool) -> None:
    layer = randomised(FeedForward(config(bias=bias)))
    p = {name: value.numpy().astype(np.float64) for name, value in layer.named_parameters()}
    inner = gelu_by_hand(x @ p["up.weight"].T + p.get("up.bias", 0.0))
    expected = inner @ p["down.weight"].T + p.get("down.bias", 0.0)
    assert p["up.weight"].shape == (20, 12)
    np.testing.assert_allclose(layer(tt.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_block_is_two_residual_additions_of_normed_parts(x: np.ndarray, bias: bool, is_causal: bool) -> None:
    block = randomised(Block(config(bias=bias)))
    p = {name: value.numpy().astype(np.float64) for name, value in block.named_parameters()}

    def part(layer, values: np.ndarray, **options: object) -> np.ndarray:
        return layer(tt.tensor(values.astype(np.float32)), **options).numpy()

    normed = norm_by_hand(x.astype(np.float64), p["attention_norm.weight"], p.get("attention_norm.bias", 0.0))
    middle = x + part(block.attention, normed, is_causal=is_causal)
    normed = norm_by_hand(middle, p["feed_forward_norm.weight"], p.get("feed_forward_norm.bias", 0.0))
    expected = middle + part(block.feed_forward, normed)
    np.testing.assert_allclose(block(tt.tensor(x), is_causal=is_causal).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_block_passes_the_mask_on(x: np.ndarray) -> None:
    block = randomised(Block(config()))
    mask = tt.tensor(np.tri(5, dtype=bool))
    masked = block(tt.tensor(x), mask).numpy()
    np.testing.assert_allclose(masked, block(tt.tensor(x), is_causal=True).numpy(), rtol=1e-5, atol=1e-5)
    assert np.abs(masked - block(tt.tensor(x)).numpy()).max() > 1e-2


@pytest.mark.parametrize("norm_first", [False, True])
def test_block_drops_what_its_parts_add_in_training_only(x: np.ndarray, norm_first: bool) -> None:
    block = randomised(Block(config(dropout=0.5, norm_first=norm_first), cross_attention=True))
    inputs, memory = tt.tensor(x), tt.tensor(x[:, :3])
    tt.seed(1)
    out = block(inputs, memory=memory).numpy()
    tt.seed(1)
    expected = inputs
    for norm, part in (
        (block.attention_norm, block.attention),
        (block.cross_attention_norm, lambda y: block.cross_attention(y, memory=memory)),
        (block.feed_forward_norm, block.feed_forward),
    ):
        if norm_first:
            expected = expected + tt.dropout(part(norm(expected)), 0.5)
        else:
            expected = norm(expected + tt.dropout(part(expected), 0.5))
    assert out.tobytes() == expected.numpy().tobytes()
    plain = randomised(Block(config(norm_first=norm_first), cross_attention=True))(inputs, memory=memory).numpy()
    assert block.eval()(inputs, memory=memory).numpy().tobytes() == plain.tobytes()
    assert np.abs(out - plain).max() > 1e-2


# ---------------------------------------------------------------------------------------------------------- choices

erf = np.vectorize(math.erf, otypes=[float])
BY_HAND = {
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu_tanh": gelu_by_hand,
    "gelu_exact": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
    "swiglu": lambda x: x / (1 + np.exp(-x)),
    "geglu": gelu_by_hand,
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", list(BY_HAND))
def test_activations(x: np.ndarray, activation: str, bias: bool) -> None:
    layer = randomised(FeedForward(config(activation=activation, bias=bias)))
    p = {name: value.numpy().astype(np.float64) for name, value in layer.named_parameters()}

    def linear(name: str, values: np.ndarray) -> np.ndarray:
        return values @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0.0)

    if activation.endswith("glu"):
        inner = BY_HAND[activation](linear("gate", x)) * linear("up", x)
    else:
        assert "gate.weight" not in p
        inner = BY_HAND[activation](linear("up", x))
    np.testing.assert_allclose(layer(tt.tensor(x)).numpy(), linear("down", inner), rtol=1e-4, atol=1e-4)


def in_order(block: Block, x: tt.Tensor, **options: object) -> tt.Tensor:
    """Post-norm with cross-attention, step by step."""
    memory, memory_mask = options["memory"], options["memory_mask"]
    x = block.attention_norm(x + block.attention(x))
    x = block.cross_attention_norm(x + block.cross_attention(x, memory_mask, memory=memory))
    return block.feed_forward_norm(x + block.feed_forward(x))


def in_order_norm_first(block: Block, x: tt.Tensor, **options: object) -> tt.Tensor:
    memory, memory_mask = options["memory"], options["memory_mask"]
    x = x + block.attention(block.attention_norm(x))
    x = x + block.cross_attention(block.cross_attention_norm(x), memory_mask, memory=memory)
    return x + block.feed_forward(block.feed_forward_norm(x))


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize(("norm_first", "by_hand"), [(False, in_order), (True, in_order_norm_first)])
def test_where_the_norms_stand(x: np.ndarray, norm: str, norm_first: bool, by_hand) -> None:
    block = randomised(Block(config(norm=norm, norm_first=norm_first), cross_attention=True))
    memory = tt.tensor(np.random.default_rng(5).standard_normal((2, 3, 12)).astype(np.float32))
    memory_mask = tt.tensor(np.array([[True, True, False], [True, False, False]])[:, None, None])
    options = {"memory": memory, "memory_mask": memory_mask}
    out = block(tt.tensor(x), **options).numpy()
    np.testing.assert_allclose(out, by_hand(block, tt.tensor(x), **options).numpy(), rtol=1e-5, atol=1e-5)
    unmasked = block(tt.tensor(x), memory=memory).numpy()
    assert np.abs(out - unmasked).max() > 1e-2  # the memory's mask reaches the attention


def test_rms_norm_is_chosen(x: np.ndarray) -> None:
    norm = randomised(config(norm="rms", norm_eps=0.1).make_norm())
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 0.1) * norm.weight.numpy()
    np.testing.assert_allclose(norm(tt.tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_the_norms_epsilon_is_passed_on(x: np.ndarray) -> None:
    norm = config(norm_eps=0.5).make_norm()
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.5)
    np.testing.assert_allclose(norm(tt.tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "batch"}, f"norm must be one of {', '.join(NORMS)}, got 'batch'"),
        ({"norm_eps": math.inf}, "norm_eps must be a finite number, got inf"),
        ({"activation": "tanh"}, f"activation must be one of {', '.join(ACTIVATIONS)}, got 'tanh'"),
    ],
)
def test_choices_that_do_not_exist(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        config(**changes)
    assert caught.value.names == tuple(changes)


def test_a_block_with_a_cache(x: np.ndarray) -> None:
    # The memory is projected in the first call only: after that, another one changes nothing.
    block = randomised(Block(config(), cross_attention=True))
    memory = tt.tensor(np.random.default_rng(5).standard_normal((2, 3, 12)).astype(np.float32))
    expected = block(tt.tensor(x), is_causal=True, memory=memory).numpy()
    cache = BlockCache(5, memory_length=3)
    with tt.no_grad():
        first = block(tt.tensor(x[:, :2]), is_causal=True, memory=memory, cache=cache).numpy()
        rest = block(tt.tensor(x[:, 2:]), is_causal=True, memory=memory * 0.0, cache=cache).numpy()
    np.testing.assert_allclose(np.concatenate([first, rest], axis=1), expected, rtol=1e-4, atol=1e-4)


def test_a_cache_selects_in_every_block(x: np.ndarray) -> None:
    blocks = [randomised(Block(config(), cross_attention=True)) for _ in range(2)]
    memory = tt.tensor(np.random.default_rng(5).standard_normal((2, 3, 12)).astype(np.float32))
    cache = Cache(2, 5, memory_length=3)
    assert cache.length == 0
    with tt.no_grad():
        for block, part in zip(blocks, cache.blocks):
            block(tt.tensor(x), is_causal=True, memory=memory, cache=part)
    assert cache.length == 5
    kept = [
        [[to_numpy(x).copy() for x in half.read()] for half in (part.self_attention, part.cross_attention)]
        for part in cache.blocks
    ]
    cache.select(np.array([1, 1, 0]))
    for part, halves in zip(cache.blocks, kept):
        for half, pair in zip((part.self_attention, part.cross_attention), halves):
            for now, before in zip(half.read(), pair):
                np.testing.assert_array_equal(to_numpy(now), before[[1, 1, 0]])
