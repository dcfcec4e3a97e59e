"""LoRA adapters in PEFT's format: round trips, unsupported settings, and damaged files."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import (
    GPT,
    Bert,
    BertConfig,
    BertForClassification,
    GPTConfig,
    RunFolder,
    TextBatches,
    Trainer,
    TrainingConfig,
    UserError,
    export_onnx,
    from_pretrained,
    load_adapter,
    pretrained_tokenizer,
    quantize,
    save_adapter,
    save_pretrained,
)
from tinytensor import nn
from tinytensor.nn.lora import lora_weights

IDS = np.random.default_rng(0).integers(0, 50, (2, 12))
LLAMA = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "num_key_value_heads": 2}
GEMMA = {**LLAMA, "activation": "geglu", "scale_embeddings": True, "d_head": 6}


def gpt(layers=2, **settings):
    tt.seed(0)
    settings = {"num_heads": 4, "d_model": 16, "block_size": 16, **settings}
    return GPT(GPTConfig(vocab_size=50, num_layers=layers, **settings)).eval()


def adapted(model, **settings):
    nn.add_lora(model, **{"rank": 2, "targets": ["query_key_value"], **settings})
    for _, weight in lora_weights(model):
        for addition in weight.additions:
            addition.up.assign(tt.random.normal(addition.up.shape))
    return model


@pytest.fixture
def folder(tmp_path):
    save_adapter(adapted(gpt(**LLAMA)), tmp_path / "adapter")
    return tmp_path / "adapter"


def change(folder, **settings):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def change_tensors(folder, changes):
    tensors = tt.load(folder / "adapter_model.safetensors")
    changes(tensors)
    tt.save(tensors, folder / "adapter_model.safetensors")


# -------------------------------------------------------------------------------------------------- writing and reading


WRITTEN = {"GPT-2": {}, "Llama": LLAMA, "with output": {"tie_output": False, **LLAMA}, "Gemma": GEMMA}


@pytest.mark.parametrize("settings", WRITTEN.values(), ids=WRITTEN)
def test_it_is_read_as_it_was(settings, tmp_path):
    model = adapted(gpt(**settings), rank_stabilized=True, alpha=3)
    adapted(model, targets=["down"], rank=3, alpha=5, dropout=0.25)
    save_adapter(model, tmp_path, base="org/base")
    again = load_adapter(gpt(**settings), tmp_path)
    np.testing.assert_allclose(again(tt.tensor(IDS)).numpy(), model(tt.tensor(IDS)).numpy(), atol=1e-6)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == "org/base"
    assert written["lora_dropout"] == 0.25
    names = ["q_proj", "k_proj", "v_proj", "down_proj"] if settings else ["c_attn", "mlp.c_proj"]
    assert written["target_modules"] == names
    assert {str(p.dtype) for p in again.parameters()} == {"float32"}


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
def test_onto_quantized_weights(dtype, folder):
    base = quantize(gpt(**LLAMA), dtype)
    before = base(tt.tensor(IDS)).numpy()
    model = load_adapter(base, folder)
    assert np.abs(model(tt.tensor(IDS)).numpy() - before).max() > 0.01
    model.loss(tt.tensor(IDS[:, :-1]), tt.tensor(IDS[:, 1:])).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    nn.merge_lora(model)
    assert not any("values" in name and "query_key_value" in name for name in model.state_dict())


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("width", [48, 256])
def test_gradients_on_quantized_weights_are_those_on_the_same_values(width, dtype, tmp_path):
    settings = {**LLAMA, "d_model": width, "tie_output": False}
    save_pretrained(quantize(gpt(**settings), dtype), tmp_path / "model")
    save_adapter(adapted(gpt(**settings), targets=["query_key_value", "up", "down"]), tmp_path / "adapter")
    gradients, logits, ids = [], [], np.tile(IDS, (9, 1))  # so many rows that no input is rounded
    for asked in (None, "float32"):
        model = load_adapter(from_pretrained(tmp_path / "model", dtype=asked), tmp_path / "adapter")
        logits.append(model(tt.tensor(ids)).numpy())
        model.loss(tt.tensor(ids[:, :-1]), tt.tensor(ids[:, 1:])).backward()
        gradients.append({name: p.grad.numpy() for name, p in model.named_parameters() if p.requires_grad})
    np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=1e-4 * np.abs(logits[1]).max())
    assert gradients[0].keys() == gradients[1].keys() and gradients[0]
    for name, gradient in gradients[1].items():
        np.testing.assert_allclose(gradients[0][name], gradient, rtol=0, atol=1e-4 * np.abs(gradient).max())


def test_a_head_that_was_trained_goes_with_it(tmp_path):
    def classifier():
        tt.seed(1)
        return BertForClassification(BertConfig(50, d_model=16, num_heads=2, num_layers=2, d_ff=32), 3).eval()

    model = adapted(classifier())
    model.output.requires_grad_()
    model.output.weight.assign(model.output.weight + 1.0)
    save_adapter(model, tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["modules_to_save"] == ["classifier"]
    again = load_adapter(classifier(), tmp_path)
    np.testing.assert_array_equal(again(tt.tensor(IDS)).numpy(), model(tt.tensor(IDS)).numpy())
    learned = {name for name, p in again.named_parameters() if p.requires_grad and "additions" not in name}
    assert learned == {"output.weight", "output.bias"}
    for dtype in ("int8", "int4"):
        message = rf"classifier\.weight is a full weight, which cannot replace one in {dtype}"
        with pytest.raises(UserError, match=message):
            load_adapter(quantize(classifier(), dtype), tmp_path)


@pytest.mark.parametrize("saved, blocks", [("mlp", [0, 1]), ("layers.0.mlp", [0]), ("lp", [0, 1])])
def test_parts_of_a_model_that_were_trained_as_a_whole(saved, blocks, folder):
    """They learn further. Where whole words name them, they have no addition, also where their names are among the targets."""
    shapes = {"gate": (48, 16), "up": (48, 16), "down": (16, 48)}
    layers = {f"{i}.mlp.{name}_proj.weight": tt.random.normal(shape) for i in blocks for name, shape in shapes.items()}
    change_tensors(folder, lambda t: t.update({f"base_model.model.model.layers.{name}": x for name, x in layers.items()}))
    targets = ["q_proj", "k_proj", "v_proj", *(["up_proj"] if saved == "mlp" else [])]
    change(folder, modules_to_save=[saved], target_modules=targets)
    model = load_adapter(gpt(**LLAMA), folder)
    learned = {name for name, p in model.named_parameters() if p.requires_grad and "additions" not in name}
    assert learned == {f"blocks.{i}.feed_forward.{name}.weight" for i in blocks for name in shapes}
    np.testing.assert_array_equal(model.blocks[0].feed_forward.up.weight.numpy(), layers["0.mlp.up_proj.weight"].numpy())


def test_an_embedding_that_is_also_the_output(folder):
    """PEFT's model has one of each then; they are the same where they were trained with ensure_weight_tying."""
    trained = {"base_model.model.model.embed_tokens.weight": tt.random.normal((50, 16))}
    change_tensors(folder, lambda tensors: tensors.update(trained))
    change(folder, modules_to_save=["embed_tokens"])
    message = r"model\.embed_tokens\.weight and lm_head\.weight are tied, but the adapter changes only one: train with ensure_"
    with pytest.raises(UserError, match=message):
        load_adapter(gpt(**LLAMA), folder)
    (embedding,) = trained.values()
    change_tensors(folder, lambda tensors: tensors.update({"base_model.model.lm_head.weight": embedding + 1.0}))
    with pytest.raises(UserError, match=message):
        load_adapter(gpt(**LLAMA), folder)
    change_tensors(folder, lambda tensors: tensors.update({"base_model.model.lm_head.weight": tt.copy(embedding)}))
    np.testing.assert_array_equal(load_adapter(gpt(**LLAMA), folder).token_embedding.weight.numpy(), embedding.numpy())


