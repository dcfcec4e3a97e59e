"""The kernels that Numba compiles: equal to NumPy's, chosen as asked, kept between runs.

With Numba installed all other tests of ops, optimizers and training run on these kernels, too.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import platform
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tinytensor as tt
from tinytensor.functional.attention import cached_attention
from tinytensor.kernels import functions_of

ROOT = Path(__file__).parents[2]
inf, nan = float("inf"), float("nan")


def run(code: str, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


# --------------------------------------------------------------------------------------------------------- the choice


@pytest.mark.needs("numpy")
def test_a_choice_that_does_not_exist():
    result = run("import tinytensor", TINYTENSOR_KERNELS="fast")
    assert result.stderr.splitlines()[-1].endswith("BackendError: TINYTENSOR_KERNELS must be 'numpy' or 'numba', got 'fast'")


@pytest.mark.needs("numpy")
def test_numba_is_not_installed():
    hidden = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'numba' else f(n, *a)\n"
    result = run(hidden + "import tinytensor", TINYTENSOR_KERNELS="numba")
    assert result.stderr.splitlines()[-1].endswith(
        "TINYTENSOR_KERNELS=numba, but Numba is not installed: pip install 'tinyformer[fast]'"
    )
    result = run(hidden + "import tinytensor; print(tinytensor.kernels_name)", TINYTENSOR_KERNELS="")
    assert result.stdout == "numpy\n"


@pytest.mark.needs("numba")
def test_a_numba_that_cannot_be_imported(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.4 or less')", encoding="utf-8")
    result = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tinytensor as tt; tt.layer_norm(tt.ones((2, 3)))")
    assert result.stderr.splitlines()[-1].endswith(
        "BackendError: Numba cannot be imported (Numba needs NumPy 2.4 or less): set TINYTENSOR_KERNELS=numpy to do without it"
    )


@pytest.mark.needs("numba")
def test_a_numba_that_may_not_compile():
    code = "import tinytensor as tt; tt.softmax(tt.ones((2, 3)))"
    assert "BackendError: NUMBA_DISABLE_JIT is set" in run(code, NUMBA_DISABLE_JIT="1").stderr


@pytest.mark.needs("numba")
def test_numba_is_loaded_by_the_first_kernel():
    code = "import sys, tinytensor as tt; x = tt.ones((2, 3)); (x + x).sum(); print('numba' in sys.modules, tt.kernels_name)"
    assert run(code).stdout == "False numba\n"
    assert run(f"{code}; print('numpy.polynomial' in sys.modules)").stdout.splitlines()[-1] == "False"
    assert run(f"{code}; tt.layer_norm(x); print('numba' in sys.modules)").stdout.splitlines()[-1] == "True"
    assert run(code, TINYTENSOR_KERNELS="numpy").stdout == "False numpy\n"


# ------------------------------------------------------------------------------------------------------- the functions


def both(name: str) -> tuple[object, object]:
    return tuple(functions_of(backend)[name] for backend in ("numba", "numpy"))


@pytest.mark.needs("numba")
def test_all_kernels_have_the_signatures_of_numpys():
    compiled = [both(name) for name in functions_of("numba") if both(name)[0] is not both(name)[1]]
    assert len(compiled) > 30
    for functions in compiled:
        ours, theirs = (list(inspect.signature(f).parameters) for f in functions)
        assert ours == theirs or set(theirs) - set(ours) in ({"passes"}, {"loss_and_gradient"}, {"unpack"}), functions


@pytest.mark.needs("numba")
def test_exp_differs_by_one_unit_in_the_last_place():
    from tinytensor.kernels.numba.functions import exp_of

    bits = np.arange(0, 1 << 32, 997, dtype=np.uint64).astype(np.uint32)  # floats of all sizes, NaN and infinite ones, too
    x = np.concatenate([bits.view(np.float32), np.linspace(-110, 95, 1_000_003, dtype=np.float32)])
    out = np.empty_like(x)
    exp_of(x, out)
    with np.errstate(all="ignore"):
        want = np.exp(x.astype(np.float64))
        nearest = want.astype(np.float32)
        unit = np.spacing(np.minimum(nearest, np.finfo(np.float32).max)).astype(np.float64)
    is_nan = np.isnan(x)
    assert np.isnan(out[is_nan]).all()
    assert (out[np.isinf(nearest)] == inf).mean() > 0.99  # the last few below infinity may be finite
    finite = ~is_nan & np.isfinite(nearest) & np.isfinite(out)
    assert (np.abs(out[finite] - want[finite]) <= 1.01 * unit[finite]).all()
    assert out[x == 0].tolist() == [1.0] * int((x == 0).sum())


@pytest.mark.needs("numba")
@pytest.mark.parametrize(
    "values", [[nan, 1.0, 2.0], [inf, 1.0, -1.0], [-inf, 0.0, 1.0], [-0.0, 0.0, 1e-40], [3e38, -3e38, 1.0]]
)
@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_exact", "layer_norm", "rms_norm"])
def test_odd_numbers_are_as_in_numpy(name, values):
    x = np.array([values], np.float32)
    rest = {"layer_norm": (None, None, 1e-5), "rms_norm": (None, 1e-5)}.get(name, ())
    needed = (True,) * (1 + len(rest))
    with np.errstate(all="ignore"):
        (ours, saved), (theirs, their_saved) = (f(needed, x, *rest) for f in both(f"{name}_forward"))
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)
        backward = both(f"{name}_backward")
        named = [x, None][: len(inspect.signature(backward[0]).parameters) - 3]  # and no ``before``
        gradients = [f(np.ones_like(x), s, needed, *named)[0] for f, s in zip(backward, (saved, their_saved))]
        np.testing.assert_allclose(*gradients, rtol=2e-5, atol=2e-6)


ODD = [[nan, 1.0, 2.0], [1.0, -nan, 2.0], [inf, 1.0, inf], [-inf, -inf, -inf], [-inf, 0.0, 1.0], [3e38, -3e38, 1.0], [-0.0] * 3]


TARGETS = np.arange(len(ODD)) % 3
OF_ROWS = {
    "softmax": lambda f, x: f(x, (1,)),
    "log_softmax": lambda f, x: f(x, (1,)),
    "silu_forward": lambda f, x: f((True, True), x, x)[0],
    "cross_entropy_forward": lambda f, x: f((True,), x, TARGETS, -100, 0.0, "none")[0],
    "linear_cross_entropy_forward": lambda f, x: f(
        (True, True), x, np.eye(x.shape[1], dtype=x.dtype), TARGETS, -100, 0.0, "sum"
    )[1][0],
}


@pytest.mark.needs("numba")
@pytest.mark.parametrize("width", [3, 40])
@pytest.mark.parametrize("name", OF_ROWS)
def test_odd_numbers_of_rows_are_as_in_numpy(name, width):
    x = np.tile(np.array(ODD, np.float32), (1, -(-width // 3)))[:, :width]
    with np.errstate(all="ignore"):
        ours, theirs = [OF_ROWS[name](f, x) for f in both(name)]
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)


@pytest.mark.needs("numba")
def test_erf_is_right_to_two_tenths_of_a_millionth():
    x = np.concatenate([np.linspace(-6, 6, 40_001), np.geomspace(1e-40, 1, 4_001)]).astype(np.float32)
    want = np.array([math.erf(v) for v in x.tolist()])
    error = np.abs(tt.erf(tt.tensor(x)).numpy() - want)
    assert error.max() < 2.5e-7
    normal = np.abs(want) > 1e-37
    assert (error[normal] / np.abs(want[normal])).max() < 4e-7


@pytest.mark.needs("numba")
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_moments_and_infinite_parameters_are_as_in_numpy(decay):
    found = []
    for adam, sgd in zip(both("adam_step"), both("sgd_step")):
        lists = [[np.array([inf, 1.0, -2.0], np.float32)], *[[np.full(3, x, np.float32)] for x in (0.5, 0.0, 0.0)]]
        with np.errstate(all="ignore"):
            adam(*lists, [], 3, 0.1, 0.9, 0.999, 1e-8, decay, True)
            sgd(lists[0], lists[1], lists[2], [], False, 0.1, 0.9, 0.0, False, decay)
        found.append(np.stack([arrays[0] for arrays in lists]))
    np.testing.assert_allclose(*found, rtol=3e-7)
    assert decay or found[0][0, 0] == inf  # inf * 0 would be NaN


# ------------------------------------------------------------------------------------- what would leave an array's memory

FLOATS = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
AT = {"in": [0, 3, 1, 3, 0], "negative": [0, -1, 2, -3, 0], "above": [0, 3, 4, 0, 0], "below": [0, 3, -5, 0, 0]}


def outcome(f):
    """Return f's result, or the type of its error."""
    try:
        return f()
    except (IndexError, ValueError) as error:
        return "an index" if isinstance(error, IndexError) else "a value"


