"""Embeddings: the gradient of a lookup, and a step of word2vec with negative sampling (Mikolov et al. 2013)."""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import xp
from tinytensor.device.summation import sum_over, widened
from tinytensor.kernels.numpy.activations import sigmoid

_RARE = 16  # ids that occur more often than this are summed one by one


def sum_rows(rows: Any, ids: Any, out: Any) -> Any:
    """Add the sum of the ``rows`` (..., width) with id i to row i of ``out`` (num_rows, width). Returns ``out``.

    Sorting brings equal ids together. Each frequent id takes one sum. For the rare ids, all first rows are added in one step,
    then all second rows, and so on. ``numpy.add.at`` takes a step for each row.
    """
    rows = widened(rows)
    if out.dtype != rows.dtype:
        out += sum_rows(rows, ids, xp.zeros(out.shape, rows.dtype))
        return out
    ids, rows = ids.reshape(-1), rows.reshape(ids.size, out.shape[1])
    order = xp.argsort(ids, kind="stable")
    ids = ids[order]
    starts = xp.flatnonzero(xp.concatenate([xp.ones(min(1, ids.size), dtype=bool), ids[1:] != ids[:-1]]))
    counts = xp.diff(starts, append=ids.size)
    frequent = counts > _RARE
    for start, count in zip(starts[frequent].tolist(), counts[frequent].tolist()):
        out[int(ids[start])] += sum_over(rows[order[start : start + count]], (0,))
    starts, counts = starts[~frequent], counts[~frequent]
    taken = 0
    while starts.size:
        out[ids[starts]] += rows[order[starts + taken]]
        taken += 1
        starts, counts = starts[counts > taken], counts[counts > taken]
    return out


def negative_sampling_step(inputs: Any, outputs: Any, contexts: Any, targets: Any, rate: float) -> None:
    """Descend the gradient of a batch by ``rate``, in place. The gradient is taken before any weight changes.

    inputs, outputs: the vectors of the words as contexts and as targets, (words, width). contexts (n, c): the ids of the words
    from which example i predicts. targets (n, 1 + k): the id of the word to predict, then of k negative samples. -1 is no word;
    each row has a context and a target.

    With h the mean of the contexts' vectors, the loss of an example is -log sigmoid(h . target) - sum log sigmoid(-h .
    negative). Each context gets the whole gradient of h, not its share, as in Mikolov's program.
    """
    d_h, d_rows = negative_sampling_gradients(inputs, outputs, contexts, targets)
    _subtract(outputs, targets, d_rows, rate)
    _subtract(inputs, contexts, d_h, rate)


def negative_sampling_gradients(inputs: Any, outputs: Any, contexts: Any, targets: Any) -> tuple[Any, Any]:
    """Return the gradients of each context (n, c, width) and each target (n, 1 + k, width), 0 where there is no word."""
    is_context, is_target = contexts >= 0, targets >= 0
    count = is_context.sum(axis=1).astype(inputs.dtype)
    h = xp.einsum("nc,ncw->nw", is_context / count[:, None], inputs[contexts])
    rows = outputs[targets]
    slopes = sigmoid(xp.einsum("nw,ntw->nt", h, rows))  # the gradient of the loss by each score
    slopes[:, 0] -= 1.0
    slopes *= is_target
    d_h = xp.einsum("nt,ntw->nw", slopes, rows)
    return d_h[:, None] * is_context[..., None], h[:, None] * slopes[..., None]


def _subtract(weights: Any, ids: Any, rows: Any, rate: float) -> None:
    """Subtract the rows times the rate. Only the batch's rows are touched."""
    sum_rows(-rate * rows, xp.maximum(ids, 0), weights)  # the gradient of -1 is 0
