"""A trainer of a tiny GPT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainings import interrupted, trainer_in

from tinyformer.training.trainer import Trainer


@pytest.fixture
def make_trainer(tmp_path: Path, text_ids: np.ndarray) -> Callable[..., Trainer]:
    """Return a function that makes trainers, in a new folder or the one named. ``interrupt`` stops a run at that batch."""

    def make(folder: str = "run", interrupt: int = 0, times: int = 1, **given: Any) -> Trainer:
        trainer = trainer_in(tmp_path / folder, text_ids, **given)
        if interrupt:
            interrupted(trainer.batches, interrupt, times)
        return trainer

    return make
