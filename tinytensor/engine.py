"""Reverse-mode automatic differentiation: what is recorded, and how gradients flow back.

Two ideas carry it:

* A ``Node`` is one recorded call of an op. Nodes point at the nodes they came from and hold arrays, never tensors (a leaf
  knows its own by a weak reference), so the graph has no reference cycles: it is freed the moment the last tensor that needs
  it goes away.
* Every node gets the next number, so a node's number is larger than those of all its ancestors. Backward therefore is a
  heap that always pops the largest number: no sort, no recursion.

What an op is, and where its gradient rules come from, stands in op.py.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ContextDecorator, ExitStack, contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from tinytensor.backend import BackendError, DType, is_floating, owner, quiet, xp
from tinytensor.summation import sum_over

if TYPE_CHECKING:
    from tinytensor.backend import Array
    from tinytensor.op import Op
    from tinytensor.tensor import Tensor
    from tinytensor.trace import Tape


# ------------------------------------------------------------------------------------------------------------ modes


def _full_precision_everywhere() -> bool:
    value = os.environ.get("TINYTENSOR_TF32", "") or "1"
    if value not in ("0", "1"):
        raise BackendError(f"TINYTENSOR_TF32={value!r} is neither '1' (the default) nor '0' (products in full float32)")
    return value == "0"


class _Modes(threading.local):
    """Switches that hold for one thread."""

    recording = True
    detecting_anomalies = False
    quiet = False  # inside ``quietly``
    tape: Tape | None = None  # what ``trace`` writes the calls of ops to
    full_precision = _full_precision_everywhere()


modes = _Modes()


class _mode(ContextDecorator):
    """A context, or decorator, in which one of the switches has another value. A class, as it is entered at each op or token
    and a generator takes three times as long."""

    __slots__ = ("before", "name", "value")

    def __init__(self, name: str, value: Any):
        self.name = name
        self.value = value
        self.before: list[Any] = []  # a list, as one context may be entered inside itself

    def _recreate_cm(self) -> _mode:
        return _mode(self.name, self.value)  # a decorated function may call itself, or run in several threads

    def __call__(self, function: Any) -> Any:
        """The function with this mode inside. A generator has it while it runs, and its caller not between two items."""
        return self._around_items(function) if inspect.isgeneratorfunction(function) else super().__call__(function)

    def _around_items(self, function: Any) -> Any:
        @functools.wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            items = function(*args, **kwargs)
            resume, given = items.send, None
            while True:
                with self._recreate_cm():
                    try:
                        item = resume(given)
                    except StopIteration as end:
                        return end.value
                try:
                    resume, given = items.send, (yield item)
                except BaseException as error:  # thrown in by the caller, or GeneratorExit as it closes this
                    resume, given = items.throw, error

        return generate

    def __enter__(self) -> None:
        self.before.append(getattr(modes, self.name))
        setattr(modes, self.name, self.value)

    def __exit__(self, *error: object) -> None:
        setattr(modes, self.name, self.before.pop())


def no_grad() -> Any:
    """A context (or decorator) in which this thread records nothing: results do not require gradients."""
    return _mode("recording", False)


def enable_grad() -> Any:
    """A context (or decorator) that records again inside ``no_grad``."""
    return _mode("recording", True)


def detect_anomaly() -> Any:
    """A context in which the first NaN or infinity, in an op's output or in a gradient, raises FloatingPointError.

    The error names the op and the line that called it. Every result is checked, so this is slow: use it to find a
    fault, not to train.
    """
    return _mode("detecting_anomalies", True)


def full_precision() -> Any:
    """A context in which this thread's float32 products are computed in float32.

    On a GPU they are by default computed in TF32, as the field does to train: several times as fast, with 10 bits of the
    factors' mantissas in place of 23, added up in float32. TINYTENSOR_TF32=0 has the effect of this context everywhere. On
    NumPy, and for other dtypes, there is no difference.
    """
    return _mode("full_precision", True)


@contextmanager
def quietly() -> Iterator[None]:
    """A context without floating-point warnings, for many ops together: entering it costs as much as a small op."""
    with quiet(), _mode("quiet", True):
        yield


def taping(tape: Tape | None) -> Any:
    """A context in which this thread's calls of ops are written to a tape, or none."""
    return _mode("tape", tape)


def leaving(values: Any) -> Any:
    """Arrays or tensors, one or a tuple of them, whose values are about to leave the ops. Raises TypeError where a function
    that is being traced computed them."""
    if modes.tape is not None:
        modes.tape.refuse_values_of(values)
    return values


def same_modes() -> Callable[[], Any]:
    """A maker of contexts in which another thread has the modes that this thread has now."""
    values = {name: getattr(modes, name) for name in ("recording", "detecting_anomalies", "full_precision")}

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for name, value in values.items():
                stack.enter_context(_mode(name, value))
            yield

    return entered


# ------------------------------------------------------------------------------------------------------------ nodes


