"""What an op gets: its arguments in order, each of the right kind, and errors that say what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinytensor.autograd.changes import owned
from tinytensor.autograd.checks import check_not_masked
from tinytensor.autograd.modes import modes
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import NUMBER, TENSOR
from tinytensor.common.missing import unknown_argument
from tinytensor.common.wording import counted

if TYPE_CHECKING:
    from tinytensor.autograd.op import Op


def bind(op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> list[Any]:
    """The arguments in the order of the function's parameters, with its defaults filled in, and settings of the right kinds.

    Raises TypeError if there are too many, if a name is unknown or given twice, if a required setting is missing, and for a
    setting of the wrong kind.
    """
    arguments = list(args) if len(args) == len(op.names) and not settings else _in_order(op, args, settings)
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


def operand(op: Op, place: int, value: Any) -> Any:
    """An operand that is not a tensor: a Python number, or None for an input that was left out. Raises TypeError for others."""
    kind, name = (TENSOR, f"operand {place}") if op.several else (op.input_kinds[place], op.names[place])
    if kind is None:
        return value if value is None else NUMBER.of(op.name, name, value)
    return value if type(value) in kind.usual else kind.of(op.name, name, value)


def setting(op: Op, place: int, value: Any, recording: bool) -> Any:
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
