"""Programs with caches as graphs. A graph has no memory. Keys and values of earlier tokens are therefore inputs, and those of
all tokens are outputs for the next run. The first run has 0 earlier tokens."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tinyformer.export.attention import attend, both, causal_mask, join_heads, split_heads
from tinyformer.export.graph import BOOL, FLOAT, INT, Graph, Value
from tinyformer.export.operators import OPERATORS
from tinyformer.export.program import Operators, Writer
from tinyformer.models import attention, positions
from tinytensor.functional.attention import cached_attention, memory_attention
from tinytensor.nn import Module
from tinytensor.replay.recording import Recording, Size

_RESERVE, _READ = inspect.unwrap(attention._reserve), inspect.unwrap(attention._read)
KeysValues = tuple[Value, Value]  # each (batch, heads, number of keys, d_head)


class Stored:
    """Cached keys and values: the earlier ones, if any, and all including the new ones."""

    dtype = ""
    shape: tuple[Any, ...] = ()  # (2, batch, heads, keys, d_head), as for a value

    def __init__(self, name: str, before: KeysValues | None):
        self.name, self.before = name, before
        self.now: KeysValues | None = None


class CachedWriter(Writer):
    """Writes the program of a model with caches.

    ``limit`` is the number of positions in a table. ``endings`` follow a block's number in the names of self-attention and
    memory keys and values. If ``past`` is None, there are no earlier tokens.
    """

    padding: Value | None = None  # mask of keys, (batch, 1, 1, keys)

    def __init__(self, recording: Recording, model: Module, limit: int, endings: tuple[str, str] = ("", ""), past: bool = True):
        super().__init__(recording, CACHED)
        self.limit = limit
        self.names = {id(weight): name for name, weight in model.named_parameters()}
        self._endings, self._has_past = endings, past
        self._stored: list[Stored] = []
        self._next: Iterator[Stored] = iter(self._stored)

    def declare_mask_and_positions(self) -> None:
        """Add the inputs ``attention_mask`` (batch, total_length; 0 for padding) and ``position_ids`` (batch, length)."""
        num_keys = "total_length" if self._has_past else "length"
        mask = self.graph.input("attention_mask", INT, "batch_size", num_keys)
        self.padding = mask.astype(BOOL).unsqueeze(1, 2)
        self.positions = self.graph.input("position_ids", INT, "batch_size", "length")

    def count_positions(self) -> None:
        """Number the new tokens' positions after the earlier tokens, for all rows of the batch: (1, length)."""
        past = Size(0, (("past_length", 1),))
        self.positions = self.range(past, Size(0, (("length", 1), ("past_length", 1)))).unsqueeze(0)

    def declare_past(self) -> None:
        """Add inputs for all keys and values: ``past_key_values.NAME.key`` and ``.value``."""
        counts: Counter[int] = Counter()
        for call in self.recording.calls:
            if call.op not in (_RESERVE, _READ):
                continue
            index = int(call.op is _READ)
            name = f"{counts[index]}{self._endings[index]}"
            counts[index] += 1
            _, _, heads, keys, d_head = self.recording.kinds[call.result].shape
            length = str(keys) if call.op is _READ else "past_length"
            pair = None
            if self._has_past:
                ports = [f"past_key_values.{name}.{part}" for part in ("key", "value")]
                key, value = [self.graph.input(port, FLOAT, "batch_size", heads, length, d_head) for port in ports]
                self.sizes.setdefault(length, key.length(2))
                pair = key, value
            self._stored.append(Stored(name, pair))

    def stored(self) -> Stored:
        """Return the content of the next cache."""
        return next(self._next)

    def write(self) -> Graph:
        """Return the graph, with all keys and values as outputs."""
        super().write()
        for stored in self._stored if self._has_past else ():
            for part, value in zip(("key", "value"), stored.now or ()):
                sizes = "batch_size", stored.shape[2], "total_length", stored.shape[4]
                self.graph.output(f"present.{stored.name}.{part}", value, FLOAT, *sizes)
        return self.graph

    def rows_of(self, table: Any) -> Value:
        """Return the table rows at the positions, (batch, length, width)."""
        name = self.names.get(id(table))
        array = table.numpy() if name else table.numpy()[: self.limit]
        return (self.graph.weight(name, array, FLOAT) if name else self.graph.constant(array)).take(self.positions)


def _cached_attention(write: CachedWriter, projected: Value, stored: Stored, num_heads: int, is_causal: bool) -> Value:
    """Append the new keys and values to the cached ones, and attend."""
    _, _, shared, keys, d_head = stored.shape
    query, key, value = split_heads(write, projected, [num_heads, shared, shared], d_head)
    if stored.before is not None:
        key, value = [write.graph.concatenate([*pair], axis=2) for pair in zip(stored.before, (key, value))]
    stored.now = key, value
    mask = causal_mask(write, projected.shape[1], keys) if is_causal else None
    key, value = [_for_each_query(x, shared, num_heads, d_head) for x in (key, value)]
    return join_heads(attend(write, query, key, value, both(write, mask, write.padding), d_head**-0.5))


def _for_each_query(x: Value, shared: int, num_heads: int, d_head: int) -> Value:
    """Repeat keys or values (batch, shared, keys, d_head) for all query heads."""
    if shared == num_heads:
        return x
    groups = x.graph.node("Expand", x.unsqueeze(2), [1, 1, num_heads // shared, 1, 1])
    return groups.reshape(0, num_heads, -1, d_head)


def _memory_attention(write: CachedWriter, projected: Value, stored: Stored, mask: Value | None, num_heads: int) -> Value:
    d_head = stored.shape[4]
    (query,) = split_heads(write, projected, [num_heads], d_head)
    assert stored.before is not None
    return join_heads(attend(write, query, *stored.before, mask, d_head**-0.5))


def _later_positions(write: CachedWriter, layer: Any, cache: Any, count: Size) -> Value:
    return write.rows_of(layer.table_for(write.limit))


def _later_rotation(write: CachedWriter, rotary: Any, length: Size, dtype: Any, cache: Any) -> Value:
    return write.once(rotary, lambda: write.rows_of(rotary.table_for(write.limit, dtype)).unsqueeze(1))


CACHED: Operators = {
    **OPERATORS,
    _RESERVE: lambda write, cache, shape, dtype: write.stored(),
    _READ: lambda write, cache: write.stored(),
    cached_attention: _cached_attention,
    memory_attention: _memory_attention,
    inspect.unwrap(positions._later_positions): _later_positions,
    inspect.unwrap(positions._later_rotation): _later_rotation,
}
