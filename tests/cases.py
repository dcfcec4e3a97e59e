"""A table of cases for every op: the function, its inputs, and the NumPy expression that it must equal.

``test_ops.py`` runs the same checks on each case. A new op needs lines here. Unless it is in UNARY or BINARY, it also needs
a line in ``programs/lines.py``. Inputs stay away from the points where a derivative does not exist, because finite
differences mean nothing there. What the library promises at those points is in PROMISES, with gradients worked out by hand.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from blocks import EACH, HALVES, random_weight

import tinytensor as tt
from tinytensor import functional, kernels, ops
from tinytensor.autograd.op import all_ops
from tinytensor.ops.quantized import block_rows, linear_blocks, times_quantized

inf, nan = math.inf, math.nan

# The modules whose names users write.
PUBLIC_MODULES = ["tinyformer", "tinyformer.plots", "tinytensor"] + [
    f"tinytensor.{name}"
    for name in "functional nn nn.init optim linalg random parallel distributed".split()
    + "autograd.op autograd.fused autograd.engine".split()
]
# What a user may call: the names that the files of ops/ and functional/ list.
FILES = [file for package in (functional, ops) for file in vars(package).values() if hasattr(file, "__all__")]
FUNCTIONS = {name for file in FILES if file.__name__.startswith("tinytensor.") for name in file.__all__}


@dataclass(frozen=True)
class Case:
    """``f`` of the inputs as tensors must equal ``want`` of them as NumPy arrays."""

    op: str
    label: str
    f: Callable[..., tt.Tensor]
    want: Callable[..., Any]
    inputs: tuple[Any, ...]
    constant: tuple[int, ...]  # the numbers of the inputs that take no gradient: integers, booleans, and by choice
    differentiable: bool
    twin: Callable[..., tt.Tensor] | None  # a fused op's reference, as a function of the same inputs

    def __str__(self) -> str:
        return f"{self.op}-{self.label}"


CASES: list[Case] = []


def case(
    op: str,
    label: str,
    f: Callable[..., Any],
    want: Callable[..., Any],
    *inputs: Any,
    constant: tuple[int, ...] = (),
    differentiable: bool = True,
    twin: Any = None,
) -> None:
    constant += tuple(i for i, x in enumerate(inputs) if x.dtype.kind != "f")
    CASES.append(Case(op, label, f, want, inputs, constant, differentiable, twin))


def same(
    op: str,
    label: str,
    *inputs: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    f: Any = None,
    want: Any = None,
    **options: Any,
) -> None:
    """A case of two functions with the same settings: by default tinytensor's and NumPy's functions of the op's name."""
    f, want, kwargs = f or getattr(tt, op), want or getattr(np, op), kwargs or {}
    case(op, label, lambda *xs: f(*xs, *args, **kwargs), lambda *xs: want(*xs, *args, **kwargs), *inputs, **options)


# -------------------------------------------------------------------------------------------------------------- inputs

rng = np.random.default_rng(20)


def normal(*shape: int) -> Any:
    return np.asarray(rng.standard_normal(shape))


def positive(*shape: int) -> Any:
    return np.asarray(rng.uniform(0.5, 2.0, shape))


def unit(*shape: int) -> Any:
    return np.asarray(rng.uniform(0.1, 0.9, shape))


def nonzero(*shape: int) -> Any:
    return np.asarray(rng.uniform(0.3, 2.0, shape) * rng.choice([-1, 1], shape))


