"""Which module each part of a graph belongs to, and the tree of modules that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from tinytensor.engine import Node


@dataclass(eq=False)
class Group:
    """The part of a graph that one module computed. ``path`` is the module's dotted name; the whole graph has the name ""."""

    path: str
    members: list[Node | Group] = field(default_factory=list)  # in the order in which they were computed

    def nodes(self) -> list[Node]:
        """All nodes in this group and in the groups inside it."""
        found: list[Node] = []
        waiting: list[Node | Group] = [self]
        while waiting:
            member = waiting.pop()
            if isinstance(member, Group):
                waiting += member.members
            else:
                found.append(member)
        return found


def grouped(nodes: Sequence[Node], names: Mapping[Node, str]) -> Group:
    """The tree of the modules of these nodes, which come in the order of their numbers.

    A module that was called several times has a group for each time. So no two groups need each other's results.
    """
    paths = module_paths(nodes, names)
    root = Group("")
    home: dict[Node, Group] = {}
    opened = [root]
    for node in nodes:
        if node.op is None:
            continue
        while not _within(paths[node], opened[-1].path):
            opened.pop()
        for path in _prefixes(paths[node])[len(_prefixes(opened[-1].path)) :]:
            opened.append(Group(path))
            opened[-2].members.append(opened[-1])
        for parent in node.parents:
            if parent is not None and parent.op is None and parent not in home:
                home[parent] = next(group for group in reversed(opened) if _within(paths[parent], group.path))
                home[parent].members.append(parent)
        opened[-1].members.append(node)
    if not root.members:  # a single leaf
        root.members += nodes
    return _compact(root)


def module_paths(nodes: Sequence[Node], names: Mapping[Node, str]) -> dict[Node, str]:
    """The name of the module that each node belongs to. ``names`` are those of parameters, as ``named_parameters`` gives them.

    An op belongs where its parameters are. An op without parameters belongs to the innermost module that holds all its inputs,
    or what was computed just before and after it, whichever is further inside. Modules that have parameters of their own
    count as their ops' homes only.
    """
    paths = {node: _module_of(names.get(node, "")) for node in nodes if node.op is None}
    ops = [node for node in nodes if node.op is not None]
    for node in ops:
        own = [paths[parent] for parent in node.parents if parent is not None and parent.op is None and paths[parent]]
        if own:
            paths[node] = _common(own)
    following = ""
    after: dict[Node, str] = {}
    for node in reversed(ops):
        after[node] = following
        following = paths.get(node, following)
    homes = {paths[leaf] for leaf in names if leaf in paths}
    before = ""
    for node in ops:
        if node not in paths:
            inputs = [paths[p] for p in node.parents if p is not None and (p.op is not None or p in names)]
            inputs = [_module_of(path) if path in homes else path for path in inputs]
            paths[node] = max(_common(inputs), _common([before, after[node]]), key=len)
        before = paths[node]
    return paths


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def _common(paths: Sequence[str]) -> str:
    """The innermost module that holds all of these."""
    parts = [path.split(".") for path in paths]
    return ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*parts)))


def _within(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(module + ".")


def _prefixes(path: str) -> list[str]:
    """The names of a module and of all modules around it, from the outermost on."""
    parts = path.split(".") if path else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _compact(group: Group) -> Group:
    """The group, in which a group that holds a single group is left out."""
    group.members = [_compact(member) if isinstance(member, Group) else member for member in group.members]
    only = group.members[0] if len(group.members) == 1 else None
    return only if isinstance(only, Group) and group.path else group
