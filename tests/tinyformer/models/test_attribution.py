"""Shares of a logit, read from the forward pass: of every GPT, and of models that change it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import GPT, GPTConfig, UserError
from tinyformer.models.attribution import Shares, logit_shares, pass_over, sub_layers
from tinyformer.models.blocks import Block
from tinytensor import Tensor
from tinytensor.nn import Module, Parameter
from tinytensor.nn.hooks import hooked

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
SMALL = {"vocab_size": 11, "block_size": 16, "num_layers": 2, "num_heads": 4, "d_model": 16}
SETTINGS: dict[str, dict[str, Any]] = {
    "learned": {},
    "layer norm with biases": {"bias": True, "norm_eps": 0.1},
    "sinusoidal, untied": {"positions": "sinusoidal", "activation": "relu", "tie_output": False},
    "Llama": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "num_key_value_heads": 2, "rotary_base": 50.0},
    "Qwen2": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "query_key_value_bias": True},
    "Qwen3": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "query_key_norm": True, "d_head": 6},
    "Mistral": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "sliding_window": 3},
    "Gemma": {"positions": "rotary", "norm": "rms", "activation": "geglu", "scale_embeddings": True, "d_head": 6},
    "biases beside RMS norms": {"norm": "rms", "bias": True, "activation": "silu", "d_ff": 10},
}


class PlusBias(Block):
    """A block with a bias after its feed-forward network."""

    def __init__(self, config: GPTConfig, **options: Any):
        super().__init__(config.block, **options)
        self.extra = Parameter(tt.random.normal((config.d_model,)))

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        return super().forward(*inputs, **options) + self.extra


class Scaled(Module):
    """An embedding times 1.7."""

    def __init__(self, table: Any):
        self.weight = table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return tt.embedding(ids, self.weight) * 1.7


class Changed(GPT):
    """A GPT whose embeddings are scaled, and whose blocks have one more bias."""

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        for i, block in enumerate(self.blocks):
            self.blocks[i] = PlusBias(config, rotary=block.attention.rotary)
        self.token_embedding = Scaled(self.token_embedding)


class Capped(GPT):
    """A GPT whose logits are capped, as Gemma 2's."""

    def logits_of(self, x: Tensor) -> Tensor:
        return tt.tanh(super().logits_of(x))


class Other(GPT):
    def forward(self, ids: Tensor, *options: Any) -> Tensor:
        return super().forward(ids, *options) * 2.0


def make(kind: type[GPT] = GPT, **settings: Any) -> GPT:
    tt.seed(1)
    model = kind(GPTConfig(**{**SMALL, **settings})).eval()
    for parameter in model.parameters():
        parameter.assign(parameter + 0.3 * tt.random.normal(parameter.shape))
    return model


def shares_of(model: GPT, place: int, token: int, other: int | None = None) -> Shares:
    return logit_shares(model, sub_layers(model, pass_over(model, IDS), place), token, other)


def logits_of(model: GPT) -> np.ndarray:
    with tt.no_grad():
        return model(tt.tensor([IDS])).numpy()[0].astype(np.float64)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_shares_are_those_of_the_forward_pass(settings: dict[str, Any]) -> None:
    model = make(**settings)
    logits = logits_of(model)
    for place in (0, 4, 7):
        shares = shares_of(model, place, 2)
        assert shares.logit == pytest.approx(logits[place, 2], abs=1e-5)
        assert shares.sum == pytest.approx(shares.logit, abs=1e-5)
        assert abs(shares.rest) < 1e-5  # so nothing is left out
        assert shares_of(model, place, 2, other=7).sum == pytest.approx(logits[place, 2] - logits[place, 7], abs=1e-5)
        assert (shares.position is None) == (model.config.positions == "rotary")


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_model_that_changes_the_forward_pass_has_its_own_shares(settings: dict[str, Any]) -> None:
    model = make(Changed, **settings)
    logits, place, token = logits_of(model), 5, 2
    shares = shares_of(model, place, token)
    assert shares.sum == pytest.approx(logits[place, token], abs=1e-5)
    found = sub_layers(model, pass_over(model, IDS), place)
    scale = 1.7 * model.config.embedding_scale
    np.testing.assert_allclose(found.embedded, scale * model.token_embedding.weight.numpy()[IDS[place]], rtol=1e-6)
    # Without the biases that blocks add, the rest is nothing; they are all of it.
    added = np.sum([block.extra.numpy() for block in model.blocks], axis=0)
    stream, weight, row = found.stream, model.norm.weight.numpy(), model.output_weight().numpy()[token]
    if model.config.norm == "layer":
        stream, added = stream - stream.mean(), added - added.mean()
    expected = float(row * weight @ added) / np.sqrt((stream**2).mean() + model.config.norm_eps)
    assert shares.rest == pytest.approx(expected, abs=1e-5) and abs(expected) > 1e-3


def test_a_model_that_does_more_after_its_norm_has_another_logit_than_the_sum() -> None:
    model = make(Capped)
    shares = shares_of(model, 5, 2)
    assert shares.logit == pytest.approx(logits_of(model)[5, 2], abs=1e-5)
    assert shares.logit == pytest.approx(np.tanh(shares.sum), abs=1e-5) and abs(shares.logit - shares.sum) > 1e-3


def test_what_no_shares_are_known_of_is_refused() -> None:
    with pytest.raises(UserError, match="Other overrides forward: override _residual_stream or logits_of instead"):
        pass_over(make(Other), IDS)
    model = make()
    model.norm = tt.nn.Tanh()
    with pytest.raises(UserError, match="the final norm must be a LayerNorm or an RMSNorm, got a Tanh"):
        shares_of(model, 0, 2)


def test_a_hook_may_replace_the_embeddings() -> None:
    model, ids = make(), tt.tensor([IDS])
    with hooked([(model, "embedded", lambda model, inputs, x: x * 1.7)]):
        replaced = model(ids).numpy()
    model.token_embedding = Scaled(model.token_embedding)
    np.testing.assert_array_equal(model(ids).numpy(), replaced)
