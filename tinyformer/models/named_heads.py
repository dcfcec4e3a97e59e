"""Named heads: classify attention heads by how much they attend to certain keys.

Let A be a head's attention weights (queries, keys), and K(q) the keys that a name selects for query q. The head's score is

    mean over the queries q with non-empty K(q) of the sum over k in K(q) of A[q, k].

KINDS lists the names. Induction is measured as prefix matching on ``repeated_tokens`` (Olsson et al. 2022), where only the
repetition predicts the next token. The "positional" score is the share of queries whose largest weight is at the head's most
common distance (Voita et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinytensor.device.backend import host


@dataclass(frozen=True)
class HeadKind:
    """A head name: its ``short`` form, TransformerLens's name for it ("" if none), the minimum score, and a definition of the
    score."""

    name: str
    short: str
    lens_name: str
    threshold: float
    definition: str


KINDS = (
    HeadKind(
        "induction",
        "ind",
        "induction_head",
        0.4,
        "attention to the token after an earlier occurrence of this one, where there is an earlier one (prefix matching, "
        "Olsson et al. 2022); only where no token sees those after it",
    ),
    HeadKind(
        "same token",
        "same",
        "duplicate_token_head",
        0.4,
        "attention to other occurrences of the same token, where there are any to be seen",
    ),
    HeadKind("previous token", "prev", "previous_token_head", 0.4, "attention to the token just before"),
    HeadKind("first token", "1st", "", 0.4, "attention to the first token, from all others"),
    HeadKind(
        "positional",
        "pos",
        "",
        0.9,
        "share of the tokens whose largest weight is at the same distance, whichever tokens stand there (Voita et al. 2019)",
    ),
)


def head_scores(weights: Any, ids: Any, causal: bool) -> tuple[Any, Any]:
    """Return the scores (heads, len(KINDS)) of self-attention heads, and each head's most common distance (heads,) from the
    "positional" score. The distance is how far the key is before the query, negative for a later key.

    ``weights`` (sequences, heads, length, length) belong to ``ids`` (sequences, length). A score is NaN if a name selects no
    keys for any query.

    >>> import numpy as np
    >>> from tinyformer.models.named_heads import KINDS, head_scores
    >>> previous = np.eye(4, k=-1)[None, None]  # each token attends to the one before
    >>> scores, distances = head_scores(previous, np.array([[5, 6, 7, 8]]), causal=True)
    >>> dict(zip((kind.name for kind in KINDS), scores[0].tolist()))["previous token"], distances[0].item()
    (1.0, 1)
    """
    weights, ids = host.asarray(weights), host.asarray(ids)
    by_name = {}
    for name, keys in _keys(ids, causal).items():
        queries = keys.any(-1).sum()
        attended = host.einsum("thqk,tqk->h", weights, keys.astype(weights.dtype))
        by_name[name] = attended / queries if queries else host.full(weights.shape[1], host.nan)
    by_name["positional"], distances = _positional(weights, causal)
    return host.stack([by_name[label.name] for label in KINDS], -1), distances


def _keys(ids: Any, causal: bool) -> dict[str, Any]:
    """Return a boolean array (sequences, length, length) for each name: the keys that it selects for each query."""
    texts, length = ids.shape
    positions = host.arange(length)
    before = positions[:, None] > positions  # (queries, keys)
    seen = before if causal else positions[:, None] != positions
    same = ids[:, :, None] == ids[:, None, :]
    after_same = host.zeros_like(same)
    after_same[:, :, 1:] = same[:, :, :-1]  # the token before the key equals the query
    everywhere = host.ones((texts, 1, 1), dtype=bool)
    return {
        "induction": after_same & before & causal,
        "same token": same & seen,
        "previous token": everywhere & (positions[:, None] == positions + 1),
        "first token": everywhere & (positions[:, None] > 0) & (positions == 0),
    }


def _positional(weights: Any, causal: bool) -> tuple[Any, Any]:
    """Return each head's most common distance, and the share of queries whose largest weight is at that distance."""
    texts, heads, length, _ = weights.shape
    first = 1 if causal else 0  # the first token attends only to itself
    if length <= first:
        return host.full(heads, host.nan), host.zeros(heads, dtype=int)
    distances = host.arange(first, length) - weights[:, :, first:].argmax(-1)  # (sequences, heads, queries)
    counts = [host.bincount((of_head + length).ravel(), minlength=2 * length) for of_head in distances.swapaxes(0, 1)]
    shares = host.stack(counts) / (texts * (length - first))
    return shares.max(-1), shares.argmax(-1) - length


def repeated_tokens(vocabulary: Sequence[int], room: int, rows: int, length: int = 25, copies: int = 4, seed: int = 0) -> Any:
    """Return random ids (rows, at most ``room``). Each row repeats up to ``length`` distinct ids of the vocabulary ``copies``
    times, or twice if a copy would have fewer than 8 ids. Olsson et al. (2022) use 25 and 4."""
    if room < 8 * copies:
        copies = 2
    count = min(length, room // copies, len(vocabulary))
    random = host.random.default_rng(seed)
    drawn = host.stack([random.permutation(len(vocabulary))[:count] for _ in range(rows)])
    return host.tile(host.asarray(vocabulary)[drawn], (1, copies))


def names_of(scores: Any) -> list[str]:
    """Return the names whose thresholds these scores (len(KINDS),) reach."""
    return [label.name for label, score in zip(KINDS, scores) if score >= label.threshold]
