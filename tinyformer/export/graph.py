"""A graph of ONNX operators under construction.

A ``Value`` is a future result of the graph. Its operators and methods add nodes. Python floats and float arrays become float32
constants. Ints and lists of ints (ids, lengths, shapes) become int64 constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinytensor.device.backend import host

FLOAT, INT, BOOL, DOUBLE = "float32", "int64", "bool", "float64"
DTYPES = {FLOAT: 1, INT: 7, BOOL: 9, DOUBLE: 11}  # ONNX dtype numbers


class Value:
    """A graph's input, constant or result, identified by name.

    ``dtype`` and ``shape`` (ints and ``Size``s) are set in recorded programs.
    """

    dtype = ""
    shape: tuple[Any, ...] = ()

    def __init__(self, graph: Graph, name: str):
        self.graph = graph
        self.name = name

    def __add__(self, other: Any) -> Value:
        return self.graph.node("Add", self, other)

    def __sub__(self, other: Any) -> Value:
        return self.graph.node("Sub", self, other)

    def __mul__(self, other: Any) -> Value:
        return self.graph.node("Mul", self, other)

    def __truediv__(self, other: Any) -> Value:
        return self.graph.node("Div", self, other)

    def __matmul__(self, other: Any) -> Value:
        return self.graph.node("MatMul", self, other)

    def function(self, operator: str, **attributes: Any) -> Value:
        """Apply a unary operator, such as "Relu", "Sqrt" or "Softmax"."""
        return self.graph.node(operator, self, **attributes)

    def astype(self, dtype: str) -> Value:
        """Convert to another dtype."""
        return self.graph.node("Cast", self, to=DTYPES[dtype])

    def reshape(self, *shape: int) -> Value:
        """Change the shape. 0 keeps an axis length; one -1 is inferred."""
        return self.graph.node("Reshape", self, self.graph.constant(list(shape), INT))  # also for shape ()

    def transpose(self, *axes: int) -> Value:
        """Permute the axes."""
        return self.graph.node("Transpose", self, perm=axes) if axes else self

    def unsqueeze(self, *axes: int) -> Value:
        """Insert axes of length 1 at these indices."""
        return self.graph.node("Unsqueeze", self, list(axes))

    def mean(self) -> Value:
        """Return the mean over the last axis, with that axis kept at length 1."""
        return self.graph.node("ReduceMean", self, [-1])

    def take(self, ids: Any, axis: int = 0) -> Value:
        """Return the rows with these ids along an axis. The shape of ``ids`` replaces that axis."""
        return self.graph.node("Gather", self, ids, axis=axis)

    def split(self, *widths: int, axis: int = -1) -> list[Value]:
        """Split an axis into pieces of these widths."""
        return self.graph.nodes_of("Split", len(widths), self, list(widths), axis=axis)

    def length(self, axis: int) -> Value:
        """Return the run-time length of an axis, with shape (1,)."""
        return self.graph.node("Shape", self, start=axis, end=axis + 1)


@dataclass(frozen=True)
class Node:
    """A call of an ONNX operator. ``module`` is the name of the calling module."""

    operator: str
    inputs: list[Value]
    outputs: list[Value]
    attributes: dict[str, Any]
    module: str


@dataclass(frozen=True)
class Port:
    """An input or output of the graph. In ``shape``, axes of variable length have names."""

    value: Value
    dtype: str
    shape: tuple[int | str, ...]


class Graph:
    """The nodes, constants, inputs and outputs of a graph."""

    def __init__(self) -> None:
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        self.nodes: list[Node] = []
        self.constants: dict[str, Any] = {}  # arrays by name
        self.module = ""  # the module whose nodes are being added
        self._small: dict[tuple[Any, ...], Value] = {}
        self._named = 0

    def input(self, name: str, dtype: str, *shape: int | str) -> Value:
        """Add an input."""
        value = Value(self, name)
        self.inputs.append(Port(value, dtype, shape))
        return value

    def output(self, name: str, value: Value, dtype: str, *shape: int | str) -> None:
        """Make a value an output with this name. Node results are renamed, other values are copied."""
        is_result = any(value is result for node in self.nodes for result in node.outputs)
        if not is_result or any(value is port.value for port in self.outputs):
            value = self.node("Identity", value)
        value.name = name
        self.outputs.append(Port(value, dtype, shape))

    def node(self, operator: str, *inputs: Any, **attributes: Any) -> Value:
        """Add an operator and return its result. Inputs that are not values become constants."""
        (result,) = self.nodes_of(operator, 1, *inputs, **attributes)
        return result

    def nodes_of(self, operator: str, count: int, *inputs: Any, **attributes: Any) -> list[Value]:
        """Add an operator and return its ``count`` results."""
        values = [x if isinstance(x, Value) else self.constant(x) for x in inputs]
        results = [self._new(operator) for _ in range(count)]
        self.nodes.append(Node(operator, values, results, attributes, self.module))
        return results

    def constant(self, number: Any, dtype: str | None = None) -> Value:
        """Convert a number, list or array to a value. By default, floats become float32 and integers int64. Equal small
        constants are shared."""
        array = host.asarray(number)
        array = array.astype(dtype or (FLOAT if array.dtype.kind == "f" else INT))
        key = (array.dtype.name, array.shape, array.tobytes()) if array.size < _SMALL else ()
        if key not in self._small:
            self._small[key] = self._new("constant")
            self.constants[self._small[key].name] = array
        return self._small[key] if key else self._small.pop(key)

    def weight(self, name: str, array: Any, dtype: str) -> Value:
        """Return a named constant, adding it only once."""
        if name not in self.constants:
            self.constants[name] = host.require(array, dtype, "C")  # also without axes
        return Value(self, name)

    def concatenate(self, values: list[Value], axis: int) -> Value:
        """Concatenate values along an axis."""
        return self.node("Concat", *values, axis=axis)

    def without_unread(self) -> Graph:
        """Remove nodes and constants that no output depends on. Return this graph."""
        read = {port.value.name for port in self.outputs}
        kept = []
        for node in reversed(self.nodes):
            if any(value.name in read for value in node.outputs):
                kept.append(node)
                read.update(value.name for value in node.inputs)
        self.nodes = kept[::-1]
        self.constants = {name: array for name, array in self.constants.items() if name in read}
        return self

    def _new(self, operator: str) -> Value:
        self._named += 1
        while f"{operator}_{self._named}" in self.constants:
            self._named += 1
        return Value(self, f"{operator}_{self._named}")


_SMALL = 32  # elements