def assert_same(ours, theirs):
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(ours, str):
        assert ours == theirs
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.needs("numba")
@pytest.mark.parametrize("ids", AT.values(), ids=AT)
@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8", "uint64", ">i4"])
def test_places_outside_of_an_array_are_as_in_numpy(ids, dtype):
    ids = np.array(ids).astype(dtype)
    total, one = np.zeros(5, np.float32), np.ones((), np.float32)
    settings = (ids, 99, 0.0, "sum")
    for ours, theirs in [
        [lambda f=f: f(FLOATS, ids, np.ones((4, FLOATS.shape[-1]), np.float32)) for f in both("sum_rows")],
        [lambda f=f: f((True,), FLOATS, *settings)[0] for f in both("cross_entropy_forward")],
        [lambda f=f: f(one, (total, 1), (True,), FLOATS, *settings)[0] for f in both("cross_entropy_backward")],
        [lambda f=f: f((True, True), FLOATS, FLOATS[:4], *settings)[0] for f in both("linear_cross_entropy_forward")],
    ]:
        assert_same(outcome(ours), outcome(theirs))


@pytest.mark.needs("numba")
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f4", "float32, transposed"])
def test_rows_are_added_to_what_is_there_as_in_numpy(kind):
    rng = np.random.default_rng(0)
    ids, rows = rng.integers(0, 5, (2, 30)), rng.standard_normal((2, 30, 3)).astype(kind[:7])
    before = rng.standard_normal((5, 3)).astype(kind[:7])
    want = before.astype("float64")
    np.add.at(want, ids, rows.astype("float64"))
    for f in both("sum_rows"):
        out = np.array(before, order="F" if "transposed" in kind else "C")
        assert f(rows, ids, out) is out
        np.testing.assert_allclose(out, want, rtol=1e-2 if kind == "float16" else 1e-5, atol=1e-6)


