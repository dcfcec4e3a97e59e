"""What masked attention needs on either backend: the causal mask, and what keeps fully masked rows from being NaN."""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import host, xp


def causal_array(queries: int, keys: int) -> Any:
    """The boolean array (queries, keys), True = may attend, that lets each query see the keys up to its own place.

    Places are counted from the end: the last query stands at the last key. With more queries than keys the first queries see
    no key at all.
    """
    return xp.arange(keys) <= xp.arange(queries)[:, None] + (keys - queries)


def lowest(dtype: Any) -> float:
    """The lowest finite number of a dtype, for a maximum over scores that may all be -inf.

    exp(-inf - lowest) is 0, whereas exp(-inf - -inf) would be NaN.
    """
    return float(host.finfo(dtype).min)


def padding(mask: Any) -> Any:
    """The keys (..., S) that a boolean mask hides from all queries alike; None if there is no mask, or one for each query.

    They must add nothing, even where they hold NaN, whose product with a weight of 0 is NaN. So zeros take their place.
    """
    if mask is None or (mask.ndim > 1 and mask.shape[-2] != 1):
        return None
    return ~(mask[..., 0, :] if mask.ndim > 1 else mask)
