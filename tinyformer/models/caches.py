"""Caches for decoding: they keep the keys and values of earlier tokens, so that each is computed once."""

from __future__ import annotations

from typing import Any

import tinytensor as tt
from tinytensor.common.wording import counted
from tinytensor.device.backend import host, xp


class KeyValueCache:
    """The keys and values of one attention layer for all tokens so far.

    Memory for ``capacity`` tokens is allocated once, by the first token. ``append`` takes and returns arrays of the backend,
    not tensors, because no gradient flows through a cache.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.length = 0
        self._stored: Any = None

    def append(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Add the keys and values (batch, heads, new tokens, d_head) of new tokens. Return those of all tokens so far.

        Raises ValueError if the cache has no room for them, or if the batch has another size than before.
        """
        start = self.length
        keys, values = self.reserve(key.shape, key.dtype)
        keys[:, :, start:] = key
        values[:, :, start:] = value
        return keys, values

    def reserve(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Make room for keys and values of this ``shape``, (batch, heads, new tokens, d_head). Return those of all tokens so
        far, (2, batch, heads, length, d_head). The caller writes the new ones to the last places.

        Raises ValueError as ``append`` does.
        """
        batch, heads, new, width = shape
        end = self.length + new
        if end > self.capacity:
            raise ValueError(f"a cache for {counted(self.capacity, 'token')} cannot hold {end}")
        if self._stored is None:
            self._stored = xp.zeros((2, batch, heads, self.capacity, width), dtype)
        if batch != self._stored.shape[1]:  # otherwise a batch of one row would be broadcast to all rows
            raise ValueError(
                f"a cache of {counted(self._stored.shape[1], 'text')} got keys of {batch}: it needs a new one for other texts"
            )
        self.length = end
        return self._stored[:, :, :, :end]

    def read(self) -> Any:
        """The keys and values of all tokens so far: (2, batch, heads, length, d_head)."""
        assert self._stored is not None, "nothing was appended to this cache"
        return self._stored[:, :, :, : self.length]

    def select(self, rows: Any, shared: int = 0) -> None:
        """Keep these rows of the batch, in this order. A row may occur several times, as beam search needs.

        ``shared``: so many first tokens are the same in each row as in the row that had its place, and need not be moved.
        """
        if self._stored is None:
            return
        old, rows, places = self.read(), host.asarray(rows), host.arange(len(rows))
        if len(rows) == old.shape[1]:
            places = places[rows != places]
        else:
            self._stored, shared = xp.zeros((2, len(rows), *self._stored.shape[2:]), old.dtype), 0
        sources, places = tt.tensor(rows[places]).data, tt.tensor(places).data
        for before, after in zip(old[:, :, :, shared:], self.read()[:, :, :, shared:]):  # keys, and values
            after[places] = before[sources]


class BlockCache:
    """The caches of one block. The cache of its cross-attention is filled once, by the first call."""

    def __init__(self, capacity: int, memory_length: int = 0):
        self.self_attention = KeyValueCache(capacity)
        self.cross_attention = KeyValueCache(memory_length)


class Cache:
    """The caches of all blocks of a model, for up to ``capacity`` tokens."""

    def __init__(self, num_blocks: int, capacity: int, memory_length: int = 0):
        self.blocks = [BlockCache(capacity, memory_length) for _ in range(num_blocks)]
        self.capacity = capacity

    @property
    def length(self) -> int:
        """The number of tokens that the cache holds."""
        return self.blocks[0].self_attention.length

    def keep(self, count: int) -> None:
        """Keep the first ``count`` tokens of what it holds, and forget those after them."""
        for block in self.blocks:
            block.self_attention.length = count

    def select(self, rows: Any, shared: int = 0, of_memory: Any = None) -> None:
        """Keep these rows of the batch, in this order. ``KeyValueCache.select`` explains ``shared``. Of the memory, keep these
        rows ``of_memory``; None: the same."""
        for block in self.blocks:
            block.self_attention.select(rows, shared)
            block.cross_attention.select(rows if of_memory is None else of_memory)
