"""Every communicator keeps the same contract: the checks of tests/rank_checks.py, on ranks of each kind."""

from __future__ import annotations

import functools

import pytest
from rank_checks import CHECKS, all_checks

from tinytensor.distributed import Alone, default_method
from tinytensor.distributed.processes import processes

STARTS = ["fork 2", "fork 3", "spawn 2"] if default_method() == "fork" else ["spawn 2"]


@functools.cache
def found(start: str) -> dict[str, list[str]]:
    """What all checks found on ranks that are started in this way."""
    if start == "alone":
        return all_checks(Alone()) or {}
    method, size = start.split()
    with processes(int(size), all_checks, [], method) as ranks:
        return all_checks(ranks) or {}


@pytest.mark.needs("numpy")
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("start", ["alone", *STARTS])
def test_the_contract(start: str, check: str) -> None:
    assert "\n".join(found(start)[check]) == ""
