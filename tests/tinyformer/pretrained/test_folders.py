"""Folders in Hugging Face's format: files, names, and errors about unusable folders."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import mutated

import tinytensor as tt
from tinyformer import (
    GPT,
    Bert,
    BertConfig,
    BertForClassification,
    BertForMaskedLM,
    GPTConfig,
    Transformer,
    TransformerConfig,
    UserError,
    Writing,
    from_pretrained,
    read_writing,
    save_pretrained,
)
from tinyformer.models.positions import RotaryScaling
from tinytensor.io import save

SHAPE = {"vocab_size": 11, "block_size": 8, "num_layers": 2, "num_heads": 4, "d_model": 16}
ROTARY = {**SHAPE, "positions": "rotary", "norm": "rms", "activation": "swiglu"}
ENCODER = {"vocab_size": 11, "max_length": 8, "num_layers": 1, "num_heads": 2, "d_model": 16, "d_ff": 24}
BOTH = {"source_vocab_size": 11, "target_vocab_size": 11, "source_pad": 0, "d_model": 16, "num_heads": 2, "encoder_layers": 1}
BOTH |= {"decoder_layers": 1, "d_ff": 24, "positions": "sinusoidal_halves", "output_bias": True}
MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: GPT(GPTConfig(**SHAPE, bias=True)),
    "llama": lambda: GPT(GPTConfig(**ROTARY, num_key_value_heads=2, tie_output=False)),
    "bert": lambda: BertForMaskedLM(BertConfig(**ENCODER)),
    "marian": lambda: Transformer(TransformerConfig(**BOTH, share_embeddings=True)),
}


def written(model: Any, folder: Path) -> Path:
    """The folder of a model, in which every value is random."""
    tt.seed(1)
    for tensor in model.state_dict().values():
        tensor.data[...] += 0.1 * tt.random.normal(tensor.shape).data
    save_pretrained(model, folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(MODELS["gpt2"](), tmp_path / "gpt2")


def settings_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def reconfigure(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps(settings_of(folder) | changes))


def rewrite(folder: Path, **changes: Any) -> None:
    """Change tensors of a folder's file; None removes one. In names, ``__`` stands for a dot."""
    state = tt.load(folder / "model.safetensors") | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save({name: tensor for name, tensor in state.items() if tensor is not None}, folder / "model.safetensors")


def refused(folder: Any, **options: Any) -> str:
    """Return the error about a folder: at most two lines."""
    with pytest.raises(UserError) as caught:
        from_pretrained(folder, **options)
    message = str(caught.value)
    assert message.count("\n") <= 1
    assert len(message) < 700
    return message


# ------------------------------------------------------------------------------------------------------------ there and back


@pytest.mark.parametrize("kind", MODELS)
def test_a_round_trip(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind]()
    again = from_pretrained(str(written(model, tmp_path)))
    assert type(again) is type(model)
    assert not again.training
    assert all(parameter.requires_grad for parameter in again.parameters())
    state = again.state_dict()
    assert list(state) == list(model.state_dict())
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(state[name].numpy(), tensor.numpy(), name)


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "learned", "norm": "layer", "activation": "relu", "bias": True},
        {"norm_eps": 0.25, "d_ff": 20, "dropout": 0.5},
        {"num_key_value_heads": 1, "d_head": 6, "query_key_norm": True},
        {"query_key_value_bias": True, "tie_output": False},
        {"rotary_base": 77.0, "rotary_scaling": RotaryScaling("linear", 3.0)},
        {"rotary_scaling": RotaryScaling("llama3", 3.0, 1.5, 2.5, 64)},
    ],
    ids=str,
)
def test_settings_survive(options: dict[str, Any], tmp_path: Path) -> None:
    config = GPTConfig(**{**ROTARY, **options})
    found = from_pretrained(written(GPT(config), tmp_path)).config
    ours, theirs = vars(config), vars(found)
    widths = {"num_key_value_heads": config.block.head_sizes[0], "d_head": config.block.head_sizes[1]}
    if config.positions != "rotary":
        widths = {}
    assert theirs == ours | widths | {"d_ff": config.block.d_ff}


