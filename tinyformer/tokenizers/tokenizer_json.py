"""Reading tokenizer.json, the file in which Hugging Face's ``tokenizers`` describes a tokenizer.

Such a file is a small program: a normalizer, a pre-tokenizer, a model, a post-processor and a decoder, each with settings.
Byte-level byte pairs (GPT-2, Llama 3, Qwen, SmolLM2), BERT's WordPieces and our characters have classes of their own; a
``PipelineTokenizer`` does what other files say. Whatever cannot be done is refused, with its name: a tokenizer that is nearly
right gives a model nonsense to read.

The two libraries know different versions of Unicode. Characters that are new in one of them may be cut in different ways.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from tinyformer.common.files import damaged, read_json
from tinyformer.common.schema import read_value
from tinyformer.tokenizers.added import AddedToken
from tinyformer.tokenizers.bpe import BPETokenizer, bytes_of_tokens, pairs_of_ids
from tinyformer.tokenizers.byte_letters import can_be_hidden, shown
from tinyformer.tokenizers.char import CharTokenizer
from tinyformer.tokenizers.cutting import CuttingRules
from tinyformer.tokenizers.patterns import GPT2_WORDS
from tinyformer.tokenizers.pipeline import PipelineTokenizer, check_sections, tokens_of
from tinyformer.tokenizers.sections import Section, Unsupported, added_tokens, allow, ends, parts, supported
from tinyformer.tokenizers.special import UNKNOWN
from tinyformer.tokenizers.word_models import kind_of, merges_of, unknown_of
from tinyformer.tokenizers.wordpiece import SPECIAL, WordPieceTokenizer

EACH_CHARACTER = r"[\s\S]"
Read = BPETokenizer | WordPieceTokenizer | CharTokenizer | PipelineTokenizer


def read_tokenizer_json(path: str | Path) -> Read:
    """The tokenizer of a tokenizer.json. What the file says on truncating and padding is left to the caller.

    Raises UserError, which names the file, if it is missing or damaged, or asks for something that is not supported.
    """
    return tokenizer_of(read_json(Path(path)), path)


def tokenizer_of(whole: Section, path: str | Path) -> Read:
    """The tokenizer that the content of a tokenizer.json describes, or that of another file, ``path``, in these words. Raises
    UserError, which names the file, as ``read_tokenizer_json`` does."""
    with supported(path), damaged(path):
        tokenizer = _read(whole)
    if isinstance(tokenizer, BPETokenizer | PipelineTokenizer):
        tokenizer.file = path
    return tokenizer


def _read(whole: Section) -> Read:
    """The tokenizer of the class for its kind, or else the one that does what the file says."""
    check_sections(whole)
    model = whole["model"]
    kind = kind_of(model)
    tokenizer: Read | None = None
    if kind == "BPE":
        tokenizer = _byte_pairs(whole, model)
    elif kind == "WordPiece":
        tokenizer = _wordpieces(whole, model)
    elif kind == "WordLevel":
        tokenizer = _characters(whole, model, added_tokens(whole, model["vocab"]))
    return PipelineTokenizer(whole) if tokenizer is None else tokenizer


# ---------------------------------------------------------------------------------------------------- byte-level BPE


def _byte_pairs(whole: Section, model: Section) -> BPETokenizer | None:
    """A tokenizer of byte pairs, or None if the file asks for something else besides."""
    decoder, rules = whole.get("decoder"), _cutting_rules(whole)
    other = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if rules is None or not decoder or decoder["type"] != "ByteLevel" or any(model.get(key) for key in other):
        return None
    vocabulary, merges = model["vocab"], merges_of(model)
    added = _with_ordinary_ones(added_tokens(whole, vocabulary), vocabulary, merges)
    tokens = tokens_of(vocabulary, added)
    named = {token.id for token in added if not token.in_vocabulary}
    if not all(can_be_hidden(token) for i, token in enumerate(tokens) if i not in named):
        return None
    before, after = ends(whole)
    return BPETokenizer(
        bytes_of_tokens(tokens, named),
        pairs_of_ids(merges, tokens, named),
        rules=rules,
        added=added,
        ignore_merges=bool(model.get("ignore_merges")),
        before=before,
        after=after,
        unknown=None if all(shown(bytes([byte])) in vocabulary for byte in range(256)) else unknown_of(model),
        fuse_unknown=bool(model.get("fuse_unk")),
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


def _cutting_rules(whole: Section) -> CuttingRules | None:
    """The rules that cut a text, or None if they are more than ``CuttingRules`` can say."""
    forms = [part["type"] for part in parts(whole.get("normalizer"), "normalizers")]
    cutters = parts(whole.get("pre_tokenizer"), "pretokenizers")
    if len(forms) > 1 or not set(forms) <= {"NFC", "NFD", "NFKC", "NFKD"} or not cutters or cutters[-1]["type"] != "ByteLevel":
        return None
    patterns = [_pattern(part) for part in cutters[:-1]]
    space_before, own = cutters[-1]["add_prefix_space"], cutters[-1].get("use_regex", True)
    if None in patterns or (space_before and not own):
        return None
    known = [pattern for pattern in patterns if pattern is not None]
    return CuttingRules([*known, *([GPT2_WORDS] if own else [])], forms[0] if forms else "", space_before)


def _pattern(part: Section) -> str | None:
    """The regular expression of a pre-tokenizer that makes each match a piece, and what lies between two; None for others."""
    if part["type"] == "Digits":
        return r"\p{N}" if part["individual_digits"] else r"\p{N}+"
    if part["type"] == "Split" and part["behavior"] == "Isolated":
        pattern: str | None = part["pattern"].get("Regex")
        return pattern
    return None


# ---------------------------------------------------------------------------------------------- WordPiece, characters


def _wordpieces(whole: Section, model: Section) -> WordPieceTokenizer | None:
    """BERT's tokenizer, or None if the file asks for something else."""
    normalizer, cutter, decoder = (whole.get(name) or {} for name in ("normalizer", "pre_tokenizer", "decoder"))
    lowercase = normalizer.get("lowercase")
    is_berts = [
        normalizer.get("type") == "BertNormalizer" and normalizer["clean_text"] and normalizer["handle_chinese_chars"],
        normalizer.get("strip_accents") in (None, lowercase) and cutter.get("type") == "BertPreTokenizer",
        decoder.get("type") == "WordPiece" and decoder["prefix"] == model["continuing_subword_prefix"] == "##",
        model["unk_token"] == UNKNOWN,
    ]
    added = added_tokens(whole, model["vocab"])
    if not all(is_berts) or not set(SPECIAL) <= {token.content for token in added} or any(map(_has_rules, added)):
        return None
    ours = WordPieceTokenizer(
        tokens_of(model["vocab"], added),
        [token.content for token in added if token.content not in SPECIAL],
        lowercase=read_value(bool, lowercase, "lowercase"),
        longest_word=read_value(int, model["max_input_chars_per_word"], "max_input_chars_per_word"),
        cleanup=decoder["cleanup"],
    )
    return ours if ends(whole) in (([], []), (list(ours.before), list(ours.after))) else None


def _characters(whole: Section, model: Section, added: list[AddedToken]) -> CharTokenizer:
    """Our tokenizer of characters, as ``save_pretrained_tokenizer`` writes it."""
    allow(model, "the model", vocab=..., unk_token=...)
    if any(map(_has_rules, added)):
        raise Unsupported("an added token with rules of its own, in a tokenizer of characters")
    names = [token.content for token in added]
    tokens = tokens_of(model["vocab"], added)
    characters = tokens[: len(tokens) - len(names)]
    kinds = [whole[key] and whole[key]["type"] for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")]
    if kinds != [None, "Split", None, "Fuse"] or _pattern(whole["pre_tokenizer"]) != EACH_CHARACTER:
        raise Unsupported("the model 'WordLevel' with other words than single characters")
    if tokens[len(characters) :] != names or characters != sorted(set(characters)) or model["unk_token"] in tokens:
        raise Unsupported("characters that are not in the order of their code points, or an unknown one")
    return CharTokenizer(characters, names)


def _has_rules(token: AddedToken) -> bool:
    """Whether an added token is more than a special one that is found wherever it stands."""
    return not token.special or token.single_word or token.lstrip or token.rstrip or token.normalized
