"""Plots of runs. All except ``attention_html`` need matplotlib: pip install matplotlib.

``curves`` plots losses, ``attention`` and ``attention_html`` attention weights, and ``words`` word vectors. ``drawing`` holds
shared code. This package imports common/ and audio/.
"""

import typing

from tinyformer.plots.attention import alignments, attention_maps, attention_means, listening
from tinyformer.plots.attention_html import AttentionHTML, attention_html
from tinyformer.plots.curves import accuracy_by_distance, loss_by_order, loss_curve, note_on_losses, scores_by_length
from tinyformer.plots.drawing import if_possible
from tinyformer.plots.words import word_map
from tinytensor.common.missing import names_of as _names_of

__all__ = [
    "AttentionHTML",
    "accuracy_by_distance",
    "alignments",
    "attention_html",
    "attention_maps",
    "attention_means",
    "if_possible",
    "listening",
    "loss_by_order",
    "loss_curve",
    "note_on_losses",
    "scores_by_length",
    "word_map",
]

if not typing.TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
