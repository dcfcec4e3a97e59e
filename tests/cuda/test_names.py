"""Every name that the library uses of CuPy, and every keyword it gives there, is one that the real CuPy has.

The library itself asks for a GPU when it is imported, so its source text is read instead.
"""

import ast
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy")

if hasattr(cupy, "kernel_launches"):
    pytest.skip("the fake CuPy has names of its own", allow_module_level=True)

PROJECT = Path(__file__).resolve().parents[2]
KERNELS = PROJECT / "tinytensor" / "kernels"

# What these variables stand for, wherever the library uses them. cuBLAS and NCCL are no modules where their libraries are
# missing: then the text of CuPy's own tells.
MODULES = {"xp": cupy, "cupy": cupy, "cuda": cupy.cuda, "runtime": cupy.cuda.runtime}
TEXTS = {n: Path(importlib.util.find_spec(f"cupy_backends.cuda.libs.{n}").origin).read_bytes() for n in ("cublas", "nccl")}
TEXTS["nccl"] += b" available"  # which CuPy adds
UFUNC = {"out", "where", "axes", "axis", "keepdims", "casting", "dtype"}
METHODS = {name for name in dir(cupy.ndarray) if not name.startswith("_")}


def used_by_cupy(tree, wanted):
    """Return the top-level functions and classes of these names, the ones they use, and all plain statements."""
    defined = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    found, waiting = {}, [name for name in wanted if name in defined]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = defined[name]
            waiting += [n.id for n in ast.walk(defined[name]) if isinstance(n, ast.Name) and n.id in defined]
    return [*found.values(), *[node for node in tree.body if node not in defined.values()]]


def sources():
    """(file, syntax tree) for all that runs with CuPy: of ``kernels/numpy`` what ``kernels/cupy`` takes over from there, and of
    ``kernels/numba`` nothing."""
    paths = sorted([*(PROJECT / "tinytensor").rglob("*.py"), *(PROJECT / "tinyformer").rglob("*.py")])
    trees = {path: ast.parse(path.read_text()) for path in paths if path.parent != KERNELS / "numba"}
    for path, tree in trees.items():
        if path.parent == KERNELS / "numpy":
            yield path, ast.Module(used_by_cupy(tree, borrowed(trees)), [])
        else:
            yield path, tree


def borrowed(trees):
    """Return the names that other files import from ``kernels/numpy``, and the kernels missing in ``kernels/cupy``."""
    nodes = [node for path, tree in trees.items() if path.parent != KERNELS / "numpy" for node in ast.walk(tree)]
    imports = [n for n in nodes if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("tinytensor.kernels.numpy")]
    kernels = {alias.name for node in trees[KERNELS / "numpy" / "__init__.py"].body for alias in getattr(node, "names", ())}
    top = [node for path, tree in trees.items() if path.parent == KERNELS / "cupy" for node in tree.body]
    replaced = {node.name for node in top if isinstance(node, ast.FunctionDef)} | {"where"}  # which is CuPy's own
    return sorted({alias.name for node in imports for alias in node.names} | (kernels - replaced))


def chain(node):
    """``xp.cuda.runtime`` as a list of names; nothing for what does not start with a variable."""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def parameters(function):
    """The names of a function's parameters, or None where they are not known. Cython writes them into the first line of the
    docstring: ``astype(self, dtype, order='K')``, with ``str`` or the like before some."""
    if isinstance(function, cupy.ufunc):
        return UFUNC
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        first = (function.__doc__ or "").strip().split("\n")[0]
        listed = re.match(r"[\w.]+\((.*)\)", first)
        return {part.split("=")[0].split()[-1] for part in listed[1].split(",") if part.strip(" */")} if listed else None
    return None if any(p.kind is p.VAR_KEYWORD for p in found) else {p.name for p in found}


