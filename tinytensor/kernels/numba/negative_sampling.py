"""A step of word2vec with negative sampling, example by example. kernels/numpy/negative_sampling.py has the contract and the
formulas."""

from __future__ import annotations

from typing import Any

import numpy

from tinytensor.device.backend import index_dtype
from tinytensor.kernels.numba.compiling import real, reduction
from tinytensor.kernels.numba.functions import exp, place
from tinytensor.kernels.numpy.negative_sampling import negative_sampling_step as in_numpy


@reduction
def _step(inputs: Any, outputs: Any, contexts: Any, targets: Any, rate: float, hidden: Any, changes: Any, scales: Any) -> None:
    """First finds h of each example, what it adds to its contexts, and how much of h it adds to each target. Then adds it."""
    examples, width = hidden.shape
    for i in range(examples):
        count = real(0)
        for j in range(width):
            hidden[i, j] = real(0)
            changes[i, j] = real(0)
        for c in range(contexts.shape[1]):
            if contexts[i, c] >= 0:
                at = place(contexts[i, c], inputs.shape[0])
                count += real(1)
                for j in range(width):
                    hidden[i, j] += inputs[at, j]
        for j in range(width):
            hidden[i, j] /= count
        for t in range(targets.shape[1]):
            if targets[i, t] >= 0:
                at = place(targets[i, t], outputs.shape[0])
                score = real(0)
                for j in range(width):
                    score += hidden[i, j] * outputs[at, j]
                right = real(1) if t == 0 else real(0)
                scale = rate * (right - real(1) / (real(1) + exp(-score)))
                scales[i, t] = scale
                for j in range(width):
                    changes[i, j] += scale * outputs[at, j]
    for i in range(examples):
        for t in range(targets.shape[1]):
            at, scale = targets[i, t], scales[i, t]  # what is read within an innermost loop keeps it from being vectorised
            if at >= 0:
                for j in range(width):
                    outputs[at, j] += scale * hidden[i, j]
        for c in range(contexts.shape[1]):
            at = contexts[i, c]
            if at >= 0:
                for j in range(width):
                    inputs[at, j] += changes[i, j]


def negative_sampling_step(inputs: Any, outputs: Any, contexts: Any, targets: Any, rate: float) -> None:
    """Descend the gradient of a batch by ``rate``, in place."""
    if not all(a.flags.carray and a.dtype.isnative for a in (inputs, outputs)):
        in_numpy(inputs, outputs, contexts, targets, rate)
        return
    ids = [numpy.ascontiguousarray(a, index_dtype) for a in (contexts, targets)]
    hidden, changes = (numpy.empty((len(contexts), inputs.shape[1]), inputs.dtype) for _ in range(2))
    _step(inputs, outputs, *ids, rate, hidden, changes, numpy.empty(targets.shape, inputs.dtype))
