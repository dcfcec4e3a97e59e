"""Samples of a sound, as the other files here take them."""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import host


def one_row(samples: Any) -> Any:
    """Samples (length,) as a NumPy array. Raises ValueError unless they are one row of finite numbers."""
    samples = host.asarray(samples)
    if samples.ndim != 1:
        raise ValueError(f"samples must be one row of finite numbers, not of shape {samples.shape}: pass a single channel")
    wrong = len(samples) - int(host.isfinite(samples).sum())
    if wrong:
        raise ValueError(f"samples must be one row of finite numbers; NaN or infinite: {wrong:,} of {len(samples):,}")
    return samples
