"""Random programs over all of tinytensor's ops, and the same ops in NumPy.

A program is a few lines of Python, each of which makes one value of the ones before it: what ``Writer`` draws, what fails is
printed as, and what a reader can run. Each line is drawn from STEPS, where a function writes a valid call of one op with random
settings. ``Reference`` computes the same lines in NumPy, in float64.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import cases
import numpy as np

import tinytensor as tt

FLOATS = ("float64", "float32", "float16")
LARGEST = 300.0  # larger values are not used: they overflow in float16, and differences lose digits


@dataclass
class Program:
    """Lines of Python over leaves, of which those of floating-point numbers require gradients. ``out`` is the result."""

    leaves: dict[str, Any]
    steps: dict[str, str]  # the line of each value that is no leaf
    dtypes: dict[str, str]  # which each value must have
    out: str = ""

    def __str__(self) -> str:
        return "\n".join(
            ["import numpy as np", "import tinytensor as tt", *map(written_out, *zip(*self.leaves.items())), *self.lines()]
        )

    def lines(self) -> list[str]:
        """The steps. Dropout draws the same numbers in each run."""
        seeded = "with tt.random.using(np.random.default_rng(5)): "
        return [f"{seeded * ('dropout' in text)}{name} = {text}" for name, text in self.steps.items()]

    @functools.cached_property
    def code(self) -> Any:
        return compile("\n".join(self.lines()), "<program>", "exec")

    def tensors(self) -> dict[str, tt.Tensor]:
        return {name: tt.tensor(array, requires_grad=array.dtype.kind == "f") for name, array in self.leaves.items()}

    def run(self, leaves: dict[str, tt.Tensor] | None = None, as_far_as_it_goes: bool = False) -> dict[str, tt.Tensor]:
        """Every value by name."""
        values = {"tt": tt, "np": np, **(leaves or self.tensors())}
        with suppress(Exception) if as_far_as_it_goes else nullcontext():
            exec(self.code, values)
        return {name: values[name] for name in (*self.leaves, *self.steps) if name in values}

    def ending_at(self, out: str) -> Program:
        """The program with another result, without the lines that this does not need."""
        wanted, steps = {out}, {}
        for name, text in reversed(self.steps.items()):
            if name in wanted:
                steps[name] = text
                wanted |= set(operands(text))
        leaves = {name: array for name, array in self.leaves.items() if name in wanted}
        return Program(leaves, dict(reversed(steps.items())), self.dtypes, out)

    def with_leaf(self, name: str, array: Any) -> Program:
        """The program with a line replaced by a leaf."""
        steps = {other: text for other, text in self.steps.items() if other != name}
        return Program({**self.leaves, name: array}, steps, self.dtypes).ending_at(self.out)


def written_out(name: str, array: Any) -> str:
    """The line of Python that makes a leaf."""
    shape = "" if array.size else f".reshape({array.shape})"  # a list of nothing has lost the other lengths
    wants = ", requires_grad=True" if array.dtype.kind == "f" else ""
    return f"{name} = tt.tensor(np.array({array.tolist()}, {str(array.dtype)!r}){shape}{wants})"


def operands(text: str) -> list[str]:
    return re.findall(r"\bv\d+\b", text)


# ----------------------------------------------------------------------------------------------------- the same in NumPy


def floating(f: Callable[..., Any]) -> Callable[..., Any]:
    """f of floats: of integers and booleans NumPy would compute some functions in float16."""

    def call(*args: Any, **settings: Any) -> Any:
        return f(*[x.astype(float) if hasattr(x, "dtype") and x.dtype.kind in "biu" else x for x in args], **settings)

    return call


def stable_argsort(x: Any, axis: int = -1, descending: bool = False) -> Any:
    return np.argsort(-x.astype(float) if descending else x, axis, kind="stable")


def sort(x: Any, axis: int = -1, descending: bool = False) -> Any:
    return np.take_along_axis(x, stable_argsort(x, axis, descending), axis)


def topk(x: Any, k: int, axis: int = -1, largest: bool = True) -> Any:
    places = stable_argsort(x, axis, largest).take(range(k), axis)
    return np.take_along_axis(x, places, axis), places


def scatter(values: Any, index: Any, shape: Any) -> Any:
    out = np.zeros(shape, values.dtype)
    np.add.at(out, index, values)
    return out


def sum_rows(rows: Any, ids: Any, count: int) -> Any:
    return np.stack([rows[ids == i].sum(0) for i in range(count)])


def norm(x: Any, ord: float = 2, axis: Any = None, keepdims: bool = False) -> Any:
    if ord == np.inf:
        return np.max(np.abs(x), axis=axis, keepdims=keepdims)
    return np.sum(np.abs(x) ** ord, axis=axis, keepdims=keepdims) ** (1 / ord)


def attention(q: Any, k: Any, v: Any, mask: Any = True, is_causal: bool = False, scale: Any = None) -> Any:
    past = np.tri(q.shape[-2], k.shape[-2], k.shape[-2] - q.shape[-2], dtype=bool) if is_causal else True
    return cases.attention(q, k, v, mask & past, scale)


def multi_head_attention(x: Any, num_heads: int, memory: Any = None, is_causal: bool = False) -> Any:
    assert num_heads == 2
    keys = (x if memory is None else memory).shape[1]
    return cases.by_heads(x, memory, mask=np.tri(x.shape[1], keys, keys - x.shape[1], dtype=bool) if is_causal else True)


class Reference:
    """What ``tt`` is where a program runs in NumPy: NumPy's function of that name, or one of those above."""

    def __init__(self) -> None:
        own = {
            "tensor": np.array,
            "argsort": stable_argsort,
            "sort": sort,
            "topk": topk,
            "scatter": scatter,
            "sum_rows": sum_rows,
            "embedding": lambda ids, weight: weight[ids],
            "index_add": lambda x, index, values, axis: cases.index_added(x, values, index, axis),
            "one_hot": lambda ids, n: np.eye(n)[ids],
            "masked_fill": lambda x, mask, value: np.where(mask, value, x),
            "causal_mask": lambda n, m: np.tri(n, m, m - n, dtype=bool),
            "relu": lambda x: np.maximum(x, 0),
            "clip": lambda x, min=None, max=None: np.clip(x, min, max),
            "cummax": np.maximum.accumulate,
            "prod": lambda x, axis=None, keepdims=False: np.prod(x, axis=axis, keepdims=keepdims),
        }
        computed = {
            "erf": lambda x: cases.erf(x) if x.size else x,
            "sigmoid": cases.sigmoid,
            "rsqrt": lambda x: x**-0.5,
            "reciprocal": lambda x: 1.0 / x,
            "leaky_relu": lambda x, slope: np.where(x > 0, x, slope * x),
            "elu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
            "softplus": lambda x: np.logaddexp(x, 0),
            "logsigmoid": lambda x: -np.logaddexp(-x, 0),
            "silu": lambda x: x * cases.sigmoid(x),
            "glu": lambda x, axis=-1: np.split(x, 2, axis)[0] * cases.sigmoid(np.split(x, 2, axis)[1]),
            "gelu": lambda x, kind="none": cases.gelu_tanh(x) if kind == "tanh" else Reference.gelu_exact(x),
            "softmax": cases.softmax,
            "log_softmax": cases.log_softmax,
            "logsumexp": cases.logsumexp,
            "norm": norm,
            "linear": cases.linear,
            "layer_norm": cases.layer_norm,
            "rms_norm": cases.rms_norm,
            "dropout": lambda x, p: x * cases.survivors(x.shape, 1 - p),
            "scaled_dot_product_attention": attention,
            "multi_head_attention": multi_head_attention,
            "cross_entropy": cases.cross_entropy,
            "linear_cross_entropy": lambda x, w, t, **k: cases.cross_entropy(x @ w.T, t, **k),
            "mse_loss": cases.mse_loss,
            "binary_cross_entropy_with_logits": cases.binary_cross_entropy_with_logits,
        }
        names = "sqrt exp expm1 exp2 log log1p log2 log10 sin cos tanh sinh cosh arcsin arccos arctan logaddexp mean var std"
        computed |= {name: getattr(np, name) for name in names.split()}
        self.functions = {**own, **{name: floating(f) for name, f in computed.items()}}

    @staticmethod
    def gelu_exact(x: Any) -> Any:
        return cases.gelu_exact(x) if x.size else x

    def __getattr__(self, name: str) -> Any:
        return self.functions[name] if name in self.functions else getattr(np, name)


