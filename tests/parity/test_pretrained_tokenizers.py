"""Tokenizers that are read from published kinds of files, beside the libraries that these files are made for: the same ids and
the same text. And files that are written here, beside AutoTokenizer.

The published vocabulary of GPT-2 is read from ../shared/data beside the repository, where that is; all others are trained here,
and cut texts by the published rules.
"""

from __future__ import annotations

import functools
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parity.difficult_strings import strings
from tinyformer.tokenizers.cutting import CuttingRules

from tinyformer.data.reading import standard_library_text
from tinyformer.pretrained.tokenizers import pretrained_tokenizer, save_pretrained_tokenizer
from tinyformer.tokenizers import (
    BPETokenizer,
    CharTokenizer,
    MarianTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    load_tokenizer,
)

hugging_face = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")
AddedToken = hugging_face.AddedToken
decoders, normalizers, pre_tokenizers, processors = (
    getattr(hugging_face, name) for name in ("decoders", "normalizers", "pre_tokenizers", "processors")
)

GPT2_FILES = Path(__file__).parents[2].parent / "shared" / "data" / "gpt2-bpe"

# As published with the models.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN3_5 = LLAMA3.replace(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+").replace("{1,3}", "")


@functools.cache
def training_text() -> str:
    return standard_library_text(150_000) + "\n".join(strings(1000, seed=1))


