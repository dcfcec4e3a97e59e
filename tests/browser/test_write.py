"""The view "Write": tokens as they are sampled, the likeliest at each place, branches, and masks that are filled in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import Tab, exploring, wait_until

from tinyformer.decoding.generation import generate
from tinyformer.decoding.sampling import Sampling
from tinyformer.explore.views.passages import Passage
from tinyformer.explore.views.subjects import Subjects
from tinyformer.explore.views.writing import SEED, Fill, Next, fill, next_token

TOKENS = ".writer .written .token"
LENGTH = 30


def as_percent(p: float) -> str:
    """A probability as the page shows it."""
    value = 100 * p
    if value == 0:
        return "0 %"
    if value >= 99.95:
        return "100 %" if p == 1 else "> 99.9 %"
    if value >= 1:
        return f"{value:.1f} %" if value >= 10 else f"{value:.2f} %"
    digits = f"{value:.2g}"
    return digits + " %"


def visible(text: str) -> str:
    return {"\n": "↵", " ": "␣"}.get(text, text)


def rows(page: Any, part: str = ".writer") -> list[tuple[str, str]]:
    """Return the names and probabilities of the likeliest tokens, once the page shows those of this position."""
    page.wait_for_selector(f"{part} .choices:not([aria-busy='true']) button")
    found = page.eval_on_selector_all(
        f"{part} .choices button",
        "rows => rows.map(row => [row.querySelector('.name').textContent, row.querySelector('.number').textContent])",
    )
    return [(name, figure) for name, figure in found]


def same(shown: list[tuple[str, str]], best: list[dict[str, Any]]) -> bool:
    """Whether the page shows these tokens; where JavaScript writes small numbers otherwise, as the number they are."""

    def value(figure: str) -> str:
        return figure if figure.startswith(">") else f"{float(figure.removesuffix(' %')):.6g}"

    return [(name, value(figure)) for name, figure in shown] == [
        (visible(one["text"]), value(as_percent(one["probability"]))) for one in best
    ]


def write(page: Any, length: int = LENGTH) -> None:
    """Let the model write, to its end."""
    page.fill("input[name='length']", str(length))
    page.click(".writer .first")
    page.wait_for_selector(f".status:text-matches('^{length} tokens? written')")


def ids_of(subjects: Subjects, text: str) -> list[int]:
    return subjects.get(subjects.names[0]).encode(text)


def texts(page: Any) -> list[str]:
    return list(page.eval_on_selector_all(TOKENS, "tokens => tokens.map(token => token.textContent)"))


@pytest.mark.parametrize("name", ["gpt", "recurrent"])
def test_what_is_written_is_what_the_library_writes(tab: Any, explorers: Any, runs: Any, name: str) -> None:
    page, subjects = tab.open(explorers[name], text="the fox"), Subjects([runs[name]])
    write(page)
    subject = subjects.get("best")
    prompt = ids_of(subjects, "the fox")
    ids = list(generate(subject.model, prompt, LENGTH, Sampling(seed=SEED)))
    assert texts(page) == [visible(text) for text in subject.texts([*prompt, *ids])]
    place = len(prompt) + 3
    found = next_token(subjects, Next(Passage("best", [*prompt, *ids[:3]]), Sampling(), ids[3]))
    label = page.get_attribute(f"{TOKENS} >> nth={place}", "aria-label")
    assert label.endswith(f", {as_percent(found['probability'])}")
    page.click(f"{TOKENS} >> nth={place}")
    page.wait_for_selector(f".place:text-matches('^Position {place + 1}:')")
    known = [one["id"] for one in found["best"]]
    standing = [] if ids[3] in known else [{"text": subject.texts([ids[3]])[0], "probability": found["probability"]}]
    assert same(rows(page), [*found["best"], *standing])
    assert page.locator(".choices .standing").count() == 1
    assert page.text_content(".writer .entropy").startswith(f"Entropy {found['entropy']:.3f} nats; {found['possible']} tokens")


def test_sliders_redraw_the_distribution(tab: Any, explorers: Any, runs: Any) -> None:
    page, subjects = tab.open(explorers["gpt"], text="a dog"), Subjects([runs["gpt"]])
    page.focus("input[name='temperature']")
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
    page.focus("input[name='top_k']")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector(".writer .entropy:text-matches('; 4 tokens are possible')")
    found = next_token(subjects, Next(Passage("best", ids_of(subjects, "a dog")), Sampling(0.5, top_k=4)))
    assert same(rows(page), found["best"])


def test_branches_by_keyboard_survive_a_reload(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], text="the fox")
    write(page)
    before = texts(page)
    page.focus(f"{TOKENS}[tabindex='0']")
    page.keyboard.press("Home")
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector(".place:text-matches('^Position 10:')")
    shown = rows(page)
    other = next(i for i, (name, _) in enumerate(shown) if name != before[9])
    page.focus(f".choices button >> nth={other}")
    page.keyboard.press("Enter")
    page.wait_for_selector(f".status:text-matches('^{LENGTH} tokens written')")
    after = texts(page)
    assert after[:10] == [*before[:9], shown[other][0]]
    assert len(after) == 10 + LENGTH
    assert page.text_content("#counted").startswith(f"{len(after)} tokens")  # the other views look at this branch
    page.reload()
    page.wait_for_selector(".branch >> nth=2")
    assert texts(page) == after
    page.focus(".branch >> nth=2")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tree .branch[data-branch='1'][aria-current]")
    assert texts(page) == before
    page.focus(".branch >> nth=2")
    page.keyboard.press("Delete")
    page.wait_for_selector(".branch >> nth=2", state="detached")
    page.click("text=Clear >> visible=true")
    page.wait_for_selector(".branch >> nth=1", state="detached")


def test_branches_come_back_after_a_restart(browser: Any, runs: Any) -> None:
    tab = Tab(browser)
    with exploring(runs["gpt"]) as explorer:
        page = tab.open(explorer, text="the fox")
        write(page)
        before = texts(page)
    with exploring(runs["gpt"], port=explorer.port) as explorer:
        page.goto(explorer.address)
        page.wait_for_selector(".branch >> nth=1")
        assert texts(page) == before
    tab.context.close()


def test_stop_and_many_tokens(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["recurrent"], text="the fox")
    page.fill("input[name='length']", "5000")
    page.click(".writer .first")
    page.wait_for_selector(f"{TOKENS} >> nth=1000", state="attached")
    box = "document.querySelector('.writer .written')"
    page.evaluate(f"{box}.scrollTop = 0")
    page.wait_for_selector(f"{TOKENS} >> nth=1500", state="attached")
    assert page.evaluate(f"{box}.scrollTop") == 0  # one who reads the beginning is left in peace
    page.evaluate(f"{box}.scrollTop = {box}.scrollHeight")
    page.click("text=Stop")
    page.wait_for_selector(".status:text-matches('tokens written')")
    count = len(texts(page))
    assert count < 5007
    assert page.text_content("#counted").startswith(f"{count:,} tokens")
    wait_until(page, f"{box}.scrollTop + {box}.clientHeight >= {box}.scrollHeight - 40")  # the newest token is seen


def test_a_script_in_the_vocabulary_is_text(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], text="<script>alert(1)</script>")
    write(page, 3)
    assert "".join(texts(page)).startswith("<script>alert(1)</script>")
    assert page.locator(".writer script").count() == 0


def test_a_mask_is_filled_in(tab: Any, explorers: Any, runs: Any) -> None:
    page, subjects = tab.open(explorers["masked"], text="the [MASK] jump over [MASK]"), Subjects([runs["masked"]])
    passage = Passage("best", ids_of(subjects, "the [MASK] jump over [MASK]"))
    tokens = ".fill .written .token"
    assert page.locator(f"{tokens}.mask").count() == 2
    page.wait_for_selector(".place:text-matches('^Position 3:')")
    found = fill(subjects, Fill(passage, 2))["best"]
    assert same(rows(page, ".fill"), found)
    page.click(".fill .choices button >> nth=1")
    page.wait_for_selector(".place:text-matches('^Position 6:')")
    assert page.text_content(f"{tokens} >> nth=2") == found[1]["text"]
    passage.ids[2] = found[1]["id"]
    assert same(rows(page, ".fill"), fill(subjects, Fill(passage, 5))["best"])
    page.click(f"{tokens} >> nth=4")
    page.keyboard.press("m")
    page.wait_for_selector(f"{tokens}.mask >> nth=1")
    page.wait_for_selector(".place:text-matches('^Position 5:')")
    passage.ids[4] = subjects.get("best").mask  # type: ignore[assignment]
    assert same(rows(page, ".fill"), fill(subjects, Fill(passage, 4))["best"])


def test_a_translation_is_written(browser: Any, explorers: Any, runs: Path) -> None:
    tab = Tab(browser)
    page = tab.open(explorers["transformer"], source="the fox")
    page.fill("input[name='length']", "5")
    page.click(".writer .first")
    page.wait_for_selector(".status:text-matches('written')")
    assert page.locator(f"{TOKENS}.start").count() == 1
    assert re.match(r"8 tokens of the sentence, [2-6] tokens", page.text_content("#counted"))
    tab.context.close()
