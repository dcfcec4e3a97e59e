"""How a Transformer knows where a token stands: sinusoidal, learned, or rotary positions."""

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
    """The table of Vaswani et al. 2017, section 3.5: (length, d_model), float32.

    Dimension 2i of position p is sin(p / 10000^(2i/d_model)), and dimension 2i+1 the cosine of the same angle.
    """
    even = host.arange(0, d_model, 2)
    angles = host.arange(length)[:, None] / 10000.0 ** (even / d_model)
    table = host.zeros((length, d_model), dtype=host.float32)
    table[:, 0::2] = host.sin(angles)
    table[:, 1::2] = host.cos(angles[:, : d_model // 2])
    return tt.tensor(table)


class SinusoidalPositions(Module):
    """``sinusoidal`` as a module: the table is computed once and grows when a longer text comes."""

    def __init__(self, d_model: int):
        self.d_model = d_model
        self.table = sinusoidal(0, d_model)

    def forward(self, length: int, start: int = 0) -> Tensor:
        """The positions start to start + length - 1: (length, d_model)."""
        return self.reaching(start + length)[start : start + length]

    def reaching(self, length: int) -> Tensor:
        """The table, with at least so many positions."""
        table = self.table
        if length > table.shape[0]:
            table = sinusoidal(max(length, 2 * len(table)), self.d_model).astype(table.dtype)
            self.table = table  # which another thread may replace at once, for its own texts
        return table


class LearnedPositions(Embedding):
    """A learned vector for each of ``num_embeddings`` positions (Gehring et al. 2017; GPT, BERT)."""

    def forward(self, length: int, start: int = 0) -> Tensor:  # type: ignore[override]
        """The positions start to start + length - 1: (length, d_model). Raises ValueError past the last."""
        return self.reaching(start + length)[start : start + length]

    def reaching(self, length: int) -> Tensor:
        """The table, of at least so many positions. Raises ValueError where it has fewer."""
        if length > self.weight.shape[0]:
            raise ValueError(f"there are {len(self.weight)} learned positions: {length} tokens are too many, crop them")
        return self.weight


def add_positions(x: Tensor, positions: Any, cache: Cache | None = None) -> Tensor:
    """x (batch, length, d_model) and its positions: the first ones, or those that follow what the cache holds."""
    return x + positions(x.shape[1]) if cache is None else _add_later_positions(x, positions, cache)


@tt.opaque
def _add_later_positions(x: Any, positions: Any, cache: Cache) -> Any:
    start = cache.length
    stop = start + x.shape[1]
    return x + positions.reaching(stop).data[start:stop]


def check_absolute(kind: str) -> None:
    """Raise SettingError unless these are positions that are added to the embeddings."""
    if kind not in ("sinusoidal", "learned"):
        raise SettingError(f"positions must be sinusoidal or learned, not {kind!r}")


def absolute_positions(kind: str, max_length: int, d_model: int) -> SinusoidalPositions | LearnedPositions:
    """Positions to be added to the embeddings: "sinusoidal", or ``max_length`` "learned" ones."""
    return LearnedPositions(max_length, d_model) if kind == "learned" else SinusoidalPositions(d_model)


class RotaryPositions:
    """Rotary positions (Su et al. 2021, equation 34): queries and keys are turned by angles proportional to their position,
    so that their dot product depends on the distance alone. Dimension i turns together with dimension i + d_head/2."""

    def __init__(self, d_head: int, base: float = 10000.0):
        if d_head % 2:
            raise ValueError(f"rotary positions need an even number of dimensions a head, not {d_head}")
        self.frequencies = base ** (-host.arange(0, d_head, 2) / d_head)
        self._tables: tuple[Tensor, Tensor] | None = None

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        """x (..., length, d_head) turned by its positions, start to start + length - 1."""
        cosine, sine = self._angles(start + x.shape[-2], x.dtype)
        rows = slice(start, start + x.shape[-2])
        first, second = x.split(2, axis=-1)
        return x * cosine[rows] + tt.concatenate([-second, first], axis=-1) * sine[rows]

    def _angles(self, length: int, dtype: Any) -> tuple[Tensor, Tensor]:
        tables = self._tables
        if tables is None or len(tables[0]) < length or tables[0].dtype != dtype:
            longest = length if tables is None else max(length, 2 * len(tables[0]))
            angles = host.arange(longest)[:, None] * host.tile(self.frequencies, 2)
            tables = tt.tensor(host.cos(angles), dtype=dtype), tt.tensor(host.sin(angles), dtype=dtype)
            self._tables = tables  # which another thread may replace at once, for its own texts
        return tables
