"""What the class of a published tokenizer implies: how it normalizes and cuts a text, and which special tokens it has.

transformers builds a tokenizer of these classes from the vocabulary, the merges and the settings of tokenizer_config.json, also
where a tokenizer.json says something else. So does this. Another class is a row of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinyformer.common.errors import shortened
from tinyformer.pretrained.settings import PretrainedSettings
from tinyformer.tokenizers.pipeline import Section, parts_of
from tinyformer.tokenizers.tokenizer_json import (
    BYTE_LEVEL,
    METASPACE,
    QWEN2_WORDS,
    added_token,
    berts,
    characters_decoder,
    split_by,
)

CONFIG = "tokenizer_config.json"
GENERIC = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")  # whatever tokenizer.json says
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerClass:
    """``sections`` makes those of a tokenizer.json, of the files and the settings: the files have a ``vocab``, and may have
    ``merges`` and a ``normalizer``. ``tokens`` are the special tokens where the settings name no others. ``ends`` names the
    two around a text that such a tokenizer always has. ``own_files`` are what it has where there is no tokenizer.json."""

    model: str
    sections: Callable[[Section, PretrainedSettings], Section]
    tokens: Mapping[str, Any] = field(default_factory=dict)
    ends: tuple[str, ...] = ()
    own_files: tuple[str, ...] = ("vocab.json", "merges.txt")


def _berts(files: Section, settings: PretrainedSettings) -> Section:
    return berts(
        files["vocab"],
        settings.read(bool, "do_lower_case", True),
        content_of(settings.values.get("unk_token", "[UNK]")),
        cleanup=True,
        strip_accents=None if settings.values.get("strip_accents") is None else settings.read(bool, "strip_accents"),
        handle_chinese_chars=settings.read(bool, "tokenize_chinese_chars", True),
    )


def _byte_pairs(pattern: str | None = None, normal_form: str = "") -> Callable[[Section, PretrainedSettings], Section]:
    def sections(files: Section, settings: PretrainedSettings) -> Section:
        has_space = settings.read(bool, "add_prefix_space", False)
        gpt2s = {**BYTE_LEVEL, "add_prefix_space": has_space, "use_regex": True}
        return {
            "normalizer": {"type": normal_form} if normal_form else None,
            "pre_tokenizer": split_by(pattern, space_before=has_space) if pattern else gpt2s,
            "decoder": BYTE_LEVEL,
            "model": {"type": "BPE", "vocab": files["vocab"], "merges": files["merges"]},
        }

    return sections


def _llamas(files: Section, settings: PretrainedSettings) -> Section:
    has_space = settings.read(bool, "add_prefix_space", True)
    where = "never" if not has_space else "always" if settings.read(bool, "legacy", False) else "first"
    flags = {"fuse_unk": True, "byte_fallback": True}
    return {
        "normalizer": None,
        "pre_tokenizer": {**METASPACE, "prepend_scheme": where, "split": False},
        "decoder": characters_decoder(has_space),
        "model": {"type": "BPE", "vocab": files["vocab"], "merges": files["merges"], **flags},
    }


def _gemmas(files: Section, settings: PretrainedSettings) -> Section:
    flags = {"fuse_unk": True, "byte_fallback": True, "unk_token": content_of(settings.values.get("unk_token", "<unk>"))}
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": METASPACE["replacement"]},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "decoder": characters_decoder(has_space=False),
        "model": {"type": "BPE", "vocab": files["vocab"], "merges": files["merges"], **flags},
    }


def _xlm_robertas(files: Section, settings: PretrainedSettings) -> Section:
    marks = {
        **METASPACE,
        "prepend_scheme": "always" if settings.read(bool, "add_prefix_space", True) else "never",
        "split": True,
    }
    normalizers = parts_of(files.get("normalizer"), "normalizers")
    return {
        "normalizer": next((part for part in normalizers if part["type"] == "Precompiled"), None),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, marks]},
        "decoder": marks,
        "model": {"type": "Unigram", "vocab": files["vocab"], "unk_id": 3, "byte_fallback": False},
    }


_ENDS, _VOCABULARY = ("cls_token", "sep_token"), ("vocab.txt",)
_BERTS = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_LLAMAS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_GEMMAS = {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"}
_ROBERTAS = {**_LLAMAS, "sep_token": "</s>", "cls_token": "<s>", "pad_token": "<pad>", "mask_token": "<mask>"}
_MPNETS = {**_ROBERTAS, "unk_token": "[UNK]", "mask_token": added_token("<mask>", lstrip=True)}
_GPT2S = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
_QWENS = dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>")
CLASSES = {
    "BertTokenizer": TokenizerClass("WordPiece", _berts, _BERTS, _ENDS, _VOCABULARY),
    "DistilBertTokenizer": TokenizerClass("WordPiece", _berts, _BERTS, _ENDS, _VOCABULARY),
    "MPNetTokenizer": TokenizerClass("WordPiece", _berts, _MPNETS, _ENDS, _VOCABULARY),
    "GPT2Tokenizer": TokenizerClass("BPE", _byte_pairs(), _GPT2S),
    "RobertaTokenizer": TokenizerClass("BPE", _byte_pairs(), _ROBERTAS, _ENDS),
    "Qwen2Tokenizer": TokenizerClass("BPE", _byte_pairs(QWEN2_WORDS, "NFC"), _QWENS),
    "GPTNeoXTokenizer": TokenizerClass("BPE", _byte_pairs(normal_form="NFC"), {**_GPT2S, "pad_token": "<|padding|>"}),
    "XLMRobertaTokenizer": TokenizerClass("Unigram", _xlm_robertas, _ROBERTAS, ("bos_token", "eos_token"), ()),
    "LlamaTokenizer": TokenizerClass("BPE", _llamas, _LLAMAS, own_files=()),
    "GemmaTokenizer": TokenizerClass("BPE", _gemmas, _GEMMAS, own_files=()),
}
# The class of a model whose settings name none.
OF_MODELS = {
    "bert": "BertTokenizer", "electra": "BertTokenizer", "distilbert": "BertTokenizer", "mpnet": "MPNetTokenizer",
    "gpt2": "GPT2Tokenizer", "roberta": "RobertaTokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer", "xlm-roberta": "XLMRobertaTokenizer", "mistral": "TokenizersBackend",
    "phi3": "TokenizersBackend", "gemma": "GemmaTokenizer",
}  # fmt: skip


def class_name(settings: PretrainedSettings, config: Mapping[str, Any], of_bytes: bool) -> str:
    """The name of the class that transformers takes; "" if nothing tells it. ``of_bytes``: whether tokenizer.json has a part
    ByteLevel."""
    declared = str(settings.values.get("tokenizer_class") or config.get("tokenizer_class") or "").removesuffix("Fast")
    registered = OF_MODELS.get(str(config.get("model_type")), "")
    if registered in GENERIC or config.get("model_type") == "qwen2":  # of which many files name a wrong class
        return registered
    return GENERIC[0] if declared == "LlamaTokenizer" and of_bytes else declared or registered


def check_settings(name: str, settings: PretrainedSettings, file: Section | None) -> None:
    """Raise UserError for settings that would change ids and that are not supported."""
    unsupported = {
        "split_special_tokens": (None, False), "never_split": (None, []), "do_basic_tokenize": (None, True),
        "fix_mistral_regex": (None, False),
    }  # fmt: skip
    for key, allowed in unsupported.items():
        if settings.values.get(key) not in allowed:
            raise settings.error(f"{key} = {shortened(repr(settings.values[key]), 40)} is not supported")
    if name in CLASSES or name in GENERIC or file is None:
        return
    lowers = [part.get("lowercase", True) for part in parts_of(file.get("normalizer"), "normalizers")
              if part["type"] in ("Lowercase", "BertNormalizer")]  # fmt: skip
    cutters = parts_of(file.get("pre_tokenizer"), "pretokenizers")
    spaces = [part.get("prepend_scheme", "always") != "never" for part in cutters if part["type"] == "Metaspace"]
    spaces += [part["add_prefix_space"] for part in cutters if part["type"] == "ByteLevel"]
    for key, there in (("do_lower_case", any(lowers)), ("add_prefix_space", any(spaces))):
        if settings.read(bool, key, there) is not there:
            raise settings.error(f"{key} = {not there} contradicts tokenizer.json, and which counts for a {name} is not known")


def content_of(token: Any) -> str:
    """The text of a special token in the settings: a string, or what is known of an added token."""
    return str(token["content"] if isinstance(token, Mapping) else token)
