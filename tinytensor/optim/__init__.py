"""Optimizers, learning-rate schedules and gradient clipping, with PyTorch's names and defaults.

Each optimizer is a class with its formula, ``rule``: read ``sgd`` and ``adam`` first, then ``lion``, ``muon`` and ``adaptive``.
``optimizer`` has what they share: groups, settings, saving. ``applying`` takes a step with a rule: on ranks and threads, for
low-precision parameters, by ``fused`` kernels. Then ``schedules`` and ``clipping``. The room imports nn/, kernels/, parallel/
and what these stand on.
"""

import typing

from tinytensor.common.missing import names_of as _names_of
from tinytensor.optim.adam import Adam, AdamW
from tinytensor.optim.adaptive import Adadelta, Adagrad, RMSprop
from tinytensor.optim.clipping import clip_grad_norm, norm_and_scale
from tinytensor.optim.lion import Lion
from tinytensor.optim.muon import Muon
from tinytensor.optim.optimizer import Optimizer
from tinytensor.optim.plateau import Plateau
from tinytensor.optim.schedules import Constant, Cosine, InverseSquareRoot, LinearDecay, OneCycle, Schedule, Step
from tinytensor.optim.sgd import SGD

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
    "Lion",
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
