"""The tokenizers beside Hugging Face's: the same merges from the same text, the same ids for the same strings.

The published vocabularies and Tiny Shakespeare are read from ../shared/data beside the repository; without that folder the
tests that need them are skipped, and those on vocabularies trained here remain.
"""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

import pytest
import tokenizers as hugging_face

from tinyformer.data.reading import standard_library_text
from tinyformer.tokenizers import BPETokenizer, WordPieceTokenizer
from tinyformer.tokenizers.byte_letters import shown as _shown

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def data(name: str) -> Path:
    """A file of the data folder, which may be missing only as a whole."""
    if not DATA.is_dir():
        pytest.skip("there is no ../shared/data beside the repository")
    return DATA / name


# ------------------------------------------------------------------------------------------------------------ strings

# Blocks of characters that Unicode 9 has, and that no later version put into another category: the libraries' tables are of
# different versions.
BLOCKS = {
    "ASCII": [(0x20, 0x7E)],
    "letters": [(0x41, 0x5A), (0x61, 0x7A)],
    "digits": [(0x30, 0x39), (0xB2, 0xB3), (0xBC, 0xBE), (0x660, 0x669), (0x2160, 0x2188), (0x2460, 0x2473)],
    "white space": [
        (0x20, 0x20),
        (0x09, 0x0D),
        (0x85, 0x85),
        (0xA0, 0xA0),
        (0x2000, 0x200A),
        (0x2028, 0x2029),
        (0x3000, 0x3000),
    ],
    "controls": [(0x00, 0x1F), (0x7F, 0x9F)],
    "format": [(0xAD, 0xAD), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2064), (0xFEFF, 0xFEFF)],
    "Latin": [(0xA1, 0x24F), (0x1E00, 0x1EFF), (0xFB00, 0xFB06)],
    "combining marks": [(0x300, 0x36F), (0x20D0, 0x20F0), (0xFE00, 0xFE0F)],
    "Greek": [(0x391, 0x3A1), (0x3A3, 0x3CE), (0x1F00, 0x1F15)],
    "Cyrillic": [(0x400, 0x481)],
    "Hebrew": [(0x5D0, 0x5EA), (0x591, 0x5BD)],
    "Arabic": [(0x621, 0x652), (0x6F0, 0x6F9), (0x60C, 0x60C), (0x61F, 0x61F)],
    "Devanagari": [(0x905, 0x939), (0x93C, 0x94D), (0x964, 0x96F)],
    "Thai": [(0xE01, 0xE3A), (0xE40, 0xE5B)],
    "Hangul": [(0xAC00, 0xD7A3), (0x1100, 0x1112), (0x1161, 0x1175)],
    "kana": [(0x3041, 0x3096), (0x3099, 0x309F), (0x30A1, 0x30FF)],
    "Chinese": [(0x4E00, 0x9FA5), (0x3400, 0x4DB5), (0x20000, 0x2A6D6), (0xF900, 0xFA2D)],
    "punctuation": [(0xA1, 0xBF), (0x2010, 0x2027), (0x2030, 0x205E), (0x3001, 0x3011), (0xFF01, 0xFF5E)],
    "symbols": [(0x20A0, 0x20BE), (0x2190, 0x23FA), (0x2500, 0x26FF)],
    "emoji": [(0x1F300, 0x1F64F), (0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF)],
    "private and odd": [(0xE000, 0xE010), (0xFFFD, 0xFFFD), (0x1D400, 0x1D454), (0xF0000, 0xF0010)],
}
WHOLE = [
    "don't",
    "WE'LL",
    "'s",
    "'re'd",
    "👩‍👩‍👧",
    "👍🏽",
    "🇮🇹🇩🇪",
    "é",
    "e\u0301",
    "İI",
    "ΟΔΟΣ",
    "ﬁ",
    "ẞß",
    "##a",
    "Ġ",
    "#version",
]
WHOLE += ["[UNK", "MASK]", "\r\n", "\n\n", "  \n  ", "\t\t", "3.14", "x_1", "\x00", "antidisestablishmentarianism", 101 * "a"]


