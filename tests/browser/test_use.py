"""What a newcomer meets on the page: errors in the middle, models of other kinds, and letters to be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Explorer, Tab, exploring
from explored import PIECES

import tinytensor as tt
from tinyformer.models.bert import Bert, BertConfig
from tinyformer.pretrained.loading import save_pretrained
from tinyformer.pretrained.tokenizers import save_pretrained_tokenizer
from tinyformer.tokenizers import WordPieceTokenizer

READ = "#prompt[aria-busy='false']"
TOKENS = ".writer .written .token"
TROUBLE = ".trouble:visible, [role=alert]:visible"

# The texts on the page whose contrast with what is behind them is below 4.5, after the formula of WCAG 2.1.
UNREADABLE = """() => {
  const parse = (colour) => [...colour.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat([1]);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const unreadable = [];
  while (texts.nextNode()) {
    const parent = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !parent.checkVisibility()) continue;
    if (parent.closest("option, script, noscript, svg, :disabled, [aria-disabled=true]")) continue;
    let back = parse(getComputedStyle(document.body).backgroundColor);
    let opacity = 1;
    const around = [];
    for (let one = parent; one; one = one.parentElement) around.unshift(getComputedStyle(one));
    for (const style of around) {
      back = over(parse(style.backgroundColor), back);
      opacity *= Number(style.opacity);
    }
    const ink = parse(getComputedStyle(parent).color);
    const [a, b] = [luminance(over([...ink.slice(0, 3), ink[3] * opacity], back)), luminance(back)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) unreadable.push([contrast.toFixed(2), texts.currentNode.data.slice(0, 40)]);
  }
  return unreadable;
}"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT that predicts no tokens."""
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = WordPieceTokenizer(PIECES)
    tt.seed(0)
    save_pretrained(
        Bert(BertConfig(tokenizer.vocab_size, num_layers=1, num_heads=2, d_model=16, d_ff=32, max_length=24)), folder
    )
    save_pretrained_tokenizer(tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def both(runs: dict[str, Path]) -> Iterator[Explorer]:
    """An explorer of a language model and a translator."""
    with exploring(runs["gpt"], runs["transformer"]) as explorer:
        yield explorer


def choose(page: Any, explorer_part: Path, kind: str = "best") -> None:
    page.select_option("#model", f"{explorer_part}: {kind}")
    page.wait_for_selector(f"#model:has(option:checked[value='{explorer_part}: {kind}'])")
    page.wait_for_selector(READ)


def answer_writing(page: Any, *lines: dict[str, Any]) -> None:
    """Let the question "write" be answered with these lines."""
    full = {"probability": 0.5, "entropy": 1.0, "possible": 2, "best": []}
    body = "".join(json.dumps(line if "error" in line else {**full, **line}) + "\n" for line in lines)
    page.route("**/ask/write", lambda route: route.fulfill(status=200, content_type="application/x-ndjson", body=body))


def test_a_model_that_predicts_no_tokens(tab: Tab, encoder: Path) -> None:
    with exploring(encoder) as explorer:
        page = tab.open(explorer, "write", text="the lazy fox")
        page.wait_for_selector("#view-write .note:text-matches('predicts no tokens')")
        assert page.is_hidden(".writer") and page.is_hidden(".fill") and page.is_hidden(".beam")
        page.click("#tab-compare")
        page.wait_for_selector("#view-compare .note:text-matches('predicts no tokens')")
        assert page.is_hidden("text=The loss of each token")
        page.click("#tab-attention")
        page.wait_for_selector("#attention-title")
        page.click("#tab-inside")
        page.wait_for_selector("#inside-lens:has-text('predicts no tokens')")
        assert page.locator(TROUBLE).count() == 0


def test_an_error_in_the_middle_of_a_text(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], text="the fox")
    answer_writing(page, {"id": 1, "text": "x"}, {"error": "the model is gone"})
    page.click(".writer .first")
    page.wait_for_selector(".writer .trouble:has-text('the model is gone')")
    page.wait_for_selector(".status:text-matches('^1 token written')")
    assert page.locator(TOKENS).count() == 8
    page.unroute("**/ask/write")
    page.fill("input[name='length']", "3")
    page.click(".writer .first:not([aria-disabled='true'])")
    page.wait_for_selector(".status:text-matches('^3 tokens written')")
    assert page.locator(TROUBLE).count() == 0
    assert page.locator(TOKENS).count() == 11


