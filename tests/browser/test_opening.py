"""The first screen: the page opens with a text that the model has read, and never over what the user has typed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Explorer, Tab, exploring

from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects

READ = "#prompt[aria-busy='false']"


def opening(run: Path, model: str = "best") -> Any:
    return ask(Subjects([run]), "opening", {"model": model})


def first_screen(tab: Tab, explorer: Explorer) -> Any:
    """Playwright's page at the bare address, as a browser opens it."""
    tab.explorer = explorer
    tab.page.goto(explorer.address)
    tab.page.wait_for_selector(READ)
    return tab.page


@pytest.mark.parametrize("name", ["gpt", "transformer", "masked", "recurrent"])
def test_the_first_screen_is_full(tab: Tab, explorers: Any, runs: Any, name: str) -> None:
    page, expected = first_screen(tab, explorers[name]), opening(runs[name])
    assert (page.input_value("#text"), page.input_value("#source")) == (expected["text"], expected["source"])
    assert page.get_attribute("#tab-model", "aria-selected") == "true"
    assert "token" in page.text_content("#counted")
    page.wait_for_selector(".model .stream")
    assert page.evaluate("performance.getEntriesByName('first-contentful-paint').length") == 1


@pytest.fixture
def both(runs: dict[str, Path]) -> Iterator[Explorer]:
    """An explorer of a language model and a translator."""
    with exploring(runs["gpt"], runs["transformer"]) as explorer:
        yield explorer


def test_typed_text_stays_and_opened_text_is_replaced(tab: Tab, both: Explorer, runs: Any) -> None:
    page = first_screen(tab, both)
    page.fill("#text", "")
    page.wait_for_selector("#counted:text-matches('^1 token$')")
    page.reload()
    page.wait_for_selector("#counted:text-matches('^1 token$')")
    assert page.input_value("#text") == ""  # the empty text is the user's, too
    page.select_option("#model", f"{runs['transformer']}: best")
    page.wait_for_selector("#counted:has-text('of its translation')")
    expected = opening(runs["transformer"])
    assert (page.input_value("#source"), page.input_value("#text")) == (expected["source"], expected["text"])
    page.fill("#source", "lazy dog")
    page.wait_for_selector("#counted:text-matches('^9 tokens of the sentence, 1 token of its translation')")
    assert page.input_value("#text") == ""  # it was the translation of another sentence
    page.fill("#text", "fox")
    page.fill("#source", "lazy")
    page.wait_for_selector("#counted:text-matches('^5 tokens of the sentence, 4 tokens')")
    page.select_option("#model", f"{runs['gpt']}: latest")
    page.wait_for_selector("#counted:text-matches('^1 token$')")
