"""Writing in JavaScript: it picks tokens with the library's probabilities, and a text's logits are those of ``generate``."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from javascript_modules import page_of_modules, random_gpt, run

import tinytensor as tt
from tinyformer import CharTokenizer, Sampling, generate
from tinyformer.export.web import web_weights

LOGITS = {
    "random": np.random.default_rng(0).normal(0, 3, 50).tolist(),
    "equal": [1.0, 2.0, 2.0, 2.0, 0.5, 2.0],
    "large": [1e30, -1e30, 0.0, 1e30],
    "impossible": [0.0, float("-inf"), 1.0, float("-inf")],
    "one": [3.0],
}
# At most one of each, and all of them together.
SETTINGS = [
    dict(zip(("temperature", "top_k", "top_p", "min_p"), values))
    for values in itertools.product((1.0, 0.0, 0.7, 3.0), (0, 1, 3), (1.0, 0.5, 0.95), (0.0, 0.2, 1.0))
]
PROBABILITIES = """
  const numbers = given.logits.map(Number);
  return given.settings.map((settings) => [...new Sampling(settings).probabilities(Float32Array.from(numbers))]);
"""


def in_javascript(settings: dict[str, Any]) -> dict[str, Any]:
    return {{"top_k": "topK", "top_p": "topP", "min_p": "minP"}.get(name, name): value for name, value in settings.items()}


@pytest.mark.parametrize("name", LOGITS)
def test_the_probabilities_are_those_of_the_library(tab: Any, name: str) -> None:
    logits = np.array(LOGITS[name], np.float32)
    texts = [str(value).replace("inf", "Infinity") for value in LOGITS[name]]
    found = run(page_of_modules(tab.page, {}), PROBABILITIES, logits=texts, settings=[*map(in_javascript, SETTINGS)])
    expected = [Sampling(**settings).probabilities(logits) for settings in SETTINGS]
    assert len(found) == len(expected) == 108
    for settings, ours, theirs in zip(SETTINGS, found, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15, err_msg=str(settings))
        assert [value == 0 for value in ours] == [value == 0 for value in theirs], settings


PICKS = """
  const sampling = new Sampling(given.settings);
  const logits = Float32Array.from(given.logits);
  const random = seeded(given.seed);
  const counts = logits.map(() => 0);
  for (let i = 0; i < 40000; i++) counts[sampling.pick(logits, random)]++;
  return [...counts];
"""


def test_tokens_are_picked_as_often_as_the_probabilities_say(tab: Any) -> None:
    logits, settings = [0.0, 1.0, 2.0, 2.0, -1.0], {"temperature": 0.8, "top_p": 0.95}
    page = page_of_modules(tab.page, {})
    counts = np.array(run(page, PICKS, logits=logits, settings=in_javascript(settings), seed=1))
    expected = 40000 * Sampling(**settings).probabilities(np.array(logits, np.float32))
    assert (counts[expected == 0] == 0).all() and (expected == 0).sum() == 2
    assert (abs(counts - expected) <= 4 * np.sqrt(expected)).all()
    again = run(page, PICKS, logits=logits, settings=in_javascript(settings), seed=1)
    other = run(page, PICKS, logits=logits, settings=in_javascript(settings), seed=2)
    assert again == counts.tolist() != other


def test_what_sampling_refuses(tab: Any) -> None:
    script = "return told(() => new Sampling(given.settings).pick(Float32Array.from(given.logits.map(Number)), Math.random))"
    page = page_of_modules(tab.page, {})
    refused = {
        "temperature must be 0 (greedy) or more, got -1": {"temperature": -1},
        "temperature must be 0 (greedy) or more, got null": {"temperature": None},
        "topK must be a whole number of 0 or more, got 1.5": {"topK": 1.5},
        "topK must be a whole number of 0 or more, got -1": {"topK": -1},
        "topP must be above 0 and at most 1, got 0": {"topP": 0},
        "topP must be above 0 and at most 1, got 1.1": {"topP": 1.1},
        "minP must be between 0 and 1, got 2": {"minP": 2},
    }
    for message, settings in refused.items():
        assert run(page, script, settings=settings, logits=[0, 1]) == f"Error: {message}"
    for logits in (["NaN", 1], [1, "NaN"], ["Infinity", 0], ["-Infinity", "-Infinity"]):
        told = run(page, script, settings={}, logits=logits)
        assert told == "Error: the model's outputs are NaN or infinite: its weights are damaged"
    assert run(page, script, settings={}, logits=[0, 1]) == "nothing"


# ------------------------------------------------------------------------------------------------------------ texts

WRITE = """
  const reader = new Reader(await load("weights"), given.stride);
  return [...write(reader, given.prompt, given.count, new Sampling({ temperature: 0 }), Math.random, given.ends)];
