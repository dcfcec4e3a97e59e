"""Pretrained models beside Hugging Face's: the folders that transformers writes are read, and it reads those written here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity.compare import assert_close

import tinytensor as tt
from tinyformer import (
    GPT,
    Bert,
    BertConfig,
    BertForClassification,
    BertForMaskedLM,
    GPTConfig,
    GPTVectors,
    Sampling,
    Transformer,
    TransformerConfig,
    UserError,
    Writing,
    from_pretrained,
    generate,
    read_writing,
    save_pretrained,
)
from tinyformer.models.positions import RotaryScaling
from tinyformer.pretrained.choosing import FAMILIES, families_of, family_among
from tinyformer.pretrained.decoders import GPT2_SETTINGS, LLAMA_SETTINGS, MARIAN_SETTINGS
from tinyformer.pretrained.encoders import BERT_SETTINGS, DISTILBERT_SETTINGS
from tinyformer.pretrained.folders import read_settings, read_weights

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 53, (3, 17))  # without 0, the padding of BERT, and 53, that of Marian
PADDED = np.where(np.arange(17) < [[17], [12], [5]], IDS, 0)


def noisy(model: Any, seed: int = 0) -> Any:
    """The model with noise on every parameter: at first biases are 0, norms 1, and logits nearly even."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:  # Marian's sines and cosines
                parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def gpt2(**changes: Any) -> Any:
    config = transformers.GPT2Config(vocab_size=54, n_positions=32, n_embd=24, n_layer=2, n_head=4, **changes)
    return noisy(transformers.GPT2LMHeadModel(config))


SMALL = {"vocab_size": 54, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}


def llama(kind: str = "Llama", **changes: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, "num_key_value_heads": 2, **changes})
    return noisy(getattr(transformers, f"{kind}ForCausalLM")(config))


def bert(head: str = "ForMaskedLM", **changes: Any) -> Any:
    return noisy(getattr(transformers, f"Bert{head}")(transformers.BertConfig(**{**SMALL, **changes})))


def marian(**changes: Any) -> Any:
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("attention_heads", 4), ("ffn_dim", 40))}
    sizes |= {"vocab_size": 54, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 32}
    ids = {"pad_token_id": 53, "decoder_start_token_id": 53, "eos_token_id": 0, "forced_eos_token_id": 0}
    model = noisy(transformers.MarianMTModel(transformers.MarianConfig(**{**sizes, **ids, **changes})))
    model.final_logits_bias.normal_()
    return model


DECODERS = {
    "gpt2": gpt2,
    "gpt2, gelu": lambda: gpt2(activation_function="gelu"),
    "gpt2, relu": lambda: gpt2(activation_function="relu"),
    "gpt2, silu": lambda: gpt2(activation_function="silu"),
    "gpt2, gelu_pytorch_tanh": lambda: gpt2(activation_function="gelu_pytorch_tanh"),
    "gpt2, n_inner, eps": lambda: gpt2(n_inner=30, layer_norm_epsilon=1e-2),
    "gpt2, untied": lambda: gpt2(tie_word_embeddings=False),
    "llama": llama,
    "llama, tied": lambda: llama(tie_word_embeddings=True),
    "llama, full heads": lambda: llama(num_key_value_heads=4, rms_norm_eps=1e-2),
    "llama, one head": lambda: llama(num_key_value_heads=1),
    "llama, head_dim": lambda: llama(head_dim=10),
    "llama, theta": lambda: llama(rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
    "llama, linear": lambda: llama(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}),
    "llama, llama3": lambda: llama(rope_parameters={"rope_theta": 500.0, **LLAMA3}),
    "mistral": lambda: llama("Mistral", sliding_window=None),
    "mistral, a window of this text": lambda: llama("Mistral", sliding_window=17, head_dim=10, tie_word_embeddings=True),
    "qwen2": lambda: llama("Qwen2"),
    "qwen2, tied": lambda: llama("Qwen2", tie_word_embeddings=True),
    "qwen3": lambda: llama("Qwen3", head_dim=10),
    "qwen3, tied": lambda: llama("Qwen3", head_dim=6, tie_word_embeddings=True, num_key_value_heads=4),
    "gemma": lambda: llama("Gemma"),  # whose heads have 256 numbers
    "gemma, head_dim, one head": lambda: llama("Gemma", head_dim=10, num_key_value_heads=1, rms_norm_eps=1e-2),
    "gemma, untied, full heads": lambda: llama("Gemma", head_dim=6, num_key_value_heads=4, tie_word_embeddings=False),
    "gemma, linear": lambda: llama(
        "Gemma", head_dim=8, rope_parameters={"rope_type": "linear", "rope_theta": 300.0, "factor": 2.5}
    ),
}
BERTS = {
    "gelu": {},
    "relu": {"hidden_act": "relu"},
    "gelu_new, eps": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2},
    "three segments": {"type_vocab_size": 3},
}
MARIANS = {
    "shared": {},
    "scaled": {"scale_embedding": True},
    "swish, scaled": {"activation_function": "swish", "scale_embedding": True},
    "relu": {"activation_function": "relu"},
    "separate": {"share_encoder_decoder_embeddings": False},
    "separate, another vocabulary": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60},
    "untied": {"tie_word_embeddings": False},
    "separate, untied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
}


