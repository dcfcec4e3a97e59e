"""Programs in a page: what a model's ``forward`` computes, recorded from it, whatever the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from javascript_modules import page_of_modules, random_gpt, randomized, run

import tinytensor as tt
from tinyformer import GPT, Bert, BertConfig, BertForMaskedLM, Transformer, TransformerConfig, UserError
from tinyformer.export.javascript import ops_of_pages
from tinyformer.export.web import web_weights

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


class Ranked(GPT):
    def logits_of(self, x: tt.Tensor) -> tt.Tensor:
        return tt.erf(super().logits_of(x))


def test_an_op_that_no_page_computes_is_refused_by_name_module_and_line() -> None:
    with pytest.raises(
        UserError, match=r"a page cannot compute a Ranked: there is no erf .*: the model \(.*test_programs.py:\d+\)"
    ):
        web_weights(randomized(Ranked(random_gpt().config)))
    relative = Bert(BertConfig(23, num_layers=1, relative_ranges=8, **SIZES)).eval()
    with pytest.raises(UserError, match=r"a page cannot compute a Bert: there is no clip .*: relative_positions"):
        web_weights(relative)


def test_python_reads_the_ops_of_pages_from_their_table(tab: Any) -> None:
    names = set(run(page_of_modules(tab.page, {}), "return Object.keys(OPS)"))
    assert names == set(ops_of_pages()) - {"invert", "bitwise_and"} and len(names) > 40
