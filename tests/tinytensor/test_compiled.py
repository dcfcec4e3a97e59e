"""The kernels that Numba compiles: equal to NumPy's, chosen as asked, kept between runs.

With Numba installed all other tests of ops, optimizers and training run on these kernels, too.
"""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
import subprocess
import sys
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
def test_a_numba_that_cannot_be_imported(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.4 or less')", encoding="utf-8")
    result = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tinytensor as tt; tt.layer_norm(tt.ones((2, 3)))")
    assert result.stderr.splitlines()[-1].endswith(
        "BackendError: Numba cannot be imported (Numba needs NumPy 2.4 or less): with TINYTENSOR_KERNELS=numpy it is not used"
    )


@pytest.mark.needs("numba")
def test_numba_is_loaded_by_the_first_kernel():
    code = "import sys, tinytensor as tt; x = tt.ones((2, 3)); (x + x).sum(); print('numba' in sys.modules, tt.kernels_name)"
    assert run(code).stdout == "False numba\n"
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
