"""What may stand in the place of a weight in a layer, such as a weight of fewer bits, and the functions of layers that take
either."""

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


class BlockWeight(StandIn):
    """A low-precision weight, in blocks of a few bits as llama.cpp has them, or in bfloat16; see ``numpy/quantized.py``.

    values: the bytes of all rows, uint8 (bytes,). parts: for some rows each, the type of their blocks and how many rows they
    are, such as (("Q4_K", 512), ("Q6_K", 128)).
    """

    dtype: ClassVar = default_dtype  # of its products
    values: Tensor
    passes_gradient = False  # whether a model that has it may train something else, as ``add_lora`` says

    def __init__(self, values: Tensor, parts: tuple[tuple[str, int], ...], inputs: int):
        self.register_buffer("values", values)
        self.parts, self.inputs = parts, inputs

    @property
    def kind(self) -> str:
        """The dtype that it was rounded to: "int8", "bfloat16" or "int4", that of mixed types, too."""
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