@functools.cache
def strings(number: int = 4000, seed: int = 0) -> tuple[str, ...]:
    """Strings of a few runs each: of characters of one block, of spaces, or what is known to be difficult."""
    rng = random.Random(seed)

    def run() -> str:
        kind = rng.random()
        if kind < 0.15:
            return " " * rng.choice([1, 1, 1, 2, 3, 7, 30])
        if kind < 0.3:
            return rng.choice(WHOLE)
        ranges = BLOCKS[rng.choice(list(BLOCKS))]
        return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(1, 8)))

    return tuple("".join(run() for _ in range(rng.randint(1, 12))) for _ in range(number))


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
def trained_here() -> tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer]:
    return both_trained(standard_library_text(200_000) + "\n".join(strings(1000, seed=1)), 4000)


@pytest.fixture(params=["trained here", "GPT-2's"])
def byte_pairs(request: pytest.FixtureRequest) -> tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer]:
    if request.param == "trained here":
        return trained_here()
    files = data("gpt2-bpe/encoder.json"), data("gpt2-bpe/vocab.bpe")
    return BPETokenizer.from_gpt2_files(*files), hugging_face.ByteLevelBPETokenizer(*map(str, files))


def test_byte_pairs_of_strings_of_every_kind(
    byte_pairs: tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer],
) -> None:
    ours, theirs = byte_pairs
    assert [text for text in strings() if ours.encode(text).tolist() != theirs.encode(text).ids] == []
    assert [text for text in strings() if ours.decode(ours.encode(text)) != text] == []


def test_byte_pairs_of_a_long_text_without_spaces(
    byte_pairs: tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer],
) -> None:
    ours, theirs = byte_pairs
    rng = random.Random(0)
    for alphabet in ("ACGT", "abcdefghijklmnopqrstuvwxyz", "的一是不了人我在有他"):
        text = "".join(rng.choices(alphabet, k=5000))
        assert ours.encode(text).tolist() == theirs.encode(text).ids


def test_decoding_bytes_that_are_no_text(
    byte_pairs: tuple[BPETokenizer, hugging_face.ByteLevelBPETokenizer],
) -> None:
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
    tokenizer = BPETokenizer.from_gpt2_files(data("gpt2-bpe/encoder.json"), data("gpt2-bpe/vocab.bpe"))
    assert tokenizer.vocab_size == 50_257
    assert tokenizer.encode(text).tolist() == ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(f"{text}<|endoftext|>", allow_special=True).tolist() == [*ids, 50_256]
    assert 50_256 not in tokenizer.encode(f"{text}<|endoftext|>")


def test_gpt2_files_survive_saving(tmp_path: Path) -> None:
    tokenizer = BPETokenizer.from_gpt2_files(data("gpt2-bpe/encoder.json"), data("gpt2-bpe/vocab.bpe"))
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


@pytest.mark.parametrize("lowercase", [True, False])
def test_pieces_of_strings_of_every_kind(vocabulary: Path, lowercase: bool) -> None:
    ours = WordPieceTokenizer.from_vocab_file(vocabulary, lowercase=lowercase)
    theirs = hugging_face.BertWordPieceTokenizer(str(vocabulary), lowercase=lowercase)
    assert ours.vocab_size == theirs.get_vocab_size()
    texts = [*strings(), "[CLS] a [SEP][MASK]x[PAD]", "un[UNK]able", "[cls] [ SEP ]"]

    def expected(text: str) -> list[int]:
        ids: list[int] = theirs.encode(text, add_special_tokens=False).ids
        return ids

    assert [text for text in texts if ours.encode(text, allow_special=True).tolist() != expected(text)] == []


def test_the_strings_have_pieces_and_unknown_words(vocabulary: Path) -> None:
    # Otherwise agreement would say little.
    ours = WordPieceTokenizer.from_vocab_file(vocabulary)
    ids = [i for text in strings() for i in ours.encode(text).tolist()]
    unknown = ids.count(ours.special["[UNK]"]) / len(ids)
    assert 0.02 < unknown < 0.6
    assert len(set(ids)) > 1000


def test_known_answers_of_bert() -> None:
    tokenizer = WordPieceTokenizer.from_vocab_file(data("bert-vocab/vocab.txt"))
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
