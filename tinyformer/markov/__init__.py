"""Markov models: what comes next, found by counting what came next before.

- ``transitions``: tables for one or a few words of context, and the lookup in a table as a product of matrices.
- ``skips``: each earlier word votes, together with the last one; a mask silences the votes that say nothing. That is attention,
  with weights made by hand.
- ``kneser_ney``: contexts of any length, smoothed. The model to beat.
"""

from tinyformer.markov.kneser_ney import KneserNey
from tinyformer.markov.skips import SkipVotes
from tinyformer.markov.transitions import TransitionTable

__all__ = ["KneserNey", "SkipVotes", "TransitionTable"]
