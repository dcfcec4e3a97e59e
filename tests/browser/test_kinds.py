"""What the tabs show of models that are no GPTs, and that no title stands over a picture which is not there yet."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from browsing import Tab, exploring, wait_until
from heads import head_folder

import tinytensor as tt
from tinyformer import token_losses
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.evaluating import evaluating


def answer_of(folder: Path, text: str) -> Any:
    subjects = Subjects([folder])
    ids = subjects.get("pretrained").encode(text)
    return ask(subjects, "classes", {"passage": {"model": "pretrained", "ids": ids}})


@pytest.mark.parametrize("width", [1280, 360])
def test_a_classifier_shows_its_classes(browser: Any, tmp_path: Path, width: int) -> None:
    folder = head_folder(tmp_path / "head", "texts")
    model, tab = Subjects([folder]).get("pretrained"), Tab(browser, width)
    with exploring(folder) as explorer:
        page = tab.open(explorer, text="the fox")
        for text in ("the fox", "the lazy dog"):
            page.fill("#text", text)
            with tt.no_grad(), evaluating(model.model):
                p = tt.softmax(model.model(tt.tensor([model.encode(text)]))).numpy()[0]
            order = (-p).argsort()
            page.get_by_text(f"{100 * p[order[0]]:.1f} %", exact=True).wait_for()
            assert page.locator("#classes .bars > span:not(.number)").all_text_contents() == [
                ("sad", "glad", "<b>neither")[i] for i in order
            ]
            numbers = page.locator("#classes .number").all_text_contents()
            assert [float(told.removesuffix(" %")) for told in numbers] == pytest.approx(100 * p[order], rel=5e-3)
        assert page.locator("#classes b").count() == 0
        assert not page.get_by_text("erplexity").filter(visible=True).count()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.context.close()
    assert tab.faults == []


@pytest.mark.parametrize(("name", "said"), [("tokens", "classes of tokens"), ("answers", "finds answers")])
def test_classes_of_tokens_are_a_map(tab: Tab, tmp_path: Path, name: str, said: str) -> None:
    folder = head_folder(tmp_path / "head", name)
    with exploring(folder) as explorer:
        page = tab.open(explorer, text="the quick fox")
        page.get_by_text(said).wait_for()
        page.focus("#classes .heatmap")
        for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        found = answer_of(folder, "the quick fox")
        readout = page.text_content("#classes .readout")
        assert readout.startswith(f"“quick” (position 3): {found['labels'][1]} ")
        assert float(readout.split()[-2]) == pytest.approx(100 * found["probabilities"][1][2], rel=6e-3)


def test_heads_without_probabilities_say_what_they_give(tab: Tab, tmp_path: Path) -> None:
    number, vectors = (head_folder(tmp_path / name, name) for name in ("number", "vectors"))
    with exploring(number, vectors) as explorer:
        page = tab.open(explorer, text="the fox")
        page.get_by_text(f"LABEL_0: {answer_of(number, 'the fox')['value']:.3f}. The model gives one number").wait_for()
        page.select_option("#model", f"{vectors}: pretrained")
        page.get_by_text("predicts no tokens and no classes").wait_for()
        assert page.text_content("#classes") == ""


def test_a_berts_bars_are_of_hidden_tokens(tab: Tab, explorers: Any, runs: Any) -> None:
    text = "the quick fox over the lazy dog"
    page = tab.open(explorers["masked"], "inside", text=text)
    subject = Subjects([runs["masked"]]).get("best")
    losses = token_losses(subject.model, subject.encode(text), mask=subject.mask)
    page.wait_for_selector("#inside-entropy .heatmap")
    page.focus("#inside-entropy .heatmap")
    page.keyboard.press("ArrowDown")
    readout = page.locator("#inside-entropy .readout")
    assert "“[CLS]” (position 1): there is no token to be found here" in readout.text_content()
    for place in (1, 2, 3):
        page.keyboard.press("ArrowRight")
        assert readout.text_content().endswith(f"{losses[place]:.3f} nats")
    assert "masked in turn" in page.text_content("#inside-entropy")


def test_a_long_text_of_a_bert_waits_until_it_is_asked_for(tab: Tab, explorers: Any) -> None:
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/entropies") else None)
    larger = "const { page } = await import(url); page.facts = { ...page.facts, parameters: 1e9 };"  # than the run's
    page = tab.open(explorers["masked"], text="the quick fox")
    page.evaluate(f"async (url) => {{ {larger} }}", explorers["masked"].address + "state.js")
    page.click("#tab-inside")
    button = page.get_by_role("button", name="Hide each token in turn (5 passes)")
    button.wait_for()
    assert asked == [] and not page.locator("#inside-entropy .heatmap").count()
    button.press("Enter")  # not with the mouse: the pictures above it, which come late, move it
    page.wait_for_selector("#inside-entropy .heatmap")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("view", "question", "title"),
    [
        ("write", "next_token", ".writer .place:has-text('next token')"),
        ("inside", "norms", "#inside-norms-title"),
        ("inside", "lens", "#inside-lens-title"),
        ("inside", "entropies", "#inside-entropy-title"),
        ("inside", "positions", "#inside-positions-title"),
        ("attention", "attention_rows", "#attention-title"),
        ("compare", "divergence", "h2:has-text('The next token')"),
    ],
)
def test_no_title_stands_over_a_picture_that_is_not_there(
    tab: Tab, explorers: Any, view: str, question: str, title: str
) -> None:
    held: list[Any] = []
    page = tab.page
    is_open = threading.Event()
    page.route(re.compile(f"/ask/{question}$"), lambda route: route.continue_() if is_open.is_set() else held.append(route))
    tab.open(explorers["gpt"], view, text="the fox")
    while not held:
        page.wait_for_timeout(20)
    page.wait_for_timeout(300)
    assert not page.locator(title).filter(visible=True).count()
    is_open.set()
    for route in held:
        route.continue_()
    page.locator(title).wait_for()


def test_the_end_of_the_given_text_is_marked(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], text="the fox")
    mark = page.locator(".writer .prompt-end")
    assert mark.count() == 0
    page.fill("input[name='length'] >> nth=0", "5")
    page.click(".writer .first")
    page.wait_for_selector(".status:text-matches('^5 tokens? written')")
    for _ in range(2):  # while it is written, and when it is drawn anew
        before = "[...document.querySelector('.written .prompt-end').parentNode.children]"
        assert page.evaluate(f"{before}.findIndex(one => one.matches('.prompt-end'))") == len("the fox")
        assert mark.text_content() == "written:" and mark.count() == 1
        page.reload()
        page.wait_for_selector("#prompt[aria-busy='false']")
        mark.wait_for()


@pytest.mark.parametrize(
    ("field", "typed", "becomes", "said"),
    [
        ("Length", "99999", "5000", "Length goes from 1 to 5,000, in whole numbers: 99999 became 5,000."),
        ("Length", "0", "1", "Length goes from 1 to 5,000, in whole numbers: 0 became 1."),
        ("Length", "2.6", "3", "2.6 became 3."),
        ("Length", "", "100", "what was typed is none, so it stays 100."),
        ("Seed", "-4", "0", "-4 became 0."),
        ("Beam width (1–16)", "40", "16", "Beam width goes from 1 to 16, in whole numbers: 40 became 16."),
        ("Length, at most (1–200)", "1e9", "200", "1e9 became 200."),
    ],
)
def test_a_number_out_of_range_is_reported(tab: Tab, explorers: Any, field: str, typed: str, becomes: str, said: str) -> None:
    page = tab.open(explorers["gpt"], text="the fox")
    box = page.locator("#view-write").get_by_role("spinbutton", name=field, exact=True)
    box.fill(typed)
    line = page.locator("#view-write .range").filter(visible=True)
    assert line.text_content().endswith("in whole numbers.")  # while it is typed
    assert box.get_attribute("aria-invalid") == "true"
    box.press("Tab")
    assert box.input_value() == becomes and line.text_content().endswith(said)
    box.fill("7")
    assert line.count() == 0


def test_compare_reports_a_length_out_of_range(tab: Tab, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "compare", text="the fox")
    page.locator("#view-compare").get_by_role("spinbutton", name="Length").fill("99999")
    page.get_by_text("Continue with both").focus()
    page.locator("#view-compare .range").get_by_text("99999 became 5,000").wait_for()
    wait_until(page, "document.querySelector('#view-compare input[type=number]').value === '5000'")


def test_two_classifiers_are_compared_by_their_classes(tab: Tab, tmp_path: Path) -> None:
    folders = [head_folder(tmp_path / f"{seed}", "texts", seed) for seed in (1, 2)]
    with exploring(*folders, head_folder(tmp_path / "tokens", "tokens")) as explorer:
        page = tab.open(explorer, "compare", text="the quick fox")
        page.wait_for_selector("#view-compare .pairs .bar")
        a, b = (answer_of(folder, "the quick fox")["probabilities"] for folder in folders)
        expected = sorted(zip(a, b), reverse=True)
        numbers = page.locator("#view-compare .pairs .number").all_text_contents()
        shown = [float(told.removesuffix(" %")) / 100 for told in numbers]
        assert shown == pytest.approx([p for pair in expected for p in pair], rel=6e-3)
        assert not page.get_by_text("erplexity").filter(visible=True).count()
        assert not page.get_by_role("button", name="Compute the losses").is_visible()
        page.get_by_label("Model B").select_option(f"{tmp_path / 'tokens'}: pretrained")
        page.get_by_text("Only probabilities of classes of a whole text are compared here").wait_for()
