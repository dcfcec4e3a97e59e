"""What happens when an op is called.

The arguments are put in order, tensors are replaced by their arrays, the op's function runs, and the call is recorded.
A gradient rule may call an op with raw arrays: then nothing is replaced or recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tinytensor.backend import Array, default_dtype, host, is_array, is_floating, is_host_array, no_warnings, xp
from tinytensor.checks import calling_line
from tinytensor.engine import Node, check_finite
from tinytensor.modes import Modes, modes

if TYPE_CHECKING:
    from tinytensor.op import Op
    from tinytensor.tensor import Tensor as TensorClass

# tensor.py puts its class here. It cannot be imported: ops make tensors, and tensors have ops as methods.
Tensor = cast("type[TensorClass]", None)


def wrap(array: Array, node: Node | None = None) -> TensorClass:
    """A tensor that holds this array. ``node`` records the call that computed it; None if nothing was recorded."""
    return Tensor._wrap(array, node)


def call(op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    """The op's result: a tensor if an argument is a tensor, an array if all are raw arrays."""
    now = modes()
    if now.tracer is not None:
        return now.tracer.call(op, args, settings)
    arguments = bind(op, args, settings)
    for x in arguments[0] if op.several else arguments:
        if isinstance(x, Tensor):
            return _with_tensors(op, arguments, now)
    if type(arguments[0]) is not xp.ndarray and not any(map(is_array, arguments[0] if op.several else arguments)):
        kinds = ", ".join(type(x).__name__ for x in args) or "nothing"
        raise TypeError(f"{op.name} needs a tensor and got {kinds}: make one with tt.tensor(...)")
    if now.warnings_off:
        return op.compute(arguments, op.none_needed)[0]
    with no_warnings():
        return op.compute(arguments, op.none_needed)[0]


def bind(op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> list[Any]:
    """The arguments in the order of the function's parameters, with its defaults filled in.

    Raises TypeError if there are too many, if a name is unknown or given twice, and if a required setting is missing.
    """
    given = len(args)
    if given == len(op.names) and not settings:
        return list(args)
    if given > len(op.names):
        raise TypeError(f"{op.name}() takes {len(op.names)} arguments, but {given} were given")
    arguments = [*args, *op.defaults[given:]]
    for name, value in settings.items():
        place = op.places.get(name, -1)
        if place < given:
            problem = f"it got {name!r} twice" if place >= 0 else f"it has no {name!r}; its arguments are {', '.join(op.names)}"
            raise explain(op, args, TypeError(problem))
        arguments[place] = value
    if missing := [name for name in op.required[given:] if name not in settings and name not in op.inputs]:
        raise explain(op, args, TypeError(f"it also needs {', '.join(missing)}"))
    return arguments


def _with_tensors(op: Op, arguments: list[Any], now: Modes) -> TensorClass:
    """The op's result where at least one input is a tensor. The call is recorded if a gradient can flow back through it."""
    if op.several:
        arguments[0] = list(arguments[0])  # arrays are put into it, and the caller's list stays as it is
    operands = arguments[0] if op.several else arguments
    places: Sequence[int] = range(len(operands)) if op.several else op.input_places
    parents: list[Node | None] = []
    all_default = True  # all tensors are in float32, so nothing has to be converted
    for place in places:
        x = operands[place]
        if isinstance(x, Tensor):
            operands[place] = x.data
            parents.append(x.node)
            all_default = all_default and x.data.dtype is default_dtype
        else:
            operands[place] = _number(op, x)
            parents.append(None)
    if not all_default:
        for place, array in zip(places, op.promoted([operands[place] for place in places])):
            operands[place] = array
    for place in op.setting_places:
        if isinstance(arguments[place], Tensor):
            arguments[place] = _setting(op, place, arguments[place])

    recording = now.recording and op.differentiable and any(parents)
    needed = tuple([parent is not None for parent in parents]) if recording else op.none_needed
    if now.warnings_off:
        out, residuals = op.compute(arguments, needed)
    else:
        with no_warnings():
            out, residuals = op.compute(arguments, needed)
    if type(out) is not xp.ndarray:
        out = xp.asarray(out)
    if not all_default:
        out = op.rounded(out, [operands[place] for place in places])

    node = None
    if recording and is_floating(out.dtype):
        node = Node(op, tuple(parents), op.saved(arguments, out, residuals, needed), out.shape, out.dtype)
        if now.keeping_values:
            node.value = out
    if now.detecting_anomalies:
        check_finite(out, f"the output of {op.name!r}, called at {node.line if node else calling_line()},")
    return Tensor._wrap(out, node)


def _number(op: Op, value: Any) -> Any:
    """An operand that is not a tensor: a Python number, or None for an input that was left out. Raises TypeError for others."""
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, host.generic):
        return value.item()
    kind = "an array" if is_array(value) or is_host_array(value) else f"a {_kind(value)}"
    raise TypeError(f"{op.name} got a tensor and {kind}: make it a tensor with tt.tensor(...) first")


def _kind(value: Any) -> str:
    """A value's type, and if it is not Python's the package that it is from: another library may have a Tensor, too."""
    package = type(value).__module__.partition(".")[0]
    return type(value).__name__ if package == "builtins" else f"{package}.{type(value).__name__}"


def _setting(op: Op, place: int, value: TensorClass) -> Array:
    """The array of a tensor that is given for a setting. Settings get no gradient: TypeError if this tensor requires one."""
    if value.node is not None and op.differentiable and modes().recording:
        name = op.names[place]
        raise TypeError(f"{op.name} gives no gradient to {name!r}, but it requires one: pass {name}.detach()")
    return value.data


# ----------------------------------------------------------------------------------------------------------- errors

# Parts of the error messages of NumPy and CuPy, and the remedy that is put before them.
_REMEDIES = {
    "could not be broadcast|not broadcastable|non-broadcastable|shape mismatch|axis remapping": (
        "these do not broadcast; compare them from the last axis: each pair must be equal, or one of them 1"
    ),
    "is out of bounds for array of dimension": "axes run from -ndim to ndim - 1",
    "zero-size array to reduction": "there is nothing to choose from, because an axis has length 0",
    "'bfloat16' not understood": "NumPy has no bfloat16; with CuPy it needs the package ml_dtypes: pip install ml_dtypes",
    "NoneType": "an operand is missing, or None: give it a tensor or a number",
}


def explain(op: Op, arguments: Sequence[Any], error: Exception) -> Exception:
    """An error of the same kind, in one line: the op, the shapes, a remedy if there is a usual one, and the original text."""
    operands = [x for value in arguments for x in (value if isinstance(value, (tuple, list)) else [value])]
    shapes = ", ".join(f"{tuple(v.shape)}" for v in operands if hasattr(v, "shape"))
    reason = " ".join(str(error).split())
    remedy = next((r for said, r in _REMEDIES.items() if any(part in reason for part in said.split("|"))), "")
    if remedy and ("NoneType" not in reason or any(x is None for x in operands)):  # otherwise the None is a bug in this library
        reason = f"{remedy} ({reason})"
    kind = next(k for k in (IndexError, TypeError, ValueError) if isinstance(error, k))
    return kind(f"{op.name} of shapes {shapes}: {reason}" if shapes else f"{op.name}: {reason}")