def read_back(model: Any, folder: Path, **options: Any) -> Any:
    """Our model, from the folder that theirs is written to."""
    model.save_pretrained(folder, **options)
    return from_pretrained(folder)


def assert_same_gradients(ours: Any, theirs: Any, folder: Path, without: str = "-") -> None:
    """Every gradient, by the names of the family's table: no parameter of either side is left out, but ours whose names begin
    with ``without``, and theirs that they do not use."""
    settings = read_settings(folder)
    family = family_among(families_of(settings), settings, read_weights(folder))
    wanted = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    used = set()
    for name, parameter in ours.named_parameters():
        if name.startswith(without):
            assert parameter.grad is None, name
            continue
        source = family.source(name)
        if not set(source.names) <= set(wanted):  # their models without a head leave out its prefix
            source = replace(source, names=tuple(one.removeprefix(family.prefix) for one in source.names))
        if source.layout == "-1":  # weights differ by 1, and their gradients do not
            source = replace(source, layout="")
        parts = [wanted[one] for one in source.names]
        used.update(source.names)
        assert_close(parameter.grad, torch.cat([source.as_ours(part) for part in parts]), 1e-4, 1e-7, name)
    assert used == set(wanted)


@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder(kind: str, tmp_path: Path) -> None:
    theirs = DECODERS[kind]()
    ours = read_back(theirs, tmp_path)
    assert ours.num_parameters() == ours.config.num_parameters() == sum(p.numel() for p in theirs.parameters())
    assert not ours.training
    expected = theirs(torch.tensor(IDS), labels=torch.tensor(IDS))
    assert_close(ours(tt.tensor(IDS)), expected.logits)
    loss = ours.loss(tt.tensor(IDS[:, :-1]), tt.tensor(IDS[:, 1:]))
    assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs, tmp_path)
    cache, steps = ours.new_cache(), [5, 1, 1, 3, *[1] * 7]
    with tt.no_grad():
        parts = [ours(tt.tensor(part), cache).numpy() for part in np.split(IDS, np.cumsum(steps)[:-1], axis=1)]
    assert_close(tt.tensor(np.concatenate(parts, axis=1)), expected.logits)


@pytest.mark.parametrize("kind", ["GPT2", "DistilBert", "Marian"])
def test_settings_by_their_common_names(kind: str, tmp_path: Path) -> None:
    """Where a file has both names, transformers takes the common one."""
    config = getattr(transformers, f"{kind}Config")
    sizes = {"vocab_size": 54, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {
        "decoder_layers": 1,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40,
        "pad_token_id": 53,
    }
    sizes |= {"decoder_start_token_id": 53, "eos_token_id": 0, "forced_eos_token_id": 0}
    theirs = getattr(transformers, {"Marian": "MarianMTModel"}.get(kind, f"{kind}Model"))(config(**sizes)).eval()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text())
    for common, name in config.attribute_map.items():
        said[common], said[name] = said[name], 7
    path.write_text(json.dumps(said))
    assert type(theirs).from_pretrained(tmp_path).config.hidden_size == 24
    ids = IDS[:, :5]
    with torch.no_grad():
        given = {"decoder_input_ids": torch.tensor(ids)} if kind == "Marian" else {}
        found = theirs(torch.tensor(ids), **given)
        expected = found.logits if kind == "Marian" else found.last_hidden_state
    ours = from_pretrained(tmp_path)
    with tt.no_grad():
        out = ours(tt.tensor(ids), tt.tensor(ids)) if kind == "Marian" else vectors(ours, ids)
    assert_close(out, expected)


