"""Reverse-mode automatic differentiation: what an operation is, what is recorded, and how gradients flow back.

Three ideas carry the whole library:

* An ``Op`` is a forward function with one gradient rule an input. A rule's parameter NAMES say what it needs: ``g`` (the
  incoming gradient), an input's name, ``out``, ``<input>_shape``, or one of the op's settings. Only that is saved.
* A ``Node`` is one recorded call. Nodes point at the nodes they came from and hold arrays, never tensors, so the graph
  has no reference cycles: it is freed the moment the last tensor that needs it goes away.
* Every node gets the next number, so a node's number is larger than those of all its ancestors. Backward therefore is a
  heap that always pops the largest number: no sort, no recursion.

Rules are polymorphic. On an ordinary backward pass they are fed raw arrays and nothing is recorded; with
``create_graph=True`` they are fed tensors, and so record themselves: that gives derivatives of every order.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tinytensor.backend import Array, DType, default_dtype, host, is_array, is_floating, is_host_array, quiet, xp

if TYPE_CHECKING:
    from tinytensor.tensor import Tensor as TensorClass

Function = TypeVar("Function", bound=Callable[..., Any])

# tensor.py sets this to its class: the engine makes tensors, and tensors are made of the engine's ops.
Tensor = cast("type[TensorClass]", None)


# ------------------------------------------------------------------------------------------------------------ modes


class _Modes(threading.local):
    """Switches that hold for one thread."""

    recording = True
    detecting_anomalies = False


modes = _Modes()


@contextmanager
def _mode(name: str, value: bool) -> Iterator[None]:
    previous = getattr(modes, name)
    setattr(modes, name, value)
    try:
        yield
    finally:
        setattr(modes, name, previous)


def no_grad() -> Any:
    """A context (or decorator) in which this thread records nothing: results do not require gradients."""
    return _mode("recording", False)


def enable_grad() -> Any:
    """A context (or decorator) that records again inside ``no_grad``."""
    return _mode("recording", True)


def detect_anomaly() -> Any:
    """A context in which the first NaN or infinity, in an op's output or in a gradient, raises FloatingPointError.

    The error names the op and the line that called it. Every result is checked, so this is slow: use it to find a
    fault, not to train.
    """
    return _mode("detecting_anomalies", True)


# ------------------------------------------------------------------------------------------------------------ nodes


class Node:
    """One recorded call of an op, or, where ``op`` is None, a leaf: a tensor that a user asked gradients for."""

    __slots__ = ("dtype", "grad", "line", "number", "op", "parents", "saved", "shape", "version", "versions")
    _counter = itertools.count(1)

    def __init__(self, op: Op | None, parents: tuple[Node | None, ...], saved: Any, shape: tuple[int, ...], dtype: DType):
        self.op = op
        self.parents = parents  # in the order of the op's inputs; None for an input that needs no gradient
        self.saved = saved  # what the rules of those inputs need
        self.shape = shape
        self.dtype = dtype
        self.number = next(Node._counter)
        self.grad: TensorClass | None = None  # leaves only; here and not on the tensor, so that no cycle arises
        self.version = 0  # leaves only: how often the values were changed in place
        self.versions = sum([parent.version for parent in parents if parent is not None])
        self.line = _calling_line() if modes.detecting_anomalies and op is not None else ""

    def release(self) -> None:
        """Forget what was saved and where it came from; a second backward through here is then an error."""
        self.parents = ()
        self.saved = None


def leaf(array: Array) -> Node:
    """A node for a tensor that a user asked gradients for. Raises TypeError unless it is floating-point."""
    if not is_floating(array.dtype):
        raise TypeError(f"a tensor of {array.dtype} cannot require gradients: convert it with .astype('float32') first")
    return Node(None, (), None, array.shape, array.dtype)


# -------------------------------------------------------------------------------------------------------------- ops

all_ops: dict[str, Op] = {}


def op(**rules: Callable[..., Any]) -> Callable[[Function], Function]:
    """Declare a function on arrays as a differentiable op on tensors: ``@op(x=lambda g, out: g * out)``.

    Each keyword is an input of the function and its gradient rule. Parameters without a rule are settings: they get no
    gradient. The result takes tensors, or, inside a rule on an ordinary backward pass, raw arrays.
    """

    def declare(forward: Function) -> Function:
        return cast(Function, Op(forward, rules))

    return declare


class Op:
    """A forward function and a gradient rule for each of its inputs; see ``op``."""

    def __init__(self, forward: Callable[..., Any], rules: dict[str, Callable[..., Any]]):
        functools.update_wrapper(self, forward)
        self.name = forward.__name__.lstrip("_")
        self.forward = forward
        parameters = inspect.signature(forward).parameters
        self.names = tuple(parameters)
        self.defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
        required = [n for n, p in parameters.items() if p.default is p.empty]
        self.inputs = tuple(n for n in self.names if n in rules) or tuple(required)
        self.differentiable = bool(rules)
        self.rules = rules
        self.needs = {n: tuple(inspect.signature(rule).parameters) for n, rule in rules.items()}
        self._check_rules()
        all_ops[self.name] = self

    def _check_rules(self) -> None:
        known = {"g", "out", *self.names, *(f"{n}_shape" for n in self.names)}
        for name in self.rules:
            strange = [n for n in self.needs[name] if n not in known]
            if name not in self.names or strange:
                raise TypeError(f"{self.name}: the rule for {name!r} asks for {strange or name}, which the op does not have")

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """An op set on the Tensor class is a method."""
        return self if instance is None else types.MethodType(self, instance)

    # -- forward

    def __call__(self, *args: Any, **settings: Any) -> Any:
        if self.variadic:
            values = {**self.defaults, self.names[0]: args, **settings}
            operands: Sequence[Any] = args
        else:
            values = {**self.defaults, **dict(zip(self.names, args)), **settings}
            operands = [values.get(n) for n in self.inputs]
            if len(args) > len(self.names):
                raise TypeError(f"{self.name}() takes {len(self.names)} arguments, but {len(args)} were given")
        tensors = [value for value in values.values() if isinstance(value, Tensor)]
        if self.variadic:
            tensors += [value for value in args if isinstance(value, Tensor)]
        if not tensors:
            if not any(is_array(value) for value in (*operands, *values.values())):
                self._reject(args)
            return self._run(values)
        return self._record(values, operands)

    def _record(self, values: dict[str, Any], operands: Sequence[Any]) -> TensorClass:
        parents = tuple([x.node if isinstance(x, Tensor) else None for x in operands])
        arrays = self._promote([x.data if isinstance(x, Tensor) else self._number(x) for x in operands])
        if self.variadic:
            values[self.names[0]] = tuple(arrays)
        else:
            values.update(zip(self.inputs, arrays))
        values = {n: v.data if isinstance(v, Tensor) else v for n, v in values.items()}
        out, kept = self._compute(values)
        if out.dtype != default_dtype and is_floating(out.dtype) and "dtype" not in values and not _any_floating(arrays):
            out = out.astype(default_dtype)  # integers went in: NumPy answers in float64 or 16, this library in float32
        node = None
        if modes.recording and self.differentiable and any(parents) and is_floating(out.dtype):
            node = Node(self, parents, self._saved(values, out, kept, parents), out.shape, out.dtype)
        if modes.detecting_anomalies:
            _check_finite(out, f"the output of {self.name!r}, called at {node.line if node else _calling_line()},")
        return Tensor._wrap(out, node)

    def _compute(self, values: dict[str, Any]) -> tuple[Array, Any]:
        """The output, and what else the backward pass wants kept (nothing, but for a fused op)."""
        return xp.asarray(self._run(values)), None

    def _run(self, values: dict[str, Any]) -> Any:
        try:
            if self.variadic:
                settings = {n: values[n] for n in self.names[1:]}
                return self.forward(*values[self.names[0]], **settings)
            return self.forward(**values)
        except (ValueError, IndexError, TypeError) as error:
            raise _explain(self, values, error) from None

    def _promote(self, arrays: list[Any]) -> list[Any]:
        """Convert integer operands to the floating type of the others. (NumPy would turn int64 + float32 to float64.)"""
        dtypes = {x.dtype for x in arrays if hasattr(x, "dtype")}
        floating = [d for d in dtypes if is_floating(d)]
        if len(dtypes) > 1 and floating and len(floating) < len(dtypes):
            dtype = functools.reduce(xp.promote_types, floating)
            return [x.astype(dtype) if hasattr(x, "dtype") and not is_floating(x.dtype) else x for x in arrays]
        return arrays

    def _reject(self, args: Sequence[Any]) -> None:
        kinds = ", ".join(type(a).__name__ for a in args) or "nothing"
        raise TypeError(f"{self.name} needs a tensor and got {kinds}: make one with tt.tensor(...)")

    def _number(self, value: Any) -> Any:
        """An operand that is no tensor: None (an input left out) or a number. Arrays are refused, not guessed about."""
        if value is None or type(value) in (int, float, bool):
            return value
        if isinstance(value, host.generic):
            return value.item()
        kind = "an array" if is_array(value) or is_host_array(value) else f"a {type(value).__name__}"
        raise TypeError(f"{self.name} got a tensor and {kind}: make it a tensor with tt.tensor(...) first")

    def _saved(self, values: dict[str, Any], out: Array, kept: Any, parents: tuple[Node | None, ...]) -> Any:
        """Only what the rules of the inputs that need a gradient name."""
        if self.variadic:
            needed = set(self.needs[self.inputs[0]])
        else:
            needed = {n for name, parent in zip(self.inputs, parents) if parent is not None for n in self.needs[name]}
        saved = {}
        for name in needed - {"g"}:
            if name == "out":
                saved[name] = out
            elif name.endswith("_shape"):
                saved[name] = _shape_of(values[name[:-6]])
            else:
                saved[name] = values[name]
        return saved

    # -- backward

    def backward(self, node: Node, g: Any, create_graph: bool) -> Sequence[Any]:
        """The gradient for each of the node's parents; None where a parent is None."""
        saved = {**node.saved, "g": g}
        if create_graph:
            saved = self._as_tensors(node, saved)
        if self.variadic:
            name = self.inputs[0]
            return cast("Sequence[Any]", self.rules[name](*[saved[n] for n in self.needs[name]]))
        return [
            None if parent is None else self.rules[name](*[saved[n] for n in self.needs[name]])
            for name, parent in zip(self.inputs, node.parents)
        ]

    def _as_tensors(self, node: Node, saved: dict[str, Any]) -> dict[str, Any]:
        """The saved arrays as tensors that know where they came from, so that the rules record themselves."""
        if "out" in saved:
            saved["out"] = Tensor._wrap(saved["out"], node)
        if self.variadic:
            if self.names[0] in saved:
                saved[self.names[0]] = [Tensor._wrap(a, p) for a, p in zip(saved[self.names[0]], node.parents)]
            return saved
        for name, parent in zip(self.inputs, node.parents):
            if name in saved and is_array(saved[name]):
                saved[name] = Tensor._wrap(saved[name], parent)
        return saved


