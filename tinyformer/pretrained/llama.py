"""Llama (Touvron et al. 2023) and its relatives: SmolLM2, which is a Llama, Mistral, Qwen2, Qwen3 and Gemma."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinyformer.common.errors import shortened
from tinyformer.models.gpt import GPT, GPTConfig, GPTVectors
from tinyformer.models.positions import RotaryScaling
from tinyformer.pretrained.families import OTHER_HEADS, Family, has_output, without_output
from tinyformer.pretrained.settings import PROBABILITY, PretrainedSettings, Row, described, must_be

NAMES = {
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
SETTINGS = (
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
GEMMA_NAMES = {name: f"{theirs}^-1" if name.endswith("norm") else theirs for name, theirs in NAMES.items()}
_LLAMA: dict[str, Any] = {
    "query_key_value_bias": False,
    "query_key_norm": False,
    "activation": "swiglu",
    "scale_embeddings": False,
}
ONLY = {  # what tells these models apart
    "llama": _LLAMA,
    "qwen2": _LLAMA | {"query_key_value_bias": True},
    "qwen3": _LLAMA | {"query_key_norm": True},
    "mistral": _LLAMA,
    "gemma": _LLAMA | {"activation": "geglu", "scale_embeddings": True},
}
NAMED = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "gemma": "Gemma"}
GATES = {"swiglu": "silu", "geglu": "gelu_pytorch_tanh"}  # the functions of the gates, by their published names
DEFAULTS: dict[str, dict[str, Any]] = {  # those of transformers, where they differ from Llama's
    "qwen3": {"head_dim": 128},
    "gemma": {"head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True},
}


def config_of(settings: PretrainedSettings) -> GPTConfig:
    """The configuration that a config.json describes."""
    kind = settings.read(str, "model_type")
    settings = PretrainedSettings(settings.path, {**DEFAULTS.get(kind, {}), **settings.values})
    if kind != "gemma" or settings.values.get("hidden_act") != "gelu":  # as Gemma's first files name the approximation
        settings.refuse(hidden_act=GATES[ONLY[kind]["activation"]])
    settings.refuse(hidden_activation="gelu_pytorch_tanh", attention_bias=False, mlp_bias=False, partial_rotary_factor=1.0)
    settings.refuse(use_sliding_window=False, use_bidirectional_attention=False)
    ours, (base, scaling) = settings.ours(SETTINGS), rotary_settings(settings)
    has_window = kind == "mistral" and settings.values.get("sliding_window", 0) is not None  # one that is missing has a default
    return GPTConfig(
        **ours,
        positions="rotary",
        norm="rms",
        num_key_value_heads=settings.read(int, "num_key_value_heads", ours["num_heads"]),
        d_head=settings.read(int, "head_dim", ours["d_model"] // max(ours["num_heads"], 1)),
        rotary_base=base,
        rotary_scaling=scaling,
        sliding_window=settings.read(int, "sliding_window", 4096) if has_window else 0,
        **ONLY[kind],
    )


def rotary_settings(settings: PretrainedSettings) -> tuple[float, RotaryScaling | None]:
    """The base and the scaling of rotary positions, from ``rope_parameters``, or as older files say it, from ``rope_theta`` and
    ``rope_scaling``."""
    settings.same("rope_parameters", "rope_scaling")
    found = settings.read(dict[str, Any], "rope_parameters", {}) or settings.read(dict[str, Any], "rope_scaling", {})
    rotary = PretrainedSettings(settings.path, found)
    rotary.refuse(partial_rotary_factor=1.0)
    base = rotary.read(float, "rope_theta", settings.read(float, "rope_theta", 10000.0))
    kind = rotary.read(str, "rope_type", rotary.read(str, "type", "default"))
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, RotaryScaling("linear", rotary.read(float, "factor"))
    if kind != "llama3":
        raise settings.error(
            f"the rotary scaling {shortened(repr(kind), 40)} is not known; there are default, linear and llama3"
        )
    factor, low, high = (rotary.read(float, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    return base, RotaryScaling("llama3", factor, low, high, rotary.read(int, "original_max_position_embeddings"))


def describe(kind: str) -> Callable[[GPT | GPTVectors], dict[str, Any]]:
    """A function that gives the config.json of a model of this kind."""

    def describe_kind(model: GPT | GPTVectors) -> dict[str, Any]:
        config, name = model.config, NAMED[kind]
        must_be(name, config, positions="rotary", norm="rms", bias=False, **ONLY[kind])
        must_be(name, config, sliding_window=config.sliding_window if kind == "mistral" else 0)
        num_key_value_heads, d_head = config.block.head_sizes
        return {
            **described(SETTINGS, config),
            "model_type": kind,
            "architectures": [f"{name}ForCausalLM" if isinstance(model, GPT) else f"{name}Model"],
            "num_key_value_heads": num_key_value_heads,
            "head_dim": d_head,
            "hidden_act": GATES[config.activation],
            "tie_word_embeddings": config.tie_output and isinstance(model, GPT),
            "rope_parameters": describe_rotary(config),
            **({"sliding_window": config.sliding_window} if kind == "mistral" else {}),
        }

    return describe_kind


def describe_rotary(config: GPTConfig) -> dict[str, Any]:
    """The base and the scaling of rotary positions, as config.json has them."""
    scaling = config.rotary_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": config.rotary_base}
    described = {"rope_type": scaling.kind, "rope_theta": config.rotary_base, "factor": scaling.factor}
    if scaling.kind == "llama3":
        described["low_freq_factor"] = scaling.low_frequency_factor
        described["high_freq_factor"] = scaling.high_frequency_factor
        described["original_max_position_embeddings"] = scaling.original_length
    return described


def _is(kind: str) -> Callable[[GPT | GPTVectors], bool]:
    """A function that tells whether a model is written as one of this kind. A Mistral without window is written as a Llama."""

    def suits(model: GPT | GPTVectors) -> bool:
        config = model.config
        plain = "gemma" if config.scale_embeddings else "mistral" if config.sliding_window else "llama"
        found = "qwen3" if config.query_key_norm else "qwen2" if config.query_key_value_bias else plain
        return config.positions == "rotary" and found == kind

    return suits


LLAMAS = tuple(
    Family(
        name=name,
        model_types=(kind,),
        names=GEMMA_NAMES if kind == "gemma" else NAMES,
        make=lambda settings: GPT(config_of(settings)),
        describe=describe(kind),
        kind=GPT,
        suits=_is(kind),
        found=has_output("lm_head.weight", is_tied=kind == "gemma"),
        prefix="model.",
        copies={"lm_head.weight": "model.embed_tokens.weight"},
        ignored=r".*\.rotary_emb\.inv_freq",
        unused=OTHER_HEADS,
    )
    for kind, name in NAMED.items()
)
LLAMAS_VECTORS = tuple(without_output(family, config_of) for family in LLAMAS)
