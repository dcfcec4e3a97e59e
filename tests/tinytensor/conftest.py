"""Every test starts from the same random numbers. Tests can run code in a new process."""

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
    """Run code in a new Python process, with these environment variables."""

    def run(code, **environment):
        variables = {**os.environ, "PYTHONPATH": str(Path(tt.__file__).parents[1]), **environment}
        return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)

    return run
