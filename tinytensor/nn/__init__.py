"""Neural network modules, named as in PyTorch.

Start with ``module``, then read ``layers``, ``containers`` and ``recurrent``.
"""

import typing

from tinytensor.common.missing import names_of as _names_of, public as _public
from tinytensor.nn import init as init
from tinytensor.nn.containers import *
from tinytensor.nn.hooks import recording_outputs as recording_outputs
from tinytensor.nn.layers import *
from tinytensor.nn.lora import *
from tinytensor.nn.module import Module as Module, Parameter as Parameter
from tinytensor.nn.quantization import quantize_ as quantize_
from tinytensor.nn.recurrent import *

if not typing.TYPE_CHECKING:
    __all__ = _public(globals(), "init")
    __getattr__, __dir__ = _names_of(__name__)
