"""Gradient checkpointing (Chen et al. 2016): a part of the graph is not kept, but recorded again for the backward pass."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tinytensor import random
from tinytensor.arguments import checked
from tinytensor.backend import owner
from tinytensor.calling import wrap
from tinytensor.changes import arrays_in, check_unchanged, next_number, owned
from tinytensor.engine import Node, backpropagate
from tinytensor.fused import alias
from tinytensor.modes import enable_grad, modes
from tinytensor.op import Op
from tinytensor.tensor import Tensor


@checked
def checkpoint(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """``function(*inputs)``. Only the inputs are kept for the backward pass, which calls the function a second time.

    This trades time for memory. If each block of a model is checkpointed, only one block's activations exist at a time, and
    the backward pass needs one more forward pass.

    ``function`` returns one tensor. Gradients also flow to tensors that it uses without getting them as inputs, such as a
    module's parameters. Random numbers repeat, so it may use dropout. Raises TypeError if it returns anything else. The
    backward pass raises RuntimeError if a parameter, or a value that the function's gradients use, was changed in place, and
    if the second call uses other tensors than the first. Inputs that are arrays, lists, dicts or sets are copied; what else the
    function reads must stay the same until then.

    >>> x = tt.tensor([1.0, 2.0], requires_grad=True)
    >>> tt.checkpoint(lambda x: (x * x).sum(), x).backward()
    >>> x.grad
    tensor([2., 4.])
    """
    if not modes().recording:
        return function(*inputs)
    are_tensors = [isinstance(x, Tensor) for x in inputs]
    arrays = [x.data if is_tensor else owned(x) for x, is_tensor in zip(inputs, are_tensors)]
    parents = [x.node if is_tensor else None for x, is_tensor in zip(inputs, are_tensors)]
    with random.copied() as generator:
        out, region = _run(function, arrays, are_tensors, parents)
    if out.node is None:
        return out
    saved = _Saved(function, arrays, are_tensors, generator, region.outer, region.memories)
    node = Node(_checkpoint_op, (*parents, *region.outer), saved, out.shape, out.dtype)
    if modes().keeping_values:
        node.value = out.data
    return wrap(out.data, node)


class _Saved(NamedTuple):
    """What a checkpoint's node saves."""

    function: Callable[..., Tensor]
    arrays: list[Any]  # the inputs, with arrays in place of tensors
    are_tensors: list[bool]
    generator: Any
    outer: list[Node]  # the nodes that gradients flow to besides the inputs
    memories: list[weakref.ref[Any]]  # what the function's nodes had saved; if it still exists, something else uses it too


class _Region(NamedTuple):
    """The part of the graph that the function recorded."""

    starts: list[Node | None]  # a new node for each input, so that its gradient is apart from other uses of the same tensor
    outer: list[Node]
    memories: list[weakref.ref[Any]]


def _run(
    function: Callable[..., Tensor], arrays: Sequence[Any], are_tensors: Sequence[bool], parents: Sequence[Node | None]
) -> tuple[Tensor, _Region]:
    """The function's result for these arrays, as tensors with the ``parents`` as nodes, and the graph that it recorded."""
    first = next_number()
    inputs = [wrap(x, parent) if is_tensor else x for x, is_tensor, parent in zip(arrays, are_tensors, parents)]
    inputs = [x if parent is None else alias(x) for x, parent in zip(inputs, parents)]
    out = function(*inputs)
    if not isinstance(out, Tensor):
        raise TypeError(f"checkpoint: the function must return one tensor, not {type(out).__name__}")
    return out, _region(first, [None if parent is None else x.node for x, parent in zip(inputs, parents)], out.node)


def _region(first: int, starts: list[Node | None], end: Node | None) -> _Region:
    """The nodes from the inputs to the result, and the older nodes that the result also depends on."""
    outer: dict[Node, None] = {}
    memories: dict[int, Any] = {}
    seen: set[Node | None] = {None, *starts}
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.number < first:
            outer[node] = None
            continue
        memories.update({id(memory): memory for memory in map(owner, arrays_in(node.saved))})
        waiting += node.parents
    return _Region(starts, sorted(outer, key=lambda node: node.number), [weakref.ref(m) for m in memories.values()])


class _CheckpointOp(Op):
    """The op of a checkpoint's node. Its backward records the function again, and goes back through that graph."""

    def __init__(self) -> None:
        self.name = "checkpoint"

    def input_name(self, place: int) -> str:
        return f"tensor {place}"

    def backward(self, node: Node, g: Any, create_graph: bool, before: Any = None) -> Sequence[Any]:
        function, arrays, are_tensors, generator, outer, memories = node.saved
        leaves = [leaf.tensor() for leaf in outer if leaf.tensor is not None]
        check_unchanged(node, [memory() for memory in memories] + [leaf.data for leaf in leaves if leaf is not None])
        with enable_grad(), random.using(copy.deepcopy(generator)):
            out, region = _run(function, arrays, are_tensors, node.parents[: len(arrays)])
        if out.node is None or region.outer != outer:
            raise RuntimeError(
                "backward through 'checkpoint': the second call of its function uses other tensors than the first: let it "
                "depend only on its inputs, and not on a variable that has changed meanwhile"
            )
        wanted = [*region.starts, *outer]
        known = [n for n in wanted if n is not None]
        found = backpropagate(out.node, g, known, stop_at_wanted=True, retain_graph=create_graph, create_graph=create_graph)
        return [None if n is None else found.get(n) for n in wanted]


_checkpoint_op = _CheckpointOp()
