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
from collections.abc import Iterator
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
INTEGERS = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([127, 128, 129, 199, 201, 5_001, 20_001, 65_537, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400]),
)
FLOATS = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, -0.0, 5e-324, 1e308, 1.0, 1e-9]))
# Names of layers, tables, streams and states, some of which the models have.
NAMES = [
    "", "blocks", "blocks.0", "hidden", "cell", "mean", "rollout", "tokens", "__class__", "encoder", "decoder", "positions",
    "decoder.blocks.0.cross_attention", "blocks.0.attention", "target", "learned", "rotary",
]  # fmt: skip
WRONG = st.one_of(st.none(), st.booleans(), FLOATS, INTEGERS, st.text(max_size=4), st.just([]), st.just({}), st.just([[1]]))
IDS = st.one_of(
    st.lists(st.integers(0, 14), min_size=1, max_size=30),
    st.lists(INTEGERS, max_size=6),
    st.just([1] * 2_100),
)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    folder = tmp_path_factory.mktemp("runs")
    return Subjects([make(folder / name) for name, make in RUNS.items()])


def values(kind: Any, name: str, models: list[str]) -> st.SearchStrategy[Any]:
    """Values of a type hint, and now and then others."""
    return st.one_of(*[_right(kind, name, models)] * 12, WRONG)


def _right(kind: Any, name: str, models: list[str]) -> st.SearchStrategy[Any]:
    if dataclasses.is_dataclass(kind):
        return objects(kind, models)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return st.one_of(*[_right(part, name, models) for part in typing.get_args(kind)])
    if typing.get_origin(kind) is list:
        if name == "source":
            return st.one_of(st.just([]), IDS)
        return IDS if typing.get_args(kind) == (int,) else st.lists(_right(typing.get_args(kind)[0], name, models), max_size=4)
    if kind is str:
        texts = st.one_of(st.sampled_from(NAMES), st.text(max_size=8), st.just("the fox"))
        return st.one_of(st.sampled_from(models), st.sampled_from(models), texts) if name == "model" else texts
    return {int: INTEGERS, float: FLOATS, bool: st.booleans(), type(None): st.none()}[kind]


def objects(kind: Any, models: list[str]) -> st.SearchStrategy[Any]:
    """JSON objects for a dataclass. Fields may be missing, and there may be others."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: values(hints[field.name], field.name, models) for field in dataclasses.fields(kind)}
    has_default = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    }
    needed = {name: value for name, value in fields.items() if name not in has_default}
    optional = {name: value for name, value in fields.items() if name in has_default}
    made = st.fixed_dictionaries(needed, optional=optional)
    return st.one_of(*[made] * 12, st.fixed_dictionaries({}, optional={**fields, "__class__": WRONG}))


MOST_LINES = 3  # of a stream that are read, before it is given up on


@pytest.mark.parametrize("name", QUESTIONS)
def test_whatever_is_asked_is_answered_or_refused(subjects: Subjects, name: str) -> None:
    """What a question is asked is made of the type hints of its dataclass, so new questions are tried, too."""
    kind = typing.get_type_hints(QUESTIONS[name])["asked"]

    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # what fails here is small
        suppress_health_check=list(HealthCheck),
    )
    @given(objects(kind, subjects.names))
    def try_it(asked: Any) -> None:
        try:
            answer = ask(subjects, name, json.loads(json.dumps(asked)))
            if isinstance(answer, Iterator):
                for line, _ in zip(answer, range(MOST_LINES)):
                    json.dumps(line, allow_nan=False)
                answer.close()  # type: ignore[attr-defined]
            else:
                json.dumps(answer, allow_nan=False)
        except UserError as error:
            assert str(error) and len(str(error)) < 1000

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
        for name, asked in (("next_token", {"passage": passage}), ("embeddings", {"model": subjects.names[0]})):
            with begin(started, name, asked) as connection:
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
