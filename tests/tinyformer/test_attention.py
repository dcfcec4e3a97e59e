"""Multi-head attention against the same sums written out in NumPy, and what its masks mean."""

from __future__ import annotations

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.attention import MultiHeadAttention
from tinyformer.errors import UserError


def by_hand(attention: MultiHeadAttention, x: np.ndarray, may_attend: np.ndarray) -> np.ndarray:
    """Equation 1 of Vaswani et al. in float64, a head and a query at a time."""
    batch, length, d_model = x.shape
    heads = attention.num_heads
    width = d_model // heads
    weight = {name: p.numpy().astype(np.float64) for name, p in attention.named_parameters()}
    projected = x @ weight["query_key_value.weight"].T + weight.get("query_key_value.bias", 0.0)
    query, key, value = np.split(projected, 3, axis=-1)
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
    assert 0.2 < (one == 0).mean() < 0.8  # the output's half is gone
    attention.eval()
    assert attention(inputs).numpy().tobytes() == plain.tobytes()
    assert attention(inputs).numpy().tobytes() == plain.tobytes()


def test_dropout_acts_on_the_weights_too(x: np.ndarray) -> None:
    # What survives of the output is not just the plain output scaled: the weights behind it were thinned as well.
    attention = make(2, dropout=0.5)
    plain = make(2)(tt.tensor(x)).numpy()
    out = attention(tt.tensor(x)).numpy()
    survived = out != 0
    assert np.abs(out[survived] - 2 * plain[survived]).max() > 1e-3


@pytest.mark.parametrize("num_heads", [5, 0, -2])
def test_heads_that_do_not_divide_the_width(num_heads: int) -> None:
    with pytest.raises(UserError, match=f"{num_heads} heads do not divide the width 12"):
        MultiHeadAttention(12, num_heads)


def test_a_mask_of_numbers_is_refused(x: np.ndarray) -> None:
    with pytest.raises(TypeError, match="True = may attend"):
        make()(tt.tensor(x), tt.tensor(np.ones((5, 5), np.float32)))