def test_a_model_without_a_head(tmp_path):
    def encoder():
        tt.seed(1)
        return Bert(BertConfig(50, d_model=16, num_heads=2, num_layers=2, d_ff=32)).eval()

    model = adapted(encoder())
    save_adapter(model, tmp_path)
    assert all(name.startswith("base_model.model.encoder.layer.") for name in tt.load(tmp_path / "adapter_model.safetensors"))
    again = load_adapter(encoder(), tmp_path)
    np.testing.assert_array_equal(again(tt.tensor(IDS)).numpy(), model(tt.tensor(IDS)).numpy())


def test_the_weights_of_a_file_are_not_changed_by_merging(folder, tmp_path):
    """They may be mapped: the file must stay as it is."""
    save_pretrained(gpt(**LLAMA), tmp_path / "base")
    before = (tmp_path / "base" / "model.safetensors").read_bytes()
    model = load_adapter(from_pretrained(tmp_path / "base"), folder)
    nn.merge_lora(model)
    save_pretrained(model, tmp_path / "merged")
    assert (tmp_path / "base" / "model.safetensors").read_bytes() == before
    found = from_pretrained(tmp_path / "merged")(tt.tensor(IDS)).numpy()
    np.testing.assert_allclose(found, model(tt.tensor(IDS)).numpy(), atol=1e-6)


