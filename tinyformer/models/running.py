"""Whether anything that a model computes is being recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_recordings: list[None] = []  # one for each ``with recording()`` that is running, of any thread


@contextmanager
def recording() -> Iterator[None]:
    """A context in which ``is_recording`` is true."""
    _recordings.append(None)
    try:
        yield
    finally:
        _recordings.pop()


def is_recording() -> bool:
    """Whether anything is being recorded. A function that was traced before would record nothing."""
    return bool(_recordings)
