"""The Tensor: an array and the node that records how it was computed.

Operators and methods are ops. Ops import this file, so ``ops/methods.py`` adds them to the class.

``x += y`` creates a new tensor, and ``x[i] = y`` gives x a changed copy of its array, so neither affects tensors that share
memory with x. A leaf that requires gradients is the exception: both change it in place, as optimizers do, but only under
``no_grad``. Otherwise only these write into shared memory: ``Parameter.assign``, ``load_state_dict``, initializers, optimizers,
``clip_grad_norm``, and code that changes ``.data`` or an array that shares its memory (from ``.numpy()``, ``np.asarray(x)`` or
DLPack). ``backward`` refuses saved values that were changed, but cannot detect changes by such code.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tinytensor.autograd import engine
from tinytensor.autograd.inputs import as_array, check_dtype, check_not_masked
from tinytensor.autograd.modes import enable_grad, modes
from tinytensor.autograd.replaying import Replacements, current_step, read_values, refuse_in_trace
from tinytensor.common.arguments import checked, shown
from tinytensor.common.missing import Count, missing
from tinytensor.device.backend import Array, DType, default_dtype, host, is_floating, no_warnings, to_numpy, xp
from tinytensor.device.forks import free_in_forks

if TYPE_CHECKING:
    from tinytensor.ops.methods import Methods
else:
    Methods = object


class Tensor(Methods):
    """An array that records how it was computed. Create one with ``tt.tensor``.

    The operators ``+ - * / // % ** @``, comparisons and ``& | ^ ~`` take tensors and numbers, and broadcast. Convert a NumPy
    array to a tensor first.

    As in NumPy, ``x[index]`` takes integers, slices, ``...``, None, and arrays, lists or tensors of integers or booleans.
    Gradients flow through it. ``len(x)`` is the length of the first axis, and iteration runs along it. For a tensor of one
    element, ``float(x)``, ``int(x)``, ``bool(x)`` and ``f"{x:.4f}"`` use its value.

    ``x[index] = y`` changes only x, never a tensor that shared its memory. It raises RuntimeError if x or y requires gradients,
    because they would be lost: build the result with ``tt.where`` or ``tt.concatenate``.

    >>> x = tt.arange(12).reshape(3, 4)
    >>> x[1], x[:, -1], x[x > 9]
    (tensor([4, 5, 6, 7]), tensor([ 3,  7, 11]), tensor([10, 11]))
    >>> x[0] = 5
    >>> x[0].tolist(), len(x)
    ([5, 5, 5, 5], 3)
    """

    __slots__ = ("__weakref__", "_data", "_grad", "node")
    __array_priority__ = 1000  # makes CuPy delegate `array + tensor` to Tensor.__radd__, whose error suggests a fix

    _data: Array
    node: engine.Node | None
    _grad: Tensor | None
    _repr_html_: ClassVar[Callable[[Any], str]]  # for notebooks; set by display/

    @checked
    def __init__(self, data: Any, dtype: DType | None = None, requires_grad: bool = False):
        self._data = as_array(data, dtype)
        self._grad = None
        self.node = engine.leaf(self) if requires_grad else None

    @classmethod
    def _wrap(cls, array: Array, node: engine.Node | None = None) -> Tensor:
        """Wrap an array in a tensor without copying it. ``node`` records the call that computed it, if any."""
        tensor = object.__new__(Tensor)
        tensor._data = array
        tensor.node = node
        tensor._grad = None
        return tensor

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing("Tensor", name, self)

    # ------------------------------------------------------------------------------------------------- what it is

    @property
    def data(self) -> Array:
        """The array of values. Assign another array, or a tensor to share its memory."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        array = value._data if isinstance(value, Tensor) else value
        if not isinstance(array, xp.ndarray):
            raise TypeError(
                f"x.data must be a tensor or an array, got {shown(value)}: change values with parameter.assign(...)"
            )
        check_not_masked(array)
        check_dtype(array.dtype)
        if self.node is not None and array.shape != self.shape:
            raise ValueError(
                f"x.data of shape {array.shape} does not fit a tensor of shape {self.shape} that requires gradients"
            )
        if self.node is not None and array.dtype != self.dtype:
            engine.leaf(Tensor._wrap(array))  # raises for integer data
            self.requires_grad = False  # raises unless the tensor is a leaf
            self._data, self._grad = array, None
            self.requires_grad = True
        self._data = array
        Replacements.note()

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self._data.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return Count(self._data.size)

    @property
    def dtype(self) -> DType:
        """The NumPy dtype of the elements."""
        return self._data.dtype

    @property
    def requires_grad(self) -> bool:
        """True if gradients flow to or through this tensor."""
        return self.node is not None

    @requires_grad.setter
    @checked
    def requires_grad(self, value: bool) -> None:
        if not isinstance(value, (bool, host.bool_)):
            raise TypeError(f"requires_grad must be True or False, got {shown(value)}")
        if self.node is not None and self.node.op is not None:
            raise RuntimeError(f"this tensor was computed by {self.node.op.name!r}: detach() gives one without a history")
        if value != self.requires_grad:
            self.node = engine.leaf(self) if value else None

    @property
    def grad(self) -> Tensor | None:
        """The gradient that ``backward`` has accumulated in a leaf, or None."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and (self.node is None or self.node.op is not None):
            raise RuntimeError("only a leaf (made by tt.tensor(..., requires_grad=True), or a Parameter) has a gradient")
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"a gradient must be a tensor, got {shown(value)}: make it one with tt.tensor(...)")
        if value is not None and (value.shape != self.shape or value.dtype != self.dtype):
            raise ValueError(f"a gradient of {value.dtype}{value.shape} does not fit a tensor of {self.dtype}{self.shape}")
        current_step().before_gradient(self, is_set=True)
        self._grad = value

    # ------------------------------------------------------------------------------------------------- its values

    def numpy(self) -> host.ndarray[Any, Any]:
        """Return the values as a NumPy array. On the CPU the array shares the tensor's memory. From a GPU it is a copy.

        Changing the array in place changes the tensor. ``backward`` cannot detect such changes and would return wrong
        gradients, so change a ``.copy()`` instead.
        """
        return to_numpy(read_values(self.data))

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self.size != 1:
            raise ValueError(f"item() needs a tensor of one element, not of shape {self.shape}")
        return read_values(self.data).item()

    def tolist(self) -> Any:
        """Return the values as nested Python lists."""
        return self.numpy().tolist()

    def detach(self) -> Tensor:
        """Return a tensor that shares the values but has no history: no gradients flow through it."""
        return Tensor._wrap(self.data)

    @checked
    def backward(self, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False) -> None:
        """Add the gradient of this tensor, times ``gradient``, to the ``.grad`` of every leaf.

        Omit ``gradient`` for a tensor of one element. The graph is freed unless ``retain_graph`` is set (default:
        ``create_graph``). If ``create_graph`` is set, the gradients are differentiable.
        """
        node, g = start_of_backward(self, gradient, create_graph)
        retain = create_graph if retain_graph is None else retain_graph
        accumulate(engine.backpropagate(node, g, retain_graph=retain, create_graph=create_graph))

    # ----------------------------------------------------------------------------------- operators and protocols

    def __repr__(self) -> str:
        values = host.array2string(to_numpy(self.data), separator=", ", prefix="tensor(", precision=4, threshold=100)
        dtype = "" if self.dtype == default_dtype or self.dtype.kind in "ib" else f", dtype={self.dtype}"
        history = f", op={self.node.op.name}" if self.node is not None and self.node.op is not None else ""
        return f"tensor({values}{dtype}{history or ', requires_grad=True' * self.requires_grad})"

    def __format__(self, spec: str) -> str:
        """Format a one-element tensor like a Python number, as in ``f"{loss:.4f}"``."""
        if spec and self.size != 1:
            raise TypeError(f"a format like {spec!r} needs a tensor of one element, not of shape {self.shape}: use .tolist()")
        return format(self.item(), spec) if spec else repr(self)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("a tensor with no dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"the truth value of a tensor of shape {self.shape} is ambiguous: use .any() or .all()")
        return bool(read_values(self.data))

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.size != 1:
            raise TypeError("only a tensor of one integer can be used as an index")
        return int(self.item())

    def __array__(self, dtype: DType = None, copy: bool | None = None) -> Any:
        """Let ``np.asarray(x)`` share the tensor's memory, and ``np.array(x)`` copy it.

        Raises TypeError if the tensor requires gradients or is on a GPU.
        """
        if xp is not host:
            raise TypeError("a tensor on a GPU is not copied to a NumPy array automatically: call .numpy()")
        if self.node is not None:
            raise TypeError("a NumPy array of a tensor that requires gradients would lose them: call .detach() or .numpy()")
        return host.array(read_values(self.data), dtype=dtype, copy=copy)

    def __dlpack__(self, **settings: Any) -> Any:
        """Let ``np.from_dlpack(x)``, ``torch.from_dlpack(x)`` and others share the memory, on a GPU too.

        Raises BufferError, as DLPack requires, if the tensor requires gradients or if an axis has a negative stride, which
        crashes PyTorch.
        """
        if self.node is not None:
            raise BufferError("another library would lose the gradients that this tensor requires: pass x.detach()")
        if any(stride < 0 for stride in self.data.strides):
            raise BufferError("an axis of this tensor runs backward in memory, which not all libraries know: pass x.copy()")
        return read_values(self.data).__dlpack__(**settings)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device type and the device number."""
        return self.data.__dlpack_device__()

    __hash__ = object.__hash__

    def __getstate__(self) -> Any:
        """Pickle the values and the attributes of a subclass, without the gradient and the history."""
        return self.numpy(), self.requires_grad, _attributes(self)

    def __setstate__(self, state: Any) -> None:
        array, requires_grad, attributes = state
        self._data, self._grad, self.node = as_array(array), None, None
        self.requires_grad = requires_grad
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __copy__(self) -> Tensor:
        """Return a new leaf for a leaf or Parameter, or ``x.copy()`` for a computed tensor."""
        is_leaf = self.node is not None and self.node.op is None
        if not is_leaf and type(self) is Tensor:
            return self.copy()
        duplicate = object.__new__(type(self))
        duplicate.__setstate__((self.data, self.requires_grad, _attributes(self)))
        return duplicate

    def __deepcopy__(self, memo: Any) -> Tensor:
        """Return a deep copy. Raises RuntimeError for a tensor with a history."""
        if self.node is not None and self.node.op is not None:
            raise RuntimeError(
                f"this tensor was computed by {self.node.op.name!r}, and a deep copy would lose its history: "
                "use copy() to keep it, or detach() first"
            )
        duplicate = memo[id(self)] = object.__new__(type(self))  # before the attributes, because they may refer to it
        duplicate.__setstate__((self.data, self.requires_grad, copy.deepcopy(_attributes(self), memo)))
        return duplicate


