"""Neurons in a browser: those of the chosen token, what one writes, and what excites it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import wait_until

from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects

TEXT = "The quick fox"
DONE = "document.getElementById('neurons-progress').textContent.includes('13 of 13 tokens')"


def signed(value: float) -> str:
    size = abs(value) if abs(value) >= 1e-6 else 0.0
    told = f"{size:.3f}" if size >= 0.0005 or size == 0 else f"{size:.1e}".replace("e-0", "e-")
    return f"{'' if size == 0 else '+' if value > 0 else '−'}{told}"


def asked(path: Path, name: str, **fields: Any) -> Any:
    subjects = Subjects([path])
    passage = {"model": "best", "ids": subjects.get("best").encode(TEXT)}
    about = {"model": "best"} if name == "neuron_tokens" else {"passage": passage}
    found = ask(subjects, name, {**about, **fields})
    return found if isinstance(found, dict) else list(found)[-1]


def open_neurons(tab: Any, explorers: Any) -> Any:
    page = tab.open(explorers["gpt"], "inside", text=TEXT)
    page.locator("#inside-neurons").scroll_into_view_if_needed()
    page.wait_for_selector("#neurons-examples li")
    return page


def test_the_most_active_neuron_is_shown_first(tab: Any, explorers: Any, runs: Any) -> None:
    page = open_neurons(tab, explorers)
    best = asked(runs["gpt"], "neurons", place=len(TEXT) - 1)["best"]
    names = [f"layer {one['layer'] + 1}, neuron {one['unit'] + 1}: {signed(one['activation'])}" for one in best]
    assert page.locator("#neurons-active button").all_text_contents() == names
    assert page.text_content("#neurons-title") == names[0].partition(":")[0].capitalize()
    told = asked(runs["gpt"], "neuron_tokens", layer=best[0]["layer"], unit=best[0]["unit"])
    page.wait_for_selector("#neurons-tokens li")
    numbers = page.locator("#neurons-tokens .number").all_text_contents()
    assert numbers == [signed(one["value"]) for one in (*told["raised"], *told["lowered"])]


def test_a_neuron_is_named_and_searched_in_both_directions(tab: Any, explorers: Any, runs: Any) -> None:
    page = open_neurons(tab, explorers)
    page.fill("#neurons-layer", "1")
    page.fill("#neurons-unit", "4")
    for sign, smallest in (("", False), ("smallest", True)):
        page.select_option("#neurons-sign", sign)
        wait_until(page, DONE)
        best = asked(runs["gpt"], "neuron_examples", layer=0, unit=3, smallest=smallest)["best"]
        assert page.locator("#neurons-examples .number").all_text_contents() == [signed(one["value"]) for one in best]
        marks = [text.replace("␣", " ") for text in page.locator("#neurons-examples mark").all_text_contents()]
        assert marks == [one["token"] for one in best]
    assert "of your text" in str(page.text_content("#neurons-progress"))
    page.fill("#neurons-unit", "65")  # there are 64
    assert page.get_attribute("#neurons-unit", "aria-invalid") == "true"
    assert page.text_content("#neurons-title") == "Layer 1, neuron 4"


def test_another_token_has_other_neurons(tab: Any, explorers: Any, runs: Any) -> None:
    page = open_neurons(tab, explorers)
    page.locator("#inside-neurons .written .token").nth(2).click()
    wait_until(page, "document.getElementById('neurons-active').textContent.includes('position 3')")
    best = asked(runs["gpt"], "neurons", place=2)["best"]
    page.locator("#neurons-active button").nth(4).click()
    title = f"Layer {best[4]['layer'] + 1}, neuron {best[4]['unit'] + 1}"
    assert page.text_content("#neurons-title") == title
    wait_until(page, DONE)


@pytest.mark.parametrize(("name", "why"), [("recurrent", "no feed-forward"), ("transformer", "encoder-decoder")])
def test_where_there_are_none_the_page_says_why(tab: Any, explorers: Any, name: str, why: str) -> None:
    tab.page.add_init_script("sessionStorage.setItem('explorer', JSON.stringify({sourceText: 'lazy dog'}))")
    page = tab.open(explorers[name], "inside", text="the fox")
    page.wait_for_selector("#inside-neurons .note:visible")
    assert why in str(page.text_content("#inside-neurons"))


def test_a_bert_says_why_no_tokens_are_near(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["masked"], "inside", text="the fox")
    page.locator("#inside-neurons").scroll_into_view_if_needed()
    page.wait_for_selector("#neurons-examples li")
    assert "one more layer" in str(page.text_content("#neurons-tokens"))
