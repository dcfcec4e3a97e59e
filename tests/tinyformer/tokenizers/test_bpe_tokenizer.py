"""Byte-pair encoding: how merges are learned and applied, and how a tokenizer is saved."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tinyformer.common.errors import UserError
from tinyformer.tokenizers import BPETokenizer, Tokenizer, WordPieceTokenizer, bpe
from tinyformer.tokenizers.bpe import BYTES
from tinyformer.tokenizers.merging import Pair, apply_merges, learn_merges

# Every character that UTF-8 can hold: surrogates are halves of one, and no text.
real_text = st.text(st.characters(exclude_categories=["Cs"]))

# The example of Sennrich et al.: low 5 times, lower 2, newest 6, widest 3.
TEXTBOOK = "low low low low low lower lower" + 6 * " newest" + 3 * " widest"


def pieces(tokenizer: BPETokenizer, text: str) -> list[bytes]:
    return [tokenizer.tokens[i] for i in tokenizer.encode(text)]


# ------------------------------------------------------------------------------------------------------ learning merges


def test_the_textbook_example() -> None:
    # By hand. e s and s t occur 9 times each; bytes are numbered in GPT-2's order, where e comes before s. Then es t: 9.
    # Then l o and o w occur 7 times (w e only twice, as est took the other e's): l is before o. Then lo w: 7. Then 6 each:
    # space n, n e, e w, w est, and space low; e is the first of these. Then, of space n, n ew, ew est and space low, n ew;
    # and of space new, new est and space low, the last: the space is a byte, new is none, and low is older than new.
    tokenizer = BPETokenizer.train(TEXTBOOK, 256 + 7)
    assert [tokenizer.tokens[i] for i in range(256, 263)] == [b"es", b"est", b"lo", b"low", b"ew", b"new", b" low"]
    named = [(tokenizer.tokens[a], tokenizer.tokens[b]) for a, b in tokenizer.merges]
    assert named[:4] == [(b"e", b"s"), (b"es", b"t"), (b"l", b"o"), (b"lo", b"w")]
    assert pieces(tokenizer, "low lowest slow") == [b"low", b" low", b"est", b" ", b"s", b"low"]
    # Merges never cross from one word to the next.
    assert pieces(tokenizer, "new est") == [b"new", b" ", b"est"]


def test_the_earliest_merge_comes_first() -> None:
    tokenizer = BPETokenizer([bytes([b]) for b in range(256)] + [b"bc", b"ab", b"abc"], [(98, 99), (97, 98), (97, 256)])
    assert pieces(tokenizer, "abc") == [b"abc"]  # bc, then a + bc, though ab is further left
    assert pieces(tokenizer, "abab") == [b"ab", b"ab"]
    # Where a merge is there twice, the later counts, as in GPT-2's own code: now ab is merged first, and ab + c is no merge.
    again = BPETokenizer(tokenizer.tokens, [*tokenizer.merges, (98, 99)])
    assert pieces(again, "abc") == [b"ab", b"c"]


def test_learning_continues_until_nothing_occurs_twice() -> None:
    tokenizer = BPETokenizer.train("abab", 1000)
    assert tokenizer.tokens[256:] == [b"ab"]  # abab itself occurs once


def replace_pair(ids: list[int], pair: Pair, new: int) -> list[int]:
    """The ids, with each occurrence of the neighbours ``pair`` replaced by ``new``, from left to right."""
    out: list[int] = []
    for i in ids:
        if out and (out[-1], i) == pair:
            out[-1] = new  # which is in no pair that is replaced here
        else:
            out.append(i)
    return out


def naive_merges(words: list[list[int]], counts: list[int], limit: int) -> list[Pair]:
    """The definition: recount all pairs for each merge."""
    words = [list(word) for word in words]
    learned: list[Pair] = []
    while len(learned) < limit:
        pairs: Counter[Pair] = Counter()
        for word, count in zip(words, counts):
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            break
        learned.append(best)
        words = [replace_pair(word, best, 10 + len(learned)) for word in words]
    return learned


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 4)), max_size=6), st.integers(0, 20))
def test_incremental_counts_equal_recounted_ones(counted: list[tuple[list[int], int]], limit: int) -> None:
    words, counts = [word for word, _ in counted], [count for _, count in counted]
    learned: list[Pair] = []

    def merge(pair: Pair) -> int | None:
        if len(learned) == limit:
            return None
        learned.append(pair)
        return 10 + len(learned)

    learn_merges(words, counts, merge)
    assert learned == naive_merges(words, counts, limit)


def without_spaces(length: int) -> str:
    """Letters in which many pairs repeat, as one word."""
    rng = np.random.default_rng(0)
    syllables = np.array(["ka", "mi", "lo", "ter", "en", "ing", "ru", "qui"])
    return "".join(rng.choice(syllables, length // 2).tolist())[:length]


def test_a_text_without_spaces_gives_the_same_tokens() -> None:
    text = without_spaces(600)
    tokenizer = BPETokenizer.train(text, 256 + 40)
    place = {b: i for i, b in enumerate(BYTES)}
    tokens = [bytes([b]) for b in BYTES]
    word = [place[b] for b in text.encode()]
    for _ in range(40):
        pairs = Counter(itertools.pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        word = replace_pair(word, best, len(tokens))
        tokens.append(tokens[best[0]] + tokens[best[1]])
    assert tokenizer.tokens == tokens
    assert tokenizer.encode(text).tolist() == word


@pytest.mark.parametrize("train", [BPETokenizer.train, WordPieceTokenizer.train], ids=["bpe", "wordpiece"])
def test_the_time_grows_with_a_text_without_spaces_and_not_with_its_square(train: Callable[..., Tokenizer]) -> None:
    seconds = []
    for length in (10_000, 80_000):
        text = without_spaces(length)
        start = time.process_time()
        tokenizer = train(text, 700)
        if isinstance(tokenizer, WordPieceTokenizer):
            tokenizer.longest_word = length
        assert len(tokenizer.encode(text)) > length // 50
        seconds.append(time.process_time() - start)
    assert seconds[1] < 24 * seconds[0]  # of 8 times the text; the square of it would be 64 times


def naive_apply(ids: list[int], merges: dict[Pair, tuple[int, int]]) -> list[int]:
    """The definition: of all pairs, the lowest rank, leftmost; and look at all pairs again."""
    ids = list(ids)
    while found := [(*merges[pair], place) for place, pair in enumerate(itertools.pairwise(ids)) if pair in merges]:
        _, new, place = min(found)
        ids[place : place + 2] = [new]
    return ids


def test_applying_merges_with_a_heap_is_the_same() -> None:
    # Merges at random, of few ids, so that many apply and get in each other's way.
    rng = np.random.default_rng(0)
    merged = 0
    for _ in range(500):
        ids = rng.integers(0, 3, rng.integers(0, 30)).tolist()
        merges: dict[Pair, tuple[int, int]] = {}
        for new in range(3, 9):
            left, right = rng.integers(0, new, 2).tolist()
            merges.setdefault((left, right), (len(merges), new))
        expected = naive_apply(ids, merges)
        assert apply_merges(ids, merges) == expected
        merged += len(ids) - len(expected)
    assert merged > 1000


@given(st.lists(st.text("abc", max_size=15), max_size=15), st.text("abc", max_size=30))
def test_encoding_does_the_merges_of_training_in_their_order(words: list[str], text: str) -> None:
    tokenizer = BPETokenizer.train([*words, text], 400)
    ids = [tokenizer.tokens.index(c.encode()) for c in text]
    for rank, pair in enumerate(tokenizer.merges):
        ids = replace_pair(ids, pair, 256 + rank)
    assert tokenizer.encode(text).tolist() == ids


@given(st.lists(st.text("ab", max_size=12), max_size=20))
def test_no_token_is_made_in_two_ways(words: list[str]) -> None:
    tokenizer = BPETokenizer.train(" ".join(words), 400)
    assert len(set(tokenizer.tokens)) == len(tokenizer.tokens) == 256 + len(tokenizer.merges)


def test_the_order_of_the_lines_does_not_matter() -> None:
    lines = [f"{word} " for word in TEXTBOOK.split()]
    one, other = BPETokenizer.train(lines, 270), BPETokenizer.train(lines[::-1], 270)
    assert one.merges == other.merges
    assert one.tokens == other.tokens


def test_the_hashes_of_strings_do_not_matter() -> None:
    code = f"from tinyformer.tokenizers import BPETokenizer; print(BPETokenizer.train({TEXTBOOK!r}, 270).merges)"
    printed = set()
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        printed.add(run.stdout)
    assert printed == {f"{BPETokenizer.train(TEXTBOOK, 270).merges}\n"}


# -------------------------------------------------------------------------------------------------- sizes and round trips


def test_a_vocabulary_of_bytes_alone() -> None:
    tokenizer = BPETokenizer.train(TEXTBOOK, 256)
    assert tokenizer.vocab_size == 256
    assert pieces(tokenizer, "né") == [b"n", b"\xc3", b"\xa9"]
    assert BPETokenizer.train("", 1000).vocab_size == 256


@pytest.mark.parametrize(("size", "special"), [(255, []), (0, []), (-1, []), (257, ["<a>", "<b>"])])
def test_a_vocabulary_too_small(size: int, special: list[str]) -> None:
    with pytest.raises(UserError, match=f"vocab_size must be at least {256 + len(special)} .*got {size}"):
        BPETokenizer.train(TEXTBOOK, size, special)


@pytest.mark.parametrize("size", [256, 257, 260, 264])
def test_a_vocabulary_has_the_size_asked_for(size: int) -> None:
    special = ["<a>"] if size > 256 else []
    assert BPETokenizer.train(TEXTBOOK, size, special).vocab_size == size


@given(real_text)
def test_round_trip_of_any_text(text: str) -> None:
    for tokenizer in (TRAINED, BYTES_ALONE):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int64
        assert tokenizer.decode(ids) == text
    assert b"".join(pieces(TRAINED, text)) == text.encode()


TRAINED = BPETokenizer.train(TEXTBOOK + " naïve café 日本語 😀 \t\n  \n   end  naïve café 日本語 😀 \t\n  \n   end  ", 300)
BYTES_ALONE = BPETokenizer.train("", 256)


@given(real_text)
def test_any_pattern_cuts_without_loss(text: str) -> None:
    for pattern in (r"\p{N}", "[a-f]+(?=g)", "x*", ""):
        tokenizer = BPETokenizer(BYTES_ALONE.tokens, [], pattern=pattern)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_pattern_cuts_a_text_into_words(tmp_path: Path) -> None:
    digits = BPETokenizer.train("12 12 12 ab ab", 300, pattern=r"\p{N}|[^\p{N}]+")
    assert digits.tokens[256:] == [b"ab", b" ab"]
    uncut = BPETokenizer.train("12 12 12 ab ab", 300, pattern="")
    assert b"12 " in uncut.tokens
    digits.save(tmp_path / "t.json")
    loaded = BPETokenizer.load(tmp_path / "t.json")
    assert loaded.pattern == digits.pattern
    assert loaded.encode("a 12 ab").tolist() == digits.encode("a 12 ab").tolist()


def test_a_pattern_that_may_never_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "_LEAST_SECONDS", 0.1)
    tokenizer = BPETokenizer(BYTES_ALONE.tokens, [], pattern="(?:a|aa)+b")
    with pytest.raises(UserError, match=r"the regular expression '\(\?:a\|aa\)\+b' takes too long"):
        tokenizer.encode("a" * 100)


def test_long_words() -> None:
    text = "ab" * 50_000
    ids = BPETokenizer.train("abab ab ab", 258).encode(text)
    assert len(ids) <= 50_000
    assert TRAINED.decode(TRAINED.encode(text)) == text


def test_the_bytes_of_one_id() -> None:
    assert [BYTES_ALONE.decode_bytes(i) for i in BYTES_ALONE.encode("né")] == [b"n", b"\xc3", b"\xa9"]
    for i in (-1, 256):
        with pytest.raises(UserError, match=f"id {i} is out of range: the ids are 0 to 255"):
            BYTES_ALONE.decode_bytes(i)


def test_half_a_character() -> None:
    ids = BYTES_ALONE.encode("é")
    assert BYTES_ALONE.decode(ids[:1]) == "\ufffd"


# ------------------------------------------------------------------------------------------------------------- files


def test_save_and_load(tmp_path: Path) -> None:
    # The name of a special token may look like an ordinary one as the file writes it (Ġ stands for the space).
    tokenizer = BPETokenizer.train(TEXTBOOK, 270, ["<end>", "Ġlow", "日本"])
    tokenizer.save(tmp_path / "t.json")
    loaded = BPETokenizer.load(tmp_path / "t.json")
    assert loaded.tokens == tokenizer.tokens
    assert loaded.merges == tokenizer.merges
    assert loaded.special == tokenizer.special == {"<end>": 267, "Ġlow": 268, "日本": 269}
    text = "the lowest<end> Ġlow 日本"
    assert loaded.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert loaded.encode(text, allow_special=True).tolist() == tokenizer.encode(text, allow_special=True).tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def saved(tmp_path: Path) -> dict[str, object]:
    BPETokenizer.train(TEXTBOOK, 260, ["<end>"]).save(tmp_path / "t.json")
    content: dict[str, object] = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    return content


def test_the_file_that_the_next_test_damages_is_good(tmp_path: Path) -> None:
    content = saved(tmp_path)
    assert content["merges"] == ["e s", "es t", "l o"]
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert BPETokenizer.load(tmp_path / "t.json").vocab_size == 260


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "char"}, "not a byte-pair tokenizer's file"),
        ({"tokens": None}, "tokens must be a list, got None"),
        ({"tokens": [1]}, "tokens[0] must be text, got 1"),
        ({"tokens": ["ab", "<e>"], "merges": [], "special": {"<e>": 1}}, "needs a token for every byte: 256 bytes missing"),
        ({"pattern": "(a"}, "invalid regular expression '(a'"),
        ({"merges": "e s"}, "merges must be a list, got 'e s'"),
        ({"merges": ["e s t"]}, "got 'e s t'"),
        ({"merges": ["e s xyz"]}, "got 'e s xyz'"),
        ({"merges": ["e s "]}, "got 'e s '"),
        ({"merges": ["e"]}, "got 'e'"),
        ({"merges": ["e Ġlow"]}, "got 'e Ġlow'"),
        ({"merges": ["e <end>"]}, "got 'e <end>'"),
        ({"merges": ["e t"]}, "makes no token"),
        ({"special": []}, "special must be an object, got []"),
        ({"size": 260}, "size is 260, a field that this version"),
        ({"special": {"<end>": 258}}, "'<end>' is not the token of its id"),
        ({"special": {"<end>": -1}}, "'<end>' is not the token of its id"),
        ({"special": {"<end>": 260}}, "'<end>' is not the token of its id"),
        ({"special": {"<end>": "259"}}, "is damaged: special['<end>'] must be an integer, got '259'"),
    ],
)
def test_a_foreign_or_damaged_file(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**saved(tmp_path), **changes}))
    with pytest.raises(UserError) as caught:
        BPETokenizer.load(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_tokens_that_are_there_twice_or_stand_for_no_bytes(tmp_path: Path) -> None:
    content = saved(tmp_path)
    tokens = content["tokens"]
    assert isinstance(tokens, list)
    for changed, message in [
        ([*tokens, "es"], "occurs twice"),
        ([*tokens, "日"], "'日' has characters that do not stand for bytes"),
    ]:
        (tmp_path / "t.json").write_text(json.dumps({**content, "tokens": changed}))
        with pytest.raises(UserError, match=message):
            BPETokenizer.load(tmp_path / "t.json")


def test_merges_of_special_tokens_or_of_no_tokens() -> None:
    tokens = [bytes([b]) for b in range(256)] + [b"<end>"]
    for pair in [(0, 256), (256, 0), (0, 257), (-1, 0)]:
        with pytest.raises(UserError, match="special or out of range"):
            BPETokenizer(tokens, [pair], {"<end>": 256})
