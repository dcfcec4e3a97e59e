"""Writing tokenizer.json and tokenizer_config.json, with which transformers' AutoTokenizer loads a tokenizer of ours."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.common.files import write_json
from tinyformer.tokenizers.added import AddedToken
from tinyformer.tokenizers.base import Tokenizer
from tinyformer.tokenizers.bpe import BPETokenizer
from tinyformer.tokenizers.char import CharTokenizer
from tinyformer.tokenizers.cutting import CuttingRules
from tinyformer.tokenizers.patterns import GPT2_WORDS
from tinyformer.tokenizers.pipeline import PipelineTokenizer
from tinyformer.tokenizers.sections import Section
from tinyformer.tokenizers.special import BEGIN, CLASSIFY, END, MASK, PADDING, SEPARATE, UNKNOWN
from tinyformer.tokenizers.tokenizer_json import EACH_CHARACTER
from tinyformer.tokenizers.wordpiece import WordPieceTokenizer
from tinytensor.device.disk import make_folder

# What transformers calls the tokens that have these names.
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
    """The content of a tokenizer.json. Raises UserError for a tokenizer whose rules such a file cannot express."""
    raise UserError(
        f"a tokenizer of the kind {tokenizer.kind!r} cannot be written for transformers: tokenizer.json has no rules for how "
        "it joins tokens; train one of byte pairs, WordPieces or characters"
    )


def write_tokenizer_files(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json to a folder, which is made if need be."""
    content = tokenizer_json(tokenizer)
    make_folder(folder)
    write_json(folder / "tokenizer.json", content)
    write_json(folder / "tokenizer_config.json", _config(tokenizer))


def _config(tokenizer: Tokenizer) -> Section:
    """The settings for transformers: its class for a tokenizer of any kind, and the roles of the special tokens."""
    roles: dict[str, str] = {}
    others = []
    for name in tokenizer.special:
        free = [role for role in _ROLES.get(name, ()) if role not in roles]
        roles |= dict.fromkeys(free, name)
        if not free:
            others.append(name)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **roles,
        **({"additional_special_tokens": others} if others else {}),
    }


def _whole(added: Iterable[AddedToken], **sections: Any) -> Section:
    keys = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
    listed = [{key: getattr(token, key) for key in keys} for token in sorted(added, key=lambda token: token.id)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": listed, **sections}


def _around(tokens: list[str], before: Iterable[int], after: Iterable[int]) -> Section | None:
    """The post-processor that puts tokens around a text; None where there are none."""
    before, after = list(before), list(after)
    if not before and not after:
        return None
    ends = {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in (*before, *after)}

    def template(texts: str) -> list[Section]:
        start = [{"SpecialToken": {"id": tokens[i], "type_id": 0}} for i in before]
        # As in BERT, a second text follows the end of the first, and has an end of its own.
        for kind, text in enumerate(texts):
            start.append({"Sequence": {"id": text, "type_id": kind}})
            start += [{"SpecialToken": {"id": tokens[i], "type_id": kind}} for i in after]
        return start

    return {"type": "TemplateProcessing", "single": template("A"), "pair": template("AB"), "special_tokens": ends}


def _special_tokens(tokenizer: Tokenizer) -> list[AddedToken]:
    return [AddedToken(name, i, special=True) for name, i in tokenizer.special.items()]


# ---------------------------------------------------------------------------------------------------- byte-level BPE


@tokenizer_json.register
def _byte_pairs(tokenizer: BPETokenizer) -> Section:
    with_rules = {token.content for token in tokenizer.added}
    added = tokenizer.added + [token for token in _special_tokens(tokenizer) if token.content not in with_rules]
    tokens = tokenizer.shown_tokens()
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise UserError(f"tokenizer.json cannot tell the special token {twice!r} from an ordinary token that is written alike")
    named = {token.id for token in added if not token.in_vocabulary}
    size = 1 + max(
        i for i in range(len(tokens)) if i not in named or i == tokenizer.unknown
    )  # names after all ordinary tokens are no part of the model
    return _whole(
        added,
        normalizer={"type": tokenizer.rules.normal_form} if tokenizer.rules.normal_form else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": _cutters(tokenizer.rules)},
        post_processor=_around(tokens, tokenizer.before, tokenizer.after),
        decoder={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        model={
            "type": "BPE",
            "dropout": None,
            "unk_token": None if tokenizer.unknown is None else tokens[tokenizer.unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": tokenizer.fuse_unknown,
            "byte_fallback": False,
            "ignore_merges": tokenizer.ignore_merges,
            "vocab": {token: i for token, i in ids.items() if i < size},
            "merges": [[tokens[left], tokens[right]] for left, right in tokenizer.merges],
        },
    )


def _cutters(rules: CuttingRules) -> list[Section]:
    """The pre-tokenizers that cut as the rules do."""
    own = bool(rules.patterns) and rules.patterns[-1] == GPT2_WORDS  # ByteLevel has GPT-2's pattern
    if rules.space_before and not own:
        raise UserError("tokenizer.json has a space before each piece only where GPT-2's pattern is the last")
    last = {"type": "ByteLevel", "add_prefix_space": rules.space_before, "trim_offsets": True, "use_regex": own}
    return [*map(_isolated, rules.patterns[:-1] if own else rules.patterns), last]


def _isolated(pattern: str) -> Section:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# ----------------------------------------------------------------------------------- pipelines, WordPiece, characters


@tokenizer_json.register
def _pipeline(tokenizer: PipelineTokenizer) -> Section:
    return tokenizer.content


@tokenizer_json.register
def _wordpieces(tokenizer: WordPieceTokenizer) -> Section:
    return _whole(
        _special_tokens(tokenizer),
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": tokenizer.lowercase,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=_around(tokenizer.tokens, tokenizer.before, tokenizer.after),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": tokenizer.cleanup},
        model={
            "type": "WordPiece",
            "unk_token": UNKNOWN,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": tokenizer.longest_word,
            "vocab": {token: i for i, token in enumerate(tokenizer.tokens)},
        },
    )


@tokenizer_json.register
def _characters(tokenizer: CharTokenizer) -> Section:
    special = _special_tokens(tokenizer)
    if any(name in tokenizer.characters for name in tokenizer.special):
        raise UserError("tokenizer.json cannot tell a special token of one character from the character: name it otherwise")
    tokens = [*tokenizer.characters, *tokenizer.special]
    return _whole(
        special,
        normalizer=None,
        pre_tokenizer=_isolated(EACH_CHARACTER),
        post_processor=None,
        decoder={"type": "Fuse"},
        # An unknown character is an error, as the token for it is none.
        model={"type": "WordLevel", "vocab": {token: i for i, token in enumerate(tokens)}, "unk_token": ""},
    )
