"""A picture of the recorded graph, with graphviz."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tinytensor import engine
from tinytensor.backend import host, to_numpy
from tinytensor.tensor import Tensor, _seed


def draw_graph(output: Tensor, names: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (), gradients: bool = False) -> Any:
    """The graph that led to ``output``, as a ``graphviz.Digraph``: ops as ellipses, leaves as boxes, with their shapes.

    ``names`` gives tensors their names: ``model.named_parameters()``, or ``{"x": x}``. With ``gradients``, each node also
    shows the gradient of ``output`` that passes it (its value for one element, else its norm); ``output`` then has one
    element. The graph is kept, so ``backward`` still works.

    A notebook shows the result by itself; ``.render("name")`` writes a file. Both need the ``dot`` program and say so
    where it is missing; ``.source`` needs nothing. Raises RuntimeError where nothing was recorded, ImportError without
    the graphviz package.
    """
    try:
        import graphviz
    except ImportError:
        raise ImportError("draw_graph needs the graphviz package: pip install graphviz") from None
    if output.node is None:
        raise RuntimeError("nothing was recorded for this tensor: none of what it was computed from requires gradients")
    labels = {tensor.node: name for name, tensor in (names.items() if isinstance(names, Mapping) else names)}
    nodes = _ancestors(output.node)
    flowing: dict[engine.Node, Any] = {}
    if gradients:
        start, g = _seed(output, None, create_graph=False)
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
    """Every node that leads to ``root``, and itself, oldest first."""
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
    """Run graphviz; say in one line what is missing where its program is not installed."""
    from graphviz.backend import ExecutableNotFound

    try:
        return run(*args, **kwargs)
    except ExecutableNotFound:
        raise RuntimeError(
            "drawing needs Graphviz's program `dot` on the PATH (apt install graphviz, brew install graphviz, or "
            "graphviz.org/download); the graph's text is in .source"
        ) from None
