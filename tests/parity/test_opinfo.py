"""PyTorch's own samples for its operators (OpInfo), run through tinytensor: values, gradients and second derivatives.

``opinfo_entries.py`` says which function an entry is compared with, and where the two libraries differ on purpose.
"""

from __future__ import annotations

import inspect
import random
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from cases import FUNCTIONS
from parity import opinfo_entries
from parity.compare import COTANGENTS, assert_close, gradients_of
from parity.opinfo_entries import DIFFERENCES, ENTRIES, LOSSES, TAKE_DTYPE, WITHOUT_ENTRY, Difference
from torch.testing._internal.common_methods_invocations import op_db

import tinytensor as tt

OP_INFOS = {f"{info.name}.{info.variant_test_name}".rstrip("."): info for info in op_db}
DTYPES = "float64 float32 float16 int64 uint8 bool".split()
TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3}
OUR_NAMES = {"dim": "axis", "keepdim": "keepdims", "correction": "ddof", "dim1": "axis1", "dim2": "axis2"}
MEANINGLESS = {"device", "layout", "pin_memory", "memory_format", "requires_grad"}

RUNS = [(name, dtype) for name in ENTRIES for dtype in DTYPES if getattr(torch, dtype) in OP_INFOS[name].dtypes]


def samples(name: str, dtype: str) -> Iterator[Any]:
    """The entry's samples, the same in each run. Those of float64 ask for gradients."""
    info = OP_INFOS[name]
    for module in (random, numpy.random, torch):
        (getattr(module, "manual_seed", None) or module.seed)(0)
    tt.seed(0)
    wants_gradients = dtype == "float64" and info.supports_autograd
    yield from info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=wants_gradients)


def translated(value: Any, leaves: list[tuple[tt.Tensor, torch.Tensor]]) -> Any:
    """A PyTorch argument as tinytensor takes it; pairs of tensors that require gradients are added to ``leaves``."""
    if isinstance(value, torch.Tensor):
        ours = tt.tensor(value.detach().numpy(), requires_grad=value.requires_grad)
        if value.requires_grad:
            leaves.append((ours, value))
        return ours
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(translated(v, leaves) for v in value)
    return value


def call(name: str, sample: Any, leaves: list[tuple[tt.Tensor, torch.Tensor]]) -> Any:
    x, args = translated(sample.input, leaves), translated(sample.args, leaves)
    settings = {OUR_NAMES.get(k, k): translated(v, leaves) for k, v in sample.kwargs.items() if k not in MEANINGLESS}
    if "dtype" in settings and name not in TAKE_DTYPE:
        x = x.astype(settings.pop("dtype"))
    return ENTRIES[name](x, *args, **settings)


def flat(outputs: Any) -> list[Any]:
    return [x for group in outputs for x in flat(group)] if isinstance(outputs, (list, tuple)) else [outputs]


def total(library: Any, outputs: list[Any]) -> Any:
    """The floating-point outputs times random numbers, the same for both libraries, summed."""
    rng = numpy.random.default_rng(COTANGENTS)
    pairs = [(x, rng.standard_normal(tuple(x.shape))) for x in outputs if "float" in str(x.dtype)]
    return sum((x * library.tensor(c)).sum() for x, c in pairs)


def compare(name: str, dtype: str, sample: Any) -> None:
    """Raises where tinytensor's outputs, or their first or second derivatives, are not PyTorch's."""
    info = OP_INFOS[name]
    theirs = [
        x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in flat(info(sample.input, *sample.args, **sample.kwargs))
    ]
    leaves: list[tuple[tt.Tensor, torch.Tensor]] = []
    ours = [x if isinstance(x, tt.Tensor) else tt.tensor(x) for x in flat(call(name, sample, leaves))]
    assert 0 < len(ours) <= len(theirs)
    theirs = [x.float() if dtype == "float16" and name in LOSSES else x for x in theirs[: len(ours)]]
    tolerance = TOLERANCE.get(dtype, 2e-5)
    for i, (mine, its) in enumerate(zip(ours, theirs)):
        assert_close(mine, its, tolerance, tolerance / 10, f"output {i}")
    for order in range(1, 1 + info.supports_autograd + info.supports_gradgrad):
        if not any(x.requires_grad for x in theirs):
            break
        (a, b), (mine, its) = (total(tt, ours), total(torch, theirs)), zip(*leaves)
        ours = [g for g, _ in gradients_of(tt, a, mine, None, create_graph=order == 1)]
        theirs = [g for g, _ in gradients_of(torch, b, its, None, create_graph=order == 1)]
        for i, (g, w) in enumerate(zip(ours, theirs)):
            assert_close(g, w, 1e-9, 1e-10, f"the derivative of order {order} of input {i}")


@pytest.fixture(autouse=True)
def as_defined():
    """PyTorch's attention by its definition, as its kernels have no second derivatives; its warnings are its own affair."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def differences(name: str) -> list[Difference]:
    return [difference for difference in DIFFERENCES if name in difference.entries.split()]


@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_entry(name, dtype):
    for sample in samples(name, dtype):
        if not any(difference.concerns(sample, dtype) for difference in differences(name)):
            compare(name, dtype, sample)


PAIRS = [(name, difference) for name in ENTRIES for difference in differences(name)]


@pytest.mark.parametrize(("name", "difference"), PAIRS, ids=[f"{name}: {difference.reason}" for name, difference in PAIRS])
def test_a_difference_that_is_listed_is_one(name, difference):
    for dtype in [dtype for other, dtype in RUNS if other == name]:
        for sample in samples(name, dtype):
            if difference.concerns(sample, dtype):
                try:
                    compare(name, dtype, sample)
                except (AssertionError, IndexError, OverflowError, TypeError, ValueError):
                    return
    pytest.fail("tinytensor agrees with PyTorch for all samples that this concerns: take it off the list")


def test_every_function_is_compared():
    called = {line.partition("=")[2] or line for line in opinfo_entries.ALIKE.split()}
    called |= set(re.findall(r"\b(?:tt|F)\.(\w+)", inspect.getsource(opinfo_entries)))
    without = FUNCTIONS - called
    assert set(WITHOUT_ENTRY) <= without
    assert [name for name in without if name in OP_INFOS or f"nn.functional.{name}" in OP_INFOS] == []


def test_every_entry_exists():
    assert set(ENTRIES) <= set(OP_INFOS)
    assert {name for difference in DIFFERENCES for name in difference.entries.split()} <= set(ENTRIES)
