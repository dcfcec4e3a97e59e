"""Load and save tokenizers in Hugging Face format, with the behavior of transformers.

For the classes in ``CLASSES``, transformers builds the tokenizer from the vocabulary, the merges and tokenizer_config.json,
even if tokenizer.json differs. So does this module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_json, read_utf8
from tinyformer.pretrained.families import PretrainedSettings
from tinyformer.pretrained.folders import gguf_at, model_folder
from tinyformer.pretrained.gguf_tokenizers import gguf_tokenizer
from tinyformer.tokenizers import CharTokenizer, MarianTokenizer, PipelineTokenizer, Tokenizer
from tinyformer.tokenizers.pipeline import Around, Section, parts_of, read_from
from tinyformer.tokenizers.tokenizer_json import (
    BYTE_LEVEL,
    METASPACE,
    QWEN2_WORDS,
    added_token,
    berts,
    characters_decoder,
    split_by,
    tokenizer_json,
    write_tokenizer_files,
)
from tinytensor.common.wording import a_or_an, counted

REMEDY = "write tokenizer.json with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"


def pretrained_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer of a published model from its folder.

    The first of these files that exists is used: source.spm, with target.spm and vocab.json (Marian); tokenizer.json;
    merges.txt, with vocab.json (GPT-2, RoBERTa, Qwen); vocab.txt (BERT). Settings and added tokens come from
    tokenizer_config.json, added_tokens.json and special_tokens_map.json. If none exists, it uses a GGUF file (``folder`` itself
    or the only one in it), or the base model of an adapter in the folder.

    Raises UserError if there is no tokenizer, or a file is missing, damaged or unsupported. The "tinyformer" logger warns about
    a vocabulary that does not fit the model, as after a partial download.
    """
    folder = Path(folder)
    tokenizer = _read(folder)
    if lacking := _lacking(tokenizer, folder):
        logging.getLogger("tinyformer").warning("%s: %s", folder, lacking)
    return tokenizer


def _read(folder: Path) -> Tokenizer:
    if (folder / "source.spm").exists():
        return _marian(folder)
    if any((folder / name).exists() for name in ("tokenizer.json", "merges.txt", "vocab.txt")):
        return published_tokenizer(folder)
    if (file := gguf_at(folder)) is not None:
        return gguf_tokenizer(file)
    if (base := model_folder(folder)) != folder:
        return pretrained_tokenizer(base)
    for name in ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model"):
        if (folder / name).exists():
            raise UserError(f"{folder} has {name} (SentencePiece), but no tokenizer.json; {REMEDY}")
    raise UserError(
        f"{folder} has no tokenizer: looked for tokenizer.json; vocab.json and merges.txt (GPT-2); vocab.txt (BERT); "
        "source.spm, target.spm and vocab.json (Marian)"
    )


