"""Other libraries' arrays: what shares memory with them, and what refuses to."""

import numpy as np
import pytest

import tinytensor as tt

numpy_only = pytest.mark.needs("numpy")


@numpy_only
def test_numpy_shares_the_memory():
    x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    for share in (np.asarray, np.from_dlpack):
        for y in (x, x.T, x[:, 1], tt.tensor(3.0), tt.zeros((0, 2))):
            array = share(y)
            assert array.shape == y.shape
            assert array.dtype == y.dtype
            assert y.size == 0 or np.shares_memory(array, y.data)
    assert not np.shares_memory(np.array(x), x.data)
    assert np.asarray(x, "float64").dtype == "float64"
    with pytest.raises(ValueError, match="copy"):
        np.array(x, "float64", copy=False)


@numpy_only
def test_an_array_that_cannot_be_written_stays_so():
    x = tt.broadcast_to(tt.tensor([1.0, 2.0]), (3, 2))
    assert not np.asarray(x).flags.writeable
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    shared = tt.from_dlpack(frozen)
    assert (shared + 1).tolist() == [1, 2, 3]
    shared[0] = 5.0  # this gives the tensor a changed copy
    assert (shared.tolist(), frozen[0]) == ([5, 1, 2], 0)


def test_gradients_are_not_lost_silently():
    w = tt.tensor([1.0], requires_grad=True)
    for x in (w, w * 2):
        with pytest.raises(TypeError, match=r"\.numpy\(\)"):
            np.asarray(x)
        with pytest.raises(BufferError, match=r"\.detach\(\)"):
            x.__dlpack__()


@pytest.mark.needs("cupy")
def test_a_gpu_is_not_read_silently():
    with pytest.raises(TypeError, match=r"\.numpy\(\)"):
        np.asarray(tt.ones(2))


@numpy_only
def test_an_axis_that_runs_backward():
    """PyTorch ends the process if it gets such memory."""
    x = tt.tensor([1.0, 2.0])[::-1]
    with pytest.raises(BufferError, match=r"\.copy\(\)"):
        np.from_dlpack(x)
    assert np.from_dlpack(x.copy()).tolist() == np.asarray(x).tolist() == [2, 1]


@numpy_only
def test_from_dlpack_shares_the_memory():
    values = np.arange(6.0).reshape(2, 3)
    x = tt.from_dlpack(values.T)
    assert np.shares_memory(x.data, values)
    values[0, 0] = 7.0
    assert x[0, 0].item() == 7
    assert tt.from_dlpack(x).data.ctypes.data == x.data.ctypes.data
    assert not x.requires_grad
    x.requires_grad = True
    (x * x).sum().backward()
    assert x.grad.tolist() == (2 * values.T).tolist()


def test_what_from_dlpack_refuses():
    with pytest.raises(TypeError, match=r"list has no __dlpack__.*tt\.tensor"):
        tt.from_dlpack([1.0])


@numpy_only
def test_from_dlpack_refuses_complex_numbers():
    with pytest.raises(TypeError, match="complex"):
        tt.from_dlpack(np.ones(2, "complex64"))


@numpy_only
def test_a_saved_value_that_a_shared_array_changes_is_not_noticed():
    """As the docstrings of numpy() and from_dlpack say. A copy is safe."""
    w, x = tt.ones(2, requires_grad=True), tt.ones(2)
    out = (w * x).sum()
    np.array(x)[:] = 5.0
    np.asarray(x)[:] = 3.0
    out.backward()
    assert w.grad.tolist() == [3, 3]


@numpy_only
def test_bars_of_a_tensor():
    plt = pytest.importorskip("matplotlib.figure")
    axes = plt.Figure().subplots()
    assert [bar.get_height() for bar in axes.bar(np.arange(2), tt.tensor([1.0, 2.0]))] == [1, 2]
    assert axes.plot(tt.tensor([1.0, 2.0]))[0].get_ydata(orig=False).tolist() == [1, 2]
    for draw in (axes.bar, axes.plot, axes.scatter):
        with pytest.raises(TypeError, match=r"\.detach\(\)"):
            draw(np.arange(2), tt.tensor([1.0, 2.0], requires_grad=True))


def test_operators_between_an_array_and_a_tensor_stay_as_they_were():
    x = tt.ones(2)
    with pytest.raises(TypeError, match="tensor"):
        np.ones(2) + x
    assert isinstance(np.float32(2) * x, tt.Tensor)