wrap = Tensor._wrap


def _attributes(tensor: Tensor) -> dict[str, Any]:
    """Return the attributes that a subclass of Tensor stores in its ``__dict__`` or in slots."""
    classes = [base for base in type(tensor).__mro__ if base is not Tensor]
    slots = [name for base in classes for name, value in vars(base).items() if inspect.ismemberdescriptor(value)]
    return {name: getattr(tensor, name) for name in [*getattr(tensor, "__dict__", ()), *slots] if hasattr(tensor, name)}


def start_of_backward(output: Tensor, gradient: Tensor | None, create_graph: bool) -> tuple[engine.Node, Any]:
    """Return the node at which the backward pass starts and its gradient (a tensor if ``create_graph`` is set).

    Raises RuntimeError if no graph was recorded or inside a traced function. Raises ValueError if ``gradient`` has the wrong
    shape, or is missing although ``output`` has several elements.
    """
    refuse_in_trace("a function that is being traced cannot compute gradients: compute them outside of it")
    if output.node is None:
        raise RuntimeError(
            "this tensor has no gradients to compute: nothing it was computed from requires them (requires_grad=True), "
            "or it was computed under no_grad"
        )
    if gradient is None:
        if output.size != 1:
            raise ValueError(f"backward from shape {output.shape} needs a gradient of that shape: sum it first, or pass one")
        gradient = Tensor._wrap(xp.ones(output.shape, output.dtype))
    if gradient._data.shape != output._data.shape:
        raise ValueError(f"the gradient has shape {gradient.shape}, but its tensor has shape {output.shape}")
    if gradient._data.dtype != output._data.dtype:
        gradient = gradient.astype(output.dtype)
    return output.node, gradient if create_graph else gradient._data


