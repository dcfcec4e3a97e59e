"""Every communicator keeps the same contract: the checks of tests/rank_checks.py, on ranks of each kind."""

from __future__ import annotations

import pytest
from rank_checks import all_checks

from tinytensor.distributed import Alone, default_method
from tinytensor.distributed.processes import processes

STARTS = ["fork 2", "fork 3", "spawn 2"] if default_method() == "fork" else ["spawn 2"]


@pytest.mark.needs("numpy")
@pytest.mark.parametrize("start", ["alone", *STARTS])
def test_the_contract(start: str) -> None:
    if start == "alone":
        found = all_checks(Alone())
    else:
        method, size = start.split()
        with processes(int(size), all_checks, [], method) as ranks:
            found = all_checks(ranks)
    assert found is not None
    assert not found, "\n".join(found)
