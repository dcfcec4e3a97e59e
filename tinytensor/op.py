"""What an operation is: a forward function on arrays, and one gradient rule for each of its inputs.

A rule's parameter NAMES say what it needs, and only that is saved: ``g`` (the incoming gradient), an input's name, ``out``,
``<input>_shape``, or one of the op's settings. No rule mentions broadcasting or dtypes: the engine undoes both in one place.

Rules are polymorphic. On an ordinary backward pass they are fed raw arrays and nothing is recorded; with
``create_graph=True`` they are fed tensors, and so record themselves: that gives derivatives of every order.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tinytensor.backend import Array, default_dtype, host, is_array, is_floating, is_host_array, quiet, wide, xp
from tinytensor.engine import Node, calling_line, check_finite, modes

if TYPE_CHECKING:
    from tinytensor.tensor import Tensor as TensorClass

Function = TypeVar("Function", bound=Callable[..., Any])

# tensor.py sets this to its class: ops make tensors, and tensors have ops for methods.
Tensor = cast("type[TensorClass]", None)


def wrap(array: Array, node: Node | None = None) -> TensorClass:
    """A tensor around an array, computed by the call that ``node`` records."""
    return Tensor._wrap(array, node)


all_ops: dict[str, Op] = {}

_NUMBERS = {type(None), bool, int, float}  # what an operand may be beside a tensor
_SETTINGS = {*_NUMBERS, str, slice, tuple, xp.ndarray}  # what a setting may be without a closer look


def op(*, floating: bool = False, **rules: Callable[..., Any]) -> Callable[[Function], Function]:
    """Declare a function on arrays as a differentiable op on tensors: ``@op(x=lambda g, out: g * out)``.

    Each keyword is an input of the function and its gradient rule. Parameters without a rule are settings: they get no
    gradient. The result takes tensors, or, inside a rule on an ordinary backward pass, raw arrays. A ``floating`` op computes
    with floating-point numbers alone: integers and booleans reach its function as float32.
    """

    def declare(forward: Function) -> Function:
        return cast(Function, Op(forward, rules, floating=floating))

    return declare


class Op:
    """A forward function and a gradient rule for each of its inputs; see ``op``."""

    def __init__(
        self,
        forward: Callable[..., Any],
        rules: dict[str, Callable[..., Any]],
        inputs: tuple[str, ...] = (),
        floating: bool = False,
    ):
        functools.update_wrapper(self, forward)
        self.name = forward.__name__.lstrip("_")
        self.forward = forward
        parameters = inspect.signature(forward).parameters
        self.names = tuple(parameters)
        self.defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
        required = [n for n, p in parameters.items() if p.default is p.empty]
        self.inputs = inputs or tuple(n for n in self.names if n in rules) or tuple(required)
        self.settings = {i for i, n in enumerate(self.names) if n not in self.inputs}  # where arguments get no gradient
        self.setting_names = [self.names[i] for i in sorted(self.settings)]
        self.differentiable = bool(rules)
        self.nothing = [False] * len(self.inputs)  # which gradients are needed where none is
        self.floating = floating
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
        if modes.tape is not None:
            return modes.tape.call(self, args, settings)
        if args and not settings and not self.variadic:
            out = self._call_directly(args)
            if out is not None:
                return out
        if self.variadic:
            values = {**self.defaults, self.names[0]: args, **settings}
            operands: Sequence[Any] = args
        else:
            if len(args) > len(self.names):
                raise TypeError(f"{self.name}() takes {len(self.names)} arguments, but {len(args)} were given")
            values = {**self.defaults, **dict(zip(self.names, args)), **settings}
            operands = [values.get(n) for n in self.inputs]
        if (args and isinstance(args[0], Tensor)) or any(isinstance(value, Tensor) for value in values.values()):
            return self._record(values, operands)
        if not any(is_array(value) for value in (*operands, *values.values())):
            self._reject(args)
        return self._run(values)

    def _call_directly(self, args: Sequence[Any]) -> Any:
        """The short way, which rules and a model that writes token by token go most: for arrays alone, and for float32 tensors
        that nothing is recorded of. None for all else, and where the call fails, so that the long way says why."""
        if type(args[0]) is xp.ndarray:
            for x in args:
                if type(x) not in _SETTINGS:
                    return None
            return self._run_directly(args)
        if modes.recording or modes.detecting_anomalies or not isinstance(args[0], Tensor):
            return None
        arrays = []
        for place, x in enumerate(args):
            if isinstance(x, Tensor) and x.data.dtype is default_dtype:
                arrays.append(x.data)
            elif type(x) in (_SETTINGS if place in self.settings else _NUMBERS):
                arrays.append(x)
            else:
                return None
        if modes.quiet:
            out = self._run_directly(arrays)
        else:
            with quiet():
                out = self._run_directly(arrays)
        return None if out is None else Tensor._wrap(out if type(out) is xp.ndarray else xp.asarray(out))

    def _run_directly(self, arrays: Sequence[Any]) -> Any:
        try:
            return self._forward_only(*arrays)
        except (ValueError, IndexError, TypeError):
            return None

    def _forward_only(self, *arrays: Any) -> Any:
        return self.forward(*arrays)

    def _record(self, values: dict[str, Any], operands: Sequence[Any]) -> TensorClass:
        arrays, parents, is_usual = self._unwrap(operands)
        if self.variadic:
            values[self.names[0]] = tuple(arrays)
        else:
            values.update(zip(self.inputs, arrays))
        for name in self.setting_names:
            if isinstance(values[name], Tensor):
                values[name] = self._setting(name, values[name])
        recording = modes.recording and self.differentiable and any(parents)
        needed = [parent is not None for parent in parents] if recording else self.nothing
        if modes.quiet:
            out, kept = self._compute(values, needed)
        else:
            with quiet():
                out, kept = self._compute(values, needed)
        if not is_usual:
            out = self._rounded(out, values, arrays)
        node = None
        if recording and is_floating(out.dtype):
            node = Node(self, parents, self._saved(values, out, kept, parents), out.shape, out.dtype)
        if modes.detecting_anomalies:
            check_finite(out, f"the output of {self.name!r}, called at {node.line if node else calling_line()},")
        return wrap(out, node)

    def _unwrap(self, operands: Sequence[Any]) -> tuple[list[Any], tuple[Node | None, ...], bool]:
        """The operands' arrays, brought to one kind of dtype, the nodes of those that need gradients, and whether all are in
        float32, as they usually are."""
        arrays: list[Any] = []
        parents: list[Node | None] = []
        is_usual = True
        for x in operands:
            if isinstance(x, Tensor):
                arrays.append(x.data)
                parents.append(x.node)
                is_usual = is_usual and x.data.dtype is default_dtype
            else:
                arrays.append(self._number(x))
                parents.append(None)
        return arrays if is_usual else self._promote(arrays), tuple(parents), is_usual

    def _promote(self, arrays: list[Any]) -> list[Any]:
        """Convert integer operands, where that must be: to the floating type of the others (NumPy would turn int64 and float32
        to float64), or to float32 where the op needs floating-point numbers, or a Python number is one."""
        dtypes = {x.dtype for x in arrays if hasattr(x, "dtype")}
        floating = [d for d in dtypes if is_floating(d)]
        if len(floating) == len(dtypes):
            return arrays
        if floating:
            dtype = functools.reduce(xp.promote_types, floating)
        elif self.floating or (self.differentiable and any(type(x) is float for x in arrays)):
            dtype = default_dtype
        else:
            return arrays
        return [x.astype(dtype) if hasattr(x, "dtype") and not is_floating(x.dtype) else x for x in arrays]

    def _compute(self, values: dict[str, Any], needed: Sequence[bool]) -> tuple[Array, Any]:
        """The output, and what else the gradients ``needed`` want kept (nothing, but for a fused op)."""
        out = self._run(values)
        return out if type(out) is xp.ndarray else xp.asarray(out), None

    def _rounded(self, out: Array, values: dict[str, Any], arrays: Sequence[Any]) -> Array:
        """The output, in half precision if all floats that went in are: sums are computed in float32, and with a Python number
        the array packages compute bfloat16 in float32, too."""
        floating = {x.dtype for x in arrays if hasattr(x, "dtype") and is_floating(x.dtype)}
        if len(floating) != 1 or "dtype" in values or not is_floating(out.dtype):
            return out
        (dtype,) = floating
        return out if wide(dtype) is None else out.astype(dtype, copy=False)

    def _run(self, values: dict[str, Any]) -> Any:
        try:
            if self.variadic:
                settings = {n: values[n] for n in self.names[1:]}
                return self.forward(*values[self.names[0]], **settings)
            return self.forward(**values)
        except (ValueError, IndexError, TypeError) as error:
            raise explain(self, values, error) from None

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

    def _setting(self, name: str, value: TensorClass) -> Array:
        """The array of a tensor that the op has no gradient rule for. If one is expected, better an error than silence."""
        if value.node is not None and self.differentiable and modes.recording:
            raise TypeError(f"{self.name} gives no gradient to {name!r}, but it requires one: pass {name}.detach()")
        return value.data

    def _saved(self, values: dict[str, Any], out: Array, kept: Any, parents: tuple[Node | None, ...]) -> Any:
        """Only what the rules of the inputs that need a gradient name."""
        saved = {}
        for name in self._to_save(tuple([parent is not None for parent in parents])):
            if name == "out":
                saved[name] = out
            elif name.endswith("_shape"):
                saved[name] = _shape_of(values[name[:-6]])
            else:
                saved[name] = values[name]
        return saved

    @functools.lru_cache(maxsize=4096)  # noqa: B019 (ops live as long as the program)
    def _to_save(self, needed: tuple[bool, ...]) -> set[str]:
        """What the rules of the inputs whose gradients are needed name, but for the gradient that comes in."""
        if self.variadic:
            return set(self.needs[self.inputs[0]]) - {"g"}
        return {n for name, wanted in zip(self.inputs, needed) if wanted for n in self.needs[name]} - {"g"}

    def input_name(self, place: int) -> str:
        """What to call the input of that number in an error."""
        return f"operand {place}" if self.variadic else repr(self.inputs[place])

    # -- backward

    def backward(self, node: Node, g: Any, create_graph: bool) -> Sequence[Any]:
        """The gradient for each of the node's parents; None where a parent is None."""
        saved = {**node.saved, "g": g}
        if create_graph:
            saved = self._as_tensors(node, saved)
        if self.variadic:
            name = self.inputs[0]
            gradients: Sequence[Any] = self.rules[name](*[saved[n] for n in self.needs[name]])
        else:
            gradients = [
                None if parent is None else self.rules[name](*[saved[n] for n in self.needs[name]])
                for name, parent in zip(self.inputs, node.parents)
            ]
        if create_graph:
            return gradients
        return _apart(gradients, g, [*saved.values(), *(saved.get(self.names[0], ()) if self.variadic else ())])

    def _as_tensors(self, node: Node, saved: dict[str, Any]) -> dict[str, Any]:
        """The saved arrays as tensors that know where they came from, so that the rules record themselves."""
        if "out" in saved:
            saved["out"] = wrap(saved["out"], node)
        if self.variadic:
            if self.names[0] in saved:
                saved[self.names[0]] = [wrap(a, p) for a, p in zip(saved[self.names[0]], node.parents)]
            return saved
        for name, parent in zip(self.inputs, node.parents):
            if name in saved and is_array(saved[name]):
                saved[name] = wrap(saved[name], parent)
        return saved


def _apart(gradients: Sequence[Any], g: Any, saved: Sequence[Any]) -> Sequence[Any]:
    """What rules returned, with copies in place of arrays that were saved, or returned twice: the engine adds to gradients in
    place, and knows by itself only that g, which many rules return as it is, belongs to another."""
    held = set(map(id, saved))
    apart = []
    for gradient in gradients:
        if gradient is not None and gradient is not g and id(gradient) in held and is_array(gradient):
            gradient = gradient.copy()
        held.add(id(gradient))
        apart.append(gradient)
    return apart


def each_time(check: Callable[..., None]) -> Callable[..., None]:
    """Declare a check of arrays' values, which a traced function makes in each of its calls, and not in the first alone."""

    @functools.wraps(check)
    def call(*given: Any) -> None:
        check(*given)
        if modes.tape is not None:
            modes.tape.write_check(check, given)

    return call


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
    "'bfloat16' not understood": "NumPy has no bfloat16; with CuPy it needs the package ml_dtypes: pip install ml_dtypes",
    "NoneType": "an operand is missing, or None: give it a tensor or a number",
}


def explain(operation: Op, values: dict[str, Any], error: Exception) -> Exception:
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
