"""Flash attention's CUDA kernels, run on the CPU by the fake CuPy, against the readable formula in float64."""

import itertools
import math

import numpy as np
import pytest
from cuda_checks import in_each_order, numbers, wide

import tinytensor as tt
from tinytensor import kernels
from tinytensor.device.backend import xp
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


def settings(is_causal=False, scale=0.3, random_key=None, mask=None):
    """The arguments of the kernels that follow the inputs."""
    return None, mask, is_causal, scale, random_key, KEEP if random_key else 1.0


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


def bounds(arrays, is_causal=False, scale=0.3, random_key=None, mask=None):
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
    if mask is not None:
        scores = np.where(mask.get(), scores, -np.inf)
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))  # 0 where no key is seen
    total = weights.sum(-1, keepdims=True)
    weights /= np.where(total == 0.0, 1.0, total)
    factors = np.ones(weights.shape)
    if random_key:
        lead = weights.shape[:-2]
        factors = kernels.keep_mask(random_key, (*lead, keys, queries), KEEP).get().swapaxes(-1, -2) / KEEP
    dropped, turned = weights * factors, lambda x: x.swapaxes(-1, -2)
    given = {"is_causal": is_causal, "scale": scale, "random_key": random_key, "mask": mask}
    out, d_query, d_key, d_value = [np.abs(x) for x in formula(arrays, **given)]
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
    expected = zip(formula(arrays, **given), bounds(arrays, **given))
    for name, got, (want, bound) in zip(("out", "query", "key", "value"), found, expected, strict=True):
        assert (got.shape, got.dtype.name) == (want.shape, "bfloat16")
        error = np.abs(wide(got).get() - want)
        assert (error <= bound + 1e-30).all(), f"{name}: {(error / (bound + 1e-30)).max():.2f} times what it may be"
        # Errors of either sign mostly cancel where many are added: a whole key or query that is left out shows here.
        assert np.sqrt((error**2).mean()) <= 0.5 * np.sqrt((bound**2).mean()) + 1e-30, name


@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_flash_attention(monkeypatch, width, lengths):
    arrays = inputs(lengths, width)
    first = LENGTHS.index(lengths) + width // 32  # either kind of attention with dropout and without
    for is_causal in (False, True):
        random_key = BOTH[(first + is_causal) % 2]
        given = {"is_causal": is_causal, "scale": 0.4 / math.sqrt(width / 16), "random_key": random_key}
        found = in_each_order(monkeypatch, lambda given=given: results(arrays, **given))
        assert_within_bounds(found, arrays, **given)


# Shapes of masks for (2, 3) heads, and the lengths.
MASKS = {
    "of keys": ((2, 1, 1, 130), (70, 130)),
    "of queries and keys": ((70, 80), (70, 80)),
    "of one length": ((64,), (64, 64)),
    "of each head": ((2, 3, 9, 70), (9, 70)),
    "of queries": ((1, 3, 130, 1), (130, 20)),
}


