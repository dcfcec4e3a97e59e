"""Neural network modules, with PyTorch's names.

Read ``module`` first: what a module is. Then ``layers``, ``containers`` and, for recurrent networks, ``cells`` and
``recurrent``. ``init`` has initial values. The room imports ops/, functional/ and what these stand on.
"""

import typing

from tinytensor.common.missing import names_of as _names_of
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
from tinytensor.nn.lora import add_lora, lora_state, merge_lora, unmerge_lora
from tinytensor.nn.module import Module, Parameter
from tinytensor.nn.quantization import quantize_
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
    "add_lora",
    "init",
    "lora_state",
    "merge_lora",
    "quantize_",
    "recording_outputs",
    "unmerge_lora",
]

if not typing.TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
