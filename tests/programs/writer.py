"""Draw random programs: ops, values and settings. lines.py has the form of each op's call."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from programs.lines import LINES
from programs.program import Program, operands
from programs.reference import as_float64, in_numpy

FLOATS = ("float64", "float32", "float16")
INTEGERS = ("int64", "int64", "int32", "int8")
LARGEST = 300.0  # larger values are not used: they overflow in float16, and differences lose digits


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
    """Draws a program. The methods are what ``lines.py`` is written with."""

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
        dtype = {"f": self.choice(self.dtypes), "i": self.choice(INTEGERS), "u": "uint8", "b": "bool"}[kind]
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

    def bits(self) -> Value:
        """Integers or booleans."""
        self.drawn.append(self.pick("iub", lambda v: True))
        return self.drawn[-1]

    def other_bits(self) -> Value:
        x = self.first()
        with_bits = lambda v: np.result_type(x.array, v.array).kind != "f"  # noqa: E731 (int64 and uint64 make float64)
        return self.pick("iub", lambda v: fits(x.shape, v.shape) and with_bits(v))

    def alike(self) -> str:
        """Something of the first value's shape."""
        return self.of(self.first().shape)

    def row(self) -> str:
        """Something of the first value's last axis."""
        return self.of(self.first().shape[-1:])

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
            if self.is_delicate(op, text, array):
                raise NotHere
        except (NotHere, ArithmeticError, IndexError, ValueError):
            del self.values[before:]
            self.program.leaves = leaves
            return
        name = f"v{len(self.values)}"
        self.program.steps[name] = text
        self.add(name, array, dtype or self.dtype_of(text, array))

    def is_delicate(self, op: str, text: str, result: Any) -> bool:
        """Whether rounding counts for more than elsewhere: in the deviations of equals, and in exponents that are products."""
        if "attention" in op:
            return any((np.abs(v.array) > 8).any() for v in self.values if v.name in operands(text))
        return op == "std" and bool((result < 0.01).any())

    def line(self, op: str) -> tuple[str, str | None]:
        """A call of the op, and the dtype that it must have, where that is not its operands'."""
        self.drawn: list[Value] = []
        line = self.choice(LINES[op])
        written = self.fill(line) if isinstance(line, str) else line(self)
        text, dtype = written if isinstance(written, tuple) else (written, None)
        return text.replace("OP", op), dtype

    def fill(self, line: str) -> str:
        return re.sub(r"\{([^{}]+)\}", lambda m: str(self.draw(m[1])), line)

    def dtype_of(self, text: str, array: Any) -> str:
        """The dtype that the result must have: of its floating-point operands together, or float32 where there are none."""
        if array.dtype.kind != "f":
            return str(array.dtype)
        without_masks = re.sub(r"\(v\d+ > [\d.]+\)", "", text)
        return promoted([self.program.dtypes[name] for name in operands(without_masks)])

    def loss_dtype(self, text: str) -> str:
        """A loss of half precision is float32."""
        return promoted([*[self.program.dtypes[name] for name in operands(text)], "float32"])

    def write(self, length: int) -> Program:
        for _ in range(length):
            self.step(self.choice(list(LINES)))
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
