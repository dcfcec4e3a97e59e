"""What happens when an op is called.

The arguments are put in order, tensors are replaced by their arrays, the op's function runs, and the call is recorded.
A gradient rule may call an op with raw arrays: then nothing is replaced or recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinytensor.autograd.binding import bind, operand, setting
from tinytensor.autograd.changes import PLAIN
from tinytensor.autograd.checks import calling_line
from tinytensor.autograd.engine import Node, check_finite
from tinytensor.autograd.modes import Modes, modes
from tinytensor.autograd.promotion import promoted, rounded
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import Array, default_dtype, is_array, is_floating, mute, unmute, xp

if TYPE_CHECKING:
    from tinytensor.autograd.op import Op


def wrap(array: Array, node: Node | None = None) -> Tensor:
    """A tensor that holds this array. ``node`` records the call that computed it; None if nothing was recorded."""
    return Tensor._wrap(array, node)


def call(op: Op, /, *args: Any, **settings: Any) -> Any:
    """The op's result: a tensor if an argument is a tensor, an array if all are raw arrays."""
    now = modes()
    if now.tracer is not None:
        return now.tracer.call(op, args, settings)
    arguments = bind(op, args, settings)
    before = mute()  # NumPy's floating-point warnings
    try:
        for x in arguments[0] if op.several else arguments:
            if isinstance(x, Tensor):
                return _with_tensors(op, arguments, now)
        if type(arguments[0]) is not xp.ndarray and not any(map(is_array, arguments[0] if op.several else arguments)):
            for place in () if op.several else op.input_places:
                operand(op, place, arguments[place])  # an error that names the first wrong one
            kinds = ", ".join(type(x).__name__ for x in args) or "nothing"
            raise TypeError(f"{op.name} needs a tensor and got {kinds}: make one with tt.tensor(...)")
        return op.compute(arguments, op.none_needed)[0]
    finally:
        unmute(before)


def _with_tensors(op: Op, arguments: list[Any], now: Modes) -> Tensor:
    """The op's result where at least one input is a tensor. The call is recorded if a gradient can flow back through it."""
    operands, places = arguments, op.input_places
    if op.several:
        operands = arguments[0] = list(arguments[0])  # arrays are put into it, and the caller's list stays as it is
        places = range(len(operands))
    parents: list[Node | None] = []
    all_default = True  # all tensors are in float32, so nothing has to be converted
    for place in places:
        x = operands[place]
        if isinstance(x, Tensor):
            operands[place] = array = x._data
            parents.append(x.node)
            all_default = all_default and array.dtype is default_dtype
        else:
            operands[place] = operand(op, place, x)
            parents.append(None)
    if not all_default:
        for place, array in zip(places, promoted(op, [operands[place] for place in places])):
            operands[place] = array
    recording = now.recording and op.differentiable and any(parents)
    for place in op.setting_places:
        if type(arguments[place]) not in PLAIN:
            arguments[place] = setting(op, place, arguments[place], recording)

    needed = tuple([parent is not None for parent in parents]) if recording else op.none_needed
    out, residuals = op.compute(arguments, needed)
    if type(out) is not xp.ndarray:
        out = _single(op, out)
    if not all_default:
        out = rounded(op, out, [operands[place] for place in places])

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
        raise TypeError(f"{op.name} returned {a_or_an(type(out).__name__)}: an op returns one array, so write an op for each")
    return xp.asarray(out)
