"""What the parity tests share: the same function, on the same values, in tinytensor and in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

import tinytensor as tt

torch.set_num_threads(1)  # the arrays here are small: more threads only wait for one another

# A seed that no test uses for its inputs: a cotangent proportional to x makes the gradient of a norm vanish.
COTANGENTS = 20_240_229


def to_numpy(x: Any) -> numpy.ndarray:
    """The values of either library's tensor; ``force`` is for PyTorch's tensors of zeros that own no memory."""
    return x.numpy(force=True) if isinstance(x, torch.Tensor) else x.numpy()


def assert_close(
    ours: tt.Tensor, theirs: torch.Tensor, relative: float = 1e-5, absolute: float = 0.0, what: str = "the values"
) -> None:
    """One shape, one dtype, and no element further apart than ``absolute`` + ``relative`` times the largest of PyTorch's."""
    a, b = to_numpy(ours), to_numpy(theirs)
    assert a.shape == b.shape, f"{what}: shape {a.shape}, in PyTorch {b.shape}"
    assert a.dtype == b.dtype, f"{what}: dtype {a.dtype}, in PyTorch {b.dtype}"
    if a.dtype.kind != "f":
        assert (a == b).all(), f"{what}: {a}, in PyTorch {b}"
        return
    finite = numpy.isfinite(b)
    numpy.testing.assert_array_equal(a[~finite], b[~finite], err_msg=what)
    error = numpy.abs(a[finite] - b[finite]).max(initial=0.0)
    allowed = absolute + relative * numpy.abs(b[finite]).max(initial=0.0)
    assert error <= allowed, f"{what}: {error:.3g} apart, allowed {allowed:.3g}"


def gradients_of(
    library: Any, out: Any, inputs: Sequence[Any], cotangent: Any, create_graph: bool = False
) -> list[tuple[Any, bool]]:
    """The gradient of each input, and whether it depends on it at all: zeros stand for one that does not."""
    if not out.requires_grad:
        return [(library.zeros_like(x), False) for x in inputs]
    compute: Callable[..., Any] = torch.autograd.grad if library is torch else tt.grad
    found = compute(out, inputs, cotangent, create_graph=create_graph, allow_unused=True)
    return [(library.zeros_like(x), False) if g is None else (g, True) for g, x in zip(found, inputs)]


def assert_same(
    ours: Callable[..., tt.Tensor],
    theirs: Callable[..., torch.Tensor],
    *arrays: numpy.ndarray,
    relative: float = 1e-5,
    absolute: float = 0.0,
    order: int = 1,
) -> None:
    """``ours`` and ``theirs`` agree on the arrays: the output, and the gradient of every floating-point array, for a random
    cotangent; with ``order=2`` the gradients of those gradients, too."""
    rng = numpy.random.default_rng(COTANGENTS)
    mine = [tt.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    its = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    out, expected = ours(*mine), theirs(*its)
    assert_close(out, expected, relative, absolute, "the output")
    mine, its = [x for x in mine if x.requires_grad], [x for x in its if x.requires_grad]
    cotangent = rng.standard_normal(expected.shape).astype(to_numpy(expected).dtype)
    got = gradients_of(tt, out, mine, tt.tensor(cotangent), create_graph=order == 2)
    wanted = gradients_of(torch, expected, its, torch.tensor(cotangent), create_graph=order == 2)
    for i, ((g, reached), (w, _)) in enumerate(zip(got, wanted)):
        assert reached, f"no gradient reached input {i}"
        assert_close(g, w, relative, absolute, f"the gradient of input {i}")
    if order == 2:
        second = [rng.standard_normal(x.shape).astype(a.dtype) for x, a in zip(its, (to_numpy(x) for x in its))]
        ours_total = sum((g * tt.tensor(c)).sum() for (g, _), c in zip(got, second))
        their_total = sum((g * torch.tensor(c)).sum() for (g, _), c in zip(wanted, second))
        ours_second, theirs_second = (gradients_of(tt, ours_total, mine, None), gradients_of(torch, their_total, its, None))
        for i, ((g, _), (w, _)) in enumerate(zip(ours_second, theirs_second)):
            assert_close(g, w, relative, absolute, f"the second derivative of input {i}")


def to_float64(ours: tt.nn.Module) -> None:
    """Give our module parameters of float64, as ``double`` does for PyTorch's."""
    for module in ours.modules():
        for name, value in vars(module).items():
            if isinstance(value, tt.nn.Parameter):
                setattr(module, name, tt.nn.Parameter(value.numpy().astype("float64")))


def copy_weights(ours: tt.nn.Module, theirs: torch.nn.Module) -> None:
    """Give our module PyTorch's values; the names and the shapes must be the same on both sides."""
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    assert [tuple(v.shape) for v in ours.state_dict().values()] == [tuple(v.shape) for v in state.values()]
    ours.load_state_dict({name: tt.tensor(value.numpy()) for name, value in state.items()})


def assert_same_module(ours: tt.nn.Module, theirs: torch.nn.Module, x: numpy.ndarray) -> None:
    """The two modules, with one set of weights, agree on x: the output, and the gradient of x and of every parameter."""
    copy_weights(ours, theirs)
    mine = tt.tensor(x, requires_grad=x.dtype.kind == "f")
    its = torch.tensor(x, requires_grad=x.dtype.kind == "f")
    out, expected = ours(mine), theirs(its)
    assert_close(out, expected, what="the output")
    cotangent = numpy.random.default_rng(COTANGENTS).standard_normal(expected.shape).astype("float32")
    out.backward(tt.tensor(cotangent))
    expected.backward(torch.tensor(cotangent))
    if its.requires_grad:
        assert_close(mine.grad, its.grad, what="the gradient of the input")
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert_close(p.grad, q.grad, what=f"the gradient of {name}")
