"""The result of ``tt.draw_graph``: a drawing that renders as HTML, SVG or Graphviz source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import takewhile
from pathlib import Path

from tinytensor.common.wording import counted
from tinytensor.device.disk import make_folder, write_text
from tinytensor.display.svg import Box, svg


@dataclass(eq=False, frozen=True)
class DrawnNode:
    """A snapshot of a graph node at the time of drawing."""

    number: int
    op: str  # the name of the op; "" for a leaf
    parents: Sequence[DrawnNode]
    name: str = ""  # the user's label for the node
    facts: Sequence[str] = ()  # the lines below the name


MOST_IN_FILE = 300  # in an SVG file
DOT_LOOKS = {"leaf": ("#dbeafe", "box"), "op": ("#f3f4f6", "ellipse"), "output": ("#fef3c7", "ellipse")}


class Drawing:
    """A picture of a recorded graph. In a notebook, each module expands below the picture.

    ``save`` writes it to a file. ``source`` is the complete graph in the Graphviz language.
    """

    def __init__(self, nodes: Sequence[DrawnNode]):
        self._nodes = nodes  # ordered by number; the last one is the output

    @property
    def source(self) -> str:
        """The graph in DOT, the Graphviz language. Render it with ``dot -Tsvg``."""
        lines = ["digraph {", "\tgraph [rankdir=LR]", "\tnode [fontname=Helvetica fontsize=10 style=filled]"]
        for node in self._nodes:
            box = self._box(node)
            label = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in box.lines)
            color, shape = DOT_LOOKS[box.style]
            lines.append(f'\t{node.number} [label="{label}" fillcolor="{color}" shape={shape}]')
            lines += [f"\t{parent.number} -> {node.number}" for parent in node.parents]
        return "\n".join([*lines, "}", ""])

    def save(self, path: str | Path) -> Path:
        """Save the picture to a file and return its path. The extension selects the format.

        .html saves the notebook output as a page, .svg one picture without groups, and .dot or .gv the ``source``. Raises
        ValueError for any other extension.
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
        """Return HTML for a notebook: a picture of the outermost modules, and a collapsible picture of each module."""
        return Pages(self._nodes, self._box).html()

    def _box(self, node: DrawnNode) -> Box:
        style = "leaf" if not node.op else "output" if node is self._nodes[-1] else "op"
        return Box([node.name or node.op or "leaf", *node.facts], style)

    def _ungrouped(self) -> str:
        """Draw one picture of all nodes (or only the last ones, if there are too many) on white."""
        picture = Picture(self._nodes, MOST_IN_FILE)
        for node in self._nodes:
            picture.edges += [(parent, node) for parent in node.parents]
        return picture.draw("graph", self._box, background="white")


_PAGE = (
    '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>graph</title>'
    '<meta name="viewport" content="width=device-width">'
    "<style>:root{{color-scheme:light dark;font-family:sans-serif}}</style>\n{}\n</html>\n"
)

# ------------------------------------------------------------------------------------------------------------- the page

MOST_BOXES = 100  # in one picture
MOST_IN_ALL = 2000  # in all pictures


@dataclass(eq=False)
class Group:
    """The part of a graph that one module computed. ``path`` is the module's dotted name, "" for the complete graph."""

    path: str
    members: list[DrawnNode | Group] = field(default_factory=list)  # in the order of computation


def grouped(nodes: Sequence[DrawnNode]) -> Group:
    """Group nodes, ordered by number, into a tree of modules.

    A module that was called several times has one group per call. This way, no two groups depend on each other.
    """
    paths = module_paths(nodes)
    root = Group("")
    home: dict[DrawnNode, Group] = {}
    opened = [root]
    for node in nodes:
        if not node.op:
            continue
        while not _within(paths[node], opened[-1].path):
            opened.pop()
        for path in _prefixes(paths[node])[len(_prefixes(opened[-1].path)) :]:
            opened.append(Group(path))
            opened[-2].members.append(opened[-1])
        for parent in node.parents:
            if not parent.op and parent not in home:
                home[parent] = next(group for group in reversed(opened) if _within(paths[parent], group.path))
                home[parent].members.append(parent)
        opened[-1].members.append(node)
    if not root.members:  # a single leaf
        root.members += nodes
    return _compact(root)


def module_paths(nodes: Sequence[DrawnNode]) -> dict[DrawnNode, str]:
    """Return the module name of each node. Parameters are named as in ``named_parameters``.

    An op belongs to the module of its parameters. An op without parameters belongs to the innermost module that contains all
    its inputs, or the ops just before and after it, whichever is deeper. Modules with their own parameters count only for the
    ops that use those parameters. A single-input op after the last op with parameters, such as a loss, belongs to no module.
    """
    paths = {node: _module_of(node.name) for node in nodes if not node.op}
    ops = [node for node in nodes if node.op]
    for node in ops:
        of_parameters = [paths[parent] for parent in node.parents if not parent.op and paths[parent]]
        if of_parameters:
            paths[node] = _common(of_parameters)
    following = ""
    after: dict[DrawnNode, str] = {}
    for node in reversed(ops):
        after[node] = following
        following = paths.get(node, following)
    homes = {paths[node] for node in nodes if not node.op and node.name}
    before = ""
    for node in ops:
        if node not in paths:
            inputs = [paths[p] for p in node.parents if p.op or p.name]
            inputs = [_module_of(path) if path in homes else path for path in inputs]
            if not after[node] and len(set(node.parents)) == 1:
                inputs = []
            paths[node] = max(_common(inputs), _common([before, after[node]]), key=len)
        before = paths[node]
    return paths


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def _common(paths: Sequence[str]) -> str:
    """Return the innermost module that contains all of these paths."""
    parts = [path.split(".") for path in paths]
    return ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*parts)))


