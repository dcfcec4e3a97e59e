"""The tokenizer of a folder: which file is used, and the error if there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tinyformer
from tinyformer.common.errors import UserError
from tinyformer.pretrained.tokenizers import pretrained_tokenizer, save_pretrained_tokenizer
from tinyformer.tokenizers import BPETokenizer, CharTokenizer, PipelineTokenizer, WordTokenizer
from tinyformer.tokenizers.bpe import BYTES, shown

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def gpt2_files(folder: Path) -> Path:
    letters = [shown(bytes([b])) for b in BYTES]
    vocabulary = {token: i for i, token in enumerate([*letters, "hi", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\nh i\n")
    return folder


def bert_file(folder: Path) -> Path:
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, "Low", "low", ".", "n't"]) + "\n")
    return folder


def settings(folder: Path, **values: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_gpt2(tmp_path: Path) -> None:
    tokenizer = pretrained_tokenizer(gpt2_files(tmp_path))
    assert isinstance(tokenizer, PipelineTokenizer)
    assert tokenizer.special == {"<|endoftext|>": 257}
    assert tokenizer.encode("hi").tolist() == [256]
    settings(tmp_path, tokenizer_class="GPT2TokenizerFast", add_prefix_space=True)
    assert len(pretrained_tokenizer(str(tmp_path)).encode("hi")) == 2


def test_bert(tmp_path: Path) -> None:
    tokenizer = pretrained_tokenizer(bert_file(tmp_path))
    assert isinstance(tokenizer, PipelineTokenizer)
    assert (tokenizer.before, tokenizer.after) == ((2,), (3,))
    assert tokenizer.encode("Low.").tolist() == [6, 7]
    assert tokenizer.decode([6, 7, 6, 8, 7, 1]) == "low. lown't. [UNK]"
    settings(tmp_path, tokenizer_class="BertTokenizer", do_lower_case=False, strip_accents=None, tokenize_chinese_chars=True)
    assert pretrained_tokenizer(tmp_path).encode("Low.").tolist() == [5, 7]


def test_the_class_that_the_model_implies(tmp_path: Path) -> None:
    digits = [pretrained_tokenizer(gpt2_files(tmp_path)).encode("hi<s>").tolist()]
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    tokenizer = pretrained_tokenizer(tmp_path)
    assert tokenizer.special == {"<s>": 258, "</s>": 259, "<unk>": 260, "<pad>": 261, "<mask>": 262}
    assert (tokenizer.before, tokenizer.after) == ((258,), (259,))
    assert tokenizer.encode("hi<s>", allow_special=True).tolist() == [256, 258]
    assert tokenizer.encode("hi<s>").tolist() == digits[0]
    (tmp_path / "config.json").write_text('{"model_type": "xlm"}')
    with pytest.raises(UserError, match=r"has model_type 'xlm' but no tokenizer\.json, .*; write tokenizer\.json with"):
        pretrained_tokenizer(tmp_path)


def test_tokens_that_other_files_name(tmp_path: Path) -> None:
    (gpt2_files(tmp_path) / "added_tokens.json").write_text('{"<tool>": 258}')
    (tmp_path / "special_tokens_map.json").write_text('{"additional_special_tokens": ["<|im_start|>"], "pad_token": "<tool>"}')
    tokenizer = pretrained_tokenizer(tmp_path)
    assert tokenizer.special == {"<|endoftext|>": 257, "<tool>": 258, "<|im_start|>": 259}
    assert tokenizer.encode("hi<|im_start|>", allow_special=True).tolist() == [256, 259]
    listed = {"258": {"content": "<tool>", "special": False}, "259": {"content": "<|im_start|>", "special": True}}
    settings(tmp_path, added_tokens_decoder=listed)
    assert pretrained_tokenizer(tmp_path).special == {"<|endoftext|>": 257, "<|im_start|>": 259}
    settings(tmp_path, added_tokens_decoder={"300": listed["258"]})
    with pytest.raises(UserError, match="'<tool>' has id 300, but transformers gives it 258"):
        pretrained_tokenizer(tmp_path)


def test_tokenizer_json_counts_before_the_files_that_it_was_made_from(tmp_path: Path) -> None:
    save_pretrained_tokenizer(CharTokenizer("abc"), gpt2_files(bert_file(tmp_path)))
    assert isinstance(pretrained_tokenizer(tmp_path), CharTokenizer)


def test_a_folder_without_a_tokenizer_names_the_files_looked_for(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match="has no tokenizer: looked for") as caught:
            pretrained_tokenizer(folder)
        for name in (str(folder), "tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "source.spm", "target.spm"):
            assert name in str(caught.value)


def test_a_file_of_sentencepiece_alone(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(UserError, match=r"has tokenizer\.model \(SentencePiece\), but no tokenizer\.json; write"):
        pretrained_tokenizer(tmp_path)


def test_a_missing_vocabulary(tmp_path: Path) -> None:
    (gpt2_files(tmp_path) / "vocab.json").unlink()
    with pytest.raises(UserError, match=r"has no tokenizer\.json, so a GPT2Tokenizer needs vocab\.json"):
        pretrained_tokenizer(tmp_path)


@pytest.mark.parametrize("make", [gpt2_files, bert_file])
def test_files_whose_rules_are_not_known(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    settings(make(tmp_path), tokenizer_class="CodeGenTokenizer")
    with pytest.raises(UserError, match=r"has a CodeGenTokenizer but no tokenizer\.json, .*; write tokenizer\.json"):
        pretrained_tokenizer(tmp_path)
    settings(tmp_path, tokenizer_class="BertTokenizer" if make is gpt2_files else "Qwen2Tokenizer")
    with pytest.raises(UserError, match=r"so a \w+ needs vocab\.\w+"):
        pretrained_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_lower_case": "yes"}, "do_lower_case must be true or false, got 'yes'"),
        ({"never_split": ["x"]}, "never_split ['x'] is not supported"),
        ({"split_special_tokens": True}, "split_special_tokens True is not supported"),
        ({"cls_token": None}, "cls_token must not be null"),
    ],
)
def test_settings_of_bert_that_are_not_supported(tmp_path: Path, values: dict[str, object], message: str) -> None:
    settings(bert_file(tmp_path), **values)
    with pytest.raises(UserError, match="tokenizer_config") as caught:
        pretrained_tokenizer(tmp_path)
    assert message in str(caught.value)


def test_a_class_that_tokenizer_json_contradicts(tmp_path: Path) -> None:
    save_pretrained_tokenizer(BPETokenizer.train("low lower", 262), tmp_path)
    settings(tmp_path, tokenizer_class="BertTokenizer")
    with pytest.raises(UserError, match=r"tokenizer_class is BertTokenizer, but tokenizer\.json has the model 'BPE': set"):
        pretrained_tokenizer(tmp_path)
    settings(tmp_path, tokenizer_class="CodeGenTokenizer", add_prefix_space=True)
    with pytest.raises(UserError, match=r"add_prefix_space True contradicts tokenizer\.json"):
        pretrained_tokenizer(tmp_path)


def test_damaged_settings(tmp_path: Path) -> None:
    (bert_file(tmp_path) / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json is damaged"):
        pretrained_tokenizer(tmp_path)


def test_the_settings_that_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"  # folders are made
    tokenizer = BPETokenizer.train("low lower", 262, ["<|endoftext|>", "[PAD]", "<go>", "[EOS]"])
    tinyformer.save_pretrained_tokenizer(tokenizer, folder)
    assert json.loads((folder / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "[PAD]",
        "additional_special_tokens": ["<go>", "[EOS]"],
    }
    assert tinyformer.pretrained_tokenizer(folder).special == tokenizer.special
    with pytest.raises(UserError, match="cannot write a 'word' tokenizer"):
        save_pretrained_tokenizer(WordTokenizer.train("a b"), tmp_path / "c")
    assert not (tmp_path / "c").exists()
