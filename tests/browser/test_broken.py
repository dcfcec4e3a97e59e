"""The page when the explorer or the model's files break, and when they are back."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Explorer, Tab, exploring, wait_until
from explored import gpt_run

from tinyformer.explore.views.passages import Passage
from tinyformer.explore.views.subjects import Subjects
from tinyformer.explore.views.writing import Next, next_token
from tinyformer.training.checkpoints import load_checkpoint, save_checkpoint

READ = "#prompt[aria-busy='false']"
NETWORK = "Failed to load resource"  # what the browser itself says of requests that fail
# Starts a question of many answers, and keeps what came of it.
STREAM = """async ([url, name, asked]) => {
  const { stream } = await import(url);
  window.got = [];
  window.ended = "";
  (async () => { for await (const answer of stream(name, asked)) window.got.push(answer); })()
    .then(() => { window.ended = "ended"; }, (error) => { window.ended = error.constructor.name; });
}"""
ASK = """async ([url, name, asked]) => {
  const { ask } = await import(url);
  return ask(name, asked).catch((error) => ({ error: error.message }));
}"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return gpt_run(tmp_path / "gpt", d_model=64)


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """A page that may fail only because of the network."""
    opened = Tab(browser)
    yield opened
    opened.context.close()
    assert [fault for fault in opened.faults if NETWORK not in fault] == []


def ask(page: Any, explorer: Explorer, name: str, **asked: Any) -> Any:
    """What a question of the page is answered."""
    return page.evaluate(ASK, [explorer.address + "api.js", name, asked])


def start_writing(page: Any, explorer: Explorer, **asked: Any) -> None:
    page.evaluate(STREAM, [explorer.address + "api.js", "write", {"length": 5000, **asked}])
    wait_until(page, "window.got.length > 3")


def retype(page: Any, text: str) -> str:
    """The line below the prompt after another text was typed."""
    page.fill("#text", text)
    page.wait_for_selector(READ)
    return str(page.text_content("#counted"))


def test_a_stopped_process_is_waited_for(tab: Tab, run: Path) -> None:
    with exploring(run) as explorer:
        page = tab.open(explorer, text="the fox")
        start_writing(page, explorer, passage={"model": "best", "ids": [1]}, sampling={"seed": 3})
        os.kill(explorer.process.pid, signal.SIGSTOP)
        page.fill("#text", "the lazy dog")
        page.wait_for_timeout(1500)
        assert page.get_attribute("#prompt", "aria-busy") == "true"
        before = page.evaluate("window.got.length")
        os.kill(explorer.process.pid, signal.SIGCONT)
        page.wait_for_selector(READ)
        assert page.text_content("#counted").startswith("12 tokens")
        wait_until(page, f"window.got.length > {before}")
        assert page.is_hidden("#trouble")
    assert tab.faults == [] or all(NETWORK in fault for fault in tab.faults)


def test_a_killed_process_is_reported_and_replaced(tab: Tab, run: Path) -> None:
    explorer = Explorer(run)
    try:
        page = tab.open(explorer, "inside", text="the fox")
        page.select_option("#model", "latest")
        page.wait_for_selector(READ)
        page.evaluate(
            "url => import(url).then(({ page }) => page.set({ sampling: { ...page.sampling, temperature: 0.5 } }, 'sampling'))",
            explorer.address + "state.js",
        )
        start_writing(page, explorer, passage={"model": "latest", "ids": [1]})
    finally:
        os.kill(explorer.process.pid, signal.SIGKILL)
        explorer.stop()
    page.wait_for_selector("#trouble")
    line = page.text_content("#trouble")
    assert "does not answer" in line and "\n" not in line
    assert page.evaluate("window.ended") == "Lost"
    page.fill("#text", "the fox jumps")
    page.wait_for_timeout(1500)
    assert page.text_content("#trouble") == line
    assert page.locator(".trouble:visible, [role=alert]:visible").count() == 1
    with exploring(run, port=explorer.port) as again:
        page.wait_for_selector("#trouble:has-text('started again: open the address')")
        page.goto(again.address)
        page.wait_for_selector(READ)
        assert page.is_hidden("#trouble")
        assert page.input_value("#text") == "the fox jumps"
        assert page.input_value("#model") == "latest"
        assert page.get_attribute("#tab-inside", "aria-selected") == "true"
        sampling = page.evaluate("url => import(url).then(({ page }) => page.sampling)", again.address + "state.js")
        assert sampling == {"temperature": 0.5, "top_k": 0, "top_p": 1, "seed": 1337}


