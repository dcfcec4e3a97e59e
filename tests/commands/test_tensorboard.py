"""The flag --tensorboard where the packages that it needs are missing. What it logs is tested in tests/parity."""

from __future__ import annotations

import pytest
from running import Program, entries

COMMAND = "train gpt"
TINY = ["--num-layers", "1", "--num-heads", "2", "--d-model", "16", "--block-size", "8", "--batch-size", "4"]
SHORT = ["--steps", "4", "--eval-every", "2", "--log-every", "2"]
FIRST_RUN = ["--data", "text.txt", "--out", "run", *TINY, *SHORT]


@pytest.mark.parametrize("package", ["tensorboardX", "PIL"])
def test_a_missing_package_is_reported_immediately(program: Program, package: str) -> None:
    message = program.bad(*FIRST_RUN, "--tensorboard", **program.without(package))
    assert message == f"a log for TensorBoard needs {package}: pip install 'tinyformer[tensorboard]'\n"
    assert not (program.folder / "run").exists()


def test_so_is_one_that_the_log_of_a_resumed_run_needs(copied: Program) -> None:
    log = copied.folder / "run/tensorboard"
    log.mkdir()
    (log / "events.out.tfevents.1700000000.here").write_bytes(b"")
    words = ["--resume-changed", "--out", "run", "--steps", "6"]
    before = entries(copied.folder / "run")
    message = copied.bad(*words, **copied.without("tensorboardX"))
    assert message == "a log for TensorBoard needs tensorboardX: pip install 'tinyformer[tensorboard]'\n"
    assert entries(copied.folder / "run") == before
    (log / "events.out.tfevents.1700000000.here").unlink()
    copied.good(*words)  # a run without such a log needs nothing
