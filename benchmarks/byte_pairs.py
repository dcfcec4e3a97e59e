"""Byte-pair encoding beside Hugging Face's: learning merges from a text, and encoding that text.

python benchmarks/byte_pairs.py                  # Tiny Shakespeare, 10,000 merges

Both must learn a vocabulary of one size and give the text the same ids before anything is timed. A text is encoded as if for
the first time: no word is in a cache. Hugging Face's library is written in Rust and trains on all cores
(TOKENIZERS_PARALLELISM=false holds it to one); tinyformer's is written in Python and uses one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import measure
from measure import Side, SideError

OURS, THEIRS = "tinyformer", "Hugging Face"
Fresh = Callable[[], Any]  # makes a trained tokenizer that has encoded nothing yet


def train_ours(text: str, vocab_size: int) -> tuple[int, Fresh]:
    """Learn the merges: the size of the vocabulary, and the tokenizer."""
    from tinyformer.tokenizers import BPETokenizer

    trained = BPETokenizer.train(text, vocab_size)
    return trained.vocab_size, lambda: BPETokenizer(trained.tokens, trained.merges)


def train_theirs(text: str, vocab_size: int) -> tuple[int, Fresh]:
    """The same with Hugging Face's library."""
    from tokenizers import ByteLevelBPETokenizer, Tokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator([text], vocab_size=vocab_size, min_frequency=2, show_progress=False)
    return trained.get_vocab_size(), lambda: Tokenizer.from_str(trained.to_str())


class Tokenizing(Side):
    """A step learns the merges or, where ``encodings`` tokenizers are asked for, encodes the text with the next of them."""

    def __init__(self, train: Callable[[str, int], tuple[int, Fresh]], text: str, vocab_size: int, encodings: int):
        self.train, self.text, self.vocab_size, self.encodings = train, text, vocab_size, encodings
        self.size, fresh = train(text, vocab_size)
        self.tokenizers = iter([fresh() for _ in range(encodings + 1)])

    def step(self) -> Any:
        return self.encode() if self.encodings else self.train(self.text, self.vocab_size)

    def encode(self) -> Any:
        """The text's ids."""
        encoded = next(self.tokenizers).encode(self.text)
        return getattr(encoded, "ids", encoded)  # Hugging Face's library makes a list of them when that is asked for

    def outcome(self) -> tuple[int, list[int]]:
        """The size of the vocabulary, and the text's ids."""
        return self.size, list(map(int, self.encode()))


def run(text: str, vocab_size: int, turns: int) -> str:
    """Measure both kinds of work: two tables for each. Raises SideError where the libraries differ in what they make of the
    text."""
    tables = []
    for work, encodings in (("learning the merges", 0), ("encoding the text", turns)):
        with ExitStack() as stack:
            trainers = {OURS: train_ours, THEIRS: train_theirs}
            sides = {name: (Tokenizing, train, text, vocab_size, encodings) for name, train in trainers.items()}
            workers = measure.start_all(stack, sides)
            outcomes = measure.call_all(workers, "outcome")
            if outcomes[OURS] != outcomes[THEIRS]:
                raise SideError("the two libraries made different tokens of this text")
            times = measure.take_turns(workers, turns, steps=1, settle=0)
        rows = [[name, *side.milliseconds()] for name, side in times.items()]
        tables += [measure.table([work, *measure.TIMES], rows), measure.ratio_table(times, OURS, [THEIRS])]
    return "\n\n".join(tables)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = measure.make_parser("Time byte-pair encoding beside Hugging Face's, in turns.", turns=7)
    parser.add_argument("--data", metavar="PATH", help="a UTF-8 text file or a folder of them; Tiny Shakespeare if not given")
    parser.add_argument("--merges", type=measure.positive, default=10_000, metavar="INT", help="merges to learn")
    return measure.parse(parser, words, "tokenizers")


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    from tinyformer.data import default_text, read_text

    arguments = parse()
    text, name = (read_text(arguments.data), arguments.data) if arguments.data else default_text()
    title = f"Byte-pair encoding of {name}: {len(text):,} characters, up to {arguments.merges:,} merges"
    report = run(text, 256 + arguments.merges, arguments.turns)
    measure.publish(arguments.output, title, report, "regex", "tokenizers", "tinytensor")


if __name__ == "__main__":
    main()
