"""What all batches of ids have in common: cut into shards, padded, checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar

from tinyformer.errors import SettingError, UserError
from tinyformer.memory import check_fits
from tinytensor import Tensor
from tinytensor.backend import host, index_dtype

# ---------------------------------------------------------------------------------------------------------- batches


Self = TypeVar("Self", bound="Rows")


@dataclass
class Rows:
    """The base of batches: dataclasses of tensors and NumPy arrays with a row for each sequence, and how many targets there
    are in all."""

    def split(self: Self, parts: int) -> list[Self]:
        """The rows cut into ``parts`` shards of as many rows, give or take one; fewer where there are fewer rows. A shard
        has its whole batch's number of targets, as that is what a mean loss is over."""
        if parts == 1:
            return [self]
        columns = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), (Tensor, host.ndarray))}
        count = len(next(iter(columns.values())))
        parts = min(parts, count)
        cuts = [count * part // parts for part in range(parts + 1)]
        return [replace(self, **{name: c[a:b] for name, c in columns.items()}) for a, b in zip(cuts, cuts[1:])]


@dataclass
class Batch(Rows):
    """Token ids (batch, length), the ids one place later, and how many targets there are."""

    inputs: Tensor
    targets: Tensor
    num_targets: int


class Batches(Protocol):
    """Where batches come from."""

    def sample(self) -> Any:
        """The next training batch."""

    def validation_batches(self) -> Iterator[Any]:
        """The whole validation split."""

    def get_state(self) -> dict[str, Any]:
        """Where ``sample`` stands: values for JSON."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``get_state`` returned."""


def check_fraction(validation_fraction: float) -> None:
    """Raise SettingError unless both splits get some of a text."""
    if not 0.0 < validation_fraction < 1.0:
        raise SettingError(f"validation_fraction must be above 0 and below 1, not {validation_fraction}")


def check_batch_fits(batch_size: int, tokens: int) -> None:
    """Raise SettingError where already the ids of a batch, rows of so many tokens and where they come from, do not fit in
    memory. What a model needs for it is far more, and is checked elsewhere."""
    needed = 2 * index_dtype.itemsize * int(batch_size) * int(tokens)
    check_fits(needed, "a batch of this batch_size", "choose a smaller one", "batch_size")


def check_ids(ids: Any, vocab_size: int) -> None:
    """Raises UserError unless all ids, a NumPy array or a sequence, are 0 to vocab_size - 1. Models check them on the CPU
    alone: on a GPU that would mean to wait for it."""
    ids = host.asarray(ids)
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.size:
        raise UserError(f"the token id {int(wrong.flat[0])} is outside of the vocabulary: its {vocab_size} ids start at 0")


def padded(rows: Sequence[Sequence[int]], pad: int) -> Any:
    """Rows of ids as one NumPy array (batch, length of the longest), shorter ones filled up with ``pad``."""
    out = host.full((len(rows), max(map(len, rows))), pad, dtype=host.int64)
    for row, ids in zip(out, rows):
        row[: len(ids)] = ids
    return out
