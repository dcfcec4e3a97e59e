"""Files that others wrote to do harm: bombs of time and memory, pipes and devices, and files that were damaged in silence."""

from __future__ import annotations

import gzip
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import gpt_run, translation_run
from mutate_files import mutate, targets_in, with_checksum
from trainings import trainer_in

import tinytensor as tt
from tinyformer import GPT, BPETokenizer, GPTConfig, UserError, from_pretrained, pretrained_tokenizer, read_two_files
from tinyformer.common.files import read_file
from tinyformer.explore.views.subjects import Subjects
from tinyformer.pretrained.loading import save_pretrained
from tinyformer.pretrained.tokenizers import save_pretrained_tokenizer
from tinytensor.io import load_mapped, load_with_metadata

TEXT = "the quick brown fox jumps over a lazy dog and then it sleeps " * 5


def refused(use: Callable[[], object], name: object, within: float = 10) -> str:
    """The message of the UserError that ``use`` raises, which names a file or folder."""
    started = time.process_time()
    with pytest.raises(UserError) as caught:
        use()
    assert time.process_time() - started < within
    message = str(caught.value)
    assert str(name) in message and "\n" not in message and len(message) < 900
    return message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small GPT-2 with tokenizer.json."""
    tokenizer = BPETokenizer.train(TEXT, 300, special=["<|endoftext|>"])
    config = GPTConfig(tokenizer.vocab_size, block_size=8, num_layers=1, num_heads=2, d_model=8, bias=True)
    save_pretrained(GPT(config), tmp_path / "gpt2")
    save_pretrained_tokenizer(tokenizer, tmp_path / "gpt2")
    return tmp_path / "gpt2"


def change(path: Path, edit: Callable[[Any], object]) -> Path:
    """Change a JSON file."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    edit(whole)
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def use_pattern(whole: Any, pattern: str, times: int = 1) -> None:
    """Let a tokenizer.json cut texts with a pattern."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*[split] * times, last]}


# ------------------------------------------------------------------------------------------------------------- tokenizers


LARGE = ["(?:(?:(?:a{1000}){1000}){1000})", "(?:" * 40 + "a" + ")+" * 40, "a{100000}", "(?:a|aa)+b", "(a*)*b"]
LARGE += ["|".join(["ab"] * 9000), "[" + "ab" * 9000 + "]"]


@pytest.mark.parametrize("pattern", LARGE, ids=lambda pattern: pattern[:12])
@pytest.mark.parametrize("times", [1, 9, 90])
def test_patterns_take_no_long_time(folder: Path, pattern: str, times: int) -> None:
    change(folder / "tokenizer.json", lambda whole: use_pattern(whole, pattern, times))
    started = time.monotonic()
    with suppress(UserError):
        tokenizer = pretrained_tokenizer(folder)
        for text in ("a dog aab", ("a" * 40 + " ") * 9):
            tokenizer.encode(text)
    assert time.monotonic() - started < 10


def add_tokens(whole: Any, names: list[str]) -> None:
    first = max(token["id"] for token in whole["added_tokens"]) + 1
    rules = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False)
    whole["added_tokens"] += [{"id": first + i, "content": name, **rules} for i, name in enumerate(names)]


@pytest.mark.parametrize("names", [["a" * 501], ["a" * 10 + f"{i:0200}" for i in range(3000)]], ids=["long", "many"])
def test_added_tokens_that_are_too_long(folder: Path, names: list[str]) -> None:
    path = change(folder / "tokenizer.json", lambda whole: add_tokens(whole, names))
    assert "characters" in refused(lambda: pretrained_tokenizer(folder), path, within=5)


def test_too_many_ids_around_a_text(folder: Path) -> None:
    def edit(whole: Any) -> None:
        special = {"x": {"id": "x", "ids": [1] * 1000, "tokens": ["x"] * 1000}}
        single = [{"Sequence": {"id": "A", "type_id": 0}}, *[{"SpecialToken": {"id": "x", "type_id": 0}}] * 100_000]
        whole["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}

    path = change(folder / "tokenizer.json", edit)
    assert "more than 1000 ids around" in refused(lambda: pretrained_tokenizer(folder), path, within=5)


@pytest.mark.parametrize("merges", ["", {}, 0, [1], [{"a": "b"}]], ids=repr)
def test_merges_of_another_kind(folder: Path, merges: object) -> None:
    path = change(folder / "tokenizer.json", lambda whole: whole["model"].update(merges=merges))
    refused(lambda: pretrained_tokenizer(folder), path)


# ------------------------------------------------------------------------------------------------------- sizes and files


@pytest.mark.parametrize("name", ["n_layer", "vocab_size", "n_embd", "n_positions", "n_inner"])
@pytest.mark.parametrize("value", [10**6, 10**9, 10**12])
def test_sizes_that_the_weights_cannot_have(folder: Path, name: str, value: int) -> None:
    path = change(folder / "config.json", lambda whole: whole.update({name: value}))
    assert "do not belong together" in refused(lambda: from_pretrained(folder), path, within=2)


@pytest.mark.parametrize("name", ["num_layers", "d_model", "block_size", "vocab_size"])
def test_sizes_of_runs(tmp_path: Path, name: str) -> None:
    run = gpt_run(tmp_path / "run")
    path = change(run / "config.json", lambda whole: whole["model"].update({name: 10**6}))
    assert "do not belong together" in refused(lambda: Subjects([run]).get("best"), path, within=2)


def test_a_padding_that_is_no_id(tmp_path: Path) -> None:
    run = translation_run(tmp_path / "run")
    path = change(run / "config.json", lambda whole: whole["model"].update(source_pad=10**9))
    assert "source_pad must be a source id" in refused(lambda: Subjects([run]).get("best"), path)


@pytest.mark.parametrize("found", [["gpt"], {"a": 1}, "none"], ids=str)
def test_an_architecture_that_is_none(tmp_path: Path, found: object) -> None:
    run = gpt_run(tmp_path / "run")
    path = change(run / "config.json", lambda whole: whole["text"].update(architecture=found))
    assert "architecture must be gpt" in refused(lambda: Subjects([run]).get("best"), path)


def test_a_packed_bomb(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20)) * 70)  # several packed files in a row are one
    assert "more than 30 times its size" in refused(lambda: read_two_files(path, path), path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device", "endless"])
def test_special_files_in_a_folder_of_texts(folder: Path, kind: str) -> None:
    def make(path: Path) -> Path:
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:  # a sparse file
            path.touch()
            os.truncate(path, 1 << 40)
        return path

    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        whole = (folder / name).read_bytes()
        path = make(folder / name)
        refused(lambda: (from_pretrained(folder), pretrained_tokenizer(folder)), path)
        path.unlink()
        path.write_bytes(whole)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    (folder / "vocab.json").write_text("{}")
    refused(lambda: pretrained_tokenizer(folder), make(folder / "merges.txt"))
    refused(lambda: pretrained_tokenizer(folder), make(folder / "vocab.json"))
    change(folder / "config.json", lambda whole: whole.update(model_type="bert"))
    refused(lambda: pretrained_tokenizer(folder), make(folder / "vocab.txt"))


def test_how_much_is_read_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(11))
    assert read_file(tmp_path / "file", 11) == bytes(11)
    assert "at most 10 bytes" in refused(lambda: read_file(tmp_path / "file", 10), tmp_path / "file")


def test_nothing_else_opens_files() -> None:
    """What this package reads, it opens in tinyformer/common/files.py. Others read what they wrote themselves, or what belongs
    to the package."""
    own = {
        "__init__.py",
        "files.py",
        "common/errors.py",
        "explore/serving/server.py",
        "data/reading.py",
        "training/run_folder.py",
        "export/javascript.py",
        "export/web.py",
    }
    root = Path(__file__).parents[2] / "tinyformer"
    readers = ("read_text(encoding", ".read_bytes()", '"rb")')
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").split("\n")
        if any(reader in line for reader in readers) and "gzip.open(packed" not in line
    }
    assert found <= own


# ------------------------------------------------------------------------------------------------------- tensors in files


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_tensor_of_too_many_axes(tmp_path: Path, dtype: str) -> None:
    entry = {"dtype": dtype, "shape": [1] * 70, "data_offsets": [0, 4 if dtype == "F32" else 2]}
    path = tmp_path / "m.safetensors"
    path.write_bytes(with_checksum(json.dumps({"x": entry}).encode(), bytes(entry["data_offsets"][1])))  # type: ignore[index]
    for read in (tt.load, load_mapped):
        with pytest.raises(tt.FileError, match="70 axes, and tensors have at most 64"):
            read(path)


def test_too_many_tensors(tmp_path: Path) -> None:
    header = json.dumps({f"{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(50_001)}).encode()
    (tmp_path / "m.safetensors").write_bytes(with_checksum(header, b""))
    with pytest.raises(tt.FileError, match=r"50,001 tensors; a file can have 50,000"):
        tt.load(tmp_path / "m.safetensors")


def test_flipped_bits_of_pretrained_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(0)
    for place in rng.integers(start, len(whole), 50):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        assert "its checksum is not that of its content" in refused(lambda: from_pretrained(folder), path)
    path.write_bytes(whole)
    from_pretrained(folder)


def test_an_optimizer_of_integers(tmp_path: Path) -> None:
    ids = np.arange(200) % 11
    trainer = trainer_in(tmp_path, ids)
    trainer.train()
    latest = trainer.folder.latest
    tensors, metadata = load_with_metadata(latest)
    name = next(name for name in tensors if name.startswith("optimizer/0.") and "steps" not in name)
    tt.save({**tensors, name: tt.tensor(tensors[name].numpy().astype(np.int32))}, latest, metadata)
    assert "int32 values instead of floating-point ones" in refused(trainer_in(tmp_path, ids).resume, latest)


# ------------------------------------------------------------------------------------------------- what does not fit in words


def warned(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """What reading the tokenizer warns of."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tinyformer"):
        pretrained_tokenizer(folder)
    return " ".join(record.getMessage() for record in caplog.records)


