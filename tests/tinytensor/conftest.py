"""Every test starts from the same random numbers, and can run code in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tinytensor as tt


@pytest.fixture(autouse=True)
def seeded():
    tt.seed(0)


@pytest.fixture
def python():
    """Run code in a Python of its own, with these variables in its environment."""

    def run(code, **environment):
        variables = {**os.environ, "PYTHONPATH": str(Path(tt.__file__).parents[1]), **environment}
        return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)

    return run
