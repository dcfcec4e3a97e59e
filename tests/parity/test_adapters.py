"""LoRA adapters beside PEFT's: outputs and gradients are the same, of theirs here and of ours there."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from parity.compare import assert_close
from parity.test_pretrained import IDS, bert, gpt2, llama, marian

import tinytensor as tt
from tinyformer import from_pretrained, load_adapter, save_adapter, save_pretrained
from tinytensor import nn
from tinytensor.nn.lora import lora_weights

peft = pytest.importorskip("peft", reason="tests of LoRA adapters beside PEFT's: pip install --no-deps peft accelerate psutil")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of PEFT about its own peers

QV = ["q_proj", "v_proj"]
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "GPT-2": (gpt2, {"target_modules": ["c_attn"], "fan_in_fan_out": True, "task_type": "CAUSAL_LM"}),
    "GPT-2, all": (gpt2, {"target_modules": "all-linear", "fan_in_fan_out": True, "r": 3}),
    "Llama": (llama, {"target_modules": QV, "task_type": "CAUSAL_LM"}),
    "Llama, rsLoRA": (llama, {"target_modules": "all-linear", "use_rslora": True}),
    "Llama, output": (lambda: llama(tie_word_embeddings=False), {"target_modules": ["lm_head", "down_proj"]}),
    "Llama, expression": (llama, {"target_modules": r".*\.1\..*(k_proj|up_proj)"}),
    "Llama, one block": (llama, {"target_modules": QV, "layers_to_transform": [1]}),
    "Qwen2, patterns": (
        lambda: llama("Qwen2"),
        {
            "target_modules": [*QV, "o_proj"],
            "rank_pattern": {"q_proj": 2, r"model\.layers\.1\.self_attn\.v_proj": 6},
            "alpha_pattern": {"layers.0.self_attn.o_proj": 3},
        },
    ),
    "BERT": (bert, {"target_modules": ["query", "value", "dense"], "exclude_modules": ["transform.dense"]}),
    "BERT, classes": (
        lambda: bert("ForSequenceClassification"),
        {"target_modules": ["query", "key"], "modules_to_save": ["classifier"], "task_type": "SEQ_CLS"},
    ),
    "BERT, no head": (lambda: bert("Model"), {"target_modules": ["intermediate.dense"]}),
    "Marian": (marian, {"target_modules": [*QV, "k_proj", "fc1"], "task_type": "SEQ_2_SEQ_LM"}),
}


@pytest.fixture(params=MODELS)
def case(request, tmp_path):
    """A model of transformers, its folder, and the settings of an adapter."""
    make, settings = MODELS[request.param]
    theirs = make()
    theirs.save_pretrained(tmp_path / "base")
    return theirs, tmp_path, {"r": 4, "lora_alpha": 10, **settings}


def of_theirs(model: Any, ids: Any = IDS) -> torch.Tensor:
    given = torch.tensor(ids)
    kind = type(model.get_base_model() if isinstance(model, peft.PeftModel) else model).__name__
    out = model(input_ids=given, decoder_input_ids=given) if "Marian" in kind else model(input_ids=given)
    return getattr(out, "logits", None) if hasattr(out, "logits") else out.last_hidden_state


def of_ours(model: Any, ids: Any = IDS) -> tt.Tensor:
    return model(tt.tensor(ids), tt.tensor(ids)) if type(model).__name__ == "Transformer" else model(tt.tensor(ids))


def with_adapter(theirs: Any, settings: dict[str, Any]) -> Any:
    """A PEFT model whose matrices are random: B begins with zeros."""
    model = peft.get_peft_model(theirs, peft.LoraConfig(**settings))
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def test_an_adapter_of_theirs_here(case):
    theirs, folder, settings = case
    adapted = with_adapter(theirs, settings)
    adapted.save_pretrained(folder / "adapter")
    model = load_adapter(from_pretrained(folder / "base"), folder / "adapter")
    want, found = of_theirs(adapted), of_ours(model)
    assert_close(found, want, 1e-5)
    assert np.abs(of_ours(from_pretrained(folder / "base")).numpy() - found.numpy()).max() > 0.05

    weights = torch.randn(want.shape, generator=torch.Generator().manual_seed(0))
    (want * weights).sum().backward()
    (found * tt.tensor(weights.numpy())).sum().backward()
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name, p in learned.items() if p.grad is None} == set()
    gradients = {name: p.grad for name, p in adapted.named_parameters() if p.requires_grad}
    for letter, part in (("A", "down"), ("B", "up")):
        ours = sorted(float((p.grad.numpy() ** 2).sum()) for name, p in learned.items() if name.endswith(part))
        same = sorted(float((g**2).sum()) for name, g in gradients.items() if f"lora_{letter}" in name)
        np.testing.assert_allclose(ours, same, rtol=1e-3)

    before = found.numpy()
    merged = nn.merge_lora(model)
    assert_close(of_ours(model), tt.tensor(before), 1e-5)
    nn.unmerge_lora(model, merged)
    assert_close(of_ours(model), tt.tensor(before), 1e-5)


def test_an_adapter_of_ours_there(case):
    """Theirs is read, trained here, written, and read there."""
    theirs, folder, settings = case
    with_adapter(theirs, settings).save_pretrained(folder / "adapter")
    model = load_adapter(from_pretrained(folder / "base"), folder / "adapter")
    for p in model.parameters():
        if p.requires_grad:
            p.assign(p * 0.5 + 0.01)
    save_adapter(model, folder / "ours", base=str(folder / "base"))
    written = json.loads((folder / "ours" / "adapter_config.json").read_text())
    again = load_adapter(from_pretrained(folder / "base"), folder / "ours")
    np.testing.assert_array_equal(of_ours(again).numpy(), of_ours(model).numpy())
    adapted = peft.PeftModel.from_pretrained(type(theirs).from_pretrained(folder / "base"), folder / "ours").eval()
    assert_close(of_ours(model), of_theirs(adapted), 1e-5)
    assert written["base_model_name_or_path"] == str(folder / "base")
    assert written["use_rslora"] is settings.get("use_rslora", False)
    assert bool(written["modules_to_save"]) is ("modules_to_save" in settings)


def test_gradients_of_each_matrix(tmp_path):
    theirs = llama()
    theirs.save_pretrained(tmp_path / "base")
    adapted = with_adapter(theirs, {"r": 4, "lora_alpha": 10, "target_modules": QV})
    adapted.save_pretrained(tmp_path / "adapter")
    model = load_adapter(from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    of_theirs(adapted).square().sum().backward()
    tt.square(of_ours(model)).sum().backward()
    gradients = {name: p.grad.numpy() for name, p in adapted.named_parameters() if p.requires_grad}
    for i, block in enumerate(model.blocks):
        for addition, part in zip(block.attention.query_key_value.weight.additions, ("q", "v")):
            for letter, ours in (("A", addition.down), ("B", addition.up)):
                name = f"base_model.model.model.layers.{i}.self_attn.{part}_proj.lora_{letter}.default.weight"
                np.testing.assert_allclose(ours.grad.numpy(), gradients[name], atol=1e-5 * np.abs(gradients[name]).max())


@pytest.mark.parametrize("make, targets", [(gpt2, ["query_key_value", "up"]), (llama, ["query_key_value", "down"])])
@pytest.mark.parametrize("rows", [None, (0, 24)], ids=["whole", "queries"])
def test_what_was_added_here(make, targets, rows, tmp_path):
    """One addition to queries, keys and values together is three of theirs, with one A."""
    theirs = make()
    theirs.save_pretrained(tmp_path / "base")
    model = from_pretrained(tmp_path / "base")
    tt.seed(0)
    nn.add_lora(model, rank=3, alpha=5, targets=targets[:1], rows=rows, rank_stabilized=True)
    nn.add_lora(model, rank=2, alpha=7, targets=targets[1:])
    for _, weight in lora_weights(model):
        for addition in weight.additions:
            addition.up.assign(tt.random.normal(addition.up.shape))
    save_adapter(model, tmp_path / "ours")
    adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "ours").eval()
    assert_close(of_ours(model), of_theirs(adapted), 1e-5)


def test_training_further_is_the_same(tmp_path):
    theirs = gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    theirs.save_pretrained(tmp_path / "base")
    adapted = with_adapter(theirs, {"r": 4, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True})
    adapted.save_pretrained(tmp_path / "adapter")
    model = load_adapter(from_pretrained(tmp_path / "base"), tmp_path / "adapter").train()
    ours = tt.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    same = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
    inputs, targets = IDS[:, :-1], IDS[:, 1:]
    for _ in range(10):
        ours.zero_grad()
        same.zero_grad()
        loss = model.loss(tt.tensor(inputs), tt.tensor(targets))
        loss.backward()
        want = torch.nn.functional.cross_entropy(of_theirs(adapted, inputs).flatten(0, 1), torch.tensor(targets).flatten())
        want.backward()
        assert abs(loss.item() - want.item()) < 1e-4
        ours.step()
        same.step()


def test_a_merged_model_there(tmp_path):
    theirs = llama()
    theirs.save_pretrained(tmp_path / "base")
    adapted = with_adapter(theirs, {"r": 4, "target_modules": QV})
    adapted.save_pretrained(tmp_path / "adapter")
    model = load_adapter(from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    want = of_theirs(adapted).detach().numpy()
    nn.merge_lora(model)
    save_pretrained(model, tmp_path / "merged")
    assert_close(tt.tensor(want), of_theirs(type(theirs).from_pretrained(tmp_path / "merged")), 1e-5)
