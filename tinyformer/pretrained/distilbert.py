"""DistilBERT (Sanh et al. 2019): a BERT without segments and without pooler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinyformer.models.activations import published_names
from tinyformer.models.bert import Bert, BertConfig, BertForClassification, BertForMaskedLM
from tinyformer.pretrained.encoders import QUESTIONS, TOKENS, AnyBert, Head, with_heads
from tinyformer.pretrained.families import Family
from tinyformer.pretrained.settings import PretrainedSettings, must_be

NAMES = {
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


def config_of(settings: PretrainedSettings) -> BertConfig:
    """The configuration that a config.json describes."""
    return BertConfig(
        vocab_size=settings.read(int, "vocab_size", 30522),
        pad=settings.read(int, "pad_token_id", 0),
        num_segments=0,
        max_length=settings.read(int, "max_position_embeddings", 512),
        num_layers=settings.read(int, "n_layers", 6),
        num_heads=settings.read(int, "n_heads", 12),
        d_model=settings.read(int, "dim", 768),
        d_ff=settings.read(int, "hidden_dim", 3072),
        dropout=settings.probability("dropout", 0.1),
        activation=settings.activation("activation", "gelu"),
        norm_eps=1e-12,
        tie_output=settings.read(bool, "tie_word_embeddings", True),
    )


def describe(model: AnyBert) -> dict[str, Any]:
    """The config.json of a model."""
    config = model.config
    must_be("DistilBERT", config, norm_eps=1e-12, pooler="relu" if isinstance(model, BertForClassification) else "")
    return {
        "model_type": "distilbert",
        "max_position_embeddings": config.max_length,
        "n_layers": config.num_layers,
        "n_heads": config.num_heads,
        "dim": config.d_model,
        "hidden_dim": config.d_ff,
        "dropout": config.dropout,
        "attention_dropout": config.dropout,
        "activation": published_names()[config.activation],
    }


DISTILBERTS = with_heads(
    Family(
        name="DistilBERT",
        model_types=("distilbert",),
        names=NAMES,
        make=lambda settings: Bert(config_of(settings)),
        describe=describe,
        kind=Bert,
        suits=lambda model: not (model.config.num_segments or model.config.skip_padding or model.config.relative_ranges),
        prefix="distilbert.",
        ignored=r".*\.position_ids",
        unused=r"(vocab_\w+|classifier|qa_outputs)\..*",
    ),
    config_of,
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