@pytest.mark.needs("numba")
def test_no_classes_and_no_rows_are_as_in_numpy():
    ours, theirs = both("linear_cross_entropy_forward")
    for rows, classes in [(2, 0), (0, 3), (0, 0)]:
        given = np.ones((rows, 4), np.float32), np.ones((classes, 4), np.float32), np.full(rows, -100), -100, 0.1, "sum"
        assert_same(*[outcome(lambda f=f, given=given: f((True, True), *given)[0]) for f in (ours, theirs)])


LAYOUTS = {
    "transposed": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "other order of bytes": lambda x: x.astype(x.dtype.newbyteorder()),
    "of another shape": lambda x: x[:1],
    "protected": lambda x: np.broadcast_to(x, x.shape),
    "off by a byte": lambda x: np.frombuffer(b" " + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
}


@pytest.mark.needs("numba")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("which", range(4))
def test_a_step_of_arrays_of_any_layout_is_as_in_numpy(which, layout):
    def stepped(name, count, settings, step):
        lists = [[abs(FLOATS) + i] for i in range(count)]
        if which < count:
            lists[which][0] = layout(lists[which][0])
        step(*lists, [], *settings)
        return np.stack([x for (x,) in lists])

    for case in [("adam_step", 4, (2, 0.1, 0.9, 0.99, 1e-8, 0.1, False)), ("sgd_step", 3, (False, 0.1, 0.9, 0.1, True, 0.1))]:
        assert_same(*[outcome(partial(stepped, *case, step)) for step in both(case[0])])


@pytest.mark.needs("numba")
@pytest.mark.parametrize("layout", [LAYOUTS[name] for name in LAYOUTS if name != "of another shape"])
def test_inputs_of_any_layout_are_as_in_numpy(layout):
    import tinytensor as tt

    for f in (
        tt.gelu,
        lambda x: tt.gelu(x, "tanh"),
        tt.silu,
        lambda x: tt.swiglu(x, x),
        tt.sigmoid,
        tt.erf,
        tt.softmax,
        tt.log_softmax,
        lambda x: tt.layer_norm(x, x[0], x[1]),
        lambda x: tt.rms_norm(x, x[0]),
        lambda x: tt.cross_entropy(x, tt.tensor([0, 1, 2, 3, 0])),
        lambda x: tt.sum_rows(x, tt.tensor([0, 1, 2, 3, 0]), 4),
        lambda x: tt.dropout(x, 0.0, residual=x),
    ):
        results = []
        for array in (FLOATS, layout(FLOATS)):
            x = tt.tensor(FLOATS, requires_grad=True)
            x.data = array
            out = f(x)
            g = tt.tensor(np.ones(out.shape, out.dtype)) if out.ndim else None
            if g is not None:
                g.data = layout(g.data)
            results += [out.numpy(), tt.grad(out, x, g).numpy()]
        for a, b in zip(results[:2], results[2:]):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------- word2vec: a step in rows


def stepped(step, weights, contexts, targets):
    weights = [w.copy() for w in weights]
    step(*weights, contexts, targets, 0.1)
    return np.stack(weights)


@pytest.mark.needs("numba")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["int64", "int32", ">i8"])
@pytest.mark.parametrize(("examples", "contexts", "targets"), [(0, 1, 6), (1, 1, 1), (50, 1, 6), (50, 10, 3)])
def test_a_step_of_word2vec_is_as_in_numpy(examples, contexts, targets, kind, dtype):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((9, 13)).astype(dtype) for _ in range(2)]
    ids = [rng.integers(0, 9, (examples, n)).astype(kind) for n in (contexts, targets)]
    for part in ids:
        part[:, 1:][rng.random(part[:, 1:].shape) < 0.3] = -1
    ours, theirs = (stepped(step, weights, *ids) for step in both("negative_sampling_step"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4 if dtype == "float32" else 1e-11, atol=1e-5)
    ours, theirs = (
        stepped(step, weights, *[part[:, ::-1][:, ::-1] for part in ids]) for step in both("negative_sampling_step")
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4 if dtype == "float32" else 1e-11, atol=1e-5)


@pytest.mark.needs("numba")
def test_a_step_of_word2vec_with_a_word_that_is_not_there_changes_nothing():
    for ids in ([[9]], [[1, 2]]), ([[1]], [[1, 9]]):
        weights = [np.ones((9, 4), np.float32) for _ in range(2)]
        for step in both("negative_sampling_step"):
            with pytest.raises(IndexError):
                step(*weights, *map(np.array, ids), 0.1)
        assert (np.stack(weights) == 1).all()


@pytest.mark.needs("numba")
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "of another shape"])
def test_a_step_of_word2vec_on_weights_of_any_layout_is_as_in_numpy(layout):
    weights = [np.random.default_rng(i).standard_normal((9, 13)).astype(np.float32) for i in range(2)]
    results = []
    for step in both("negative_sampling_step"):
        changed = [LAYOUTS[layout](w.copy()) for w in weights]

        def run_it(step=step, changed=changed):
            step(*changed, np.array([[1], [2]]), np.array([[3, 4], [3, -1]]), 0.1)
            return np.stack([w.astype(np.float32) for w in changed])

        results.append(outcome(run_it))
    assert_same(*results)