def _any_floating(arrays: Sequence[Any]) -> bool:
    return any(is_floating(x.dtype) for x in arrays if hasattr(x, "dtype"))


class FusedOp(Op):
    """A composite of ops, its ``reference``, that hand-written kernels compute in one pass each way.

    ``kernel_forward(**arguments) -> (out, statistics)`` and ``kernel_backward(g, statistics, needed, **arguments) ->
    gradients``, one for each input, where ``needed`` says which are wanted. First-order gradients come from the kernels;
    for higher orders the reference is replayed, and differentiated like any other expression.
    """

    def __init__(
        self,
        reference: Callable[..., Any],
        inputs: tuple[str, ...],
        kernel_forward: Callable[..., tuple[Array, Any]],
        kernel_backward: Callable[..., Sequence[Array | None]],
    ):
        super().__init__(reference, {})
        self.reference = reference
        self.inputs = inputs
        self.differentiable = True
        self.kernel_forward = kernel_forward
        self.kernel_backward = kernel_backward

    def _compute(self, values: dict[str, Any]) -> tuple[Array, Any]:
        try:
            out, statistics = self.kernel_forward(**values)
            return xp.asarray(out), statistics
        except (ValueError, IndexError, TypeError) as error:
            raise _explain(self, values, error) from None

    def _run(self, values: dict[str, Any]) -> Any:
        return self._compute(values)[0]

    def _saved(self, values: dict[str, Any], out: Array, kept: Any, parents: tuple[Node | None, ...]) -> Any:
        return values, kept

    def backward(self, node: Node, g: Any, create_graph: bool) -> Sequence[Any]:
        values, statistics = node.saved
        needed = [parent is not None for parent in node.parents]
        if not create_graph:
            return self.kernel_backward(g, statistics, needed, **values)
        # Fresh aliases of the inputs: where one input was computed from another, each still gets its own gradient only.
        values = dict(values)
        for name, parent in zip(self.inputs, node.parents):
            if parent is not None:
                values[name] = alias(Tensor._wrap(values[name], parent))
            elif is_array(values[name]):
                values[name] = Tensor._wrap(values[name], None)
        wanted = [values[name].node for name, parent in zip(self.inputs, node.parents) if parent is not None]
        out = self.reference(**values)
        found = backpropagate(out.node, g, wanted, retain_graph=True, create_graph=True)
        return [found.get(values[name].node) if parent is not None else None for name, parent in zip(self.inputs, node.parents)]


