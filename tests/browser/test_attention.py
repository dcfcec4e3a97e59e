"""The view of attention: its numbers are the library's, and the keyboard reaches all of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import Explorer, Tab, wait_until
from explored import gpt_run

import tinytensor as tt
from tinyformer import attention_rollout, recording_attention
from tinyformer.explore.views.subjects import Subjects

SOURCE = "The lazy dog"


def weights_of(run: Path, text: str, source: str = "") -> dict[str, Any]:
    """The library's weights (1, heads, queries, keys) by layer."""
    subject = Subjects([run]).get("best")
    texts = [subject.encode(text)[-(subject.longest or 0) :]]
    if source:
        texts.insert(0, subject.encode(source, source=True))
    with recording_attention(subject.model) as recorded:
        subject.model(*(tt.tensor([ids]) for ids in texts))
    return {name: tt.concatenate(calls, -2) for name, calls in recorded.items()}


def shown(x: float) -> str:
    """A weight as the page shows it."""
    if x == 0 or x >= 0.0005:
        return f"{x:.3f}"
    return re.sub(r"e-0*", "e-", f"{x:.1e}")


def opened(tab: Tab, explorer: Explorer, **texts: str) -> Any:
    """Playwright's page at the view, with its numbers."""
    page = tab.open(explorer, "attention", **texts)
    page.wait_for_selector("#attention-most .number")
    return page


def choose(page: Any, name: str) -> None:
    """Choose a button, and wait for its numbers."""
    page.get_by_role("button", name=name, exact=True).click()
    page.wait_for_selector("#attention-most .number")


def readout(page: Any) -> str:
    return page.text_content("#view-attention .readout")


def check_most(page: Any, row: Any) -> None:
    """The tokens that are looked at most, and their numbers, are those of a row of weights."""
    numbers = page.locator("#attention-most .number").all_text_contents()
    assert numbers == [shown(x) for x in sorted(row.tolist(), reverse=True)[:5] if x > 0][: len(numbers)]
    names = page.locator("#attention-most button").all_text_contents()
    places = [int(re.search(r"\(position (\d+)\)", name)[1]) - 1 for name in names]  # type: ignore[index]
    assert [shown(float(row[place])) for place in places] == numbers


def test_the_numbers_of_each_head_are_those_of_the_library(tab: Tab, explorers: Any, runs: Any) -> None:
    page = opened(tab, explorers["gpt"], text="the quick fox")
    layers = list(weights_of(runs["gpt"], "the quick fox").values())
    for layer in (1, 2):
        for head in (1, 2):
            choose(page, f"layer {layer}, head {head}")
            assert page.text_content("#attention-title") == f"Layer {layer}, head {head}"
            row = layers[layer - 1][0, head - 1].numpy()[12]
            check_most(page, row)
            best = int(row.argmax())
            token = "the␣quick␣fox"[best]
            assert readout(page) == f"“x” (position 13) attends to “{token}” (position {best + 1}): {shown(float(row[best]))}"
    page.locator(".links button").first.hover()
    choose(page, "Mean over heads")
    assert readout(page) == "“t” (position 1) attends to “t” (position 1): 1.000"  # the first token is still chosen
    page.locator(".links button").last.hover()
    page.get_by_text("“x” (position 13) attends to:").wait_for()
    check_most(page, layers[1][0].mean(0).numpy()[12])
    choose(page, "Rollout")
    check_most(page, attention_rollout(layers)[1][0].numpy()[12])
    assert "receives from" in readout(page)


@pytest.mark.parametrize("name", ["transformer", "attention"])
def test_a_translation_is_linked_to_its_source(tab: Tab, explorers: Any, runs: Any, name: str) -> None:
    page = opened(tab, explorers[name], source=SOURCE, text="the fox")
    cross = [w for layer, w in weights_of(runs[name], "the fox", SOURCE).items() if "cross" in layer]
    assert "to source" in page.text_content("#attention-title")
    above, below = page.locator(".links .tokens").all()
    assert above.locator(".token").count() == len(SOURCE) + 1  # the end token
    assert below.locator("button").count() == 1 + len("the fox")
    below.locator("button").nth(2).hover()
    row = cross[0][0, 0].numpy()[2]
    page.get_by_text("“e” (position 4) attends to:").wait_for()
    page.wait_for_selector("#attention-most .number")
    check_most(page, row)
    assert page.locator(".links path").count() == (row >= 0.005).sum()
    opacities = [float(line.get_attribute("stroke-opacity")) for line in page.locator(".links path").all()]
    assert opacities == pytest.approx([x**0.5 for x in row if x >= 0.005], abs=6e-4)