def problems(tree):
    """What the tree uses that CuPy does not have: names, and keywords of calls."""
    functions = {}  # by the node that names them
    for node in ast.walk(tree):
        names = chain(node)
        if len(names) > 1 and names[0] in TEXTS and not re.search(rb"\b%s\b" % names[1].encode(), TEXTS[names[0]]):
            yield f"{names[0]}.{names[1]}"
        if len(names) < 2 or names[0] not in MODULES:
            continue
        value = MODULES[names[0]]
        for name in names[1:]:
            if not hasattr(value, name):
                yield f"{'.'.join(names)}: no {name}"
                break
            value = getattr(value, name)
        else:
            functions[node] = value
    imported = {a.asname or a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names} | {"host"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.keywords:
            continue
        function = functions.get(node.func)
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        if function is None and is_method and not imported & set(chain(node.func)[:1]):
            function = getattr(cupy.ndarray, node.func.attr)  # of whatever has such a method: tensors take the same keywords
        known = parameters(function) if function is not None else None
        for keyword in node.keywords:
            if known is not None and keyword.arg not in (None, *known):
                yield f"{ast.unparse(node.func)} takes no {keyword.arg}"


@pytest.mark.parametrize(("path", "tree"), [pytest.param(p, t, id=str(p.relative_to(PROJECT))) for p, t in sources()])
def test_cupy_has_what_is_used_of_it(path, tree):
    assert list(problems(tree)) == []


FAULTS = {
    "xp.vecdott(a, b)": "no vecdott",
    "xp.cuda.runtime.memInfo()": "no memInfo",
    "xp.add.reduceatt(a)": "no reduceatt",
    "cuda.cublas_handle()": "no cublas_handle",
    "xp.scatter_add(a, i, v)": "no scatter_add",
    "cublas.CUBLAS_COMPUTE_32F_FASTER": "CUBLAS_COMPUTE_32F_FASTER",
    "cublas.gemmEx3(1)": "gemmEx3",
    "nccl.NCCL_FLOAT31": "NCCL_FLOAT31",
    "nccl.NcclCommunicators(1)": "NcclCommunicators",
    "xp.argsort(a, order='K')": "takes no order",
    "xp.sum(a, where=mask)": "takes no where",
    "xp.exp(a, output=b)": "takes no output",
    "xp.RawModule(code='', flags=())": "takes no flags",
    "a.astype(t, copied=False)": "takes no copied",
    "(a + b).sum(initial=0)": "takes no initial",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_found(text):
    (problem,) = problems(ast.parse(text))
    assert problem.endswith(FAULTS[text])


def methods_of_nccl():
    """The methods of CuPy's communicator of NCCL, by their names: the names of their parameters."""
    found = re.findall(rb"NcclCommunicator\.?(\w*)\(([^)]*)\)", TEXTS["nccl"])
    parameters = {name.decode(): given.decode().removeprefix("self").split(", ") for name, given in found}
    return {name: [one.split()[-1] for one in given if one] for name, given in parameters.items()}


def test_calls_of_a_communicator_of_nccl():
    """Each gives as many arguments as CuPy's method has."""
    tree = ast.parse((PROJECT / "tinytensor" / "distributed" / "nccl.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and chain(node.func)[:2] == ["self", "_ranks"]]
    names = {call.func.attr for call in calls}
    assert names == {"allReduce", "broadcast", "check_async_error", "abort"}
    for call in calls:
        assert len(call.args) == len(methods_of_nccl()[call.func.attr]), call.func.attr


def test_the_stand_in_has_the_same_methods():
    tree = ast.parse((PROJECT / "tests" / "standin" / "cupy" / "cuda" / "nccl.py").read_text())
    (communicator,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "NcclCommunicator"]
    methods = {n.name: [a.arg for a in n.args.args[1:]] for n in communicator.body if isinstance(n, ast.FunctionDef)}
    assert methods.pop("_together")
    assert methods.pop("__init__") == ["ndev", "commId", "rank"]  # CuPy's takes settings, too
    assert methods == {name: methods_of_nccl()[name] for name in methods}


def test_what_is_read():
    """The trees are those of the whole library, and of ``kernels/numpy`` only what CuPy reaches."""
    texts = {path.relative_to(PROJECT).as_posix(): ast.unparse(tree) for path, tree in sources()}
    assert "cublas.gemmStridedBatchedEx" in texts["tinytensor/kernels/cupy/products.py"]
    assert "nccl.NCCL_SUM" in texts["tinytensor/distributed/nccl.py"]
    assert "xp.cumsum" in texts["tinytensor/device/summation.py"]
    assert "xp.isfinite" in texts["tinytensor/ops/reductions.py"]
    assert "xp.zeros" in texts["tinyformer/models/attention.py"]
    assert "def same_lead" in texts["tinytensor/kernels/numpy/attention.py"]
    assert "xp.vecdot" not in texts["tinytensor/kernels/numpy/normalization.py"]
