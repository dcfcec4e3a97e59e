"""Tokenizers of many kinds, as their tokenizer.json describes them, beside the package ``tokenizers``: ids, text and what is
written. Some are as published models have them, others are put together at random."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import regex
from parity.difficult_strings import strings

from tinyformer.pretrained.tokenizers import pretrained_tokenizer, save_pretrained_tokenizer
from tinyformer.tokenizers import BPETokenizer, PipelineTokenizer, load_tokenizer
from tinyformer.tokenizers.special import UNKNOWN

hugging_face = pytest.importorskip("tokenizers")
from parity.random_tokenizers import PUBLISHED, Json, at_random  # noqa: E402

Pair = tuple[Any, BPETokenizer | PipelineTokenizer]
PLAIN = [
    "",
    " ",
    "  a",
    "a ",
    " a  b ",
    "<s>",
    " <s> a",
    "<unk>",
    "<0x0A>",
    "<0xE4>",
    "▁",
    "▁▁a",
    "a▁b",
    "\n",
    "é",
    "日本語です",
]


@functools.cache
def texts(names: tuple[str, ...], number: int) -> list[str]:
    """Difficult strings, with the names of added tokens in two of three."""
    rng = random.Random(0)
    woven = []
    for place, text in enumerate(strings(number, seed=2)):
        for _ in range(place % 3):
            cut = rng.randrange(len(text) + 1)
            text = text[:cut] + rng.choice(["", " ", "  ", "a"]) + rng.choice(names) + rng.choice(["", " ", "\n "]) + text[cut:]
        if not regex.search(r"[^\p{L}\p{M}]\u094d", text):  # they do not agree where a character ends there
            woven.append(text)
    return [*woven, *PLAIN]


def texts_for(theirs: Any, number: int) -> list[str]:
    return texts(tuple(token.content for token in theirs.get_added_tokens_decoder().values()), number)


def read(content: Json, folder: Path) -> Pair:
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    ours = pretrained_tokenizer(folder)
    assert isinstance(ours, BPETokenizer | PipelineTokenizer)
    theirs = hugging_face.Tokenizer.from_str(json.dumps({**content, "truncation": None}))  # texts are not cut here
    assert ours.vocab_size == theirs.get_vocab_size()
    return theirs, ours


def tried(call: Any, *arguments: Any, **more: Any) -> Any:
    """What theirs returns, or None where it fails: it has mistakes of its own."""
    try:
        return call(*arguments, **more)
    except BaseException as error:
        if type(error).__name__ not in ("PanicException", "Exception"):
            raise
        return None


def different_ids(theirs: Any, ours: Any, some: list[str]) -> list[str]:
    found = []
    special = set(ours.special.values())
    is_unigram = isinstance(theirs.model, hugging_face.models.Unigram)
    for text in some:
        for is_plain in (False, True):
            theirs.encode_special_tokens = is_plain
            expected = tried(theirs.encode, text, add_special_tokens=False)
            # To them a word may be a special token that it looks like. Here it never is.
            if expected is None or (is_plain and special & {*expected.ids}):
                continue
            # They take the unknown token's name for an unknown character; then both may become bytes together.
            if is_plain and "<unk>" in text and is_unigram:
                continue
            if ours.encode(text, allow_special=not is_plain).tolist() != expected.ids:
                found.append(text)
    theirs.encode_special_tokens = False
    return found


def different_texts(theirs: Any, ours: Any, several: list[list[int]]) -> list[list[int]]:
    found = []
    for ids in several:
        for skip in (False, True):
            if skip and ours.special.get(UNKNOWN) in ids:  # it stands for a word, so that it stays here
                continue
            expected = tried(theirs.decode, ids, skip_special_tokens=skip)
            if expected is not None and ours.decode(ids, skip_special=skip) != expected:
                found.append(ids)
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_published(name: str, tmp_path: Path) -> None:
    theirs, ours = read(PUBLISHED[name](), tmp_path)
    some = texts_for(theirs, 5000)
    assert different_ids(theirs, ours, some) == []
    rng = random.Random(0)
    several = [theirs.encode(text, add_special_tokens=False).ids for text in some]
    several += [rng.choices(range(ours.vocab_size), k=12) for _ in range(2000)]
    assert different_texts(theirs, ours, several) == []
    for text in ("Hello there", ""):
        assert [*ours.before, *ours.encode(text), *ours.after] == theirs.encode(text).ids
    used = {i for ids in several[: len(some)] for i in ids}
    assert len(used) > 700
    # Saved, and written for others.
    ours.save(tmp_path / "saved.json")
    again: Any = load_tokenizer(tmp_path / "saved.json")
    save_pretrained_tokenizer(again, tmp_path / "written")
    written = hugging_face.Tokenizer.from_file(str(tmp_path / "written" / "tokenizer.json"))
    assert different_ids(theirs, again, some[:300]) == different_ids(written, ours, some[:300]) == []
    assert different_texts(theirs, again, several[:300]) == different_texts(written, ours, several[:300]) == []
    assert written.encode("Hello").ids == theirs.encode("Hello").ids


@pytest.mark.parametrize("seed", range(80))
def test_at_random(seed: int, tmp_path: Path) -> None:
    theirs, ours = read(at_random(seed), tmp_path)
    some = texts_for(theirs, 60)
    assert different_ids(theirs, ours, some) == []
    rng = random.Random(seed)
    several = [ours.encode(text, allow_special=True).tolist() for text in some]
    several += [rng.choices(range(ours.vocab_size), k=12) for _ in range(20)]
    assert different_texts(theirs, ours, several) == []
    assert [*ours.before, *ours.encode("Hello there"), *ours.after] == theirs.encode("Hello there").ids
    ours.save(tmp_path / "saved.json")
    again: Any = load_tokenizer(tmp_path / "saved.json")
    save_pretrained_tokenizer(again, tmp_path / "written")
    written = hugging_face.Tokenizer.from_file(str(tmp_path / "written" / "tokenizer.json"))
    assert different_ids(written, again, some[:20]) == different_texts(written, again, several[:20]) == []


def test_transformers_reads_what_is_written(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    _, ours = read(PUBLISHED["Llama 2"](), tmp_path)
    save_pretrained_tokenizer(ours, tmp_path / "written")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "written")
    assert (theirs.bos_token, theirs.eos_token, theirs.unk_token) == ("<s>", "</s>", "<unk>")
    for text in ("Hello there", "", " a\n", "日本語です", "x<s> y"):
        ids = [*ours.before, *ours.encode(text, allow_special=True)]
        assert theirs(text).input_ids == ids
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids, skip_special=True)
