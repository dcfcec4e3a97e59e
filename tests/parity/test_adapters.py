"""LoRA adapters beside PEFT's: outputs and gradients are the same, of theirs here and of ours there."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity.compare import assert_close
from parity.test_pretrained import IDS, bert, gpt2, llama, marian, noisy
from parity.test_pretrained_encoders import FAMILIES, HEADS, theirs_of

import tinytensor as tt
from tinyformer import GPT, UserError, from_pretrained, load_adapter, save_adapter, save_pretrained
from tinytensor import nn
from tinytensor.nn.lora import lora_weights

peft = pytest.importorskip("peft", reason="tests of LoRA adapters beside PEFT's: pip install --no-deps peft accelerate psutil")
pytestmark = pytest.mark.filterwarnings(  # of PEFT about its own peers, and about settings that change nothing
    "ignore::FutureWarning", "ignore::UserWarning", "ignore:.*(keys did not match|of the tied|weight):RuntimeWarning"
)

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
    "RoBERTa, classes": (
        lambda: theirs_of("roberta, padding 0", "ForSequenceClassification"),
        {"target_modules": ["dense", "query"], "modules_to_save": ["classifier"]},
    ),
    "Llama, MLPs as a whole": (llama, {"target_modules": "all-linear", "modules_to_save": ["mlp"]}),
    "Llama, a block as a whole": (llama, {"target_modules": [*QV, "up_proj"], "modules_to_save": ["layers.0"]}),
    "GPT-2, a name that ends others": (gpt2, {"target_modules": ["mlp.c_fc", "fc", "c_proj"], "fan_in_fan_out": True}),
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


# ------------------------------------------------------------------------------------------------------ random settings

# A configuration with one of these may be refused, by this name; any other is read as PEFT reads it.
BY_NAME: dict[str, Callable[[random.Random], Any]] = {
    "bias": lambda rng: rng.choice(["all", "lora_only"]),
    "use_dora": lambda rng: True,
    "lora_bias": lambda rng: True,
    "trainable_token_indices": lambda rng: [1, 2],
    "layer_replication": lambda rng: [[0, 2], [1, 2]],
    "init_lora_weights": lambda rng: rng.choice(["pissa", "olora", "mica"]),
}


TASKS = {"ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS", "ForCausalLM": "CAUSAL_LM"}

REASONS = [
    rf"({'|'.join(BY_NAME)}) .* is not supported: merge it with PEFT",
    "an addition to the embedding .* is not supported: merge it with PEFT",
    "and .* are tied, but the adapter changes only one: train with ensure_weight_tying",
    "the model has no linear layer (lm_head|.*decoder|vocab_projector)",  # it is the embedding
    "is a full weight and .* is not, but they are one here: merge it with PEFT",
    r"modules_to_save\.default\..* is not expected",  # a whole part in another one
]
RANDOM_IDS = IDS % 40 + 7  # without the padding of any model


def random_model(rng: random.Random) -> Any:
    family = rng.choice(["gpt2", "llama", "llama", "marian", *FAMILIES, *FAMILIES])
    if family in FAMILIES:
        return theirs_of(family, rng.choice(HEADS))
    if family == "marian":
        return marian(**rng.choice([{}, {"tie_word_embeddings": False}]))
    tied = {"tie_word_embeddings": rng.random() < 0.5}
    theirs = gpt2(**tied) if family == "gpt2" else llama(rng.choice(["Llama", "Qwen2", "Qwen3"]), **tied)
    return noisy(type(theirs.base_model)(theirs.config)) if rng.random() < 0.2 else theirs


def part_of(path: str, rng: random.Random) -> str:
    """The last words of a path, or some of those before."""
    words = path.split(".")
    end = rng.choice([len(words), len(words), rng.randint(1, len(words))])
    return ".".join(words[rng.randint(0, end - 1) : end])


def random_settings(theirs: Any, rng: random.Random) -> dict[str, Any]:
    modules = dict(theirs.named_modules())
    modules.pop("")
    linear = [name for name, module in modules.items() if type(module).__name__ in ("Linear", "Conv1D")]
    ends = lambda: [name.split(".", rng.randint(0, name.count(".")))[-1] for name in rng.sample(linear, rng.randint(1, 3))]  # noqa: E731
    patterns = lambda: [re.escape(end) if rng.random() < 0.5 else end for end in ends()]  # noqa: E731
    settings: dict[str, Any] = {"r": rng.randint(1, 5), "lora_alpha": rng.randint(1, 12), "target_modules": ends()}
    one_of = {
        "target_modules": lambda: rng.choice(
            ["all-linear", f".*({'|'.join(patterns())})", rf".*\.1\..*\.\w*{rng.choice('qkvocd')}\w*"]
        ),
        "exclude_modules": lambda: rng.choice([ends(), f".*({'|'.join(patterns())})"]),
        "rank_pattern": lambda: {pattern: rng.randint(1, 5) for pattern in patterns()},
        "alpha_pattern": lambda: {pattern: rng.randint(1, 12) for pattern in patterns()},
        "use_rslora": lambda: True,
        "lora_dropout": lambda: 0.1,
        "modules_to_save": lambda: [
            part_of(name, rng)[rng.random() < 0.05 :] for name in rng.sample(list(modules), rng.randint(1, 2))
        ],
        "layers_to_transform": lambda: rng.choice([0, 1, [1], [0, 1], []]),
        "layers_pattern": lambda: rng.choice(["layers", "layer", "h", ["layer", "layers"], []]),
        "init_lora_weights": lambda: rng.choice([False, "gaussian", "orthogonal"]),
        "fan_in_fan_out": lambda: True,
        "ensure_weight_tying": lambda: True,
        "task_type": lambda: next((task for head, task in TASKS.items() if type(theirs).__name__.endswith(head)), None),
    }
    for name in rng.sample(list(one_of), rng.randint(0, 4)):
        settings[name] = one_of[name]()
    if "layers_to_transform" not in settings:
        settings.pop("layers_pattern", None)
    if rng.random() < 0.1:
        name = rng.choice(list(BY_NAME))
        settings[name] = BY_NAME[name](rng)
    if rng.random() < 0.1 and isinstance(settings["target_modules"], list):
        tables = [name.rpartition(".")[2] for name, module in modules.items() if isinstance(module, torch.nn.Embedding)]
        settings["target_modules"] = [*settings["target_modules"], rng.choice(tables)]
    return settings


@torch.no_grad()
def outputs(model: Any) -> torch.Tensor:
    ids = torch.tensor(RANDOM_IDS)
    kind = type(model.get_base_model() if isinstance(model, peft.PeftModel) else model).__name__
    out = model(input_ids=ids, decoder_input_ids=ids) if "Marian" in kind else model(input_ids=ids)
    if hasattr(out, "start_logits"):
        return torch.stack([out.start_logits, out.end_logits], -1)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def made(rng: random.Random, folder: Path) -> tuple[Callable[[], Any], torch.Tensor]:
    """A function that opens a model at random, and its outputs with an adapter at random, which is in the folder."""
    while True:
        theirs = random_model(rng)
        theirs.save_pretrained(folder / "base")
        fresh = lambda: type(theirs).from_pretrained(folder / "base").eval()  # noqa: B023, E731
        try:
            with_adapter(fresh(), random_settings(theirs, rng)).save_pretrained(folder / "adapter")
            return fresh, outputs(peft.PeftModel.from_pretrained(fresh(), folder / "adapter").eval())
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError):  # PEFT cannot make or read it
            shutil.rmtree(folder / "adapter", ignore_errors=True)


def compared(seed: int, folder: Path) -> str:
    """Draw an adapter: it is read as PEFT reads it, and PEFT reads it back, or it is rejected."""
    fresh, want = made(random.Random(seed), folder)
    try:
        model: Any = load_adapter(from_pretrained(folder / "base"), folder / "adapter")
    except UserError as error:
        reason = next((reason for reason in REASONS if re.search(reason, str(error))), None)
        assert reason is not None, error
        return f"refused: {reason}"
    ids = tt.tensor(RANDOM_IDS)
    ours = lambda: model.vectors(ids) if is_without_head else of_ours(model, RANDOM_IDS)  # noqa: E731
    is_without_head = isinstance(model, GPT) and want.shape[-1] == model.config.d_model
    assert_close(ours(), want, 1e-4)
    if is_without_head:  # its names have a prefix here that the model there has not
        return "equal"
    save_adapter(model, folder / "ours")
    assert_close(ours(), outputs(peft.PeftModel.from_pretrained(fresh(), folder / "ours").eval()), 1e-4)
    return "equal, and so is what is written"


@pytest.mark.parametrize("seed", range(30))
def test_an_adapter_at_random(seed: int, tmp_path: Path) -> None:
    """It is read as PEFT reads it, or refused by the name of what it has."""
    compared(seed, tmp_path)


def main(number: int) -> None:
    """Compare this many more adapters, and print the outcomes."""
    counts = Counter[str]()
    for seed in range(1000, 1000 + number):
        with tempfile.TemporaryDirectory() as folder:
            counts[compared(seed, Path(folder))] += 1
    print(*(f"{count:5} {result}" for result, count in counts.most_common()), sep="\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
