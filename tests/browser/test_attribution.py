"""Who wrote this token, in a browser: the bars are the shares, and a click leads to the head."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import wait_until

from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects

TEXT = "The quick fox"


def shares_of(path: Path, place: int, **asked: Any) -> tuple[dict[str, float], Any]:
    """The shares by name, as the page writes them, and the answer."""
    subjects = Subjects([path])
    subject = subjects.get("best")
    passage = {"model": "best", "ids": subject.encode(TEXT)}
    found: Any = ask(subjects, "attribution", {"passage": passage, "place": place, **asked})
    shares = {"token embedding": found["embedding"], "position embedding": found["position"], "biases": found["biases"]}
    for i, layer in enumerate(found["layers"], 1):
        shares |= {f"layer {i}, head {j}": share for j, share in enumerate(layer["heads"], 1)}
        shares[f"layer {i}, MLP"] = layer["feed_forward"]
    return shares, found


def shown(page: Any) -> dict[str, float]:
    """The bars of the page, with the names' labels left out."""
    bars = page.locator("#attribution-bars")
    names = [re.sub(r" · .*", "", name) for name in bars.locator(".name").all_text_contents()]
    return dict(zip(names, (float(text.replace("−", "-")) for text in bars.locator(".number").all_text_contents())))


def open_bars(tab: Any, explorers: Any) -> Any:
    page = tab.open(explorers["gpt"], "inside", text=TEXT)
    page.locator("#inside-attribution").scroll_into_view_if_needed()
    page.wait_for_selector("#attribution-bars .bar")
    return page


def rounded(shares: dict[str, float]) -> dict[str, Any]:
    return {name: pytest.approx(value, abs=0.00051) for name, value in shares.items()}


def test_the_bars_are_the_shares_and_sum_to_the_logit(tab: Any, explorers: Any, runs: Any) -> None:
    page = open_bars(tab, explorers)
    expected, found = shares_of(runs["gpt"], len(TEXT) - 1)
    assert shown(page) == rounded(expected)
    assert list(map(abs, shown(page).values())) == sorted(map(abs, shown(page).values()), reverse=True)
    line = str(page.text_content("#attribution-sum"))
    assert f"the shares sum to {found['sum']:.4f}, and the model's own number is {found['logit']:.4f}" in line
    page.select_option("#attribution-order", "layer")
    assert list(shown(page))[:3] == ["token embedding", "position embedding", "layer 1, head 1"]
    negative = page.locator("#attribution-bars .bar.negative")
    assert negative.count() == sum(value < 0 for value in expected.values())


def test_another_token_another_place_and_a_difference(tab: Any, explorers: Any, runs: Any) -> None:
    page = open_bars(tab, explorers)
    page.locator("#inside-attribution .token").nth(3).click()
    wait_until(page, "document.getElementById('attribution-sum').textContent.includes('position 4')")
    expected, found = shares_of(runs["gpt"], 3)
    assert shown(page) == rounded(expected)
    page.select_option("#attribution-other", str(found["best"][1]["id"]))
    wait_until(page, "document.getElementById('attribution-sum').textContent.includes('minus')")
    assert shown(page) == rounded(shares_of(runs["gpt"], 3, other=found["best"][1]["id"])[0])
    page.fill("#attribution-token-typed", "j")
    page.press("#attribution-token-typed", "Enter")
    wait_until(page, "document.getElementById('attribution-sum').textContent.includes('“j”')")
    assert shown(page) == rounded(shares_of(runs["gpt"], 3, token="j", other=found["best"][1]["id"])[0])


@pytest.mark.parametrize("visited", [False, True])
def test_a_head_leads_to_its_map(tab: Any, explorers: Any, visited: bool) -> None:
    page = tab.open(explorers["gpt"], "attention" if visited else "inside", text=TEXT)
    if visited:
        page.wait_for_selector(".heads .head")
        page.click("#tab-inside")
    page.locator("#inside-attribution .token").nth(5).click()
    wait_until(page, "document.getElementById('attribution-sum').textContent.includes('position 6')")
    page.locator("#attribution-bars").get_by_role("button", name="layer 2, head 1").click()
    wait_until(page, "document.getElementById('attention-title').textContent.startsWith('Layer 2, head 1')")
    assert page.get_attribute("#tab-attention", "aria-selected") == "true"
    assert "(position 6)" in str(page.text_content("#attention-most .most"))


def test_the_arrow_keys_move_among_the_heads(tab: Any, explorers: Any) -> None:
    page = open_bars(tab, explorers)
    heads = page.locator("#attribution-bars button")
    heads.first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == heads.nth(1).text_content()
    assert [head.get_attribute("tabindex") for head in heads.all()] == ["-1", "0", "-1", "-1"]


@pytest.mark.parametrize(("name", "why"), [("recurrent", "through gates"), ("masked", "one more layer")])
def test_where_there_are_no_shares_the_page_says_why(tab: Any, explorers: Any, name: str, why: str) -> None:
    page = tab.open(explorers[name], "inside", text="the fox")
    page.wait_for_selector("#inside-attribution .note:visible")
    assert why in str(page.text_content("#inside-attribution"))
    assert page.locator("#attribution-bars").count() == 0
