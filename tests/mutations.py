"""Files as they should not be: bytes changed at random, and JSON in which a value is of another kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator


def mutated(content: bytes, rng: Rng) -> bytes:
    """The content with one thing changed, or a few; perhaps nothing that counts."""
    kinds: list[Callable[[bytes, Rng], bytes]] = [flipped, cut_off, cut_out, repeated, inserted, swapped, renumbered]
    for _ in range(int(rng.choice([1, 1, 1, 2, 5]))):
        content = kinds[int(rng.integers(len(kinds)))](content, rng)
    return content


def _place(content: bytes, rng: Rng) -> int:
    """Anywhere, but often near the beginning, where headers are."""
    end = min(len(content), 400) if rng.random() < 0.3 else len(content)
    return int(rng.integers(end + 1))


def _stretch(content: bytes, rng: Rng) -> tuple[int, int]:
    start = _place(content, rng)
    return start, min(start + int(rng.choice([1, 2, 8, 100, 5000])), len(content))


def flipped(content: bytes, rng: Rng) -> bytes:
    """One bit flipped."""
    changed = bytearray(content)
    if changed:
        changed[min(_place(content, rng), len(changed) - 1)] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def cut_off(content: bytes, rng: Rng) -> bytes:
    """The end missing."""
    return content[: _place(content, rng)]


def cut_out(content: bytes, rng: Rng) -> bytes:
    """A stretch missing."""
    start, stop = _stretch(content, rng)
    return content[:start] + content[stop:]


def repeated(content: bytes, rng: Rng) -> bytes:
    """A stretch there twice."""
    start, stop = _stretch(content, rng)
    return content[:stop] + content[start:]


def inserted(content: bytes, rng: Rng) -> bytes:
    """Random bytes, or what a parser might trip over, put in."""
    what = [
        rng.bytes(int(rng.integers(1, 20))),
        b"\0",
        b"\xff\xfe",
        b"\r\n",
        b"\n\n",
        b"\t",
        b"[" * 5000,
        b'{"":' * 5000,
        b"9" * 5000,
    ]
    at = _place(content, rng)
    return content[:at] + what[int(rng.integers(len(what)))] + content[at:]


def swapped(content: bytes, rng: Rng) -> bytes:
    """Two neighbouring stretches in each other's place."""
    start, middle = _stretch(content, rng)
    stop = min(2 * middle - start, len(content))
    return content[:start] + content[middle:stop] + content[start:middle] + content[stop:]


def renumbered(content: bytes, rng: Rng) -> bytes:
    """A digit that is another one."""
    digits = [i for i, byte in enumerate(content[:20_000]) if 48 <= byte < 58]
    changed = bytearray(content)
    if digits:
        changed[digits[int(rng.integers(len(digits)))]] = 48 + int(rng.integers(10))
    return bytes(changed)


# ----------------------------------------------------------------------------------------------------------------- JSON

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2.0, 0.5, -0.0, 1e308, 10**30, -(10**30), 10**400, "", "x", "0", "\ud800", "\0", [], {}, [[]],
    {"": 0}, [1, 2], ["a", "a"], float("nan"), float("inf"), "a" * 10_000, [0] * 1000,
]  # fmt: skip


def with_another_value(text: str, rng: Rng, instead: Any = None) -> str:
    """JSON in which one value, at any depth, is an odd one, or missing, or one more. ``instead`` is the odd one, if given."""
    value = json.loads(text)
    places = list(_places(value)) or [(value, "x")]
    holder, key = places[int(rng.integers(len(places)))]
    odd = ODD[int(rng.integers(len(ODD)))] if instead is None else instead
    choice = rng.random()
    if choice < 0.8:
        holder[key] = odd
    elif choice < 0.9:
        if holder:
            del holder[key]
    elif isinstance(holder, dict):
        holder[f"{key} "] = odd
    else:
        holder.append(odd)
    return json.dumps(value)


def _places(value: Any) -> Any:
    """Every (list or object, index or key) in a JSON value; of long lists the first ones only."""
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(min(len(value), 5)):
            yield value, key
            yield from _places(value[key])
