"""Families with a decoder: GPT-2 (Radford et al. 2019); Llama (Touvron et al. 2023), SmolLM2, Mistral, Qwen2, Qwen3 and Gemma;
Marian (Junczys-Dowmunt et al. 2018), such as the Opus-MT translators."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.models.activations import published_names
from tinyformer.models.gpt import GPT, GPTConfig, GPTVectors
from tinyformer.models.positions import RotaryScaling
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.pretrained.families import ACTIVATION, PROBABILITY, Family, PretrainedSettings, Row, described, must_be

# Language models are a ``GPT``, or a ``GPTVectors`` if they have no output layer.
OTHER_HEADS = r"(score|classifier|qa_outputs|multiple_choice_head|v_head)\..*"
_WITH_OUTPUT = ("ForCausalLM", "LMHeadModel")


def has_output(name: str, is_tied: bool) -> Callable[[PretrainedSettings, Collection[str]], bool]:
    """Return a predicate of a folder's settings and tensor names: True if the model has an output layer. ``name`` is the
    weight's name, and ``is_tied`` the default of tie_word_embeddings."""

    def has_it(settings: PretrainedSettings, names: Collection[str]) -> bool:
        if settings.read(bool, "tie_word_embeddings", is_tied) or name in names:
            return True
        return any(named.endswith(_WITH_OUTPUT) for named in settings.read(list[str], "architectures", []))

    return has_it


def without_output(family: Family, config_of: Callable[[PretrainedSettings], GPTConfig]) -> Family:
    """Return the same family for models without an output layer."""
    return replace(
        family,
        names={f"gpt.{name}": theirs for name, theirs in family.names.items()},
        make=lambda settings: GPTVectors(config_of(settings)),
        model_class=GPTVectors,
        matches=lambda settings, names: True,
        copies={},
        biases=r"gpt\.(" + family.biases + ")",
    )


# ------------------------------------------------------------------------------------------------------------------------ GPT-2