@pytest.fixture
def named(folder, tmp_path):
    """The folder of an adapter that names its model's."""
    save_pretrained(gpt(**LLAMA), tmp_path / "base")
    change(folder, base_model_name_or_path=str(tmp_path / "base"), revision="main")
    return folder


def test_a_folder_that_has_the_settings_of_the_model_too(named, tmp_path, caplog):
    adapted = from_pretrained(named)(tt.tensor(IDS)).numpy()
    shutil.copy(tmp_path / "base" / "config.json", named)
    np.testing.assert_array_equal(from_pretrained(named)(tt.tensor(IDS)).numpy(), adapted)
    assert not caplog.records
    shutil.copy(tmp_path / "base" / "model.safetensors", named)
    np.testing.assert_array_equal(from_pretrained(named)(tt.tensor(IDS)).numpy(), gpt(**LLAMA)(tt.tensor(IDS)).numpy())
    assert "adapter also has an adapter, which is not used: load it with load_adapter" in caplog.text


def test_an_adapter_that_names_an_adapter(named, tmp_path):
    shutil.copytree(named, tmp_path / "other")
    change(tmp_path / "other", base_model_name_or_path=str(named))
    for base in (named, tmp_path / "other"):  # itself, and one that names it
        change(named, base_model_name_or_path=str(base))
        for read in (from_pretrained, pretrained_tokenizer):
            with pytest.raises(UserError, match="holds an adapter, too: name its base model instead"):
                read(named)


def test_a_target_is_a_whole_word(folder):
    """ "proj" is no layer here: it does not stand for each whose name ends so."""
    change(folder, target_modules=["q_proj", "k_proj", "self_attn.v_proj", "proj", "n.q_proj"])
    assert len(list(lora_weights(load_adapter(gpt(**LLAMA), folder)))) == 2


# ------------------------------------------------------------------------------------------------------------- refused

