"""Names of earlier versions: each is read as its new name, in settings, in flags and in checkpoints, and none is written."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

import tinytensor as tt
from tinyformer.commands.command_line import Parser, add_settings
from tinyformer.common.errors import UserError
from tinyformer.common.settings import LAYERS, SETTINGS, VALUES, new_value, new_weight_name, old_names, with_new_names
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.bert import BertConfig
from tinyformer.models.blocks import BlockConfig
from tinyformer.models.gpt import GPTConfig
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.checkpoints import load_checkpoint, save_checkpoint
from tinyformer.training.config import TrainingConfig
from tinyformer.training.run_folder import RunFolder, load_weights
from tinytensor.io import load_with_metadata, save

CONFIGS = (TrainingConfig, TransformerConfig, BertConfig, GPTConfig, BlockConfig)
SIZES = {"source_vocab_size": 9, "target_vocab_size": 9, "d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def test_the_map_leads_to_names_that_there_are() -> None:
    names = {field.name for kind in CONFIGS for field in fields(kind)}
    assert set(SETTINGS.values()) <= names and set(VALUES) <= names
    assert not set(SETTINGS) & names
    assert set(VALUES["activation"].values()) <= set(ACTIVATIONS)
    assert not set(VALUES["activation"]) & set(ACTIVATIONS)
    model = Transformer(TransformerConfig(**SIZES, d_ff=16))
    layers = {layer for name in model.state_dict() for layer in name.split(".")}
    assert set(LAYERS.values()) <= layers
    assert not set(LAYERS) & layers


def test_settings() -> None:
    before = {"model": {"d_inner": 16, "activation": "gelu"}, "training": {"accumulation": 2, "steps": 3}, "sha256": "gelu"}
    assert with_new_names(before) == {
        "model": {"d_ff": 16, "activation": "gelu_tanh"},
        "training": {"gradient_accumulation_steps": 2, "steps": 3},
        "sha256": "gelu",
    }
    assert with_new_names(with_new_names(before)) == with_new_names(before)
    assert with_new_names([1]) == [1]
    assert old_names("d_ff") == ["d_inner"]


def test_a_width_of_0_was_four_times_the_models_width() -> None:
    for name in ("d_ff", "d_inner"):
        model = {"d_model": 24, name: 0, "activation": "swiglu"}
        assert with_new_names({"model": model})["model"]["d_ff"] == 96
    assert GPTConfig(vocab_size=5, d_model=24, activation="swiglu").d_ff == 64  # now, and what a new run saves
    assert GPTConfig(vocab_size=5, d_model=24, activation="relu").d_ff == 96
    assert GPTConfig(vocab_size=5, d_model=24, activation="swiglu", d_ff=7).d_ff == 7
    assert with_new_names({"model": {"d_ff": 0, "d_model": "24"}}) == {
        "model": {"d_ff": 0, "d_model": "24"}
    }  # refused elsewhere
    assert old_names("steps") == []


def test_a_setting_under_both_names() -> None:
    with pytest.raises(ValueError, match="it has both d_ff and d_inner, which is the old name of the same setting"):
        with_new_names({"model": {"d_inner": 16, "d_ff": 16}})


@pytest.mark.parametrize("value", [3, None, ["gelu"], {"gelu": 1}, "relu", "gelu_exact"])
def test_a_value_that_has_no_other_name(value: object) -> None:
    assert new_value("activation", value) == value
    assert new_value("name", "gelu") == "gelu"


def test_weights() -> None:
    assert new_weight_name("blocks.0.feed_forward.expand.weight") == "blocks.0.feed_forward.up.weight"
    assert new_weight_name("blocks.0.feed_forward.contract.bias") == "blocks.0.feed_forward.down.bias"
    assert new_weight_name("expanded.weight") == "expanded.weight"


# ----------------------------------------------------------------------------------------------------------- files


def folder_of_before(path: Path, config: dict[str, object], stored: dict[str, object] | None = None) -> RunFolder:
    """A run's folder with a config.json and a best checkpoint of a small Transformer as earlier versions wrote them."""
    model = Transformer(TransformerConfig(**SIZES, d_ff=16))
    back = {new: old for old, new in LAYERS.items()}
    weights = {".".join(back.get(layer, layer) for layer in name.split(".")): t for name, t in model.state_dict().items()}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    state = {"kind": "best", "settings": config if stored is None else stored, "tokenizer": None}
    save({f"model/{name}": tensor for name, tensor in weights.items()}, path / "best.safetensors", {"state": json.dumps(state)})
    return RunFolder(path)


