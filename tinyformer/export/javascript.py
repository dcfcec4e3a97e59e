"""Convert a recorded model function to JSON for ``tinyformer/javascript/program.js``.

The JSON object lists ``inputs`` and ``constants`` by name, with their value numbers and shapes; the value numbers of
``outputs``; and ``calls``: an ``op``, its ``arguments`` by name, the value number of the ``result``, and the calling
``module``. Calls of ``recorded_numbers`` add the result's ``shape`` and the ``source``: [file, line, text]. In arguments and
shapes, these are objects:

- a value: {"value": number}
- a number that depends on sizes: {"constant": 1, "factors": {"length": 2}}
- a slice: {"slice": [start, stop, step]}
- a number that JSON cannot represent: {"float": "Infinity"}
"""

from __future__ import annotations

import functools
import inspect
import linecache
import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.export.models import LONGEST, Axes, arguments_of
from tinyformer.models import attention, positions
from tinyformer.models.attention import KeyValueCache
from tinyformer.models.blocks import Cache
from tinyformer.models.gpt import GPT
from tinyformer.models.transformer import Transformer
from tinytensor import Tensor
from tinytensor.autograd.op import all_ops
from tinytensor.common.wording import a_or_an
from tinytensor.creation import arange, full
from tinytensor.device.backend import Array, default_dtype, host, to_numpy
from tinytensor.functional.attention import cached_attention, causal_mask
from tinytensor.nn import Module
from tinytensor.replay.recording import Call, Recording, RecordingError, Size, Value, record

JAVASCRIPT = resources.files("tinyformer.javascript")
_TABLES = positions.LearnedPositions, positions.SinusoidalPositions, positions.RotaryPositions
# Functions that are not tinytensor ops, by their names in a page.
_OTHERS: dict[str, Any] = {
    "arange": arange,
    "full": full,
    "causal_mask": causal_mask,
    "cached_attention": cached_attention,
    "reserve": inspect.unwrap(attention._reserve),
    "later_positions": inspect.unwrap(positions._later_positions),
    "later_rotation": inspect.unwrap(positions._later_rotation),
}
_OF_BOOLEANS = {"invert": "logical_not", "bitwise_and": "logical_and"}  # booleans are 0 and 1 in a page


class Program(NamedTuple):
    """A program for a page: its JSON description, and its arrays by name."""

    description: dict[str, Any]
    constants: dict[str, Array]


@functools.cache
def ops_of_pages() -> dict[str, Any]:
    """Return the ops that a page supports, by name, from their only list: the table in ops.js."""
    source = (JAVASCRIPT / "ops.js").read_text(encoding="utf-8")
    table = source.partition("export const OPS = {\n")[2].partition("\n};\n")[0]
    names = re.findall(r"(?m)^  (\w+)(?=[:(])", table)
    return {name: _OTHERS.get(name) or all_ops[name] for name in [*names, *_OF_BOOLEANS]}


def recorded_model(model: Module, inputs: Mapping[str, Axes] | None = None) -> Program:
    """Record a model's ``forward`` as a program. It computes ``logits`` from ``ids`` (1, length), or for a ``Transformer``,
    from ``source`` and ``target``. A GPT's program has a cache, unless its context is very short or exceeds its sliding window.
    If ``inputs`` is passed, record any module, as for ``export_onnx``. Raises UserError as ``program_of`` does."""
    if inputs is not None:
        return program_of(*arguments_of(model, inputs), model, LONGEST)
    config = getattr(model, "config", None)
    longest: int = getattr(config, "block_size", None) or getattr(config, "max_length", None) or 5
    ids_near = _ids_near(longest)
    if isinstance(model, GPT) and longest >= 12 and not 0 < model.config.sliding_window < longest:

        def with_past(length: int, past: int) -> dict[str, Any]:
            cache = model.new_cache()
            model(tt.zeros((1, past), dtype=int), cache)
            return {"ids": tt.zeros((1, length), dtype=int), "cache": cache}

        return program_of(lambda ids, cache: {"logits": model(ids, cache)}, with_past, ("length", "past"), model, longest)
    names = ("source", "target") if isinstance(model, Transformer) else ("ids",)
    return program_of(lambda **ids: {"logits": model(**ids)}, ids_near, names, model, longest)


def recorded_numbers(model: Any) -> Program:
    """Record a program of a GPT that computes, from ``ids`` (1, length), the logits, probabilities, loss of each next token,
    and mean loss. Raises UserError as ``recorded_model`` does."""

    def function(ids: Tensor) -> dict[str, Tensor]:
        logits = model(ids)
        probabilities = tt.softmax(logits)
        losses = tt.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")
        return {"logits": logits, "probabilities": probabilities, "losses": losses, "loss": losses.mean()}

    longest = min(model.config.block_size, max(32, model.config.sliding_window + 8))
    return program_of(function, _ids_near(longest), ("ids",), model, longest, has_sources=True)


def _ids_near(longest: int) -> Callable[..., dict[str, Tensor]]:
    """Return a function that makes ids near the maximum length, to use a sliding window and all table rows."""
    if longest < 4:
        raise UserError(f"a page needs a model with a context of at least 4 tokens, got {longest}")
    return lambda **sizes: {x: tt.zeros((1, n + longest - 5 - 2 * i), dtype=int) for i, (x, n) in enumerate(sizes.items())}


