"""Which module each part of a graph belongs to, and the tree of modules that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from tinytensor.display.nodes import DrawnNode


@dataclass(eq=False)
class Group:
    """The part of a graph that one module computed. ``path`` is the module's dotted name; the whole graph has the name ""."""

    path: str
    members: list[DrawnNode | Group] = field(default_factory=list)  # in the order in which they were computed


def grouped(nodes: Sequence[DrawnNode]) -> Group:
    """The tree of the modules of these nodes, which come in the order of their numbers.

    A module that was called several times has a group for each time. So no two groups need each other's results.
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
    """The name of the module that each node belongs to. Parameters have their names from ``named_parameters``.

    An op belongs where its parameters are. An op without parameters belongs to the innermost module that holds all its inputs,
    or what was computed just before and after it, whichever is further inside. Modules that have parameters of their own
    count as their ops' homes only. What follows after the last op with parameters, such as a loss, is in no module if it has
    a single input.
    """
    paths = {node: _module_of(node.name) for node in nodes if not node.op}
    ops = [node for node in nodes if node.op]
    for node in ops:
        own = [paths[parent] for parent in node.parents if not parent.op and paths[parent]]
        if own:
            paths[node] = _common(own)
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
