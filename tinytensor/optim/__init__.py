"""Optimizers, learning-rate schedules and gradient clipping, with PyTorch's names and defaults."""

import sys
from typing import TYPE_CHECKING, Any

from tinytensor.missing import missing as _missing
from tinytensor.optim.clipping import clip_grad_norm, norm_and_scale
from tinytensor.optim.muon import Muon
from tinytensor.optim.optimizer import Optimizer
from tinytensor.optim.optimizers import SGD, Adam, AdamW
from tinytensor.optim.schedules import Constant, Cosine, InverseSquareRoot, LinearDecay, Schedule

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "InverseSquareRoot",
    "LinearDecay",
    "Muon",
    "Optimizer",
    "Schedule",
    "clip_grad_norm",
    "norm_and_scale",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise _missing("tinytensor.optim", name, sys.modules[__name__])