def distinct(*shape: int) -> Any:
    """Numbers at least 0.3 from each other and from 0, so that a small step changes neither their order nor a sign."""
    count = math.prod(shape)
    return (rng.permutation(count) - count // 2 + 0.5).reshape(shape) * 0.3


def even(*shape: int) -> Any:
    return rng.integers(-5, 5, shape) * 0.4 + 0.1


def odd(*shape: int) -> Any:
    """Numbers that are at least 0.2 from those of ``even``."""
    return even(*shape) + 0.2


def between(*shape: int) -> Any:
    """Numbers at least 0.1 from every whole number and every half of one."""
    return rng.integers(-3, 4, shape) + rng.uniform(0.1, 0.4, shape)


def divisors(*shape: int) -> Any:
    """Whole numbers that none of ``between`` is a multiple of."""
    return rng.choice([-2.0, -1.0, 1.0, 2.0], shape)


def ints(high: int, *shape: int) -> Any:
    return rng.integers(0, high, shape)


def bools(*shape: int) -> Any:
    return rng.random(shape) < 0.5


def with_zeros(*shape: int) -> Any:
    x = nonzero(*shape)
    x[..., :2] = 0.0
    return x


def half_of(*settings: tuple[Any, Any]) -> Iterator[tuple[Any, ...]]:
    """Choices of one of each pair, among which all but any one of the settings meet in every way: half of all products."""
    for numbers in itertools.product((0, 1), repeat=len(settings)):
        if sum(numbers) % 2 == 0:
            yield tuple([pair[number] for pair, number in zip(settings, numbers)])


# --------------------------------------------------------------------------------------------- elementwise, one operand

erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gelu_exact(x: Any) -> Any:
    return x * (1 + erf(x / np.sqrt(2))) / 2


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


UNARY: list[tuple[str, Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = [
    ("negative", tt.negative, np.negative, normal),
    ("abs", tt.abs, np.abs, nonzero),
    ("sign", tt.sign, np.sign, nonzero),
    ("square", tt.square, np.square, normal),
    ("sqrt", tt.sqrt, np.sqrt, positive),
    ("rsqrt", tt.rsqrt, lambda x: x**-0.5, positive),
    ("reciprocal", tt.reciprocal, lambda x: 1 / x, nonzero),
    ("exp", tt.exp, np.exp, normal),
    ("expm1", tt.expm1, np.expm1, normal),
    ("log", tt.log, np.log, positive),
    ("log1p", tt.log1p, np.log1p, positive),
    ("log2", tt.log2, np.log2, positive),
    ("log10", tt.log10, np.log10, positive),
    ("exp2", tt.exp2, np.exp2, normal),
    ("sin", tt.sin, np.sin, normal),
    ("cos", tt.cos, np.cos, normal),
    ("tan", tt.tan, np.tan, unit),
    ("arcsin", tt.arcsin, np.arcsin, lambda *shape: 2 * unit(*shape) - 1),
    ("arccos", tt.arccos, np.arccos, lambda *shape: 2 * unit(*shape) - 1),
    ("arctan", tt.arctan, np.arctan, normal),
    ("arcsinh", tt.arcsinh, np.arcsinh, normal),
    ("arccosh", tt.arccosh, np.arccosh, lambda *shape: 1 + positive(*shape)),
    ("arctanh", tt.arctanh, np.arctanh, lambda *shape: 2 * unit(*shape) - 1),
    ("degrees", tt.degrees, np.degrees, normal),
    ("radians", tt.radians, np.radians, normal),
    ("sinh", tt.sinh, np.sinh, normal),
    ("cosh", tt.cosh, np.cosh, normal),
    ("tanh", tt.tanh, np.tanh, normal),
    ("sigmoid", tt.sigmoid, sigmoid, normal),
    ("erf", tt.erf, erf, lambda *shape: 2 * normal(*shape)),
    ("relu", tt.relu, lambda x: np.maximum(x, 0), nonzero),
    ("leaky_relu", tt.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x), nonzero),
    ("elu", tt.elu, lambda x: np.where(x > 0, x, np.expm1(x)), nonzero),
    ("logsigmoid", tt.logsigmoid, lambda x: -np.log1p(np.exp(-x)), normal),
    ("copy", tt.copy, np.copy, normal),
    ("floor", tt.floor, np.floor, between),
    ("ceil", tt.ceil, np.ceil, between),
    ("trunc", tt.trunc, np.trunc, between),
    ("round", tt.round, np.round, between),
    ("softplus", tt.softplus, lambda x: np.log1p(np.exp(x)), normal),
    ("silu", tt.silu, lambda x: x * sigmoid(x), normal),
    ("gelu", tt.gelu, gelu_exact, normal),
    ("alias", all_ops["alias"], lambda x: x, normal),
]
for op, f, want, draw in UNARY:
    for shape in [(3, 4), (), (0, 3)]:
        case(op, f"shape={shape}", f, want, draw(*shape))
    spread = (lambda x, f=f: f(tt.broadcast_to(x, (3, 2, 2))), lambda x, g=want: g(np.broadcast_to(x, (3, 2, 2))))
    case(op, "stride-0", *spread, draw(2, 1))
    case(op, "diamond", lambda x, f=f: f(x) * x + f(x), lambda x, g=want: g(x) * x + g(x), draw(3))

case("leaky_relu", "slope", lambda x: tt.leaky_relu(x, 0.3), lambda x: np.where(x > 0, x, 0.3 * x), nonzero(3, 4))
case("elu", "alpha", lambda x: tt.elu(x, 0.3), lambda x: np.where(x > 0, x, 0.3 * np.expm1(x)), nonzero(3, 4))
for axis in (-1, 0):

    def glu(x: Any, axis: int = axis) -> Any:
        values, gates = np.split(x, 2, axis)
        return values * sigmoid(gates)

    same("glu", f"axis={axis}", normal(2, 4), args=(axis,), want=glu)
same("round", "decimals", between(3, 4) / 10, args=(1,))
for op in ("floor", "ceil", "trunc", "round", "copy"):
    same(op, "integers", ints(9, 3), differentiable=False)
    same(op, "booleans", bools(3), want=np.copy, differentiable=False)
same("round", "tens of integers", 3 * ints(90, 5), args=(-1,), differentiable=False)
case("copy", "method", lambda x: x.copy() * x, lambda x: x * x, normal(3))
case("gelu", "tanh", lambda x: tt.gelu(x, "tanh"), gelu_tanh, normal(3, 4))
case("erf", "far out", tt.erf, erf, np.array([-7.0, -5.0, -2.5, -1.01, 0.0, 0.99, 1.01, 3.0, 6.5]))
for low, high in [(-0.6, 0.6), (0.0, None), (None, 0.0)]:
    same("clip", f"{low} to {high}", even(3, 4), args=(low, high))
for label, (a, b) in {"equal": ((3, 4), (3, 4)), "row": ((4,), (1,)), "column": ((3, 1), ())}.items():
    same("clip", f"tensors, {label}", even(3, 4), odd(*a), odd(*b) + 0.1)
same("clip", "tensor below", even(3, 4), odd(4), args=(None,))
case("clip", "tensor above", lambda x, y: tt.clip(x, max=y), np.minimum, even(3, 4), odd(4))
case("clip", "tensor and number", lambda x, y: x.clip(y, 0.55), lambda x, y: np.clip(x, y, 0.55), even(3, 4), odd(4))
case("clip", "of a product", lambda x: (x * x).clip(max=1.0), lambda x: np.minimum(x * x, 1), even(3, 4))

# -------------------------------------------------------------------------------------------- elementwise, two operands

BROADCASTS = {
    "equal": ((3, 4), (3, 4)),
    "row": ((3, 4), (4,)),
    "row left": ((4,), (3, 4)),
    "column by row": ((3, 1), (1, 4)),
    "scalar": ((3, 4), ()),
    "scalar left": ((), (3, 4)),
    "leading axes": ((2, 3, 2), (3, 2)),
    "leading ones": ((1, 1, 3), (2, 3)),
    "zero-size": ((0, 4), (4,)),
    "zero by one": ((0,), (1,)),
}
BINARY = [
    ("add", tt.add, np.add, normal, normal),
    ("subtract", tt.subtract, np.subtract, normal, normal),
    ("multiply", tt.multiply, np.multiply, normal, normal),
    ("divide", tt.divide, np.divide, normal, nonzero),
    ("power", tt.power, np.power, positive, normal),
    ("maximum", tt.maximum, np.maximum, even, odd),
    ("minimum", tt.minimum, np.minimum, even, odd),
    ("logaddexp", tt.logaddexp, np.logaddexp, normal, normal),
    ("hypot", tt.hypot, np.hypot, nonzero, nonzero),
    ("arctan2", tt.arctan2, np.arctan2, nonzero, positive),
    ("floor_divide", tt.floor_divide, np.floor_divide, between, divisors),
    ("remainder", tt.remainder, np.remainder, between, divisors),
]
for op, f, want, left, right in BINARY:
    for label, (a, b) in BROADCASTS.items():
        case(op, label, f, want, left(*a), right(*b))
    case(op, "number right", lambda x, f=f: f(x, 1.4), lambda x, g=want: g(x, 1.4), left(3, 4))
    case(op, "integer right", lambda x, f=f: f(x, 3), lambda x, g=want: g(x, 3), left(3, 4))
    case(op, "number left", lambda x, f=f: f(1.4, x), lambda x, g=want: g(1.4, x), right(3, 4))
    case(op, "NumPy number", lambda x, f=f: f(x, np.float64(1.4)), lambda x, g=want: g(x, 1.4), left(3))
    case(op, "constant left", f, want, left(3, 4), right(4), constant=(0,))
    case(op, "constant right", f, want, left(3, 4), right(4), constant=(1,))
    case(op, "stride-0", lambda x, y, f=f: f(tt.broadcast_to(x, (3, 4)), y), want, left(1, 4), right(3, 1))
    case(op, "scalars", f, want, left(), right())
for op, f, want in [(n, f, w) for n, f, w, *_ in BINARY if n not in ("maximum", "minimum", "floor_divide", "remainder")]:
    case(op, "of itself", lambda x, f=f: f(x, x), lambda x, g=want: g(x, x), positive(3, 4))
    case(op, "integers", f, want, ints(4, 3, 4) + 1, positive(4))

for op in ("floor_divide", "remainder"):
    same(op, "integers", ints(9, 3, 4) - 4, ints(4, 4) + 1, differentiable=False)
    same(op, "booleans by integers", bools(4), ints(4, 4) + 1, differentiable=False)
operators = [lambda x: x % 0.7 + 3.3 % x + x // 0.7 + 2.3 // x + abs(-x) + (+x)] * 2
case("remainder", "operators", *operators, unit(3) + 0.8)
case("add", "operators", *[lambda x, y: 2 - (x + 1 - y) * 3 / (2 + y)] * 2, normal(3), unit(3))
case("multiply", "diamond", lambda x: (x * x) * (x + x), lambda x: 2 * x**3, normal(3))
for n in (-2, -1, -0.5, 0, 0.5, 1, 2, 3, 2.5):
    case("power", f"operator {n}", lambda x, n=n: x**n, lambda x, n=n: x ** float(n), positive(3))
case("power", "operator left", *[lambda x: 2**x] * 2, normal(3))
case("power", "of 0, number left", lambda x: tt.power(0.0, x), lambda x: 0.0**x, positive(3))
case("power", "negative base", lambda x: tt.power(x, 3.0), lambda x: x**3, -positive(3))
case("power", "0 to a power", lambda x: tt.power(x, 3.0) + x**2, lambda x: x**3 + x**2, np.array([0.0, 1.0]))
bases, exponents = np.array([0.0, 0.0, 0.0, -1.5]), np.array([0.0, 2.0, 3.0, 2.0])
same("power", "constant exponents", bases, exponents, constant=(1,))

mask = bools(3, 4)
for label, (a, b) in BROADCASTS.items():
    m = bools(*np.broadcast_shapes(a, b))
    same("where", label, m, normal(*a), normal(*b))
same("where", "condition broadcasts", bools(4), normal(3, 4), normal(3, 1))
case("where", "number right", lambda x: tt.where(x > 0, x * x, 0.0), lambda x: np.where(x > 0, x * x, 0), nonzero(3, 4))
case("where", "number left", lambda x: tt.where(x > 0, 1.0, x * x), lambda x: np.where(x > 0, 1, x * x), nonzero(3, 4))
case("where", "of itself", lambda x: tt.where(x > 0, x, x * x), lambda x: np.where(x > 0, x, x * x), nonzero(3, 4))
case("masked_fill", "mask", lambda x, m: tt.masked_fill(x, m, -2.0), lambda x, m: np.where(m, -2, x), normal(3, 4), mask)
case("masked_fill", "broadcast", lambda x, m: x.masked_fill(m, 0), lambda x, m: np.where(m, 0, x), normal(2, 3, 2), bools(3, 1))

COMPARISONS = "equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor"
no_gradient: dict[str, Any] = {"differentiable": False}
for op in COMPARISONS.split():
    for label, (a, b) in BROADCASTS.items():
        same(op, label, ints(3, *a) * 1.0, ints(3, *b) * 1.0, **no_gradient)
    same(op, "integers by number", ints(3, 6), args=(1,), **no_gradient)
    same(op, "booleans", bools(8), bools(8), **no_gradient)
for op in ("logical_not", "isnan", "isfinite", "isinf"):
    same(op, "special", np.array([0.0, 1.0, inf, -inf, nan]), **no_gradient)
    same(op, "zero-size", normal(0, 2), **no_gradient)
special = np.array([0.0, 1.0, 1.0 + 1e-6, inf, -inf, nan])
for equal_nan in (False, True):
    kwargs = {"equal_nan": equal_nan}
    same("isclose", f"special, equal_nan={equal_nan}", special[:, None], special, kwargs=kwargs, **no_gradient)
    for label, x in {"special": special, "numbers": special[:5]}.items():
        f = lambda x, y, **kwargs: tt.tensor(tt.allclose(x, y, **kwargs))  # noqa: E731
        same("allclose", f"{label}, equal_nan={equal_nan}", x, x, f=f, kwargs=kwargs, **no_gradient)
same("isclose", "tolerances", unit(9), unit(9), kwargs={"rtol": 0.1, "atol": 0.1}, **no_gradient)
same("isclose", "by a number", unit(9), args=(0.5, 0.1, 0.1), **no_gradient)
for op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    same(op, "integers", ints(9, 3, 4), ints(9, 4), **no_gradient)
    same(op, "booleans", bools(8), bools(8), **no_gradient)
    same(op, "by a number", ints(9, 3, 4), args=(5,), **no_gradient)
same("invert", "integers", ints(9, 3, 4), **no_gradient)
same("invert", "booleans", bools(8), **no_gradient)
operators = [lambda x, y: (x & ~y) | (x ^ y) | (1 & x) | (2 | y) | (3 ^ x)] * 2
case("bitwise_and", "operators", *operators, ints(99, 8), ints(99, 8), **no_gradient)
case("logical_and", "operators", *[lambda x, y: (x & ~y) | (x ^ y)] * 2, bools(8), bools(8), **no_gradient)
case("less", "operators", *[lambda x, y: (x < y) | (x >= 2 * y) & (x != y)] * 2, normal(8), normal(8), **no_gradient)

# ----------------------------------------------------------------------------------------------------------- reductions


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


def euclidean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims))


AXES = [(None, False), (None, True), (0, False), (-1, False), (1, True), ((0, 2), False), ((-1, 0), True), ((), False)]
REDUCTIONS: list[tuple[str, Any, Any, Callable[..., Any]]] = [
    ("sum", tt.sum, np.sum, normal),
    ("mean", tt.mean, np.mean, normal),
    ("var", tt.var, np.var, normal),
    ("std", tt.std, np.std, distinct),
    ("prod", tt.prod, np.prod, nonzero),
    ("max", tt.max, np.max, distinct),
    ("min", tt.min, np.min, distinct),
    ("logsumexp", tt.logsumexp, logsumexp, normal),
    ("norm", lambda x, axis=None, keepdims=False: tt.norm(x, 2, axis, keepdims), euclidean, nonzero),
    ("any", tt.any, np.any, lambda *shape: ints(2, *shape) * 1.0),
    ("all", tt.all, np.all, lambda *shape: ints(2, *shape) * 1.0),
]
for op, f, want, draw in REDUCTIONS:
    options: dict[str, Any] = {"f": f, "want": want, "differentiable": op not in ("any", "all")}
    for axis, keepdims in AXES:
        if op != "std" or axis != ():  # single elements deviate by 0, where a gradient is a matter of promise
            kwargs = {"axis": axis, "keepdims": keepdims}
            same(op, f"axis={axis}{', keepdims' * keepdims}", draw(2, 3, 2), kwargs=kwargs, **options)
    same(op, "no rows", draw(0, 3), kwargs={"axis": 1}, **options)
    case(op, "list of axes", lambda x, f=f: f(x, axis=[0, 1]), want, draw(2, 3), differentiable=options["differentiable"])
    if op != "std":
        same(op, "scalar", draw(), **options)
        for axis, keepdims in [(0, False), (-1, True), ((0,), False)]:
            no_axes = lambda x, w=want, k=keepdims: w(x, keepdims=k)  # noqa: E731 (NumPy takes an axis here in some only)
            settings = {"axis": axis, "keepdims": keepdims}
            case(
                op,
                f"scalar, {settings}",
                lambda x, f=f, s=settings: f(x, **s),
                no_axes,
                draw(),
                differentiable=op not in ("any", "all"),
            )
    if op in ("sum", "prod", "any", "all"):
        for kind in (np.int8, np.uint8, bool):
            small = np.array([[100, 120, 0], [1, 0, 100]]).astype(kind)
            same(op, f"small integers, {kind.__name__}", small, kwargs={"axis": 1}, f=f, want=want, **no_gradient)
    if op in ("sum", "prod", "any", "all"):
        same(op, "of nothing", normal(2, 0), kwargs={"axis": 1}, **options)
    if options["differentiable"]:
        diamond = [lambda x, r=reduced: x * r(x, axis=0, keepdims=True) for reduced in (f, want)]
        case(op, "diamond", *diamond, draw(3, 2))
for n in (2, 3, 5, 8):
    same("prod", f"zeros, length {n}", with_zeros(2, n), args=(-1,))
for ddof in (1, 2):
    same("var", f"ddof={ddof}", normal(2, 4), kwargs={"axis": 1, "ddof": ddof})
    same("std", f"ddof={ddof}", normal(2, 4), kwargs={"axis": 1, "ddof": ddof})
for order in (1, 2, inf, -inf, 0, 3, 2.5, 1.5, 0.5, -1):
    same("norm", f"ord={order}", distinct(3, 4) + 0.1, kwargs={"ord": order, "axis": 1}, want=np.linalg.norm)
for op in ("max", "min", "sum", "prod"):
    same(op, "of many axes apart", distinct(2, 2, 3, 2), kwargs={"axis": (0, 2)})
case("logsumexp", "of nothing", lambda x: tt.logsumexp(x, 1), lambda x: np.full(2, -inf), normal(2, 0))
same("logsumexp", "far apart", 1000 * normal(2, 4), args=(-1,), want=np.logaddexp.reduce)


def best_so_far(accumulate: Any) -> Callable[..., Any]:
    return lambda x, axis=None: accumulate(x.ravel() if axis is None or not x.ndim else x, axis=axis or 0)


for axis in (None, 0, -1):
    same("cumsum", f"axis={axis}", normal(3, 4), args=(axis,))
    same("cumprod", f"axis={axis}", nonzero(3, 4), args=(axis,))
    same("cumprod", f"zeros, axis={axis}", with_zeros(3, 5), args=(axis,))
    for op, running, ufunc in [("cummax", tt.cummax, np.maximum), ("cummin", tt.cummin, np.minimum)]:
        values = lambda x, axis=None, f=running: f(x, axis)[0]  # noqa: E731
        same(op, f"axis={axis}", distinct(3, 5), args=(axis,), f=values, want=best_so_far(ufunc.accumulate))
        same(op, f"scalar, axis={axis}", normal(), args=(axis,), f=values, want=best_so_far(ufunc.accumulate))
    for op in ("cumsum", "cumprod", "argmax", "argmin"):
        same(op, f"scalar, axis={axis}", normal(), args=(axis,), differentiable=op.startswith("cum"))
    for op in ("argmax", "argmin"):
        same(op, f"axis={axis}", ints(3, 3, 4) * 1.0, args=(axis,), **no_gradient)
        same(op, f"axis={axis}, keepdims", normal(3, 4), kwargs={"axis": axis, "keepdims": True}, **no_gradient)
for op in ("cumsum", "cumprod"):
    same(op, "zero-size", normal(0, 2), args=(0,))
    same(op, "small integers", np.array([100, 3, 100], np.int8), **no_gradient)
for axis in (0, 1):
    same("norm_of_order", f"axis={axis}", distinct(3, 4), args=(3.0, axis), f=tt.norm, want=np.linalg.norm)
    falling = [lambda x, a=axis: tt.cummax(x, a)[1], lambda x, a=axis: np.zeros(x.shape, int)]
    case("running_best", f"of what falls, axis={axis}", *falling, -np.arange(12.0).reshape(3, 4), **no_gradient)
for op, running, indices in [("cummax", tt.cummax, [0, 0, 2, 3, 3, 5]), ("cummin", tt.cummin, [0, 1, 1, 1, 4, 4])]:
    places = [lambda x, f=running: f(x)[1], lambda x, i=indices: np.array(i)]
    case(op, "indices, the last of equals", *places, np.array([2.0, 1.0, 2.0, 3.0, 1.0, 3.0]), **no_gradient)
    same(op, "zero-size", normal(0, 2), f=lambda x, f=running: f(x, 0)[0], want=lambda x: x)


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def log_softmax(x: Any, axis: int = -1) -> Any:
    return np.log(softmax(x, axis))


near = partial(all_ops["starting_point"], axis=-1)
case("starting_point", "alike", near, lambda x: x[:, :1], 1000.0 + 0.01 * normal(3, 4), differentiable=False)
case("starting_point", "apart", near, lambda x: x.mean(-1, keepdims=True), normal(3, 4), differentiable=False)
case("slope", "", all_ops["slope"], lambda p, t: (p - t) / (p * (1 - p)), unit(3, 4), unit(3, 4))

for axis in (-1, 0, 1):
    same("softmax", f"axis={axis}", normal(2, 3, 2), args=(axis,), want=softmax)
    same("log_softmax", f"axis={axis}", normal(2, 3, 2), args=(axis,), want=log_softmax)
    for op, wanted in {
        "softmax_gradient": lambda g, out, a: out * (g - (g * out).sum(a, keepdims=True)),
        "log_softmax_gradient": lambda g, out, a: g - np.exp(out) * g.sum(a, keepdims=True),
    }.items():
        two = normal(2, 3, 2), unit(2, 3, 2)
        case(op, f"axis={axis}", partial(all_ops[op], axis=axis), lambda g, out, f=wanted, a=axis: f(g, out, a), *two)
for op, f in [("softmax", tt.softmax), ("log_softmax", tt.log_softmax)]:
    case(op, "no rows", f, lambda x: x, normal(0, 3))
    for axis in (-1, 1):
        case(op, f"of nothing, axis={axis}", lambda x, f=f, axis=axis: f(x, axis), lambda x: x, normal(3, 0))
    for axis in (-1, 0):
        want = lambda x, op=op: np.full((), 1.0 if op == "softmax" else 0.0)  # noqa: E731
        case(op, f"scalar, axis={axis}", lambda x, f=f, axis=axis: f(x, axis), want, normal())
    case(op, "length 1", f, lambda x, op=op: np.full(x.shape, 1.0 if op == "softmax" else 0.0), normal(3, 1))
case("softmax", "far apart", tt.softmax, softmax, np.array([[800.0, 0.0, -800.0], [1e4, 1e4 - 1, 0.0]]))
case("log_softmax", "far apart", tt.log_softmax, lambda x: x - np.logaddexp.reduce(x), np.array([800.0, 0.0, -800.0]))

case("astype", "to the same", lambda x: x.astype(x.dtype) * x, lambda x: x * x, normal(3))
case("astype", "and back", lambda x: (x.astype("float64") * 2.0).astype(x.dtype), lambda x: x * 2, normal(3))
case("astype", "to integers", lambda x: x.astype("int64"), lambda x: x.astype(np.int64), 3 * nonzero(5), differentiable=False)
case("astype", "to booleans", lambda x: x.astype(bool), lambda x: x.astype(bool), ints(2, 5) * 1.0, differentiable=False)
case("astype", "through integers", lambda x: x.astype("int64") * x, lambda x: x.astype(np.int64) * x, 3 * even(5))

# --------------------------------------------------------------------------------------------------------------- shapes

for to in [(4, 3), (-1,), 12, (2, -1, 3), (3, 1, 4), (1, 12)]:
    same("reshape", f"to {to}", normal(3, 4), args=(to,))
same("reshape", "scalar", normal(), args=((1, 1),))
same("reshape", "zero-size", normal(0, 2), args=((3, 0, 2),))
case("reshape", "method", lambda x: x.reshape(2, -1) * x.reshape([2, 3]), lambda x: x.reshape(2, 3) ** 2, normal(6))
for axes in [None, (2, 0, 1), (0, -1, -2), [1, 0, 2]]:
    same("transpose", f"axes={axes}", normal(2, 3, 2), args=(axes,))
same("transpose", "scalar", normal())
case("transpose", "T of itself", *[lambda x: x.T * x] * 2, normal(3, 3))
case("transpose", "method", *[lambda x: x.transpose(1, 0, 2) * x.transpose((1, 0, 2))] * 2, normal(2, 3, 2))
for axes in [(0, 1), (-1, 0), (1, 1)]:
    same("swapaxes", f"{axes}", normal(2, 3, 2), args=axes)
for moves in [(0, -1), (-1, 0), ((0, 1), (2, 0)), ((2, 0), (0, 1))]:
    same("moveaxis", f"{moves}", normal(2, 3, 4), args=moves)
for axis in (None, 0, -1, (0, 2), ()):
    same("squeeze", f"axis={axis}", normal(1, 3, 1), args=(axis,))
for axis in (0, -1, 1, (0, 2), (-1, -3)):
    same("expand_dims", f"axis={axis}", normal(3, 2), args=(axis,))
STRETCHES = "4 > 3,4 | 3,1 > 3,4 | 1,3,1 > 2,3,4 | 3,4 > 3,4 | 1 > 5 | 1,2 > 0,2 | 1 > 1,1"
for text in STRETCHES.split("|"):
    shape, to = [tuple(int(n) for n in lengths.split(",")) for lengths in text.split(">")]
    same("broadcast_to", f"{shape} to {to}", normal(*shape), args=(to,))
same("broadcast_to", "scalar", normal(), args=((2, 3),))
same("broadcast_to", "integer", normal(1), args=(5,))
for where in [(3, 0), (2, -1), ([1, 2], 1), ([0, 3], 1)]:
    for piece in (0, -1):
        split = [lambda x, s=split, w=where, p=piece: s(x, *w)[p] for split in (tt.split, np.split)]
        case("split", f"{where} [{piece}]", *split, normal(3, 4))
case("split", "pieces together", lambda x: sum(tt.split(x * x, 3)), lambda x: x[:2] ** 2 + x[2:4] ** 2 + x[4:] ** 2, normal(6))
case("split", "of nothing", lambda x: tt.split(x, 3)[1], lambda x: x, normal(0, 2))


def joined(join: Any, axis: int | None) -> Callable[..., Any]:
    return lambda *xs: join(xs, axis)


for axis in (0, -1, None):
    three = [normal(2, 2) for _ in range(3)]
    case("concatenate", f"axis={axis}", joined(tt.concatenate, axis), joined(np.concatenate, axis), *three)
for axis in (0, 1, -1):
    case("stack", f"axis={axis}", joined(tt.stack, axis), joined(np.stack, axis), normal(2, 3), normal(2, 3))
together = (joined(tt.concatenate, -1), joined(np.concatenate, -1))
case("concatenate", "lengths differ", *together, normal(2, 1), normal(2, 3), normal(2, 0))
case("concatenate", "one constant", *together, normal(2), normal(3), constant=(0,))
case("concatenate", "integers", *together, normal(2), ints(3, 3))
case("concatenate", "of itself", lambda x: tt.concatenate([x, x * x, x]), lambda x: np.concatenate([x, x * x, x]), normal(2, 2))
case("stack", "scalars", joined(tt.stack, 0), joined(np.stack, 0), normal(), normal())
for axis in (None, 0, -1, (0, 1)):
    same("flip", f"axis={axis}", normal(3, 4), args=(axis,))
for width in (1, (1, 2), ((1, 0), (0, 2)), 0):
    same("pad", f"width={width}", normal(2, 3), args=(width,))
    for mode in ("edge", "reflect", "symmetric", "wrap"):
        same("pad", f"{mode}, width={width}", normal(2, 3), args=(width,), kwargs={"mode": mode})
same("pad", "value", normal(2, 3), args=(1,), kwargs={"constant_values": 2.5})
same("pad", "reflect further than there is", normal(3), args=((4, 5),), kwargs={"mode": "reflect"})
same("pad", "scalar", normal(), args=(1,))
for shift, axis in [(1, None), (-2, 0), (5, 1), ((1, 2), (0, 1)), (1, (0, 1)), (0, 0), ((1, 1), (0, 0))]:
    if axis != (0, 0):
        same("roll", f"{shift}, axis={axis}", normal(3, 4), args=(shift, axis))
same("roll", "scalar", normal(), args=(1,))
same("roll", "shifts that add up", np.arange(12.0).reshape(3, 4), args=((1, 2),))
same("roll", "shifts that add up along an axis", np.arange(12.0).reshape(3, 4), args=((1, 2), 1))
same("roll", "no shift", np.arange(12.0).reshape(3, 4), args=((),))
same("roll", "zero-size", normal(0, 2), args=(1, 0))
for op, join, theirs in [("hstack", tt.hstack, np.hstack), ("vstack", tt.vstack, np.vstack)]:
    pair = [lambda *xs, f=join: f(xs), lambda *xs, f=theirs: f(xs)]
    for shape in [(), (3,), (2, 3), (2, 3, 2)]:
        case(op, f"{shape}", *pair, normal(*shape), normal(*shape))
same("repeat", "scalar, axis=0", normal(), args=(2, 0))
case("flip", "scalar, axis=0", lambda x: tt.flip(x, 0), lambda x: x, normal())
case("squeeze", "scalar, axis=0", lambda x: tt.squeeze(x, 0), lambda x: x, normal())
for repeats in [(2, None), (3, 0), (2, -1), ([2, 0, 1], 1), (0, 0)]:
    same("repeat", f"{repeats}", normal(2, 3), args=repeats)
for counts in (2, (2, 1), (3, 1, 2), (0, 2)):
    same("tile", f"{counts}", normal(2, 3), args=(counts,))
same("tile", "fewer counts than axes", normal(2, 1, 2), args=((2,),))
for op in ("tril", "triu"):
    for k in (0, 1, -1, 5):
        same(op, f"k={k}", normal(2, 3, 4), args=(k,))
    same(op, "booleans", np.ones((3, 3), bool), **no_gradient)
    same(op, "integers", ints(9, 3, 3), **no_gradient)

# ------------------------------------------------------------------------------------------------------------ sequences

for n, axis in [(1, -1), (1, 0), (2, 1), (3, -1), (0, 0), (4, 1), (6, 1)]:
    same("diff", f"n={n}, axis={axis}", normal(3, 4), args=(n, axis))
same("diff", "zero-size", normal(0, 2), args=(1, 0))
same("diff", "integers", ints(9, 5), kwargs={"prepend": 3}, differentiable=False)
same("diff", "unsigned integers", ints(9, 5).astype(np.uint8), differentiable=False)
same("diff", "booleans", bools(9), args=(2,), differentiable=False)
same("diff", "numbers around", normal(3, 4), kwargs={"axis": 0, "prepend": 0, "append": 1.5})
for shape in [(3, 2), (3, 1), ()]:
    around = [lambda x, y, f=f: f(x, prepend=y, append=y) for f in (tt.diff, np.diff)]
    case("diff", f"{shape} around", *around, normal(3, 4), normal(*shape))
for indexing in ("xy", "ij"):
    for shapes in [
        ((3,),),
        ((3,), (2,)),
        ((3,), (2,), (4,)),
        ((3,), (2,), (1,), (2,)),
        ((), (2,)),
        ((0,), (2,)),
        ((2, 2), (3,)),
    ]:
        for i in range(len(shapes)):
            grids = [lambda *xs, f=f, i=i, n=indexing: f(*xs, indexing=n)[i] for f in (tt.meshgrid, np.meshgrid)]
            constant = tuple(j for j in range(len(shapes)) if j != i)
            case("meshgrid", f"{shapes} [{i}], {indexing}", *grids, *[normal(*s) for s in shapes], constant=constant)
case("meshgrid", "together", *[lambda x, y, np=np: np.multiply(*np.meshgrid(x, y)) for np in (tt, np)], normal(3), normal(2))
for parts, axis in [(3, 0), (5, 0), (9, 0), (2, -1), ([1, 3], 0), ([], 0)]:
    for piece in (0, -1):
        cut = [lambda x, f=f, p=parts, a=axis, i=piece: f(x, p, a)[i] for f in (tt.array_split, np.array_split)]
        case("array_split", f"{parts}, axis={axis} [{piece}]", *cut, normal(7, 3))
case("array_split", "of nothing", *[lambda x, f=f: f(x, 3)[1] for f in (tt.array_split, np.array_split)], normal(0, 2))
for label, counted in {"some": np.array([1, 4, 1, 1]), "none": ints(4, 0), "small": np.array([200, 3, 200], np.uint8)}.items():
    for minlength in (0, 7):
        same("bincount", f"{label}, minlength={minlength}", counted, args=(None, minlength), differentiable=False)
        sums = [lambda x, w, m=minlength, f=f: f(x, w, m) * 1.0 for f in (tt.bincount, np.bincount)]
        case("bincount", f"weights, {label}, minlength={minlength}", *sums, counted, normal(*counted.shape))

# ------------------------------------------------------------------------------------------------------------- indexing

INDICES: dict[str, Any] = {
    "int": 1,
    "negative int": -1,
    "NumPy int": np.int64(2),
    "ints": (1, -1),
    "slice": slice(1, 3),
    "step": slice(None, None, 2),
    "backwards": (slice(None), slice(None, None, -1)),
    "ellipsis": (..., 0),
    "new axes": (None, slice(None), None, 1),
    "nothing": slice(0, 0),
    "everything": (),
    "list": [2, 0],
    "range": range(2),
    "duplicates": np.array([0, 2, 0, 0]),
    "negative": np.array([-1, -3, 2]),
    "small integers": np.array([1, 2], np.uint8),
    "2-d": np.array([[0, 1], [2, 2]]),
    "empty list": [],
    "boolean": np.array([[True, False, True, True], [False] * 4, [False, True, False, False]]),
    "boolean rows": [True, False, True],
    "no rows": np.array([False, False, False]),
    "array after slice": (slice(None), [0, 3, 0]),
    "array before slice": ([0, 2, 0], slice(1, None, 2)),
    "pairs": ([0, 1, 1, 0], [3, 0, 0, 3]),
    "mesh": (np.array([[0], [2]]), np.array([1, 3, 1])),
    "int and array": (1, [0, 0, 3]),
    "boolean and array": ([True, False, True], [3, 3]),
    "new axis and array": (None, [2, 2], slice(0, 2)),
}
for label, index in INDICES.items():

    def scattered(values: Any, index: Any, shape: tuple[int, ...]) -> Any:
        out = np.zeros(shape)
        np.add.at(out, index, values)
        return out

    case("getitem", label, *[lambda x, i=index: x[i]] * 2, normal(3, 4))
    picked = np.zeros((3, 4))[index].shape
    same("scatter", label, normal(*picked), args=(index, (3, 4)), want=scattered)
case("getitem", "arrays apart", *[lambda x: x[0, :, [1, 0, 0]]] * 2, normal(2, 3, 2))
case("getitem", "tensor", lambda x: x[tt.tensor([0, 0, 2])], lambda x: x[[0, 0, 2]], normal(3, 2))
case("getitem", "comparison", *[lambda x: x[x > 0]] * 2, nonzero(3, 4))
case("getitem", "iteration", lambda x: sum(row * i for i, row in enumerate(x)), lambda x: x[1] + 2 * x[2], normal(3, 2))
for label, indices in {"duplicates": [0, 2, 0], "2-d": [[0, 1], [1, 1]], "negative": [-1, 0], "int": 1, "empty": []}.items():
    for axis in (None, 0, -1):
        same("take", f"{label} axis={axis}", normal(3, 4), args=(np.array(indices, int), axis))
for indices in (0, [0, 0], [[-1]]):
    same("take", f"scalar, {indices}", normal(), args=(np.array(indices), 0))
for offset in (0, 1, -1, 2, 5, -5):
    for axes in [(0, 1), (1, 0), (-1, 0), (1, 2)]:
        same("diagonal", f"offset={offset}, axes={axes}", normal(2, 3, 4), args=(offset, *axes))
    same("diag", f"of a matrix, k={offset}", normal(3, 4), args=(offset,))
    same("diag", f"a matrix, k={offset}", normal(3), args=(offset,))
case("diagonal", "of itself", lambda x: x.diagonal().sum() * x, lambda x: np.trace(x) * x, normal(3, 3))
case("take", "list", lambda x: tt.take(x, [2, 0]), lambda x: x.ravel()[[2, 0]], normal(3, 4))
for axis, shape in [(0, (2, 4)), (1, (3, 2)), (-1, (1, 2)), (0, (0, 4)), (1, (3, 6))]:
    same("take_along_axis", f"axis={axis}, indices {shape}", normal(3, 4), ints(3, *shape), args=(axis,))


def index_added(x: Any, values: Any, indices: Any, axis: int) -> Any:
    out = np.moveaxis(x.copy(), axis, 0)
    for i, v in zip(indices, np.moveaxis(values, axis, 0)):
        out[i] += v
    return np.moveaxis(out, 0, axis)


for label, indices in {"duplicates": [0, 2, 0], "negative": [-1, 1], "empty": []}.items():
    for axis, shape in [(0, (len(indices), 4)), (-1, (3, len(indices)))]:
        add = lambda x, v, i, axis: tt.index_add(x, i, v, axis)  # noqa: E731
        same("index_add", f"{label} axis={axis}", normal(3, 4), normal(*shape), args=(indices, axis), f=add, want=index_added)
itself = [lambda x: tt.index_add(x, [0, 0, 1], x * x), lambda x: index_added(x, x * x, [0, 0, 1], 0)]
case("index_add", "of itself", *itself, normal(3, 2))


def largest(x: Any, k: int, axis: int) -> Any:
    return np.flip(np.sort(x, axis), axis).take(range(k), axis)


def places_of_largest(x: Any, k: int, axis: int) -> Any:
    return np.argsort(-x, axis).take(range(k), axis)


for axis in (-1, 0):
    same("sort", f"axis={axis}", distinct(3, 4), args=(axis,))
    same("argsort", f"axis={axis}", distinct(3, 4), args=(axis,), **no_gradient)
    stable = lambda x, axis: np.argsort(x, axis, kind="stable")  # noqa: E731
    same("argsort", f"ties, axis={axis}", ints(2, 6, 6) * 1.0, args=(axis,), want=stable, **no_gradient)
    for k in (0, 1, 3):
        values, indices = [lambda x, k, axis, i=i: tt.topk(x, k, axis)[i] for i in (0, 1)]
        same("topk", f"k={k} axis={axis}", distinct(3, 4), args=(k, axis), f=values, want=largest)
        options = {"f": indices, "want": places_of_largest, **no_gradient}
        same("topk", f"indices, k={k} axis={axis}", distinct(3, 4), args=(k, axis), **options)
for ties, largest_first in itertools.product((True, False), (True, False)):
    numbers = np.arange(160.0).reshape(4, 40) * 37 % (30 if ties else 160)  # so few of a row are found without sorting it
    indices = lambda x, up=largest_first: all_ops["best"](x, 3, 1, up)  # noqa: E731
    stable = lambda x, up=largest_first: np.argsort(-x if up else x, 1, kind="stable")[:, :3]  # noqa: E731
    case("best", f"ties={ties}, largest={largest_first}", indices, stable, numbers, **no_gradient)
same("sort", "zero-size", normal(0, 3))
for axis in (0, -1):
    falling = [lambda x, a=axis: tt.sort(x, a, descending=True), lambda x, a=axis: -np.sort(-x, a)]
    case("sort", f"descending, axis={axis}", *falling, distinct(3, 4))
    order = [lambda x, a=axis: tt.argsort(x, a, descending=True), lambda x, a=axis: np.argsort(-x, a, kind="stable")]
    case("argsort", f"descending, ties, axis={axis}", *order, ints(2, 6, 6) * 1.0, **no_gradient)
    for k in (0, 2, 3):
        least = [
            lambda x, a=axis, k=k: tt.topk(x, k, a, largest=False)[1],
            lambda x, a=axis, k=k: np.argsort(x, a, kind="stable").take(range(k), a),
        ]
        case("topk", f"indices of the smallest, ties, k={k} axis={axis}", *least, ints(2, 3, 4) * 1.0, **no_gradient)
        most = [
            lambda x, a=axis, k=k: tt.topk(x, k, a)[1],
            lambda x, a=axis, k=k: np.argsort(-x, a, kind="stable").take(range(k), a),
        ]
        case("topk", f"indices, ties, k={k} axis={axis}", *most, ints(2, 3, 4) * 1.0, **no_gradient)
case("argsort", "scalar", tt.argsort, lambda x: np.array(0), normal(), **no_gradient)
for shape in [(4,), (2, 3), (), (0,)]:
    same(
        "one_hot", f"shape={shape}", ints(5, *shape), args=(5,), want=lambda i, n: np.eye(n, dtype="float32")[i], **no_gradient
    )
for label, ids in {"duplicates": np.array([1, 0, 1, 1]), "2-d": ints(4, 2, 3), "one": np.array(2), "none": ints(4, 0)}.items():
    case("embedding", label, lambda w, i=ids: tt.embedding(tt.tensor(i), w), lambda w, i=ids: w[i], normal(4, 3))

    def row_sums(rows: Any, ids: Any = ids) -> Any:
        return np.stack([rows[ids == i].sum(0) for i in range(4)])

    case("sum_rows", label, lambda r, i=ids: tt.sum_rows(r, tt.tensor(i), 4), row_sums, normal(*ids.shape, 3))
case("embedding", "of itself", lambda w: tt.embedding(tt.tensor([0, 2, 0]), w) * w, lambda w: w[[0, 2, 0]] * w, normal(3, 2))

# ------------------------------------------------------------------------------------------------------- linear algebra


def rotated(x: Any, cosine: Any, sine: Any) -> Any:
    first, second = np.split(x, 2, -1)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


for of_x, of_angles in [((2, 3, 4), (3, 2)), ((3, 4), (3, 2)), ((4,), (2,)), ((2, 2, 3, 2), (3, 1)), ((2, 3, 4), (2, 1, 2))]:
    angles = normal(*of_angles)
    tables = [np.cos(angles), np.sin(angles)]

    def by_tables(x: Any, tables: Any = tables) -> Any:
        return tt.rotate_pairs(x, *[tt.tensor(t).astype(x.dtype) for t in tables])

    case("rotate_pairs", f"{of_x} by {of_angles}", by_tables, lambda x, t=tables: rotated(x, *t), normal(*of_x))
case("rotate_pairs", "of nothing", by_tables, lambda x: x, normal(2, 0, 4))

MATMULS = """
    3,4 4,2 | 4 4 | 3,4 4 | 4 4,2 | 2,3,4 4,2 | 2,3,4 2,4,2 | 2,1,3,2 2,2,3 | 3,4 2,4,2 | 2,3,4 4 | 4 2,4,3 | 1,3,2 2,2,3 |
    3,1 1,3 | 2,3,1 2,1,4 | 2,3,1 1,4 | 0,3 3,2 | 3,0 0,2 | 2,3,0 0,2 | 0,3,2 2,2 | 2,0,3 3,2 | 0,2,3 0,3,2 | 0 0
"""
for text in MATMULS.split("|"):
    a, b = [[int(n) for n in shape.split(",")] for shape in text.split()]
    same("matmul", f"{a} @ {b}", normal(*a), normal(*b))
case("matmul", "operator", *[lambda x, y: x @ y] * 2, normal(2, 3), normal(3, 2))
case("matmul", "of itself", *[lambda x: x @ x] * 2, normal(3, 3))
case("matmul", "with its transpose", *[lambda x: x @ x.T] * 2, normal(3, 2))
case("matmul", "diamond", *[lambda x, y: (x @ y) @ (x @ y).T] * 2, normal(2, 3), normal(3, 2))
same("matmul", "constant left", normal(2, 3, 4), normal(4, 2), constant=(0,))
same("matmul", "constant right", normal(2, 3, 4), normal(4, 2), constant=(1,))
same("matmul", "integers", ints(5, 3, 4), normal(4, 2))
stride_0 = [lambda x, y, spread=spread: spread(x, (3, 4)) @ y for spread in (tt.broadcast_to, np.broadcast_to)]
case("matmul", "stride-0", *stride_0, normal(1, 4), normal(4, 2))

rows = lambda x: x.reshape(-1, x.shape[-1]) if x.size else np.zeros((int(np.prod(x.shape[:-1])), x.shape[-1]))  # noqa: E731
same("inner", "", np.arange(5.0), np.linspace(-1, 2, 5), f=all_ops["inner"], want=np.dot)
for lead in [(3,), (2, 3), (), (0,), (2, 0)]:
    same(
        "rows_matmul",
        f"{lead}",
        normal(*lead, 4),
        normal(*lead, 2),
        f=all_ops["rows_matmul"],
        want=lambda x, y: rows(x).T @ rows(y),
    )
DOTS = "3 3 | 2,3 3 | 3 3,2 | 2,3 3,4 | 2,2,3 3 | 2,2,3 3,4 | 3 2,3,4 | 2,3 2,3,4 | 2,2,3 2,3,1 | 0,3 3,2 | 2,0 0,3 | 0 0"
for text in DOTS.split("|"):
    a, b = [[int(n) for n in shape.split(",")] for shape in text.split()]
    same("dot", f"{a} {b}", normal(*a), normal(*b))
for a, b in [([], [2, 3]), ([3], []), ([], [])]:
    same("dot", f"{a} {b}", normal(*a), normal(*b))
same("dot", "a number", normal(3), args=(1.5,))
same("dot", "integers", ints(9, 2, 3), ints(9, 3), **no_gradient)
case("dot", "of itself", *[lambda x: x.dot(x)] * 2, normal(3, 3))
for a, b in [([3], [4]), ([2, 2], [3]), ([], [2]), ([0], [3])]:
    same("outer", f"{a} {b}", normal(*a), normal(*b))
case("outer", "of itself", lambda x: tt.outer(x, x), lambda x: np.outer(x, x), normal(3))


def linear(x: Any, weight: Any, bias: Any = 0.0) -> Any:
    return np.einsum("...i,oi->...o", x, weight) + bias


for shape in [(3, 4), (4,), (2, 3, 4), (0, 4), (2, 0, 4), (3, 0)]:
    same("linear", f"{shape}", normal(*shape), normal(2, shape[-1]), normal(2), want=linear)
    same("linear", f"{shape}, no bias", normal(*shape), normal(2, shape[-1]), want=linear)
for constant in [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)]:
    same("linear", f"constant {constant}", normal(2, 3, 4), normal(2, 4), normal(2), want=linear, constant=constant)