BEFORE = {"model": {**SIZES, "d_inner": 16, "activation": "gelu"}}


def test_a_checkpoint_of_before_loads(tmp_path: Path) -> None:
    tt.seed(1)
    folder = folder_of_before(tmp_path / "run", BEFORE)
    config = folder.read_part("model", TransformerConfig)
    assert (config.d_ff, config.activation) == (16, "gelu_tanh")
    tt.seed(2)
    model = Transformer(config)
    load_weights(model, folder.best)
    before, _ = load_with_metadata(folder.best)
    expected = before["model/encoder.blocks.0.feed_forward.expand.weight"]
    assert (model.encoder.blocks[0].feed_forward.up.weight == expected).all()


def test_a_setting_that_differs_is_still_found(tmp_path: Path) -> None:
    stored = {"model": {**BEFORE["model"], "d_inner": 32}}
    folder = folder_of_before(tmp_path / "run", BEFORE, stored)
    _, state = load_checkpoint(folder.best, "best")
    with pytest.raises(UserError, match=r"config.json says 16 for model.d_ff, but best.safetensors was trained with 32"):
        folder.check_identity(state, folder.best)


@pytest.mark.parametrize("file", ["config.json", "best.safetensors"])
def test_a_file_with_both_names_is_damaged(tmp_path: Path, file: str) -> None:
    both = {"model": {**BEFORE["model"], "d_ff": 16}}
    config, stored = (both, BEFORE) if file == "config.json" else (BEFORE, both)
    folder = folder_of_before(tmp_path / "run", config, stored)
    with pytest.raises(UserError, match=f"{file} is damaged: it has both d_ff and d_inner"):
        load_weights(Transformer(TransformerConfig(**SIZES, d_ff=16)), folder.best)


def test_a_folder_without_settings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^\S*config\.json does not exist: is \S* the folder of a run\?$"):
        RunFolder(tmp_path).read_settings()


def test_no_old_name_is_written(tmp_path: Path) -> None:
    config = TransformerConfig(**SIZES, d_ff=16, activation="gelu_tanh")
    with RunFolder(tmp_path / "run").held() as folder:
        folder.create({"model": config, "training": TrainingConfig()})
        folder.move_into_place()
        state = {"kind": "best", **folder.identity(lasting=False)}
        save_checkpoint(folder.best, {"model": Transformer(config).state_dict()}, state)
        tensors, metadata = load_with_metadata(folder.best)
        written = [*json.loads(folder.settings.read_text())["model"], *json.loads(folder.settings.read_text())["training"]]
    assert not set(SETTINGS) & set(written)
    assert not [name for name in tensors if set(LAYERS) & set(name.split("."))]
    assert all(f'"{old}"' not in metadata["state"] for old in (*SETTINGS, *VALUES["activation"]))


# ----------------------------------------------------------------------------------------------------------- flags


@pytest.mark.parametrize("kind", CONFIGS[:-1])
def test_old_flags_work_and_are_not_shown(kind: type) -> None:
    parser = Parser(prog="it.py")
    add_settings(parser, kind, "settings")
    shown = parser.format_help()
    names = {field.name for field in fields(kind) if "help" in field.metadata}  # the others have no flag
    flags = {old: new for old, new in SETTINGS.items() if new in names}
    for old, new in flags.items():
        flag = "--" + old.replace("_", "-")
        assert vars(parser.parse_args([flag, "7"])) == {new: 7}
        assert flag not in shown
        assert "--" + new.replace("_", "-") in shown
    if "activation" in names:
        assert parser.parse_args(["--activation", "gelu"]).activation == "gelu_tanh"
        assert parser.parse_args(["--activation", "gelu_exact"]).activation == "gelu_exact"
        assert "gelu," not in shown
    assert flags or "activation" in names


def test_a_wrong_value_for_an_old_flag(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="it.py")
    add_settings(parser, TrainingConfig, "settings")
    with pytest.raises(SystemExit):
        parser.parse_args(["--accumulation", "two"])
    assert "argument --accumulation: invalid int value: 'two'" in capsys.readouterr().err
