"""Reverse-mode automatic differentiation: the recorded graph and the backward pass.

The engine rests on two ideas:

* A ``Node`` is one recorded call of an op. It points to the nodes of its inputs and holds arrays, not tensors. (A leaf has a
  weak reference to its tensor. A checkpoint node also holds its function.) The graph therefore has no reference cycles and is
  freed with the last tensor that needs it.
* Nodes are numbered in order of creation, so a node's number is larger than the numbers of its ancestors. The backward pass
  needs no sort and no recursion: a heap returns the node with the largest number first.

See op.py for ops and their gradient rules.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from tinytensor.autograd.inputs import arrays_in, calling_line
from tinytensor.autograd.modes import Switched, modes
from tinytensor.common.missing import names_of as _names_of
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import Array, DType, converted, is_floating, no_warnings, owner, xp
from tinytensor.device.forks import held_by_forks
from tinytensor.device.summation import sum_over

if TYPE_CHECKING:
    from tinytensor.autograd.op import Op
    from tinytensor.autograd.tensor import Tensor

__all__ = ["Node", "Part", "backpropagate", "check_finite", "leaf"]


# ------------------------------------------------------------------------------------------------------------ nodes


# Nodes and in-place changes share one count: the larger of two numbers is newer.
next_number = itertools.count(1).__next__


class Node:
    """One recorded call of an op. A node without an ``op`` is a leaf: a tensor that requires gradients."""

    __slots__ = ("dtype", "line", "number", "op", "parents", "saved", "shape", "tensor", "value")
    value: Any  # the result of the op; only set inside ``keep_values``

    def __init__(self, op: Op | None, parents: tuple[Node | None, ...], saved: Any, shape: tuple[int, ...], dtype: DType):
        self.op = op
        self.parents = parents  # one for each input; None if the input needs no gradient
        self.saved = saved  # the values that the gradient rules need
        self.shape = shape
        self.dtype = dtype
        self.number = next_number()
        self.tensor: weakref.ref[Tensor] | None = None  # the tensor of a leaf, which receives the ``.grad``
        self.line = calling_line() if modes().detecting_anomalies and op is not None else ""

    def release(self) -> None:
        """Free the saved values and the parents. A second backward pass through this node raises an error."""
        self.parents = ()
        self.saved = None


def leaf(tensor: Tensor) -> Node:
    """Return a leaf node for a tensor that requires gradients. Raises TypeError unless the tensor is floating-point."""
    array = tensor.data
    if not is_floating(array.dtype):
        raise TypeError(f"a tensor of {array.dtype} cannot require gradients: convert it with .astype('float32') first")
    node = Node(None, (), None, array.shape, array.dtype)
    node.tensor = weakref.ref(tensor)
    return node


# --------------------------------------------------------------------------------------------------------- backward


class Part(NamedTuple):
    """A gradient that is 0 except at ``index``. The index selects no element twice."""

    index: Any
    values: Any

    def add_to(self, gradient: Any) -> None:
        """Add this part to a full gradient in place."""
        gradient[self.index] += self.values


class _Pending:
    """The gradients that have arrived at nodes but have not been propagated further.

    The newest node comes first. Its gradient is complete, because every node computed from it is newer.
    """

    def __init__(self, in_place: bool):
        self._heap: list[tuple[int, Node]] = []  # negative numbers of the nodes: the newest comes first
        self.gradients: dict[Node | None, Any] = {}  # the sum of the gradients at each node so far
        self._in_place = in_place
        self._owned: set[Node] = set()  # nodes whose gradient is not referenced elsewhere, so it may change in place

    def newest_first(self, oldest: int) -> Iterator[tuple[Node, Any, bool]]:
        """Yield each node down to the number ``oldest``, its gradient, and whether that array is unshared. Gradients may be
        added during iteration."""
        while self._heap and -self._heap[0][0] >= oldest:
            _, node = heappop(self._heap)
            yield node, self.gradients.pop(node), node in self._owned

    def add(self, node: Node, gradient: Any, fresh: bool) -> None:
        """Add a gradient to the node's sum. ``fresh`` is False if the gradient is referenced elsewhere."""
        if isinstance(gradient, Part):
            self._add_part(node, gradient)
        elif node not in self.gradients:
            self.gradients[node] = gradient
            heappush(self._heap, (-node.number, node))
            if fresh and self._in_place and isinstance(gradient, xp.ndarray) and gradient.base is None:  # not a view
                self._owned.add(node)
        elif node in self._owned:
            self.gradients[node] += gradient
        else:
            gradient = self.gradients[node] = self.gradients[node] + gradient
            if self._in_place and isinstance(gradient, xp.ndarray):
                self._owned.add(node)

    def _add_part(self, node: Node, part: Part) -> None:
        """Add a part to its elements only, so that all parts of a split tensor share one gradient array."""
        if node not in self.gradients:
            self.add(node, xp.zeros(node.shape, node.dtype), fresh=True)
        elif node not in self._owned:
            self.gradients[node] = xp.array(self.gradients[node])
        part.add_to(self.gradients[node])
        self._owned.add(node)

    def replace(self, node: Node, gradient: Any) -> None:
        """Replace the node's sum with a gradient that is not referenced elsewhere."""
        self.gradients[node] = gradient
        self._owned.add(node)


