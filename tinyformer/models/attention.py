"""Multi-head attention (Vaswani et al. 2017, section 3.2.2), its masks, and the cache that makes decoding fast.

One convention everywhere: a mask is boolean, and True = may attend; or it is floating-point, and is added to the scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tinytensor as tt
from tinyformer.errors import SettingError
from tinyformer.models.caches import KeyValueCache
from tinyformer.models.positions import RotaryPositions
from tinytensor import Tensor, kernels, multi_head_attention, scaled_dot_product_attention
from tinytensor.calling import wrap
from tinytensor.functional.attention import attention_of_arrays, join_heads, queries_keys_values, softmax_of_seen
from tinytensor.nn import Dropout, Linear, Module


def padding_mask(ids: Tensor, pad: int) -> Tensor:
    """The mask (batch, 1, 1, length) that lets every query see the tokens of ``ids`` (batch, length) that are not ``pad``."""
    return (ids != pad).reshape(ids.shape[0], 1, 1, ids.shape[1])


def check_heads(num_heads: int, d_model: int) -> None:
    """Raise SettingError unless so many heads share the width evenly."""
    if num_heads < 1 or d_model % num_heads:
        message = f"num_heads={num_heads} does not divide d_model={d_model}: choose heads that do"
        raise SettingError(message, "num_heads", "d_model")


class MultiHeadAttention(Module):
    """Every position looks at others through ``num_heads`` attentions, each over d_model / num_heads dimensions.

    With ``cross``, queries come from x, keys and values from ``memory``. ``dropout`` acts on the attention weights. Raises
    SettingError where the heads do not divide the width.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        cross: bool = False,
        rotary: RotaryPositions | None = None,
    ):
        check_heads(num_heads, d_model)
        self.num_heads = num_heads
        self.rotary = rotary
        self.cross = cross
        if cross:
            self.query = Linear(d_model, d_model, bias)
            self.key_value = Linear(d_model, 2 * d_model, bias)
        else:
            self.query_key_value = Linear(d_model, 3 * d_model, bias)
        self.output = Linear(d_model, d_model, bias)
        self.dropout = Dropout(dropout)
        self._recorded: list[Tensor] | None = None

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        memory: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """x (batch, length, d_model) -> the same; with ``cross``, over memory (batch, memory length, d_model).

        ``mask`` broadcasts to (batch, heads, length, keys). With a ``cache``, x holds only the tokens that are new, and
        ``is_causal`` counts from the end; a cross-attention's cache holds the memory's keys and values after the first call.
        """
        projected = self.query(x) if self.cross else self.query_key_value(x)
        key_value = self._of_memory(memory, cache) if self.cross else None
        dropout_p = self.dropout.p if self.training else 0.0
        if cache is not None:
            mixed = _attend_with_cache(projected, key_value, mask, is_causal, dropout_p, self, cache)
        elif self.rotary is None and self._recorded is None:
            mixed = multi_head_attention(projected, self.num_heads, key_value, mask, is_causal, dropout_p)
        else:
            query, key, value = queries_keys_values(projected, key_value, self.num_heads)
            if self.rotary is not None:
                query, key = self.rotary.rotate(query), self.rotary.rotate(key)
            if self._recorded is not None:
                self._recorded.append(attention_weights(query, key, mask, is_causal))
            mixed = join_heads(scaled_dot_product_attention(query, key, value, mask, is_causal, dropout_p))
        return self.output(mixed)

    def _of_memory(self, memory: Tensor | None, cache: KeyValueCache | None) -> Tensor | None:
        """The memory's keys and values beside each other; None where the cache has them."""
        if cache is not None and cache.length:
            return None
        if memory is None:
            raise ValueError("cross-attention needs a memory to look at")
        return self.key_value(memory)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}" + (", cross=True" if self.cross else "")


@tt.opaque
def _attend_with_cache(
    projected: Any,
    key_value: Any,
    mask: Any,
    is_causal: bool,
    dropout_p: float,
    layer: MultiHeadAttention,
    cache: KeyValueCache,
) -> Any:
    """``layer``'s attention to all that the cache holds, with what is added to it: nothing, where a cross-attention has no new
    keys and values."""
    query, key, value = kernels.queries_keys_values(projected, key_value, layer.num_heads, layer.cross)
    if layer.rotary is not None:
        query, key = [layer.rotary.rotate(wrap(x), cache.length).data for x in (query, key)]
    keys, values = cache.read() if key is None else cache.append(key, value)
    if layer._recorded is not None:
        seen = None if mask is None else wrap(mask)
        layer._recorded.append(attention_weights(wrap(query), wrap(keys), seen, is_causal))
    return kernels.join_heads(attention_of_arrays(query, keys, values, mask, is_causal, dropout_p))


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """How much each query looks at each key, (batch, heads, length, keys): what attention mixes the values with."""
    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5)
    return softmax_of_seen(scores, mask, is_causal)


@contextmanager
def recording_attention(model: Module) -> Iterator[dict[str, list[Tensor]]]:
    """A context that records the attention weights of every call of every attention in the model, by the layer's name."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, MultiHeadAttention)}
    recorded: dict[str, list[Tensor]] = {name: [] for name in layers}
    try:
        for name, layer in layers.items():
            layer._recorded = recorded[name]
        with tt.no_grad():
            yield recorded
    finally:
        for layer in layers.values():
            layer._recorded = None
