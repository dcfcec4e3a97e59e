"""Training continues from mapped weights as from any others, and does not change their file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import GPT, GPTConfig, RunFolder, TextBatches, Trainer, TrainingConfig, from_pretrained, save_pretrained
from tinytensor.optim import AdamW

TRAINING = {"steps": 6, "batch_size": 4, "eval_every": 3, "log_every": 3, "warmup": 2, "learning_rate": 1e-2, "shards": 1}
SHAPE = {"vocab_size": 11, "block_size": 8, "num_layers": 2, "num_heads": 4, "d_model": 16}
SHAPES = {
    "gpt2": {"bias": True, "dropout": 0.1},
    "qwen3": {
        "positions": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "num_key_value_heads": 2,
        "query_key_norm": True,
        "tie_output": False,
    },
}


@pytest.fixture(params=["qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A pretrained model, in which every value is random."""
    tt.seed(0)
    model = GPT(GPTConfig(**SHAPE, **SHAPES[request.param]))
    for parameter in model.parameters():
        parameter.assign(parameter + 0.1 * tt.random.normal(parameter.shape))
    save_pretrained(model, tmp_path / "pretrained")
    return tmp_path / "pretrained"


def copied(model: Any) -> Any:
    """Return the same model with its parameters copied."""
    model.load_state_dict({name: tt.tensor(tensor.numpy().copy()) for name, tensor in model.state_dict().items()}, assign=True)
    return model


def fine_tune(model: Any, run: Path, resume: bool = False, **given: Any) -> dict[str, bytes]:
    """Train; the last weights."""
    config = TrainingConfig(**{**TRAINING, **given})
    with RunFolder(run).held() as folder:
        tt.seed(3)
        trainer = Trainer(model, TextBatches(np.arange(300) % 11, 8, config.batch_size, 0), config, folder)
        if resume:
            trainer.resume()
        else:
            folder.create({"model": model.config, "training": config}, False)
            folder.tokenizer.write_text("a tokenizer")
        trainer.train()
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("folder", "given"),
    [("gpt2", {"shards": 1}), ("qwen3", {"shards": 2}), ("gpt2", {"shards": 2, "workers": 2})],
    indirect=["folder"],
    ids=str,
)
def test_training_from_a_file(
    folder: Path, given: dict[str, int], tmp_path: Path, bits: Callable[..., dict[str, bytes]]
) -> None:
    before = (folder / "model.safetensors").read_bytes()
    first = bits(from_pretrained(folder).state_dict())
    mapped = fine_tune(from_pretrained(folder), tmp_path / "mapped", **given)
    assert mapped == fine_tune(copied(from_pretrained(folder)), tmp_path / "copied", **given)
    assert all(mapped[name] != first[name] for name in first)
    assert (folder / "model.safetensors").read_bytes() == before
    assert bits(from_pretrained(folder).state_dict()) == first


@pytest.mark.parametrize("folder", SHAPES, indirect=True)
def test_a_run_that_began_with_a_file_is_resumed_exactly(folder: Path, tmp_path: Path) -> None:
    whole = fine_tune(from_pretrained(folder), tmp_path / "whole", schedule="constant")
    fine_tune(from_pretrained(folder), tmp_path / "parts", schedule="constant", steps=3)
    assert fine_tune(GPT(from_pretrained(folder).config), tmp_path / "parts", resume=True, schedule="constant") == whole


def test_two_models_of_one_folder_are_apart(folder: Path, bits: Callable[..., dict[str, bytes]]) -> None:
    one, other = from_pretrained(folder), from_pretrained(folder)
    before = bits(other.state_dict())
    ids = tt.tensor([[1, 2, 3, 4]])
    one.loss(ids, ids).backward()
    AdamW(one.parameters(), lr=0.1).step()
    assert bits(other.state_dict()) == before
    assert bits(one.state_dict()) != before


def test_a_model_is_written_into_the_folder_that_it_is_mapped_from(folder: Path, bits: Callable[..., dict[str, bytes]]) -> None:
    model, untouched = from_pretrained(folder), from_pretrained(folder)
    before = bits(untouched.state_dict())
    model.token_embedding.weight.assign(model.token_embedding.weight * 2.0)
    save_pretrained(model, folder)
    assert bits(from_pretrained(folder).state_dict()) == bits(model.state_dict())
    assert bits(untouched.state_dict()) == before  # of the file that was replaced