@pytest.mark.parametrize(("shape", "lengths"), MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("random_key", BOTH, ids=["whole", "dropout"])
def test_masks(monkeypatch, shape, lengths, is_causal, random_key):
    """Some queries see no key: they give zeros."""
    arrays = inputs(lengths, lead=(2, 3))
    seen = np.random.default_rng(5).random(shape) < 0.7
    seen[(0,) * (len(shape) - 1)] = False
    given = {"is_causal": is_causal, "scale": 1.0, "random_key": random_key, "mask": xp.array(seen)}
    found = in_each_order(monkeypatch, lambda: results(arrays, **given))
    assert_within_bounds(found, arrays, **given)
    hidden = ~np.broadcast_to(seen, (2, 3, *lengths)).any(-1)
    assert hidden.any() and not wide(found[0]).get()[hidden].any() and not wide(found[1]).get()[hidden].any()
    turned = xp.array(np.ascontiguousarray(np.broadcast_to(seen, (2, 3, *lengths)).T)).T  # of other strides
    again = results(arrays, **{**given, "mask": turned})
    assert [x.get().tobytes() for x in again] == [x.get().tobytes() for x in found]


@pytest.mark.parametrize("lengths", [(70, 24), (130, 65), (200, 3)], ids=str)
@pytest.mark.parametrize("random_key", BOTH, ids=["whole", "dropout"])
def test_more_queries_than_keys(monkeypatch, lengths, random_key):
    """Where attention is causal, the first queries see no key: they give zeros."""
    arrays, given = inputs(lengths), {"is_causal": True, "random_key": random_key}
    found = in_each_order(monkeypatch, lambda: results(arrays, **given))
    assert_within_bounds(found, arrays, **given)
    assert not wide(found[0]).get()[..., : lengths[0] - lengths[1], :].any()


def test_a_mask_that_does_not_fit():
    *three, _ = inputs((6, 8), lead=(2,))
    for shape in ((3, 6, 8), (4, 2, 6, 8)):
        with pytest.raises(ValueError, match="broadcast"):
            kernels.attention_forward(ALL, *three, *settings(mask=xp.ones(shape, bool)))
    *three, _ = inputs((6, 8), lead=())
    with pytest.raises(ValueError, match=r"mask must broadcast to the scores \(6, 8\), got shape \(1, 6, 8\)"):
        kernels.attention_forward(ALL, *three, *settings(mask=xp.ones((1, 6, 8), bool)))


LEADS = {
    "one matrix": ((), ()),
    "one axis": ((3,), (3,)),
    "three axes": ((2, 1, 3), (2, 1, 3)),
    "more heads of values": ((2, 1), (2, 3)),
    "more sequences of values": ((2,), (3, 2)),
}


@pytest.mark.parametrize("leads", LEADS.values(), ids=LEADS)
@pytest.mark.parametrize("random_key", BOTH, ids=["whole", "dropout"])
def test_leading_axes(leads, random_key):
    arrays = inputs((20, 20), 16, *leads)
    found = results(arrays, random_key=random_key)
    lead = np.broadcast_shapes(*leads)
    whole = (*lead, 20, 16)
    assert found[0].shape == whole
    assert [x.shape for x in found[1:]] == [whole if lead else (1, *whole)] * 3  # the engine adds up what was broadcast
    want = formula(arrays, random_key=random_key)
    for got, wanted in zip(found, want, strict=True):
        terms = math.prod(whole) // wanted.size  # each rounded, as are P and dS before
        error = unbroadcast(wide(got).get(), wanted.shape) - wanted
        assert np.abs(error).max() <= 4 * UNIT * terms * max(1.0, np.abs(wanted).max())


def unbroadcast(x, shape):
    """x added up to an array of this shape."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple([axis for axis, (n, length) in enumerate(zip(shape, x.shape)) if n != length]), keepdims=True)


@pytest.mark.parametrize("random_key", BOTH, ids=["whole", "dropout"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_all_orders_of_derivatives_are_those_of_the_formula(monkeypatch, is_causal, random_key):
    """Orders 0 and 1 within their bounds, through the ops themselves. Order 2 and the first order that it goes through are the
    formula's own, to the bit: they are the same without flash attention."""
    monkeypatch.setattr("tinytensor.random.random_key", lambda: RANDOM_KEY)
    arrays, given = inputs((40, 66)), {"is_causal": is_causal, "random_key": random_key}
    dropout_p = 1.0 - KEEP if random_key else 0.0

    def derivatives(create_graph):
        *three, g = [tt.tensor(x, requires_grad=True) for x in arrays]
        out = tt.scaled_dot_product_attention(*three, is_causal=is_causal, dropout_p=dropout_p, scale=0.3)
        first = tt.grad(out, three, g, create_graph=create_graph)
        if not create_graph:
            return [out, *first]
        return [*first, *tt.grad(sum((d * d).sum() for d in first), [*three, g])]

    before = len(xp.launches)
    assert_within_bounds([x.data for x in derivatives(False)], arrays, **given)
    assert xp.launches[before:].count("flash_backward_keys") == 1
    with_flash = derivatives(True)
    monkeypatch.setattr(flash_attention, "fits", lambda *arguments: False)
    without = derivatives(True)
    assert len(with_flash) == 3 + 4
    for a, b in zip(with_flash, without, strict=True):
        assert a.data.get().tobytes() == b.data.get().tobytes()
        assert np.isfinite(a.data.get().astype("float64")).all() and a.data.get().any()


@pytest.mark.parametrize("with_memory", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.25])
def test_heads_are_read_and_written_where_linear_layers_have_them(with_memory, dropout_p):
    parts, num_heads, width = 1 if with_memory else 3, 3, 16
    x = tt.tensor(numbers((2, 70, parts * num_heads * width), "bfloat16"), requires_grad=True)
    memory = tt.tensor(numbers((2, 75, 2 * num_heads * width), "bfloat16", 1), requires_grad=True) if with_memory else None
    operands = [x, memory] if with_memory else [x]
    g = tt.tensor(numbers((2, 70, num_heads * width), "bfloat16", 2))
    before, waits = len(xp.launches), xp.synchronizations
    tt.seed(5)
    out = tt.multi_head_attention(x, num_heads, memory, is_causal=True, dropout_p=dropout_p)
    gradients = tt.grad(out, operands, g)
    bits = ["keep_bits_of_tiles"] if dropout_p else []
    assert xp.launches[before:] == [*bits, "flash_forward", "flash_backward_queries", "flash_backward_keys"]
    assert xp.synchronizations == waits
    tt.seed(5)
    heads = kernels.queries_keys_values(x.data, memory.data if with_memory else None, num_heads)
    copies = [tt.tensor(xp.ascontiguousarray(head), requires_grad=True) for head in heads]
    alone = tt.scaled_dot_product_attention(*copies, is_causal=True, dropout_p=dropout_p)
    assert kernels.join_heads(alone.data).get().tobytes() == out.data.get().tobytes()
    split_g = g.reshape(2, 70, num_heads, width).swapaxes(1, 2)
    wanted = kernels.queries_keys_values(gradients[0].data, gradients[1].data if with_memory else None, num_heads)
    for ours, theirs in zip(tt.grad(alone, copies, split_g), wanted, strict=True):
        assert ours.data.get().tobytes() == theirs.get().tobytes()


