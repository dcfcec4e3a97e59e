"""word2vec: tinyformer beside gensim, with the same settings on the same words, on one core.

python benchmarks/word2vec.py                                   # skip-gram
python benchmarks/word2vec.py --method cbow --output benchmarks/results

What is timed is an epoch. Each side's processes may use one core only; gensim has one worker thread there, beside the one that
reads. Before that, and not timed, each side reads the text: tinyformer makes ids of all words once, gensim counts them and
looks the ids up in each epoch. The losses at which the sides end, all measured alike, may differ by a few percent only.
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
SIMILAR = 0.03  # the most by which the losses of the sides may differ, as a fraction


@dataclass(frozen=True)
class Task:
    """What every side does: an epoch of this method over the default text, with the default settings of both libraries."""

    method: str
    width: int = 100
    min_count: int = 5

    def passages(self) -> list[list[str]]:
        """The words of each passage of the text."""
        from tinyformer.data.reading import default_text
        from tinyformer.word_vectors.corpus import passages

        return [list(words) for words in passages(default_text()[0])]


def on_one_core() -> None:
    """Let this process, and what it starts, use one core only, where the system can say so."""
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
        """One epoch, which begins with the vectors of the last one."""
        self.training.words_done = 0
        self.training.train(quiet=True)

    def vectors(self) -> dict[str, Any]:
        """Both vectors of each word."""
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
        """One epoch, which begins with the vectors of the last one."""
        self.model.train(self.passages, total_examples=self.model.corpus_count, epochs=1)

    def vectors(self) -> dict[str, Any]:
        """Both vectors of each word."""
        rows = self.model.wv.index_to_key, self.model.wv.vectors, self.model.syn1neg
        return {word: pair for word, *pair in zip(*rows)}


def loss(task: Task, vectors: dict[str, Any]) -> float:
    """The mean loss of an example of the text, with these vectors."""
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
    """Measure all sides: a table of them, one of ratios, and the losses. Raises SideError where the losses differ."""
    with measure.environment(measure.thread_variables(1)), ExitStack() as stack:
        workers = measure.start_all(stack, sides)
        measure.call_all(workers, "turn", warm_up, 1)
        times = measure.take_turns(workers, turns, steps)
        losses = {name: loss(task, vectors) for name, vectors in measure.call_all(workers, "vectors").items()}
        if any(abs(found / losses[OURS] - 1) > SIMILAR for found in losses.values()):
            raise SideError(f"the sides learned differently: their losses are {losses}")
        words = sum(map(len, task.passages()))  # with those that occur too seldom

        def cells(name: str) -> list[str]:
            side = times[name]
            return [*side.milliseconds(), f"{words / side.fastest_quartile:,.0f}", f"{losses[name]:.3f}"]

        return measure.report(workers, times, (*measure.TIMES, "words/s", "loss in the end"), cells)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about = "Time tinyformer's word2vec beside gensim's, in turns on one core; a step is an epoch over Tiny Shakespeare."
    parser = measure.make_parser(about, turns=10, steps=1, warm_up=1)
    parser.add_argument("--method", help="which of word2vec's two", choices=("skip-gram", "cbow"), default="skip-gram")
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
