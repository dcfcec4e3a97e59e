"""Whatever is asked, of all questions of the table: the answer is JSON or a refusal in a line, and it comes soon."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import struct
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from explored import RUNS, VALUES

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.explore.serving.server import _as_json, _read_json
from tinyformer.explore.views.questions import QUESTIONS, ask
from tinyformer.explore.views.subjects import Subjects

# Numbers on both sides of limits, and such as no limit foresees.
LIMITS = [127, 128, 129, 199, 201, 5_001, 20_001, 65_537, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, -1]
OTHERS = ["", "__class__", "decoder", "hidden", "../..", "blocks.99.attention"]  # names that most models have not


class Objects:
    """JSON objects that a question could be asked: mostly what its dataclass's type hints allow, about what the models have."""

    def __init__(self, subjects: Subjects):
        self.kinds = {name: subjects.get(name).kind for name in subjects.names}
        self.names = {model: _names_in(subjects, model) for model in subjects.names}
        self.model = ""  # what is asked about, mostly
        self.rng = random.Random()

    def about_a_model(self, kind: Any) -> dict[str, Any]:
        """An object of a dataclass, whose parts are mostly about the same model."""
        self.model = self.rng.choice(sorted(self.kinds))
        return self.of(kind)

    def of(self, kind: Any) -> dict[str, Any]:
        """An object of a dataclass. Now and then a field is missing, or one is there that is not known."""
        hints = typing.get_type_hints(kind)
        made = {field.name: self.value(hints[field.name], field.name) for field in dataclasses.fields(kind)}
        if isinstance(made.get("model"), str) and "source" in made and self.mostly() and isinstance(made["source"], list):
            made["source"] = self.tokens() if self.kinds.get(made["model"]) == "translation" else []
        if not self.mostly(30) and made:
            del made[self.rng.choice(sorted(made))]
        return made if self.mostly(30) else {**made, "__class__": self.wrong()}

    def value(self, kind: Any, name: str) -> Any:
        """A value of a type hint; now and then another one."""
        rng = self.rng
        if not self.mostly(40):
            return self.wrong()
        if dataclasses.is_dataclass(kind):
            return self.of(kind)
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            return self.value(rng.choice(typing.get_args(kind)), name)
        if typing.get_origin(kind) is list:
            if typing.get_args(kind) == (int,):
                return (
                    self.tokens() if self.mostly() else rng.choice([rng.choices([*LIMITS, 1], k=rng.randrange(7)), [1] * 2_100])
                )
            return [self.value(typing.get_args(kind)[0], name) for _ in range(rng.randrange(4))]
        if kind is str:
            own = [self.model] if name == "model" else self.names[self.model].get(name) or ["the fox"]
            return rng.choice(own) if self.mostly() else rng.choice([rng.choice(OTHERS), self.text(8)])
        if kind is int:
            return rng.randrange(5) if self.mostly() else rng.choice(LIMITS)
        if kind is float:
            return rng.uniform(0.1, 1) if self.mostly() else self.number()
        return rng.random() < 0.5 if kind is bool else None

    def mostly(self, of: int = 20) -> bool:
        """Draw True, except for one time in this many."""
        return self.rng.randrange(of) > 0

    def tokens(self) -> list[int]:
        """Token ids that all models know."""
        return self.rng.choices(range(15), k=self.rng.randrange(1, 21))

    def text(self, longest: int) -> str:
        """Any characters."""
        ranges = (range(32, 127), range(0xD800), range(0xE000, 0x110000))
        return "".join(chr(self.rng.choice(self.rng.choice(ranges))) for _ in range(self.rng.randrange(longest + 1)))

    def number(self) -> float:
        """Draw a finite number of any size, or a special one."""
        (found,) = struct.unpack("d", self.rng.randbytes(8))
        return self.rng.choice([found if math.isfinite(found) else 0.5, 0.0, -0.0, 5e-324, 1e308, 1.0, 1e-9, -2.0])

    def wrong(self) -> Any:
        """What hardly any field takes."""
        rng = self.rng
        return rng.choice(
            [None, True, False, self.number(), rng.choice(LIMITS), rng.choice(LIMITS), self.text(4), [], {}, [[1]]]
        )


def _names_in(subjects: Subjects, model: str) -> dict[str, list[str]]:
    """The names of a model's parts, by the field in which questions ask for them."""
    source = [1, 2] if subjects.get(model).kind == "translation" else []
    passage = {"model": model, "ids": [1, 2, 3], "source": source}
    found: dict[str, Any] = {}
    for name, asked in (
        ("attention", {"passage": passage}),
        ("inside", {"passage": passage}),
        ("position_tables", {"model": model}),
    ):
        found |= typing.cast(dict[str, Any], ask(subjects, name, asked))
    fields = {"layer": "layers", "stack": "stacks", "kind": "states", "table": "tables"}
    return {field: [one["name"] for one in found[key]] for field, key in fields.items()} | {"head": ["mean", "rollout"]}


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    folder = tmp_path_factory.mktemp("runs")
    return Subjects([make(folder / name) for name, make in RUNS.items()])