def test_arrays_that_lie_otherwise_are_copied():
    arrays = inputs((66, 66), 16, (2,))
    want = [x.get().tobytes() for x in results(arrays, is_causal=True)]
    shifted = []
    for x in arrays:
        shifted.append(xp.empty(x.size + 1, "bfloat16")[1:].reshape(x.shape))  # not at a multiple of 16 bytes
        shifted[-1][...] = x
    columns = [xp.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) for x in arrays]
    between = [xp.concatenate([x, x[..., :2]], axis=-1)[..., :16] for x in arrays]  # rows at multiples of 4 bytes
    for others in (shifted, columns, between):
        before = len(xp.launches)
        assert [x.get().tobytes() for x in results(others, is_causal=True)] == want
        assert xp.launches[before:].count("copy") == 3 + 4
    float32 = [*arrays[:3], arrays[3].astype("float32")]  # a gradient may have another dtype
    assert [x.get().tobytes() for x in results(float32, is_causal=True)] == want


@pytest.mark.parametrize("needed", [n for n in itertools.product([False, True], repeat=3) if any(n)], ids=str)
@pytest.mark.parametrize("random_key", BOTH, ids=["whole", "dropout"])
def test_only_the_gradients_that_are_needed(monkeypatch, needed, random_key):
    arrays, given = inputs((66, 66)), {"random_key": random_key, "is_causal": True}
    want = results(arrays, **given)[1:]
    found = in_each_order(monkeypatch, lambda: results(arrays, (*needed, False), **given))[1:]
    for wanted, got, same in zip(needed, found, want, strict=True):
        assert got is None if not wanted else got.get().tobytes() == same.get().tobytes()
    before = len(xp.launches)
    results(arrays, (*needed, False), **given)
    assert ("flash_backward_keys" in xp.launches[before:]) == (needed[1] or needed[2])


def test_a_second_backward_gives_the_same_gradients():
    *three, g = inputs()
    _, residuals = kernels.attention_forward(ALL, *three, *settings(True, random_key=RANDOM_KEY))
    first, second = [
        kernels.attention_backward(g, residuals, ALL, *three, *settings(True, random_key=RANDOM_KEY)) for _ in range(2)
    ]
    for a, b in zip(first[:3], second[:3], strict=True):
        assert a.get().tobytes() == b.get().tobytes()


