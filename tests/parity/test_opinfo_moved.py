"""PyTorch's samples, moved far from 0 or made huge: tinytensor in float32 is as close to float64 as PyTorch in float32 is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from parity.opinfo_entries import ENTRIES
from parity.test_opinfo import OP_INFOS, as_defined, call, differences, flat  # noqa: F401 (as_defined is a fixture)

import tinytensor as tt

CHANGES = {"moved by 1e6": lambda x: x + 1e6, "times 1e30": lambda x: x * 1e30}
SAMPLES = 4  # of each entry, spread over all of them
WORSE = 8.0  # how many times as large as PyTorch's an error may be: both round, in another order
ROUNDING = 1e-6  # an error that is allowed in any case, relative to a result's largest number

# Entries that are not compared after a change, and why.
LEFT_OUT = {
    ("cumprod", "times 1e30"): "PyTorch multiplies in float64, so a product that overflows may come back to a 0",
    ("nn.functional.binary_cross_entropy_with_logits", "times 1e30"): "targets and weights of 1e30 have an infinite product",
    ("nn.functional.cross_entropy", "times 1e30"): "likewise",
    ("topk", "moved by 1e6"): "rounding makes some numbers equal, and the first of equals gets the gradient",
    ("nn.functional.scaled_dot_product_attention", "moved by 1e6"): (
        "the row sums of g * out stand for those of the weights' gradients, as in PyTorch's fused kernels: rounding, times 1e6"
    ),
}
PRODUCTS = ("matmul", "mm", "__rmatmul__", "addmm", "linalg.multi_dot", "tensordot")
LEFT_OUT |= dict.fromkeys([(name, "times 1e30") for name in PRODUCTS], "which product overflows first depends on the processor")
RUNS = [(n, c) for n in ENTRIES if torch.float32 in OP_INFOS[n].dtypes for c in CHANGES if (n, c) not in LEFT_OUT]


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The argument with ``change`` applied to each floating-point tensor in it."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(v, change) for v in value)
    return {k: mapped(v, change) for k, v in value.items()} if isinstance(value, dict) else value


def changed(sample: Any, change: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> Any:
    """The sample with its float32 numbers changed, in this dtype. What wants gradients still does."""

    def prepared(x: torch.Tensor) -> torch.Tensor:
        return change(x.detach()).to(dtype).requires_grad_(x.requires_grad)

    first, args, kwargs = [mapped(part, prepared) for part in (sample.input, sample.args, sample.kwargs)]
    return type(sample)(first, args=args, kwargs=kwargs)


def samples(name: str) -> Iterator[Any]:
    torch.manual_seed(0)
    info = OP_INFOS[name]
    every = list(info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd))
    alike = [s for s in every if not any(difference.concerns(s, "float32") for difference in differences(name))]
    return itertools.islice(alike, 0, None, max(1, len(alike) // SAMPLES))


def with_gradients(library: Any, outputs: list[Any], leaves: list[Any], gradients: Callable[..., Any]) -> list[Any]:
    """The floating-point outputs, then the gradients of their sum with unequal factors; None for a leaf that has none."""
    outputs = [x for x in outputs if "float" in str(getattr(x, "dtype", ""))]
    factors = [numpy.cos(numpy.arange(x.numel() if library is torch else x.size)).reshape(tuple(x.shape)) for x in outputs]
    total = sum((x * library.tensor(f.astype("float32"))).sum() for x, f in zip(outputs, factors) if x.requires_grad)
    found = gradients(total, leaves, allow_unused=True) if leaves and outputs and total.requires_grad else []
    return [None if x is None else numpy.asarray(x.detach().numpy(), "float64") for x in (*outputs, *found)]


def assert_as_close(ours: Any, theirs: Any, truth: Any, what: str) -> None:
    """Each is an array in float64, or None."""
    assert (ours is None) == (theirs is None), what
    if ours is None or not truth.size:
        return
    truth = truth.astype("float32").astype("float64")  # in which it may be infinite
    right = numpy.isfinite(theirs) == numpy.isfinite(truth)
    right &= numpy.isfinite(theirs) | (numpy.isnan(theirs) == numpy.isnan(truth))
    ours, theirs, truth = ours[right], theirs[right], truth[right]
    finite = numpy.isfinite(truth)
    numpy.testing.assert_array_equal(ours[~finite], truth[~finite], err_msg=what)
    if finite.any():
        error, its = [numpy.abs(x[finite] - truth[finite]).max() for x in (ours, theirs)]
        allowed = WORSE * its + ROUNDING * numpy.abs(truth[finite]).max()
        assert error <= allowed, f"{what}: the error is {error}, and PyTorch's {its}"


def of_torch(name: str, sample: Any) -> list[Any]:
    leaves = [x for x in found_in([sample.input, sample.args, sample.kwargs]) if x.requires_grad]
    outputs = flat(OP_INFOS[name](sample.input, *sample.args, **sample.kwargs))
    return with_gradients(torch, outputs, leaves, torch.autograd.grad)


def found_in(value: Any) -> list[torch.Tensor]:
    """The floating-point tensors of a sample, in order."""
    found: list[torch.Tensor] = []
    mapped(value, lambda x: found.append(x) or x)
    return found


@pytest.mark.parametrize(("name", "how"), RUNS)
def test_entry(name, how):
    for sample in samples(name):
        narrow, wide = [changed(sample, CHANGES[how], dtype) for dtype in (torch.float32, torch.float64)]
        try:
            theirs, truth = of_torch(name, narrow), of_torch(name, wide)
        except RuntimeError:
            continue  # PyTorch refuses these numbers: a probability of 1e6, say
        pairs: list[tuple[tt.Tensor, torch.Tensor]] = []
        outputs = flat(call(name, narrow, pairs))
        ours = with_gradients(tt, outputs, [x for x, _ in pairs], tt.grad)
        assert len(ours) == len(theirs)
        for place, arrays in enumerate(zip(ours, theirs, truth)):
            assert_as_close(*arrays, f"result {place} of {len(ours)}, the last {len(pairs)} gradients, of {sample}")
