"""The content of tokenizer.json files of many kinds, as published models have them."""

from __future__ import annotations

import base64
import copy
import functools
import io
import json
from typing import Any

import tokenizers as hugging_face
from parity.difficult_strings import strings

from tinyformer.data.reading import standard_library_text

Json = dict[str, Any]

ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
LLAMA2_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
LLAMA2_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
}


@functools.cache
def training_lines() -> tuple[str, ...]:
    return (*standard_library_text(100_000).split("\n"), *strings(600, seed=1))


@functools.cache
def _learned(size: int, marks: bool, fewest: int) -> str:
    """Byte pairs of characters, with ▁ for a space, or of bytes as GPT-2's files show them. Characters that are rare have no
    token."""
    tokenizer = hugging_face.Tokenizer(hugging_face.models.BPE())
    tokenizer.pre_tokenizer = hugging_face.pre_tokenizers.Metaspace() if marks else hugging_face.pre_tokenizers.ByteLevel()
    trainer = hugging_face.trainers.BpeTrainer(
        vocab_size=size, show_progress=False, limit_alphabet=fewest, min_frequency=2, initial_alphabet=[]
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    return tokenizer.to_str()


def byte_pairs(marks: bool, size: int = 2500, alphabet: int = 200, start: tuple[str, ...] = (), **settings: Any) -> Json:
    """A model of byte pairs. The tokens of ``start`` come first."""
    model: Json = json.loads(_learned(size, marks, alphabet))["model"]
    names = [*start, *([f"<0x{byte:02X}>" for byte in range(256)] if settings.get("byte_fallback") else [])]
    tokens = [*names, *(token for token in model["vocab"] if token not in names)]
    return {**model, "vocab": {token: i for i, token in enumerate(tokens)}, **settings}


def vocab_of(model: Json) -> dict[str, int]:
    """The ids of a model's tokens."""
    vocab: Any = model["vocab"]
    return vocab if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}


