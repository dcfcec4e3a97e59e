"""The tokenizer of a folder in Hugging Face's layout, by what lies in the folder; and writing one there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_json
from tinyformer.pretrained.adapter_settings import model_folder
from tinyformer.pretrained.folders import gguf_at
from tinyformer.pretrained.gguf_tokenizers import gguf_tokenizer
from tinyformer.tokenizers import BPETokenizer, MarianTokenizer, Tokenizer, WordPieceTokenizer
from tinyformer.tokenizers.cutting import CuttingRules
from tinyformer.tokenizers.tokenizer_json import read_tokenizer_json
from tinyformer.tokenizers.tokenizer_json_writing import write_tokenizer_files
from tinytensor.common.wording import a_or_an, counted

CONFIG = "tokenizer_config.json"

# What says how to write tokenizer.json, from which all details can be read.
_REMEDY = (
    "transformers writes one that says all: AutoTokenizer.from_pretrained(folder).save_pretrained(folder) makes tokenizer.json"
)


def pretrained_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a folder with the files of a published model.

    It may have source.spm, target.spm and vocab.json (Marian); tokenizer.json (BPE as in GPT-2, Llama, Mistral, Qwen, SmolLM2
    and RoBERTa; WordPiece); vocab.json and merges.txt (GPT-2); or vocab.txt (BERT). The first of these that is there counts.
    Without them it is the tokenizer of a GGUF file: ``folder`` itself, or the only one there; or that of the model which an
    adapter in the folder belongs to.

    Raises UserError if none is there, if a file is missing or damaged, or if it asks for something that is not supported. A
    warning of the logger "tinyformer" tells if it has another number of tokens than the model, as a file that was cut off has.
    """
    folder = Path(folder)
    tokenizer = _read(folder)
    if lacking := _lacking(tokenizer, folder):
        logging.getLogger("tinyformer").warning("%s: %s", folder, lacking)
    return tokenizer


def _read(folder: Path) -> Tokenizer:
    there = {name for name in ("source.spm", "tokenizer.json", "merges.txt", "vocab.txt") if (folder / name).exists()}
    if "source.spm" in there:
        return _marian(folder)
    if "tokenizer.json" in there:
        return read_tokenizer_json(folder / "tokenizer.json")
    if "merges.txt" in there:
        settings = _settings(folder, "GPT2Tokenizer")
        rules = CuttingRules(space_before=_switch(folder, settings, "add_prefix_space", False))
        return BPETokenizer.from_gpt2_files(folder / "vocab.json", folder / "merges.txt", rules)
    if "vocab.txt" in there:
        return _bert(folder)
    if (file := gguf_at(folder)) is not None:
        return gguf_tokenizer(file)
    if (base := model_folder(folder)) != folder:
        return pretrained_tokenizer(base)
    if found := [name for name in ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model") if (folder / name).exists()]:
        raise UserError(f"{folder} has {found[0]}, of SentencePiece, and no tokenizer.json; {_REMEDY}")
    raise UserError(
        f"{folder} has no tokenizer: looked for tokenizer.json; vocab.json and merges.txt (GPT-2); vocab.txt (BERT); "
        "source.spm, target.spm and vocab.json (Marian)"
    )


def _lacking(tokenizer: Tokenizer, folder: Path) -> str:
    """What a tokenizer seems to lack, in words: tokens that the model has, or merges that make its tokens. "" for nothing."""
    found = read_json(folder / "config.json").get("vocab_size") if (folder / "config.json").exists() else None
    there = tokenizer.vocab_size
    # Published models have some more outputs than tokens, as sizes that can be divided by 128 are faster.
    if isinstance(found, int) and not there <= found <= there + max(256, there // 10):
        return f"the tokenizer has {counted(there, 'token')}, but config.json says {found:,} (vocab_size): is a file cut off?"
    if isinstance(tokenizer, BPETokenizer) and not tokenizer.ignore_merges:
        made = tokenizer.num_made()
        if 2 * made < there - 256 - len(tokenizer.added) - len(tokenizer.special):
            return f"merges make only {made:,} of the tokenizer's {counted(there, 'token')}: is the file of merges cut off?"
    return ""


def save_pretrained_tokenizer(tokenizer: Tokenizer, folder: str | Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, with which transformers' ``AutoTokenizer.from_pretrained(folder)`` gives
    the same ids and the same text.

    The names of special tokens count as such there, as with ``allow_special`` here. Raises UserError for a tokenizer whose
    rules tokenizer.json cannot express, such as one of whole words, which guesses the spaces between them.
    """
    write_tokenizer_files(tokenizer, Path(folder))


def _marian(folder: Path) -> MarianTokenizer:
    settings = _read_settings(folder)
    separate = _switch(folder, settings, "separate_vocabs", False)
    files = ["vocab.json", "source.spm", "target.spm", *(["target_vocab.json"] if separate else [])]
    return MarianTokenizer.from_files(*(folder / name for name in files))


def _bert(folder: Path) -> WordPieceTokenizer:
    settings = _settings(folder, "BertTokenizer")
    lowercase = _switch(folder, settings, "do_lower_case", True)
    for key, allowed in (("strip_accents", (None, lowercase)), ("tokenize_chinese_chars", (True,)), ("never_split", (None,))):
        if settings.get(key, allowed[0]) not in allowed:
            raise UserError(
                f"{folder / CONFIG} asks for {key} = {shortened(repr(settings[key]), 40)}, which is not supported for vocab.txt"
            )
    return WordPieceTokenizer.from_vocab_file(folder / "vocab.txt", lowercase, cleanup=True)


def _settings(folder: Path, kind: str) -> dict[str, Any]:
    """The settings of a folder with the files of one kind of tokenizer. Raises UserError for another kind, whose rules differ
    though its files have the same names, and for added tokens."""
    settings = _read_settings(folder)
    name = str(settings.get("tokenizer_class", kind)).removesuffix("Fast")
    if name != kind:
        raise UserError(
            f"{folder} has no tokenizer.json, and only {kind} is known without; it has "
            f"{a_or_an(shortened(name, 40))}; {_REMEDY}"
        )
    if (folder / "added_tokens.json").exists():
        raise UserError(f"{folder} has no tokenizer.json, which would say what its added tokens are like; {_REMEDY}")
    return settings


def _read_settings(folder: Path) -> dict[str, Any]:
    return read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}


def _switch(folder: Path, settings: dict[str, Any], key: str, default: bool) -> bool:
    value = settings.get(key, default)
    if not isinstance(value, bool):
        raise UserError(f"{folder / CONFIG}: {key} must be true or false, not {shortened(repr(value), 40)}")
    return value
