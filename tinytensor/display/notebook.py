"""Notebook display of tensors (their values) and modules (a tree with parameter counts)."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from tinytensor.device.backend import Array, host, to_numpy, xp

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor
    from tinytensor.nn.module import Module

MOST_SHOWN = 256  # longer tensors are abbreviated, as in NumPy
MOST_AT_ENDS = 1024  # if the ends of all axes have more elements, only the first part is shown
LINE = 100  # characters per line
_ROW = "clear:both;padding-left:1.1em"  # a number with CSS float stays in its row


def tensor_html(tensor: Tensor) -> str:
    """Return HTML with the tensor's values and, below them, its shape, dtype and history."""
    facts = [type(tensor).__name__.lower(), shape_text(tensor.shape), str(tensor.dtype)]
    if tensor.node is not None:
        facts.append("requires_grad" if tensor.node.op is None else f"op {tensor.node.op.name}")
    return (
        f'<div><pre style="margin:0;overflow-x:auto;line-height:1.3;font-size:.9em">{escape(values_text(tensor.data))}</pre>'
        f'<div style="opacity:.7;font-size:.85em">{escape(" · ".join(facts))}</div></div>'
    )


def shape_text(shape: tuple[int, ...]) -> str:
    """Format a shape as "2×3", as "3 elements" for one axis, or as "scalar" for no axes."""
    if len(shape) == 1:
        return f"{shape[0]:,} element" + "s" * (shape[0] != 1)
    return "×".join(map(str, shape)) or "scalar"


def values_text(array: Array) -> str:
    """Format values as NumPy does. For large arrays, read only values at the ends of each axis. For many axes, read fewer."""
    if array.size <= MOST_SHOWN:
        return _printed(to_numpy(array), threshold=MOST_SHOWN)
    edge = {1: 3, 2: 3, 3: 2}.get(array.ndim, 1)  # how many values to show at each end of an axis
    if math.prod(min(length, 2 * edge + 1) for length in array.shape) > MOST_AT_ENDS:
        first = values_text(array[0]).replace("\n", "\n ")
        return f"[{first}{', ...' * (len(array) > 1)}]"
    index = []
    for axis, length in enumerate(array.shape):
        # NumPy replaces the last value at the left end with "...".
        indices = [*range(edge + 1), *range(length - edge, length)] if length > 2 * edge + 1 else range(length)
        index.append(xp.asarray(list(indices)).reshape((-1,) + (1,) * (array.ndim - 1 - axis)))
    return _printed(to_numpy(array[tuple(index)]), threshold=0, edgeitems=edge)


def _printed(array: Any, **settings: Any) -> str:
    if array.dtype.name == "bfloat16":  # NumPy cannot format bfloat16
        array = array.astype("float32")
    return str(host.array2string(array, separator=", ", precision=4, max_line_width=LINE, **settings))


def module_html(module: Module) -> str:
    """Return HTML with the tree of modules from the module's repr. Only the outermost level is expanded."""
    style = "font-family:monospace;max-width:48em;display:flow-root;overflow-wrap:anywhere"
    return f'<div style="{style}">{_tree(module, "", ())}</div>'


def _tree(module: Module, name: str, above: tuple[Module, ...]) -> str:
    label = f"{escape(name)}: " if name else ""
    class_name = escape(type(module).__name__)
    if any(module is other for other in above):
        return f'<div style="{_ROW}">{label}{class_name}, as above</div>'
    count = module.num_parameters()
    line = f"{label}<b>{class_name}</b>({escape(module.extra_repr())})"
    if count:
        line += f' <span style="float:right" title="parameters">{count:,}</span>'
    parts = "".join(_tree(child, child_name, (*above, module)) for child_name, child in module._own_modules())
    if not parts:
        return f'<div style="{_ROW}">{line}</div>'
    opened = "" if above else " open"
    return f'<details style="clear:both"{opened}><summary>{line}</summary><div style="{_ROW}">{parts}</div></details>'