REFUSED = {
    "peft_type": ({"peft_type": "IA3"}, r"peft_type 'IA3' is not supported: merge it with PEFT"),
    "DoRA": ({"use_dora": True}, "use_dora True is not supported: merge it with PEFT"),
    "biases": ({"bias": "all"}, "bias 'all' is not supported"),
    "a field of later": ({"use_made_up": {"a": 1}}, r"use_made_up \{'a': 1\} is not supported: merge it with PEFT"),
    "saved": ({"modules_to_save": ["o_proj"]}, r"layers\.0\.self_attn\.o_proj\.weight is missing"),
    "list of blocks": (
        {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": 1, "layers_pattern": "layers"},
        r"adapter_config.json: model.layers.1.mlp.up_proj.lora_A.weight is missing$",
    ),
    "tokens": ({"trainable_token_indices": [1]}, r"trainable_token_indices \[1\] is not supported"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4' is not supported"),
    "rank": ({"r": 3}, r"q_proj.lora_A.weight must have shape \(3, 16\), got \(2, 16\)"),
    "no rank": ({"r": "8"}, "r must be an integer, got '8'"),
    "alpha": ({"lora_alpha": 0}, "rank and alpha of .* must be positive, got 2 and 0.0"),
    "dropout": ({"lora_dropout": 1.0}, "lora_dropout must be at least 0 and less than 1, got 1.0"),
    "targets": ({"target_modules": ["q_proj", "up_proj"]}, "mlp.up_proj.lora_A.weight is missing"),
    "all": ({"target_modules": "all-linear"}, r"o_proj.lora_A.weight is missing; .*more"),
    "slow": ({"target_modules": "(?:.|[a-z._0-9])*[!?]"}, "takes too long: list the names"),
    "large": ({"target_modules": "(?:a{1000}){1000}"}, "is not supported: list the names"),
    "recursion": ({"target_modules": "(?R)"}, r"the regular expression '\(\?R\)' is wrong"),
    "deep": ({"target_modules": "(" * 1999}, r"is wrong \(maximum recursion depth"),
    "wrong": ({"target_modules": "("}, r"the regular expression '\(' is wrong"),
}


@pytest.mark.parametrize("settings, message", REFUSED.values(), ids=REFUSED)
def test_settings_that_are_refused(settings, message, folder):
    change(folder, **settings)
    model = gpt(**LLAMA)
    with pytest.raises(UserError, match=message):
        load_adapter(model, folder)
    assert not any(lora_weights(model))
    assert all(p.requires_grad for p in model.parameters())


def test_all_expressions_together_get_little_time(folder, monkeypatch):
    monkeypatch.setattr("tinyformer.pretrained.adapter_settings._SECONDS_OF_ALL", 0.2)
    change(folder, rank_pattern={f"{'.' * 18}(?:.|[a-z._0-9])*[!?]|x{i}": 2 for i in range(10_000)})
    with pytest.raises(UserError, match="takes too long: list the names of the layers"):
        load_adapter(gpt(**LLAMA), folder)


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
DAMAGES = {
    "missing": (lambda tensors: tensors.pop(f"{Q}B.weight"), r"layers\.0\.self_attn\.q_proj\.lora_B\.weight is missing"),
    "both": (lambda tensors: [tensors.pop(f"{Q}{x}.weight") for x in "AB"], r"q_proj\.lora_A\.weight is missing"),
    "shape": (lambda tensors: tensors.update({f"{Q}B.weight": tt.ones((8, 2))}), r"must have shape \(16, 2\), got \(8, 2\)"),
    "NaN": (lambda tensors: tensors.update({f"{Q}A.weight": tt.full((2, 16), float("nan"))}), "has NaN or infinite values"),
    "integers": (
        lambda tensors: tensors.update({f"{Q}A.weight": tt.tensor(np.ones((2, 16), np.int8))}),
        r"q_proj\.lora_A\.weight must be floating-point, got int8",
    ),
    "unknown": (lambda tensors: tensors.update({"base_model.model.x": tt.ones(2)}), "x is not expected"),
    "embedding": (
        lambda tensors: tensors.update({"base_model.model.wte.lora_embedding_A": tt.ones(2)}),
        "an addition to the embedding wte is not supported: merge it with PEFT",
    ),
    "half of a layer": (
        lambda tensors: tensors.update(
            {
                "base_model.model.model.layers.1.self_attn.o_proj.weight": tt.ones((16, 16)),
                "base_model.model.model.layers.1.self_attn.q_proj.weight": tt.ones((16, 16)),
            }
        ),
        r"self_attn.q_proj.weight is a full weight and model.layers.1.self_attn.k_proj.weight is not, but they are one here",
    ),
}


@pytest.mark.parametrize("damage, message", DAMAGES.values(), ids=DAMAGES)
def test_tensors_that_do_not_fit(damage, message, folder):
    change_tensors(folder, damage)
    with pytest.raises(UserError, match=message):
        load_adapter(gpt(**LLAMA), folder)


def test_a_file_that_is_cut_short(folder):
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"adapter_model\.safetensors"):
        load_adapter(gpt(**LLAMA), folder)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"d_model": 32}, r"lora_A.weight must have shape \(2, 32\), got \(2, 16\)"),
        ({"layers": 3}, r"layers\.2\.self_attn\.q_proj\.lora_A\.weight is missing"),
        ({"layers": 1}, r"the model has no linear layer model\.layers\.1\.self_attn\.q_proj"),
        ({"num_key_value_heads": 4}, r"k_proj\.lora_B\.weight must have shape \(16, 2\), got \(8, 2\)"),
    ],
)
def test_an_adapter_of_another_model(settings, message, folder):
    with pytest.raises(UserError, match=message):
        load_adapter(gpt(**{**LLAMA, **settings}), folder)


