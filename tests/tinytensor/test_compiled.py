"""The kernels that Numba compiles: equal to NumPy's, chosen as asked, kept between runs.

With Numba installed all other tests of ops, optimizers and training run on these kernels, too.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

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
    assert result.stderr.splitlines()[-1].endswith("BackendError: TINYTENSOR_KERNELS='fast' must be 'numpy' or 'numba'")


@pytest.mark.needs("numpy")
def test_numba_is_not_installed():
    hidden = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'numba' else f(n, *a)\n"
    result = run(hidden + "import tinytensor", TINYTENSOR_KERNELS="numba")
    assert result.stderr.splitlines()[-1].endswith(
        "TINYTENSOR_KERNELS=numba, but Numba is not installed: pip install 'tinytensor[fast]'"
    )
    result = run(hidden + "import tinytensor; print(tinytensor.kernels_name)", TINYTENSOR_KERNELS="")
    assert result.stdout == "numpy\n"


@pytest.mark.needs("numba")
def test_numba_is_loaded_by_the_first_kernel():
    code = "import sys, tinytensor as tt; x = tt.ones((2, 3)); (x + x).sum(); print('numba' in sys.modules, tt.kernels_name)"
    assert run(code).stdout == "False numba\n"
    assert run(f"{code}; print('numpy.polynomial' in sys.modules)").stdout.splitlines()[-1] == "False"
    assert run(f"{code}; tt.layer_norm(x); print('numba' in sys.modules)").stdout.splitlines()[-1] == "True"
    assert run(code, TINYTENSOR_KERNELS="numpy").stdout == "False numpy\n"


# ------------------------------------------------------------------------------------------------------- the functions


def both(name: str) -> tuple[object, object]:
    return tuple(getattr(importlib.import_module(f"tinytensor.kernels.{kind}"), name) for kind in ("numba", "numpy"))


@pytest.mark.needs("numba")
def test_all_kernels_have_the_signatures_of_numpys():
    names = importlib.import_module("tinytensor.kernels.numba").__all__
    assert len(names) > 15
    for name in names:
        ours, theirs = (list(inspect.signature(f).parameters) for f in both(name))
        assert ours == theirs or set(theirs) - set(ours) == {"passes"} or set(theirs) - set(ours) == {"loss_and_gradient"}, name


@pytest.mark.needs("numba")
def test_exp_differs_by_one_unit_in_the_last_place():
    from tinytensor.kernels.numba.exponential import exp_of

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
        gradients = [f(np.ones_like(x), s, needed, x, *rest)[0] for f, s in zip(backward, (saved, their_saved))]
        np.testing.assert_allclose(*gradients, rtol=2e-5, atol=2e-6)


ODD = [[nan, 1.0, 2.0], [1.0, -nan, 2.0], [inf, 1.0, inf], [-inf, -inf, -inf], [-inf, 0.0, 1.0], [3e38, -3e38, 1.0], [-0.0] * 3]


TARGETS = np.arange(len(ODD)) % 3
OF_ROWS = {
    "softmax": lambda f, x: f(x, (1,)),
    "log_softmax": lambda f, x: f(x, (1,)),
    "sigmoid": lambda f, x: f(x),
    "erf": lambda f, x: f(x),
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
    (erf, _), x = both("erf"), np.concatenate([np.linspace(-6, 6, 40_001), np.geomspace(1e-40, 1, 4_001)]).astype(np.float32)
    want = np.array([math.erf(v) for v in x.tolist()])
    error = np.abs(erf(x) - want)
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
    """What f returns, or the kind of error that it raises."""
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
        [lambda f=f: f(FLOATS, ids, 4) for f in both("sum_rows")],
        [lambda f=f: f((True,), FLOATS, *settings)[0] for f in both("cross_entropy_forward")],
        [lambda f=f: f(one, (total, 1), (True,), FLOATS, *settings)[0] for f in both("cross_entropy_backward")],
        [lambda f=f: f((True, True), FLOATS, FLOATS[:4], *settings)[0] for f in both("linear_cross_entropy_forward")],
    ]:
        assert_same(outcome(ours), outcome(theirs))


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

    for case in [
        ("adam_step", 4, (2, 0.1, 0.9, 0.99, 1e-8, 0.1, False)),
        ("sgd_step", 3, (False, 0.1, 0.9, 0.1, True, 0.1)),
    ]:
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

    source = package / "kernels" / "numba" / "exponential.py"
    source.write_text(source.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert "compiles" in run(code, tmp_path, **here).stderr
    assert [other.name == folder.name for other in cache.glob("compiled-*")] == [False]

    shutil.rmtree(cache)
    cache.write_text("in the way of a folder", encoding="utf-8")
    assert "compiles" in run(code, tmp_path, **here, PYTHONDONTWRITEBYTECODE="1").stderr
    assert list((tmp_path / "tinytensor").glob("compiled-*")) or list(tmp_path.glob("tinytensor/compiled-*"))
