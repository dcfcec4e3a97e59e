"""Encoder families, each with any of the heads in ``models/bert.py``: BERT (Devlin et al. 2019) and related models.

XLM-RoBERTa and CamemBERT are RoBERTas (Liu et al. 2019). MPNet (Song et al. 2020) is a RoBERTa with relative positions and no
segments. DistilBERT (Sanh et al. 2019) is a BERT without segments and pooler.
"""

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
from tinyformer.pretrained.families import ACTIVATION, PROBABILITY, Family, PretrainedSettings, Row, described, must_be

AnyBert = Bert | BertForMaskedLM | BertHead
# Architecture name suffix of each class.
ENDINGS: Mapping[type[AnyBert], str] = {
    Bert: "Model",
    BertForMaskedLM: "ForMaskedLM",
    BertForNextSentence: "ForNextSentencePrediction",
    BertForClassification: "ForSequenceClassification",
    BertForTokenClassification: "ForTokenClassification",
    BertForQuestionAnswering: "ForQuestionAnswering",
}

MOST_CLASSES = 1_000_000  # prevents a file from filling memory with class names
OF_CLASSES = ("classifier_dropout", None)
WITH_CLASSES = (BertForClassification, BertForTokenClassification)  # config.json names their classes


@dataclass(frozen=True)
class Head:
    """A head in a family: our class, and the family's names for its layers.

    ``pooler`` is the pooler setting of the Bert underneath. ``activation`` replaces the blocks' activation in the head. If
    config.json names no head, tensors that match every pattern imply this head. ``also`` lists suffixes of architectures that
    contain this head and more. ``dropout`` is the head's dropout setting ("" for none) and its default (None: same as the
    blocks). For ``copies``, see ``Family``.
    """

    model_class: type[AnyBert]
    names: Mapping[str, str]
    patterns: tuple[str, ...]
    pooler: str = ""
    activation: str = ""
    also: tuple[str, ...] = ()
    dropout: tuple[str, float | None] = OF_CLASSES
    copies: Mapping[str, str] = field(default_factory=dict)

    def is_in(self, names: Collection[str]) -> bool:
        """Return True if a file with these tensors has this head."""
        return all(any(re.fullmatch(pattern, name) for name in names) for pattern in self.patterns)


TOKENS = Head(BertForTokenClassification, {"output": "classifier"}, (r"classifier\.weight",))
QUESTIONS = Head(BertForQuestionAnswering, {"output": "qa_outputs"}, (r"qa_outputs\..*",), dropout=("", 0.0))


def with_heads(
    base: Family,
    config_of: Callable[[PretrainedSettings], BertConfig],
    heads: tuple[Head, ...],
    named: tuple[str, ...],
    pooler: str = "tanh",
) -> tuple[Family, ...]:
    """Return one family per head, and ``base``, the family without a head. ``named`` lists the prefixes of architecture names;
    the first is written. ``pooler`` belongs to the base."""
    families = [_with_head(base, config_of, head, named) for head in heads]
    return *families, _with_head(base, config_of, Head(Bert, {}, (), pooler), named)


def _with_head(
    base: Family, config_of: Callable[[PretrainedSettings], BertConfig], head: Head, named: tuple[str, ...]
) -> Family:
    above = "" if head.model_class is Bert else "bert."
    pooler = f"{above}pooler"
    endings = (ENDINGS[head.model_class], *head.also)
    return replace(
        base,
        names={**{f"{above}{name}": theirs for name, theirs in base.names.items()}, **head.names},
        make=lambda settings: _make(base, head, config_of(settings), settings),
        describe=lambda model: _described(base, head, model, named[0] + endings[0]),
        model_class=head.model_class,
        suits=lambda model: base.suits(model) and (pooler not in head.names or model.config.pooler == head.pooler),
        architectures=tuple(name + ending for name in named for ending in endings),
        matches=lambda settings, names: not head.patterns or (not settings.values.get("architectures") and head.is_in(names)),
        copies=head.copies,
        unused=base.unused + "|" + re.escape(base.names["pooler"]) + r"\..*",
        optional=r"(?!)" if issubclass(head.model_class, BertForClassification) else re.escape(pooler) + r"\..*",
    )


