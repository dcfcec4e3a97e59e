"""Each file that is read is damaged at random. Reading it gives the same as before, or one clear error.

``pytest tests/commands/test_mutated_files.py --mutations 5000 --seed 1000`` tries more. A damaged file that is read all the
same, and gives other data, is a failure; so is any error but those that a script tells in a line or two.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import leave_pictures_empty
from mutations import mutated, with_another_value

import tinytensor as tt
from tinyformer.audio.dial_tones import RATE, dial
from tinyformer.audio.wav import read_wav, write_wav
from tinyformer.common.errors import UserError
from tinyformer.data.pair_files import read_tsv
from tinyformer.data.pairs import read_two_files
from tinyformer.data.reading import read_text
from tinyformer.pretrained.tokenizers import pretrained_tokenizer
from tinyformer.tokenizers import BPETokenizer, CharTokenizer, WordPieceTokenizer, WordTokenizer, load_tokenizer
from tinyformer.tokenizers.tokenizer_json import tokenizer_json
from tinyformer.training.run_folder import RunFolder
from tinytensor.io import load_with_metadata

EXPECTED = (UserError, tt.FileError, OSError)  # what scripts show in a line
LONGEST = 10.0  # seconds for one file, on a machine that does other things, too
MOST_MEMORY = 1 << 30  # bytes more than before


# ------------------------------------------------------------------------------------------------------------ the runs


class Program:
    """A finished run of a program. Its commands are called in this process."""

    def __init__(self, name: str, folder: Path, data: list[str], sizes: list[str], use: list[str]):
        self.module = importlib.import_module(f"tinyformer.commands.{name}")
        self.folder = folder / "run"
        self.data = data
        self.use_words = [*use, "--out", str(self.folder)]
        self.call("--out", str(self.folder), *data, *sizes, "--steps", "4", "--eval-every", "2", "--log-every", "1")

    def call(self, *words: str) -> str:
        """What the command prints."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            arguments = self.module.parse(list(words))
            arguments.run(arguments)
        return printed.getvalue()

    def use(self) -> str:
        """What a user of the trained model sees."""
        return self.call(*self.use_words)

    def resume(self) -> Any:
        """All that a resumed run begins with."""
        words = ["--resume", "--out", str(self.folder), *self.data]
        with contextlib.redirect_stdout(io.StringIO()):
            prepared = self.module.prepare(RunFolder(self.folder), self.module.parse(words))
        trainer = prepared[0] if isinstance(prepared, tuple) else prepared.trainer
        tensors = {**trainer.model.state_dict(), **trainer.optimizer.state_dict()}
        told = (trainer.step, trainer.best_loss, trainer.best_step, trainer.rows, trainer.shards, trainer.config)
        states = (tt.random.get_state(), trainer.batches.get_state())
        return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, told, states


WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "then", "it", "sleeps"]
SMALL = ["--num-heads", "2", "--d-model", "8", "--batch-size", "4"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Program]]:
    folder = tmp_path_factory.mktemp("programs")
    rng = random.Random(0)
    lines = [" ".join(rng.choice(WORDS) for _ in range(7)) for _ in range(60)]
    (folder / "text.txt").write_text(". ".join(lines), encoding="utf-8")
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line.upper()}\n" for line in lines), encoding="utf-8")
    text, pairs = ["--data", str(folder / "text.txt")], ["--data", str(folder / "pairs.tsv")]
    layers = ["--encoder-layers", "1", "--decoder-layers", "1", "--d-ff", "16"]
    with pytest.MonkeyPatch.context() as patch:
        leave_pictures_empty(patch.setattr)
        yield {
            "gpt": Program(
                "gpt", folder / "c", text, [*SMALL, "--num-layers", "1", "--block-size", "8"], ["sample", "--length", "9"]
            ),
            "bert": Program(
                "bert", folder / "f", text,
                [*SMALL, "--num-layers", "1", "--d-ff", "16", "--window", "8", "--wordpieces", "60", "--classify-steps", "0"],
                ["fill", "the [MASK] dog"],
            ),
            "translator": Program(
                "translator", folder / "t", pairs, [*SMALL, *layers, "--vocab-size", "270", "--validation", "5", "--test", "5"],
                ["translate", "the quick dog", "--beam", "1"],
            ),
        }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ attempts


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """A context that may take MOST_MEMORY more than before. Some systems have no such limit."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def attempt(read: Callable[[], Any], path: Path, original: Any, what: str) -> None:
    """Read a file that may be damaged. If that succeeds, the result must be ``original``, unless that is None."""
    started = time.monotonic()
    try:
        found = read()
    except EXPECTED as error:
        message = str(error)
        assert message.count("\n") <= 1, (what, message)
        assert len(message) < 900, (what, message)
        # Settings that could be, but do not fit the data, are told by their own names.
        if path.name in ("tokenizer.json", "best.safetensors", "latest.safetensors") and not isinstance(error, OSError):
            assert path.name in message or path.parent.name in message, (what, message)
    else:
        assert original is None or found == original, what
    assert time.monotonic() - started < LONGEST, what


def damage(path: Path, read: Callable[[], Any], original: Any, config: pytest.Config) -> None:
    """Damage one file, again and again."""
    content = path.read_bytes()
    seed = config.getoption("seed")
    try:
        with bounded_memory():
            for number in range(seed, seed + config.getoption("mutations")):
                path.write_bytes(mutated(content, np.random.default_rng(number)))
                attempt(read, path, original, f"{path.name}, mutation {number}")
    finally:
        path.write_bytes(content)


# ---------------------------------------------------------------------------------------------------------- the tests

RUNS = ("gpt", "bert", "translator")


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "best.safetensors"])
def test_using_a_damaged_run(programs: dict[str, Program], name: str, file: str, pytestconfig: pytest.Config) -> None:
    example = programs[name]
    damage(example.folder / file, example.use, example.use(), pytestconfig)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "latest.safetensors", "data"])
def test_resuming_a_damaged_run(programs: dict[str, Program], name: str, file: str, pytestconfig: pytest.Config) -> None:
    example = programs[name]
    path = Path(example.data[-1]) if file == "data" else example.folder / file
    damage(path, example.resume, example.resume(), pytestconfig)


@pytest.mark.parametrize("name", RUNS)
def test_values_of_another_kind(programs: dict[str, Program], name: str, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """Whole files with the right checksum and impossible values."""
    example = programs[name]
    latest, config = example.folder / "latest.safetensors", example.folder / "config.json"
    tensors, metadata = load_with_metadata(latest)
    settings = config.read_text(encoding="utf-8")
    shutil.copy(latest, tmp_path)
    seed = pytestconfig.getoption("seed")
    original = example.resume()
    try:
        with bounded_memory():
            for number in range(seed, seed + pytestconfig.getoption("mutations")):
                rng = np.random.default_rng(number)
                tt.save(tensors, latest, {"state": with_another_value(metadata["state"], rng)})
                attempt(example.resume, latest, None, f"a state, mutation {number}")
                shutil.copy(tmp_path / latest.name, latest)
                config.write_text(with_another_value(settings, rng), encoding="utf-8")
                attempt(example.resume, config, original, f"settings, mutation {number}")
                config.write_text(settings, encoding="utf-8")
    finally:
        shutil.copy(tmp_path / latest.name, latest)
        config.write_text(settings, encoding="utf-8")


def test_damaged_recordings(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    # Whatever its header fits is a recording, so that other samples may come out.
    path = tmp_path / "it.wav"
    write_wav(path, dial("7", np.random.default_rng(0))[:500], RATE)
    damage(path, lambda: read_wav(path, RATE), None, pytestconfig)


def test_damaged_texts_and_pairs(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    # Whatever is UTF-8 is a text, so that other data may come out.
    text = tmp_path / "text.txt"
    text.write_text("ein Märchen ☃ 😀\n" * 50, encoding="utf-8")
    damage(text, lambda: read_text(text), None, pytestconfig)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("ein Satz\ta sentence\n" * 50, encoding="utf-8")
    damage(pairs, lambda: read_tsv(pairs), None, pytestconfig)
    zipped = tmp_path / "zipped.gz"
    zipped.write_bytes(gzip.compress(b"ein Satz\n" * 50))
    damage(zipped, lambda: read_two_files(zipped, zipped), None, pytestconfig)


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "wordpiece"])
def test_damaged_tokenizers(tmp_path: Path, kind: str, pytestconfig: pytest.Config) -> None:
    # A file that is whole but says something else, as of a vocabulary with another word, is a tokenizer, too.
    text = "the quick brown fox jumps over a lazy dog, and then it sleeps " * 5
    made: Any = {
        "char": lambda: CharTokenizer.train(text, special=["[PAD]"]),
        "word": lambda: WordTokenizer.train(text),
        "bpe": lambda: BPETokenizer.train(text, 270, special=["[PAD]"]),
        "wordpiece": lambda: WordPieceTokenizer.train(text, 60),
    }[kind]()
    path = tmp_path / "tokenizer.json"
    made.save(path)

    def use() -> Any:
        tokenizer = load_tokenizer(path)
        with contextlib.suppress(UserError):  # it may lack a character
            return tokenizer.decode(tokenizer.encode(text[:100]))

    damage(path, use, None, pytestconfig)
    saved = path.read_text(encoding="utf-8")
    for number in range(pytestconfig.getoption("seed"), pytestconfig.getoption("seed") + pytestconfig.getoption("mutations")):
        path.write_text(with_another_value(saved, np.random.default_rng(number)), encoding="utf-8")
        attempt(use, path, None, f"{kind}, mutation {number}")


def test_damaged_vocabularies_of_others(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    bert, gpt2 = tmp_path / "bert", tmp_path / "gpt2"
    bert.mkdir()
    gpt2.mkdir()
    vocab, ids, merges = bert / "vocab.txt", gpt2 / "vocab.json", gpt2 / "merges.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s", "ö"]) + "\n", encoding="utf-8")
    damage(vocab, lambda: pretrained_tokenizer(bert).encode("a dogs"), None, pytestconfig)
    model = tokenizer_json(BPETokenizer.train("the dog and the dogs " * 9, 262))["model"]
    ids.write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges.write_text("\n".join(["#version: 0.2", *map(" ".join, model["merges"])]) + "\n", encoding="utf-8")
    for path in (ids, merges):
        damage(path, lambda: pretrained_tokenizer(gpt2).encode("the dogs"), None, pytestconfig)


def test_damaged_tensors(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    path = tmp_path / "tensors.safetensors"
    tt.save({"x": tt.tensor([[1.5, -2.0]]), "n": tt.tensor([True]), "i": tt.tensor(3)}, path, {"note": "ö", "step": "12"})

    def read() -> Any:
        tensors, metadata = load_with_metadata(path)
        found = {name: (str(t.dtype), t.shape, t.tolist()) for name, t in tensors.items()}
        return found, metadata.get("note"), metadata.get("step")  # damage to the checksum's own name is no other harm

    damage(path, read, read(), pytestconfig)
