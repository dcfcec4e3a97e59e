"""What needs no GPU of capturing steps: the functions that kernels and optimizers call, and the environment variable."""

import re

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import CaptureError, capturing


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
@pytest.mark.parametrize(
    ("value", "message"), [("yes", "TINYTENSOR_CAPTURE='yes' must be '0' .* or '1'"), ("1", "needs a GPU"), ("0", ""), ("", "")]
)
def test_the_environment_variable(python, value, message):
    run = python("import tinytensor.capturing as c; print(c.is_wanted)", TINYTENSOR_CAPTURE=value)
    if message:
        assert run.returncode and re.search(f"BackendError: .*{message}", run.stderr), run.stderr
    else:
        assert run.stdout.strip() == "False", run.stderr
