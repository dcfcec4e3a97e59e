"""Answers that come late: another text, or another model, was chosen by then. And texts and addresses that look like code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Tab, exploring, wait_until
from explored import TEXT, gpt_run

from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.tokenizers import CharTokenizer

BARS = "#whatif-changes .changes [role=row]"
TITLE = "#whatif-changes h3"


class Gate:
    """Holds back the requests of some questions while it is closed."""

    def __init__(self, page: Any, *questions: str):
        self.is_closed = True
        self.held: list[Any] = []
        for name in questions:
            page.route(f"**/ask/{name}", lambda route: self.held.append(route) if self.is_closed else route.continue_())

    def open(self) -> None:
        """Let all go on."""
        self.is_closed = False
        for route in self.held:
            route.continue_()


def switch_off(page: Any, gate: Gate, title: str) -> None:
    """Click a part, and wait until its question is held back."""
    page.click(f".part-grid [title='{title}']")
    while not gate.held:
        page.wait_for_timeout(10)


def loss_of(run: Path, model: str, text: str, **off: Any) -> str:
    """Return the losses that the page shows for a text with a part turned off."""
    subjects = Subjects([run])
    passage = {"model": model, "ids": subjects.get(model).encode(text)}
    found: Any = ask(subjects, "ablated", {"passage": passage, "off": [off]})
    return f"loss of the text {found['loss_before']:.3f} → {found['loss_after']:.3f}"


def test_an_answer_about_another_text_is_not_shown(tab: Tab, explorers: Any, runs: Any) -> None:
    page = tab.open(explorers["gpt"], "whatif", text="The quick fox")
    page.wait_for_selector(".ranking tbody tr:nth-child(6)")
    gate = Gate(page, "ablated")
    switch_off(page, gate, "layer 1, head 2")
    page.fill("#text", "The")
    page.wait_for_selector("#counted:text-matches('^3 tokens$')")
    page.wait_for_selector(".row-keys .name:has-text('position 3')")
    assert page.text_content(TITLE) == "After “x” (position 13)"
    gate.open()
    page.wait_for_selector(f"{TITLE}:text-is('After “e” (position 3)')")
    expected = loss_of(runs["gpt"], "best", "The", kind="head", name="blocks.0.attention", index=1)
    page.wait_for_selector(f"#whatif-changes .readout:has-text('{expected}')")
    page.wait_for_selector("#whatif-ranking [role=status]:text-is('All 6 heads and MLPs are ranked.')")  # it began by itself


def test_an_answer_of_another_model_is_not_shown(tab: Tab, explorers: Any, runs: Any) -> None:
    page = tab.open(explorers["gpt"], "whatif", text="The quick fox")
    page.wait_for_selector(BARS)
    gate, encoding = Gate(page, "ablated"), Gate(page, "encode")
    switch_off(page, gate, "layer 1, head 2")
    page.select_option("#model", "latest")
    page.wait_for_selector("#weights:has-text('latest')")
    while not encoding.held:
        page.wait_for_timeout(10)
    page.click(".part-grid [title='layer 1, MLP']")  # while there are no tokens of the new model yet
    gate.open()
    page.wait_for_selector("#whatif-off:text-is('Off: layer 1, head 2; layer 1, MLP.')")
    encoding.open()
    page.wait_for_selector("#whatif-off:text-is('Nothing is off.')")
    page.click(".part-grid [title='layer 2, head 1']")
    expected = loss_of(runs["gpt"], "latest", "The quick fox", kind="head", name="blocks.1.attention", index=0)
    page.wait_for_selector(f"#whatif-changes .readout:has-text('{expected}')")


@pytest.mark.parametrize("view", ["write", "attention", "inside", "whatif", "compare"])
def test_nothing_is_shown_of_a_text_that_the_chosen_model_cannot_read(browser: Any, tmp_path: Path, view: str) -> None:
    first, other = gpt_run(tmp_path / "first"), gpt_run(tmp_path / "other")
    count = len(set(TEXT))
    CharTokenizer.train("".join(map(chr, range(ord("А"), ord("А") + count)))).save(other / "tokenizer.json")
    tab = Tab(browser)
    with exploring(first, other) as explorer:
        page = tab.open(explorer, view, text="lazy dog")
        assert page.is_visible("main")
        page.select_option("#model", f"{other}: best")
        page.wait_for_selector("#counted.trouble:has-text('unknown character')")
        assert page.is_hidden("main")
        page.fill("#text", "ДОМА")
        page.wait_for_selector("#counted:text-is('4 tokens')")
        assert page.is_visible("main")
        tab.context.close()
    assert [fault for fault in tab.faults if "400" not in fault] == []  # 400: that is the browser's own line


def test_a_model_that_cannot_be_opened_leaves_the_one_before(browser: Any, tmp_path: Path) -> None:
    first, other = gpt_run(tmp_path / "first"), gpt_run(tmp_path / "other")
    (other / "tokenizer.json").unlink()
    tab = Tab(browser)
    with exploring(first, other) as explorer:
        page = tab.open(explorer, "attention", text="lazy dog")
        page.select_option("#model", f"{other}: best")
        page.wait_for_selector("#facts.trouble:has-text('tokenizer.json')")
        assert page.text_content("#facts").endswith(f". The views still show {first}: best.")
        page.select_option("#model", f"{first}: best")
        page.wait_for_selector("#facts:not(.trouble)")
        tab.context.close()
    assert [fault for fault in tab.faults if "400" not in fault] == []


@pytest.mark.parametrize("off", ["a\nb", "__proto__-1 constructor toString-1", "blocks.0.attention-0 -1 - blocks.9 blocks.0-1"])
def test_an_address_of_parts_that_are_none_switches_nothing_off(tab: Tab, explorers: Any, off: str) -> None:
    page = tab.open(explorers["gpt"], "whatif", text="The fox", off=off)
    page.wait_for_selector(BARS)
    assert page.text_content("#whatif-off") == "Nothing is off."


def test_a_token_may_be_called_like_a_property(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"])
    shown = "async ([url, texts]) => { const { visible } = await import(url); return texts.map(visible); }"
    names = ["constructor", "toString", "__proto__", "valueOf", " x", "\n", ""]
    assert page.evaluate(shown, [explorers["gpt"].address + "text.js", names]) == [*names[:4], "␣x", "↵", "∅"]


def test_small_numbers_keep_their_sign_and_rounding_has_none(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"])
    shown = "async ([url, numbers]) => { const { signed } = await import(url); return numbers.map(signed); }"
    numbers = [1.25, -0.3, 0.00032, -0.0004, 3e-8, -3e-8, 0]
    told = ["+1.250", "−0.300", "+3.2e-4", "−4.0e-4", "0.000", "0.000", "0.000"]
    assert page.evaluate(shown, [explorers["gpt"].address + "text.js", numbers]) == told


def test_a_row_that_is_not_changed_changes_nothing(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "whatif", text="The quick fox")
    page.wait_for_selector("#whatif-row .readout:has-text('Divergence from the whole model 0.000 nats')")
    rows = "rows => rows.map(row => row.querySelector('.name').textContent)"
    wait_until(page, "document.querySelectorAll('#whatif-row .changes [role=row]').length === 10")
    assert page.eval_on_selector_all("#whatif-row .changes [role=row]", rows) == page.eval_on_selector_all(BARS, rows)