def test_a_gpt_without_biases_becomes_a_gpt2_with_zeros(tmp_path: Path) -> None:
    model = GPT(GPTConfig(**SHAPE))
    again = from_pretrained(written(model, tmp_path))
    assert again.config.bias
    biases = [tensor.numpy() for name, tensor in again.state_dict().items() if name.endswith("bias")]
    assert len(biases) == 2 * 6 + 1
    assert not any(bias.any() for bias in biases)
    ids = tt.tensor([[1, 2, 3]])
    np.testing.assert_allclose(again(ids).numpy(), model(ids).numpy(), rtol=1e-6, atol=1e-6)


def test_the_names_in_a_file_of_gpt2(folder: Path) -> None:
    found = tt.load(folder / "model.safetensors")
    shapes = {name: tensor.shape for name, tensor in found.items() if ".h.1." not in name}
    block = {"ln_1.weight": (16,), "ln_1.bias": (16,), "ln_2.weight": (16,), "ln_2.bias": (16,)}
    block |= {"attn.c_attn.weight": (16, 48), "attn.c_attn.bias": (48,), "attn.c_proj.weight": (16, 16)}
    block |= {"attn.c_proj.bias": (16,), "mlp.c_fc.weight": (16, 64), "mlp.c_fc.bias": (64,)}
    block |= {"mlp.c_proj.weight": (64, 16), "mlp.c_proj.bias": (16,)}
    rest = {"wte.weight": (11, 16), "wpe.weight": (8, 16), "ln_f.weight": (16,), "ln_f.bias": (16,)}
    assert shapes == {f"transformer.{name}": shape for name, shape in rest.items()} | {
        f"transformer.h.0.{name}": shape for name, shape in block.items()
    }


def test_queries_keys_and_values_lie_one_after_the_other(tmp_path: Path) -> None:
    model = MODELS["llama"]()
    found = tt.load(written(model, tmp_path) / "model.safetensors")
    ours = model.blocks[1].attention.query_key_value.weight.numpy()
    q, k, v = (found[f"model.layers.1.self_attn.{part}_proj.weight"].numpy() for part in "qkv")
    assert (q.shape, k.shape, v.shape) == ((16, 16), (8, 16), (8, 16))
    np.testing.assert_array_equal(np.concatenate([q, k, v]), ours)


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertForPreTraining", None])
def test_the_head_of_bert_that_config_json_names_or_the_file_has(architecture: str | None, tmp_path: Path) -> None:
    folder = written(MODELS["bert"](), tmp_path)
    reconfigure(folder, architectures=architecture and [architecture])
    assert type(from_pretrained(folder)) is BertForMaskedLM


