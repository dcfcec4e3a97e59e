"""The tokenizers beside Hugging Face's: the same merges from the same text, the same ids for the same strings.

The published vocabularies and Tiny Shakespeare are read from ../shared/data beside the repository; without that folder the
tests that need them are skipped, and those on vocabularies trained here remain.
"""

from __future__ import annotations

import functools
import json
import random
import tempfile
from pathlib import Path

import pytest
import tokenizers as hugging_face
from parity.difficult_strings import BLOCKS, strings

from tinyformer.data.reading import standard_library_text
from tinyformer.tokenizers import BPETokenizer, WordPieceTokenizer
from tinyformer.tokenizers.bpe import shown as _shown

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def data(name: str) -> Path:
    """A file of the data folder, which may be missing only as a whole."""
    if not DATA.is_dir():
        pytest.skip("there is no ../shared/data beside the repository")
    return DATA / name


def test_the_strings_are_of_every_kind() -> None:
    together = "".join(strings())
    for name, ranges in BLOCKS.items():
        for low, high in ranges:
            assert any(low <= ord(c) <= high for c in together), f"{name}: {low:x} to {high:x}"


# ------------------------------------------------------------------------------------------------- byte-pair encoding


def merges_of(trained: hugging_face.ByteLevelBPETokenizer) -> tuple[list[str], list[tuple[str, str]]]:
    """Its tokens, in the order of their ids, and its merges."""
    model = json.loads(trained.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), [(left, right) for left, right in model["merges"]]


def both_trained(text: str, vocab_size: int) -> tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer]:
    theirs = hugging_face.ByteLevelBPETokenizer()
    theirs.train_from_iterator([text], vocab_size=vocab_size, min_frequency=2, show_progress=False)
    return BPETokenizer.train(text, vocab_size), theirs


def assert_trained_the_same(ours: BPETokenizer, theirs: hugging_face.ByteLevelBPETokenizer) -> None:
    shown = [_shown(token) for token in ours.tokens]
    tokens, merges = merges_of(theirs)
    assert shown == tokens
    assert [(shown[left], shown[right]) for left, right in ours.merges] == merges


@pytest.mark.parametrize("text", ["source code", "strings of every kind"])
def test_training_learns_the_same_merges(text: str) -> None:
    ours, theirs = both_trained(standard_library_text(200_000) if text == "source code" else "\n".join(strings(1000)), 3000)
    assert_trained_the_same(ours, theirs)
    assert ours.vocab_size == 3000


def test_training_on_tiny_shakespeare() -> None:
    text = data("tinyshakespeare.txt").read_text(encoding="utf-8")
    ours, theirs = both_trained(text, 10_256)
    assert len(ours.merges) == 10_000
    assert_trained_the_same(ours, theirs)
    ids = ours.encode(text)
    assert ours.decode(ids) == text
    assert ids.tolist() == theirs.encode(text).ids


@functools.cache
def gpt2s() -> BPETokenizer:
    """GPT-2's own tokenizer, from a file as ``save`` writes it."""
    ids = json.loads(data("gpt2-bpe/encoder.json").read_text(encoding="utf-8"))
    merges = data("gpt2-bpe/vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    special = {"<|endoftext|>": ids["<|endoftext|>"]}
    saved = {"kind": "bpe", "special": special, "merges": merges, "tokens": sorted(ids, key=ids.__getitem__)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_text(json.dumps(saved), encoding="utf-8")
        return BPETokenizer.load(path)


@functools.cache
def trained_here() -> tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer]:
    return both_trained(standard_library_text(200_000) + "\n".join(strings(1000, seed=1)), 4000)


@pytest.fixture(params=["trained here", "GPT-2's"])
def byte_pairs(request: pytest.FixtureRequest) -> tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer]:
    if request.param == "trained here":
        return trained_here()
    files = data("gpt2-bpe/encoder.json"), data("gpt2-bpe/vocab.bpe")
    return gpt2s(), hugging_face.ByteLevelBPETokenizer(*map(str, files))


def test_byte_pairs_of_strings_of_every_kind(byte_pairs: tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer]) -> None:
    ours, theirs = byte_pairs
    assert [text for text in strings() if ours.encode(text).tolist() != theirs.encode(text).ids] == []
    assert [text for text in strings() if ours.decode(ours.encode(text)) != text] == []