def special(contents: list[str] | tuple[str, ...], vocab: Json, **rules: bool) -> list[Json]:
    """Special tokens of a vocabulary, or after it."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    new = iter(range(len(vocab), len(vocab) + len(contents)))
    return [
        {"id": vocab[content] if content in vocab else next(new), "content": content, **plain, "special": True, **rules}
        for content in contents
    ]


def whole(model: Json, added: list[Json], **sections: Any) -> Json:
    usual = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return copy.deepcopy({"version": "1.0", **usual, "added_tokens": added, **sections, "model": model})


def template(before: str, i: int) -> Json:
    single = [{"SpecialToken": {"id": before, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    tokens = {before: {"id": before, "ids": [i], "tokens": [before]}}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


# ------------------------------------------------------------------------------------------------- as they are published


def smollm2(**settings: Any) -> Json:
    model = byte_pairs(False, alphabet=200, start=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"), **settings)
    digits = {"type": "Digits", "individual_digits": True}
    cutter = {"type": "Sequence", "pretokenizers": [digits, BYTE_LEVEL]}
    added = special(("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"), model["vocab"])
    return whole(model, added, pre_tokenizer=cutter, decoder={**BYTE_LEVEL, "add_prefix_space": True})


def pythia() -> Json:
    model = byte_pairs(False, alphabet=210, start=("<|endoftext|>", "<|padding|>"))
    added = special(("<|endoftext|>", "<|padding|>"), model["vocab"])
    spaces = [" " * count for count in range(24, 1, -1)]
    added += special(spaces, model["vocab"], special=False, normalized=True)
    return whole(
        model,
        added,
        normalizer={"type": "NFC"},
        pre_tokenizer=BYTE_LEVEL,
        post_processor={**BYTE_LEVEL, "add_prefix_space": False},
        decoder=BYTE_LEVEL,
    )


def llama2(**settings: Any) -> Json:
    """As TinyLlama and Mistral 7B v0.1, too."""
    settings = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **settings}
    model = byte_pairs(True, start=("<unk>", "<s>", "</s>"), **settings)
    added = special(("<unk>", "<s>", "</s>"), model["vocab"])
    return whole(model, added, normalizer=LLAMA2_NORMALIZER, post_processor=template("<s>", 1), decoder=LLAMA2_DECODER)


def llama2_with_metaspace(scheme: str, split: bool = False) -> Json:
    """As Mistral 7B v0.3 and newer files of Llama 2."""
    content = llama2()
    content["normalizer"] = None
    content["pre_tokenizer"] = {**METASPACE, "prepend_scheme": scheme, "split": split}
    content["added_tokens"] += special(["[INST]", "[/INST]"], content["model"]["vocab"])
    return content


def gemma() -> Json:
    model = byte_pairs(
        True, start=("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"), unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    spaces = {"String": " "}
    return whole(
        model,
        special(("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"), model["vocab"]),
        normalizer={"type": "Replace", "pattern": spaces, "content": "▁"},
        pre_tokenizer={"type": "Split", "pattern": spaces, "behavior": "MergedWithPrevious", "invert": False},
        post_processor=template("<bos>", 2),
        decoder={"type": "Sequence", "decoders": LLAMA2_DECODER["decoders"][:-1]},
    )


def roberta(alphabet: int = 256, **cutter: Any) -> Json:
    model = byte_pairs(False, alphabet=alphabet, start=tuple(ROBERTA_SPECIAL), unk_token="<unk>")
    model |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    added = special(ROBERTA_SPECIAL, model["vocab"], normalized=True)
    added += special(["<mask>"], model["vocab"], lstrip=True)
    ends = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
    return whole(model, added, pre_tokenizer={**BYTE_LEVEL, **cutter}, post_processor=ends, decoder={**BYTE_LEVEL, **cutter})


@functools.cache
def _word_pieces() -> str:
    tokenizer = hugging_face.Tokenizer(hugging_face.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = hugging_face.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = hugging_face.pre_tokenizers.BertPreTokenizer()
    trainer = hugging_face.trainers.WordPieceTrainer(
        vocab_size=3000, show_progress=False, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "[UNK]"], limit_alphabet=400
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    return tokenizer.to_str()


def mpnet(**normalizer: Any) -> Json:
    model = json.loads(_word_pieces())["model"]
    added = special(["<s>", "<pad>", "</s>", "[UNK]"], model["vocab"]) + special(["<mask>"], model["vocab"], lstrip=True)
    return whole(
        model,
        added,
        normalizer={
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": True, **normalizer,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor={"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True,
                        "add_prefix_space": False},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    )  # fmt: skip


@functools.cache
def _sentence_pieces() -> tuple[tuple[tuple[str, float], ...], str]:
    """Pieces with their scores, and the map of characters that goes with them, as SentencePiece makes them."""
    import sentencepiece
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(training_lines()), model_writer=written, vocab_size=3000, character_coverage=0.98, minloglevel=2
    )
    model = ModelProto()
    model.ParseFromString(written.getvalue())
    pieces = tuple((piece.piece, piece.score) for piece in model.pieces if piece.type == 1)
    return pieces, base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def unigram(start: tuple[str, ...] = ("<pad>", "</s>", "<unk>"), end: tuple[str, ...] = (), **settings: Any) -> Json:
    """A model of pieces with scores. The tokens of ``start`` come first, those of ``end`` last."""
    pieces = [[token, score] for token, score in _sentence_pieces()[0]]
    names = [*start, *([f"<0x{byte:02X}>" for byte in range(256)] if settings.get("byte_fallback") else [])]
    vocab = [*([name, 0.0] for name in names), *pieces, *([name, 0.0] for name in end)]
    return {"type": "Unigram", "unk_id": start.index("<unk>"), "vocab": vocab, "byte_fallback": False, **settings}


def charsmap() -> Json:
    return {"type": "Precompiled", "precompiled_charsmap": _sentence_pieces()[1]}


def t5(**settings: Any) -> Json:
    model = unigram(end=tuple(f"<extra_id_{i}>" for i in range(9)), **settings)
    vocab = vocab_of(model)
    added = special([name for name in vocab if name[0] == "<" and name[-1] == ">" and "0x" not in name], vocab)
    ends = template("</s>", 1) | {"single": template("</s>", 1)["single"][::-1]}
    return whole(
        model, added, normalizer=charsmap(), pre_tokenizer=METASPACE, post_processor=ends, decoder=METASPACE
    )  # fmt: skip


def xlm_roberta() -> Json:
    """As the multilingual MiniLM and E5, too."""
    model = unigram(("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",))
    vocab = vocab_of(model)
    added = special(["<s>", "<pad>", "</s>", "<unk>"], vocab) + special(["<mask>"], vocab, lstrip=True)
    ends = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
    cutter = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}
    return whole(model, added, normalizer=charsmap(), pre_tokenizer=cutter, post_processor=ends, decoder=METASPACE)


PUBLISHED = {
    "SmolLM2": smollm2,
    "SmolLM2 with an unknown token": lambda: smollm2(unk_token="<|endoftext|>", fuse_unk=True),
    "Pythia": pythia,
    "Llama 2": llama2,
    "Mistral v0.3": lambda: llama2_with_metaspace("first"),
    "Gemma": gemma,
    "RoBERTa": roberta,
    "RoBERTa with a space before": lambda: roberta(alphabet=190, add_prefix_space=True),
    "MPNet": mpnet,
    "T5": t5,
    "T5 with bytes": lambda: t5(byte_fallback=True),
    "XLM-RoBERTa": xlm_roberta,
}