def trained(pre_tokenizer: Any, special: list[str] | None = None, **options: Any) -> Any:
    """A tokenizer of the ``tokenizers`` package with byte pairs that are learned here."""
    tokenizer = hugging_face.Tokenizer(hugging_face.models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = hugging_face.trainers.BpeTrainer(
        vocab_size=4000,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special or [],
        show_progress=False,
    )
    tokenizer.train_from_iterator([training_text()], trainer)
    return tokenizer


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(hugging_face.Regex(pattern), "isolated")


def then_bytes(*cutters: Any) -> Any:
    return pre_tokenizers.Sequence([*cutters, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2() -> Any:
    if not GPT2_FILES.is_dir():
        tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    else:
        model = hugging_face.models.BPE.from_file(str(GPT2_FILES / "encoder.json"), str(GPT2_FILES / "vocab.bpe"))
        tokenizer = hugging_face.Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def gpt2_with_a_space_before() -> Any:
    tokenizer = gpt2()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.RobertaProcessing(("<|endoftext|>", tokenizer.get_vocab_size() - 1), ("!", 0))
    return tokenizer


def llama3() -> Any:
    tokenizer = trained(then_bytes(split(LLAMA3)), ignore_merges=True)
    # Words that no merges make: ignore_merges finds them all the same.
    content = json.loads(tokenizer.to_str())
    for word in ("Ġindivisible", "Ġdon", "antidis"):
        content["model"]["vocab"].setdefault(word, len(content["model"]["vocab"]))
    tokenizer = hugging_face.Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_{i}|>" for i in range(40))])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", begin)],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def qwen2(pattern: str = QWEN2) -> Any:
    tokenizer = trained(then_bytes(split(pattern)))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<think>", "</think>", AddedToken("<tool>", normalized=False)])
    return tokenizer


def smollm2() -> Any:
    cutters = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return trained(cutters, special=["<|endoftext|>", "<|im_start|>", "<repo_name>"])


def every_rule_of_added_tokens() -> Any:
    tokenizer = qwen2(LLAMA3)
    for number, content in enumerate(
        ["<a>", "<b>", "c", "of", "e\u0301", "Ω", " x ", "  ", "\n", "def", "日本", "1", "ẞ", "<a><b>"]
    ):
        for bits in (number % 16, (5 * number + 3) % 16):
            flags = dict(zip(("single_word", "lstrip", "rstrip", "normalized"), map(bool, map(int, f"{bits:04b}"))))
            if number % 3 == 0:
                tokenizer.add_special_tokens([AddedToken(content + "#" * (bits // 8), special=True, **flags)])
            else:
                tokenizer.add_tokens([AddedToken(content + "#" * (bits // 8), **flags)])
    return tokenizer


FAMILIES: dict[str, Callable[[], Any]] = {
    "GPT-2": gpt2,
    "a space before": gpt2_with_a_space_before,
    "Llama 3": llama3,
    "Qwen2": qwen2,
    "Qwen3.5": lambda: qwen2(QWEN3_5),
    "SmolLM2": smollm2,
    "digits together": lambda: trained(then_bytes(pre_tokenizers.Digits(False), split(r"\s\p{L}+|[!-/:-@\[-`{-~]"))),
    "added tokens": every_rule_of_added_tokens,
}


@functools.cache
def family(name: str) -> Any:
    return FAMILIES[name]()


@functools.cache
def texts(name: str, number: int = 3000) -> list[str]:
    """Difficult strings, with the names of added tokens in two of three."""
    rng = random.Random(name)
    names = [token.content for token in family(name).get_added_tokens_decoder().values()] or ["no name"]
    woven = []
    for place, text in enumerate(strings(number, seed=2)):
        for _ in range(place % 3):
            cut = rng.randrange(len(text) + 1)
            text = text[:cut] + rng.choice(["", " ", "  ", "a"]) + rng.choice(names) + rng.choice(["", " ", "\n "]) + text[cut:]
        woven.append(text)
    return woven


def read(theirs: Any, folder: Path) -> Tokenizer:
    folder.mkdir(exist_ok=True)
    theirs.save(str(folder / "tokenizer.json"))
    return pretrained_tokenizer(folder)


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any, BPETokenizer]:
    theirs = family(request.param)
    ours = read(theirs, tmp_path)
    assert isinstance(ours, BPETokenizer)
    assert ours.vocab_size == theirs.get_vocab_size()
    return request.param, theirs, ours


def ids_of(theirs: Any, text: str, plain: bool = False) -> list[int]:
    theirs.encode_special_tokens = plain
    ids: list[int] = theirs.encode(text, add_special_tokens=False).ids
    return ids


def test_ids_of_3000_strings(pair: tuple[str, Any, BPETokenizer]) -> None:
    name, theirs, ours = pair
    assert [text for text in texts(name) if ours.encode(text, allow_special=True).tolist() != ids_of(theirs, text)] == []
    assert [text for text in texts(name) if ours.encode(text).tolist() != ids_of(theirs, text, plain=True)] == []


def test_text_of_the_ids(pair: tuple[str, Any, BPETokenizer]) -> None:
    name, theirs, ours = pair
    rng = random.Random(0)
    several = [ids_of(theirs, text) for text in texts(name)]
    several += [rng.choices(range(ours.vocab_size), k=12) for _ in range(1000)]
    several = [[i for i in ids if i not in one_byte_to_them(ours)] for ids in several]
    for skip in (False, True):
        decoded = [theirs.decode(ids, skip_special_tokens=skip) for ids in several]
        assert [ids for ids, text in zip(several, decoded) if ours.decode(ids, skip_special=skip) != text] == []


def one_byte_to_them(ours: Tokenizer) -> set[int]:
    """The added token e\u0301: they bring it to the normal form é, and take that for a byte, which is no text. Here it is the
    text of its name."""
    return {token.id for token in getattr(ours, "added", ()) if token.content == "e\u0301"}


def test_ids_around_a_text(pair: tuple[str, Any, BPETokenizer]) -> None:
    _, theirs, ours = pair
    theirs.encode_special_tokens = False
    for text in ("Hello there", ""):
        assert [*ours.before, *ours.encode(text), *ours.after] == theirs.encode(text).ids


def test_it_survives_saving(pair: tuple[str, Any, BPETokenizer], tmp_path: Path) -> None:
    name, _, ours = pair
    ours.save(tmp_path / "t.json")
    loaded = load_tokenizer(tmp_path / "t.json")
    assert isinstance(loaded, BPETokenizer)
    for attribute in ("tokens", "merges", "special", "rules", "added", "ignore_merges", "before", "after"):
        assert getattr(loaded, attribute) == getattr(ours, attribute)
    for text in texts(name)[:300]:
        assert loaded.encode(text, allow_special=True).tolist() == ours.encode(text, allow_special=True).tolist()


def test_the_families_cut_in_different_ways(tmp_path: Path) -> None:
    # Otherwise agreement would say little. And all kinds of ids occur: of added tokens, of merges, of bytes.
    ours = {name: read(family(name), tmp_path / name) for name in FAMILIES}
    cuts = {name: [tuple(one.rules.words(text)) for text in texts("GPT-2")] for name, one in ours.items()}  # type: ignore[attr-defined]
    different = [name for name in FAMILIES if name != "added tokens"]  # that one cuts as Llama 3
    assert all(cuts[a] != cuts[b] for a in different for b in different if a < b)
    for name in FAMILIES:
        used = {i for text in texts(name) for i in ours[name].encode(text, allow_special=True).tolist()}
        added = set(family(name).get_added_tokens_decoder())
        assert len(added & used) >= 0.85 * len(added)  # those that only count as single words are rare
        assert len(used) > 1000


def test_words_that_are_tokens_ignore_merges(tmp_path: Path) -> None:
    ours = read(family("Llama 3"), tmp_path)
    assert isinstance(ours, BPETokenizer)
    (i,) = ours.encode(" indivisible")
    assert ours.tokens[i] == b" indivisible"
    ours.ignore_merges = False
    ours._encode_word.cache_clear()
    assert len(ours.encode(" indivisible")) > 1


@pytest.mark.parametrize("name", ["GPT-2", "SmolLM2"])
def test_files_of_earlier_versions(tmp_path: Path, name: str) -> None:
    # "a b" for a merge, no type of the model, no later settings.
    content = json.loads(family(name).to_str())
    model = content["model"]
    del model["type"], model["ignore_merges"], model["byte_fallback"]
    model["merges"] = [" ".join(merge) for merge in model["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    ours = pretrained_tokenizer(tmp_path)
    theirs = hugging_face.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in texts(name)[:300]:
        assert ours.encode(text, allow_special=True).tolist() == ids_of(theirs, text)


@pytest.mark.parametrize("pattern", [LLAMA3, QWEN2, r"\d{2}|[^a-y]|\p{Lu}[^\p{L}]*+", r"a(?=b)|(?<!x)y++|(?>z+)|[\p{M}-]"])
def test_cutting_by_other_patterns(pattern: str) -> None:
    theirs, ours = split(pattern), CuttingRules([pattern])
    for text in [*strings(1500, seed=3), "", "abab yyxyxyy zzz 12 123 A--BB"]:
        assert ours.words(text) == [piece for piece, _ in theirs.pre_tokenize_str(text)]


def test_training_with_rules_of_its_own() -> None:
    ours = BPETokenizer.train(training_text(), 4000, rules=CuttingRules([QWEN2]))
    model = json.loads(family("Qwen2").to_str())["model"]
    shown = ours.shown_tokens()
    assert shown == sorted(model["vocab"], key=model["vocab"].__getitem__)
    assert [[shown[left], shown[right]] for left, right in ours.merges] == model["merges"]


# -------------------------------------------------------------------------------------------------------------- files


def test_gpt2s_two_files(tmp_path: Path) -> None:
    theirs = family("GPT-2")
    theirs.model.save(str(tmp_path))
    if "<|endoftext|>" not in json.loads((tmp_path / "vocab.json").read_text()):  # without the published vocabulary
        ids = json.loads((tmp_path / "vocab.json").read_text())
        (tmp_path / "vocab.json").write_text(json.dumps({**ids, "<|endoftext|>": len(ids)}))
    ours = pretrained_tokenizer(tmp_path)
    assert [text for text in texts("GPT-2") if ours.encode(text, True).tolist() != ids_of(theirs, text)] == []
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true}')
    ours, theirs = pretrained_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [text for text in texts("GPT-2", 300) if ours.encode(text, True).tolist() != theirs(text).input_ids] == []


def word_pieces(folder: Path, lowercase: bool) -> Path:
    folder.mkdir(exist_ok=True)
    tokens = WordPieceTokenizer.train([training_text()], 5000, lowercase=lowercase).tokens
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return folder / "vocab.txt"


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt"])
def test_bert(tmp_path: Path, lowercase: bool, file: str) -> None:
    vocab = word_pieces(tmp_path, lowercase)
    if file == "tokenizer.json":
        theirs = hugging_face.BertWordPieceTokenizer(str(vocab), lowercase=lowercase)._tokenizer
        theirs.save(str(tmp_path / file))
    else:
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)._tokenizer
    ours = pretrained_tokenizer(tmp_path)
    assert isinstance(ours, WordPieceTokenizer)
    assert ours.lowercase == lowercase
    some = [*strings(3000, seed=2), "[CLS] a [SEP][MASK]x[PAD]", "un[UNK]able", "it's. a , b ?! 'x' n't do not we've"]
    assert [text for text in some if ours.encode(text, allow_special=True).tolist() != ids_of(theirs, text)] == []
    assert [*ours.before, *ours.encode("Hello"), *ours.after] == theirs.encode("Hello").ids
    several = [ids_of(theirs, text) for text in some] + [random.Random(i).choices(range(5, 5000), k=9) for i in range(500)]
    assert [ids for ids in several if ours.decode(ids) != theirs.decode(ids, skip_special_tokens=False)] == []
    ours.save(tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json").decode(several[0]) == ours.decode(several[0])


# ------------------------------------------------------------------------------------------------------------- Marian


@functools.cache
def sentence_pieces(language: int) -> bytes:
    lines = [line.strip() for line in training_text().split("\n") if line.strip()][language::2]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=2500, character_coverage=0.99, minloglevel=2
    )
    return model.getvalue()


def marian_folder(folder: Path, separate: bool) -> Path:
    """A folder as those of the opus-mt models, with vocabularies that lack some pieces and have an order of their own."""
    pieces = []
    for language, name in enumerate(["source.spm", "target.spm"]):
        (folder / name).write_bytes(sentence_pieces(language))
        processor = sentencepiece.SentencePieceProcessor(model_proto=sentence_pieces(language))
        pieces.append([processor.id_to_piece(i) for i in range(processor.get_piece_size())])
    known = [sorted({piece for piece in some[3:] if hash_of(piece) % 20}, key=hash_of) for some in pieces]
    lists = known if separate else [list(dict.fromkeys([*known[0], *known[1]]))]
    for name, some in zip(["vocab.json", "target_vocab.json"], lists):
        tokens = ["</s>", "<unk>", ">>fra<<", *some]
        ids = {token: i for i, token in enumerate(tokens)}
        ids["<pad>"] = len(ids)
        if separate:  # transformers has one id of <pad> for both
            ids = {token: i for i, token in enumerate(["</s>", "<unk>", "<pad>", ">>fra<<", *some])}
        (folder / name).write_text(json.dumps(ids), encoding="utf-8")
    config = {"source_lang": "eng", "target_lang": "fra", "separate_vocabs": separate, "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def hash_of(piece: str) -> int:
    return random.Random(piece).randrange(10**6)


@pytest.mark.filterwarnings("ignore:Recommended")
@pytest.mark.parametrize("separate", [False, True], ids=["one vocabulary", "two vocabularies"])
def test_marian(tmp_path: Path, separate: bool) -> None:
    theirs = transformers.MarianTokenizer.from_pretrained(marian_folder(tmp_path, separate))
    ours = pretrained_tokenizer(tmp_path)
    assert isinstance(ours, MarianTokenizer)
    assert ours.special == {"<unk>": theirs.unk_token_id, "</s>": theirs.eos_token_id, "<pad>": theirs.pad_token_id}
    some = [*strings(2000, seed=2), ">>fra<< Hello there", ">>xyz<<Hello", ">>", "", " ", "a</s> b<pad><unk>c", "▁a ▁", "<s> x"]
    some += training_text().split("\n")[:500]
    for encode, key in ((ours.encode, "text"), (ours.encode_target, "text_target")):
        # Theirs lets the names of special tokens in a text be such.
        expected = {text: theirs(**{key: text}).input_ids for text in some}
        assert [text for text in some if [*encode(text, allow_special=True), *ours.after] != expected[text]] == []
        ids = [i for text in some for i in expected[text]]
        assert 0.01 < ids.count(ours.special["<unk>"]) / len(ids) < 0.6
        assert len(set(ids)) > 500
    size = len(ours.target_tokens)
    several = [ours.encode_target(text).tolist() for text in some] + [
        random.Random(i).choices(range(size), k=9) for i in range(500)
    ]
    for ids in several:
        assert ours.decode(ids) == theirs.decode(ids)
        plain = [i for i in ids if i != ours.special["<unk>"]]  # theirs leaves <unk> out, too
        assert ours.decode(plain, skip_special=True) == theirs.decode(plain, skip_special_tokens=True)
    ours.save(tmp_path / "t.json")
    loaded = load_tokenizer(tmp_path / "t.json")
    assert isinstance(loaded, MarianTokenizer)
    for text in some[:200]:
        assert loaded.encode(text).tolist() == ours.encode(text).tolist()
        assert loaded.encode_target(text).tolist() == ours.encode_target(text).tolist()
    assert [loaded.decode(ids) for ids in several] == [ours.decode(ids) for ids in several]


def test_marians_names_of_special_tokens_are_plain_text(tmp_path: Path) -> None:
    ours = pretrained_tokenizer(marian_folder(tmp_path, separate=False))
    reserved = {ours.special["</s>"], ours.special["<pad>"]}
    for text in ("a</s>b", "<pad>", ">>fra<<</s>", "</s><<", ">></s><<"):
        assert not reserved & set(ours.encode(text).tolist())
        assert not reserved & set(ours.encode("x " + text).tolist())


# ------------------------------------------------------------------------------------------------------------ writing


@functools.cache
def trained_here() -> dict[str, Tokenizer]:
    text = training_text()
    return {
        "byte pairs": BPETokenizer.train(text, 1000, ["<|endoftext|>", "[PAD]", "<go>"]),
        "byte pairs without special tokens": BPETokenizer.train(text, 300),
        "WordPieces": WordPieceTokenizer.train([text], 5000, ["<go>"]),
        "WordPieces in capitals": WordPieceTokenizer.train([text], 5000, lowercase=False),
        "characters": CharTokenizer.train([text, *strings(3000, seed=2)], ["[PAD]", "<go>"]),
    }


@pytest.mark.parametrize("config", [None, "gpt2", "bert", "llama"])
def test_auto_tokenizer_reads_what_is_written(tmp_path: Path, config: str | None) -> None:
    all_kinds = trained_here()
    if config is None:
        all_kinds = all_kinds | {name: read(family(name), tmp_path / name) for name in FAMILIES}
    for kind, ours in all_kinds.items():
        folder = tmp_path / "written"
        shutil.rmtree(folder, ignore_errors=True)
        save_pretrained_tokenizer(ours, folder)
        if config is not None:  # what it says on the model must not change the tokenizer
            (folder / "config.json").write_text(json.dumps({"model_type": config}))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert len(theirs) == ours.vocab_size
        for text in [*strings(300, seed=2), "a<go>b <|endoftext|>[PAD] [MASK]<think>"]:
            ids = ours.encode(text, allow_special=True).tolist()
            assert theirs(text, add_special_tokens=False).input_ids == ids, kind
            whole = [*getattr(ours, "before", ()), *ids, *getattr(ours, "after", ())]
            assert theirs(text).input_ids == whole, kind
            clear = [i for i in ids if i not in one_byte_to_them(ours)]
            assert theirs.decode(clear) == ours.decode(clear), kind
        again = pretrained_tokenizer(folder)
        assert type(again) is type(ours)
        assert again.special == ours.special
        assert again.encode(text, allow_special=True).tolist() == ids


def test_the_roles_of_special_tokens(tmp_path: Path) -> None:
    tokenizer = trained_here()["byte pairs"]
    save_pretrained_tokenizer(tokenizer, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.bos_token, theirs.eos_token, theirs.pad_token) == ("<|endoftext|>", "<|endoftext|>", "[PAD]")
    assert set(theirs.all_special_tokens) == {"<|endoftext|>", "[PAD]", "<go>"}
    ids = tokenizer.encode("a<go>b<|endoftext|>", allow_special=True)
    assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids, skip_special=True) == "ab"


def test_an_unknown_character_is_an_error_there_as_here(tmp_path: Path) -> None:
    save_pretrained_tokenizer(CharTokenizer.train("abc"), tmp_path)
    with pytest.raises(Exception, match="WordLevel"):
        transformers.AutoTokenizer.from_pretrained(tmp_path)("abx")
