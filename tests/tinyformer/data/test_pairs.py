"""Parallel corpora: reading them, splitting without leaks, padded batches, and where an epoch stands."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common import memory
from tinyformer.common.errors import UserError
from tinyformer.data.batches import padded
from tinyformer.data.pair_files import read_pairs, read_tsv
from tinyformer.data.pairs import (
    EncodedPair,
    PairBatch,
    PairBatches,
    Specials,
    encode_pairs,
    read_lines,
    read_two_files,
    split_pairs,
    without_empty,
)
from tinyformer.training.losses import translation_loss

PAD, START, END = 0, 1, 2

# ---------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("one\ntwo", ["one", "two"]),
        ("one\ntwo\n", ["one", "two"]),
        ("one\n\n日本語 😀\n\n", ["one", "", "日本語 😀", ""]),
        ("\ufeffone\n", ["one"]),
        ("one\rtwo\r", ["one", "two"]),  # as Macs once wrote lines
        ("one\rtwo\nthree\n", ["one\rtwo", "three"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("a\u2028b\x0bc\x85d\n", ["a\u2028b\x0bc\x85d"]),  # only a new line ends a line, or two files would run apart
    ],
)
def test_lines_plain_and_zipped(tmp_path: Path, text: str, lines: list[str]) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert read_lines(tmp_path / "a.txt") == read_lines(str(tmp_path / "a.txt.gz")) == lines


PAIRS = [("Hi.", "Hallo."), ("42", "zweiundvierzig"), ("I see 3 cats.", "Ich sehe 3 Katzen.")]
TATOEBA = {
    "two columns": "{0}\t{1}",
    "the third names the licence": "{0}\t{1}\tCC-BY 2.0 (France) Attribution: tatoeba.org #12 (CK) & #34 (Pfirsichbaeumchen)",
    "a number before each": "12{2}\t{0}\t34\t{1}",
    "a number before each, and the licence": "12{2}\t{0}\t34\t{1}\tCC BY 2.0 FR",
    "one number": "{2}\t{0}\t{1}",
    "numbers at the end": "{0}\t{1}\t{2}\t0.5",
    "a number between": "{0}\t7\t{1}",
    "a score": "0.9{2}\t{0}\t{1}",
    "an id": "s-000{2}\t{0}\t{1}",
    "a link for each": "https://a.org/{2}\t{0}\thttps://b.org/?q={2}\t{1}",
    "a number and a language before each": "12{2}\teng\t{0}\t34\tdeu\t{1}",
    "languages with scripts and countries": "EN\tzh-Hans-CN\t{0}\t{1}",
    "times": "00:00:0{2},500\t0:0{2}:07.25\t{0}\t{1}",
    "dates": "2020-01-0{2}\t2020-01-01 12:30:00\t{0}\t{1}",
}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("layout", TATOEBA)
def test_the_columns_of_sentences(layout: str, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [TATOEBA[layout].format(*pair, number) for number, pair in enumerate(PAIRS)]
    (tmp_path / "a.tsv").write_bytes((end.join(rows) + end).encode())
    assert read_tsv(tmp_path / "a.tsv") == PAIRS
    expected = not layout.startswith(("two", "the", "numbers at"))
    assert ("the sentences are in columns" in capsys.readouterr().out) == expected


RECORDS = {
    "a.jsonl": '{"id": 1, "en": " Hi.", "de": "Hallo."}\n{"de": "Ja.", "en": "Yes."}\n{"en": null}\n',
    "a.json": '[{"translation": {"en": "Hi.", "de": "Hallo."}}, {"translation": {"en": "Yes.", "de": "Ja."}}, {"en": 7}]',
    "a.csv": 'id,"en",de\n1,Hi.,Hallo.\n2,Yes.,Ja.\n3,,\n',
    "b.csv": "target;note;source\nHallo.;one;Hi.\nJa.;two;Yes.\n;;\n",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", RECORDS)
def test_pairs_of_records(name: str, packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{name}{'.gz' * packed}"
    path.write_bytes(gzip.compress(RECORDS[name].encode()) if packed else RECORDS[name].encode())
    assert read_pairs(path) == [("Hi.", "Hallo."), ("Yes.", "Ja."), ("", "")]
    names = "source to target" if name == "b.csv" else "en to de"
    assert capsys.readouterr().out == f"{path}: learns to translate {names}\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"en": "Hi.", "id": 3}', "a.jsonl has en: two fields are needed, one of sentences"),
        ("a.csv", "id,en\n", "a.csv has no fields of text: two fields are needed"),
        ("a.json", "", "a.json, line 1: invalid JSON"),
        ("a.jsonl", "[1]", "a.jsonl, line 1: expected an object"),
        ("a.csv", "en,de\nHi.\n", "a.csv, line 2: expected 2 columns, as on line 1, got 1"),
    ],
)
def test_records_without_pairs(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        read_pairs(tmp_path / name)


def test_names_of_columns_go_with_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tsv").write_text("id\tenglish\tid\tgerman\n1\tHi.\t2\tHallo.\n3\tYes.\t4\tJa.\n")
    assert read_tsv(tmp_path / "a.tsv") == [("Hi.", "Hallo."), ("Yes.", "Ja.")]
    assert "columns 2 and 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["1\tone\n2\ttwo\n", "1\tone\tCC-BY 2.0\n2\ttwo\tCC-BY 2.0\n", "3\t9\tsquares\n5\t25\tsquares\n"]
)
def test_numbers_may_be_what_is_translated(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(text)
    assert [source for source, _ in read_tsv(tmp_path / "a.tsv")] == [line[0] for line in text.splitlines()]


def test_languages_without_pairs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1\teng\tHello\n2\tfra\tBonjour\n3\teng\tBye\n4\tfra\tSalut\n5\teng\tNo\n")
    with pytest.raises(UserError, match=r"a\.tsv: only column 3 holds sentences, the others hold numbers, language codes: "):
        read_tsv(tmp_path / "a.tsv")


@pytest.mark.parametrize("names", ["", "set\tintent\tsource\tenglish\tgerman\n"])
def test_labels_before_the_sentences(names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{('train', 'test')[i % 2]}\talarm_set\tnews.{i}\tHi {i}.\tHallo {i}.\n" for i in range(30)]
    (tmp_path / "a.tsv").write_text(names + "".join(rows))
    assert read_tsv(tmp_path / "a.tsv")[0] == ("Hi 0.", "Hallo 0.") and len(read_tsv(tmp_path / "a.tsv")) == 30
    assert "columns 4 and 5; others hold only labels or ids" in capsys.readouterr().out


def test_labels_may_be_what_is_learned(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"How are you {i}?\tquestion\t{i}\n" for i in range(30)))
    assert read_tsv(tmp_path / "a.tsv")[7] == ("How are you 7?", "question")


def test_mixed_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"Hi.\tHallo.\rYes.\tJa.\r\nNo.\tNein.\nOh\rno.\tOh nein.\n")
    assert read_tsv(tmp_path / "a.tsv") == [("Hi.", "Hallo."), ("Yes.", "Ja."), ("No.", "Nein."), ("Oh\rno.", "Oh nein.")]


def test_short_words_are_no_codes(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("the\tle\tx\na\tun\ty\nof\tde\tz\nto\tau\tw\nin\ten\tv\n")
    assert read_tsv(tmp_path / "a.tsv")[:2] == [("the", "le"), ("a", "un")]


def test_a_line_with_too_few_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"{i}\tHi.\t{i}\tHallo.\n" for i in range(30)) + "\n31\tYes.\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 32: no column 4"):
        read_tsv(tmp_path / "a.tsv")


@pytest.mark.timeout(30)
def test_invalid_files_of_sentences(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gz")
    (tmp_path / "link.txt").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    for name, what in (("a.gz", "a pipe"), ("link.txt", "a device"), ("folder", "a folder")):
        with pytest.raises(UserError, match=f"{name} is {what}, not a regular file: pass a file of sentences"):
            read_lines(tmp_path / name)
    with pytest.raises(UserError, match="broken is a link to nowhere, which does not exist"):
        read_lines(tmp_path / "broken")
    with pytest.raises(UserError, match="the path is empty"):
        read_lines("")
    with pytest.raises(UserError, match=r"'a\\x00b' is not a valid path"):
        read_lines("a\0b")


@pytest.mark.timeout(30)
def test_a_file_that_is_larger_than_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(10 * 10**12)  # a sparse file
    with pytest.raises(UserError, match=r"large needs at least 30 TB of memory, but there are .*: pass a shorter one"):
        read_lines(tmp_path / "large")


@pytest.mark.skipif(sys.platform != "linux", reason="sets Linux's limit of memory")
def test_a_lack_of_memory_that_no_check_foresees(tmp_path: Path) -> None:
    """The sentences of a small file can take much memory. The message names the file."""
    lines = b"ab\n" * 1_500_000
    (tmp_path / "a.gz").write_bytes(gzip.compress(lines, 1))
    (tmp_path / "lines.txt").write_bytes(lines)
    (tmp_path / "large.txt").write_bytes(b"some words\n" * 1_900_000)
    code = (
        "import resource, sys; from tinyformer.data.pairs import read_lines; from tinyformer.data.reading import read_text\n"
        "from tinyformer.common.errors import plain_errors\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (35 << 20),) * 2)\n"
        "with plain_errors(): {'lines': read_lines, 'text': read_text}[sys.argv[1]](sys.argv[2])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for how, name in (("lines", "a.gz"), ("lines", "lines.txt"), ("text", "large.txt")):
        command = [sys.executable, "-c", code, how, str(tmp_path / name)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 2
        assert result.stderr.startswith(f"error: there is not enough memory for the text in {tmp_path / name}: pass ")
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("piece", [bytes(1 << 20), b"\n" * (1 << 20)], ids=["one line", "many lines"])
def test_a_zipped_file_is_unpacked_only_as_far_as_it_fits_in_memory(
    piece: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
        for _ in range(150):
            file.write(piece)
    there = 200_000_000
    monkeypatch.setattr(memory, "host_memory", lambda: there)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"a\.gz needs at least \d+ MB of memory, but there are 200 MB"):
            read_lines(tmp_path / "a.gz")
        assert tracemalloc.get_traced_memory()[1] < there
    finally:
        tracemalloc.stop()


def test_a_list_of_empty_lines_is_larger_than_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n" * 10_000_000)
    monkeypatch.setattr(memory, "host_memory", lambda: 100_000_000)
    with pytest.raises(UserError, match="needs at least 110 MB"):
        read_lines(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", None, "a.txt does not exist"),
        ("a.txt", b"caf\xe9\n", "a.txt is not UTF-8 text (byte 3)"),
        ("a.gz", gzip.compress(b"caf\xe9\n", mtime=0), "a.gz is not UTF-8 text (byte 3)"),
        ("a.gz", gzip.compress(b"some sentences\n" * 100, mtime=0)[:-9], "a.gz is not a complete gzip file"),
        ("a.gz", gzip.compress(b"some sentences\n" * 100, mtime=0)[:-1] + b"!", "a.gz is not a complete gzip file"),
        ("a.gz", gzip.compress(b"some sentences\n", mtime=0)[:10] + b"\xff" * 20, "a.gz is not a complete gzip file"),
        ("a.gz", b"no gzip file\n", "a.gz is not a complete gzip file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_lines(tmp_path / name)
    assert message in str(caught.value)


def test_tabs(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"one\tuno\r\n two \t dos\tfrom a book\n\n \nthree\t\n\tcuatro\n")
    assert read_tsv(tmp_path / "a.tsv") == [("one", "uno"), ("two", "dos"), ("", ""), ("", ""), ("three", ""), ("", "cuatro")]


def test_a_line_without_a_tab_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\tuno\n\ntwo dos\nthree\ttres\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 3: no tab"):
        read_tsv(tmp_path / "a.tsv")


def test_two_files_go_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"one\n\nthree\r\n")
    (tmp_path / "a.es").write_bytes(b"uno\ndos\ntres")
    assert read_two_files(tmp_path / "a.en", tmp_path / "a.es") == [("one", "uno"), ("", "dos"), ("three", "tres")]


def test_two_files_of_unequal_length(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "a.es").write_text("uno\ndos\n")
    with pytest.raises(UserError, match=r"a\.en has 3 lines and .*a\.es has 2"):
        read_two_files(tmp_path / "a.en", tmp_path / "a.es")


def test_empty_sides_are_left_out_and_counted() -> None:
    assert without_empty([("a", "b"), ("", "b"), ("a", ""), ("", ""), ("c", "d")]) == ([("a", "b"), ("c", "d")], 3)


# ---------------------------------------------------------------------------------------------------------- splitting


def many_pairs() -> list[tuple[str, str]]:
    """60 sources, each third with two translations, and some pairs twice."""
    pairs = [(f"source {i}", f"target {i}") for i in range(60)]
    pairs += [(f"source {i}", f"another target {i}") for i in range(0, 60, 3)]
    return pairs + pairs[:25]


@pytest.mark.parametrize("seed", range(5))
def test_no_part_gives_away_what_another_asks(seed: int) -> None:
    parts = split_pairs(many_pairs(), [10, 7], seed)
    sources = [{source for source, _ in part} for part in parts]
    for one, other in itertools.combinations(sources, 2):
        assert not one & other
    # Each pair is in one part, once.
    assert Counter(pair for part in parts for pair in part) == Counter(set(many_pairs()))
    assert 10 <= len(parts[1]) <= 11
    assert 7 <= len(parts[2]) <= 8


def test_a_split_is_shuffled_and_repeats() -> None:
    assert split_pairs(many_pairs(), [10]) == split_pairs(many_pairs(), [10])
    assert split_pairs(many_pairs(), [10], seed=1) != split_pairs(many_pairs(), [10], seed=2)
    (everything,) = split_pairs(many_pairs(), [])
    assert everything != list(dict.fromkeys(many_pairs()))
    assert sorted(everything) == sorted(set(many_pairs()))


def test_too_few_to_split() -> None:
    pairs = [("a", "b"), ("c", "d"), ("e", "f")]
    assert [len(part) for part in split_pairs(pairs, [1, 1])] == [1, 1, 1]
    with pytest.raises(UserError, match="cannot hold out 4 of 3 pairs and train on the others"):
        split_pairs(pairs, [2, 2])
    with pytest.raises(UserError, match="cannot hold out 3 of 3 pairs and train on the others"):
        split_pairs(pairs, [2, 1])


# ---------------------------------------------------------------------------------------------------------- batches


def test_long_pairs_are_left_out() -> None:
    def words(text: str) -> list[int]:
        return [len(word) for word in text.split()]

    pairs = [("a bb ccc", "dd e"), ("a b c d", "e"), ("a", "b c d e f"), ("aaa", "b b b")]
    kept, ids = encode_pairs(pairs, words, lambda text: np.array(words(text)[::-1]), 3)
    assert kept == [pairs[0], pairs[3]]
    assert ids == [([1, 2, 3], [1, 2]), ([3], [1, 1, 1])]


def test_padding() -> None:
    array = padded([[5, 6, 7], [], [8]], 9)
    assert array.dtype == np.int64
    assert array.tolist() == [[5, 6, 7], [9, 9, 9], [8, 9, 9]]


def encoded(count: int, seed: int = 0) -> list[EncodedPair]:
    """Pairs of many lengths; the first id of the source identifies the pair."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, (count, 2))
    return [([100 + n, *rng.integers(3, 10, a).tolist()], rng.integers(3, 10, b).tolist()) for n, (a, b) in enumerate(lengths)]


