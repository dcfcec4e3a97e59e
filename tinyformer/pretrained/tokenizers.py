"""The tokenizer of a folder in Hugging Face's layout, by what lies in the folder; and writing one there."""

from __future__ import annotations

import logging
from pathlib import Path

from tinyformer.common.errors import UserError
from tinyformer.pretrained.adapter_settings import model_folder
from tinyformer.pretrained.folders import gguf_at
from tinyformer.pretrained.gguf_tokenizers import gguf_tokenizer
from tinyformer.pretrained.published_tokenizers import REMEDY, json_of, published_tokenizer
from tinyformer.pretrained.settings import PretrainedSettings
from tinyformer.pretrained.tokenizer_classes import CONFIG
from tinyformer.tokenizers import MarianTokenizer, PipelineTokenizer, Tokenizer
from tinyformer.tokenizers.tokenizer_json import write_tokenizer_files
from tinytensor.common.wording import counted


def pretrained_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a folder with the files of a published model.

    It may have source.spm, target.spm and vocab.json (Marian); tokenizer.json; vocab.json and merges.txt (GPT-2, RoBERTa,
    Qwen); or vocab.txt (BERT). The first of these that is there counts, with the settings and tokens that
    tokenizer_config.json, added_tokens.json and special_tokens_map.json name. Without them it is the tokenizer of a GGUF file:
    ``folder`` itself, or the only one there; or that of the model which an adapter in the folder belongs to.

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
    if there:
        return published_tokenizer(folder)
    if (file := gguf_at(folder)) is not None:
        return gguf_tokenizer(file)
    if (base := model_folder(folder)) != folder:
        return pretrained_tokenizer(base)
    if found := [name for name in ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model") if (folder / name).exists()]:
        raise UserError(f"{folder} has {found[0]}, of SentencePiece, and no tokenizer.json; {REMEDY}")
    raise UserError(
        f"{folder} has no tokenizer: looked for tokenizer.json; vocab.json and merges.txt (GPT-2); vocab.txt (BERT); "
        "source.spm, target.spm and vocab.json (Marian)"
    )


def _lacking(tokenizer: Tokenizer, folder: Path) -> str:
    """What a tokenizer seems to lack, in words: tokens that the model has, or merges that make its tokens. "" for nothing."""
    found = json_of(folder, "config.json").get("vocab_size")
    there = tokenizer.vocab_size
    # Published models have some more outputs than tokens, as sizes that can be divided by 128 are faster.
    if isinstance(found, int) and not there <= found <= there + max(256, there // 10):
        return f"the tokenizer has {counted(there, 'token')}, but config.json says {found:,} (vocab_size): is a file cut off?"
    if isinstance(tokenizer, PipelineTokenizer) and tokenizer.num_merges is not None:
        merges, tokens = counted(tokenizer.num_merges, "merge"), counted(there, "token")
        if 2 * tokenizer.num_merges < there - 256 - len(tokenizer.added):
            return f"there are only {merges} for the tokenizer's {tokens}: is the file of merges cut off?"
    return ""


def save_pretrained_tokenizer(tokenizer: Tokenizer, folder: str | Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, with which transformers' ``AutoTokenizer.from_pretrained(folder)`` gives
    the same ids and the same text.

    The names of special tokens count as such there, as with ``allow_special`` here. Raises UserError for a tokenizer whose
    rules tokenizer.json cannot express, such as one of whole words, which guesses the spaces between them.
    """
    write_tokenizer_files(tokenizer, Path(folder))


def _marian(folder: Path) -> MarianTokenizer:
    separate = PretrainedSettings(folder / CONFIG, json_of(folder, CONFIG)).read(bool, "separate_vocabs", False)
    files = ["vocab.json", "source.spm", "target.spm", *(["target_vocab.json"] if separate else [])]
    return MarianTokenizer.from_files(*(folder / name for name in files))
