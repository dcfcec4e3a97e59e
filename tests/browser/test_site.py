"""The built site in a real browser, opened from the disk as a reader opens an archive of it; see tests/site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import BPETokenizer
from tinyformer.models.positions import sinusoidal
from tinytensor.functional.attention import masked_softmax

SITE = Path(__file__).parents[2] / "docs" / "_build"


@pytest.fixture(scope="module")
def site() -> str:
    """Where the site is."""
    if not (SITE / "index.html").is_file():
        pytest.skip("the site is not built: sphinx-build -W -n docs docs/_build")
    return SITE.as_uri()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that may use the clipboard. No script may fail on it."""
    context = browser.new_context(viewport={"width": 360, "height": 740}, permissions=["clipboard-read", "clipboard-write"])
    opened, faults = context.new_page(), []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    yield opened
    context.close()
    assert faults == []


def copied(page: Any, block: str) -> str:
    """What the button of the first such block puts on the clipboard."""
    button = page.locator(f"{block} > button.copy-code").first
    assert button.get_attribute("aria-label") == "Copy this code"
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("button => button.textContent === 'Copied'", arg=button.element_handle())
    return page.evaluate("navigator.clipboard.readText()")


def test_code_can_be_copied(site: str, page: Any) -> None:
    page.goto(f"{site}/index.html")
    assert copied(page, "div.install div.highlight") == 'pip install -e ".[plot]" && python examples/char_gpt.py\n'
    page.goto(f"{site}/reference/elementwise.html")
    assert ">>>" not in copied(page, "div.highlight-pycon div.highlight, div.highlight-default div.highlight")


def test_the_search_shows_summaries_without_a_server(site: str, page: Any) -> None:
    page.goto(f"{site}/search.html?q=exclusive")
    summary = page.locator("#search-results li", has_text="A number that remembers").locator("p.context")
    summary.wait_for()
    assert "exclusive or" in summary.inner_text()
    page.goto(f"{site}/search.html?q=masks")
    found = page.locator("#search-results li").filter(has=page.locator('a[href*="06_attention.html"][href$="#masks"]'))
    summary = found.locator("p.context")
    summary.wait_for()
    assert summary.inner_text().startswith("A mask says who may look at whom.")  # the section's own text


@pytest.mark.parametrize("name", ["index", "lessons/01_engine", "guides/commands", "reference/nn", "search"])
def test_no_page_is_wider_than_a_phone(site: str, page: Any, name: str) -> None:
    page.goto(f"{site}/{name}.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


# ------------------------------------------------------------------------------------------ pictures that can be touched


def touched(page: Any, site: str, lesson: str, name: str) -> Any:
    """A lesson's picture of this name."""
    page.goto(f"{site}/lessons/{lesson}.html")
    place = page.locator(f'[data-touch="{name}"]')
    place.scroll_into_view_if_needed()
    return place


def slide(place: Any, label: str, value: float) -> None:
    """Move a slider."""
    place.get_by_role("slider", name=label).fill(str(value))


def test_the_graph_has_the_gradients_of_the_library(site: str, page: Any) -> None:
    place = touched(page, site, "01_engine", "graph")
    for x, y in ((3.0, 4.0), (2.0, -1.5), (0.0, 5.0)):
        slide(place, "x", x)
        slide(place, "y", y)
        inputs = [tt.tensor(value, dtype="float64", requires_grad=True) for value in (x, y)]
        out = inputs[0] * inputs[1] + inputs[0]
        gradients = [g.item() for g in tt.grad(out, inputs)]
        shown = place.locator("svg text").all_text_contents()
        values = [float(text.removeprefix("value ")) for text in shown if text.startswith("value")]
        found = [float(text.removeprefix("gradient ")) for text in shown if text.startswith("gradient")]
        assert values == [x, y, x * y, out.item()]
        assert found == [*gradients, 1.0, 1.0]
    assert "out = " in place.locator("svg").get_attribute("aria-label")


def test_masked_weights_are_those_of_the_library(site: str, page: Any) -> None:
    place = touched(page, site, "06_attention", "masks")
    scores = tt.tensor([[0, 0, 2, 0], [0, 0, 4, 0], [2, 4, 0, 0], [0, 0, 4, 0]], dtype="float64")

    def shown() -> list[str]:
        return place.locator("td button").all_inner_texts()

    def expected(mask: Any, times: float = 1.0) -> list[str]:
        weights = masked_softmax(times * scores / 2**0.5, tt.tensor(mask)).numpy()
        return [f"{w:.2f}" if m else "–" for w, m in zip(weights.flat, mask.flat)]

    every = np.ones((4, 4), dtype=bool)
    assert shown() == expected(every)
    place.get_by_role("button", name="causal").click()
    assert shown() == expected(np.tril(every))
    slide(place, "scores times", 3)
    assert shown() == expected(np.tril(every), 3)
    cell = place.get_by_role("button", name="cat looks at black")
    cell.press("Enter")
    mask = np.tril(every)
    mask[2, 1] = False
    assert shown() == expected(mask, 3)
    assert cell.get_attribute("aria-pressed") == "true"
    place.get_by_role("button", name="all masked").click()
    assert shown() == ["–"] * 16


def test_positions_are_those_of_the_library(site: str, page: Any) -> None:
    place = touched(page, site, "06_attention", "positions")
    table = sinusoidal(64, 16).numpy()
    for a, b in ((10, 14), (0, 63)):
        slide(place, "position a", a)
        slide(place, "position b", b)
        said = place.locator("p").inner_text()
        assert float(said.split(" of ")[0].removeprefix("a · b = ")) == pytest.approx(float(table[a] @ table[b]), abs=0.006)


def test_merges_are_those_of_the_library(site: str, page: Any) -> None:
    place = touched(page, site, "11_byte_pairs", "merges")
    for text in ("the cat in the hat sat on the mat", "a banana, an ananas"):
        place.get_by_role("textbox").fill(text)
        most = BPETokenizer.train(text, 1000).vocab_size - 256
        assert most >= 3
        step = place.get_by_role("button", name="merge the most frequent pair")
        for merges in range(1, most + 1):
            step.press("Enter")
            tokenizer = BPETokenizer.train(text, 256 + merges)
            pieces = [tokenizer.decode([i]).replace(" ", "␣") for i in tokenizer.encode(text)]
            assert place.locator("p.touch-pieces span").all_inner_texts() == pieces
        assert step.is_disabled()
        place.get_by_role("button", name="one back").click()
        assert f"after {most - 1} merges" in place.inner_text()


# --------------------------------------------------------------------------------------------------------------- names

NAMED = {"button", "link", "textbox", "searchbox", "slider", "image", "img", "checkbox", "heading"}


@pytest.mark.parametrize("name", ["index", "lessons/01_engine", "lessons/06_attention", "lessons/11_byte_pairs", "search"])
def test_everything_that_is_used_has_a_name(site: str, page: Any, name: str) -> None:
    page.goto(f"{site}/{name}.html")
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in NAMED]
    assert len(shown) > 5
    assert [node["role"]["value"] for node in shown if not node.get("name", {}).get("value", "").strip()] == []
