"""What only a GPU can show: run with ``TINYTENSOR_BACKEND=cupy pytest tests/gpu``; on NumPy everything here is skipped.

The reference is the NumPy backend in a process of its own: ``experiments.py`` runs the same function on both sides. So that
the tests themselves are tested, they also run on the fake CuPy, where sizes are small:
``PYTHONPATH=tests/standin TINYTENSOR_BACKEND=cupy pytest tests/gpu``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import experiments
import numpy as np
import pytest

import tinytensor as tt

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def on_a_gpu():
    if tt.backend_name != "cupy":
        pytest.skip("needs a GPU: TINYTENSOR_BACKEND=cupy pytest tests/gpu")


@pytest.fixture(scope="session")
def on_numpy(on_a_gpu, tmp_path_factory):
    """What an experiment finds on the NumPy backend, at the size that it has here. Each is run once."""
    folder, found = tmp_path_factory.mktemp("numpy"), {}
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TINYTENSOR_BACKEND": "numpy", "TINYTENSOR_KERNELS": "numpy", "PYTHONPATH": path}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with (
        open(folder / "errors", "w+") as errors,
        subprocess.Popen([sys.executable, experiments.__file__, experiments.SIZE], stderr=errors, **pipes) as process,
    ):

        def run(name, *words):
            key = (name, *words)
            if key not in found:
                path = folder / f"{len(found)}.npz"
                assert process.poll() is None, "the process ended in an earlier experiment"
                print(json.dumps([str(path), name, *map(str, words)]), file=process.stdin, flush=True)
                answer = process.stdout.readline()  # nothing if the process ends
                assert answer == f"{name}\n", (folder / "errors").read_text()
                with np.load(path) as file:
                    found[key] = dict(file)
            return found[key]

        yield run
        process.stdin.close()
