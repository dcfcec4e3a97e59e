"""Batches of pairs that any encoder-decoder learns soon, for tests of training and resuming."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import numpy as np

import tinytensor as tt
from tinyformer.data.pairs import PairBatch

PAD, START, END = 0, 1, 2


class FirstWords:
    """Sentences of five tokens; the translation is the first of them, twice. Presses Ctrl-C at one of the batches."""

    def __init__(self, interrupt_at: int = 0) -> None:
        self.rng = np.random.default_rng(0)
        self.interrupt_at = interrupt_at
        self.drawn = 0

    def make(self, rng: np.random.Generator) -> PairBatch:
        source = rng.integers(3, 11, (8, 5))
        first = source[:, :1]
        target = np.concatenate([np.full((8, 1), START), first, first, np.full((8, 1), END)], axis=1)
        source[0, 4], target[0, 3] = PAD, PAD
        count = int((target[:, 1:] != PAD).sum())
        return PairBatch(tt.tensor(source), tt.tensor(target[:, :-1]), tt.tensor(target[:, 1:]), count)

    def sample(self) -> PairBatch:
        self.drawn += 1
        if self.drawn == self.interrupt_at:
            signal.raise_signal(signal.SIGINT)
        return self.make(self.rng)

    def validation_batches(self) -> Iterator[PairBatch]:
        rng = np.random.default_rng(99)
        return iter([self.make(rng) for _ in range(2)])

    def get_state(self) -> dict[str, Any]:
        return {"generator": self.rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["generator"]
