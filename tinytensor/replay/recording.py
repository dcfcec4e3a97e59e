"""Record a function of tensors as a program for other systems, such as ONNX or a web page.

``record`` runs the function a few times with inputs of different sizes and records which ops it calls. Numbers that differ
between runs depend on the sizes: each becomes a ``Size``, linear in the named sizes. The function needs no changes.

``trace.py`` records the same calls, but replays them in this process for inputs of one size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from tinytensor.autograd.fused import FusedOp
from tinytensor.autograd.inputs import bind
from tinytensor.autograd.modes import no_grad
from tinytensor.autograd.op import Op
from tinytensor.autograd.replaying import tracing
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import shown
from tinytensor.creation import arange, full
from tinytensor.device.backend import Array, DType, host, is_array, to_numpy, xp
from tinytensor.functional.attention import causal_mask
from tinytensor.kernels.attention import causal_array
from tinytensor.nn.module import Module
from tinytensor.replay.trace import Tracer, parts_of

_FAR = 100, 50, 20, 3  # the amount by which each size is increased in turn
_LEAST = 3  # the smallest size tried: 1 would broadcast, and 2 may be a constant


class RecordingError(TypeError):
    """The function cannot be recorded. The message gives the op, the module and the line."""


class Size(NamedTuple):
    """A number that depends on the input sizes: ``constant`` plus each named size times its factor."""

    constant: int
    factors: tuple[tuple[str, int], ...]

    def of(self, sizes: Mapping[str, int]) -> int:
        """Return the number for these sizes."""
        return self.constant + sum(factor * sizes[name] for name, factor in self.factors)

    def __str__(self) -> str:
        terms = [name if factor == 1 else f"{factor} * {name}" for name, factor in self.factors]
        return " + ".join([*terms, *([str(self.constant)] if self.constant else [])])


class Value(NamedTuple):
    """An input, a constant or a result of a program, identified by its number."""

    number: int


class Where(NamedTuple):
    """The caller of an op: the name of the innermost running module, and the line that called the op or its ``nn`` layer."""

    module: str | None
    file: str
    line: int

    def __str__(self) -> str:
        return "the function" if self.module is None else f"{self.module or 'the model'} ({self.file}:{self.line})"


class Call(NamedTuple):
    """One call of an op, or of a function that is declared ``opaque``.

    The arguments, by parameter name, are values, numbers, sizes, strings, dtypes, None, and tuples, lists, dicts and slices of
    these. An opaque function may also take other objects.
    """

    op: Callable[..., Any]
    arguments: dict[str, Any]
    result: Value
    where: Where


_FUNCTION = Where(None, "", 0)  # the recorded function, outside of modules
_INSIDE = tuple([str(Path(__file__).parents[1] / name) for name in ("autograd", "common", "nn", "ops", "replay")])


class Kind(NamedTuple):
    """A value's shape and dtype."""

    shape: tuple[Any, ...]  # ints and Sizes
    dtype: DType


class Recording(NamedTuple):
    """A recorded program: its calls in order, and inputs, constants and outputs by name.

    ``constants`` are NumPy arrays. A model's parameters and buffers are named as in its ``state_dict``.
    """

    calls: list[Call]
    kinds: dict[Value, Kind]
    inputs: dict[str, Value]
    constants: dict[str, tuple[Value, Array]]
    outputs: dict[str, Value]


