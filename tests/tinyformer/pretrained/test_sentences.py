"""Folders of sentence-transformers: reading, encoding, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import (
    GPT,
    Bert,
    BertConfig,
    BertForMaskedLM,
    BPETokenizer,
    GPTConfig,
    SentenceEncoder,
    SentenceModel,
    UserError,
    WordPieceTokenizer,
    quantize,
    save_adapter,
    save_pretrained,
    save_pretrained_tokenizer,
    sentence_encoder,
)
from tinyformer.pretrained import sentences
from tinytensor.io import save

WORDS = "the cat dog sat ran on mat rug where is a station query search for".split()
TOKENIZER = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ":"])
SENTENCES = ["The cat sat on the mat", "dog", "", "where is the station where is a cat", "a dog ran", "the rug"] * 3
MODULES = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
OLD = {"word_embedding_dimension": 8, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
SIZES = {"max_length": 16, "num_layers": 1, "num_heads": 2, "d_model": 8, "d_ff": 16}


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def modules(*kinds: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tt.seed(1)
    folder = tmp_path / "model"
    bert = Bert(BertConfig(TOKENIZER.vocab_size, **SIZES))  # type: ignore[arg-type]
    for parameter in bert.parameters():
        parameter.data[...] += 0.1 * tt.random.normal(parameter.shape).data
    save_pretrained(bert, folder)
    save_pretrained_tokenizer(TOKENIZER, folder)
    write(folder / "modules.json", modules(*MODULES))
    write(folder / "1_Pooling/config.json", OLD)
    return folder


def one_by_one(encoder: SentenceEncoder, texts: list[str]) -> np.ndarray:
    """The vectors of texts, without padding and without batches."""
    with tt.no_grad():
        return np.concatenate([encoder.model(tt.tensor([encoder.ids_of("", text)])).numpy() for text in texts])


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        sentence_encoder(folder)
    assert str(caught.value).count("\n") <= 1
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------ encoding


@pytest.mark.parametrize("at_once", [8, 40, 1024])
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_batches_and_cores_change_nothing(at_once: int, cores: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "_TOKENS_AT_ONCE", at_once)
    monkeypatch.setattr(sentences, "default_shards", lambda: cores)
    encoder = sentence_encoder(folder)
    found = encoder.encode(SENTENCES)
    assert (found.shape, found.dtype) == ((18, 8), np.float32)
    np.testing.assert_allclose(found, one_by_one(encoder, SENTENCES), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(SENTENCES[3]), found[3], rtol=1e-4, atol=1e-6)
    assert encoder.encode([]).shape == (0, 8)


def test_batches_hold_texts_of_like_length() -> None:
    lengths = [3, 900, 5, 4, 300, 299, 4, 2000]
    assert sentences._batches(lengths) == [[7], [1], [4, 5, 2], [3, 6, 0]]


def test_a_training_model_encodes_without_dropout_and_trains_on(folder: Path) -> None:
    encoder = sentence_encoder(folder)
    expected = encoder.encode(SENTENCES)
    encoder.model.train()
    np.testing.assert_array_equal(encoder.encode(SENTENCES), expected)
    assert encoder.model.training
    ids, mask = encoder.padded(SENTENCES[:4])
    encoder.model(ids, mask).sum().backward()
    assert encoder.model.encoder.token_embedding.weight.grad is not None


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
def test_low_precision_weights(dtype: str, folder: Path) -> None:
    encoder = sentence_encoder(folder)
    expected = encoder.encode(SENTENCES)
    found = sentence_encoder(folder, dtype=dtype).encode(SENTENCES)
    assert 1e-6 < np.abs(found - expected).max() < (0.3 if dtype == "int4" else 0.1)
    quantize(encoder.model, dtype)
    np.testing.assert_array_equal(encoder.encode(SENTENCES), found)


def test_long_texts_are_cut_and_the_marks_around_them_stay(folder: Path) -> None:
    assert sentence_encoder(folder).ids_of("", "cat " * 30) == [2, *[6] * 14, 3]
    write(folder / "tokenizer_config.json", {"model_max_length": 9})
    assert sentence_encoder(folder).max_length == 9
    write(folder / "sentence_bert_config.json", {"max_seq_length": 5, "do_lower_case": True})
    encoder = sentence_encoder(folder)
    assert (encoder.max_length, encoder.lowercase) == (5, True)
    assert encoder.ids_of("", "cat " * 30) == [2, 6, 6, 6, 3]


def test_prompts(folder: Path) -> None:
    prompts = {"query": "query: ", "none": None}
    write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None})
    encoder, sentence = sentence_encoder(folder), "the cat"
    expected = encoder.encode(f"query: {sentence}")
    np.testing.assert_array_equal(encoder.encode(sentence, prompt_name="query"), expected)
    np.testing.assert_array_equal(encoder.encode(sentence, prompt="query: "), expected)
    np.testing.assert_array_equal(encoder.encode(sentence, prompt_name="none"), encoder.encode(sentence))
    with pytest.raises(
        UserError, match=r"prompt_name must be one of query, document, none, got 'other': pass any other text as prompt="
    ):
        encoder.encode(sentence, prompt_name="other")
    write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    np.testing.assert_array_equal(sentence_encoder(folder).encode(sentence), expected)
    write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "other"})
    assert "default_prompt_name must be one of the prompts, got 'other'" in refused(folder)


def test_questions_and_the_texts_that_they_are_about(folder: Path) -> None:
    encoder, sentence = sentence_encoder(folder), "the cat"
    for encode in (encoder.encode_query, encoder.encode_document):
        np.testing.assert_array_equal(encode([sentence]), encoder.encode([sentence]))
    settings = {"prompts": {"query": "query: ", "document": "search ", "other": "on "}, "default_prompt_name": "other"}
    write(folder / "config_sentence_transformers.json", settings)
    encoder = sentence_encoder(folder)
    for encode, prompt in ((encoder.encode_query, "query: "), (encoder.encode_document, "search ")):
        np.testing.assert_array_equal(encode(sentence), encoder.encode(sentence, prompt=prompt))
        np.testing.assert_array_equal(encode(sentence, prompt="on "), encoder.encode(sentence))
        np.testing.assert_array_equal(encode(sentence, "other", truncate_dim=3), encoder.encode(sentence)[:3])


def test_names_of_special_tokens_count(folder: Path) -> None:
    """As in "Title[SEP]Abstract", with which some models were trained; also where texts are lowercased."""
    assert sentence_encoder(folder).ids_of("", "cat[SEP]dog") == [2, 6, 3, 7, 3]
    write(folder / "sentence_bert_config.json", {"do_lower_case": True})
    assert sentence_encoder(folder).ids_of("", "CAT[SEP]Dog") == [2, 6, 3, 7, 3]


def test_vectors_are_cut(folder: Path) -> None:
    whole = sentence_encoder(folder).encode(SENTENCES)
    write(folder / "config_sentence_transformers.json", {"truncate_dim": 5})
    encoder = sentence_encoder(folder)
    np.testing.assert_array_equal(encoder.encode(SENTENCES), whole[:, :5])
    np.testing.assert_allclose(encoder.encode(SENTENCES[0], truncate_dim=2), whole[0, :2], 1e-6)
    np.testing.assert_array_equal(encoder.encode(SENTENCES, truncate_dim=99), whole)
    assert encoder.width == 5 and encoder.encode([]).shape == (0, 5)
    with pytest.raises(UserError, match="truncate_dim must be at least 1, got 0"):
        encoder.encode(SENTENCES, truncate_dim=0)


def test_how_alike_vectors_are(folder: Path) -> None:
    x, y = np.float32([[3, 4], [0, 2]]), np.float32([1, 0])
    expected = {
        "cosine": [[0.6], [0.0]],
        "dot": [[3], [0]],
        "euclidean": [[-(20**0.5)], [-(5**0.5)]],
        "manhattan": [[-6], [-3]],
    }
    for name, values in expected.items():
        write(folder / "config_sentence_transformers.json", {"similarity_fn_name": name})
        found = sentence_encoder(folder).similarity(x, y)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, values, rtol=1e-6)
    assert sentence_encoder(folder).similarity(x[0], x).shape == (1, 2)
    with pytest.raises(UserError, match=r"similarity_fn_name must be one of cosine, dot, euclidean, manhattan, got 'max'"):
        SentenceEncoder(sentence_encoder(folder).model, TOKENIZER, 9, similarity_fn_name="max")


def test_older_names_of_a_file_and_its_length(folder: Path) -> None:
    write(folder / "sentence_roberta_config.json", {"max_seq_length": 7})
    assert sentence_encoder(folder).max_length == 7
    write(folder / "tokenizer_config.json", {"model_max_length": 5})
    assert sentence_encoder(folder).max_length == 7


def test_an_encoder_with_an_adapter(folder: Path) -> None:
    model = tt.nn.add_lora(sentence_encoder(folder).model.encoder, rank=2)
    for value in tt.nn.lora_state(model).values():
        value.data[...] = tt.random.normal(value.shape).data
    save_adapter(model, folder / "0_Adapter", base=str(folder))
    write(folder / "modules.json", modules(("0_Adapter", "Transformer"), *MODULES[1:]))
    expected = SentenceModel(model).eval()(tt.tensor([[2, 6, 3]])).numpy()
    np.testing.assert_allclose(sentence_encoder(folder).encode(["cat"]), expected, rtol=1e-5)


def test_a_prompt_that_pooling_leaves_out(folder: Path) -> None:
    write(folder / "1_Pooling/config.json", {**OLD, "include_prompt": False})
    encoder, sentence = sentence_encoder(folder), "the cat"
    ids = encoder.ids_of("query: ", sentence)
    counted = np.arange(len(ids)) >= 3  # [CLS], and two tokens of the prompt
    with tt.no_grad():
        expected = encoder.model(tt.tensor([ids]), counted=tt.tensor([counted])).numpy()[0]
    np.testing.assert_allclose(encoder.encode(sentence, prompt="query: "), expected, rtol=1e-5, atol=1e-6)


def test_not_a_valid_sentence(folder: Path) -> None:
    encoder = sentence_encoder(folder)
    for wrong in ([1], [None], [["a"]], [b"a"]):
        with pytest.raises(UserError, match=r"a sentence must be a string, got .*: pass a list of strings"):
            encoder.encode(wrong)  # type: ignore[arg-type]
    for wrong in (None, 1, b"a", {"a": "b"}):
        with pytest.raises(UserError, match=r"sentences must be a string or a list of strings, got "):
            encoder.encode(wrong)  # type: ignore[arg-type]
    np.testing.assert_array_equal(encoder.encode(text for text in ("a", "dog")), encoder.encode(["a", "dog"]))


def test_a_text_without_tokens_before_a_gpt(tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train("the cat sat", 260)
    shape = {"block_size": 16, "num_layers": 1, "num_heads": 2, "d_model": 8}
    save_pretrained(GPT(GPTConfig(tokenizer.vocab_size, **shape)), tmp_path)  # type: ignore[arg-type]
    save_pretrained_tokenizer(tokenizer, tmp_path)
    write(tmp_path / "modules.json", modules(*MODULES))
    write(tmp_path / "1_Pooling/config.json", {"pooling_mode": "lasttoken"})
    found = sentence_encoder(tmp_path).encode(["", "the cat"])
    assert np.isfinite(found).all()


# ------------------------------------------------------------------------------------------------------------ folders


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        (OLD, ["mean"]),
        ({**OLD, "pooling_mode_cls_token": True, "pooling_mode_lasttoken": True}, ["cls", "mean", "lasttoken"]),
        ({"pooling_mode_max_tokens": True, "pooling_mode_weightedmean_tokens": True}, ["max", "weightedmean"]),
        ({"pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_mean_tokens": False}, ["mean_sqrt_len_tokens"]),
        ({}, ["mean"]),
        ({"pooling_mode": "cls", "embedding_dimension": 8}, ["cls"]),
        ({"pooling_mode": ["lasttoken", "max"]}, ["lasttoken", "max"]),
        ({"pooling_mode": "max", "pooling_mode_mean_tokens": True}, ["max"]),
    ],
)
def test_settings_of_pooling_old_and_new(settings: dict[str, Any], kinds: list[str], folder: Path) -> None:
    write(folder / "1_Pooling/config.json", settings)
    encoder = sentence_encoder(folder)
    assert encoder.model.pooling.kinds == tuple(kinds)
    assert encoder.encode(SENTENCES).shape == (18, 8 * len(kinds)) == (18, encoder.width)


@pytest.mark.parametrize("types", ["sentence_transformers.models.", "sentence_transformers.base.modules.x.", ""])
def test_dense_layers_in_any_order_under_names_old_and_new(types: str, folder: Path) -> None:
    kinds = [*MODULES[:2], ("2_Dense", "Dense"), ("3_Normalize", "Normalize"), ("4_Dense", "Dense")]
    write(folder / "modules.json", [{"path": path, "type": types + kind} for path, kind in kinds])
    weights = {"2": (8, 5, True, "torch.nn.modules.activation.Tanh"), "4": (5, 3, False, "torch.nn.modules.linear.Identity")}
    made = []
    for number, (width, new, bias, function) in weights.items():
        settings = {"in_features": width, "out_features": new, "bias": bias, "activation_function": function}
        write(folder / f"{number}_Dense/config.json", settings)
        layer = {"linear.weight": tt.random.normal((new, width)), **({"linear.bias": tt.random.normal(new)} if bias else {})}
        save(layer, folder / f"{number}_Dense/model.safetensors")
        made.append({name: tensor.numpy() for name, tensor in layer.items()})
    encoder = sentence_encoder(folder)
    encoder.model.layers, layers = tt.nn.ModuleList([]), encoder.model.layers
    x = np.tanh(encoder.encode(SENTENCES) @ made[0]["linear.weight"].T + made[0]["linear.bias"])
    expected = x / np.linalg.norm(x, axis=1, keepdims=True) @ made[1]["linear.weight"].T
    encoder.model.layers = layers
    assert encoder.width == 3
    np.testing.assert_allclose(encoder.encode(SENTENCES), expected, rtol=1e-4, atol=1e-5)
    save({"linear.weight": tt.zeros((5, 9)), "linear.bias": tt.zeros(5)}, folder / "2_Dense/model.safetensors")
    assert "the weights in" in refused(folder)
    (folder / "2_Dense/model.safetensors").unlink()
    assert (
        "2_Dense has no model.safetensors; if you trust the folder, write it with SentenceTransformer(folder).save(folder)"
        in refused(folder)
    )
    write(folder / "2_Dense/config.json", {"in_features": 8, "out_features": 5, "activation_function": "torch.nn.Softplus"})
    assert "activation_function must be one of torch.nn's Identity, Tanh, ReLU" in refused(folder)
    write(folder / "2_Dense/config.json", {"in_features": 8, "out_features": 5, "use_residual": True})
    assert "use_residual True is not supported: it must be False" in refused(folder)


def test_the_model_in_its_own_folder_with_a_head(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = sentence_encoder(folder).encode(SENTENCES)
    bert = sentence_encoder(folder).model.encoder
    model = BertForMaskedLM(bert.config)
    model.bert.load_state_dict(bert.state_dict())
    inner = folder / "0_Transformer"
    save_pretrained(model, inner)
    for path in folder.glob("*.json"):
        if path.name not in ("modules.json", "config.json", "generation_config.json"):
            path.rename(inner / path.name)
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (folder / name).unlink()
    write(folder / "modules.json", modules(("0_Transformer", "Transformer"), *MODULES[1:]))
    np.testing.assert_array_equal(sentence_encoder(folder).encode(SENTENCES), expected)
    assert "0_Transformer has layers that a Bert does not use: cls.predictions" in caplog.messages[0]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "modules.json",
            modules(("", "Transformer"), ("1_CNN", "CNN")),
            "modules.json must list Transformer and Pooling, then Dense and Normalize in any order, got Transformer, CNN",
        ),
        (
            "modules.json",
            modules(("", "Transformer")),
            "modules.json must list Transformer and Pooling, then Dense and Normalize in any order, got Transformer",
        ),
        (
            "modules.json",
            [],
            "modules.json must list Transformer and Pooling, then Dense and Normalize in any order, got nothing",
        ),
        ("modules.json", "{", "modules.json is damaged"),
        ("modules.json", {"a": 1}, "modules.json is damaged: modules must be a list, got"),
        ("modules.json", [{"type": 1, "path": ""}], "modules.json is damaged: type must be text, got 1"),
        ("modules.json", modules(("", "Transformer"), ("../..", "Pooling")), "is outside its folder"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "config.json: pooling_mode must be one of cls,"),
        ("1_Pooling/config.json", {"pooling_mode": 3}, "pooling_mode must be a list, got 3"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": "yes"}, "pooling_mode_cls_token must be true or false, got 'yes'"),
        ("1_Pooling/config.json", {"pooling_mode": []}, "config.json: pooling_mode must be one of cls,"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": 3}},
            "config_sentence_transformers.json: prompts['query'] must be text or null, got 3",
        ),
        ("config_sentence_transformers.json", {"default_prompt_name": []}, "default_prompt_name must be text, got []"),
        ("sentence_bert_config.json", {"max_seq_length": "x"}, "max_seq_length must be an integer, got 'x'"),
        ("sentence_bert_config.json", {"max_seq_length": -1}, "max_seq_length must leave room for a text, got -1"),
        ("sentence_bert_config.json", {"query_length": 9}, "query_length 9 is not supported: it must be None"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task 'fill-mask' is not supported"),
        ("sentence_bert_config.json", {"modality_config": {"message": {}}}, "modality_config {'message': {}} is not supported"),
        ("config_sentence_transformers.json", {"truncate_dim": "8"}, "truncate_dim must be an integer, got '8'"),
        (
            "config_sentence_transformers.json",
            {"similarity_fn_name": "maxsim"},
            "similarity_fn_name must be one of cosine, dot, euclidean, manhattan, got 'maxsim'",
        ),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "model_type 'CrossEncoder' is not supported"),
        ("1_Pooling/config.json", {"pooling_mode_median": True}, "pooling_mode_median True is not supported"),
        (
            "2_Normalize/config.json",
            {"module_input_name": "token_embeddings"},
            "module_input_name 'token_embeddings' is not supported",
        ),
        ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side 'left' is not supported: it must be 'right'"),
        ("config.json", {"model_type": "marian", "vocab_size": 5}, "this architecture has no token vectors"),
    ],
)
def test_folders_that_are_refused(file: str, content: Any, message: str, folder: Path) -> None:
    write(folder / file, content)
    assert message in refused(folder)


def test_files_that_are_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "1_Pooling/config.json").unlink()
    assert "1_Pooling/config.json" in refused(folder)
    (folder / "modules.json").unlink()
    assert refused(folder).endswith("has no modules.json: pass a sentence-transformers folder, or build a SentenceModel")
