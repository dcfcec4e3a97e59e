"""Principal components against a singular value decomposition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tinyformer import SettingError, UserError, principal_components


@pytest.mark.parametrize("shape", [(7, 20), (20, 20), (300, 20), (21, 20)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_coordinates_and_what_they_explain(shape: tuple[int, int], dtype: type) -> None:
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal(shape) * np.linspace(1, 3, 20) + 5).astype(dtype)
    points, explained = principal_components(rows, 3)
    centred = rows.astype(np.float64) - rows.astype(np.float64).mean(0)
    u, s, v = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(v[np.arange(len(v)), np.abs(v).argmax(1)])
    np.testing.assert_allclose(points, (u * s * signs)[:, :3], atol=1e-3 if dtype == np.float32 else 1e-9)
    np.testing.assert_allclose(explained, (s**2 / (s**2).sum())[:3], rtol=1e-4 if dtype == np.float32 else 1e-9)
    assert points.dtype == np.float64


def test_vectors_with_fewer_components_than_asked_for() -> None:
    points, explained = principal_components([[1, 2], [3, 2], [5, 2], [7, 2]], 4)
    np.testing.assert_allclose(points[:, 0], [-3, -1, 1, 3], atol=1e-12)
    np.testing.assert_allclose(points[:, 1:], 0, atol=1e-12)
    np.testing.assert_allclose(explained, [1, 0, 0, 0], atol=1e-12)
    points, explained = principal_components([[1.0, 2.0]] * 3)
    assert not points.any() and explained.tolist() == [1, 0]


def test_what_has_no_components() -> None:
    for rows in ([], [1.0, 2.0], [[]]):
        with pytest.raises(UserError, match="need vectors"):
            principal_components(rows)
    with pytest.raises(SettingError, match="count must be at least 1"):
        principal_components([[1.0]], 0)


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("shape", [(40, 4), (4, 40)])
def test_numbers_whose_squares_are_too_large_or_too_small(shape: tuple[int, int], size: float) -> None:
    rows = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    points, explained = principal_components(rows)
    scaled, also = principal_components(rows * np.float32(size))
    np.testing.assert_allclose(scaled / size, points, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(also, explained, rtol=1e-4)