@op(x=lambda g: g)
def alias(x: TensorClass) -> TensorClass:
    """x itself, as a new node of the graph."""
    return x


# --------------------------------------------------------------------------------------------------------- backward


def backpropagate(
    root: Node, gradient: Any, wanted: Sequence[Node] | None = None, *, retain_graph: bool = False, create_graph: bool = False
) -> dict[Node, Any]:
    """Send ``gradient`` back from ``root``; return the gradients that arrive at ``wanted`` (by default, at every leaf).

    ``gradient`` is an array, or a tensor with ``create_graph``; so are the results. Nothing outside is touched, but
    that each node passed is released unless ``retain_graph``.
    """
    targets = None if wanted is None else set(wanted)
    oldest = 0 if wanted is None else min((node.number for node in wanted), default=root.number + 1)
    pending: dict[int, Any] = {root.number: gradient}
    owned: set[int] = set()  # numbers whose pending gradient nobody else holds: it may be added to in place
    nodes = {root.number: root}
    heap = [-root.number]
    found: dict[Node, Any] = {}
    with quiet(), _mode("recording", create_graph):
        while heap and -heap[0] >= oldest:
            number = -heappop(heap)
            node, g = nodes.pop(number), pending.pop(number)
            if node.op is None or (targets is not None and node in targets):
                if targets is None or node in targets:
                    found[node] = g if create_graph or number in owned else g.copy()
                if node.op is None or number == oldest:
                    continue
            _check_node(node)
            contributions = node.op.backward(node, g, create_graph)
            for parent, contribution in zip(node.parents, contributions):
                if parent is None or contribution is None:
                    continue
                fresh = contribution is not g
                contribution = _fit(contribution, parent)
                if modes.detecting_anomalies:
                    _check_finite(contribution, f"a gradient of {node.op.name!r}, called at {node.line},")
                n = parent.number
                if n not in pending:
                    pending[n], nodes[n] = contribution, parent
                    heappush(heap, -n)
                    if fresh and not create_graph and isinstance(contribution, xp.ndarray) and contribution.base is None:
                        owned.add(n)
                elif n in owned:
                    pending[n] += contribution
                else:
                    pending[n] = pending[n] + contribution
                    if not create_graph and isinstance(pending[n], xp.ndarray):
                        owned.add(n)
            if not retain_graph:
                node.release()
    return found


