"""A step of word2vec with negative sampling. kernels/numpy/negative_sampling.py has the contract and the formulas."""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.cupy.sum_rows import sum_rows
from tinytensor.kernels.numpy.negative_sampling import gradients


def negative_sampling_step(inputs: Any, outputs: Any, contexts: Any, targets: Any, rate: float) -> None:
    """Descend the gradient of a batch by ``rate``, in place."""
    d_h, d_rows = gradients(inputs, outputs, contexts, targets)
    for weights, ids, rows in ((outputs, targets, d_rows), (inputs, contexts, d_h)):
        sum_rows(-rate * rows, xp.maximum(ids, 0), weights)  # the gradient of -1 is 0