def test_escape_stops_and_gives_the_place_back(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], text="the fox")
    page.fill("input[name='length']", "5000")
    page.click(".writer .first")
    page.wait_for_selector(f"{TOKENS} >> nth=10", state="attached")
    page.keyboard.press("Escape")
    page.wait_for_selector(".status:text-matches('tokens? written')")
    assert page.locator(TOKENS).count() < 5007
    page.click(f"{TOKENS} >> nth=2")
    page.wait_for_selector(".place:text-matches('^Position 3:')")
    page.keyboard.press("Escape")
    page.wait_for_selector(".place:text-matches('^The next token')")
    assert page.locator(f"{TOKENS}.lit").count() == 0
    assert page.evaluate("document.activeElement.classList.contains('token')")


def test_a_search_after_a_text_has_ended_begins_where_the_text_was_given(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["transformer"], source="the fox")
    state = explorers["transformer"].address + "state.js"
    given, end = page.evaluate(
        "async url => { const { page } = await import(url); return [page.passage.ids, page.facts.ends[0]]; }", state
    )
    answer_writing(page, {"id": end, "text": "[EOS]"})
    page.click(".writer .first")
    page.wait_for_selector(".status:text-matches('the text ends here')")
    page.fill("#beam-length", "3")
    with page.expect_request("**/ask/search") as asked:
        page.click("#beam-search")
    assert asked.value.post_data_json["passage"]["ids"] == given
    page.wait_for_selector("#beam-found tbody tr")


def test_another_model_keeps_the_texts_and_the_branches(tab: Tab, both: Explorer, runs: dict[str, Path]) -> None:
    page = tab.open(both, text="the fox")
    page.fill("input[name='length']", "4")
    page.click(".writer .first")
    page.wait_for_selector(".status:text-matches('^4 tokens written')")
    written = page.locator(TOKENS).all_text_contents()
    choose(page, runs["transformer"])
    page.wait_for_selector("#counted:has-text('of its translation')")
    assert page.input_value("#text") != "the fox"  # the text of the other model is no translation
    page.fill("#source", "")
    page.wait_for_selector("#counted:has-text('Type a sentence')")
    assert page.input_value("#text") == ""
    assert page.is_hidden("main")
    page.fill("#source", "lazy dog")
    page.fill("#text", "fox")
    page.wait_for_selector("#counted:has-text('of its translation')")
    assert page.is_visible("main")
    page.fill("#source", "")
    page.wait_for_selector("#counted:has-text('Type a sentence')")
    page.fill("#source", "lazy dog")
    page.wait_for_selector("#counted:has-text('of its translation')")
    choose(page, runs["gpt"], "latest")
    page.wait_for_selector("#counted:text-matches('^7 tokens')")
    assert page.input_value("#text") == "the fox"
    choose(page, runs["gpt"])
    page.wait_for_selector("#counted:text-matches('^11 tokens')")
    assert page.locator(TOKENS).all_text_contents() == written
    page.reload()
    page.wait_for_selector("#counted:text-matches('^11 tokens')")
    choose(page, runs["transformer"])
    page.wait_for_selector("#counted:has-text('of its translation')")
    assert (page.input_value("#source"), page.input_value("#text")) == ("lazy dog", "fox")


def test_compare_begins_with_a_model_of_the_same_folder(tab: Tab, both: Explorer, runs: dict[str, Path]) -> None:
    page = tab.open(both, "compare", text="the fox")
    page.wait_for_selector("#divergence")
    assert page.locator("#view-compare select").nth(1).input_value() == f"{runs['gpt']}: latest"
    assert page.locator(TROUBLE).count() == 0


