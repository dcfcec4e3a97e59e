"""What the tests of tinyformer share: a tiny model, a tiny text, and a comparison down to the last bit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.models.gpt import GPT, GPTConfig
from tinytensor import Tensor

TINY = {"vocab_size": 11, "block_size": 8, "num_layers": 2, "num_heads": 2, "d_model": 16}


@pytest.fixture
def make_gpt() -> Callable[..., GPT]:
    """A small GPT; the same seed gives the same weights."""

    def make(seed: int = 0, **changes: object) -> GPT:
        tt.seed(seed)
        return GPT(GPTConfig(**{**TINY, **changes}))

    return make


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list of all programs that are traced in the test."""
    tracer = sys.modules["tinytensor.replay.trace"].Tracer
    traced, original = list[Any](), tracer.program

    def program(self: Any, out: Tensor) -> Any:
        traced.append(original(self, out))
        return traced[-1]

    monkeypatch.setattr(tracer, "program", program)
    return traced


@pytest.fixture(scope="session")
def text_ids() -> np.ndarray:
    """300 ids below 11: a noisy cycle, so that there is something to learn and something to get wrong."""
    rng = np.random.default_rng(5)
    return np.where(rng.random(300) < 0.8, np.arange(300) % 11, rng.integers(0, 11, 300))


@pytest.fixture
def bits() -> Callable[[Mapping[str, Tensor]], dict[str, bytes]]:
    """The exact bytes of named tensors: equal bytes are equal numbers without any tolerance."""
    return lambda tensors: {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


@pytest.fixture
def shipped_fonts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restrict matplotlib to the fonts it ships, whatever this system has."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import fontManager

    # They are not always in its list: it drops those that this system has, too.
    monkeypatch.setattr(fontManager, "ttflist", [])
    for path in Path(get_data_path(), "fonts", "ttf").glob("*.ttf"):
        fontManager.addfont(path)
