"""BERT (Devlin et al. 2019) and its relatives: RoBERTa (Liu et al. 2019), with XLM-RoBERTa and CamemBERT, which are one; MPNet
(Song et al. 2020), which is a RoBERTa without segments and with relative positions; and DistilBERT (Sanh et al. 2019), which is
a BERT without segments and without pooler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tinyformer.models.bert import Bert, BertConfig, BertForClassification, BertForMaskedLM, BertForNextSentence
from tinyformer.pretrained.encoders import OF_CLASSES, QUESTIONS, TOKENS, AnyBert, Head, with_heads
from tinyformer.pretrained.families import Family
from tinyformer.pretrained.settings import ACTIVATION, PROBABILITY, PretrainedSettings, Row, described, must_be

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
SETTINGS = (
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


def config_of(settings: PretrainedSettings) -> BertConfig:
    """The configuration that a config.json describes."""
    settings.refuse(position_embedding_type="absolute", is_decoder=False)
    return BertConfig(**settings.ours(SETTINGS), num_segments=settings.read(int, "type_vocab_size", 2))


def config_of_roberta(settings: PretrainedSettings) -> BertConfig:
    """The same for RoBERTa. Its positions begin after the id of the padding, so that the table has rows that no text uses."""
    pad = settings.read(int, "pad_token_id", 1)
    defaults = {"vocab_size": 50265, "pad_token_id": pad}
    config = config_of(PretrainedSettings(settings.path, defaults | settings.given()))
    if config.max_length <= pad + 1:
        raise settings.error(f"max_position_embeddings {config.max_length} leaves no position after pad_token_id {pad}")
    return replace(config, max_length=config.max_length - pad - 1, skip_padding=True, pooler_dropout=True)


def config_of_mpnet(settings: PretrainedSettings) -> BertConfig:
    """The same for MPNet. Its class at Hugging Face's takes the padding to be 1, and has 32 ranges of distances, whatever the
    settings say."""
    settings.refuse(pad_token_id=1, relative_attention_num_buckets=32)
    defaults = {"vocab_size": 30527, "pad_token_id": 1}
    config = config_of_roberta(PretrainedSettings(settings.path, defaults | settings.given()))
    return replace(config, num_segments=0, relative_ranges=32)


def describe(model: AnyBert) -> dict[str, Any]:
    """The config.json of a model."""
    config = model.config
    return {
        **described(SETTINGS, config),
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
        make=lambda settings: Bert(config_of(settings)),
        describe=describe,
        kind=Bert,
        prefix=prefix,
        ignored=r".*\.position_ids",
        unused=r"(cls|lm_head|classifier|qa_outputs)\..*",
    )


BERTS = with_heads(
    replace(
        _family("BERT", ("bert",), "bert."),
        suits=lambda model: model.config.num_segments and not (model.config.skip_padding or model.config.relative_ranges),
    ),
    config_of,
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
    """The heads of RoBERTa and MPNet. That for masks has gelu, whatever the activation of the blocks is."""
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
    """The configuration that a config.json describes."""
    return BertConfig(**settings.ours(DISTILBERT_SETTINGS), num_segments=0, norm_eps=1e-12)


def describe_distilbert(model: AnyBert) -> dict[str, Any]:
    """The config.json of a model."""
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
        kind=Bert,
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
