"""Tracing: run a function of tensors once and record its kernel calls as a program. Later calls replay only the kernels and
compute the same values.

Token-by-token generation uses tracing: its kernels are so small that the rest of an ordinary call (modules, checks, a tensor
for each array) takes longer than the kernels.
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
from tinytensor.kernels.steps import KernelCall
from tinytensor.nn.hooks import any_hooks


def trace(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a faster version of ``function`` for repeated calls. It takes tensors and returns one. No gradients flow.

    For each new combination of input shapes and dtypes, the first call runs the function and records its ops and their
    arguments. Later calls run only the kernels of those ops. Everything else happens once: shape checks, ``if``s, a module's
    mode, and results computed from Python numbers. Only these may change between calls: the input tensors, arrays changed in
    place (such as parameters; but ``x[i] = y`` gives a tensor a new array), and objects that an ``opaque`` function uses (such
    as a cache). The function runs again after a module's parameter, buffer or submodule is added, removed or replaced, or after
    a tensor's ``.data`` is set.

    Compiled kernels may merge the steps of a long program. Its results then differ from the original function's by rounding.

    Raises TypeError if the values of a computed tensor are used outside of ops (``.numpy()``, ``.item()``, ``if x > 0``,
    ``tt.tensor(x)``, ``x[i] = y``), if no op uses an input, or if an op gets an array that belongs to no tensor. Raises
    RuntimeError if random numbers are drawn or gradients are computed. In these cases later calls would repeat the values of
    the first. ``.data`` is not checked: later calls reuse results that the first call computed from it without ops.

    >>> fast = tt.trace(lambda x: (x * 2).sum())
    >>> fast(tt.tensor([1.0, 2.0])), fast(tt.tensor([3.0, 4.0]))
    (tensor(6.), tensor(14.))
    """
    if not callable(function):
        raise TypeError(f"trace: function must be a function, got {shown(function)} (a matrix has the trace diagonal(x).sum())")
    known: tuple[int, dict[Any, Program]] = (0, {})  # the last replacement before these programs were recorded

    @functools.wraps(function)
    def traced(*inputs: Tensor) -> Tensor:
        if not all(isinstance(x, Tensor) for x in inputs):
            raise TypeError("a traced function takes tensors: make numbers and arrays tensors with tt.tensor(...)")
        # These cases need the ops themselves: anomaly detection, an outer trace, hooks.
        if modes().detecting_anomalies or is_traced() or any_hooks():
            with no_grad():
                return function(*inputs)
        nonlocal known
        latest, programs = known
        if latest != Replacements.latest:
            latest, programs = known = Replacements.latest, {}
        key = tuple([(x.data.shape, x.data.dtype) for x in inputs])
        with no_grad(), no_warnings():
            if key in programs:
                return wrap(programs[key].run([x.data for x in inputs]))
            inputs = tuple([wrap(x.data[...]) for x in inputs])  # new arrays, so that each input has its own id()
            tracer = Tracer(inputs)
            with tracing(tracer):
                out = function(*inputs)
            programs[key] = tracer.program(out)
        return out

    return traced


class Program(NamedTuple):
    """A traced program: a sequence of steps without branches. Each value has a numbered slot; inputs come first."""

    steps: list[KernelCall]
    known: list[Any]  # the slots after the inputs: constants, or None for computed values
    result: int

    def run(self, inputs: Sequence[Any]) -> Any:
        """Return the result for these input arrays."""
        values, array = [*inputs, *self.known], xp.ndarray
        for _, kernel, arguments, is_fused, result in self.steps:
            out = kernel(*[values[i] for i in arguments])
            if is_fused:
                out = out[0]
            values[result] = out if type(out) is array else xp.asarray(out)
        return values[self.result]


