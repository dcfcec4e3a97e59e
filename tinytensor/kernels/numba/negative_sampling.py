"""A step of word2vec with negative sampling, example by example. kernels/numpy/negative_sampling.py has the contract and the
formulas."""

from __future__ import annotations

from typing import Any

import numpy

from tinytensor.backend import index_dtype
from tinytensor.kernels.numba.compiling import loop, real, reduction
from tinytensor.kernels.numba.exponential import exp
from tinytensor.kernels.numba.places import place
from tinytensor.kernels.numpy.negative_sampling import negative_sampling_step as in_numpy


@reduction
def _dot(x: Any, y: Any) -> Any:
    total = real(0)
    for j in range(x.size):
        total += x[j] * y[j]
    return total


@loop
def _add(x: Any, scale: Any, out: Any) -> None:
    for j in range(x.size):
        out[j] += scale * x[j]


@loop
def _mean(inputs: Any, contexts: Any, out: Any) -> None:
    count = real(0)
    out[:] = real(0)
    for c in range(contexts.size):
        if contexts[c] >= 0:
            _add(inputs[place(contexts[c], inputs.shape[0])], real(1), out)
            count += real(1)
    for j in range(out.size):
        out[j] /= count


@loop
def _step(
    inputs: Any, outputs: Any, contexts: Any, targets: Any, rate: float, hidden: Any, changes: Any, scales: Any
) -> None:
    """First what each example adds to its contexts, and with which factor it adds h to its targets; then all is added."""
    examples, width = hidden.shape
    for i in range(examples):
        h, change = hidden[i], changes[i]
        _mean(inputs, contexts[i], h)
        change[:] = real(0)
        for t in range(targets.shape[1]):
            if targets[i, t] >= 0:
                row = outputs[place(targets[i, t], outputs.shape[0])]
                probability = real(1) / (real(1) + exp(-_dot(h, row)))
                scales[i, t] = rate * ((real(1) if t == 0 else real(0)) - probability)
                _add(row, scales[i, t], change)
    for i in range(examples):
        for t in range(targets.shape[1]):
            if targets[i, t] >= 0:
                _add(hidden[i], scales[i, t], outputs[targets[i, t]])
        for c in range(contexts.shape[1]):
            if contexts[i, c] >= 0:
                _add(changes[i], real(1), inputs[contexts[i, c]])


def negative_sampling_step(inputs: Any, outputs: Any, contexts: Any, targets: Any, rate: float) -> None:
    """Descend the gradient of a batch by ``rate``, in place."""
    if not all(a.flags.carray and a.dtype.isnative for a in (inputs, outputs)):
        in_numpy(inputs, outputs, contexts, targets, rate)
        return
    ids = [numpy.ascontiguousarray(a, index_dtype) for a in (contexts, targets)]
    hidden, changes = (numpy.empty((len(contexts), inputs.shape[1]), inputs.dtype) for _ in range(2))
    _step(inputs, outputs, *ids, rate, hidden, changes, numpy.empty(targets.shape, inputs.dtype))
