"""How a Transformer knows the position of each token: sinusoidal, learned, or rotary positions."""

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
    """The table of sinusoidal positions (Vaswani et al. 2017, section 3.5): (length, d_model), float32.

    Dimension 2i of position p is sin(p / 10000^(2i/d_model)). Dimension 2i+1 is the cosine of the same angle. With ``halves``
    the sines are not beside their cosines, but all before them, as in Tensor2Tensor and Marian.
    """
    even = host.arange(0, d_model, 2)
    angles = host.arange(length)[:, None] / 10000.0 ** (even / d_model)
    of_sines, of_cosines = (slice(0, len(even)), slice(len(even), None)) if halves else (slice(0, None, 2), slice(1, None, 2))
    table = host.zeros((length, d_model), dtype=host.float32)
    table[:, of_sines] = host.sin(angles)
    table[:, of_cosines] = host.cos(angles[:, : d_model // 2])
    return tt.tensor(table)


class SinusoidalPositions(Module):
    """``sinusoidal`` as a module. It keeps the table, and makes a longer one when a longer text comes."""

    def __init__(self, d_model: int, halves: bool = False):
        self.d_model = d_model
        self.halves = halves
        self.table = sinusoidal(0, d_model, halves)

    def forward(self, length: int, start: int = 0) -> Tensor:
        """The positions start to start + length - 1: (length, d_model)."""
        return self.table_for(start + length)[start : start + length]

    def table_for(self, length: int) -> Tensor:
        """The table, with at least ``length`` positions."""
        table = self.table
        if length > table.shape[0]:
            table = sinusoidal(max(length, 2 * len(table)), self.d_model, self.halves).astype(table.dtype)
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
            raise ValueError(
                f"the table has {counted(len(self.weight), 'learned position')}: a text of {counted(length, 'token')} is too "
                "long, crop it"
            )
        return self.weight


class RelativePositions(Embedding):
    """How much more each head attends to tokens at a distance (Raffel et al. 2020; MPNet): a learned number for each of
    ``num_embeddings`` ranges of distances and each head. Half of the ranges are for tokens before, half for those behind; of
    each half, half hold one distance, and the others become wider up to a distance of 128, behind which the last one begins.

    Raises ValueError for less than 4 ranges, or for more than 256.
    """

    FARTHEST = 128

    def __init__(self, num_embeddings: int, num_heads: int):
        if not 4 <= num_embeddings <= 2 * self.FARTHEST:
            raise ValueError(f"relative positions have 4 to {2 * self.FARTHEST} ranges of distances, not {num_embeddings}")
        super().__init__(num_embeddings, num_heads)

    def forward(self, length: int) -> Tensor:  # type: ignore[override]
        """What is added to the scores of a text's tokens, (1, num_heads, length, length)."""
        places, farthest = tt.arange(length), self.FARTHEST
        ranges = tt.tensor(self.ranges(host.arange(-farthest, farthest + 1)))  # those of longer distances are the last ones
        distances = tt.clip(places - places[:, None], -farthest, farthest)
        return super().forward(ranges[distances + farthest]).transpose(2, 0, 1)[None]

    def ranges(self, distances: Any) -> Any:
        """The number of the range of each distance, which is positive for a token behind."""
        half = len(self.weight) // 2
        exact, away = half // 2, abs(distances)
        logarithms = host.log(host.maximum(away, 1).astype(host.float32) / exact) / math.log(self.FARTHEST / exact)
        wide = exact + (logarithms * (half - exact)).astype(host.int64)
        return host.where(distances > 0, half, 0) + host.where(away < exact, away, host.minimum(wide, half - 1))


def add_positions(x: Tensor, positions: Any, cache: Cache | None = None) -> Tensor:
    """Add to x (batch, length, d_model) its positions. They start at 0, or with a cache after the tokens that it holds. Without
    positions, None, x stays as it is."""
    if positions is None:
        return x
    return x + (positions(x.shape[1]) if cache is None else _later_positions(positions, cache, x.shape[1]))


@tt.opaque
def _later_positions(positions: Any, cache: Cache, count: int) -> Any:
    stop = cache.length + count
    return positions.table_for(stop).data[cache.length : stop]


def check_positions(config: Any, d_head: int, kinds: Sequence[str] = KINDS) -> None:
    """Raise SettingError unless a configuration's ``positions`` are of these kinds, and heads of this width can have them."""
    one_of(config, "positions", kinds)
    if config.positions == "rotary" and d_head % 2:
        message = f"d_model / num_heads must be even for rotary positions, not {d_head}"
        raise SettingError(message, "d_model", "num_heads")


def absolute_positions(kind: str, max_length: int, d_model: int) -> SinusoidalPositions | LearnedPositions | None:
    """A module of positions that are added to the embeddings: "sinusoidal" ones, "sinusoidal_halves" (see ``sinusoidal``), or
    ``max_length`` "learned" ones. None for "rotary" ones, which are not added."""
    if kind == "rotary":
        return None
    if kind == "learned":
        return LearnedPositions(max_length, d_model)
    return SinusoidalPositions(d_model, halves=kind == "sinusoidal_halves")


@dataclass(frozen=True)
class RotaryScaling:
    """How rotary frequencies are made smaller, for a context longer than the ``original_length`` of the first training.

    ``kind`` "linear": all are divided by ``factor`` (Chen et al. 2023, section 2.2). "llama3" (Llama 3.1): those that turn at
    least ``high_frequency_factor`` times within the original length stay, those that turn at most ``low_frequency_factor``
    times are divided by ``factor``, and between these the change is gradual. Raises SettingError for a value that is not
    allowed.
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
            raise SettingError(f"rotary scaling needs positive numbers, and a low factor below the high one, not {self}")

    def __call__(self, frequencies: Any) -> Any:
        """The frequencies (d_head / 2,), in radians a position, after scaling."""
        if self.kind == "linear":
            return frequencies / self.factor
        turns = self.original_length * frequencies / (2 * math.pi)
        kept = (turns - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        kept = host.clip(kept, 0.0, 1.0)
        return kept * frequencies + (1.0 - kept) * frequencies / self.factor


class RotaryPositions:
    """Rotary positions (Su et al. 2021, equation 34): queries and keys are rotated by angles proportional to their position, so
    that their dot product depends only on their distance. Dimension i is rotated together with dimension i + d_head/2, by
    base^(-2i/d_head) radians a position, or what ``scaling`` makes of that.

    Raises ValueError if ``d_head`` is odd.
    """

    def __init__(self, d_head: int, base: float = 10000.0, scaling: RotaryScaling | None = None):
        if d_head % 2:
            raise ValueError(f"rotary positions need an even number of dimensions a head, not {d_head}")
        frequencies = base ** (-host.arange(0, d_head, 2) / d_head)
        self.frequencies = frequencies if scaling is None else scaling(frequencies)
        self.table: Tensor | None = None

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        """x (..., length, d_head), rotated by its positions: start to start + length - 1."""
        table = self.table_for(start + x.shape[-2], x.dtype)[start : start + x.shape[-2]]
        half = len(self.frequencies)
        return tt.rotate_pairs(x, table[:, :half], table[:, half:])

    def rotation(self, length: int, dtype: Any, cache: KeyValueCache | None = None) -> Tensor:
        """What ``tt.norm_and_rotate`` takes, (length, d_head): for each position the cosines of the angles, and then their
        sines. The positions start at 0, or with a cache after the tokens that it holds."""
        return self.table_for(length, dtype)[:length] if cache is None else _later_rotation(self, length, dtype, cache)

    def table_for(self, length: int, dtype: Any) -> Tensor:
        """The rows of at least ``length`` positions."""
        table = self.table
        if table is None or len(table) < length or table.dtype != dtype:
            longest = length if table is None else max(length, 2 * len(table))
            angles = host.arange(longest)[:, None] * self.frequencies
            table = tt.tensor(host.concatenate([host.cos(angles), host.sin(angles)], axis=1), dtype=dtype)
            self.table = table  # another thread may replace it at any time, so this one returns its own
        return table


def rotary_positions(
    kind: str, d_head: int, base: float = 10000.0, scaling: RotaryScaling | None = None
) -> RotaryPositions | None:
    """What rotates the queries and keys of all blocks of a model, if its positions are "rotary"."""
    return RotaryPositions(d_head, base, scaling) if kind == "rotary" else None


@tt.opaque
def _later_rotation(rotary: RotaryPositions, length: int, dtype: Any, cache: KeyValueCache) -> Any:
    stop = cache.length + length
    return rotary.table_for(stop, dtype).data[cache.length : stop]