def test_the_common_names_are_those_of_transformers() -> None:
    own = {"gpt2": GPT2_SETTINGS, "distilbert": DISTILBERT_SETTINGS, "marian": MARIAN_SETTINGS}
    for kind in {name for family in FAMILIES for name in family.model_types}:
        names = {row.common: row.theirs.split()[0] for row in own.get(kind, BERT_SETTINGS + LLAMA_SETTINGS) if row.common}
        assert names == transformers.AutoConfig.for_model(kind).attribute_map, kind


def vectors(model: Any, ids: np.ndarray) -> tt.Tensor:
    """The vectors of tokens: of a GPT whose output layer is its embedding, too."""
    return model.vectors(tt.tensor(ids)) if isinstance(model, GPT) else model(tt.tensor(ids))


@pytest.mark.parametrize("kind", BERTS)
def test_bert_that_fills_masks(kind: str, tmp_path: Path) -> None:
    theirs = bert(**BERTS[kind])
    ours = read_back(theirs, tmp_path)
    assert isinstance(ours, BertForMaskedLM)
    segments = RNG.integers(0, theirs.config.type_vocab_size, IDS.shape)
    labels = np.where((RNG.random(IDS.shape) < 0.3) & (PADDED != 0), IDS, -100)
    expected = theirs(
        torch.tensor(PADDED), torch.tensor(PADDED != 0), token_type_ids=torch.tensor(segments), labels=torch.tensor(labels)
    )
    logits = ours(tt.tensor(PADDED), tt.tensor(segments))
    assert_close(logits, expected.logits)
    loss = tt.cross_entropy(logits, tt.tensor(labels), ignore_index=-100)
    assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs, tmp_path, without="bert.pooler")


@pytest.mark.parametrize("kind", BERTS)
def test_bert_that_classifies(kind: str, tmp_path: Path) -> None:
    theirs = bert("ForSequenceClassification", num_labels=5, **BERTS[kind])
    ours = read_back(theirs, tmp_path)
    assert isinstance(ours, BertForClassification)
    expected = theirs(torch.tensor(PADDED), torch.tensor(PADDED != 0), labels=torch.tensor([1, 4, 0]))
    logits = ours(tt.tensor(PADDED))
    assert_close(logits, expected.logits)
    loss = tt.cross_entropy(logits, tt.tensor([1, 4, 0]))
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs, tmp_path)


def test_bert_with_an_explicit_mask(tmp_path: Path) -> None:
    theirs = bert("Model")
    ours = read_back(theirs, tmp_path)
    assert type(ours) is Bert
    mask = RNG.random(IDS.shape) < 0.6
    mask[:, 0] = True
    expected = theirs(torch.tensor(IDS), torch.tensor(mask))
    encoded = ours(tt.tensor(IDS), mask=tt.tensor(mask))
    assert_close(encoded, expected.last_hidden_state)
    assert_close(ours.pool(encoded), expected.pooler_output)
    weights = RNG.standard_normal((2, *expected.last_hidden_state.shape)).astype("float32")
    total = (encoded * tt.tensor(weights[0])).sum() + (ours.pool(encoded) * tt.tensor(weights[1, :, 0])).sum()
    their_total = (expected.last_hidden_state * torch.tensor(weights[0])).sum()
    their_total = their_total + (expected.pooler_output * torch.tensor(weights[1, :, 0])).sum()
    total.backward()
    their_total.backward()
    assert_same_gradients(ours, theirs, tmp_path)