def _fit(gradient: Any, parent: Node) -> Any:
    """Give a gradient its tensor's shape and dtype: the one place that undoes broadcasting and type promotion."""
    if gradient.shape != parent.shape:
        extra = len(gradient.shape) - len(parent.shape)
        if extra > 0:
            gradient = gradient.sum(axis=tuple(range(extra)))
        axes = tuple([i for i, (have, want) in enumerate(zip(gradient.shape, parent.shape)) if have != want])
        if axes:
            gradient = gradient.sum(axis=axes, keepdims=True)
    return gradient if gradient.dtype == parent.dtype else gradient.astype(parent.dtype)


def _check_node(node: Node) -> None:
    assert node.op is not None
    if node.saved is None:
        raise RuntimeError(
            f"backward through {node.op.name!r} a second time, but its saved values were freed by the first: "
            "pass retain_graph=True to the first backward, or run the forward pass again"
        )
    if node.versions != sum([parent.version for parent in node.parents if parent is not None]):
        raise RuntimeError(
            f"backward through {node.op.name!r}, but a parameter that it used was changed in place since (by an "
            "optimizer's step, load_state_dict or an initialiser): run the forward pass again"
        )


# ----------------------------------------------------------------------------------------------------------- errors


def _shape_of(value: Any) -> Any:
    return [v.shape for v in value] if isinstance(value, (tuple, list)) else getattr(value, "shape", ())


