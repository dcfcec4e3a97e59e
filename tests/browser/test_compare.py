"""The view Compare: its numbers are those of the library, and a long text stays usable."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Explorer, Tab

from tinyformer import perplexity, token_losses
from tinyformer.decoding.generation import sample
from tinyformer.decoding.sampling import Sampling
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.explore.views.writing import SEED

PROMPT = "The quick brown fox"
DONE = "#view-compare p[role='status'][aria-busy='false']"
LOSSES = "#view-compare .tokens.long >> nth=-1"


@pytest.fixture(scope="module")
def two(runs: dict[str, Path]) -> Iterator[Explorer]:
    """An explorer of a GPT and a recurrent network with the same tokens."""
    explorer = Explorer(runs["gpt"], runs["recurrent"])
    yield explorer
    explorer.stop()


def passages(subjects: Subjects, names: list[str], text: str) -> list[dict[str, Any]]:
    return [{"model": name, "ids": subjects.get(name).encode(text), "source": []} for name in names]


def losses(subjects: Subjects, name: str, text: str) -> Any:
    subject = subjects.get(name)
    return token_losses(subject.model, [*subject.start, *subject.encode(text)])[1:]


def means(found: Any, text: str) -> list[str]:
    """The cells of the table about these losses."""
    mean = found.mean()
    bits = found.sum() / math.log(2) / len(text)
    return [f"{len(found):,}", *(f"{number:.3f}" for number in (mean, perplexity(mean), bits))]


def table(page: Any) -> list[list[str]]:
    rows = page.query_selector_all("#view-compare .means tbody tr")
    return [[cell.text_content() for cell in row.query_selector_all("td")] for row in rows]


def readout(page: Any) -> str:
    return str(page.text_content("#view-compare .readout >> nth=-1"))


def test_two_checkpoints_of_a_run(tab: Tab, explorers: Any, runs: dict[str, Path]) -> None:
    page = tab.open(explorers["gpt"], "compare", text=PROMPT)
    page.wait_for_selector("#divergence")
    page.wait_for_selector(DONE)
    subjects = Subjects([runs["gpt"]])
    a, b = passages(subjects, ["best", "latest"], PROMPT)
    found: Any = ask(subjects, "divergence", {"a": a, "b": b})
    numbers = [float(x) for x in re.findall(r"-?\d+\.\d+", page.text_content("#divergence"))]
    expected = [found["a_to_b"], found["b_to_a"], found["a"]["entropy"], found["b"]["entropy"]]
    assert [f"{x:.3f}" for x in numbers] == [f"{x:.3f}" for x in expected]
    shown = page.eval_on_selector_all(".pairs .number", "all => all.map((one) => parseFloat(one.textContent))")
    assert shown == pytest.approx([100 * token[name] for token in found["tokens"] for name in ("a", "b")], rel=0.05)
    one, other = (losses(subjects, name, PROMPT) for name in ("best", "latest"))
    assert table(page) == [means(one, PROMPT), means(other, PROMPT)]
    page.focus(LOSSES)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert f"2: “h”, A {one[1]:.3f} nats" in readout(page) and f"B {other[1]:.3f} nats" in readout(page)
    assert f"A − B = {one[1] - other[1]:.3f}".replace("-", "−") in readout(page)
    page.check("[value='difference']")
    colours = page.eval_on_selector_all(f"{LOSSES} >> span", "all => all.map((one) => one.style.background)")
    assert len(colours) == len(PROMPT)
    assert [("--high" in colour) for colour in colours] == [x > y for x, y in zip(one, other)]


def test_both_continue_from_the_same_seed(tab: Tab, two: Explorer, runs: dict[str, Path]) -> None:
    page = tab.open(two, "compare", text=PROMPT)
    page.wait_for_selector("#divergence")
    subjects = Subjects([runs["gpt"], runs["recurrent"]])
    names = [subjects.names[0], subjects.names[2]]
    page.select_option("#view-compare label:has-text('Model B') select", names[1])
    page.wait_for_selector(DONE)
    page.fill("#view-compare input[type='number']", "60")
    page.click("#view-compare >> text=Continue with both")
    page.wait_for_selector("text=60 tokens, mean >> nth=1")
    texts = page.eval_on_selector_all("#view-compare .both .tokens.long", "all => all.map((one) => one.textContent)")
    for text, name in zip(texts, names):
        subject = subjects.get(name)
        ids = subject.encode(PROMPT)
        steps = sample(subject.decoder(100), [ids], 60, Sampling(seed=SEED), subject.ends, subject.forbidden)
        assert text.replace("↵\n", "\n") == "".join(subject.texts(int(i[0]) for i in steps))
    page.hover("#view-compare .both .tokens.long span >> nth=0")
    first = texts[0][0]
    assert re.fullmatch(
        rf"1: “{re.escape(first.replace(' ', '␣'))}”, (> )?[\d.]+ %", page.text_content("#view-compare .both .readout")
    )


def test_a_long_text_is_drawn_where_it_is_seen(tab: Tab, two: Explorer, runs: dict[str, Path]) -> None:
    page = tab.open(two, "compare", text="fox")
    page.wait_for_selector(DONE)
    text = "The quick brown fox jumps over the lazy dog.\n" * 450
    # As a paste does. Playwright's fill() takes many seconds for so many lines.
    page.eval_on_selector(
        "#view-compare label:has-text('Text') textarea",
        "(field, text) => { field.value = text; field.dispatchEvent(new Event('input')); }",
        text,
    )
    page.wait_for_selector("text=computed when you ask for them")
    page.click("text=Compute the losses")
    page.wait_for_selector(f"text=A {len(text):,} of {len(text):,} tokens, B {len(text):,} of", timeout=60_000)
    page.wait_for_selector(DONE)
    subjects = Subjects([runs["gpt"], runs["recurrent"]])
    one, other = (losses(subjects, name, text) for name in subjects.names[:2])
    assert table(page) == [means(one, text), means(other, text)]
    assert 100 < page.locator(f"{LOSSES} >> span").count() < 4000
    assert page.text_content(LOSSES).replace("↵", "") == text
    page.focus(LOSSES)
    page.keyboard.press("End")
    assert readout(page).startswith(f"{len(text)}: “↵”, A {one[-1]:.3f} nats")
    assert page.locator(f"{LOSSES} >> span").count() < 4000


def test_computing_can_be_stopped(tab: Tab, two: Explorer) -> None:
    page = tab.open(two, "compare", text="The lazy dog. " * 140)
    page.wait_for_selector("#view-compare .means td")
    page.fill("#view-compare input[type='number']", "5000")
    page.click("#view-compare >> text=Continue with both")
    page.wait_for_selector("#view-compare .both .tokens.long span >> nth=3")
    page.click("#view-compare .controls:has(input[type='number']) >> text=Stop")
    page.wait_for_selector("button:has-text('Continue with both')[aria-disabled='false']")
    count = page.locator("#view-compare .both .tokens.long").first.text_content()
    page.wait_for_timeout(300)
    assert page.locator("#view-compare .both .tokens.long").first.text_content() == count


@pytest.mark.parametrize("name", ["transformer", "attention"])
def test_a_translation_and_one_model_alone(tab: Tab, explorers: Any, runs: dict[str, Path], name: str) -> None:
    page = tab.open(explorers[name], "compare", source="lazy fox", text="dog")
    page.wait_for_selector("#view-compare .means td")
    assert "one model only" in page.text_content("#view-compare .note")
    assert not page.is_visible("text=The next token")
    subjects = Subjects([runs[name]])
    subject = subjects.get("best")
    found = token_losses(subject.model, [*subject.encode("dog"), *subject.ends], subject.encode("lazy fox", source=True))[1:]
    page.wait_for_selector(DONE)
    assert table(page) == [means(found, "dog")]


def test_a_bert(tab: Tab, explorers: Any, runs: dict[str, Path]) -> None:
    page = tab.open(explorers["masked"], "compare", text="the lazy dog jumps")
    page.wait_for_selector(DONE)
    page.wait_for_selector("#view-compare .means td")
    subject = Subjects([runs["masked"]]).get("best")
    found = token_losses(subject.model, subject.encode("the lazy dog jumps"), mask=subject.mask)[1:-1]
    assert table(page) == [means(found, "the lazy dog jumps")]
    assert "pseudo-log-likelihood" in page.text_content("#view-compare")
    assert page.text_content(LOSSES).split() == ["the", "lazy", "dog", "jump", "##s"]
