"""Gradient checkpointing (Chen et al. 2016): a part of the graph is forgotten, and made again for the backward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from tinytensor import random
from tinytensor.engine import Node, backpropagate, enable_grad, modes
from tinytensor.fused import alias
from tinytensor.op import Op, wrap
from tinytensor.tensor import Tensor


def checkpoint(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """``function(*inputs)``, of which only the inputs are kept for the backward pass, which calls the function once more.

    That trades memory for time: of a model's blocks, each checkpointed, the activations of one exist at a time, for a
    further forward pass. ``function`` returns one tensor, and gradients also flow to the parameters that it uses without
    having them as inputs, such as a module's. Random numbers repeat, so dropout may be inside. Raises TypeError for another
    kind of result, and ValueError where the function uses a computed tensor that is not among its inputs.
    """
    if not modes.recording:
        return function(*inputs)
    generator = copy.deepcopy(random.generator())
    start = Node.next_number()
    out = function(*[alias(x) if isinstance(x, Tensor) and x.requires_grad else x for x in inputs])
    if not isinstance(out, Tensor):
        raise TypeError(f"checkpoint: the function must return one tensor, not {type(out).__name__}")
    if out.node is None:
        return out
    given = [x.node if isinstance(x, Tensor) else None for x in inputs]
    used = _leaves_before(start, out.node, {node for node in given if node is not None})
    saved = (function, inputs, generator, used)
    return wrap(out.data, Node(_again, (*given, *used), saved, out.shape, out.dtype))


def _leaves_before(start: int, node: Node, given: set[Node]) -> list[Node]:
    """The leaves that the graph of ``node`` came from, and that existed before it, but for those given."""
    found: dict[Node, None] = {}
    seen, waiting = {node}, [node]
    while waiting:
        node = waiting.pop()
        for parent in node.parents:
            if parent is None or parent in seen:
                continue
            seen.add(parent)
            if parent.number > start:
                waiting.append(parent)
            elif parent not in given:
                found[parent] = None
    if computed := [node.op for node in found if node.op is not None]:
        raise ValueError(
            f"checkpoint: the function uses a tensor that was computed before, by {computed[0].name!r}, and is not among its "
            "inputs: pass it to checkpoint as one"
        )
    return sorted(found, key=lambda leaf: leaf.number)


class _Again(Op):
    """The op of a checkpoint's node: its backward runs the function again, recording, and goes back through that."""

    def __init__(self) -> None:
        self.name = "checkpoint"

    def backward(self, node: Node, g: Any, create_graph: bool) -> Sequence[Any]:
        function, inputs, generator, used = node.saved
        with enable_grad(), random.using(copy.deepcopy(generator)):
            own = [alias(x) if isinstance(x, Tensor) and x.requires_grad else x for x in inputs]
            out = function(*own)
        wanted = [x.node for x in own if isinstance(x, Tensor) and x.node is not None] + used
        found = backpropagate(out.node, g, wanted, ends=True, retain_graph=create_graph, create_graph=create_graph)
        gradients = [found.get(x.node) if isinstance(x, Tensor) and x.node is not None else None for x in own]
        return [*gradients, *[found.get(leaf) for leaf in used]]


_again = _Again()
