"""Training as a film: the slider at the head of the page drives every view, and its numbers are those of the snapshots."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browsing import SVG, Explorer, Tab, exploring, wait_until
from explored import film_run, gpt_run, put_snapshot

import tinytensor as tt
from tinyformer import recording_attention
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.training.run_folder import RunFolder

STEPS = [0, 3, 6, 12]
TEXT = "the quick fox"
TOLD = "#film .told"
# Keeps the steps that are shown in window.shown: some stay for an eighth of a second only.
WATCH = """() => {
  window.shown = [];
  const told = document.querySelector("#film .told");
  const observer = new MutationObserver(() => window.shown.push(told.textContent.match(/^(live, )?(step \\d+|best)/)[0]));
  observer.observe(told, {childList: true, characterData: true, subtree: true});
}"""


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return film_run(tmp_path_factory.mktemp("film") / "gpt", STEPS)


@pytest.fixture(scope="module")
def explorer(film: Path) -> Iterator[Explorer]:
    with exploring(film) as started:
        yield started


def go(page: Any, key: str, said: str) -> str:
    """Press a key on the slider, and wait until the strip says so."""
    page.focus("#film-step")
    page.keyboard.press(key)
    page.wait_for_selector(f"{TOLD}:has-text('{said}')")
    return str(page.text_content(TOLD))


def weights(run: Path, model: str, layer: int, head: int, query: int) -> list[float]:
    """The row of attention weights of a token, as the library computes it."""
    subject = Subjects([run]).get(model)
    with recording_attention(subject.model) as recorded, tt.no_grad():
        subject.model(tt.tensor([subject.encode(TEXT)]))
    row: list[float] = list(recorded.values())[layer][0].numpy()[0, head, query].tolist()
    return row


def numbers(page: Any, selector: str) -> list[float]:
    return [float(x) for x in page.locator(selector).all_text_contents()]


def looks_at_most(page: Any, row: list[float]) -> list[float]:
    """Wait until the page lists the largest weights of this row, and return the list."""
    expected = pytest.approx(sorted(row, reverse=True)[:5], rel=0.01, abs=0.0006)
    for _ in range(200):
        if (found := numbers(page, "#attention-most .number")) == expected:
            break
        page.wait_for_timeout(50)
    assert found == expected
    return found


def test_each_step_shows_the_attention_of_its_snapshot(tab: Tab, film: Path, explorer: Explorer) -> None:
    page = tab.open(explorer, "attention", text=TEXT)
    page.wait_for_selector("#attention-most .number")
    page.get_by_role("button", name="layer 2, head 1", exact=True).click()
    page.locator(".links button").nth(8).click()
    go(page, "Home", "step 0 of 12")
    seen = []
    for at, step in enumerate(STEPS):
        if at:
            go(page, "ArrowRight", f"step {step} of 12")
        seen.append(looks_at_most(page, weights(film, f"step {step}", 1, 0, 8)))
        assert "position 9) attends to" in str(page.text_content("#attention-most"))  # what was chosen stays
        assert page.text_content("#attention-title") == "Layer 2, head 1"
        assert page.text_content("#weights") == f"Weights: the snapshot of step {step}, in float16"
    assert len({tuple(one) for one in seen}) == len(STEPS)
    go(page, "ArrowRight", "best")
    page.wait_for_selector("#weights:has-text('Weights: best')")
    looks_at_most(page, weights(film, "best", 1, 0, 8))


def test_the_other_views_show_the_step_too(tab: Tab, film: Path, explorer: Explorer) -> None:
    subjects = Subjects([film])
    page = tab.open(explorer, "write", text=TEXT)
    go(page, "Home", "step 0 of 12")
    for step, key in ((3, "ArrowRight"), (6, "ArrowRight"), (3, "ArrowLeft")):
        go(page, key, f"step {step} of 12")
        passage = {"model": f"step {step}", "ids": subjects.get(f"step {step}").encode(TEXT)}
        best: Any = ask(subjects, "next_token", {"passage": passage})
        page.click("#tab-write")
        percent = f"{100 * best['best'][0]['probability']:.3g}"[:3]
        page.wait_for_selector(f".choices .number:has-text('{percent}') >> nth=0")
        page.click("#tab-inside")
        inside: Any = ask(subjects, "inside", {"passage": passage})
        (stack,) = inside["stacks"]
        wait_until(page, f"document.querySelector('#inside-norms td')?.textContent === '{stack['means'][0]:.3f}'")
        assert numbers(page, "#inside-norms td") == pytest.approx(stack["means"], abs=6e-4)
        page.click("#tab-whatif")
        off = {"kind": "head", "name": "blocks.0.attention", "index": 1}
        changed: Any = ask(subjects, "ablated", {"passage": passage, "off": [off]})
        button = page.locator(".part-grid [title^='layer 1, head 2']")
        if button.get_attribute("aria-pressed") != "true":
            button.click()
        page.wait_for_selector(
            f"#whatif-changes .readout:has-text('{changed['loss_before']:.3f} → {changed['loss_after']:.3f}')"
        )


def test_each_step_writes_the_text_anew(tab: Tab, film: Path, explorer: Explorer) -> None:
    page = tab.open(explorer, "write", text="the fox")
    page.fill("input[name='length']", "12")
    page.click(".writer .first")
    page.wait_for_selector(".status:text-matches('^12 tokens written')")
    go(page, "Home", "step 0")
    subjects = Subjects([film])
    passage = {"model": "step 0", "ids": subjects.get("step 0").encode("the fox"), "source": []}
    lines: Any = ask(subjects, "write", {"passage": passage, "length": 12, "sampling": {"seed": 1337}})
    expected = [{" ": "␣", "\n": "↵"}.get(line["text"], line["text"]) for line in lines]
    wait_until(page, "document.querySelectorAll('.writer .written .token').length === 19")
    page.wait_for_selector(".status:text-matches('^12 tokens written')")
    assert page.locator(".writer .written .token").all_text_contents()[7:] == expected


def test_each_number_is_that_of_the_step(tab: Tab, film: Path, explorer: Explorer) -> None:
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.post_data) if request.url.endswith("/weights") else None)
    page = tab.open(explorer, "numbers", text=TEXT)
    page.select_option("#numbers-array", "logits")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.locator(".numbers-map").press(key)
    for step in (*STEPS, *STEPS):
        go(page, "Home" if step == 0 else "ArrowRight", f"step {step} of 12")
        subject = Subjects([film]).get(f"step {step}")
        with tt.no_grad():
            expected = subject.model(tt.tensor([subject.encode(TEXT)])).numpy()[0, 1, 2]
        told = "Number(document.querySelector('#numbers-value').textContent.replace('−', '-'))"
        wait_until(page, f"Math.abs({told} - {expected}) < 1e-5")
        assert str(page.text_content(".numbers .readout")).startswith('logits, token 1 “h”, token 2 “"”: ')
    of_steps = [body for body in asked if "step" in body]
    assert len(of_steps) == len(set(of_steps)) == len(STEPS)  # once, and before a step is shown


def test_points_of_the_map_move_on_fixed_axes(tab: Tab, film: Path, explorer: Explorer) -> None:
    subjects = Subjects([film])
    page = tab.open(explorer, "inside", text=TEXT)
    page.locator("#inside-embeddings").scroll_into_view_if_needed()
    page.wait_for_selector("#embeddings-explained:has-text('step 12')")
    seen = set()
    for step, key in ((0, "Home"), (3, "ArrowRight"), (6, "ArrowRight")):
        go(page, key, f"step {step} of 12")
        found: Any = ask(subjects, "embeddings", {"model": f"step {step}"})
        page.locator("#inside-embeddings").scroll_into_view_if_needed()
        points = memoryview(base64.b64decode(found["coordinates"])).cast("f")
        first = subjects.get("best").encode(TEXT)[0]
        line = f"(id {first}): {points[2 * first]:.3f}, {points[2 * first + 1]:.3f}"
        page.wait_for_selector(f"#embeddings-found button:has-text('{line}')")
        seen.add(line)
    assert len(seen) == 3


def test_the_address_has_the_step(tab: Tab, explorer: Explorer) -> None:
    page = tab.open(explorer, "attention", text=TEXT)
    go(page, "Home", "step 0 of 12")
    go(page, "ArrowRight", "step 3 of 12")
    page.wait_for_timeout(400)
    assert "step=3" in page.url
    page.reload()
    page.wait_for_selector(f"{TOLD}:has-text('step 3 of 12')")
    assert page.text_content("#weights") == "Weights: the snapshot of step 3, in float16"
    go(page, "End", "best")
    page.wait_for_timeout(400)
    assert "step=" not in page.url
    page = tab.open(explorer, "attention", text=TEXT, step="5")
    page.wait_for_selector("#film .trouble:has-text('There is no snapshot of step 5: this is best.')")


def test_a_film_is_played_and_stopped_by_keys(tab: Tab, explorer: Explorer) -> None:
    page = tab.open(explorer, "attention", text=TEXT)
    page.wait_for_selector("#film:not([hidden])")
    page.select_option("#film select >> nth=0", "8")
    page.evaluate(WATCH)
    page.focus("#film-step")
    page.keyboard.press("k")
    page.wait_for_selector("#film button:has-text('Pause')")
    page.wait_for_selector("#film button:has-text('Play')")  # it ends by itself
    assert page.evaluate("window.shown") == ["step 0", "step 3", "step 6", "step 12", "best"]
    page.select_option("#film select >> nth=0", "1")
    page.focus("#film-step")
    page.keyboard.press(" ")
    page.wait_for_selector(f"{TOLD}:has-text('step 0')")
    page.keyboard.press(" ")
    page.wait_for_selector("#film button:has-text('Play')")
    page.wait_for_timeout(1300)
    assert str(page.text_content(TOLD)).startswith("step 0")
    page.focus("#film button")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f"{TOLD}:has-text('step 3')")


def test_the_curve_has_a_cursor_and_is_clicked(tab: Tab, explorer: Explorer) -> None:
    page = tab.open(explorer, "attention", text=TEXT)
    assert go(page, "Home", "step 0") == "step 0 of 12 · validation loss 4.00"
    assert go(page, "ArrowRight", "step 3") == "step 3 of 12 · training loss 3.00 (mean of steps 1 to 10)"
    go(page, "ArrowRight", "step 6")
    said = go(page, "ArrowRight", "step 12")
    assert said == "step 12 of 12 · training loss 2.50 (mean of steps 11 to 12) · validation loss 2.75"
    box = page.locator("#film .curve").bounding_box()
    ticks = [float(x) for x in page.eval_on_selector_all("#film .tick", "all => all.map((one) => one.getAttribute('x1'))")]
    assert len(ticks) == len(STEPS) + 1 and ticks == sorted(ticks) and ticks[-1] == 1000
    for at, step in ((2, 6), (0, 0), (1, 3)):
        page.mouse.click(box["x"] + box["width"] * (ticks[at] + 1) / 1000, box["y"] + box["height"] / 2)
        page.wait_for_selector(f"{TOLD}:has-text('step {step} of')")
        assert float(page.get_attribute("#film .cursor", "x1")) == ticks[at] == float(page.input_value("#film-step"))


def test_its_names_are_there_for_screen_readers(tab: Tab, explorer: Explorer) -> None:
    page = tab.open(explorer, "attention", text=TEXT)
    told = go(page, "Home", "step 0")
    slider = page.get_by_role("slider", name="Step of training")
    assert slider.get_attribute("aria-valuetext") == told
    for role, name in (("button", "Play"), ("combobox", "Speed"), ("region", "Training as a film")):
        assert page.get_by_role(role, name=name, exact=True).count() == 1
    label = page.get_by_role("img", name=re.compile("Training loss")).get_attribute("aria-label")
    assert label == "Training loss (line) and validation loss (dashes), from 4.00 down to 2.50, over the logarithm of the step"


def test_a_phone_has_room_for_it(browser: Any, explorer: Explorer) -> None:
    tab = Tab(browser, 360, "dark")
    page = tab.open(explorer, "attention", text=TEXT)
    go(page, "Home", "step 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = page.locator("#film").bounding_box()
    assert box["width"] <= 360 and box["height"] < 180
    assert page.locator("#film-step").bounding_box()["width"] > 150
    page.mouse.wheel(0, 600)
    page.wait_for_timeout(200)
    assert page.locator("#film").bounding_box()["y"] < 0  # it covers nothing
    tab.context.close()
    assert tab.faults == []


def test_runs_without_snapshots_have_no_slider(tab: Tab, tmp_path: Path) -> None:
    with exploring(gpt_run(tmp_path / "gpt")) as explorer:
        page = tab.open(explorer, "attention", text=TEXT)
        page.wait_for_selector("#attention-most .number")
        assert page.is_hidden("#film")


def test_a_damaged_snapshot_is_reported_and_skipped(tab: Tab, tmp_path: Path) -> None:
    run = film_run(tmp_path / "gpt", STEPS)
    damaged = RunFolder(run).snapshot(3)
    damaged.write_bytes(damaged.read_bytes()[:200])
    with exploring(run) as explorer:
        page = tab.open(explorer, "attention", text=TEXT)
        page.wait_for_selector("#film .trouble:has-text('snapshot-00000003.safetensors')")
        go(page, "Home", "step 0")
        go(page, "ArrowRight", "step 6")
        assert "the film continues without it" in str(page.text_content("#film .trouble"))


def test_a_snapshot_with_damaged_numbers_is_reported_when_it_is_shown(browser: Any, tmp_path: Path) -> None:
    run = film_run(tmp_path / "gpt", STEPS)
    damaged = RunFolder(run).snapshot(3)
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    tab = Tab(browser)
    with exploring(run) as explorer:
        page = tab.open(explorer, "attention", text=TEXT)
        go(page, "Home", "step 0")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#film .trouble:has-text('the film continues without step 3.')")
        go(page, "ArrowRight", "step 6")
        tab.context.close()
    assert [fault for fault in tab.faults if "400" not in fault] == []


def test_a_snapshot_that_is_deleted_while_it_is_watched(browser: Any, tmp_path: Path) -> None:
    run = film_run(tmp_path / "gpt", STEPS)
    tab = Tab(browser)
    with exploring(run) as explorer:
        page = tab.open(explorer, "attention", text=TEXT)
        go(page, "Home", "step 0")
        go(page, "ArrowRight", "step 3")
        for _ in range(2):  # the page looks again and again, also while a step is shown
            page.wait_for_event("response", lambda response: response.url.endswith("/film"))
        RunFolder(run).snapshot(3).unlink()
        page.wait_for_selector("#film .trouble:has-text('The snapshot of step 3 is no longer there.')")
        page.wait_for_selector(f"{TOLD}:has-text('best')")
        tab.context.close()
    assert [fault for fault in tab.faults if "400" not in fault] == []


def test_a_question_that_is_refused_leaves_the_film_whole(tab: Tab, explorer: Explorer) -> None:
    page = tab.open(explorer, "attention", text=TEXT)
    page.fill("#text", "the € fox")
    page.wait_for_selector(".trouble:has-text('€')")
    for key, said in (("Home", "step 0"), ("ArrowRight", "step 3"), ("PageUp", "step 6"), ("PageDown", "step 3")):
        go(page, key, said)
    assert page.locator("#film .tick").count() == len(STEPS) + 1 and not page.locator("#film .trouble").is_visible()
    page.fill("#text", TEXT)
    page.wait_for_selector("#attention-most .number")
    tab.faults.clear()  # the browser says that a question was refused


def playing(page: Any) -> bool:
    return str(page.text_content("#film .first")) == "Pause"


def test_play_continues_after_a_pause(tab: Tab, explorer: Explorer) -> None:
    page = tab.open(explorer, "attention", text=TEXT)
    page.select_option("#film select >> nth=0", "1")
    page.focus("#film-step")
    for _ in range(3):  # play, pause, play: all within the time of a frame
        page.keyboard.press("k")
        page.wait_for_timeout(100)
    page.wait_for_timeout(1200)
    assert playing(page)
    page.wait_for_selector(f"{TOLD}:has-text('step 6')")
    page.focus("#film summary")
    page.keyboard.press(" ")  # opens what is under it, as everywhere
    assert page.evaluate("document.querySelector('#film details').open")


def test_a_film_stops_when_the_server_is_gone(browser: Any, film: Path) -> None:
    tab, own = Tab(browser), Explorer(film)
    page = tab.open(own, "attention", text=TEXT)
    page.select_option("#film select >> nth=0", "1")
    go(page, "Home", "step 0")
    page.keyboard.press("k")
    own.stop()
    page.fill("#text", "another")
    page.wait_for_selector("#film .first:has-text('Play')")
    asked: list[Any] = []
    page.on("request", lambda request: asked.append(request))
    page.wait_for_timeout(2000)
    assert len(asked) < 10  # it looks each second whether somebody is back
    tab.context.close()
    assert tab.faults == []


def test_a_run_that_trains_is_followed(tab: Tab, tmp_path: Path) -> None:
    run = film_run(tmp_path / "gpt", STEPS[:2])
    (run / ".lock").write_text("process 1")
    with exploring(run) as explorer:
        page = tab.open(explorer, "attention", text=TEXT)
        page.wait_for_selector(f"{TOLD}:has-text('live, step 3')")
        put_snapshot(run, 6)
        page.wait_for_selector(f"{TOLD}:has-text('live, step 6')")
        assert page.text_content("#weights") == "Weights: the snapshot of step 6, in float16"
        looks_at_most(page, weights(run, "step 6", 0, 0, len(TEXT) - 1))
        go(page, "Home", "step 0")
        put_snapshot(run, 12)
        wait_until(page, "document.querySelectorAll('#film .tick').length === 5")
        assert str(page.text_content(TOLD)).startswith("step 0")  # who looks at a step stays there
        go(page, "End", "live, step 12")
        page.select_option("#film select >> nth=0", "8")
        page.evaluate(WATCH)
        page.keyboard.press("k")
        wait_until(page, "window.shown[0] === 'step 0'")  # from the end it begins again
        page.wait_for_selector(f"{TOLD}:has-text('live, step 12')")


def test_a_film_is_saved_as_one_animated_picture(tab: Tab, film: Path, explorer: Explorer) -> None:
    page = tab.open(explorer, "attention", text=TEXT)
    page.wait_for_selector("#attention-most .number")
    page.click("#film summary")
    page.wait_for_selector("#film select >> nth=1 >> option >> nth=2", state="attached")
    options = page.locator("#film select >> nth=1 >> option").all_text_contents()
    assert options[0] == "Attention of all heads" and len(options) == 3
    for at, picture in enumerate(options):
        page.select_option("#film select >> nth=1", index=at)
        with page.expect_download() as download:
            page.click("#film button:has-text('Save film')")
        assert download.value.suggested_filename.endswith("film.svg")
        root = ElementTree.fromstring(Path(download.value.path()).read_bytes())
        frames = root.findall(f"{SVG}g")
        turns = [frame.find(f"{SVG}animate") for frame in frames]
        assert len(frames) == len(STEPS) and not list(root.iter(f"{SVG}script"))
        shown = [(one.get("keyTimes"), one.get("values")) for one in turns if one is not None]
        assert shown == [
            ("0;0.25", "visible;hidden"),
            ("0;0.25;0.5", "hidden;visible;hidden"),
            ("0;0.5;0.75", "hidden;visible;hidden"),
            ("0;0.75", "hidden;visible"),
        ]
        assert {one.get("dur") for one in turns if one is not None} == {"1s"}
        inside = [frame.find(f"{SVG}svg") for frame in frames]
        drawn = {ElementTree.tostring(one) for one in inside if one is not None}
        assert len(drawn) == len(STEPS)
        if at < 2:  # text, not pixels
            for step, frame in zip(STEPS, frames):
                texts = [text.text or "" for text in frame.iter(f"{SVG}text")]
                assert texts[0].startswith(f"{picture} · step {step} of 12 · ") and "loss" in texts[0]
    assert page.text_content("#film [role='status']") == ""
    page.wait_for_selector(f"{TOLD}:has-text('best')")  # what was shown before is shown again


def test_escape_stops_the_saving(tab: Tab, explorer: Explorer) -> None:
    page = tab.open(explorer, "attention", text=TEXT)
    page.wait_for_selector("#attention-most .number")
    page.click("#film summary")
    page.wait_for_selector("#film select >> nth=1 >> option >> nth=2", state="attached")
    page.evaluate("""() => {
      const said = document.querySelector("#film [role='status']");
      window.said = [];
      new MutationObserver(() => {
        window.said.push(said.textContent);
        if (said.textContent.includes("frame 2")) window.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}));
      }).observe(said, {childList: true, characterData: true, subtree: true});
    }""")
    page.click("#film button:has-text('Save film')")
    page.wait_for_selector("#film [role='status']:has-text('The film was not saved.')")
    assert page.evaluate("window.said")[:2] == [f"Saving the film: frame {at} of 4. Escape stops." for at in (1, 2)]
    page.wait_for_selector(f"{TOLD}:has-text('best')")


def test_a_snapshot_is_compared_with_a_checkpoint(tab: Tab, film: Path, explorer: Explorer) -> None:
    subjects = Subjects([film])
    page = tab.open(explorer, "compare", text=TEXT)
    go(page, "Home", "step 0")
    go(page, "ArrowRight", "step 3")
    ids = subjects.get("best").encode(TEXT)
    passages = {side: {"model": model, "ids": ids} for side, model in (("a", "step 3"), ("b", "latest"))}
    found: Any = ask(subjects, "divergence", passages)
    page.wait_for_selector(f"#divergence:has-text('{found['a_to_b']:.3f}')")
