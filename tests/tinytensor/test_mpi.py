"""Ranks of MPI keep the contract of a communicator, and end together."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import mpi
import pytest
import rank_checks

pytestmark = [pytest.mark.needs("mpi"), pytest.mark.needs("numpy")]


@pytest.mark.parametrize("size", [2, 3])
def test_the_contract(size: int, tmp_path: Path) -> None:
    result = mpi.run(size, [str(rank_checks.__file__), str(tmp_path / "found")])
    assert result.returncode == 0, result.stderr
    found = pickle.loads((tmp_path / "found").read_bytes())
    assert not found, "\n".join(found)


# ------------------------------------------------------------------------------------------------------- failures


def ended(size: int, code: str) -> str:
    """Check that ranks which run this code end with a failure. Returns what they print, without what MPI adds."""
    start = "import os, sys, signal, numpy as np, tinytensor as tt\nfrom tinytensor import distributed, nn\n"
    result = mpi.run(size, ["-c", start + code])
    assert result.returncode not in (0, None), result.stderr
    own = re.sub(r"^Abort\(1\) on node .*\n?", "", result.stderr + result.stdout, flags=re.MULTILINE)
    return re.sub(r"\n*^=+\n(=.*\n)+=+\n(.*\n)*", "", own, flags=re.MULTILINE)


RUN = """
def sums(ranks):
    ranks.all_reduce([np.ones(3, np.float32)])
    if ranks.rank == 1:
        FAILS
    while True:
        ranks.all_reduce([np.ones(3, np.float32)])
distributed.run(sums)
"""


def test_an_error_on_one_rank() -> None:
    printed = ended(3, RUN.replace("FAILS", "raise ValueError('a reason')"))
    assert re.match(r"rank 1 on .* failed: Traceback", printed)
    assert printed.endswith("ValueError: a reason\n")
    assert printed.count("failed") == printed.count("Traceback") == 1


def test_an_error_of_the_user_on_one_rank() -> None:
    printed = ended(3, "from tinyformer.common.errors import UserError\n" + RUN.replace("FAILS", "raise UserError('a reason')"))
    assert re.fullmatch(r"error: rank 1 on .*: a reason\n", printed)


@pytest.mark.parametrize("how", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)"])
def test_a_rank_that_ends(how: str) -> None:
    ended(3, RUN.replace("FAILS", how))


def test_other_parameters_are_named() -> None:
    code = "rank = distributed.mpi.world().rank\ntt.seed(rank // 2)\ndistributed.run(print, nn.Linear(2, 3))"
    message = (
        r"error: rank 2 on .* has other parameters than rank 0: weight, bias. Seed all ranks alike before the model is made.\n"
    )
    assert re.fullmatch(message, ended(4, code))


@pytest.mark.parametrize("start", ["distributed.run(print)", "distributed.lead(print)"])
def test_another_version_of_the_code_is_named(start: str) -> None:
    code = "from tinytensor.distributed import agreement\nif distributed.mpi.world().rank: agreement._source = len\n" + start
    message = (
        r"error: rank 1 on .* has other code than rank 0: the source of tinytensor, the source of tinyformer. Install .*\n"
    )
    assert re.fullmatch(message, ended(2, code))


LEAD = """
class Member:
    def __init__(self, ranks): self.ranks = ranks
    def work(self, text):
        if self.ranks.rank == int(sys.argv[-1]): raise ValueError(text)
        self.ranks.barrier()
def main():
    with distributed.team(Member) as team:
        team.call_alike(Member.work, "a reason")
distributed.lead(main)
"""


def run_script(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Functions of a script are sent by name, so it is a file."""
    path = folder / "script.py"
    path.write_text("import sys\nfrom tinytensor import distributed\n" + text)
    return mpi.run(2, [str(path), *words])


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_in_a_team(tmp_path: Path, rank: int) -> None:
    result = run_script(tmp_path, LEAD, str(rank))
    assert result.returncode != 0
    assert f"rank {rank} on " in result.stderr
    assert "ValueError: a reason" in result.stderr


TEAMS = """
class Member:
    def __init__(self, ranks): self.ranks = ranks
    def rank_sum(self): return self.ranks.gather(self.ranks.rank)
def tell(ranks): return ranks.gather("run")
def main():
    for _ in range(2):
        with distributed.team(Member) as team:
            print(team.call_alike(Member.rank_sum))
            try:
                distributed.run(tell)
            except RuntimeError as error:
                print(error)
            print(team.call_alike(Member.rank_sum))
    print(distributed.run(tell))
    return "done"
outcome = distributed.lead(main)
print(outcome, file=sys.stdout if outcome else sys.stderr)  # lines of two ranks in one stream can run into each other
"""


def test_one_team_after_the_other_and_not_inside(tmp_path: Path) -> None:
    result = run_script(tmp_path, TEAMS)
    assert result.returncode == 0, result.stderr
    refused = "the ranks of mpiexec already work in a team: end it before another begins"
    lines = [*["[0, 1]", refused, "[0, 1]"] * 2, "['run', 'run']", "done"]
    assert result.stdout.splitlines() == lines
    assert result.stderr == "None\n"


def test_an_mpi_that_does_not_fit() -> None:
    """mpi4py sees one process, though several were started: they would each train alone."""
    code = "import os, sys; os.environ['PMI_SIZE'] = '2'\nfrom tinytensor import distributed\ndistributed.run(print)"
    environment = {**os.environ, "PYTHONPATH": str(mpi.ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "mpi4py and mpiexec belong to different versions of MPI" in result.stderr