_accumulating = free_in_forks(threading.RLock())  # several threads may run backward into the same leaves


def add_gradients(total: dict[engine.Node, Any], gradients: Mapping[engine.Node, Any]) -> None:
    """Add gradients to ``total`` in place."""
    with no_warnings():
        for leaf, gradient in gradients.items():
            if leaf in total:
                total[leaf] += gradient
            else:
                total[leaf] = gradient


def accumulate(gradients: Mapping[engine.Node, Any]) -> None:
    """Add gradients (tensors, or arrays that nothing else references) to the ``.grad`` of their leaves."""
    with _accumulating:
        if (collected := modes().gradients) is not None:
            return add_gradients(collected, gradients)
        for leaf, value in gradients.items():
            tensor = None if leaf.tensor is None else leaf.tensor()
            if tensor is None or tensor.node is not leaf:  # the tensor was freed, frozen or converted meanwhile
                continue
            current_step().before_gradient(tensor, is_set=False)
            if tensor._grad is None:
                tensor._grad = with_own_memory(value)
            else:
                with enable_grad(), no_warnings():
                    old = tensor._grad
                    tensor._grad = old + value if isinstance(value, Tensor) else Tensor._wrap(old._data + value)


def with_own_memory(gradient: Any) -> Tensor:
    """Return a gradient as a tensor that shares memory with no other object.

    Arrays have no other references. A tensor (a recorded gradient) is copied, because it may share memory with another gradient
    or with the tensor passed to ``backward``.
    """
    if isinstance(gradient, Tensor):
        return Tensor._wrap(gradient.data.copy(), gradient.node)
    return Tensor._wrap(xp.asarray(gradient))


def is_differentiable(x: object) -> bool:
    """Return True for a floating-point tensor."""
    return isinstance(x, Tensor) and is_floating(x.dtype)