"""


def greedily(model: Any, prompt: list[int], count: int, stride: int) -> list[int]:
    """What a model writes whose context begins at a multiple of ``stride``."""
    text, block_size = [*prompt], model.config.block_size
    for _ in range(count):
        start = 0
        while len(text) - start > block_size:
            start += stride
        with tt.no_grad():
            text.append(int(model(tt.tensor([text[start:]])).numpy()[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("prompt", [[1], list(range(12)) * 3], ids=["short", "longer than the context"])
def test_a_stride_of_one_writes_what_generate_does(tab: Any, positions: str, prompt: list[int]) -> None:
    model = random_gpt(positions=positions)
    expected = list(generate(model, prompt, 60, Sampling(temperature=0)))
    assert len(set(expected)) > 3 and expected == greedily(model, prompt, 60, 1)
    page = page_of_modules(tab.page, {"weights": web_weights(model)})
    assert run(page, WRITE, prompt=prompt, count=60, stride=1, ends=[]) == expected


@pytest.mark.parametrize("stride", [12, 7, 24])
def test_the_context_begins_at_a_multiple_of_the_stride(tab: Any, stride: int) -> None:
    model = random_gpt(sliding_window=9)
    expected = greedily(model, [3], 90, stride)
    page = page_of_modules(tab.page, {"weights": web_weights(model)})
    assert run(page, WRITE, prompt=[3], count=90, stride=stride, ends=[]) == expected
    end = expected[30]
    assert run(page, WRITE, prompt=[3], count=90, stride=stride, ends=[end]) == expected[: expected.index(end) + 1]


EDITS = """
  const model = await load("weights");
  const reader = new Reader(model);
  const read = [];
  const forward = model.forward.bind(model);
  model.forward = (ids, ...rest) => (read.push(ids.length), forward(ids, ...rest));
  return { logits: given.texts.map((ids) => [...reader.logits(ids)]), read };
"""


def test_a_text_that_is_edited_is_read_from_where_it_differs(tab: Any) -> None:
    model = random_gpt()
    texts = [
        [1, 2, 3],
        [1, 2, 3, 4],
        [1, 2, 3, 4],
        [1, 2, 9, 4],
        [1, 2],
        [5],
        [*range(13), *range(11)],
        [*range(13), *range(12)],
    ]
    page = page_of_modules(tab.page, {"weights": web_weights(model)})
    found = run(page, EDITS, texts=texts)
    assert found["read"] == [3, 1, 1, 2, 1, 1, 24, 13]  # the last text is longer than the context, and begins anew
    for text, logits in zip(texts, found["logits"]):
        with tt.no_grad():
            expected = model(tt.tensor([text[12:] if len(text) > 24 else text])).numpy()[0, -1]
        assert abs(np.array(logits) - expected).max() < 1e-5 * abs(expected).max(), text


def test_a_reader_continues_after_a_rejected_text(tab: Any) -> None:
    page = page_of_modules(tab.page, {"weights": web_weights(random_gpt())})
    script = """
      const model = await load("weights");
      const reader = new Reader(model);
      reader.logits([1, 2, 3]);
      const errors = [told(() => reader.logits([1, 99])), told(() => reader.logits([])), told(() => new Reader(model, 25))];
      const expected = [...model.forward([1, 2, 3], null, { lastOnly: true })];
      return { errors, logits: [...reader.logits([1, 2, 3])], expected };
    """
    found = run(page, script)
    assert found["errors"] == [
        "Error: 99 is no token: ids are 0 to 12",
        "Error: there are no ids: the model reads one or more",
        "Error: stride must be 1 to block_size, 24, got 25",
    ]
    np.testing.assert_allclose(found["logits"], found["expected"], rtol=1e-5)


def test_characters_become_ids_and_back(tab: Any) -> None:
    tokenizer = CharTokenizer.train('aé日😀 "\n<\\')
    text = '😀é "日\n<\\'
    model = random_gpt(vocab_size=tokenizer.vocab_size)
    page = page_of_modules(tab.page, {"file": web_weights(model, tokenizer), "other": web_weights(model)})
    script = """
      const characters = new Characters(readSafetensors(await bytes("file")).metadata);
      const other = readSafetensors(await bytes("other")).metadata;
      const ids = characters.encode(given.text);
      return [ids, characters.decode(ids), characters.encode("xaX"), told(() => new Characters(other))];
    """
    ids = tokenizer.encode(text).tolist()
    assert len(set(ids)) == 8
    refused = "Error: the tokens of this model are not characters"
    assert run(page, script, text=text) == [ids, text, tokenizer.encode("a").tolist(), refused]
