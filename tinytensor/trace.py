"""A function of tensors, run once and written down as a program: the list of kernels it called. From then on the list runs.

What lies between two kernels in an ordinary call (modules, checks, a tensor around each array) takes longer than the kernels
themselves where these are small, as when a text is written token by token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from tinytensor.backend import bool_dtype, default_dtype, host, xp
from tinytensor.calling import bind, wrap
from tinytensor.fused import FusedOp
from tinytensor.modes import modes, no_grad, tracing, without_warnings
from tinytensor.op import Function, Op
from tinytensor.tensor import Tensor


def trace(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function``, which takes tensors and returns one, for calling it many times; no gradients flow through it.

    The first call with inputs of some shapes and dtypes runs the function and writes down which ops it calls with what; later
    ones run those ops' kernels alone. So all else happens once: checks of shapes, ``if``s, a module's mode, and whatever is
    computed from Python numbers. What changes from call to call must be a tensor passed in, an array that is changed in place
    (a parameter; but ``x[i] = y`` gives a tensor another array), or an object that a function declared ``opaque`` looks into
    (a cache).

    Raises TypeError where the values of a computed tensor leave the ops (``.numpy()``, ``.item()``, ``if x > 0``,
    ``tt.tensor(x)``, ``x[i] = y``), for an input that no op takes, and for an op that takes an array which is no tensor's; and
    RuntimeError where random numbers are drawn or gradients computed. Later calls would repeat what the first one found. Only
    ``.data`` is not watched: what is computed from it, other than by ops, is that of the first call.
    """
    programs: dict[Any, Program] = {}

    @functools.wraps(function)
    def traced(*inputs: Tensor) -> Tensor:
        if not all(isinstance(x, Tensor) for x in inputs):
            raise TypeError("a traced function takes tensors: make numbers and arrays tensors with tt.tensor(...)")
        if modes.detecting_anomalies or modes.tracer is not None:  # each op is looked at, or this is part of another trace
            with no_grad():
                return function(*inputs)
        kind = tuple([(x.data.shape, x.data.dtype) for x in inputs])
        with no_grad(), without_warnings():
            if kind in programs:
                return wrap(programs[kind].run([x.data for x in inputs]))
            inputs = tuple([wrap(x.data[...]) for x in inputs])  # arrays of their own, that are nothing else besides
            tracer = Tracer(inputs)
            with tracing(tracer):
                out = function(*inputs)
            programs[kind] = tracer.program(out)
        return out

    return traced


class Step(NamedTuple):
    """A call of a kernel: what it is called with, by number, and the number of the result."""

    kernel: Callable[..., Any]
    arguments: tuple[int, ...]
    is_fused: bool  # so that the kernel returns residuals, too
    result: int


class Program(NamedTuple):
    """A straight list of steps. All values have numbers: first the inputs, then what is known beforehand and all results."""

    steps: list[Step]
    known: list[Any]
    result: int

    def run(self, inputs: Sequence[Any]) -> Any:
        """The result for these arrays."""
        values, array = [*inputs, *self.known], xp.ndarray
        for kernel, arguments, is_fused, result in self.steps:
            out = kernel(*[values[i] for i in arguments])
            if is_fused:
                out = out[0]
            values[result] = out if type(out) is array else xp.asarray(out)
        return values[self.result]


