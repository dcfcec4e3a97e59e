"""`tinyformer train translator` and examples/fill_mask.py with pretrained models: translate --model, fill --model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from running import Program, entries

import tinytensor as tt
from tinyformer import (
    GPT,
    BertConfig,
    BertForClassification,
    BertForMaskedLM,
    GPTConfig,
    Transformer,
    TransformerConfig,
    WordPieceTokenizer,
    Writing,
    fill_masks,
    from_pretrained,
    save_pretrained,
    save_pretrained_tokenizer,
)

COMMAND = "train bert"
TEXT = "the quick brown fox jumps over a lazy dog, and then it sleeps.\n" * 20
SIZES = {"num_layers": 1, "num_heads": 2, "d_model": 16, "d_ff": 16, "max_length": 20}
MARIAN = {
    "source_pad": 29, "d_model": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 16, "max_length": 40,
    "positions": "sinusoidal_halves", "activation": "silu", "output_bias": True, "share_embeddings": True,
}  # fmt: skip


def write_data(folder: Path) -> None:
    tokenizer = WordPieceTokenizer.train(TEXT, 60)
    tt.seed(0)
    config = BertConfig(tokenizer.vocab_size + 40, tokenizer.special["[PAD]"], norm_first=False, positions="learned", **SIZES)
    bert = BertForMaskedLM(config)
    bert.bert.token_embedding.weight.assign(bert.bert.token_embedding.weight * 10)
    save_pretrained(bert, folder / "bert")
    save_pretrained(BertForClassification(config, 2), folder / "classifier")
    for name in ("bert", "classifier"):
        save_pretrained_tokenizer(tokenizer, folder / name)
    save_pretrained(GPT(GPTConfig(30, block_size=8, num_layers=1, num_heads=2, d_model=8)), folder / "gpt")
    save_pretrained(Transformer(TransformerConfig(30, 30, **MARIAN)), folder / "marian", Writing(start=29, ends=(0,)))


def translate(program: Program) -> Program:
    """examples/translate.py in the same folder."""
    return Program("train translator", program.folder, program.environment)


# -------------------------------------------------------------------------------------------------------------- filling


def test_fill(program: Program) -> None:
    model = from_pretrained(program.folder / "bert")
    assert isinstance(model, BertForMaskedLM)
    tokenizer = WordPieceTokenizer.train(TEXT, 60)
    sentences = ["the [MASK] fox [MASK] over.", "It [MASK]"]
    printed = program.good("fill", "--model", "bert", "--best", "3", *sentences)
    expected = []
    for sentence in sentences:
        expected.append(sentence)
        for tokens in fill_masks(model, tokenizer, sentence, 3):
            expected.append("    " + ", ".join(f"{token} {100 * share:.1f} %" for token, share in tokens))
    assert printed.splitlines() == expected
    everything = program.good("fill", "--model", "bert", "--best", str(tokenizer.vocab_size), "[MASK]")
    assert everything.count(" %") == tokenizer.vocab_size  # though the model has more outputs
    assert entries(program.folder) == ["bert", "classifier", "gpt", "marian"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bert", "no mask"], "there is no [MASK] to fill in: 'no mask'"),
        (["bert", "[MASK] " * 19], "the sentence has 19 tokens, more than the 18 that this model reads"),
        (["bert", "--best", "0", "[MASK]"], "--best must be from 1 to 60, got 0"),
        (["classifier", "[MASK]"], "classifier holds a BertForClassification, which fills no masks: take a BertForMaskedLM"),
        (["gpt", "[MASK]"], "gpt holds a GPT, which fills no masks: take a BertForMaskedLM"),
        (["marian", "[MASK]"], "marian holds a Transformer, which fills no masks: take a BertForMaskedLM"),
        (["bare", "[MASK]"], "bare has no tokenizer: looked for tokenizer.json"),
        (["./nothing", "[MASK]"], "folder not found: './nothing'"),
    ],
)
def test_what_cannot_be_filled(program: Program, words: list[str], message: str) -> None:
    shutil.copytree(program.folder / "bert", program.folder / "bare")
    (program.folder / "bare" / "tokenizer.json").unlink()
    assert program.bad("fill", "--model", *words).startswith(message)


# ---------------------------------------------------------------------------------------------------------- translating


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert", "bert holds a BertForMaskedLM, which does not translate: take one of Marian's models\n"),
        ("gpt", "gpt holds a GPT, which does not translate: take one of Marian's models\n"),
        ("marian", "marian has no tokenizer: looked for tokenizer.json"),
    ],
)
def test_models_that_do_not_translate(program: Program, name: str, message: str) -> None:
    assert translate(program).bad("translate", "--model", name, "the fox").startswith(message)


def test_without_sentencepiece(program: Program) -> None:
    for name in ("source.spm", "target.spm"):
        (program.folder / "marian" / name).write_bytes(b"")
    (program.folder / "marian" / "vocab.json").write_text(json.dumps({"<unk>": 0, "</s>": 1, "<pad>": 2}), encoding="utf-8")
    absent = program.without("sentencepiece")
    message = translate(program).bad("translate", "--model", "marian", "the fox", **absent)
    assert 'pip install "tinyformer[sentencepiece]"' in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 2}, "marian has a max_length of 2, with no place for a token between the start and the end\n"),
        ({"eos_token_id": None}, "marian does not say with which token a translation starts, and with which it ends\n"),
        ({"eos_token_id": [0, 1]}, "marian does not say with which token a translation starts, and with which it ends\n"),
        (
            {"early_stopping": "soon"},
            "marian/generation_config.json: early_stopping must be true, false or 'never', got 'soon'\n",
        ),
        ({"length_penalty": "x"}, "marian/generation_config.json: length_penalty must be a finite number, got 'x'\n"),
    ],
)
def test_ways_of_writing_that_cannot_be(program: Program, changes: dict[str, object], message: str) -> None:
    path = program.folder / "marian" / "generation_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**settings, **changes}), encoding="utf-8")
    assert translate(program).bad("translate", "--model", "marian", "the fox") == message
