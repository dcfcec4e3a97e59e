"""What needs no GPU of capturing steps: the functions that kernels and optimizers call, and the environment variable."""

from contextlib import nullcontext

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import CaptureError
from tinytensor.device import backend, capturing


def test_outside_of_a_captured_step_everything_is_done_at_once():
    done = []
    assert capturing.numbers(lambda: (1.5, 2.5), "float32") == (1.5, 2.5)
    assert capturing.changing(lambda: 3) == 3
    capturing.repeat(lambda: done.append(1))
    assert done == [1] and not capturing.is_on()
    assert float(capturing.Number(lambda: 2)) == 2.0
    assert capturing.table(np.arange(3)).tolist() == [0, 1, 2]
    assert capturing.constant(lambda n: capturing.table(np.arange(n)), 4).tolist() == [0, 1, 2, 3]


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
            assert capturing._is_wanted() is expected
    run = python("import tinytensor", TINYTENSOR_CAPTURE="1")
    assert "BackendError: TINYTENSOR_CAPTURE=1 needs a GPU" in run.stderr
