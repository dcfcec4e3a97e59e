"""Multi-head attention (Vaswani et al. 2017, section 3.2.2) and its padding mask.

Every mask follows one convention: a boolean mask is True where a query may attend to a key; a floating-point mask is added to
the scores.

``MultiHeadAttention.forward`` takes one of three routes, which compute the same:

1. Fused: one op from the projected queries, keys and values to the mixed values. This is the route of training, and of
   evaluation without a cache.
2. In steps: split into heads, rotate, record the weights, attend, join the heads. It runs where the fused op cannot: with
   rotary positions, and while ``recording_attention`` keeps the weights for a picture.
3. With a cache, when decoding passes one. It works on arrays, and no gradient flows. The cache changes at each call, so
   ``tt.trace`` writes down opaque steps: usually one, ``_attend_with_cache``. Like the route in steps, it can rotate, and keep
   the weights for a picture. Plain self-attention is two steps: the cache makes room, and ``cached_attention`` computes. The
   second needs nothing but arrays, so compiled kernels can join it with the steps around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tinytensor as tt
from tinyformer.errors import SettingError
from tinyformer.models.caches import KeyValueCache
from tinyformer.models.positions import RotaryPositions
from tinytensor import Tensor, multi_head_attention, scaled_dot_product_attention
from tinytensor.calling import wrap
from tinytensor.functional.attention import attention_of_arrays, cached_attention, masked_softmax
from tinytensor.kernels.heads import join_heads, queries_keys_values
from tinytensor.nn import Dropout, Linear, Module


def padding_mask(ids: Tensor, pad: int) -> Tensor:
    """The mask (batch, 1, 1, length) for ``ids`` (batch, length): every query may see every token that is not ``pad``."""
    return (ids != pad).reshape(ids.shape[0], 1, 1, ids.shape[1])


def check_heads(num_heads: int, d_model: int) -> None:
    """Raise SettingError unless the number of heads divides the width."""
    if num_heads < 1 or d_model % num_heads:
        message = f"num_heads={num_heads} does not divide d_model={d_model}: choose a number that does"
        raise SettingError(message, "num_heads", "d_model")


class RecordsAttention(Module):
    """The base of attention layers: ``recording_attention`` makes them keep their weights."""

    def __init__(self) -> None:
        self._recorded: list[Tensor] | None = None

    def record(self, weights: Tensor) -> None:
        """Keep the weights (batch, heads, queries, keys) of a call, if they are being recorded."""
        if self._recorded is not None:
            self._recorded.append(weights)


class MultiHeadAttention(RecordsAttention):
    """Each position attends to others through ``num_heads`` heads. Each head has d_model / num_heads dimensions.

    With ``cross``, the queries come from x, and the keys and values from ``memory``. ``dropout`` acts on the attention weights.
    Raises SettingError if num_heads does not divide d_model.
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
        super().__init__()
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

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        memory: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """x (batch, length, d_model) -> the same shape. With ``cross``, x attends to memory (batch, memory length, d_model).

        ``mask`` broadcasts to (batch, heads, length, keys). With a ``cache``, x holds only the new tokens, and ``is_causal``
        takes them to be the last ones. The cache of a cross-attention holds the keys and values of the memory after the first
        call, which then needs no ``memory``. Raises ValueError if a cross-attention has neither memory nor a filled cache.
        """
        projected = self.query(x) if self.cross else self.query_key_value(x)
        key_value = self._project_memory(memory, cache) if self.cross else None
        dropout_p = self.dropout.p if self.training else 0.0
        if cache is not None and self._is_plain(mask, dropout_p):
            batch, length, d_model = x.shape
            stored = _reserve(cache, (batch, self.num_heads, length, d_model // self.num_heads), projected.dtype)
            mixed = _attend_to_stored(projected, stored, self.num_heads, is_causal)
        elif cache is not None:
            mixed = _attend_with_cache(projected, key_value, mask, is_causal, dropout_p, self, cache)
        elif self.rotary is None and self._recorded is None:
            mixed = multi_head_attention(projected, self.num_heads, key_value, mask, is_causal, dropout_p)
        else:
            query, key, value = queries_keys_values(projected, key_value, self.num_heads)
            if self.rotary is not None:
                query, key = self.rotary.rotate(query), self.rotary.rotate(key)
            if self._recorded is not None:
                self.record(attention_weights(query, key, mask, is_causal))
            mixed = join_heads(scaled_dot_product_attention(query, key, value, mask, is_causal, dropout_p))
        return self.output(mixed)

    def _is_plain(self, mask: Tensor | None, dropout_p: float) -> bool:
        """Whether this is self-attention with nothing added to it, which ``cached_attention`` computes."""
        return not self.cross and mask is None and not dropout_p and self.rotary is None and self._recorded is None

    def _project_memory(self, memory: Tensor | None, cache: KeyValueCache | None) -> Tensor | None:
        """The memory's keys and values in one tensor, (batch, memory length, 2 * d_model); None if the cache has them."""
        if cache is not None and cache.length:
            return None
        if memory is None:
            raise ValueError("cross-attention needs a memory to attend to")
        return self.key_value(memory)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}" + (", cross=True" if self.cross else "")


@tt.opaque
def _reserve(cache: KeyValueCache, shape: tuple[int, ...], dtype: Any) -> Any:
    """Room for the keys and values of new tokens, behind those of all tokens before: see ``KeyValueCache.reserve``."""
    return cache.reserve(shape, dtype)


_attend_to_stored = tt.opaque(cached_attention)


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
    """Add the new keys and values to the cache, and let the new queries of ``layer`` attend to everything in it.

    ``key_value`` is None for a cross-attention whose cache is filled already: then nothing is added.
    """
    query, key, value = queries_keys_values(projected, key_value, layer.num_heads, layer.cross)
    if layer.rotary is not None:
        query, key = [layer.rotary.rotate(wrap(x), cache.length).data for x in (query, key)]
    keys, values = cache.read() if key is None else cache.append(key, value)
    if layer._recorded is not None:
        seen = None if mask is None else wrap(mask)
        layer.record(attention_weights(wrap(query), wrap(keys), seen, is_causal))
    return join_heads(attention_of_arrays(query, keys, values, mask, is_causal, dropout_p))


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """The attention weights (batch, heads, length, keys): how much of each value goes into the result of each query."""
    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5)
    return masked_softmax(scores, mask, is_causal)


_recordings: list[Any] = []  # one for each ``with recording_attention`` that is running, of any thread


@contextmanager
def recording_attention(model: Module) -> Iterator[dict[str, list[Tensor]]]:
    """A context that records the attention weights (batch, heads, queries, keys) of every call, in one list for each
    attention layer of the model.

    The dict that it yields has the names of the layers as keys. No gradients are recorded inside the context.
    """
    layers = {name: m for name, m in model.named_modules() if isinstance(m, RecordsAttention)}
    recorded: dict[str, list[Tensor]] = {name: [] for name in layers}
    try:
        _recordings.append(recorded)
        for name, layer in layers.items():
            layer._recorded = recorded[name]
        with tt.no_grad():
            yield recorded
    finally:
        _recordings.pop()
        for layer in layers.values():
            layer._recorded = None


def is_recording_attention() -> bool:
    """Whether any ``recording_attention`` is running. A function that was traced before it would record nothing."""
    return bool(_recordings)
