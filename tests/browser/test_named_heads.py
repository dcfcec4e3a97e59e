"""Named heads in a browser: the tables are the library's, and the names stand wherever heads are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Explorer, wait_until

from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.named_heads import KINDS

TEXT = "The quick fox jumps"


@pytest.fixture(scope="module")
def run(runs: dict[str, Path]) -> Path:
    return runs["named"]


@pytest.fixture(scope="module")
def explorer(explorers: dict[str, Explorer]) -> Explorer:
    return explorers["named"]


def names_in(run: Path) -> Any:
    return ask(Subjects([run]), "head_names", {"model": "best"})


def test_the_tables(tab: Any, explorer: Any, run: Path) -> None:
    expected = names_in(run)
    page = tab.open(explorer, "inside", text=TEXT)
    page.locator("#inside-heads").scroll_into_view_if_needed()
    page.wait_for_selector("#named-heads tbody tr")
    defined = page.locator("#inside-heads .definitions tbody tr")
    assert [row.split("(")[0].strip() for row in defined.locator("th").all_text_contents()] == [kind.name for kind in KINDS]
    assert "Olsson" in str(defined.first.text_content()) and "induction_head" in str(defined.first.text_content())
    named = sum(bool(head["names"]) for layer in expected["layers"] for head in layer["heads"])
    assert named >= 1 and page.locator("#named-heads tbody tr").count() == named
    if named < 4:
        page.click("#named-heads-all")
    assert page.locator("#named-heads tbody tr").count() == 4
    subjects = Subjects([run])
    passage = {"model": "best", "ids": subjects.get("best").encode(TEXT)}
    text: Any = ask(subjects, "text_scores", {"passage": passage})
    row = page.locator("#named-heads tbody tr").nth(2)
    shown = [cell.split(" (")[0] for cell in row.locator("td").all_text_contents()[1:]]
    two = lambda score: "–" if score is None else f"{score:.2f}"  # noqa: E731
    both = zip(*(found["layers"][1]["heads"][0]["scores"] for found in (expected, text)))
    assert shown == [f"{two(random)} | {two(own)}" for random, own in both]
    row.locator("button").click()
    wait_until(page, "document.getElementById('attention-title').textContent.startsWith('Layer 2, head 1')")


def test_a_name_stands_at_its_head_in_attention_and_at_its_bar(tab: Any, explorer: Any, run: Path) -> None:
    assert "first token" in names_in(run)["layers"][1]["heads"][0]["names"]
    page = tab.open(explorer, "attention", text=TEXT)
    page.wait_for_selector(".head .named")
    head = page.get_by_role("button", name="layer 2, head 1 · ")
    assert "first token" in str(head.get_attribute("aria-label")) and head.get_attribute("title") == head.get_attribute(
        "aria-label"
    )
    short = {kind.name: kind.short for kind in KINDS}
    assert head.locator(".named").text_content() in short.values()
    head.click()
    assert "first token" in str(page.text_content("#attention-title"))
    page.click("#tab-inside")
    page.locator("#inside-attribution").scroll_into_view_if_needed()
    page.wait_for_selector("#attribution-bars .bar")
    wait_until(page, "document.getElementById('attribution-bars').textContent.includes('layer 2, head 1 · ')")


@pytest.mark.parametrize(("name", "has"), [("masked", True), ("recurrent", False), ("transformer", True)])
def test_other_models(tab: Any, explorers: Any, name: str, has: bool) -> None:
    tab.page.add_init_script("sessionStorage.setItem('explorer', JSON.stringify({sourceText: 'lazy dog'}))")
    page = tab.open(explorers[name], "inside", text="the fox")
    page.locator("#inside-heads").scroll_into_view_if_needed()
    page.wait_for_selector("#named-heads tbody tr" if has else "#inside-heads p.note:has-text('no self-attention')")
