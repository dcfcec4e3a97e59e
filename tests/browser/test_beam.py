"""Beam search on the page: its table shows the library's numbers, and nothing is searched before the button is pressed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinyformer.explore.views.subjects import Subjects

ROWS = "#beam-found tbody tr"


def search(page: Any, beam: int, length: int) -> Any:
    """Press the button, wait for the results, and return the rows of the table as lists of strings."""
    page.fill("#beam-width", str(beam))
    page.fill("#beam-length", str(length))
    page.click("#beam-search")
    page.wait_for_selector(ROWS)
    return page.eval_on_selector_all(ROWS, "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))")


def test_the_table_shows_the_translators_scores(tab: Any, explorers: Any, runs: dict[str, Path]) -> None:
    page = tab.open(explorers["transformer"], source="the fox")
    assert page.locator(ROWS).count() == 0
    rows = search(page, 3, 200)
    translator = Subjects([runs["transformer"]]).get("best").translator
    assert translator is not None
    expected = [*translator.search(["the fox"], 1)[0], *translator.search(["the fox"], 3, 3)[0]]
    assert [float(row[3]) for row in rows] == pytest.approx([h.score for h in expected], abs=6e-4)
    assert [row[0] for row in rows] == ["greedy", "no. 1", "no. 2", "no. 3"]


def test_the_keys_move_from_node_to_node(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], text="the fox")
    search(page, 3, 30)
    drawn = page.locator(".searchtree .node").count()
    assert 0 < drawn < 3 * 30  # only those that are seen
    page.focus(".searchtree")
    for key, said in [("ArrowRight", "Step 1"), ("ArrowRight", "Step 2"), ("ArrowLeft", "Step 1"), ("End", "Step 30")]:
        page.keyboard.press(key)
        assert page.text_content(".searchtree + .readout").startswith(f"{said}:")
        assert page.locator(".searchtree .node.at").count() == 1


def test_a_text_that_is_taken_becomes_the_pages(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], text="the fox")
    search(page, 2, 5)
    page.click("[aria-label='Take no. 1']")
    assert page.text_content("#counted").startswith("12 tokens")
    assert "now shows" in page.text_content("#beam-said")
    page.fill("#text", "a dog")
    page.wait_for_selector("#beam-said:has-text('has changed')")
    assert page.locator(ROWS).count() == 3  # what was found stays


def test_a_model_that_fills_in_has_no_search(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["masked"], text="the fox")
    assert not page.is_visible("#beam-search")