def whole(*shape: int) -> Any:
    """Integers that are not rounded as inputs of a quantized weight: the largest one of each 32 is 127."""
    x = rng.integers(-127, 128, shape).astype(float)
    x[..., ::32] = 127
    return x


def widened(bits: Any) -> Any:
    return (bits.astype("uint32") << 16).view("float32")


# Quantized weights compute in float32: the values of the cases are such that nothing is rounded there.
for shape in [(3, 4), (4,), (2, 3, 4), (0, 4), (2, 0, 4), (3, 0), (2, 300)]:
    x, halves = whole(*shape), np.array([0.5, -1.5, 2.0, -0.5, 1.0])
    blocks, values = random_weight(EACH, shape[-1], np.array([0.5, -0.25], "float16"))
    bits = whole(5, shape[-1]).astype("float32").view("uint32") >> 16  # they have no more digits
    weights = [(EACH, blocks, values), (HALVES, bits.astype("uint16").view("uint8").ravel(), widened(bits).astype(float))]
    for (parts, w, v), of_bias in itertools.product(weights, [[halves], []]):
        label = f"{shape}{'' if of_bias else ', no bias'}{', bfloat16' if parts is HALVES else ''}"
        ours = lambda x, w, b=None, parts=parts: linear_blocks(x, w, b, parts).astype(x.dtype)  # noqa: E731
        want = lambda x, w, b=0.0, v=v: x @ v.T + b  # noqa: E731
        case("linear_blocks", label, ours, want, x, w, *of_bias, constant=(0, 1, 2), differentiable=False)
    for ids in [np.array(4), np.array([[2, 0], [3, 3]]), ints(5, 0)]:
        ours = lambda w, ids=ids, inputs=shape[-1]: block_rows(tt.tensor(ids), w, EACH, inputs)  # noqa: E731
        want = lambda w, ids=ids, values=values: values[ids].astype("float32")  # noqa: E731
        case("block_rows", f"{shape}, {ids.tolist()}", ours, want, blocks, differentiable=False)
