"""Loaded models are in evaluation mode, whichever function loads them from whichever run or folder."""

from __future__ import annotations

from pathlib import Path

import explored
import pytest

import tinytensor as tt
from tinyformer import GPT, GPTConfig, from_pretrained, save_pretrained
from tinyformer.explore.views.subjects import Subjects
from tinyformer.export.runs import load_run
from tinyformer.training.opening import open_run
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.translation import trained_translator


def evaluates(model: tt.nn.Module) -> bool:
    return not any(module.training for module in model.modules())


@pytest.mark.parametrize("kind", explored.RUNS)
def test_a_run(kind: str, tmp_path: Path) -> None:
    path = explored.RUNS[kind](tmp_path / "run")
    assert evaluates(open_run(RunFolder(path)).model)
    subjects = Subjects([str(path)])
    assert evaluates(subjects.get(subjects.names[0]).model)
    if kind in ("gpt", "transformer", "masked"):
        assert evaluates(load_run(path).model)
    if kind in ("transformer", "context", "attention"):
        translator = trained_translator(RunFolder(path))
        assert evaluates(translator.model)
        translator.model.train()  # as while it trains
        translator.attended("a")
        assert all(module.training for module in translator.model.modules())


def test_weights_alone(tmp_path: Path) -> None:
    path = explored.RUNS["gpt"](tmp_path / "run")
    model = GPT(RunFolder(path).read_part("model", GPTConfig))
    load_weights(model, path / "best.safetensors")
    assert evaluates(model)
    assert not evaluates(model.train())


def test_a_pretrained_model(tmp_path: Path) -> None:
    save_pretrained(GPT(GPTConfig(vocab_size=12, num_layers=1, num_heads=2, d_model=16, block_size=8)), tmp_path)
    assert evaluates(from_pretrained(tmp_path))
