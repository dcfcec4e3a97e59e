"""Sequences of vectors instead of ids, such as sounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import default_dtype, host


class Vectors(NamedTuple):
    """A batch of vector sequences, an encoder input in place of ids.

    ``values`` (batch, frames, features) are the vectors, and ``lengths`` (batch,) the number of frames per sequence. Later
    frames are padding and have no effect.
    """

    values: Tensor
    lengths: Tensor


def padded_vectors(rows: Sequence[Any]) -> Vectors:
    """Pad sequences of vectors, NumPy arrays (frames, features), with zeros. Return a batch."""
    lengths = [len(row) for row in rows]
    values = host.zeros((len(rows), max(lengths), rows[0].shape[1]), dtype=default_dtype)
    for out, row in zip(values, rows):
        out[: len(row)] = row
    return Vectors(tt.tensor(values), tt.tensor(lengths))


def check_vectors(source: Any, features: int) -> None:
    """Raise UserError unless the source is ``Vectors`` with this many features, or ids if ``features`` is 0."""
    if isinstance(source, Vectors) != bool(features):
        expected, actual = ("Vectors", "ids") if features else ("ids", "Vectors")
        raise UserError(f"this model reads {expected}, not {actual}: its source_features is {features}")
    if features:
        shape, lengths = source.values.shape, source.lengths.shape
        if len(shape) != 3 or shape[1] == 0 or shape[2] != features or lengths != shape[:1]:
            raise UserError(
                f"the sources must be (batch, frames, {features}) with a length for each, got shape {shape} and {lengths}"
            )


def check_lengths(source: Vectors) -> None:
    """Raise UserError for a sequence with no frames, or more than the batch has. Synchronizes with a GPU."""
    lengths, frames = host.asarray(source.lengths.numpy()), source.values.shape[1]
    wrong = lengths[(lengths < 1) | (lengths > frames)]
    if wrong.size:
        raise UserError(f"a sequence cannot have {counted(int(wrong.flat[0]), 'frame')}: in this batch there are 1 to {frames}")
