"""The fake CuPy (``tests/standin``): does it refuse what CuPy refuses, and does a model train on it as on NumPy?

Both run in processes of their own: the fake CuPy takes CuPy's name, and a process has one backend.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, backend: str, *arguments: str) -> str:
    """The output of the code in a new process with this backend. CuPy is the fake CuPy."""
    environment = {
        **os.environ,
        "TINYTENSOR_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "standin"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


# ------------------------------------------------------------------------------------------ the fake CuPy is strict

REFUSED = {
    "a NumPy array from numpy.asarray": ("numpy.asarray(x)", "TypeError", "Implicit conversion"),
    "a NumPy function": ("numpy.sum(x)", "TypeError", ""),
    "a NumPy array on the right": ("x + h", "TypeError", "Unsupported type"),
    "a NumPy array on the left": ("h + x", "TypeError", "Unsupported type"),
    "a NumPy array in place": ("x.__iadd__(h)", "TypeError", "Unsupported type"),
    "a CuPy array added to a NumPy array in place": ("h.__iadd__(x)", "TypeError", "Unsupported type"),
    "a NumPy array compared": ("x == h", "TypeError", "Unsupported type"),
    "a NumPy array in matmul": ("x @ h", "TypeError", "Unsupported type"),
    "a list on the right": ("x + [1.0, 2.0, 3.0]", "TypeError", "Unsupported type"),
    "a list on the left": ("[1.0, 2.0, 3.0] * x", "TypeError", "Unsupported type"),
    "a NumPy array in a ufunc": ("cupy.exp(h)", "TypeError", "Unsupported type"),
    "a list in a ufunc": ("cupy.maximum(x, [1, 2, 3])", "TypeError", "Unsupported type"),
    "a NumPy array in a function": ("cupy.sum(h)", "TypeError", "Unsupported type"),
    "a number in a reduction": ("cupy.sum(1.0)", "TypeError", "Unsupported type"),
    "a list in where": ("cupy.where([True, False, True], x, 0.0)", "TypeError", "Unsupported type"),
    "a NumPy array in where": ("cupy.where(x > 0, x, h)", "TypeError", "Unsupported type"),
    "NumPy arrays in concatenate": ("cupy.concatenate([x, h])", "TypeError", "Unsupported type"),
    "a NumPy array in einsum": ("cupy.einsum('i,i->', x, h)", "TypeError", "Unsupported type"),
    "a batch of products": ("x.reshape(1, 1, 3) @ x.reshape(1, 3, 1)", "TypeError", "no TF32"),
    "one matrix for a batch": ("x.reshape(1, 1, 3) @ x.reshape(3, 1)", "TypeError", "use kernels.matmul"),
    "a batch in bfloat16": ("short.reshape(1, 1, 3) @ short.reshape(3, 1)", "TypeError", "CuPy crashes in a product"),
    "a batch in bfloat16 in matmul": ("cupy.matmul(x.reshape(3, 1), short.reshape(1, 1, 3))", "TypeError", "CuPy crashes"),
    "a contraction in bfloat16": ("cupy.einsum('ij,ij->i', short[None], short[None])", "TypeError", "CuPy crashes where"),
    "a list as an index": ("x[[0, 1]]", "TypeError", "Unsupported type"),
    "a NumPy array as an index": ("x[numpy.array([0, 1])]", "TypeError", "Unsupported type"),
    "a NumPy array as a value": ("x.__setitem__(slice(None), h)", "TypeError", "Unsupported type"),
    "a NumPy array as out": ("cupy.exp(x, out=h)", "TypeError", "Unsupported type"),
    "floats as an index": ("x[x]", "IndexError", ""),
    "an integer out of range": ("x[3]", "IndexError", ""),
    "a repeated index": ("x.__setitem__(cupy.array([0, 0]), cupy.ones(2))", "ValueError", "undefined"),
    "a repeated index, once wrapped": ("x.__setitem__(cupy.array([0, 3]), cupy.ones(2))", "ValueError", "undefined"),
    "an array as a Python index": ("[1, 2, 3][cupy.array(1)]", "TypeError", ""),
    "an array as a length": ("range(cupy.array(1))", "TypeError", ""),
    "an array as a key": ("{x: 1}", "TypeError", "unhashable"),
    "where= of sum": ("cupy.sum(x, where=x > 0)", "TypeError", "where"),
    "initial= of sum": ("x.sum(initial=1.0)", "TypeError", "initial"),
    "initial= of max": ("x.max(initial=0.0)", "TypeError", "initial"),
    "where= of a ufunc": ("cupy.exp(x, where=x > 0)", "TypeError", "where"),
    "out= of einsum": ("cupy.einsum('i,i->', x, x, out=x)", "TypeError", "out"),
    "bfloat16 sorted": ("cupy.sort(x.astype('bfloat16'))", "NotImplementedError", "bfloat16"),
    "quicksort": ("cupy.argsort(x, kind='quicksort')", "ValueError", "stable"),
    "at": ("cupy.multiply.at(x, cupy.array([0]), x)", "AttributeError", "at"),
    "reduceat": ("cupy.add.reduceat(x, cupy.array([0]))", "AttributeError", "reduceat"),
    "errstate": ("cupy.errstate(all='ignore')", "AttributeError", "errstate"),
    "frombuffer": ("cupy.frombuffer(b'abc')", "AttributeError", "frombuffer"),
    "the generator": ("cupy.random.default_rng(0)", "AttributeError", "random"),
    "an array of objects": ("cupy.array([None])", "ValueError", "object"),
    "a sum to the wrong type in place": ("cupy.ones(3, dtype='int64').__iadd__(0.5)", "TypeError", "cast"),
    "add.at of int64": ("cupy.add.at(cupy.ones(3, 'int64'), cupy.array([0]), 1)", "TypeError", "dtype"),
    "add.at of bfloat16": ("cupy.add.at(short, cupy.array([0]), short[:1])", "TypeError", "dtype"),
    "scatter_add, which CuPy had": ("cupy.scatter_add(x, cupy.array([0]), 1.0)", "AttributeError", "scatter_add"),
    "add.at of booleans": ("cupy.add.at(x > 0, cupy.array([0]), True)", "TypeError", "dtype"),
    "add.at to NumPy": ("cupy.add.at(h, cupy.array([0]), 1.0)", "TypeError", "Unsupported type"),
    "add.at of NumPy": ("cupy.add.at(x, cupy.array([0]), h[:1])", "TypeError", "Unsupported type"),
}

ACCEPTED = {
    "a reduction is an array": "isinstance(x.sum(), cupy.ndarray) and x.sum().shape == ()",
    "an element is an array": "isinstance(x[0], cupy.ndarray) and isinstance(x[cupy.array(0)], cupy.ndarray)",
    "an element is a view": "x[1].base is not None and x.sum().base is None and x.base is None",
    "a number keeps the dtype": "(x * 2.0).dtype == 'float32' and (2 - x).dtype == 'float32'",
    "a NumPy scalar counts as its type": "(x * numpy.float64(2.0)).dtype == 'float64'",
    "a NumPy scalar on the left": "isinstance(numpy.float32(2.0) * x, cupy.ndarray)",
    "an integer array wraps around": "x[cupy.array([0, 4, -4])].tolist() == [1.0, 2.0, 3.0]",
    "take wraps around": "x.take(cupy.array([3, -1])).tolist() == [1.0, 3.0]",
    "bfloat16 is of no kind": "short.dtype.kind == 'V' and short.dtype.name == 'bfloat16'",
    "matrices of bfloat16": "(short[None] @ short[:, None]).shape == (1, 1)",
    "a batch of integers": "(x.astype('int64').reshape(1, 1, 3) @ x.astype('int64').reshape(1, 3, 1)).tolist() == [[[14]]]",
    "the largest of nothing is an error, as in NumPy": "refused(lambda: x[:0].max()) == 'ValueError'",
    "an address": "x.data.ptr == x._host.ctypes.data and x[1:].data.ptr == x.data.ptr + 4",
    "a mask": "x[x > 1].tolist() == [2.0, 3.0]",
    "None, ellipsis, slices": "x[None, ..., ::-1].tolist() == [[3.0, 2.0, 1.0]]",
    "out= is returned": "cupy.exp(x, out=y) is y and cupy.add(x, x, y) is y",
    "in place without dimensions": "same_after_adding(cupy.array(1.0))",
    "no warnings": "not bool(cupy.isfinite(cupy.log(x * 0)).any())",
    "add.at sums": "scattered(cupy.array([0, 0, 2])) == [2.0, 0.0, 1.0]",
    "an array of the backend is not copied": "cupy.asarray(x) is x and x.astype('float32', copy=False) is x",
    "an array of NumPy is": "cupy.asarray(h)._host is not h and cupy.asnumpy(x) is not x._host",
    "the class on the other side may answer": "x + Other() == 'other' and Other() + x == 'other'",
    "reading is counted": "reads(lambda: float(x[0]), lambda: bool(x.any()), lambda: x.get(), lambda: x[x > 0]) == 4",
    "copies to the GPU are counted": "copies(lambda: cupy.array([1, 2]), lambda: cupy.asarray(h)) == [16, 12]",
    "computing copies nothing": "copies(lambda: cupy.array(x), lambda: x + numpy.float64(1), lambda: cupy.full(3, 2.0)) == []",
    "computing is not": "reads(lambda: x @ x, lambda: x[cupy.array([1])], lambda: x.sum() / x.size, lambda: len(x)) == 0",
}

TRIALS = """
    import json, sys
    import cupy, ml_dtypes, numpy

    def same_after_adding(a):
        b = a
        b += 1
        return b is a and a.tolist() == 2.0

    def scattered(index):
        out = cupy.zeros(3)
        cupy.add.at(out, index, cupy.ones(3))
        return out.tolist()

    def reads(*actions):
        before = cupy.synchronizations
        for action in actions:
            action()
        return cupy.synchronizations - before

    def copies(*actions):
        before = len(cupy.uploads)
        for action in actions:
            action()
        return cupy.uploads[before:]

    def refused(action):
        try:
            action()
        except Exception as error:
            return type(error).__name__

    class Other:
        __array_ufunc__ = None
        __add__ = __radd__ = lambda self, other: "other"

    def trial(expression):
        x, y, h = cupy.array([1, 2, 3], dtype="float32"), cupy.zeros(3, "float32"), numpy.ones(3, "float32")
        short = cupy.array(h.astype(ml_dtypes.bfloat16))
        try:
            return repr(eval(expression, {**globals(), "x": x, "y": y, "h": h, "short": short}))
        except Exception as error:
            return [kind.__name__ for kind in type(error).__mro__], str(error)

    print(json.dumps([trial(expression) for expression in json.loads(sys.argv[1])]))
