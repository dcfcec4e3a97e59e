"""How a pretrained model writes: what generation_config.json says, and config.json where that says nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinyformer import GPT, GPTConfig, UserError, Writing, read_writing, save_pretrained
from tinyformer.decoding.sampling import (
    ForbiddenFirst,
    ForbiddenSequences,
    ForcedAfterStart,
    MinimalLength,
    NoRepeatedNgrams,
    Renormalized,
    RepetitionPenalty,
)


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
        Writing(early_stopping="never", ends=(1,), min_length=2),
        Writing(
            ends=(1,),
            forbidden=(2, 1),
            max_new_tokens=4,
            num_beams=1,
            forced_start=3,
            forbidden_first=(4, 5),
            forbidden_sequences=((1, 2), (3, 4, 5)),
            min_new_tokens=1,
            repetition_penalty=1.3,
            no_repeat_ngram_size=2,
            renormalize_logits=True,
            do_sample=False,
            temperature=0.5,
            top_k=0,
            top_p=0.9,
            min_p=0.1,
            typical_p=0.8,
        ),
    ],
)
def test_a_round_trip(tmp_path: Path, writing: Writing) -> None:
    save_pretrained(GPT(GPTConfig(6, block_size=4, num_layers=1, num_heads=1, d_model=4)), tmp_path, writing)
    assert read_writing(tmp_path) == writing


def test_an_end_among_the_bad_words_still_ends_a_text(tmp_path: Path) -> None:
    said = {"eos_token_id": [1, 2], "bad_words_ids": [[1], [5], [2, 1]], "suppress_tokens": [2, 7, 99], "vocab_size": 9}
    expected = Writing(ends=(1, 2), forbidden=(5, 2, 7), forbidden_sequences=((2, 1),))
    assert read_writing(write(tmp_path, said)) == expected  # as in transformers, but no suppressed one does


def test_rules_are_those_of_the_settings_that_say_something() -> None:
    assert Writing(ends=(1,), forbidden=(2,)).rules() == ()
    assert Writing(min_length=3, min_new_tokens=3).rules() == ()  # without an end no text is too short
    writing = Writing(
        ends=(1,), min_new_tokens=3, repetition_penalty=2.0, no_repeat_ngram_size=2, forced_start=4, forbidden_first=(5,),
        forbidden_sequences=((1, 2),), renormalize_logits=True,
    )  # fmt: skip
    assert writing.rules() == (
        RepetitionPenalty(2.0), NoRepeatedNgrams(2), ForbiddenSequences(((1, 2),)), MinimalLength((1,), 0, 3),
        ForcedAfterStart(4), ForbiddenFirst((5,), after_forced=True), Renormalized(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"do_sample": True}, {"temperature": 1.0, "top_k": 50, "top_p": 1.0}),
        ({"do_sample": True, "top_k": 0, "temperature": 0.6}, {"temperature": 0.6, "top_k": 0, "top_p": 1.0}),
        ({"min_p": 0.05, "typical_p": 0.9}, {"min_p": 0.05, "typical_p": 0.9}),
    ],
)
def test_how_tokens_are_picked(tmp_path: Path, said: dict[str, object], expected: dict[str, object]) -> None:
    assert read_writing(write(tmp_path, {}, said)).sampling() == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, 200),
        ({"max_new_tokens": 300}, 300),
        ({"max_new_tokens": 7, "max_length": 20}, 7),
        ({"max_length": 20}, 15),
        ({"max_length": 4096}, 200),
        ({"max_length": 5}, 1),
    ],
)
def test_how_many_tokens_follow_a_prompt_of_five(tmp_path: Path, said: dict[str, object], expected: int) -> None:
    assert read_writing(write(tmp_path, {}, said)).length(5, 200) == expected


@pytest.mark.parametrize(("forced", "found"), [(2, 2), ([1, 2], 1), (3, None), ([2, 3], None)])
def test_a_forced_end_that_ends_no_text_is_named(tmp_path: Path, forced: object, found: int | None) -> None:
    writing = read_writing(write(tmp_path, {}, {"eos_token_id": [1, 2], "forced_eos_token_id": forced}))
    assert (writing.forced_end, writing.unsupported) == (found, () if found else ("forced_eos_token_id",))


NOTHING = {
    "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "diversity_penalty": 0.0,
    "num_beam_groups": 1, "num_beams": 1, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "guidance_scale":
    None, "sequence_bias": None, "remove_invalid_values": False, "exponential_decay_length_penalty": None,
    "renormalize_logits": False, "encoder_repetition_penalty": 1.0, "use_cache": True, "transformers_version": "5.0.0",
    "_from_model_config": True, "bad_words_ids": None, "suppress_tokens": None, "begin_suppress_tokens": None, "min_length":
    0, "penalty_alpha": None,
}  # fmt: skip


def test_settings_that_cannot_be_had_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_writing(write(tmp_path, {}, NOTHING)) == Writing(num_beams=1, typical_p=1.0)
    assert not caplog.records
    said = {"sequence_bias": [[[1], 2.0]], "exponential_decay_length_penalty": [3, 1.1], "eta_cutoff": 0.1, "num_beams": 4}
    names = ("eta_cutoff", "exponential_decay_length_penalty", "num_beams", "sequence_bias")
    assert read_writing(write(tmp_path, {}, said)).unsupported == names
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{tmp_path / 'generation_config.json'}: these settings have no effect, so texts may differ from transformers': "
        + ", ".join(names)
    )
    greedy = read_writing(write(tmp_path, {}, {**said, "do_sample": False}))
    assert "eta_cutoff" not in greedy.unsupported  # which changes nothing then
    translator = read_writing(write(tmp_path, {"model_type": "marian"}, {"do_sample": True, "num_beams": 4}))
    assert (translator.unsupported, translator.num_beams) == (("do_sample",), 4)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"eos_token_id": "end"}, "eos_token_id must be .*, got 'end'"),
        ({"eos_token_id": [1, None]}, r"eos_token_id.* must be .*"),
        ({"bos_token_id": 1.5}, r"bos_token_id must be .*, got 1\.5"),
        ({"bad_words_ids": 3}, "bad_words_ids must be a list, got 3"),
        ({"bad_words_ids": [[]]}, "bad_words_ids has an empty sequence"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty must be a number above 0, got 0\.0"),
        ({"repetition_penalty": "x"}, "repetition_penalty must be a finite number, got 'x'"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be at least 0, got -1"),
        ({"min_new_tokens": 1.5}, r"min_new_tokens must be an integer, got 1\.5"),
        ({"suppress_tokens": "all"}, "suppress_tokens must be .*, got 'all'"),
        ({"do_sample": 1}, "do_sample must be true or false, got 1"),
        ({"temperature": -1}, r"temperature must be 0 \(greedy\) or more, got -1"),
        ({"top_p": 2}, "top_p must be above 0 and at most 1, got 2"),
        ({"typical_p": 0}, r"typical_p must be above 0 and at most 1, got 0\.0"),
        ({"min_p": -0.1}, r"min_p must be between 0 and 1, got -0\.1"),
        ({"max_length": "long"}, "max_length must be an integer, got 'long'"),
        ({"length_penalty": "x"}, "length_penalty must be a finite number, got 'x'"),
        ({"early_stopping": "soon"}, "early_stopping must be true, false or 'never', got 'soon'"),
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