@pytest.mark.parametrize("architecture", ["BertModel", "BertForMultipleChoice"])
def test_a_head_that_is_not_used_is_named(architecture: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = written(MODELS["bert"](), tmp_path)
    reconfigure(folder, architectures=[architecture])
    assert type(from_pretrained(folder)) is Bert
    assert caplog.messages == [
        f"{folder} has layers that a Bert does not use: cls.predictions, cls.predictions.transform.LayerNorm, "
        "cls.predictions.transform.dense"
    ]


def test_a_head_that_config_json_names_and_the_file_lacks(tmp_path: Path) -> None:
    folder = written(MODELS["bert"](), tmp_path)
    reconfigure(folder, architectures=["BertForTokenClassification"])
    assert refused(folder).endswith(
        "classifier.weight is missing; classifier.bias is missing. Use weights and settings of the same model"
    )


def test_a_classifier_has_as_many_classes_as_labels(tmp_path: Path) -> None:
    folder = written(BertForClassification(BertConfig(**ENCODER), 3), tmp_path)
    assert settings_of(folder)["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert from_pretrained(folder)(tt.tensor([[1, 2]])).shape == (1, 3)
    reconfigure(folder, id2label=None, num_labels=None)
    assert "classifier.weight must have shape (2, 16), got (3, 16)" in refused(folder)


def test_a_missing_pooler_is_initialized(tmp_path: Path) -> None:
    folder = written(MODELS["bert"](), tmp_path)
    rewrite(folder, bert__pooler__dense__weight=None, bert__pooler__dense__bias=None)
    pooler = from_pretrained(folder).bert.pooler
    assert pooler.weight.numpy().std() > 0.01
    assert not pooler.bias.numpy().any()
    pooler.weight.assign(pooler.weight * 2.0)  # it has memory of its own


def shard(folder: Path) -> dict[str, str]:
    """Put the weights into three files and an index. Returns the file of each tensor."""
    found = tt.load(folder / "model.safetensors")
    files = {name: f"model-0000{1 + i % 3}-of-00003.safetensors" for i, name in enumerate(sorted(found))}
    for file in set(files.values()):
        save({name: found[name] for name in found if files[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    return files


def test_an_index_and_shards(folder: Path) -> None:
    expected = from_pretrained(folder).state_dict()
    shard(folder)
    for name, tensor in from_pretrained(folder).state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), expected[name].numpy(), name)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert refused(folder).endswith(
        "has no model-00002-of-00003.safetensors: download all files that model.safetensors.index.json names"
    )


def test_saving_in_the_folder_of_shards(folder: Path) -> None:
    """They go once the new files are complete, and nothing else goes."""
    model = from_pretrained(folder)
    shard(folder)
    old = from_pretrained(folder)  # its weights are mapped: they are in the files that go
    for name in ("notes.txt", "model-1-of-2.safetensors", "adapter-00001-of-00003.safetensors"):
        (folder / name).write_text("kept")
    for parameter in model.parameters():
        parameter.assign(parameter * 2)
    with pytest.raises(UserError):
        save_pretrained(tt.nn.Linear(2, 2), folder)
    assert (folder / "model.safetensors.index.json").exists()
    save_pretrained(model, folder)
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(("model", "adapter", "notes"))) == [
        "adapter-00001-of-00003.safetensors", "model-1-of-2.safetensors", "model.safetensors", "notes.txt",
    ]  # fmt: skip
    again = from_pretrained(folder).state_dict()
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(again[name].numpy(), tensor.numpy(), name)
        assert old.state_dict()[name].shape == tensor.shape
    shard(folder)
    save_pretrained(from_pretrained(folder), folder)  # of the shards themselves
    for name, tensor in from_pretrained(folder).state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), again[name].numpy(), name)


def test_the_index_says_which_of_two_copies_counts(folder: Path) -> None:
    expected = from_pretrained(folder).state_dict()
    files = shard(folder)
    for file in set(files.values()):  # each file has stale copies of what belongs into the others, of any shape
        own = tt.load(folder / file)
        save({**{name: tt.zeros((1 + i % 2, 16)) for i, name in enumerate(files)}, "unknown": tt.ones(3), **own}, folder / file)
    for name, tensor in from_pretrained(folder).state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), expected[name].numpy(), name)


def test_a_file_that_lacks_what_the_index_says_it_has(folder: Path) -> None:
    files = shard(folder)
    name, file = next(iter(files.items()))
    others = {other for other in files.values() if other != file}
    left = tt.load(folder / file)
    taken = left.pop(name)
    save(left, folder / file)
    for other in others:  # a copy elsewhere does not count
        save({**tt.load(folder / other), name: taken}, folder / other)
    message = f"model.safetensors.index.json does not fit its files: {file} has no {name}. Download all of them again"
    assert refused(folder).endswith(message)


