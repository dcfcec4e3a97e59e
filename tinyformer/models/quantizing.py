"""Low-precision model weights: less memory and faster generation, but no training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from tinyformer.common.errors import UserError
from tinytensor import Tensor
from tinytensor.nn import Embedding, Module, quantization, quantize_
from tinytensor.nn.lora import lora_weights
from tinytensor.nn.quantization import quantizable, quantized_weights

DTYPES = ("float32", *quantization.DTYPES)  # weight dtypes

_TABLES = ("token_embedding", "tokens")  # names of token embeddings

AnyModule = TypeVar("AnyModule", bound=Module)


def quantize(model: AnyModule, dtype: str = "int8") -> AnyModule:
    """Round the weights of a model's linear layers and token embeddings to "int8", "int4" or "bfloat16", in place.

    Returns the model in evaluation mode. Afterwards, only ``tt.nn.add_lora`` layers can be trained. An int8 weight takes about
    a quarter of its memory, an int4 weight a seventh. Generation is up to that much faster. See ``tt.nn.quantize_``.

    Raises UserError for another dtype, for NaN or infinite weights, and for layers that cannot be quantized, such as an LSTM.

    >>> from tinyformer import GPT, GPTConfig, quantize
    >>> quantize(GPT(GPTConfig(vocab_size=65, num_layers=1, d_model=32))).blocks[0].feed_forward.up
    Linear(32, 128, bias=False)
      weight: BlockWeight((128, 32), Q8_0)
    """
    with plain_errors_of_quantizing():
        return quantize_(model, dtype, _tables(model))


def names_to_round(model: Module, dtype: str) -> list[str]:
    """Return the names of the weights that ``quantize`` rounds. Raises UserError for the same reasons."""
    with plain_errors_of_quantizing():
        return quantizable(model, dtype, _tables(model))


def dtype_of(model: Module) -> str:
    """Return the dtype of a model's weights: "float32", or the lowest-precision quantized dtype."""
    return quantization.quantized_dtype(model) or "float32"


def num_weights(model: Module) -> int:
    """Return the number of parameters, including quantized ones."""
    return model.num_parameters() + sum(math.prod(weight.shape) for _, weight in quantized_weights(model))


def refuse_quantized(model: Module, action: str, remedy: str) -> None:
    """Raise UserError if the model has quantized weights, for example because it cannot be "trained". Suggest a ``remedy``."""
    if (dtype := dtype_of(model)) != "float32":
        raise UserError(f"a model in {dtype} cannot be {action}: {remedy}")


def refuse_additions(model: Module, action: str) -> None:
    """Raise UserError if the model has unmerged LoRA adapters, for example because it cannot be "exported"."""
    if any(lora_weights(model)):
        raise UserError(f"a model with LoRA additions cannot be {action}: merge them with tt.nn.merge_lora(model)")


def _tables(model: Module) -> list[Tensor]:
    """Return the token embedding weights. One may be tied to the output layer."""
    tables = [module for name, module in model.named_modules() if name.rpartition(".")[2] in _TABLES]
    return [module.weight for module in tables if isinstance(module, Embedding) and isinstance(module.weight, Tensor)]


@contextmanager
def plain_errors_of_quantizing(where: object = "") -> Iterator[None]:
    """Turn ValueErrors from quantization into UserErrors that start with the file name ``where``."""
    try:
        yield
    except ValueError as error:
        message = str(error).removeprefix("quantize_: ")
        raise UserError(f"{where}: {message}" if where else message) from None