def record(
    function: Callable[..., Mapping[str, Tensor]],
    inputs: Callable[..., Mapping[str, Any]],
    sizes: Sequence[str] | Mapping[str, int],
    model: Module | None = None,
    known: Collection[Any] | None = None,
) -> Recording:
    """Record ``function``. It takes the ``inputs`` by name and returns its outputs by name.

    ``inputs(**sizes)`` creates inputs of the given sizes, such as ``inputs(batch=3, length=5)``: tensors, which become inputs
    of the program, and other objects, such as a cache. ``sizes`` may map each name to the smallest size to try. The parameters
    and buffers of ``model`` become constants with the model's names.

    ``known`` are the ops and opaque functions that the target system supports (None: all). Other fused ops are recorded as the
    ops of their reference.

    Raises RecordingError if any other op is not known, or if calls, or values that no op computes, depend on the sizes but not
    linearly.
    """
    base = dict(sizes) if isinstance(sizes, Mapping) else {name: _LEAST + 2 * i for i, name in enumerate(sizes)}
    near = [{**base, name: base[name] + 1} for name in sizes]
    longer = {name: size + 2 for name, size in base.items()}
    with no_grad():  # larger sizes first, so that caches such as longer tables exist before the recorded runs
        function(**inputs(**longer))
    far = [_far(function, inputs, base, name) for name in sizes]
    trials = [base, *near, longer, *far]
    names = {} if model is None else _names(model)
    runs = [_Recorder(names, known).run(function, inputs(**trial)) for trial in trials]
    return _Merger(runs, trials, names).merged()


def _far(function: Callable[..., Any], inputs: Callable[..., Any], base: dict[str, int], name: str) -> dict[str, int]:
    """Return sizes with this one as large as the function accepts (within limits), to detect a crop to a fixed length."""
    for step in _FAR:
        sizes = {**base, name: base[name] + step}
        with suppress(ValueError, IndexError), no_grad():
            function(**inputs(**sizes))
            return sizes
    return base


def _names(model: Module) -> dict[int, str]:
    """Return the names of parameters, buffers and modules, by id."""
    tensors = {id(x.data): name for named in (model.named_buffers(), model.named_parameters()) for name, x in named}
    return {**tensors, **{id(module): name for name, module in model.named_modules()}}


class _Written(NamedTuple):
    """One recorded call in one run."""

    op: Callable[..., Any]
    arguments: dict[str, Any]
    result: int  # its slot
    where: Where


