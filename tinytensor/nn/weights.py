"""Replacements for a layer's weight, such as a quantized weight, and layer functions that accept them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from tinytensor import functional
from tinytensor.autograd.tensor import Tensor
from tinytensor.creation import arange
from tinytensor.device.backend import default_dtype
from tinytensor.nn.module import Module
from tinytensor.ops.quantized import block_rows, linear_blocks


class StandIn(Module, ABC):
    """A replacement for the weight (outputs, inputs) of a layer."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """(outputs, inputs)."""

    @abstractmethod
    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x @ weight.T + bias: (..., inputs) -> (..., outputs)."""

    @abstractmethod
    def rows(self, ids: Any) -> Tensor:
        """Return the rows at integer ids (...), dequantized: (..., inputs)."""

    def numpy(self) -> Any:
        """Return the weight (outputs, inputs) as a NumPy array."""
        return self.rows(arange(self.shape[0])).numpy()


class BlockWeight(StandIn):
    """A quantized weight, in llama.cpp blocks or in bfloat16; see ``kernels/numpy/quantized.py``.

    values: the bytes of all rows, uint8 (bytes,). parts: the block types and the number of rows of each, such as (("Q4_K",
    512), ("Q6_K", 128)).
    """

    dtype: ClassVar = default_dtype  # the dtype of its products
    values: Tensor
    passes_gradient = False  # set by ``add_lora`` to train other weights of the model

    def __init__(self, values: Tensor, parts: tuple[tuple[str, int], ...], inputs: int):
        self.register_buffer("values", values)
        self.parts, self.inputs = parts, inputs

    @property
    def kind(self) -> str:
        """The dtype of the weight: "int8", "bfloat16" or "int4" (including mixed block types)."""
        types = {block_type for block_type, _ in self.parts}
        return "int8" if types == {"Q8_0"} else "bfloat16" if types == {"BF16"} else "int4"

    @property
    def shape(self) -> tuple[int, ...]:
        """(outputs, inputs)."""
        return sum(rows for _, rows in self.parts), self.inputs

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if x.shape[-1:] != (self.inputs,):
            raise ValueError(f"x {x.shape} must end in the inputs of the weight (outputs, inputs) {self.shape}")
        return linear_blocks(x, self.values, bias, self.parts, self.passes_gradient)

    def rows(self, ids: Any) -> Tensor:
        return block_rows(ids, self.values, self.parts, self.inputs)

    def extra_repr(self) -> str:
        return f"{self.shape}, {' and '.join(dict.fromkeys(block_type for block_type, _ in self.parts))}"


def linear(x: Tensor, weight: Tensor | StandIn, bias: Tensor | None = None) -> Tensor:
    """Apply ``tt.linear`` with a weight or its replacement."""
    if isinstance(weight, StandIn):
        return weight.linear(x, bias)
    return functional.linear(x, weight, bias)


def embedding(ids: Any, weight: Tensor | StandIn) -> Tensor:
    """Apply ``tt.embedding`` with a weight or its replacement."""
    return weight.rows(ids) if isinstance(weight, StandIn) else functional.embedding(ids, weight)


def linear_cross_entropy(x: Tensor, weight: Tensor | StandIn, targets: Tensor, *settings: Any, **named: Any) -> Tensor:
    """Apply ``tt.linear_cross_entropy`` with a weight or its replacement."""
    if isinstance(weight, StandIn):
        return functional.cross_entropy(weight.linear(x, None), targets, *settings, **named)
    return functional.linear_cross_entropy(x, weight, targets, *settings, **named)


def replace_weight(model: Module, old: Tensor | StandIn, new: Tensor | StandIn) -> None:
    """Replace a weight with another, wherever the model uses it."""
    for module in list(model.modules()):
        for attribute in [name for name, value in vars(module).items() if value is old]:
            setattr(module, attribute, new)