@pytest.mark.parametrize("width, scheme", [(390, "light"), (640, "dark")])  # 640: a page of 1280 enlarged to twice its size
def test_letters_are_read_and_nothing_is_cut_off(browser: Any, explorers: Any, width: int, scheme: str) -> None:
    tab = Tab(browser, width, scheme)
    for name, texts in (("transformer", {"source": "the fox", "text": "dog"}), ("masked", {"text": "the [MASK] jump over"})):
        page = tab.open(explorers[name], **texts)
        if name == "transformer":
            page.fill("#beam-length", "4")
            page.click("#beam-search")
            page.wait_for_selector("#beam-found tbody tr")
            page.fill("input[name='length']", "20")
            page.click(".writer .first")
            page.wait_for_selector(".status:text-matches('written')")
        for view, drawn in (
            ("write", ".choices:visible button, .place:visible"),
            ("attention", "#attention-most .number"),
            ("inside", "#embeddings-found, #inside-norms canvas"),
            ("compare", "#view-compare .means td"),
        ):
            page.click(f"#tab-{view}")
            page.wait_for_selector(drawn)
            assert page.evaluate(UNREADABLE) == [], (name, view)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (name, view)
    tab.context.close()
    assert tab.faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_letter_on_any_colour_is_read(browser: Any, explorers: Any, scheme: str) -> None:
    """Of cells and of tokens whose colour is as strong as their number, whatever it is."""
    tab = Tab(browser, scheme=scheme)
    page = tab.open(explorers["gpt"])
    page.evaluate(
        """async (url) => {
      const { inks, shade } = await import(url);
      const inkOn = inks();
      for (let i = 0; i <= 100; i++) {
        const one = document.createElement("p");
        one.textContent = `strength ${i}`;
        one.style.backgroundColor = shade(i / 100);
        one.style.color = inkOn(i / 100);
        document.body.append(one);
      }
    }""",
        explorers["gpt"].address + "text.js",
    )
    assert page.evaluate(UNREADABLE) == []
    tab.context.close()


def test_a_percentage_has_the_same_bar_in_every_view(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "compare", text="the fox")
    page.wait_for_selector("#divergence")
    rows = page.eval_on_selector_all(
        "#view-compare .cell",
        "all => all.map(one => [one.querySelector('.bar').style.width, one.querySelector('.number').textContent])",
    )
    for wide, told in rows:
        assert float(wide.removesuffix("%")) == pytest.approx(float(told.removesuffix(" %")), rel=0.06)


def test_every_control_has_a_name(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], text="the fox")
    for name in ("Temperature", "Top-k", "Top-p"):
        assert page.get_by_role("slider", name=name).filter(visible=True).count() == 1
    for name in ("Length", "Seed", "Beam width (1–16)", "Length, at most (1–200)"):
        assert page.get_by_role("spinbutton", name=name, exact=True).filter(visible=True).count() == 1


def test_a_text_that_is_too_long_is_refused_in_a_line(browser: Any, explorers: Any) -> None:
    tab = Tab(browser)
    page = tab.open(explorers["gpt"], text="the fox")
    # As a paste does. Playwright's fill() takes long for so many letters.
    paste = "(field, text) => { field.value = text; field.dispatchEvent(new Event('input')); }"
    page.eval_on_selector("#text", paste, "x" * 100_000)
    page.wait_for_selector("#counted.trouble:text-matches('shorten it. The views still show the text before it')")
    assert page.locator(TOKENS).count() == 7
    page.reload()
    page.wait_for_selector("#counted.trouble:has-text('shorten it')")
    assert len(page.input_value("#text")) == 100_000
    page.fill("#text", "")
    page.wait_for_selector("#counted:text-matches('^1 token$')")
    tab.context.close()
    assert all("400" in fault for fault in tab.faults)  # that is the browser's own line
