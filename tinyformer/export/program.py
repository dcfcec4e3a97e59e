"""Convert a recorded program to an ONNX graph, using the tables in ``operators.py`` and ``attention.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinyformer.export.graph import BOOL, FLOAT, INT, Graph, Value
from tinytensor.device.backend import DType, host
from tinytensor.ops import linear
from tinytensor.replay.recording import Call, Recording, RecordingError, Size, Value as Recorded

_DTYPES = {"float16": FLOAT, "float32": FLOAT, "float64": FLOAT, "int32": INT, "int64": INT, "bool": BOOL}

Operators = Mapping[Any, Callable[..., Any]]  # op or opaque function -> function that writes a call


def dtype_of(dtype: DType) -> str:
    """Convert a tinytensor dtype to a graph dtype. Raises RecordingError if there is none."""
    if dtype.name not in _DTYPES:
        raise RecordingError(f"the dtype must be one of {', '.join(_DTYPES)}, got {dtype}")
    return _DTYPES[dtype.name]


def difference(x: int | Size, y: int | Size) -> int | Size:
    """Return x - y."""
    (constant, factors), (less, taken) = [n if isinstance(n, Size) else Size(n, ()) for n in (x, y)]
    counts = Counter(dict(factors))
    counts.subtract(dict(taken))
    left = tuple((name, factor) for name, factor in counts.items() if factor)
    return Size(constant - less, left) if left else constant - less


class Writer:
    """Converts a recorded program to graph nodes.

    Each function in ``operators`` takes the writer and the arguments of a ``Call`` in order, as graph values, and returns the
    result. During the call, ``dtype`` and ``shape`` are the result's.
    """

    def __init__(self, recording: Recording, operators: Operators):
        self.graph = Graph()
        self.recording = recording
        self.dtype = ""
        self.shape: tuple[Any, ...] = ()
        self.sizes: dict[str, Value] = {}  # of shape (1,)
        self._operators = operators
        self._values: dict[Recorded, Any] = {}
        self._once: dict[Any, Any] = {}
        self._readers = _readers(recording)
        for name, (recorded, array) in recording.constants.items():
            self._put(recorded, self.graph.weight(name, array, dtype_of(array.dtype)))

    def declare_inputs(self, optional: str = "") -> Writer:
        """Add the program's inputs to the graph, except an unused ``optional`` input. Return this writer."""
        for name, recorded in self.recording.inputs.items():
            value_type = self.recording.kinds[recorded]
            if name in self.graph.constants:
                raise RecordingError(f"the input {name!r} has the name of a weight: rename it")
            if recorded in self._readers or name != optional:
                self.use_as_input(name, self.graph.input(name, dtype_of(value_type.dtype), *_lengths(value_type.shape)))
        return self

    def use_as_input(self, name: str, value: Value) -> None:
        """Use a value as a program input. Its axis lengths define sizes that are still unknown."""
        self._put(recorded := self.recording.inputs[name], value)
        for axis, length in enumerate(self.recording.kinds[recorded].shape):
            if isinstance(length, Size) and length == Size(0, ((str(length), 1),)):
                self.sizes.setdefault(str(length), value.length(axis))

    def write(self) -> Graph:
        """Write all calls and name the outputs. Return the graph."""
        for call in self.recording.calls:
            self._write(call)
        for name, recorded in self.recording.outputs.items():
            value_type = self.recording.kinds[recorded]
            if name in [*self.graph.constants, *self.recording.inputs]:
                raise RecordingError(f"the output {name!r} has the name of an input or a weight: rename it")
            self.graph.output(name, self._values[recorded], dtype_of(value_type.dtype), *_lengths(value_type.shape))
        return self.graph

    def _write(self, call: Call) -> None:
        value_type = self.recording.kinds[call.result]
        self.graph.module = call.where.module or ""
        try:
            self.dtype, self.shape = dtype_of(value_type.dtype), value_type.shape
            if call.op not in self._operators:  # an op of a cache, in a model that is exported without one
                raise RecordingError("a key-value cache made inside forward is not supported")
            result = self._operators[call.op](self, *map(self._resolved, call.arguments.values()))
        except RecordingError as error:
            raise RecordingError(f"{call.op.__name__.lstrip('_')} in {call.where}: {error}") from None
        self._put(call.result, result)

    def _put(self, recorded: Recorded, result: Any) -> None:
        value_type = self.recording.kinds[recorded]
        result.dtype, result.shape = dtype_of(value_type.dtype), value_type.shape
        self._values[recorded] = result

    def _resolved(self, argument: Any) -> Any:
        """Convert a call's argument to graph values."""
        if isinstance(argument, Recorded):
            return self._values[argument]
        return [*map(self._resolved, argument)] if _is_sequence(argument) else argument

    # ------------------------------------------------------------------------------------------------- for the operators

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Call ``make`` the first time this key is used, and return the cached result later."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def cast(self, x: Any, dtype: str) -> Value:
        """Cast a value or number to a dtype."""
        if isinstance(x, Size):
            return self.scalar(x) if dtype == INT else self.scalar(x).astype(dtype)
        if not isinstance(x, Value):
            return self.graph.constant(x, dtype)
        return x if x.dtype == dtype else x.astype(dtype)

    def common(self, *operands: Any) -> str:
        """Return the dtype for comparing operands (values or numbers)."""
        numbers = [host.asarray(0 if isinstance(x, Size) else x) for x in operands if not isinstance(x, Value)]
        dtypes = [*[x.dtype for x in operands if isinstance(x, Value)], *[dtype_of(x.dtype) for x in numbers]]
        return FLOAT if FLOAT in dtypes else INT

    def size(self, number: int | Size) -> Value:
        """Convert a number to a value of shape (1,)."""
        return self.once(("size", number), lambda: self._sum(number))

    def _sum(self, number: int | Size) -> Value:
        if not isinstance(number, Size):
            return self.graph.constant([number], INT)
        terms = [self.sizes[name] if factor == 1 else self.sizes[name] * [factor] for name, factor in number.factors]
        total = terms[0]
        for term in [*terms[1:], *([self.graph.constant([number.constant])] if number.constant else [])]:
            total = total + term
        return total

    def scalar(self, number: int | Size) -> Value:
        """Convert a number to a value of shape ()."""
        if not isinstance(number, Size):
            return self.graph.constant(number, INT)
        return self.once(("scalar", number), lambda: self.size(number).reshape())

    def as_shape(self, numbers: Sequence[int | Size]) -> Value:
        """Convert numbers to a 1D value, such as a shape."""
        known = [n for n in numbers if not isinstance(n, Size)]
        if len(known) == len(numbers):
            return self.graph.constant(known, INT)
        sizes = [self.size(n) for n in numbers]
        return sizes[0] if len(sizes) == 1 else self.once(tuple(numbers), lambda: self.graph.concatenate(sizes, axis=0))

    def range(self, start: int | Size, stop: int | Size) -> Value:
        """Return a value with the integers from ``start`` to ``stop`` - 1."""
        ends = self.scalar(start), self.scalar(stop)
        return self.once(("range", start, stop), lambda: self.graph.node("Range", *ends, 1))

    def transposed(self, weight: Value) -> Value:
        """Return the transpose of a matrix, for products. A constant used only in products is stored transposed."""
        if weight.name in self.recording.constants:
            recorded, array = self.recording.constants[weight.name]
            if self._readers[recorded] == {(linear, "weight")}:
                return self.graph.weight(f"{weight.name}.transposed", array.T, FLOAT)
        return self.once(("transposed", weight.name), lambda: weight.transpose(1, 0))


def _lengths(shape: Sequence[int | Size]) -> list[int | str]:
    return [str(n) if isinstance(n, Size) else n for n in shape]


def _is_sequence(argument: Any) -> bool:
    return isinstance(argument, (tuple, list)) and not isinstance(argument, (Recorded, Size))


def _readers(recording: Recording) -> dict[Recorded, set[tuple[Any, str]]]:
    """Return the ops that read each value, with the argument names."""
    readers: dict[Recorded, set[tuple[Any, str]]] = {}

    def add(argument: Any, reader: tuple[Any, str]) -> None:
        if isinstance(argument, Recorded):
            readers.setdefault(argument, set()).add(reader)
        for part in argument if _is_sequence(argument) else ():
            add(part, reader)

    for call in recording.calls:
        for name, argument in call.arguments.items():
            add(argument, (call.op, name))
    return readers
