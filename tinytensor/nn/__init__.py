"""Neural network modules, with PyTorch's names.

Start with ``module``, then read ``layers``, ``containers`` and ``recurrent``.
"""

import typing

from tinytensor.common.missing import names_of as _names_of, public as _public
from tinytensor.nn import init as init
from tinytensor.nn.containers import ModuleDict as ModuleDict, ModuleList as ModuleList, Sequential as Sequential
from tinytensor.nn.hooks import recording_outputs as recording_outputs
from tinytensor.nn.layers import (
    ELU as ELU,
    GELU as GELU,
    Dropout as Dropout,
    Embedding as Embedding,
    Flatten as Flatten,
    GroupNorm as GroupNorm,
    Identity as Identity,
    LayerNorm as LayerNorm,
    LeakyReLU as LeakyReLU,
    Linear as Linear,
    ReLU as ReLU,
    RMSNorm as RMSNorm,
    Sigmoid as Sigmoid,
    SiLU as SiLU,
    Softmax as Softmax,
    Softplus as Softplus,
    Tanh as Tanh,
)
from tinytensor.nn.lora import (
    add_lora as add_lora,
    lora_state as lora_state,
    merge_lora as merge_lora,
    unmerge_lora as unmerge_lora,
)
from tinytensor.nn.module import Module as Module, Parameter as Parameter
from tinytensor.nn.quantization import quantize_ as quantize_
from tinytensor.nn.recurrent import (
    GRU as GRU,
    LSTM as LSTM,
    RNN as RNN,
    GRUCell as GRUCell,
    LSTMCell as LSTMCell,
    RNNCell as RNNCell,
)

if not typing.TYPE_CHECKING:
    __all__ = _public(globals(), "init")
    __getattr__, __dir__ = _names_of(__name__)