def test_byte_pairs_of_a_long_text_without_spaces(byte_pairs: tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer]) -> None:
    ours, theirs = byte_pairs
    rng = random.Random(0)
    for alphabet in ("ACGT", "abcdefghijklmnopqrstuvwxyz", "的一是不了人我在有他"):
        text = "".join(rng.choices(alphabet, k=5000))
        assert ours.encode(text).tolist() == theirs.encode(text).ids


def test_decoding_bytes_that_are_no_text(byte_pairs: tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer]) -> None:
    ours, theirs = byte_pairs
    rng = random.Random(0)
    for _ in range(1000):
        ids = [rng.randrange(256) for _ in range(12)]
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("This is some text", [1212, 318, 617, 2420]),
        ("indivisible", [521, 452, 12843]),
        ("hello 👋 world 🌍", [31373, 50169, 233, 995, 12520, 234, 235]),
        ("Hello Deep Learning!", [15496, 10766, 18252, 0]),
    ],
)
def test_known_answers_of_gpt2(text: str, ids: list[int]) -> None:
    tokenizer = gpt2s()
    assert tokenizer.vocab_size == 50_257
    assert tokenizer.encode(text).tolist() == ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(f"{text}<|endoftext|>", allow_special=True).tolist() == [*ids, 50_256]
    assert 50_256 not in tokenizer.encode(f"{text}<|endoftext|>")


def test_gpt2s_tokenizer_survives_saving(tmp_path: Path) -> None:
    tokenizer = gpt2s()
    tokenizer.save(tmp_path / "t.json")
    loaded = BPETokenizer.load(tmp_path / "t.json")
    assert loaded.tokens == tokenizer.tokens
    assert loaded.merges == tokenizer.merges
    assert loaded.special == tokenizer.special


# ---------------------------------------------------------------------------------------------------------- WordPiece


@pytest.fixture(params=["trained here", "BERT's"])
def vocabulary(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with a token a line."""
    if request.param == "BERT's":
        return data("bert-vocab/vocab.txt")
    text = [standard_library_text(50_000), *strings(300, seed=1)]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WordPieceTokenizer.train(text, 6000, lowercase=False).tokens) + "\n", encoding="utf-8")
    return path


def word_pieces(vocabulary: Path, lowercase: bool = True) -> WordPieceTokenizer:
    return WordPieceTokenizer(vocabulary.read_text(encoding="utf-8").split("\n")[:-1], lowercase=lowercase)


@pytest.mark.parametrize("lowercase", [True, False])
def test_pieces_of_strings_of_every_kind(vocabulary: Path, lowercase: bool) -> None:
    ours = word_pieces(vocabulary, lowercase)
    theirs = hugging_face.BertWordPieceTokenizer(str(vocabulary), lowercase=lowercase)
    assert ours.vocab_size == theirs.get_vocab_size()
    texts = [*strings(), "[CLS] a [SEP][MASK]x[PAD]", "un[UNK]able", "[cls] [ SEP ]"]

    def expected(text: str) -> list[int]:
        ids: list[int] = theirs.encode(text, add_special_tokens=False).ids
        return ids

    assert [text for text in texts if ours.encode(text, allow_special=True).tolist() != expected(text)] == []


def test_the_strings_have_pieces_and_unknown_words(vocabulary: Path) -> None:
    # Otherwise agreement would say little.
    ours = word_pieces(vocabulary)
    ids = [i for text in strings() for i in ours.encode(text).tolist()]
    unknown = ids.count(ours.special["[UNK]"]) / len(ids)
    assert 0.02 < unknown < 0.6
    assert len(set(ids)) > 1000


def test_known_answers_of_bert() -> None:
    tokenizer = word_pieces(data("bert-vocab/vocab.txt"))
    assert tokenizer.vocab_size == 30_522
    assert tokenizer.special == {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    ids = tokenizer.encode("[CLS] Hello, World! [SEP]", allow_special=True)
    assert ids.tolist() == [101, 7592, 1010, 2088, 999, 102]
    assert [tokenizer.tokens[i] for i in tokenizer.encode("unaffable Tokenization")] == [
        "una",
        "##ffa",
        "##ble",
        "token",
        "##ization",
    ]