case("linear", "of itself", lambda x: tt.linear(x, x, x[0, :3]), lambda x: x @ x.T + x[0, :3], normal(3, 4))


def eye(x: Any) -> Any:
    return (tt if isinstance(x, tt.Tensor) else np).eye(x.shape[-1], dtype=x.dtype)


def small(*shape: int) -> Any:
    return 0.3 * normal(*shape)


def of_matrix(op: str, name: str, result: Any = lambda out: out, make: Any = None, **options: Any) -> None:
    """Cases of a function of matrices that are far from singular ones, as ``make`` makes them."""
    make = make or (lambda x: x + 2 * eye(x))
    for shape in [(3, 3), (2, 3, 3), (2, 1, 2, 2), (1, 1), (0, 0), (2, 0, 0), (0, 2, 2)]:
        functions = [getattr(linalg, name) for linalg in (tt.linalg, np.linalg)]
        case(op, f"{shape}", *[lambda x, f=f: result(f(make(x))) for f in functions], small(*shape), **options)


of_matrix("inv", "inv")
of_matrix("det", "det")
of_matrix("slogdet_sign", "slogdet", lambda out: out[0], lambda x: (x + 2 * eye(x))[..., ::-1], differentiable=False)
of_matrix("slogdet_logarithm", "slogdet", lambda out: out[1], lambda x: (x + 2 * eye(x))[..., ::-1])
of_matrix("cholesky", "cholesky", make=lambda x: x @ x.swapaxes(-1, -2) + 0.5 * eye(x))
singular = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
among_others = np.stack([2 * np.eye(3) + small(3, 3), singular])
for label, x in {"one row twice another": singular, "among others": among_others, "0": np.zeros((2, 2))}.items():
    same("det", f"singular, {label}", x, f=tt.linalg.det, want=np.linalg.det)
for a, b in [
    ((3, 3), (3,)),
    ((3, 3), (3, 2)),
    ((2, 3, 3), (3,)),
    ((2, 1, 2, 2), (3, 2, 4)),
    ((2, 2), (3, 2, 1)),
    ((0, 0), (0,)),
]:
    for constant in [(), (0,), (1,)]:
        solved = [lambda x, y, f=f: f(x + 2 * eye(x), y) for f in (tt.linalg.solve, np.linalg.solve)]
        case("solve", f"{a} {b}" + f", constant {constant}" * bool(constant), *solved, small(*a), normal(*b), constant=constant)
case("inv", "of itself", *[lambda x, f=f: x @ f(x @ x + eye(x)) for f in (tt.linalg.inv, np.linalg.inv)], small(3, 3))

EINSUMS = """
    ij,jk->ik 2,3 3,4 | ij,jk 2,3 3,4 | bij,bjk->bik 2,2,3 2,3,2 | ij,kj-> 2,3 2,3 | ij,kl->ik 2,3 2,2 | i,i-> 3 3 |
    i,j->ij 3 2 | i,j->ji 3 2 | ...ij,...jk->...ik 2,2,3 3,2 | ...ij,...jk->...ik 1,2,3 2,3,2 | ...i,...i 2,3 2,3 |
    ...ij,jk 2,2,3 3,2 | i...,i 2,3 2 | i...->i... 2,3 | ij->ji 2,3 | ji 2,3 | ij->i 2,3 | ij-> 2,3 | ij->j 0,3 |
    ii->i 3,3 | ii 3,3 | iji->j 2,3,2 | ijj->ij 2,3,3 | iii->i 2,2,2 | ...ii->...i 2,3,3 | ii,i->i 3,3 3 |
    i,ij,j-> 2 2,3 3 | ij,jk,kl->il 2,3 3,2 2,2
"""
for text in EINSUMS.split("|"):
    subscripts, *shapes = text.split()
    einsums = [lambda *xs, e=einsum, s=subscripts: e(s, *xs) for einsum in (tt.einsum, np.einsum)]
    case("einsum", text.strip(), *einsums, *[normal(*map(int, shape.split(","))) for shape in shapes])
