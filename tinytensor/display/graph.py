"""Draw the recorded graph with ``draw_graph``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tinytensor.autograd import engine
from tinytensor.autograd.tensor import Tensor, start_of_backward
from tinytensor.common.arguments import checked
from tinytensor.device.backend import host, to_numpy

if TYPE_CHECKING:
    from tinytensor.display.drawing import Drawing, DrawnNode

MOST_VALUES = 4  # nodes with more values show none


@checked
def draw_graph(
    output: Tensor, names: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (), gradients: bool = False
) -> Drawing:
    """Draw the graph that computed ``output``. A notebook displays the picture. ``.save("graph.html")`` saves it.

    ``names`` labels tensors: ``model.named_parameters()`` or ``{"x": x}``. Dotted names group the picture by module. Leaves and
    the output show their values if there are few. So do nodes computed inside ``tt.keep_values()``. If ``gradients`` is set,
    each node also shows the gradient of ``output`` with respect to it: a few values, or the norm. ``output`` must then have one
    element. The graph is retained, so ``backward`` still works.

    The drawing is a copy without arrays. Raises RuntimeError if no graph was recorded or ``backward`` has freed part of it, and
    TypeError unless ``names`` consists of (name, tensor) pairs.
    """
    from tinytensor.display.drawing import Drawing, DrawnNode

    if output.node is None:
        raise RuntimeError("nothing was recorded for this tensor: none of its inputs requires gradients")
    labels = _labels(names)
    nodes = _ancestors(output.node)
    if any(node.op is not None and node.saved is None for node in nodes):
        raise RuntimeError("backward freed this graph: pass retain_graph=True to backward, or draw the graph before it")
    flowing: dict[engine.Node, Any] = {}
    if gradients:
        start, g = start_of_backward(output, None, create_graph=False)
        flowing = engine.backpropagate(start, g, nodes, retain_graph=True)
    drawn: dict[engine.Node, DrawnNode] = {}
    for node in nodes:
        value = output.data if node is output.node else _value(node)
        parents = [drawn[parent] for parent in node.parents if parent is not None]
        op = node.op.name if node.op is not None else ""
        drawn[node] = DrawnNode(node.number, op, parents, labels.get(node, ""), _facts(node, value, flowing.get(node)))
    return Drawing(list(drawn.values()))


def _labels(names: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> dict[engine.Node, str]:
    """Return the name of each node. Characters that are invalid in a page or file, such as control characters, are escaped."""
    pairs = list(names.items() if isinstance(names, Mapping) else names if isinstance(names, Iterable) else [names])
    labels = {}
    for pair in pairs:
        name, tensor = pair if isinstance(pair, (tuple, list)) and len(pair) == 2 else (None, None)
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError("draw_graph needs names as {'x': x}, as pairs ('x', x), or as model.named_parameters()")
        if tensor.node is not None:
            labels[tensor.node] = "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)
    return labels


def _facts(node: engine.Node, value: Any, gradient: Any) -> list[str]:
    """Return the lines below a node's name: shape, value and gradient. A scalar gets one line."""
    shown = [] if value is None or not 0 < value.size <= MOST_VALUES else [f"data {_text(value)}"]
    if gradient is not None:
        shown.append(f"grad {_text(gradient)}")
    if node.shape == () and shown:
        return [" | ".join(shown)]
    return ["×".join(map(str, node.shape)) or "scalar", *shown]


def _value(node: engine.Node) -> Any:
    """Return the values of a leaf, or the values that a node stored in ``tt.keep_values()``, or None."""
    if node.op is not None:
        return getattr(node, "value", None)
    tensor = None if node.tensor is None else node.tensor()
    return None if tensor is None else tensor.data


def _ancestors(root: engine.Node) -> list[engine.Node]:
    """Return the root and all its ancestors, oldest first."""
    nodes = {root}
    waiting = [root]
    while waiting:
        for parent in waiting.pop().parents:
            if parent is not None and parent not in nodes:
                nodes.add(parent)
                waiting.append(parent)
    return sorted(nodes, key=lambda node: node.number)


def _text(array: Any) -> str:
    """Format a few values, or the norm of many values."""
    values = to_numpy(array)
    if values.dtype.name == "bfloat16":  # NumPy cannot format bfloat16
        values = values.astype("float32")
    if values.size == 1:
        return f"{float(values.reshape(())):.4g}"
    if 0 < values.size <= MOST_VALUES:
        return " ".join(host.array2string(values, precision=3, separator=", ").split())
    return f"norm {float(host.linalg.norm(values.astype('float64'))):.3g}"
