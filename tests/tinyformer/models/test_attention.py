"""Multi-head attention against the same sums written out in NumPy, and what its masks mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.models.attention import KeyValueCache, MultiHeadAttention, attention_weights, padding_mask, recording_attention
from tinyformer.models.positions import RotaryPositions
from tinytensor.device.backend import to_numpy, xp
from tinytensor.nn.hooks import hooked


def by_hand(
    attention: MultiHeadAttention, x: np.ndarray, may_attend: np.ndarray, memory: np.ndarray | None = None
) -> np.ndarray:
    """Equation 1 of Vaswani et al. in float64, a head and a query at a time."""
    batch, length, d_model = x.shape
    heads = attention.num_heads
    width = d_model // heads
    weight = {name: p.numpy().astype(np.float64) for name, p in attention.named_parameters()}

    def project(name: str, values: np.ndarray) -> np.ndarray:
        return values @ weight[f"{name}.weight"].T + weight.get(f"{name}.bias", 0.0)

    if memory is None:
        query, key, value = np.split(project("query_key_value", x), 3, axis=-1)
    else:
        query, (key, value) = project("query", x), np.split(project("key_value", memory), 2, axis=-1)
    joined = np.zeros((batch, length, d_model))
    for b in range(batch):
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            for t in range(length):
                visible = np.flatnonzero(may_attend[t])
                if len(visible) == 0:
                    continue
                scores = key[b, visible, part] @ query[b, t, part] / np.sqrt(width)
                weights = np.exp(scores - scores.max())
                joined[b, t, part] = weights / weights.sum() @ value[b, visible, part]
    return joined @ weight["output.weight"].T + weight.get("output.bias", 0.0)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((2, 5, 12)).astype(np.float32)


def make(num_heads: int = 1, **options: object) -> MultiHeadAttention:
    tt.seed(4)
    return MultiHeadAttention(12, num_heads, **options)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_heads", [1, 3])
def test_without_a_mask(x: np.ndarray, num_heads: int, bias: bool) -> None:
    attention = make(num_heads, bias=bias)
    out = attention(tt.tensor(x))
    assert out.shape == x.shape
    np.testing.assert_allclose(out.numpy(), by_hand(attention, x, np.ones((5, 5), bool)), atol=1e-5)


@pytest.mark.parametrize("num_heads", [1, 3])
def test_causal(x: np.ndarray, num_heads: int) -> None:
    attention = make(num_heads)
    out = attention(tt.tensor(x), is_causal=True).numpy()
    np.testing.assert_allclose(out, by_hand(attention, x, np.tri(5, dtype=bool)), atol=1e-5)


def test_mask_is_true_where_a_query_may_attend(x: np.ndarray) -> None:
    attention = make(2)
    mask = np.random.default_rng(0).random((5, 5)) < 0.5
    mask[np.arange(5), np.arange(5)] = True
    assert not mask.all()
    out = attention(tt.tensor(x), tt.tensor(mask)).numpy()
    np.testing.assert_allclose(out, by_hand(attention, x, mask), atol=1e-5)
    # The opposite polarity is another result: this test would notice it.
    assert np.abs(out - by_hand(attention, x, ~mask)).max() > 1e-3


def test_a_masked_position_has_no_influence(x: np.ndarray) -> None:
    attention = make(2)
    mask = np.ones((5, 5), bool)
    mask[:, 3] = False
    changed = x.copy()
    changed[:, 3] += 1.0
    before = attention(tt.tensor(x), tt.tensor(mask)).numpy()
    after = attention(tt.tensor(changed), tt.tensor(mask)).numpy()
    others = [0, 1, 2, 4]
    assert after[:, others].tobytes() == before[:, others].tobytes()
    assert np.abs(after[:, 3] - before[:, 3]).max() > 0  # its own query did change


def test_mask_and_causal_together(x: np.ndarray) -> None:
    attention = make(2)
    mask = np.ones((5, 5), bool)
    mask[:, 1] = False
    out = attention(tt.tensor(x), tt.tensor(mask), is_causal=True).numpy()
    np.testing.assert_allclose(out, by_hand(attention, x, mask & np.tri(5, dtype=bool)), atol=1e-5)


def test_a_mask_for_each_sequence(x: np.ndarray) -> None:
    # As padding: (batch, 1, 1, length) broadcasts over heads and queries.
    attention = make(3)
    real = np.array([[True] * 5, [True, True, True, False, False]])
    out = attention(tt.tensor(x), tt.tensor(real[:, None, None, :])).numpy()
    for b in range(2):
        expected = by_hand(attention, x[b : b + 1], np.broadcast_to(real[b], (5, 5)))
        np.testing.assert_allclose(out[b : b + 1], expected, atol=1e-5)


def test_a_row_that_may_attend_to_nothing_gives_zeros_and_no_gradient(x: np.ndarray) -> None:
    attention = make(2, bias=False)
    mask = np.ones((5, 5), bool)
    mask[2] = False
    inputs = tt.tensor(x, requires_grad=True)
    out = attention(inputs, tt.tensor(mask))
    assert (out.numpy()[:, 2] == 0).all()
    assert (np.abs(out.numpy()[:, [0, 1, 3, 4]]).max(axis=-1) > 0).all()
    out[:, 2].sum().backward()
    assert (inputs.grad.numpy() == 0).all()
    for name, parameter in attention.named_parameters():
        assert np.isfinite(parameter.grad.numpy()).all(), name


def test_with_a_bias_an_empty_row_gives_just_that(x: np.ndarray) -> None:
    attention = make(2)
    out = attention(tt.tensor(x), tt.tensor(np.zeros((5, 5), bool))).numpy()
    np.testing.assert_array_equal(out, np.broadcast_to(attention.output.bias.numpy(), out.shape))


def test_dropout_acts_in_training_only(x: np.ndarray) -> None:
    attention = make(2, dropout=0.5)
    inputs = tt.tensor(x)
    plain = make(2)(inputs).numpy()
    one, two = attention(inputs).numpy(), attention(inputs).numpy()
    assert np.abs(one - two).max() > 0
    assert (one != 0).all()  # it is the weights that are dropped, not the output
    attention.eval()
    assert attention(inputs).numpy().tobytes() == plain.tobytes()
    assert attention(inputs).numpy().tobytes() == plain.tobytes()


@pytest.mark.parametrize("num_heads", [5, 0, -2])
def test_heads_that_do_not_divide_the_width(num_heads: int) -> None:
    with pytest.raises(SettingError, match=f"num_heads={num_heads} does not divide d_model=12"):
        MultiHeadAttention(12, num_heads)


def test_a_mask_of_integers_is_refused(x: np.ndarray) -> None:
    with pytest.raises(TypeError, match="True = may attend"):
        make()(tt.tensor(x), tt.tensor(np.ones((5, 5), np.int64)))


def test_a_mask_of_numbers_is_added_to_the_scores(x: np.ndarray) -> None:
    allowed = np.tri(5, dtype=bool)
    attention = make()
    numbers = tt.tensor(np.where(allowed, 0.0, -np.inf).astype("float32"))
    with recording_attention(attention) as recorded:
        out = attention(tt.tensor(x), numbers)
        np.testing.assert_allclose(out.numpy(), attention(tt.tensor(x), tt.tensor(allowed)).numpy(), atol=1e-6)
    added, hidden = next(iter(recorded.values()))
    np.testing.assert_allclose(added.numpy(), hidden.numpy(), atol=1e-6)
    with tt.no_grad():
        cached = attention(tt.tensor(x), numbers, cache=KeyValueCache(5))
    np.testing.assert_allclose(cached.numpy(), out.numpy(), atol=1e-6)


# ---------------------------------------------------------------------------------------------------------- cross


@pytest.fixture
def memory() -> np.ndarray:
    return np.random.default_rng(8).standard_normal((2, 4, 12)).astype(np.float32)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_heads", [1, 3])
def test_cross_attention(x: np.ndarray, memory: np.ndarray, num_heads: int, bias: bool) -> None:
    attention = make(num_heads, bias=bias, cross=True)
    mask = np.random.default_rng(1).random((5, 4)) < 0.6
    mask[0] = False  # the first query sees nothing
    for may_attend in (None, mask):
        out = attention(tt.tensor(x), None if may_attend is None else tt.tensor(may_attend), memory=tt.tensor(memory))
        expected = by_hand(attention, x, np.ones((5, 4), bool) if may_attend is None else may_attend, memory)
        assert out.shape == x.shape
        np.testing.assert_allclose(out.numpy(), expected, atol=1e-5)


def test_cross_attention_needs_a_memory(x: np.ndarray) -> None:
    with pytest.raises(ValueError, match="cross-attention needs a memory"):
        make(cross=True)(tt.tensor(x))
    with pytest.raises(ValueError, match="cross-attention needs a memory"):
        make(cross=True)(tt.tensor(x), cache=KeyValueCache(4))  # an empty cache is none


def test_a_printed_module_describes_itself() -> None:
    assert "num_heads=3" in repr(make(3))
    assert "cross" not in repr(make(3))
    assert "num_heads=3, cross=True" in repr(make(3, cross=True))


# ---------------------------------------------------------------------------------------------------------- masks


def test_padding_mask_is_true_for_tokens() -> None:
    mask = padding_mask(tt.tensor([[5, 7, 7], [5, 6, 0]]), 7)
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask.numpy(), np.array([[True, False, False], [True, True, True]])[:, None, None])


def test_every_mask_means_the_same(x: np.ndarray) -> None:
    # One polarity: what a mask function makes, what attention takes and what the recorded weights show.
    attention = make(2)
    ids = tt.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 0, 0]])
    real = ids.numpy() != 0
    with recording_attention(attention) as recorded:
        attention(tt.tensor(x), padding_mask(ids, 0))
        attention(tt.tensor(x), tt.causal_mask(5))
        attention(tt.tensor(x), is_causal=True)
    (padded, causal, same) = [weights.numpy() for weights in recorded[""]]
    np.testing.assert_array_equal(padded > 0, np.broadcast_to(real[:, None, None], (2, 2, 5, 5)))
    np.testing.assert_array_equal(causal > 0, np.broadcast_to(np.tri(5, dtype=bool), (2, 2, 5, 5)))
    np.testing.assert_allclose(same, causal, rtol=1e-6)
    one, other = attention(tt.tensor(x), tt.causal_mask(5)), attention(tt.tensor(x), is_causal=True)
    np.testing.assert_array_equal(one.numpy(), other.numpy())


# ---------------------------------------------------------------------------------------------------------- the cache


def keys_and_values(count: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    key, value = rng.standard_normal((2, 3, 2, count, 4)).astype(np.float32)
    return tt.tensor(key).data, tt.tensor(value).data


def test_a_cache_returns_all_that_was_appended() -> None:
    cache = KeyValueCache(6)
    parts = [keys_and_values(count, seed=count) for count in (3, 1, 2)]
    for i in range(3):
        got = cache.append(*parts[i])
        assert cache.length == (3, 4, 6)[i]
        for kind in range(2):
            expected = np.concatenate([to_numpy(part[kind]) for part in parts[: i + 1]], axis=2)
            np.testing.assert_array_equal(to_numpy(got[kind]), expected)
            np.testing.assert_array_equal(to_numpy(cache.read()[kind]), expected)


def test_a_cache_takes_no_more_than_its_capacity() -> None:
    cache = KeyValueCache(4)
    cache.append(*keys_and_values(3))
    before = [to_numpy(x).copy() for x in cache.read()]
    with pytest.raises(ValueError, match="a cache for 4 tokens cannot hold 5"):
        cache.append(*keys_and_values(2))
    assert cache.length == 3
    for now, was in zip(cache.read(), before):
        np.testing.assert_array_equal(to_numpy(now), was)
    cache.append(*keys_and_values(1))  # and it still takes what fits
    assert cache.length == 4


def test_a_cache_holds_one_batch() -> None:
    cache = KeyValueCache(4)
    cache.append(xp.zeros((3, 2, 1, 4)), xp.zeros((3, 2, 1, 4)))
    for batch in (1, 2):  # of one, the keys would be stored for all
        with pytest.raises(ValueError, match=f"this cache holds a batch of 3, got keys for a batch of {batch}"):
            cache.append(xp.zeros((batch, 2, 1, 4)), xp.zeros((batch, 2, 1, 4)))
    assert cache.length == 1


def test_a_cache_selects_rows() -> None:
    cache = KeyValueCache(6)
    cache.select(np.array([0]))  # nothing yet, so nothing to do
    key, value = keys_and_values(3)
    cache.append(key, value)
    cache.select(np.array([2, 0, 2, 1]))
    for now, was in zip(cache.read(), (key, value)):
        np.testing.assert_array_equal(to_numpy(now), to_numpy(was)[[2, 0, 2, 1]])
    # The copies of a row are apart from now on.
    new = np.arange(4 * 2 * 4, dtype=np.float32).reshape(4, 2, 1, 4)
    grown, _ = cache.append(tt.tensor(new).data, tt.tensor(new).data)
    np.testing.assert_array_equal(to_numpy(grown)[:, :, 3:], new)
    np.testing.assert_array_equal(to_numpy(grown)[:, :, :3], to_numpy(key)[[2, 0, 2, 1]])


@pytest.mark.parametrize("shared", [0, 2, 3])
def test_tokens_that_rows_share_are_not_moved(shared: int) -> None:
    cache = KeyValueCache(6)
    parts = [x.copy() for x in keys_and_values(3)]
    cache.append(*parts)
    cache.select(np.array([0, 2, 1]), shared)
    for now, was in zip(cache.read(), parts):
        expected = to_numpy(was).copy()
        expected[1, :, shared:], expected[2, :, shared:] = to_numpy(was)[2, :, shared:], to_numpy(was)[1, :, shared:]
        np.testing.assert_array_equal(to_numpy(now), expected)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("steps", [[1, 1, 1, 1, 1], [2, 3], [4, 1]], ids=str)
def test_attention_with_a_cache(x: np.ndarray, rotary: bool, steps: list[int]) -> None:
    attention = make(3, rotary=RotaryPositions(4) if rotary else None)
    expected = attention(tt.tensor(x), is_causal=True).numpy()
    cache, parts, start = KeyValueCache(5), [], 0
    with tt.no_grad():
        for count in steps:
            parts.append(attention(tt.tensor(x[:, start : start + count]), is_causal=True, cache=cache).numpy())
            start += count
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------- recording


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_weights_mix_the_values(is_causal: bool) -> None:
    rng = np.random.default_rng(0)
    query, key, value = (tt.tensor(rng.standard_normal((2, 3, n, 4)).astype(np.float32)) for n in (2, 5, 5))
    mask = tt.tensor(np.array([[True, False, True, False, True], [False] * 5]))
    for m in (None, mask):
        weights = attention_weights(query, key, m, is_causal)
        assert weights.shape == (2, 3, 2, 5)
        sums = np.ones((2, 3, 2), np.float32)
        if m is not None:
            sums[:, :, 1] = 0.0  # a query that may attend to nothing
        np.testing.assert_allclose(weights.numpy().sum(-1), sums, atol=1e-6)
        expected = tt.scaled_dot_product_attention(query, key, value, m, is_causal).numpy()
        np.testing.assert_allclose((weights @ value).numpy(), expected, atol=1e-5)


def test_recording_names_the_layers_and_ends(x: np.ndarray, memory: np.ndarray) -> None:
    pair = tt.nn.ModuleList([make(2), make(3, cross=True)])
    inputs = tt.tensor(x)
    before = pair[0](inputs, is_causal=True).numpy()
    with recording_attention(pair) as recorded:
        during = pair[0](inputs, is_causal=True)
        assert not during.requires_grad
        pair[0](inputs)
        pair[1](inputs, memory=tt.tensor(memory))
    assert during.numpy().tobytes() == before.tobytes()
    shapes = {name: [weights.shape for weights in calls] for name, calls in recorded.items()}
    assert shapes == {"0": [(2, 2, 5, 5)] * 2, "1": [(2, 3, 5, 4)]}
    assert pair[0](inputs).requires_grad
    assert len(recorded["0"]) == 2  # calls afterwards are not recorded
    with pytest.raises(KeyError), recording_attention(pair) as recorded:
        raise KeyError
    pair[0](inputs)
    assert recorded["0"] == []


@pytest.mark.parametrize("cross", [False, True])
def test_recording_keeps_requested_outputs(x: np.ndarray, memory: np.ndarray, cross: bool) -> None:
    attention = make(2, cross=cross)
    given = {"memory": tt.tensor(memory)} if cross else {}
    with recording_attention(attention) as full, recording_attention(attention, keep=lambda w: w.max(-1)) as small:
        attention(tt.tensor(x), **given)
    np.testing.assert_array_equal(small[""][0].numpy(), full[""][0].numpy().max(-1))


@pytest.mark.parametrize("key_value_heads", [2, 1])
@pytest.mark.parametrize("is_cached", [False, True])
def test_a_hook_may_replace_the_weights(x: np.ndarray, key_value_heads: int, is_cached: bool) -> None:
    layer = make(2, num_key_value_heads=key_value_heads)
    own = np.eye(5, dtype=np.float32)  # each token looks at itself
    with hooked([(layer, "weights", lambda layer, inputs, weights: tt.zeros_like(weights) + tt.tensor(own))]), tt.no_grad():
        found = layer(tt.tensor(x), is_causal=True, cache=KeyValueCache(5) if is_cached else None)
    _, _, value = layer.heads(layer.query_key_value(tt.tensor(x)), None)
    expected = layer.output(layer.for_each_query(value).swapaxes(1, 2).reshape(2, 5, 12))
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_hook_may_replace_what_the_heads_give(x: np.ndarray) -> None:
    layer, found = make(2), []
    for half in ([1] * 6 + [0] * 6, [0] * 6 + [1] * 6):
        of_a_head = tt.tensor(np.array(half, np.float32))
        with hooked([(layer, "heads", lambda layer, inputs, heads: heads * of_a_head)]):  # noqa: B023 (it is called here)
            found.append(layer(tt.tensor(x)).numpy())
    expected = layer(tt.tensor(x)).numpy() + layer.output.bias.numpy()
    np.testing.assert_allclose(found[0] + found[1], expected, rtol=1e-5, atol=1e-6)
