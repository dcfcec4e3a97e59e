"""Byte-pair encoding beside Hugging Face's: learning merges from a text, and encoding that text.

python benchmarks/byte_pairs.py                  # Tiny Shakespeare, 10,000 merges
python benchmarks/byte_pairs.py --data my.txt --merges 2000 --output byte_pairs.md

Both must learn a vocabulary of one size and give the text the same ids before anything is timed. A text is encoded as if for
the first time: no word is in a cache. Hugging Face's library is written in Rust and trains on all cores
(TOKENIZERS_PARALLELISM=false holds it to one); tinyformer's is written in Python and uses one.
"""

from __future__ import annotations

import abc
import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import measure
from measure import Side, SideError

from tinyformer.command_line import Parser
from tinyformer.errors import plain_errors

OURS, THEIRS = "tinyformer", "Hugging Face"
TRAIN, ENCODE = "learning the merges", "encoding the text"


class Library(Side, abc.ABC):
    """A side that does one of the two kinds of work. A subclass says how."""

    work: str

    @abc.abstractmethod
    def train(self) -> Any:
        """A tokenizer that has learned the merges."""

    @abc.abstractmethod
    def fresh(self) -> Any:
        """A tokenizer that has learned the merges before, and has encoded nothing."""

    @abc.abstractmethod
    def encode(self, tokenizer: Any) -> Any:
        """The text's ids."""

    def turn(self, settle: int, steps: int) -> list[float]:
        """The seconds of each of ``steps`` runs of the work; making a fresh tokenizer is no part of encoding."""
        seconds = []
        for step in range(settle + steps):
            tokenizer = self.fresh() if self.work == ENCODE else None
            start = time.perf_counter()
            self.encode(tokenizer) if tokenizer is not None else self.train()
            if step >= settle:
                seconds.append(time.perf_counter() - start)
        return seconds

    def outcome(self) -> tuple[int, str]:
        """The size of the vocabulary, and a hash of the text's ids."""
        tokenizer = self.fresh()
        ids = [int(i) for i in self.encode(tokenizer)]
        return self.size(tokenizer), hashlib.sha256(repr(ids).encode()).hexdigest()

    @abc.abstractmethod
    def size(self, tokenizer: Any) -> int:
        """The size of the vocabulary."""


class Tinyformer(Library):
    """``BPETokenizer``."""

    def __init__(self, text: str, vocab_size: int, work: str):
        super().__init__()
        from tinyformer.tokenizers import BPETokenizer

        self.imported()
        self.kind, self.text, self.vocab_size, self.work = BPETokenizer, text, vocab_size, work
        self.trained = self.train()

    def train(self) -> Any:
        return self.kind.train(self.text, self.vocab_size)

    def fresh(self) -> Any:
        return self.kind(self.trained.tokens, self.trained.merges)

    def encode(self, tokenizer: Any) -> Any:
        return tokenizer.encode(self.text)

    def size(self, tokenizer: Any) -> int:
        return int(tokenizer.vocab_size)


class HuggingFace(Library):
    """``ByteLevelBPETokenizer``, whose ids are made a list, as that is what its users get."""

    def __init__(self, text: str, vocab_size: int, work: str):
        super().__init__()
        import tokenizers

        self.imported()
        self.library, self.text, self.vocab_size, self.work = tokenizers, text, vocab_size, work
        self.trained = self.train().to_str()

    def train(self) -> Any:
        tokenizer = self.library.ByteLevelBPETokenizer()
        tokenizer.train_from_iterator([self.text], vocab_size=self.vocab_size, min_frequency=2, show_progress=False)
        return tokenizer

    def fresh(self) -> Any:
        return self.library.Tokenizer.from_str(self.trained)

    def encode(self, tokenizer: Any) -> Any:
        return tokenizer.encode(self.text).ids

    def size(self, tokenizer: Any) -> int:
        return int(tokenizer.get_vocab_size())


def run(text: str, vocab_size: int, turns: int) -> dict[str, Any]:
    """Measure both kinds of work. Raises SideError where the two libraries differ in what they make of the text."""
    results: dict[str, Any] = {"characters": len(text), "vocab_size": vocab_size}
    for work in (TRAIN, ENCODE):
        with ExitStack() as stack:
            sides = {OURS: (Tinyformer, text, vocab_size, work), THEIRS: (HuggingFace, text, vocab_size, work)}
            workers = measure.start_all(stack, sides)
            outcomes = {name: worker.call("outcome") for name, worker in workers.items()}
            if outcomes[OURS] != outcomes[THEIRS]:
                raise SideError(f"the two libraries made different tokens of this text: {outcomes}")
            times = measure.take_turns(workers, turns, steps=1, settle=0)
        results[work] = {name: measure.median(seconds) for name, seconds in times.items()}
        results[work]["ratios"] = measure.compare(times[OURS], times[THEIRS])
    return results


def report(results: dict[str, Any]) -> str:
    """A table of medians."""
    head = ["seconds (median)", OURS, THEIRS, "ratio of medians", "pairs' interquartile"]
    rows = []
    for work in (TRAIN, ENCODE):
        ratios = results[work]["ratios"]
        between = "{:.2f} to {:.2f}".format(*ratios["pairs_interquartile"])
        seconds = [f"{results[work][name]:.3f}" for name in (OURS, THEIRS)]
        rows.append([work, *seconds, f"{ratios['medians']:.2f}", between])
    return measure.table(head, rows)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        description='Time byte-pair encoding beside Hugging Face\'s, in turns. Needs their library: pip install -e ".[bench]".'
    )
    parser.add_argument("--data", metavar="PATH", help="a UTF-8 text file or a folder of them; Tiny Shakespeare if not given")
    parser.add_argument("--merges", type=measure.positive, default=10_000, metavar="INT", help="merges to learn")
    parser.add_argument("--turns", type=measure.positive, default=7, metavar="INT", help="turns of each side")
    parser.add_argument("--output", type=measure.output_file, metavar="FILE", help="write the results to FILE.md or FILE.json")
    arguments = parser.parse_args(words)
    measure.require(parser, "tokenizers")
    return arguments


@plain_errors()
def main() -> None:
    """Measure, print, and write."""
    from tinyformer.data.reading import default_text, read_text

    arguments = parse()
    text, name = (read_text(arguments.data), arguments.data) if arguments.data else default_text()
    try:
        results = run(text, 256 + arguments.merges, arguments.turns)
    except SideError as error:
        sys.exit(f"error: {error}")
    title = f"Byte-pair encoding of {name}: {len(text):,} characters, up to {arguments.merges:,} merges"
    print(f"{title}\n\n{report(results)}")
    if arguments.output:
        everything = measure.described(results, "regex", "tokenizers", "tinytensor")
        measure.write_results(arguments.output, title, report(results), everything)


if __name__ == "__main__":
    main()