def make_batches(count: int = 43, batch_size: int = 4, seed: int = 0, held_out: int = 10) -> PairBatches:
    return PairBatches(encoded(count), encoded(held_out, seed=1), Specials(PAD, START, END), batch_size, seed)


def numbers(batch: PairBatch) -> list[int]:
    return [int(i) - 100 for i in batch.source.numpy()[:, 0]]


def bytes_of(batch: PairBatch) -> tuple[bytes, ...]:
    return tuple(t.numpy().tobytes() for t in (batch.source, batch.target_inputs, batch.target_outputs))


def epoch(batches: PairBatches) -> list[PairBatch]:
    return [batches.sample() for _ in range(len(batches))]


def test_what_a_batch_holds() -> None:
    batches = PairBatches([([5, 6], [7, 8, 9])], [([3, 4, 5], [6]), ([7], [8, 9])], Specials(PAD, START, END), 2)
    batch = batches.sample()
    assert batch.source.numpy().tolist() == [[5, 6, END]]
    assert batch.target_inputs.numpy().tolist() == [[START, 7, 8, 9]]
    assert batch.target_outputs.numpy().tolist() == [[7, 8, 9, END]]
    assert batch.num_targets == 4
    (batch,) = batches.validation_batches()
    assert batch.source.numpy().tolist() == [[3, 4, 5, END], [7, END, PAD, PAD]]
    assert batch.target_inputs.numpy().tolist() == [[START, 6, PAD], [START, 8, 9]]
    assert batch.target_outputs.numpy().tolist() == [[6, END, PAD], [8, 9, END]]
    assert batch.num_targets == 5