def _make(base: Family, head: Head, config: BertConfig, settings: PretrainedSettings) -> Any:
    if head.activation not in ("", config.activation):
        refused, only = settings.values.get("hidden_act"), published_names()[head.activation]
        head_name = f"the masked-LM head of {base.name}"
        remedy = "or name the model without head in architectures"
        raise settings.error(f"hidden_act {refused!r} is not supported with {head_name}: it must be {only!r}, {remedy}")
    config = replace(config, pooler=head.pooler, head_dropout=settings.probability(*head.dropout))
    model: Any = head.model_class
    return model(config, *(_classes(settings) if head.model_class in WITH_CLASSES else ()))


def _classes(settings: PretrainedSettings) -> tuple[int, tuple[str, ...]]:
    """Return the number of classes in a config.json (default: two), and their names if all have one."""
    labels = settings.read(dict[str, Any], "id2label", {})
    number = settings.read(int, "num_labels", len(labels) or 2)
    if number > MOST_CLASSES:
        raise settings.error(f"num_labels must be at most {MOST_CLASSES:,}, got {number:,}")
    names = [labels.get(str(i)) for i in range(number if number == len(labels) else 0)]
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


# ------------------------------------------------------------------------------------------------------------------------- BERT

_LAYERS = {
    "token_embedding": "embeddings.word_embeddings",
    "position_embedding": "embeddings.position_embeddings",
    "segment_embedding": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "encoder.blocks.*.attention.query_key_value": "encoder.layer.*.attention.self.[query,key,value]",
    "encoder.blocks.*.attention.output": "encoder.layer.*.attention.output.dense",
    "encoder.blocks.*.attention_norm": "encoder.layer.*.attention.output.LayerNorm",
    "encoder.blocks.*.feed_forward.up": "encoder.layer.*.intermediate.dense",
    "encoder.blocks.*.feed_forward.down": "encoder.layer.*.output.dense",
    "encoder.blocks.*.feed_forward_norm": "encoder.layer.*.output.LayerNorm",
    "pooler": "pooler.dense",
}
BERT_SETTINGS = (
    Row("vocab_size", "vocab_size", int, 30522),
    Row("pad", "pad_token_id", int, 0),
    Row("max_length", "max_position_embeddings", int, 512),
    Row("num_layers", "num_hidden_layers", int, 12),
    Row("num_heads", "num_attention_heads", int, 12),
    Row("d_model", "hidden_size", int, 768),
    Row("d_ff", "intermediate_size", int, 3072),
    Row("dropout", "hidden_dropout_prob attention_probs_dropout_prob", PROBABILITY, 0.1),
    Row("activation", "hidden_act", ACTIVATION, "gelu"),
    Row("norm_eps", "layer_norm_eps", float, 1e-12),
    Row("tie_output", "tie_word_embeddings", bool, True),
)


def config_of_bert(settings: PretrainedSettings) -> BertConfig:
    """Convert a config.json to a BertConfig."""
    settings.refuse(position_embedding_type="absolute", is_decoder=False)
    return BertConfig(**settings.ours(BERT_SETTINGS), num_segments=settings.read(int, "type_vocab_size", 2))


def config_of_roberta(settings: PretrainedSettings) -> BertConfig:
    """Convert a RoBERTa config.json to a BertConfig. Positions start after the padding id, so the table has unused rows."""
    pad = settings.read(int, "pad_token_id", 1)
    defaults = {"vocab_size": 50265, "pad_token_id": pad}
    config = config_of_bert(PretrainedSettings(settings.path, defaults | settings.given()))
    if config.max_length <= pad + 1:
        raise settings.error(f"max_position_embeddings must exceed pad_token_id {pad} by 2 or more, got {config.max_length}")
    return replace(config, max_length=config.max_length - pad - 1, skip_padding=True, pooler_dropout=True)


