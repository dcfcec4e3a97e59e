"""How a pretrained model writes: what generation_config.json says, and config.json where that says nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinyformer import GPT, GPTConfig, UserError, Writing, read_writing, save_pretrained


def write(folder: Path, config: dict[str, object], generation: dict[str, object] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    assert read_writing(write(tmp_path, {})) == Writing()
    assert read_writing(write(tmp_path, {}, {})) == Writing()


def test_config_json_counts_where_the_other_says_nothing(tmp_path: Path) -> None:
    config = {"bos_token_id": 1, "eos_token_id": 2, "max_length": 20, "bad_words_ids": [[5], [7]], "length_penalty": 2}
    expected = Writing(start=1, ends=(2,), forbidden=(5, 7), max_length=20, length_penalty=2.0)
    assert read_writing(write(tmp_path, config)) == expected
    generation = {"eos_token_id": [3, 4], "max_length": None, "early_stopping": "never", "bad_words_ids": []}
    expected = Writing(start=1, ends=(3, 4), max_length=20, length_penalty=2.0, early_stopping="never")
    assert read_writing(write(tmp_path, config, generation)) == expected


def test_the_start_of_a_decoder_comes_before_that_of_texts(tmp_path: Path) -> None:
    assert read_writing(write(tmp_path, {"bos_token_id": 1, "decoder_start_token_id": 0})).start == 0


def test_ids_that_are_none_count_for_nothing(tmp_path: Path) -> None:
    said = {"bos_token_id": 9, "eos_token_id": [9, 3], "bad_words_ids": [[9], [2]], "forced_eos_token_id": -1}
    assert read_writing(write(tmp_path, {"vocab_size": 9, **said})) == Writing(ends=(3,), forbidden=(2,))


@pytest.mark.parametrize(
    "writing",
    [
        Writing(),
        Writing(start=0, ends=(0,)),
        Writing(3, (1, 2), (4, 5), forced_end=2, max_length=40, length_penalty=0.0, early_stopping=True),
        Writing(early_stopping="never"),
    ],
)
def test_what_is_written_is_read(tmp_path: Path, writing: Writing) -> None:
    save_pretrained(GPT(GPTConfig(6, block_size=4, num_layers=1, num_heads=1, d_model=4)), tmp_path, writing)
    assert read_writing(tmp_path) == writing


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"eos_token_id": "end"}, "eos_token_id must be .*, not 'end'"),
        ({"eos_token_id": [1, None]}, r"eos_token_id.* must be .*"),
        ({"bos_token_id": 1.5}, r"bos_token_id must be .*, not 1\.5"),
        ({"bad_words_ids": 3}, "bad_words_ids must be a list, not 3"),
        ({"bad_words_ids": [[1, 2]]}, "bad_words_ids forbids sequences of tokens; only single tokens can be forbidden here"),
        ({"bad_words_ids": [[]]}, "bad_words_ids forbids sequences of tokens"),
        ({"max_length": "long"}, "max_length must be an integer, not 'long'"),
        ({"length_penalty": "x"}, "length_penalty must be a finite number, not 'x'"),
        ({"early_stopping": "soon"}, "early_stopping must be true, false or 'never', not 'soon'"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_mistakes_name_their_file(tmp_path: Path, file: str, said: dict[str, object], message: str) -> None:
    write(tmp_path, said) if file == "config.json" else write(tmp_path, {"eos_token_id": 5}, said)
    with pytest.raises(UserError, match=rf"{file}: {message}"):
        read_writing(tmp_path)


def test_no_folder_of_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json: pass the folder of a pretrained model"):
        read_writing(tmp_path)