def test_memory_grows_with_the_length():
    *three, _ = inputs((130, 130))
    out, residuals = kernels.attention_forward(ALL, *three, *settings(random_key=RANDOM_KEY))
    assert residuals.out is out
    assert (residuals.log_sums.shape, residuals.log_sums.dtype) == ((2, 192), "float32")
    assert residuals.bits.nbytes == 2 * 192 * 192 // 8  # only dropout's bits grow with its square


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("is_causal", [False, True])
def test_large_scores(sign, is_causal):
    """exp of them is 0 or infinite. Lengths that are no multiples of a tile leave places without keys, whose scores are 0."""
    query, key, value, g = inputs((70, 70))
    arrays = [(sign * 4.0 * abs(query)).astype("bfloat16"), (4.0 * abs(key)).astype("bfloat16"), value, g]
    scores = sign * wide(arrays[0]).get() @ wide(arrays[1]).get().swapaxes(-1, -2)
    assert scores.min() > 40 and scores.mean() > 150 and scores.max() < 512
    found = results(arrays, is_causal=is_causal, scale=1.0)
    assert all(np.isfinite(wide(x).get()).all() for x in found)
    error = np.abs(wide(found[0]).get() - formula(arrays, is_causal=is_causal, scale=1.0)[0])
    # Sixteen products below 2^9, added in float32, are off by less than 2^-11, and so is the largest: a weight by UNIT / 4.
    assert (error <= 1.25 * bounds(arrays, is_causal=is_causal, scale=1.0)[0]).all()


def test_nan_stays_in_its_row():
    arrays = inputs((70, 70), lead=(2,))
    arrays[0][0, 1, 0], arrays[0][1, 4, 0] = math.nan, -math.inf
    found = np.isnan(wide(results(arrays, is_causal=True)[0]).get()).all(-1)
    assert found[0].tolist() == [i == 1 for i in range(70)]
    assert found[1].tolist() == [i == 4 for i in range(70)]


def test_a_later_key_changes_no_earlier_output():
    arrays = inputs((130, 130), lead=(1,))
    before = results(arrays, is_causal=True)[0].get()
    for x in arrays[1:3]:
        x[:, 100] = 30.0
    after = results(arrays, is_causal=True)[0].get()
    assert before[:, :100].tobytes() == after[:, :100].tobytes()
    assert (before[:, 100:] != after[:, 100:]).any(-1).all()


OTHERS = {
    "float32": lambda three: (*[x.astype("float32") for x in three], None, None, False, 0.3),
    "another width": lambda three: (*[x[..., :8] for x in three], None, None, False, 0.3),
    "a width of values": lambda three: (*three[:2], xp.concatenate([three[2]] * 2, axis=-1), None, None, False, 0.3),
    "a bias": lambda three: (*three, xp.ones((9, 9), "bfloat16"), None, False, 0.3),
    "a mask of the widest heads": lambda three: (
        *[xp.concatenate([x] * 8, axis=-1) for x in three],
        None,
        xp.ones((9, 9), "bool"),
        False,
        0.3,
    ),
    "a negative scale": lambda three: (*three, None, None, False, -0.3),
    "a scale of 0": lambda three: (*three, None, None, True, 0.0),
    "no queries": lambda three: (three[0][:, :, :0], *three[1:], None, None, False, 0.3),
    "no keys": lambda three: (three[0], three[1][:, :, :0], three[2][:, :, :0], None, None, False, 0.3),
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_what_flash_attention_does_not_do_is_done_as_before(others):
    *three, g = inputs((9, 9))
    assert flash_attention.fits(*three, None, None, 0.3)
    query, key, value, bias, mask, _, scale = arguments = others(three)
    assert not flash_attention.fits(query, key, value, bias, mask, scale)
    before = len(xp.launches)
    out, residuals = kernels.attention_forward(ALL, *arguments, None, 1.0)
    g = xp.ones(out.shape, out.dtype)
    kernels.attention_backward(g, residuals, ALL, *arguments, None, 1.0)
    assert not any(name.startswith("flash") for name in xp.launches[before:])


def test_an_older_gpu_has_no_tensor_cores_for_bfloat16(monkeypatch):
    from tinytensor.kernels.cupy.flash_attention import cuda

    *three, _ = inputs((9, 9))
    for capability, has in (("75", False), ("80", True), ("100", True)):
        flash_attention._has_tensor_cores.cache_clear()
        monkeypatch.setattr(cuda, "Device", lambda capability=capability: type("", (), {"compute_capability": capability}))
        assert flash_attention.fits(*three, None, None, 0.3) == has
    flash_attention._has_tensor_cores.cache_clear()
