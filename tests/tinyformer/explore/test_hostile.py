"""Whatever is asked, of all questions of the table: the answer is JSON or a refusal in a line, and it comes soon."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import time
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from explored import RUNS
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tinyformer.errors import UserError
from tinyformer.explore.questions import QUESTIONS, ask
from tinyformer.explore.server import ExplorerServer
from tinyformer.explore.subjects import Subjects

# Numbers on both sides of limits, and such as no limit foresees.
LIMITS = [127, 128, 129, 199, 201, 5_001, 20_001, 65_537, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, -1]
FLOATS = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, -0.0, 5e-324, 1e308, 1.0, 1e-9]))
WRONG = st.one_of(
    st.none(), st.booleans(), FLOATS, st.sampled_from(LIMITS), st.text(max_size=4), st.just([]), st.just({}), st.just([[1]])
)
TOKENS = st.lists(st.integers(0, 14), min_size=1, max_size=20)  # which all models know
IDS = st.one_of(TOKENS, st.lists(st.sampled_from([*LIMITS, 1]), max_size=6), st.just([1] * 2_100))


Draw = Callable[[st.SearchStrategy[Any]], Any]
OTHERS = ["", "__class__", "decoder", "hidden", "../..", "blocks.99.attention"]  # names that most models have not


class Objects:
    """JSON objects that a question could be asked: mostly what its dataclass's type hints allow, about what the models have."""

    def __init__(self, subjects: Subjects):
        self.kinds = {name: subjects.get(name).kind for name in subjects.names}
        self.names = {model: _names_in(subjects, model) for model in subjects.names}
        self.model = ""  # what is asked about, mostly

    def about_a_model(self, kind: Any, draw: Draw) -> dict[str, Any]:
        """An object of a dataclass, whose parts are mostly about the same model."""
        self.model = draw(st.sampled_from(sorted(self.kinds)))
        return self.of(kind, draw)

    def of(self, kind: Any, draw: Draw) -> dict[str, Any]:
        """An object of a dataclass. Now and then a field is missing, or one is there that is not known."""
        hints = typing.get_type_hints(kind)
        made = {field.name: self.value(hints[field.name], field.name, draw) for field in dataclasses.fields(kind)}
        if isinstance(made.get("model"), str) and "source" in made and rarely(draw) < 18:
            needs = self.kinds.get(made["model"]) == "translation"
            if isinstance(made["source"], list):
                made["source"] = draw(TOKENS) if needs else []
        chance = rarely(draw, 30)
        if chance == 29 and made:
            del made[draw(st.sampled_from(sorted(made)))]
        return made if chance != 28 else {**made, "__class__": draw(WRONG)}

    def value(self, kind: Any, name: str, draw: Draw) -> Any:
        """A value of a type hint; now and then another one."""
        if rarely(draw, 40) == 39:
            return draw(WRONG)
        if dataclasses.is_dataclass(kind):
            return self.of(kind, draw)
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            return self.value(draw(st.sampled_from(typing.get_args(kind))), name, draw)
        if typing.get_origin(kind) is list:
            if typing.get_args(kind) == (int,):
                return draw(TOKENS if rarely(draw) < 18 else IDS)
            return [self.value(typing.get_args(kind)[0], name, draw) for _ in range(draw(st.integers(0, 3)))]
        if kind is str:
            own = [self.model] if name == "model" else self.names[self.model].get(name) or ["the fox"]
            return draw(st.sampled_from(own) if rarely(draw) < 18 else st.one_of(st.sampled_from(OTHERS), st.text(max_size=8)))
        if kind is int:
            return draw(st.integers(0, 4)) if rarely(draw) < 18 else draw(st.sampled_from(LIMITS))
        if kind is float:
            return draw(st.floats(0.1, 1) if rarely(draw) < 18 else FLOATS)
        return draw(st.booleans()) if kind is bool else None


def rarely(draw: Draw, of: int = 20) -> int:
    """A number below ``of``; each is as likely."""
    return draw(st.sampled_from(range(of)))


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


