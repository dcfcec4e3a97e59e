"""Sentence encoders against sentence-transformers: random folders give the same vectors, or an error that names the setting.

``PYTHONPATH=.:tests python tests/parity/test_sentences.py 500`` compares this many more.
"""

from __future__ import annotations

import json
import logging
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from tinyformer import SentenceEncoder, UserError, sentence_encoder

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
sentence_transformers = pytest.importorskip(
    "sentence_transformers",
    reason="tests beside sentence-transformers: pip install --no-deps sentence-transformers scikit-learn joblib threadpoolctl",
)
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

WORDS = "the cat dog sat ran on mat rug where is a station query search for title abstract : . , ##s ##ing é σ".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALL = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
SWITCHES = [f"pooling_mode_{name}" for name in ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens")]
SWITCHES += ["pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"]
TEXTS = [
    "The cat sat on the mat",
    "Title[SEP]Abstract: a STATION.",
    "",
    "dogs",
    "ΣΑΣ Éé [MASK] [sep] x",
    "cat " * 40,
    " a  cat ",
]
# A folder with one of these may be refused, by this name.
REFUSED: dict[str, list[tuple[str, Any]]] = {
    "sentence_bert_config.json": [
        ("transformer_task", "fill-mask"),
        ("query_length", 5),
        ("processing_kwargs", {"text": {"max_length": 5}}),
        ("processor_kwargs", {"model_max_length": 6}),
        ("modality_config", {"text": {"method": "forward", "method_output_name": "pooler_output"}}),
    ],
    "tokenizer_config.json": [("truncation_side", "left")],
    "config_sentence_transformers.json": [("model_type", "SparseEncoder"), ("similarity_fn_name", "maxsim")],
    "1_Pooling/config.json": [("pooling_mode", "median")],
    "2_Dense/config.json": [
        ("use_residual", True),
        ("activation_function", "torch.nn.Softplus"),
        ("activation_function", "me.GELU"),
    ],
}


def of_bert(rng: random.Random) -> tuple[Any, Any]:
    """A BERT or an MPNet, and its tokenizer."""
    vocabulary = {
        token: i for i, token in enumerate([*SPECIAL, *WORDS, *"abcdeghimnopqrstuy", *(f"##{x}" for x in "abcdeghimnopqrstuy")])
    }
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, do_lower_case=rng.random() < 0.5)
    sizes = {**SMALL, "vocab_size": len(vocabulary), "max_position_embeddings": rng.choice([24, 64])}
    return transformers.BertModel(transformers.BertConfig(**sizes)), tokenizer