class Node:
    """One recorded call of an op, or, where ``op`` is None, a leaf: a tensor that a user asked gradients for."""

    __slots__ = ("dtype", "line", "number", "op", "parents", "saved", "shape", "tensor")
    _counter = itertools.count(1)

    def __init__(self, op: Op | None, parents: tuple[Node | None, ...], saved: Any, shape: tuple[int, ...], dtype: DType):
        self.op = op
        self.parents = parents  # in the order of the op's inputs; None for an input that needs no gradient
        self.saved = saved  # what the rules of those inputs need
        self.shape = shape
        self.dtype = dtype
        self.number = next(Node._counter)
        self.tensor: weakref.ref[Tensor] | None = None  # leaves only: whose ``.grad`` it is; weak, so that no cycle arises
        self.line = calling_line() if modes.detecting_anomalies and op is not None else ""

    @classmethod
    def next_number(cls) -> int:
        """A number that all nodes made from now on are above."""
        return next(cls._counter)

    def release(self) -> None:
        """Forget what was saved and where it came from; a second backward through here is then an error."""
        self.parents = ()
        self.saved = None


def leaf(tensor: Tensor) -> Node:
    """A node for a tensor that a user asks gradients for. Raises TypeError unless it is floating-point."""
    array = tensor.data
    if not is_floating(array.dtype):
        raise TypeError(f"a tensor of {array.dtype} cannot require gradients: convert it with .astype('float32') first")
    node = Node(None, (), None, array.shape, array.dtype)
    node.tensor = weakref.ref(tensor)
    return node


# ------------------------------------------------------------------------------------------------- changes in place


class _Change:
    """When some memory was last changed in place: after all nodes of lower numbers were recorded."""

    __slots__ = ("memory", "number")
    latest = 0  # of all

    def __init__(self, memory: Array):
        key = id(memory)
        self.memory = weakref.ref(memory, lambda _: _changes.pop(key, None))
        self.number = 0


_changes: dict[int, _Change] = {}  # by the identity of the array whose memory it is
_changing = threading.Lock()  # the threads of an optimizer's step note their changes at once


def note_change(array: Array) -> None:
    """Note that the memory of an array, and so what every view of it shows, was changed in place: a graph recorded before
    refuses to run backward through what it saved there."""
    memory = owner(array)
    with _changing:
        change = _changes.get(id(memory))
        if change is None:
            change = _changes[id(memory)] = _Change(memory)
        change.number = _Change.latest = Node.next_number()


def check_unchanged(node: Node, saved: Any) -> None:
    """Raises RuntimeError where an array of those saved was changed in place since the node was recorded."""
    if node.number > _Change.latest:  # as all nodes of a training step are
        return
    for array in arrays_in(saved):
        change = _changes.get(id(owner(array)))
        if change is not None and change.number > node.number:
            assert node.op is not None
            raise RuntimeError(
                f"backward through {node.op.name!r}, but values that it used were changed in place since (by an optimizer's "
                "step, assign, load_state_dict or an initialiser): run the forward pass again"
            )


_PLAIN = {type(None), bool, int, float, str}


def arrays_in(value: Any) -> list[Array]:
    """The arrays in a value and in the dicts, tuples and lists in it."""
    found, waiting = [], [value]
    for value in waiting:  # which grows
        kind = type(value)
        if kind is xp.ndarray:
            found.append(value)
        elif kind in _PLAIN:  # what most values are, and quick to know
            continue
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (tuple, list)):
            waiting.extend(value)
    return found


# --------------------------------------------------------------------------------------------------------- backward


class Part(NamedTuple):
    """A gradient that is zero but for the elements at ``index``, which selects none of them twice."""

    index: Any
    values: Any


class _Pending:
    """The gradients on their way, by node. ``pop`` gives the newest node, whose gradient then is complete: everything that
    was computed from it is newer."""

    def __init__(self, in_place: bool):
        self._heap: list[int] = []
        self._nodes: dict[int, Node] = {}
        self._gradients: dict[int, Any] = {}
        self._in_place = in_place
        self._owned: set[int] = set()  # whose gradient nobody else holds, so that it may be added to in place

    def newest(self) -> int:
        """The number of the node that ``pop`` would give; 0 when there is none."""
        return -self._heap[0] if self._heap else 0

    def add(self, node: Node, gradient: Any, fresh: bool) -> None:
        """Let a gradient flow to the node, added to what has come before. ``fresh``: it was just made for this."""
        n = node.number
        if isinstance(gradient, Part):
            self._add_part(node, gradient)
        elif n not in self._gradients:
            self._put(node, gradient)
            fresh = fresh and isinstance(gradient, xp.ndarray) and gradient.base is None  # a view belongs to another
            if fresh and self._in_place:
                self._owned.add(n)
        elif n in self._owned:
            self._gradients[n] += gradient
        else:
            self._gradients[n] = self._gradients[n] + gradient
            if self._in_place and isinstance(self._gradients[n], xp.ndarray):
                self._owned.add(n)

    def _put(self, node: Node, gradient: Any) -> None:
        self._gradients[node.number], self._nodes[node.number] = gradient, node
        heappush(self._heap, -node.number)

    def _add_part(self, node: Node, part: Part) -> None:
        """Add a part to its elements alone: pieces cut from one tensor then share one array of gradients."""
        n = node.number
        if n in self._gradients:
            if n not in self._owned:
                self._gradients[n] = xp.array(self._gradients[n])
            self._gradients[n][part.index] += part.values
        else:
            self._put(node, xp.zeros(node.shape, node.dtype))
            self._gradients[n][part.index] = part.values
        self._owned.add(n)

    def pop(self) -> tuple[Node, Any, bool]:
        """The newest node, its gradient, and whether nobody else holds that."""
        n = -heappop(self._heap)
        return self._nodes.pop(n), self._gradients.pop(n), n in self._owned


