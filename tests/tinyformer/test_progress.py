"""How far a long task is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tinyformer.common import progress
from tinyformer.common.progress import Lines, TerminalBar, show_progress

TASK = """
from tinyformer.common.progress import show_progress
with show_progress("training", 6, "step", initial=2) as bar:
    for step in range(3, 7):
        bar.update()
        if step % 2 == 0:
            bar.set_postfix_str(f"loss {step}.5")
            bar.write(f"step {step} is kept")
"""


class Clock:
    """A clock that advances on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def steps(lines: Lines, clock: Clock, count: int, seconds: float) -> None:
    for _ in range(count):
        clock.now += seconds
        lines.update()


# ------------------------------------------------------------------------------------------------------- plain lines


def test_a_line_for_each_thing_to_show(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("training", 2000, "step")
    steps(lines, clock, 10, 0.5)
    assert capsys.readouterr().err == ""
    lines.set_postfix_str("loss 4.125")
    steps(lines, clock, 10, 1.5)
    assert capsys.readouterr().err == (
        "training: step 10 of 2,000, loss 4.125, 16:35 left\n"  # 1990 steps of half a second
        "training: step 17 of 2,000, 30:08 left\n"  # more than ten seconds without anything to show
    )
    lines.set_postfix_str("loss 3")
    assert capsys.readouterr() == ("", "training: step 20 of 2,000, loss 3, 33:00 left\n")


def test_what_was_done_before_does_not_count_for_the_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("training", 100, "step", initial=60)
    lines.set_postfix_str("loss 1")
    steps(lines, clock, 2, 3.0)
    lines.set_postfix_str("loss 2")
    assert capsys.readouterr().err == "training: step 60 of 100, loss 1\ntraining: step 62 of 100, loss 2, 01:54 left\n"


def test_time_spent_on_something_else_does_not_count_either(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("training", 100, "step")
    steps(lines, clock, 2, 1.0)
    clock.now += 500.0  # an evaluation
    lines.unpause()
    steps(lines, clock, 2, 1.0)
    assert capsys.readouterr().err.splitlines()[-1] == "training: step 3 of 100, 01:37 left"
    lines.set_postfix_str("loss 2")
    assert capsys.readouterr().err == "training: step 4 of 100, loss 2, 01:36 left\n"


def test_an_unknown_total(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("reading", None, "line")
    clock.now += 1.0
    lines.update(1500)
    lines.set_postfix_str("3 files")
    assert capsys.readouterr().err == "reading: line 1,500, 3 files\n"


def test_lines_to_be_kept_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("training", 5, "step") as lines:
        assert isinstance(lines, Lines)
        lines.write("step 1: good")
    assert capsys.readouterr() == ("step 1: good\n", "")


def test_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1.0)
    with show_progress("translating", 3, "sentence", quiet=True) as bar:
        for _ in range(3):
            bar.update()
            bar.set_postfix_str("so far")
            bar.unpause()
    assert capsys.readouterr() == ("", "")
    with show_progress("translating", 3, "sentence") as bar:
        bar.update()
    assert capsys.readouterr().err.startswith("translating: sentence 1 of 3, 00:00 left\n")


def test_without_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert isinstance(show_progress("training", 3, "step"), Lines)


def test_a_line_in_a_file_is_no_wider_than_a_page(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("training", 1_000_000, "step", initial=999_000)
    steps(lines, clock, 1, 0.5)
    lines.set_postfix_str("loss 4.327, val 4.325, 1008 ms/step, 197,681 tokens/s")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "training: step 999,001 of 1,000,000, loss 4.327, val 4.325, 08:19 left"


# ------------------------------------------------------------------------------------------------------- in a notebook


@pytest.mark.parametrize(("shell", "widgets"), [("kernel", True), ("kernel", False), ("terminal", True), (None, True)])
def test_a_notebook_with_widgets_has_a_bar(shell: str | None, widgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython of a terminal has no kernel; without ipywidgets there are lines, and no warning."""

    class Bar:
        def __init__(self, **settings: object):
            self.settings = settings

    now = {"kernel": SimpleNamespace(kernel=1), "terminal": SimpleNamespace(), None: None}[shell]
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: now))
    monkeypatch.setitem(sys.modules, "tqdm.notebook", SimpleNamespace(tqdm=Bar))
    monkeypatch.setattr(progress, "find_spec", lambda name: name if widgets else None)
    bar = show_progress("training", 6, "step", initial=2)
    assert isinstance(bar, Bar if shell == "kernel" and widgets else Lines)
    if isinstance(bar, Bar):
        assert (bar.settings["total"], bar.settings["initial"], bar.settings["desc"]) == (6, 2, "training")


# ------------------------------------------------------------------------------------------- a pipe, and a terminal


def test_a_pipe_gets_lines_and_no_carriage_return() -> None:
    result = subprocess.run([sys.executable, "-c", TASK], capture_output=True, check=True)
    assert result.stdout.decode().splitlines() == ["step 4 is kept", "step 6 is kept"]
    assert b"\r" not in result.stdout + result.stderr
    assert result.stderr.decode().splitlines() == [
        "training: step 4 of 6, loss 4.5, 00:00 left",
        "training: step 6 of 6, loss 6.5, 00:00 left",
    ]


def test_a_file_gets_the_same(tmp_path: Path) -> None:
    with open(tmp_path / "log.txt", "wb") as log:
        subprocess.run([sys.executable, "-c", TASK], stdout=log, stderr=subprocess.STDOUT, check=True)
    assert (tmp_path / "log.txt").read_text().splitlines() == [
        "training: step 4 of 6, loss 4.5, 00:00 left",
        "step 4 is kept",
        "training: step 6 of 6, loss 6.5, 00:00 left",
        "step 6 is kept",
    ]


def test_a_terminal_gets_a_bar() -> None:
    pty, termios, fcntl = (pytest.importorskip(name) for name in ("pty", "termios", "fcntl"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    with subprocess.Popen([sys.executable, "-c", TASK], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = io.BytesIO()
        try:
            while piece := os.read(ours, 1000):
                shown.write(piece)
        except OSError:  # as Linux tells the end of a terminal
            pass
        os.close(ours)
        assert process.stdout is not None
        assert process.stdout.read().decode().split("\n")[-3:] == ["step 4 is kept", "step 6 is kept", ""]
        assert process.wait() == 0
    last = [line for line in shown.getvalue().decode().replace("\n", "\r").split("\r") if line.strip()][-1]
    assert last.startswith("training: 100%")
    assert "6/6" in last
    assert "loss 6.5" in last
    assert b"training: step 4 of 6" not in shown.getvalue()


NUMBERS = "loss 4.327, val 4.325, 1008 ms/step, 197,681 tokens/s"


@pytest.mark.parametrize("total", [2000, None])
@pytest.mark.parametrize("columns", [20, 40, 60, 61, 62, 70, 79, 80, 81, 100, 120, 200])
def test_a_bar_never_cuts_a_number(columns: int, total: int | None) -> None:
    how = {"prefix": "training", "unit": "step", "postfix": NUMBERS}
    bar = TerminalBar.format_meter(1234, total, 1244.0, columns, **how)
    assert len(bar) <= columns and (not bar.startswith("training") or bar.startswith("training: "))
    shown = [part.strip() for part in bar.rstrip("]").split("[")[-1].split(", ")]
    whole = {"loss 4.327", "val 4.325", "1008 ms/step", "197,681 tokens/s", "1.01s/step"}
    assert all(part in whole for part in shown[1:]), bar
    assert "1234" in bar
    if total and columns >= 60:
        assert shown[1:3] == ["loss 4.327", "val 4.325"] or len(shown) > 3, bar
    assert "tokens/s" in bar or columns < 100


def test_a_terminal_that_does_not_know_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"prefix": "training: ", "unit": "step", "postfix": NUMBERS}
    for columns in (40, 60, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert TerminalBar.format_meter(1234, 100_000, 1244.0, 0, **how) == (
            TerminalBar.format_meter(1234, 100_000, 1244.0, columns - 1, **how)
        )