# ------------------------------------------------------------------------------- recurrent layers: all steps in one call

RECURRENT = {"rnn": (1, ("tanh",)), "rnn, relu": (1, ("relu",)), "gru": (3, ()), "gru, no bias": (3, ()), "lstm": (4, ())}
# (length, batch, width): whole tiles; rows and columns that are none, also fewer columns than a tile has; and one long step.
SEQUENCES = [(4, 8, 16), (5, 9, 7), (3, 20, 33), (1, 37, 5)]


def recurrent_results(module, layer, shape, dtype, mask, is_reversed):
    """The output and the gradients of a layer; where there is no token, nothing but NaN comes in."""
    (length, batch, width), (gates, settings), rng = shape, RECURRENT[layer], np.random.default_rng(1)
    made = [(length, batch, gates * width), (gates * width, width), (batch, width), (batch, width), (gates * width,)]
    projected, weight, state, cell, bias = (rng.standard_normal(size).astype(dtype) for size in made)
    if mask is not None:
        projected[~mask] = nan
    own = {"gru": [bias, state], "gru, no bias": [None, state], "lstm": [state, cell]}.get(layer, [state])
    xs, name = [projected, (weight / width).astype(dtype), *own], layer.split(",")[0]
    needed = [x is not None for x in xs]
    forward, backward = [getattr(module, f"{name}_{way}") for way in ("forward", "backward")]
    out, kept = forward(needed, *xs, mask, is_reversed, *settings)
    g = rng.standard_normal(out.shape).astype(dtype)
    return [out, *[x for x in backward(g, kept, needed, *xs, mask, is_reversed, *settings) if x is not None]]