class Tracer:
    """A recorder of a running function: every op passes its call to ``call``."""

    def __init__(self, inputs: Sequence[Tensor]):
        self._values: list[Any] = []  # the value in each slot; stored so that no id() is reused
        self._slots: dict[int, int] = {}  # the slot of a value, by its id()
        self._steps: list[KernelCall] = []
        self._computed = {self._add(x.data) for x in inputs}
        self._num_inputs = len(self._values)

    def call(self, op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Call the op and record how to repeat it."""
        with tracing(None):  # ops called by this op are not recorded
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
        """Record a call of the kernel with these arguments that returned the array of ``out``."""
        slots = tuple([self.slot(x) for x in arguments])
        self._computed.add(self._add(out.data))
        self._steps.append(KernelCall(name, kernel, slots, is_fused, self._slots[id(out.data)]))

    def write_check(self, check: Callable[..., None], arguments: Sequence[Any]) -> None:
        """Record a call of this check."""
        nothing = wrap(xp.zeros(0))

        def kernel(*values: Any) -> Any:
            check(*values)
            return nothing.data

        self.write("", kernel, arguments, nothing)

    def program(self, out: Tensor) -> Program:
        """Return the program that computes ``out``."""
        if not isinstance(out, Tensor):
            raise TypeError(f"a traced function must return one tensor, got {a_or_an(type(out).__name__)}")
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
        """Raise TypeError if this array or tensor is or contains an input or a computed array, because its values will be read
        outside of ops."""
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
        """Return the slot of a value. A new value is a constant. Raises TypeError for an array that belongs to no tensor."""
        if isinstance(value, Tensor):
            value = value.data
        elif type(value) not in PLAIN and id(value) not in self._slots:
            self._refuse_arrays(value)
            self.refuse_values_of(value)
        return self._slots[id(value)] if id(value) in self._slots else self._add(value)

    def _refuse_arrays(self, value: Any) -> None:
        """Raise TypeError for an array that belongs to no tensor, because it may depend on an input."""
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
    """Return the name of a built-in op or opaque function, or "" for a user-defined one, which may have the same name."""
    is_ours = str(getattr(function, "__module__", "")).startswith("tinytensor.")
    return getattr(function, "name", function.__name__) if is_ours else ""


def parts_of(value: Any) -> Sequence[Any]:
    """Return the values inside an argument of an op or opaque function."""
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, (tuple, list)) else ()


def _is_plain(op: Op, arguments: Sequence[Any], out: Tensor) -> bool:
    """Return True if the op only called its kernel: nothing was converted, and no argument is a boolean array, whose values
    could determine the size of the result."""
    if op.several or out.dtype not in (default_dtype, bool_dtype):
        return False
    dtypes = {arguments[i].dtype for i in op.input_positions if isinstance(arguments[i], (Tensor, host.generic))}
    has_mask = bool_dtype in [x.dtype for x in arguments if isinstance(x, (Tensor, xp.ndarray))]
    return not has_mask and dtypes == {default_dtype}


def _general(op: Op, arguments: Sequence[Any], shape: tuple[int, ...]) -> Callable[..., Any]:
    """Return a kernel that calls the op with all conversions. Its result must keep the ``shape`` of the first call, because
    later steps depend on it."""
    are_tensors = [isinstance(x, Tensor) for x in arguments]
    num_settings = len(op.names) - 1

    def call(*arrays: Any) -> Any:
        values = [wrap(x) if is_tensor else x for x, is_tensor in zip(arrays, are_tensors)]
        if op.several:
            end = len(values) - num_settings
            values = [values[:end], *values[end:]]
        out = op(*values).data
        if out.shape != shape:
            raise ValueError(
                f"in a traced function, values cannot decide how many elements there are: {op.name} gave {shape} in the first "
                f"call and {out.shape} now: use tt.where instead of a boolean index, or do not trace the function"
            )
        return out

    return call


@checked
def opaque(function: Function) -> Function:
    """Turn a function of arrays and other objects into a function of tensors that is one step of a traced program.

    The step calls the function each time, so it may read and change its objects. No gradient flows through it.
    """

    @functools.wraps(function)
    def call(*arguments: Any) -> Tensor:
        tracer = modes().tracer
        with tracing(None), no_grad():
            out = wrap(function(*[x.data if isinstance(x, Tensor) else x for x in arguments]))
        if tracer is not None:
            tracer.write(_name_for_kernels(function), function, arguments, out)
        return out

    return cast(Function, call)
