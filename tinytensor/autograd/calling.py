"""What happens when an op is called.

The arguments are put in order, tensors are replaced by their arrays, the op's function runs, and the call is recorded.
A gradient rule may call an op with raw arrays: then nothing is replaced or recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinytensor.autograd.changes import PLAIN, owned
from tinytensor.autograd.checks import calling_line, check_not_masked
from tinytensor.autograd.engine import Node, check_finite
from tinytensor.autograd.modes import Modes, modes
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import NUMBER, TENSOR
from tinytensor.common.missing import unknown_argument
from tinytensor.common.wording import counted
from tinytensor.device.backend import Array, default_dtype, is_array, is_floating, no_warnings, xp

if TYPE_CHECKING:
    from tinytensor.autograd.op import Op


def wrap(array: Array, node: Node | None = None) -> Tensor:
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
        for place in () if op.several else op.input_places:
            _operand(op, place, arguments[place])  # an error that names the first wrong one
        kinds = ", ".join(type(x).__name__ for x in args) or "nothing"
        raise TypeError(f"{op.name} needs a tensor and got {kinds}: make one with tt.tensor(...)")
    if now.warnings_off:
        return op.compute(arguments, op.none_needed)[0]
    with no_warnings():
        return op.compute(arguments, op.none_needed)[0]


def bind(op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> list[Any]:
    """The arguments in the order of the function's parameters, with its defaults filled in, and settings of the right kinds.

    Raises TypeError if there are too many, if a name is unknown or given twice, if a required setting is missing, and for a
    setting of the wrong kind.
    """
    arguments = list(args) if len(args) == len(op.names) and not settings else _in_order(op, args, settings)
    if not op.setting_kinds:
        return arguments
    for place, name, kind in op.setting_kinds:
        if type(arguments[place]) not in kind.usual:
            arguments[place] = kind.of(op.name, name, arguments[place])
    return arguments


def _in_order(op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> list[Any]:
    given = len(args)
    if given > len(op.names):
        raise TypeError(f"{op.name}() takes {counted(len(op.names), 'argument')}, but {given} were given")
    arguments = [*args, *op.defaults[given:]]
    for name, value in settings.items():
        place = op.places.get(name, -1)
        if place < 0:
            raise unknown_argument(op.name, name, op.names)
        if place < given:
            raise explain(op, args, TypeError(f"it got {name!r} twice"))
        arguments[place] = value
    if missing := [name for name in op.required[given:] if name not in settings and name not in op.inputs]:
        raise explain(op, args, TypeError(f"it also needs {', '.join(missing)}"))
    return arguments


def _with_tensors(op: Op, arguments: list[Any], now: Modes) -> Tensor:
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
            operands[place] = _operand(op, place, x)
            parents.append(None)
    if not all_default:
        for place, array in zip(places, op.promoted([operands[place] for place in places])):
            operands[place] = array
    recording = now.recording and op.differentiable and any(parents)
    for place in op.setting_places:
        if type(arguments[place]) not in PLAIN:
            arguments[place] = _setting(op, place, arguments[place], recording)

    needed = tuple([parent is not None for parent in parents]) if recording else op.none_needed
    if now.warnings_off:
        out, residuals = op.compute(arguments, needed)
    else:
        with no_warnings():
            out, residuals = op.compute(arguments, needed)
    if type(out) is not xp.ndarray:
        out = _single(op, out)
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


def _single(op: Op, out: Any) -> Array:
    """What an op's function returned, as an array. Raises TypeError for several."""
    if isinstance(out, (tuple, list)):
        raise TypeError(f"{op.name} returned a {type(out).__name__}: an op returns one array, so write an op for each")
    return xp.asarray(out)


def _operand(op: Op, place: int, value: Any) -> Any:
    """An operand that is not a tensor: a Python number, or None for an input that was left out. Raises TypeError for others."""
    kind, name = (TENSOR, f"operand {place}") if op.several else (op.input_kinds[place], op.names[place])
    if kind is None:
        return value if value is None else NUMBER.of(op.name, name, value)
    return value if type(value) in kind.usual else kind.of(op.name, name, value)


def _setting(op: Op, place: int, value: Any, recording: bool) -> Any:
    """A setting that is more than a number: the array of a tensor; and of the caller's own arrays copies, if the call is
    recorded, because a gradient rule may need them when the caller has changed them.

    Settings get no gradient: TypeError if this one requires one.
    """
    if isinstance(value, Tensor):
        if value.node is not None and op.differentiable and modes().recording:
            name = op.names[place]
            raise TypeError(f"{op.name} gives no gradient to {name!r}, but it requires one: pass {name}.detach()")
        return value.data
    check_not_masked(value)
    return owned(value) if recording else value


# ----------------------------------------------------------------------------------------------------------- errors

# Parts of the error messages of NumPy and CuPy, and the remedy that is put before them.
_REMEDIES = {
    "could not be broadcast|not broadcastable|non-broadcastable|shape mismatch|axis remapping": (
        "these do not broadcast; compare them from the last axis: each pair must be equal, or one of them 1"
    ),
    "is out of bounds for array of dimension": "axes run from -ndim to ndim - 1",
    "zero-size array to reduction": "there is nothing to choose from, because an axis has length 0",
}


def explain(op: Op, arguments: Sequence[Any], error: Exception) -> Exception:
    """An error of the same kind, in one line: the op, the shapes, a remedy if there is a usual one, and the original text."""
    operands = [x for value in arguments for x in (value if isinstance(value, (tuple, list)) else [value])]
    shapes = ", ".join(f"{tuple(v.shape)}" for v in operands if hasattr(v, "shape"))
    reason = " ".join(str(error).split())
    remedy = next((r for said, r in _REMEDIES.items() if any(part in reason for part in said.split("|"))), "")
    reason = f"{remedy} ({reason})" if remedy else reason
    kind = next(k for k in (IndexError, TypeError, OverflowError, ValueError) if isinstance(error, k))
    return kind(f"{op.name} of shapes {shapes}: {reason}" if shapes else f"{op.name}: {reason}")
