"""Pictures that are saved: their files hold what the page shows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browsing import SVG, Tab, exploring, saved, texts_of, wait_until
from heads import head_folder
from PIL import Image


def picture_of(png: bytes) -> Any:
    """The picture in a PNG file."""
    picture = Image.open(io.BytesIO(png))
    picture.load()
    assert picture.format == "PNG" and picture.mode in ("RGB", "RGBA")
    return picture


def test_a_map_is_saved_whole(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["recurrent"], "inside", text="The quick fox " * 8)
    page.wait_for_selector("#inside-states .heatmap")
    box = page.locator("#inside-states .heatmap")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")  # a part of it is not seen, and was not asked for
    name, png = saved(page, page.locator("#inside-states .save"))
    assert name == "best-layer-1-state-hidden.png"
    picture = picture_of(png)
    width, height = picture.size
    sheet = box.evaluate("box => [box.scrollWidth, box.scrollHeight]")
    assert width == sheet[0] + 24 and height > sheet[1]  # of more than 2,048 pixels a picture is not made finer
    right = picture.convert("RGB").crop((width - 60, height // 3, width - 30, 2 * height // 3))
    assert len(right.getcolors(1 << 24)) > 3  # colours, also in the part that was out of sight


def test_a_large_map_is_saved_as_it_is_seen(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["recurrent"], "inside", text="The quick fox " * 60)
    page.wait_for_selector("#inside-lens .heatmap")
    name, png = saved(page, page.locator("#inside-lens > div .save").first)
    assert name == "best-likeliest-token-after-each-layer.png"
    assert picture_of(png).width <= 2 * (1240 + 24)


def test_bars_links_and_trees_are_saved_with_their_texts(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], text="the fox")
    page.wait_for_selector(".writer .choices:not([aria-busy='true']) button")
    rows = page.locator(".writer .choices button").all()
    shown = [part for row in rows for part in (row.locator(".name").text_content(), row.locator(".number").text_content())]
    name, svg = saved(page, page.locator(".writer .distribution .save"))
    assert name == "best-likeliest-tokens-the-next-token-at-position-8.svg"
    title, *texts = texts_of(svg)
    assert title == "Likeliest tokens, The next token, at position 8"
    assert texts[: len(shown)] == shown
    page.click("#beam-search")
    page.wait_for_selector("#beam-found tr")
    seen = page.locator(".searchtree .name").count()
    _, svg = saved(page, page.locator("#beam-tree .save"))
    tree = page.evaluate("document.querySelector('.searchtree svg').clientWidth")
    assert "the text" in texts_of(svg) and len(texts_of(svg)) >= 1 + 2 * seen
    assert float(ElementTree.fromstring(svg).get("width") or 0) >= tree
    page.click("#tab-attention")
    page.wait_for_selector("#attention-most .number")
    name, svg = saved(page, page.locator(".one-head > .save"))
    assert name == "best-attention-layer-1-head-1.svg"
    numbers = page.locator("#attention-most .number").all_text_contents()
    assert [text for text in texts_of(svg) if text in numbers] == numbers
    paths = list(ElementTree.fromstring(svg).iter(f"{SVG}path"))
    assert len(paths) == page.locator(".links path").count() > 0 and all("stroke:" in (p.get("style") or "") for p in paths)
    _, svg = saved(page, page.locator(".heads-box .save"))
    assert any("Rows ↓ query" in text for text in texts_of(svg))
    images = list(ElementTree.fromstring(svg).iter(f"{SVG}image"))
    assert len(images) == 4 and all(image.get("href", "").startswith("data:image/png;base64,") for image in images)


@pytest.mark.parametrize("width", [1280, 360])
def test_every_picture_has_a_named_button(browser: Any, explorers: Any, width: int) -> None:
    tab = Tab(browser, width)
    page = tab.open(explorers["gpt"], "inside", text="the fox")
    page.locator("#inside-embeddings").scroll_into_view_if_needed()
    page.wait_for_selector("#embeddings-found button")
    for view in ("inside", "attention", "compare"):
        page.click(f"#tab-{view}")
        shown = f"[...document.querySelectorAll('#view-{view} .save')].filter((one) => one.checkVisibility())"
        least = {"inside": 5, "attention": 3, "compare": 2}[view]
        wait_until(page, f"{shown}.length >= {least}")
        wait_until(page, f"{shown}.every((one) => /^Save (PNG|SVG): [^ ,]/.test(one.getAttribute('aria-label')))")
        names = page.evaluate(f"{shown}.map((one) => one.getAttribute('aria-label'))")
        assert len(set(names)) == len(names)
        if view == "compare":
            assert "Save SVG: The next token, A best and B latest" in names
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.click("#tab-inside")
    name, png = saved(page, page.locator("#inside-embeddings .save"))
    assert name == "best-the-embeddings-of-the-vocabulary.png" and png.startswith(b"\x89PNG")
    tab.context.close()
    assert tab.faults == []


def test_text_of_a_vocabulary_stays_text_in_a_picture(tab: Tab, tmp_path: Path) -> None:
    with exploring(head_folder(tmp_path / "head", "texts")) as explorer:
        page = tab.open(explorer, text="the <b> fox")
        page.wait_for_selector("#classes .bar")
        name, svg = saved(page, page.locator("#classes .save"))
    assert name == "pretrained-the-classes-of-the-text.svg"
    assert "<b>neither" in texts_of(svg)


def test_characters_that_are_not_xml_are_replaced(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], text="the fox")
    page.wait_for_selector(".writer .choices:not([aria-busy='true']) button")
    page.evaluate("document.querySelector('.writer .choices .name').textContent = 'a\\x1b[1m\\x0c'")
    _, svg = saved(page, page.locator(".writer .distribution .save"))
    assert "a\ufffd[1m\ufffd" in texts_of(svg)
