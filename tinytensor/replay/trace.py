"""Tracing: a function of tensors runs once, and the kernels that it calls are written down as a program. Later calls run only
these kernels.

This is how text is generated token by token. The kernels are then so small that all the rest of an ordinary call (modules,
checks, a tensor for each array) takes longer than the kernels themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from tinytensor import kernels
from tinytensor.autograd.fused import FusedOp
from tinytensor.autograd.inputs import PLAIN, bind
from tinytensor.autograd.modes import modes, no_grad
from tinytensor.autograd.op import Function, Op
from tinytensor.autograd.replaying import Replacements, is_traced, tracing
from tinytensor.autograd.tensor import Tensor, wrap
from tinytensor.common.arguments import checked, shown
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import bool_dtype, default_dtype, host, no_warnings, xp
from tinytensor.kernels.steps import Step
from tinytensor.nn.hooks import any_hooks


def trace(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A faster version of ``function``, for many calls. The function takes tensors and returns one. No gradients flow.

    For each new combination of input shapes and dtypes, the first call runs the function and writes down which ops it calls
    with which arguments. Later calls only run the kernels of those ops. Everything else happens once: checks of shapes,
    ``if``s, a module's mode, and what is computed from Python numbers. Only these may change from call to call: the input
    tensors, arrays that are changed in place (such as parameters; but ``x[i] = y`` gives a tensor a new array), and objects
    that an ``opaque`` function uses (such as a cache). Where a module gets, loses or replaces a parameter, buffer or part, or a
    tensor's ``.data`` is set, the function runs again.

    Compiled kernels may join the steps of a long program to one: its results then differ by rounding from the function's.

    Raises TypeError if the values of a computed tensor are used outside of ops (``.numpy()``, ``.item()``, ``if x > 0``,
    ``tt.tensor(x)``, ``x[i] = y``), if no op uses an input, and if an op gets an array that belongs to no tensor. Raises
    RuntimeError if random numbers are drawn or gradients are computed. In all these cases later calls would repeat the values
    of the first one. ``.data`` is not checked: what is computed from it without ops stays that of the first call.

    >>> fast = tt.trace(lambda x: (x * 2).sum())
    >>> fast(tt.tensor([1.0, 2.0])), fast(tt.tensor([3.0, 4.0]))
    (tensor(6.), tensor(14.))
    """
    if not callable(function):
        raise TypeError(f"trace: function must be a function, not {shown(function)} (a matrix has the trace diagonal(x).sum())")
    known: tuple[int, dict[Any, Program]] = (0, {})  # the latest replacement before these programs were written down

    @functools.wraps(function)
    def traced(*inputs: Tensor) -> Tensor:
        if not all(isinstance(x, Tensor) for x in inputs):
            raise TypeError("a traced function takes tensors: make numbers and arrays tensors with tt.tensor(...)")
        # The ops are checked, another trace needs them, or hooks are to be called.
        if modes().detecting_anomalies or is_traced() or any_hooks():
            with no_grad():
                return function(*inputs)
        nonlocal known
        latest, programs = known
        if latest != Replacements.latest:
            latest, programs = known = Replacements.latest, {}
        kind = tuple([(x.data.shape, x.data.dtype) for x in inputs])
        with no_grad(), no_warnings():
            if kind in programs:
                return wrap(programs[kind].run([x.data for x in inputs]))
            inputs = tuple([wrap(x.data[...]) for x in inputs])  # new array objects, so that each input has its own id()
            tracer = Tracer(inputs)
            with tracing(tracer):
                out = function(*inputs)
            programs[kind] = tracer.program(out)
        return out

    return traced


class Program(NamedTuple):
    """A traced program: steps without branches. Each value has a numbered slot: first the inputs, then all others."""

    steps: list[Step]
    known: list[Any]  # the slots after the inputs: constants, and None for what the steps compute
    result: int

    def run(self, inputs: Sequence[Any]) -> Any:
        """The result for these input arrays."""
        values, array = [*inputs, *self.known], xp.ndarray
        for _, kernel, arguments, is_fused, result in self.steps:
            out = kernel(*[values[i] for i in arguments])
            if is_fused:
                out = out[0]
            values[result] = out if type(out) is array else xp.asarray(out)
        return values[self.result]


