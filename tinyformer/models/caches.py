"""The keys and values of the tokens so far, kept so that decoding computes each once."""

from __future__ import annotations

from typing import Any

import tinytensor as tt
from tinytensor.backend import xp


class KeyValueCache:
    """The keys and values of one attention layer for the tokens so far, in memory that is set aside once.

    ``append`` adds those of new tokens and returns all. Holds arrays, not tensors: no gradient flows through a cache.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.length = 0
        self._stored: tuple[Any, Any] | None = None

    def append(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Add keys and values (batch, heads, new, d_head); return those of all tokens so far.

        Raises ValueError where the capacity is exceeded, and for another batch than before.
        """
        end = self.length + key.shape[2]
        if end > self.capacity:
            raise ValueError(f"a cache for {self.capacity} tokens cannot hold {end}")
        if self._stored is None:
            batch, heads, _, width = key.shape
            shape = (batch, heads, self.capacity, width)
            self._stored = xp.zeros(shape, key.dtype), xp.zeros(shape, value.dtype)
        keys, values = self._stored
        if len(key) != len(keys):  # one row would be stored for all
            raise ValueError(f"a cache of {len(keys)} texts got keys of {len(key)}: it needs a new one for other texts")
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        self.length = end
        return self.read()

    def read(self) -> tuple[Any, Any]:
        """The keys and values of all tokens so far."""
        assert self._stored is not None, "nothing was appended to this cache"
        keys, values = self._stored
        return keys[:, :, : self.length], values[:, :, : self.length]

    def select(self, rows: Any) -> None:
        """Keep these rows of the batch, in this order, some perhaps several times: what beam search needs."""
        if self._stored is not None:
            index = tt.tensor(rows).data
            self._stored = self._stored[0][index], self._stored[1][index]


class BlockCache:
    """The caches of one block: of its self-attention, and of its cross-attention, which is filled once."""

    def __init__(self, capacity: int, memory_length: int = 0):
        self.self_attention = KeyValueCache(capacity)
        self.cross_attention = KeyValueCache(memory_length)


class Cache:
    """The caches of a model's blocks; ``length`` is how many tokens they hold."""

    def __init__(self, num_blocks: int, capacity: int, memory_length: int = 0):
        self.blocks = [BlockCache(capacity, memory_length) for _ in range(num_blocks)]
        self.capacity = capacity

    @property
    def length(self) -> int:
        """The number of tokens so far."""
        return self.blocks[0].self_attention.length

    def select(self, rows: object) -> None:
        """Keep these rows of the batch, in this order."""
        for block in self.blocks:
            block.self_attention.select(rows)
            block.cross_attention.select(rows)
