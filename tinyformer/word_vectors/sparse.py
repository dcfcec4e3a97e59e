"""Matrices of which most elements are 0, and their largest singular values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tinyformer.common.errors import SettingError, UserError
from tinytensor.device.backend import Array, host
from tinytensor.device.forks import cached_property

PIECE = 1 << 20  # numbers that a product makes at a time, so that they stay in the processor's caches


@dataclass(frozen=True)
class SparseMatrix:
    """The elements of a matrix that are not 0, row by row; in a row by column.

    Attributes:
        shape: Rows and columns.
        keys: row * columns + column of each element, rising, (elements,), int64.
        values: The elements, (elements,), float64.
    """

    shape: tuple[int, int]
    keys: Array
    values: Array

    @classmethod
    def sum_of(cls, shape: tuple[int, int], keys: Any, values: Any) -> SparseMatrix:
        """The matrix of elements in any order. Those of equal keys are added up."""
        order = host.argsort(keys, kind="stable")
        keys, values = keys[order], host.asarray(values, dtype=host.float64)[order]
        starts = host.flatnonzero(host.diff(keys, prepend=-1))
        return cls(shape, keys[starts], host.add.reduceat(values, starts) if len(starts) else values)

    @cached_property
    def rows(self) -> Array:
        """The row of each element."""
        return self.keys // self.shape[1]

    @cached_property
    def columns(self) -> Array:
        """The column of each element."""
        return self.keys % self.shape[1]

    @cached_property
    def T(self) -> SparseMatrix:
        """The transposed matrix."""
        return SparseMatrix.sum_of(self.shape[::-1], self.columns * self.shape[0] + self.rows, self.values)

    def with_values(self, values: Array) -> SparseMatrix:
        """A matrix with other values at the same places. Those that are 0 are left out."""
        there = values != 0
        return SparseMatrix(self.shape, self.keys[there], values[there])

    def sums(self, axis: int) -> Array:
        """The sum of each column (``axis=0``) or row (``axis=1``), float64."""
        places = self.columns if axis == 0 else self.rows
        return host.bincount(places, weights=self.values, minlength=self.shape[1 - axis])

    def dense(self) -> Array:
        """All elements, with the zeros, float64."""
        out = host.zeros(self.shape)
        out.reshape(-1)[self.keys] = self.values
        return out

    def __matmul__(self, other: Array) -> Array:
        """The product with a dense matrix (columns, width), float64: for each row the sum of the other matrix's rows at its
        columns, times the elements."""
        out = host.zeros((self.shape[0], other.shape[1]))
        for first, last in self._pieces(max(PIECE // other.shape[1], 1)):
            rows, columns = self.rows[first:last], self.columns[first:last]
            starts = host.flatnonzero(host.diff(rows, prepend=-1))
            # A row may begin in one piece and end in the next, so it is added.
            out[rows[starts]] += host.add.reduceat(other[columns] * self.values[first:last, None], starts, axis=0)
        return out

    def _pieces(self, size: int) -> Iterator[tuple[int, int]]:
        return ((first, min(first + size, len(self.keys))) for first in range(0, len(self.keys), size))


def truncated_svd(matrix: SparseMatrix, rank: int, seed: int = 0, tolerance: float = 1e-9) -> tuple[Array, Array, Array]:
    """The largest ``rank`` singular values of a matrix, falling, and their vectors: U (rows, rank), s (rank,), V (columns,
    rank), with matrix ≈ U diag(s) Vᵀ. No matrix of that rank is closer (Eckart and Young 1936).

    A random block of vectors is multiplied by matrixᵀ matrix again and again. All products together span a space that soon
    holds the wanted vectors (randomised block Krylov, Musco and Musco 2015). That takes only products with tall blocks, so the
    matrix stays sparse. Keeping all products instead of the last one makes the difference where singular values fall slowly, as
    those of word counts do: it ends with vectors that satisfy matrixᵀ u = s v to ``tolerance`` times the largest s, so in
    agreement with a dense SVD. If the space grows to all of the columns, it is one.

    Raises SettingError unless the rank is at least 1 and no larger than the matrix, and UserError for elements that are not
    finite.
    """
    if not 1 <= rank <= min(matrix.shape):
        raise SettingError(f"rank must be from 1 to {min(matrix.shape)}, the smaller side of the matrix, not {rank}")
    largest = float(abs(matrix.values).max()) if len(matrix.values) else 0.0
    if not math.isfinite(largest):
        raise UserError("a matrix with elements that are not finite has no singular values")
    exponent = math.frexp(largest)[1]  # with elements of at most 1, no square overflows, and none that counts underflows
    matrix = matrix.with_values(host.ldexp(matrix.values, -exponent))
    columns = matrix.shape[1]
    rng = host.random.default_rng(seed)
    size = min(max(rank // 4, 8), columns)
    basis = host.empty((columns, 0))
    images = host.empty((matrix.shape[0], 0))  # the matrix times the basis
    enough = 2 * rank  # the size of the basis at which to look whether it holds the vectors
    block = rng.standard_normal((columns, size))
    while True:
        block = _orthonormal_to(basis, block[:, : columns - basis.shape[1]])
        image = matrix @ block
        basis, images = host.hstack([basis, block]), host.hstack([images, image])
        if basis.shape[1] >= min(enough, columns):
            u, s, v = _within(basis, images, rank)
            if basis.shape[1] == columns or _error(matrix, u, s, v) <= tolerance * s[0]:
                return u, host.ldexp(s, exponent), v
            enough = basis.shape[1] * 5 // 4
        block = matrix.T @ image


def _orthonormal_to(basis: Array, block: Array) -> Array:
    """An orthonormal basis of the block, with what lies in the other basis removed.

    Where nearly all is removed, what remains are rounding errors, which lie in the other basis, too. They are as good as any
    other directions once that is removed in turn.
    """
    while True:
        block = host.linalg.qr(block - basis @ (basis.T @ block))[0]
        if host.linalg.norm(basis.T @ block) < 1e-12:
            return block


def _within(basis: Array, images: Array, rank: int) -> tuple[Array, Array, Array]:
    """The largest singular values, and their vectors, of the matrix with the basis: images = matrix basis."""
    u, s, vt = host.linalg.svd(images, full_matrices=False)
    return u[:, :rank], s[:rank], basis @ vt[:rank].T


def _error(matrix: SparseMatrix, u: Array, s: Array, v: Array) -> float:
    """How far the vectors are from satisfying matrixᵀ u = s v."""
    return float(host.linalg.norm(matrix.T @ u - v * s, axis=0).max())
