"""The forward pass in JavaScript: its logits are the library's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from javascript_modules import CONFIGS, LLAMA3, page_of_modules, random_gpt, run

import tinytensor as tt
from tinyformer import GPTConfig
from tinyformer.export.web import web_weights
from tinyformer.models.attention import recording_attention

CHUNKS = [5, 1, 1, 7, 2, 8]  # of 24 tokens, the block_size
FORWARD = """
  const model = await load("weights");
  const { ids, chunks } = given;
  const cache = model.newCache();
  const found = { whole: [...model.forward(ids)], parts: [], last: [...model.forward(ids, null, { lastOnly: true })] };
  for (let start = 0, i = 0; i < chunks.length; start += chunks[i++]) {
    found.parts.push(...model.forward(ids.slice(start, start + chunks[i]), cache));
  }
  cache.keep(3); // as after an edit
  found.again = [...model.forward(ids.slice(3, 9), cache)];
  return found;
"""


def logits_of(model: Any, ids: list[int]) -> Any:
    with tt.no_grad():
        return model(tt.tensor([ids])).numpy()[0]


def test_all_settings_are_tried() -> None:
    defaults = GPTConfig(vocab_size=13)
    configs = [random_gpt(**settings).config for settings in CONFIGS.values()]
    assert len(configs) > 10
    for field in dataclasses.fields(GPTConfig):
        if field.name not in ("block_size", "dropout"):  # dropout is of training
            assert {getattr(config, field.name) for config in configs} - {getattr(defaults, field.name)}, field.name


def test_llama_3_scales_some_frequencies_some_not_and_some_in_part() -> None:
    frequencies = CONFIGS["Llama 3"]["rotary_base"] ** (-np.arange(0, 1, 2 / CONFIGS["Llama 3"]["d_head"]))
    factors = LLAMA3(frequencies) / frequencies
    assert {1.0, 1 / LLAMA3.factor} < set(factors.round(12).tolist())


@pytest.mark.parametrize("name", CONFIGS)
def test_the_logits_are_those_of_the_library(tab: Any, name: str) -> None:
    model = random_gpt(**CONFIGS[name])
    ids = np.random.default_rng(1).integers(model.config.vocab_size, size=24).tolist()
    expected = logits_of(model, ids)
    page = page_of_modules(tab.page, {"weights": web_weights(model)})
    found = run(page, FORWARD, ids=ids, chunks=CHUNKS)
    enough = 1e-5 * abs(expected).max()
    assert enough > 1e-7 and (len(set(ids)) == 1 or expected.std() > 0.1)
    for key, rows in {"whole": expected, "parts": expected, "last": expected[-1:], "again": expected[3:9]}.items():
        logits = np.array(found[key]).reshape(rows.shape)
        assert abs(logits - rows).max() < enough, key


@pytest.mark.parametrize("setting", ["rotary_scaling", "query_key_norm", "sliding_window", "norm_eps", "rotary_base"])
def test_a_setting_that_was_ignored_would_be_found(setting: str) -> None:
    """The logits differ by far more than the tests allow once a setting is another one."""
    ids = list(range(13))
    having = [settings for settings in CONFIGS.values() if setting in settings]
    assert having
    for settings in having:
        others = {name: value for name, value in settings.items() if name != setting}
        model, other = random_gpt(**settings), random_gpt(**others)
        other.load_state_dict({name: value for name, value in model.state_dict().items() if name in other.state_dict()})
        expected = logits_of(model, ids)
        assert abs(logits_of(other, ids) - expected).max() > 1e-3 * abs(expected).max()


def test_a_file_in_float16(tab: Any) -> None:
    model = random_gpt(positions="rotary", activation="swiglu")
    content = web_weights(model, dtype="float16")
    assert abs(len(web_weights(model)) - len(content) - 2 * model.num_parameters()) < 100  # but for digits in the header
    for parameter in model.parameters():
        parameter.assign(parameter.astype("float16").astype("float32"))
    ids = list(range(13))
    expected = logits_of(model, ids)
    page = page_of_modules(tab.page, {"weights": content})
    found = run(page, "return [...(await load('weights')).forward(given.ids)]", ids=ids)
    assert abs(np.array(found).reshape(expected.shape) - expected).max() < 1e-5 * abs(expected).max()


SEE = """
  const model = await load("weights");
  const found = [];
  model.forward(given.ids, null, { see: (name, shape, values) => found.push([name, shape, [...values]]) });
  return found;
"""


@pytest.mark.parametrize("name", ["default", "Qwen 3", "Llama 3"])
def test_every_array_on_the_way_is_shown(tab: Any, name: str) -> None:
    model = random_gpt(**CONFIGS[name])
    ids = list(range(13))
    page = page_of_modules(tab.page, {"weights": web_weights(model)})
    found = {key: np.array(values).reshape(shape) for key, shape, values in run(page, SEE, ids=ids)}
    expected = recorded(model, ids)
    assert len(expected) > 10
    for key, values in expected.items():
        assert found[key].shape == values.shape, key
        assert abs(found[key] - values).max() < 1e-5 * abs(values).max(), key


def recorded(model: Any, ids: list[int]) -> dict[str, Any]:
    """What the library's modules return, by their names; and the attention weights."""
    found: dict[str, Any] = {}
    names = {id(module): name for name, module in model.named_modules()}
    inside = ("token_embedding", "norm", "query_key_value", "output", "up", "gate", "down")
    kept = [module for module in model.modules() if names[id(module)].split(".")[-1].endswith(inside)]
    kept += [*model.blocks]

    def keep(module: Any, inputs: Any, output: Any) -> None:
        if not names[id(module)].endswith(("query_norm", "key_norm")):
            found[names[id(module)]] = output.numpy()

    for module in kept:
        module.register_forward_hook(keep)
    with recording_attention(model) as weights:
        model(tt.tensor([ids]))
    return found | {f"{name}.weights": calls[0].numpy() for name, calls in weights.items()}


REFUSED = """
  const model = await load("weights");
  const cache = model.newCache(4);
  return [
    told(() => model.forward([])),
    told(() => model.forward([0, 13])),
    told(() => model.forward([-1])),
    told(() => model.forward([0.5])),
    told(() => model.forward(Array(25).fill(0))),
    told(() => model.forward([0, 1, 2, 3, 4], cache)),
    told(() => (model.forward([0, 1, 2], cache), model.forward([0, 1], cache))),
    String(model.forward([3], cache).length),
  ];
"""


def test_ids_that_cannot_be_read_are_refused(tab: Any) -> None:
    page = page_of_modules(tab.page, {"weights": web_weights(random_gpt())})
    assert run(page, REFUSED) == [
        "Error: there are no ids: the model reads one or more",
        "Error: 13 is no token: ids are 0 to 12",
        "Error: -1 is no token: ids are 0 to 12",
        "Error: 0.5 is no token: ids are 0 to 12",
        "Error: there is room for 24 of these 25 tokens: leave some out",
        "Error: there is room for 4 of these 5 tokens: leave some out",
        "Error: there is room for 1 of these 2 tokens: leave some out",
        "13",
    ]
