"""Import this first to run the benchmarks without installing the packages: imports then come from this checkout, even if
another one is installed. The tests' helpers (``torch_models``, ``browsing``) can be imported, too."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "tests"))


def variables() -> dict[str, str]:
    """Return the environment variables with which CuPy and child processes find the checkout and CUDA's libraries.

    The checkout comes first in PYTHONPATH. CuPy looks for CUDA's libraries and headers in site-packages only. If another folder
    of the path has them, CUDA_PATH is set to it, unless the user has set it.
    """
    entries = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join([str(ROOT), *map(os.path.abspath, entries)])  # absolute, as some processes run in another folder
    cuda = next((folder for entry in sys.path if (folder := Path(entry or ".", "nvidia", "cu13")).is_dir()), None)
    known = {"CUDA_PATH", "CUDA_HOME"} & os.environ.keys()
    return {"PYTHONPATH": path, **({"CUDA_PATH": str(cuda.resolve())} if cuda and not known else {})}
