"""What all pictures need: drawing where matplotlib is installed, and writing a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinyformer.plots.lettering import fonts_of_any_weight
from tinytensor.device.disk import atomic_write, make_folder


@contextmanager
def if_possible() -> Iterator[None]:
    """A context to draw pictures in. Without matplotlib nothing is drawn, and a line says that it is missing."""
    try:
        yield
    except ImportError:
        print("(no pictures: pip install matplotlib)")


def save(figure: Any, path: str | Path, dpi: float) -> Path:
    """Write a figure of matplotlib to a PNG. A file that is there stays until the new one is complete. Returns its path."""
    path = Path(path)
    make_folder(path.parent)
    with atomic_write(path) as file, fonts_of_any_weight():
        figure.savefig(file, format="png", dpi=dpi)
    return path
