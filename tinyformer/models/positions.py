"""How a Transformer knows the position of each token: sinusoidal, learned, or rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tinytensor as tt
from tinyformer.errors import SettingError
from tinytensor import Tensor
from tinytensor.backend import host
from tinytensor.nn import Embedding, Module

if TYPE_CHECKING:
    from tinyformer.models.caches import Cache


KINDS = ("learned", "sinusoidal", "rotary")


def sinusoidal(length: int, d_model: int) -> Tensor:
    """The table of sinusoidal positions (Vaswani et al. 2017, section 3.5): (length, d_model), float32.

    Dimension 2i of position p is sin(p / 10000^(2i/d_model)). Dimension 2i+1 is the cosine of the same angle.
    """
    even = host.arange(0, d_model, 2)
    angles = host.arange(length)[:, None] / 10000.0 ** (even / d_model)
    table = host.zeros((length, d_model), dtype=host.float32)
    table[:, 0::2] = host.sin(angles)
    table[:, 1::2] = host.cos(angles[:, : d_model // 2])
    return tt.tensor(table)


class SinusoidalPositions(Module):
    """``sinusoidal`` as a module. It keeps the table, and makes a longer one when a longer text comes."""

    def __init__(self, d_model: int):
        self.d_model = d_model
        self.table = sinusoidal(0, d_model)

    def forward(self, length: int, start: int = 0) -> Tensor:
        """The positions start to start + length - 1: (length, d_model)."""
        return self.table_for(start + length)[start : start + length]

    def table_for(self, length: int) -> Tensor:
        """The table, with at least ``length`` positions."""
        table = self.table
        if length > table.shape[0]:
            table = sinusoidal(max(length, 2 * len(table)), self.d_model).astype(table.dtype)
            self.table = table  # another thread may replace it at any time, so this one returns its own
        return table


class LearnedPositions(Embedding):
    """A learned vector for each of ``num_embeddings`` positions (Gehring et al. 2017; GPT, BERT)."""

    def forward(self, length: int, start: int = 0) -> Tensor:  # type: ignore[override]
        """The positions start to start + length - 1: (length, d_model). Raises ValueError past the last."""
        return self.table_for(start + length)[start : start + length]

    def table_for(self, length: int) -> Tensor:
        """The table, with at least ``length`` positions. Raises ValueError if it has fewer."""
        if length > self.weight.shape[0]:
            raise ValueError(f"there are {len(self.weight)} learned positions: {length} tokens are too many, crop them")
        return self.weight


def add_positions(x: Tensor, positions: Any, cache: Cache | None = None) -> Tensor:
    """Add to x (batch, length, d_model) its positions. They start at 0, or with a cache after the tokens that it holds."""
    return x + (positions(x.shape[1]) if cache is None else _later_positions(positions, cache, x.shape[1]))


@tt.opaque
def _later_positions(positions: Any, cache: Cache, count: int) -> Any:
    stop = cache.length + count
    return positions.table_for(stop).data[cache.length : stop]


def check_absolute(kind: str) -> None:
    """Raise SettingError unless ``kind`` names positions that are added to the embeddings."""
    if kind not in ("sinusoidal", "learned"):
        raise SettingError(f"positions must be sinusoidal or learned, not {kind!r}")


def absolute_positions(kind: str, max_length: int, d_model: int) -> SinusoidalPositions | LearnedPositions:
    """A module of positions that are added to the embeddings: "sinusoidal" ones, or ``max_length`` "learned" ones."""
    return LearnedPositions(max_length, d_model) if kind == "learned" else SinusoidalPositions(d_model)


class RotaryPositions:
    """Rotary positions (Su et al. 2021, equation 34): queries and keys are rotated by angles proportional to their position, so
    that their dot product depends only on their distance. Dimension i is rotated together with dimension i + d_head/2.

    Raises ValueError if ``d_head`` is odd.
    """

    def __init__(self, d_head: int, base: float = 10000.0):
        if d_head % 2:
            raise ValueError(f"rotary positions need an even number of dimensions a head, not {d_head}")
        self.frequencies = base ** (-host.arange(0, d_head, 2) / d_head)
        self._tables: tuple[Tensor, Tensor] | None = None

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        """x (..., length, d_head), rotated by its positions: start to start + length - 1."""
        cosine, sine = self._angles(start + x.shape[-2], x.dtype)
        rows = slice(start, start + x.shape[-2])
        return tt.rotate_pairs(x, cosine[rows], sine[rows])

    def _angles(self, length: int, dtype: Any) -> tuple[Tensor, Tensor]:
        tables = self._tables
        if tables is None or len(tables[0]) < length or tables[0].dtype != dtype:
            longest = length if tables is None else max(length, 2 * len(tables[0]))
            angles = host.arange(longest)[:, None] * self.frequencies
            tables = tt.tensor(host.cos(angles), dtype=dtype), tt.tensor(host.sin(angles), dtype=dtype)
            self._tables = tables  # another thread may replace them at any time, so this one returns its own
        return tables
