"""The layers in the guide of recipes equal PyTorch's: values, gradients and weight names."""

from __future__ import annotations

from typing import Any

import numpy
import pages
import pytest
import torch
from parity.compare import assert_same_module

RECIPE = next(code for code in pages.blocks(pages.PAGES["docs/guides/recipes.md"], "python") if "class Conv2d" in code)
WRITTEN: dict[str, Any] = {}
exec(RECIPE[: RECIPE.index("tt.seed(0)")], WRITTEN)  # the classes, without what trains them


def images(*shape: int) -> numpy.ndarray:
    return numpy.random.default_rng(0).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("channels", [(1, 1), (3, 5)], ids=str)
@pytest.mark.parametrize("settings", [(3,), (1,), (3, 2), (3, 1, 1), (5, 2, 2), (2, 3, 1)], ids=str)
def test_conv2d(channels, settings):
    assert_same_module(
        WRITTEN["Conv2d"](*channels, *settings), torch.nn.Conv2d(*channels, *settings), images(2, channels[0], 9, 12)
    )


def test_conv2d_begins_as_pytorchs_does():
    for written, theirs in zip(WRITTEN["Conv2d"](3, 64, 5).parameters(), torch.nn.Conv2d(3, 64, 5).parameters(), strict=True):
        most = theirs.abs().max().item()
        assert 0.8 * most < abs(written.numpy()).max() < 1.25 * most


@pytest.mark.parametrize("size", [1, 2, 3])
def test_max_pool2d(size):
    assert_same_module(WRITTEN["MaxPool2d"](size), torch.nn.MaxPool2d(size), images(2, 3, 9, 14))
