"""A graph of ONNX operators under construction.

A ``Value`` is what an operator will compute when the graph runs. It has the operators and methods that layers use of a tensor,
under the same names; each adds a node to the graph. So a layer is written for ONNX as it is written for tensors. Lengths and
batch sizes are values, too (``length``), so that the graph works for all of them.

Beside a value, a Python float or an array of floats becomes a constant of float32, and an int or a list of ints one of int64,
which is what ids, lengths and shapes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinytensor import Tensor
from tinytensor.device.backend import host
from tinytensor.nn import Module

FLOAT, INT, BOOL, DOUBLE = "float32", "int64", "bool", "float64"
DTYPES = {FLOAT: 1, INT: 7, BOOL: 9, DOUBLE: 11}  # their numbers in the format


class Value:
    """An input, a constant or a result of a graph. Two values are told apart by their names."""

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

    def __and__(self, other: Any) -> Value:
        return self.graph.node("And", self, other)

    def __lt__(self, other: Any) -> Value:
        return self.graph.node("Less", self, other)

    def __le__(self, other: Any) -> Value:
        return self.graph.node("LessOrEqual", self, other)

    def function(self, operator: str, **attributes: Any) -> Value:
        """An operator of this value alone, such as "Relu", "Sqrt" or "Softmax"."""
        return self.graph.node(operator, self, **attributes)

    def astype(self, dtype: str) -> Value:
        """The value converted to another dtype."""
        return self.graph.node("Cast", self, to=DTYPES[dtype])

    def reshape(self, *shape: int) -> Value:
        """Another shape. A 0 keeps the length of the axis at this place; -1 is what is left, once."""
        return self.graph.node("Reshape", self, self.graph.constant(list(shape), INT))  # also of no axis at all

    def transpose(self, *axes: int) -> Value:
        """The axes in another order."""
        return self.graph.node("Transpose", self, perm=axes)

    def unsqueeze(self, *axes: int) -> Value:
        """New axes of length 1 at these places."""
        return self.graph.node("Unsqueeze", self, list(axes))

    def expand(self, *shape: int) -> Value:
        """Axes of length 1 repeated to the lengths in ``shape``, which has a 1 for each other axis."""
        return self.graph.node("Expand", self, list(shape))

    def mean(self) -> Value:
        """The mean of the last axis, which stays as one of length 1."""
        return self.graph.node("ReduceMean", self, [-1])

    def sum(self) -> Value:
        """The sum of the last axis, which stays as one of length 1."""
        return self.graph.node("ReduceSum", self, [-1])

    def take(self, ids: Value) -> Value:
        """The rows with these numbers: a value of shape (rows, ...) and ids (...) -> (..., ...)."""
        return self.graph.node("Gather", self, ids, axis=0)

    def split(self, *widths: int) -> list[Value]:
        """The last axis cut into parts of these widths."""
        return self.graph.nodes_of("Split", len(widths), self, list(widths), axis=-1)

    def beginning(self, axis: int, stop: Any) -> Value:
        """What comes before ``stop`` on an axis."""
        return self.graph.node("Slice", self, [0], stop, [axis])

    def rest(self, axis: int, start: Any) -> Value:
        """What comes from ``start`` on, on an axis."""
        return self.graph.node("Slice", self, start, [_FAR], [axis])

    def length(self, axis: int) -> Value:
        """The length of an axis when the graph runs: one number, of shape (1,)."""
        return self.graph.node("Shape", self, start=axis, end=axis + 1)


_FAR = 2**62  # behind the end of every axis


@dataclass(frozen=True)
class Node:
    """A call of an ONNX operator."""

    operator: str
    inputs: list[Value]
    outputs: list[Value]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Port:
    """An input or an output of the graph. An axis whose length is not fixed has a name in ``shape`` instead."""

    value: Value
    dtype: str
    shape: tuple[int | str, ...]


class Graph:
    """The nodes, constants, inputs and outputs of a graph. The weights of ``model`` are constants with the names that they have
    there."""

    def __init__(self, model: Module):
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        self.nodes: list[Node] = []
        self.constants: dict[str, Any] = {}  # arrays by name
        self._names = {id(x): name for named in (model.named_parameters(), model.named_buffers()) for name, x in named}
        self._named = 0

    def input(self, name: str, dtype: str, *shape: int | str) -> Value:
        """A new input."""
        value = Value(self, name)
        self.inputs.append(Port(value, dtype, shape))
        return value

    def output(self, name: str, value: Value, dtype: str, *shape: int | str) -> None:
        """Make a computed value an output. It is called ``name`` from now on."""
        value.name = name
        self.outputs.append(Port(value, dtype, shape))

    def node(self, operator: str, *inputs: Any, **attributes: Any) -> Value:
        """The result of an operator. Inputs that are not values become constants."""
        (result,) = self.nodes_of(operator, 1, *inputs, **attributes)
        return result

    def nodes_of(self, operator: str, count: int, *inputs: Any, **attributes: Any) -> list[Value]:
        """The ``count`` results of an operator."""
        values = [x if isinstance(x, Value) else self.constant(x) for x in inputs]
        results = [self._new(operator) for _ in range(count)]
        self.nodes.append(Node(operator, values, results, attributes))
        return results

    def constant(self, number: Any, dtype: str | None = None) -> Value:
        """A number, a list or an array as a value. Without a ``dtype``, floats are of float32 and integers of int64."""
        array = host.asarray(number)
        array = array.astype(dtype or (FLOAT if array.dtype.kind == "f" else INT))
        value = self._new("constant")
        self.constants[value.name] = array
        return value

    def weight(self, weight: Tensor, transposed: bool = False) -> Value:
        """A parameter or buffer of the model as float32; with ``transposed``, as matrix products take it."""
        name = self._names[id(weight)]
        name += ".transposed" if transposed else ""
        if name not in self.constants:
            array = weight.numpy().T if transposed else weight.numpy()
            self.constants[name] = host.ascontiguousarray(array, FLOAT)
        return Value(self, name)

    def range(self, stop: Value) -> Value:
        """The numbers 0, 1, ... before ``stop``, which is of shape (1,)."""
        return self.node("Range", 0, stop.reshape(), 1)

    def where(self, condition: Value, x: Any, y: Any) -> Value:
        """x where the condition is true, else y."""
        return self.node("Where", condition, x, y)

    def concatenate(self, values: list[Value], axis: int) -> Value:
        """The values joined on an axis."""
        return self.node("Concat", *values, axis=axis)

    def _new(self, operator: str) -> Value:
        self._named += 1
        return Value(self, f"{operator}_{self._named}")
