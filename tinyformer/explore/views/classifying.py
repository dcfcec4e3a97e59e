"""Questions about what a BERT with a head says of a text: the classes of the text, or of each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.decoding.beam_search import log_softmax
from tinyformer.explore.views.passages import Answer, Passage
from tinyformer.explore.views.reading import NOT_FINITE
from tinyformer.explore.views.subjects import LONGEST, Subject, Subjects
from tinyformer.models.bert import BertForQuestionAnswering, BertForTokenClassification, BertHead
from tinyformer.models.evaluating import evaluating
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host


@dataclass(frozen=True)
class Classes:
    """A passage of a model that tells classes."""

    passage: Passage


def classes(subjects: Subjects, asked: Classes) -> Answer:
    """What a model that tells classes says of a passage.

    - ``of``: "text" (a class of the whole), "tokens" (one of each token), or "places" (at which token an answer starts, and at
      which it ends).
    - ``labels``: the names of the classes.
    - ``probabilities``: of each class one for the text, or a list with one for each token. Those of the classes add up to 1;
      with "places" those of the tokens do.
    - ``value``: the number that a model with one class gives, which is no probability; null for other models.

    What follows the first end token, such as BERT's [SEP], is read as the second segment. All other questions read the passage
    as one segment.
    """
    subject = asked.passage.subject(subjects)
    model = subject.model
    if not isinstance(model, BertHead):
        raise UserError("this model tells no classes: it has no head for them")
    count, longest = len(asked.passage.ids), subject.longest or LONGEST
    if count > longest:
        raise UserError(f"the text has {counted(count, 'token')}, more than the {longest} that this model reads: shorten it")
    with subjects.for_long(), tt.no_grad(), evaluating(model):
        logits = model(tt.tensor([asked.passage.ids]), _segments(subject, asked.passage.ids)).numpy()[0].astype(host.float64)
    if not host.isfinite(logits).all():
        raise UserError(NOT_FINITE)
    found: dict[str, Any] = {"labels": list(model.labels), "value": None}
    if isinstance(model, BertForQuestionAnswering):
        return {**found, "of": "places", "probabilities": host.exp(log_softmax(logits.T)).tolist()}
    if isinstance(model, BertForTokenClassification):
        return {**found, "of": "tokens", "probabilities": host.exp(log_softmax(logits)).T.tolist()}
    if len(logits) == 1:
        found["value"] = float(logits[0])
    return {**found, "of": "text", "probabilities": host.exp(log_softmax(logits)).tolist()}


def _segments(subject: Subject, ids: Sequence[int]) -> Tensor | None:
    """The segments (1, length) of a text: 0 up to the first end token, 1 after it. None for a model without two segments."""
    if subject.model.config.num_segments < 2:
        return None
    ends = [i in subject.after for i in ids]
    return tt.tensor([[int(any(ends[:place])) for place in range(len(ids))]])
