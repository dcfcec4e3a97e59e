"""The view "what if" in a browser: what it shows is what the model with its parts switched off predicts."""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlencode
from xml.etree import ElementTree

import numpy as np
import pytest
from browsing import SVG, Tab, saved, texts_of, wait_until
from explored import serving

import tinytensor as tt
from tinyformer.explore.views.ablating import ranking
from tinyformer.explore.views.passages import OfPassage
from tinyformer.explore.views.questions import QUESTIONS, ask
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


class Here:
    """An explorer that runs in a thread of this process, for a tab."""

    def __init__(self, address: str):
        self.address = address
        self.process = SimpleNamespace(is_alive=lambda: True)


def open_view(tab: Tab, explorer: Any, text: str = TEXT) -> Any:
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
    switch(page, "layer 1, head 2")
    check(page, run, head)
    switch(page, "layer 2, MLP")
    check(page, run, head, network)
    assert page.text_content("#whatif-off") == "Off: layer 1, head 2; layer 2, MLP."
    assert page.locator(".part-grid [aria-pressed=true]").count() == 2
    switch(page, "layer 1, head 2")
    check(page, run, network)
    page.get_by_role("button", name="Switch all on").click()
    switch(page, "all of layer 2")
    check(page, run, BlockOff("blocks.1"))
    assert "loss of the text" in page.text_content("#whatif-changes .readout")