case("einsum", "with spaces", lambda x, y: tt.einsum(" ij , j -> i ", x, y), np.matmul, normal(2, 3), normal(3))
ONE = "cb,db-> : 3,1 1,2 | ab,b->a : 2,3 1 | ab,bc->ac : 2,1 3,4 | a,a-> : 1 3 | a,ab,b->b : 1 2,1 3 | ab,ab->ab : 2,1 1,3"
for text in ONE.split("|"):  # a length of 1 broadcasts
    term, shapes = [part.split() for part in text.split(":")]
    einsums = [lambda *xs, e=einsum, t=term[0]: e(t, *xs) for einsum in (tt.einsum, np.einsum)]
    case("einsum", f"lengths of 1, {text.strip()}", *einsums, *[normal(*map(int, shape.split(","))) for shape in shapes])
for axes in (0, 1, 2, ([0, 2], [1, 0]), ([-1], [-2])):
    left, right = {2: ((4, 3, 2), (3, 2, 5))}.get(axes if isinstance(axes, int) else 0, ((2, 3, 2), (2, 2)))
    same("tensordot", f"axes={axes}", normal(*left), normal(*right), args=(axes,))
case("einsum", "of itself", lambda x: tt.einsum("ij,jk->ik", x, x), lambda x: x @ x, normal(3, 3))
case("einsum", "one constant", lambda x, y: tt.einsum("ij,jk->ik", x, y), np.matmul, normal(2, 3), normal(3, 2), constant=(0,))

# ---------------------------------------------------------------------------------------------------------- fused ops


def fused(name: str, label: str, want: Any, *inputs: Any, constant: tuple[int, ...] = (), **settings: Any) -> None:
    """A case of a fused op and of its reference. Settings that are arrays reach both as the backend's."""
    op: Any = all_ops[name]
    settings = {k: tt.tensor(v).data if isinstance(v, np.ndarray) else v for k, v in settings.items()}
    twin = lambda *xs: op.reference(*xs, **settings)  # noqa: E731
    case(name, label, lambda *xs: op(*xs, **settings), want, *inputs, constant=constant, twin=twin)


def layer_norm(x: Any, weight: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def rms_norm(x: Any, weight: Any = 1.0, eps: float = 1e-5) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


for shape in [(3, 4), (4,), (2, 2, 3), (0, 4)]:
    n = shape[-1]
    fused("layer_norm", f"{shape}", layer_norm, normal(*shape))
    fused("layer_norm", f"{shape}, weight", layer_norm, normal(*shape), normal(n))
    fused("layer_norm", f"{shape}, weight and bias", layer_norm, normal(*shape), normal(n), normal(n))
    fused("rms_norm", f"{shape}", rms_norm, normal(*shape))
    fused("rms_norm", f"{shape}, weight", rms_norm, normal(*shape), normal(n))


def group_norm(x: Any, groups: int, weight: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5) -> Any:
    rows = layer_norm(x.reshape(len(x), groups, -1), eps=eps).reshape(x.shape)
    weight, bias = [np.reshape(w, (-1, *[1] * (x.ndim - 2))) for w in (weight, bias)]
    return rows * weight + bias


fused("layer_norm", "eps", lambda x: layer_norm(x, eps=0.5), normal(2, 3), eps=0.5)
fused("rms_norm", "eps", lambda x: rms_norm(x, eps=0.5), normal(2, 3), eps=0.5)
fused("layer_norm", "equal elements", lambda x: layer_norm(x, eps=0.1), np.ones((2, 3)), eps=0.1)
for constant in [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)]:
    fused("layer_norm", f"constant {constant}", layer_norm, normal(2, 3), normal(3), normal(3), constant=constant)
for constant in [(0,), (1,)]:
    fused("rms_norm", f"constant {constant}", rms_norm, normal(2, 3), normal(3), constant=constant)
bias_alone = [lambda x, b: tt.layer_norm(x, bias=b), lambda x, b: layer_norm(x, 1.0, b)]
case("layer_norm", "bias alone", *bias_alone, normal(2, 3), normal(3))
of_parts = [lambda x, norm=norm: norm(x, x[0] * x[1], x[1]) for norm in (tt.layer_norm, layer_norm)]
case("layer_norm", "weights from x", *of_parts, normal(2, 3))
of_parts = [lambda x, norm=norm: norm(x, x[0] * x[1]) for norm in (tt.rms_norm, rms_norm)]
case("rms_norm", "weight from x", *of_parts, normal(2, 3))


def normed_and_rotated(
    projected: Any, query_weight: Any = None, key_weight: Any = None, keys: int = 2, rotation: Any = None, eps: float = 1e-5
) -> Any:
    """A projection's two heads of queries, and its one or two heads of keys, a head at a time. The rest are values."""
    parts = np.split(projected, 2 + 2 * keys, -1)
    for i in range(2 + keys):
        weight = query_weight if i < 2 else key_weight
        x = parts[i] if weight is None else rms_norm(parts[i], weight, eps)
        parts[i] = x if rotation is None else rotated(x, *np.split(rotation, 2, -1))
    return np.concatenate(parts, -1)


for batch, length in [(2, 3), (1, 1), (0, 3), (2, 0)]:
    angles = normal(length, 2)
    turns = np.concatenate([np.cos(angles), np.sin(angles)], -1)
    choices = (1, 2), ([], [normal(4), normal(4)]), (None, turns)
    for keys, weights, rotation in half_of(*choices) if batch != 2 or not length else itertools.product(*choices):
        label = f"{keys} of keys{', norms' if weights else ''}{'' if rotation is None else ', rotated'} {batch, length}"
        of_heads = {"num_heads": 2, "num_key_value_heads": keys, "eps": 0.1, "rotation": rotation}
        settings = of_heads if weights else {**of_heads, "query_weight": None, "key_weight": None}
        want = partial(normed_and_rotated, keys=keys, rotation=rotation, eps=0.1)
        fused("norm_and_rotate", label, want, normal(batch, length, 4 * (2 + 2 * keys)), *weights, **settings)
for constant in [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)]:
    three = [normal(2, 3, 24), normal(4), normal(4)]
    want = partial(normed_and_rotated, rotation=np.eye(3, 4), eps=0.1)
    settings = {"num_heads": 2, "num_key_value_heads": 2, "eps": 0.1, "rotation": np.eye(3, 4), "constant": constant}
    fused("norm_and_rotate", f"constant {constant}", want, *three, **settings)
case(
    "norm_and_rotate",
    "weights from x",
    lambda x: tt.norm_and_rotate(x, 2, 0, x[0, 0, :4], x[0, 1, 2:6], 0.1),
    lambda x: normed_and_rotated(x, x[0, 0, :4], x[0, 1, 2:6], eps=0.1),
    normal(2, 3, 24),
)
case(
    "norm_and_rotate",
    "odd width",
    lambda x, q, k: tt.norm_and_rotate(x, 2, 1, q, k),
    partial(normed_and_rotated, keys=1),
    normal(2, 3, 20),
    normal(5),
    normal(5),
)
for shape in [(3, 4), (), (0, 3)]:
    fused("gelu_tanh", f"{shape}", gelu_tanh, normal(*shape))
    fused("gelu_exact", f"{shape}", gelu_exact, normal(*shape))
    fused("silu", f"{shape}", lambda x: x * sigmoid(x), normal(*shape), factor=None)
    for constant in [(), (0,), (1,)]:
        two = normal(*shape), normal(*shape)
        fused("silu", f"{shape}, constant {constant}", lambda x, y: x * sigmoid(x) * y, *two, constant=constant)
    case("swiglu", f"{shape}", tt.swiglu, lambda x, y: x * sigmoid(x) * y, normal(*shape), normal(*shape))
case("swiglu", "of itself", lambda x: tt.swiglu(x, x), lambda x: x * sigmoid(x) * x, normal(2, 3))


def seeded(f: Callable[..., Any]) -> Callable[..., Any]:
    """f with the same random numbers in every call, as differences need."""

    def call(*xs: Any) -> Any:
        with tt.random.using(np.random.default_rng(5)):
            return f(*xs)

    return call


def survivors(shape: tuple[int, ...], keep_probability: float) -> Any:
    """1 for the elements that ``seeded`` dropout keeps, over ``keep_probability``, and 0 for the others."""
    return kept(seeded(tt.random.random_key)(), shape, keep_probability) / keep_probability


def kept(random_key: tuple[int, int], shape: tuple[int, ...], keep_probability: float) -> Any:
    """1 for the elements that a random key keeps, 0 for the others."""
    return tt.tensor(kernels.keep_mask(random_key, shape, keep_probability)).numpy().astype(float)


for shape in [(4, 5), (), (0, 3)]:
    drop = {"random_key": (3, 4), "keep_probability": 0.7}
    dropped = lambda x, residual=0.0: x * kept((3, 4), x.shape, 0.7) / 0.7 + residual  # noqa: E731
    fused("dropout", f"{shape}", dropped, normal(*shape), residual=None, **drop)
    for constant in [(), (0,), (1,)]:
        fused(
            "dropout",
            f"{shape}, residual, constant {constant}",
            dropped,
            normal(*shape),
            normal(*shape),
            constant=constant,
            **drop,
        )
fused("dropout", "certain", lambda x: x * 0, normal(3), residual=None, random_key=(3, 4), keep_probability=0.0)
case("dropout", "p=0.3", seeded(lambda x: tt.dropout(x, 0.3)), lambda x: x * survivors(x.shape, 0.7), normal(4, 5))
residuals = [seeded(lambda x, y: tt.dropout(x, 0.3, residual=y)), lambda x, y: x * survivors(x.shape, 0.7) + y]
case("dropout", "p=0.3, residual", *residuals, normal(4, 5), normal(4, 5))
itself = [seeded(lambda x: tt.dropout(x, 0.3, residual=x)), lambda x: x * survivors(x.shape, 0.7) + x]
case("dropout", "p=0.3, itself the residual", *itself, normal(4, 5))
case("dropout", "p=0, residual", lambda x, y: tt.dropout(x, 0.0, residual=y * y), lambda x, y: x + y * y, normal(3), normal(3))
case("dropout", "p=0", lambda x: tt.dropout(x, 0.0) * x, lambda x: x * x, normal(3))
case("dropout", "p=1", lambda x: tt.dropout(x, 1.0), lambda x: x * 0, normal(3))
case("dropout", "evaluating", lambda x: tt.dropout(x, 0.5, training=False) * x, lambda x: x * x, normal(3))


def attention(q: Any, k: Any, v: Any, bias: Any = 0.0, mask: Any = True, scale: float | None = None, keep: Any = 1.0) -> Any:
    """softmax(q kᵀ / sqrt(d) + bias) v, where a row without anything to attend to is 0."""
    scores = np.einsum("...td,...sd->...ts", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    e = np.where(mask, np.exp(scores), 0.0)
    total = e.sum(-1, keepdims=True)
    weights = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return (weights * keep) @ v


def hiding(*shape: int) -> Any:
    """Numbers to add to scores, a fifth of them -inf, and all for the first query."""
    bias = np.where(rng.random(shape) < 0.2, -inf, rng.standard_normal(shape))
    if len(shape) > 1:
        bias[..., :1, :] = -inf
    return bias


ATTENTIONS = {
    "matrices": ((3, 2), (4, 2), (4, 3)),
    "batch": ((2, 3, 2), (2, 3, 2), (2, 3, 2)),
    "heads": ((2, 2, 2, 2), (2, 2, 3, 2), (2, 2, 3, 2)),
    "shared keys": ((2, 3, 2), (3, 2), (3, 2)),
    "one query": ((2, 1, 2), (2, 3, 2), (2, 3, 2)),
    "no batch": ((0, 3, 2), (0, 4, 2), (0, 4, 2)),
}


def attention_settings(mask: Any, past: Any, random_key: Any, causal: bool, weights: tuple[int, ...]) -> tuple[Any, ...]:
    """For a case of attention: a label, who may see what, the factors of the weights (whose shape here has keys before
    queries), and the settings of the op."""
    on = {", mask": mask is not None, ", dropout": random_key is not None, ", causal": causal}
    allowed = (True if mask is None else mask) & (past if causal else True)
    keep_probability = 1.0 if random_key is None else 0.5
    factors = 1.0 if random_key is None else kept(random_key, weights, 0.5).swapaxes(-1, -2) / 0.5
    settings = {"is_causal": causal, "scale": 0.7, "random_key": random_key, "keep_probability": keep_probability}
    return "".join([name for name, present in on.items() if present]), allowed, factors, {"mask": mask, **settings}


for label, shapes in ATTENTIONS.items():
    (*batch, t, _), (*_, s, _), _ = shapes
    past = np.tri(t, s, s - t, dtype=bool)
    some = bools(t, s)
    some[0] = False  # the first query may attend to nothing
    bias = hiding(t, s).astype(np.float32)  # which does not make float32 inputs float64
    variants: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("plain", {}, {}),
        ("mask and causal", {"mask": tt.tensor(some), "is_causal": True}, {"mask": some & past}),
        ("dropout", {"dropout_p": 0.4}, {"keep": survivors((*batch, s, t), 0.6).swapaxes(-1, -2)}),
    ]
    if label == "heads":  # settings that have nothing to do with the shapes
        variants += [
            ("causal", {"is_causal": True}, {"mask": past}),
            ("mask", {"mask": tt.tensor(some)}, {"mask": some}),
            ("bias", {"mask": tt.tensor(bias)}, {"bias": bias}),
            ("bias and causal", {"mask": tt.tensor(bias), "is_causal": True}, {"bias": bias, "mask": past}),
            ("scale", {"scale": 0.3}, {"scale": 0.3}),
        ]
    for variant, ours, theirs in variants:
        f = seeded(lambda *x, ours=ours: tt.scaled_dot_product_attention(*x, **ours))
        want = lambda *x, theirs=theirs: attention(*x, **theirs)  # noqa: E731
        case("scaled_dot_product_attention", f"{label}, {variant}", f, want, *[normal(*shape) for shape in shapes])
    for biased, mask, random_key, causal in half_of((False, True), (None, some), (None, (5, 6)), (False, True)):
        variant, allowed, weight, settings = attention_settings(mask, past, random_key, causal, (*batch, s, t))
        want = lambda *x, m=allowed, w=weight: attention(*x, mask=m, scale=0.7, keep=w)  # noqa: E731
        three = [normal(*shape) for shape in shapes]
        if biased:
            fused("attention", f"{label}, bias{variant}", want, *three, hiding(*batch, t, s), **settings)
        else:
            fused("attention", f"{label}{variant}", want, *three, bias=None, **settings)