GPT2_NAMES = {
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
GPT2_SETTINGS = (
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


def config_of_gpt2(settings: PretrainedSettings) -> GPTConfig:
    """Convert a config.json to a GPTConfig."""
    settings.refuse(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return GPTConfig(**settings.ours(GPT2_SETTINGS), bias=True)


def describe_gpt2(model: GPT | GPTVectors) -> dict[str, Any]:
    """Return a model's config.json. GPT-2 stores zeros for biases that the model lacks."""
    config = model.config
    must_be("GPT-2", config, positions="learned", norm="layer", num_key_value_heads=(0, config.num_heads), query_key_norm=False)
    must_be("GPT-2", config, sliding_window=0, scale_embeddings=False)
    must_be("GPT-2", config, d_head=(0, config.d_model // config.num_heads), activation=tuple(published_names()))
    return {
        **described(GPT2_SETTINGS, config),
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel" if isinstance(model, GPT) else "GPT2Model"],
        "tie_word_embeddings": config.tie_output and isinstance(model, GPT),
        "bos_token_id": None,  # GPT-2's default may be outside this vocabulary
        "eos_token_id": None,
    }


GPT2 = Family(
    name="GPT-2",
    model_types=("gpt2",),
    names=GPT2_NAMES,
    make=lambda settings: GPT(config_of_gpt2(settings)),
    describe=describe_gpt2,
    model_class=GPT,
    suits=lambda model: model.config.positions != "rotary",
    matches=has_output("lm_head.weight", is_tied=True),
    prefix="transformer.",
    copies={"lm_head.weight": "transformer.wte.weight"},
    ignored=r".*\.attn\.(bias|masked_bias)",
    unused=OTHER_HEADS,
    biases=r"blocks\..*|norm\.bias",
)
GPT2_VECTORS = without_output(GPT2, config_of_gpt2)


# ------------------------------------------------------------------------------------------------------------------------ Llama

LLAMA_NAMES = {
    "token_embedding": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "blocks.*.attention_norm": "model.layers.*.input_layernorm",
    "blocks.*.attention.query_key_value": "model.layers.*.self_attn.[q,k,v]_proj",
    "blocks.*.attention.query_norm": "model.layers.*.self_attn.q_norm",
    "blocks.*.attention.key_norm": "model.layers.*.self_attn.k_norm",
    "blocks.*.attention.output": "model.layers.*.self_attn.o_proj",
    "blocks.*.feed_forward_norm": "model.layers.*.post_attention_layernorm",
    "blocks.*.feed_forward.gate": "model.layers.*.mlp.gate_proj",
    "blocks.*.feed_forward.up": "model.layers.*.mlp.up_proj",
    "blocks.*.feed_forward.down": "model.layers.*.mlp.down_proj",
}
LLAMA_SETTINGS = (
    Row("vocab_size", "vocab_size", int),
    Row("block_size", "max_position_embeddings", int, 2048),
    Row("num_layers", "num_hidden_layers", int),
    Row("num_heads", "num_attention_heads", int),
    Row("d_model", "hidden_size", int),
    Row("d_ff", "intermediate_size", int),
    Row("dropout", "attention_dropout", PROBABILITY, 0.0),
    Row("norm_eps", "rms_norm_eps", float, 1e-6),
    Row("tie_output", "tie_word_embeddings", bool, False),
)
GEMMA_NAMES = {name: f"{theirs}^-1" if name.endswith("norm") else theirs for name, theirs in LLAMA_NAMES.items()}
_LLAMA: dict[str, Any] = {
    "query_key_value_bias": False,
    "query_key_norm": False,
    "activation": "swiglu",
    "scale_embeddings": False,
}
ONLY = {  # settings in which these models differ
    "llama": _LLAMA,
    "qwen2": _LLAMA | {"query_key_value_bias": True},
    "qwen3": _LLAMA | {"query_key_norm": True},
    "mistral": _LLAMA,
    "gemma": _LLAMA | {"activation": "geglu", "scale_embeddings": True},
}
NAMED = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "gemma": "Gemma"}
GATES = {"swiglu": "silu", "geglu": "gelu_pytorch_tanh"}  # names of gate functions in Hugging Face files
DEFAULTS: dict[str, dict[str, Any]] = {  # transformers defaults, where they differ from Llama
    "qwen3": {"head_dim": 128},
    "gemma": {"head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True},
}


def config_of_llama(settings: PretrainedSettings) -> GPTConfig:
    """Convert a config.json to a GPTConfig."""
    model_type = settings.read(str, "model_type")
    settings = PretrainedSettings(settings.path, {**DEFAULTS.get(model_type, {}), **settings.values})
    if model_type != "gemma" or settings.values.get("hidden_act") != "gelu":  # early Gemma files' name for the approximation
        settings.refuse(hidden_act=GATES[ONLY[model_type]["activation"]])
    settings.refuse(hidden_activation="gelu_pytorch_tanh", attention_bias=False, mlp_bias=False, partial_rotary_factor=1.0)
    settings.refuse(use_sliding_window=False, use_bidirectional_attention=False)
    ours, (base, scaling) = settings.ours(LLAMA_SETTINGS), rotary_settings(settings)
    has_window = model_type == "mistral" and settings.values.get("sliding_window", 0) is not None  # a missing one has a default
    return GPTConfig(
        **ours,
        positions="rotary",
        norm="rms",
        num_key_value_heads=settings.read(int, "num_key_value_heads", ours["num_heads"]),
        d_head=settings.read(int, "head_dim", ours["d_model"] // max(ours["num_heads"], 1)),
        rotary_base=base,
        rotary_scaling=scaling,
        sliding_window=settings.read(int, "sliding_window", 4096) if has_window else 0,
        **ONLY[model_type],
    )


def rotary_settings(settings: PretrainedSettings) -> tuple[float, RotaryScaling | None]:
    """Return the rotary base and scaling from ``rope_parameters`` or, in older files, from ``rope_theta`` and
    ``rope_scaling``."""
    settings.same("rope_parameters", "rope_scaling")
    values = settings.read(dict[str, Any], "rope_parameters", {}) or settings.read(dict[str, Any], "rope_scaling", {})
    rotary = PretrainedSettings(settings.path, values)
    rotary.refuse(partial_rotary_factor=1.0)
    base = rotary.read(float, "rope_theta", settings.read(float, "rope_theta", 10000.0))
    rope_type = rotary.read(str, "rope_type", rotary.read(str, "type", "default"))
    if rope_type == "default":
        return base, None
    if rope_type == "linear":
        return base, RotaryScaling("linear", rotary.read(float, "factor"))
    if rope_type != "llama3":
        raise settings.error(f"rope_type must be default, linear or llama3, got {shortened(repr(rope_type), 40)}")
    factor, low, high = (rotary.read(float, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    return base, RotaryScaling("llama3", factor, low, high, rotary.read(int, "original_max_position_embeddings"))


def describe_llama(model_type: str) -> Callable[[GPT | GPTVectors], dict[str, Any]]:
    """Return a function that returns the config.json of a model of this type."""

    def describe_type(model: GPT | GPTVectors) -> dict[str, Any]:
        config, name = model.config, NAMED[model_type]
        must_be(name, config, positions="rotary", norm="rms", bias=False, **ONLY[model_type])
        must_be(name, config, sliding_window=config.sliding_window if model_type == "mistral" else 0)
        num_key_value_heads, d_head = config.block.head_sizes
        return {
            **described(LLAMA_SETTINGS, config),
            "model_type": model_type,
            "architectures": [f"{name}ForCausalLM" if isinstance(model, GPT) else f"{name}Model"],
            "num_key_value_heads": num_key_value_heads,
            "head_dim": d_head,
            "hidden_act": GATES[config.activation],
            "tie_word_embeddings": config.tie_output and isinstance(model, GPT),
            "rope_parameters": describe_rotary(config),
            **({"sliding_window": config.sliding_window} if model_type == "mistral" else {}),
        }

    return describe_type


def describe_rotary(config: GPTConfig) -> dict[str, Any]:
    """Return the rotary base and scaling for config.json."""
    scaling = config.rotary_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": config.rotary_base}
    described = {"rope_type": scaling.kind, "rope_theta": config.rotary_base, "factor": scaling.factor}
    if scaling.kind == "llama3":
        described["low_freq_factor"] = scaling.low_frequency_factor
        described["high_freq_factor"] = scaling.high_frequency_factor
        described["original_max_position_embeddings"] = scaling.original_length
    return described


def _is(model_type: str) -> Callable[[GPT | GPTVectors], bool]:
    """Return a predicate: True if a model is saved as this type. A Mistral without a window is saved as a Llama."""

    def suits(model: GPT | GPTVectors) -> bool:
        config = model.config
        plain = "gemma" if config.scale_embeddings else "mistral" if config.sliding_window else "llama"
        closest = "qwen3" if config.query_key_norm else "qwen2" if config.query_key_value_bias else plain
        return config.positions == "rotary" and closest == model_type

    return suits


LLAMAS = tuple(
    Family(
        name=name,
        model_types=(model_type,),
        names=GEMMA_NAMES if model_type == "gemma" else LLAMA_NAMES,
        make=lambda settings: GPT(config_of_llama(settings)),
        describe=describe_llama(model_type),
        model_class=GPT,
        suits=_is(model_type),
        matches=has_output("lm_head.weight", is_tied=model_type == "gemma"),
        prefix="model.",
        copies={"lm_head.weight": "model.embed_tokens.weight"},
        ignored=r".*\.rotary_emb\.inv_freq",
        unused=OTHER_HEADS,
    )
    for model_type, name in NAMED.items()
)
LLAMAS_VECTORS = tuple(without_output(family, config_of_llama) for family in LLAMAS)


# ----------------------------------------------------------------------------------------------------------------------- Marian

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
MARIAN_NAMES = {
    "source_embedding.tokens": "model.shared",
    "target_embedding.tokens": "model.decoder.embed_tokens",
    "output": "lm_head",
    "output_bias": "final_logits_bias^1",
    **{f"encoder.blocks.*.{name}": f"model.encoder.layers.*.{theirs}" for name, theirs in _SELF.items()},
    **{f"decoder.blocks.*.{name}": f"model.decoder.layers.*.{theirs}" for name, theirs in {**_SELF, **_CROSS}.items()},
}
MARIAN_SETTINGS = (
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


def make_marian(settings: PretrainedSettings) -> Transformer:
    """Return the model described by a config.json."""
    settings = settings.by_own_names(MARIAN_SETTINGS)
    settings.refuse(static_position_embeddings=True, normalize_before=False, normalize_embedding=False)
    settings.refuse(add_final_layer_norm=False, add_bias_final_layer_norm=False, is_encoder_decoder=True)
    for name in ("attention_heads", "ffn_dim"):
        settings.same(f"encoder_{name}", f"decoder_{name}")
    ours = settings.ours(MARIAN_SETTINGS)
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
    """Return True if both languages share one embedding. If transformers ties no tensors, each language has its own."""
    shares = settings.read(bool, "share_encoder_decoder_embeddings", True)
    return shares and settings.read(bool, "tie_word_embeddings", True)


def describe_marian(model: Transformer) -> dict[str, Any]:
    """Return a model's config.json. Marian stores zeros for a fixed bias that the model lacks."""
    config = model.config
    must_be(
        "Marian", config, positions="sinusoidal_halves", norm="layer", norm_first=False, activation=tuple(published_names())
    )
    must_be("Marian", config, source_features=0, norm_eps=1e-5, query_key_norm=False)
    if config.share_embeddings and not config.tie_output:
        raise UserError("cannot save this model as Marian: share_embeddings needs tie_output=True")
    return {
        **described(MARIAN_SETTINGS, config),
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
    names=MARIAN_NAMES,
    make=make_marian,
    describe=describe_marian,
    model_class=Transformer,
    suits=lambda model: model.config.share_embeddings,
    matches=lambda settings, names: _share_embeddings(settings),
    prefix="model.",
    copies=dict.fromkeys((_ENCODER_EMBEDDING, _DECODER_EMBEDDING, "lm_head.weight"), "model.shared.weight"),
    ignored=r"model\.(encoder|decoder)\.embed_positions\.weight",
    optional="output_bias",
)
# A few models have a separate embedding per language.
MARIAN_SEPARATE = replace(
    MARIAN,
    names={**MARIAN_NAMES, "source_embedding.tokens": "model.encoder.embed_tokens"},
    suits=lambda model: True,
    matches=lambda settings, names: True,
    copies={"lm_head.weight": _DECODER_EMBEDDING},
    ignored=rf"{MARIAN.ignored}|model\.shared\.weight",
)