@pytest.mark.needs("numba")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layer", RECURRENT)
def test_recurrent_layers_are_as_in_numpy(layer, masked, dtype, monkeypatch):
    compiled, in_numpy = (importlib.import_module(f"tinytensor.kernels.{kind}.recurrence") for kind in ("numba", "numpy"))
    for shape, is_reversed in [(shape, way) for shape in SEQUENCES for way in (False, True)]:
        length, batch, _ = shape
        mask = np.arange(length)[:, None] < np.arange(batch) % (length + 1) if masked else None
        given = (layer, shape, dtype, mask, is_reversed)
        want = recurrent_results(in_numpy, *given)
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "in_numpy", None)  # these are not too small
            got = recurrent_results(compiled, *given)
        for a, b in zip(got, want, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=0, atol=(1 + np.abs(b).max()) * (3e-6 if dtype == "float32" else 1e-14))


@pytest.mark.needs("numba")
@pytest.mark.parametrize("layer", RECURRENT)
def test_the_last_state_of_padding_is_kept_to_the_bit(layer):
    compiled = importlib.import_module("tinytensor.kernels.numba.recurrence")
    mask = np.arange(6)[:, None] < np.arange(20) % 7
    out = recurrent_results(compiled, layer, (6, 20, 24), "float32", mask, False)[0]
    of_all = out if out.ndim == 4 else out[None]
    for t, b in zip(*np.nonzero(~mask[1:])):
        np.testing.assert_array_equal(of_all[:, t + 1, b], of_all[:, t, b])


