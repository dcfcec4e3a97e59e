"""Write our tokenizers as tokenizer.json and tokenizer_config.json for ``transformers``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.common.files import write_json
from tinyformer.tokenizers.base import Tokenizer
from tinyformer.tokenizers.bpe import GPT2_WORDS, BPETokenizer
from tinyformer.tokenizers.char import CharTokenizer
from tinyformer.tokenizers.pipeline import PipelineTokenizer, Section
from tinyformer.tokenizers.special import BEGIN, CLASSIFY, END, MASK, PADDING, SEPARATE, UNKNOWN
from tinyformer.tokenizers.wordpiece import WordPieceTokenizer
from tinytensor.device.disk import make_folder

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
METASPACE = {"type": "Metaspace", "replacement": "▁"}  # SentencePiece's space character
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace("{1,3}", "")
# The roles that transformers assigns to tokens with these names.
_ROLES = {
    BEGIN: ("bos_token",),
    END: ("eos_token",),
    PADDING: ("pad_token",),
    UNKNOWN: ("unk_token",),
    CLASSIFY: ("cls_token",),
    SEPARATE: ("sep_token",),
    MASK: ("mask_token",),
    "<|endoftext|>": ("bos_token", "eos_token"),
    "<|begin_of_text|>": ("bos_token",),
    "<|end_of_text|>": ("eos_token",),
    "<s>": ("bos_token",),
    "</s>": ("eos_token",),
    "<pad>": ("pad_token",),
    "<unk>": ("unk_token",),
    "<mask>": ("mask_token",),
}


@functools.singledispatch
def tokenizer_json(tokenizer: Tokenizer) -> Section:
    """Return the content of a tokenizer.json. Raises UserError if the format cannot express the tokenizer's rules."""
    raise UserError(
        f"cannot write a {tokenizer.kind!r} tokenizer for transformers: tokenizer.json has no rules for how it joins tokens; "
        "train one of byte pairs, WordPieces or characters"
    )


def write_tokenizer_files(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json to a folder, creating it if needed."""
    content = tokenizer_json(tokenizer)
    make_folder(folder)
    write_json(folder / "tokenizer.json", content)
    write_json(folder / "tokenizer_config.json", _config(tokenizer))


def _config(tokenizer: Tokenizer) -> Section:
    """Return the settings for transformers: its generic tokenizer class and the special-token roles."""
    roles: dict[str, str] = {}
    additional = []
    for name in tokenizer.special:
        free = [role for role in _ROLES.get(name, ()) if role not in roles]
        roles |= dict.fromkeys(free, name)
        if not free:
            additional.append(name)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **roles,
        **({"additional_special_tokens": additional} if additional else {}),
    }


tokenizer_json.register(PipelineTokenizer, lambda tokenizer: tokenizer.content)


@tokenizer_json.register
def _byte_pairs(tokenizer: BPETokenizer) -> Section:
    tokens = tokenizer.shown_tokens()
    merges = [[tokens[left], tokens[right]] for left, right in tokenizer.merges]
    return _content(
        tokenizer.special,
        pre_tokenizer=split_by(*([tokenizer.pattern] if tokenizer.pattern else [])),
        decoder=BYTE_LEVEL,
        model={"type": "BPE", "vocab": _ids_of(tokens), "merges": merges},
    )


@tokenizer_json.register
def _wordpieces(tokenizer: WordPieceTokenizer) -> Section:
    sections = berts(_ids_of(tokenizer.tokens), tokenizer.lowercase)
    sections["model"]["max_input_chars_per_word"] = tokenizer.longest_word
    ends = ([(name, tokenizer.special[name])] for name in (CLASSIFY, SEPARATE))
    return _content(tokenizer.special, post_processor=around(*ends), **sections)


@tokenizer_json.register
def _characters(tokenizer: CharTokenizer) -> Section:
    return _content(
        tokenizer.special,
        pre_tokenizer=_isolated(r"[\s\S]"),
        decoder={"type": "Fuse"},
        # There is no unknown token, so an unknown character is an error.
        model={"type": "WordLevel", "vocab": _ids_of([*tokenizer.characters, *tokenizer.special]), "unk_token": ""},
    )


def _content(special: Mapping[str, int], **sections: Any) -> Section:
    usual = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    added = [added_token(name) | {"id": i} for name, i in sorted(special.items(), key=lambda entry: entry[1])]
    return {"version": "1.0", **usual, "added_tokens": added, **sections}


def added_token(name: str, special: bool = True, **rules: bool) -> Section:
    """Return an added token without an id. By default, it is special and matches anywhere."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": name, **plain, "special": special, **rules}


