"""The attention kernel cut into many blocks, which the cases' small inputs never are, against the formula."""

import importlib
import itertools

import numpy as np
import pytest

import tinytensor as tt
from tinytensor.autograd.op import all_ops
from tinytensor.device.backend import xp

kernel = importlib.import_module(f"tinytensor.kernels.{tt.backend_name}.attention")
fused = all_ops["attention"]

SHAPES = {
    "heads": ((3, 2, 9, 4), (3, 2, 9, 4)),
    "cache": ((3, 2, 9, 4), (3, 2, 14, 4)),
    "shared keys": ((3, 2, 9, 4), (9, 4)),
    "queries for all heads": ((9, 4), (3, 2, 9, 4)),
    "keys for all heads": ((3, 2, 9, 4), (3, 1, 9, 4)),
    "no heads": ((5, 8, 4), (5, 8, 4)),
    "matrices": ((9, 4), (10, 4)),
}

# What a block may hold, the fewest queries of a block, and the blocks that causal (3, 2, 9, 4) then has.
CUTS = {
    "one block": (1 << 17, 64, 1),
    "some sequences": (2 * 2 * 9 * 9, 64, 2),
    "each sequence": (1, 64, 3),
    "some queries": (1 << 17, 2, 5),
    "some queries of each sequence": (1, 2, 15),
    "each query": (1, 1, 27),
}
cuts = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)


@pytest.fixture
def cut_into(monkeypatch):
    """Patch the kernel to cut its work like this, and to save the weights of up to this many scores per head."""

    def patch(cut, most_kept):
        for name, value in zip(("_BLOCK", "_QUERIES", "_KEPT"), (*cut[:2], most_kept)):
            monkeypatch.setattr(kernel, name, value)

    return patch


def blocks(query, key, is_causal):
    """How the kernel cuts this."""
    return list(kernel.blocks(query, key, is_causal, kernel._BLOCK, kernel._QUERIES, kernel._KEPT))


def masks(scores):
    """Masks that broadcast to the scores: padding, which hides all keys of the second sequence, then of each query and key;
    the first query sees nothing."""
    rng = np.random.default_rng(3)
    *lead, queries, keys = scores
    padding = np.ones((*lead[:1], *[1] * (len(lead[1:]) + 1), keys), bool)
    padding[..., -3:] = False
    if lead:
        padding[1] = False
    pairs, full = rng.random((queries, keys)) < 0.6, rng.random(scores) < 0.6
    pairs[0] = full[..., 0, :] = False
    return {"no mask": None, "padding": padding, "pairs": pairs, "full": full}


def results(attention, arrays, needed=(True, True, True), **settings):
    """The output, and the gradients of the inputs that need one."""
    xs = [tt.tensor(a, requires_grad=n) for a, n in zip(arrays, needed)]
    out = attention(*xs, **settings)
    g = tt.tensor(np.random.default_rng(1).standard_normal(out.shape).astype(out.dtype))
    return [out, *tt.grad(out, [x for x in xs if x.requires_grad], g)]


def inputs(query, key, dtype="float64"):
    rng = np.random.default_rng(2)
    return [rng.standard_normal(shape).astype(dtype) for shape in (query, key, (*key[:-1], 3))]


def settings(mask=None, random_key=None, is_causal=False, bias=None):
    """The op's settings, arrays being the backend's, and the bias a tensor."""
    dropout = {"random_key": random_key, "keep_probability": 1.0 if random_key is None else 0.8}
    return {"bias": bias, "mask": None if mask is None else xp.asarray(mask), "is_causal": is_causal, "scale": 0.7, **dropout}


@cuts
def test_the_work_is_cut_as_these_tests_mean_it_to_be(cut_into, cut):
    cut_into(cut, 0)
    x = xp.zeros(SHAPES["heads"][0])
    assert len(blocks(x, x, True)) == cut[2]


@cuts
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_first_block_of_a_sequence_sees_all_its_keys(cut_into, cut, is_causal):
    cut_into(cut, 0)
    query, key = [xp.zeros(shape) for shape in SHAPES["cache"]]
    sequences = {}
    for block in blocks(query, key, is_causal):
        sequences.setdefault(block.batch.start, []).append(block)
    for first, *others in sequences.values():
        assert first.is_first and (first.keys.start, first.keys.stop) == (0, 14)
        assert not any(block.is_first for block in others)


@pytest.mark.parametrize(("most_kept", "are_saved"), [(9 * 14, True), (9 * 14 - 1, False)])
def test_weights_are_saved_up_to_a_number_of_scores_per_head(cut_into, most_kept, are_saved):
    cut_into(CUTS["one block"], most_kept)
    arrays = [xp.asarray(a) for a in inputs(*SHAPES["cache"])]
    _, residuals = kernel.attention_forward((True,) * 4, *arrays, **settings())
    saved = residuals.weights if tt.backend_name == "numpy" else residuals
    assert (saved is not None) == are_saved


@pytest.mark.parametrize(("query", "key"), SHAPES.values(), ids=SHAPES)
def test_blocks_give_what_the_formula_gives(cut_into, query, key):
    arrays = inputs(query, key)
    scores = (*query[:-1], key[-2])
    for (label, mask), random_key, is_causal in itertools.product(masks(scores).items(), (None, (7, 8)), (False, True)):
        chosen = settings(mask, random_key, is_causal)
        label += ", dropout" * (random_key is not None) + ", causal" * is_causal
        expected = results(fused.reference, arrays, **chosen)
        for (name, cut), most_kept in itertools.product(CUTS.items(), (0, 1 << 18)):
            cut_into(cut, most_kept)
            for fast, slow in zip(results(fused, arrays, **chosen), expected, strict=True):
                said = f"{label}, {name}, weights {'kept' if most_kept else 'again'}"
                np.testing.assert_allclose(fast.numpy(), slow.numpy(), rtol=0, atol=1e-10, err_msg=said)


