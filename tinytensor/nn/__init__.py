"""Neural network modules, with PyTorch's names."""

from tinytensor.nn import init
from tinytensor.nn.containers import ModuleList, Sequential
from tinytensor.nn.layers import (
    GELU,
    Dropout,
    Embedding,
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
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "Module",
    "ModuleList",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "init",
]