def test_what_takes_the_place_of_a_part_is_chosen(tab: Any, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    switch(page, "layer 1, MLP")
    page.check("input[value=mean]")
    check(page, run, NetworkOff("blocks.0.feed_forward", "mean"))
    page.get_by_label("Neuron", exact=True).fill("4")
    page.get_by_role("button", name="Switch off or on").click()
    switch(page, "layer 1, MLP")
    check(page, run, NeuronOff("blocks.0.feed_forward", 3, "mean"))
    page.get_by_label("Neuron", exact=True).fill("99999")
    page.get_by_role("button", name="Switch off or on").click()
    assert page.get_by_label("Neuron", exact=True).get_attribute("aria-invalid") == "true"
    assert page.text_content("#whatif-off") == "Off: layer 1, neuron 4."
    page.get_by_role("button", name="Switch all on").click()
    page.check("input[value=choice]")
    switch(page, "layer 1, head 1")
    expected = run.ask("ablated", passage=run.passage, off=[{"kind": "choice", "name": "blocks.0.attention", "index": 0}])
    assert expected["divergence"] > 0.001
    page.get_by_text(f"Divergence from the whole model {expected['divergence']:.3f} nats").wait_for()


def test_the_keys_move_in_the_grid(tab: Any, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    page.locator(".part-grid button").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    check(page, run, HeadOff("blocks.1.attention", 1))
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Switch off layer 2, head 2"
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
    label = f"layer {block}, MLP" if best["kind"] == "network" else f"layer {block}, head {best['index'] + 1}"
    row = page.locator(".ranking tbody tr").first
    assert row.locator("th").text_content() == label
    row.locator("td").first.click()
    assert page.text_content("#whatif-off") == f"Off: {label}."
    row.get_by_role("button").press("Enter")
    assert page.text_content("#whatif-off") == "Nothing is off."


def test_the_ranking_can_be_stopped(tab: Tab, run: Run, runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held after its second part. What comes after that, the page does not show, and the explorer gives up on it."""
    goes_on, has_ended = threading.Event(), threading.Event()

    @functools.wraps(ranking)
    def held(subjects: Subjects, asked: OfPassage) -> Iterator[Any]:
        about, first, second, *others = ranking(subjects, asked)
        yield from (about, first, second)
        try:
            assert goes_on.wait(60)
            yield from itertools.cycle(others)  # until nobody reads them
        finally:
            has_ended.set()

    monkeypatch.setitem(QUESTIONS, "ranking", held)
    with serving(Subjects([runs["gpt"]])) as server:
        page = open_view(tab, Here(server.address))
        said = page.locator("#whatif-ranking [role=status]")
        page.get_by_text("2 of 6 are ranked.").wait_for()
        switch(page, "layer 1, head 1")  # others may ask in between
        check(page, run, HeadOff("blocks.0.attention", 0))
        page.get_by_role("button", name="Stop", exact=True).click()
        assert said.text_content() == "Stopped: 2 of 6 are ranked."
        goes_on.set()
        assert has_ended.wait(60)
        assert said.text_content() == "Stopped: 2 of 6 are ranked." and page.locator(".ranking tbody tr").count() == 2
        monkeypatch.undo()
        page.get_by_role("button", name="Rank all heads and MLPs").click()
        page.get_by_text("All 6 heads and MLPs are ranked.").wait_for()
        tab.context.close()  # it asks no more


def test_a_ranking_that_is_stopped_before_its_first_part_says_so(tab: Tab, runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    @functools.wraps(ranking)
    def held(subjects: Subjects, asked: OfPassage) -> Iterator[Any]:
        assert goes_on.wait(60)
        yield from ranking(subjects, asked)

    monkeypatch.setitem(QUESTIONS, "ranking", held)
    with serving(Subjects([runs["gpt"]])) as server:
        page = open_view(tab, Here(server.address))
        page.get_by_role("button", name="Stop", exact=True).click()
        assert page.text_content("#whatif-ranking [role=status]") == "Stopped: none are ranked."
        goes_on.set()
        tab.context.close()


def test_a_row_of_attention_is_edited(tab: Any, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    rows = "#whatif-row .changes [role=row]"
    page.wait_for_selector(rows)
    page.get_by_label("Layer", exact=True).select_option(label="layer 2")
    page.get_by_label("Head", exact=True).select_option(label="2")
    slider = page.get_by_role("slider", name="(position 3)")
    slider.fill("0.9")
    numbers = [float(text) for text in page.locator(".row-keys .number").all_text_contents()]
    assert len(numbers) == len(run.ids) and numbers[2] == 0.9 and sum(numbers) == pytest.approx(1, abs=0.01)
    asked = {"passage": run.passage, "layer": "blocks.1.attention", "head": 1, "first": len(run.ids) - 1, "count": 1}
    (own,) = run.ask("attention_rows", **asked)["weights"]
    expected = [0.9 if i == 2 else weight * 0.1 / (1 - own[2]) for i, weight in enumerate(own)]
    assert numbers == pytest.approx(expected, abs=1e-3)
    check(page, run, AttentionRow("blocks.1.attention", 1, len(run.ids) - 1, expected), rows=rows)
    page.get_by_role("button", name="Uniform").click()
    check(page, run, AttentionRow("blocks.1.attention", 1, len(run.ids) - 1, [1 / len(own)] * len(own)), rows=rows)
    page.get_by_role("button", name="Reset").click()
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
    assert line.text_content().startswith("layer 2, x→g (position 13): ")
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
    page.get_by_text("The text has no [MASK]").wait_for()
    assert page.locator("#whatif-changes").is_hidden()
    page.fill("#text", "the [MASK] fox")
    page.locator("#whatif-changes").wait_for()
    page.wait_for_selector(BARS)
    assert page.text_content("#whatif-changes h3") == "In the place of “[MASK]” (position 3)"
    page.get_by_text("All 6 heads and MLPs are ranked.").wait_for()
    assert "loss of the text" not in page.text_content("#whatif-changes .readout")


@pytest.mark.parametrize("width", [1280, 360])
def test_an_encoder_decoder_and_the_width_of_the_page(browser: Any, explorers: Any, width: int) -> None:
    tab = Tab(browser, width)
    tab.page.add_init_script("sessionStorage.setItem('explorer', JSON.stringify({sourceText: 'lazy dog'}))")
    page = tab.open(explorers["transformer"], "whatif", text="the fox")
    page.wait_for_selector(BARS)
    page.get_by_text("All 16 heads and MLPs are ranked.").wait_for()
    switch(page, "decoder layer 1, head 2 to source")
    wait_until(page, "!document.querySelector('#whatif-changes .readout').textContent.includes('0.000 nats')")
    page.get_by_label("Layer", exact=True).select_option(label="decoder layer 2 to source")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.context.close()
    assert tab.faults == []


def test_another_text_and_another_model(tab: Any, explorers: Any, runs: Any) -> None:
    page = open_view(tab, explorers["gpt"])
    switch(page, "layer 1, head 1")
    page.fill("#text", "The lazy")
    check(page, Run(runs["gpt"], "The lazy"), HeadOff("blocks.0.attention", 0))  # what is off stays off
    page.select_option("#model", "latest")
    page.get_by_text("Nothing is off.").wait_for()


def title(run: Run, layer: int, head: int) -> str:
    """What a head is called in the grid."""
    told = run.ask("head_names", model=run.name)["layers"][layer]["heads"][head]
    places = told["distance"]
    distance = f"{abs(places)} {'before' if places > 0 else 'behind'}" if places else "itself"
    names = [f"positional ({distance})" if name == "positional" else name for name in told["names"]]
    return f"layer {layer + 1}, head {head + 1}" + (f" · {', '.join(names)}" if names else "")


def test_the_heads_have_names(tab: Tab, explorers: Any, runs: Any) -> None:
    run = Run(runs["named"])
    kinds = {kind["name"]: kind["short"] for kind in run.ask("head_names", model=run.name)["kinds"]}
    expected = [title(run, layer, head) for layer in (0, 1) for head in (0, 1)]
    assert "first token" in expected[2]
    page = open_view(tab, explorers["named"])
    page.wait_for_selector(".part-grid .named")
    page.get_by_text("All 6 heads and MLPs are ranked.").wait_for()
    heads = page.locator(".part-grid .part:not(.wide)")
    assert [head.get_attribute("title") for head in heads.all()] == expected
    assert [head.get_attribute("aria-label") for head in heads.all()] == [f"Switch off {name}" for name in expected]
    named = [name.partition(" · ")[2].partition(",")[0].partition(" (")[0] for name in expected]
    assert page.locator(".part-grid .named").all_text_contents() == [kinds[name] for name in named if name]
    rows = page.locator(".ranking tbody th").all_text_contents()
    assert sorted(rows) == sorted([*expected, "layer 1, MLP", "layer 2, MLP"])
    page.get_by_label("Layer", exact=True).select_option(label="layer 2")
    options = page.get_by_label("Head", exact=True).locator("option").all_text_contents()
    assert options == [name.removeprefix("layer 2, head ") for name in expected[2:]]
    switch(page, "layer 2, head 1")
    check(page, run, HeadOff("blocks.1.attention", 0))


def address(page: Any) -> dict[str, str]:
    """What the page's address says of this view."""
    view, _, query = page.url.partition("#")[2].partition("?")
    assert view == "whatif"
    values = {key: value for key, (value,) in parse_qs(query).items() if key not in ("model", "text")}
    return values


def test_a_reload_and_a_link_show_the_same(browser: Any, tab: Tab, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    for label in ("layer 1, head 2", "layer 2, MLP", "all of layer 1"):
        switch(page, label)
    page.get_by_role("button", name="Switch off or on").click()
    page.check("input[value=mean]")
    page.get_by_label("Layer", exact=True).select_option(label="layer 2")
    page.get_by_label("Head", exact=True).select_option(label="2")
    page.get_by_label("Query").select_option(value="4")
    page.get_by_role("slider", name="(position 3)").fill("0.75")
    page.get_by_label("Prompt B").fill("The quick dog")
    page.get_by_role("button", name="Compare the prompts").click()
    page.get_by_label("Its logit minus that of").select_option("none")
    page.get_by_text("The probability of").wait_for()
    off = "blocks.0.attention-2 blocks.1.feed_forward blocks.0 blocks.0.feed_forward-1"
    first, *_ = run.ask("patched", a=run.passage, b={**run.passage, "ids": run.subject.encode("The quick dog")})
    weights = page.locator(".row-keys .number").all_text_contents()
    expected = {"by": "mean", "off": off, "layer": "blocks.1.attention", "head": "2", "token": "5", "b": "The quick dog"}
    row = [*(f"{float(weight):g}" for weight in weights), *["0"] * (len(run.ids) - 5)]  # the token sees those up to itself
    expected |= {"measured": str(first["token"]), "row": " ".join(row)}
    wait_until(page, f"location.hash.endsWith('measured={first['token']}')")
    assert address(page) == expected
    said = page.text_content("#whatif-patching [role=status]")
    other = Tab(browser)  # which knows nothing but the link
    other.page.goto(page.url)
    page.reload()
    parts = [
        HeadOff("blocks.0.attention", 1, "mean"),
        NetworkOff("blocks.1.feed_forward", "mean"),
        BlockOff("blocks.0", "mean"),
    ]
    for one in (page, other.page):
        one.wait_for_selector(BARS)
        one.locator("#whatif-patching .heatmap").wait_for()
        wait_until(one, f"document.querySelectorAll('.row-keys .number').length === {len(weights)}")
        check(one, run, NeuronOff("blocks.0.feed_forward", 0, "mean"), *parts)
        assert one.text_content("#whatif-off") == "Off: layer 1, head 2; layer 2, MLP; layer 1; layer 1, neuron 1."
        assert one.is_checked("input[value=mean]") and one.input_value("#whatif-patching textarea") == "The quick dog"
        assert [one.input_value(f"[aria-label='{name}']") for name in ("Layer", "Head", "Query")] == [
            "blocks.1.attention",
            "1",
            "4",
        ]
        found = [float(text) for text in one.locator(".row-keys .number").all_text_contents()]
        assert found == pytest.approx([float(text) for text in weights], abs=1.1e-3)
        assert one.text_content("#whatif-patching [role=status]") == said
        assert address(one) == expected
    other.context.close()
    assert other.faults == []


def test_back_switches_parts_on_again(tab: Tab, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    head, network = HeadOff("blocks.0.attention", 1), NetworkOff("blocks.1.feed_forward")
    wait_until(page, "location.hash.includes('off=none')")
    switch(page, "layer 1, head 2")
    switch(page, "layer 2, MLP")
    page.check("input[value=mean]")
    page.select_option("#model", "latest")
    page.get_by_text("Nothing is off.").wait_for()
    wait_until(page, "location.hash.includes('off=none')")
    for expected, way in (([head, network], "mean"), ([head, network], "zero"), ([head], "zero")):
        page.go_back()
        wait_until(page, f"document.querySelector('input[value={way}]').checked")
        wait_until(page, f"document.querySelectorAll('.part-grid [aria-pressed=true]').length === {len(expected)}")
        check(page, run, *(type(one)(*list(vars(one).values())[:-1], way) for one in expected))
        assert page.input_value("#model") == "best"
    page.go_back()
    page.get_by_text("Nothing is off.").wait_for()
    page.go_forward()
    page.get_by_text("Off: layer 1, head 2.").wait_for()
    assert address(page)["off"] == "blocks.0.attention-2"


def test_an_address_of_another_model_does_no_harm(tab: Tab, explorers: Any) -> None:
    tab.explorer = explorers["gpt"]
    off = "x-9 blocks.0.attention-99 blocks.0.attention-0 blocks.0-1 <b> blocks.7 constructor"
    values = {"by": "<i>", "off": off, "layer": "x", "head": "-3", "token": "1e999", "row": "1 2", "text": TEXT}
    values |= {"b": "The quick dog", "measured": "99999-1"}
    tab.page.goto(f"{explorers['gpt'].address}#whatif?{urlencode(values)}")
    tab.page.wait_for_selector(BARS)
    tab.page.get_by_text("B 13 tokens.").wait_for()
    wait_until(tab.page, "!location.hash.includes('row=') && !location.hash.includes('measured=')")
    assert tab.page.text_content("#whatif-off") == "Nothing is off."
    layer = "blocks.0.attention"
    assert address(tab.page) == {"by": "zero", "off": "none", "layer": layer, "head": "1", "token": "13", "b": "The quick dog"}


def fills_of(svg: bytes) -> list[str]:
    """Return the colors of a picture's boxes, without the background."""
    return [box.get("fill", "") for box in ElementTree.fromstring(svg).iter(f"{SVG}rect")][1:]


def test_each_picture_can_be_saved(tab: Tab, explorers: Any, run: Run) -> None:
    page = open_view(tab, explorers["gpt"])
    page.get_by_text("All 6 heads and MLPs are ranked.").wait_for()
    switch(page, "layer 1, head 2")
    check(page, run, HeadOff("blocks.0.attention", 1))
    page.get_by_label("Prompt B").fill("The quick dog")
    page.get_by_role("button", name="Compare the prompts").click()
    page.locator("#whatif-patching .heatmap").wait_for()
    page.wait_for_selector("#whatif-row .changes [role=row]")
    buttons = page.locator("#view-whatif .save")
    assert buttons.count() == buttons.filter(visible=True).count() == 6
    assert len({button.get_attribute("aria-label") for button in buttons.all()}) == 6
    grid, changes, table, row, edited, prompts = buttons.all()
    name, svg = saved(page, grid)
    assert name == "best-the-parts-of-the-model-that-are-on-and-off.svg"
    buttons = ["1", "2", "MLP"]
    assert texts_of(svg)[1:] == ["layer 1", *buttons, "layer 2", *buttons, "Off: layer 1, head 2."]
    assert len([box for box in ElementTree.fromstring(svg).iter(f"{SVG}rect") if box.get("stroke-dasharray")]) == 1
    for button, rows in ((changes, BARS), (edited, "#whatif-row .changes [role=row]")):
        _, svg = saved(page, button)
        assert [text for pair in shown(page, rows) for text in pair] == texts_of(svg)[3:-2]
        assert len(fills_of(svg)) == 22 and all(fills_of(svg).count(fill) == 11 for fill in set(fills_of(svg)))
    _, svg = saved(page, table)
    cells = page.locator(".ranking tbody :is(th, td)").all_text_contents()
    assert texts_of(svg)[-len(cells) :] == cells
    _, svg = saved(page, row)
    rails = [float(box.get("width", "")) for box in ElementTree.fromstring(svg).iter(f"{SVG}rect")][1:]
    asked = {"passage": run.passage, "layer": "blocks.0.attention", "head": 0, "first": len(run.ids) - 1, "count": 1}
    (weights,) = run.ask("attention_rows", **asked)["weights"]
    assert [part / whole for whole, part in zip(rails[::2], rails[1::2])] == pytest.approx(weights, abs=1e-3)
    name, png = saved(page, prompts)
    assert name.startswith("best-the-logit-of-") and name.endswith(".png") and png.startswith(b"\x89PNG")