class Tracer:
    """Writes down what a function does while it runs: every op passes its call on to ``call``."""

    def __init__(self, inputs: Sequence[Tensor]):
        self._values: list[Any] = []  # the value in each slot; all are kept, so that no id() is used again
        self._slots: dict[int, int] = {}  # the slot of a value, by its id()
        self._steps: list[Step] = []
        self._computed = {self._add(x.data) for x in inputs}
        self._num_inputs = len(self._values)

    def call(self, op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Call the op, and write down how to do it again."""
        with tracing(None):  # ops that this op calls are not written down
            out = op(*args, **settings)
        arguments = bind(op, args, settings)
        if not isinstance(out, Tensor):  # the op was called with arrays
            for value in arguments:
                self._refuse_arrays(value)
            return out
        name, kernel, is_fused = _name_for_kernels(op), op.forward, False
        if not _is_plain(op, arguments, out):
            if op.several:
                arguments = [*arguments[0], *arguments[1:]]
            name, kernel = "", _general(op, arguments, out.shape)
        elif isinstance(op, FusedOp):
            kernel, arguments, is_fused = op.kernel_forward, [op.none_needed, *arguments], True
        self.write(name, kernel, arguments, out, is_fused)
        return out

    def write(
        self, name: str, kernel: Callable[..., Any], arguments: Sequence[Any], out: Tensor, is_fused: bool = False
    ) -> None:
        """Write down that the kernel, called with these arguments, returns the array of ``out``."""
        slots = tuple([self.slot(x) for x in arguments])
        self._computed.add(self._add(out.data))
        self._steps.append(Step(name, kernel, slots, is_fused, self._slots[id(out.data)]))

    def write_check(self, check: Callable[..., None], arguments: Sequence[Any]) -> None:
        """Write down that this check is called with these arguments."""
        nothing = wrap(xp.zeros(0))

        def kernel(*values: Any) -> Any:
            check(*values)
            return nothing.data

        self.write("", kernel, arguments, nothing)

    def program(self, out: Tensor) -> Program:
        """The program that computes ``out``: everything that was written down."""
        if not isinstance(out, Tensor):
            raise TypeError(f"a traced function must return one tensor, not {a_or_an(type(out).__name__)}")
        result = self.slot(out)
        used = {slot for step in self._steps for slot in step.arguments} | {result}
        unread = [slot for slot in range(self._num_inputs) if slot not in used]
        if unread:
            raise TypeError(
                f"trace cannot see how input {unread[0]} is used: no op takes it (perhaps an op takes a copy that trace does "
                "not know)"
            )
        known = [None if slot in self._computed else value for slot, value in enumerate(self._values)]
        steps = kernels.fuse(self._steps, self._values, self._num_inputs, result)
        return Program(steps, known[self._num_inputs :], result)

    def refuse_values_of(self, value: Any) -> None:
        """Raise TypeError if this array or tensor is an input or was computed by a step, or if it contains such an array.

        This is called where its values are about to be read outside of ops.
        """
        array = value.data if isinstance(value, Tensor) else value
        if self._slots.get(id(array)) in self._computed:
            raise TypeError(
                f"trace cannot follow the values of a tensor of shape {array.shape} out of the ops (into a number, a NumPy "
                "array, an if, tt.tensor(x) or x[i] = y): later calls would repeat the values of the first. Use ops, such as "
                "x.copy() or tt.where, or declare the function that reads the values with tt.opaque"
            )
        for part in parts_of(value):
            self.refuse_values_of(part)

    def slot(self, value: Any) -> int:
        """The number of a value, which is a constant if it is new. Raises TypeError for an array that belongs to no tensor."""
        if isinstance(value, Tensor):
            value = value.data
        elif type(value) not in PLAIN and id(value) not in self._slots:
            self._refuse_arrays(value)
            self.refuse_values_of(value)
        return self._slots[id(value)] if id(value) in self._slots else self._add(value)

    def _refuse_arrays(self, value: Any) -> None:
        """Raise TypeError for an array that belongs to no tensor: it may have been computed from an input without ops."""
        if isinstance(value, (xp.ndarray, host.ndarray)):
            raise TypeError(
                f"trace cannot see where an array of shape {value.shape} comes from: use ops on tensors (without arrays as "
                "indices), or declare the function that uses the array with tt.opaque"
            )
        for part in parts_of(value):
            self._refuse_arrays(part)

    def _add(self, value: Any) -> int:
        self._values.append(value)
        self._slots[id(value)] = len(self._values) - 1
        return len(self._values) - 1


def _name_for_kernels(function: Any) -> str:
    """Return the name of an op or opaque function. A user's may have the name of one of ours, so kernels must not know it."""
    is_ours = str(getattr(function, "__module__", "")).startswith("tinytensor.")
    return getattr(function, "name", function.__name__) if is_ours else ""


def parts_of(value: Any) -> Sequence[Any]:
    """The values inside of an argument of an op or an opaque function."""
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, (tuple, list)) else ()


def _is_plain(op: Op, arguments: Sequence[Any], out: Tensor) -> bool:
    """Whether the op did nothing but call its kernel: nothing was converted before or after it, and no argument is a boolean
    array, which might decide how many elements the result has."""
    if op.several or out.dtype not in (default_dtype, bool_dtype):
        return False
    dtypes = {arguments[place].dtype for place in op.input_places if isinstance(arguments[place], (Tensor, host.generic))}
    has_mask = bool_dtype in [x.dtype for x in arguments if isinstance(x, (Tensor, xp.ndarray))]
    return not has_mask and dtypes == {default_dtype}


def _general(op: Op, arguments: Sequence[Any], shape: tuple[int, ...]) -> Callable[..., Any]:
    """A kernel that calls the whole op, with all conversions. Its result must always have this ``shape``, which it had in the
    first call: later steps depend on it."""
    are_tensors = [isinstance(x, Tensor) for x in arguments]
    num_settings = len(op.names) - 1

    def call(*arrays: Any) -> Any:
        given = [wrap(x) if is_tensor else x for x, is_tensor in zip(arrays, are_tensors)]
        if op.several:
            end = len(given) - num_settings
            given = [given[:end], *given[end:]]
        out = op(*given).data
        if out.shape != shape:
            raise ValueError(
                f"in a traced function, values cannot decide how many elements there are: {op.name} gave {shape} in the first "
                f"call and {out.shape} now: use tt.where instead of a boolean index, or do not trace the function"
            )
        return out

    return call


@checked
def opaque(function: Function) -> Function:
    """Declare a function of arrays, and of any other objects, as a function of tensors that is one step of a traced program.

    The step calls the function again each time, so it may read and change its objects. No gradient flows through it.
    """

    @functools.wraps(function)
    def call(*given: Any) -> Tensor:
        tracer = modes().tracer
        with tracing(None), no_grad():
            out = wrap(function(*[x.data if isinstance(x, Tensor) else x for x in given]))
        if tracer is not None:
            tracer.write(_name_for_kernels(function), function, given, out)
        return out

    return cast(Function, call)