for shape in [(), (1,), (3,), (2, 1), (3, 1, 1), (2, 1, 1, 3), (1, 3, 2, 1), (2, 3, 2, 3)]:
    four = [*[normal(2, 3, n, 2) for n in (2, 3, 3)], normal(*shape)]
    f = lambda q, k, v, bias: tt.scaled_dot_product_attention(q, k, v, bias)  # noqa: E731
    case("scaled_dot_product_attention", f"bias {shape}", f, attention, *four)
settings = {"mask": None, "is_causal": False, "scale": 2**-0.5, "random_key": None, "keep_probability": 1.0}
for constant in [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)]:
    three = [normal(3, 2), normal(4, 2), normal(4, 3)]
    fused("attention", f"constant {constant}", attention, *three, constant=constant, bias=None, **settings)
for constant in [(0, 1, 2), (0,), (1, 2), (3,)]:
    four = [normal(3, 2), normal(4, 2), normal(4, 3), normal(4)]
    fused("attention", f"bias, constant {constant}", attention, *four, constant=constant, **settings)
padding = np.array([[[True, True, False]], [[False, False, False]]])
three = [normal(2, 2, 2), normal(2, 3, 2), normal(2, 3, 2)]
f = lambda *x: attention(*x[:3], mask=x[3])  # noqa: E731
same("scaled_dot_product_attention", "padding", *three, padding, want=f)
case(
    "scaled_dot_product_attention",
    "no width",
    tt.scaled_dot_product_attention,
    lambda q, k, v: q.sum() + v.mean(-2, keepdims=True).repeat(3, -2),
    normal(2, 3, 0),
    normal(2, 4, 0),
    normal(2, 4, 2),
)
case(
    "scaled_dot_product_attention",
    "no keys, bias",
    tt.scaled_dot_product_attention,
    lambda q, k, v, b: np.zeros((2, 3, 2)),
    normal(2, 3, 4),
    normal(2, 0, 4),
    normal(2, 0, 2),
    normal(3, 0),
)
case(
    "scaled_dot_product_attention",
    "no queries, bias",
    tt.scaled_dot_product_attention,
    lambda q, k, v, b: np.zeros((2, 0, 2)),
    normal(2, 0, 4),
    normal(2, 3, 4),
    normal(2, 3, 2),
    normal(3),
)
itself = [lambda x, attend=attend: attend(x, x, x) for attend in (tt.scaled_dot_product_attention, attention)]
case("scaled_dot_product_attention", "of itself", *itself, normal(3, 2))
case(
    "scaled_dot_product_attention",
    "of one projection",
    lambda x: tt.scaled_dot_product_attention(*tt.split(x, 3, -1), is_causal=True),
    lambda x: attention(*np.split(x, 3, -1), mask=np.tri(3, dtype=bool)),
    normal(3, 6),
)


def by_heads(projected: Any, memory: Any = None, bias: Any = None, keep: Any = 1.0, **settings: Any) -> Any:
    """``attention`` in each half of the width, the two put beside each other."""
    three = np.split(projected, 3, -1) if memory is None else [projected, *np.split(memory, 2, -1)]
    halves = zip(*[np.split(x, 2, -1) for x in three])
    kept_by = [keep[:, 0], keep[:, 1]] if np.ndim(keep) else [keep, keep]
    added = [0.0, 0.0] if bias is None else bias if bias.ndim == 3 else [bias, bias]  # (heads, T, S), or for both heads
    parts = [attention(*half, own_bias, **settings, keep=own) for half, own_bias, own in zip(halves, added, kept_by)]
    return np.concatenate(parts, -1)


for label, lengths in {"": (3, 3), ", one query": (1, 3), ", no queries": (0, 3), ", no batch": (3, 2)}.items():
    batch, (t, s) = 0 if "batch" in label else 2, lengths
    inputs = {"itself": [normal(batch, t, 12)], "memory": [normal(batch, t, 4), normal(batch, s, 8)]}
    for of, xs in inputs.items():
        keys = xs[-1].shape[1]
        if not keys:
            continue
        some, past = bools(t, keys), np.tri(t, keys, keys - t, dtype=bool)
        other = {"memory": None} if of == "itself" else {}
        for biased, mask, random_key, causal in half_of((False, of == "memory"), (None, some), (None, (5, 6)), (False, True)):
            variant, allowed, weight, settings = attention_settings(mask, past, random_key, causal, (batch, 2, keys, t))
            if biased:
                four = [*xs, hiding(2, t, keys)]
                want = lambda *x, m=allowed, w=weight: by_heads(*x[:-1], bias=x[-1], mask=m, scale=0.7, keep=w)  # noqa: E731
                fused("multi_head_attention", f"{of}{label}, bias{variant}", want, *four, num_heads=2, **settings)
            else:
                want = lambda *x, m=allowed, w=weight: by_heads(*x, mask=m, scale=0.7, keep=w)  # noqa: E731
                fused("multi_head_attention", f"{of}{label}{variant}", want, *xs, bias=None, num_heads=2, **other, **settings)
settings = {"mask": None, "is_causal": False, "scale": 2**-0.5, "random_key": None, "keep_probability": 1.0}
for constant in [(0,), (1,)]:
    two = [normal(2, 3, 4), normal(2, 5, 8)]
    options = {"bias": None, "num_heads": 2, "constant": constant}
    fused("multi_head_attention", f"constant {constant}", by_heads, *two, **options, **settings)
attend = functools.partial(tt.multi_head_attention, num_heads=2)
past = np.tri(3, dtype=bool)
case("multi_head_attention", "causal", lambda x: attend(x, is_causal=True), lambda x: by_heads(x, mask=past), normal(2, 3, 12))
case(
    "multi_head_attention",
    "bias",
    lambda x, bias: attend(x, mask=bias, is_causal=True),
    lambda x, bias: by_heads(x, bias=bias, mask=past),
    normal(2, 3, 12),
    hiding(2, 3, 3),
)
case(
    "multi_head_attention",
    "memory and dropout",
    seeded(lambda x, y: attend(x, memory=y, mask=tt.tensor(past), dropout_p=0.4)),
    lambda x, y: by_heads(x, y, mask=past, keep=survivors((2, 2, 3, 3), 0.6).swapaxes(-1, -2)),
    normal(2, 3, 4),
    normal(2, 3, 8),
)
case(
    "multi_head_attention",
    "of itself",
    lambda x: attend(x[..., :4], memory=x),
    lambda x: by_heads(x[..., :4], x),
    normal(2, 3, 8),
)
case("multi_head_attention", "of nothing", attend, by_heads, normal(2, 0, 12))
case(
    "multi_head_attention",
    "no keys",
    lambda x, y: attend(x, memory=y) + x,
    lambda x, y: x + 0.0,
    normal(2, 3, 4),
    normal(2, 0, 8),
)
for queries, keys in [(4, 4), (2, 5), (1, 3), (4, 2), (0, 3)]:
    case(
        "causal_mask",
        f"{queries} of {keys}",
        lambda q=queries, k=keys: tt.causal_mask(q, k),
        # Query q stands at place keys - queries + q, and sees the places up to its own.
        lambda q=queries, k=keys: np.array([[j <= i for j in range(k)] for i in range(k - q, k)], bool).reshape(q, k),
        differentiable=False,
    )
case("causal_mask", "square", lambda: tt.causal_mask(3), lambda: np.tri(3, dtype=bool), differentiable=False)

# ------------------------------------------------------------------------------------------------- recurrent layers


def through_time(step: Callable[..., Any], projected: Any, first: Any, mask: Any = None, is_reversed: bool = False) -> Any:
    """The states of each sequence by itself, one step after the other: (kinds of state, length, batch, width)."""
    (length, batch), width = projected.shape[:2], first[0].shape[-1]
    out = np.zeros((len(first), length, batch, width))
    for b in range(batch):
        states = [kind[b] for kind in first]
        for t in sorted(range(length), reverse=is_reversed):
            if mask is None or mask[t, b]:
                states = step(projected[t, b], *states)
            out[:, t, b] = states
    return out


def rnn(projected: Any, weight: Any, state: Any, *how: Any, activation: str = "tanh") -> Any:
    f = np.tanh if activation == "tanh" else lambda a: np.maximum(a, 0)
    return through_time(lambda p, h: [f(p + weight @ h)], projected, [state], *how)[0]


def gru(projected: Any, weight: Any, bias: Any, state: Any, *how: Any) -> Any:
    def step(p: Any, h: Any) -> Any:
        u = weight @ h + (0.0 if bias is None else bias)
        (of_r, of_z, of_n), (u_r, u_z, u_n) = np.split(p, 3), np.split(u, 3)
        r, z = sigmoid(of_r + u_r), sigmoid(of_z + u_z)
        return [(1 - z) * np.tanh(of_n + r * u_n) + z * h]

    return through_time(step, projected, [state], *how)[0]


def lstm(projected: Any, weight: Any, state: Any, cell: Any, *how: Any) -> Any:
    def step(p: Any, h: Any, c: Any) -> Any:
        i, f, u, o = np.split(p + weight @ h, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
        return [sigmoid(o) * np.tanh(c), c]

    return through_time(step, projected, [state, cell], *how)


padded = np.arange(3)[:, None] < [3, 2, 0]  # padding at the end; the last sequence has no token at all
gaps = np.array([[False, True], [True, False], [True, True]])
HOW: dict[str, tuple[tuple[int, int], tuple[Any, ...]]] = {
    "all steps": ((3, 2), ()),
    "one step": ((1, 2), ()),
    "one sequence": ((3, 1), ()),
    "no sequence": ((2, 0), ()),
    "reversed": ((3, 2), (None, True)),
    "padding": ((3, 3), (padded, False)),
    "padding, reversed": ((3, 3), (padded, True)),
    "gaps": ((3, 2), (gaps, False)),
}


def recurrent(op: str, label: str, want: Any, *inputs: Any, how: Any = (), constant: Any = (), **settings: Any) -> None:
    """A case of a recurrent layer and its reference. ``how`` is the mask and whether time is reversed. Inputs may be None."""
    given = [i for i, x in enumerate(inputs) if x is not None]
    ours = tuple([tt.tensor(x) if isinstance(x, np.ndarray) else x for x in how])

    def placed(f: Any, how: Any) -> Any:
        return lambda *xs: f(*[xs[given.index(i)] if i in given else None for i in range(len(inputs))], *how, **settings)

    f, twin = placed(all_ops[op], ours), placed(all_ops[op].reference, ours)  # type: ignore[attr-defined]
    case(op, label, f, placed(want, how), *[inputs[i] for i in given], constant=constant, twin=twin)


for label, ((length, batch), how) in HOW.items():
    states = [normal(batch, 3) for _ in range(2)]
    recurrent("rnn", label, rnn, normal(length, batch, 3), normal(3, 3), states[0], how=how)
    recurrent("gru", label, gru, normal(length, batch, 9), normal(9, 3), normal(9), states[0], how=how)
    if label in ("all steps", "padding, reversed", "no sequence"):
        recurrent("gru", f"{label}, no bias", gru, normal(length, batch, 9), normal(9, 3), None, states[0], how=how)
    recurrent("lstm", label, lstm, normal(length, batch, 12), normal(12, 3), *states, how=how)
    away_from_0 = 3 * nonzero(length, batch, 3), 0.02 * normal(3, 3), unit(batch, 3)
    recurrent("rnn", f"{label}, relu", rnn, *away_from_0, how=how, activation="relu")
recurrent("rnn", "width 1", rnn, normal(3, 2, 1), normal(1, 1), normal(2, 1))
recurrent("gru", "width 1", gru, normal(3, 2, 3), normal(3, 1), normal(3), normal(2, 1))
recurrent("lstm", "width 1", lstm, normal(3, 2, 4), normal(4, 1), normal(2, 1), normal(2, 1))
for constant in [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)]:
    label, how = f"constant {constant}", (gaps, False)
    recurrent("rnn", label, rnn, normal(3, 2, 3), normal(3, 3), normal(2, 3), how=how, constant=constant)
for constant in [*itertools.combinations(range(4), 1), *itertools.combinations(range(4), 3)]:
    label, how = f"constant {constant}", (gaps, False)
    recurrent("gru", label, gru, normal(3, 2, 9), normal(9, 3), normal(9), normal(2, 3), how=how, constant=constant)
    recurrent("lstm", label, lstm, normal(3, 2, 8), normal(8, 2), normal(2, 2), normal(2, 2), how=how, constant=constant)
of_itself = [lambda x, f=f: f(x[None, :, :2], x[:2, :2], x[:, 1:]) for f in (tt.rnn, rnn)]
case("rnn", "of itself", *of_itself, normal(3, 3))

# -------------------------------------------------------------------------------------------------------------- losses


def reduced(losses: Any, reduction: str, count: int) -> Any:
    return losses if reduction == "none" else losses.sum() / (count if reduction == "mean" else 1)


def cross_entropy(
    logits: Any,
    targets: Any,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    weight: Any = None,
) -> Any:
    """-sum of weight p log softmax(logits) with each row's target distribution p, one row at a time."""
    classes = logits.shape[-1]
    weight = np.ones(classes) if weight is None else weight
    if targets.dtype.kind == "f":
        targets = targets * (1 - label_smoothing) + label_smoothing / classes
        losses = -(targets * weight * log_softmax(logits)).sum(-1)
        return reduced(losses, reduction, losses.size)
    losses, count = np.zeros(targets.shape), 0
    for place in np.ndindex(*targets.shape):
        if targets[place] != ignore_index:
            p = np.full(classes, label_smoothing / classes)
            p[targets[place]] += 1 - label_smoothing
            losses[place] = -(p * weight * log_softmax(logits[place])).sum()
            count += weight[targets[place]]
    return reduced(losses, reduction, count or 1)


