"""Ops: a forward function on arrays and one gradient rule for each input.

The NAMES of a rule's parameters determine what it receives: ``g`` (the incoming gradient), an input's name, ``out``,
``<input>_shape``, or one of the op's settings. Nothing else is saved.

A rule returns the gradient of its input and must not change its arguments. It may return:

* An array (a tensor if the rule received tensors) whose shape is the input's shape or one that the input broadcasts to. The
  engine sums it to the input's shape and converts it to the input's dtype, so no rule mentions broadcasting or dtypes. The
  array may be new, ``g``, a saved array, or a view of these. The engine adds in place only to new arrays, never to ``g`` or its
  views. If an array is saved or was also returned for another input, the engine adds to a copy.
* None, if no gradient flows to this input.
* An ``engine.Part``, if the rule received arrays: a gradient that is 0 except for some elements.

It must not return a Python number, any other shape (ValueError), or an array that is stored outside the graph.

One rule serves derivatives of every order. An ordinary backward pass passes raw arrays, and nothing is recorded. If
``create_graph`` is True, the rule receives tensors, so its ops are recorded. Write rules with operators and ops, not ``xp``.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tinytensor.autograd.engine import Node, check_finite
from tinytensor.autograd.inputs import PLAIN, bind, calling_line, explain, operand, promoted, rounded, setting
from tinytensor.autograd.modes import Modes, modes
from tinytensor.autograd.tensor import Tensor, wrap
from tinytensor.common.arguments import kinds_of
from tinytensor.common.missing import names_of as _names_of
from tinytensor.common.wording import a_or_an, counted
from tinytensor.device.backend import Array, default_dtype, is_array, is_floating, mute, unmute, xp

__all__ = ["Op", "op"]

Function = TypeVar("Function", bound=Callable[..., Any])

all_ops: dict[str, Op] = {}


def op(
    *functions: Any, floating: bool = False, several: bool = False, **rules: Callable[..., Any]
) -> Callable[[Function], Function]:
    """Declare a function on arrays as a differentiable op on tensors: ``@op(x=lambda g, out: g * out)``.

    Each keyword names an input of the function; its value is the gradient rule. Parameters without a rule are settings and get
    no gradient. An op without rules, ``@op()``, has no gradients; its inputs are the parameters without a default. The op takes
    tensors, or raw arrays when a gradient rule calls it. Settings that are arrays, lists, dicts or sets are copied for the
    rules. Other objects must not change. A setting annotated ``int``, ``float``, ``bool``, ``str`` or the like must have that
    type (see arguments.py).

    ``floating``: convert integers and booleans to float32, because the function takes only floating-point numbers. ``several``:
    the first argument is a sequence of tensors, and its rule returns one gradient for each tensor.

    >>> from tinytensor.autograd.op import op
    >>> @op(x=lambda g, x: g * 3 * x * x)
    ... def cube(x):
    ...     return x * x * x
    >>> tt.grad(cube(x := tt.tensor(2.0, requires_grad=True)), x)
    tensor(12.)
    """

    if functions:
        raise TypeError("write @op(x=...) with a gradient rule for each input, or @op() for an op without gradients")

    def declare(forward: Function) -> Function:
        return cast(Function, Op(forward, rules, floating=floating, several=several))

    return declare


class Op:
    """A forward function and a gradient rule for each of its inputs; see ``op``."""

    adds_to_first = False  # True: ``backward`` takes ``before``
    converts = False  # True: ``compute`` converts the operands to one dtype

    def __init__(
        self,
        forward: Callable[..., Any],
        rules: dict[str, Callable[..., Any]],
        inputs: tuple[str, ...] = (),
        floating: bool = False,
        several: bool = False,
    ):
        functools.update_wrapper(self, forward)
        self.name = forward.__name__.lstrip("_")
        self.forward = forward  # ops/compiled.py replaces it in elementwise ops with a faster, equivalent function
        self.floating = floating
        self.several = several
        self.rules = rules
        self.needs = {n: tuple(inspect.signature(rule).parameters) for n, rule in rules.items()}
        self.takers = {n: operator.itemgetter("g", "g", *needs) for n, needs in self.needs.items()}  # "g" twice: always a tuple
        self.differentiable = bool(rules)
        parameters = inspect.signature(forward).parameters
        if not parameters or any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters.values()):
            raise TypeError(f"{self.name} cannot be an op: it needs parameters, without * or **; see ``several`` of @op")
        self.names = tuple(parameters)
        self.positions = {name: i for i, name in enumerate(self.names)}
        self.required = [n for n, p in parameters.items() if p.default is p.empty]
        self.defaults = [None if p.default is p.empty else p.default for p in parameters.values()]
        self.inputs = inputs or tuple(n for n in self.names if n in rules) or tuple(self.required)
        self.input_positions: Sequence[int] = [self.positions[name] for name in self.inputs]
        self.setting_positions = [i for name, i in self.positions.items() if name not in self.inputs]
        of_inputs, of_settings = kinds_of(forward), kinds_of(forward, takes_arrays=True)
        self.input_kinds = {self.positions[name]: of_inputs[name] for name in self.inputs}
        self.setting_kinds = [
            (self.positions[name], name, argument_type)
            for name, argument_type in of_settings.items()
            if argument_type and name not in rules and name not in inputs
        ]
        self.none_needed = (False,) * len(self.inputs)  # ``needed`` if no input needs a gradient
        self._check_rules()
        all_ops.setdefault(self.name, self)  # a user-defined op may share the name of a built-in op

    def _check_rules(self) -> None:
        known = {"g", "out", *self.names, *(f"{n}_shape" for n in self.names)}
        for name in self.rules:
            unknown = [n for n in self.needs[name] if n not in known]
            if name not in self.names or unknown:
                raise TypeError(f"{self.name}: the rule for {name!r} asks for {unknown or name}, which the op does not have")

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self) -> str:
        """Pickle and copy the op by its name, like a function."""
        return self.forward.__qualname__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind the op as a method if it is an attribute of the Tensor class."""
        return self if instance is None else types.MethodType(self, instance)

    def input_name(self, i: int) -> str:
        """Return the name of an input for error messages."""
        return f"operand {i}" if self.several else repr(self.inputs[i])

    # -- a call

    def __call__(self, /, *args: Any, **settings: Any) -> Any:
        """Call the op. Return a tensor if an argument is a tensor, or an array if a gradient rule passes only arrays.

        The function receives the arrays of the tensors. Calls with tensors are recorded.
        """
        now = modes()
        if now.tracer is not None:
            return now.tracer.call(self, args, settings)
        arguments = bind(self, args, settings)
        before = mute()  # NumPy's floating-point warnings
        try:
            for x in arguments[0] if self.several else arguments:
                if isinstance(x, Tensor):
                    return self._with_tensors(arguments, now)
            if type(arguments[0]) is not xp.ndarray and not any(map(is_array, arguments[0] if self.several else arguments)):
                for i in () if self.several else self.input_positions:
                    operand(self, i, arguments[i])  # raises an error that names the first wrong argument
                types_of_args = ", ".join(type(x).__name__ for x in args) or "nothing"
                raise TypeError(f"{self.name} needs a tensor, got {types_of_args}: make one with tt.tensor(...)")
            return self.compute(arguments, self.none_needed)[0]
        finally:
            unmute(before)

    def _with_tensors(self, arguments: list[Any], now: Modes) -> Tensor:
        """Return the result if an input is a tensor. Record the call if a gradient can flow back through it."""
        operands, positions = arguments, self.input_positions
        if self.several:
            operands = arguments[0] = list(arguments[0])  # a copy of the caller's list
            positions = range(len(operands))
        parents: list[Node | None] = []
        all_default = True  # all tensors are float32, so nothing is converted
        for i in positions:
            x = operands[i]
            if isinstance(x, Tensor):
                operands[i] = array = x._data
                parents.append(x.node)
                all_default = all_default and array.dtype is default_dtype
            else:
                operands[i] = operand(self, i, x)
                parents.append(None)
        if not all_default:
            for i, array in zip(positions, promoted(self, [operands[i] for i in positions])):
                operands[i] = array
        recording = now.recording and self.differentiable and any(parents)
        for i in self.setting_positions:
            if type(arguments[i]) not in PLAIN:
                arguments[i] = setting(self, i, arguments[i], recording)

        needed = tuple([parent is not None for parent in parents]) if recording else self.none_needed
        out, residuals = self.compute(arguments, needed)
        if type(out) is not xp.ndarray:
            out = self._single(out)
        if not all_default:
            out = rounded(self, out, [operands[i] for i in positions])

        node = None
        if recording and is_floating(out.dtype):
            node = Node(self, tuple(parents), self.saved(arguments, out, residuals, needed), out.shape, out.dtype)
            if now.keeping_values:
                node.value = out
        if now.detecting_anomalies:
            check_finite(out, f"the output of {self.name!r}, called at {node.line if node else calling_line()},")
        return Tensor._wrap(out, node)

    def _single(self, out: Any) -> Array:
        """Return the function's result as an array. Raises TypeError if there are several results."""
        if isinstance(out, (tuple, list)):
            returned = a_or_an(type(out).__name__)
            raise TypeError(f"{self.name} returned {returned}: an op returns one array, so write an op for each")
        return xp.asarray(out)

    # -- forward: a call uses these, and FusedOp overrides them

    def compute(self, arguments: list[Any], needed: Sequence[bool]) -> tuple[Any, Any]:
        """Return the output for these arrays, and the residuals (or None) that gradients of a fused op also need.

        NumPy errors about shapes, indices and types are reraised with the op's name. The original error is their cause.
        """
        try:
            return self.forward(*arguments), None
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            raise explain(self, arguments, error) from error

    def saved(self, arguments: Sequence[Any], out: Array, residuals: Any, needed: tuple[bool, ...]) -> Any:
        """Return only the values that the rules of the ``needed`` inputs name."""
        values = {}
        for name, i, of_shape in self._to_save(needed):
            values[name] = out if i is None else _shape_of(arguments[i]) if of_shape else arguments[i]
        return values

    @functools.lru_cache(maxsize=4096)  # noqa: B019 (ops live as long as the program)
    def _to_save(self, needed: tuple[bool, ...]) -> list[tuple[str, int | None, bool]]:
        """Return the parameters of these inputs' rules except ``g``: name, position (None: ``out``), whether it is a shape."""
        inputs = self.inputs if self.several else [name for name, wanted in zip(self.inputs, needed) if wanted]
        names = sorted({n for name in inputs for n in self.needs[name]} - {"g"})
        return [
            (n, None, False) if n == "out" else (n, self.positions[n.removesuffix("_shape")], n not in self.positions)
            for n in names
        ]

    # -- backward

    def backward(self, node: Node, g: Any, create_graph: bool, before: Any = None) -> Sequence[Any]:
        """Return the gradient for each of the node's parents (None for a parent that is None).

        An op with ``adds_to_first`` set may receive ``before``, the first parent's gradient so far. For that parent it returns
        the sum of both in a new array.
        """
        saved = {**node.saved, "g": g}
        if create_graph:
            saved = self._as_tensors(node, saved)
        held = set(map(id, saved.values()))
        if self.several:
            (name,) = self.inputs
            held.update(map(id, saved.get(name, ())))
            gradients: Sequence[Any] = self.rules[name](*self.takers[name](saved)[2:])
            if len(gradients) != len(node.parents):
                raise ValueError(
                    f"the gradient rule of {self.name!r} returned {counted(len(gradients), 'gradient')} for "
                    f"{counted(len(node.parents), 'operand')}: it must return one for each (or None)"
                )
        else:
            gradients = [
                None if parent is None else self.rules[name](*self.takers[name](saved)[2:])
                for name, parent in zip(self.inputs, node.parents)
            ]
        return gradients if create_graph else _copy_shared(gradients, g, held)

    def _as_tensors(self, node: Node, saved: dict[str, Any]) -> dict[str, Any]:
        """Return the saved arrays as tensors with their nodes, so that the rules' ops are recorded."""
        if "out" in saved:
            saved["out"] = wrap(saved["out"], node)
        if self.several:
            if self.inputs[0] in saved:
                saved[self.inputs[0]] = [wrap(a, p) for a, p in zip(saved[self.inputs[0]], node.parents)]
            return saved
        for name, parent in zip(self.inputs, node.parents):
            if name in saved and is_array(saved[name]):
                saved[name] = wrap(saved[name], parent)
        return saved


def _shape_of(value: Any) -> Any:
    return [v.shape for v in value] if isinstance(value, (tuple, list)) else getattr(value, "shape", ())


def _copy_shared(gradients: Sequence[Any], g: Any, held: set[int]) -> Sequence[Any]:
    """Copy each gradient whose memory is saved (its id is in ``held``) or was already returned, because the engine adds to
    arrays in place. ``g`` and its views, which many rules return, are not copied: the engine does not add to them."""
    separate = []
    for gradient in gradients:
        if gradient is not g and isinstance(gradient, xp.ndarray):
            memory = gradient if gradient.base is None else gradient.base
            if gradient is g.base or (memory is not g and memory is not g.base):  # g may be a view of a saved array
                gradient = gradient.copy() if id(memory) in held else gradient
                held.add(id(memory))
        separate.append(gradient)
    return separate


if not TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
