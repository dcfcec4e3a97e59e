"""Principal components: the directions of greatest variance."""

from __future__ import annotations

from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.common.settings import check_counts
from tinytensor.device.backend import Array, host


def principal_components(rows: Any, count: int = 2, of: Any = None) -> tuple[Array, Array]:
    """Project vectors onto their first ``count`` principal components (Pearson 1901). Return the coordinates (rows, count),
    float64, and the fraction of variance explained by each component, (count,).

    If ``of`` is passed, use the components and the mean of those vectors instead, to compare vectors that move.

    ``rows`` is a NumPy array (rows, width) of finite values. The largest element of a component is positive, for
    reproducibility. Components beyond the rows or the width are zero. If all rows are equal, the first explains everything.
    Raises UserError if there are no rows, and SettingError if ``count`` is below 1.

    >>> from tinyformer import principal_components
    >>> points, explained = principal_components([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], count=1)
    >>> points.round(3).tolist(), explained.round(3).tolist()
    ([[-1.414], [0.0], [1.414]], [1.0])
    """
    check_counts(count=count)
    rows = host.asarray(rows)
    if rows.ndim != 2 or not rows.size:
        raise UserError(f"principal components need vectors (rows, width), at least one, got shape {rows.shape}")
    rows = rows if rows.dtype == host.float32 else rows.astype(host.float64)
    basis = rows if of is None else host.asarray(of, dtype=rows.dtype)
    if basis.ndim != 2 or basis.shape[1:] != rows.shape[1:] or not basis.size:
        raise UserError(f"the vectors must be as wide as those of shape {rows.shape}, got shape {basis.shape}")
    center = basis.mean(axis=0, dtype=host.float64).astype(rows.dtype)
    centered = basis - center
    scale = max(float(centered.max()), -float(centered.min())) or 1.0
    centered /= scale  # prevents overflow and underflow in the squares
    variances, directions = _directions(centered)
    signs = host.sign(directions[host.abs(directions).argmax(axis=0), host.arange(directions.shape[1])])
    kept = min(count, len(variances))
    points, explained = host.zeros((len(rows), count)), host.zeros(count)
    directions = (directions * signs)[:, :kept].astype(rows.dtype)
    points[:, :kept] = (centered if of is None else (rows - center) / scale) @ directions
    if of is not None:  # the fractions are of the rows' variance
        deviations = (rows - rows.mean(axis=0, dtype=host.float64)) / scale
        variances = host.append((deviations @ directions).var(axis=0), 0.0)
        total = deviations.var(axis=0).sum()
    else:
        total = variances.sum()
    points *= scale
    explained[:kept] = variances[:kept] / total if total else host.eye(1, kept)[0]
    return points, explained


def _directions(centered: Array) -> tuple[Array, Array]:
    """Return the variances times the number of rows, in descending order, and their directions as columns."""
    count, width = centered.shape
    if count <= width:
        _, lengths, directions = host.linalg.svd(centered.astype(host.float64), full_matrices=False)
        return lengths**2, directions.T
    # with many rows, the eigenvectors of the scatter matrix are much faster
    variances, directions = host.linalg.eigh((centered.T @ centered).astype(host.float64))
    return host.maximum(variances[::-1], 0.0), directions[:, ::-1]
