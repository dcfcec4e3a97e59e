"""The kernels' place in the library: what they import, and that both backends fill the slot alike. Their source text is read,
as only one backend can be loaded."""

import ast
from pathlib import Path

import numpy as np
import pytest
from reach import running

import tinytensor as tt
from tinytensor import functional, kernels
from tinytensor.device.backend import to_numpy, xp
from tinytensor.kernels.attention import causal_array

FOLDER = Path(kernels.__file__).parent
TREES = {str(path.relative_to(FOLDER)): ast.parse(path.read_text()) for path in sorted(FOLDER.rglob("*.py"))}
# What kernels may import beside each other.
BELOW = {
    f"tinytensor.{name}"
    for name in (
        "autograd.modes",
        "autograd.replaying",
        "common.contexts",
        "device.allocator",
        "device.caches",
        "device.backend",
        "device.cores",
        "device.forks",
        "device.summation",
    )
}


def imported(tree):
    """The modules of tinytensor that a file imports: ``from tinytensor import name`` counts as ``tinytensor.name``."""
    for node in running(tree):
        if isinstance(node, ast.Import):
            yield from [alias.name for alias in node.names if alias.name.startswith("tinytensor")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tinytensor"):
            whole = node.module in ("tinytensor", "tinytensor.device", "tinytensor.kernels")
            yield from [f"{node.module}.{alias.name}" for alias in node.names] if whole else [node.module]


def test_kernels_import_sideways_or_down():
    for file, tree in TREES.items():
        found = set(imported(tree))
        assert {name for name in found - BELOW if not name.startswith("tinytensor.kernels.")} == set(), file
        if file.startswith("numpy"):  # cupy builds on numpy, so numpy does not import cupy
            assert not [name for name in found if name.startswith("tinytensor.kernels.cupy")], file


@pytest.mark.parametrize("module", sorted(BELOW))
def test_what_kernels_import_imports_no_kernels(module):
    text = (FOLDER.parents[1] / f"{module.replace('.', '/')}.py").read_text()
    assert not [name for name in imported(ast.parse(text)) if name not in BELOW]


def test_the_check_of_imports_sees_them():
    text = (
        "from tinytensor.autograd.inputs import x\nfrom tinytensor import kernels, random\n"
        "def f():\n    import tinytensor.autograd.engine"
    )
    assert set(imported(ast.parse(text))) == {
        "tinytensor.autograd.inputs", "tinytensor.kernels", "tinytensor.random", "tinytensor.autograd.engine",
    }  # fmt: skip


def functions(file):
    return {n.name: n for n in ast.walk(TREES[file]) if isinstance(n, ast.FunctionDef)}


def parameters(function):
    return [a.arg for a in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]]


def test_both_backends_have_the_same_kernels_with_the_same_parameters():
    declared = {}
    exported = {each.name for n in imports(TREES["numpy/__init__.py"]) for each in n.names}
    for backend in ("numpy", "cupy"):
        files = [file for file in TREES if file.startswith(backend)]
        declared[backend] = {name: parameters(f) for file in files for name, f in functions(file).items()}
    for own in ("passes", "loss_and_gradient", "matmul"):  # with which kernels/numba makes its kernels of NumPy's
        for names in declared["numpy"].values():
            names[:] = [name for name in names if name != own]
    both = exported & declared["numpy"].keys() & declared["cupy"].keys()
    assert len(both) > 20
    assert {name: declared["numpy"][name] for name in both} == {name: declared["cupy"][name] for name in both}


def imports(tree):
    return [node for node in tree.body if isinstance(node, ast.ImportFrom)]


@pytest.mark.parametrize("backend", ["numba", "cupy"])
def test_no_other_function_has_the_name_of_a_kernel(backend):
    """A backend replaces the kernels that its file of the same name has, so that file imports none of these names elsewhere."""
    for node in imports(TREES["numpy/__init__.py"]):
        tree = TREES.get(f"{backend}/{node.module.rpartition('.')[2]}.py", ast.parse(""))
        foreign = [each for each in imports(tree) if not each.module.startswith(("tinytensor.kernels.numpy.", node.module))]
        names = {alias.asname or alias.name for each in foreign for alias in each.names}
        assert not names & {alias.name for alias in node.names}, node.module


def test_a_thing_has_one_name():
    """``key`` belongs to attention, dropout's keep probability is not ``p``, and residuals are not called statistics."""
    for name, function in [pair for file in TREES for pair in functions(file).items()]:
        names = set(parameters(function))
        assert not names & {"statistics", "probability", "p", "dropout_key", "seed_key"}, name
        assert "key" not in names or "query" in names, name


# ------------------------------------------------------------------------------------ one definition for arrays and tensors


@pytest.mark.parametrize("with_memory", [False, True])
def test_heads_are_cut_from_tensors_as_from_arrays(with_memory):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 5, 12 if with_memory else 36)), rng.standard_normal((2, 7, 24)) if with_memory else None]
    tensors = [None if a is None else tt.tensor(a) for a in arrays]
    cut = functional.attention.queries_keys_values(*tensors, 3)
    assert functional.attention.queries_keys_values is kernels.queries_keys_values
    raw = kernels.queries_keys_values(*[None if a is None else xp.asarray(a) for a in arrays], 3)
    for tensor, array, length in zip(cut, raw, (5, 7, 7) if with_memory else (5, 5, 5), strict=True):
        assert tensor.shape == array.shape == (2, 3, length, 4)
        np.testing.assert_array_equal(tensor.numpy(), to_numpy(array))
        assert array.base is not None  # a view
    np.testing.assert_array_equal(to_numpy(kernels.join_heads(raw[0])), arrays[0][..., :12])
    np.testing.assert_array_equal(functional.attention.join_heads(cut[0]).numpy(), arrays[0][..., :12])


@pytest.mark.parametrize(("queries", "keys"), [(3, 3), (2, 4), (4, 2), (1, 5), (0, 3), (3, 0)])
def test_the_causal_mask_is_counted_from_the_end(queries, keys):
    expected = np.tri(queries, keys, keys - queries, dtype=bool)
    np.testing.assert_array_equal(to_numpy(causal_array(queries, keys)), expected)
    np.testing.assert_array_equal(functional.causal_mask(queries, keys).numpy(), expected)
