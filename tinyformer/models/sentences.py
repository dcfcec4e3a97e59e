"""Sentence vectors (Reimers and Gurevych 2019): pool an encoder's token vectors into one vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tinytensor as tt
from tinyformer.common.errors import SettingError, shortened
from tinyformer.models.bert import Bert
from tinyformer.models.gpt import GPT, GPTVectors
from tinytensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.nn import Linear, Module, ModuleList

# Token weights (batch, length) from ``counted`` (1 for tokens that count, 0 for others), its running sum, its total
# (batch, 1), and the positions from 1.
Weighting = Callable[[Any, Any, Any, Any], Any]
WEIGHTINGS: dict[str, Weighting] = {
    "cls": lambda counted, number, total, positions: (
        counted * (number <= 1.0).astype("float32") + (total <= 0.0).astype("float32") * (positions <= 1.0).astype("float32")
    ),  # if no token counts, the first, as in sentence-transformers
    "mean": lambda counted, number, total, positions: counted,
    "mean_sqrt_len_tokens": lambda counted, number, total, positions: counted,
    "weightedmean": lambda counted, number, total, positions: counted * positions,
    "lasttoken": lambda counted, number, total, positions: counted * (total <= number).astype("float32"),
}
# In the order in which sentence-transformers concatenates the vectors.
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


class Pooling(Module):
    """Pool token vectors into one vector per sequence: the first ("cls"), the last ("lasttoken"), the maximum of each feature
    ("max"), or a mean. "weightedmean" gives later tokens more weight. "mean_sqrt_len_tokens" divides the sum by the square root
    of the token count. Several ``kinds`` are concatenated. Raises SettingError for an unknown kind or none."""

    def __init__(self, kinds: Sequence[str] = ("mean",)):
        for name in kinds or ("",):
            if name not in POOLINGS:
                raise SettingError(f"unknown pooling {shortened(repr(name), 40)}: choose from {', '.join(POOLINGS)}")
        self.kinds = tuple(kinds)

    def forward(self, x: Tensor, is_token: Tensor, counted: Tensor) -> Tensor:
        """Map x (batch, length, width) to (batch, width * number of kinds). ``is_token`` and ``counted`` are the masks of
        ``SentenceModel``, as 0 and 1."""
        number, positions = tt.cumsum(counted, axis=1), tt.cumsum(is_token, axis=1)
        total = number[:, -1:]
        parts = []
        for name in self.kinds:
            if name == "max":
                parts.append(tt.where((counted > 0)[:, :, None], x, float("-inf")).max(1))
            else:
                weights = WEIGHTINGS[name](counted, number, total, positions)
                size = tt.sqrt(total) if name == "mean_sqrt_len_tokens" else weights.sum(1, keepdims=True)
                parts.append(((weights / tt.maximum(size, 1e-9))[:, None] @ x)[:, 0])
        return parts[0] if len(parts) == 1 else tt.concatenate(parts, axis=1)


class Projection(Module):
    """A linear layer on the pooled vector, and an activation."""

    FUNCTIONS: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {
        "Identity": lambda x: x,
        "Tanh": tt.tanh,
        "ReLU": tt.relu,
        "GELU": tt.gelu,
        "SiLU": tt.silu,
        "Sigmoid": tt.sigmoid,
    }

    def __init__(self, width: int, new_width: int, bias: bool = True, function: str = "Tanh"):
        if function not in self.FUNCTIONS:
            known = ", ".join(self.FUNCTIONS)
            raise SettingError(f"unknown function {shortened(repr(function), 40)}: choose from {known}")
        self.linear = Linear(width, new_width, bias)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to (batch, new_width)."""
        return self.FUNCTIONS[self.function](self.linear(x))


class Normalize(Module):
    """Scale vectors to unit length, so that dot products are cosines."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same shape."""
        return x / tt.maximum(tt.sqrt((x * x).sum(-1, keepdims=True)), 1e-12)


class SentenceModel(Module):
    """An encoder, a pooling layer, and optional ``layers``: each a ``Projection`` or ``Normalize``.

    >>> from tinyformer import Bert, BertConfig, SentenceModel
    >>> model = SentenceModel(Bert(BertConfig(100, num_layers=1, num_heads=4, d_model=32, d_ff=64)))
    >>> model(tt.ones((2, 6), dtype=int)).shape
    (2, 32)
    """

    def __init__(
        self, encoder: Bert | GPT | GPTVectors, pooling: Sequence[str] = ("mean",), layers: Sequence[Module] | None = None
    ):
        self.encoder = encoder
        self.pooling = Pooling(pooling)
        self.layers = ModuleList([Normalize()] if layers is None else layers)

    @checked
    def forward(
        self, ids: Tensor, mask: Tensor | None = None, counted: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """Map ids (batch, length) to one vector per sequence, (batch, width).

        ``mask`` (batch, length) is True for tokens and False for trailing padding (default: all tokens). ``counted`` is True
        for the tokens to pool (default: all). For ``segments``, see ``Bert``.
        """
        mask = tt.ones(ids.shape, dtype=bool) if mask is None else mask
        x = self.vectors(ids, mask, segments)
        for_pooling = mask if counted is None else counted
        pooled = self.pooling(x, mask.astype(x.dtype), for_pooling.astype(x.dtype))
        for layer in self.layers:
            pooled = layer(pooled)
        return pooled

    def vectors(self, ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return one vector per token, (batch, length, d_model). In a GPT, no token attends to trailing padding."""
        if isinstance(self.encoder, Bert):
            return self.encoder(ids, segments, mask)
        return self.encoder.vectors(ids) if isinstance(self.encoder, GPT) else self.encoder(ids)
