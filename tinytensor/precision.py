"""How float32 products are computed on a GPU: in TF32, or in full float32. Each thread has its own switch.

The switch is not in ``modes`` because the kernels read it, and kernels import nothing that lies above them. Users change it
with ``tt.full_precision``.
"""

from __future__ import annotations

import os
import threading

from tinytensor.backend import BackendError


def _is_full_everywhere() -> bool:
    value = os.environ.get("TINYTENSOR_TF32", "") or "1"
    if value not in ("0", "1"):
        raise BackendError(f"TINYTENSOR_TF32={value!r} must be '1' (the default) or '0' (products in full float32)")
    return value == "0"


class _Precision(threading.local):
    is_full = _is_full_everywhere()


precision = _Precision()
