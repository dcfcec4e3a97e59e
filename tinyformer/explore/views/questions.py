"""The page's questions: functions of the models and a dataclass.

``POST ask/NAME`` with the dataclass fields as JSON returns the function's result as JSON. Bytes are returned unchanged. For a
generator, each value becomes one line of JSON.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from typing import Any

from tinyformer.common.settings import read_dataclass
from tinyformer.explore.views.ablating import ablated, blocks, edited, ranking
from tinyformer.explore.views.attending import attention, attention_rows
from tinyformer.explore.views.attributing import attribution
from tinyformer.explore.views.checkpoints import checkpoints, film
from tinyformer.explore.views.comparing import divergence, losses
from tinyformer.explore.views.embeddings import embeddings, position_tables, positions, sentences
from tinyformer.explore.views.inside import classes, entropies, hidden_states, inside, lens, lens_cell, norms
from tinyformer.explore.views.naming import head_names, text_scores
from tinyformer.explore.views.neurons import neuron_examples, neuron_tokens, neurons
from tinyformer.explore.views.opening import opening
from tinyformer.explore.views.passages import Answer, about, encode, facts, tokens, weights
from tinyformer.explore.views.patching import patched
from tinyformer.explore.views.picture import picture
from tinyformer.explore.views.searching import search
from tinyformer.explore.views.subjects import Subjects
from tinyformer.explore.views.writing import fill, next_token, write

QUESTIONS: dict[str, Callable[..., Answer | bytes | Iterator[Answer]]] = {
    function.__name__: function
    for function in (
        about,
        checkpoints,
        film,
        facts,
        tokens,
        weights,
        opening,
        picture,
        encode,
        next_token,
        write,
        fill,
        classes,
        attention,
        attention_rows,
        inside,
        norms,
        lens,
        lens_cell,
        entropies,
        hidden_states,
        attribution,
        head_names,
        text_scores,
        neurons,
        neuron_tokens,
        neuron_examples,
        embeddings,
        sentences,
        position_tables,
        positions,
        search,
        divergence,
        losses,
        blocks,
        ablated,
        ranking,
        edited,
        patched,
    )
}


def ask(subjects: Subjects, name: str, asked: Any) -> Answer | bytes | Iterator[Answer]:
    """Answer the question of this name about a JSON object. Raises UserError for an invalid object."""
    function = QUESTIONS[name]
    kind = typing.get_type_hints(function)["asked"]
    return function(subjects, read_dataclass(kind, asked))