@pytest.fixture(scope="module")
def objects(subjects: Subjects) -> Objects:
    return Objects(subjects)


MOST_LINES = 3  # of a stream that are read, before it is given up on
TRIES = 60 if tt.backend_name == "numpy" else 15  # what another kind of array cannot do shows in the first few


@pytest.mark.parametrize("name", QUESTIONS)
def test_whatever_is_asked_is_answered_or_refused(subjects: Subjects, objects: Objects, name: str) -> None:
    """What a question is asked is made of the type hints of its dataclass, so new questions are tried, too."""
    kind = typing.get_type_hints(QUESTIONS[name])["asked"]
    objects.rng.seed(name)
    for _ in range(TRIES):
        asked = json.loads(json.dumps(objects.about_a_model(kind)))
        try:
            answer = ask(subjects, name, asked)
            lines = answer if isinstance(answer, Iterator) else iter([answer])
            for line, _ in zip(lines, range(MOST_LINES)):
                assert isinstance(line, bytes) or json.dumps(line, allow_nan=False)
        except UserError as error:
            assert 0 < len(str(error)) < 1000, asked


# ------------------------------------------------------------------------------------------- one surprise at a time


@pytest.mark.parametrize("value", VALUES)
def test_no_value_of_any_field_is_a_fault(subjects: Subjects, value: str) -> None:
    """Each value in the place of each part of each question that the page asks."""
    for name in QUESTIONS:
        example = example_of(name, subjects.names[0])
        for path in _paths(example):
            body = json.dumps(_with(example, path, "HERE")).replace('"HERE"', value)
            try:
                asked = _read_json(body.encode())
            except ValueError:  # no JSON object, which the server refuses
                continue
            with contextlib.suppress(Refusal):
                answered(subjects, name, asked)


class Refusal(Exception):
    """An invalid request, rejected in a line or two."""


def answered(subjects: Subjects, name: str, asked: Any) -> None:
    """Ask, and read all of the answer."""
    try:
        answer = ask(subjects, name, asked)
        for line in answer if isinstance(answer, Iterator) else [answer]:
            assert isinstance(line, bytes) or _as_json(line)
    except (UserError, OSError, MemoryError) as error:
        assert len(str(error).splitlines()) <= 2 and len(str(error)) < 1000, asked
        raise Refusal from None


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("source", [[], [1, 2, 3]])
def test_every_question_about_every_kind_of_model_is_answered_or_refused(
    subjects: Subjects, name: str, source: list[int]
) -> None:
    for model in subjects.names:
        example = example_of(name, model)
        if "passage" in example:
            example["passage"]["source"] = source
        with contextlib.suppress(Refusal):
            answered(subjects, name, example)


def example_of(question: str, model: str) -> dict[str, Any]:
    """What a question could be asked about a model."""
    return _object_of(typing.get_type_hints(QUESTIONS[question])["asked"], model)


def _object_of(kind: Any, model: str) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: _value_of(field.name, hints[field.name], model) for field in dataclasses.fields(kind)}


def _value_of(name: str, kind: Any, model: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _object_of(kind, model)
    if kind is str:
        return model if "model" in name or "other" in name else "the fox"
    if name == "source" and kind == list[int]:
        return []
    known = {int: 1, float: 0.5, bool: False, list[int]: [1, 2, 3], list[str]: [model], list[float]: [0.5]}
    if kind in known:
        return known[kind]
    parts = [part for part in typing.get_args(kind) if part is not type(None)]
    if typing.get_origin(kind) is list:
        return [_value_of(name, parts[0], model)]
    return _value_of(name, parts[0], model)  # one of several types


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in _paths(item, (*path, key)))] if path or items else []


def _with(value: Any, path: tuple[Any, ...], changed: Any) -> Any:
    """A copy of the value with another one at a place."""
    copied = json.loads(json.dumps(value))
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    if path:
        inner[path[-1]] = changed
        return copied
    return changed


@pytest.mark.parametrize("source", [[-1], [10_000], [1, 2**31]])
def test_a_source_that_the_model_does_not_know_is_refused(subjects: Subjects, source: list[int]) -> None:
    for model in subjects.names:
        if subjects.get(model).kind == "translation":
            for name in ("inside", "next_token", "attention"):
                with pytest.raises(UserError, match=r"vocabulary|integers"):
                    ask(subjects, name, {"passage": {"model": model, "ids": [1, 2], "source": source}})
