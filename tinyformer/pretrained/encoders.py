"""What the families of encoders share: BERT and its relatives, with any of the heads of ``models/bert.py``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tinyformer.models.activations import published_names
from tinyformer.models.bert import (
    Bert,
    BertConfig,
    BertForClassification,
    BertForMaskedLM,
    BertForNextSentence,
    BertForQuestionAnswering,
    BertForTokenClassification,
    BertHead,
)
from tinyformer.pretrained.families import Family
from tinyformer.pretrained.settings import PretrainedSettings, must_be
from tinytensor.common.wording import a_or_an

AnyBert = Bert | BertForMaskedLM | BertHead
# How the name of an architecture ends, of each class that has one with each family.
ENDINGS: Mapping[type[AnyBert], str] = {
    Bert: "Model",
    BertForMaskedLM: "ForMaskedLM",
    BertForNextSentence: "ForNextSentencePrediction",
    BertForClassification: "ForSequenceClassification",
    BertForTokenClassification: "ForTokenClassification",
    BertForQuestionAnswering: "ForQuestionAnswering",
}

MOST_CLASSES = 1_000_000  # so that no file can fill the memory with their names
OF_CLASSES = ("classifier_dropout", None)
WITH_CLASSES = (BertForClassification, BertForTokenClassification)  # whose classes config.json names


@dataclass(frozen=True)
class Head:
    """A head as a family has it: the class here, and the family's names of its layers.

    ``pooler`` is that of the Bert below it; where the head has the pooler's layer, its names say so. With an ``activation`` the
    head has this one. Where config.json does not tell of the head, tensors in the file do that match each of ``found``.
    ``also`` are endings of architectures that have this head beside others. ``dropout`` is the setting of the head's dropout,
    "" if there is none, and what it is where config.json does not say; None is that of the blocks. For ``copies`` see
    ``Family``.
    """

    kind: type[AnyBert]
    names: Mapping[str, str]
    found: tuple[str, ...]
    pooler: str = ""
    activation: str = ""
    also: tuple[str, ...] = ()
    dropout: tuple[str, float | None] = OF_CLASSES
    copies: Mapping[str, str] = field(default_factory=dict)

    def is_in(self, names: Collection[str]) -> bool:
        """Whether a file with these tensors has this head."""
        return all(any(re.fullmatch(pattern, name) for name in names) for pattern in self.found)


TOKENS = Head(BertForTokenClassification, {"output": "classifier"}, (r"classifier\.weight",))
QUESTIONS = Head(BertForQuestionAnswering, {"output": "qa_outputs"}, (r"qa_outputs\..*",), dropout=("", 0.0))


def with_heads(
    base: Family,
    config_of: Callable[[PretrainedSettings], BertConfig],
    heads: tuple[Head, ...],
    named: tuple[str, ...],
    pooler: str = "tanh",
) -> tuple[Family, ...]:
    """A family for each head, and ``base``, the one without. ``named`` are the beginnings of their architectures' names, the
    first of which is written, and ``pooler`` is that of the base."""
    families = [_with_head(base, config_of, head, named) for head in heads]
    return *families, _with_head(base, config_of, Head(Bert, {}, (), pooler), named)


def _with_head(
    base: Family, config_of: Callable[[PretrainedSettings], BertConfig], head: Head, named: tuple[str, ...]
) -> Family:
    above = "" if head.kind is Bert else "bert."
    pooler = f"{above}pooler"
    endings = (ENDINGS[head.kind], *head.also)
    return replace(
        base,
        names={**{f"{above}{name}": theirs for name, theirs in base.names.items()}, **head.names},
        make=lambda settings: _make(base, head, config_of(settings), settings),
        describe=lambda model: _described(base, head, model, named[0] + endings[0]),
        kind=head.kind,
        suits=lambda model: base.suits(model) and (pooler not in head.names or model.config.pooler == head.pooler),
        architectures=tuple(name + ending for name in named for ending in endings),
        found=lambda settings, names: not head.found or (not settings.values.get("architectures") and head.is_in(names)),
        copies=head.copies,
        unused=base.unused + "|" + re.escape(base.names["pooler"]) + r"\..*",
        optional=r"(?!)" if issubclass(head.kind, BertForClassification) else re.escape(pooler) + r"\..*",
    )


def _make(base: Family, head: Head, config: BertConfig, settings: PretrainedSettings) -> Any:
    if head.activation not in ("", config.activation):
        refused, only = settings.values.get("hidden_act"), published_names()[head.activation]
        raise settings.error(
            f"hidden_act {refused!r} cannot be used here in {a_or_an(base.name)} that fills masks, only {only!r}: take the "
            "model without this head, by its architecture"
        )
    config = replace(config, pooler=head.pooler, head_dropout=settings.probability(*head.dropout))
    kind: Any = head.kind
    if kind in WITH_CLASSES:
        return kind(config, *classes(settings))
    return kind(config)


def classes(settings: PretrainedSettings) -> tuple[int, tuple[str, ...]]:
    """The number of classes that a config.json describes, two by default, and their names, if it has one for each."""
    found = settings.read(dict[str, Any], "id2label", {})
    number = settings.read(int, "num_labels", len(found) or 2)
    if number > MOST_CLASSES:
        raise settings.error(f"num_labels {number:,} is more than the {MOST_CLASSES:,} classes that a model can have")
    names = [found.get(str(i)) for i in range(number if number == len(found) else 0)]
    return number, tuple(map(str, names)) if all(isinstance(name, str) for name in names) else ()


def _described(base: Family, head: Head, model: AnyBert, architecture: str) -> dict[str, Any]:
    config = model.config
    must_be(base.name, config, positions="learned", norm_first=False, activation=head.activation or tuple(published_names()))
    must_be(base.name, config, query_key_norm=False)
    described = {**base.describe(model), "architectures": [architecture]}
    if head.dropout[0] and config.head_dropout is not None:
        described[head.dropout[0]] = config.head_dropout
    if isinstance(model, BertHead) and type(model) in WITH_CLASSES:
        described["id2label"] = {str(i): name for i, name in enumerate(model.labels)}
        described["label2id"] = {name: i for i, name in enumerate(model.labels)}
    return described
