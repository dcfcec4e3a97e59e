"""Programs in a page: what a model's ``forward`` computes, recorded from it, whatever the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from javascript_modules import page_of_modules, random_gpt, randomized, run

import tinytensor as tt
from tinyformer import GPT, Bert, BertConfig, BertForMaskedLM, Transformer, TransformerConfig, UserError, export_page
from tinyformer.export.javascript import ops_of_pages
from tinyformer.export.web import web_weights
from tinyformer.models.blocks import Block, BlockConfig

RUN = """
  const model = await program("file");
  const { logits } = model.run(given.inputs);
  return { shape: logits.shape, values: [...logits.values] };
"""
SIZES = {"num_heads": 2, "d_model": 8, "d_ff": 16, "max_length": 24}
ENCODERS: dict[str, dict[str, Any]] = {
    "BERT": {},
    "RoBERTa": {"skip_padding": True, "num_segments": 0, "pad": 1},
    "rotary": {"positions": "rotary", "norm_first": True, "query_key_norm": True, "activation": "relu"},
    "sinusoidal": {"positions": "sinusoidal", "tie_output": False},
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "Marian": {"positions": "sinusoidal_halves", "activation": "silu", "output_bias": True, "share_embeddings": True},
    "newer": {"positions": "rotary", "norm": "rms", "norm_first": True, "activation": "swiglu", "tie_output": False},
}


def agrees(page: Any, model: Any, **inputs: list[int]) -> bool:
    """Whether the page computes the model's logits of these ids, to 1e-5."""
    with tt.no_grad():
        expected = model(**{name: tt.tensor([ids]) for name, ids in inputs.items()}).numpy()
    arrays = {name: {"shape": [1, len(ids)], "values": ids} for name, ids in inputs.items()}
    logits = run(page_of_modules(page, {"file": web_weights(model)}), RUN, inputs=arrays)
    assert logits["shape"] == list(expected.shape) and expected.std() > 0.1
    return bool(abs(np.array(logits["values"]) - expected.ravel()).max() < 1e-5 * abs(expected).max())


@pytest.mark.parametrize("name", ENCODERS)
def test_a_bert_fills_masks(tab: Any, name: str) -> None:
    model = randomized(BertForMaskedLM(BertConfig(23, num_layers=2, **SIZES, **ENCODERS[name])))
    pad = model.config.pad
    assert agrees(tab.page, model, ids=[5, 3, 9, 22, 2, pad, pad])
    assert agrees(tab.page, model, ids=[7] * 24)  # the longest text


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_an_encoder_decoder_translates(tab: Any, name: str) -> None:
    model = randomized(
        Transformer(TransformerConfig(19, 19, encoder_layers=1, decoder_layers=2, **SIZES, **TRANSFORMERS[name]))
    )
    assert agrees(tab.page, model, source=[3, 1, 4, 1, 5, 0, 0], target=[2, 7, 18])
    assert agrees(tab.page, model, source=[8], target=[6, 2, 8, 1, 8, 2])


@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal"])
def test_gpts_of_short_contexts(tab: Any, positions: str) -> None:
    for block_size in range(4, 15):
        gpt = random_gpt(positions=positions, block_size=block_size, num_layers=1)
        page, ids = page_of_modules(tab.page, {"file": web_weights(gpt)}), list(range(1, min(block_size, 12) + 1))
        with tt.no_grad():
            expected = gpt(tt.tensor([ids])).numpy()[0]
        logits = run(page, "return [...(await load('file')).forward(given.ids)]", ids=ids)
        assert abs(np.array(logits).reshape(expected.shape) - expected).max() < 1e-5 * abs(expected).max()
    with pytest.raises(UserError, match="a page needs a model with a context of at least 4 tokens, got 3"):
        web_weights(random_gpt(positions=positions, block_size=3))


class Softened(GPT):
    """A GPT with a setting that no page knows of."""

    softness = 0.25

    def logits_of(self, x: tt.Tensor) -> tt.Tensor:
        logits = super().logits_of(x)
        return tt.tanh(logits * self.softness) / self.softness


class Doubled(BertForMaskedLM):
    """A BERT likewise."""

    def logits_of(self, x: tt.Tensor) -> tt.Tensor:
        return super().logits_of(x * 2.0) + tt.softmax(x, axis=-1).sum(axis=-1, keepdims=True)


class Averaged(Transformer):
    """An encoder-decoder likewise."""

    def logits_of(self, x: tt.Tensor) -> tt.Tensor:
        return super().logits_of(tt.concatenate([x[..., 4:], -x[..., :4]], axis=-1) - x.mean(axis=-1, keepdims=True))


