"""Functions as programs for other systems: what depends on the sizes, and what cannot be recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import creation
from tinytensor.autograd.op import op
from tinytensor.device.backend import xp
from tinytensor.functional.attention import causal_mask
from tinytensor.kernels.attention import causal_array
from tinytensor.nn import Linear, Module
from tinytensor.ops import activations
from tinytensor.ops.indexing import _getitem
from tinytensor.replay.recording import Call, Recording, RecordingError, Size, record
from tinytensor.replay.trace import opaque

BATCH, LENGTH = Size(0, (("batch", 1),)), Size(0, (("length", 1),))


def texts(batch: int, length: int) -> dict[str, tt.Tensor]:
    return {"x": tt.zeros((batch, length, 4))}


def recorded(function: Callable[..., Any], known: Any = None, model: Module | None = None) -> Recording:
    return record(lambda x: {"y": function(x)}, texts, ("batch", "length"), model, known)


def only_call(function: Callable[..., Any]) -> Call:
    (call,) = recorded(function).calls
    return call


def refusal(function: Callable[..., Any], known: Any = None, model: Module | None = None) -> str:
    with pytest.raises(RecordingError) as caught:
        recorded(function, known, model)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------- sizes


def test_a_size_is_a_sum_of_named_sizes() -> None:
    size = Size(-1, (("batch", 1), ("length", 3)))
    assert size.of({"batch": 5, "length": 7}) == 25
    assert str(size) == "batch + 3 * length + -1"
    assert (str(LENGTH), LENGTH.of({"length": 2, "batch": 9})) == ("length", 2)


def test_numbers_that_depend_on_the_sizes() -> None:
    call = only_call(lambda x: x.reshape(x.shape[0], 2 * x.shape[1] + 0, 2))
    assert (call.op, call.arguments["shape"]) == (tt.reshape, (BATCH, Size(0, (("length", 2),)), 2))
    call = only_call(lambda x: x[:, 1 : x.shape[1] - 1])
    assert call.op is _getitem
    assert call.arguments["index"] == (slice(None), slice(1, Size(-1, (("length", 1),)), None))


def test_shapes_of_values() -> None:
    recording = recorded(lambda x: tt.concatenate([x, x], axis=1).sum(axis=0))
    assert recording.kinds[recording.inputs["x"]].shape == (BATCH, LENGTH, 4)
    assert recording.kinds[recording.outputs["y"]].shape == (Size(0, (("length", 2),)), 4)


def test_the_least_of_each_size_that_is_tried() -> None:
    tried: list[tuple[int, int]] = []

    def inputs(batch: int, length: int) -> dict[str, tt.Tensor]:
        tried.append((batch, length))
        return texts(batch, length)

    record(lambda x: {"y": x + 1}, inputs, {"batch": 2, "length": 5})
    assert set(tried) == {(2, 5), (3, 5), (2, 6), (4, 7), (102, 5), (2, 105)}
    assert tried[:3] == [(4, 7), (102, 5), (2, 105)]  # which make what is made once


def test_tables_that_grow_are_made_before_the_recorded_runs() -> None:
    tables = [tt.zeros((1, 6, 4))]

    def function(x: tt.Tensor) -> dict[str, tt.Tensor]:
        length = x.shape[1]
        if length > 7:
            raise ValueError("too long")
        if length > tables[-1].shape[1]:
            tables.append(tt.zeros((1, 12, 4)))
        return {"y": x + tables[-1][:, :length]}

    recording = record(function, texts, {"batch": 2, "length": 5})
    assert [array.shape for _, array in recording.constants.values()] == [(1, 12, 4)]


@pytest.mark.parametrize(
    "function",
    [lambda x: x[:, ::2], lambda x: x.reshape(-1), lambda x: x[:, : min(x.shape[1], 6)]],
    ids=["half", "product", "min"],
)
def test_numbers_that_are_no_sum_of_the_sizes(function: Callable[..., Any]) -> None:
    assert "which is no sum of the sizes" in refusal(function)


def test_other_numbers_that_depend_on_the_sizes() -> None:
    assert "multiply in the function: it gets 0.2, and for other sizes 0.166" in refusal(lambda x: x * (1 / x.shape[1]))
    assert "it gets None, and for other sizes 1" in refusal(lambda x: tt.sum(x, None if x.shape[1] < 6 else 1))


# ------------------------------------------------------------------------------------------------------------- calls


def test_another_number_of_calls() -> None:
    def repeated(x: tt.Tensor) -> tt.Tensor:
        for _ in range(x.shape[1]):
            x = x + 1
        return x

    assert refusal(repeated) == "the function: the number of calls depends on the sizes"


def test_another_call() -> None:
    assert "for other sizes something else is called" in refusal(lambda x: tt.exp(x) if x.shape[1] < 6 else tt.tanh(x))


def test_the_result_of_another_call() -> None:
    def chosen(x: tt.Tensor) -> tt.Tensor:
        results = [tt.exp(x), tt.tanh(x)]
        return tt.relu(results[x.shape[1] > 5])

    assert "relu in the function: it gets the result of another call for other sizes" in refusal(chosen)


class Layers(Module):
    """Two layers. Tests look for a line of the second."""

    def __init__(self) -> None:
        self.first, self.second = Linear(4, 4), Linear(4, 2)

    def forward(self, x: tt.Tensor) -> tt.Tensor:
        return self.second(tt.sort(self.first(x)))


def test_an_op_that_is_not_known_is_named_with_its_module_and_line() -> None:
    model = Layers()
    said = refusal(model, known=[tt.linear], model=model)
    line = Layers.forward.__code__.co_firstlineno + 1
    assert said == f"the op argsort is not supported here: the model ({__file__}:{line}) calls it"
    said = refusal(model, known=[], model=model)
    assert said.startswith("the op linear is not supported here: first (")


@op()
def exp(x: Any) -> Any:
    """It has the name of another op."""
    return x + 1


def test_ops_are_known_by_identity_and_not_by_name() -> None:
    assert recorded(tt.exp, known=[tt.exp]).calls[0].op is tt.exp
    assert "the op exp is not supported here" in refusal(exp, known=[tt.exp])


def test_a_fused_op_is_recorded_as_its_reference_where_it_is_not_known() -> None:
    silu = activations._silu
    assert [call.op for call in recorded(tt.silu, known=[silu]).calls] == [silu]
    plain = [tt.abs, tt.greater, tt.where, tt.sigmoid, tt.multiply, tt.relu]
    calls = recorded(tt.silu, known=plain).calls
    assert {call.op for call in calls} == set(plain)


def test_an_opaque_function_is_a_call_with_its_objects() -> None:
    seen: list[int] = []

    def noted(x: Any, notes: list[int], count: int) -> Any:
        notes.append(count)
        return x * count

    call = only_call(lambda x: opaque(noted)(x, seen, x.shape[1]))
    assert call.op is noted
    assert call.arguments["count"] == LENGTH
    assert len(seen) == 9  # with three runs of larger sizes that are not recorded
    assert "the op noted is not supported here" in refusal(lambda x: opaque(noted)(x, seen, 1), known=[])


# --------------------------------------------------------------------------------------------------------- constants


def test_parameters_have_their_names() -> None:
    model = Layers()
    recording = recorded(lambda x: model.second(model.first(x)), model=model)
    assert set(recording.constants) == {f"{layer}.{name}" for layer in ("first", "second") for name in ("weight", "bias")}
    value, array = recording.constants["second.weight"]
    np.testing.assert_array_equal(array, model.second.weight.numpy())
    assert recording.calls[1].arguments["weight"] == value
    where = recording.calls[1].where
    assert (where.module, where.file) == ("second", __file__)  # the line that called the layer


def test_arrays_that_depend_on_the_sizes_and_can_be_made_again() -> None:
    made, _ = recorded(lambda x: x[0, :, 0] * tt.arange(1, x.shape[1] + 1)).calls[-2:]
    assert made.op is creation.arange
    assert made.arguments == {"start": 1, "stop": Size(1, (("length", 1),)), "dtype": np.dtype("int64")}
    made, _ = recorded(lambda x: x + tt.full((x.shape[1], 1), 3.0)).calls
    assert made.op is creation.full
    assert made.arguments == {"shape": (LENGTH, 1), "value": 3.0, "dtype": np.dtype("float32")}
    made, _ = recorded(lambda x: tt.where(tt.causal_mask(x.shape[1], x.shape[1] + 2)[:, :1], x, 0.0)).calls[-3::2]
    assert made.op is causal_mask
    assert made.arguments == {"queries": LENGTH, "keys": Size(2, (("length", 1),))}
    assert causal_array(2, 3).tolist() == [[True, True, False], [True, True, True]]


def test_an_array_that_is_always_the_same() -> None:
    recording = recorded(lambda x: x * tt.tensor([1.0, 2.0, 3.0, 4.0]))
    ((value, array),) = recording.constants.values()
    assert array.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert recording.calls[0].arguments["y"] == value


def test_arrays_that_depend_on_the_sizes_and_are_of_no_known_form() -> None:
    assert "gets an array of shape (5,) that no op made and that is another for other sizes" in refusal(
        lambda x: x[0, :, 0] * tt.linspace(0.0, 1.0, x.shape[1])
    )


def test_arrays_that_belong_to_no_tensor() -> None:
    said = refusal(lambda x: tt.where(xp.ones(4, dtype=bool), x, 0.0))
    assert said == "the function: an op gets an array that no op made: compute it with ops on tensors"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: tt.tensor(x.numpy()),
        lambda x: x * float(x.max()),
    ],
)
def test_values_that_are_read_outside_of_ops(function: Callable[..., Any]) -> None:
    assert "the values of a tensor are read outside of ops" in refusal(function)
