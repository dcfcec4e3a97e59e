"""Drawing: what ``tt.draw_graph`` returns. It becomes HTML, SVG, or a text for Graphviz."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from tinytensor.display.groups import Group, grouped
from tinytensor.display.nodes import DrawnNode
from tinytensor.display.svg import Box, svg
from tinytensor.io import atomic_write

MOST_BOXES = 100  # in a picture of a notebook
MOST_IN_FILE = 300  # in an SVG file
MOST_IN_ALL = 2000  # in all pictures of a notebook's output
DOT_LOOKS = {"leaf": ("#dbeafe", "box"), "op": ("#f3f4f6", "ellipse"), "output": ("#fef3c7", "ellipse")}


class Drawing:
    """A picture of a recorded graph. A notebook shows it, with a box for each module that opens below the picture.

    ``save`` writes it to a file. ``source`` is the graph in the language of Graphviz, in full.
    """

    def __init__(self, nodes: Sequence[DrawnNode]):
        self._nodes = nodes  # in the order of their numbers; the last one is the output

    @property
    def source(self) -> str:
        """The graph as a text in DOT, the language of Graphviz: ``dot -Tsvg`` draws it."""
        lines = ["digraph {", "\tgraph [rankdir=LR]", "\tnode [fontname=Helvetica fontsize=10 style=filled]"]
        for node in self._nodes:
            box = self._box(node)
            label = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in box.lines)
            colour, shape = DOT_LOOKS[box.kind]
            lines.append(f'\t{node.number} [label="{label}" fillcolor="{colour}" shape={shape}]')
            lines += [f"\t{parent.number} -> {node.number}" for parent in node.parents]
        return "\n".join([*lines, "}", ""])

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file, and return its path. The path's ending says what is written.

        .html is a page like a notebook's output, .svg one picture without groups, .dot or .gv the ``source``. Raises
        ValueError for another ending.
        """
        path = Path(path)
        ending = path.suffix.lower()
        writers: dict[str, Callable[[], str]] = {
            ".html": lambda: _PAGE.format(self._repr_html_()),
            ".svg": self._whole,
            ".dot": lambda: self.source,
            ".gv": lambda: self.source,
        }
        if ending not in writers:
            raise ValueError(f"a graph is saved as {', '.join(writers)}, not as {path.suffix or path.name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            Path(temporary).write_text(writers[ending](), encoding="utf-8")
        return path

    def __repr__(self) -> str:
        return f"Drawing of {_count(len(self._nodes), 'node')}: a notebook shows it, .save('graph.html') writes it to a file"

    def _repr_html_(self) -> str:
        """What a notebook shows: a picture of the outermost modules, and one for each module, which opens."""
        return _Pages(self._nodes, self._box).html()

    def _box(self, node: DrawnNode) -> Box:
        """A node as a box: its name, and the facts."""
        kind = "leaf" if not node.op else "output" if node is self._nodes[-1] else "op"
        return Box([node.name or node.op or "leaf", *node.facts], kind)

    def _whole(self) -> str:
        """One picture of all nodes, or of the last ones, on white."""
        picture = _Picture(self._nodes, MOST_IN_FILE)
        for node in self._nodes:
            picture.edges += [(parent, node) for parent in node.parents]
        return picture.draw("graph", self._box, background="white")


_PAGE = (
    '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>graph</title>'
    '<meta name="viewport" content="width=device-width">'
    "<style>:root{{color-scheme:light dark;font-family:sans-serif}}</style>\n{}\n</html>\n"
)


class _Outside:
    """What stands at the edge of a module's picture: something that it reads, or that reads it."""

    def __init__(self, text: str):
        self.text = text


_Member = DrawnNode | Group | _Outside


class _Picture:
    """The members of a group, of which the last ones are drawn if there are too many, and the edges between them."""

    def __init__(self, members: Sequence[_Member], most: int = MOST_BOXES):
        self.left_out = max(len(members) - most, 0)
        self.members = list(members[self.left_out :])
        self.edges: list[tuple[_Member, _Member]] = []
        self._outside: dict[object, _Outside] = {}

    def outside(self, key: object, text: str) -> _Outside:
        """The one member that stands for something outside."""
        if key not in self._outside:
            self._outside[key] = _Outside(text)
            self.members.append(self._outside[key])
        return self._outside[key]

    def draw(
        self,
        label: str,
        box_of: Callable[[DrawnNode], Box],
        group_box: Callable[[Group], Box] | None = None,
        background: str = "",
    ) -> str:
        """The picture as SVG."""
        shown = set(self.members)
        edges = self.edges
        if self.left_out:
            rest = self.outside(self, f"… {self.left_out:,} more before")
            inside = [(start, end) for start, end in edges if start in shown and end in shown]
            fed = {end for _, end in inside}  # an arrow from the rest to each of the others is enough
            edges = inside + [(rest, end) for start, end in edges if start not in shown and end in shown and end not in fed]
        boxes = []
        for member in self.members:
            if isinstance(member, _Outside):
                boxes.append(Box([member.text], "outside"))
            elif isinstance(member, Group):
                assert group_box is not None
                boxes.append(group_box(member))
            else:
                boxes.append(box_of(member))
        places = {member: i for i, member in enumerate(self.members)}
        return svg(boxes, list(dict.fromkeys((places[start], places[end]) for start, end in edges)), label, background)


class _Pages:
    """The pictures of all groups of a graph."""

    def __init__(self, nodes: Sequence[DrawnNode], box_of: Callable[[DrawnNode], Box]):
        self.box_of = box_of
        self.root = grouped(nodes)
        self.chains: dict[DrawnNode, tuple[_Member, ...]] = {}  # the groups around a node, and the node
        self.pictures: dict[Group, _Picture] = {}
        self.counts: dict[Group, int] = {}  # the ops in a group
        self.last: dict[Group, DrawnNode] = {}
        self._find(self.root, ())
        for node in nodes:
            for parent in node.parents:
                self._connect(parent, node)

    def _find(self, group: Group, around: tuple[_Member, ...]) -> None:
        self.pictures[group] = _Picture(group.members)
        self.counts[group] = 0
        for member in group.members:
            if isinstance(member, Group):
                self._find(member, (*around, group))
                self.counts[group] += self.counts[member]
                self.last[group] = self.last[member]
            else:
                self.chains[member] = (*around, group, member)
                self.counts[group] += bool(member.op)
                self.last[group] = member

    def _connect(self, start: DrawnNode, end: DrawnNode) -> None:
        """Draw an edge: between two members where both are, and to the outside in the groups that hold only one of them."""
        here, there = self.chains[start], self.chains[end]
        shared = next(i for i, (one, other) in enumerate(zip(here, there)) if one is not other)
        group = here[shared - 1]
        assert isinstance(group, Group)
        self.pictures[group].edges.append((here[shared], there[shared]))
        for group, member in zip(there[shared:], there[shared + 1 :]):
            assert isinstance(group, Group)
            picture = self.pictures[group]
            picture.edges.append((picture.outside(start, f"from {self._title(here[shared:], start)}"), member))
        for group, member in zip(here[shared:], here[shared + 1 :]):
            assert isinstance(group, Group)
            picture = self.pictures[group]
            picture.edges.append((member, picture.outside(there[shared], f"to {self._title(there[shared:], end)}")))

    def _title(self, chain: Sequence[_Member], node: DrawnNode) -> str:
        """What a node is called from outside: an op by the outermost group around it, if there is one; else by its own name."""
        return chain[0].path if isinstance(chain[0], Group) and node.op else self.box_of(node).lines[0]

    def html(self) -> str:
        self.drawn = 0
        ops = self.counts[self.root]
        summary = f"{_count(ops, 'op')}, {_count(len(self.chains) - ops, 'leaf', 'leaves')}"
        return f"<div>{_small(escape(summary))}{self._group(self.root)}</div>"

    def _group(self, group: Group) -> str:
        """The picture of a group, and below it those of the groups inside it, closed."""
        picture = self.pictures[group]
        self.drawn += len(picture.members)
        if self.drawn > MOST_IN_ALL:
            return _small("not drawn, because the graph is so large: its .source is complete")
        parts = [f'<div style="overflow-x:auto">{self._drawn(picture, group)}</div>']
        if picture.left_out:
            parts.append(_small(f"The first {picture.left_out:,} of {len(group.members):,} are not drawn."))
        for member in picture.members:
            if isinstance(member, Group):
                count = f'<span style="opacity:.7;font-size:.9em">{_count(self.counts[member], "op")}</span>'
                name = f'<code style="font-size:.9em">{escape(_inside(member.path, group))}</code>'
                summary = f"<summary>{name} {count}</summary>"
                parts.append(f'<details style="margin:.15em 0 .15em 1em">{summary}{self._group(member)}</details>')
        return "".join(parts)

    def _drawn(self, picture: _Picture, group: Group) -> str:
        """A group's picture, in which names lack that of the group."""

        def box(node: DrawnNode) -> Box:
            (name, *facts), kind = self.box_of(node)
            return Box([_inside(name, group), *facts], kind)

        label = f"graph of {group.path}" if group.path else "graph"
        return picture.draw(label, box, lambda inner: self._group_box(inner, group))

    def _group_box(self, group: Group, around: Group) -> Box:
        """A group as one box: its name, its number of ops or its only op, and the shape of its result."""
        last = self.last[group]
        what = self.box_of(last).lines[0] if self.counts[group] == 1 else _count(self.counts[group], "op")
        return Box([_inside(group.path, around), what, *self.box_of(last).lines[1:]], "module")


def _inside(name: str, group: Group) -> str:
    """A name inside a group, without that of the group."""
    return name.removeprefix(group.path + ".") if group.path else name


def _small(text: str) -> str:
    return f'<div style="opacity:.7;font-size:.85em">{text}</div>'


def _count(number: int, what: str, several: str = "") -> str:
    return f"{number:,} {what if number == 1 else several or what + 's'}"