def _lacking(tokenizer: Tokenizer, folder: Path) -> str:
    """Describe the tokens or merges that a tokenizer seems to lack, or return ""."""
    vocab_size = json_of(folder, "config.json").get("vocab_size")
    size = tokenizer.vocab_size
    # Published models may have more outputs than tokens: multiples of 128 are faster.
    if isinstance(vocab_size, int) and not size <= vocab_size <= size + max(256, size // 10):
        return f"the tokenizer has {counted(size, 'token')}, but config.json has vocab_size {vocab_size:,}: is a file cut off?"
    merges, added = (tokenizer.num_merges, tokenizer.added) if isinstance(tokenizer, PipelineTokenizer) else (None, {})
    if merges is not None and 2 * merges < size - 256 - len(added):
        return f"the tokenizer has {counted(size, 'token')}, but only {counted(merges, 'merge')}: are the merges cut off?"
    return ""


def save_pretrained_tokenizer(tokenizer: Tokenizer, folder: str | Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, so that transformers' ``AutoTokenizer.from_pretrained(folder)`` encodes
    and decodes identically.

    In transformers, special-token names in the text become special tokens, as with ``allow_special`` here. Raises UserError if
    tokenizer.json cannot express the rules, such as a word tokenizer's guesses about spaces.
    """
    write_tokenizer_files(tokenizer, Path(folder))


def _marian(folder: Path) -> MarianTokenizer:
    separate = PretrainedSettings(folder / CONFIG, json_of(folder, CONFIG)).read(bool, "separate_vocabs", False)
    files = ["vocab.json", "source.spm", "target.spm", *(["target_vocab.json"] if separate else [])]
    return MarianTokenizer.from_files(*(folder / name for name in files))


# ------------------------------------------------------------------------------------------------------------------ the classes

CONFIG = "tokenizer_config.json"
GENERIC = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")  # these use tokenizer.json
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerClass:
    """The rules of a transformers tokenizer class.

    ``sections`` makes tokenizer.json sections from the files (``vocab``, and possibly ``merges`` and ``normalizer``) and the
    settings. ``tokens`` are the default special tokens. ``ends`` names the two tokens that always surround a sequence.
    ``own_files`` are the files that replace a missing tokenizer.json.
    """

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
    scheme = "always" if settings.read(bool, "add_prefix_space", True) else "never"
    marks = {**METASPACE, "prepend_scheme": scheme, "split": True}
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
# The default class of each model type.
OF_MODELS = {
    "bert": "BertTokenizer", "electra": "BertTokenizer", "distilbert": "BertTokenizer", "mpnet": "MPNetTokenizer",
    "gpt2": "GPT2Tokenizer", "roberta": "RobertaTokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer", "xlm-roberta": "XLMRobertaTokenizer", "mistral": "TokenizersBackend",
    "phi3": "TokenizersBackend", "gemma": "GemmaTokenizer",
}  # fmt: skip


def class_name(settings: PretrainedSettings, config: Mapping[str, Any], of_bytes: bool) -> str:
    """Return the name of the class that transformers uses, or "" if no file names it. ``of_bytes``: tokenizer.json has a
    ByteLevel component."""
    declared = str(settings.values.get("tokenizer_class") or config.get("tokenizer_class") or "").removesuffix("Fast")
    registered = OF_MODELS.get(str(config.get("model_type")), "")
    if registered in GENERIC or config.get("model_type") == "qwen2":  # many Qwen2 folders name the wrong class
        return registered
    return GENERIC[0] if declared == "LlamaTokenizer" and of_bytes else declared or registered


def check_settings(name: str, settings: PretrainedSettings, file: Section | None) -> None:
    """Raise UserError for unsupported settings that would change ids."""
    unsupported = {
        "split_special_tokens": (None, False), "never_split": (None, []), "do_basic_tokenize": (None, True),
        "fix_mistral_regex": (None, False),
    }  # fmt: skip
    for key, allowed in unsupported.items():
        if settings.values.get(key) not in allowed:
            raise settings.error(f"{key} {shortened(repr(settings.values[key]), 40)} is not supported")
    if name in CLASSES or name in GENERIC or file is None:
        return
    lowers = [part.get("lowercase", True) for part in parts_of(file.get("normalizer"), "normalizers")
              if part["type"] in ("Lowercase", "BertNormalizer")]  # fmt: skip
    cutters = parts_of(file.get("pre_tokenizer"), "pretokenizers")
    spaces = [part.get("prepend_scheme", "always") != "never" for part in cutters if part["type"] == "Metaspace"]
    spaces += [part["add_prefix_space"] for part in cutters if part["type"] == "ByteLevel"]
    for key, value in (("do_lower_case", any(lowers)), ("add_prefix_space", any(spaces))):
        if settings.read(bool, key, value) is not value:
            raise settings.error(f"{key} {not value} contradicts tokenizer.json, where it is {value}: make them agree")


def content_of(token: Any) -> str:
    """Return the text of a special token in the settings: a string or an added token."""
    return str(token["content"] if isinstance(token, Mapping) else token)


# ------------------------------------------------------------------------------------------------ loading published tokenizers


def published_tokenizer(folder: Path) -> PipelineTokenizer | CharTokenizer:
    """Load the tokenizer of tokenizer.json, of vocab.json and merges.txt, or of vocab.txt, with its class and settings. A
    character tokenizer saved by ``save_pretrained_tokenizer`` becomes a CharTokenizer.

    Raises UserError for a damaged file, an unknown class without tokenizer.json, and unsupported settings.
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
            listed = {token["content"] for token in file.get("added_tokens") or []}
            tokenizer = PipelineTokenizer(file, _added(folder, settings, file, listed))
        else:
            whose = a_or_an(shortened(name, 40)) if name else f"model_type {shortened(repr(config['model_type']), 40)}"
            known = ", ".join(name for name, rules in CLASSES.items() if rules.own_files)
            raise UserError(f"{folder} has {whose} but no tokenizer.json, which only {known} can lack; {REMEDY}")
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
    """Return the content of a folder's JSON file, or {} if there is none."""
    return read_json(folder / name) if (folder / name).exists() else {}


def _of_class(folder: Path, name: str, settings: PretrainedSettings, file: Section | None) -> PipelineTokenizer:
    rules = CLASSES[name]
    if file is not None and (model := file["model"].get("type", rules.model)) != rules.model:
        problem = f"tokenizer_class is {name}, but tokenizer.json has the model {shortened(repr(model), 40)}"
        raise settings.error(f'{problem}: set tokenizer_class to "PreTrainedTokenizerFast" to use tokenizer.json alone')
    files = _files(folder, name) if file is None else {"merges": [], **file, **file["model"]}
    full = PretrainedSettings(settings.path, {**rules.tokens, **settings.values})
    if null := [role for role in rules.ends if full.values[role] is None]:
        raise settings.error(f"{null[0]} must not be null: {a_or_an(name)} puts it around a text")
    added = _added(folder, full, file or {}, set())
    if name == "Qwen2Tokenizer":
        added += [added_token(content_of(token)) for tokens in _special(full.values) for token in tokens]
    ends: Section | None = (file or {}).get("post_processor")
    around: Around | None = None
    if rules.ends:
        around = _named(full, rules.ends[0]), _named(full, rules.ends[1])
    elif file is None or ends is None or name == "GPTNeoXTokenizer":
        adds = (file is None and settings.read(bool, f"add_{role}_token", False) for role in ("bos", "eos"))
        before, after = (_named(full, f"{role}_token") if add else [] for role, add in zip(("bos", "eos"), adds))
        around = before, after
    content = {"version": "1.0", "added_tokens": [], "post_processor": ends, **rules.sections(files, settings)}
    return PipelineTokenizer(content, added, around)


def _named(settings: PretrainedSettings, role: str) -> list[str]:
    token = settings.values.get(role)
    return [] if token is None else [content_of(token)]


def _files(folder: Path, name: str) -> Section:
    """Return the vocabulary and merges of a tokenizer class that works without tokenizer.json."""
    files = CLASSES[name].own_files
    if missing := [file for file in files if not (folder / file).exists()]:
        raise UserError(f"{folder} has no tokenizer.json, so {a_or_an(name)} needs {' and '.join(missing)}; {REMEDY}")
    if files == ("vocab.txt",):
        lines = read_utf8(folder / "vocab.txt", "pass BERT's vocab.txt").split("\n")  # splitlines splits at rare characters
        return {"vocab": {line.rstrip(): i for i, line in enumerate(lines[:-1] if lines[-1] == "" else lines)}}
    vocabulary = read_json(folder / "vocab.json")
    lines = read_utf8(folder / "merges.txt", "pass the folder that holds merges.txt").split("\n")
    merges = [line.split(" ") for line in lines if line.strip() and not line.startswith("#version")]
    return {"vocab": vocabulary, "merges": merges}


def settings_of(folder: Path) -> PretrainedSettings:
    """Return the tokenizer settings. If they do not list the added tokens, special_tokens_map.json extends them."""
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
    """Return the special tokens in the settings: those with a role (common roles first), and all others."""
    extra = values.get("extra_special_tokens") or []
    names = [*ROLES, *(key for key in values if key.endswith("_token") and key not in ROLES)]
    roles = [values[key] for key in names if isinstance(values.get(key), str | dict)]
    return ([*roles, *extra.values()], []) if isinstance(extra, dict) else (roles, list(extra))


def _added(folder: Path, settings: PretrainedSettings, file: Section, there: set[str]) -> list[Section]:
    """Return the added tokens listed in the settings and files, then special tokens that are neither among them nor in
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
    """Convert an added token from the settings to tokenizer.json format."""
    keys = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {key: token[key] for key in keys if key in token}


def _check_ids(tokenizer: PipelineTokenizer, folder: Path, settings: PretrainedSettings) -> None:
    listed = {token["content"]: int(i) for i, token in settings.values.get("added_tokens_decoder", {}).items()}
    ids = {content: i for i, content in tokenizer.added.items()}
    for content, i in (listed or json_of(folder, "added_tokens.json")).items():
        if ids.get(content) != i:
            name = shortened(repr(content), 40)
            raise settings.error(f"added token {name} has id {i}, but transformers gives it {ids.get(content)}; {REMEDY}")