def test_the_tokens_and_the_map_share_the_chosen_token(tab: Tab, explorers: Any) -> None:
    page = opened(tab, explorers["gpt"], text="the quick fox")
    page.locator(".links button").nth(4).hover()
    assert readout(page).startswith("“q” (position 5) attends to")
    page.focus(".links button[tabindex='0']")
    page.keyboard.press("ArrowRight")
    assert readout(page).startswith("“u” (position 6) attends to")
    page.keyboard.press("End")
    assert readout(page).startswith("“x” (position 13) attends to")
    page.focus("#view-attention .heatmap")
    page.keyboard.press("ArrowUp")
    assert page.get_attribute(".links [aria-current]", "data-query") == "11"
    assert page.text_content(".most") == "“o” (position 12) attends to:"


def test_a_later_token_cannot_be_seen(tab: Tab, explorers: Any) -> None:
    page = opened(tab, explorers["gpt"], text="the quick fox")
    page.focus(".links button[tabindex='0']")
    page.keyboard.press("Home")
    page.focus("#view-attention .heatmap")
    page.keyboard.press("ArrowRight")
    assert readout(page) == "“t” (position 1) cannot see “h” (position 2): it comes later"
    assert page.locator(".links button").nth(1).get_attribute("title") == readout(page)
    assert page.locator(".links .hidden-token").count() == 12


def test_the_grid_is_used_by_keys(tab: Tab, explorers: Any) -> None:
    page = opened(tab, explorers["masked"], text="the [MASK] fox")
    page.focus(".heads button[tabindex='0']")
    assert page.locator(".heads button[tabindex='0']").count() == 1
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.text_content("#attention-title") == "Layer 2, head 2"
    assert page.locator(".heads [aria-pressed='true']").get_attribute("aria-label") == "layer 2, head 2"


@pytest.mark.parametrize("name", ["recurrent", "context"])
def test_a_model_without_attention_says_so(tab: Tab, explorers: Any, name: str) -> None:
    texts = {"source": SOURCE} if name == "context" else {}
    page = tab.open(explorers[name], "attention", **texts, text="the fox")
    page.get_by_text("A recurrent network has no attention").wait_for()
    assert not page.is_visible(".heads")
    page.get_by_role("button", name="Its states over time").click()
    page.wait_for_selector("#inside-states .heatmap")
    assert page.get_attribute("#tab-inside", "aria-selected") == "true"
    wait_until(page, "document.querySelector('#inside-states').getBoundingClientRect().top < innerHeight / 2")


def test_a_bar_leads_to_its_cell(tab: Tab, explorers: Any) -> None:
    page = opened(tab, explorers["gpt"], text="the quick brown fox jumps")
    bar = page.locator("#attention-most button").first
    name, number = bar.text_content(), page.locator("#attention-most .number").first.text_content()
    bar.focus()
    page.keyboard.press("Enter")
    assert readout(page).endswith(f" attends to {name}: {number}")
    assert bar.evaluate("bar => bar === document.activeElement")