@pytest.mark.parametrize("kind", MARIANS)
def test_marian(kind: str, tmp_path: Path) -> None:
    theirs = marian(**MARIANS[kind])
    ours = read_back(theirs, tmp_path)
    source = np.where(PADDED == 0, 53, PADDED)
    target = np.concatenate([np.full((3, 1), 53), RNG.integers(1, 53, (3, 8))], axis=1)  # it starts with padding
    outputs = np.where(RNG.random(target.shape) < 0.2, -100, target[:, ::-1])
    expected = theirs(
        torch.tensor(source), torch.tensor(source != 53), decoder_input_ids=torch.tensor(target), labels=torch.tensor(outputs)
    )
    assert_close(ours(tt.tensor(source), tt.tensor(target)), expected.logits)
    loss = ours.loss(tt.tensor(source), tt.tensor(target), tt.tensor(outputs))
    assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs, tmp_path)
    with tt.no_grad():
        memory, mask = ours.encode(tt.tensor(source))
        cache = ours.new_cache(9, 17)
        parts = [ours.decode(tt.tensor(part), memory, mask, cache).numpy() for part in np.split(target, [3, 4, 5], axis=1)]
    assert_close(tt.tensor(np.concatenate(parts, axis=1)), expected.logits)


def test_the_row_of_padding_learns_as_output_only(tmp_path: Path) -> None:
    theirs = marian(share_encoder_decoder_embeddings=False)
    ours = read_back(theirs, tmp_path)
    target = np.full((3, 1), 53)
    ours.loss(tt.tensor(np.where(PADDED == 0, 53, PADDED)), tt.tensor(target), tt.tensor(target)).backward()
    assert not ours.source_embedding.tokens.weight.grad.numpy()[53].any()
    assert ours.target_embedding.tokens.weight.grad.numpy()[53].any()