# What NumPy and CuPy say, and what to say instead; {} is their own text.
_REMEDIES = {
    "could not be broadcast|not broadcastable|non-broadcastable|shape mismatch|axis remapping": (
        "these do not broadcast; compare them from the last axis: each pair must be equal, or one of them 1"
    ),
    "is out of bounds for array of dimension": "{}: axes run from -ndim to ndim - 1",
    "zero-size array to reduction": "there is nothing to choose from, as an axis has length 0",
    "NoneType": "an operand is missing, or None: give it a tensor or a number",
}


def _explain(operation: Op, values: dict[str, Any], error: Exception) -> Exception:
    """The same kind of error, in one line that names the op, the shapes and, where there is a usual one, the remedy."""
    operands: list[Any] = []
    for value in values[operation.names[0]] if operation.variadic else [values.get(n) for n in operation.names]:
        operands += value if isinstance(value, tuple) else [value]  # an index may be a tuple of arrays
    shapes = ", ".join(f"{tuple(v.shape)}" for v in operands if hasattr(v, "shape"))
    reason = str(error).strip()
    remedy = next((r for said, r in _REMEDIES.items() if any(part in reason for part in said.split("|"))), "{}")
    reason = remedy.format(reason)
    kind = next(k for k in (IndexError, TypeError, ValueError) if isinstance(error, k))
    return kind(f"{operation.name} of shapes {shapes}: {reason}" if shapes else f"{operation.name}: {reason}")


def _check_finite(value: Any, what: str) -> None:
    array = value.data if isinstance(value, Tensor) else value
    if is_floating(array.dtype) and not bool(xp.isfinite(array).all()):
        kind = "NaN" if bool(xp.isnan(array).any()) else "infinite"
        raise FloatingPointError(f"{what} is {kind}: the first such value since detect_anomaly() was entered")


def _calling_line() -> str:
    """The line of the user's code that led here: the innermost one outside this package."""
    package = os.path.dirname(__file__) + os.sep
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(package)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown line"


__all__ = ["FusedOp", "Node", "Op", "all_ops", "backpropagate", "detect_anomaly", "enable_grad", "no_grad", "op"]
