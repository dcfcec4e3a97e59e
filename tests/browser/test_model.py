"""The first screen: the picture of the whole model, whose parts open the other views."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import Explorer, Tab, exploring, saved, texts_of, wait_until
from explored import gpt_run

from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects

TEXT = "the quick fox"
DRAWN = ".model .stream"


def opened(tab: Tab, explorer: Explorer, text: str = TEXT, **values: str) -> Any:
    page = tab.open(explorer, "model", text=text, **values)
    page.wait_for_selector(DRAWN)
    return page


def answered(run: Any, text: str = TEXT, **more: Any) -> Any:
    subjects = Subjects([run])
    ids = subjects.get("best").encode(text)
    return ask(subjects, "picture", {"passage": {"model": "best", "ids": ids, "source": []}, **more})


@pytest.mark.parametrize("width, height", [(1280, 800), (360, 740)])
@pytest.mark.parametrize("name", ["gpt", "transformer", "masked", "recurrent", "context"])
def test_the_first_screen_is_the_model(browser: Any, explorers: Any, name: str, width: int, height: int) -> None:
    tab = Tab(browser, width)
    tab.page.set_viewport_size({"width": width, "height": height})
    tab.page.goto(explorers[name].address)
    page = tab.page
    page.wait_for_selector(DRAWN)
    assert page.get_attribute("#tab-model", "aria-selected") == "true"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if width == 1280:
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    first, last = page.locator(DRAWN).first.bounding_box(), page.locator(DRAWN).last.bounding_box()
    assert (last["x"] - first["x"] > 0) == (width == 1280 and name != "context") or name in ("transformer", "context")
    tab.context.close()
    assert tab.faults == []


def test_outputs_and_shares_are_the_librarys(tab: Tab, explorers: Any, runs: Any) -> None:
    page, answer = opened(tab, explorers["gpt"]), answered(runs["gpt"])
    rows = page.locator(".model .output:not([hidden])")
    assert rows.count() == len(answer["best"])
    for one, row in zip(answer["best"], rows.all()):
        assert float(row.locator(".number").text_content().removesuffix(" %")) == pytest.approx(
            100 * one["probability"], rel=0.01
        )
    titles = page.eval_on_selector_all(".model .head", "all => all.map(one => one.title)")
    shares = [share for layer in answer["shares"]["heads"] for share in layer]
    for title, share in zip(titles, shares, strict=True):
        text = title.partition(": adds ")[2].partition(" ")[0].replace("−", "-")
        assert float(text) == pytest.approx(share, abs=6e-4)


def test_a_head_a_layer_and_a_cell_open_and_escape_goes_back(tab: Tab, explorers: Any) -> None:
    page = opened(tab, explorers["gpt"])
    page.click(".model .head >> nth=3")
    page.wait_for_selector("#attention-title:text-matches('^Layer 2, head 2')")
    assert page.text_content("#trail") == "Model › Layer 2 › Head 2"
    page.keyboard.press("Escape")
    page.wait_for_selector(DRAWN)
    assert page.evaluate("document.activeElement.id") == "tab-model"
    assert page.is_hidden("#trail")
    page.click(".model .layer >> nth=1")
    page.wait_for_selector("#trail:has-text('Layer 2')")
    assert page.locator(".model .head").count() == 2 and page.locator(DRAWN).count() == 2
    wait_until(page, "location.hash.includes('layer=2')")
    page.click("#trail button")
    wait_until(page, "document.querySelectorAll('.model .head').length === 4")
    page.click(".model .stream >> nth=1", position={"x": 3, "y": 3})
    page.wait_for_selector("#numbers-name:has-text('blocks.0')")
    wait_until(page, "location.hash.includes('array=blocks.0')")
    page.locator(".numbers-map").press("Escape")
    page.locator(".numbers-map").press("Escape")
    page.wait_for_selector(DRAWN)
    page.click(".model .network >> nth=0")
    page.wait_for_selector("#neurons-title")


def test_an_output_is_explained(tab: Tab, explorers: Any, runs: Any) -> None:
    page, answer = opened(tab, explorers["gpt"]), answered(runs["gpt"])
    token = answer["best"][2]["id"]
    page.click(".model .output >> nth=2")
    wait_until(page, f"location.hash.includes('explain={token}')")
    wait_until(page, "document.querySelectorAll('.model .output')[2].ariaPressed === 'true'")
    page.click(".model-bar .link")
    page.wait_for_selector("#attribution-bars .number")
    assert page.input_value("#attribution-token") == str(token)


def test_another_position_is_predicted_from(tab: Tab, explorers: Any, runs: Any) -> None:
    page, answer = opened(tab, explorers["gpt"]), answered(runs["gpt"], place=3)
    page.click(".model .token >> nth=3")
    wait_until(page, "document.querySelectorAll('.model .token')[3].ariaCurrent === 'true'")
    wait_until(page, "location.hash.includes('token=4')")
    text = page.text_content(".model .output .number")
    assert float(text.removesuffix(" %")) == pytest.approx(100 * answer["best"][0]["probability"], rel=0.01)


def test_parts_are_switched_off_in_the_picture(tab: Tab, explorers: Any, runs: Any) -> None:
    page = opened(tab, explorers["gpt"])
    page.click("text=Switch off")
    page.click(".model .head >> nth=1")
    page.wait_for_selector(".model-bar :text('Off: layer 1, head 2.')")
    subjects = Subjects([runs["gpt"]])
    off = [{"kind": "head", "name": "blocks.0.attention", "index": 1, "by": "zero"}]
    ids = subjects.get("best").encode(TEXT)
    answer: Any = ask(subjects, "ablated", {"passage": {"model": "best", "ids": ids, "source": []}, "off": off})
    title = page.get_attribute(".model .output", "title")
    after = float(title.split(", ")[1].split(" ")[0])
    assert after == pytest.approx(100 * answer["tokens"][0]["after"], rel=0.01)
    wait_until(page, "location.hash.includes('off=blocks.0.attention-2')")
    page.reload()
    page.wait_for_selector(".model-bar :text('Off: layer 1, head 2.')")
    page.click(".model-bar >> text=Switch off")
    page.wait_for_selector(".model-bar :text('Why')")


def test_a_token_that_is_written_enters_the_picture(tab: Tab, explorers: Any, runs: Any) -> None:
    page, answer = opened(tab, explorers["gpt"]), answered(runs["gpt"])
    page.click("text=Write a token")
    page.wait_for_selector(f".model .token >> nth={len(TEXT)}")
    assert page.input_value("#text") == TEXT + answer["best"][0]["text"]


def test_the_arrow_keys_move_in_the_picture(tab: Tab, explorers: Any) -> None:
    page = opened(tab, explorers["gpt"])
    page.focus(".model .token >> nth=0")
    page.keyboard.press("ArrowDown")
    at = "[...document.querySelectorAll('.model button')].indexOf(document.activeElement)"
    assert page.evaluate(at) == 1
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.className") == "output"
    assert page.locator(".model button[tabindex='0']").count() == 1


def test_a_long_text_and_many_layers_are_drawn(tab: Tab, tmp_path: Any) -> None:
    run = gpt_run(tmp_path / "deep", num_layers=24, num_heads=4, block_size=1024)
    with exploring(run) as explorer:
        page = opened(tab, explorer, "the quick fox " * 71)
        assert page.locator(".model .head").count() == 96
        assert 10 < page.locator(".model .token").count() < 60
        page.click(".model .layer >> nth=20")
        wait_until(page, "document.querySelectorAll('.model .head').length === 4")


def test_the_picture_is_saved(tab: Tab, explorers: Any) -> None:
    page = opened(tab, explorers["gpt"])
    name, svg = saved(page, page.locator("#view-model .save"))
    assert name.endswith("the-model.svg")
    assert {"layer 1", "MLP"} <= set(texts_of(svg))


def test_a_reload_keeps_the_layer_and_the_token(tab: Tab, explorers: Any) -> None:
    page = opened(tab, explorers["gpt"], layer="2", token="4")
    for _ in range(2):
        page.wait_for_selector("#trail:has-text('Layer 2')")
        wait_until(page, "location.hash.includes('layer=2') && location.hash.includes('token=4')")
        assert "(position 4)" in page.text_content(".model-bar [role=status]")
        page.reload()
        page.wait_for_selector(DRAWN)