class Tracer:
    """Writes down what a function does while it runs: every op hands its call over to ``call``."""

    def __init__(self, inputs: Sequence[Tensor]):
        self._values: list[Any] = []  # all of them are kept, so that no other object takes an identity
        self._numbers: dict[int, int] = {}  # of values, by identity
        self._steps: list[Step] = []
        self._computed = {self._add(x.data) for x in inputs}
        self._num_inputs = len(self._values)

    def call(self, op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Call the op, and write down how to do so again."""
        with tracing(None):  # what an op calls in turn is its own affair
            out = op(*args, **settings)
        arguments = bind(op, args, settings)
        if not isinstance(out, Tensor):  # of arrays
            for value in arguments:
                self._refuse_arrays(value)
            return out
        kernel, is_fused = op.forward, False
        if not _is_plain(op, arguments, out):
            if op.several:
                arguments = [*arguments[0], *arguments[1:]]
            kernel = _general(op, arguments, out.shape)
        elif isinstance(op, FusedOp):
            kernel, arguments, is_fused = op.kernel_forward, [op.nothing, *arguments], True
        self.write(kernel, arguments, out, is_fused)
        return out

    def write(self, kernel: Callable[..., Any], arguments: Sequence[Any], out: Tensor, is_fused: bool = False) -> None:
        """Write down that the kernel, called with these, returns ``out``'s array."""
        numbers = tuple([self._number(x) for x in arguments])
        self._computed.add(self._add(out.data))
        self._steps.append(Step(kernel, numbers, is_fused, self._numbers[id(out.data)]))

    def write_check(self, check: Callable[..., None], arguments: Sequence[Any]) -> None:
        """Write down that this check is made of these."""
        nothing = wrap(xp.zeros(0))

        def kernel(*values: Any) -> Any:
            check(*values)
            return nothing.data

        self.write(kernel, arguments, nothing)

    def program(self, out: Tensor) -> Program:
        """All that was written, to compute ``out``."""
        if not isinstance(out, Tensor):
            raise TypeError(f"a traced function returns one tensor, not a {type(out).__name__}")
        result = self._number(out)
        used = {number for step in self._steps for number in step.arguments} | {result}
        unread = [number for number in range(self._num_inputs) if number not in used]
        if unread:
            raise TypeError(f"trace cannot see what becomes of input {unread[0]}: no op takes it, but perhaps a copy of it")
        known = [None if number in self._computed else value for number, value in enumerate(self._values)]
        return Program(self._steps, known[self._num_inputs :], result)

    def refuse_values_of(self, value: Any) -> None:
        """Raise TypeError where values are about to be read or copied that come from a step or an input: an array's, or those
        of arrays or tensors inside of something else."""
        array = value.data if isinstance(value, Tensor) else value
        if self._numbers.get(id(array)) in self._computed:
            raise TypeError(
                f"trace cannot follow the values of a tensor of shape {array.shape} out of the ops (into a number, a NumPy "
                "array, an if, tt.tensor(x) or x[i] = y): later calls would repeat those of the first. Keep to ops, such as "
                "x.copy() or tt.where, or declare the function that reads them tt.opaque"
            )
        for part in _parts(value):
            self.refuse_values_of(part)

    def _number(self, value: Any) -> int:
        if isinstance(value, Tensor):
            value = value.data
        elif type(value) not in _PLAIN and id(value) not in self._numbers:
            self._refuse_arrays(value)
            self.refuse_values_of(value)
        return self._numbers[id(value)] if id(value) in self._numbers else self._add(value)

    def _refuse_arrays(self, value: Any) -> None:
        """An array without a tensor may have been computed from an input, as by ``sort``, which looks where elements are."""
        if isinstance(value, (xp.ndarray, host.ndarray)):
            raise TypeError(
                f"trace cannot see where an array of shape {value.shape} came from: keep to ops on tensors (without arrays "
                "as indices), or declare the function that uses it tt.opaque"
            )
        for part in _parts(value):
            self._refuse_arrays(part)

    def _add(self, value: Any) -> int:
        self._values.append(value)
        self._numbers[id(value)] = len(self._values) - 1
        return len(self._values) - 1


_PLAIN = {type(None), bool, int, float, str}  # arguments that hold no values of tensors


def _parts(value: Any) -> Sequence[Any]:
    """What an argument of an op, or of an opaque function, consists of."""
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, (tuple, list)) else ()


def _is_plain(op: Op, arguments: Sequence[Any], out: Tensor) -> bool:
    """Whether the op did nothing but to call its kernel: there was nothing to convert, before or after, and no mask to choose
    how many elements come out."""
    dtypes = {x.dtype for x in arguments if isinstance(x, (Tensor, host.generic))}
    has_mask = bool_dtype in [x.dtype for x in arguments if type(x) is xp.ndarray]
    return not op.several and not has_mask and dtypes == {default_dtype} and out.dtype in (default_dtype, bool_dtype)


def _general(op: Op, arguments: Sequence[Any], shape: tuple[int, ...]) -> Callable[..., Any]:
    """The whole op as a kernel: it converts what must be converted. Its result had this shape in the first call, and later
    steps may be made for no other."""
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
                f"a traced function cannot choose by values how many elements there are: {op.name} gave {shape} in its first "
                f"call and {out.shape} now: use tt.where in place of a boolean index, or do not trace it"
            )
        return out

    return call


def opaque(function: Function) -> Function:
    """Declare a function of arrays and any objects as a function of tensors that is one step of a traced program: what it finds
    in the objects, and changes there, it finds anew each time. No gradient flows through it."""

    @functools.wraps(function)
    def call(*given: Any) -> Tensor:
        tracer = modes.tracer
        with tracing(None), no_grad():
            out = wrap(function(*[x.data if isinstance(x, Tensor) else x for x in given]))
        if tracer is not None:
            tracer.write(function, given, out)
        return out

    return cast(Function, call)
