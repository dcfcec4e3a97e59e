"""The view "what if" in a browser: what it shows is what the model with its parts switched off predicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import Explorer, Tab, wait_until
from explored import gpt_run

import tinytensor as tt
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.intervening import AttentionRow, BlockOff, HeadOff, NetworkOff, NeuronOff, intervening, recording_means

TEXT = "The quick fox"
BARS = "#whatif-changes .changes [role=row]"


class Run:
    """A run, as Python reads it."""

    def __init__(self, path: Path, text: str = TEXT):
        self.subjects = Subjects([path])
        self.name = self.subjects.names[0]
        self.subject = self.subjects.get(self.name)
        self.ids = self.subject.encode(text)

    def probabilities(self, *interventions: Any) -> Any:
        """Those of the next token, with interventions."""
        inputs = tt.tensor([self.ids])
        with tt.no_grad(), recording_means(self.subject.model) as means:
            self.subject.model(inputs)
        with tt.no_grad(), intervening(self.subject.model, interventions, means):
            logits = self.subject.model(inputs).numpy()[0, -1].astype(float)
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def ask(self, name: str, **asked: Any) -> Any:
        answer = ask(self.subjects, name, asked)
        return json.loads(json.dumps(answer if isinstance(answer, dict) else list(answer)))

    @property
    def passage(self) -> dict[str, Any]:
        return {"model": self.name, "ids": self.ids, "source": []}


@pytest.fixture
def run(runs: Any) -> Run:
    return Run(runs["gpt"])


def open_view(tab: Tab, explorer: Explorer, text: str = TEXT) -> Any:
    page = tab.open(explorer, "whatif", text=text)
    page.wait_for_selector(BARS)
    return page


def shown(page: Any, rows: str = BARS) -> list[tuple[str, str, str]]:
    """The token of each row, and its probabilities before and after as they are written."""
    read = "rows => rows.map(row => [...row.querySelectorAll('.name, .number')].map(one => one.textContent))"
    return [tuple(row) for row in page.eval_on_selector_all(rows, read)]


def percent(p: float) -> str:
    value = 100 * p
    return f"{value:.1f} %" if value >= 10 else f"{value:.2f} %" if value >= 1 else f"{float(f'{value:.2g}')} %"


def check(page: Any, run: Run, *interventions: Any, rows: str = BARS) -> None:
    """Wait until the bars are those of these interventions."""
    before, after = run.probabilities(), run.probabilities(*interventions)
    order = np.argsort(-abs(after - before), kind="stable")[:10]
    texts = [{" ": "␣", "\n": "↵"}.get(text, text) for text in run.subject.texts(order.tolist())]
    wait_until(page, f"document.querySelector({rows!r}).textContent.endsWith({percent(after[order[0]])!r})")
    found = shown(page, rows)
    assert [name for name, _, _ in found][:3] == texts[:3]
    for name, *told in found:
        (i,) = run.subject.encode({"␣": " ", "↵": "\n"}.get(name, name))
        for text, p in zip(told, (before[i], after[i])):
            assert float(text.removesuffix(" %")) == pytest.approx(100 * p, rel=0.06, abs=1e-4)


def switch(page: Any, label: str) -> None:
    page.click(f".part-grid [title='{label}'], .part-grid [title^='{label} · ']")


def test_parts_are_switched_off_and_on(tab: Any, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    head, network = HeadOff("blocks.0.attention", 1), NetworkOff("blocks.1.feed_forward")
    switch(page, "block 1, head 2")
    check(page, run, head)
    switch(page, "block 2, MLP")
    check(page, run, head, network)
    assert page.text_content("#whatif-off") == "Off: block 1, head 2; block 2, MLP."
    assert page.locator(".part-grid [aria-pressed=true]").count() == 2
    switch(page, "block 1, head 2")
    check(page, run, network)
    page.get_by_role("button", name="Switch all on").click()
    switch(page, "all of block 2")
    check(page, run, BlockOff("blocks.1"))
    assert "loss of the text" in page.text_content("#whatif-changes .readout")


def test_what_takes_the_place_of_a_part_is_chosen(tab: Any, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    switch(page, "block 1, MLP")
    page.check("input[value=mean]")
    check(page, run, NetworkOff("blocks.0.feed_forward", "mean"))
    page.get_by_label("Neuron", exact=True).fill("4")
    page.get_by_role("button", name="Switch off or on").click()
    switch(page, "block 1, MLP")
    check(page, run, NeuronOff("blocks.0.feed_forward", 3, "mean"))
    page.get_by_label("Neuron", exact=True).fill("99999")
    page.get_by_role("button", name="Switch off or on").click()
    assert page.get_by_label("Neuron", exact=True).get_attribute("aria-invalid") == "true"
    assert page.text_content("#whatif-off") == "Off: block 1, neuron 4."
    page.get_by_role("button", name="Switch all on").click()
    page.check("input[value=choice]")
    switch(page, "block 1, head 1")
    expected = run.ask("ablated", passage=run.passage, off=[{"kind": "choice", "name": "blocks.0.attention", "index": 0}])
    assert expected["divergence"] > 0.001
    page.get_by_text(f"Divergence from the whole model {expected['divergence']:.3f} nats").wait_for()


def test_the_keys_move_in_the_grid(tab: Any, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    page.locator(".part-grid button").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    check(page, run, HeadOff("blocks.1.attention", 1))
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Switch off block 2, head 2"
    assert page.locator(".part-grid button[tabindex='0']").count() == 1


def test_the_ranking_fills_and_is_sorted(tab: Any, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    page.get_by_text("All 6 heads and MLPs are ranked.").wait_for()
    _, *lines = run.ask("ranking", passage=run.passage)
    for by, heading in (("zero", None), ("mean", "Δ loss, its mean")):
        if heading:
            page.get_by_role("button", name=heading).click()
        rows = page.eval_on_selector_all(
            ".ranking tbody tr", "rows => rows.map(row => [...row.children].map(c => c.textContent))"
        )
        found = [float(row[1 if by == "zero" else 2].replace("−", "-")) for row in rows]
        assert found == pytest.approx(sorted((line[by] for line in lines), reverse=True), abs=1.1e-3)
    best = max(lines, key=lambda line: line["mean"])
    block = int(best["name"].split(".")[1]) + 1
    label = f"block {block}, MLP" if best["kind"] == "network" else f"block {block}, head {best['index'] + 1}"
    row = page.locator(".ranking tbody tr").first
    assert row.locator("th").text_content() == label
    row.locator("td").first.click()
    assert page.text_content("#whatif-off") == f"Off: {label}."
    row.get_by_role("button").press("Enter")
    assert page.text_content("#whatif-off") == "Nothing is off."


def test_the_ranking_can_be_stopped(browser: Any, tmp_path: Path) -> None:
    explorer = Explorer(gpt_run(tmp_path / "run", num_layers=24, num_heads=8, d_model=64, block_size=64))
    tab = Tab(browser)
    try:
        page = open_view(tab, explorer, "fox " * 15)
        page.get_by_role("button", name="Stop", exact=True).click()
        said = page.text_content("#whatif-ranking [role=status]")
        assert "are ranked" in said and said.startswith("Stopped: ")
        page.wait_for_timeout(300)
        assert page.text_content("#whatif-ranking [role=status]") == said
        switch(page, "block 1, head 1")  # and the explorer answers at once
        page.get_by_role("button", name="Rank all heads and MLPs").click()
        wait_until(page, "document.querySelector('#whatif-ranking progress').value > 3")
    finally:
        tab.context.close()
        explorer.stop()
    assert tab.faults == []


def test_a_row_of_attention_is_edited(tab: Any, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    rows = "#whatif-row .changes [role=row]"
    page.wait_for_selector(rows)
    page.get_by_label("Layer", exact=True).select_option(label="block 2")
    page.get_by_label("Head", exact=True).select_option(label="2")
    slider = page.get_by_role("slider", name="(place 3)")
    slider.fill("0.9")
    numbers = [float(text) for text in page.locator(".row-keys .number").all_text_contents()]
    assert len(numbers) == len(run.ids) and numbers[2] == 0.9 and sum(numbers) == pytest.approx(1, abs=0.01)
    asked = {"passage": run.passage, "layer": "blocks.1.attention", "head": 1, "first": len(run.ids) - 1, "count": 1}
    (own,) = run.ask("attention_rows", **asked)["weights"]
    expected = [0.9 if i == 2 else weight * 0.1 / (1 - own[2]) for i, weight in enumerate(own)]
    assert numbers == pytest.approx(expected, abs=1e-3)
    check(page, run, AttentionRow("blocks.1.attention", 1, len(run.ids) - 1, expected), rows=rows)
    page.get_by_role("button", name="All alike").click()
    check(page, run, AttentionRow("blocks.1.attention", 1, len(run.ids) - 1, [1 / len(own)] * len(own)), rows=rows)
    page.get_by_role("button", name="As it was").click()
    wait_until(page, f"document.querySelector('.row-keys .number').textContent === '{own[0]:.3f}'")
    slider.press("ArrowRight")
    wait_until(page, f"document.querySelectorAll('.row-keys .number')[2].textContent === '{own[2] + 0.05:.3f}'")


def test_two_prompts_are_patched(tab: Any, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    box = page.locator("#whatif-patching")
    other = box.get_by_label("Prompt B")
    go = box.get_by_role("button", name="Compare the prompts")
    assert other.input_value() == TEXT and go.is_disabled()
    other.fill("The quick foxes")
    box.get_by_text("A has 13 tokens, B 15 tokens: change one").wait_for()
    assert go.is_disabled()
    other.fill("The quick dog")
    box.get_by_text("A has 13 tokens, B 13 tokens.").wait_for()
    assert box.locator(".differs").all_text_contents() == list("fxdg")
    go.click()
    box.locator(".heatmap").wait_for()
    first, *lines = run.ask("patched", a=run.passage, b={**run.passage, "ids": run.subject.encode("The quick dog")})
    heat = box.locator(".heatmap")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        heat.press(key)
    line = box.locator(".readout")
    wait_until(page, "!document.querySelector('#whatif-patching .readout').textContent.includes('…')")
    assert line.text_content().startswith("block 2, x→g (place 13): ")
    assert line.text_content().endswith("100 % of the way from A to B")
    heat.press("ArrowUp")
    value = lines[0]["values"][12]
    told = f"{value:.3f}".replace("-", "−") if first["against"] is not None else percent(value)
    assert f": {told}," in line.text_content()
    box.get_by_label("Its logit minus that of").select_option("none")
    box.get_by_text("The probability of").wait_for()
    probability = run.ask(
        "patched", a=run.passage, b={**run.passage, "ids": run.subject.encode("The quick dog")}, token=first["token"]
    )
    assert percent(probability[0]["a"]) in box.locator("[role=status]").text_content()


@pytest.mark.parametrize("name", ["recurrent", "context", "attention"])
def test_a_recurrent_network_has_nothing_to_switch_off(tab: Any, explorers: Any, name: str) -> None:
    source = "" if name == "recurrent" else "lazy dog"
    tab.page.add_init_script(f"sessionStorage.setItem('explorer', JSON.stringify({{sourceText: {source!r}}}))")
    page = tab.open(explorers[name], "whatif", text="fox")
    page.get_by_text("This model is a recurrent network").wait_for()
    assert page.locator(".part-grid").count() == 0


def test_a_bert_needs_a_mask(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["masked"], "whatif", text="the fox")
    page.get_by_text("There is no [MASK] in the text").wait_for()
    assert page.locator("#whatif-changes").is_hidden()
    page.fill("#text", "the [MASK] fox")
    page.locator("#whatif-changes").wait_for()
    page.wait_for_selector(BARS)
    assert page.text_content("#whatif-changes h3") == "In the place of “[MASK]” (place 3)"
    page.get_by_text("All 6 heads and MLPs are ranked.").wait_for()
    assert "loss of the text" not in page.text_content("#whatif-changes .readout")


@pytest.mark.parametrize("width", [1280, 360])
def test_an_encoder_decoder_and_the_width_of_the_page(browser: Any, explorers: Any, width: int) -> None:
    tab = Tab(browser, width)
    tab.page.add_init_script("sessionStorage.setItem('explorer', JSON.stringify({sourceText: 'lazy dog'}))")
    page = tab.open(explorers["transformer"], "whatif", text="the fox")
    page.wait_for_selector(BARS)
    page.get_by_text("All 16 heads and MLPs are ranked.").wait_for()
    switch(page, "decoder block 1, head 2 to source")
    wait_until(page, "!document.querySelector('#whatif-changes .readout').textContent.includes('0.000 nats')")
    page.get_by_label("Layer", exact=True).select_option(label="decoder block 2 to source")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.context.close()
    assert tab.faults == []


def test_another_text_and_another_model(tab: Any, explorers: Any, runs: Any) -> None:
    page = open_view(tab, explorers["gpt"])
    switch(page, "block 1, head 1")
    page.fill("#text", "The lazy")
    check(page, Run(runs["gpt"], "The lazy"), HeadOff("blocks.0.attention", 0))  # what is off stays off
    page.select_option("#model", "latest")
    page.get_by_text("Nothing is off.").wait_for()
