"""What may stand in the place of a weight in a layer, such as a weight of fewer bits, and the functions of layers that take
either."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from tinytensor import functional, kernels
from tinytensor.autograd.tensor import Tensor
from tinytensor.creation import arange
from tinytensor.device.backend import Array, default_dtype
from tinytensor.nn.module import Module
from tinytensor.ops.quantized import linear_bfloat16, linear_int8, widened_bfloat16


class StandIn(Module, ABC):
    """What stands in the place of a weight (outputs, inputs) in a layer."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """(outputs, inputs)."""

    @abstractmethod
    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x @ weight.T + bias: (..., inputs) -> (..., outputs)."""

    @abstractmethod
    def rows(self, ids: Any) -> Tensor:
        """The rows at integer ids (...), as numbers: (..., inputs)."""

    def numpy(self) -> Any:
        """The numbers (outputs, inputs) that it stands for, as a NumPy array."""
        return self.rows(arange(self.shape[0])).numpy()


class QuantizedWeight(StandIn):
    """A weight of fewer bits. A subclass says what is kept of the numbers."""

    dtype: ClassVar = default_dtype  # of what it computes
    kind: ClassVar[str]  # the name of what is kept
    values: Tensor
    passes_gradient = False  # whether a model that has it may learn something else, as ``add_lora`` says

    @classmethod
    @abstractmethod
    def of(cls, rows: Array) -> dict[str, Array]:
        """What is kept of some rows of a weight (rows, inputs): arrays by the names of the buffers."""

    def __init__(self, **kept: Tensor):
        for name, tensor in kept.items():
            self.register_buffer(name, tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """(outputs, inputs)."""
        return self.values.shape

    def extra_repr(self) -> str:
        return f"{self.shape}, {self.kind}"


class Int8Weight(QuantizedWeight):
    """An integer from -127 to 127 for each number, and a scale for each row: scale * values is nearly the weight. Inputs of a
    product become integers in the same way, a row at a time. See LLM.int8() (Dettmers et al. 2022), section 2."""

    kind = "int8"
    scale: Tensor

    @classmethod
    def of(cls, rows: Array) -> dict[str, Array]:
        values, scale = kernels.quantize_rows(rows)
        return {"values": values, "scale": scale}

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return linear_int8(x, self.values, self.scale, bias, self.passes_gradient)

    def rows(self, ids: Any) -> Tensor:
        scale = functional.embedding(ids, self.scale.reshape(-1, 1))
        return functional.embedding(ids, self.values).astype(default_dtype) * scale


class BFloat16Weight(QuantizedWeight):
    """The upper halves of float32 numbers, rounded: their sign, their exponent, and 8 of 24 significant bits."""

    kind = "bfloat16"

    @classmethod
    def of(cls, rows: Array) -> dict[str, Array]:
        return {"values": kernels.to_bfloat16(rows)}

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return linear_bfloat16(x, self.values, bias, self.passes_gradient)

    def rows(self, ids: Any) -> Tensor:
        return widened_bfloat16(functional.embedding(ids, self.values))


def linear(x: Tensor, weight: Tensor | StandIn, bias: Tensor | None = None) -> Tensor:
    """``tt.linear`` for a weight or what stands in its place."""
    if isinstance(weight, StandIn):
        return weight.linear(x, bias)
    return functional.linear(x, weight, bias)


def embedding(ids: Any, weight: Tensor | StandIn) -> Tensor:
    """``tt.embedding`` for a weight or what stands in its place."""
    return weight.rows(ids) if isinstance(weight, StandIn) else functional.embedding(ids, weight)


def linear_cross_entropy(x: Tensor, weight: Tensor | StandIn, targets: Tensor, *settings: Any, **named: Any) -> Tensor:
    """``tt.linear_cross_entropy`` for a weight or what stands in its place."""
    if isinstance(weight, StandIn):
        return functional.cross_entropy(weight.linear(x, None), targets, *settings, **named)
    return functional.linear_cross_entropy(x, weight, targets, *settings, **named)


def replace_weight(model: Module, old: Tensor | StandIn, new: Tensor | StandIn) -> None:
    """Put another weight in the place of one, wherever the model has that."""
    for module in list(model.modules()):
        for attribute in [name for name, value in vars(module).items() if value is old]:
            setattr(module, attribute, new)
