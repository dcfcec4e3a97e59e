"""Self-attention as Llama and Qwen have it: fewer heads of keys and values, other widths, norms, rotated or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.models.attention import KeyValueCache, MultiHeadAttention, head_sizes, recording_attention
from tinyformer.models.positions import RotaryPositions

OPTIONS: dict[str, dict[str, Any]] = {
    "two heads share": {"num_key_value_heads": 2},
    "all heads share": {"num_key_value_heads": 1},
    "wider heads": {"d_head": 5},
    "narrower heads, which share": {"num_key_value_heads": 2, "d_head": 2},
    "biases of queries, keys and values": {"num_key_value_heads": 2, "bias": False, "query_key_value_bias": True},
    "norms": {"query_key_norm_eps": 0.25},
    "norms, of heads that share": {"query_key_norm_eps": 1e-6, "num_key_value_heads": 1, "d_head": 6},
}


def make(rotary: bool = False, **options: Any) -> MultiHeadAttention:
    """Four heads, 12 wide; every parameter is random."""
    tt.seed(4)
    width = options.get("d_head", 3)
    positions = RotaryPositions(width) if rotary else None
    attention = MultiHeadAttention(12, 4, rotary=positions, **options)
    for parameter in attention.parameters():
        tt.nn.init.normal_(parameter, mean=0.3, std=0.5)
    return attention


def rotated(x: np.ndarray) -> np.ndarray:
    """x (heads, length, width), with dimension i rotated together with i + width/2 (Su et al. 2021, equation 34)."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * 10000.0 ** (-np.arange(half) / half)
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def by_hand(attention: MultiHeadAttention, x: np.ndarray, eps: float | None = None, is_rotated: bool = False) -> np.ndarray:
    """Causal attention in float64, a head at a time: head h uses the keys and values of head h // (heads that share one)."""
    p = {name: value.numpy().astype(np.float64) for name, value in attention.named_parameters()}
    width, shared = attention.d_head, 4 // attention.num_key_value_heads
    outputs = []
    for row in x.astype(np.float64):
        packed = row @ p["query_key_value.weight"].T + p.get("query_key_value.bias", 0.0)
        heads = packed.reshape(len(row), -1, width).swapaxes(0, 1)  # those of queries, then of keys, then of values
        queries, keys, values = np.split(heads, [4, 4 + attention.num_key_value_heads])
        if eps is not None:
            queries = queries / np.sqrt((queries**2).mean(-1, keepdims=True) + eps) * p["query_norm.weight"]
            keys = keys / np.sqrt((keys**2).mean(-1, keepdims=True) + eps) * p["key_norm.weight"]
        if is_rotated:
            queries, keys = rotated(queries), rotated(keys)
        joined = []
        for h in range(4):
            scores = queries[h] @ keys[h // shared].T / np.sqrt(width)
            weights = np.where(np.tri(len(row), dtype=bool), np.exp(scores - scores.max()), 0.0)
            joined.append(weights / weights.sum(-1, keepdims=True) @ values[h // shared])
        outputs.append(np.concatenate(joined, axis=-1) @ p["output.weight"].T + p.get("output.bias", 0.0))
    return np.stack(outputs)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((2, 7, 12)).astype(np.float32)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("kind", OPTIONS)
def test_against_explicit_formulas(kind: str, rotary: bool, x: np.ndarray) -> None:
    options = OPTIONS[kind]
    if rotary and options.get("d_head", 3) % 2:
        options = {**options, "d_head": 4}
    attention = make(rotary, **options)
    expected = by_hand(attention, x, options.get("query_key_norm_eps"), rotary)
    np.testing.assert_allclose(attention(tt.tensor(x), is_causal=True).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [[7], [1] * 7, [3, 1, 3]], ids=str)
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("kind", OPTIONS)
def test_with_a_cache(kind: str, rotary: bool, steps: list[int], x: np.ndarray) -> None:
    options = OPTIONS[kind]
    if rotary and options.get("d_head", 3) % 2:
        options = {**options, "d_head": 4}
    attention = make(rotary, **options).eval()
    cache, parts = KeyValueCache(7), []
    with tt.no_grad():
        expected = attention(tt.tensor(x), is_causal=True).numpy()
        for part in np.split(x, np.cumsum(steps)[:-1], axis=1):
            parts.append(attention(tt.tensor(part), is_causal=True, cache=cache).numpy())
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, rtol=1e-4, atol=1e-5)
    keys, values = cache.read()
    assert keys.shape == values.shape == (2, attention.num_key_value_heads, 7, attention.d_head)


def repeated(attention: MultiHeadAttention) -> MultiHeadAttention:
    """Return a layer with four heads of keys and values, with the shared ones repeated."""
    full = make()
    for ours, theirs in ((attention.query_key_value.weight, full.query_key_value.weight),):
        queries, keys, values = np.split(ours.numpy().reshape(8, 3, 12), [4, 6])
        theirs.assign(tt.tensor(np.concatenate([queries, keys.repeat(2, 0), values.repeat(2, 0)]).reshape(36, 12)))
    bias = attention.query_key_value.bias.numpy().reshape(8, 3)
    queries, keys, values = np.split(bias, [4, 6])
    full.query_key_value.bias.assign(tt.tensor(np.concatenate([queries, keys.repeat(2, 0), values.repeat(2, 0)]).reshape(36)))
    full.output.load_state_dict(attention.output.state_dict())
    return full


@pytest.mark.parametrize("mask", [False, True])
def test_shared_heads_are_repeated_heads_and_get_the_sum_of_their_gradients(mask: bool, x: np.ndarray) -> None:
    attention = make(num_key_value_heads=2)
    full = repeated(attention)
    seen = tt.tensor(np.random.default_rng(0).random((2, 1, 7, 7)) < 0.7) if mask else None
    weights = tt.tensor(np.random.default_rng(1).standard_normal((2, 7, 12)).astype(np.float32))
    outs = [layer(tt.tensor(x), seen, is_causal=not mask) for layer in (attention, full)]
    np.testing.assert_allclose(outs[0].numpy(), outs[1].numpy(), rtol=1e-4, atol=1e-5)
    for out in outs:
        (out * weights).sum().backward()
    of_full = full.query_key_value.weight.grad.numpy().reshape(12, 3, 12)
    queries, keys, values = np.split(of_full, 3)
    summed = [queries, *(part.reshape(2, 2, 3, 12).sum(1) for part in (keys, values))]
    found = attention.query_key_value.weight.grad.numpy().reshape(8, 3, 12)
    np.testing.assert_allclose(found, np.concatenate(summed), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(attention.output.weight.grad.numpy(), full.output.weight.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cached", [False, True])
def test_recorded_weights_are_those_of_each_head_of_queries(cached: bool, x: np.ndarray) -> None:
    attention = make(num_key_value_heads=2).eval()
    full = repeated(attention).eval()
    with tt.no_grad(), recording_attention(attention) as found, recording_attention(full) as expected:
        for layer in (attention, full):
            cache = KeyValueCache(7) if cached else None
            for part in np.split(x, [4, 5], axis=1) if cached else [x]:
                layer(tt.tensor(part), is_causal=True, cache=cache)
    ours, theirs = ([weights.numpy() for weights in record[""]] for record in (found, expected))
    assert [weights.shape for weights in ours] == ([(2, 4, 4, 4), (2, 4, 1, 5), (2, 4, 2, 7)] if cached else [(2, 4, 7, 7)])
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_what_the_layer_says_of_itself() -> None:
    assert "num_heads=4, num_key_value_heads=2" in repr(make(num_key_value_heads=2))
    assert "num_key_value_heads" not in repr(make())


def test_sizes_of_heads() -> None:
    assert head_sizes(12, 4) == (4, 3)
    assert head_sizes(12, 4, 2) == (2, 3)
    assert head_sizes(12, 5, 0, 7) == (5, 7)  # with a width of its own, the number of heads need not divide d_model
    for arguments in ((12, 5), (12, 0), (12, 4, 3), (12, 4, 8)):
        with pytest.raises(SettingError, match="does not divide"):
            head_sizes(*arguments)


def ops_of(out: tt.Tensor) -> set[str]:
    """The names of the ops that computed it, as far as gradients flow."""
    found, waiting = set(), [out.node]
    while waiting:
        node = waiting.pop()
        if node is not None and node.op is not None:
            found.add(node.op.name)
            waiting += node.parents
    return found


@pytest.mark.parametrize("rotary, eps", [(True, None), (False, 0.1), (True, 0.1)])
def test_rotated_and_normed_heads_are_trained_by_fused_ops(rotary: bool, eps: float | None, x: np.ndarray) -> None:
    attention = make(rotary, d_head=6, query_key_norm_eps=eps)
    out = attention(tt.tensor(x), is_causal=True)
    assert ops_of(out) == {"linear", "norm_and_rotate", "multi_head_attention"}
    with recording_attention(attention):
        in_steps = attention(tt.tensor(x), is_causal=True)
    np.testing.assert_allclose(out.numpy(), in_steps.numpy(), rtol=1e-5, atol=1e-6)
