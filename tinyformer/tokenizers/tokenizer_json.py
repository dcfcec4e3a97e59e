"""Reading tokenizer.json, the file in which Hugging Face's ``tokenizers`` describes a tokenizer.

Such a file is a small program: a normalizer, a pre-tokenizer, a model, a post-processor and a decoder, each with settings.
Those of byte-level byte pairs (GPT-2, Llama 3, Qwen, SmolLM2), of BERT's WordPieces and of our characters are read. Whatever
else a file asks for is refused, with its name: a tokenizer that is nearly right gives a model nonsense to read.

The two libraries know different versions of Unicode. Characters that are new in one of them may be cut in different ways.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import damaged, read_json
from tinyformer.common.schema import read_value
from tinyformer.tokenizers.added import AddedToken
from tinyformer.tokenizers.bpe import MOST_AROUND, BPETokenizer, bytes_of_tokens, gaps_in, pairs_of_ids, tokens_in_order
from tinyformer.tokenizers.byte_letters import can_be_hidden
from tinyformer.tokenizers.char import CharTokenizer
from tinyformer.tokenizers.cutting import CuttingRules
from tinyformer.tokenizers.patterns import GPT2_WORDS
from tinyformer.tokenizers.special import UNKNOWN
from tinyformer.tokenizers.wordpiece import SPECIAL, WordPieceTokenizer

EACH_CHARACTER = r"[\s\S]"
Section = dict[str, Any]


class Unsupported(Exception):
    """A file asks for something that is not done here. It is no ValueError: the file is not damaged."""


def read_tokenizer_json(path: str | Path) -> BPETokenizer | WordPieceTokenizer | CharTokenizer:
    """The tokenizer of a tokenizer.json. What the file says on truncating and padding is left to the caller.

    Raises UserError, which names the file, if it is missing or damaged, or asks for something that is not supported.
    """
    whole = read_json(Path(path))
    try:
        with damaged(path):
            tokenizer = _read(whole)
    except Unsupported as error:
        raise UserError(f"{path} asks for something that is not supported: {error}") from None
    if isinstance(tokenizer, BPETokenizer):
        tokenizer.file = path
    return tokenizer


def _read(whole: Section) -> BPETokenizer | WordPieceTokenizer | CharTokenizer:
    settings = ("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    allow(whole, "the file", model=..., **dict.fromkeys(settings, ...))
    model = whole["model"]
    # Files from before 2022 do not say what kind of model they hold.
    kind = model.get("type", "BPE" if "merges" in model else "WordPiece" if "max_input_chars_per_word" in model else None)
    readers: dict[Any, Callable[..., Any]] = {"BPE": _byte_pairs, "WordPiece": _wordpieces, "WordLevel": _characters}
    if kind not in readers:
        raise Unsupported(f"the model {shown(kind)}; there are byte-level BPE and WordPiece")
    tokenizer: BPETokenizer | WordPieceTokenizer | CharTokenizer
    tokenizer = readers[kind](whole, model, _added_tokens(whole, model["vocab"]))
    return tokenizer


# ------------------------------------------------------------------------------------------------ what all kinds share


def allow(section: Mapping[str, Any], where: str, **allowed: Any) -> None:
    """Raise Unsupported if a section has a key that is not named, or another value than those in its tuple. ``...`` stands for
    any value. A ``type`` is allowed in every section."""
    for key, value in section.items():
        if key != "type" and (key not in allowed or (allowed[key] is not ... and value not in allowed[key])):
            raise Unsupported(f"{key} = {shown(value)} of {where}")


def shown(value: Any) -> str:
    """A value for a message."""
    return shortened(repr(value), 80)


def _parts(section: Section | None, within: str) -> list[Section]:
    """The parts of a section that may be missing, one part, or a sequence."""
    if section is None:
        return []
    if section["type"] != "Sequence":
        return [section]
    return [part for inner in section[within] for part in _parts(inner, within)]


def _added_tokens(whole: Section, vocabulary: Mapping[str, int]) -> list[AddedToken]:
    """The added tokens, in the order of their ids."""
    added = []
    for fields in whole.get("added_tokens") or []:
        token = read_value(AddedToken, fields, "added_tokens")
        if vocabulary.get(token.content, token.id) != token.id:
            raise UserError(f"the added token {token.content!r} has the id {token.id}, but another one in the vocabulary")
        added.append(token)
    unused = gaps_in({**vocabulary, **{token.content: token.id for token in added}})
    if taken := next((name for name in unused if name in vocabulary), None):
        raise UserError(f"the id {unused[taken]} has no token, but its name would be that of another one, {taken}")
    return sorted([*added, *(AddedToken(name, i, special=True) for name, i in unused.items())], key=lambda token: token.id)


def _tokens(vocabulary: Mapping[str, int], added: Iterable[AddedToken]) -> list[str]:
    """All tokens, in the order of their ids."""
    return tokens_in_order({**vocabulary, **{token.content: token.id for token in added}})


def _ends(whole: Section) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and after a text."""
    templates = []
    for part in _parts(whole.get("post_processor"), "processors"):
        if part["type"] == "TemplateProcessing":
            allow(part, "the post-processor", single=..., pair=..., special_tokens=...)
            templates.append(_template_ends(part["single"], part["special_tokens"]))
        elif part["type"] in ("RobertaProcessing", "BertProcessing"):
            templates.append(([int(part["cls"][1])], [int(part["sep"][1])]))
        elif part["type"] != "ByteLevel":  # that one is about places in the text only
            raise Unsupported(f"the post-processor {shown(part['type'])}")
    if len(templates) > 1:
        raise Unsupported("several post-processors that add tokens")
    return templates[0] if templates else ([], [])