def config_of_mpnet(settings: PretrainedSettings) -> BertConfig:
    """Convert an MPNet config.json to a BertConfig. Hugging Face's class always has padding id 1 and 32 distance ranges."""
    settings.refuse(pad_token_id=1, relative_attention_num_buckets=32)
    defaults = {"vocab_size": 30527, "pad_token_id": 1}
    config = config_of_roberta(PretrainedSettings(settings.path, defaults | settings.given()))
    return replace(config, num_segments=0, relative_ranges=32)


def describe_bert(model: AnyBert) -> dict[str, Any]:
    """Return a model's config.json."""
    config = model.config
    return {
        **described(BERT_SETTINGS, config),
        "model_type": "mpnet" if config.relative_ranges else "roberta" if config.skip_padding else "bert",
        **({"relative_attention_num_buckets": 32} if config.relative_ranges else {"type_vocab_size": config.num_segments}),
        "max_position_embeddings": config.num_positions,
    }


_LAYERS_OF_MPNET = {
    **_LAYERS,
    "relative_positions": "encoder.relative_attention_bias",
    "encoder.blocks.*.attention.query_key_value": "encoder.layer.*.attention.attn.[q,k,v]",
    "encoder.blocks.*.attention.output": "encoder.layer.*.attention.attn.o",
    "encoder.blocks.*.attention_norm": "encoder.layer.*.attention.LayerNorm",
}


def _family(name: str, model_types: tuple[str, ...], prefix: str, layers: Mapping[str, str] = _LAYERS) -> Family:
    return Family(
        name=name,
        model_types=model_types,
        names={ours: prefix + theirs for ours, theirs in layers.items()},
        make=lambda settings: Bert(config_of_bert(settings)),
        describe=describe_bert,
        model_class=Bert,
        prefix=prefix,
        ignored=r".*\.position_ids",
        unused=r"(cls|lm_head|classifier|qa_outputs)\..*",
    )


BERTS = with_heads(
    replace(
        _family("BERT", ("bert",), "bert."),
        suits=lambda model: model.config.num_segments and not (model.config.skip_padding or model.config.relative_ranges),
    ),
    config_of_bert,
    (
        Head(
            BertForMaskedLM,
            {
                "transform": "cls.predictions.transform.dense",
                "norm": "cls.predictions.transform.LayerNorm",
                "output": "cls.predictions.decoder",
                "bias": "cls.predictions.bias",
            },
            (r"cls\.predictions\..*",),
            pooler="tanh",
            also=("ForPreTraining",),
            copies={
                "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
                "cls.predictions.decoder.bias": "cls.predictions.bias",
            },
        ),
        Head(
            BertForNextSentence,
            {"output": "cls.seq_relationship"},
            (r"cls\.seq_relationship\..*",),
            pooler="tanh",
            dropout=("", 0.0),
        ),
        QUESTIONS,
        Head(
            BertForClassification, {"output": "classifier"}, (r"classifier\.weight", r".*pooler\.dense\.weight"), pooler="tanh"
        ),
        TOKENS,
    ),
    named=("Bert",),
)


def _heads_of_roberta(prefix: str, dropout: tuple[str, float | None] = OF_CLASSES) -> tuple[Head, ...]:
    """Return the heads of RoBERTa and MPNet. The masked-LM head uses gelu, whatever the activation of the blocks."""
    return (
        Head(
            BertForMaskedLM,
            {"transform": "lm_head.dense", "norm": "lm_head.layer_norm", "output": "lm_head.decoder", "bias": "lm_head.bias"},
            (r"lm_head\..*",),
            activation="gelu_exact",
            copies={
                "lm_head.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
                "lm_head.decoder.bias": "lm_head.bias",
            },
        ),
        QUESTIONS,
        Head(
            BertForClassification,
            {"bert.pooler": "classifier.dense", "output": "classifier.out_proj"},
            (r"classifier\.out_proj\..*",),
            pooler="tanh",
            dropout=dropout,
        ),
        replace(TOKENS, dropout=dropout),
    )


