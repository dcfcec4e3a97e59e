"""Tokenizers of transformers' classes with settings drawn at random, saved as transformers and older programs save them.

python tests/parity/random_settings.py 500

prints how many folders gave equal ids and text here and in transformers, how many are refused here, and each that differs.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import transformers  # noqa: E402
from parity.difficult_strings import strings  # noqa: E402
from parity.published_tokenizers import PUBLISHED, Json, vocab_of  # noqa: E402
from tokenizers import AddedToken  # noqa: E402

from tinyformer import UserError, pretrained_tokenizer  # noqa: E402

# The class, a tokenizer.json with a fitting model, and the model_type of a config.json.
KINDS = {
    "BertTokenizer": ("MPNet", "bert"),
    "DistilBertTokenizer": ("MPNet", "distilbert"),
    "MPNetTokenizer": ("MPNet", "mpnet"),
    "GPT2Tokenizer": ("Pythia", "gpt2"),
    "GPTNeoXTokenizer": ("Pythia", "gpt_neox"),
    "RobertaTokenizer": ("RoBERTa", "roberta"),
    "Qwen2Tokenizer": ("SmolLM2", "qwen2"),
    "LlamaTokenizer": ("Llama 2", "llama"),
    "GemmaTokenizer": ("Gemma", "gemma"),
    "PreTrainedTokenizerFast": ("Mistral v0.3", "mistral"),
    "XLMRobertaTokenizer": ("XLM-RoBERTa", "xlm-roberta"),
}
WORDPIECE = ("BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer")
ROLES = ("bos_token", "eos_token", "pad_token", "cls_token", "sep_token", "mask_token")
NAMES = ["<|im_start|>", "<|im_end|>", "[PAD]", "<tool>", "Abc", "é", "<image>", "of", " x"]


def settings_of(rng: random.Random, name: str) -> Json:
    """Some settings of a class, each true or false."""
    keys = ["add_bos_token", "add_eos_token", "clean_up_tokenization_spaces", "trim_offsets"]
    keys += ["do_lower_case", "tokenize_chinese_chars"] if name in WORDPIECE else ["add_prefix_space", "legacy"]
    settings: Json = {key: rng.random() < 0.5 for key in keys if rng.random() < 0.4}
    if name in WORDPIECE and rng.random() < 0.4:
        settings["strip_accents"] = rng.choice([None, True, False])
    if rng.random() < 0.1:
        settings["split_special_tokens"] = rng.random() < 0.5
    return settings


def token(rng: random.Random, content: str) -> AddedToken:
    flags = {flag: rng.random() < 0.3 for flag in ("lstrip", "rstrip", "single_word", "normalized")}
    return AddedToken(content, special=rng.random() < 0.5, **flags)


def folder_at_random(seed: int, folder: Path) -> str:
    """Write a folder, and return in words what it is."""
    rng = random.Random(seed)
    name = rng.choice(list(KINDS))
    file, model_type = KINDS[name]
    file = "SmolLM2" if name == "LlamaTokenizer" and rng.random() < 0.3 else file
    content = PUBLISHED[file]()
    vocabulary = dict(vocab_of(content["model"]))
    if name in WORDPIECE:
        for special in ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "<mask>"):
            vocabulary.setdefault(special, len(vocabulary))
        content["model"]["vocab"] = vocabulary
    folder.mkdir(parents=True)
    settings = settings_of(rng, name)
    extra = rng.sample(NAMES, rng.choice([0, 0, 1, 3]))
    way = rng.choice(["saved", "saved without tokenizer.json", "old files", "tokenizer.json and settings"])
    if name in ("LlamaTokenizer", "GemmaTokenizer", "PreTrainedTokenizerFast", "XLMRobertaTokenizer"):
        way = rng.choice(["saved", "tokenizer.json and settings"])
    config = rng.choice([None, {"model_type": model_type}, {"model_type": rng.choice(["bert", "llama", "qwen2", "mistral"])}])
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    settings |= {"tokenizer_class": name + rng.choice(["", "Fast"]) if not name.endswith("Fast") else name}
    if rng.random() < 0.3 and extra:
        settings[rng.choice(["additional_special_tokens", "extra_special_tokens"])] = extra
        extra = []
    if rng.random() < 0.3:
        own = {"__type": "AddedToken", "content": "<r>", "lstrip": True}
        settings[rng.choice(ROLES)] = rng.choice([None, "<s>", "</s>", "<own>", own])
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if way.startswith("saved"):
        with suppress(Exception):  # some settings it cannot use
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            theirs.add_tokens([token(rng, content) for content in extra])
            theirs.save_pretrained(folder)
    if way in ("saved without tokenizer.json", "old files"):
        (folder / "tokenizer.json").unlink()
        write_vocabulary(folder, content["model"], vocabulary)
    if way in ("old files", "tokenizer.json and settings") and extra:
        known = {**vocabulary, **{one["content"]: one["id"] for one in content["added_tokens"]}}
        ids = {one: known.setdefault(one, len(known)) for one in extra}
        if rng.random() < 0.5:
            (folder / "added_tokens.json").write_text(json.dumps(ids))
        else:
            listed = {ids[one]: token(rng, one).__getstate__() for one in extra}
            (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "added_tokens_decoder": listed}))
        if rng.random() < 0.5:
            (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": extra[0]}))
    return f"{seed}: {name}, {way}, {config}, {settings}, {extra}"


def write_vocabulary(folder: Path, model: Json, vocabulary: dict[str, int]) -> None:
    if model["type"] == "WordPiece":
        (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)) + "\n", encoding="utf-8")
    else:
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        lines = ["#version: 0.2", *(merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])]
        (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def compared(seed: int, folder: Path) -> str:
    """How a folder is read here and in transformers: "equal", "refused: why", or a line on what differs."""
    about = folder_at_random(seed, folder)
    theirs: Any = None
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # of many kinds
        failed = f"{type(error).__name__}: {error}"
    try:
        ours = pretrained_tokenizer(folder)
    except UserError as error:
        return f"refused: {str(error).replace(str(folder), 'FOLDER')}"
    if theirs is None:
        return f"transformers fails, {failed}\n  {about}"
    rng = random.Random(seed)
    names = [*theirs.get_added_vocab(), *NAMES]
    for text in ("", "Hello there", "a 123 ÉÈ don't", "日本語 <s>x</s>", *strings(40, seed=seed % 50)):
        for woven in (text, f"{text}{rng.choice(['', ' '])}{rng.choice(names)}{rng.choice(['', ' '])}{text}"):
            expected = theirs(woven).input_ids
            ids = [*ours.before, *ours.encode(woven, allow_special=True).tolist(), *ours.after]
            if ids != expected:
                return f"{woven!r} is {ids}, in transformers {expected}\n  {about}"
            written = theirs.decode(ids, clean_up_tokenization_spaces=False)
            if ours.decode(ids) != written:
                return f"{ids} is {ours.decode(ids)!r}, in transformers {written!r}\n  {about}"
    return "equal"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for seed in range(first, first + count):
            result = compared(seed, Path(place) / str(seed))
            found[result if result.startswith(("equal", "refused")) else "different"] += 1
            if not result.startswith(("equal", "refused")):
                print(result)
    print(*(f"{number:5} {result}" for result, number in found.most_common()), sep="\n")


if __name__ == "__main__":
    main()
