"""Embeddings, one row after the other; kernels/numpy/embedding.py has the contracts and formulas."""

from __future__ import annotations

from typing import Any

import numpy

from tinytensor.device.backend import index_dtype, is_floating
from tinytensor.device.summation import widened
from tinytensor.kernels.numba.compiling import loop, real, reduction
from tinytensor.kernels.numba.functions import checked_index, exp
from tinytensor.kernels.numpy import embedding as in_numpy

_MANY = 1024  # rows of one id; more are added up in float64


@loop
def _count(rows: Any, ids: Any, counts: Any) -> None:
    for i in range(ids.size):
        counts[checked_index(ids[i], counts.size)] += 1


@loop
def _add_rows(rows: Any, ids: Any, out: Any) -> None:
    for i in range(ids.size):
        at = checked_index(ids[i], out.shape[0])
        for j in range(rows.shape[1]):
            out[at, j] += rows[i, j]


def sum_rows(rows: Any, ids: Any, out: Any) -> Any:
    """``sum_rows`` of kernels/numpy."""
    if ids.dtype.kind not in "iu" or not is_floating(rows.dtype):
        return in_numpy.sum_rows(rows, ids, out)
    rows = widened(rows)
    rows = numpy.ascontiguousarray(rows, rows.dtype.newbyteorder("=")).reshape(ids.size, out.shape[1])
    if out.dtype != rows.dtype or not out.flags.c_contiguous:
        out += sum_rows(rows, ids, numpy.zeros(out.shape, rows.dtype))
        return out
    ids = numpy.ascontiguousarray(ids, index_dtype).reshape(-1)
    counts = numpy.zeros(len(out), index_dtype)
    if ids.size > _MANY:
        _count(rows, ids, counts)
    sums = numpy.zeros(out.shape) if counts.max(initial=0) > _MANY else out
    _add_rows(rows, ids, sums)
    if sums is not out:
        out += sums.astype(out.dtype)
    return out


@reduction
def _step(inputs: Any, outputs: Any, contexts: Any, targets: Any, rate: float, hidden: Any, changes: Any, scales: Any) -> None:
    """Compute h of each example, the change of its contexts, and each target's factor of h. Then add all changes."""
    examples, width = hidden.shape
    for i in range(examples):
        count = real(0)
        for j in range(width):
            hidden[i, j] = real(0)
            changes[i, j] = real(0)
        for c in range(contexts.shape[1]):
            if contexts[i, c] >= 0:
                at = checked_index(contexts[i, c], inputs.shape[0])
                count += real(1)
                for j in range(width):
                    hidden[i, j] += inputs[at, j]
        for j in range(width):
            hidden[i, j] /= count
        for t in range(targets.shape[1]):
            if targets[i, t] >= 0:
                at = checked_index(targets[i, t], outputs.shape[0])
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
            at, scale = targets[i, t], scales[i, t]  # loads in the innermost loop keep it from being vectorised
            if at >= 0:
                for j in range(width):
                    outputs[at, j] += scale * hidden[i, j]
        for c in range(contexts.shape[1]):
            at = contexts[i, c]
            if at >= 0:
                for j in range(width):
                    inputs[at, j] += changes[i, j]


def negative_sampling_step(inputs: Any, outputs: Any, contexts: Any, targets: Any, rate: float) -> None:
    """``negative_sampling_step`` of kernels/numpy."""
    if not all(a.flags.carray and a.dtype.isnative for a in (inputs, outputs)):
        in_numpy.negative_sampling_step(inputs, outputs, contexts, targets, rate)
        return
    ids = [numpy.ascontiguousarray(a, index_dtype) for a in (contexts, targets)]
    hidden, changes = (numpy.empty((len(contexts), inputs.shape[1]), inputs.dtype) for _ in range(2))
    _step(inputs, outputs, *ids, rate, hidden, changes, numpy.empty(targets.shape, inputs.dtype))
