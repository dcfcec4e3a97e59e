"""What the weights of a pretrained model are, in its folder and in the model: float32, bfloat16 or int8.

A folder with int8 weights has them by their usual names, and the scale of each row by the name with "_scale" behind it.
config.json says so in ``quantization_config``, so that no other reader takes the integers for the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.models.quantizing import DTYPES, dtype_of, names_to_round
from tinyformer.pretrained.settings import PretrainedSettings
from tinytensor.nn import Module

SCALE = "_scale"  # behind the name of a weight of integers: that of its scales
_IN_CONFIG = {"quantization_config": {"quant_method": "tinyformer", "dtype": "int8"}}


@dataclass(frozen=True)
class Kept:
    """What the weights of a model are to be, and whether its folder has them so already."""

    dtype: str = "float32"
    in_file: bool = False

    def names(self, model: Module) -> list[str]:
        """The names of the weights that are rounded."""
        return [] if self.dtype == "float32" else names_to_round(model, self.dtype)


AS_FLOAT32 = Kept()


def kept_for(settings: PretrainedSettings, dtype: str | None) -> Kept:
    """What the weights of a folder become. Without a ``dtype`` they are int8 if they are so there, and otherwise float32.

    Raises UserError for an unknown dtype, for one that int8 weights cannot become, and for weights that others quantized.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"dtype must be one of {', '.join(DTYPES)}, not {shortened(repr(dtype), 40)}")
    described = settings.values.get("quantization_config")
    if not described:
        return Kept(dtype or "float32")
    if {"quantization_config": described} != _IN_CONFIG:
        raise settings.error("quantized weights cannot be read: pass a folder with weights in float32, float16 or bfloat16")
    if dtype not in (None, "int8"):
        raise settings.error(f"these weights are in int8, and cannot become {dtype}: leave the dtype out")
    return Kept("int8", in_file=True)


def described(model: Module) -> dict[str, Any]:
    """What config.json says of the weights of a model. bfloat16 weights are written as the float32 numbers that they are."""
    return _IN_CONFIG if dtype_of(model) == "int8" else {}