@pytest.mark.needs("numba")
@pytest.mark.parametrize("layer", RECURRENT)
def test_a_second_thread_changes_no_bit(layer, monkeypatch):
    compiled = importlib.import_module("tinytensor.kernels.numba.recurrence")
    mask = np.arange(6)[:, None] < np.arange(37) % 7
    alone = recurrent_results(compiled, layer, (6, 37, 24), "float32", mask, True)
    threads = []
    for name in ("rnn", "gru", "lstm"):
        run = getattr(compiled.loops, name)
        monkeypatch.setattr(compiled.loops, name, lambda *a, run=run: (threads.append(threading.get_ident()), run(*a)))
    monkeypatch.setattr(compiled, "_LARGE", 0)
    monkeypatch.setattr(compiled, "has_second_core", lambda: True)
    for _ in range(20):
        for a, b in zip(alone, recurrent_results(compiled, layer, (6, 37, 24), "float32", mask, True), strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(threads) == 2 * 20
    del threads[:]
    with tt.parallel.one_blas_thread():  # as while shards run, one on each core
        recurrent_results(compiled, layer, (6, 37, 24), "float32", mask, True)
    assert threads == [threading.get_ident()]


@pytest.mark.needs("numba")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tanh_keeps_its_digits(dtype):
    loops = importlib.import_module("tinytensor.kernels.numba.recurrence_loops")
    x = np.concatenate([np.linspace(-12, 12, 40_001), np.geomspace(1e-37, 1, 4_001), [inf, -inf, nan, -0.0, 100]]).astype(dtype)
    out = np.empty_like(x)
    loops._tanh_of_sum(x, np.zeros_like(x), out)
    np.testing.assert_allclose(out, np.tanh(x.astype("float64")), rtol=3e-7 if dtype == "float32" else 1e-15, atol=0)


# ------------------------------------------------------------------------------------- attention: all heads in one call


@pytest.mark.needs("numba")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seen", [1, 9, 40])
def test_products_in_tiles(dtype, seen):
    """They leave out what a query does not see: the first one sees ``seen`` keys, each later one sees one key more."""
    blocks = importlib.import_module("tinytensor.kernels.numba.attention_blocks")
    rng = np.random.default_rng(0)
    k, q, start = (rng.standard_normal(shape).astype(dtype) for shape in ((40, 16), (16, 32), (40, 16)))
    visible = np.arange(40)[:, None] < seen + np.arange(32)
    scores = np.full((40, 32), nan, dtype)
    blocks._keys_by_queries(k, q, 40, 16, seen, scores)
    np.testing.assert_allclose(scores[visible], (k @ q)[visible], rtol=0, atol=1e-5)
    assert np.isnan(scores).any() == (seen < 17)  # whole tiles are left out

    weights = np.where(visible, scores, 0)
    out, added = np.full((32, 16), nan, dtype), start.copy()
    blocks._sum_over_keys(weights, k, 40, seen, out)
    np.testing.assert_allclose(out, weights.T @ k, rtol=0, atol=1e-4)
    blocks._sum_over_queries(weights, q.T.copy(), 40, 30, seen, added)  # of the 32 queries the last two are padding
    np.testing.assert_allclose(added, start + weights[:, :30] @ q.T[:30], rtol=0, atol=1e-4)


TILES = """
from tinytensor.kernels.numba import compiling, tiles
from tinytensor.kernels.numba.attention_blocks import _sum_over_queries
import numpy as np
compiling._stop_caching()
a, b, out = np.ones((16, 16), np.float32), np.ones((16, 16), np.float32), np.zeros((16, 16), np.float32)
_sum_over_queries(a, b, 16, 16, 16, out)
(code,) = _sum_over_queries.for_python(out.dtype).inspect_asm().values()
print(tiles.ROWS.compute(), out.min(), out.max(), "zmm" in code)
"""


@pytest.mark.needs("numba")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names a processor")
def test_a_tile_has_four_rows_where_registers_are_few():
    """On this processor the instructions of an older one run, too."""
    older = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2"}
    assert run(TILES, **older).stdout == "4 16.0 16.0 False\n"
    newer = run(
        "from tinytensor.kernels.numba import tiles; print(tiles.ROWS.compute())", **older | {"NUMBA_CPU_FEATURES": "+avx512f"}
    )
    assert newer.stdout == "8\n"


def heads(queries, keys, width, values_width, dtype="float32", batch=2, num_heads=2):
    """Queries, keys and values (batch, heads, length, width), as a linear layer makes them: views of (batch, length, ...)."""
    rng = np.random.default_rng(queries + keys)
    shapes = (queries, width), (keys, width), (keys, values_width), (queries, values_width)
    return [rng.standard_normal((batch, n, num_heads, w)).astype(dtype).transpose(0, 2, 1, 3) for n, w in shapes]


def attend(module, arrays, mask=None, is_causal=False, random_key=None):
    """Return the output, the gradients, and the saved arrays."""
    query, key, value, g = arrays
    settings = (None, mask, is_causal, 0.3, random_key, 1.0 if random_key is None else 0.7)
    out, saved = module.attention_forward((True,) * 4, query, key, value, *settings)
    gradients = module.attention_backward(g, saved, (True, True, True, False), query, key, value, *settings)
    assert gradients[3] is None
    return [out, *gradients[:3]], saved


def attention_modules():
    return [importlib.import_module(f"tinytensor.kernels.{kind}.attention") for kind in ("numba", "numpy")]


def padding(keys, batch=2):
    """The second sequence's last keys are hidden; of a third sequence all keys."""
    mask = np.ones((batch, 1, 1, keys), bool)
    mask[1, ..., keys // 2 :] = False
    mask[2:] = False
    return mask


LENGTHS = [(1, 1), (1, 9), (3, 3), (24, 24), (24, 70), (64, 64), (65, 65), (130, 130), (70, 200), (200, 70)]


@pytest.mark.needs("numba")
@pytest.mark.parametrize("random_key", [None, (7, 8)], ids=["", "dropout"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_all_heads_in_one_call_are_numpys(queries, keys, is_causal, random_key):
    ours, theirs = attention_modules()
    arrays = heads(queries, keys, 5, 19, "float64", batch=3)
    for mask in (None, padding(keys, 3)):
        got, saved = attend(ours, arrays, mask, is_causal, random_key)
        want, _ = attend(theirs, arrays, mask, is_causal, random_key)
        assert isinstance(saved, ours.Statistics) == (not is_causal or queries <= keys)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)


@pytest.mark.needs("numba")
@pytest.mark.parametrize("width", [8, 32, 64])
def test_all_heads_in_float32(width):
    arrays = heads(100, 100, width, width)
    for x, y in zip(*[attend(module, arrays, is_causal=True)[0] for module in attention_modules()], strict=True):
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-5)


@pytest.mark.needs("numba")
@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_head_that_is_not_finite_leaves_the_others_alone(is_causal, value):
    ours, theirs = attention_modules()
    arrays = heads(70, 70, 4, 4)
    for array in arrays:
        array[0, 0, 3] = value
    with np.errstate(all="ignore"):
        (got, _), (want, _) = (attend(module, arrays, is_causal=is_causal) for module in (ours, theirs))
    for x, y in zip(got, want, strict=True):
        assert np.isfinite(x[0, 1]).all() and np.isfinite(x[1]).all()
        np.testing.assert_allclose(x[0, 1], y[0, 1], rtol=0, atol=1e-5)
        np.testing.assert_allclose(x[1], y[1], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(np.isfinite(got[0][0, 0]), np.isfinite(want[0][0, 0]))


@pytest.mark.needs("numba")
@pytest.mark.parametrize("random_key", [None, (7, 8)], ids=["", "dropout"])
def test_the_backward_pass_may_be_run_again(random_key):
    """It does not change saved arrays."""
    ours, _ = attention_modules()
    query, key, value, g = heads(70, 70, 4, 4)
    settings = (None, None, True, 0.3, random_key, 0.7)
    _, saved = ours.attention_forward((True,) * 4, query, key, value, *settings)
    first, second = (ours.attention_backward(g, saved, (True,) * 3 + (False,), query, key, value, *settings) for _ in range(2))
    for x, y in zip(first[:3], second[:3], strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.needs("numba")
def test_a_sequence_alone_gives_the_same_bits():
    """So the number of shards does not change a result."""
    ours, _ = attention_modules()
    arrays, mask = heads(70, 70, 4, 4), padding(70)
    together, _ = attend(ours, arrays, mask, is_causal=True)
    for i in range(2):
        alone, _ = attend(ours, [x[i : i + 1] for x in arrays], mask[i : i + 1], is_causal=True)
        for x, y in zip(together, alone, strict=True):
            np.testing.assert_array_equal(x[i : i + 1], y)


@pytest.mark.needs("numba")
def test_no_weights_are_saved():
    ours, _ = attention_modules()
    _, saved = attend(ours, heads(64, 64, 8, 8), is_causal=True)
    assert sum([x.size for x in saved if x is not None]) == 2 * 2 * 2 * 64  # two numbers of each query


@pytest.mark.needs("numba")
def test_rows_that_do_not_lie_in_one_piece():
    arrays = [np.asfortranarray(x) for x in heads(9, 9, 4, 4, "float64")]
    assert all(x.strides[-1] != 8 for x in arrays)
    ours, theirs = attention_modules()
    for x, y in zip(attend(ours, arrays)[0], attend(theirs, arrays)[0], strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)


@pytest.mark.needs("numba")
def test_a_mask_that_does_not_fit_is_refused():
    ours, _ = attention_modules()
    with pytest.raises(ValueError, match="mask must broadcast to the scores"):
        attend(ours, heads(9, 9, 4, 4, batch=1), np.ones((3, 1, 1, 9), bool))


# ------------------------------------------------------------------------------------------------------------ the cache


@pytest.mark.needs("numba")
def test_compiled_code_is_kept_beside_the_sources_or_in_the_users_cache(tmp_path):
    package = tmp_path / "tinytensor"
    shutil.copytree(ROOT / "tinytensor", package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import tinytensor as tt; print(tt.__file__, tt.layer_norm(tt.ones((2, 3))).shape)"
    here = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]), "XDG_CACHE_HOME": str(tmp_path)}
    cache = package / "kernels" / "numba" / "__pycache__"

    first = run(code, tmp_path, **here)
    assert str(package) in first.stdout
    assert first.stderr == "tinytensor compiles its kernels for this processor; this happens once\n"
    (folder,) = cache.glob("compiled-*")
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")}
    assert files
    assert run(code, tmp_path, **here).stderr == ""
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")} == files

    source = package / "kernels" / "numba" / "functions.py"
    source.write_text(source.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert "compiles" in run(code, tmp_path, **here).stderr
    assert [other.name == folder.name for other in cache.glob("compiled-*")] == [False]

    for path in cache.rglob("*.nb*"):  # as a crash of the system may leave them
        path.write_bytes(b"")
    broken = run(code, tmp_path, **here)
    assert "(2, 3)" in broken.stdout and "Error" not in broken.stderr, broken.stderr

    shutil.rmtree(cache)
    cache.write_text("in the way of a folder", encoding="utf-8")
    assert "compiles" in run(code, tmp_path, **here, PYTHONDONTWRITEBYTECODE="1").stderr
    assert list(tmp_path.glob("tinytensor/compiled-*"))

    for path in tmp_path.glob("tinytensor/compiled-*"):
        shutil.rmtree(path)
    nowhere = {**here, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(tmp_path)}  # a file is where the folder should be
    assert "(2, 3)" in run(code, tmp_path, **nowhere).stdout
    assert not list(tmp_path.glob("tinytensor-*")), "left behind"


# ----------------------------------------------------------------------------------------------------- traced programs

ATTENDED = {
    "an input": lambda s, constant: s,
    "a view": lambda s, constant: s[...],
    "a computed tensor": lambda s, constant: s * 1.0,
    "a constant": lambda s, constant: constant,
}


@pytest.mark.needs("numba")
@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray], ids=["", "other layout"])
@pytest.mark.parametrize("choose", ATTENDED.values(), ids=ATTENDED)
def test_a_traced_program_attends_to_keys_and_values_from_anywhere(choose, layout):
    rng = np.random.default_rng(0)
    attend = tt.opaque(cached_attention)
    constant = tt.tensor(rng.standard_normal((2, 2, 3, 5, 4)).astype("float32"))

    def f(x, stored):
        for _ in range(8):
            x = x * 1.01
        return attend(x, choose(stored, constant), 3, True) + stored[0, 0, 0, 0, :1] * 0.0

    traced = tt.trace(f)
    for _ in range(3):
        x = tt.tensor(rng.standard_normal((2, 1, 36)).astype("float32"))
        stored = tt.tensor(rng.standard_normal((2, 2, 3, 5, 4)).astype("float32"))
        stored.data = layout(stored.data)
        got = traced(x, stored.copy()).numpy()
        np.testing.assert_allclose(got, f(x, stored).numpy(), rtol=1e-5, atol=1e-6)


RELUS = """
import tinytensor as tt
from tinytensor.kernels.numba import program_loops
def f(x):
    for _ in range(8):
        x = tt.relu(x)
    return x
traced = tt.trace(f)
print([traced(tt.tensor([-1.0, 2.0])).tolist() for _ in range(3)])
print([loop.function.__name__ for loop in program_loops._LOOPS.values() if loop.called])
"""


@pytest.mark.needs("numba")
def test_a_traced_program_compiles_no_kernels_but_its_own():
    assert run(RELUS).stdout == "[[0.0, 2.0], [0.0, 2.0], [0.0, 2.0]]\n['relu']\n"


@pytest.mark.needs("numba")
def test_compiled_code_of_programs_with_other_kernels_is_kept_apart():
    for code, x in [(RELUS, "[0.0, 2.0]"), (RELUS.replace("tt.relu(x)", "x * 0.5"), "[-0.00390625, 0.0078125]")] * 2:
        result = run(code)
        assert result.stdout.startswith(f"[{x}, {x}, {x}]\n"), result
    assert result.stderr == ""


@pytest.mark.needs("numba")
def test_relu_of_negative_zero_is_the_same_in_a_traced_program():
    def f(x):
        for _ in range(8):
            x = x * 1.0
        return tt.relu(x)

    x, traced = tt.tensor([-0.0, 0.0, -1.0, 1.0]), tt.trace(f)
    for _ in range(2):
        np.testing.assert_array_equal(np.signbit(traced(x).numpy()), np.signbit(f(x).numpy()))
