"""Starting ranks by mpiexec."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AS_MANY_AS_ASKED = {"OMPI_MCA_rmaps_base_oversubscribe": "true", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def mpiexec() -> str | None:
    """The program of the wheel that brought it, which is beside this Python, or the system's."""
    return shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


@functools.cache
def fits() -> bool:
    """Whether mpi4py and mpiexec are here, and belong to the same MPI."""
    if importlib.util.find_spec("mpi4py") is None or mpiexec() is None:
        return False
    code = "import sys; from mpi4py import MPI; sys.exit(MPI.COMM_WORLD.size != 2)"
    return run(2, ["-c", code]).returncode == 0


def command(ranks: int, words: Sequence[str]) -> list[str]:
    """Return the command that starts Python with these arguments on this many ranks."""
    return [mpiexec() or "mpiexec", "-n", str(ranks), sys.executable, *words]


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """These variables, such that ranks find this checkout, and use one thread each."""
    path = os.pathsep.join([str(ROOT), *filter(None, [variables.get("PYTHONPATH")])])
    return {**AS_MANY_AS_ASKED, **variables, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}


def run(ranks: int, words: Sequence[str], folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Start this many ranks, and wait until they end."""
    given = environment({**os.environ, **variables})
    options = {"capture_output": True, "text": True, "timeout": 120, "check": False}
    return subprocess.run(command(ranks, words), cwd=folder, env=given, stdin=subprocess.DEVNULL, **options)