def likeliest(run: Path, ids: list[int]) -> list[Any]:
    subjects = Subjects([run])
    return list(next_token(subjects, Next(Passage("best", ids)))["best"])


def test_new_weights_are_used_and_a_damaged_file_is_reported(tab: Tab, run: Path, tmp_path: Path) -> None:
    best, asked = run / "best.safetensors", {"model": "best", "ids": [1, 2, 3]}
    with exploring(run) as explorer:
        page = tab.open(explorer, text="the fox")
        old = ask(page, explorer, "next_token", passage=asked)["best"]
        assert old == likeliest(run, asked["ids"])
        groups, state = load_checkpoint(run / "latest.safetensors", "latest")
        save_checkpoint(best, groups, {**state, "kind": "best"})
        new = ask(page, explorer, "next_token", passage=asked)["best"]
        assert new == likeliest(run, asked["ids"]) and new != old

        whole = best.read_bytes()
        for damaged in (whole[:100], whole[: len(whole) // 2], b"", b"x" * 1000):
            best.write_bytes(damaged)
            told = retype(page, f"the fox {len(damaged)}"[:9])
            assert "best.safetensors" in told and "\n" not in told
            assert "trouble" in page.get_attribute("#counted", "class")
        best.unlink()
        assert "best.safetensors" in retype(page, "the dog")
        best.write_bytes(whole)
        assert retype(page, "the fox").startswith("7 tokens")
        assert ask(page, explorer, "next_token", passage=asked)["best"] == new

        shutil.move(run, tmp_path / "elsewhere")
        assert "cannot be read" in retype(page, "the dog")
        page.select_option("#model", "latest")
        page.wait_for_selector("#facts.trouble")
        shutil.move(tmp_path / "elsewhere", run)
        assert retype(page, "the lazy").startswith("8 tokens")
        assert page.input_value("#model") == "latest" and page.is_visible("#facts:has-text('GPT')")


def test_a_page_opened_while_the_model_is_damaged_works_later(tab: Tab, run: Path) -> None:
    latest = run / "latest.safetensors"
    whole = latest.read_bytes()
    with exploring(run) as explorer:
        page = tab.open(explorer, text="the fox")
        page.select_option("#model", "latest")
        page.wait_for_selector(READ)
        latest.write_bytes(whole[:1000])
        page.reload()
        page.wait_for_selector("#facts.trouble")
        latest.write_bytes(whole)
        assert retype(page, "the dog").startswith("7 tokens")
        assert page.is_visible("#facts:has-text('GPT')")


def test_a_model_whose_outputs_are_nan_prints_one_line(tab: Tab, run: Path) -> None:
    groups, state = load_checkpoint(run / "best.safetensors", "best")
    weights = {name: tensor * 0 + 3e38 for name, tensor in groups["model"].items()}  # sums of which are infinite
    save_checkpoint(run / "best.safetensors", {"model": weights}, state)
    with exploring(run) as explorer:
        page = tab.open(explorer, text="the fox")
        assert page.text_content("#counted").startswith("7 tokens")
        for name, more in (("next_token", {}), ("write", {"length": 3})):
            told = ask(page, explorer, name, passage={"model": "best", "ids": [1, 2]}, **more)["error"]
            assert "NaN" in told and "\n" not in told
