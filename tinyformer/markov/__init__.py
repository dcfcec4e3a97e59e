"""Markov models: predict the next token by counting what followed before.

- ``transitions``: tables for contexts of a few words, and word pairs that vote for the next word. The votes are attention with
  count-based weights.
- ``kneser_ney``: smoothed models with contexts of any length. The baseline to beat.
"""

from tinyformer.markov.kneser_ney import KneserNey
from tinyformer.markov.transitions import SkipVotes, TransitionTable

__all__ = ["KneserNey", "SkipVotes", "TransitionTable"]