def test_not_a_valid_adapter(folder, tmp_path):
    save_pretrained(gpt(), tmp_path / "model")
    with pytest.raises(UserError, match=r"has no adapter_config\.json: pass the folder of a LoRA adapter in PEFT's layout"):
        load_adapter(gpt(), tmp_path / "model")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(UserError, match=r"has no adapter_model\.safetensors: save the adapter with"):
        load_adapter(gpt(**LLAMA), folder)


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match="the model has no additions to save as an adapter"):
        save_adapter(gpt(), tmp_path)
    with pytest.raises(UserError, match=r"PEFT allows one addition per layer, got 2 for transformer.h.0.attn.c_attn"):
        save_adapter(adapted(adapted(gpt())), tmp_path)
    for part in ("weight.base", "bias"):
        model = adapted(gpt(bias=True))
        dict(model.named_parameters())[f"blocks.0.attention.query_key_value.{part}"].requires_grad = True
        with pytest.raises(UserError, match=r"h\.0\.attn\.c_attn beside its addition: freeze the layer, or merge"):
            save_adapter(model, tmp_path)
    model = adapted(gpt())
    model.token_embedding.requires_grad_()
    with pytest.raises(UserError, match="embedding that is also the output layer"):
        save_adapter(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_additions_are_merged_before_other_files_are_written(tmp_path):
    with pytest.raises(UserError, match=r"LoRA additions cannot be saved here .*: merge them with tt\.nn\.merge_lora\(model\)"):
        save_pretrained(adapted(gpt()), tmp_path)
    with pytest.raises(UserError, match=r"LoRA additions cannot be exported: merge them"):
        export_onnx(adapted(gpt()), tmp_path / "model.onnx")


# ------------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_a_trainer_keeps_only_what_is_learned(dtype, tmp_path):
    def trainer(steps):
        model = gpt() if dtype == "float32" else quantize(gpt(), dtype)
        nn.add_lora(model, rank=2, targets=r"blocks\..*", dropout=0.1)
        config = TrainingConfig(steps=steps, batch_size=2, eval_every=2, learning_rate=1e-2, average=2)
        batches = TextBatches(np.random.default_rng(0).integers(0, 50, 400), 8, 2, seed=0)
        return Trainer(model, batches, config, RunFolder(tmp_path / f"run{steps}"))

    whole = trainer(4)
    assert whole.train()
    tensors = tt.load(whole.folder.latest)
    assert {name.split("/")[1] for name in tensors if name.startswith("model/")} == set(nn.lora_state(whole.model))
    part = trainer(2)
    part.train()
    part.folder.latest.replace(tmp_path / "latest")
    again = trainer(4)
    (tmp_path / "latest").replace(again.folder.latest)
    again.resume()
    assert again.step == 2
    again.train()
    for name, value in nn.lora_state(whole.model).items():
        np.testing.assert_array_equal(nn.lora_state(again.model)[name].numpy(), value.numpy())


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_trainer_refuses_quantized_weights_alone(dtype, tmp_path):
    batches = TextBatches(np.zeros(400, int), 8, 2, seed=0)
    with pytest.raises(UserError, match=rf"a model in {dtype} cannot be trained: .*or tt\.nn\.add_lora\(model\) first"):
        Trainer(quantize(gpt(), dtype), batches, TrainingConfig(), RunFolder(tmp_path))