# ---------------------------------------------------------------------------------------------------------- beginnings and ends


def test_where_texts_begin_and_end(folder: Path) -> None:
    assert read_writing(folder) == Writing()
    writing = Writing(start=1, ends=(2, 3), forbidden=(4,), forced_end=2, max_length=7)
    save_pretrained(from_pretrained(folder), folder, writing)
    assert read_writing(folder) == writing


def test_generation_config_goes_before_config(folder: Path) -> None:
    reconfigure(folder, bos_token_id=1, eos_token_id=2, bad_words_ids=[[5]])
    (folder / "generation_config.json").write_text('{"eos_token_id": [3], "bos_token_id": null}')
    assert read_writing(folder) == Writing(start=1, ends=(3,), forbidden=(5,))
    (folder / "generation_config.json").unlink()
    assert read_writing(folder) == Writing(start=1, ends=(2,), forbidden=(5,))


def test_ids_that_are_not_in_the_vocabulary_count_for_nothing(folder: Path) -> None:
    reconfigure(folder, bos_token_id=50256, eos_token_id=[-1, 10, 11], bad_words_ids=[[9], [11]], forced_eos_token_id=10**40)
    assert read_writing(folder) == Writing(ends=(10,), forbidden=(9,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bad_words_ids": [[1], []]}, "bad_words_ids has an empty sequence"),
        ({"bad_words_ids": 5}, "bad_words_ids must be a list, got 5"),
        ({"eos_token_id": "x"}, "eos_token_id must be an integer or a list, got 'x'"),
        ({"eos_token_id": [[1]]}, r"eos_token_id\[0\] must be an integer, got \[1\]"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_absurd_beginnings_and_ends(folder: Path, file: str, settings: dict[str, Any], message: str) -> None:
    (folder / "generation_config.json").unlink()
    read = settings_of(folder) if file == "config.json" else {}
    (folder / file).write_text(json.dumps(read | settings))
    with pytest.raises(UserError, match=f"/{file}: {message}"):
        read_writing(folder)


# ------------------------------------------------------------------------------------------------------------ no model


def test_folders_and_names_that_are_none(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(tmp_path).endswith("has no config.json: pass the folder of a pretrained model in Hugging Face's layout")
    assert "is a file: pass the folder that holds config.json" in refused(folder / "config.json")
    assert refused(folder, revision="main").endswith("is a folder and has no revision 'main': leave it out")
    for name in ("a b", "../nowhere", "/nowhere/at/all", "a/b/c", "org/", "./x", "ü", "--x", "x\ny", "x\0y", "x" * 5000):
        assert "Pass a folder, a GGUF file, or a model's name on the Hugging Face hub" in refused(name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refused("org/model") == (
        'folder not found: org/model. To download org/model from the Hugging Face hub: pip install "tinyformer[hub]"'
    )


class Hub:
    """Stands in for huggingface_hub, and keeps what it is asked for."""

    def __init__(self, answer: Any):
        self.answer = answer
        self.asked: tuple[Any, ...] = ()

    def snapshot_download(self, name: str, **options: Any) -> Any:
        self.asked = (name, options)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_name_of_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(str(folder))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert isinstance(from_pretrained("org/model", revision="v1"), GPT)
    name, options = hub.asked
    assert (name, options["revision"]) == ("org/model", "v1")
    assert "*.bin" not in options["allow_patterns"]  # nothing that would have to be unpickled
    hub.answer = Exception("no connection\nto the hub " + "x" * 1000)
    message = refused("org/model")
    assert "folder not found: org/model, and the Hugging Face hub cannot provide it: no connection to the" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{}", "config.json is damaged: 'utf-8' codec can't decode"),
        (b"", "config.json is damaged: Expecting value"),
        (b"[]", "config.json is damaged: it holds no JSON object"),
        (b'{"model_type": NaN}', "config.json is damaged: NaN is not a number in JSON"),
        (b'{"a":' + b"[" * 100_000, "config.json is damaged: it is nested too deeply"),
        (b"{}", "config.json: model_type is missing"),
        (b'{"model_type": "t5"}', "config.json: unknown model_type 't5': only gpt2, "),
    ],
)
def test_damaged_settings(folder: Path, content: bytes, message: str) -> None:
    (folder / "config.json").write_bytes(content)
    assert message in refused(folder)


CHANGES = [
    ("gpt2", {"n_embd": -16}, "d_model must be at least 1, got -16"),
    ("gpt2", {"n_layer": "2"}, "n_layer must be an integer, got '2'"),
    ("gpt2", {"n_layer": 2.5}, "n_layer must be an integer, got 2.5"),
    ("gpt2", {"n_head": 3}, "num_heads=3 does not divide d_model=16"),
    ("gpt2", {"vocab_size": 10**30}, "a model of this size needs at least"),
    ("gpt2", {"layer_norm_epsilon": -1.0}, "norm_eps must be at least 0, got -1.0"),
    ("gpt2", {"resid_pdrop": 1.5}, "resid_pdrop must be at least 0 and less than 1, got 1.5"),
    ("gpt2", {"activation_function": "quick_gelu"}, "unknown activation_function 'quick_gelu': only gelu,"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True is not supported"),
    ("gpt2", {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, got 'yes'"),
    ("llama", {"hidden_size": None}, "hidden_size is missing"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads=3 does not divide num_heads=4"),
    ("llama", {"attention_bias": True}, "attention_bias True is not supported: it must be False"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported: it must be 'silu'"),
    ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type must be default, linear or llama3, got 'yarn'"),
    ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "factor is missing"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rotary scaling needs positive values"),
    (
        "llama",
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        "partial_rotary_factor 0.5 is not supported: it must be 1.0",
    ),
    ("llama", {"rope_parameters": {"rope_theta": 0.5}}, "rotary_base must be above 1, got 0.5"),
    ("llama", {"use_sliding_window": True}, "use_sliding_window True is not supported"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not supported"),
    ("bert", {"is_decoder": True}, "is_decoder True is not supported"),
    ("marian", {"is_encoder_decoder": False}, "is_encoder_decoder False is not supported: it must be True"),
    ("marian", {"normalize_before": True}, "normalize_before True is not supported: it must be False"),
    ("marian", {"decoder_ffn_dim": 9}, "encoder_ffn_dim and decoder_ffn_dim must be equal, got 24, 9"),
    ("marian", {"pad_token_id": None}, "pad_token_id is missing"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), CHANGES, ids=lambda x: x if isinstance(x, str) else str(list(x)))
def test_settings_that_cannot_be_had(kind: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = written(MODELS[kind](), tmp_path)
    reconfigure(folder, **changes)
    assert refused(folder).startswith(f"{folder / 'config.json'}: {message}")


# ------------------------------------------------------------------------------------------------------------ no weights


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert refused(folder).endswith(
        "has no model.safetensors or model.safetensors.index.json: download the weights in this format"
    )
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    message = refused(folder)
    assert "has its weights only in pytorch_model.bin, which could run code when opened" in message
    assert "import GPT2LMHeadModel as A; " in message
    reconfigure(folder, architectures=["x; import os"])
    assert "import AutoModel as A; " in refused(folder)


HARD_TO_QUOTE = ["a b", "it's", 'a"b', "$(touch harm)", "`touch harm`", "a;touch harm", "'); harm(); ('", "-h"]


@pytest.mark.parametrize("name", HARD_TO_QUOTE)
def test_the_command_that_converts_weights_takes_any_folder(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    named = folder.rename(folder.with_name(name))
    program, flag, code, path = shlex.split(refused(named).splitlines()[1])
    assert (program, flag, path) == ("python", "-c", str(named))
    compile(code, "the command", "exec")
    assert name not in code


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            {"weight_map": {"a": "../x.safetensors"}},
            "is damaged: all files in weight_map must be safetensors files in its folder",
        ),
        ({"weight_map": {"a": "/etc/passwd"}}, "is damaged: all files in weight_map must be safetensors files in its folder"),
        ({"weight_map": {"a": ".."}}, "is damaged: all files in weight_map must be safetensors files in its folder"),
        ({"weight_map": {"a": 1}}, "is damaged: weight_map['a'] must be text, got 1"),
        ({}, "is damaged: weight_map must be an object, got None"),
        ({"weight_map": {}}, "transformer.wte.weight is missing"),
        ({"weight_map": {str(i): f"{i:03}.safetensors" for i in range(99)}}, "001.safetensors, 002.safetensors (and 96 more)"),
    ],
)
def test_damaged_indices(folder: Path, index: dict[str, Any], message: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert message in refused(folder)


def test_damaged_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for content in (
        b"",
        whole[:8],
        whole[:-1],
        whole[: len(whole) // 2],
        whole + b"x",
        b"\xff" * 8 + whole[8:],
        b"<!DOCTYPE html>",
    ):
        path.write_bytes(content)
        assert refused(folder).startswith(f"{path} is not a whole safetensors file (damaged, cut short, or another format)")
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert refused(folder) == f"{path} is a Git LFS pointer, not the weights: download them with `git lfs pull`"
    path.unlink()
    path.mkdir()
    assert "is a folder, not a safetensors file" in refused(folder)


def test_all_that_does_not_fit_is_named_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyformer.pretrained.weights._MOST_NAMED", 6)
    rewrite(
        folder,
        transformer__wpe__weight=tt.zeros((3, 16)),
        transformer__h__0__attn__c_attn__weight=tt.zeros((48, 16)),
        transformer__h__1__ln_2__bias=None,
        transformer__ln_f__weight=tt.zeros((1, 16)),
        transformer__ln_f__bias=tt.zeros(16, dtype="int32"),
        extra=tt.zeros(1),
    )
    assert refused(folder).split(": ")[1].split(". Use")[0].split("; ") == [
        "transformer.wpe.weight must have shape (8, 16), got (3, 16)",
        "transformer.h.0.attn.c_attn.weight must have shape (16, 48), got (48, 16)",
        "transformer.h.1.ln_2.bias is missing",
        "transformer.ln_f.weight must have shape (16,), got (1, 16)",
        "transformer.ln_f.bias must be floating-point, got int32",
        "extra is not expected",
    ]


def test_parts_of_other_shapes_that_make_the_right_sum(tmp_path: Path) -> None:
    folder = written(MODELS["llama"](), tmp_path)
    rewrite(
        folder,
        model__layers__0__self_attn__q_proj__weight=tt.zeros((8, 16)),
        model__layers__0__self_attn__v_proj__weight=tt.zeros((16, 16)),
        model__layers__1__self_attn__k_proj__weight=tt.zeros((8, 15)),
    )
    assert refused(folder).split(": ")[1].split(". Use")[0].split("; ") == [
        "model.layers.0.self_attn.q_proj.weight must have shape (16, 16), got (8, 16)",
        "model.layers.0.self_attn.v_proj.weight must have shape (8, 16), got (16, 16)",
        "model.layers.1.self_attn.k_proj.weight must have shape (8, 16), got (8, 15)",
    ]


def test_fewer_layers_than_the_file_has(folder: Path) -> None:
    reconfigure(folder, n_layer=1)
    assert "transformer.h.1.attn.c_proj.bias is not expected (and 9 more)" in refused(folder)


def test_an_output_beside_the_embedding(folder: Path) -> None:
    embedding = tt.load(folder / "model.safetensors")["transformer.wte.weight"]
    rewrite(folder, lm_head__weight=embedding)
    from_pretrained(folder)
    rewrite(folder, lm_head__weight=embedding, transformer__wte__weight=None)
    np.testing.assert_array_equal(from_pretrained(folder).token_embedding.weight.numpy(), embedding.numpy())
    rewrite(folder, lm_head__weight=embedding + 1.0, transformer__wte__weight=embedding)
    assert "lm_head.weight and transformer.wte.weight differ, but config.json ties them" in refused(folder)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_become_float32(folder: Path, dtype: str) -> None:
    expected = {name: tensor.astype(dtype).astype("float32") for name, tensor in from_pretrained(folder).state_dict().items()}
    rewrite(folder, **{name: tensor.astype(dtype) for name, tensor in tt.load(folder / "model.safetensors").items()})
    for name, tensor in from_pretrained(folder).state_dict().items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor.numpy(), expected[name].numpy(), name)


@pytest.mark.parametrize("off", [1, 2, 4])
def test_values_that_begin_anywhere_in_the_file(folder: Path, off: int) -> None:
    path = folder / "model.safetensors"
    expected = from_pretrained(folder)(tt.tensor([[1, 2, 3]])).numpy()
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    header = whole[8:end].replace(b"tinytensor.sha256", b"another.checksum") + b" " * off
    path.write_bytes(len(header).to_bytes(8, "little") + header + whole[end:])
    np.testing.assert_array_equal(from_pretrained(folder)(tt.tensor([[1, 2, 3]])).numpy(), expected)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: tt.nn.Linear(2, 3), "a Linear cannot be saved in Hugging Face's layout: only GPT, GPTVectors, Bert"),
        (lambda: GPT(GPTConfig(**{**SHAPE, "positions": "sinusoidal"})), "GPT-2: positions must be 'learned', got 'sin"),
        (lambda: GPT(GPTConfig(**SHAPE, norm="rms")), "GPT-2: norm must be 'layer', got 'rms'"),
        (lambda: GPT(GPTConfig(**SHAPE, num_key_value_heads=2)), "GPT-2: num_key_value_heads must be 0 or 4, got 2"),
        (lambda: GPT(GPTConfig(**ROTARY, bias=True)), "Llama: bias must be False, got True"),
        (lambda: GPT(GPTConfig(**{**ROTARY, "norm": "layer"})), "Llama: norm must be 'rms', got 'layer'"),
        (
            lambda: GPT(GPTConfig(**ROTARY, query_key_norm=True, query_key_value_bias=True)),
            "Qwen3: query_key_value_bias must be False, got True",
        ),
        (lambda: Bert(BertConfig(**ENCODER, norm_first=True)), "BERT: norm_first must be False, got True"),
        (
            lambda: Transformer(TransformerConfig(**{**BOTH, "positions": "sinusoidal"})),
            "Marian: positions must be 'sinusoidal_halves', got 'sinusoidal'",
        ),
        (
            lambda: Transformer(TransformerConfig(**BOTH, share_embeddings=True, tie_output=False)),
            "cannot save this model as Marian: share_embeddings needs tie_output=True",
        ),
    ],
)
def test_models_that_are_none_of_the_architectures(model: Callable[[], Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        save_pretrained(model(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("kind", "file"),
    [*((kind, file) for kind in MODELS for file in ("config.json", "model.safetensors")), ("marian", "generation_config.json")],
)
def test_files_that_are_damaged_at_random(kind: str, file: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    folder = written(MODELS[kind](), tmp_path)
    save_pretrained(from_pretrained(folder), folder, Writing(start=1, ends=(2,), forbidden=(3,)))
    whole, refusals = (folder / file).read_bytes(), 0
    count = pytestconfig.getoption("--mutations")
    for i in range(count):
        (folder / file).write_bytes(mutated(whole, np.random.default_rng(i)))
        try:
            from_pretrained(folder)
            read_writing(folder)
        except UserError as error:
            refusals += 1
            assert len(str(error)) < 900, i
    assert refusals > count // 4
