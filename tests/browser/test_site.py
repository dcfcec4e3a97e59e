"""The built site in a real browser, opened from the disk as a reader opens an archive of it; see tests/site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import tinytensor as tt
from tinyformer import GPT, BPETokenizer, GPTConfig, Sampling
from tinyformer.models.attention import recording_attention
from tinyformer.models.intervening import HeadOff, intervening
from tinyformer.models.positions import sinusoidal
from tinytensor.functional.attention import masked_softmax

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_build"


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
    assert copied(page, "div.install div.highlight").endswith('\npip install -e ".[fast,plot]"\npython examples/char_gpt.py\n')
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
    assert summary.inner_text().startswith("A mask says who may attend to whom.")  # the section's own text


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


# ------------------------------------------------------------------------------------------------------ a trained GPT

NAMES = {"\n": "new line", " ": "space"}
SIGNS = {"\n": "↵", " ": "␣"}


@pytest.fixture(scope="module")
def trained() -> tuple[GPT, list[str]]:
    """The GPT of the site, and its characters."""
    with safe_open(ROOT / "benchmarks" / "results" / "char_gpt" / "weights.safetensors", "np") as file:
        metadata = file.metadata()
        weights = {name: file.get_tensor(name).astype("float32") for name in file.keys()}  # noqa: SIM118
    model = GPT(GPTConfig(**json.loads(metadata["config"])))
    model.load_state_dict({name: weights[name] for name in model.state_dict()})  # beside them there are tables of positions
    return model.eval(), json.loads(metadata["characters"])


def likeliest(trained: tuple[GPT, list[str]], text: str, temperature: float, count: int) -> list[tuple[str, float]]:
    """What may come after a text."""
    model, characters = trained
    with tt.no_grad():
        logits = model(tt.tensor([[characters.index(one) for one in text]])).numpy()[0, -1]
    found = Sampling(temperature=temperature).probabilities(logits)
    return [(characters[i], float(found[i])) for i in np.argsort(-found, kind="stable")[:count]]


def bars(place: Any) -> list[tuple[str, float]]:
    """The bars that are shown: names, and percentages."""
    rows = [row.locator("> span").all_text_contents() for row in place.locator(".bars button").all()]
    return [(name, float(told.removesuffix("%"))) for name, _, told in rows]


@pytest.mark.parametrize("name", ["index", "lessons/09_gpt"])
def test_the_gpt_writes_immediately_and_shows_the_librarys_probabilities(
    site: str, page: Any, trained: tuple[GPT, list[str]], name: str
) -> None:
    page.goto(f"{site}/{name}.html")
    place = page.locator(".livegpt")
    text = place.get_by_label("Your text")
    assert text.input_value() == "ROMEO:\nBut soft, what l"

    def expected(text: str, temperature: float) -> list[tuple[str, Any]]:
        found = likeliest(trained, text, temperature, 8)
        return [(NAMES.get(one, one), pytest.approx(100 * share, abs=0.06)) for one, share in found]

    assert bars(place) == expected(text.input_value(), 0.8)
    place.get_by_text("300 characters").wait_for()
    written = place.locator(".new").text_content()
    assert len(written) == 300
    assert {"and", "I", "my", "of", "the", "to", "you"} & set(written.split())  # English, more or less
    assert place.locator(".written").evaluate(
        "one => one.scrollTop > 0 && one.scrollTop + one.clientHeight + 8 >= one.scrollHeight"
    )
    slide(place, "Temperature", 1.2)
    text.fill("Good ")
    assert bars(place) == expected("Good ", 1.2)
    place.locator(".bars button").first.press("Enter")
    assert text.input_value() == f"Good {likeliest(trained, 'Good ', 1.2, 1)[0][0]}"


def test_the_heads_are_those_of_the_library(site: str, page: Any, trained: tuple[GPT, list[str]]) -> None:
    place = touched(page, site, "06_attention", "heads")
    model, characters = trained
    text = "To be, or not to be, th"
    assert place.get_by_label("Text").input_value() == text
    ids = tt.tensor([[characters.index(one) for one in text]])
    with recording_attention(model) as recorded:
        model(ids)
    slider = place.get_by_role("slider")

    def follows(layer: int, head: int, row: int) -> None:
        """The weights that color the letters, and the text below, are the library's."""
        weights = recorded[f"blocks.{layer}.attention"][0].numpy()[0, head, row]
        script = "all => all.map((one) => Number(one.style.getPropertyValue('--weight')))"
        assert place.locator(".touch-pieces span").evaluate_all(script) == pytest.approx(weights.tolist(), abs=1e-4)
        most = int(weights.argmax())
        looks, at = (f"etter {i + 1}, {SIGNS.get(text[i], text[i])}" for i in (row, most))
        line = f"L{looks}, looks most at l{at}: {weights[most]:.2f}."
        assert place.get_by_text(line, exact=True).count() == 1
        assert slider.get_attribute("aria-valuetext") == line
        assert slider.get_attribute("aria-valuenow") == str(row + 1)

    last = len(text) - 1
    follows(1, 0, last)
    slider.press("ArrowUp")
    follows(1, 0, last - 1)
    place.get_by_role("button", name="Layer 3, head 2", exact=True).press("Enter")
    follows(2, 1, last - 1)
    box = slider.bounding_box()
    slider.hover(position={"x": 5, "y": box["height"] * 4.5 / len(text)})
    follows(2, 1, 4)
    place.locator(".touch-pieces span").nth(9).hover()
    follows(2, 1, 9)


