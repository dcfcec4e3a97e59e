"""Ranks of MPI keep the contract of a communicator, and end together."""

from __future__ import annotations

import functools
import pickle
import tempfile
from pathlib import Path

import mpi
import pytest
import rank_checks
from rank_checks import CHECKS

pytestmark = [pytest.mark.needs("mpi"), pytest.mark.needs("numpy")]


@functools.cache
def found(size: int) -> dict[str, list[str]]:
    """What all checks found on so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found"
        result = mpi.run(size, [str(rank_checks.__file__), str(path)])
        assert result.returncode == 0, result.stderr
        return pickle.loads(path.read_bytes())


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("size", [2, 3])
def test_the_contract(size: int, check: str) -> None:
    assert "\n".join(found(size)[check]) == ""
