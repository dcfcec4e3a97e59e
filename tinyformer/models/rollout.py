"""Attention rollout: how much of each token reaches each position through all layers of a stack."""

from __future__ import annotations

from collections.abc import Sequence

import tinytensor as tt
from tinytensor import Tensor


def attention_rollout(weights: Sequence[Tensor]) -> list[Tensor]:
    """For each layer of a stack, how much of each input token is in each position after it: (batch, length, length), rows of
    queries that sum to 1 (Abnar and Zuidema 2020, equation 1).

    ``weights`` are those of the self-attention of each layer, the first one first, (batch, heads, length, length), as
    ``recording_attention`` gives them. Their mean over the heads counts for one half, and the residual connection for the
    other. Norms and feed-forward networks are left out, so this is an estimate. Raises ValueError for other shapes.

    >>> from tinyformer import attention_rollout
    >>> uniform = tt.full((1, 1, 2, 2), 0.5)
    >>> [x.tolist() for x in attention_rollout([uniform, uniform])]
    [[[[0.75, 0.25], [0.25, 0.75]]], [[[0.625, 0.375], [0.375, 0.625]]]]
    """
    found: list[Tensor] = []
    for layer in weights:
        if layer.ndim != 4 or layer.shape[-1] != layer.shape[-2] or layer.shape[0::2] != weights[0].shape[0::2]:
            raise ValueError(f"the weights must be (batch, heads, length, length), as of self-attention, not {layer.shape}")
        mixed = 0.5 * (layer.mean(axis=1) + tt.eye(layer.shape[-1], dtype=layer.dtype))
        mixed = mixed / mixed.sum(axis=-1, keepdims=True)
        found.append(mixed @ found[-1] if found else mixed)
    return found
