"""Gradient checkpointing (Chen et al. 2016): a part of the graph is not kept, but recorded again for the backward pass."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tinytensor import random
from tinytensor.autograd.engine import Node, backpropagate, check_unchanged, next_number
from tinytensor.autograd.fused import alias
from tinytensor.autograd.inputs import arrays_and_plain_in
from tinytensor.autograd.modes import Modes, modes, restored
from tinytensor.autograd.op import Op
from tinytensor.autograd.tensor import Tensor, wrap
from tinytensor.common.arguments import checked
from tinytensor.device.backend import is_array, is_host_array, owner


@checked
def checkpoint(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """``function(*inputs)``. Only the inputs are kept for the backward pass, which calls the function a second time.

    This trades time for memory. If each block of a model is checkpointed, only one block's activations exist at a time, and
    the backward pass needs one more forward pass.

    ``function`` returns one tensor. Gradients also flow to tensors that it uses without getting them as inputs, such as a
    module's parameters. The second call gets the inputs as they were, also arrays and lists that were changed since, and it has
    the modes of the first. Random numbers repeat, so it may use dropout. Raises TypeError if it returns anything else. The
    backward pass raises RuntimeError if a parameter, or a value that the function's gradients use, was changed in place, and
    if the second call does not do what the first did, as after a module's ``eval()``. What else the function reads must stay
    the same until then.

    >>> x = tt.tensor([1.0, 2.0], requires_grad=True)
    >>> tt.checkpoint(lambda x: (x * x).sum(), x).backward()
    >>> x.grad
    tensor([2., 4.])
    """
    now = modes()
    if not now.recording:
        return _result(function, inputs)
    are_tensors = [isinstance(x, Tensor) for x in inputs]
    arrays = [x.data if is_tensor else x for x, is_tensor in zip(inputs, are_tensors)]
    parents = [x.node if is_tensor else None for x, is_tensor in zip(inputs, are_tensors)]
    before = [x if is_tensor else _kept(x) for x, is_tensor in zip(arrays, are_tensors)]
    with random.copied() as another:
        out, region = _run(function, arrays, are_tensors, parents)
    if out.node is None:
        return out
    saved = _Saved(function, before, are_tensors, now, another, region.outer, region.memories, region.calls)
    node = Node(_checkpoint_op, (*parents, *region.outer), saved, out.shape, out.dtype)
    if now.keeping_values:
        node.value = out.data
    return wrap(out.data, node)


class _Saved(NamedTuple):
    """What a checkpoint's node saves."""

    function: Callable[..., Tensor]
    arrays: list[Any]  # the inputs, with arrays in place of tensors
    are_tensors: list[bool]
    modes: Modes
    another: Callable[[], Any]  # makes a generator that draws the same random numbers again
    outer: list[Node]  # the nodes that gradients flow to besides the inputs
    memories: list[weakref.ref[Any]]  # what the function's nodes had saved; if it still exists, something else uses it too
    calls: list[tuple[str, str]]


class _Region(NamedTuple):
    """The part of the graph that the function recorded."""

    starts: list[Node | None]  # a new node for each input, so that its gradient is apart from other uses of the same tensor
    outer: list[Node]
    memories: list[weakref.ref[Any]]
    calls: list[tuple[str, str]]  # what each node is, and its settings, by which one sees whether the second call differs


def _kept(value: Any) -> Any:
    """An input that is no tensor as it is now: copies of the arrays, lists, tuples and dicts in it, which may be changed later.

    A tensor in it may be given another array by ``x[i] = y``; here it keeps its own.
    """
    if is_array(value) or is_host_array(value):
        return value.copy()
    if type(value) is Tensor:
        return wrap(value.data, value.node)
    if type(value) is dict:
        return {key: _kept(item) for key, item in value.items()}
    return type(value)([_kept(item) for item in value]) if type(value) in (list, tuple) else value


def _result(function: Callable[..., Tensor], inputs: Sequence[Any]) -> Tensor:
    out = function(*inputs)
    if not isinstance(out, Tensor):
        raise TypeError(f"checkpoint: the function must return one tensor, not {type(out).__name__}")
    return out


def _run(
    function: Callable[..., Tensor], arrays: Sequence[Any], are_tensors: Sequence[bool], parents: Sequence[Node | None]
) -> tuple[Tensor, _Region]:
    """The function's result for these arrays, as tensors with the ``parents`` as nodes, and the graph that it recorded."""
    first = next_number()
    inputs = [wrap(x, parent) if is_tensor else x for x, is_tensor, parent in zip(arrays, are_tensors, parents)]
    inputs = [x if parent is None else alias(x) for x, parent in zip(inputs, parents)]
    out = _result(function, inputs)
    return out, _region(first, [None if parent is None else x.node for x, parent in zip(inputs, parents)], out.node)


def _region(first: int, starts: list[Node | None], end: Node | None) -> _Region:
    """The nodes from the inputs to the result, and the older nodes that the result also depends on."""
    outer: dict[Node, None] = {}
    memories: dict[int, Any] = {}
    calls: list[tuple[str, str]] = []
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
        arrays, settings = arrays_and_plain_in(node.saved)
        memories.update({id(memory): memory for memory in map(owner, arrays)})
        calls.append((f"{'leaf' if node.op is None else node.op.name} of shape {node.shape}", str(settings)))
        waiting += node.parents
    in_order = sorted(outer, key=lambda node: node.number)
    return _Region(starts, in_order, [weakref.ref(m) for m in memories.values()], calls)


class _CheckpointOp(Op):
    """The op of a checkpoint's node. Its backward records the function again, and goes back through that graph."""

    def __init__(self) -> None:
        self.name = "checkpoint"

    def input_name(self, place: int) -> str:
        return f"tensor {place}"

    def backward(self, node: Node, g: Any, create_graph: bool, before: Any = None) -> Sequence[Any]:
        function, arrays, are_tensors, before, another, outer, memories, calls = node.saved
        arrays = [x if is_tensor else _kept(x) for x, is_tensor in zip(arrays, are_tensors)]
        leaves = [leaf.tensor() for leaf in outer if leaf.tensor is not None]
        check_unchanged(node, [memory() for memory in memories] + [leaf.data for leaf in leaves if leaf is not None])
        with restored(before), random.using(another()):
            out, region = _run(function, arrays, are_tensors, node.parents[: len(arrays)])
        if out.node is None or region.outer != outer or region.calls != calls:
            differing = [now or then for now, then in itertools.zip_longest(region.calls, calls) if now != then]
            raise RuntimeError(
                "backward through 'checkpoint': the second call of its function does not do what the first did "
                f"({differing[0][0] if differing else 'it uses other tensors'}): let it depend only on its inputs, and not on "
                "what has changed meanwhile, such as a variable, a module in train() or eval(), or a generator of its own"
            )
        wanted = [*region.starts, *outer]
        known = [n for n in wanted if n is not None]
        found = backpropagate(out.node, g, known, stop_at_wanted=True, retain_graph=create_graph, create_graph=create_graph)
        return [None if n is None else found.get(n) for n in wanted]


_checkpoint_op = _CheckpointOp()
