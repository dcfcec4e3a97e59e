"""Optimizers, learning-rate schedules and gradient clipping, with PyTorch's names and defaults."""

import sys
from typing import TYPE_CHECKING, Any

from tinytensor.missing import missing as _missing
from tinytensor.optim.adaptive import Adadelta, Adagrad, RMSprop
from tinytensor.optim.clipping import clip_grad_norm, norm_and_scale
from tinytensor.optim.muon import Muon
from tinytensor.optim.optimizer import Optimizer
from tinytensor.optim.optimizers import SGD, Adam, AdamW
from tinytensor.optim.plateau import Plateau
from tinytensor.optim.schedules import Constant, Cosine, InverseSquareRoot, LinearDecay, OneCycle, Schedule, Step

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "InverseSquareRoot",
    "LinearDecay",
    "Muon",
    "OneCycle",
    "Optimizer",
    "Plateau",
    "RMSprop",
    "Schedule",
    "Step",
    "clip_grad_norm",
    "norm_and_scale",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise _missing("tinytensor.optim", name, sys.modules[__name__])