def test_a_vocabulary_that_was_cut_off(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert warned(folder, caplog) == ""
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(1195))]
    change(folder / "config.json", lambda whole: whole.update(vocab_size=1200, model_type="bert"))
    (folder / "vocab.txt").write_text("\n".join(names) + "\n")
    assert warned(folder, caplog) == ""
    (folder / "vocab.txt").write_text("\n".join(names[:300]) + "\n")
    assert "300 tokens, but config.json has vocab_size 1,200: is a file cut off?" in warned(folder, caplog)


def test_merges_that_were_cut_off(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(folder / "tokenizer.json", lambda whole: whole["model"].update(merges=whole["model"]["merges"][:10]))
    assert "the tokenizer has 300 tokens, but only 10 merges: are the merges cut off?" in warned(folder, caplog)


# ------------------------------------------------------------------------------------------------------------ mutated files


def test_mutated_files_of_every_kind(tmp_path: Path) -> None:
    """A small part of what ``python tests/mutate_files.py`` tries."""
    logging.getLogger("tinyformer").setLevel(logging.ERROR)
    try:
        targets = targets_in(tmp_path)
        found = [mutate(targets, number) for number in range(200)]
    finally:
        logging.getLogger("tinyformer").setLevel(logging.NOTSET)
    assert [told for result, told in found if result not in ("read", "refused")] == []
    assert len({result for result, _ in found}) == 2
