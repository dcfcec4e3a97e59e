"""Each view has an address: back, forward, a reload and a link show the same again."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from browsing import Tab, exploring, wait_until
from explored import gpt_run

READ = "#prompt[aria-busy='false']"
TITLE = "#attention-title"


def address(page: Any) -> tuple[str, dict[str, str]]:
    """Return the tab and the selection in the page's address."""
    view, _, query = page.url.partition("#")[2].partition("?")
    return view, {key: value for key, (value,) in parse_qs(query).items()}


def wait_for_address(page: Any, part: str) -> None:
    wait_until(page, f"location.hash.includes({part!r})")


def choose(page: Any, layer: int, head: int) -> None:
    page.get_by_role("button", name=f"layer {layer}, head {head}", exact=True).click()
    page.wait_for_selector(f"{TITLE}:has-text('Layer {layer}, head {head}')")


def test_a_reload_and_a_link_show_the_same(browser: Any, tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "attention", text="the quick fox")
    page.select_option("#model", "latest")
    page.wait_for_selector("#attention-most .number")
    choose(page, 2, 1)
    page.locator(".links button").nth(4).click()
    wait_for_address(page, "token=5")
    expected = {"model": "latest", "text": "the quick fox", "layer": "blocks.1.attention", "head": "1", "token": "5"}
    assert address(page) == ("attention", expected)
    other = Tab(browser)  # which knows nothing but the link
    other.page.goto(page.url)
    page.reload()
    for one in (page, other.page):
        one.wait_for_selector("#attention-most .number")
        assert one.text_content(TITLE) == "Layer 2, head 1"
        assert (one.input_value("#model"), one.input_value("#text")) == ("latest", "the quick fox")
        assert one.text_content("#view-attention .readout").startswith("“q” (position 5)")
        assert address(one) == ("attention", expected)
    other.context.close()
    assert other.faults == []


def test_a_text_is_kept_by_a_reload_that_comes_before_the_address_has_it(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "attention", text="the fox")
    page.select_option("#model", "latest")  # from here on the address is the page's own, and no link
    wait_for_address(page, "model=latest")
    type_and_reload = "text.value = 'the dog'; text.dispatchEvent(new Event('input')); location.reload()"
    with page.expect_navigation():
        page.evaluate(f"const text = document.getElementById('text'); {type_and_reload}")
    page.wait_for_selector(READ)
    assert page.input_value("#text") == "the dog"
    wait_for_address(page, "text=the+dog")


def test_back_and_forward_go_through_tabs_and_heads(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "attention", text="the fox")
    page.wait_for_selector("#attention-most .number")
    choose(page, 1, 2)
    choose(page, 2, 2)
    page.click("#tab-inside")
    page.wait_for_selector("#inside-norms canvas")
    page.fill("#text", "the dog!"[:7])
    page.wait_for_selector(READ)
    assert page.title().startswith("Inside")
    page.go_back()
    page.wait_for_selector("#tab-attention[aria-selected='true']")
    page.wait_for_selector(f"{TITLE}:has-text('Layer 2, head 2')")
    assert page.input_value("#text") == "the dog"  # what was typed since then stays
    page.go_back()
    page.wait_for_selector(f"{TITLE}:has-text('Layer 1, head 2')")
    page.go_forward()
    page.wait_for_selector(f"{TITLE}:has-text('Layer 2, head 2')")
    page.go_forward()
    page.wait_for_selector("#tab-inside[aria-selected='true']")


@pytest.mark.parametrize("view", ["write", "inside", "compare", "nothing"])
def test_an_address_that_the_page_does_not_know_does_no_harm(tab: Tab, explorers: Any, view: str) -> None:
    tab.explorer = explorers["gpt"]
    query = urlencode({"model": "<b>", "layer": "x", "head": "-1", "token": "1e999", "other": "../..", "text": "<i>fox"})
    tab.page.goto(f"{explorers['gpt'].address}#{view}?{query}")
    tab.page.wait_for_selector(READ)
    shown = "model" if view == "nothing" else view
    assert tab.page.get_attribute(f"#tab-{shown}", "aria-selected") == "true"
    assert (tab.page.input_value("#model"), tab.page.input_value("#text")) == ("best", "<i>fox")
    tab.page.goto(f"{explorers['gpt'].address}#attention?{query}")  # in the same document
    tab.page.wait_for_selector("#attention-most .number")
    assert tab.page.locator("main b, main i").count() == 0


def test_write_and_compare_have_addresses(tab: Tab, tmp_path: Path) -> None:
    folders = [gpt_run(tmp_path / name) for name in ("one", "two")]
    with exploring(*folders) as explorer:
        page = tab.open(explorer, "write", text="the fox")
        page.click(".writer .written .token >> nth=2")
        wait_for_address(page, "token=3")
        page.reload()
        page.wait_for_selector(".place:text-matches('^Position 3:')")
        page.click("#tab-compare")
        page.wait_for_selector("#divergence")
        page.locator("#view-compare select").nth(1).select_option(f"{folders[1]}: latest")
        wait_until(page, "new URLSearchParams(location.hash.split('?')[1]).get('other').endsWith('two: latest')")
        link = page.url
        page.evaluate("sessionStorage.clear()")
        page.goto("about:blank")
        page.goto(link)
        page.wait_for_selector("#divergence")
        assert page.locator("#view-compare select").nth(1).input_value() == f"{folders[1]}: latest"
