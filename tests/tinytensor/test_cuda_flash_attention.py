"""Flash attention's CUDA kernels, run on the CPU by the stand-in, against the readable formula in float64."""

import itertools
import math

import numpy as np
import pytest
from cuda_checks import in_each_order, numbers, wide

import tinytensor as tt
from tinytensor import kernels
from tinytensor.backend import xp
from tinytensor.functional.attention import _attention
from tinytensor.kernels.cupy import flash_attention

pytest.importorskip("ml_dtypes")

RANDOM_KEY = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
KEEP = 0.7
ALL = [True, True, True, False]  # but not of a bias
UNIT = 2.0**-8  # bfloat16 has 8 bits: rounding changes a number by at most this share of it
SMALL = 2.0**-14  # what float32 may change: a share of 2^-24 in each of up to 130 terms and in scores of up to 2^5, with room
BOTH = [None, RANDOM_KEY]

# Queries and keys: less than a tile, a whole one, one more, and several.
LENGTHS = [(1, 1), (63, 63), (64, 64), (65, 65), (130, 130), (1, 130), (64, 65), (3, 70)]


def inputs(lengths=(70, 70), width=16, lead=(1, 2), value_lead=None):
    """query, key, value, and a gradient of the output."""
    queries, keys = lengths
    value_lead = lead if value_lead is None else value_lead
    whole = np.broadcast_shapes(lead, value_lead)
    shapes = ((*lead, queries, width), (*lead, keys, width), (*value_lead, keys, width), (*whole, queries, width))
    return [numbers(shape, "bfloat16", seed) for seed, shape in enumerate(shapes)]


def settings(is_causal=False, scale=0.3, random_key=None):
    """The arguments of the kernels that follow the inputs."""
    return None, None, is_causal, scale, random_key, KEEP if random_key else 1.0


def results(arrays, needed=ALL, **given):
    """The output and the gradients by flash attention."""
    *three, g = arrays
    out, residuals = kernels.attention_forward(needed, *three, *settings(**given))
    assert isinstance(residuals, flash_attention.Residuals)
    return [out, *kernels.attention_backward(g, residuals, needed, *three, *settings(**given))[:3]]


def formula(arrays, **given):
    """The same by the formula in float64."""
    *three, g = [tt.tensor(wide(x), requires_grad=True) for x in arrays]
    out = _attention.reference(*three, *settings(**given))
    return [out.numpy(), *[x.numpy() for x in tt.grad(out, three, g)]]


def bounds(arrays, is_causal=False, scale=0.3, random_key=None):
    """How far the output and the gradients may be from the formula's, element by element.

    These are rounded to bfloat16: the weights P, the gradient of the scores dS = P (dP - delta), and all results; and delta =
    rowsum(g out) uses the rounded output. Each error is carried on through the sums that it enters, by absolute values.
    """
    query, key, value, g = [np.abs(wide(x).get()) for x in arrays]
    signed = [tt.tensor(wide(x)) for x in arrays]
    queries, keys = query.shape[-2], key.shape[-2]
    scores = (signed[0] @ signed[1].swapaxes(-1, -2) * scale).numpy()
    if is_causal:
        scores = np.where(np.arange(keys) <= np.arange(queries)[:, None] + keys - queries, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    factors = np.ones(weights.shape)
    if random_key:
        lead = weights.shape[:-2]
        factors = kernels.keep_mask(random_key, (*lead, keys, queries), KEEP).get().swapaxes(-1, -2) / KEEP
    dropped, turned = weights * factors, lambda x: x.swapaxes(-1, -2)
    out, d_query, d_key, d_value = [np.abs(x) for x in formula(arrays, is_causal=is_causal, scale=scale, random_key=random_key)]
    d_dropped = (signed[3] @ signed[2].swapaxes(-1, -2)).numpy() * factors
    d_scores = weights * (d_dropped - (d_dropped * weights).sum(-1, keepdims=True))
    of_out = UNIT * (dropped @ value + out) + SMALL * (dropped @ value)
    of_delta = (g * (of_out + SMALL * out)).sum(-1, keepdims=True)
    products = g @ turned(value) * factors + (g * out).sum(-1, keepdims=True)
    of_scores = UNIT * np.abs(d_scores) + (1 + UNIT) * weights * (of_delta + SMALL * products)
    of_sums = of_scores + SMALL * np.abs(d_scores)
    of_query = UNIT * d_query + scale * (of_sums @ key)
    of_key = UNIT * d_key + scale * (turned(of_sums) @ query)
    of_value = UNIT * d_value + (UNIT + SMALL) * (turned(dropped) @ g)
    return [(1 + 2 * UNIT) * bound for bound in (of_out, of_query, of_key, of_value)]  # errors are rounded, too


def assert_within_bounds(found, arrays, **given):
    for name, got, want, bound in zip(("out", "query", "key", "value"), found, formula(arrays, **given), bounds(arrays, **given)):
        assert (got.shape, got.dtype.name) == (want.shape, "bfloat16")
        error = np.abs(wide(got).get() - want)
        assert (error <= bound + 1e-30).all(), f"{name}: {(error / (bound + 1e-30)).max():.2f} times what it may be"
        # Errors of either sign mostly cancel where many are added: a whole key or query that is left out shows here.
        assert np.sqrt((error**2).mean()) <= 0.5 * np.sqrt((bound**2).mean()) + 1e-30, name


@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("random_key", BOTH, ids=["whole", "dropout"])
def test_flash_attention(monkeypatch, width, lengths, random_key):
    arrays = inputs(lengths, width)
    for is_causal in (False, True):
        given = {"is_causal": is_causal, "scale": 0.4 / math.sqrt(width / 16), "random_key": random_key}
        found = in_each_order(monkeypatch, lambda given=given: results(arrays, **given))
        assert_within_bounds(found, arrays, **given)
