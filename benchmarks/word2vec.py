"""word2vec: tinyformer beside gensim, with the same settings on the same words, on one core.

python benchmarks/word2vec.py                                   # skip-gram
python benchmarks/word2vec.py --method cbow --output benchmarks/results

The benchmark times an epoch. Each side may use one core only; gensim has one worker thread there beside its reader. Reading the
text is not timed: tinyformer maps all words to ids once, gensim counts them and looks up the ids in each epoch. The final
losses, measured in the same way, must agree to a few percent.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import measure
from measure import Side, SideError

OURS, THEIRS = "tinyformer", "gensim"
SIMILAR = 0.03  # the largest relative difference of the losses


@dataclass(frozen=True)
class Task:
    """The work of every side: an epoch of this method over the default text, with the default settings of both libraries."""

    method: str
    width: int = 100
    min_count: int = 5

    def passages(self) -> list[list[str]]:
        """Return the words of each passage of the text."""
        from tinyformer.data.reading import default_text
        from tinyformer.word_vectors.corpus import passages

        return [list(words) for words in passages(default_text()[0])]


def on_one_core() -> None:
    """Restrict this process and its children to one core, where the system allows it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Tinyformer(Side):
    """An epoch of tinyformer's word2vec."""

    def __init__(self, task: Task):
        from tinyformer.word_vectors import Corpus, Word2Vec, Word2VecConfig

        self.imported()
        on_one_core()
        self.corpus = Corpus.of(task.passages(), task.min_count)
        self.training = Word2Vec(self.corpus, Word2VecConfig(method=task.method, width=task.width, epochs=1))

    def step(self) -> None:
        """Train one epoch, starting from the last one's vectors."""
        self.training.words_done = 0
        self.training.train(quiet=True)

    def vectors(self) -> dict[str, Any]:
        """Return both vectors of each word."""
        words = self.corpus.vocabulary.words
        return {word: pair for word, *pair in zip(words, self.training.inputs, self.training.outputs)}


class Gensim(Side):
    """An epoch of gensim's word2vec."""

    def __init__(self, task: Task):
        from gensim.models import Word2Vec

        self.imported()
        on_one_core()
        self.passages = task.passages()
        is_skip_gram = int(task.method == "skip-gram")
        self.model = Word2Vec(vector_size=task.width, min_count=task.min_count, sg=is_skip_gram, workers=1, seed=1)
        self.model.build_vocab(self.passages)

    def step(self) -> None:
        """Train one epoch, starting from the last one's vectors."""
        self.model.train(self.passages, total_examples=self.model.corpus_count, epochs=1)

    def vectors(self) -> dict[str, Any]:
        """Return both vectors of each word."""
        rows = self.model.wv.index_to_key, self.model.wv.vectors, self.model.syn1neg
        return {word: pair for word, *pair in zip(*rows)}


def loss(task: Task, vectors: dict[str, Any]) -> float:
    """Return the mean loss of the text's examples with these vectors."""
    import numpy

    import tinytensor as tt
    from tinyformer.word_vectors import Corpus, Word2Vec, Word2VecConfig, negative_sampling_loss

    training = Word2Vec(Corpus.of(task.passages(), task.min_count), Word2VecConfig(method=task.method, width=task.width))
    inputs, outputs = (
        tt.tensor(numpy.array([vectors[word][side] for word in training.corpus.vocabulary.words])) for side in (0, 1)
    )
    total, examples = 0.0, 0
    for _, contexts, targets in training.examples.of_an_epoch(numpy.random.default_rng(0)):
        with tt.no_grad():
            total += negative_sampling_loss(inputs, outputs, contexts[:2000], targets[:2000]).item()
        examples += len(contexts[:2000])
    return total / examples


def run(task: Task, sides: measure.Sides, turns: int, steps: int, warm_up: int) -> str:
    """Measure all sides, and return a table, the ratios and the losses. Raises SideError if the losses differ."""
    with measure.environment(measure.thread_variables(1)), ExitStack() as stack:
        workers = measure.start_all(stack, sides)
        measure.call_all(workers, "turn", warm_up, 1)
        times = measure.take_turns(workers, turns, steps)
        losses = {name: loss(task, vectors) for name, vectors in measure.call_all(workers, "vectors").items()}
        if any(abs(loss / losses[OURS] - 1) > SIMILAR for loss in losses.values()):
            raise SideError(f"the sides learned differently: their losses are {losses}")
        words = sum(map(len, task.passages()))  # including rare words

        def cells(name: str) -> list[str]:
            side = times[name]
            return [*side.milliseconds(), f"{words / side.fastest_quartile:,.0f}", f"{losses[name]:.3f}"]

        return measure.report(workers, times, (*measure.TIMES, "words/s", "final loss"), cells)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    about = "Time tinyformer's word2vec beside gensim's, in turns on one core; a step is an epoch over Tiny Shakespeare."
    parser = measure.make_parser(about, turns=10, steps=1, warm_up=1)
    parser.add_argument("--method", help="word2vec's method", choices=("skip-gram", "cbow"), default="skip-gram")
    return measure.parse(parser, words, "gensim", "threadpoolctl")


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    task = Task(arguments.method)
    sides: dict[str, tuple[Any, ...]] = {OURS: (Tinyformer, task), THEIRS: (Gensim, task)}
    sides |= measure.with_numpys_kernels(OURS, Tinyformer, task)
    report = run(task, sides, arguments.turns, arguments.steps, arguments.warm_up)
    title = f"word2vec, {task.method}: an epoch over the default text, {task.width} numbers a word, on one core"
    name = f"word2vec_{task.method.replace('-', '_')}"
    measure.publish(arguments.output, name, title, report, "numpy", "gensim")


if __name__ == "__main__":
    main()
