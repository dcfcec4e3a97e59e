"""The figures that pictures are made of."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved."""
    from matplotlib.figure import Figure

    saved: list[Any] = []
    savefig = Figure.savefig

    def remember(figure: Any, *arguments: Any, **options: Any) -> None:
        saved.append(figure)
        savefig(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    return saved