@pytest.mark.parametrize("name", QUESTIONS)
def test_whatever_is_asked_is_answered_or_refused(subjects: Subjects, objects: Objects, name: str) -> None:
    """What a question is asked is made of the type hints of its dataclass, so new questions are tried, too."""
    kind = typing.get_type_hints(QUESTIONS[name])["asked"]

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # what fails here is small
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def try_it(data: st.DataObject) -> None:
        asked = json.loads(json.dumps(objects.about_a_model(kind, data.draw)))
        try:
            answer = ask(subjects, name, asked)
            if isinstance(answer, Iterator):
                for line, _ in zip(answer, range(MOST_LINES)):
                    json.dumps(line, allow_nan=False)
                answer.close()  # type: ignore[attr-defined]
            else:
                json.dumps(answer, allow_nan=False)
        except UserError as error:
            assert 0 < len(str(error)) < 1000, asked

    try_it()


# ------------------------------------------------------------------------------------------------------ wearing it out


@contextlib.contextmanager
def serving(subjects: Subjects) -> Iterator[ExplorerServer]:
    with ExplorerServer(subjects) as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield started
        finally:
            started.shutdown()
            thread.join()


def begin(to: ExplorerServer, name: str, asked: Any, **options: Any) -> socket.socket:
    """A connection that has asked a question, and has read nothing."""
    body = json.dumps(asked)
    head = f"POST /{to.token}/ask/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    connection = socket.socket()
    for option, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
    connection.settimeout(20)
    connection.connect(to.server_address[:2])
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return connection


def everything(connection: socket.socket) -> bytes:
    found = b""
    while part := connection.recv(1 << 16):
        found += part
    return found


def test_streams_that_nobody_reads_hold_nobody_up(subjects: Subjects) -> None:
    passage = {"model": subjects.names[0], "ids": [1, 2, 3]}
    with serving(subjects) as started, contextlib.ExitStack() as stack:
        for _ in range(4):  # each would send some megabytes, and nothing of it is read
            asked = {"passage": passage, "length": 5000}
            stack.enter_context(begin(started, "write", asked, SO_RCVBUF=4096)).recv(12)
        start = time.monotonic()
        quick: list[tuple[str, Any]] = [("next_token", {"passage": passage}), ("embeddings", {"model": subjects.names[0]})]
        for name, what in quick:
            with begin(started, name, what) as connection:
                assert everything(connection).startswith(b"HTTP/1.1 200")
        assert time.monotonic() < start + 10


def test_many_wide_searches_at_once_leave_room_for_others(subjects: Subjects) -> None:
    passage = {"model": subjects.names[0], "ids": [1, 2, 3]}
    with serving(subjects) as started, contextlib.ExitStack() as stack:
        for _ in range(12):
            search = {"passage": passage, "beam": 16, "length": 200}
            stack.enter_context(begin(started, "search", search)).recv(12)
        with begin(started, "next_token", {"passage": passage}) as connection:
            assert everything(connection).startswith(b"HTTP/1.1 200")


def test_pages_that_write_take_turns(subjects: Subjects) -> None:
    passage = {"model": subjects.names[0], "ids": [1, 2, 3]}
    with serving(subjects) as started, contextlib.ExitStack() as stack:
        came: list[list[float]] = [[], [], []]

        def read(connection: socket.socket, times: list[float]) -> None:
            with connection.makefile("rb") as lines:
                times += [time.monotonic() for line in lines if line.startswith(b"{")]

        asked = {"passage": passage, "length": 400}
        readers = [
            threading.Thread(target=read, args=(stack.enter_context(begin(started, "write", asked)), times)) for times in came
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    assert [len(times) for times in came] == [400, 400, 400]
    half = [times[200] for times in came]  # nobody is done before the others have come far
    assert max(half) < min(times[-1] for times in came)


def test_half_a_text_is_left_while_others_are_answered(subjects: Subjects) -> None:
    """A connection that this side has closed for sending still gets its whole answer."""
    passage = {"model": subjects.names[0], "ids": [1, 2, 3]}
    with serving(subjects) as started, begin(started, "next_token", {"passage": passage}) as connection:
        connection.shutdown(socket.SHUT_WR)
        found = everything(connection)
        assert found == b"" or found.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("source", [[-1], [10_000], [1, 2**31]])
def test_a_source_that_the_model_does_not_know_is_refused(subjects: Subjects, source: list[int]) -> None:
    for model in subjects.names:
        if subjects.get(model).kind == "translation":
            for name in ("inside", "next_token", "attention"):
                with pytest.raises(UserError, match=r"vocabulary|integers"):
                    ask(subjects, name, {"passage": {"model": model, "ids": [1, 2], "source": source}})