# ------------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("make", [gpt2, llama, bert, marian])
def test_shards(make: Callable[[], Any], tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    theirs = make()
    theirs.save_pretrained(whole)
    theirs.save_pretrained(parts, max_shard_size="12KB")
    assert len(list(parts.glob("model-*-of-*.safetensors"))) > 2
    assert not (parts / "model.safetensors").exists()
    ours, from_parts = from_pretrained(whole), from_pretrained(parts)
    for name, tensor in ours.state_dict().items():
        if "pooler" not in name:  # a file for masks has none, so that it is random
            np.testing.assert_array_equal(from_parts.state_dict()[name].numpy(), tensor.numpy(), name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [gpt2, lambda: llama("Qwen2"), lambda: llama("Gemma", head_dim=8), marian])
def test_half_precision_is_read_as_float32(make: Callable[[], Any], dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = make()
    ours = read_back(theirs.to(dtype), tmp_path)
    assert all(p.dtype == np.float32 for p in ours.parameters())
    widened = type(theirs).from_pretrained(tmp_path, dtype=torch.float32).eval()
    if isinstance(ours, Transformer):
        expected = widened(torch.tensor(IDS), decoder_input_ids=torch.tensor(IDS))
        assert_close(ours(tt.tensor(IDS), tt.tensor(IDS)), expected.logits)
    else:
        assert_close(ours(tt.tensor(IDS)), widened(torch.tensor(IDS)).logits)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the tensors of a folder's file."""
    found = safetensors_torch.load_file(folder / "model.safetensors")
    changed = {name: tensor.contiguous().clone() for name, tensor in change(found).items()}
    safetensors_torch.save_file(changed, folder / "model.safetensors", {"format": "pt"})


def reconfigure(folder: Path, **changes: Any) -> None:
    """Change a folder's settings; None removes one."""
    settings = json.loads((folder / "config.json").read_text()) | changes
    kept = {name: value for name, value in settings.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def old_names(state: dict[str, Any]) -> dict[str, Any]:
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return {name.replace(key, old[key]): tensor for name, tensor in state.items() for key in old if key in name} | {
        name: tensor for name, tensor in state.items() if "LayerNorm" not in name
    }


def plus(**tensors: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: state | {name.replace("__", "."): tensor for name, tensor in tensors.items()}


ONE = torch.ones(1)
VARIANTS = {
    "gpt2: masks": (
        gpt2,
        plus(transformer__h__0__attn__bias=torch.ones(1, 1, 32, 32), transformer__h__1__attn__masked_bias=ONE),
    ),
    "gpt2: the output again": (gpt2, lambda state: state | {"lm_head.weight": state["transformer.wte.weight"]}),
    "gpt2: no prefix": (gpt2, lambda state: {name.removeprefix("transformer."): tensor for name, tensor in state.items()}),
    "gpt2: no prefix, masks": (
        gpt2,
        lambda state: {name.removeprefix("transformer."): t for name, t in plus(h__0__attn__bias=ONE)(state).items()},
    ),
    "llama: frequencies": (llama, plus(model__layers__0__self_attn__rotary_emb__inv_freq=ONE)),
    "llama: the output again": (
        lambda: llama(tie_word_embeddings=True),
        lambda state: state | {"lm_head.weight": state["model.embed_tokens.weight"]},
    ),
    "llama: the output alone": (
        lambda: llama(tie_word_embeddings=True),
        lambda state: {name.replace("model.embed_tokens", "lm_head"): tensor for name, tensor in state.items()},
    ),
    "llama: no prefix": (llama, lambda state: {name.removeprefix("model."): tensor for name, tensor in state.items()}),
    "bert: gamma and beta": (bert, old_names),
    "bert: position_ids": (bert, plus(bert__embeddings__position_ids=torch.arange(32)[None])),
    "bert: next sentences": (bert, plus(cls__seq_relationship__weight=ONE, cls__seq_relationship__bias=ONE)),
    "bert: the output again": (
        bert,
        lambda state: (
            state
            | {
                "cls.predictions.decoder.weight": state["bert.embeddings.word_embeddings.weight"],
                "cls.predictions.decoder.bias": state["cls.predictions.bias"],
            }
        ),
    ),
    "bert: no prefix": (lambda: bert("Model"), lambda state: {f"bert.{name}": tensor for name, tensor in state.items()}),
    "marian: all copies": (
        marian,
        lambda state: (
            state
            | {
                "model.encoder.embed_tokens.weight": state["model.shared.weight"],
                "model.decoder.embed_tokens.weight": state["model.shared.weight"],
                "lm_head.weight": state["model.shared.weight"],
                "model.encoder.embed_positions.weight": torch.ones(32, 24),
                "model.decoder.embed_positions.weight": torch.ones(32, 24),
            }
        ),
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_files_as_others_have_written_them(variant: str, tmp_path: Path) -> None:
    make, change = VARIANTS[variant]
    ours = read_back(make(), tmp_path)
    rewrite(tmp_path, change)
    found = from_pretrained(tmp_path).state_dict()
    for name, tensor in ours.state_dict().items():
        if "pooler" not in name or isinstance(ours, Bert):  # a file for masks has none, so that it is random
            np.testing.assert_array_equal(found[name].numpy(), tensor.numpy(), name)


@pytest.mark.parametrize("make", [gpt2, lambda: llama(tie_word_embeddings=True), marian, bert])
def test_an_output_that_is_not_the_embedding_but_should_be(make: Callable[[], Any], tmp_path: Path) -> None:
    make().save_pretrained(tmp_path)
    output = "cls.predictions.decoder" if make is bert else "lm_head"
    rewrite(tmp_path, lambda state: state | {f"{output}.weight": torch.ones(54, 24)})
    with pytest.raises(UserError, match=f"{output}.weight and .* differ, but config.json ties them"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 2.5}, LLAMA3])
@pytest.mark.parametrize("name_of_type", ["rope_type", "type"])
def test_rotary_settings_as_older_files_have_them(scaling: Any, name_of_type: str, tmp_path: Path) -> None:
    theirs = llama(rope_parameters={"rope_theta": 300.0, **(scaling or {"rope_type": "default"})})
    theirs.save_pretrained(tmp_path)
    older = scaling and {name.replace("rope_type", name_of_type): value for name, value in scaling.items()}
    reconfigure(tmp_path, rope_parameters=None, rope_theta=300.0, rope_scaling=older)
    assert_close(from_pretrained(tmp_path)(tt.tensor(IDS)), theirs(torch.tensor(IDS)).logits)


def test_settings_that_contradict_each_other_or_need_other_weights(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    reconfigure(tmp_path, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    with pytest.raises(UserError, match="rope_parameters and rope_scaling must be equal"):
        from_pretrained(tmp_path)
    reconfigure(tmp_path, rope_scaling=None, quantization_config={"quant_method": "fp8"})
    with pytest.raises(UserError, match="quantization_config is not supported"):
        from_pretrained(tmp_path)


def test_models_without_their_heads(tmp_path: Path) -> None:
    theirs = gpt2()
    expected = read_back(theirs, tmp_path / "whole")(tt.tensor(IDS)).numpy()
    theirs.transformer.save_pretrained(tmp_path / "bare")
    np.testing.assert_array_equal(from_pretrained(tmp_path / "bare")(tt.tensor(IDS)).numpy(), expected)


BARE = {
    "gpt2": lambda: gpt2(tie_word_embeddings=False),
    "Gemma": lambda: llama("Gemma", tie_word_embeddings=False),
    **{name: lambda name=name: llama(name) for name in ("Llama", "Mistral", "Qwen2", "Qwen3")},
}


@pytest.mark.parametrize("kind", BARE)
@pytest.mark.parametrize("architectures", ["its own", None, ["LlamaForSequenceClassification"]])
def test_models_without_an_output_layer_give_vectors(kind: str, architectures: Any, tmp_path: Path) -> None:
    theirs = BARE[kind]().base_model
    theirs.save_pretrained(tmp_path)
    if architectures != "its own":
        reconfigure(tmp_path, architectures=architectures)
    ours = from_pretrained(tmp_path)
    assert isinstance(ours, GPTVectors)
    expected = theirs(torch.tensor(IDS)).last_hidden_state
    assert_close(ours(tt.tensor(IDS)), expected)
    weights = RNG.standard_normal(expected.shape).astype("float32")
    (ours(tt.tensor(IDS)) * tt.tensor(weights)).sum().backward()
    (expected * torch.tensor(weights)).sum().backward()
    assert_same_gradients(ours, theirs, tmp_path)
    save_pretrained(ours, tmp_path / "ours")
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    assert_close(ours(tt.tensor(IDS)), again(torch.tensor(IDS)).last_hidden_state)
    np.testing.assert_array_equal(from_pretrained(tmp_path / "ours")(tt.tensor(IDS)).numpy(), ours(tt.tensor(IDS)).numpy())


def test_heads_of_decoders_that_are_not_used_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = transformers.LlamaConfig(**SMALL, num_labels=3)
    theirs = noisy(transformers.LlamaForSequenceClassification(config))
    ours = read_back(theirs, tmp_path)
    assert caplog.messages == [f"{tmp_path} has layers that a GPTVectors does not use: score"]
    assert_close(ours(tt.tensor(IDS)), theirs.model(torch.tensor(IDS)).last_hidden_state)


@pytest.mark.parametrize("window", [1, 5, 16])
def test_a_sliding_window(window: int, tmp_path: Path) -> None:
    theirs = llama("Mistral", sliding_window=window, attn_implementation="eager")
    ours = read_back(theirs, tmp_path)
    expected = theirs(torch.tensor(IDS), labels=torch.tensor(IDS))
    assert_close(ours(tt.tensor(IDS)), expected.logits)
    loss = ours.loss(tt.tensor(IDS[:, :-1]), tt.tensor(IDS[:, 1:]))
    assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs, tmp_path)
    cache = ours.new_cache()
    with pytest.raises(ValueError, match=rf"a cache holds at most the sliding_window of {window} tokens?: read longer texts"):
        ours(tt.tensor(IDS), cache)
    written = generate(ours, IDS[0, :4], 20, Sampling(temperature=0.0))
    theirs_written = theirs.generate(
        torch.tensor(IDS[:1, :4]), max_new_tokens=20, do_sample=False, eos_token_id=None, use_cache=False
    )
    assert list(written) == theirs_written[0, 4:].tolist()
    save_pretrained(ours, tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(again) is type(theirs)
    assert_close(ours(tt.tensor(IDS)), again.eval()(torch.tensor(IDS)).logits)


@pytest.mark.parametrize("named", [{"hidden_act": "gelu"}, {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}])
def test_the_activation_as_older_files_of_gemma_name_it(named: dict[str, Any], tmp_path: Path) -> None:
    theirs = llama("Gemma", head_dim=8)
    theirs.save_pretrained(tmp_path)
    reconfigure(tmp_path, **named)
    assert_close(from_pretrained(tmp_path)(tt.tensor(IDS)), theirs(torch.tensor(IDS)).logits)
    reconfigure(tmp_path, hidden_activation="gelu")
    with pytest.raises(UserError, match="hidden_activation 'gelu' is not supported: it must be 'gelu_pytorch_tanh'"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("setting", [{"attention_bias": True}, {"mlp_bias": True}])
def test_biases_that_a_gpt_cannot_have(setting: dict[str, Any], tmp_path: Path) -> None:
    llama(**setting).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"config.json: {next(iter(setting))} True is not supported: it must be False"):
        from_pretrained(tmp_path)


# ------------------------------------------------------------------------------------------------------------ the other way

SHAPE = {"vocab_size": 54, "block_size": 32, "num_layers": 2, "num_heads": 4, "d_model": 24}
ROTARY = {**SHAPE, "positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False}
ENCODER = {"vocab_size": 54, "max_length": 32, "num_layers": 2, "num_heads": 4, "d_model": 24, "d_ff": 40}
BOTH = {"source_vocab_size": 54, "source_pad": 0, "d_model": 24, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 3}
BOTH |= {"d_ff": 40, "positions": "sinusoidal_halves", "max_length": 32}

WRITTEN = {
    "a GPT of char_gpt.py": ("GPT2LMHeadModel", lambda: GPT(GPTConfig(**SHAPE))),
    "biases, dropout": ("GPT2LMHeadModel", lambda: GPT(GPTConfig(**SHAPE, bias=True, dropout=0.25))),
    "untied": ("GPT2LMHeadModel", lambda: GPT(GPTConfig(**SHAPE, tie_output=False, norm_eps=1e-2))),
    "relu, d_ff": ("GPT2LMHeadModel", lambda: GPT(GPTConfig(**SHAPE, activation="relu", d_ff=30))),
    "gelu_exact": ("GPT2LMHeadModel", lambda: GPT(GPTConfig(**SHAPE, activation="gelu_exact"))),
    "silu": ("GPT2LMHeadModel", lambda: GPT(GPTConfig(**SHAPE, activation="silu"))),
    "llama": ("LlamaForCausalLM", lambda: GPT(GPTConfig(**ROTARY, norm_eps=1e-2))),
    "llama, grouped heads": ("LlamaForCausalLM", lambda: GPT(GPTConfig(**ROTARY, num_key_value_heads=2, d_head=10, d_ff=30))),
    "llama, llama3": (
        "LlamaForCausalLM",
        lambda: GPT(GPTConfig(**ROTARY, rotary_base=500.0, rotary_scaling=RotaryScaling("llama3", 8.0, 1.0, 4.0, 16))),
    ),
    "llama, linear": ("LlamaForCausalLM", lambda: GPT(GPTConfig(**ROTARY, rotary_scaling=RotaryScaling("linear", 2.5)))),
    "qwen2": (
        "Qwen2ForCausalLM",
        lambda: GPT(GPTConfig(**ROTARY, num_key_value_heads=2, query_key_value_bias=True, tie_output=False)),
    ),
    "qwen3": ("Qwen3ForCausalLM", lambda: GPT(GPTConfig(**ROTARY, num_key_value_heads=1, d_head=10, query_key_norm=True))),
    "gemma": ("GemmaForCausalLM", lambda: GPT(GPTConfig(**{**ROTARY, "activation": "geglu"}, scale_embeddings=True, d_head=8))),
    "bert for masks": ("BertForMaskedLM", lambda: BertForMaskedLM(BertConfig(**ENCODER))),
    "bert for masks, gelu_tanh": ("BertForMaskedLM", lambda: BertForMaskedLM(BertConfig(**ENCODER, activation="gelu_tanh"))),
    "bert for classes": ("BertForSequenceClassification", lambda: BertForClassification(BertConfig(**ENCODER), 3)),
    "bert": ("BertModel", lambda: Bert(BertConfig(**ENCODER, num_segments=3, norm_eps=1e-2))),
    "marian": ("MarianMTModel", lambda: Transformer(TransformerConfig(target_vocab_size=54, **BOTH, share_embeddings=True))),
    "marian, two vocabularies": ("MarianMTModel", lambda: Transformer(TransformerConfig(target_vocab_size=47, **BOTH))),
    "marian, untied, fixed padding": (
        "MarianMTModel",
        lambda: Transformer(
            TransformerConfig(
                target_vocab_size=47,
                **BOTH,
                tie_output=False,
                output_bias=True,
                learn_padding=False,
                scale_embeddings=False,
                activation="silu",
            )
        ),
    ),
}
AUTO = {"ForCausalLM": "AutoModelForCausalLM", "LMHeadModel": "AutoModelForCausalLM", "ForMaskedLM": "AutoModelForMaskedLM"}
AUTO |= {"ForSequenceClassification": "AutoModelForSequenceClassification", "MTModel": "AutoModelForSeq2SeqLM"}


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_we_write_is_read_there_and_here(kind: str, tmp_path: Path) -> None:
    architecture, make = WRITTEN[kind]
    tt.seed(1)
    ours = make().eval()
    for tensor in ours.state_dict().values():
        tensor.data[...] += 0.1 * tt.random.normal(tensor.shape).data
    save_pretrained(ours, tmp_path)
    auto = next((name for ending, name in AUTO.items() if architecture.endswith(ending)), "AutoModel")
    theirs, report = getattr(transformers, auto).from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs).__name__ == architecture
    left = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"} if architecture == "BertForMaskedLM" else set()
    assert {name: set(found) for name, found in report.items() if found} == ({"unexpected_keys": left} if left else {})
    target = IDS[:, :9] % 47
    inputs = (tt.tensor(PADDED), tt.tensor(target)) if isinstance(ours, Transformer) else (tt.tensor(PADDED),)
    if isinstance(ours, GPT):
        expected = theirs.eval()(torch.tensor(PADDED))
    else:
        targets = {"decoder_input_ids": torch.tensor(target)} if isinstance(ours, Transformer) else {}
        expected = theirs.eval()(torch.tensor(PADDED), torch.tensor(PADDED != 0), **targets)
    assert_close(ours(*inputs), expected.last_hidden_state if architecture == "BertModel" else expected.logits)
    again = from_pretrained(tmp_path)
    assert type(again) is type(ours)
    np.testing.assert_allclose(again(*inputs).numpy(), ours(*inputs).numpy(), rtol=1e-6, atol=1e-6)
    for name, tensor in ours.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name].numpy(), tensor.numpy(), name)


def test_what_they_write_of_what_we_write_is_the_same(tmp_path: Path) -> None:
    ours = read_back(llama("Qwen3", head_dim=10, tie_word_embeddings=True), tmp_path / "theirs")
    save_pretrained(ours, tmp_path / "ours")
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "again")
    first, last = (safetensors_torch.load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again"))
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in first)


def test_where_texts_start_and_end(tmp_path: Path) -> None:
    theirs = marian()
    theirs.generation_config.bad_words_ids = [[53]]
    theirs.save_pretrained(tmp_path)
    assert read_writing(tmp_path) == Writing(start=53, ends=(0,), forbidden=(53,), forced_end=0)
    ours = from_pretrained(tmp_path)
    save_pretrained(ours, tmp_path / "ours", read_writing(tmp_path))
    assert read_writing(tmp_path / "ours") == read_writing(tmp_path)
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "ours")
    assert (generation.decoder_start_token_id, generation.forced_eos_token_id) == (53, 0)
    assert (generation.eos_token_id, generation.bad_words_ids) == ([0], [[53]])
    gpt = llama(bos_token_id=7, eos_token_id=[1, 2])
    gpt.save_pretrained(tmp_path / "gpt")
    assert read_writing(tmp_path / "gpt") == Writing(start=7, ends=(1, 2))
