"""Tokenizers of folders, beside transformers: the same ids and text, as the class of the tokenizer and its settings say.
And files that are written here, beside AutoTokenizer. All vocabularies are trained here.
"""

from __future__ import annotations

import functools
import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from parity.difficult_strings import strings

from tinyformer.data.reading import standard_library_text
from tinyformer.pretrained.tokenizers import pretrained_tokenizer, save_pretrained_tokenizer
from tinyformer.tokenizers import (
    BPETokenizer,
    CharTokenizer,
    MarianTokenizer,
    PipelineTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    load_tokenizer,
)

hugging_face = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")
from parity.published_tokenizers import PUBLISHED, Json, special, vocab_of  # noqa: E402
from parity.random_settings import compared, write_vocabulary  # noqa: E402


@functools.cache
def training_text() -> str:
    return standard_library_text(150_000) + "\n".join(strings(1000, seed=1))


@pytest.mark.parametrize("seed", range(30))
def test_a_class_with_settings_at_random(seed: int, tmp_path: Path) -> None:
    assert compared(seed, tmp_path / "folder").startswith(("equal", "refused: FOLDER"))


# The class, the model, whether tokenizer.json is there, its settings, and a text of which these change the ids.
CLASSES: dict[str, tuple[str, str, bool, Json, str]] = {
    "GPT-2": ("GPT2Tokenizer", "Pythia", False, {}, "a 123"),
    "GPT-2 with a space": ("GPT2Tokenizer", "Pythia", True, {"add_prefix_space": True}, "hello"),
    "GPT-2 with a start": ("GPT2Tokenizer", "Pythia", False, {"add_bos_token": True}, "hello"),
    "Qwen2": ("Qwen2Tokenizer", "SmolLM2", False, {}, "a 123 e\u0301"),
    "Qwen2 with a space": ("Qwen2Tokenizer", "SmolLM2", True, {"add_prefix_space": True}, "hello"),
    "RoBERTa": ("RobertaTokenizer", "RoBERTa", False, {}, "<s>a <mask></s>"),
    "BERT with capitals": ("BertTokenizer", "MPNet", True, {"do_lower_case": False}, "Hello THERE"),
    "BERT without accents": ("BertTokenizer", "MPNet", True, {"do_lower_case": False, "strip_accents": True}, "\u00c9"),
    "BERT with Chinese words": ("BertTokenizer", "MPNet", False, {"tokenize_chinese_chars": False}, "日本"),
    "DistilBERT": ("DistilBertTokenizer", "MPNet", False, {"do_lower_case": False}, "Hello THERE"),
    "MPNet": ("MPNetTokenizer", "MPNet", False, {}, "a <mask> b"),
    "Llama without a space": ("LlamaTokenizer", "Llama 2", True, {"add_prefix_space": False}, "hello"),
    "old Llama": ("LlamaTokenizer", "Llama 2", True, {"legacy": True}, "a<s>b"),
    "Gemma": ("GemmaTokenizer", "Gemma", True, {"extra_special_tokens": ["<start_of_turn>"]}, "<start_of_turn>user"),
    "one more token": ("GPT2Tokenizer", "Pythia", True, {"extra_special_tokens": ["<|im_start|>"]}, "<|im_start|>user"),
    "another end": ("PreTrainedTokenizer", "SmolLM2", True, {"eos_token": "<|end|>"}, "hi<|end|>"),
}


@pytest.mark.parametrize("name", CLASSES)
def test_what_the_class_and_its_settings_say(name: str, tmp_path: Path) -> None:
    class_name, file, has_file, settings, text = CLASSES[name]
    content = PUBLISHED[file]()
    vocabulary = dict(vocab_of(content["model"]))
    if content["model"]["type"] == "WordPiece":
        for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "<mask>"):
            vocabulary.setdefault(token, len(vocabulary))
        content["model"]["vocab"] = vocabulary
        content["added_tokens"] = special([token for token in vocabulary if token[0] in "[<" and token[-1] in "]>"], vocabulary)
    plain: list[int] = []
    for has_settings in (False, True):
        folder = tmp_path / str(has_settings)
        folder.mkdir()
        if has_file:
            (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        else:
            write_vocabulary(folder, content["model"], vocabulary)
        named = {"tokenizer_class": class_name, **(settings if has_settings else {})}
        (folder / "tokenizer_config.json").write_text(json.dumps(named))
        ours: Any = pretrained_tokenizer(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        for one in (text, *strings(100)):
            ids = [*ours.before, *ours.encode(one, allow_special=True).tolist(), *ours.after]
            assert theirs(one).input_ids == ids
            assert theirs.decode(ids, clean_up_tokenization_spaces=False) == ours.decode(ids)
        found = theirs(text).input_ids
        if has_settings and settings:
            assert found != plain
        plain = found


def test_the_names_of_special_tokens_are_plain_text(tmp_path: Path) -> None:
    for name, make in PUBLISHED.items():
        tokenizer = PipelineTokenizer(make())
        unknown = {tokenizer.special.get(name) for name in ("<unk>", "[UNK]", "<|endoftext|>")}
        for one in tokenizer.special:
            for text in (one, f"a {one}b", one * 3):
                assert not {*tokenizer.special.values()} - unknown & {*tokenizer.encode(text).tolist()}, (name, one)
                assert tokenizer.special[one] in tokenizer.encode(text, allow_special=True)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_kinds_of_files(name: str, tmp_path: Path) -> None:
    content = PUBLISHED[name]()
    theirs = hugging_face.Tokenizer.from_str(json.dumps(content))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    ours: Any = pretrained_tokenizer(tmp_path)
    ours.save(tmp_path / "saved.json")
    again: Any = load_tokenizer(tmp_path / "saved.json")
    assert [*ours.before, *ours.encode("Hello"), *ours.after] == theirs.encode("Hello").ids
    for text in strings(1000, seed=2):
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, allow_special=True).tolist() == again.encode(text, allow_special=True).tolist() == ids
        written = theirs.decode(ids, skip_special_tokens=False)
        assert ours.decode(ids) == "".join(ours.stream(ids)) == again.decode(ids) == written


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
    """A folder like the opus-mt models', with vocabularies that lack some pieces and have another order."""
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
def test_auto_tokenizer_reads_our_files(tmp_path: Path, config: str | None) -> None:
    all_kinds = trained_here()
    if config is None:
        all_kinds = all_kinds | {name: PipelineTokenizer(PUBLISHED[name]()) for name in ("SmolLM2", "Pythia", "RoBERTa", "T5")}
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
            assert theirs.decode(ids) == ours.decode(ids), kind
        again = pretrained_tokenizer(folder)
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
