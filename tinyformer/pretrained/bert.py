"""BERT (Devlin et al. 2019): the encoder alone, with the head that fills masks, or with one that classifies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinyformer.models.bert import Bert, BertConfig, BertForClassification, BertForMaskedLM
from tinyformer.pretrained.families import Family
from tinyformer.pretrained.settings import ACTIVATION_NAMES, PretrainedSettings, must_be

ENCODER = {
    "token_embedding": "bert.embeddings.word_embeddings",
    "position_embedding": "bert.embeddings.position_embeddings",
    "segment_embedding": "bert.embeddings.token_type_embeddings",
    "norm": "bert.embeddings.LayerNorm",
    "encoder.blocks.*.attention.query_key_value": "bert.encoder.layer.*.attention.self.[query,key,value]",
    "encoder.blocks.*.attention.output": "bert.encoder.layer.*.attention.output.dense",
    "encoder.blocks.*.attention_norm": "bert.encoder.layer.*.attention.output.LayerNorm",
    "encoder.blocks.*.feed_forward.up": "bert.encoder.layer.*.intermediate.dense",
    "encoder.blocks.*.feed_forward.down": "bert.encoder.layer.*.output.dense",
    "encoder.blocks.*.feed_forward_norm": "bert.encoder.layer.*.output.LayerNorm",
    "pooler": "bert.pooler.dense",
}
_IN_A_HEAD = {f"bert.{name}": theirs for name, theirs in ENCODER.items()}
MASKED_LM = {
    **_IN_A_HEAD,
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "bias": "cls.predictions.bias",
}
CLASSIFIER = {**_IN_A_HEAD, "output": "classifier"}


def config_of(settings: PretrainedSettings) -> BertConfig:
    """The configuration that a config.json describes."""
    settings.refuse(position_embedding_type="absolute", is_decoder=False, tie_word_embeddings=True)
    return BertConfig(
        vocab_size=settings.read(int, "vocab_size", 30522),
        pad=settings.read(int, "pad_token_id", 0),
        num_segments=settings.read(int, "type_vocab_size", 2),
        max_length=settings.read(int, "max_position_embeddings", 512),
        num_layers=settings.read(int, "num_hidden_layers", 12),
        num_heads=settings.read(int, "num_attention_heads", 12),
        d_model=settings.read(int, "hidden_size", 768),
        d_ff=settings.read(int, "intermediate_size", 3072),
        dropout=settings.read(float, "hidden_dropout_prob", 0.1),
        activation=settings.activation("hidden_act", "gelu"),
        norm_eps=settings.read(float, "layer_norm_eps", 1e-12),
    )


def make_classifier(settings: PretrainedSettings) -> BertForClassification:
    """The classifier that a config.json describes: with as many classes as it has labels, which are two by default."""
    labels = settings.read(dict[str, Any], "id2label", {"0": "", "1": ""})
    return BertForClassification(config_of(settings), settings.read(int, "num_labels", len(labels)))


def describe(model: Bert | BertForMaskedLM | BertForClassification) -> dict[str, Any]:
    """The config.json of a model."""
    config = model.config
    must_be("BERT", config, positions="learned", norm_first=False, activation=tuple(ACTIVATION_NAMES), query_key_norm=False)
    described = {
        "model_type": "bert",
        "architectures": [ARCHITECTURES[type(model)]],
        "vocab_size": config.vocab_size,
        "pad_token_id": config.pad,
        "type_vocab_size": config.num_segments,
        "max_position_embeddings": config.max_length,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "layer_norm_eps": config.norm_eps,
    }
    if isinstance(model, BertForClassification):
        described["id2label"] = {str(i): f"LABEL_{i}" for i in range(len(model.output.weight))}
    return described


ARCHITECTURES = {Bert: "BertModel", BertForMaskedLM: "BertForMaskedLM", BertForClassification: "BertForSequenceClassification"}

BERT = Family(
    name="BERT",
    model_types=("bert",),
    names=ENCODER,
    make=lambda settings: Bert(config_of(settings)),
    describe=describe,
    prefix="bert.",
    ignored=r".*\.position_ids|cls\..*|classifier\..*",
    optional=r"pooler\..*",
)
BERT_MASKED_LM = replace(
    BERT,
    names=MASKED_LM,
    make=lambda settings: BertForMaskedLM(config_of(settings)),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=r".*\.position_ids|cls\.seq_relationship\..*",
    optional=r"bert\.pooler\..*",
)
BERT_CLASSIFIER = replace(
    BERT,
    names=CLASSIFIER,
    make=make_classifier,
    ignored=r".*\.position_ids",
    optional=r"(?!)",  # its head reads the pooler
)
