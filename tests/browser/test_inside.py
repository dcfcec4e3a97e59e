"""The view "inside" in a browser: its numbers are the library's, to the shown digit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import Tab

import tinytensor as tt
from tinyformer import sentence_encoder
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.recording import residual_streams
from tinyformer.word_vectors.components import principal_components
from tinytensor.device.backend import host

TEXT = "The quick fox"


def open_inside(tab: Any, explorer: Any, text: str, source: str = "") -> Any:
    """Open the view, for a model that translates with a sentence."""
    return tab.open(explorer, "inside", text=text, **({"source": source} if source else {}))


def subject_of(path: Path) -> Any:
    subjects = Subjects([path])
    return subjects.get(subjects.names[0])


def streams_of(subject: Any, *texts: list[int]) -> dict[str, list[Any]]:
    found = residual_streams(subject.model, *(tt.tensor([ids], dtype=int) for ids in texts))
    return {name: [x.numpy()[0].astype(float) for x in stack] for name, stack in found.items()}


def probabilities_of(subject: Any, ids: list[int]) -> Any:
    with tt.no_grad():
        found = subject.model(tt.tensor([ids], dtype=int))
    logits = (found[0] if isinstance(found, tuple) else found).numpy()[0].astype(float)
    weights = host.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def move(page: Any, part: str, *keys: str) -> str:
    """Press keys on the map of a part, and return its line once the values have come."""
    box = page.locator(f"#inside-{part} .heatmap").last
    for key in keys:
        box.press(key)
    line = page.locator(f"#inside-{part} .readout").last
    page.wait_for_function("line => line.textContent && !/–|…/.test(line.textContent)", arg=line.element_handle())
    return str(line.text_content())


def last_number(line: str) -> str:
    return re.findall(r"-?\d+\.\d{3}", line)[-1]


def test_norms(tab: Any, explorers: Any, runs: Any) -> None:
    page = tab.open(explorers["gpt"], "inside", text=TEXT)
    subject = subject_of(runs["gpt"])
    rows = streams_of(subject, subject.encode(TEXT))["blocks"]
    page.wait_for_selector("#inside-norms td")
    assert page.locator("#inside-norms td").all_text_contents() == [
        f"{host.linalg.norm(row, axis=-1).mean():.3f}" for row in rows
    ]
    line = move(page, "norms", "ArrowDown", "ArrowRight", "ArrowRight")
    assert line == f"layer 1, “e” (position 3): norm {host.linalg.norm(rows[1][2]):.3f}"


def test_norms_of_both_sides_of_an_encoder_decoder(tab: Any, explorers: Any, runs: Any) -> None:
    page = open_inside(tab, explorers["transformer"], "the", "lazy dog")
    subject = subject_of(runs["transformer"])
    streams = streams_of(subject, subject.encode("lazy dog", source=True), subject.encode("the"))
    page.wait_for_selector("#inside-norms td")
    means = [f"{host.linalg.norm(row, axis=-1).mean():.3f}" for rows in streams.values() for row in rows]
    assert page.locator("#inside-norms td").all_text_contents() == means
    assert page.locator("#inside-norms h3").all_text_contents() == [
        "encoder, over the sentence",
        "decoder, over the translation",
    ]


@pytest.mark.parametrize(("name", "rows"), [("gpt", 3), ("recurrent", 2)])
def test_the_lens_ends_with_the_models_own_prediction(tab: Any, explorers: Any, runs: Any, name: str, rows: int) -> None:
    page = tab.open(explorers[name], "inside", text=TEXT)
    subject = subject_of(runs[name])
    expected = probabilities_of(subject, subject.encode(TEXT))[3]
    page.wait_for_selector("#inside-lens .heatmap")
    move(page, "lens", *["ArrowDown"] * (rows - 1), *["ArrowRight"] * 3)
    page.locator("#inside-lens .heatmap").press("Enter")
    page.wait_for_selector("#lens-best .bar")
    order = host.argsort(-expected, kind="stable")[:10]
    shown = page.locator("#lens-best .number").all_text_contents()
    assert [float(text.removesuffix(" %")) for text in shown] == [
        pytest.approx(100 * expected[i], abs=10 ** -len(text.partition(".")[2].removesuffix(" %")))
        for i, text in zip(order, shown)
    ]
    tokens = page.locator("#lens-best .token").all_text_contents()
    assert tokens == [{"\n": "↵", " ": "␣"}.get(text, text) for text in subject.texts(order.tolist())]
    entropy = -(expected * host.log(expected)).sum()
    assert page.text_content("#lens-best .note") == f"Entropy {entropy:.3f} nats"


def test_the_lens_is_picked_by_the_mouse(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "inside", text=TEXT)
    box = page.locator("#inside-lens .heatmap")
    box.click(position={"x": 200, "y": 60})
    page.wait_for_selector("#lens-best .bar")
    assert "layer 1, after “" in str(page.text_content("#lens-best h3"))


@pytest.mark.parametrize("name", ["gpt", "recurrent"])
def test_entropies_and_losses(tab: Any, explorers: Any, runs: Any, name: str) -> None:
    page = tab.open(explorers[name], "inside", text=TEXT)
    subject = subject_of(runs[name])
    ids = subject.encode(TEXT)
    expected = probabilities_of(subject, ids)
    page.wait_for_selector("#inside-entropy .heatmap")
    line = move(page, "entropy", "ArrowRight", "ArrowRight")
    assert last_number(line) == f"{-(expected[2] * host.log(expected[2])).sum():.3f}"
    line = move(page, "entropy", "ArrowDown")
    assert last_number(line) == f"{-host.log(expected[2][ids[3]]):.3f}"


@pytest.mark.parametrize("name", ["recurrent", "attention"])
def test_states(tab: Any, explorers: Any, runs: Any, name: str) -> None:
    page = open_inside(tab, explorers[name], "the fox", "" if name == "recurrent" else "lazy dog")
    subject = subject_of(runs[name])
    inputs = (
        [subject.encode("the fox")] if name == "recurrent" else [subject.encode("lazy dog", True), subject.encode("the fox")]
    )
    streams = streams_of(subject, *inputs)
    cell = "cell" if name == "recurrent" else "decoder.cell"
    page.select_option("#states-kind", cell)
    line = move(page, "states", "ArrowDown", "ArrowRight")
    assert line.startswith("unit 2 after “")
    assert last_number(line) == f"{streams[cell][0][1, 1]:.3f}"
    if name == "recurrent":
        page.select_option("#states-layer", label="2")
        line = move(page, "states", "ArrowDown", "ArrowRight")
        assert last_number(line) == f"{streams[cell][1][1, 1]:.3f}"
        assert "no residual stream" in page.text_content("#inside-norms")
        assert "no positions" in page.text_content("#inside-positions")
    else:
        page.select_option("#states-kind", "encoder.hidden")
        line = move(page, "states", "ArrowRight")
        assert line.startswith("forward unit 1 after “")
        assert "no lens" in page.text_content("#inside-lens")


def test_a_transformer_has_no_part_about_states(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "inside", text=TEXT)
    page.wait_for_selector("#inside-norms td")
    assert page.locator("#inside-states").is_hidden()


def test_the_map_of_embeddings_and_its_search(tab: Any, explorers: Any, runs: Any) -> None:
    page = tab.open(explorers["gpt"], "inside", text="fox")
    page.locator("#inside-embeddings").scroll_into_view_if_needed()
    subject = subject_of(runs["gpt"])
    points, explained = principal_components(subject.model.token_embedding.weight.numpy(), 2)
    said = page.text_content("#embeddings-explained")
    assert f"{100 * explained[0]:.1f} % lies" in said
    assert f"{100 * explained[1]:.1f} % along" in said

    def told(text: str) -> str:
        (i,) = subject.encode(text)
        return f"“{text}” (id {i}): {points[i, 0]:.3f}, {points[i, 1]:.3f}"

    found = page.locator("#embeddings-found button")
    assert found.all_text_contents() == [told(sign) for sign in "fox"]
    page.fill("#embeddings-search", "q")
    assert page.locator("#embeddings-count").text_content() == "1 token matches"
    assert found.all_text_contents() == [told("q")]
    page.locator("#embeddings-search").press("Tab")
    page.locator("#inside-embeddings .scatter").press("+")
    found.first.focus()
    found.first.press("Enter")
    readout = page.locator("#inside-embeddings .readout")
    assert readout.text_content() == told("q")
    page.locator("#inside-embeddings .scatter").press("0")
    page.locator("#inside-embeddings .scatter").press("ArrowLeft")
    page.fill("#embeddings-search", "no such token")
    assert page.locator("#embeddings-count").text_content() == "0 tokens match"


def test_tokens_are_shown_as_text(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["masked"], "inside", text="the fox")
    page.locator("#inside-embeddings").scroll_into_view_if_needed()
    page.fill("#embeddings-search", "<b>")
    assert page.locator("#embeddings-found button").count() == 1
    assert page.locator("#view-inside b").count() == 0


def test_the_tokens_of_the_passage_follow_the_text(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "inside", text="fox")
    page.locator("#inside-embeddings").scroll_into_view_if_needed()
    page.wait_for_selector("#embeddings-found button >> nth=2")
    page.fill("#text", "dog")
    page.wait_for_function("() => document.querySelector('#embeddings-found').textContent.includes('“g”')")
    assert "“x”" not in page.text_content("#embeddings-found")


def test_positions(tab: Any, explorers: Any, runs: Any) -> None:
    page = tab.open(explorers["gpt"], "inside", text=TEXT)
    table = subject_of(runs["gpt"]).model.position_embedding.weight.numpy()
    page.wait_for_selector("#inside-positions .heatmap")
    line = move(page, "positions", "ArrowDown", "ArrowDown", "ArrowRight")
    assert line == f"position 2, dimension 1: {table[2, 1]:.3f}"


def test_a_long_text_is_asked_for_in_parts(tab: Any, explorers: Any) -> None:
    asked: list[dict[str, Any]] = []
    page = tab.open(explorers["recurrent"], text="fox " * 300)
    page.on("request", lambda request: asked.append(request.post_data_json) if request.url.endswith("/entropies") else None)
    page.click("#tab-inside")
    page.wait_for_selector("#inside-entropy .heatmap")
    move(page, "entropy", "ArrowRight")
    assert sum(part["count"] for part in asked) < 300
    box = page.locator("#inside-entropy .heatmap")
    with page.expect_request(lambda request: request.url.endswith("/entropies") and request.post_data_json["first"] == 1152):
        box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    assert (asked[-1]["first"], asked[-1]["count"]) == (1152, 48)
    assert len(asked) <= 5


def test_a_text_beyond_the_context_is_reported(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "inside", text="fox " * 20)
    page.wait_for_selector("#inside-norms td")
    assert page.text_content("#inside-cut").startswith("Of the 80 tokens, the last 32 are shown")
    assert "(position 50)" in move(page, "norms", "ArrowRight")


def test_nothing_is_asked_again_when_nothing_changed(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["gpt"], "inside", text=TEXT)
    page.wait_for_selector("#inside-norms td")
    move(page, "norms", "ArrowRight")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.click("#tab-write")
    page.click("#tab-inside")
    page.locator("#inside-norms .heatmap").wait_for()
    assert [url for url in asked if url.endswith("/inside")] == []


@pytest.mark.parametrize("name", ["recurrent", "masked", "attention"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_screen(browser: Any, explorers: Any, name: str, width: int) -> None:
    tab = Tab(browser, width)
    page = open_inside(tab, explorers[name], "the fox", "lazy dog" if name == "attention" else "")
    page.locator("#inside-embeddings").scroll_into_view_if_needed()
    page.wait_for_selector("#embeddings-found button")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.context.close()
    assert tab.faults == []


def test_another_model_is_looked_into(tab: Any, explorers: Any, runs: Any) -> None:
    page = tab.open(explorers["gpt"], "inside", text=TEXT)
    page.wait_for_selector("#inside-norms td")
    subjects = Subjects([runs["gpt"]])
    means = {}
    for name in subjects.names:
        subject = subjects.get(name)
        rows = streams_of(subject, subject.encode(TEXT))["blocks"]
        means[name] = [f"{host.linalg.norm(row, axis=-1).mean():.3f}" for row in rows]
    first, other = page.input_value("#model"), next(name for name in means if name != page.input_value("#model"))
    assert page.locator("#inside-norms td").all_text_contents() == means[first] != means[other]
    with page.expect_response(lambda response: response.url.endswith("/inside")):
        page.select_option("#model", other)
    page.get_by_text(means[other][1], exact=True).wait_for()
    assert page.locator("#inside-norms td").all_text_contents() == means[other]
    assert page.locator("#inside-norms .heatmap").count() == 1


def test_the_embeddings_of_either_side(tab: Any, explorers: Any, runs: Any) -> None:
    page = open_inside(tab, explorers["transformer"], "fox", "dog")
    page.locator("#inside-embeddings").scroll_into_view_if_needed()
    subject = subject_of(runs["transformer"])
    for side, embedding in (("", subject.model.target_embedding), ("source", subject.model.source_embedding)):
        if side:
            page.select_option("#embeddings-side", side)
        points, _ = principal_components(embedding.tokens.weight.numpy(), 2)
        (i,) = subject.translator.tokenizer.encode("o")
        page.get_by_text(f"“o” (id {i}): {points[i, 0]:.3f}, {points[i, 1]:.3f}").wait_for()


def test_sentences_and_their_nearest(tab: Any, explorers: Any, runs: Any) -> None:
    sentences = ["the quick fox", "the lazy dog", "the dog jumps over the fox", "<b> fox"]
    page = tab.open(explorers["sentences"], "inside", text="\n".join(sentences))
    page.locator("#inside-sentences").scroll_into_view_if_needed()
    vectors = sentence_encoder(runs["sentences"]).encode(sentences).astype(float)
    cosines = vectors @ vectors.T

    def nearest(i: int) -> list[str]:
        others = sorted((j for j in range(len(sentences)) if j != i), key=lambda j: -cosines[i, j])
        return [f"{cosines[i, j]:.3f} “{sentences[j]}”" for j in others]

    _, explained = principal_components(vectors, 2)
    page.wait_for_selector("#sentences-list button")
    assert f"4 sentences. {100 * explained[0]:.1f} % of the variance" in page.text_content("#sentences-explained")
    assert page.locator("#sentences-list button").all_text_contents() == sentences
    assert page.locator("#sentences-nearest li").all_text_contents() == nearest(3)
    page.locator("#sentences-list button").nth(1).press("Enter")
    assert page.locator("#sentences-nearest li").all_text_contents() == nearest(1)
    assert page.locator("#inside-sentences b").count() == 0

    sentences = sentences[:2]
    page.fill("#sentences-text", "\n \n".join(sentences))
    page.click("#sentences-draw")
    page.wait_for_function("() => document.querySelectorAll('#sentences-list button').length === 2")
    assert page.locator("#sentences-nearest li").all_text_contents() == nearest(1)
    page.fill("#sentences-text", " \n")
    page.click("#sentences-draw")
    page.wait_for_selector("#inside-sentences .trouble:not([hidden])")
    assert page.locator("#inside-sentences .scatter").count() == 0


def test_other_models_have_no_map_of_sentences(tab: Any, explorers: Any) -> None:
    page = tab.open(explorers["masked"], "inside", text="the fox")
    page.wait_for_selector("#inside-norms td")
    assert page.locator("#inside-sentences").is_hidden()
