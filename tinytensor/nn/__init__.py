"""Neural network modules, with PyTorch's names."""

import sys
from typing import TYPE_CHECKING, Any

from tinytensor.missing import missing as _missing
from tinytensor.nn import init
from tinytensor.nn.cells import GRUCell, LSTMCell, RNNCell
from tinytensor.nn.containers import ModuleDict, ModuleList, Sequential
from tinytensor.nn.hooks import recording_outputs
from tinytensor.nn.layers import (
    ELU,
    GELU,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    Identity,
    LayerNorm,
    LeakyReLU,
    Linear,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from tinytensor.nn.module import Module, Parameter
from tinytensor.nn.recurrent import GRU, LSTM, RNN

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Identity",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Parameter",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "init",
    "recording_outputs",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise _missing("tinytensor.nn", name, sys.modules[__name__])
