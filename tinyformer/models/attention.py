"""Multi-head attention (Vaswani et al. 2017, section 3.2.2) and its padding mask.

A boolean mask is True where a query may attend to a key. A floating-point mask is added to the scores.

``_attend`` computes the mixed values from the projections in one of three equivalent ways:

1. Fused: one op, for training and for evaluation without a cache.
2. Stepwise: split heads, attend, join heads. For grouped queries, and while hooks (``recording_attention``) read the weights.
3. Cached, for decoding: ``_attend_with_cache``.

First, one more op (``norm_and_rotate``) applies norms and rotary positions to the queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.models.positions import RotaryPositions
from tinytensor import Tensor, multi_head_attention, scaled_dot_product_attention
from tinytensor.autograd.tensor import wrap
from tinytensor.common.arguments import checked
from tinytensor.common.wording import counted
from tinytensor.device.backend import host, xp
from tinytensor.functional.attention import attention_of_arrays, cached_attention, masked_softmax, memory_attention
from tinytensor.kernels.attention import join_heads, queries_keys_values
from tinytensor.nn import Dropout, Linear, Module, RMSNorm
from tinytensor.nn.hooks import Hook, hooked, show


def padding_mask(ids: Tensor, pad: int) -> Tensor:
    """Return a mask (batch, 1, 1, length) that hides the tokens of ``ids`` (batch, length) that equal ``pad``."""
    return (ids != pad).reshape(ids.shape[0], 1, 1, ids.shape[1])


def head_sizes(d_model: int, num_heads: int, num_key_value_heads: int = 0, d_head: int = 0) -> tuple[int, int]:
    """Return the number of key-value heads (0: ``num_heads``) and the head width (0: d_model / num_heads). Raises SettingError
    if the sizes do not divide evenly."""
    if num_heads < 1 or (d_model % num_heads and not d_head):
        message = f"num_heads={num_heads} does not divide d_model={d_model}: choose a number that does"
        raise SettingError(message, "num_heads", "d_model")
    if num_key_value_heads and num_heads % num_key_value_heads:
        message = f"num_key_value_heads={num_key_value_heads} does not divide num_heads={num_heads}: choose a number that does"
        raise SettingError(message, "num_key_value_heads", "num_heads")
    return int(num_key_value_heads or num_heads), int(d_head or d_model // num_heads)


class RecordsAttention(Module):
    """Base class of attention layers. Hooks can read and replace the attention weights. In multi-head attention, "heads" hooks
    also see the mixed values before the output projection."""

    @property
    def is_recorded(self) -> bool:
        """True if a hook reads the attention weights."""
        return self._forward_hooks is not None and self._forward_hooks.look_at("weights")

    def record(self, weights: Tensor) -> Tensor:
        """Pass the attention weights (batch, heads, queries, keys) to the hooks. Return the weights, or a hook's
        replacement."""
        return show(self, "weights", weights)


class MultiHeadAttention(RecordsAttention):
    """Multi-head attention: softmax(Q K^T / sqrt(d_head)) V. Each of ``num_heads`` heads has d_model / num_heads dimensions.

    If ``cross`` is True, queries are computed from x, keys and values from ``memory``. ``dropout`` applies to the attention
    weights.

    The following settings apply to self-attention only:

    - ``rotary``: positions that rotate queries and keys.
    - ``num_key_value_heads``: number of key-value heads, each shared by neighboring query heads (grouped-query attention,
      Ainslie et al. 2023). 0: same as ``num_heads``.
    - ``d_head``: width of each head. 0: d_model / num_heads.
    - ``query_key_value_bias``: add biases to queries, keys and values even if ``bias`` is False.
    - ``query_key_norm_eps``: eps of the RMS norms on each head's queries and keys (Henry et al. 2020; Qwen3).

    Raises SettingError if num_heads does not divide d_model, or num_key_value_heads does not divide num_heads.

    >>> from tinyformer import MultiHeadAttention
    >>> attention = MultiHeadAttention(d_model=32, num_heads=4)
    >>> attention(tt.zeros((2, 5, 32)), is_causal=True).shape
    (2, 5, 32)
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        cross: bool = False,
        rotary: RotaryPositions | None = None,
        num_key_value_heads: int = 0,
        d_head: int = 0,
        query_key_value_bias: bool = False,
        query_key_norm_eps: float | None = None,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_key_value_heads, self.d_head = head_sizes(d_model, num_heads, num_key_value_heads, d_head)
        self.rotary = rotary
        self.cross = cross
        if cross:
            self.query = Linear(d_model, d_model, bias)
            self.key_value = Linear(d_model, 2 * d_model, bias)
        else:
            width = (num_heads + 2 * self.num_key_value_heads) * self.d_head
            self.query_key_value = Linear(d_model, width, bias or query_key_value_bias)
        self.query_norm = self.key_norm = None
        if query_key_norm_eps is not None:
            self.query_norm = RMSNorm(self.d_head, query_key_norm_eps)
            self.key_norm = RMSNorm(self.d_head, query_key_norm_eps)
        self.output = Linear(num_heads * self.d_head, d_model, bias)
        self.dropout = Dropout(dropout)

    @checked
    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        memory: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Map x (batch, length, d_model) to the same shape. If ``cross``, x attends to memory (batch, memory length, d_model).

        ``mask`` broadcasts to (batch, heads, length, keys). If a ``cache`` is passed, x holds only the new tokens, and
        ``is_causal`` treats them as the last ones. In cross-attention, the first call stores the projected memory in the cache.
        Later calls need no ``memory``. Raises ValueError without memory or a filled cache.
        """
        projected = self.query(x) if self.cross else self._norm_and_rotate(self.query_key_value(x), cache)
        key_value = self._project_memory(memory, cache) if self.cross else None
        return self.output(show(self, "heads", self._attend(projected, key_value, mask, is_causal, cache)))

    def _attend(
        self, projected: Tensor, key_value: Tensor | None, mask: Tensor | None, is_causal: bool, cache: KeyValueCache | None
    ) -> Tensor:
        """Return the concatenated mixed values of all heads: (batch, length, num_heads * d_head)."""
        dropout_p = self.dropout.p if self.training else 0.0
        if cache is not None:
            return _attend_with_cache(self, cache, projected, key_value, mask, is_causal, dropout_p)
        if self.num_key_value_heads == self.num_heads and not self.is_recorded:
            return multi_head_attention(projected, self.num_heads, key_value, mask, is_causal, dropout_p)
        query, key, value = self.heads(projected, key_value)
        key, value = self.for_each_query(key), self.for_each_query(value)
        replaced = self.record_weights(query, key, mask, is_causal)
        if replaced is not None:
            return join_heads(replaced @ value)
        return join_heads(scaled_dot_product_attention(query, key, value, mask, is_causal, dropout_p))

    def record_weights(self, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        """Pass the attention weights to the hooks, if any. Return a hook's replacement, or None."""
        if not self.is_recorded:
            return None
        weights = attention_weights(query, key, mask, is_causal)
        replaced = self.record(weights)
        return None if replaced is weights else replaced

    def _norm_and_rotate(self, projected: Tensor, cache: KeyValueCache | None) -> Tensor:
        """Apply norms and rotary positions to the projected queries and keys, if the layer uses them."""
        if self.rotary is None and self.query_norm is None:
            return projected
        rotation = None if self.rotary is None else self.rotary.rotation(projected.shape[1], projected.dtype, cache)
        heads = self.num_heads, self.num_key_value_heads
        if self.query_norm is None or self.key_norm is None:
            return tt.norm_and_rotate(projected, *heads, rotation=rotation)
        weights = self.query_norm.weight, self.key_norm.weight
        return tt.norm_and_rotate(projected, *heads, *weights, self.query_norm.eps, rotation)

    def heads(self, projected: Tensor, key_value: Tensor | None) -> tuple[Any, Any, Any]:
        """Return queries (batch, num_heads, length, d_head), keys and values (both (batch, num_key_value_heads, keys, d_head)).
        Keys and values are None for cross-attention without ``key_value``."""
        if self.num_key_value_heads == self.num_heads:
            return queries_keys_values(projected, key_value, self.num_heads, self.cross)
        batch, length, _ = projected.shape
        packed = projected.reshape(batch, length, -1, self.d_head).swapaxes(1, 2)  # (batch, all heads, length, d_head)
        ends = self.num_heads, self.num_heads + self.num_key_value_heads
        return packed[:, : ends[0]], packed[:, ends[0] : ends[1]], packed[:, ends[1] :]

    def for_each_query(self, x: Tensor) -> Tensor:
        """Repeat keys or values (batch, num_key_value_heads, keys, d_head) for all query heads."""
        if self.num_key_value_heads == self.num_heads:
            return x
        batch, heads, keys, width = x.shape
        groups = tt.broadcast_to(x[:, :, None], (batch, heads, self.num_heads // heads, keys, width))
        return groups.reshape(batch, self.num_heads, keys, width)

    def _project_memory(self, memory: Tensor | None, cache: KeyValueCache | None) -> Tensor | None:
        """Return the projected memory, keys and values in one tensor (batch, memory length, 2 * d_model). Return None if it is
        already cached."""
        if cache is not None and cache.length:
            return None
        if memory is None:
            raise ValueError("cross-attention needs a memory to attend to")
        return self.key_value(memory)

    def extra_repr(self) -> str:
        key_value_heads = f", num_key_value_heads={self.num_key_value_heads}"
        grouped = key_value_heads if self.num_key_value_heads < self.num_heads else ""
        return f"num_heads={self.num_heads}" + grouped + (", cross=True" if self.cross else "")


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Return the attention weights (batch, heads, length, keys): softmax(Q K^T / sqrt(d_head))."""
    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5)
    return masked_softmax(scores, mask, is_causal)


@contextmanager
def recording_attention(
    model: Module, keep: Callable[[Tensor], Tensor] = lambda weights: weights
) -> Iterator[dict[str, list[Tensor]]]:
    """Context manager that records the attention weights (batch, heads, queries, keys) of every call, without gradients.

    Yields a dict that maps each attention layer to a list of weights. To save memory, pass ``keep`` to reduce the weights of
    each call, for example to their mean over heads.
    """
    layers = {name: m for name, m in model.named_modules() if isinstance(m, RecordsAttention)}
    recorded: dict[str, list[Tensor]] = {name: [] for name in layers}

    def keep_in(kept: list[Tensor]) -> Hook:
        return lambda layer, inputs, weights: kept.append(keep(weights))

    with hooked([(layer, "weights", keep_in(recorded[name])) for name, layer in layers.items()]), tt.no_grad():
        yield recorded


# ---------------------------------------------------------------------------------------------------------------- with a cache

# Queries of new tokens attend to the cached keys and values of all tokens so far. This code works on arrays; no gradient flows.
# The cache changes at each call, so ``tt.trace`` records opaque steps. Plain self-attention takes two: reserve room in the
# cache, then compute ``cached_attention``. Cached cross-attention also takes two: read the memory, then compute
# ``memory_attention``. The compute step needs only arrays, so compiled kernels can fuse it with neighboring steps. Any other
# case, such as recording weights, is one step.


class KeyValueCache:
    """Cached keys and values of one attention layer for all tokens so far.

    The first token allocates memory for ``capacity`` tokens. ``append`` takes and returns backend arrays, not tensors, because
    no gradient flows through a cache.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.length = 0
        self._stored: Any = None

    def append(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Append keys and values (batch, heads, new tokens, d_head). Return the keys and values of all tokens so far.

        Raises ValueError if they do not fit or if the batch size has changed.
        """
        start = self.length
        keys, values = self.reserve(key.shape, key.dtype)
        keys[:, :, start:] = key
        values[:, :, start:] = value
        return keys, values

    def reserve(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Reserve room for keys and values of this ``shape``, (batch, heads, new tokens, d_head). Return the array for all
        tokens so far, (2, batch, heads, length, d_head). The caller writes the new values at the end. Raises ValueError as
        ``append`` does."""
        batch, heads, new, width = shape
        end = self.length + new
        if end > self.capacity:
            raise ValueError(f"a cache for {counted(self.capacity, 'token')} cannot hold {end}: make a longer cache")
        if self._stored is None:
            self._stored = xp.zeros((2, batch, heads, self.capacity, width), dtype)
        if batch != self._stored.shape[1]:  # otherwise a batch of one row would broadcast
            raise ValueError(
                f"this cache holds a batch of {self._stored.shape[1]}, got keys for a batch of {batch}: make a new cache"
            )
        self.length = end
        return self._stored[:, :, :, :end]

    def read(self) -> Any:
        """Return the cached keys and values: (2, batch, heads, length, d_head)."""
        assert self._stored is not None, "nothing was appended to this cache"
        return self._stored[:, :, :, : self.length]

    def select(self, rows: Any, shared: int = 0) -> None:
        """Keep these rows of the batch, in this order. A row may be repeated, as in beam search. The first ``shared`` tokens of
        each row are not copied, because they equal the replaced row's tokens."""
        if self._stored is None:
            return
        old, rows, targets = self.read(), host.asarray(rows), host.arange(len(rows))
        if len(rows) == old.shape[1]:
            targets = targets[rows != targets]
        else:
            self._stored, shared = xp.zeros((2, len(rows), *self._stored.shape[2:]), old.dtype), 0
        sources, targets = tt.tensor(rows[targets]).data, tt.tensor(targets).data
        for before, after in zip(old[:, :, :, shared:], self.read()[:, :, :, shared:]):  # keys, and values
            after[targets] = before[sources]


def _attend_with_cache(
    layer: MultiHeadAttention,
    cache: KeyValueCache,
    projected: Tensor,
    key_value: Tensor | None,
    mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
) -> Tensor:
    """Return the mixed values (batch, length, num_heads * d_head) of new tokens. ``key_value`` is None for self-attention and
    for cross-attention with a filled cache."""
    if layer.cross and key_value is None and not dropout_p and not layer.is_recorded:
        return _attend_to_memory(projected, _read(cache), mask, layer.num_heads)
    if layer.cross or mask is not None or dropout_p or layer.is_recorded:
        return _attend_to_cache(projected, key_value, mask, is_causal, dropout_p, layer, cache)
    batch, length, _ = projected.shape
    stored = _reserve(cache, (batch, layer.num_key_value_heads, length, layer.d_head), projected.dtype)
    return _attend_to_stored(projected, stored, layer.num_heads, is_causal)


@tt.opaque
def _reserve(cache: KeyValueCache, shape: tuple[int, ...], dtype: Any) -> Any:
    """Reserve room for new keys and values. See ``KeyValueCache.reserve``."""
    return cache.reserve(shape, dtype)


@tt.opaque
def _read(cache: KeyValueCache) -> Any:
    """Return the cached keys and values."""
    return cache.read()


_attend_to_stored = tt.opaque(cached_attention)
_attend_to_memory = tt.opaque(memory_attention)


@tt.opaque
def _attend_to_cache(
    projected: Any,
    key_value: Any,
    mask: Any,
    is_causal: bool,
    dropout_p: float,
    layer: MultiHeadAttention,
    cache: KeyValueCache,
) -> Any:
    """Append the new keys and values to the cache. The new queries attend to all cached keys.

    ``key_value`` is None for cross-attention with a filled cache. In that case, each cache row may serve several consecutive
    batch rows.
    """
    memory = None if key_value is None else wrap(key_value)
    query, key, value = layer.heads(wrap(projected), memory)
    keys, values = cache.read() if key is None else cache.append(key.data, value.data)
    if len(keys) != len(projected):
        each = len(projected) // len(keys)
        keys, values, mask = [None if x is None else xp.repeat(x, each, axis=0) for x in (keys, values, mask)]
    if layer.is_recorded:
        wrapped = None if mask is None else wrap(mask)
        replaced = layer.record_weights(query, layer.for_each_query(wrap(keys)), wrapped, is_causal)
        if replaced is not None:
            return join_heads((replaced @ layer.for_each_query(wrap(values))).data)
    batch, num_heads, length, d_head = query.shape
    if length == 1 and mask is None:
        # Instead of repeating keys and values, treat the query heads that share them as several queries of one head.
        shared = query.data.reshape(batch, layer.num_key_value_heads, -1, d_head)
        mixed = attention_of_arrays(shared, keys, values, None, False, dropout_p)
        return join_heads(mixed.reshape(batch, num_heads, 1, d_head))
    keys, values = layer.for_each_query(wrap(keys)).data, layer.for_each_query(wrap(values)).data
    return join_heads(attention_of_arrays(query.data, keys, values, mask, is_causal, dropout_p))