def test_a_head_that_is_off_changes_what_comes_next_as_in_the_library(
    site: str, page: Any, trained: tuple[GPT, list[str]]
) -> None:
    place = touched(page, site, "06_attention", "heads")
    text = "To be, or not to be, th"

    def shown() -> list[tuple[str, ...]]:
        rows = place.locator("table.touch-next tr").all()
        return [(row.locator("th").text_content(), *row.locator("td").all_text_contents()[1:]) for row in rows]

    usual = {one: f"{share:.2f}" for one, share in likeliest(trained, text, 1, 65)}
    assert shown() == [(SIGNS.get(one, one), told) for one, told in list(usual.items())[:5]]
    off = []
    for layer, head in ((1, 0), (2, 0)):
        place.get_by_role("button", name=f"Layer {layer + 1}, head {head + 1}", exact=True).click()
        place.get_by_role("button", name="Switch this head off").press("Enter")
        off.append(HeadOff(f"blocks.{layer}.attention", head))
        with intervening(trained[0], off):
            now = likeliest(trained, text, 1, 5)
        assert now[0][1] != pytest.approx(float(usual[now[0][0]]), abs=0.02)
        assert shown() == [(SIGNS.get(one, one), f"{share:.2f}", usual[one]) for one, share in now]
    assert place.locator("button.is-off").all_text_contents() == ["2.1", "3.1"]
    for layer in (3, 2):
        place.get_by_role("button", name=f"Layer {layer}, head 1, off").click()
        place.get_by_role("button", name="Switch this head on").click()
    assert [row[1:] for row in shown()] == [(told,) for told in list(usual.values())[:5]]
    place.get_by_label("Text").fill("Ωé")  # as an empty text: a new line
    assert shown() == [(SIGNS.get(one, one), f"{share:.2f}") for one, share in likeliest(trained, "\n", 1, 5)]


SHIFTS = """window.shift = 0;
new PerformanceObserver((list) => list.getEntries().forEach((one) => { window.shift += one.value; }))
  .observe({ type: "layout-shift", buffered: true });"""


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["index", "lessons/06_attention", "lessons/09_gpt"])
def test_a_page_does_not_jump_while_it_loads(site: str, browser: Any, name: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.add_init_script(SHIFTS)
    page.goto(f"{site}/{name}.html")
    page.wait_for_timeout(1500)
    assert page.locator(".livegpt .bars, canvas.touch-map").count() == 1
    assert page.evaluate("window.shift") < 0.02
    context.close()


def test_a_page_without_javascript_says_so(site: str, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/index.html")
    sample = (ROOT / "benchmarks" / "results" / "char_gpt" / "sample.txt").read_text(encoding="utf-8")
    assert page.locator("div.touch pre").inner_text().split() == sample.split()
    page.goto(f"{site}/lessons/06_attention.html")
    assert page.locator("div.touch").all_inner_texts() == ["With JavaScript there is a picture here that can be touched."] * 3
    context.close()


# --------------------------------------------------------------------------------------------------------------- names

NAMED = {"button", "link", "textbox", "searchbox", "slider", "image", "img", "checkbox", "heading"}


@pytest.mark.parametrize("name", ["index", "lessons/01_engine", "lessons/06_attention", "lessons/11_byte_pairs", "search"])
def test_everything_that_is_used_has_a_name(site: str, page: Any, name: str) -> None:
    page.goto(f"{site}/{name}.html")
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in NAMED]
    assert len(shown) > 5
    assert [node["role"]["value"] for node in shown if not node.get("name", {}).get("value", "").strip()] == []
