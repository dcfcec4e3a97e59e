"""What would not fit in memory is refused before it is begun, with what it would need and what there is."""

from __future__ import annotations

import math

from tinyformer.errors import SettingError, UserError
from tinytensor.memory import device_memory, host_memory


def check_fits(needed: int, what: str, remedy: str, *settings: str, on_host: bool = False) -> None:
    """Raise UserError where ``needed`` bytes are more than there are for tensors, or ``on_host`` in main memory; with the
    names of ``settings`` that the message has, SettingError.

    ``needed`` is a lower bound: what is refused could not have run. It may be any integer.
    """
    there = host_memory() if on_host else device_memory()
    if there is not None and needed > there:
        message = f"{what} needs at least {in_bytes(needed)} of memory, and {in_bytes(there)} are there: {remedy}"
        raise SettingError(message, *settings) if settings else UserError(message)


def in_bytes(count: int) -> str:
    """A number of bytes for people: 512 bytes, 9.7 MB, 21 GB, 10^32 bytes."""
    if count >= 10**18:
        return f"10^{int(count.bit_length() * math.log10(2))} bytes"
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            value = count / 10**power
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return f"{count} bytes"
