"""Gradient checkpointing (Chen et al. 2016): rebuild part of the graph in the backward pass instead of storing it."""

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
    """Return ``function(*inputs)``, storing only the inputs. The backward pass calls the function again.

    This trades time for memory. If you checkpoint each block of a model, only one block's activations exist at a time, at the
    cost of a second forward pass.

    ``function`` returns one tensor; any other result raises TypeError. Gradients also flow to tensors that it uses but does not
    take, such as a module's parameters. The second call receives the original inputs, even if arrays or lists changed since,
    and runs in the modes of the first. Random numbers repeat, so the function may use dropout. The backward pass raises
    RuntimeError if a parameter or a value that the gradients need was changed in place, or if the second call differs from the
    first, as after ``module.eval()``. Any other state that the function reads must not change until then.

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
    """The saved values of a checkpoint node."""

    function: Callable[..., Tensor]
    arrays: list[Any]  # the inputs, with arrays in place of tensors
    are_tensors: list[bool]
    modes: Modes
    another: Callable[[], Any]  # returns a generator that repeats the random numbers
    outer: list[Node]  # nodes that get gradients, besides the inputs
    memories: list[weakref.ref[Any]]  # saved by the function's nodes; alive only if referenced elsewhere
    calls: list[tuple[str, str]]


class _Region(NamedTuple):
    """The part of the graph that the function recorded."""

    starts: list[Node | None]  # a new node for each input, to separate its gradient from other uses of the tensor
    outer: list[Node]
    memories: list[weakref.ref[Any]]
    calls: list[tuple[str, str]]  # each node's op and settings, to detect a second call that differs


def _kept(value: Any) -> Any:
    """Copy the arrays, lists, tuples and dicts in a non-tensor input, because they may change.

    ``x[i] = y`` may give a tensor in it another array. The copy keeps the current array.
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
        raise TypeError(f"checkpoint: the function must return one tensor, got {type(out).__name__}")
    return out


def _run(
    function: Callable[..., Tensor], arrays: Sequence[Any], are_tensors: Sequence[bool], parents: Sequence[Node | None]
) -> tuple[Tensor, _Region]:
    """Call the function with these arrays as tensors with the nodes ``parents``. Return the result and its recorded graph."""
    first = next_number()
    inputs = [wrap(x, parent) if is_tensor else x for x, is_tensor, parent in zip(arrays, are_tensors, parents)]
    inputs = [x if parent is None else alias(x) for x, parent in zip(inputs, parents)]
    out = _result(function, inputs)
    return out, _region(first, [None if parent is None else x.node for x, parent in zip(inputs, parents)], out.node)


def _region(first: int, starts: list[Node | None], end: Node | None) -> _Region:
    """Return the nodes from the inputs to the result, and the older nodes on which the result also depends."""
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
    """The op of a checkpoint node. Its backward pass records the function again and backpropagates through that graph."""

    def __init__(self) -> None:
        self.name = "checkpoint"

    def input_name(self, i: int) -> str:
        return f"tensor {i}"

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
                "backward through 'checkpoint': the second call of its function differs from the first "
                f"({differing[0][0] if differing else 'it uses other tensors'}): let it depend only on its inputs, and not on "
                "a variable, a module's train() or eval(), or a generator that has changed"
            )
        wanted = [*region.starts, *outer]
        known = [n for n in wanted if n is not None]
        grads = backpropagate(out.node, g, known, stop_at_wanted=True, retain_graph=create_graph, create_graph=create_graph)
        return [None if n is None else grads.get(n) for n in wanted]


_checkpoint_op = _CheckpointOp()
