"""Markov models: predicting the next token by counting what followed before.

- ``transitions``: tables for contexts of a few words, and pairs of words that vote for the next one. The votes are attention
  with weights made by counting.
- ``kneser_ney``: contexts of any length, smoothed. The model to beat.
"""

from tinyformer.markov.kneser_ney import KneserNey
from tinyformer.markov.transitions import SkipVotes, TransitionTable

__all__ = ["KneserNey", "SkipVotes", "TransitionTable"]
