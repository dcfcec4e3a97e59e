"""Optimizers, learning-rate schedules and gradient clipping, with PyTorch's names and defaults."""

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
