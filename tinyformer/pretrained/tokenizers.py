"""The tokenizer of a folder in Hugging Face's layout, by what lies in the folder; and writing one there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_json, read_utf8
from tinyformer.pretrained.folders import gguf_at, model_folder
from tinyformer.pretrained.gguf_tokenizers import gguf_tokenizer
from tinyformer.pretrained.settings import PretrainedSettings
from tinyformer.pretrained.tokenizer_classes import CLASSES, CONFIG, ROLES, check_settings, class_name, content_of
from tinyformer.tokenizers import CharTokenizer, MarianTokenizer, PipelineTokenizer, Tokenizer
from tinyformer.tokenizers.pipeline import Around, Section, parts_of, read_from
from tinyformer.tokenizers.tokenizer_json import added_token, tokenizer_json, write_tokenizer_files
from tinytensor.common.wording import a_or_an, counted

# What says how to write tokenizer.json, from which all details can be read.
REMEDY = (
    "transformers writes one that says all: AutoTokenizer.from_pretrained(folder).save_pretrained(folder) makes tokenizer.json"
)


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


# ------------------------------------------------------------------------------------------- as its class and its settings say


def published_tokenizer(folder: Path) -> PipelineTokenizer | CharTokenizer:
    """The tokenizer of tokenizer.json, or of vocab.json and merges.txt, or of vocab.txt, as its class and its settings say. One
    of characters, as ``save_pretrained_tokenizer`` writes it, becomes a CharTokenizer.

    Raises UserError if a file is damaged, for a class that is not known without tokenizer.json, and for settings that are not
    supported.
    """
    path = folder / "tokenizer.json"
    file = read_json(path) if path.exists() else None
    settings = settings_of(folder)
    config = json_of(folder, "config.json")
    with read_from(folder if file is None else path, folder):
        if file and file["model"].get("type") == "WordLevel" and (characters := _characters(file)) is not None:
            return characters
        name = class_name(settings, config, _is_of_bytes(file or {}))
        if not (name or file or config.get("model_type")):
            name = "GPT2Tokenizer" if (folder / "merges.txt").exists() else "BertTokenizer"
        check_settings(name, settings, file)
        if name in CLASSES and (file or CLASSES[name].own_files):
            tokenizer = _of_class(folder, name, settings, file)
        elif file is not None:
            there = {token["content"] for token in file.get("added_tokens") or []}
            tokenizer = PipelineTokenizer(file, _added(folder, settings, file, there))
        else:
            whose = a_or_an(shortened(name, 40)) if name else f"model_type {shortened(repr(config['model_type']), 40)}"
            known = ", ".join(name for name, rules in CLASSES.items() if rules.own_files)
            raise UserError(f"{folder} has no tokenizer.json, and only {known} are known without; it has {whose}; {REMEDY}")
        _check_ids(tokenizer, folder, settings)
    return tokenizer


def _characters(file: Section) -> CharTokenizer | None:
    special = [token["content"] for token in file["added_tokens"]]
    tokens = list(file["model"]["vocab"])
    characters = tokens[: len(tokens) - len(special)]
    if not characters or any(len(token) != 1 for token in characters):
        return None
    tokenizer = CharTokenizer(characters, special)
    written = tokenizer_json(tokenizer)
    return tokenizer if all(written[key] == file[key] for key in ("model", "added_tokens", "pre_tokenizer")) else None


def json_of(folder: Path, name: str) -> dict[str, Any]:
    """The content of a JSON file in a folder; empty where there is none."""
    return read_json(folder / name) if (folder / name).exists() else {}


def _of_class(folder: Path, name: str, settings: PretrainedSettings, file: Section | None) -> PipelineTokenizer:
    rules = CLASSES[name]
    if file is not None and (model := file["model"].get("type", rules.model)) != rules.model:
        problem = f"tokenizer_class is {name}, but tokenizer.json has the model {shortened(repr(model), 40)}"
        raise settings.error(f'{problem}: set tokenizer_class to "PreTrainedTokenizerFast" to read it as it is')
    files = _files(folder, name) if file is None else {"merges": [], **file, **file["model"]}
    whole = PretrainedSettings(settings.path, {**rules.tokens, **settings.values})
    if null := [role for role in rules.ends if whole.values[role] is None]:
        raise settings.error(f"{null[0]} is null, and that token belongs around a text")
    added = _added(folder, whole, file or {}, set())
    if name == "Qwen2Tokenizer":
        added += [added_token(content_of(token)) for tokens in _special(whole.values) for token in tokens]
    ends: Section | None = (file or {}).get("post_processor")
    around: Around | None = None
    if rules.ends:
        around = _named(whole, rules.ends[0]), _named(whole, rules.ends[1])
    elif file is None or ends is None or name == "GPTNeoXTokenizer":
        adds = (file is None and settings.read(bool, f"add_{role}_token", False) for role in ("bos", "eos"))
        before, after = (_named(whole, f"{role}_token") if add else [] for role, add in zip(("bos", "eos"), adds))
        around = before, after
    content = {"version": "1.0", "added_tokens": [], "post_processor": ends, **rules.sections(files, settings)}
    return PipelineTokenizer(content, added, around)


def _named(settings: PretrainedSettings, role: str) -> list[str]:
    token = settings.values.get(role)
    return [] if token is None else [content_of(token)]


def _files(folder: Path, name: str) -> Section:
    """The vocabulary and the merges of a folder without tokenizer.json, for a class that can do without."""
    files = CLASSES[name].own_files
    if missing := [file for file in files if not (folder / file).exists()]:
        needs = f"which {a_or_an(name)} needs where there is no tokenizer.json"
        raise UserError(f"{folder} has no {' and no '.join(missing)}, {needs}; {REMEDY}")
    if files == ("vocab.txt",):
        lines = read_utf8(folder / "vocab.txt", "pass BERT's vocab.txt").split("\n")  # splitlines would cut at rare characters
        return {"vocab": {line.rstrip(): i for i, line in enumerate(lines[:-1] if lines[-1] == "" else lines)}}
    vocabulary = read_json(folder / "vocab.json")
    lines = read_utf8(folder / "merges.txt", "pass the folder that holds merges.txt").split("\n")
    merges = [line.split(" ") for line in lines if line.strip() and not line.startswith("#version")]
    return {"vocab": vocabulary, "merges": merges}


def settings_of(folder: Path) -> PretrainedSettings:
    """The settings of a tokenizer, with what special_tokens_map.json says where they do not list the added tokens."""
    settings = json_of(folder, CONFIG)
    if "additional_special_tokens" in settings and not settings.get("extra_special_tokens"):
        settings["extra_special_tokens"] = settings.pop("additional_special_tokens")
    if "added_tokens_decoder" not in settings:
        roles = json_of(folder, "special_tokens_map.json")
        extra = roles.pop("additional_special_tokens", None)
        settings |= roles
        settings["extra_special_tokens"] = settings.get("extra_special_tokens") or extra
    return PretrainedSettings(folder / CONFIG, settings)


def _is_of_bytes(file: Section) -> bool:
    parts = [*parts_of(file.get("pre_tokenizer"), "pretokenizers"), *parts_of(file.get("decoder"), "decoders")]
    return any(part["type"] == "ByteLevel" for part in parts)


def _special(values: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """The special tokens in the settings: those with a role, the usual ones first, and the others."""
    extra = values.get("extra_special_tokens") or []
    names = [*ROLES, *(key for key in values if key.endswith("_token") and key not in ROLES)]
    roles = [values[key] for key in names if isinstance(values.get(key), str | dict)]
    return ([*roles, *extra.values()], []) if isinstance(extra, dict) else (roles, list(extra))


def _added(folder: Path, settings: PretrainedSettings, file: Section, there: set[str]) -> list[Section]:
    """The added tokens that the settings and the other files list, and then the special ones that are not among them, nor
    ``there``."""
    roles, extra = _special(settings.values)
    listed: dict[int, Section] = {int(i): _token(token) for i, token in settings.values.get("added_tokens_decoder", {}).items()}
    if "added_tokens_decoder" not in settings.values:
        is_special = {content_of(token) for tokens in _special(settings.values) for token in tokens}
        for content, i in json_of(folder, "added_tokens.json").items():
            listed[i] = added_token(content, content in is_special, normalized=content not in is_special)
        listed |= {token["id"]: _token(token) for token in file.get("added_tokens") or []}
    added = {token["content"]: token for _, token in sorted(listed.items())}
    for content in added.keys() & {content_of(token) for token in roles}:
        added[content] = {**added[content], "special": True}
    for token in (*roles, *extra):
        if content_of(token) not in {*added, *there}:
            added[content_of(token)] = added_token(token) if isinstance(token, str) else {**_token(token), "special": True}
    return list(added.values())


def _token(token: Mapping[str, Any]) -> Section:
    """An added token of the settings as the package describes it."""
    keys = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {key: token[key] for key in keys if key in token}


def _check_ids(tokenizer: PipelineTokenizer, folder: Path, settings: PretrainedSettings) -> None:
    listed = {token["content"]: int(i) for i, token in settings.values.get("added_tokens_decoder", {}).items()}
    ids = {content: i for i, content in tokenizer.added.items()}
    for content, i in (listed or json_of(folder, "added_tokens.json")).items():
        if ids.get(content) != i:
            name = shortened(repr(content), 40)
            raise settings.error(f"the added token {name} has the id {i}, but {ids.get(content)} in transformers; {REMEDY}")
