"""The page of a GPT, which ``tinyformer export --web`` writes: opened from the disk, it writes and shows probabilities."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import Tab, wait_until
from explored import gpt_run

import tinytensor as tt
from tinyformer import Sampling
from tinyformer.export.web import web_page
from tinyformer.training.opening import open_run
from tinyformer.training.run_folder import RunFolder

PROMPT = "the fox"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt_run(tmp_path_factory.mktemp("live") / "<b>run & one", latest=False, positions="rotary", activation="swiglu")


@pytest.fixture(scope="module")
def file(run: Path) -> Path:
    path = run.parent / "page.html"
    path.write_text(web_page(run), encoding="utf-8")
    return path


def opened(tab: Tab, file: Path) -> Any:
    """The page from the disk, without a network."""
    tab.context.set_offline(True)
    tab.page.goto(file.as_uri())
    tab.page.wait_for_selector(".livegpt textarea")
    return tab.page


def expected(run: Path, text: str, **settings: Any) -> list[tuple[str, str]]:
    """The likeliest next characters, and their probabilities in words."""
    opened = open_run(RunFolder(run))
    for parameter in opened.model.parameters():
        parameter.assign(parameter.astype("float16").astype("float32"))
    with tt.no_grad():
        logits = opened.model(tt.tensor([opened.tokenizer.encode(text).tolist()])).numpy()[0, -1]
    found = Sampling(**settings).probabilities(logits)
    order = np.argsort(-found, kind="stable")[:8]
    names = {" ": "space", "\n": "new line"}
    texts = opened.tokenizer.characters
    return [(names.get(texts[i], texts[i]), f"{100 * found[i]:.1f}%") for i in order if found[i]]


def shown(page: Any) -> list[tuple[str, str]]:
    rows = page.locator(".bars button")
    return [tuple(rows.nth(i).locator("> span").all_text_contents()[::2]) for i in range(rows.count())]


def test_the_bars_are_the_librarys_probabilities(tab: Tab, run: Path, file: Path) -> None:
    page = opened(tab, file)
    page.get_by_label("Your text").fill(PROMPT)
    assert len(expected(run, PROMPT, temperature=0.8)) == 8
    assert shown(page) == expected(run, PROMPT, temperature=0.8)
    page.get_by_label("Temperature").fill("1.5")
    assert shown(page) == expected(run, PROMPT, temperature=1.5)
    page.get_by_label("Top-k").fill("3")
    assert shown(page) == expected(run, PROMPT, temperature=1.5, top_k=3)
    page.get_by_label("Temperature").fill("0")
    assert shown(page) == expected(run, PROMPT, temperature=0)
    page.get_by_label("Your text").fill("")
    assert shown(page) == expected(run, "\n", temperature=0)


def test_it_writes_on(tab: Tab, file: Path) -> None:
    page = opened(tab, file)
    page.get_by_label("Your text").fill(PROMPT)
    page.get_by_text("a second").wait_for()
    first = page.text_content(".new")
    assert len(first) == 300 and len(set(first)) > 5
    assert page.text_content(".written") == PROMPT + first
    assert page.text_content(".status").startswith("300 characters, ")
    page.get_by_role("button", name="Write another").click()
    wait_until(page, "document.querySelector('.status').textContent.includes('a second')")
    assert len(page.text_content(".new")) == 300 and page.text_content(".new") != first
    page.get_by_label("Your text").fill("the fo")
    page.get_by_label("Your text").press_sequentially("x")
    page.get_by_text("a second").wait_for()
    assert page.text_content(".written").startswith(PROMPT)


STOPPED = """() => {
  const text = document.querySelector("textarea");
  text.value = "the ";
  text.dispatchEvent(new Event("input"));
  const stop = [...document.querySelectorAll("button")].find((button) => button.textContent === "Stop");
  const before = stop.ariaDisabled;
  stop.click();
  return [before, stop.ariaDisabled];
}"""


def test_it_can_be_stopped(tab: Tab, file: Path) -> None:
    page = opened(tab, file)
    page.get_by_text("a second").wait_for()
    stop = page.get_by_role("button", name="Stop")
    stop.press("Enter")  # which has no effect now
    assert "a second" in page.text_content(".status")
    assert page.evaluate(STOPPED) == ["false", "true"]
    page.wait_for_timeout(200)
    assert (page.text_content(".status"), page.text_content(".new")) == ("Stopped.", "")
    assert page.evaluate("document.activeElement.textContent") == "Stop"


def test_a_long_text_is_read_from_its_end(tab: Tab, run: Path, file: Path) -> None:
    page = opened(tab, file)
    text = "the quick brown fox jumps over the lazy dog " * 10
    page.get_by_label("Your text").fill(text)
    read = text[16 * -(-(len(text) - 32) // 16) :]
    assert 16 < len(read) <= 32
    assert shown(page) == expected(run, read, temperature=0.8)
    page.get_by_text("a second").wait_for()
    assert page.text_content(".written") == f"…{text[-200:]}{page.text_content('.new')}"


def test_the_keyboard_adds_a_likely_character(tab: Tab, run: Path, file: Path) -> None:
    page = opened(tab, file)
    page.get_by_label("Your text").fill(PROMPT)
    page.get_by_label("Top-k").press("ArrowRight")
    assert page.locator(".livegpt .value").all_text_contents() == ["0.8", "1"]
    ((name, told),) = shown(page)
    page.get_by_role("button", name=f"{name}, {told}: add it").press("Enter")
    text = page.get_by_label("Your text").input_value()
    assert len(text) == len(PROMPT) + 1 and text.startswith(PROMPT)
    assert shown(page) == expected(run, text, temperature=0.8, top_k=1)
    assert page.evaluate("document.activeElement.closest('.bars') !== null")  # where one was


def test_unknown_characters_are_reported(tab: Tab, run: Path, file: Path) -> None:
    page = opened(tab, file)
    page.get_by_label("Your text").fill(f"Ω{PROMPT}\N{GRINNING FACE}")
    page.get_by_text("It left out 2 characters that the model does not know.").wait_for()
    assert shown(page) == expected(run, PROMPT, temperature=0.8)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_has_names(browser: Any, run: Path, file: Path, scheme: str) -> None:
    tab = Tab(browser, 360, scheme)
    page = opened(tab, file)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.title() == page.text_content("h1") == "<b>run & one"
    assert page.locator("main b").count() == 0
    controls = "[...document.querySelectorAll('button, input, textarea')]"
    assert page.evaluate(f"{controls}.length") == 5 + 8
    assert page.evaluate(f"{controls}.filter((one) => !(one.labels.length || one.textContent))") == []
    colours = [page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")]
    ink, paper = [sum(map(int, re.findall(r"\d+", colour))) for colour in colours]
    assert (ink < paper) == (scheme == "light") and abs(ink - paper) > 500
    tab.context.close()
    assert tab.faults == []


def test_a_page_asks_for_nothing(tab: Tab, file: Path) -> None:
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    opened(tab, file)
    assert asked == [file.as_uri()]
    text = file.read_text(encoding="utf-8")
    assert "http" not in text.replace("http-equiv", "") and "import " not in text.split("<script")[-1].split("*/")[-1]
