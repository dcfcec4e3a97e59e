"""Tests of the explorer's page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import CHROMIUM, SWITCHES, Explorer, Tab
from explored import RUNS, named_run, sentence_folder

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind (see tests/explored.py), by name; one, "named", whose heads have names; and
    "sentences", a pretrained model of them."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: make(folder / name) for name, make in {**RUNS, "named": named_run, "sentences": sentence_folder}.items()}


@pytest.fixture(scope="session")
def explorers(runs: dict[str, Path]) -> Iterator[dict[str, Explorer]]:
    """An explorer of each run."""
    started: dict[str, Explorer] = {}
    try:
        for name, path in runs.items():
            started[name] = Explorer(path)
        yield started
    finally:
        for explorer in started.values():
            explorer.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    assert CHROMIUM, "there is no Chromium: apt install chromium"
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """A page 1280 pixels wide. Nothing may go wrong on it."""
    opened = Tab(browser)
    yield opened
    opened.context.close()
    assert opened.faults == []