def mse_loss(x: Any, target: Any, reduction: str) -> Any:
    return reduced((x - target) ** 2, reduction, x.size)


for shapes in ([(3, 4), (3, 4)], [(4,), (3, 4)], [(), ()]):
    case("weighted", f"{shapes}", all_ops["weighted"], lambda weight, x: weight * x, *[normal(*shape) for shape in shapes])


def huber(x: Any, y: Any) -> Any:
    d = np.abs(x - y)
    return np.where(d < 0.7, d * d / 2, 0.7 * (d - 0.35)) / 2


grid = np.linspace(-2, 2, 12).reshape(3, 4)
case("huber", "", lambda x, y: all_ops["huber"](x, y, 0.7, 2.0), huber, grid, np.sin(3 * grid))
logistic_inputs = (grid, np.cos(grid / 2), np.cos(grid / 3))
softplus = lambda x: np.log1p(np.exp(x))  # noqa: E731
case("logistic", "", all_ops["logistic"], lambda x, p, n: p * softplus(-x) + n * softplus(x), *logistic_inputs)


def binary_cross_entropy_with_logits(x: Any, target: Any, reduction: str) -> Any:
    p = sigmoid(x)
    return reduced(-target * np.log(p) - (1 - target) * np.log(1 - p), reduction, x.size)


TARGETS = {"rows": ints(3, 4), "two axes": ints(3, 2, 3), "one": np.array(1), "none": ints(3, 0)}
IGNORED = {"some ignored": np.array([0, 2, 2, 1]), "all ignored": np.array([2, 2])}
for reduction in ("mean", "sum", "none"):
    for e in (0.0, 0.2):
        variant = f"smoothing={e}, {reduction}"
        for label, targets in {**TARGETS, **IGNORED}.items():
            settings = {"ignore_index": 2 if label in IGNORED else -100, "label_smoothing": e, "reduction": reduction}
            want = lambda x, t=targets, s=settings: cross_entropy(x, t, **s)  # noqa: E731
            fused("cross_entropy", f"{label}, {variant}", want, normal(*targets.shape, 3), targets=targets, **settings)
            if reduction != "none":
                want = lambda x, w, t=targets, s=settings: cross_entropy(x @ w.T, t, **s)  # noqa: E731
                for constant in [(), (0,), (1,)] if label == "some ignored" else [()]:
                    two = [normal(*targets.shape, 2), normal(3, 2)]
                    named = f"{label}, {variant}" + f", constant {constant}" * bool(constant)
                    fused("linear_cross_entropy", named, want, *two, constant=constant, targets=targets, **settings)
        settings = {"label_smoothing": e, "reduction": reduction}
        probabilities = softmax(normal(2, 2, 3))
        logits, probabilities = normal(2, 2, 3), softmax(normal(2, 2, 3))
        same("cross_entropy", f"probabilities, {variant}", logits, probabilities, kwargs=settings, want=cross_entropy)
    for constant in [(), (1,)]:
        variant = reduction + ", constant target" * bool(constant)
        options = {"args": (reduction,), "constant": constant}
        same("mse_loss", variant, normal(3, 4), normal(3, 4), want=mse_loss, **options)
        same(
            "binary_cross_entropy_with_logits",
            variant,
            normal(3, 4),
            unit(3, 4),
            want=binary_cross_entropy_with_logits,
            **options,
        )
same("cross_entropy", "public", normal(2, 3, 4), ints(4, 2, 3), want=cross_entropy)
same("cross_entropy", "ignore_index", normal(4, 3), np.array([0, -1, 2, -1]), kwargs={"ignore_index": -1}, want=cross_entropy)
same("cross_entropy", "small integers", normal(3, 4), ints(4, 3).astype(np.uint8), want=cross_entropy)
same(
    "linear_cross_entropy",
    "public",
    normal(2, 3, 2),
    normal(4, 2),
    ints(4, 2, 3),
    want=lambda x, weight, targets: cross_entropy(x @ weight.T, targets),
)


