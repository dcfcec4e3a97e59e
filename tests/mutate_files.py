"""Damages files of every kind that this project reads, one at a time, and uses them as its programs do.

PYTHONPATH=. python tests/mutate_files.py --tries 5000 --seed 0

A try changes one file: its bytes at random; or a value of its JSON, which becomes one of another kind, a huge number or a bomb;
or a value in the header of a safetensors file, whose checksum is written anew. Then the file is used. Good are a result, and an
error that a program shows in a line or two and that names the file. Bad are any other error, more than ``LONGEST`` seconds, and
more than ``MOST_MEMORY``. Each bad try is printed with its number, and ``--seed NUMBER --tries 1`` repeats it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gzip
import hashlib
import io
import json
import logging
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from attempts import parse, repeat
from explored import gpt_run, masked_run, recurrent_run, translation_run
from gguf_files import tokenizer_metadata, write_gguf
from mutations import Rng, mutated, with_another_value

import tinytensor as tt
from tinyformer import (
    GPT,
    BertConfig,
    BertForMaskedLM,
    GPTConfig,
    Transformer,
    TransformerConfig,
    from_pretrained,
    generate,
    load_vectors,
    pretrained_tokenizer,
    read_text,
    read_tsv,
    read_two_files,
    read_writing,
    save_pretrained,
    save_pretrained_tokenizer,
)
from tinyformer.audio.wav import read_wav, write_wav
from tinyformer.common.errors import UserError
from tinyformer.common.makers import contents_of
from tinyformer.data.pair_files import read_pairs
from tinyformer.explore.views.subjects import Subjects
from tinyformer.export.runs import load_run
from tinyformer.tokenizers import BPETokenizer, CharTokenizer, WordPieceTokenizer, WordTokenizer, load_tokenizer
from tinyformer.tokenizers.bpe import shown
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.comparison import read_translations, write_translations
from tinyformer.word_vectors.evaluation import analogies
from tinyformer.word_vectors.text_format import save_vectors
from tinyformer.word_vectors.vectors import WordVectors

EXPECTED = (UserError, OSError)  # what programs show in a line
LONGEST = 10.0  # seconds for one file
MOST_MEMORY = 1 << 30  # bytes more than before
STUCK = 60  # seconds until a try that cannot be stopped ends the program, with the place where it hangs


@dataclass(frozen=True)
class Target:
    """Files that are used together, by ``use``; one of them is damaged at a time."""

    name: str
    files: list[Path]
    use: Callable[[], object]


# ------------------------------------------------------------------------------------------------------------ the files


def targets_in(folder: Path) -> list[Target]:
    """Small files of every kind, written to a folder, and what uses them."""
    return [*_runs(folder), *_pretrained(folder), *_tokenizers(folder), *_texts(folder), *_others(folder)]


def _explored(path: Path) -> None:
    """What the explorer and the programs read of a folder with a model; and a few tokens that the model writes."""
    contents_of(path)
    subjects = Subjects([path])
    for name in subjects.names:
        subject = subjects.get(name)
        ids = subject.encode("the quick fox")[:6]
        subject.texts(ids)
        if subject.kind == "translation":
            subject.translator.translate(["the fox"], beam=2)  # type: ignore[union-attr]
        elif isinstance(subject.model, GPT):
            generate(subject.model, ids, 3)


def _runs(folder: Path) -> Iterator[Target]:
    makers = {"gpt": gpt_run, "lstm": recurrent_run, "translation": translation_run, "masked": masked_run}
    for name, make in makers.items():
        path = make(folder / name)
        files = [path / file for file in ("config.json", "tokenizer.json", "best.safetensors")]
        yield Target(f"a run of {name}", files, lambda path=path: _explored(path))  # type: ignore[misc]
        if name != "lstm":
            yield Target(f"an export of {name}", files, lambda path=path: load_run(path))  # type: ignore[misc]
    best = folder / "gpt" / "best.safetensors"
    yield Target("a checkpoint", [best], lambda: load_checkpoint(best, "best"))
    write_translations(folder / "sample.txt", ["one"] * 9, ["eins"] * 9, ["Eins"] * 9)
    yield Target("translations", [folder / "sample.txt"], lambda: read_translations(folder / "sample.txt"))


def _use_pretrained(path: Path) -> None:
    from_pretrained(path)
    pretrained_tokenizer(path).encode("It was " + "a" * 30 + "\n", allow_special=True)
    read_writing(path)
    _explored(path)


WORDS = "the quick brown fox jumps over a lazy dog and then it sleeps "
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(WORDS.split())), "##s", "."]
SMALL = {"num_layers": 1, "num_heads": 2, "d_model": 8}


def _pretrained(folder: Path) -> Iterator[Target]:
    bpe = BPETokenizer.train(WORDS * 5, 300, special=["<|endoftext|>"])
    gpt2, llama, bert = folder / "gpt2", folder / "llama", folder / "bert"
    save_pretrained(GPT(GPTConfig(bpe.vocab_size, block_size=64, bias=True, **SMALL)), gpt2)
    ids = {name: i for i, name in enumerate(bpe.shown_tokens())}
    merges = [" ".join(shown(bpe.tokens[i]) for i in pair) for pair in bpe.merges]
    (gpt2 / "vocab.json").write_text(json.dumps(ids))
    (gpt2 / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    (gpt2 / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": false}')
    told = {"eos_token_id": 299, "max_length": 20, "top_k": 5, "do_sample": True, "bad_words_ids": [[5, 6]], "num_beams": 1}
    (gpt2 / "generation_config.json").write_text(json.dumps(told))
    rotary = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "tie_output": False}
    save_pretrained(GPT(GPTConfig(bpe.vocab_size, block_size=64, **rotary, **SMALL)), llama)
    save_pretrained_tokenizer(bpe, llama)
    _with_a_pattern(llama / "tokenizer.json")
    config = BertConfig(len(PIECES), max_length=64, d_ff=16, **SMALL)
    save_pretrained(BertForMaskedLM(config), bert)
    (bert / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (bert / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    cased = folder / "bert of tokenizer.json"
    save_pretrained(BertForMaskedLM(config), cased)
    save_pretrained_tokenizer(WordPieceTokenizer(PIECES), cased)
    (folder / "gguf").mkdir()
    metadata = tokenizer_metadata(
        json.loads((llama / "tokenizer.json").read_text()), "smollm", bos_token_id=0, eos_token_id=299
    )
    write_gguf(llama, folder / "gguf" / "llama.gguf", tokenizer=metadata)
    for path in (gpt2, llama, bert, cased, folder / "gguf", *_marian(folder / "marian")):
        files = sorted(file for file in path.iterdir() if file.is_file())
        yield Target(f"a pretrained {path.name}", files, lambda path=path: _use_pretrained(path))  # type: ignore[misc]


def _with_a_pattern(path: Path) -> None:
    """Add what only some published files have: a pattern, a normalizer, and an added token with rules."""
    whole = json.loads(path.read_text())
    split = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+|\s+"}, "behavior": "Isolated", "invert": False}
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, last]}
    whole["normalizer"] = {"type": "NFC"}
    path.write_text(json.dumps(whole))


def _marian(folder: Path) -> Iterator[Path]:
    """A folder of Marian's kind, where there is SentencePiece."""
    try:
        import sentencepiece
    except ImportError:
        return
    folder.mkdir()
    text = folder.parent / "sentences"
    text.write_text("\n".join([WORDS] * 20))
    told = {"vocab_size": 40, "model_type": "unigram", "hard_vocab_limit": False, "minloglevel": 2}
    pieces: dict[str, int] = {"</s>": 0, "<unk>": 1}
    for language in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=str(folder / language), **told)
        (folder / f"{language}.model").rename(folder / f"{language}.spm")
        (folder / f"{language}.vocab").unlink()
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{language}.spm"))
        for i in range(processor.get_piece_size()):
            pieces.setdefault(processor.id_to_piece(i), len(pieces))
    pieces["<pad>"] = len(pieces)
    (folder / "vocab.json").write_text(json.dumps(pieces))
    both = {"d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 16, "output_bias": True}
    config = TransformerConfig(len(pieces), len(pieces), source_pad=pieces["<pad>"], positions="sinusoidal_halves",
                               share_embeddings=True, **both)  # fmt: skip
    save_pretrained(Transformer(config), folder)
    settings = {"decoder_start_token_id": pieces["<pad>"], "eos_token_id": 0, "max_length": 12, "num_beams": 2}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    yield folder


def _tokenizers(folder: Path) -> Iterator[Target]:
    text = WORDS * 5
    made: dict[str, Any] = {
        "char": CharTokenizer.train(text, special=["[PAD]"]),
        "word": WordTokenizer.train(text),
        "bpe": BPETokenizer.train(text, 270, special=["[PAD]"]),
        "wordpiece": WordPieceTokenizer(PIECES),
    }
    for kind, tokenizer in made.items():
        path = folder / kind / "tokenizer.json"
        path.parent.mkdir()
        tokenizer.save(path)
        yield Target(f"a tokenizer of {kind}", [path], lambda path=path: _encoded(path))  # type: ignore[misc]


def _encoded(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    with contextlib.suppress(UserError):  # it may lack a character
        tokenizer.decode(tokenizer.encode(WORDS))


def _texts(folder: Path) -> Iterator[Target]:
    lines = [WORDS + str(i) for i in range(20)]
    contents = {
        "a.jsonl": "".join(json.dumps({"text": line, "n": 1}) + "\n" for line in lines),
        "a.json": json.dumps([{"text": line, "n": 1} for line in lines]),
        "a.csv": "text,n\n" + "".join(f'"{line}",1\n' for line in lines),
        "a.tsv": "text\tn\n" + "".join(f"{line}\t1\n" for line in lines),
        "a.txt": "\n".join(lines),
    }
    for name, content in contents.items():
        path = folder / name
        path.write_text(content, encoding="utf-8")
        field = "" if name == "a.txt" else "text"
        use = lambda path=path, field=field: read_text(path, field=field)  # noqa: E731
        yield Target(f"a text, {name}", [path], use)
    pairs, packed = folder / "pairs.tsv", folder / "packed.gz"
    pairs.write_text("ein Satz\ta sentence\n" * 20)
    packed.write_bytes(gzip.compress(b"ein Satz\n" * 20))
    yield Target("pairs", [pairs], lambda: read_tsv(pairs))
    records = folder / "pairs.jsonl"
    records.write_text('{"id": 1, "de": "ein Satz", "en": "a sentence"}\n' * 20)
    yield Target("pairs of records", [records], lambda: read_pairs(records))
    yield Target("packed pairs", [packed], lambda: read_two_files(packed, packed))


def _others(folder: Path) -> Iterator[Target]:
    vectors, questions, sound, tensors = (folder / name for name in ("vectors.txt", "q.txt", "it.wav", "t.safetensors"))
    words = WORDS.split()
    save_vectors(WordVectors(dict.fromkeys(words), np.ones((len(set(words)), 3), np.float32)), vectors)
    yield Target("word vectors", [vectors], lambda: load_vectors(vectors))
    questions.write_text(": animals\nquick brown fox jumps\n" * 5)
    yield Target("questions", [questions], lambda: analogies(load_vectors(vectors), questions))
    write_wav(sound, np.zeros(300, np.float32), 8000)
    yield Target("a recording", [sound], lambda: read_wav(sound, 8000))
    tt.save({"x": tt.tensor([[1.5, -2.0]]), "n": tt.tensor([True]), "i": tt.tensor(3)}, tensors, {"note": "ö"})
    yield Target("tensors", [tensors], lambda: _loaded(tensors))


def _loaded(path: Path) -> None:
    for read in (tt.load, tt.io.load_mapped):
        try:
            read(path)
        except tt.FileError as error:  # of the library, which knows no error of a program's
            raise UserError(str(error)) from None


# ------------------------------------------------------------------------------------------------------------ the damage

BOMBS: list[Any] = [
    10**6, 10**9, 10**12, 2**31, 2**63, 2**64, [10**9], {"a": 10**12}, ["gpt"], {"type": "gpt"}, "a" * 100_000,
    "(?:(?:(?:a{1000}){1000}){1000})", "(?:a|aa)+b", "(?:" * 40 + "a" + ")+" * 40, "(?:a+)+b", [1] * 70, [[0]] * 1000,
]  # fmt: skip


def damaged(path: Path, rng: Rng) -> bytes:
    """The content of a file with something wrong in it."""
    content = path.read_bytes()
    choice = rng.random()
    if path.suffix == ".safetensors" and choice < 0.6:
        return _with_another_header(content, rng)
    if path.suffix == ".json" and choice < 0.7:
        return _with_another_value(content.decode(), rng).encode()
    return mutated(content, rng)


def _with_another_value(text: str, rng: Rng) -> str:
    bomb = BOMBS[int(rng.integers(len(BOMBS)))] if rng.random() < 0.5 else None
    return with_another_value(text, rng, bomb)


def _with_another_header(content: bytes, rng: Rng) -> bytes:
    """A safetensors file with another value in its header, or other values of its tensors, and the right checksum."""
    end = 8 + int.from_bytes(content[:8], "little")
    header, values = content[8:end], content[end:]
    if rng.random() < 0.7:
        header = _with_another_value(header.decode(), rng).encode()
    else:
        values = mutated(values, rng)
    if rng.random() < 0.3 and b'"state":' in header:
        header = _with_another_state(header.decode(), rng).encode()
    return with_checksum(header, values)


def _with_another_state(header: str, rng: Rng) -> str:
    """A header in which a value of the JSON in its metadata is another one."""
    whole = json.loads(header)
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        whole["__metadata__"]["state"] = _with_another_value(whole["__metadata__"]["state"], rng)
    return json.dumps(whole)


def with_checksum(header: bytes, values: bytes) -> bytes:
    """A safetensors file with the right length of its header and, where that has one, the right checksum."""
    packed = json.dumps(json.loads(header), separators=(",", ":")).encode()
    packed += b" " * (-len(packed) % 8)
    place = re.search(rb'"tinytensor\.sha256":"([0-9a-f]{64})"', packed)
    if place:
        empty = packed[: place.start(1)] + b"0" * 64 + packed[place.end(1) :]
        digits = hashlib.sha256(len(empty).to_bytes(8, "little") + empty + values).hexdigest().encode()
        packed = packed[: place.start(1)] + digits + packed[place.end(1) :]
    return len(packed).to_bytes(8, "little") + packed + values


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


def attempt(target: Target, path: Path) -> tuple[str, str]:
    """Use a file that may be damaged, and return the outcome (read, rejected or a fault) and the message."""
    started = time.monotonic()
    faulthandler.dump_traceback_later(STUCK, exit=True)
    told, fault = "", ""
    try:
        with bounded_memory(), contextlib.redirect_stdout(io.StringIO()):
            target.use()
    except EXPECTED as error:
        told = str(error)
        names = {path.name, str(path.parent)} - {"."}
        if told.count("\n") > 1 or len(told) > 900:
            fault = "a long message"
        elif not any(name in told for name in names) and not getattr(error, "filename", None):
            fault = "a message that does not name the file"
    except MemoryError:
        told, fault = traceback.format_exc(limit=-3), "too much memory"
    except Exception:
        told, fault = traceback.format_exc(limit=-4), "a traceback"
    finally:
        faulthandler.cancel_dump_traceback_later()
    if (seconds := time.monotonic() - started) > LONGEST:
        fault = f"{seconds:.0f} seconds"
    return fault or ("refused" if told else "read"), told


def mutate(targets: list[Target], number: int) -> tuple[str, str]:
    """Make one attempt, and return the outcome (read, rejected or a fault), the damage and the message."""
    rng = np.random.default_rng(number)
    target = targets[int(rng.integers(len(targets)))]
    path = target.files[int(rng.integers(len(target.files)))]
    content = path.read_bytes()
    try:
        path.write_bytes(damaged(path, rng))
        found, told = attempt(target, path)
    finally:
        path.write_bytes(content)
    return found, f"{target.name}, {path.name}, number {number}: {told}"


def main() -> int:
    arguments = parse(__doc__, 5000)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        targets = targets_in(Path(folder))
        for target in targets:
            target.use()  # whole files can be used
        return repeat(arguments, lambda number: mutate(targets, number), {"read", "refused"})


if __name__ == "__main__":
    sys.exit(main())
