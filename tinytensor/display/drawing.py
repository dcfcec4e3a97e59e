"""Drawing, the result of ``tt.draw_graph``, which becomes HTML, SVG or Graphviz."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tinytensor.common.wording import counted
from tinytensor.device.disk import make_folder, write_text
from tinytensor.display.nodes import DrawnNode
from tinytensor.display.pages import Pages, Picture
from tinytensor.display.svg import Box

MOST_IN_FILE = 300  # in an SVG file
DOT_LOOKS = {"leaf": ("#dbeafe", "box"), "op": ("#f3f4f6", "ellipse"), "output": ("#fef3c7", "ellipse")}


class Drawing:
    """A picture of a recorded graph. In a notebook, the box of each module opens below the picture.

    ``save`` writes it to a file. ``source`` is the complete graph in Graphviz's language.
    """

    def __init__(self, nodes: Sequence[DrawnNode]):
        self._nodes = nodes  # in the order of their numbers; the last one is the output

    @property
    def source(self) -> str:
        """The graph in DOT, the language of Graphviz: ``dot -Tsvg`` draws it."""
        lines = ["digraph {", "\tgraph [rankdir=LR]", "\tnode [fontname=Helvetica fontsize=10 style=filled]"]
        for node in self._nodes:
            box = self._box(node)
            label = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in box.lines)
            color, shape = DOT_LOOKS[box.style]
            lines.append(f'\t{node.number} [label="{label}" fillcolor="{color}" shape={shape}]')
            lines += [f"\t{parent.number} -> {node.number}" for parent in node.parents]
        return "\n".join([*lines, "}", ""])

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file and return its path. The extension selects the format.

        .html is a page like a notebook's output, .svg one picture without groups, .dot or .gv the ``source``. Raises ValueError
        for another extension.
        """
        path = Path(path)
        extension = path.suffix.lower()
        writers: dict[str, Callable[[], str]] = {
            ".html": lambda: _PAGE.format(self._repr_html_()),
            ".svg": self._ungrouped,
            ".dot": lambda: self.source,
            ".gv": lambda: self.source,
        }
        if extension not in writers:
            raise ValueError(f"a graph is saved as {', '.join(writers)}, not as {path.suffix or path.name!r}")
        make_folder(path.parent)
        write_text(path, writers[extension]())
        return path

    def __repr__(self) -> str:
        return f"Drawing of {counted(len(self._nodes), 'node')}: a notebook shows it, .save('graph.html') writes it to a file"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: a picture of the outermost modules, and one for each module, which opens."""
        return Pages(self._nodes, self._box).html()

    def _box(self, node: DrawnNode) -> Box:
        style = "leaf" if not node.op else "output" if node is self._nodes[-1] else "op"
        return Box([node.name or node.op or "leaf", *node.facts], style)

    def _ungrouped(self) -> str:
        """Draw one picture of all nodes, or of the last ones, on white."""
        picture = Picture(self._nodes, MOST_IN_FILE)
        for node in self._nodes:
            picture.edges += [(parent, node) for parent in node.parents]
        return picture.draw("graph", self._box, background="white")


_PAGE = (
    '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>graph</title>'
    '<meta name="viewport" content="width=device-width">'
    "<style>:root{{color-scheme:light dark;font-family:sans-serif}}</style>\n{}\n</html>\n"
)