def test_what_a_subclass_computes_else_is_computed_in_a_page(tab: Any) -> None:
    gpt = randomized(Softened(random_gpt(positions="rotary").config))
    ids = [1, 2, 3, 4, 5, 6]
    with tt.no_grad():
        expected = gpt(tt.tensor([ids])).numpy()[0]
        plain = GPT.logits_of(gpt, gpt._residual_stream(tt.tensor([ids]))).numpy()
    page = page_of_modules(tab.page, {"file": web_weights(gpt)})
    script = """
      const [gpt, { ids }] = [await load("file"), given];
      const cache = gpt.newCache();
      gpt.forward(ids.slice(0, 4), cache);
      return [...gpt.forward(ids.slice(4), cache)];
    """
    found = np.array(run(page, script, ids=ids)).reshape(2, -1)
    assert abs(found - expected[4:]).max() < 1e-5 * abs(expected).max() < abs(expected - plain).max()
    assert agrees(tab.page, randomized(Doubled(BertConfig(23, num_layers=1, **SIZES))), ids=[4, 5, 6])
    config = TransformerConfig(19, 19, encoder_layers=1, decoder_layers=1, **SIZES)
    assert agrees(tab.page, randomized(Averaged(config)), source=[3, 1, 4], target=[2, 7])


class Stack(tt.nn.Module):
    """A model that no page knows of, with positions, as in the lesson about blocks: it takes texts of 8 tokens."""

    def __init__(self) -> None:
        config = BlockConfig(16, 4, 32, 0.0, norm_first=True)
        self.tokens = tt.nn.Embedding(13, 16)
        self.positions = tt.nn.Embedding(8, 16)
        self.blocks = tt.nn.ModuleList(Block(config) for _ in range(2))
        self.output = tt.nn.Linear(16, 13)

    def forward(self, x: tt.Tensor) -> dict[str, tt.Tensor]:
        hidden = self.tokens(x) + self.positions.weight
        for block in self.blocks:
            hidden = block(hidden, is_causal=True)
        return {"logits": self.output(hidden), "mean": hidden.mean()}


def test_a_page_runs_any_model(tab: Any, tmp_path: Path) -> None:
    model = randomized(Stack())
    path = export_page(model, tmp_path / "stack.html", inputs={"x": ("int64", "batch", 8)})
    page = tab.page
    tab.context.set_offline(True)
    page.goto(path.as_uri())
    ids = np.arange(16).reshape(2, 8) % 13
    with tt.no_grad():
        expected = model(tt.tensor(ids))
    outputs = page.evaluate("(x) => model.run({ x })", ids.tolist())
    for name, values in expected.items():
        assert np.array(outputs[name]).shape == values.shape
        assert abs(np.array(outputs[name]) - values.numpy()).max() < 1e-5 * abs(values.numpy()).max()
    result = page.locator("[role=status]")
    page.get_by_label("x (batch, 8)").fill(json.dumps(ids.tolist()))
    page.get_by_role("button", name="Run").click()
    assert result.locator("h2").all_text_contents() == ["logits (2, 8, 13)", "mean ()"]
    assert float(result.locator("pre").last.text_content()) == pytest.approx(expected["mean"].item(), rel=1e-4)
    for text, message in [("[[1, 2]]", "x must be numbers of shape (batch, 8), got shape (1, 2)"), ("[[1, 2", "JSON")]:
        page.get_by_label("x (batch, 8)").fill(text)
        page.get_by_role("button", name="Run").click()
        assert message in result.text_content()


def test_mistakes_in_a_page_of_any_model(tmp_path: Path) -> None:
    for name, inputs, message in [
        ("a.htm", {"x": ("int64", "batch", 8)}, "must end in .html"),
        ("a.html", {"x": ("int", 8)}, r"inputs\['x'\] must be like"),
        ("a.html", {"x": ("int64", "batch", "length")}, "a page cannot compute a Stack: add of shapes"),
    ]:
        with pytest.raises(UserError, match=message):
            export_page(Stack(), tmp_path / name, inputs=inputs)
    assert not [*tmp_path.iterdir()]


class Ranked(GPT):
    def logits_of(self, x: tt.Tensor) -> tt.Tensor:
        return tt.erf(super().logits_of(x))


def test_an_op_that_no_page_computes_is_refused_by_name_module_and_line() -> None:
    with pytest.raises(
        UserError, match=r"a page cannot compute a Ranked: the op erf is not supported .*: the model \(.*test_programs.py:\d+\)"
    ):
        web_weights(randomized(Ranked(random_gpt().config)))
    relative = Bert(BertConfig(23, num_layers=1, relative_ranges=8, **SIZES)).eval()
    with pytest.raises(UserError, match=r"a page cannot compute a Bert: the op clip is not supported .*: relative_positions"):
        web_weights(relative)


def test_python_reads_the_ops_of_pages_from_their_table(tab: Any) -> None:
    names = set(run(page_of_modules(tab.page, {}), "return Object.keys(OPS)"))
    assert names == set(ops_of_pages()) - {"invert", "bitwise_and"} and len(names) > 40


def test_each_op_has_a_rule_for_gradients_or_has_none(tab: Any) -> None:
    script = """
      const { RULES, CONSTANT } = await import("/rules.js");
      return Object.keys(OPS).filter((op) => CONSTANT.has(op) === Object.hasOwn(RULES, op));
    """
    of_caches = {"later_positions", "later_rotation", "reserve", "cached_attention"}
    assert set(run(page_of_modules(tab.page, {}), script)) == of_caches | {"norm_and_rotate"}
