"""Position encodings for the Transformer: sinusoidal, learned, relative and rotary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.common.settings import check_fields, one_of
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host
from tinytensor.nn import Embedding, Module

if TYPE_CHECKING:
    from tinyformer.models.attention import KeyValueCache
    from tinyformer.models.blocks import Cache


KINDS = ("learned", "sinusoidal", "sinusoidal_halves", "rotary")


def sinusoidal(length: int, d_model: int, halves: bool = False) -> Tensor:
    """Return the table of sinusoidal positions (Vaswani et al. 2017, section 3.5): (length, d_model), float32.

    Dimension 2i of position p is sin(p / 10000^(2i/d_model)). Dimension 2i+1 is the cosine of the same angle. If ``halves``,
    all sines come before all cosines, as in Tensor2Tensor and Marian.
    """
    even = host.arange(0, d_model, 2)
    angles = host.arange(length)[:, None] / 10000.0 ** (even / d_model)
    of_sines, of_cosines = (slice(0, len(even)), slice(len(even), None)) if halves else (slice(0, None, 2), slice(1, None, 2))
    table = host.zeros((length, d_model), dtype=host.float32)
    table[:, of_sines] = host.sin(angles)
    table[:, of_cosines] = host.cos(angles[:, : d_model // 2])
    return tt.tensor(table)


class SinusoidalPositions(Module):
    """``sinusoidal`` as a module. The table grows to the length of the longest sequence."""

    def __init__(self, d_model: int, halves: bool = False):
        self.d_model = d_model
        self.halves = halves
        self.table = sinusoidal(0, d_model, halves)

    def forward(self, length: int, start: int = 0) -> Tensor:
        """Return positions start to start + length - 1: (length, d_model)."""
        return self.table_for(start + length)[start : start + length]

    def table_for(self, length: int) -> Tensor:
        """Return the table, extended to at least ``length`` positions."""
        table = self.table
        if length > table.shape[0]:
            table = sinusoidal(max(length, 2 * len(table)), self.d_model, self.halves).astype(table.dtype)
            self.table = table  # return the local table: another thread may replace the attribute
        return table


class LearnedPositions(Embedding):
    """Learned positions: one vector for each of ``num_embeddings`` positions (Gehring et al. 2017; GPT, BERT)."""

    def forward(self, length: int, start: int = 0) -> Tensor:  # type: ignore[override]
        """Return positions start to start + length - 1: (length, d_model). Raises ValueError beyond the last position."""
        return self.table_for(start + length)[start : start + length]

    def table_for(self, length: int) -> Tensor:
        """Return the table. Raises ValueError if it has fewer than ``length`` positions."""
        if length > self.weight.shape[0]:
            limit = counted(len(self.weight), "learned position")
            raise ValueError(f"a text of {counted(length, 'token')} is too long for {limit}: crop it")
        return self.weight


class RelativePositions(Embedding):
    """Learned attention biases per head and distance range (Raffel et al. 2020; MPNet). Half of the ``num_embeddings`` ranges
    are for later tokens. In each half, the first half of the ranges hold one distance each. The others widen up to distance
    128; the last range covers all longer distances.

    Raises ValueError for fewer than 4 ranges or more than 256.
    """

    FARTHEST = 128

    def __init__(self, num_embeddings: int, num_heads: int):
        if not 4 <= num_embeddings <= 2 * self.FARTHEST:
            raise ValueError(f"num_embeddings must be from 4 to {2 * self.FARTHEST}, got {num_embeddings}")
        super().__init__(num_embeddings, num_heads)

    def forward(self, length: int) -> Tensor:  # type: ignore[override]
        """Return the biases for attention scores: (1, num_heads, length, length)."""
        positions, farthest = tt.arange(length), self.FARTHEST
        ranges = tt.tensor(self.ranges(host.arange(-farthest, farthest + 1)))  # longer distances share the last ranges
        distances = tt.clip(positions - positions[:, None], -farthest, farthest)
        return super().forward(ranges[distances + farthest]).transpose(2, 0, 1)[None]

    def ranges(self, distances: Any) -> Any:
        """Return the range index of each distance. Distances to later tokens are positive."""
        half = len(self.weight) // 2
        exact, away = half // 2, abs(distances)
        logarithms = host.log(host.maximum(away, 1).astype(host.float32) / exact) / math.log(self.FARTHEST / exact)
        wide = exact + (logarithms * (half - exact)).astype(host.int64)
        return host.where(distances > 0, half, 0) + host.where(away < exact, away, host.minimum(wide, half - 1))


def add_positions(x: Tensor, positions: Any, cache: Cache | None = None) -> Tensor:
    """Add positions to x (batch, length, d_model), starting at 0 or after the cached tokens. If positions is None, return x."""
    if positions is None:
        return x
    return x + (positions(x.shape[1]) if cache is None else _later_positions(positions, cache, x.shape[1]))


@tt.opaque
def _later_positions(positions: Any, cache: Cache, count: int) -> Any:
    stop = cache.length + count
    return positions.table_for(stop).data[cache.length : stop]


def check_positions(config: Any, d_head: int, choices: Sequence[str] = KINDS) -> None:
    """Raise SettingError unless ``positions`` is one of ``choices`` and valid for this head width."""
    one_of(config, "positions", choices)
    if config.positions == "rotary" and d_head % 2:
        message = f"d_model / num_heads must be even for rotary positions, got {d_head}"
        raise SettingError(message, "d_model", "num_heads")


def absolute_positions(positions: str, max_length: int, d_model: int) -> SinusoidalPositions | LearnedPositions | None:
    """Return a module of positions to add to embeddings: "sinusoidal", "sinusoidal_halves" (see ``sinusoidal``), or "learned"
    with ``max_length`` positions. Returns None for "rotary" positions, since they are not added."""
    if positions == "rotary":
        return None
    if positions == "learned":
        return LearnedPositions(max_length, d_model)
    return SinusoidalPositions(d_model, halves=positions == "sinusoidal_halves")


@dataclass(frozen=True)
class RotaryScaling:
    """How to scale rotary frequencies for a context longer than the ``original_length`` used in training.

    If ``kind`` is "linear", all frequencies are divided by ``factor`` (Chen et al. 2023, section 2.2). If "llama3" (Llama 3.1),
    count the turns within the original length. At ``high_frequency_factor`` turns or more, a frequency is unchanged. At
    ``low_frequency_factor`` or fewer, it is divided by ``factor``. Others are interpolated. Raises SettingError for an invalid
    value.
    """

    kind: str
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        check_fields(self)
        one_of(self, "kind", ("linear", "llama3"))
        if not (self.factor > 0 and 0 < self.low_frequency_factor < self.high_frequency_factor and self.original_length > 0):
            raise SettingError(f"rotary scaling needs positive values and a low factor below the high one, got {self}")

    def __call__(self, frequencies: Any) -> Any:
        """Scale the frequencies (d_head / 2,), in radians per position."""
        if self.kind == "linear":
            return frequencies / self.factor
        turns = self.original_length * frequencies / (2 * math.pi)
        kept = (turns - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        kept = host.clip(kept, 0.0, 1.0)
        return kept * frequencies + (1.0 - kept) * frequencies / self.factor


class RotaryPositions:
    """Rotary positions (RoPE; Su et al. 2021, equation 34). Queries and keys are rotated by angles proportional to their
    positions. Their dot product then depends only on their distance. Dimensions i and i + d_head/2 are rotated together, by
    base^(-2i/d_head) radians per position, after any ``scaling``.

    Raises ValueError if ``d_head`` is odd.
    """

    def __init__(self, d_head: int, base: float = 10000.0, scaling: RotaryScaling | None = None):
        if d_head % 2:
            raise ValueError(f"d_head must be even for rotary positions, got {d_head}")
        frequencies = base ** (-host.arange(0, d_head, 2) / d_head)
        self.frequencies = frequencies if scaling is None else scaling(frequencies)
        self.table: Tensor | None = None

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        """Rotate x (..., length, d_head) to positions start to start + length - 1."""
        table = self.table_for(start + x.shape[-2], x.dtype)[start : start + x.shape[-2]]
        half = len(self.frequencies)
        return tt.rotate_pairs(x, table[:, :half], table[:, half:])

    def rotation(self, length: int, dtype: Any, cache: KeyValueCache | None = None) -> Tensor:
        """Return the ``tt.norm_and_rotate`` argument (length, d_head): the cosines, then the sines, of each position's angles.
        Positions start at 0 or after the cached tokens."""
        return self.table_for(length, dtype)[:length] if cache is None else _later_rotation(self, length, dtype, cache)

    def table_for(self, length: int, dtype: Any) -> Tensor:
        """Return the table, extended to at least ``length`` positions."""
        table = self.table
        if table is None or len(table) < length or table.dtype != dtype:
            longest = length if table is None else max(length, 2 * len(table))
            angles = host.arange(longest)[:, None] * self.frequencies
            table = tt.tensor(host.concatenate([host.cos(angles), host.sin(angles)], axis=1), dtype=dtype)
            self.table = table  # return the local table: another thread may replace the attribute
        return table


def rotary_positions(
    positions: str, d_head: int, base: float = 10000.0, scaling: RotaryScaling | None = None
) -> RotaryPositions | None:
    """Return the rotation for queries and keys of all blocks if ``positions`` is "rotary", else None."""
    return RotaryPositions(d_head, base, scaling) if positions == "rotary" else None


@tt.opaque
def _later_rotation(rotary: RotaryPositions, length: int, dtype: Any, cache: KeyValueCache) -> Any:
    stop = cache.length + length
    return rotary.table_for(stop, dtype).data[cache.length : stop]