def test_a_new_text_keeps_the_head(tab: Tab, explorers: Any, runs: Any) -> None:
    page = opened(tab, explorers["gpt"], text="the quick fox")
    choose(page, "layer 2, head 2")
    page.fill("#text", "the lazy dog jumps")
    page.locator(".links button").nth(17).wait_for()
    page.wait_for_selector("#attention-most .number")
    assert page.text_content("#attention-title") == "Layer 2, head 2"
    query = int(page.get_attribute(".links [aria-current]", "data-query"))
    row = list(weights_of(runs["gpt"], "the lazy dog jumps").values())[1][0, 1].numpy()[query]
    check_most(page, row)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_long_text_is_fetched_in_parts(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    run = gpt_run(tmp_path / "run", latest=False, block_size=1024)
    text = "The quick brown fox jumps over the lazy dog.\n" * 24
    explorer, tab = Explorer(run), Tab(browser, width, scheme)
    try:
        page = tab.context.pages[0]
        asked: list[Any] = []
        page.on("request", lambda request: asked.append(request.url) if request.url.endswith("attention_rows") else None)
        opened(tab, explorer, text=text)
        assert page.text_content("#attention-note").startswith(
            "The model sees only the last 1,024 tokens: the first 56 are left out"
        )
        page.wait_for_load_state("networkidle")
        assert 0 < len(asked) <= 6  # of 64 parts
        page.focus(".links button[tabindex='0']")
        page.keyboard.press("Home")
        page.get_by_text("(position 57) attends to:").wait_for()
        page.wait_for_selector("#attention-most .number")
        page.keyboard.press("ArrowRight")
        row = weights_of(run, text)["blocks.0.attention"][0, 0].numpy()[1]
        best = int(row.argmax())
        assert readout(page) == f"“o” (position 58) attends to “{'ro'[best]}” (position {57 + best}): {shown(float(row[best]))}"
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.evaluate("document.querySelector('.heatmap').scrollTop = 6000")
        page.wait_for_load_state("networkidle")
        assert len(asked) <= 18
        assert tab.faults == []
    finally:
        tab.context.close()
        explorer.stop()


LOOKS, IS_LOOKED_AT = "query", "key"


@pytest.mark.parametrize("name", ["gpt", "masked", "transformer", "attention"])
def test_every_picture_labels_queries_and_keys(tab: Tab, explorers: Any, name: str) -> None:
    texts = {"source": SOURCE} if name in ("transformer", "attention") else {}
    page = opened(tab, explorers[name], **texts, text="the fox")
    axes = f"Rows ↓ {LOOKS} · Columns → {IS_LOOKED_AT}"
    assert axes in page.text_content("#attention-note")
    query = "output token (query)" if texts else LOOKS
    axes = f"Rows ↓ {query} · Columns → {IS_LOOKED_AT}"
    assert page.locator(".one-head > div > .axes").all_text_contents() == [axes]
    assert axes in page.get_attribute("#view-attention .heatmap", "aria-label")
    said = page.locator(".links .axes").all_text_contents()
    assert said == ([IS_LOOKED_AT, query] if texts else [f"Marked: {LOOKS} · lines lead to {IS_LOOKED_AT}"])
    if texts:  # the keys stand above, as the sentence does, and the queries below
        above, below = page.locator(".links .axes").all()
        assert above.bounding_box()["y"] < below.bounding_box()["y"]


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [("masked", "the fox", 2), ("masked", "the [MASK]", 2), ("gpt", "the fox", 6), ("transformer", "fox", 3)],
)
def test_the_first_query_is_the_last_ordinary_token(tab: Tab, explorers: Any, name: str, text: str, place: int) -> None:
    page = opened(tab, explorers[name], **({"source": SOURCE} if name == "transformer" else {}), text=text)
    assert page.get_attribute(".links [aria-current]", "data-query") == str(place)
    if name == "transformer":  # the sentence ends with a special token
        choose(page, "encoder layer 1, head 1")
        assert page.get_attribute(".links [aria-current]", "data-query") == str(len(SOURCE) - 1)


def test_a_token_that_was_chosen_stays_chosen_as_long_as_it_is_there(tab: Tab, explorers: Any) -> None:
    page = opened(tab, explorers["gpt"], text="the quick fox")
    page.locator(".links button").nth(6).click()
    page.fill("#text", "the quick brown fox")
    page.locator(".links button").nth(18).wait_for()
    assert page.get_attribute(".links [aria-current]", "data-query") == "6"
    page.fill("#text", "the")
    wait_until(page, "document.querySelectorAll('.links button').length === 3")
    assert page.get_attribute(".links [aria-current]", "data-query") == "2"


def test_a_large_map_opens_where_there_is_something_to_see(browser: Any, tmp_path: Path) -> None:
    run = gpt_run(tmp_path / "run", latest=False, block_size=1024)
    text = ("The quick brown fox jumps over the lazy dog.\n" * 23)[:1000]
    explorer, tab = Explorer(run), Tab(browser)
    try:
        page = opened(tab, explorer, text=text)
        weights = [w[0].numpy() for w in weights_of(run, text).values()]
        for layer, head in ((1, 1), (1, 2), (2, 2)):
            choose(page, f"layer {layer}, head {head}")
            row = weights[layer - 1][head - 1][999]
            assert f"(position {row.argmax() + 1}): {shown(float(row.max()))}" in readout(page)
            box = page.locator("#view-attention .heatmap")
            left, wide, top, tall = box.evaluate("box => [box.scrollLeft, box.clientWidth, box.scrollTop, box.clientHeight]")
            assert left <= 12 * row.argmax() <= left + wide - 12  # a cell is 12 pixels wide
            assert top <= 12 * 999 <= top + tall
    finally:
        tab.context.close()
        explorer.stop()
    assert tab.faults == []