@pytest.mark.parametrize("needed", [n for n in itertools.product([False, True], repeat=3) if any(n)], ids=str)
def test_only_the_gradients_that_are_needed(cut_into, needed):
    arrays, chosen = inputs(*SHAPES["cache"]), settings(is_causal=True)
    expected = results(fused.reference, arrays, needed, **chosen)
    for name, cut in CUTS.items():
        cut_into(cut, 0)
        for fast, slow in zip(results(fused, arrays, needed, **chosen), expected, strict=True):
            np.testing.assert_allclose(fast.numpy(), slow.numpy(), rtol=0, atol=1e-10, err_msg=name)


@cuts
@pytest.mark.parametrize("is_causal", [False, True])
def test_what_may_attend_to_nothing_gives_zeros(cut_into, cut, is_causal):
    cut_into(cut, 0)
    query, key = SHAPES["cache"]
    padding = masks((*query[:-1], key[-2]))["padding"]
    out, *gradients = results(fused, inputs(query, key), **settings(padding, is_causal=is_causal))
    for x in (out, *gradients):
        assert not x.numpy()[1].any()
        assert np.isfinite(x.numpy()).all()
        assert x.numpy()[[0, 2]].any()


@cuts
def test_causal_queries_before_the_first_key_give_zeros(cut_into, cut):
    cut_into(cut, 0)
    arrays, chosen = inputs((3, 2, 14, 4), (3, 2, 9, 4)), settings(is_causal=True)
    for fast, slow in zip(*[results(f, arrays, **chosen) for f in (fused, fused.reference)], strict=True):
        np.testing.assert_allclose(fast.numpy(), slow.numpy(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("with_mask", [False, True], ids=["no mask", "padding"])
def test_a_length_that_is_cut_without_help(with_mask):
    length = 4 * kernel._QUERIES + 44
    arrays = inputs((1, 2, length, 8), (1, 2, length, 8), "float32")
    mask = np.arange(length) < length - 50 if with_mask else None
    assert len(blocks(*map(xp.asarray, arrays[:2]), True)) > 2
    chosen = settings(mask, is_causal=True)
    for fast, slow in zip(results(fused, arrays, **chosen), results(fused.reference, arrays, **chosen), strict=True):
        assert fast.dtype == "float32"
        np.testing.assert_allclose(fast.numpy(), slow.numpy(), rtol=1e-4, atol=1e-5)


def sizes(saved):
    """The bytes of each array in nested tuples, lists and dictionaries."""
    if isinstance(saved, (tuple, list, dict)):
        return [n for part in (saved.values() if isinstance(saved, dict) else saved) for n in sizes(part)]
    return [saved.nbytes] if hasattr(saved, "nbytes") else []


@pytest.mark.parametrize("is_causal", [False, True])
def test_memory_grows_with_the_length_and_not_its_square(is_causal):
    arrays = inputs((1, 1, 1024, 8), (1, 1, 1024, 8), "float32")
    query, key, value = [tt.tensor(a, requires_grad=True) for a in arrays]
    out = fused(query, key, value, **settings(is_causal=is_causal))
    assert 0 < sum(sizes(out.node.saved)) < 6 * max(a.nbytes for a in arrays)  # the scores would be 128 times one of them


@pytest.mark.parametrize("is_causal", [False, True])
def test_long_sequences_are_cut_causal_or_not(is_causal):
    query = xp.zeros((1, 2, 1024, 4), "float32")
    length = max(kernel._QUERIES, 1024 // 8)
    stops = [block.keys.stop for block in blocks(query, query, is_causal)]
    assert stops == [stop if is_causal else 1024 for stop in range(1024, 0, -length)]


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("is_causal", [False, True])
def test_without_keys_there_are_zeros(queries, is_causal):
    shapes = [(2, queries, 4), (2, 0, 4), (2, 0, 5)]
    inputs = [tt.random.normal(shape).astype("float64") for shape in shapes]
    for x in inputs:
        x.requires_grad = True

    def f(*inputs):
        return tt.scaled_dot_product_attention(*inputs, is_causal=is_causal)

    for recording in (True, False):
        with tt.enable_grad() if recording else tt.no_grad():
            np.testing.assert_array_equal(f(*inputs).numpy(), np.zeros((2, queries, 5)))
    assert tt.gradcheck(f, inputs) and tt.gradcheck(f, inputs, order=2)


@pytest.mark.needs("numpy")
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("spoiled", ["key", "value", "both"])
def test_what_a_padded_key_holds_changes_nothing(spoiled, value):
    """Also where the numbers that are not finite are in one of keys and values alone."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 3, 6, 4)).astype("float32") for _ in range(3)]
    mask, found = tt.tensor([True, True, False, True, True, False]), []
    for wrong in (0.0, value):
        query, key, values = (x.copy() for x in arrays)
        key[..., [2, 5], :], values[..., [2, 5], :] = 0.0, 0.0
        for name, x in (("key", key), ("value", values)):
            if spoiled in (name, "both"):
                x[..., 5, :] = wrong
        leaves = [tt.tensor(x, requires_grad=True) for x in (query, key, values)]
        out = tt.scaled_dot_product_attention(*leaves, mask)
        (out * out).sum().backward()
        found.append([out.numpy(), *(x.grad.numpy() for x in leaves)])
    for clean, same in zip(*found):
        np.testing.assert_allclose(same, clean, atol=1e-6)