def _template_ends(template: list[Section], tokens: Section) -> tuple[list[int], list[int]]:
    ends: tuple[list[int], list[int]] = [], []
    places = [place for place, part in enumerate(template) if "Sequence" in part]
    if len(places) != 1 or any(len(part) != 1 for part in template):
        raise Unsupported(f"the template {shown(template)}, which does not have the text once")
    for place, part in enumerate(template):
        if "Sequence" not in part:
            ends[place > places[0]].extend(int(i) for i in tokens[part["SpecialToken"]["id"]]["ids"])
            if len(ends[0]) + len(ends[1]) > MOST_AROUND:
                raise Unsupported(f"a template with more than {MOST_AROUND} ids around the text")
    return ends


# ---------------------------------------------------------------------------------------------------- byte-level BPE


def _byte_pairs(whole: Section, model: Section, added: list[AddedToken]) -> BPETokenizer:
    allow(
        model,
        "the model",
        vocab=...,
        merges=...,
        unk_token=...,  # with all bytes among the tokens, nothing is unknown
        fuse_unk=...,
        dropout=(None, 0.0),
        continuing_subword_prefix=(None, ""),
        end_of_word_suffix=(None, ""),
        byte_fallback=(None, False),
        ignore_merges=(None, False, True),
    )
    decoder = whole.get("decoder")
    if not decoder or decoder["type"] != "ByteLevel":
        raise Unsupported(f"BPE with the decoder {shown(decoder and decoder['type'])}; there is byte-level BPE")
    rules = _cutting_rules(whole)
    vocabulary = model["vocab"]
    if not isinstance(model["merges"], list) or not all(isinstance(merge, str | list) for merge in model["merges"]):
        raise UserError("the merges are not a list of pairs")
    # Older files have "a b" for the merge of a and b, newer ones ["a", "b"].
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    added = _with_ordinary_ones(added, vocabulary, merges)
    tokens = _tokens(vocabulary, added)
    named = {token.id for token in added if not token.in_vocabulary}
    before, after = _ends(whole)
    return BPETokenizer(
        bytes_of_tokens(tokens, named),
        pairs_of_ids(merges, tokens, named),
        rules=rules,
        added=added,
        ignore_merges=bool(model.get("ignore_merges")),
        before=before,
        after=after,
    )


def _with_ordinary_ones(
    added: list[AddedToken], vocabulary: Mapping[str, int], merges: list[Sequence[str]]
) -> list[AddedToken]:
    """The added tokens; those that are ordinary tokens as well are marked. A special one is that only if it is a byte, or if a
    merge makes it: most vocabularies also list names such as <|endoftext|>, which no plain text should give."""
    listed = {token.content for token in added if token.content in vocabulary and can_be_hidden(token.content)}
    made = {whole for merge in merges if (whole := "".join(merge)) in listed} if listed else set()
    return [
        dataclasses.replace(token, in_vocabulary=not token.special or len(token.content) == 1 or token.content in made)
        if token.content in listed
        else token
        for token in added
    ]


