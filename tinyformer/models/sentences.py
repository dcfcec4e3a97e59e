"""Sentences as vectors (Reimers and Gurevych 2019): an encoder gives each token a vector, and pooling makes one of them."""

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

# How much each token counts beside others: of the numbers (batch, length) that are 1 for tokens that count and 0 for others,
# how many count up to each token, and in all, and the place of each token, the first being 1.
Weighting = Callable[[Any, Any, Any, Any], Any]
WEIGHTINGS: dict[str, Weighting] = {
    "cls": lambda counted, number, total, places: (
        counted * (number <= 1.0).astype("float32") + (total <= 0.0).astype("float32") * (places <= 1.0).astype("float32")
    ),  # where none counts the first of all, as in sentence-transformers
    "mean": lambda counted, number, total, places: counted,
    "mean_sqrt_len_tokens": lambda counted, number, total, places: counted,
    "weightedmean": lambda counted, number, total, places: counted * places,
    "lasttoken": lambda counted, number, total, places: counted * (total <= number).astype("float32"),
}
# In the order in which sentence-transformers puts their vectors side by side.
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


class Pooling(Module):
    """One vector of a text from those of its tokens: the first ("cls"), the last ("lasttoken"), the largest value in each place
    ("max"), or a mean; "weightedmean" weighs later tokens more, and "mean_sqrt_len_tokens" divides the sum by the root of their
    number. With several ``kinds`` the vectors lie side by side. Raises SettingError for another kind, or without any."""

    def __init__(self, kinds: Sequence[str] = ("mean",)):
        for kind in kinds or ("",):
            if kind not in POOLINGS:
                raise SettingError(f"the pooling {shortened(repr(kind), 40)} is not known; there are {', '.join(POOLINGS)}")
        self.kinds = tuple(kinds)

    def forward(self, x: Tensor, is_token: Tensor, counted: Tensor) -> Tensor:
        """x (batch, length, width) -> (batch, width * number of kinds). ``is_token`` and ``counted`` are those of
        ``SentenceModel``, as numbers."""
        number, places = tt.cumsum(counted, axis=1), tt.cumsum(is_token, axis=1)
        total = number[:, -1:]
        parts = []
        for kind in self.kinds:
            if kind == "max":
                parts.append(tt.where((counted > 0)[:, :, None], x, float("-inf")).max(1))
            else:
                weights = WEIGHTINGS[kind](counted, number, total, places)
                size = tt.sqrt(total) if kind == "mean_sqrt_len_tokens" else weights.sum(1, keepdims=True)
                parts.append(((weights / tt.maximum(size, 1e-9))[:, None] @ x)[:, 0])
        return parts[0] if len(parts) == 1 else tt.concatenate(parts, axis=1)


class Projection(Module):
    """A linear layer of a text's vector, and a function of what it gives."""

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
            raise SettingError(f"the function {shortened(repr(function), 40)} is not known; there are {known}")
        self.linear = Linear(width, new_width, bias)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width) -> (batch, new_width)."""
        return self.FUNCTIONS[self.function](self.linear(x))


class Normalize(Module):
    """Vectors of length 1, so that their products are cosines."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width) -> the same shape."""
        return x / tt.maximum(tt.sqrt((x * x).sum(-1, keepdims=True)), 1e-12)


class SentenceModel(Module):
    """An encoder, pooling, and the ``layers`` that follow: each a ``Projection`` or ``Normalize``.

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
        """Ids (batch, length) -> the vector of each text, (batch, width).

        ``mask`` (batch, length) is True for tokens, and False for padding, which follows them; without it all are tokens.
        ``counted`` is True for those that pooling counts; by default these are all tokens. ``segments`` are those of ``Bert``.
        """
        mask = tt.ones(ids.shape, dtype=bool) if mask is None else mask
        x = self.vectors(ids, mask, segments)
        for_pooling = mask if counted is None else counted
        pooled = self.pooling(x, mask.astype(x.dtype), for_pooling.astype(x.dtype))
        for layer in self.layers:
            pooled = layer(pooled)
        return pooled

    def vectors(self, ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        """The vector of each token, (batch, length, d_model). In a GPT no token sees the padding behind it."""
        if isinstance(self.encoder, Bert):
            return self.encoder(ids, segments, mask)
        return self.encoder.vectors(ids) if isinstance(self.encoder, GPT) else self.encoder(ids)