def _ids_of(tokens: list[str]) -> dict[str, int]:
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise UserError(f"tokenizer.json cannot distinguish the special token {twice!r} from an equal ordinary token")
    return ids


def split_by(*patterns: str, space_before: bool = False) -> Section:
    """Return a pre-tokenizer that splits text by regular expressions in turn, then converts bytes to visible characters."""
    is_gpt2 = patterns[-1:] == (GPT2_WORDS,)  # ByteLevel implements GPT-2's pattern
    last = {**BYTE_LEVEL, "add_prefix_space": space_before, "use_regex": is_gpt2}
    cutters = [*map(_isolated, patterns[:-1] if is_gpt2 else patterns), last]
    return cutters[0] if len(cutters) == 1 else {"type": "Sequence", "pretokenizers": cutters}


def _isolated(pattern: str) -> Section:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def berts(
    vocab: Mapping[str, int], lowercase: bool, unknown: str = UNKNOWN, cleanup: bool = False, **normalizer: Any
) -> Section:
    """Return the sections of BERT's tokenizer except the post-processor. If ``cleanup``, decoding adds no space before . ? !"""
    usual = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": lowercase}
    model = {"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    return {
        "normalizer": {"type": "BertNormalizer", **usual, **normalizer},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": cleanup},
        "model": {**model, "vocab": vocab},
    }


def characters_decoder(has_space: bool) -> Section:
    """Return the decoder of SentencePiece character pairs. If ``has_space``, it strips the text's leading space."""
    steps: list[Section] = [{"type": "Replace", "pattern": {"String": METASPACE["replacement"]}, "content": " "}]
    steps += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {"type": "Sequence", "decoders": [*steps, *([strip] if has_space else [])]}


def around(before: Sequence[tuple[str, int]], after: Sequence[tuple[str, int]]) -> Section | None:
    """Return the post-processor that adds tokens (name, id) around a sequence, or None if there are none."""

    def template(texts: str) -> list[Section]:
        parts = [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in before]
        # As in BERT, a second sequence follows the end of the first and is followed by another end.
        for segment, text in enumerate(texts):
            parts.append({"Sequence": {"id": text, "type_id": segment}})
            parts += [{"SpecialToken": {"id": name, "type_id": segment}} for name, _ in after]
        return parts

    ends = {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in (*before, *after)}
    sections = {"single": template("A"), "pair": template("AB"), "special_tokens": ends}
    return {"type": "TemplateProcessing", **sections} if ends else None


def content_of_saved(saved: Section) -> Section:
    """Convert a published tokenizer that an earlier version saved to tokenizer.json content. It is a BPE with more rules than
    GPT-2's, or BERT's with ``cleanup``. Raises KeyError and other errors for a damaged file."""
    tokens, names = saved["tokens"], saved["special"]
    if saved["kind"] == "wordpiece":
        tokenizer = WordPieceTokenizer(tokens, names, lowercase=saved["lowercase"], longest_word=saved["longest_word"])
        return {**_wordpieces(tokenizer), "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": saved["cleanup"]}}
    more = [{"in_vocabulary": False, **token} for token in saved.get("added") or []]
    apart = {*names.values(), *(token["id"] for token in more if not token.pop("in_vocabulary"))}
    unknown, rules = saved.get("unknown"), saved.get("rules") or {"patterns": [GPT2_WORDS]}
    content = _content(
        names,
        normalizer={"type": rules["normal_form"]} if rules.get("normal_form") else None,
        pre_tokenizer=split_by(*rules["patterns"], space_before=rules.get("space_before", False)),
        post_processor=around(*([(tokens[i], i) for i in saved.get(side, [])] for side in ("before", "after"))),
        decoder=BYTE_LEVEL,
        model={
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens) if i not in apart or i == unknown},
            "merges": saved["merges"],
            "unk_token": None if unknown is None else tokens[unknown],
            "fuse_unk": saved.get("fuse_unknown", False),
            "ignore_merges": saved.get("ignore_merges", False),
        },
    )
    content["added_tokens"] = sorted([*content["added_tokens"], *more], key=lambda token: token["id"])
    return content
