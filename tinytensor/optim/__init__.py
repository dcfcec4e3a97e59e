"""Optimizers, learning-rate schedules and gradient clipping, with PyTorch's names and defaults.

Read ``optimizer`` first: what all optimizers share. Then ``optimizers`` and ``adaptive``, ``schedules`` and ``clipping``.
``dividing`` splits a step among ranks. The room imports nn/, kernels/, parallel/ and what these stand on.
"""

import typing

from tinytensor.common.missing import names_of as _names_of
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

if not typing.TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