def test_the_decoder_reads_what_it_should_have_said_before() -> None:
    for batch in epoch(make_batches()):
        inputs, outputs = batch.target_inputs.numpy(), batch.target_outputs.numpy()
        assert inputs.shape == outputs.shape
        assert (inputs[:, 0] == START).all()
        assert (np.where(outputs == END, PAD, outputs)[:, :-1] == inputs[:, 1:]).all()
        assert ((outputs == END).sum(axis=1) == 1).all()
        assert batch.num_targets == (outputs != PAD).sum()


@pytest.mark.parametrize("batch_size", [1, 4, 43, 100])
def test_an_epoch_takes_every_pair_once(batch_size: int) -> None:
    batches = make_batches(batch_size=batch_size)
    assert len(batches) == -(-43 // batch_size)
    for _ in range(3):
        assert sorted(n for batch in epoch(batches) for n in numbers(batch)) == list(range(43))


def test_epochs_differ_in_order_and_in_batches() -> None:
    batches = make_batches(count=1000)
    first, second = ([frozenset(numbers(batch)) for batch in epoch(batches)] for _ in range(2))
    assert first != second
    assert len(set(first) & set(second)) < len(first) / 2
    assert first == [frozenset(numbers(batch)) for batch in epoch(make_batches(count=1000))]
    assert first != [frozenset(numbers(batch)) for batch in epoch(make_batches(count=1000, seed=1))]


def test_a_batch_has_pairs_of_similar_length() -> None:
    targets = [batch.target_inputs.numpy() for batch in epoch(make_batches(count=400))]
    padding = sum((ids == PAD).sum() for ids in targets) / sum(ids.size for ids in targets)
    assert padding < 0.02
    lengths = [ids.shape[1] for ids in targets]
    assert lengths != sorted(lengths)  # but the batches do not come from short to long


def test_validation_covers_all_and_is_the_same_each_time() -> None:
    batches = make_batches()
    first = list(batches.validation_batches())
    assert [len(batch.source) for batch in first] == [4, 4, 2]
    assert sorted(n for batch in first for n in numbers(batch)) == list(range(10))
    batches.sample()
    assert [bytes_of(batch) for batch in batches.validation_batches()] == [bytes_of(batch) for batch in first]


@pytest.mark.parametrize("drawn", [0, 1, 5, 10, 11, 12, 22, 25])  # 11 batches an epoch
def test_the_state_is_where_it_stands(drawn: int) -> None:
    batches = make_batches()
    for _ in range(drawn):
        batches.sample()
    state = json.loads(json.dumps(batches.get_state()))
    expected = [bytes_of(batches.sample()) for _ in range(25)]
    for other in (make_batches(seed=9), batches):  # one that is new, and one that went on
        other.set_state(state)
        assert json.loads(json.dumps(other.get_state())) == state
        assert [bytes_of(other.sample()) for _ in range(25)] == expected


def test_nothing_to_train_on() -> None:
    specials = Specials(PAD, START, END)
    for training, validation in (([], encoded(3)), (encoded(3), [])):
        with pytest.raises(UserError, match=r"got \d pairs for training and \d for validation"):
            PairBatches(training, validation, specials, 4)
    with pytest.raises(UserError, match="batch_size must be at least 1, got 0"):
        PairBatches(encoded(3), encoded(3), specials, 0)


# ---------------------------------------------------------------------------------------------------------- the loss


class Fixed(tt.nn.Module):
    """Gives the same logits whatever it reads."""

    def __init__(self, logits: np.ndarray):
        self.logits = tt.tensor(logits)

    def loss(self, source: Any, inputs: Any, outputs: Any, *settings: Any, **named: Any) -> Any:
        return tt.cross_entropy(self.logits, outputs, *settings, **named)


def test_the_loss_is_smoothed_in_training_alone_and_leaves_out_padding() -> None:
    batch = make_batches().sample()
    outputs = batch.target_outputs.numpy()
    outputs[0, -1] = PAD
    batch = PairBatch(batch.source, batch.target_inputs, tt.tensor(outputs), int((outputs != PAD).sum()))
    logits = np.random.default_rng(0).normal(size=(*outputs.shape, 10))
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(logs, outputs[..., None], -1)[..., 0]
    counted = outputs != PAD
    assert not counted.all()
    plain, smooth = -picked[counted].mean(), -(0.7 * picked + 0.3 * logs.mean(-1))[counted].mean()
    model, loss = Fixed(logits.astype(np.float32)), translation_loss(0.3, PAD)
    assert float(loss(model.train(), batch)) == pytest.approx(smooth, abs=1e-5)
    assert float(loss(model.eval(), batch)) == pytest.approx(plain, abs=1e-5)
    assert abs(smooth - plain) > 1e-2
