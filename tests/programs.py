"""Random programs over all of tinytensor's ops, and the same ops in NumPy.

A program is a few lines of Python, each of which makes one value of the ones before it: what ``Writer`` draws, what fails is
printed as, and what a reader can run. Each line is drawn from STEPS, where a function writes a valid call of one op with random
settings. ``Reference`` computes the same lines in NumPy, in float64.
"""

from __future__ import annotations

import functools
import re
import warnings
from ast import literal_eval
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
        made = [written_out(name, array) for name, array in self.leaves.items()]
        return "\n".join(["import numpy as np", "import tinytensor as tt", *made, *self.lines()])

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
            "binary_cross_entropy_with_logits": lambda x, t, r: cases.reduced(np.logaddexp(0, x) - t * x, r, x.size),
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
            self.leaf(self.broadcastable(), self.choice("iu"))

    # -- chance

    def chance(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def choice(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def integer(self, low: int, high: int) -> int:
        """low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    # -- values

    def leaf(self, shape: Any, kind: str = "f") -> Value:
        """A new leaf: floating-point, or of integers, or booleans."""
        dtype = {"f": self.choice(self.dtypes), "i": "int64", "u": "uint8", "b": "bool"}[kind]
        if kind == "f":  # few digits, which are read more easily, and no zeros, at which many functions have a kink
            drawn = self.rng.choice([-1, 1], shape) * np.round(0.001 + np.abs(self.rng.standard_normal(shape)), 3)
        else:
            drawn = self.rng.integers(0, 2 if kind == "b" else 5, shape)
        name, array = f"v{len(self.values)}", np.asarray(drawn).astype(dtype)
        self.program.leaves[name] = array
        return self.add(name, as_float64(array), dtype)

    def add(self, name: str, array: Any, dtype: str) -> Value:
        self.values.append(Value(name, array, dtype))
        self.program.dtypes[name] = dtype
        return self.values[-1]

    def broadcastable(self) -> tuple[int, ...]:
        """A shape that broadcasts against the others that are drawn like this."""
        start = self.integer(0, len(self.base)) if self.chance(0.3) else 0
        return tuple([1 if self.chance(0.2) else n for n in self.base[start:]])

    def pick(self, kinds: str, where: Callable[[Value], bool]) -> Value:
        """A value of one of the kinds, rather a late one."""
        found = [v for v in self.values if v.kind in kinds and where(v)]
        if not found:
            raise NotHere
        return found[-1] if self.chance(0.4) else self.choice(found)

    def of(self, shape: tuple[int, ...], kind: str = "f") -> str:
        """Something of the shape: a value, a view of one, or a new leaf."""
        ways: list[str] = []
        for v in self.values:
            if v.kind == kind:
                if v.shape == shape:
                    ways += [v.name] * 3
                elif v.array.size and stretches(v.shape, shape):
                    ways.append(f"tt.broadcast_to({v}, {shape})")
                elif v.array.size == np.prod(shape):
                    ways.append(f"tt.reshape({v}, {shape})")
                elif v.shape[::-1] == shape:
                    ways.append(f"tt.transpose({v})")
        return self.leaf(shape, kind).name if not ways or self.chance(0.2) else self.choice(ways)

    def condition(self, shape: tuple[int, ...]) -> str:
        """Booleans that broadcast to the shape."""
        ways = [v.name for v in self.values if v.kind == "b" and stretches(v.shape, shape)]
        ways += [f"({v} > {self.choice([0, 0.25])})" for v in self.values if v.kind == "f" and v.shape == shape]
        return self.choice(ways) if ways else self.leaf(shape, "b").name

    # -- what the {...} of a line stand for

    def draw(self, what: str) -> Any:
        """``f`` (floating-point), ``n`` (numbers) or ``any`` value, with at least so many axes as a digit says; a shape, for
        something of that shape; a..b, for an integer; choices with | between; or one of the methods below."""
        if match := re.fullmatch(r"(f|n|any)(\d?)", what):
            return self.value(match[1], int(match[2] or 0))
        if match := re.fullmatch(r"(-?\d+)\.\.(-?\d+)", what):
            return self.integer(int(match[1]), int(match[2]))
        if " | " in what:
            return self.choice(what.split(" | "))
        if what.startswith("("):
            return self.of(literal_eval(what))
        return getattr(self, what.replace(" ", "_"))()

    def value(self, kind: str, min_ndim: int = 0) -> Value:
        kinds = {"f": "f", "n": "fiu", "any": "fiub"}[kind]
        self.drawn.append(self.pick(kinds, lambda v: v.array.ndim >= min_ndim))
        return self.drawn[-1]

    def first(self) -> Value:
        """The value that the line began with, or, where it begins with a number or a mask, one to begin with."""
        return self.drawn[0] if self.drawn else self.value("n")

    def other(self, kinds: str = "fiu") -> Value:
        """A value that broadcasts with the first."""
        x = self.first()
        return self.pick(kinds, lambda v: fits(x.shape, v.shape))

    def any_other(self) -> Value:
        return self.other("fiub")

    def number(self) -> Any:
        return self.choice([round(float(self.rng.uniform(-2, 2)), 2), 0.5, 2.0, -1.5, self.integer(0, 3)])

    def positive(self) -> str:
        x = self.value("any")
        return f"(tt.abs({x}) + {0.5 if x.kind == 'f' else 1})"

    def divisor(self) -> str:
        return f"(tt.abs({self.other()}) + 1)"

    def mask(self) -> str:
        return self.condition(self.first().shape)

    def axis(self) -> int:
        ndim = self.first().array.ndim
        return self.integer(-ndim, ndim - 1)

    def optional_axis(self) -> int | None:
        return self.choice([None, self.axis()])

    def over(self) -> str:
        """``axis`` and ``keepdims`` of a reduction."""
        ndim = self.first().array.ndim
        several = tuple(self.rng.permutation(ndim)[: self.integer(0, ndim)].tolist())
        return f", axis={self.choice([None, *range(-ndim, ndim), several])}" + f", keepdims={self.chance()}" * self.chance()

    def ids(self, count: int, shape: tuple[int, ...]) -> Any:
        if not count:
            raise NotHere
        return self.rng.integers(0, count, shape).tolist()

    # -- the program

    def step(self, op: str) -> None:
        """Add a line that calls the op, where the values allow one whose result stays small."""
        before, leaves = len(self.values), dict(self.program.leaves)
        try:
            text, dtype = self.line(op)
            array = in_numpy(text, {v.name: v.array for v in self.values})
            if array.size > 64 or not (np.isfinite(array).all() and (np.abs(array.astype(float)) < LARGEST).all()):
                raise NotHere
        except (NotHere, ArithmeticError, IndexError, ValueError):
            del self.values[before:]
            self.program.leaves = leaves
            return
        name = f"v{len(self.values)}"
        self.program.steps[name] = text
        self.add(name, array, dtype or self.dtype_of(text, array))

    def line(self, op: str) -> tuple[str, str | None]:
        """A call of the op, and the dtype that it must have, where that is not its operands'."""
        self.drawn: list[Value] = []
        line = self.choice(STEPS[op])
        written = re.sub(r"\{([^{}]+)\}", lambda m: str(self.draw(m[1])), line) if isinstance(line, str) else line(self)
        text, dtype = written if isinstance(written, tuple) else (written, None)
        return text.replace("OP", op), dtype

    def dtype_of(self, text: str, array: Any) -> str:
        """The dtype that the result must have: of its floating-point operands together, or float32 where there are none."""
        if array.dtype.kind != "f":
            return str(array.dtype)
        without_masks = re.sub(r"\(v\d+ > [\d.]+\)", "", text)
        return promoted([self.program.dtypes[name] for name in operands(without_masks)])

    def loss_dtype(self, *operands_of: str) -> str:
        """A loss of half precision is float32."""
        return promoted([*[self.program.dtypes[n] for text in operands_of for n in operands(text)], "float32"])

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


# --------------------------------------------------------------------------------------------------------------- the ops

# What a line may be: Python with OP for the op's name, in which each {...} is drawn by ``Writer.draw``.

Line = str | Callable[["Writer"], Any]


def of_two(*operator: str) -> list[Line]:
    """A function of two tensors, or of a tensor and a number, and its operator."""
    calls: list[Line] = ["tt.OP({n}, {other})", "tt.OP({n}, {number})", "tt.OP({number}, {n})"]
    return (
        calls
        + [f"{{n}} {o} {right}" for o in operator for right in ("{other}", "{number}")]
        + [f"{{number}} {o} {{n}}" for o in operator]
    )


def joined(w: Writer) -> str:
    """The tensors for ``concatenate`` and its like."""
    x = w.value("any", 1)
    return ", ".join([x.name, *[w.of(x.shape, x.kind) for _ in range(w.integer(0, 2))]])


def concatenate(w: Writer) -> str:
    return f"tt.concatenate([{joined(w)}], {w.optional_axis()})"


def stack(w: Writer) -> str:
    return f"tt.stack([{joined(w)}], {w.integer(0, w.first().array.ndim)})"


def stacked(w: Writer) -> str:
    return f"tt.OP([{joined(w)}])"


def stretched(w: Writer) -> str:
    x = w.value("any")
    shape = tuple([w.integer(1, 3) if n == 1 else n for n in x.shape])
    return f"tt.broadcast_to({x}, {w.choice([shape, (w.integer(1, 2), *shape)])})"


def reshaped(w: Writer) -> str:
    x = w.value("any")
    n = x.array.size
    first = w.choice([d for d in range(1, n + 1) if n % d == 0] or [1])
    return f"tt.reshape({x}, {w.choice([(n,), (first, n // first), (1, first, n // first), (n, 1)])})"


def transposed(w: Writer) -> str:
    x = w.value("any")
    return f"tt.transpose({x}, {w.choice([None, w.rng.permutation(x.array.ndim).tolist()])})"


def padded(w: Writer) -> str:
    x = w.value("any", 1)
    return f"tt.pad({x}, {[(w.integer(0, 2), w.integer(0, 1)) for _ in x.shape]})"


def cut(w: Writer) -> str:
    x, a = w.value("any", 1), w.axis()
    places = w.choice([1, x.shape[a] or 1, sorted(w.ids(x.shape[a] + 1, (2,)))])
    return f"tt.split({x}, {places}, {a})[{w.integer(0, places - 1 if isinstance(places, int) else 2)}]"


def indexed(w: Writer) -> str:
    """Any of NumPy's ways to index."""
    x = w.value("any", 1)
    parts = []
    for n in x.shape[: w.integer(0, x.array.ndim)]:
        low = w.integer(0, n)
        ways = [f"{low}:{w.integer(low, n)}", f"::{w.choice([-2, -1, 2])}", "None", ":"]
        ways += [str(w.integer(-n, n - 1)), str(w.rng.integers(-n, n, 3).tolist())] if n else []
        parts.append(w.choice(ways))
    return f"{x}[{', '.join(parts) or '...'}]"


def taken(w: Writer) -> str:
    x, a = w.value("any", 1), w.axis()
    return f"tt.take({x}, {w.ids(x.shape[a], (3,))}, {a})"


def gathered(w: Writer) -> str:
    x, a = w.value("any", 1), w.axis()
    shape = tuple([w.integer(1, 3) if i == a % x.array.ndim else n for i, n in enumerate(x.shape)])
    return f"tt.take_along_axis({x}, tt.tensor({w.ids(x.shape[a], shape)}), {a})"


def scattered(w: Writer) -> str:
    shape = w.choice([(4,), (3, 2), (2, 3)])
    index = w.choice([w.ids(shape[0], (3,)), slice(0, 2), 1])
    return f"tt.scatter({w.of(np.zeros(shape)[index].shape)}, {index}, {shape})"


def index_added(w: Writer) -> str:
    x, a, n = w.value("f", 1), w.axis(), w.integer(0, 3)
    shape = tuple([n if i == a % x.array.ndim else m for i, m in enumerate(x.shape)])
    return f"tt.index_add({x}, {w.ids(x.shape[a], (n,))}, {w.of(shape)}, {a})"


def product(w: Writer) -> str:
    n, k, m = [w.integer(1, 3) for _ in range(3)]
    lead, other = w.choice([((), ()), ((2,), ()), ((2,), (2,)), ((), (2,)), ((2, 1), (2,))])
    x, y = w.of(w.choice([(*lead, n, k), (k,)])), w.of(w.choice([(*other, k, m), (k,)]))
    return w.choice([f"{x} @ {y}", f"tt.matmul({x}, {y})"])


def linear(w: Writer) -> str:
    x = w.value("f", 1)
    return f"tt.linear({x}, {w.of((2, x.shape[-1]))}{w.choice(['', ', ' + w.of((2,))])})"


def norm_with(*weights: str) -> Line:
    def write(w: Writer) -> str:
        x = w.value("f", 1)
        given = "".join([f", {name}={w.of(x.shape[-1:])}" for name in weights if w.chance()])
        return f"tt.OP({x}{given}, eps={w.choice([0.1, 0.5])})"

    return write


def attend(w: Writer) -> str:
    lead, (t, s), d = w.choice([(), (2,), (2, 2)]), (w.integer(1, 3), w.integer(1, 3)), w.integer(1, 3)
    mask = w.choice(["", f", mask={w.condition((t, s))}"])
    heads = f"{w.of((*lead, t, d))}, {w.of((*lead, s, d))}, {w.of((*lead, s, 2))}"
    return f"tt.scaled_dot_product_attention({heads}{mask}, is_causal={w.chance()})"


def class_loss(reductions: list[str], *operands: Any) -> Line:
    """A loss whose first operand has a row of 3 for each target, as ``operands`` (shapes but for the batch) say."""

    def write(w: Writer) -> Any:
        batch = w.choice([(3,), (2, 2), (), (1,)])
        tensors = [w.of((*batch, 3)), *[w.of(shape) for shape in operands]]
        settings = (
            f"label_smoothing={w.choice([0.0, 0.1])}, ignore_index={w.choice([-100, 0])}, reduction={w.choice(reductions)!r}"
        )
        return f"tt.OP({', '.join(tensors)}, tt.tensor({w.ids(3, batch)}), {settings})", w.loss_dtype(*tensors)

    return write


def loss(target: str) -> Line:
    def write(w: Writer) -> Any:
        x = w.value("f")
        y = target.format(w.of(x.shape))
        return f"tt.OP({x}, {y}, {w.choice(['mean', 'sum', 'none'])!r})", w.loss_dtype(x.name, y)

    return write


def converted(w: Writer) -> Any:
    x = w.value("any")
    dtype = w.choice(["int64", "bool", *[x.dtype] * 2])
    return f"tt.astype({x}, {dtype!r})", dtype


TABLE: dict[str, Line | list[Line]] = {
    "abs negative relu sign square": "tt.OP({n})",
    "arctan cos cosh elu erf exp exp2 expm1 logsigmoid sigmoid silu sin sinh softplus tanh": "tt.OP({any})",
    "gelu": "tt.gelu({any}, {'none' | 'tanh'})",
    "ceil floor round trunc": "tt.OP({n} * {1 | 1.7 | 2.5})",
    "log log10 log2 reciprocal rsqrt sqrt": "tt.OP({positive})",
    "log1p": "tt.log1p(tt.abs({any}))",
    "arccos arcsin": "tt.OP(tt.tanh({any}) * 0.9)",
    "leaky_relu": "tt.leaky_relu({n}, 0.1)",
    "isfinite isinf isnan logical_not": "tt.OP({any})",
    "add": of_two("+"),
    "subtract": of_two("-"),
    "multiply": of_two("*"),
    "logaddexp maximum minimum": of_two(),
    "divide": ["tt.divide({any}, {divisor})", "{any} / {divisor}", "{number} / {positive}", "{any} / 2"],
    "floor_divide": ["tt.floor_divide({n}, {divisor})", "{n} // {divisor}", "{n} // 2"],
    "remainder": ["tt.remainder({n}, {divisor})", "{n} % {divisor}", "{n} % 2"],
    "power": [
        "tt.power({positive}, {other})",
        "{f} ** {0 | 1 | 2 | 3 | 2.0}",
        "{positive} ** {-1 | -0.5 | 0.5 | 1.3}",
        "2.0 ** {n}",
    ],
    "equal greater greater_equal less less_equal not_equal": "tt.OP({any}, {any other})",
    "logical_and logical_or logical_xor": "tt.OP({any}, {any other})",
    "isclose": "tt.isclose({n}, {other})",
    "where": ["tt.where({mask}, {first}, {other})", "tt.where({mask}, {first}, {number})"],
    "masked_fill": "tt.masked_fill({f}, {mask}, {number})",
    "clip": "tt.clip({f}, {-0.5, 0.7 | None, 0.3 | 0.1 | 0.0, None})",
    "logsumexp max mean min prod std sum var": "tt.OP({n}{over})",
    "norm": "tt.norm({n}, {2 | 1 | np.inf}{over})",
    "all any": "tt.OP({any}{over})",
    "cumprod cumsum": "tt.OP({n1}, {optional axis})",
    "cummax": "tt.cummax({n1}, {axis})",
    "argmax argmin": "tt.OP({n1}, {optional axis})",
    "argsort sort": "tt.OP({n1}, {axis})",
    "log_softmax softmax": "tt.OP({any1}, {axis})",
    "topk": "tt.topk({n1}, {0..2})[{0..1}]",
    "glu": "tt.glu({(2, 4)}, {-1..1})",
    "astype": converted,
    "broadcast_to": stretched,
    "concatenate": concatenate,
    "stack": stack,
    "hstack vstack": stacked,
    "expand_dims": "tt.expand_dims({any}, {-1..0})",
    "flip": "tt.flip({any1}, {optional axis})",
    "moveaxis swapaxes": "tt.OP({any1}, {axis}, {axis})",
    "pad": ["tt.pad({any1}, {1 | (1, 0)})", padded],
    "repeat": "tt.repeat({any1}, {0..2}, {optional axis})",
    "reshape": reshaped,
    "roll": "tt.roll({any1}, {-2..3}, {optional axis})",
    "split": cut,
    "squeeze": "tt.squeeze({any})",
    "tile": "tt.tile({any}, {2 | (2, 1) | (1, 2)})",
    "transpose": transposed,
    "tril triu": "tt.OP({any2}, {-1..1})",
    "diag": ["tt.diag({(3,)}, {-1..1})", "tt.diag({(2, 3)}, {-1..1})"],
    "diagonal": "tt.diagonal({any2}, {-1..1}, {0, 1 | -1, 0 | -2, -1})",
    "getitem": [indexed, indexed, "{any1}[{mask}]"],
    "take": taken,
    "take_along_axis": gathered,
    "scatter": scattered,
    "index_add": index_added,
    "one_hot": lambda w: (f"tt.one_hot(tt.tensor({w.ids(4, (3,))}), 4)", "float32"),
    "embedding": lambda w: f"tt.embedding(tt.tensor({w.ids(3, w.choice([(2,), (2, 2), ()]))}), {w.of((3, 2))})",
    "sum_rows": lambda w: f"tt.sum_rows({w.of((4, 2))}, tt.tensor({w.ids(3, (4,))}), 3)",
    "matmul": product,
    "linear": linear,
    "outer": "tt.outer({f}, {f})",
    "tensordot": "tt.tensordot({(2, 3)}, {(3, 2)}, {0 | 1 | ([1], [0]) | ([0, 1], [1, 0])})",
    "einsum": [
        "tt.einsum('ij,jk->ik', {(2, 3)}, {(3, 2)})",
        "tt.einsum('bij,bjk->bk', {(2, 2, 3)}, {(2, 3, 2)})",
        "tt.einsum('...ij,...jk->...ik', {(2, 2, 3)}, {(3, 2)})",
        "tt.einsum('i,ij,j->', {(2,)}, {(2, 3)}, {(3,)})",
        "tt.einsum('i,j->ij', {(3,)}, {(2,)})",
        "tt.einsum('ij,ij->', {(2, 3)}, {(2, 3)})",
        "tt.einsum('{ij->ji | ij->i | ij->}', {(2, 3)})",
        "tt.einsum('{ii | ii->i}', {(3, 3)})",
    ],
    "layer_norm": norm_with("weight", "bias"),
    "rms_norm": norm_with("weight"),
    "dropout": "tt.dropout({f}, {0.0 | 0.3 | 1.0})",
    "causal_mask": "tt.causal_mask({1..3}, {1..3})",
    "scaled_dot_product_attention": attend,
    "multi_head_attention": [
        "tt.multi_head_attention({(2, 2, 12)}, 2, is_causal={True | False})",
        "tt.multi_head_attention({(1, 2, 4)}, 2, {(1, 3, 8)}, is_causal={True | False})",
        "tt.multi_head_attention({(2, 2, 4)}, 2, {(2, 1, 8)}, is_causal={True | False})",
    ],
    "cross_entropy": class_loss(["mean", "sum", "none"]),
    "linear_cross_entropy": class_loss(["mean", "sum"], (3, 3)),
    "mse_loss": loss("{}"),
    "binary_cross_entropy_with_logits": loss("tt.sigmoid({})"),
}
STEPS: dict[str, list[Line]] = {
    name: lines if isinstance(lines, list) else [lines] for names, lines in TABLE.items() for name in names.split()
}
OPS = [name for name in STEPS if hasattr(tt, name)]
