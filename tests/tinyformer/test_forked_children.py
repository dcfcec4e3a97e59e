"""Forked children of a program that evaluates, shows its progress or trains."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from forking import in_a_fork, needs_fork

import tinytensor as tt
from tinyformer.common.progress import TerminalBar, stop_on_signals
from tinyformer.models.evaluating import evaluating


def while_it_runs(other: Callable[[threading.Event], None], then: Callable[[], Any]) -> Any:
    """Return the result of ``then`` while another thread is inside ``other``, which waits for a signal to end."""
    ended = threading.Event()
    thread = threading.Thread(target=other, args=(ended,))
    thread.start()
    time.sleep(0.05)
    try:
        return then()
    finally:
        ended.set()
        thread.join()


@needs_fork
def test_a_model_that_another_thread_evaluates_is_in_training_mode_in_a_child() -> None:
    model = tt.nn.Sequential(tt.nn.Linear(2, 2), tt.nn.Dropout(0.5))

    def evaluate(ended: threading.Event) -> None:
        with evaluating(model):
            ended.wait(30)

    def child() -> bool:
        trains = model.training and model[1].training
        with evaluating(model):
            evaluates = not model[1].training
        return trains and evaluates and model[1].training

    assert while_it_runs(evaluate, lambda: in_a_fork(child) and not model.training)
    with evaluating(model):
        assert in_a_fork(lambda: not model.training)
    assert model.training


@needs_fork
def test_a_child_draws_a_bar_while_its_parent_draws_one() -> None:
    TerminalBar(total=1, file=io.StringIO()).close()

    def draw(ended: threading.Event) -> None:
        with TerminalBar.get_lock().th_lock:
            ended.wait(30)

    def draw_for_a_moment(ended: threading.Event) -> None:
        with TerminalBar.get_lock():  # of which one part is shared by all processes: the child waits for it
            ended.wait(0.3)

    def child() -> bool:
        with TerminalBar(total=2, file=io.StringIO()) as bar:
            bar.update()
        return bar.n == 1

    assert while_it_runs(draw, lambda: in_a_fork(child, seconds=5))
    assert while_it_runs(draw_for_a_moment, lambda: in_a_fork(child, seconds=5))
    shared = TerminalBar.get_lock().mp_lock
    assert shared.acquire(timeout=5)  # the child has given it back
    shared.release()


@needs_fork
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_does_to_a_child_what_it_did_before_training(number: signal.Signals) -> None:
    """Pools of processes end their workers by SIGTERM, and wait for them."""
    told: list[str] = []

    def child() -> bool:
        before = time.monotonic()
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        except KeyboardInterrupt:
            return number == signal.SIGINT and time.monotonic() - before < 4
        return False

    with stop_on_signals(told.append):
        assert in_a_fork(child) == (number == signal.SIGINT)
        assert told == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert told == ["SIGTERM"]
