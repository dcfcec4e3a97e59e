"""A step of word2vec with negative sampling (Mikolov et al. 2013). It changes only the rows of the words that it reads."""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.silu import sigmoid
from tinytensor.kernels.numpy.sum_rows import sum_rows


def negative_sampling_step(inputs: Any, outputs: Any, contexts: Any, targets: Any, rate: float) -> None:
    """Descend the gradient of a batch by ``rate``, in place. All of the gradient is that of the weights before the step.

    inputs, outputs: the vectors of the words as contexts and as targets, (words, width). contexts (n, c): the ids of the words
    from which example i predicts. targets (n, 1 + k): the word to predict, then k words that are to be told from it. An id of
    -1 is no word; there must be a context and a target in each row.

    With h the mean of the contexts' vectors, the loss of an example is -log sigmoid(h . target) - sum log sigmoid(-h . other).
    Each context gets the whole gradient of h, not its share of it, as in Mikolov's program.
    """
    d_h, d_rows = gradients(inputs, outputs, contexts, targets)
    _subtract(outputs, targets, d_rows, rate)
    _subtract(inputs, contexts, d_h, rate)


def gradients(inputs: Any, outputs: Any, contexts: Any, targets: Any) -> tuple[Any, Any]:
    """The gradients of each context (n, c, width) and of each target (n, 1 + k, width). They are 0 where there is no word."""
    is_context, is_target = contexts >= 0, targets >= 0
    count = is_context.sum(axis=1).astype(inputs.dtype)
    h = xp.einsum("nc,ncw->nw", is_context / count[:, None], inputs[contexts])
    rows = outputs[targets]
    slopes = sigmoid(xp.einsum("nw,ntw->nt", h, rows))  # of the loss by each score
    slopes[:, 0] -= 1.0
    slopes *= is_target
    d_h = xp.einsum("nt,ntw->nw", slopes, rows)
    return d_h[:, None] * is_context[..., None], h[:, None] * slopes[..., None]


def _subtract(weights: Any, ids: Any, rows: Any, rate: float) -> None:
    """Subtract the rows times the rate. A batch has few of all words, so only their rows are touched."""
    sum_rows(-rate * rows, xp.maximum(ids, 0), weights)  # the gradient of -1 is 0
