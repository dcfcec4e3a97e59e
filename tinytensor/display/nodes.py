"""The nodes of a drawing. They hold text but no arrays, so a drawing outlives the graph that ``backward`` frees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(eq=False, frozen=True)
class DrawnNode:
    """A node of the graph, as it was when it was drawn."""

    number: int
    op: str  # the op's name; "" for a leaf
    parents: Sequence[DrawnNode]
    name: str = ""  # the user's name for it
    facts: Sequence[str] = ()  # the lines below the name