ROBERTAS = with_heads(
    replace(
        _family("RoBERTa", ("roberta", "xlm-roberta", "camembert"), "roberta."),
        suits=lambda model: model.config.skip_padding and model.config.num_segments > 0,
    ),
    config_of_roberta,
    _heads_of_roberta("roberta."),
    named=("Roberta", "XLMRoberta", "Camembert"),
)
MPNETS = with_heads(
    replace(
        _family("MPNet", ("mpnet",), "mpnet.", _LAYERS_OF_MPNET),
        suits=lambda model: (model.config.relative_ranges, model.config.num_segments, model.config.pad) == (32, 0, 1),
    ),
    config_of_mpnet,
    _heads_of_roberta("mpnet.", ("", None)),
    named=("MPNet",),
)


# ------------------------------------------------------------------------------------------------------------------ DistilBERT

_LAYERS_OF_DISTILBERT = {
    "token_embedding": "distilbert.embeddings.word_embeddings",
    "position_embedding": "distilbert.embeddings.position_embeddings",
    "norm": "distilbert.embeddings.LayerNorm",
    "encoder.blocks.*.attention.query_key_value": "distilbert.transformer.layer.*.attention.[q,k,v]_lin",
    "encoder.blocks.*.attention.output": "distilbert.transformer.layer.*.attention.out_lin",
    "encoder.blocks.*.attention_norm": "distilbert.transformer.layer.*.sa_layer_norm",
    "encoder.blocks.*.feed_forward.up": "distilbert.transformer.layer.*.ffn.lin1",
    "encoder.blocks.*.feed_forward.down": "distilbert.transformer.layer.*.ffn.lin2",
    "encoder.blocks.*.feed_forward_norm": "distilbert.transformer.layer.*.output_layer_norm",
    "pooler": "pre_classifier",
}
DISTILBERT_SETTINGS = (
    Row("vocab_size", "vocab_size", int, 30522),
    Row("pad", "pad_token_id", int, 0),
    Row("max_length", "max_position_embeddings", int, 512),
    Row("num_layers", "n_layers", int, 6, "num_hidden_layers"),
    Row("num_heads", "n_heads", int, 12, "num_attention_heads"),
    Row("d_model", "dim", int, 768, "hidden_size"),
    Row("d_ff", "hidden_dim", int, 3072),
    Row("dropout", "dropout attention_dropout", PROBABILITY, 0.1),
    Row("activation", "activation", ACTIVATION, "gelu"),
    Row("tie_output", "tie_word_embeddings", bool, True),
)


def config_of_distilbert(settings: PretrainedSettings) -> BertConfig:
    """Convert a config.json to a BertConfig."""
    return BertConfig(**settings.ours(DISTILBERT_SETTINGS), num_segments=0, norm_eps=1e-12)


def describe_distilbert(model: AnyBert) -> dict[str, Any]:
    """Return a model's config.json."""
    config = model.config
    must_be("DistilBERT", config, norm_eps=1e-12, pooler="relu" if isinstance(model, BertForClassification) else "")
    return {**described(DISTILBERT_SETTINGS, config), "model_type": "distilbert"}


DISTILBERTS = with_heads(
    Family(
        name="DistilBERT",
        model_types=("distilbert",),
        names=_LAYERS_OF_DISTILBERT,
        make=lambda settings: Bert(config_of_distilbert(settings)),
        describe=describe_distilbert,
        model_class=Bert,
        suits=lambda model: not (model.config.num_segments or model.config.skip_padding or model.config.relative_ranges),
        prefix="distilbert.",
        ignored=r".*\.position_ids",
        unused=r"(vocab_\w+|classifier|qa_outputs)\..*",
    ),
    config_of_distilbert,
    (
        Head(
            BertForMaskedLM,
            {
                "transform": "vocab_transform",
                "norm": "vocab_layer_norm",
                "output": "vocab_projector",
                "bias": "vocab_projector.bias",
            },
            (r"vocab_transform\..*",),
            copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
        ),
        replace(QUESTIONS, dropout=("qa_dropout", 0.1)),
        Head(
            BertForClassification,
            {"output": "classifier"},
            (r"pre_classifier\..*",),
            pooler="relu",
            dropout=("seq_classif_dropout", 0.2),
        ),
        replace(TOKENS, dropout=("", None)),
    ),
    pooler="",
    named=("DistilBert",),
)
