"""Which optimizer changes which parameter, and how fast."""

from __future__ import annotations

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.recurrent import RecurrentConfig, RecurrentLM
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.optimizing import optimizer_for


def test_matrices_decay_and_biases_and_norms_do_not(make_gpt) -> None:
    model = make_gpt(bias=True)
    optimizer = optimizer_for(model, TrainingConfig(learning_rate=0.1, weight_decay=0.5))
    decaying = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in decaying) == (name.endswith("weight") and "norm" not in name), name
        # Ones show a decay, and without a gradient there is nothing else to move them.
        parameter.assign(np.ones(parameter.shape, np.float32))
        parameter.grad = tt.tensor(np.zeros(parameter.shape, np.float32))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    optimizer.step()
    for name, parameter in model.named_parameters():
        expected = 1 - 0.1 * 0.5 if name.endswith("weight") and "norm" not in name else 1.0
        np.testing.assert_allclose(parameter.numpy(), expected, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("shared", [False, True])
def test_muon_changes_the_matrices_of_the_blocks(shared: bool) -> None:
    """Each matrix by itself: queries, keys and values are made by one layer."""
    sizes = {"d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 16}
    model = Transformer(TransformerConfig(11, 11, share_embeddings=shared, **sizes))
    optimizer = optimizer_for(model, TrainingConfig(learning_rate=0.1, muon_learning_rate=0.2, weight_decay=0.5))
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        group = groups.pop(id(parameter))
        in_block = "blocks." in name and name.endswith("weight") and "norm" not in name
        several = {"query_key_value": 3, "key_value": 2}.get(name.split(".")[-2], 1)
        assert (group["orthogonal"], group["lr"]) == ((True, 0.2) if in_block else (False, 0.1)), name
        assert group["parts"] == (several if in_block else 1), name
        assert group["weight_decay"] == (0.5 if parameter.ndim > 1 and not in_block else 0.0), name
    assert not groups


def test_muon_needs_blocks() -> None:
    says = "muon_learning_rate is for the blocks of Transformers, and a RecurrentLM has none: leave it out"
    with pytest.raises(SettingError, match=says):
        optimizer_for(RecurrentLM(RecurrentConfig(11, cell="lstm", d_model=8)), TrainingConfig(muon_learning_rate=0.02))


def test_grouped_heads_are_one_matrix_to_muon() -> None:
    model = GPT(GPTConfig(11, 8, 1, 4, 8, num_key_value_heads=2))
    optimizer = optimizer_for(model, TrainingConfig(muon_learning_rate=0.02))
    assert {group["parts"] for group in optimizer.param_groups} == {1}
