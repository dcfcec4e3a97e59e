"""What a forked child does, as a test's process forks it."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest


def in_a_fork(function: Callable[[], Any], seconds: float = 30.0) -> bool:
    """The result of the function in a forked child. False if it raises an error or does not end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a warning about a fork with threads, which is what we test
        child = os.fork()
    if not child:
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)  # without the parent's exit handlers, such as those of pytest
    for _ in range(int(seconds / 0.02)):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def needs_fork(test: Callable[..., None]) -> Callable[..., None]:
    """A GPU's context does not survive a fork."""
    return pytest.mark.needs("numpy")(pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")(test))
