"""Memory that is shared with PyTorch."""

import pytest
import torch

import tinytensor as tt

pytestmark = pytest.mark.needs("numpy")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3)])
def test_to_torch_and_back(dtype, shape):
    x = tt.ones(shape).astype(dtype)
    y = torch.from_dlpack(x)
    assert (tuple(y.shape), str(y.dtype)) == (shape, f"torch.{dtype}")
    y.fill_(0)
    assert not x.any()
    back = tt.from_dlpack(y)
    assert (back.shape, back.dtype) == (x.shape, x.dtype)
    if x.size:
        assert back.data.ctypes.data == x.data.ctypes.data == y.data_ptr()


def test_views():
    x = torch.arange(6.0).reshape(2, 3)
    assert tt.from_dlpack(x.T).tolist() == x.T.tolist()
    t = tt.from_dlpack(x)
    assert torch.from_dlpack(t.T[1:]).tolist() == x.T[1:].tolist()
    assert torch.from_dlpack(tt.broadcast_to(t[0], (4, 3))).shape == (4, 3)


def test_asarray_and_tensor():
    x = tt.tensor([1.0, 2.0])
    assert torch.asarray(x).tolist() == [1, 2]
    assert tt.tensor(torch.tensor([1.0, 2.0])).tolist() == [1, 2]


def test_rejected_inputs():
    with pytest.raises(TypeError, match=r"a torch\.Tensor of torch\.float32: make it one with tt\.tensor"):
        tt.ones(1) + torch.ones(1)
    w = tt.tensor([1.0], requires_grad=True)
    with pytest.raises(BufferError, match=r"detach\(\)"):
        torch.from_dlpack(w)
    with pytest.raises(BufferError, match="detach"):
        tt.from_dlpack(torch.ones(1, requires_grad=True))
    with pytest.raises(BufferError, match=r"copy\(\)"):
        torch.from_dlpack(tt.tensor([1.0, 2.0])[::-1])
    with pytest.raises(BufferError, match="convert"):
        tt.from_dlpack(torch.ones(1).bfloat16())
