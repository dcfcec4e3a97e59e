"""DistilBERT (Sanh et al. 2019): a BERT without segments and without pooler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinyformer.models.bert import Bert, BertConfig, BertForClassification, BertForMaskedLM
from tinyformer.pretrained.encoders import QUESTIONS, TOKENS, AnyBert, Head, with_heads
from tinyformer.pretrained.families import Family
from tinyformer.pretrained.settings import ACTIVATION, PROBABILITY, PretrainedSettings, Row, described, must_be

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
SETTINGS = (
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


def config_of(settings: PretrainedSettings) -> BertConfig:
    """The configuration that a config.json describes."""
    return BertConfig(**settings.ours(SETTINGS), num_segments=0, norm_eps=1e-12)


def describe(model: AnyBert) -> dict[str, Any]:
    """The config.json of a model."""
    config = model.config
    must_be("DistilBERT", config, norm_eps=1e-12, pooler="relu" if isinstance(model, BertForClassification) else "")
    return {**described(SETTINGS, config), "model_type": "distilbert"}


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
