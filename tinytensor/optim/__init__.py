"""Optimizers, learning-rate schedules and gradient clipping, with the names and defaults of PyTorch.

Each optimizer is a class whose ``rule`` is its formula. Read ``sgd`` and ``adam`` first, then ``lion``, ``muon`` and
``adaptive``. ``optimizer`` holds the shared code: groups, settings, saving. ``applying`` applies a rule to all parameters:
across ranks and threads, for low-precision parameters, and through ``fused`` kernels that give the same results. Then read
``schedules`` and ``clipping``. This package imports nn/, kernels/, parallel/ and their imports.
"""

import typing

from tinytensor.common.missing import names_of as _names_of, public as _public
from tinytensor.optim.adam import Adam as Adam, AdamW as AdamW
from tinytensor.optim.adaptive import Adadelta as Adadelta, Adagrad as Adagrad, RMSprop as RMSprop
from tinytensor.optim.clipping import clip_grad_norm as clip_grad_norm, norm_and_scale as norm_and_scale
from tinytensor.optim.lion import Lion as Lion
from tinytensor.optim.muon import Muon as Muon
from tinytensor.optim.optimizer import Optimizer as Optimizer
from tinytensor.optim.schedules import (
    Constant as Constant,
    Cosine as Cosine,
    InverseSquareRoot as InverseSquareRoot,
    LinearDecay as LinearDecay,
    OneCycle as OneCycle,
    Plateau as Plateau,
    Schedule as Schedule,
    Step as Step,
)
from tinytensor.optim.sgd import SGD as SGD

if not typing.TYPE_CHECKING:
    __all__ = _public(globals(), "")
    __getattr__, __dir__ = _names_of(__name__)
