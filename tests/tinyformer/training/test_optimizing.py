"""Which optimizer changes which parameter, and how fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.common.settings import check_effects, with_new_names
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.recurrent import RecurrentConfig, RecurrentLM
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.optimizing import OPTIMIZERS, optimizer_for
from tinytensor.optim import SGD, Adagrad, AdamW, Lion, Muon, RMSprop


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion"])
def test_matrices_decay_and_biases_and_norms_do_not(make_gpt, name: str) -> None:
    model = make_gpt(bias=True)
    optimizer = optimizer_for(model, TrainingConfig(optimizer=name, learning_rate=0.1, weight_decay=0.5))
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
    optimizer = optimizer_for(
        model, TrainingConfig(optimizer="muon", learning_rate=0.1, muon_learning_rate=0.2, weight_decay=0.5)
    )
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        group = groups.pop(id(parameter))
        in_block = "blocks." in name and name.endswith("weight") and "norm" not in name
        several = {"query_key_value": 3, "key_value": 2}.get(name.split(".")[-2], 1)
        assert (group["orthogonal"], group["lr"]) == ((True, 0.2) if in_block else (False, 0.1)), name
        assert group["parts"] == (several if in_block else 1), name
        assert group["weight_decay"] == (0.5 if parameter.ndim > 1 and not in_block else 0.0), name
    assert not groups


def test_each_optimizer_has_its_settings(make_gpt) -> None:
    model, betas = make_gpt(), (0.5, 0.75)
    expected: dict[str, tuple[type, dict[str, Any]]] = {
        "adamw": (AdamW, {"betas": betas}),
        "muon": (Muon, {"betas": betas}),
        "sgd": (SGD, {"momentum": 0.25}),
        "lion": (Lion, {"betas": betas}),
    }
    assert list(expected) == list(OPTIMIZERS)
    for name, (kind, settings) in expected.items():
        config = TrainingConfig(optimizer=name, learning_rate=0.125, beta1=0.5, beta2=0.75, momentum=0.25)
        optimizer = optimizer_for(model, config)
        group = optimizer.param_groups[0]
        assert (type(optimizer), group["lr"]) == (kind, 0.125)
        assert {setting: group[setting] for setting in settings} == settings


def test_a_new_row_gets_only_the_settings_it_names(make_gpt, monkeypatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "adagrad", OPTIMIZERS["sgd"]._replace(make=Adagrad, settings=()))
    monkeypatch.setitem(OPTIMIZERS, "rmsprop", OPTIMIZERS["sgd"]._replace(make=RMSprop))
    assert type(optimizer_for(make_gpt(), TrainingConfig(optimizer="adagrad"))) is Adagrad
    assert optimizer_for(make_gpt(), TrainingConfig(optimizer="rmsprop", momentum=0.25)).param_groups[0]["momentum"] == 0.25


def test_a_setting_that_the_optimizer_does_not_read_is_refused() -> None:
    for name, choice in OPTIMIZERS.items():
        config = TrainingConfig(optimizer=name)
        for field in ("learning_rate", "weight_decay", *choice.settings):
            check_effects(config, [field])
        for field in {"momentum", "muon_learning_rate", "beta1", "beta2"} - set(choice.settings):
            says = f"^{field} has no effect with optimizer {name}: leave it out, or choose another optimizer$"
            with pytest.raises(SettingError, match=says):
                check_effects(config, [field])


def test_least_moments_is_what_an_optimizer_keeps(make_gpt) -> None:
    for name, choice in OPTIMIZERS.items():
        model = make_gpt()
        optimizer = optimizer_for(model, TrainingConfig(optimizer=name, momentum=0.0))
        for p in model.parameters():
            p.grad = tt.zeros_like(p)
        optimizer.step()
        assert min(len(state.keys() - {"steps"}) for state in optimizer.state) == choice.least_moments


def test_a_run_without_the_setting_has_the_optimizer_that_trained_it() -> None:
    """Muon's learning rate decided that; earlier runs know nothing of Muon."""
    for before, after in ((0.0, "adamw"), (0.02, "muon")):
        assert with_new_names({"training": {"muon_learning_rate": before}})["training"]["optimizer"] == after
    assert "optimizer" not in with_new_names({"training": {"learning_rate": 0.1}})["training"]
    assert TrainingConfig().optimizer == "adamw"
    part = {"muon_learning_rate": 0.02, "optimizer": "lion"}
    assert with_new_names({"training": part})["training"] == part


def test_muon_without_a_learning_rate_names_adamw() -> None:
    with pytest.raises(
        SettingError, match=r"muon_learning_rate must be above 0, got 0\.0: without Muon, choose optimizer adamw"
    ):
        TrainingConfig(optimizer="muon", muon_learning_rate=0.0)
    with pytest.raises(SettingError, match="optimizer must be one of adamw, muon, sgd, lion, got 'adam'"):
        TrainingConfig(optimizer="adam")


def test_muon_needs_blocks() -> None:
    says = "optimizer muon trains the blocks of Transformers, but RecurrentLM has none: choose another"
    with pytest.raises(SettingError, match=says):
        optimizer_for(RecurrentLM(RecurrentConfig(11, cell="lstm", d_model=8)), TrainingConfig(optimizer="muon"))


def test_grouped_heads_are_one_matrix_to_muon() -> None:
    model = GPT(GPTConfig(11, 8, 1, 4, 8, num_key_value_heads=2))
    optimizer = optimizer_for(model, TrainingConfig(optimizer="muon"))
    assert {group["parts"] for group in optimizer.param_groups} == {1}