def _cutting_rules(whole: Section) -> CuttingRules:
    forms = [part["type"] for part in _parts(whole.get("normalizer"), "normalizers")]
    if len(forms) > 1 or not set(forms) <= {"NFC", "NFD", "NFKC", "NFKD"}:
        raise Unsupported(f"the normalizer {shown(' and '.join(forms))} with BPE; there are NFC, NFD, NFKC and NFKD")
    parts = _parts(whole.get("pre_tokenizer"), "pretokenizers")
    if not parts or parts[-1]["type"] != "ByteLevel":
        raise Unsupported("a pre-tokenizer that does not end with ByteLevel; there is byte-level BPE")
    patterns = [_pattern(part) for part in parts[:-1]]
    last = parts[-1]
    allow(last, "ByteLevel", trim_offsets=..., add_prefix_space=(False, True), use_regex=(False, True))
    if last.get("use_regex", True):
        patterns.append(GPT2_WORDS)
    elif last["add_prefix_space"]:
        raise Unsupported("add_prefix_space = True of ByteLevel with use_regex = False")
    return CuttingRules(patterns, forms[0] if forms else "", last["add_prefix_space"])


def _pattern(part: Section) -> str:
    """The regular expression of a pre-tokenizer that makes each match a piece."""
    if part["type"] == "Digits":
        allow(part, "Digits", individual_digits=(False, True))
        return r"\p{N}" if part["individual_digits"] else r"\p{N}+"
    if part["type"] != "Split":
        raise Unsupported(f"the pre-tokenizer {shown(part['type'])}; there are Split, Digits and ByteLevel")
    allow(part, "Split", pattern=..., behavior=("Isolated",), invert=(False, True))  # a piece is a piece, inside and outside
    allow(part["pattern"], "the pattern of Split", Regex=...)
    pattern: str = part["pattern"]["Regex"]
    return pattern


# ---------------------------------------------------------------------------------------------- WordPiece, characters


def _wordpieces(whole: Section, model: Section, added: list[AddedToken]) -> WordPieceTokenizer:
    allow(model, "the model", vocab=..., unk_token=(UNKNOWN,), continuing_subword_prefix=("##",), max_input_chars_per_word=...)
    normalizer, cutter, decoder = whole["normalizer"], whole["pre_tokenizer"], whole["decoder"]
    for section, kind in ((normalizer, "BertNormalizer"), (cutter, "BertPreTokenizer"), (decoder, "WordPiece")):
        if not section or section["type"] != kind:
            raise Unsupported(f"WordPiece with {shown(section and section['type'])} instead of {kind}")
    lowercase = normalizer["lowercase"]
    allow(
        normalizer,
        "BertNormalizer",
        lowercase=(False, True),
        clean_text=(True,),
        handle_chinese_chars=(True,),
        strip_accents=(None, lowercase),
    )
    allow(decoder, "the decoder", prefix=("##",), cleanup=(False, True))
    before, after = _ends(whole)
    ours = WordPieceTokenizer(
        _tokens(model["vocab"], added),
        [name for name in _plain_names(added) if name not in SPECIAL],
        lowercase=lowercase,
        longest_word=read_value(int, model["max_input_chars_per_word"], "max_input_chars_per_word"),
        cleanup=decoder["cleanup"],
    )
    if not set(SPECIAL) <= {token.content for token in added}:
        raise Unsupported(f"WordPiece without the special tokens {', '.join(SPECIAL)}")
    if (before, after) not in (([], []), (list(ours.before), list(ours.after))):
        raise Unsupported("WordPiece with something other than [CLS] and [SEP] around a text")
    return ours


def _characters(whole: Section, model: Section, added: list[AddedToken]) -> CharTokenizer:
    """Our tokenizer of characters, as ``save_pretrained_tokenizer`` writes it."""
    allow(model, "the model", vocab=..., unk_token=...)
    names = _plain_names(added)
    tokens = _tokens(model["vocab"], added)
    characters = tokens[: len(tokens) - len(names)]
    kinds = [whole[key] and whole[key]["type"] for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")]
    if kinds != [None, "Split", None, "Fuse"] or _pattern(whole["pre_tokenizer"]) != EACH_CHARACTER:
        raise Unsupported("the model 'WordLevel' with other words than single characters")
    if tokens[len(characters) :] != names or characters != sorted(set(characters)) or model["unk_token"] in tokens:
        raise Unsupported("characters that are not in the order of their code points, or an unknown one")
    return CharTokenizer(characters, names)


def _plain_names(added: Iterable[AddedToken]) -> list[str]:
    """The names of special tokens without rules of their own. Raises Unsupported for others."""
    for token in added:
        if not token.special or token.single_word or token.lstrip or token.rstrip or token.normalized:
            raise Unsupported(
                f"the added token {token.content!r}, which has rules of its own, in a tokenizer without such rules"
            )
    return [token.content for token in added]
