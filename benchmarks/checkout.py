"""The checkout that this folder belongs to. Imported first, it lets the benchmarks run without an installation: what is
imported then comes from this checkout, also where another one is installed. What the tests compare with, too, can be imported
(``torch_models``, ``browsing``)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "tests"))


def variables() -> dict[str, str]:
    """Environment variables by which CuPy, and processes that are started, find the checkout and CUDA's libraries.

    The checkout comes first in PYTHONPATH. CuPy looks for CUDA's libraries and headers in site-packages, but not in the other
    folders of the path. Where one of those has them, CUDA_PATH names their place, unless it is set already.
    """
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join([str(ROOT), *map(os.path.abspath, given)])  # as some processes run in another folder
    cuda = next((folder for entry in sys.path if (folder := Path(entry or ".", "nvidia", "cu13")).is_dir()), None)
    known = {"CUDA_PATH", "CUDA_HOME"} & os.environ.keys()
    return {"PYTHONPATH": path, **({"CUDA_PATH": str(cuda.resolve())} if cuda and not known else {})}