def backpropagate(
    root: Node,
    gradient: Any,
    wanted: Sequence[Node] | None = None,
    *,
    ends: bool = False,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> dict[Node, Any]:
    """Send ``gradient`` back from ``root``; return the gradients that arrive at ``wanted`` (by default, at every leaf).

    ``gradient`` is an array, or a tensor with ``create_graph``; so are the results. With ``ends`` nothing flows on past a
    wanted node. Nothing outside is touched, but that each node passed is released unless ``retain_graph``.
    """
    targets = None if wanted is None else set(wanted)
    oldest = 1 if wanted is None else min((node.number for node in wanted), default=root.number + 1)
    found: dict[Node, Any] = {}
    pending = _Pending(in_place=not create_graph)
    pending.add(root, gradient, fresh=False)
    with quietly(), _mode("recording", create_graph):
        while pending.newest() >= oldest:
            node, g, owned = pending.pop()
            is_wanted = node.op is None if targets is None else node in targets
            if is_wanted:
                found[node] = g if create_graph or owned else g.copy()
            if node.op is None or (is_wanted and (ends or node.number == oldest)):
                continue
            _check_node(node)
            for parent, contribution in zip(node.parents, node.op.backward(node, g, create_graph)):
                if parent is not None and contribution is not None:
                    fitted = contribution if isinstance(contribution, Part) else _fit(contribution, parent, node)
                    if modes.detecting_anomalies:
                        check_finite(fitted, f"a gradient of {node.op.name!r}, called at {node.line},")
                    pending.add(parent, fitted, fresh=contribution is not g)
            if not retain_graph:
                node.release()
    return found


def _fit(gradient: Any, parent: Node, node: Node) -> Any:
    """Give a gradient of ``node`` its tensor's shape and dtype: the one place that undoes broadcasting and type promotion."""
    if getattr(gradient, "shape", None) != parent.shape:
        gradient = _unbroadcast(gradient, parent, node)
    return gradient if gradient.dtype == parent.dtype else gradient.astype(parent.dtype)


def _unbroadcast(gradient: Any, parent: Node, node: Node) -> Any:
    """A gradient summed over the axes along which its tensor was broadcast. Raises ValueError where that is not its shape."""
    shape: Any = getattr(gradient, "shape", None)
    extra = -1 if shape is None else len(shape) - len(parent.shape)
    pairs = [] if extra < 0 else list(zip(shape[extra:], parent.shape))
    if extra < 0 or any(have != want != 1 for have, want in pairs):
        assert node.op is not None
        returned = f"a {type(gradient).__name__}" if shape is None else f"shape {shape}"
        raise ValueError(
            f"the gradient rule of {node.op.name!r} for {node.op.input_name(node.parents.index(parent))} of shape "
            f"{parent.shape} returned {returned}: it must return an array that broadcasting could have made of that shape"
        )
    if extra:
        gradient = _summed(gradient, tuple(range(extra)), keepdims=False)
    axes = tuple([i for i, (have, want) in enumerate(pairs) if have != want])
    return _summed(gradient, axes, keepdims=True) if axes else gradient


def _summed(gradient: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    sum_up = type(gradient).sum if hasattr(gradient, "node") else sum_over
    return sum_up(gradient, axes, keepdims)


def _check_node(node: Node) -> None:
    assert node.op is not None
    if node.saved is None:
        raise RuntimeError(
            f"backward through {node.op.name!r} a second time, but its saved values were freed by the first: "
            "pass retain_graph=True to the first backward, or run the forward pass again"
        )
    check_unchanged(node, node.saved)


def check_finite(value: Any, what: str) -> None:
    value = value.values if isinstance(value, Part) else value
    array = value.data if hasattr(value, "node") else value
    if is_floating(array.dtype) and not bool(xp.isfinite(array).all()):
        kind = "NaN" if bool(xp.isnan(array).any()) else "infinite"
        raise FloatingPointError(f"{what} is {kind}: the first such value since detect_anomaly() was entered")


def calling_line() -> str:
    """The line of the user's code that led here: the innermost one outside this package."""
    package = os.path.dirname(__file__) + os.sep
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(package)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown line"