def backpropagate(
    root: Node,
    gradient: Any,
    wanted: Sequence[Node] | None = None,
    *,
    stop_at_wanted: bool = False,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> dict[Node, Any]:
    """Backpropagate ``gradient`` from ``root``. Return the gradients of the ``wanted`` nodes (None: of all leaves).

    ``gradient`` and the results are arrays, or tensors if ``create_graph`` is set. If ``stop_at_wanted`` is set, no gradient
    flows beyond a wanted node. Visited nodes are released unless ``retain_graph`` is set.
    """
    targets = None if wanted is None else set(wanted)
    oldest = 1 if wanted is None else min((node.number for node in wanted), default=root.number + 1)
    gradients: dict[Node, Any] = {}
    pending = _Pending(in_place=not create_graph)
    pending.add(root, gradient, fresh=False)
    with no_warnings(), Switched("recording", create_graph):
        detecting = modes().detecting_anomalies
        for node, g, owned in pending.newest_first(oldest):
            is_wanted = node.op is None if targets is None else node in targets
            if is_wanted:
                gradients[node] = g if create_graph or owned else g.copy()
            if node.op is None or (is_wanted and (stop_at_wanted or node.number == oldest)):
                continue
            _check_saved(node)
            for parent, contribution in zip(node.parents, _contributions(node, g, create_graph, pending)):
                if parent is not None and contribution is not None:
                    fitted = contribution if isinstance(contribution, Part) else _fit(contribution, parent, node)
                    if detecting:
                        check_finite(fitted, f"a gradient of {node.op.name!r}{node.line and f', called at {node.line},'}")
                    pending.add(parent, fitted, fresh=fitted is not g)
            if not retain_graph:
                node.release()
    return gradients


def _contributions(node: Node, g: Any, create_graph: bool, pending: _Pending) -> Sequence[Any]:
    """Return the gradient for each parent. To save a pass, a kernel may add to the first parent's sum itself. In that case that
    sum is replaced, and the gradient for this parent is None."""
    op, first = node.op, node.parents[0]
    assert op is not None
    can_add = op.adds_to_first and not create_graph and not modes().detecting_anomalies  # anomaly detection checks each part
    before = pending.gradients.get(first) if can_add else None
    if before is None or first is None:
        return op.backward(node, g, create_graph)
    total, *gradients = op.backward(node, g, create_graph, before)
    pending.replace(first, _fit(total, first, node))
    return [None, *gradients]


def _fit(gradient: Any, parent: Node, node: Node) -> Any:
    """Convert a gradient to the shape and dtype of its tensor. This alone undoes broadcasting and type promotion."""
    if getattr(gradient, "shape", None) != parent.shape:
        gradient = _unbroadcast(gradient, parent, node)
    return gradient if gradient.dtype == parent.dtype else converted(gradient, parent.dtype)


def _unbroadcast(gradient: Any, parent: Node, node: Node) -> Any:
    """Sum the gradient over the axes along which its tensor was broadcast. Raises ValueError if the shapes do not match."""
    shape: Any = getattr(gradient, "shape", None)
    extra = -1 if shape is None else len(shape) - len(parent.shape)
    pairs = [] if extra < 0 else list(zip(shape[extra:], parent.shape))
    if extra < 0 or any(have != want != 1 for have, want in pairs):
        assert node.op is not None
        returned = a_or_an(type(gradient).__name__) if shape is None else f"shape {shape}"
        raise ValueError(
            f"the gradient rule of {node.op.name!r} for {node.op.input_name(node.parents.index(parent))} of shape "
            f"{parent.shape} returned {returned}: it must return an array of that shape, or of one that it broadcasts to"
        )
    if extra:
        gradient = _summed(gradient, tuple(range(extra)), keepdims=False)
    axes = tuple([i for i, (have, want) in enumerate(pairs) if have != want])
    return _summed(gradient, axes, keepdims=True) if axes else gradient


def _summed(gradient: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    sum_up = type(gradient).sum if hasattr(gradient, "node") else sum_over
    return sum_up(gradient, axes, keepdims)


def _check_saved(node: Node) -> None:
    """Raise RuntimeError if the node's saved values were released or changed in place."""
    assert node.op is not None
    if node.saved is None:
        raise RuntimeError(
            f"backward through {node.op.name!r} a second time, but the first one freed its saved values: "
            "pass retain_graph=True to the first backward, or run the forward pass again"
        )
    check_unchanged(node, node.saved)


def check_finite(value: Any, name: str) -> None:
    """Raise FloatingPointError if a value or gradient has a NaN or infinite element. ``name`` describes it in the message."""
    value = value.values if isinstance(value, Part) else value
    array = value.data if hasattr(value, "node") else value
    if is_floating(array.dtype) and not bool(xp.isfinite(array).all()):
        problem = "NaN" if bool(xp.isnan(array).any()) else "infinite"
        raise FloatingPointError(f"{name} is {problem}: it is the first such value since detect_anomaly() was entered")


# ------------------------------------------------------------------------------------------------- changes in place


class _Change:
    """The last in-place change of a block of memory. Its number exceeds the numbers of all nodes recorded earlier."""

    __slots__ = ("memory", "number")
    latest = 0  # the number of the latest change of any memory

    def __init__(self, memory: Array):
        key = id(memory)
        self.memory = weakref.ref(memory, lambda _: _changes.pop(key, None))
        self.number = 0


_changes: dict[int, _Change] = {}  # keys: id() of the array that owns the memory
_changing = held_by_forks(threading.RLock())  # several threads of an optimizer step may record changes


def note_change(array: Array) -> None:
    """Record that the memory of an array, which views share, was changed in place.

    Graphs that saved this memory earlier then refuse to run backward.
    """
    memory = owner(array)
    with _changing:
        change = _changes.get(id(memory))
        if change is None:
            change = _changes[id(memory)] = _Change(memory)
        change.number = _Change.latest = next_number()


def check_unchanged(node: Node, saved: Any) -> None:
    """Raise RuntimeError if a saved array was changed in place after the node was recorded."""
    if node.number > _Change.latest:  # usual in training
        return
    for array in arrays_in(saved):
        change = _changes.get(id(owner(array)))
        if change is not None and change.number > node.number:
            assert node.op is not None
            raise RuntimeError(
                f"backward through {node.op.name!r}, but values that it used were changed in place since then (by an "
                "optimizer's step, assign, load_state_dict or an initialiser): run the forward pass again"
            )


if not TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
