"""Every op in a captured step: the bits of the op and of its gradients, or an error that says what cannot be captured."""

import re
import sys

import pytest
from cases import CASES

import tinytensor as tt
from tinytensor import CaptureError
from tinytensor.device.backend import xp

# These wait for the GPU: CuPy's sort may, and the others look at values.
WAIT = {
    "allclose": "reading a value",
    "bincount": "reading a value",
    "argsort": "argsort cannot be captured",
    "best": "argsort cannot be captured",
    "one_hot": "reading a value",
    "sort": "argsort cannot be captured",
    "topk": "argsort cannot be captured",
}
WAIT |= dict.fromkeys("inv solve det slogdet_sign slogdet_logarithm cholesky".split(), "before, and pass it in")
RANDOM = {"dropout"}  # each call draws other numbers
REFUSED = "before, and pass it in|reading a value"  # for a case that makes a tensor itself, or looks at values
MAKE_TENSORS = {"block_rows", "embedding", "index_add", "nll_loss", "rotate_pairs", "sum_rows", "take"}  # all cases of these do


def results(case, inputs):
    """What a case gives, and the gradients of the first result."""
    out = case.f(*inputs)
    outs = out if isinstance(out, (tuple, list)) else [out]
    found = [x.detach() for x in outs if isinstance(x, tt.Tensor)]
    if isinstance(outs[0], tt.Tensor) and outs[0].node is not None:
        leaves = [x for x in inputs if x.node is not None]
        gradients = tt.grad(outs[0], leaves, tt.ones_like(outs[0]), allow_unused=True)
        found += [x for x in gradients if x is not None]
    return found


@pytest.mark.parametrize("op", sorted({case.op for case in CASES} - RANDOM))
def test_an_op_in_a_captured_step(monkeypatch, op):
    monkeypatch.setattr(sys.modules["tinytensor.replay.capture"], "_WARM_UPS", 1)  # tinytensor.replay.capture is the class
    captured = 0
    for case in [case for case in CASES if case.op == op and "dropout" not in case.label]:
        arrays = [x.astype("float32") if x.dtype.kind == "f" else x for x in case.inputs]
        inputs = [tt.tensor(x, requires_grad=i not in case.constant) for i, x in enumerate(arrays)]
        expected = [x.numpy().tobytes() for x in results(case, inputs)]
        step = tt.capture(lambda case=case, inputs=inputs: results(case, inputs))
        try:
            for _ in range(3):
                found = step()
        except RuntimeError as error:
            expects = re.search(WAIT.get(op, REFUSED), str(error))
            assert expects and (op in WAIT or isinstance(error, CaptureError)), case
        else:
            captured += 1
            assert [x.numpy().tobytes() for x in found] == expected, case
    assert captured or op in WAIT or op in MAKE_TENSORS
    assert not xp.cuda.get_current_stream().is_capturing()
