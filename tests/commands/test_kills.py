"""kill -9 and SIGTERM at random moments. The run ends in the same way as an undisturbed one, and leaves no other files."""

from __future__ import annotations

import os
import random
import signal

import pytest
from kill_runs import Kills
from running import Program

COMMAND = "train gpt"
SEED = 3
# A small part of what ``python tests/kill_runs.py`` tries: each is a new process, of which importing NumPy takes the longest.
# The first one always comes in time.
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL] if os.name == "posix" else []

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a signal that cannot be caught")


def test_kills_at_random_moments(program: Program) -> None:
    statuses = Kills(program).trained(SIGNALS, random.Random(SEED))
    assert statuses[0] == -signal.SIGKILL


def test_a_kill_while_another_run_is_replaced(program: Program) -> None:
    Kills(program).replaced(random.Random(SEED))