def _within(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(module + ".")


def _prefixes(path: str) -> list[str]:
    """Return the names of a module and all modules that contain it, outermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _compact(group: Group) -> Group:
    """Omit groups that contain only a single group."""
    group.members = [_compact(member) if isinstance(member, Group) else member for member in group.members]
    only = group.members[0] if len(group.members) == 1 else None
    return only if isinstance(only, Group) and group.path else group


class _Outside:
    """A label at the edge of a module's picture: an external input or an external reader."""

    def __init__(self, text: str):
        self.text = text


_Member = DrawnNode | Group | _Outside


class Picture:
    """The members of a group (only the last ones if there are too many) and the edges between them."""

    def __init__(self, members: Sequence[_Member], limit: int = MOST_BOXES):
        self.omitted = max(len(members) - limit, 0)
        self.members = list(members[self.omitted :])
        self.edges: list[tuple[_Member, _Member]] = []
        self._outside: dict[object, _Outside] = {}

    def outside(self, key: object, text: str) -> _Outside:
        """Return the single member that represents an outside node."""
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
        """Return the picture as SVG."""
        shown = set(self.members)
        edges = self.edges
        if self.omitted:
            before = self.outside(self, f"… {self.omitted:,} more before")
            inside = [(start, end) for start, end in edges if start in shown and end in shown]
            fed = {end for _, end in inside}  # only members without other arrows get an arrow from ``before``
            edges = inside + [(before, end) for start, end in edges if start not in shown and end in shown and end not in fed]
        ends = {member for edge in edges for member in edge}
        members = [member for member in self.members if member in ends or not isinstance(member, _Outside)]
        boxes = []
        for member in members:
            if isinstance(member, _Outside):
                boxes.append(Box([member.text], "outside"))
            elif isinstance(member, Group):
                assert group_box is not None
                boxes.append(group_box(member))
            else:
                boxes.append(box_of(member))
        indices = {member: i for i, member in enumerate(members)}
        return svg(boxes, list(dict.fromkeys((indices[start], indices[end]) for start, end in edges)), label, background)


class Pages:
    """The pictures of all groups of a graph."""

    def __init__(self, nodes: Sequence[DrawnNode], box_of: Callable[[DrawnNode], Box]):
        self.box_of = box_of
        self.root = grouped(nodes)
        self.chains: dict[DrawnNode, tuple[_Member, ...]] = {}  # a node after its enclosing groups
        self.pictures: dict[Group, Picture] = {}
        self.counts: dict[Group, int] = {}  # the number of ops in a group
        self.last: dict[Group, DrawnNode] = {}
        self._find(self.root, ())
        for node in nodes:
            for parent in node.parents:
                self._connect(parent, node)

    def _find(self, group: Group, around: tuple[_Member, ...]) -> None:
        self.pictures[group] = Picture(group.members)
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
        """Draw an edge between two members of the innermost shared group. In groups with only one of them, draw it to the
        outside."""
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
        """Name an outside node: an op by its outermost group, if any, else by its own name."""
        return chain[0].path if isinstance(chain[0], Group) and node.op else self.box_of(node).lines[0]

    def html(self) -> str:
        self.drawn = 0
        ops = self.counts[self.root]
        summary = f"{counted(ops, 'op')}, {counted(len(self.chains) - ops, 'leaf', 'leaves')}"
        return f"<div>{_small(escape(summary))}{self._group(self.root)}</div>"

    def _group(self, group: Group) -> str:
        """Return the picture of a group, followed by the collapsed pictures of its inner groups."""
        picture = self.pictures[group]
        self.drawn += len(picture.members)
        if self.drawn > MOST_IN_ALL:
            return _small("not drawn, because the graph is too large: its .source is complete")
        parts = [f'<div style="overflow-x:auto">{self._drawn(picture, group)}</div>']
        if picture.omitted:
            parts.append(_small(f"Not drawn: the first {picture.omitted:,} of {len(group.members):,}."))
        for member in picture.members:
            if isinstance(member, Group):
                ops = f'<span style="opacity:.7;font-size:.9em">{counted(self.counts[member], "op")}</span>'
                name = f'<code style="font-size:.9em">{escape(_inside(member.path, group))}</code>'
                summary = f"<summary>{name} {ops}</summary>"
                parts.append(f'<details style="margin:.15em 0 .15em 1em">{summary}{self._group(member)}</details>')
        return "".join(parts)

    def _drawn(self, picture: Picture, group: Group) -> str:
        """Return a group's picture, in which names omit the group's own path."""

        def box(node: DrawnNode) -> Box:
            (name, *facts), style = self.box_of(node)
            return Box([_inside(name, group), *facts], style)

        label = f"graph of {group.path}" if group.path else "graph"
        return picture.draw(label, box, lambda inner: self._group_box(inner, group))

    def _group_box(self, group: Group, around: Group) -> Box:
        """Return a group as one box: its name, its only op or the number of ops, and the shape of its result."""
        last = self.last[group]
        content = self.box_of(last).lines[0] if self.counts[group] == 1 else counted(self.counts[group], "op")
        return Box([_inside(group.path, around), content, *self.box_of(last).lines[1:]], "module")


def _inside(name: str, group: Group) -> str:
    return name.removeprefix(group.path + ".") if group.path else name


def _small(text: str) -> str:
    return f'<div style="opacity:.7;font-size:.85em">{text}</div>'