def program_of(
    function: Callable[..., Mapping[str, Tensor]],
    inputs: Callable[..., Mapping[str, Any]],
    sizes: Sequence[str] | Mapping[str, int],
    model: Module,
    longest: int,
    has_sources: bool = False,
) -> Program:
    """Record ``function`` for a page, as ``tinytensor.replay.recording.record`` does. Position tables after a cache have rows
    for ``longest`` tokens. If ``has_sources``, each call has its ``source``, and ``norm_and_rotate`` is split into several
    simpler calls.

    Raises UserError, with the op, module and line, for anything that a page cannot compute.
    """
    try:
        with tt.no_grad():
            left_out = "norm_and_rotate" if has_sources else "cross_entropy"  # a page computes only row losses
            known = [op for name, op in ops_of_pages().items() if name != left_out]
            recording = record(function, inputs, sizes, model, known)
        return _Writer(recording, model, longest, has_sources).program()
    except (TypeError, ValueError) as error:
        raise UserError(f"a page cannot compute {a_or_an(type(model).__name__)}: {error}") from error


class _Writer:
    """Converts a recording to JSON."""

    def __init__(self, recording: Recording, model: Module, longest: int, has_sources: bool):
        self.recording, self.longest, self.has_sources = recording, longest, has_sources
        self.constants: dict[str, tuple[int, Array]] = {
            name: (value.number, array) for name, (value, array) in recording.constants.items()
        }
        named = [*model.named_buffers(), *model.named_parameters()]
        self.names = {id(x.data): name for name, x in named}
        self.names_of_ops = {id(op): name for name, op in ops_of_pages().items()}

    def program(self) -> Program:
        """Return the program."""
        types, calls = self.recording.kinds, [self._call(call) for call in self.recording.calls]
        description = {
            "inputs": {
                name: {"value": value.number, "shape": self._written(types[value].shape)}
                for name, value in self.recording.inputs.items()
            },
            "constants": {
                name: {"value": number, "shape": list(array.shape)} for name, (number, array) in self.constants.items()
            },
            "outputs": {name: value.number for name, value in self.recording.outputs.items()},
            "calls": calls,
        }
        return Program(description, {name: array for name, (_, array) in self.constants.items()})

    def _call(self, call: Call) -> dict[str, Any]:
        name = self.names_of_ops.get(id(call.op))
        if name in _OF_BOOLEANS:
            name = _OF_BOOLEANS[name] if self.recording.kinds[call.result].dtype == bool else None
        if name is None:
            name = getattr(call.op, "name", call.op.__name__)
            raise RecordingError(f"the op {name} is not supported in a page: {call.where} calls it")
        arguments = {name: self._written(argument) for name, argument in call.arguments.items()}
        if name == "getitem" and "'value'" in str(arguments["index"]):
            raise RecordingError(f"arrays as indices are not supported in a page: {call.where} uses one")
        if name == "matmul" and min(len(self.recording.kinds[x].shape) for x in call.arguments.values()) < 2:
            raise RecordingError(f"products of vectors are not supported in a page: {call.where} computes one")
        written = {"op": name, "arguments": arguments, "result": call.result.number, "module": call.where.module or ""}
        if self.has_sources:
            file, line, home = Path(call.where.file), call.where.line, Path(tt.__file__).parents[1]
            shown = file.relative_to(home).as_posix() if file.is_relative_to(home) else file.name
            written["source"] = [shown, line, linecache.getline(str(file), line).strip()]
            written["shape"] = self._written(self.recording.kinds[call.result].shape)
        return written

    def _written(self, value: Any) -> Any:
        """Convert an argument or a shape to JSON."""
        if isinstance(value, Value):
            return {"value": value.number}
        if isinstance(value, Size):
            return {"constant": value.constant, "factors": dict(value.factors)}
        if isinstance(value, (tuple, list)):
            return [self._written(part) for part in value]
        if isinstance(value, slice):
            return {"slice": [self._written(end) for end in (value.start, value.stop, value.step)]}
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value).replace("inf", "Infinity").replace("nan", "NaN")}
        if isinstance(value, _TABLES):
            return {"value": self._table(value)}
        if value is Ellipsis:
            return "..."
        if isinstance(value, host.dtype):
            return value.name
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, (Cache, KeyValueCache)):
            return None  # a page has one cache, indexed by the number of a call's result
        raise RecordingError(f"{a_or_an(type(value).__name__)} is not supported as an argument in a page")

    def _table(self, of_positions: Any) -> int:
        """Return the number of the constant with these positions."""
        is_rotary = isinstance(of_positions, positions.RotaryPositions)
        table = of_positions.table_for(self.longest, *[default_dtype] if is_rotary else []).data
        name = self.names.setdefault(id(table), f"positions_{len(self.constants)}")
        if name not in self.constants:
            number = len(self.recording.kinds) + len(self.constants)
            self.constants[name] = number, to_numpy(table)[: self.longest]
        return self.constants[name][0]
