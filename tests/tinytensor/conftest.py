"""Every test starts from the same random numbers."""

import pytest

import tinytensor as tt


@pytest.fixture(autouse=True)
def seeded():
    tt.seed(0)
