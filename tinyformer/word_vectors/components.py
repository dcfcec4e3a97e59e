"""Principal components: the directions in which vectors differ most."""

from __future__ import annotations

from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.common.settings import check_counts
from tinytensor.device.backend import Array, host


def principal_components(rows: Any, count: int = 2, of: Any = None) -> tuple[Array, Array]:
    """The coordinates of vectors along their first ``count`` principal components (Pearson 1901), (rows, count) float64, and
    the fraction of the variance that each of them explains, (count,).

    With ``of`` they are the components of these other vectors, whose mean is at 0: so what moves can be compared.

    ``rows`` is a NumPy array (rows, width) of finite numbers. A component points to where its largest part is positive, so the
    result is the same each time. Components that are more than the rows or the width have zeros. Of rows that are all the same,
    the first explains everything. Raises UserError if there are no rows, and SettingError for a count below 1.

    >>> from tinyformer import principal_components
    >>> points, explained = principal_components([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], count=1)
    >>> points.round(3).tolist(), explained.round(3).tolist()
    ([[-1.414], [0.0], [1.414]], [1.0])
    """
    check_counts(count=count)
    rows = host.asarray(rows)
    if rows.ndim != 2 or not rows.size:
        raise UserError(f"principal components need vectors (rows, width), at least one, not {rows.shape}")
    rows = rows if rows.dtype == host.float32 else rows.astype(host.float64)
    others = rows if of is None else host.asarray(of, dtype=rows.dtype)
    if others.ndim != 2 or others.shape[1:] != rows.shape[1:] or not others.size:
        raise UserError(f"the vectors must be as wide as {rows.shape}, and not {others.shape}")
    centre = others.mean(axis=0, dtype=host.float64).astype(rows.dtype)
    centred = others - centre
    scale = max(float(centred.max()), -float(centred.min())) or 1.0
    centred /= scale  # so that no square overflows, or becomes 0
    variances, directions = _directions(centred)
    signs = host.sign(directions[host.abs(directions).argmax(axis=0), host.arange(directions.shape[1])])
    kept = min(count, len(variances))
    points, explained = host.zeros((len(rows), count)), host.zeros(count)
    directions = (directions * signs)[:, :kept].astype(rows.dtype)
    points[:, :kept] = (centred if of is None else (rows - centre) / scale) @ directions
    if of is not None:  # of their own variance
        own = (rows - rows.mean(axis=0, dtype=host.float64)) / scale
        variances = host.append((own @ directions).var(axis=0), 0.0)
        total = own.var(axis=0).sum()
    else:
        total = variances.sum()
    points *= scale
    explained[:kept] = variances[:kept] / total if total else host.eye(1, kept)[0]
    return points, explained


def _directions(centred: Array) -> tuple[Array, Array]:
    """The variances, times the number of rows, highest first; and the directions that have them, as columns."""
    count, width = centred.shape
    if count <= width:
        _, lengths, directions = host.linalg.svd(centred.astype(host.float64), full_matrices=False)
        return lengths**2, directions.T
    # Of many rows, their products with each other are much quicker to take apart than themselves.
    variances, directions = host.linalg.eigh((centred.T @ centred).astype(host.float64))
    return host.maximum(variances[::-1], 0.0), directions[:, ::-1]
