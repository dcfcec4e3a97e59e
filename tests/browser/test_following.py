"""The head of the page says which weights are shown, and the page follows a run that writes new ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from browsing import Tab, exploring
from explored import gpt_run

import tinytensor as tt
from tinyformer import recording_attention
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.training.checkpoints import load_checkpoint, save_checkpoint

SECOND = "#view-compare select >> nth=1"  # the choice of the weights that others are compared with


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = gpt_run(tmp_path / "gpt")
    put(run, "best", "best", step=20, validation_loss=1.25)
    put(run, "latest", "latest", step=30, rows=[{"step": 30, "validation_loss": 1.5}])
    return run


def put(run: Path, source: str, name: str, **state: Any) -> None:
    """Write the weights of one checkpoint as another, with this state."""
    groups = load_checkpoint(run / f"{source}.safetensors", source)[0]
    save_checkpoint(run / f"{name}.safetensors", groups, {"kind": name, **state})


def told(page: Any, part: str) -> str:
    page.wait_for_selector(f"#weights:has-text('{part}')")
    return str(page.text_content("#weights"))


def test_the_head_says_which_weights_are_shown(tab: Tab, run: Path) -> None:
    os.utime(run / "best.safetensors", (1_700_000_000, 1_700_000_000))
    with exploring(run) as explorer:
        page = tab.open(explorer)
        written = page.evaluate("new Date(17e11).toLocaleString('en-GB', {dateStyle: 'medium', timeStyle: 'medium'})")
        assert told(page, "step 20") == f"Weights: best · step 20 · validation loss 1.2500 · written {written}"
        page.select_option("#model", "latest")
        assert told(page, "step 30").startswith("Weights: latest · step 30 · validation loss 1.5000 · written ")


def test_new_weights_are_shown_and_what_was_chosen_stays(tab: Tab, run: Path) -> None:
    with exploring(run) as explorer:
        page = tab.open(explorer, "attention", text="the quick fox")
        page.wait_for_selector("#attention-most .number")
        page.get_by_role("button", name="layer 2, head 1", exact=True).click()
        page.locator(".links button").nth(8).click()
        told(page, "step 20")
        put(run, "latest", "best", step=40, validation_loss=1.125)
        assert "step 40 · validation loss 1.1250" in told(page, "drawn again at")
        page.wait_for_selector("#attention-title:has-text('Layer 2, head 1')")
        page.wait_for_selector("#attention-most:has-text('position 9) attends to')")
        page.wait_for_timeout(300)
        subject = Subjects([run]).get("best")
        with recording_attention(subject.model) as recorded:
            subject.model(tt.tensor([subject.encode("the quick fox")]))
        row = list(recorded.values())[1][0].numpy()[0, 0, 8]
        numbers = page.locator("#attention-most .number").all_text_contents()
        assert [float(x) for x in numbers[:3]] == pytest.approx(sorted(row.tolist(), reverse=True)[:3], rel=0.06)
        assert page.input_value("#text") == "the quick fox"


def test_what_is_changed_in_what_if_stays_changed(tab: Tab, run: Path) -> None:
    readout = "#whatif-{} .readout"
    with exploring(run) as explorer:
        page = tab.open(explorer, "whatif", text="the fox")
        page.click(".part-grid [title^='layer 1, head 2']")
        page.select_option("#whatif-row select >> nth=0", "blocks.1.attention")
        page.select_option("#whatif-row select >> nth=2", "4")
        page.get_by_role("button", name="Uniform").click()
        page.fill("#whatif-patching textarea", "the box")
        page.get_by_role("button", name="Compare the prompts").click()
        page.wait_for_selector("#whatif-patching .note:has-text('after A')")
        subjects = Subjects([run])
        passage, other = ({"model": "best", "ids": subjects.get("best").encode(text)} for text in ("the fox", "the box"))
        lines: Any = ask(subjects, "patched", {"a": passage, "b": other})
        first = next(lines)
        put(run, "latest", "best", step=20)
        assert told(page, "drawn again")
        off = {"kind": "head", "name": "blocks.0.attention", "index": 1}
        row = {"layer": "blocks.1.attention", "head": 0, "query": 4, "weights": [0.2] * 5 + [0.0] * 2}
        for part, name, asked in (("changes", "ablated", {"off": [off]}), ("row", "edited", row)):
            found: Any = ask(subjects, name, {"passage": passage, **asked})
            losses = f"loss of the text {found['loss_before']:.3f} → {found['loss_after']:.3f}"
            page.wait_for_selector(f"{readout.format(part)}:has-text('{losses}')")
        lines = ask(subjects, "patched", {"a": passage, "b": other, "token": first["token"], "against": first["against"]})
        a = f"{next(lines)['a']:.3f}".replace("-", "−")  # of the same two tokens, which need no more be the likeliest
        page.wait_for_selector(f"#whatif-patching .note:has-text('{a} after A')")
        assert page.locator(".row-keys .number").all_text_contents() == ["0.200"] * 5


def test_unreadable_weights_are_reported(browser: Any, run: Path) -> None:
    tab = Tab(browser)
    with exploring(run) as explorer:
        page = tab.open(explorer, "attention", text="the fox")
        whole = (run / "best.safetensors").read_bytes()
        (run / "best.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        page.wait_for_selector("#facts.trouble:has-text('The views still show the weights before.')")
        assert "drawn again" not in str(page.text_content("#weights"))
        put(run, "latest", "best", step=20)
        assert told(page, "drawn again")
        page.wait_for_selector("#facts:not(.trouble):has-text('GPT')")
        tab.context.close()
    assert [fault for fault in tab.faults if "400" not in fault] == []


def test_the_same_weights_are_never_compared(tab: Tab, run: Path) -> None:
    with exploring(run) as explorer:
        page = tab.open(explorer, "compare", text="the fox")
        page.wait_for_selector("#divergence")
        assert page.input_value(SECOND) == "latest"
        put(run, "best", "latest", step=20, rows=[{"step": 20, "validation_loss": 1.25}])
        assert told(page, "the same as latest")
        page.wait_for_selector("#view-compare .note:has-text('best and latest have the same weights')")
        assert page.is_hidden(SECOND) and page.is_hidden("#divergence")


def test_weights_that_another_choice_has_are_left_out(tab: Tab, run: Path) -> None:
    put(run, "best", "latest", step=20, rows=[{"step": 20, "validation_loss": 1.25}])
    other = gpt_run(run.parent / "other", latest=False)
    put(other, "best", "best", step=5, validation_loss=2.0)
    with exploring(run, other) as explorer:
        page = tab.open(explorer, "compare", text="the fox")
        page.wait_for_selector("#divergence")
        assert page.locator(f"{SECOND} >> option").all_text_contents() == [f"{other}: best"]
        page.wait_for_selector("#view-compare .note:has-text('latest is left out')")
