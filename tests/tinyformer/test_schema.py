"""Values of JSON files and dataclasses, checked against type hints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import pytest

from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.settings import check_fields, read_dataclass, read_value


@dataclass(frozen=True)
class Row:
    step: int
    loss: float | None = None


@dataclass(frozen=True)
class Model:
    width: int
    rate: float = 0.5
    bias: bool = False
    name: str = "x"
    limit: int | None = None
    rows: list[Row] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)


NEW = "a field that this version does not know: remove it if you added it, or use the version that wrote it, or a later one"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# ---------------------------------------------------------------------------------------------------------- read_value


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, 3, 3),
        (int, -(10**30), -(10**30)),
        (float, 0.5, 0.5),
        (float, 3, 3.0),
        (bool, True, True),
        (str, "", ""),
        (None, None, None),
        (type(None), None, None),
        (Any, {"a": [1]}, {"a": [1]}),
        (int | None, None, None),
        (Optional[int], 4, 4),  # noqa: UP045 - the older spelling is read, too
        (int | str, "3", "3"),
        (int | float, 3, 3),
        (int | float, 3.5, 3.5),
        (list[int], [], []),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (list[str] | None, ["a"], ["a"]),
        (tuple[int, float], [1, 2], (1, 2.0)),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
        (list[tuple[int, float, float]], [[1, 2, 3.5]], [(1, 2.0, 3.5)]),
        (Row, {"step": 3}, Row(3)),
        (list[Row], [{"step": 3, "loss": 1}], [Row(3, 1.0)]),
        (Row | None, {"step": 3}, Row(3)),
        (Row | None, None, None),
    ],
)
def test_values_that_fit(kind: Any, value: Any, expected: Any) -> None:
    found = read_value(kind, value, "it")
    assert found == expected
    assert type(found) is type(expected)
    assert not isinstance(expected, (list, tuple)) or [type(x) for x in found] == [type(x) for x in expected]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, 2.0, "it must be an integer, got 2.0"),
        (int, True, "it must be an integer, got True"),
        (int, "3", "it must be an integer, got '3'"),
        (int, None, "it must be an integer, got None"),
        (int, [3], r"it must be an integer, got \[3\]"),
        (float, True, "it must be a finite number, got True"),
        (float, math.nan, "it must be a finite number, got nan"),
        (float, math.inf, "it must be a finite number, got inf"),
        (float, -math.inf, "it must be a finite number, got -inf"),
        pytest.param(float, 10**400, r"it must be a finite number, got 1000+\.\.\.$", id="huge"),
        (float, "1.0", "it must be a finite number, got '1.0'"),
        (bool, 1, "it must be true or false, got 1"),
        (bool, "true", "it must be true or false, got 'true'"),
        (str, 3, "it must be text, got 3"),
        (str, None, "it must be text, got None"),
        (None, 0, "it must be null, got 0"),
        (int | None, "3", "it must be an integer or null, got '3'"),
        (int | None, False, "it must be an integer or null, got False"),
        (list[int], {"0": 1}, "it must be a list, got {'0': 1}"),
        (list[int], "abc", "it must be a list, got 'abc'"),
        (list[int], [1, "2"], r"it\[1\] must be an integer, got '2'"),
        (tuple[int, float], [1], r"it must be a list of 2, got \[1\]"),
        (tuple[int, float], [1, 2, 3], r"it must be a list of 2, got \[1, 2, 3\]"),
        (tuple[int, float], [1, None], r"it\[1\] must be a finite number, got None"),
        (dict[str, int], [1], r"it must be an object, got \[1\]"),
        (dict[str, int], {"a": 1.5}, r"it\['a'\] must be an integer, got 1.5"),
        (list[Row], [{"step": 1}, {"step": "2"}], r"it\[1\]\.step must be an integer, got '2'"),
        (list[Row], [{"step": 1, "loss": "low"}], r"it\[0\]\.loss must be a finite number or null, got 'low'"),
        (list[Row], [3], r"it\[0\] must be an object of settings, got 3"),
        (Row | None, 3, "it must be an object of settings or null, got 3"),
        (int, "x" * 1000, r"it must be an integer, got 'x{36}\.\.\.$"),
    ],
)
def test_values_that_do_not(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as caught:
        read_value(kind, value, "it")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("make", [lambda: 10**5000, lambda: nested(10_000)])  # made here: no test could be named by them
def test_values_too_large_to_show(make: Callable[[], Any]) -> None:
    for kind in (float, str):
        with pytest.raises(UserError, match=r"^it must be .*, got (an int|a list) that is too large to show$"):
            read_value(kind, make(), "it")


# ------------------------------------------------------------------------------------------------------ read_dataclass


def test_a_dataclass_of_everything() -> None:
    saved = {"width": 3, "rate": 1, "bias": True, "name": "ö", "limit": 4, "rows": [{"step": 1, "loss": 2}], "more": {"a": []}}
    found = read_dataclass(Model, json.loads(json.dumps(saved)))
    assert found == Model(3, 1.0, True, "ö", 4, [Row(1, 2.0)], {"a": []})
    assert isinstance(found.rate, float)
    assert read_dataclass(Model, {"width": 3}) == Model(3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "model.width is missing"),
        ({"rate": 0.5}, "model.width is missing"),
        ({"width": 3, "depth": 2}, f"model.depth is 2, {NEW}"),
        ({"width": 3, "names": "y"}, f"model.names is 'y', {NEW.replace(':', ' (was model.name meant?):', 1)}"),
        ({"width": 3.0}, "model.width must be an integer, got 3.0"),
        ({"width": 3, "rate": True}, "model.rate must be a finite number, got True"),
        ({"width": 3, "rows": [{}]}, "model.rows[0].step is missing"),
        ({"width": 3, "rows": [{"step": 1, "end": 2}]}, f"model.rows[0].end is 2, {NEW}"),
        ([], "model must be an object of settings, got []"),
        (None, "model must be an object of settings, got None"),
    ],
)
def test_an_object_that_is_no_such_dataclass(value: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_dataclass(Model, value, "model")
    assert str(caught.value) == message
    with pytest.raises(UserError) as caught:  # and without a name
        read_dataclass(Model, value)
    assert str(caught.value) == message.replace("model.", "").replace("model must", "it must")


# -------------------------------------------------------------------------------------------------------- check_fields


@dataclass
class Checked:
    number: Any = 1
    steps: int = 2
    rate: float = 0.5
    bias: bool = False
    name: str = "x"
    limit: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def test_fields_that_fit() -> None:
    Checked(number=object(), steps=10**30, rate=3, bias=True, name="", limit=5)
    Checked(steps=np.int64(3), rate=np.float32(0.5))  # numbers, if not Python's


@pytest.mark.parametrize(
    ("field_", "value", "message"),
    [
        ("steps", 2.0, "steps must be an integer, got 2.0"),
        ("steps", True, "steps must be an integer, got True"),
        ("steps", "2", "steps must be an integer, got '2'"),
        ("steps", None, "steps must be an integer, got None"),
        ("rate", math.nan, "rate must be a finite number, got nan"),
        ("rate", math.inf, "rate must be a finite number, got inf"),
        ("rate", np.float32("nan"), "rate must be a finite number, got "),
        pytest.param("rate", 10**400, "rate must be a finite number, got 1", id="huge"),
        ("rate", "0.5", "rate must be a finite number, got '0.5'"),
        ("bias", 0, "bias must be true or false, got 0"),
        ("name", 5, "name must be text, got 5"),
        ("limit", 5.0, "limit must be an integer or null, got 5.0"),
        ("limit", False, "limit must be an integer or null, got False"),
    ],
)
def test_fields_that_do_not(field_: str, value: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        Checked(**{field_: value})
    assert str(caught.value).startswith(message)
    assert caught.value.names == (field_,)