"""


def test_it_refuses_and_accepts_what_cupy_does() -> None:
    """All in one process."""
    expressions = [expression for expression, _, _ in REFUSED.values()] + list(ACCEPTED.values())
    outcomes = dict(zip(expressions, json.loads(run(TRIALS, "numpy", json.dumps(expressions)))))
    for what, (expression, kind, words) in REFUSED.items():
        outcome = outcomes[expression]
        assert isinstance(outcome, list) and kind in outcome[0] and words in outcome[1], (what, outcome)
    for what, expression in ACCEPTED.items():
        assert outcomes[expression] == "True", (what, outcomes[expression])


# ------------------------------------------------------------------------------------------ the library runs on it

TRAINING = """
    import json, os, sys, tempfile
    import numpy
    import tinytensor as tt
    from tinytensor import nn, optim

    class Block(nn.Module):
        def __init__(self, width, heads):
            self.heads = heads
            self.before, self.after = nn.LayerNorm(width), nn.RMSNorm(width)
            self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Dropout(0.1), nn.Linear(4 * width, width))

        def forward(self, x):
            batch, length, width = x.shape
            packed = self.query_key_value(self.before(x)).reshape(batch, length, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
            p = 0.1 if self.training else 0.0
            mixed = tt.scaled_dot_product_attention(packed[0], packed[1], packed[2], is_causal=True, dropout_p=p)
            x = x + self.out(mixed.swapaxes(1, 2).reshape(batch, length, width))
            return x + self.mlp(self.after(x))

    class Model(nn.Module):
        def __init__(self):
            self.tokens, self.places = nn.Embedding(11, 16), nn.Embedding(8, 16)
            self.blocks = nn.Sequential(Block(16, 2), Block(16, 2))
            self.head = nn.Linear(16, 11)

        def forward(self, ids):
            return self.head(self.blocks(self.tokens(ids) + self.places(tt.arange(ids.shape[1]))))

    def mlp_losses():
        model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
        x, target = tt.random.normal((20, 5)), tt.random.integers(0, 3, 20)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(10):
            loss = tt.cross_entropy(model(x), target, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss

    def step(model, optimizer, schedule, i, ids):
        loss = tt.cross_entropy(model(ids[:, :-1]), ids[:, 1:], ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        norm = optim.clip_grad_norm(model.parameters(), 0.5)
        optimizer.step(schedule(i))
        return [loss, norm]

    tt.seed(3)
    model, schedule = Model(), optim.Cosine(warmup=3, steps=20)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    ids = tt.random.integers(0, 11, (4, 9))
    seen = []
    reads = None
    if tt.backend_name == "cupy":
        import cupy
        reads = cupy.synchronizations
    for i in range(10):
        seen += step(model, optimizer, schedule, i, ids)
    waits = None if reads is None else cupy.synchronizations - reads

    with tempfile.TemporaryDirectory() as folder:  # stop, start again from the files, and go on
        tt.save(model.state_dict(), f"{folder}/model.safetensors")
        tt.save(optimizer.state_dict(), f"{folder}/optimizer.safetensors")
        model = Model()
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        model.load_state_dict(tt.load(f"{folder}/model.safetensors"))
        optimizer.load_state_dict(tt.load(f"{folder}/optimizer.safetensors"))
    tt.seed(4)
    for i in range(10, 20):
        seen += step(model, optimizer, schedule, i, ids)
    model.eval()
    seen += [model(ids[:, :-1]).square().mean(), *mlp_losses()]
    print(json.dumps([tt.backend_name, [x.item() for x in seen], waits]))
"""


@pytest.mark.needs("standin")  # where the kernels have been compiled for other tests
def test_training_gives_the_losses_of_numpy_and_never_waits() -> None:
    name, expected, _ = json.loads(run(TRAINING, "numpy"))
    assert name == "numpy"
    name, losses, waits = json.loads(run(TRAINING, "cupy"))
    assert name == "cupy"
    assert losses == pytest.approx(expected, rel=1e-6)
    assert losses[0] > losses[38] and losses[-10] > losses[-1], "the models do not learn"
    assert waits == 0, "a training step read values from the GPU"


BORDER = """
    import numpy
    import tinytensor as tt

    x = tt.zeros((3, 2))
    x[0] = [1, 2]
    x[1:] = numpy.ones(2)
    x[[2]] = tt.tensor([5, 6])
    print(x.tolist())
    print(tt.index_add(tt.zeros(2, "int64"), [0, 0, 1], tt.tensor([-3, 1, 7])).tolist())
    print(tt.scatter(tt.tensor([1.0, 2.0]), numpy.array([1, 1]), (3,)).tolist())
    for index in (1.5, [0.5], numpy.float64(1)):
        try:
            print(x[index])
        except IndexError as error:
            print(error)
"""


def test_lists_and_numpy_arrays_cross_at_the_border_and_integers_scatter() -> None:
    assert run(BORDER, "cupy") == run(BORDER, "numpy")


# ------------------------------------------------------------------------------------------------- its cuBLAS is strict

# out (2, 3) = a (2, 4) b (4, 3) in rows, so outᵀ = bᵀ aᵀ in columns. Each fault changes one argument of the right call.
PRODUCT = """
    import json, sys
    import cupy, numpy
    from cupy_backends.cuda.libs import cublas

    a, b, out = cupy.ones((2, 4), "float32"), cupy.ones((4, 3), "float32"), cupy.full((2, 3), numpy.nan, "float32")
    factors = numpy.array([1, 0], "float32")
    one, zero = factors.ctypes.data, factors.ctypes.data + 4

    def product(name="gemmEx", **faults):
        batched = name == "gemmStridedBatchedEx"
        right = {
            "handle": cupy.cuda.get_cublas_handle(), "transa": 0, "transb": 0, "m": 3, "n": 2, "k": 4, "alpha": one,
            "A": b.data.ptr, "Atype": 0, "lda": 3, **({"strideA": 0} if batched else {}),
            "B": a.data.ptr, "Btype": 0, "ldb": 4, **({"strideB": 0} if batched else {}),
            "beta": zero, "C": out.data.ptr, "Ctype": 0, "ldc": 3, **({"strideC": 0, "batchCount": 1} if batched else {}),
            "computeType": 68, "algo": -1,
        }
        getattr(cublas, name)(*{**right, **faults}.values())
        return out.tolist()

    def trial(text):
        try:
            return eval(text)
        except cublas.CUBLASError as error:
            return str(error)

    print(json.dumps([trial(text) for text in json.loads(sys.argv[1])]))
"""

WRONG_PRODUCTS = {
    "product(handle=1)": "NOT_INITIALIZED",
    "product(transa=3)": "INVALID_VALUE",
    "product(lda=2)": "columns of A that overlap",
    "product(ldb=3)": "columns of B that overlap",
    "product(ldc=2)": "columns of C that overlap",
    "product(transa=1)": "columns of A that overlap",
    "product(lda=4)": "A reaches beyond its array",
    "product(transb=1, ldb=6)": "B reaches beyond its array",
    "product(C=out.data.ptr + 4)": "C reaches beyond its array",
    "product(A=0)": "no address of A",
    "product(B=a.data.ptr + 2)": "B is not aligned",
    "product(alpha=0)": "no address of a factor",
    "product(m=0)": "the sizes",
    "product(Atype=14)": "the types",
    "product(computeType=70)": "the compute type",
    "product(Atype=1, Btype=1, Ctype=1)": "the compute type",
    "product(algo=7)": "the algorithm",
    "product('gemmStridedBatchedEx', batchCount=2)": "all results in one place",
    "product('gemmStridedBatchedEx', strideA=-1)": "the steps",
    "product('gemmStridedBatchedEx', batchCount=2, strideC=6)": "C reaches beyond its array",
    "(cublas.setPointerMode(cupy.cuda.get_cublas_handle(), 1), product())": "a factor of the host read on the GPU",
}


def test_the_standins_products_refuse_what_cublas_refuses() -> None:
    right = ["product()", "product('gemmStridedBatchedEx')", "product(beta=one)"]  # the last adds to the others
    first, second, added, *errors = json.loads(run(PRODUCT, "numpy", json.dumps([*right, *WRONG_PRODUCTS])))
    assert first == second == [[4.0] * 3] * 2
    assert added == [[8.0] * 3] * 2
    for error, (text, said) in zip(errors, WRONG_PRODUCTS.items()):
        assert isinstance(error, str) and error.startswith("CUBLAS_STATUS_") and said in error, (text, error)