class _Recorder(Tracer):
    """A recorder that runs the function once and records its calls."""

    def __init__(self, names: dict[int, str], known: Collection[Any] | None):
        super().__init__([])
        self.calls: list[_Written] = []
        self.inputs: dict[str, int] = {}  # slots
        self.outputs: dict[str, int] = {}
        self._names = names
        self._known = None if known is None else frozenset(map(id, known))

    def run(self, function: Callable[..., Mapping[str, Tensor]], inputs: Mapping[str, Any]) -> _Recorder:
        """Call the function. Return this recorder."""
        self.inputs = {name: self._add(x.data) for name, x in inputs.items() if isinstance(x, Tensor)}
        self._computed.update(self.inputs.values())
        with no_grad(), tracing(self):
            outputs = function(**inputs)
        self.outputs = {name: self.slot(x) for name, x in outputs.items()}
        return self

    def call(self, op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Call the op and record the call. For a fused op that is not known, call the reference."""
        arguments = dict(zip(op.names, bind(op, args, settings)))
        if isinstance(op, FusedOp) and not self._knows(op):
            return op.reference(**arguments)
        with tracing(None):
            out = op(*args, **settings)
        if isinstance(out, Tensor):
            self._write_down(op, arguments, out)
        return out

    def write(
        self, name: str, kernel: Callable[..., Any], arguments: Sequence[Any], out: Tensor, is_fused: bool = False
    ) -> None:
        """Record the call of an opaque function."""
        self._write_down(kernel, dict(zip(kernel.__code__.co_varnames, arguments)), out)

    def write_check(self, check: Callable[..., None], arguments: Any) -> None:
        """Record nothing: programs run elsewhere do not check values."""

    def array(self, slot: int) -> Array:
        """Return the array in a slot."""
        return self._values[slot]

    def is_computed(self, slot: int) -> bool:
        """Return True if a slot holds an input or the result of a call."""
        return slot in self._computed

    def _write_down(self, op: Any, arguments: dict[str, Any], out: Tensor) -> None:
        where = _where(self._names)
        if not self._knows(op):
            raise RecordingError(f"the op {_name(op)} is not supported here: {where} calls it")
        self._check(arguments)
        result = self._add(out.data)
        self._computed.add(result)
        self.calls.append(_Written(op, arguments, result, where))

    def _check(self, value: Any) -> None:
        """Raise RecordingError for an array of unknown origin."""
        if is_array(value) and id(value) not in self._slots:
            self._refuse_arrays(value)
        for part in parts_of(value):
            self._check(part)

    def _refuse_arrays(self, value: Any) -> None:
        try:
            super()._refuse_arrays(value)
        except TypeError:
            raise RecordingError(
                f"{_where(self._names)}: an op gets an array that no op made: compute it with ops on tensors"
            ) from None

    def refuse_values_of(self, value: Any) -> None:
        """Raise RecordingError if this array or tensor is, or contains, an input or a computed array."""
        try:
            super().refuse_values_of(value)
        except TypeError:
            raise RecordingError(
                f"{_where(self._names)}: the values of a tensor are read outside of ops (by a number, an if or NumPy): use ops"
            ) from None

    def _knows(self, op: Any) -> bool:
        return self._known is None or id(op) in self._known


def _name(op: Any) -> str:
    return str(getattr(op, "name", op.__name__))


def _where(names: dict[int, str]) -> Where:
    """Return the innermost running module of the model, and the innermost line outside of ops and layers."""
    frame: FrameType | None = sys._getframe()
    where = _FUNCTION
    while frame is not None and (where.module is None or not where.file):
        if not where.file and not frame.f_code.co_filename.startswith(_INSIDE):
            where = where._replace(file=frame.f_code.co_filename, line=frame.f_lineno)
        if where.module is None:
            where = where._replace(module=names.get(id(frame.f_locals.get("self"))))
        frame = frame.f_back
    return where


class _Merger:
    """A merger of several runs into one program."""

    def __init__(self, runs: Sequence[_Recorder], trials: Sequence[Mapping[str, int]], names: Mapping[int, str]):
        self.runs = runs
        self.trials = trials
        self.names = names
        self.values: dict[tuple[int, ...], Value] = {}  # values by their slots in the runs
        self.recording = Recording([], {}, {}, {}, {})
        self.caller = _FUNCTION
        self.where = "the function"

    def merged(self) -> Recording:
        """Return the program."""
        for name in self.runs[0].inputs:
            self.recording.inputs[name] = self._new([run.inputs[name] for run in self.runs])
        if len({len(run.calls) for run in self.runs}) > 1:
            self._refuse("the number of calls depends on the sizes")
        for calls in zip(*[run.calls for run in self.runs]):
            self.caller = calls[0].where
            self.where = f"{_name(calls[0].op)} in {self.caller}"
            if any(call.op is not calls[0].op for call in calls):
                self._refuse("for other sizes something else is called")
            arguments = {name: self._merge([call.arguments[name] for call in calls]) for name in calls[0].arguments}
            result = self._new([call.result for call in calls])
            self.recording.calls.append(Call(calls[0].op, arguments, result, self.caller))
        self.where = "the outputs"
        for name in self.runs[0].outputs:
            self.recording.outputs[name] = self._value([run.outputs[name] for run in self.runs])
        return self.recording

    def _merge(self, values: Sequence[Any]) -> Any:
        """Return an argument of a call, merged from all runs."""
        first = values[0]
        if other := next((x for x in values if type(x) is not type(first)), None):
            self._refuse(f"it gets {shown(first)}, and for other sizes {shown(other)}")
        if isinstance(first, (int, host.integer)) and not isinstance(first, bool):
            return self._number([int(x) for x in values])
        if isinstance(first, Tensor) or is_array(first):
            return self._value([run.slot(x) for run, x in zip(self.runs, values)])
        if isinstance(first, slice):
            return slice(*[self._merge([getattr(x, end) for x in values]) for end in ("start", "stop", "step")])
        if isinstance(first, (tuple, list)) and all(len(x) == len(first) for x in values):
            return type(first)([self._merge(parts) for parts in zip(*values)])
        if isinstance(first, dict):
            return {key: self._merge([x[key] for x in values]) for key in first}
        different = [x for x in values if x != first and x == x]  # NaN is not equal to itself
        if isinstance(first, (float, str, bool, type(None), tuple, list)) and different:
            self._refuse(f"it gets {shown(first)}, and for other sizes {shown(different[0])}")
        return first

    def _number(self, values: Sequence[int]) -> Any:
        """Return an int if the number is the same in all runs, else a Size."""
        base, *_ = self.trials
        changes = {name: value - values[0] for name, value in zip(base, values[1:])}  # because one size is larger by one
        size = Size(
            values[0] - sum(factor * base[name] for name, factor in changes.items()),
            tuple((name, factor) for name, factor in changes.items() if factor),
        )
        if any(size.of(trial) != value for trial, value in zip(self.trials, values)):
            self._refuse(f"it gets {values[0]}, and {values[-1]} for {self.trials[-1]}, which is no sum of the sizes")
        return size if size.factors else size.constant

    def _value(self, slots: Sequence[int]) -> Value:
        """Return the value in these slots of the runs. Arrays that no call computed are constants."""
        return self.values.get(tuple(slots)) or self._constant(slots)

    def _new(self, slots: Sequence[int]) -> Value:
        value = Value(len(self.recording.kinds))
        arrays = [run.array(slot) for run, slot in zip(self.runs, slots)]
        if len({x.ndim for x in arrays}) > 1:
            self._refuse("it gives another number of axes for other sizes")
        shape = tuple([self._number(lengths) for lengths in zip(*[x.shape for x in arrays])])
        self.values[tuple(slots)], self.recording.kinds[value] = value, Kind(shape, arrays[0].dtype)
        return value

    def _constant(self, slots: Sequence[int]) -> Value:
        if any(run.is_computed(slot) for run, slot in zip(self.runs, slots)):
            self._refuse("it gets the result of another call for other sizes")
        arrays = [run.array(slot) for run, slot in zip(self.runs, slots)]
        first, value = arrays[0], self._new(slots)
        if all(x is first or _is_same(x, first) for x in arrays):
            name = self.names.get(id(first), f"constant_{value.number}")
            self.recording.constants[name] = value, to_numpy(first)
            return value
        made = self._made(arrays, self.recording.kinds[value].shape)
        if made is None:
            self._refuse(f"it gets an array of shape {first.shape} that no op made and that is another for other sizes")
        self.recording.calls.append(Call(*made, value, self.caller))
        return value

    def _made(self, arrays: Sequence[Array], shape: tuple[Any, ...]) -> tuple[Callable[..., Any], dict[str, Any]] | None:
        """Return the function and arguments that create these size-dependent arrays, or None."""
        first = arrays[0]
        if not all(x.size for x in arrays):
            return None
        if all(_is_same(x, xp.full_like(x, x.ravel()[0])) for x in arrays):
            return full, {"shape": shape, "value": self._merge([x.ravel()[0].item() for x in arrays]), "dtype": first.dtype}
        if first.ndim == 1 and first.dtype.kind == "i" and all(_counts(x) for x in map(to_numpy, arrays)):
            start = self._number([int(x[0]) for x in arrays])
            stop = self._number([int(x[0]) + len(x) for x in arrays])
            return arange, {"start": start, "stop": stop, "dtype": first.dtype}
        if first.ndim == 2 and first.dtype == bool and all(_is_same(x, causal_array(*x.shape)) for x in arrays):
            return causal_mask, {"queries": shape[0], "keys": shape[1]}
        return None

    def _refuse(self, why: str) -> NoReturn:
        raise RecordingError(f"{self.where}: {why}")


def _counts(x: Array) -> bool:
    return bool((x == x[0] + host.arange(len(x))).all())


def _is_same(x: Array, y: Array) -> bool:
    return bool(x.shape == y.shape and x.dtype == y.dtype and ((x == y) | ((x != x) & (y != y))).all())
