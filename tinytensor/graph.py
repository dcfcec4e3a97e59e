"""draw_graph: a picture of the recorded graph, made with graphviz."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tinytensor import engine
from tinytensor.backend import host, to_numpy
from tinytensor.tensor import Tensor, start_of_backward


def draw_graph(output: Tensor, names: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (), gradients: bool = False) -> Any:
    """The graph that ``output`` was computed by, as a ``graphviz.Digraph``. Ops are ellipses, leaves are boxes.

    ``names`` names tensors in the picture: ``model.named_parameters()``, or ``{"x": x}``. With ``gradients`` each node also
    shows the gradient of ``output``, which must have one element, by that node: a value for one element, else the norm. The
    graph is kept, so ``backward`` still works.

    A notebook shows the result automatically; ``.render("name")`` writes a file. Both need the ``dot`` program, and an error
    says so if it is missing; ``.source`` does not need it. Raises RuntimeError if nothing was recorded, and ImportError
    without the graphviz package.
    """
    try:
        import graphviz
    except ImportError:
        raise ImportError("draw_graph needs the graphviz package: pip install graphviz") from None
    if output.node is None:
        raise RuntimeError("nothing was recorded for this tensor: nothing that it was computed from requires gradients")
    labels = {tensor.node: name for name, tensor in (names.items() if isinstance(names, Mapping) else names)}
    nodes = _ancestors(output.node)
    flowing: dict[engine.Node, Any] = {}
    if gradients:
        start, g = start_of_backward(output, None, create_graph=False)
        flowing = engine.backpropagate(start, g, nodes, retain_graph=True)

    class Digraph(graphviz.Digraph):  # type: ignore[misc]
        def pipe(self, *args: Any, **kwargs: Any) -> Any:
            return _explained(super().pipe, *args, **kwargs)

        def render(self, *args: Any, **kwargs: Any) -> Any:
            return _explained(super().render, *args, **kwargs)

    drawing = Digraph(graph_attr={"rankdir": "LR"}, node_attr={"fontname": "Helvetica", "fontsize": "10"})
    for node in nodes:
        leaf = node.op is None
        text = labels.get(node) or (node.op.name if node.op else "leaf")
        lines = [text, "×".join(str(n) for n in node.shape) or "scalar"]
        if node in flowing:
            lines.append(f"gradient {_summary(to_numpy(flowing[node]))}")
        drawing.node(
            str(node.number),
            "\n".join(lines),
            shape="box" if leaf else "ellipse",
            style="filled",
            fillcolor="#dbeafe" if leaf else "#fef3c7" if node is output.node else "#f3f4f6",
        )
        for parent in node.parents:
            if parent is not None:
                drawing.edge(str(parent.number), str(node.number))
    return drawing


def _ancestors(root: engine.Node) -> list[engine.Node]:
    """The root and all nodes that it was computed from, oldest first."""
    found = {root}
    waiting = [root]
    while waiting:
        for parent in waiting.pop().parents:
            if parent is not None and parent not in found:
                found.add(parent)
                waiting.append(parent)
    return sorted(found, key=lambda node: node.number)


def _summary(gradient: Any) -> str:
    return f"{float(gradient):.3g}" if gradient.size == 1 else f"norm {float(host.linalg.norm(gradient)):.3g}"


def _explained(run: Any, *args: Any, **kwargs: Any) -> Any:
    """Run graphviz. Raises RuntimeError with a remedy if its program is not installed."""
    from graphviz.backend import ExecutableNotFound

    try:
        return run(*args, **kwargs)
    except ExecutableNotFound:
        raise RuntimeError(
            "drawing needs Graphviz's program `dot` on the PATH (apt install graphviz, brew install graphviz, or "
            "graphviz.org/download); the graph's text is in .source"
        ) from None
