"""Turns: who waits for the models gets them in order, and long questions let others in between."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from explored import gpt_run, recurrent_run, translation_run

from tinyformer.common.errors import UserError
from tinyformer.explore.serving.turns import Turns
from tinyformer.explore.views import subjects as subjects_module
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects


def test_turns_come_in_order() -> None:
    lock, order = Turns(), []

    def take(number: int) -> None:
        with lock, lock:  # its owner may take it again
            order.append(number)

    with lock:
        threads = [threading.Thread(target=take, args=(number,)) for number in range(5)]
        for number, thread in enumerate(threads):
            thread.start()
            while len(lock._waiting) <= number:
                time.sleep(0.001)
        lock.let_others()
        order.append(5)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4, 5]


def test_retaking_a_turn_waits_for_others() -> None:
    lock, turns = Turns(), []

    def work(name: str) -> None:
        for _ in range(20):
            with lock:
                turns.append(name)
                time.sleep(0.001)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    with lock:
        for thread in threads:
            thread.start()
        while len(lock._waiting) < 2:
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert "".join(turns) == "ab" * 20


def test_a_check_ends_the_work_and_leaves_the_lock_free() -> None:
    lock, checked = Turns(), []

    def check() -> None:
        checked.append(1)
        if len(checked) == 3:
            raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError), lock.unless(check), lock:
        for _ in range(5):
            with lock:
                lock.let_others()
    assert len(checked) == 3
    thread = threading.Thread(target=lock.acquire, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


def test_short_work_waits_for_one_long_work_at_most(tmp_path: Path) -> None:
    subjects, order = Subjects([gpt_run(tmp_path / "run")]), []

    def long(number: int) -> None:
        with subjects.for_long(), subjects.for_long():
            order.append(number)

    def short() -> None:
        with subjects.lock:
            order.append(-1)

    with subjects.lock:
        threads = [threading.Thread(target=long, args=(number,)) for number in range(3)] + [threading.Thread(target=short)]
        for number, thread in enumerate(threads):
            thread.start()
            while len(subjects.lock._waiting) + len(subjects._line._waiting) <= number:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == [0, -1, 1, 2]


ONE_PASS: dict[str, dict[str, Any]] = {
    "attention": {},
    "attention_rows": {"layer": "", "head": 0, "first": 0, "count": 1},
    "inside": {},
    "entropies": {"first": 0, "count": 1},
}


@pytest.mark.parametrize(("name", "more"), ONE_PASS.items())
def test_reading_in_one_pass_stands_in_the_line_for_long_work(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run", latest=False)])
    asked = {"passage": {"model": "best", "ids": [1, 2]}, **more}

    def ask_it() -> None:
        with contextlib.suppress(UserError):  # there is no layer of this name
            ask(subjects, name, asked)

    with subjects._line:
        thread = threading.Thread(target=ask_it, daemon=True)
        thread.start()
        end = time.monotonic() + 10
        while not subjects._line._waiting and time.monotonic() < end:
            time.sleep(0.001)
        assert subjects._line._waiting
    thread.join(10)
    assert not thread.is_alive()


LANGUAGE: list[Callable[[Path], Path]] = [
    recurrent_run,
    lambda path: gpt_run(path, latest=False, block_size=5000, positions="rotary"),
]


# Not "inside" of a GPT, which reads the last tokens in one pass.
LONG = [(make, name) for make in LANGUAGE for name in ("next_token", "divergence", "write", "search")]


@pytest.mark.parametrize(("make", "name"), [*LONG, (recurrent_run, "inside")])
def test_others_get_their_turns_while_a_long_text_is_read(
    make: Callable[[Path], Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects = Subjects([make(tmp_path / "run")])
    monkeypatch.setattr(subjects_module, "LONGEST", 64)
    monkeypatch.setattr("tinyformer.explore.views.reading.LONGEST", 64)
    monkeypatch.setattr("tinyformer.explore.views.reading.AT_ONCE", 64)
    monkeypatch.setattr(subjects_module, "AT_ONCE", 64)
    others: list[int] = []
    monkeypatch.setattr(subjects.lock, "let_others", lambda: others.append(1))
    passage = {"model": "best", "ids": [1 + i % 20 for i in range(1000)]}
    more: dict[str, Any] = {"write": {"length": 1}, "search": {"length": 1, "beam": 2}}.get(name, {})
    asked = {"a": passage, "b": passage} if name == "divergence" else {"passage": passage, **more}
    found = ask(subjects, name, asked)
    if not isinstance(found, dict):
        list(found)
    assert len(others) >= 14


@pytest.mark.parametrize("make", LANGUAGE)
def test_a_text_that_is_read_in_parts_has_the_same_answer(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passage = {"model": "best", "ids": [1 + i % 20 for i in range(300)]}
    run = make(tmp_path / "run")
    answers = []
    for at_once in (10_000, 100, 41, 299, 300, 1):
        monkeypatch.setattr(subjects_module, "AT_ONCE", at_once)
        answers.append(ask(Subjects([run]), "next_token", {"passage": passage}))
    for answer in answers[1:]:
        assert [one["id"] for one in answer["best"]] == [one["id"] for one in answers[0]["best"]]
        assert answer["entropy"] == pytest.approx(answers[0]["entropy"], abs=1e-5)


def test_a_gpt_reads_the_last_tokens_of_a_text_that_is_too_long_for_it(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run", latest=False, block_size=300)])
    ids = [1 + i % 20 for i in range(2000)]
    long, short = (ask(subjects, "next_token", {"passage": {"model": "best", "ids": part}}) for part in (ids, ids[-300:]))
    assert long["best"] == short["best"]


def test_what_is_read_in_one_pass_has_a_limit(tmp_path: Path) -> None:
    for architecture in ("transformer", "lstm"):
        subjects = Subjects([translation_run(tmp_path / architecture, architecture)])
        passage = {"model": "best", "ids": [1], "source": [5] * 2049}
        with pytest.raises(UserError, match=r"reads at most 2,048 tokens at once, not 2049: shorten the text"):
            ask(subjects, "next_token", {"passage": passage})


def test_an_abandoned_request_is_cut(tmp_path: Path) -> None:
    subjects = Subjects([recurrent_run(tmp_path / "run")])
    checked: list[int] = []

    def check() -> None:
        checked.append(1)
        if len(checked) == 10:
            raise ConnectionAbortedError

    passage = {"model": "best", "ids": [1] * 20_000}
    with pytest.raises(ConnectionAbortedError), subjects.lock.unless(check):
        ask(subjects, "next_token", {"passage": passage})
    assert len(checked) == 10 and subjects.lock._owner is None
    assert ask(subjects, "next_token", {"passage": {**passage, "ids": [1]}})["possible"] > 0
