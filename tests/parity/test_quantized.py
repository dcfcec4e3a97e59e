"""Values are rounded to bfloat16 as PyTorch rounds them, and a quantized layer is close to PyTorch's in float32."""

import numpy as np
import torch

import tinytensor as tt
from tinytensor.kernels.numpy.quantized import from_bfloat16, to_bfloat16


def test_bfloat16():
    bits = np.arange(0, 1 << 32, 9973, dtype=np.uint64).astype(np.uint32)  # floats of all sizes, and ties
    bits = np.concatenate([bits, (bits & 0xFFFF0000) | 0x8000, (bits & 0xFFFF0000) | 0x7FFF, (bits & 0xFFFF0000) | 0x8001])
    x = bits[np.isfinite(bits.view("float32"))].view("float32")
    want = torch.tensor(x).bfloat16()
    got = tt.tensor(to_bfloat16(tt.tensor(x).data)).numpy()
    np.testing.assert_array_equal(got, want.view(torch.int16).numpy().view("uint16"))
    widened = tt.tensor(from_bfloat16(tt.tensor(got).data)).numpy()
    np.testing.assert_array_equal(widened.view("uint32"), want.float().numpy().view("uint32"))


def test_layers():
    theirs, x = torch.nn.Linear(64, 48), torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    want = theirs(x).detach().numpy()
    for dtype, most in [("int8", 0.01), ("int4", 0.15), ("bfloat16", 0.02)]:
        layer = tt.nn.Linear(64, 48)
        layer.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
        got = tt.nn.quantize_(layer, dtype)(tt.tensor(x.numpy())).numpy()
        assert 0 < np.abs(got - want).max() < most
