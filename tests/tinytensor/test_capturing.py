"""What needs no GPU of capturing steps: the functions that kernels and optimizers call, and the environment variable."""

from contextlib import nullcontext

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import CaptureError
from tinytensor.autograd.replaying import current_step
from tinytensor.device import backend
from tinytensor.replay import capture


def test_outside_a_captured_step_everything_runs_immediately():
    done, step = [], current_step()
    assert step.numbers(lambda: (1.5, 2.5), "float32") == (1.5, 2.5)
    assert step.changing(lambda: 3) == 3
    step.repeat(lambda: done.append(1))
    assert done == [1] and not step.is_captured
    assert float(capture.Number(lambda: 2)) == 2.0
    assert step.table(np.arange(3)).tolist() == [0, 1, 2]
    assert step.constant(lambda n: step.table(np.arange(n)), 4).tolist() == [0, 1, 2, 3]


@pytest.mark.needs("numpy")
def test_only_a_gpu_can_capture():
    with pytest.raises(CaptureError, match="TINYTENSOR_BACKEND=cupy"):
        tt.capture(lambda: None)


@pytest.mark.needs("numpy")
def test_the_environment_variable(python, monkeypatch):
    unknown = "TINYTENSOR_CAPTURE='yes' must be '0' .* or '1'"
    for value, expected in [("0", False), ("", False), ("1", "needs a GPU"), ("yes", unknown)]:
        monkeypatch.setenv("TINYTENSOR_CAPTURE", value)
        with nullcontext() if expected is False else pytest.raises(backend.BackendError, match=expected):
            assert capture._is_wanted() is expected
    run = python("import tinytensor", TINYTENSOR_CAPTURE="1")
    assert "BackendError: TINYTENSOR_CAPTURE=1 needs a GPU" in run.stderr
