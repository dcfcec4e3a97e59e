"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from typing import Any

from tinyformer.models.activations import published_names
from tinyformer.models.gpt import GPT, GPTConfig, GPTVectors
from tinyformer.pretrained.families import OTHER_HEADS, Family, has_output, without_output
from tinyformer.pretrained.settings import ACTIVATION, PROBABILITY, PretrainedSettings, Row, described, must_be

NAMES = {
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "norm": "transformer.ln_f",
    "output": "lm_head",
    "blocks.*.attention_norm": "transformer.h.*.ln_1",
    "blocks.*.attention.query_key_value": "transformer.h.*.attn.c_attn^T",
    "blocks.*.attention.output": "transformer.h.*.attn.c_proj^T",
    "blocks.*.feed_forward_norm": "transformer.h.*.ln_2",
    "blocks.*.feed_forward.up": "transformer.h.*.mlp.c_fc^T",
    "blocks.*.feed_forward.down": "transformer.h.*.mlp.c_proj^T",
}
SETTINGS = (
    Row("vocab_size", "vocab_size", int, 50257),
    Row("block_size", "n_positions", int, 1024, "max_position_embeddings"),
    Row("num_layers", "n_layer", int, 12, "num_hidden_layers"),
    Row("num_heads", "n_head", int, 12, "num_attention_heads"),
    Row("d_model", "n_embd", int, 768, "hidden_size"),
    Row("d_ff", "n_inner", int, 0),
    Row("dropout", "resid_pdrop embd_pdrop attn_pdrop", PROBABILITY, 0.1),
    Row("activation", "activation_function", ACTIVATION, "gelu_new"),
    Row("norm_eps", "layer_norm_epsilon", float, 1e-5),
    Row("tie_output", "tie_word_embeddings", bool, True),
)


def config_of(settings: PretrainedSettings) -> GPTConfig:
    """The configuration that a config.json describes."""
    settings.refuse(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return GPTConfig(**settings.ours(SETTINGS), bias=True)


def describe(model: GPT | GPTVectors) -> dict[str, Any]:
    """The config.json of a model. GPT-2's layers have biases; where the model has none, theirs are zeros."""
    config = model.config
    must_be("GPT-2", config, positions="learned", norm="layer", num_key_value_heads=(0, config.num_heads), query_key_norm=False)
    must_be("GPT-2", config, sliding_window=0, scale_embeddings=False)
    must_be("GPT-2", config, d_head=(0, config.d_model // config.num_heads), activation=tuple(published_names()))
    return {
        **described(SETTINGS, config),
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel" if isinstance(model, GPT) else "GPT2Model"],
        "tie_word_embeddings": config.tie_output and isinstance(model, GPT),
        "bos_token_id": None,  # GPT-2's own may be outside of this vocabulary
        "eos_token_id": None,
    }


GPT2 = Family(
    name="GPT-2",
    model_types=("gpt2",),
    names=NAMES,
    make=lambda settings: GPT(config_of(settings)),
    describe=describe,
    kind=GPT,
    suits=lambda model: model.config.positions != "rotary",
    found=has_output("lm_head.weight", is_tied=True),
    prefix="transformer.",
    copies={"lm_head.weight": "transformer.wte.weight"},
    ignored=r".*\.attn\.(bias|masked_bias)",
    unused=OTHER_HEADS,
    biases=r"blocks\..*|norm\.bias",
)
GPT2_VECTORS = without_output(GPT2, config_of)