reference = Reference()


def in_numpy(text: str, values: dict[str, Any]) -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(eval(text, {"tt": reference, "np": np, **values}))


def as_float64(array: Any) -> Any:
    return array.astype("float64") if array.dtype.kind == "f" else array


# ------------------------------------------------------------------------------------------------------------ the writer


@dataclass
class Value:
    name: str
    array: Any  # in float64, where it is floating-point
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def kind(self) -> str:
        return self.array.dtype.kind

    def __str__(self) -> str:
        return self.name


class NotHere(Exception):
    """The values made so far do not suit this op."""


class Writer:
    """Draws a program. The methods are what STEPS are written with."""

    def __init__(self, seed: int, dtypes: tuple[str, ...] = ("float64",)):
        self.rng = np.random.default_rng(seed)
        self.dtypes = dtypes
        self.program = Program({}, {}, {})
        self.values: list[Value] = []
        self.base = [int(n) for n in self.rng.choice([0, 1, 2, 3, 4], self.rng.integers(0, 4), p=[0.04, 0.16, 0.3, 0.3, 0.2])]
        for _ in range(self.rng.integers(1, 4)):
            self.leaf(self.broadcastable())
        if self.chance(0.3):
            self.leaf(self.broadcastable(), "i")

    # -- chance

    def chance(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def choice(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def integer(self, low: int, high: int) -> int:
        """low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def number(self) -> float:
        return self.choice([round(float(self.rng.uniform(-2, 2)), 2), 0.5, 2.0, -1.5, self.integer(0, 3)])

    # -- values

    def leaf(self, shape: Any, kind: str = "f") -> Value:
        """A new leaf: floating-point, or of integers, or booleans."""
        dtype = {"f": self.choice(self.dtypes), "i": self.choice(["int64", "uint8"]), "b": "bool"}[kind]
        if kind == "f":  # few digits, which are read more easily, and no zeros, at which many functions have a kink
            drawn = self.rng.choice([-1, 1], shape) * np.round(0.001 + np.abs(self.rng.standard_normal(shape)), 3)
        else:
            drawn = self.rng.integers(0, 2 if kind == "b" else 5, shape)
        array = np.asarray(drawn).astype(dtype)
        self.program.leaves[f"v{len(self.values)}"] = array
        return self.add(f"v{len(self.values)}", as_float64(array), dtype)

    def add(self, name: str, array: Any, dtype: str) -> Value:
        self.values.append(Value(name, array, dtype))
        self.program.dtypes[name] = dtype
        return self.values[-1]

    def broadcastable(self) -> tuple[int, ...]:
        """A shape that broadcasts against the others that are drawn like this."""
        start = self.integer(0, len(self.base)) if self.chance(0.3) else 0
        return tuple([1 if self.chance(0.2) else n for n in self.base[start:]])

    def pick(self, kinds: str = "fiub", where: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value of one of the kinds, rather a late one."""
        found = [v for v in self.values if v.kind in kinds and where(v)]
        if not found:
            raise NotHere
        return found[-1] if self.chance(0.4) else self.choice(found)

    def f(self, min_ndim: int = 0) -> Value:
        return self.pick("f", lambda v: v.array.ndim >= min_ndim)

    def n(self, min_ndim: int = 0) -> Value:
        """Numbers: no booleans."""
        return self.pick("fiu", lambda v: v.array.ndim >= min_ndim)

    def any(self, min_ndim: int = 0) -> Value:
        return self.pick("fiub", lambda v: v.array.ndim >= min_ndim)

    def with_it(self, x: Value, kinds: str = "fiu") -> Value:
        """A value that broadcasts with x."""
        return self.pick(kinds, lambda v: fits(x.shape, v.shape))

    def of(self, shape: tuple[int, ...], kinds: str = "f") -> str:
        """Something of the shape: a value, a view of one, or a new leaf."""
        ways: list[str] = []
        for v in self.values:
            if v.kind in kinds:
                if v.shape == shape:
                    ways += [v.name] * 3
                elif v.array.size and stretches(v.shape, shape):
                    ways.append(f"tt.broadcast_to({v}, {shape})")
                elif v.array.size == np.prod(shape):
                    ways.append(f"tt.reshape({v}, {shape})")
                elif v.shape[::-1] == shape:
                    ways.append(f"tt.transpose({v})")
        if not ways or self.chance(0.2):
            return self.leaf(shape, kinds[0]).name
        return self.choice(ways)

    def mask(self, shape: tuple[int, ...]) -> str:
        """A condition that broadcasts to the shape."""
        found = [v.name for v in self.values if v.kind == "b" and stretches(v.shape, shape)]
        same = [f"({v} > {self.choice([0, 0.25])})" for v in self.values if v.kind == "f" and v.shape == shape]
        return self.choice(found + same) if found + same else self.leaf(shape, "b").name

    # -- settings

    def axis(self, x: Value) -> int:
        if not x.array.ndim:
            raise NotHere
        return self.integer(-x.array.ndim, x.array.ndim - 1)

    def over(self, x: Value) -> str:
        """``axis`` and ``keepdims`` of a reduction."""
        ndim = x.array.ndim
        several = tuple(int(a) for a in self.rng.permutation(ndim)[: self.integer(0, ndim)])
        axis = self.choice([None, *range(-ndim, ndim), several])
        return f", axis={axis}" + f", keepdims={self.chance()}" * self.chance()

    def shape_of(self, size: int) -> tuple[int, ...]:
        """Some shape with so many elements."""
        if size == 0:
            return self.choice([(0,), (2, 0), (0, 3)])
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        first = self.choice(divisors)
        return self.choice([(size,), (first, size // first), (1, first, size // first), (size, 1)])

    def ids(self, count: int, shape: tuple[int, ...]) -> list[Any]:
        if not count:
            raise NotHere
        return self.rng.integers(0, count, shape).tolist()

    def index(self, x: Value) -> str:
        """Any of NumPy's ways to index x."""
        parts = []
        for n in x.shape[: self.integer(0, x.array.ndim)]:
            way = self.choice(["slice", "slice", "step", "int", "list", "None", "all"])
            if way in ("int", "list") and not n:
                way = "all"
            low = self.integer(0, max(n - 1, 0))
            parts.append({
                "slice": f"{low}:{self.integer(low, n)}", "step": f"::{self.choice([-2, -1, 2])}", "int": str(low - n * self.chance()),
                "list": str(self.rng.integers(-n, n, 3).tolist()) if n else "", "None": "None", "all": ":",
            }[way])  # fmt: skip
        return ", ".join(parts) or "..."

    # -- the program

    def step(self, op: str) -> None:
        """Add a line that calls the op, where the values allow one whose result stays small."""
        before, leaves = len(self.values), dict(self.program.leaves)
        try:
            written = STEPS[op](self)
            text, dtype = written if isinstance(written, tuple) else (written, None)
            array = in_numpy(text, {v.name: v.array for v in self.values})
            if array.size > 64 or not (np.isfinite(array).all() and (np.abs(array.astype(float)) < LARGEST).all()):
                raise NotHere
        except (NotHere, ValueError, IndexError, ZeroDivisionError):
            del self.values[before:]
            self.program.leaves = leaves
            return
        name = f"v{len(self.values)}"
        self.program.steps[name] = text
        self.add(name, array, dtype or self.dtype_of(text, array))

    def dtype_of(self, text: str, array: Any) -> str:
        """The dtype that the result must have: of its floating-point operands together, or float32 where there are none."""
        if array.dtype.kind != "f":
            return str(array.dtype)
        without_masks = re.sub(r"\(v\d+ > [\d.]+\)", "", text)
        return promoted([self.program.dtypes[name] for name in operands(without_masks)])

    def write(self, length: int) -> Program:
        for _ in range(length):
            self.step(self.choice(OPS))
        self.program.out = self.result()
        return self.program

    def result(self) -> str:
        """The last value that gradients flow to, or with all others that nothing used yet joined to it."""
        reached = {name for name, array in self.program.leaves.items() if array.dtype.kind == "f"}
        for v in self.values:
            if v.kind == "f" and reached & set(operands(self.program.steps.get(v.name, ""))):
                reached.add(v.name)
        used = {name for text in self.program.steps.values() for name in operands(text)}
        ends = [v for v in self.values if v.name in reached and v.name not in used] or [self.values[0]]
        if self.chance() or len(ends) == 1:
            return ends[-1].name
        text = f"tt.concatenate([{', '.join(f'tt.reshape({v}, -1)' for v in ends)}])"
        array = in_numpy(text, {v.name: v.array for v in ends})
        self.program.steps[name := f"v{len(self.values)}"] = text
        self.add(name, array, self.dtype_of(text, array))
        return name


def fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1]))


def stretches(a: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return fits(a, to) and np.broadcast_shapes(a, to) == to


def promoted(dtypes: list[str]) -> str:
    floats = [d for d in dtypes if d.startswith("float")]
    return str(np.result_type(*floats)) if floats else "float32"


def loss_dtype(w: Writer, *names: str) -> str:
    """A loss of half precision is float32."""
    return promoted([*[w.program.dtypes[n] for name in names for n in operands(name)], "float32"])


# --------------------------------------------------------------------------------------------------------------- the ops

STEPS: dict[str, Callable[[Writer], Any]] = {}


def steps(names: str, write: Callable[[Writer, str], Any]) -> None:
    for name in names.split():
        STEPS[name] = lambda w, name=name: write(w, name)


def binary(w: Writer, op: str, operator: str, kinds: str = "fiu") -> str:
    """Two tensors, or a tensor and a number on either side; by name or by operator."""
    x = w.pick(kinds)
    y: Any = w.with_it(x, kinds) if w.chance(0.7) else w.number()
    if isinstance(y, float) and y < 0 and x.kind == "u":
        y = -y
    left, right = (x, y) if w.chance() else (y, x)
    return f"{left} {operator} {right}" if operator and w.chance() else f"tt.{op}({left}, {right})"


def loss(w: Writer, name: str) -> Any:
    x = w.f()
    target = w.of(x.shape)
    if name == "binary_cross_entropy_with_logits":
        target = f"tt.sigmoid({target})"
    return f"tt.{name}({x}, {target}, reduction={w.choice(['mean', 'sum', 'none'])!r})", loss_dtype(w, x.name, target)


def class_loss(w: Writer, name: str) -> Any:
    classes, shape = w.integer(2, 4), w.choice([(3,), (2, 2), (), (1,)])
    reduction = w.choice(["mean", "sum", "none"] if name == "cross_entropy" else ["mean", "sum"])
    settings = f"reduction={reduction!r}, label_smoothing={w.choice([0.0, 0.1])}, ignore_index={w.choice([-100, 0])}"
    targets = f"tt.tensor({w.ids(classes, shape)})"
    if name == "cross_entropy":
        x = w.of((*shape, classes))
        return f"tt.cross_entropy({x}, {targets}, {settings})", loss_dtype(w, x)
    x, weight = w.of((*shape, 3)), w.of((classes, 3))
    return f"tt.linear_cross_entropy({x}, {weight}, {targets}, {settings})", loss_dtype(w, x, weight)


def matmul(w: Writer, name: str) -> str:
    n, k, m = [w.integer(1, 3) for _ in range(3)]
    lead, other = w.choice([((), ()), ((2,), ()), ((2,), (2,)), ((), (2,)), ((2, 1), (2,))])
    x = w.of(w.choice([(*lead, n, k), (k,)]))
    y = w.of(w.choice([(*other, k, m), (k,)]))
    return w.choice([f"{x} @ {y}", f"tt.matmul({x}, {y})"])


def einsum(w: Writer, name: str) -> str:
    text, *shapes = w.choice([
        ("ij,jk->ik", (2, 3), (3, 2)), ("ij->ji", (2, 3)), ("ij,ij->", (2, 3), (2, 3)), ("ii->i", (3, 3)), ("ii", (3, 3)),
        ("i,j->ij", (3,), (2,)), ("...ij,...jk->...ik", (2, 2, 3), (3, 2)), ("ij->", (2, 3)), ("bij,bjk->bk", (2, 2, 3), (2, 3, 2)),
        ("i,ij,j->", (2,), (2, 3), (3,)), ("ij->i", (3, 2)), ("i,i", (3,), (3,)),
    ])  # fmt: skip
    return f"tt.einsum({text!r}, {', '.join(w.of(shape) for shape in shapes)})"


def attend(w: Writer, name: str) -> str:
    lead, (t, s), d = w.choice([(), (2,), (2, 2)]), (w.integer(1, 3), w.integer(1, 3)), w.integer(1, 3)
    mask = f", mask={w.mask((t, s))}" if w.chance() else ""
    x = f"{w.of((*lead, t, d))}, {w.of((*lead, s, d))}, {w.of((*lead, s, 2))}"
    return f"tt.scaled_dot_product_attention({x}{mask}, is_causal={w.chance()})"


def attend_by_heads(w: Writer, name: str) -> str:
    b, t, s = [w.integer(1, 2) for _ in range(3)]
    x = w.of((b, t, 12)) if w.chance() else f"{w.of((b, t, 4))}, memory={w.of((b, s, 8))}"
    return f"tt.multi_head_attention({x}, num_heads=2, is_causal={w.chance()})"


def gathered(w: Writer, name: str) -> str:
    x = w.any(1)
    a = w.axis(x)
    shape = [w.integer(1, 3) if i == a % x.array.ndim else n for i, n in enumerate(x.shape)]
    return f"tt.take_along_axis({x}, tt.tensor({w.ids(x.shape[a], tuple(shape))}), {a})"


def scattered(w: Writer, name: str) -> str:
    shape = w.choice([(4,), (3, 2), (2, 3)])
    index = w.choice([w.ids(shape[0], (3,)), slice(0, 2), 1, (w.ids(shape[0], (2,)), Ellipsis)])
    picked = np.zeros(shape)[index].shape
    return f"tt.scatter({w.of(picked)}, {str(index).replace('Ellipsis', '...')}, {shape})"


def index_add(w: Writer, name: str) -> str:
    x = w.f(1)
    a, n = w.axis(x), w.integer(0, 3)
    shape = tuple([n if i == a % x.array.ndim else m for i, m in enumerate(x.shape)])
    return f"tt.index_add({x}, {w.ids(x.shape[a], (n,))}, {w.of(shape)}, {a})"


def joined(w: Writer, name: str) -> str:
    x = w.any(0 if name == "stack" else 1)
    others = [w.of(x.shape, x.kind if x.kind != "u" else "i") for _ in range(w.integer(0, 2))]
    tensors = ", ".join(map(str, [x, *others]))
    if name in ("hstack", "vstack"):
        return f"tt.{name}([{tensors}])"
    return f"tt.{name}([{tensors}], {w.integer(0, x.array.ndim) if name == 'stack' else w.choice([None, w.axis(x)])})"


def weighted_norm(w: Writer, name: str) -> str:
    x = w.f(1)
    weights = [w.of(x.shape[-1:]) for _ in range(w.integer(0, 2 if name == "layer_norm" else 1))]
    return f"tt.{name}({', '.join(map(str, [x, *weights]))}, eps={w.choice([0.1, 0.5])})"


def stretched(w: Writer, name: str) -> str:
    x = w.any()
    shape = tuple([w.integer(1, 3) if n == 1 else n for n in x.shape])
    return f"tt.broadcast_to({x}, {(w.integer(1, 2), *shape) if w.chance() else shape})"


def positive(x: Value) -> str:
    return f"(tt.abs({x}) + {0.5 if x.kind == 'f' else 1})"


def cut(w: Writer, name: str) -> str:
    x = w.any(1)
    a = w.axis(x)
    places = w.choice([1, x.shape[a] or 1, sorted(w.ids(x.shape[a] + 1, (2,)))])
    pieces = places if isinstance(places, int) else 3
    return f"tt.split({x}, {places}, {a})[{w.integer(0, pieces - 1)}]"


def diagonal(w: Writer, name: str) -> str:
    x = w.any(2)
    return f"tt.diagonal({x}, {w.integer(-1, 1)}, {w.choice(['0, 1', '-1, 0', '-2, -1'])})"


def padded(w: Writer, name: str) -> str:
    x = w.any(1)
    pairs = [(w.integer(0, 2), w.integer(0, 1)) for _ in x.shape]
    return f"tt.pad({x}, {w.choice([1, (1, 0), pairs])})"


steps("negative relu square sign abs", lambda w, op: f"tt.{op}({w.n()})")
steps(
    "sin cos tanh sigmoid erf softplus silu gelu exp expm1 arctan sinh cosh exp2 logsigmoid elu",
    lambda w, op: f"tt.{op}({w.any()})",
)
steps("floor ceil round trunc", lambda w, op: f"tt.{op}({w.n()} * {w.choice([1, 1.7, 2.5])})")
steps("sqrt rsqrt log log2 log10 reciprocal", lambda w, op: f"tt.{op}({positive(w.any())})")
steps("log1p", lambda w, op: f"tt.log1p(tt.abs({w.any()}))")
steps("arcsin arccos", lambda w, op: f"tt.{op}(tt.tanh({w.any()}) * 0.9)")
steps("leaky_relu", lambda w, op: f"tt.leaky_relu({w.n()}, 0.1)")
steps("add", lambda w, op: binary(w, op, "+"))
steps("subtract", lambda w, op: binary(w, op, "-"))
steps("multiply", lambda w, op: binary(w, op, "*"))
steps("maximum minimum logaddexp", lambda w, op: binary(w, op, ""))
steps("divide", lambda w, op: w.choice(["tt.divide({}, {})", "{} / {}"]).format(x := w.any(), positive(w.with_it(x))))
steps(
    "floor_divide",
    lambda w, op: w.choice(["tt.floor_divide({}, {})", "{} // {}"]).format(x := w.n(), f"(tt.abs({w.with_it(x)}) + 1)"),
)
steps(
    "remainder", lambda w, op: w.choice(["tt.remainder({}, {})", "{} % {}"]).format(x := w.n(), f"(tt.abs({w.with_it(x)}) + 1)")
)
steps("power", lambda w, op: w.choice([f"tt.power({positive(x := w.n())}, {w.with_it(x)})", f"{w.f()} ** {w.choice([2, 3, 2.0, 0, 1])}",
                                       f"{positive(w.f())} ** {w.choice([-1, 0.5, -0.5, 1.3])}", f"2.0 ** {w.f()}"]))  # fmt: skip
steps(
    "equal not_equal less less_equal greater greater_equal", lambda w, op: f"tt.{op}({(x := w.any())}, {w.with_it(x, 'fiub')})"
)
steps("logical_and logical_or logical_xor", lambda w, op: f"tt.{op}({(x := w.any())}, {w.with_it(x, 'fiub')})")
steps("isnan isfinite isinf logical_not", lambda w, op: f"tt.{op}({w.any()})")
steps("isclose", lambda w, op: f"tt.isclose({(x := w.n())}, {w.with_it(x)})")
steps("where", lambda w, op: f"tt.where({w.mask((x := w.n()).shape)}, {x}, {w.with_it(x) if w.chance() else w.number()})")
steps("masked_fill", lambda w, op: f"tt.masked_fill({(x := w.f())}, {w.mask(x.shape)}, {w.number()})")
steps("clip", lambda w, op: f"tt.clip({w.f()}, {w.choice(['-0.5, 0.7', 'None, 0.3', '0.1', '0.0, None'])})")
steps("sum mean var std prod max min logsumexp", lambda w, op: f"tt.{op}({(x := w.n())}{w.over(x)})")
steps("norm", lambda w, op: f"tt.norm({(x := w.n())}, {w.choice(['2', '1', 'np.inf'])}{w.over(x)})")
steps("any all", lambda w, op: f"tt.{op}({(x := w.any())}{w.over(x)})")
steps("cumsum cumprod", lambda w, op: f"tt.{op}({(x := w.n(1))}, {w.choice([None, w.axis(x)])})")
steps("cummax", lambda w, op: f"tt.cummax({(x := w.n(1))}, {w.axis(x)})[0]")
steps("argmax argmin", lambda w, op: f"tt.{op}({(x := w.n(1))}, {w.choice([None, w.axis(x)])})")
steps("softmax log_softmax", lambda w, op: f"tt.{op}({(x := w.any(1))}, {w.axis(x)})")
steps("glu", lambda w, op: f"tt.glu({w.of((2, 4))}, {w.choice([0, 1, -1])})")
steps("sort argsort", lambda w, op: f"tt.{op}({(x := w.n(1))}, {w.axis(x)})")
steps("topk", lambda w, op: f"tt.topk({(x := w.n(1))}, {w.integer(0, x.shape[-1])})[{w.integer(0, 1)}]")
steps(
    "astype",
    lambda w, op: (
        (f"tt.astype({(x := w.f())}, {x.dtype!r})", x.dtype) if w.chance() else (f"tt.astype({w.any()}, 'int64')", "int64")
    ),
)
steps("broadcast_to", stretched)
steps("concatenate stack hstack vstack", joined)
steps("expand_dims", lambda w, op: f"tt.expand_dims({(x := w.any())}, {w.integer(-x.array.ndim - 1, x.array.ndim)})")
steps("flip", lambda w, op: f"tt.flip({(x := w.any(1))}, {w.choice([None, w.axis(x)])})")
steps("roll", lambda w, op: f"tt.roll({(x := w.any(1))}, {w.integer(-2, 3)}, {w.choice([None, w.axis(x)])})")
steps("moveaxis swapaxes", lambda w, op: f"tt.{op}({(x := w.any(1))}, {w.axis(x)}, {w.axis(x)})")
steps("pad", padded)
steps("repeat", lambda w, op: f"tt.repeat({(x := w.any(1))}, {w.integer(0, 2)}, {w.choice([None, w.axis(x)])})")
steps("reshape", lambda w, op: f"tt.reshape({(x := w.any())}, {w.shape_of(x.array.size)})")
steps("split", cut)
steps("squeeze", lambda w, op: f"tt.squeeze({w.any()})")
steps("tile", lambda w, op: f"tt.tile({w.any()}, {w.choice([2, (2, 1), (1, 2)])})")
steps(
    "transpose", lambda w, op: f"tt.transpose({(x := w.any())}, {w.choice([None, w.rng.permutation(x.array.ndim).tolist()])})"
)
steps("tril triu", lambda w, op: f"tt.{op}({w.any(2)}, {w.integer(-1, 1)})")
steps("diag", lambda w, op: f"tt.diag({w.pick(where=lambda v: v.array.ndim in (1, 2))}, {w.integer(-1, 1)})")
steps("diagonal", diagonal)
steps("getitem", lambda w, op: f"{(x := w.any(1))}[{w.index(x)}]" if w.chance(0.8) else f"{(x := w.any(1))}[{w.mask(x.shape)}]")
steps("take", lambda w, op: f"tt.take({(x := w.any(1))}, {w.ids(x.shape[a := w.axis(x)], (3,))}, {a})")
steps("take_along_axis", gathered)
steps("scatter", scattered)
steps("index_add", index_add)
steps("one_hot", lambda w, op: (f"tt.one_hot(tt.tensor({w.ids(4, (3,))}), 4)", "float32"))
steps("embedding", lambda w, op: f"tt.embedding(tt.tensor({w.ids(3, w.choice([(2,), (2, 2), ()]))}), {w.of((3, 2))})")
steps("sum_rows", lambda w, op: f"tt.sum_rows({w.of((4, 2))}, tt.tensor({w.ids(3, (4,))}), 3)")
steps("matmul", matmul)
steps("einsum", einsum)
steps("outer", lambda w, op: f"tt.outer({w.f()}, {w.f()})")
steps(
    "tensordot",
    lambda w, op: f"tt.tensordot({w.of((2, 3))}, {w.of((3, 2))}, {w.choice(['1', '([1], [0])', '([0, 1], [1, 0])', '0'])})",
)
steps("linear", lambda w, op: f"tt.linear({(x := w.f(1))}, {w.of((2, x.shape[-1]))}{w.choice(['', ', ' + w.of((2,))])})")
steps("layer_norm rms_norm", weighted_norm)
steps("dropout", lambda w, op: f"tt.dropout({w.f()}, {w.choice([0.3, 0.0, 1.0])})")
steps("scaled_dot_product_attention", attend)
steps("multi_head_attention", attend_by_heads)
steps("causal_mask", lambda w, op: f"tt.causal_mask({w.integer(1, 3)}, {w.integer(1, 3)})")
steps("cross_entropy linear_cross_entropy", class_loss)
steps("mse_loss binary_cross_entropy_with_logits", loss)

OPS = [name for name in STEPS if hasattr(tt, name)]