def of_qwen(rng: random.Random) -> tuple[Any, Any]:
    """A Qwen3, whose tokenizer puts one token behind a text, or none."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        TEXTS, tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    if rng.random() < 0.5:
        inner.post_processor = tokenizers.processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        padding_side="right",
    )
    sizes = {
        **SMALL,
        "vocab_size": inner.get_vocab_size(),
        "num_key_value_heads": 2,
        "head_dim": 6,
        "max_position_embeddings": 64,
    }
    return transformers.Qwen3Model(transformers.Qwen3Config(**sizes)), tokenizer


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def write_folder(folder: Path, rng: random.Random) -> None:
    """A folder of sentence-transformers at random."""
    model, tokenizer = of_bert(rng) if rng.random() < 0.6 else of_qwen(rng)
    torch.manual_seed(rng.randrange(1000))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    place = folder / rng.choice(["", "0_Transformer"])
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    if rng.random() < 0.3:
        path = place / "tokenizer_config.json"
        write(path, {**json.loads(path.read_text()), "model_max_length": rng.randint(6, 30)})
    kinds = ["Transformer", "Pooling", *rng.choices(["Dense", "Normalize"], k=rng.randint(0, 3))]
    paths = [place.relative_to(folder).as_posix().replace(".", ""), *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    library = "sentence_transformers.models"
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"{library}.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths))
    ]
    write(folder / "modules.json", listed)
    width = write_pooling(folder / paths[1] / "config.json", rng)
    for kind, path in zip(kinds[2:], paths[2:]):
        (folder / path).mkdir()
        if kind == "Dense":
            width = write_dense(folder / path, width, rng)
        elif rng.random() < 0.3:
            write(folder / path / "config.json", {"module_input_name": "sentence_embedding"})
    write_settings(folder, place, rng)


def write_pooling(path: Path, rng: random.Random) -> int:
    content: dict[str, Any] = {rng.choice(["embedding_dimension", "word_embedding_dimension"]): 24}
    if rng.random() < 0.5:
        content |= {name: rng.random() < 0.3 for name in rng.sample(SWITCHES, rng.randint(0, 6))}
        number = max(sum(content.get(name, False) for name in SWITCHES), 1)
    else:
        modes = rng.sample(MODES, rng.randint(1, 3))
        content["pooling_mode"] = modes if len(modes) > 1 else rng.choice([modes, modes[0]])
        number = len(modes)
    if rng.random() < 0.5:
        content["include_prompt"] = rng.random() < 0.5
    write(path, content)
    return 24 * number


def write_dense(folder: Path, width: int, rng: random.Random) -> int:
    new, bias = rng.choice([width, 5, 9]), rng.random() < 0.5
    function = rng.choice(["activation.Tanh", "activation.ReLU", "activation.GELU", "activation.SiLU", "linear.Identity"])
    content = {"in_features": width, "out_features": new, "bias": bias, "activation_function": f"torch.nn.modules.{function}"}
    content |= rng.choice(
        [{}, {"module_input_name": "sentence_embedding", "module_output_name": None}, {"use_residual": False}]
    )
    if bias and rng.random() < 0.3:
        del content["bias"]
    if rng.random() < 0.2:
        del content["activation_function"]
    write(folder / "config.json", content)
    tensors = {"linear.weight": torch.randn(new, width), **({"linear.bias": torch.randn(new)} if bias else {})}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return new


def write_settings(folder: Path, place: Path, rng: random.Random) -> None:
    """Write the settings of texts and of the model, in files that may be missing."""
    choices: dict[str, Any] = {
        "max_seq_length": rng.choice([None, 5, 12, 24]),
        "do_lower_case": rng.random() < 0.5,
        "unpad_inputs": None,
        "transformer_task": "feature-extraction",
        "query_length": None,
    }
    if rng.random() < 0.8:
        name = rng.choice(
            ["sentence_bert_config.json"] * 3 + ["sentence_roberta_config.json", "sentence_xlm-roberta_config.json"]
        )
        write(place / name, {name: choices[name] for name in rng.sample(list(choices), rng.randint(0, 5))})
    shared: dict[str, Any] = {
        "__version__": {"sentence_transformers": "3.0.0"},
        "prompts": rng.choice(
            [{}, {"query": "query: ", "passage": "the "}, {"query": None, "document": "", "search": "Search for"}]
        ),
        "truncate_dim": rng.choice([None, 3, 7, 100]),
        "similarity_fn_name": rng.choice([None, "cosine", "dot", "euclidean", "manhattan"]),
        "model_type": "SentenceTransformer",
        "requirements": None,
    }
    shared = {name: shared[name] for name in rng.sample(list(shared), rng.randint(0, 6))}
    if rng.random() < 0.3:
        shared["default_prompt_name"] = rng.choice(["query", "document", *(shared.get("prompts") or [])])
    write(folder / "config_sentence_transformers.json", shared)


def vectors_of(model: Any, texts: list[str], rng: random.Random) -> list[np.ndarray]:
    """What either library makes of texts, with prompts and cuts at random."""
    prompts = sorted({*model.prompts, "query", "document"})
    calls: list[dict[str, Any]] = [
        {},
        {"truncate_dim": rng.randint(1, 9)},
        {"prompt": rng.choice(["", "search for ", "a [SEP]"])},
    ]
    calls.append({"prompt_name": rng.choice(prompts)})
    own = {} if isinstance(model, SentenceEncoder) else {"batch_size": 1, "show_progress_bar": False}
    found = [model.encode(texts, **call, **own) for call in calls]
    found += [model.encode(texts[1], **own), model.encode_query(texts, **own), model.encode_document(texts, **own)]
    found.append(model.encode_query(texts, prompt="a cat", **own))
    return [*found, np.asarray(model.similarity(found[0], found[0][:3])), np.asarray(model.similarity(found[4], found[0]))]


def compared(seed: int, folder: Path) -> str:
    """What becomes of a folder at random."""
    rng = random.Random(seed)
    write_folder(folder, rng)
    refused = ""
    if rng.random() < 0.15:
        file = rng.choice(list(REFUSED))
        refused, value = rng.choice(REFUSED[file])
        path = next(iter([*folder.rglob(file.rpartition("/")[2] if "/" not in file else file)]), folder / file)
        write(path, {**(json.loads(path.read_text()) if path.exists() else {}), refused: value})
    try:
        model = sentence_encoder(folder)
    except UserError as error:
        assert refused and re.search(rf"\b{refused}\b", str(error)), error
        return f"refused: {refused}"
    calls = rng.randrange(10**6)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    texts = TEXTS if model.tokenizer.after else [text or "x" for text in TEXTS]  # no model there reads nothing
    expected, found = (vectors_of(one, texts, random.Random(calls)) for one in (theirs, model))
    assert model.width == theirs.get_embedding_dimension()
    for ours, same in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, same, rtol=1e-4, atol=2e-5 * np.abs(same[np.isfinite(same)]).max(initial=1))
    return "equal"


@pytest.mark.parametrize("seed", range(30))
def test_a_folder_at_random(seed: int, tmp_path: Path) -> None:
    compared(seed, tmp_path)


def main(number: int) -> None:
    """Compare this many more folders, and print the outcomes."""
    logging.disable(logging.WARNING)
    counts = Counter[str]()
    for seed in range(1000, 1000 + number):
        with tempfile.TemporaryDirectory() as folder:
            counts[compared(seed, Path(folder))] += 1
    print(*(f"{count:5} {result}" for result, count in counts.most_common()), sep="\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
