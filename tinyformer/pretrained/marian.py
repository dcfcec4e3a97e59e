"""Marian's translators (Junczys-Dowmunt et al. 2018), as the Opus-MT models are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.models.activations import published_names
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.pretrained.families import Family
from tinyformer.pretrained.settings import ACTIVATION, PROBABILITY, PretrainedSettings, Row, described, must_be

_SELF = {
    "attention.query_key_value": "self_attn.[q,k,v]_proj",
    "attention.output": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "feed_forward.up": "fc1",
    "feed_forward.down": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
_CROSS = {
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key_value": "encoder_attn.[k,v]_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
}
NAMES = {
    "source_embedding.tokens": "model.shared",
    "target_embedding.tokens": "model.decoder.embed_tokens",
    "output": "lm_head",
    "output_bias": "final_logits_bias^1",
    **{f"encoder.blocks.*.{name}": f"model.encoder.layers.*.{theirs}" for name, theirs in _SELF.items()},
    **{f"decoder.blocks.*.{name}": f"model.decoder.layers.*.{theirs}" for name, theirs in {**_SELF, **_CROSS}.items()},
}
SETTINGS = (
    Row("source_vocab_size", "vocab_size", int),
    Row("source_pad", "pad_token_id", int),
    Row("d_model", "d_model", int, None, "hidden_size"),
    Row("num_heads", "encoder_attention_heads decoder_attention_heads", int, None, "num_attention_heads"),
    Row("encoder_layers", "encoder_layers", int, None, "num_hidden_layers"),
    Row("decoder_layers", "decoder_layers", int),
    Row("d_ff", "encoder_ffn_dim decoder_ffn_dim", int),
    Row("dropout", "dropout attention_dropout", PROBABILITY, 0.1),
    Row("max_length", "max_position_embeddings", int, 1024),
    Row("activation", "activation_function", ACTIVATION, "gelu"),
    Row("tie_output", "tie_word_embeddings", bool, True),
    Row("scale_embeddings", "scale_embedding", bool, False),
)


def make(settings: PretrainedSettings) -> Transformer:
    """The model that a config.json describes."""
    settings = settings.by_own_names(SETTINGS)
    settings.refuse(static_position_embeddings=True, normalize_before=False, normalize_embedding=False)
    settings.refuse(add_final_layer_norm=False, add_bias_final_layer_norm=False, is_encoder_decoder=True)
    for name in ("attention_heads", "ffn_dim"):
        settings.same(f"encoder_{name}", f"decoder_{name}")
    ours = settings.ours(SETTINGS)
    return Transformer(
        TransformerConfig(
            **ours,
            target_vocab_size=settings.read(int, "decoder_vocab_size", ours["source_vocab_size"]),
            positions="sinusoidal_halves",
            share_embeddings=_share_embeddings(settings),
            learn_padding=False,
            output_bias=True,
        )
    )


def _share_embeddings(settings: PretrainedSettings) -> bool:
    """Whether both languages have one embedding. Where transformers ties no tensors, each has its own."""
    shares = settings.read(bool, "share_encoder_decoder_embeddings", True)
    return shares and settings.read(bool, "tie_word_embeddings", True)


def describe(model: Transformer) -> dict[str, Any]:
    """The config.json of a model. Where it has no fixed bias of the logits, Marian's is zeros."""
    config = model.config
    must_be(
        "Marian", config, positions="sinusoidal_halves", norm="layer", norm_first=False, activation=tuple(published_names())
    )
    must_be("Marian", config, source_features=0, norm_eps=1e-5, query_key_norm=False)
    if config.share_embeddings and not config.tie_output:
        raise UserError("Marian's models with one embedding for both languages use it as the output layer, too")
    return {
        **described(SETTINGS, config),
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "decoder_vocab_size": config.target_vocab_size,
        "decoder_start_token_id": config.source_pad,
        "share_encoder_decoder_embeddings": config.share_embeddings,
    }


_ENCODER_EMBEDDING, _DECODER_EMBEDDING = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
MARIAN = Family(
    name="Marian",
    model_types=("marian",),
    names=NAMES,
    make=make,
    describe=describe,
    kind=Transformer,
    suits=lambda model: model.config.share_embeddings,
    found=lambda settings, names: _share_embeddings(settings),
    prefix="model.",
    copies=dict.fromkeys((_ENCODER_EMBEDDING, _DECODER_EMBEDDING, "lm_head.weight"), "model.shared.weight"),
    ignored=r"model\.(encoder|decoder)\.embed_positions\.weight",
    optional="output_bias",
)
# With an embedding for each language, as few models have it.
MARIAN_SEPARATE = replace(
    MARIAN,
    names={**NAMES, "source_embedding.tokens": "model.encoder.embed_tokens"},
    suits=lambda model: True,
    found=lambda settings, names: True,
    copies={"lm_head.weight": _DECODER_EMBEDDING},
    ignored=rf"{MARIAN.ignored}|model\.shared\.weight",
)