def cosine_similarity(x: Any, y: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    x, y = np.broadcast_arrays(x, y)
    return (x * y).sum(axis) / np.maximum(euclidean(x, axis), eps) / np.maximum(euclidean(y, axis), eps)


for a, b, axis in [((2, 3), (2, 3), 1), ((2, 3), (3,), 0), ((2, 3, 2), (1, 2), 1), ((2, 1, 3), (4, 3), -1), ((0, 3), (3,), 1)]:
    same("cosine_similarity", f"{a} {b}, axis={axis}", nonzero(*a), nonzero(*b), args=(axis,), want=cosine_similarity)
same("cosine_similarity", "short", nonzero(2, 3), nonzero(2, 3), kwargs={"eps": 10.0}, want=cosine_similarity)
case(
    "cosine_similarity",
    "of itself",
    lambda x: tt.cosine_similarity(x, x * x),
    lambda x: cosine_similarity(x, x * x),
    nonzero(2, 3),
)

targets = tt.tensor([0, 2, -100, 1])
want = lambda x: -x[range(4), [0, 2, 0, 1]] * [1, 1, 0, 1]  # noqa: E731
case("nll", "one ignored", lambda x: all_ops["nll"](x, targets, -100), want, np.arange(12.0).reshape(4, 3))
ids, scale = np.array([0, 2, 1]), np.array([0.5, 1.0, 2.0])
for reduction in ("mean", "sum", "none"):
    distances = {
        "l1_loss": abs,
        "huber_loss": lambda d: np.where(abs(d) < 1, d * d / 2, abs(d) - 0.5),
        "smooth_l1_loss": lambda d: np.where(abs(d) < 1, d * d / 2, abs(d) - 0.5),
    }
    for op, of in distances.items():
        want = lambda x, y, reduction, of=of: reduced(of(x - y), reduction, x.size)  # noqa: E731
        same(op, reduction, even(3, 4), odd(3, 4) + 0.1, args=(reduction,), want=want)
        if op != "l1_loss":
            same(op, f"equals, {reduction}", even(3, 4), even(3, 4), args=(reduction,), want=want)
    want = lambda x, y, r=reduction: reduced(y * (np.log(y) - x), r, x.size)  # noqa: E731
    case("kl_div", reduction, lambda x, y, r=reduction: tt.kl_div(x, y, r), want, normal(3, 4), unit(3, 4))
    want = lambda p, t, r=reduction: reduced(-t * np.log(p) - (1 - t) * np.log(1 - p), r, p.size)  # noqa: E731
    ours = lambda p, t, r=reduction: tt.binary_cross_entropy(p, t, r)  # noqa: E731
    case("binary_cross_entropy", reduction, ours, want, unit(3, 4), unit(3, 4))
    want = lambda x, r=reduction: reduced(-x[range(3), ids] * scale[ids], r, scale[ids].sum())  # noqa: E731
    ours = lambda x, r=reduction: tt.nll_loss(x, tt.tensor(ids), tt.tensor(scale.astype(x.dtype)), reduction=r)  # noqa: E731
    case("nll_loss", f"weights, {reduction}", ours, want, normal(3, 3))
    want = lambda x, r=reduction: reduced(-x[range(4), [0, 2, 0, 1]] * [1, 1, 0, 1], r, 3)  # noqa: E731
    ours = lambda x, r=reduction: tt.nll_loss(x, tt.tensor([0, 2, -100, 1]), reduction=r)  # noqa: E731
    case("nll_loss", f"one ignored, {reduction}", ours, want, np.arange(12.0).reshape(4, 3))
    for e in (0.0, 0.2):
        options = {"label_smoothing": e, "reduction": reduction}
        ours = lambda x, w, o=options: tt.cross_entropy(x, tt.tensor(ids), weight=w, **o)  # noqa: E731
        want = lambda x, w, o=options: cross_entropy(x, ids, weight=w, **o)  # noqa: E731
        case("cross_entropy", f"weights, smoothing={e}, {reduction}", ours, want, normal(3, 3), unit(3))
    ours = lambda x, t, w, r=reduction: tt.cross_entropy(x, t, reduction=r, weight=w)  # noqa: E731
    want = lambda x, t, w, r=reduction: cross_entropy(x, t, reduction=r, weight=w)  # noqa: E731
    case("cross_entropy", f"weights and probabilities, {reduction}", ours, want, normal(2, 3), unit(2, 3), unit(3))

# ----------------------------------------------------------------------------------------- activations and groups

case("softplus", "beta", lambda x: tt.softplus(x, 0.3), lambda x: np.log1p(np.exp(0.3 * x)) / 0.3, normal(3, 4))
for groups, shape in itertools.product((1, 2, 4), [(2, 4, 3), (2, 4, 2, 2)]):
    inputs = normal(*shape), normal(4), normal(4)
    ours, want = [lambda x, *of, f=f, n=groups: f(x, n, *of, eps=0.1) for f in (tt.group_norm, group_norm)]
    for count in (1, 2, 3):
        case("group_norm", f"{shape}, groups={groups}, inputs={count}", ours, want, *inputs[:count])


def add_times_quantized(shape: tuple[int, ...], transposed: bool) -> None:
    """The cases of rows of this shape."""
    blocks, values = random_weight(EACH, 4)
    bits = (whole(5, 4).astype("float32").view("uint32") >> 16).astype("uint16")
    weights = [(blocks, EACH, values), (bits.view("uint8").ravel(), HALVES, widened(bits).astype(float))]
    for weight, parts, numbers in weights:
        ours = lambda x, w, parts=parts: times_quantized(x, w, parts, 4, transposed)  # noqa: E731
        want = lambda x, w, n=numbers: x @ (n.T if transposed else n)  # noqa: E731
        label = f"{shape}, {parts[0][0]}" + ", transposed" * transposed
        case("times_quantized", label, ours, want, normal(*shape), weight)


for shape in [(3, 5), (2, 3, 5), (5,), (0, 5)]:
    add_times_quantized(shape, transposed=False)
for shape in [(2, 3, 4), (4,)]:
    add_times_quantized(shape, transposed=True)

CASES_OF: dict[str, list[Case]] = {}  # by op
for one in CASES:
    CASES_OF.setdefault(one.op, []).append(one)


def run_checks(op: str, checks_of: Callable[[Case], Iterable[Callable[[Case], None]]]) -> None:
    """Run each check of each case of an op. Raise AssertionError that names all cases and checks that fail."""
    faults: dict[str, Exception] = {}
    for case in CASES_OF[op]:
        for check in checks_of(case):
            tt.seed(0)
            try:
                check(case)
            except Exception as fault:
                faults[f"{case}: {check.__name__}"] = fault
    if faults:
        raise AssertionError("\n".join([f"{what}: {fault}" for what, fault in faults.items()])) from next(iter(faults.values()))


# ------------------------------------------------------------------------------------------------------------- promises


@dataclass(frozen=True)
class Promise:
    """What the docstrings promise where differences cannot tell: the value, and the gradient of the value's sum."""

    label: str
    f: Callable[[tt.Tensor], tt.Tensor]
    x: list[Any]
    value: Any
    gradient: list[Any]

    def __str__(self) -> str:
        return self.label


def unmasked_nowhere(x: tt.Tensor) -> tt.Tensor:
    return tt.scaled_dot_product_attention(x, x, x, mask=tt.zeros((2, 2), "bool"))


def added_nowhere(x: tt.Tensor) -> tt.Tensor:
    return tt.scaled_dot_product_attention(x, x, x, mask=tt.full((2, 2), -inf, "float64"))


def bias_of_the_lowest(x: tt.Tensor) -> tt.Tensor:
    return tt.scaled_dot_product_attention(x * 0, x * 0, x, mask=tt.full((2, 2), float(np.finfo("float64").min), "float64"))


def hiding_bias(bias: tt.Tensor) -> tt.Tensor:
    value = tt.tensor(np.array([[1.0], [3.0]]))
    return tt.scaled_dot_product_attention(value * 0, value * 0, value, mask=bias)


def all_targets_ignored(x: tt.Tensor) -> tt.Tensor:
    return tt.cross_entropy(x, tt.tensor([-100, -100]))


def surely_true(x: tt.Tensor) -> tt.Tensor:
    return tt.binary_cross_entropy_with_logits(x, tt.tensor([1.0, 1.0]), "none")


zeros = [[0, 0], [0, 0]]
PROMISES = [
    Promise("abs at 0", tt.abs, [0.0, -2.0], [0, 2], [0, -1]),
    Promise("sign at 0", tt.sign, [0.0, -2.0], [0, -1], [0, 0]),
    Promise("relu at 0", tt.relu, [0.0, 1.0, -1.0], [0, 1, 0], [0, 1, 0]),
    Promise("leaky_relu at 0", tt.leaky_relu, [0.0, 1.0], [0, 1], [0.01, 1]),
    Promise("sqrt of relu", lambda x: tt.sqrt(tt.relu(x)), [-1.0, 4.0], [0, 2], [0, 0.25]),
    Promise("log of relu", lambda x: tt.log(tt.relu(x)), [-1.0, 4.0], [-inf, math.log(4)], [0, 0.25]),
    Promise("1 / relu", lambda x: 1 / tt.relu(x), [-1.0, 4.0], [inf, 0.25], [0, -1 / 16]),
    Promise("relu to a power", lambda x: tt.power(tt.relu(x), 0.5), [-1.0, 4.0], [0, 2], [0, 0.25]),
    Promise("sqrt of relu, many", lambda x: tt.sqrt(tt.relu(x)), [-1.0] * 5000, [0] * 5000, [0] * 5000),
    Promise("sqrt of abs at 0", lambda x: tt.sqrt(tt.abs(x)), [0.0, -4.0], [0, 2], [0, -0.25]),
    Promise("sqrt of sign at 0", lambda x: tt.sqrt(tt.sign(x)), [0.0, 4.0], [0, 1], [0, 0]),
    Promise("sqrt of floor", lambda x: tt.sqrt(tt.floor(x)), [0.5, 4.5], [0, 2], [0, 0]),
    Promise("sqrt of round", lambda x: tt.sqrt(tt.round(x)), [0.5, 4.5], [0, 2], [0, 0]),
    Promise("sqrt of x // 1", lambda x: tt.sqrt(x // 1), [0.5, 4.5], [0, 2], [0, 0]),
    Promise("sqrt of maximum", lambda x: tt.sqrt(tt.maximum(x, 0.0)), [-1.0, 4.0], [0, 2], [0, 0.25]),
    Promise("sqrt of clip", lambda x: tt.sqrt(tt.clip(x, 0.0, 9.0)), [-1.0, 4.0], [0, 2], [0, 0.25]),
    Promise("sqrt of x**0 - 1", lambda x: tt.sqrt(x**0 - 1), [-1.0, 4.0], [0, 0], [0, 0]),
    *[
        Promise(f"{name} of NaN", f, [nan, 1.0], [nan, 1.0], [1.0, 1.0])
        for name, f in {
            "relu": tt.relu,
            "maximum": lambda x: tt.maximum(x, 0.5),
            "minimum": lambda x: tt.minimum(x, 1.5),
            "maximum, left": lambda x: tt.maximum(0.5, x),
        }.items()
    ],
    Promise("maximum beside NaN", lambda x: tt.maximum(x, tt.tensor([nan, 0.0])), [1.0, 1.0], [nan, 1], [1, 1]),
    Promise("clip of NaN", lambda x: tt.clip(x, 0.0, 1.0), [nan, 0.5], [nan, 0.5], [0, 1]),
    Promise("leaky_relu of NaN", lambda x: tt.leaky_relu(x, 0.1), [nan, 0.5], [nan, 0.5], [0.1, 1]),
    Promise("elu at the ends", tt.elu, [-inf, 0.0, inf], [-1, 0, inf], [0, 1, 1]),
    Promise("logsigmoid far out", tt.logsigmoid, [-1000.0, 1000.0], [-1000, 0], [1, 0]),
    Promise("logaddexp of -inf", lambda x: tt.logaddexp(x, x), [-inf, inf], [-inf, inf], [1, 1]),
    Promise(
        "clip to bounds that cross", lambda x: tt.clip(x, tt.tensor(2.0), tt.tensor(1.0)), [0.0, 1.5, 3.0], [1] * 3, [0] * 3
    ),
    Promise("the bound of clip", lambda x: tt.clip(tt.tensor([0.0, 1.0, 2.0]), x), [1.0, 1.0, 1.0], [1, 1, 2], [1, 0, 0]),
    Promise("sqrt at 0", tt.sqrt, [0.0, 4.0], [0, 2], [inf, 0.25]),
    Promise("sqrt at 0, nothing flows", lambda x: tt.sqrt(x) * 0.0, [0.0, 4.0], [0, 0], [0, 0]),
    Promise("sqrt not selected", lambda x: tt.where(x > 0, tt.sqrt(x), 0.0), [0.0, 4.0], [0, 2], [0, 0.25]),
    Promise("norm of 0", tt.norm, [0.0, 0.0], 0, [0, 0]),
    Promise("norm of a row of 0", lambda x: tt.norm(x, axis=1), [[0.0, 0.0], [3.0, 4.0]], [0, 5], [[0, 0], [0.6, 0.8]]),
    Promise("std of equal elements", tt.std, [2.0, 2.0, 2.0], 0, [0, 0, 0]),
    Promise("x**0 at 0", lambda x: tt.power(x, 0.0), [0.0, 2.0], [1, 1], [0, 0]),
    Promise("x**1 at 0", lambda x: tt.power(x, 1.0), [0.0, 2.0], [0, 2], [1, 1]),
    Promise("x**2 at 0", lambda x: x**2, [0.0, -2.0], [0, 4], [0, -4]),
    Promise("x**0.5 at 0", lambda x: x**0.5, [0.0, 4.0], [0, 2], [inf, 0.25]),
    Promise("x**0 of infinities", lambda x: tt.power(x, tt.zeros(3)), [inf, -inf, nan], [1] * 3, [0] * 3),
    Promise("x**0 at infinity, number", lambda x: tt.power(x, 0), [inf, -inf, nan], [1] * 3, [0] * 3),
    Promise("0**y, y < 0", lambda y: tt.power(tt.zeros(2), y), [-1.0, -0.5], [inf, inf], [-inf, -inf]),
    Promise("x / y, far from 1", lambda y: tt.divide(1e-200, y), [1e-200, 1e200], [1, 0], [-1e200, 0]),
    Promise("1 / x, far from 1", tt.reciprocal, [1e-100, 1e100], [1e100, 1e-100], [-1e200, -1e-200]),
    Promise("rsqrt not selected", lambda x: tt.where(x > 0, tt.rsqrt(x), 0.0), [0.0, 4.0], [0, 0.5], [0, -1 / 16]),
    Promise("x**-1 not selected", lambda x: tt.where(x > 0, x**-1, 0.0), [0.0, 4.0], [0, 0.25], [0, -1 / 16]),
    Promise("log1p at -1, a number, nothing flows", lambda x: tt.log1p(x) * 0.0, -1.0, nan, 0),
    Promise("arcsin not selected", lambda x: tt.where(x < 1, tt.arcsin(x), 0.0), [1.0, 0.0], [0, 0], [0, 1]),
    Promise("0**y", lambda y: tt.power(0.0, y), [2.0, 0.5, 0.0], [0, 0, 1], [0, 0, 0]),
    Promise("0**y of tensors", lambda y: tt.power(tt.zeros(3), y), [2.0, 0.5, 0.0], [0, 0, 1], [0, 0, 0]),
    Promise("maximum of equals", lambda x: tt.maximum(x, 1.0), [1.0, 2.0, 0.0], [1, 2, 1], [0.5, 1, 0]),
    Promise("minimum of equals", lambda x: tt.minimum(x, 1.0), [1.0, 2.0, 0.0], [1, 1, 0], [0.5, 0, 1]),
    Promise("max of equals", tt.max, [3.0, 3.0, 1.0, 3.0], 3, [1 / 3, 1 / 3, 0, 1 / 3]),
    Promise("min of equals", lambda x: tt.min(x, 1), [[1.0, 1.0], [2.0, 1.0]], [1, 1], [[0.5, 0.5], [0, 1]]),
    Promise("clip at the ends", lambda x: tt.clip(x, 0.0, 1.0), [-1.0, 0.0, 0.5, 1.0, 2.0], [0, 0, 0.5, 1, 1], [0, 1, 1, 1, 0]),
    Promise("sort of a number", lambda x: tt.sort(x, 0), 2.0, 2, 1),
    Promise("topk of a number", lambda x: tt.topk(x, 1, 0)[0], 2.0, 2, 1),
    Promise("topk of equals", lambda x: tt.topk(x, 2)[0], [1.0, 3.0, 3.0, 3.0], [3, 3], [0, 1, 1, 0]),
    Promise("topk of the smallest", lambda x: tt.topk(x, 2, largest=False)[0], [1.0, 0.0, 1.0, 3.0], [0, 1], [1, 1, 0, 0]),
    Promise("descending sort of equals", lambda x: tt.sort(x, descending=True)[:2], [1.0, 3.0, 3.0, 3.0], [3, 3], [0, 1, 1, 0]),
    Promise("sort of equals", lambda x: tt.sort(x)[:2] * 3, [2.0, 1.0, 1.0], [3, 3], [0, 3, 3]),
    Promise("hypot at the origin", lambda x: tt.hypot(x, x * 0), [0.0, -2.0], [0, 2], [0, -1]),
    Promise("hypot of one 0", lambda x: tt.hypot(x, 0.0) + tt.hypot(3.0, x), [0.0, 4.0], [3, 9], [0, 1.8]),
    Promise("hypot far from 1", lambda x: tt.hypot(x, 4e-200), [3e-200, 3e200, inf], [5e-200, 3e200, inf], [0.6, 1, nan]),
    Promise("arctan2 at the origin, y", lambda y: tt.arctan2(y, 0.0), [0.0, 2.0], [0, math.pi / 2], [0, 0]),
    Promise("arctan2 at the origin, x", lambda x: tt.arctan2(0.0, x), [0.0, -0.0, -2.0], [0, math.pi, math.pi], [0, 0, 0]),
    Promise("arctan2 on the y axis", lambda x: tt.arctan2(2.0, x), [0.0, inf], [math.pi / 2, 0], [-0.5, 0]),
    Promise("arctan2 far from 1", lambda y: tt.arctan2(y, 1e200), [1e200, 0.0], [math.pi / 4, 0], [0.5e-200, 1e-200]),
    Promise("arcsinh far from 1", tt.arcsinh, [1e-200, 1e200, -inf], [1e-200, math.asinh(1e200), -inf], [1, 1e-200, 0]),
    Promise("arccosh at the ends", tt.arccosh, [1.0, inf, 0.5], [0, inf, nan], [inf, 0, nan]),
    Promise("arccosh not selected", lambda x: tt.where(x > 1, tt.arccosh(x), 0.0), [1.0, 1.25], [0, math.log(2)], [0, 4 / 3]),
    Promise("arctanh at the ends", tt.arctanh, [-1.0, 0.0, 1.0], [-inf, 0, inf], [inf, 1, inf]),
    Promise("arctanh not selected", lambda x: tt.where(x < 1, tt.arctanh(x), 0.0), [1.0, 0.0], [0, 0], [0, 1]),
    Promise("reciprocal not selected", lambda x: tt.where(x > 0, 1 / (x + 1), x), [0.0, 1.0], [0, 0.5], [1, -0.25]),
    Promise("sigmoid far out", tt.sigmoid, [-1000.0, 0.0, 1000.0], [0, 0.5, 1], [0, 0.25, 0]),
    Promise("softplus far out", tt.softplus, [-1000.0, 1000.0], [0, 1000], [0, 1]),
    Promise("silu far out", tt.silu, [-1000.0, 1000.0], [0, 1000], [0, 1]),
    Promise("gelu far out", tt.gelu, [-50.0, 50.0], [0, 50], [0, 1]),
    Promise("softmax far out", lambda x: tt.softmax(x)[:2], [1e5, 0.0, -1e5], [1, 0], [0, 0, 0]),
    Promise("log_softmax far out", lambda x: tt.log_softmax(x)[0], [0.0, 1000.0], -1000, [1, -1]),
    Promise("max of NaN", tt.max, [nan, 1.0], nan, [1, 0]),
    Promise("max of infinities", tt.max, [inf, 1.0, inf], inf, [0.5, 0, 0.5]),
    Promise(
        "min of NaN in a row", lambda x: tt.min(x, 1), [[nan, 1.0, nan], [2.0, 1.0, 3.0]], [nan, 1], [[0.5, 0, 0.5], [0, 1, 0]]
    ),
    Promise("var of too few", lambda x: tt.var(x, ddof=2), [1.0, 3.0], inf, [-inf, inf]),
    Promise("var of too few equals", lambda x: tt.var(x, ddof=1), [1.0], nan, [nan]),
    Promise("std of one", tt.std, 3.0, 0, 0),
    Promise("norm of order 3 of 0", lambda x: tt.norm(x, 3), [0.0, 0.0], 0, [0, 0]),
    Promise("norm of order 1/2 with 0", lambda x: tt.norm(x, 0.5), [0.0, 4.0], 4, [0, 1]),
    Promise("norm of order -1 with 0", lambda x: tt.norm(x, -1), [0.0, 4.0], 0, [0, 0]),
    Promise("norm of order -inf of equals", lambda x: tt.norm(x, -inf), [2.0, -2.0, 3.0], 2, [0.5, -0.5, 0]),
    Promise("norm of order 0", lambda x: tt.norm(x, 0), [0.0, -2.0], 1, [0, 0]),
    Promise("logsumexp of -inf", tt.logsumexp, [-inf, -inf], -inf, [0, 0]),
    Promise(
        "logsumexp of a row of -inf", lambda x: tt.logsumexp(x, 1), [[-inf, -inf], [0.0, -inf]], [-inf, 0], [[0, 0], [1, 0]]
    ),
    Promise("logsumexp of inf", tt.logsumexp, [inf, 1.0], inf, [nan, 0]),
    Promise("cumsum with inf", tt.cumsum, [1.0, inf, 2.0], [1, inf, inf], [3, 2, 1]),
    Promise("prod with inf", tt.prod, [2.0, inf, 3.0], inf, [inf, 6, inf]),
    Promise("cumprod with zeros", tt.cumprod, [0.0, 0.0, 3.0], [0, 0, 0], [1, 0, 0]),
    Promise("cummax of equals and NaN", lambda x: tt.cummax(x)[0], [1.0, 1.0, nan, 2.0], [1, 1, nan, nan], [1, 1, 2, 0]),
    Promise("logsumexp with -inf", tt.logsumexp, [-inf, 2.0], 2, [0, 1]),
    Promise("binary cross-entropy far out", surely_true, [1000.0, -1000.0], [0, 1000], [0, -1]),
    Promise("mean cross-entropy of no rows", all_targets_ignored, [[1.0, 2.0], [3.0, 4.0]], 0, zeros),
    Promise("attention of masked rows", unmasked_nowhere, [[1.0, 2.0], [3.0, 4.0]], zeros, zeros),
    Promise("attention, -inf added", added_nowhere, [[1.0, 2.0], [3.0, 4.0]], zeros, zeros),
    Promise("attention, the lowest added", bias_of_the_lowest, [[1.0], [3.0]], [[2], [2]], [[1], [1]]),
    Promise("attention's bias", hiding_bias, [[-inf, -inf], [-inf, 1.0]], [[0], [3]], zeros),
    Promise(
        "cosine similarity with 0",
        lambda x: tt.cosine_similarity(x, tt.tensor([3.0, 4.0], "float64"), -1, 0.1),
        [[0.0, 0.0], [2.0, 0.0], [inf, 0.0]],
        [0, 0.6, nan],
        [[6, 8], [0, 0.4], [nan, nan]],
    ),
    Promise("prod of one zero", tt.prod, [0.0, 2.0, 3.0], 0, [6, 0, 0]),
    Promise("prod of two zeros", tt.prod, [0.0, 0.0, 3.0], 0, [0, 0, 0]),
    Promise("astype to integers", lambda x: x.astype("int64").astype("float64") + x, [1.5, -1.5], [2.5, -2.5], [1, 1]),
]
