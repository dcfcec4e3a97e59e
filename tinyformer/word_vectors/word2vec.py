"""word2vec: vectors trained to tell neighboring words from random words (Mikolov et al. 2013).

Each word has two vectors: one as a context (the result) and one as a target. ``negative_sampling_loss`` implements the loss in
ops. Training uses a kernel with the same gradient that touches only the rows of words in the batch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.common.memory import check_fits
from tinyformer.common.progress import Progress, lasting_progress, stop_on_signals, write_or_stop
from tinyformer.common.settings import at_least, check_fields, one_of, setting
from tinyformer.word_vectors.batches import Examples
from tinyformer.word_vectors.corpus import Corpus
from tinyformer.word_vectors.vectors import WordVectors
from tinytensor import Tensor, kernels
from tinytensor.device.backend import Array, default_dtype, from_numpy, host, to_numpy, xp

METHODS = ("cbow", "skip-gram")
LARGEST_BATCH = 256  # unless the user sets a larger one
SHOWN = 20  # how often the loss is shown


@dataclass(frozen=True)
class Word2VecConfig:
    """Configuration of word2vec. The defaults from ``width`` to ``epochs`` match gensim. Raises SettingError for an invalid
    value."""

    method: str = "skip-gram"  # predict a word from one word around it; "cbow": from all of them
    width: int = setting(100, "width of the vectors")
    window: int = setting(5, "maximum window size to each side")
    negative: int = setting(5, "negative samples per example")
    sample: float = setting(1e-3, "subsample words more frequent than this; 0: none")
    learning_rate: float = setting(0.025, "initial learning rate")
    min_learning_rate: float = setting(1e-4, "final learning rate")
    epochs: int = setting(5, "passes over the text")
    batch_size: int = setting(0, "examples per step; 0: 256, or the vocabulary size if smaller")
    seed: int = setting(1337, "random seed")

    def __post_init__(self) -> None:
        check_fields(self)
        one_of(self, "method", METHODS)
        at_least(self, width=1, window=1, negative=1, sample=0, learning_rate=0, min_learning_rate=0, epochs=1)
        at_least(self, batch_size=0, seed=0)


def negative_sampling_loss(inputs: Tensor, outputs: Tensor, contexts: Array, targets: Array) -> Tensor:
    """Return the loss of a batch, summed over examples. The kernel ``negative_sampling_step`` descends its gradient.

    inputs, outputs: the words' vectors as contexts and as targets, (words, width). contexts (n, c), targets (n, 1 + k): backend
    arrays of ids from ``Examples``, -1 for no word.

    Let h be the mean of the context vectors. sigmoid(h . target) is the probability that target is the correct word, not a
    negative sample. The loss is -log sigmoid(h . target) - sum log sigmoid(-h . sample).
    """
    is_context = tt.tensor(contexts >= 0)[..., None]
    total = (inputs[xp.maximum(contexts, 0)] * is_context).sum(axis=1)
    mean = total / is_context.sum(axis=1)
    # The value of the mean with the gradient of the sum, as in Mikolov's program. With the true gradient, learning would slow
    # down as contexts grow (İrsoy, Benton and Stratos 2021).
    h = total + (mean - total).detach()
    scores = (outputs[xp.maximum(targets, 0)] * tt.expand_dims(h, 1)).sum(axis=-1)
    is_right = xp.arange(targets.shape[1]) == 0
    losses = -tt.logsigmoid(tt.where(is_right, scores, -scores))
    return tt.where(targets >= 0, losses, 0.0).sum()


class Word2Vec:
    """Trains word vectors on a corpus. ::

        training = Word2Vec(corpus, Word2VecConfig(method="cbow"))
        training.train()
        training.vectors().nearest("king")

    Attributes:
        inputs, outputs: The words' vectors as contexts and as targets, (words, width), float32, on the backend.
        words_done: The number of words read over all epochs.
        losses: The mean loss per example of some batches, with the number of words read so far.
        stopped_by: The cause of an early stop, such as Ctrl-C.
    """

    def __init__(self, corpus: Corpus, config: Word2VecConfig):
        """Raises SettingError if the vectors do not fit in memory."""
        size = len(corpus.vocabulary), config.width
        check_fits(2 * 4 * size[0] * size[1], "two vectors for each word", "choose a smaller width", "width")
        self.corpus = corpus
        self.config = config
        # A step sums its gradients. It would be too large if a batch contained each word many times.
        self.batch_size = config.batch_size or min(LARGEST_BATCH, len(corpus.vocabulary))
        self.examples = Examples(corpus, config.method == "skip-gram", config.window, config.negative, config.sample)
        self._rng = host.random.default_rng(config.seed)
        self.inputs = from_numpy((self._rng.random(size, dtype=default_dtype) - 0.5) / config.width, default_dtype)
        self.outputs = xp.zeros(size, default_dtype)
        self.words_done = 0
        self.losses: list[tuple[int, float]] = []
        self.stopped_by: str | None = None

    @property
    def total_words(self) -> int:
        """The number of words to read over all epochs."""
        return self.config.epochs * len(self.corpus.ids)

    def rate(self) -> float:
        """Return the learning rate, which decays linearly with the words read."""
        first, last = self.config.learning_rate, min(self.config.min_learning_rate, self.config.learning_rate)
        return first + (last - first) * self.words_done / self.total_words

    def train(self, quiet: bool = False) -> bool:
        """Train to the end. Return True if nothing stopped training.

        Ctrl-C, SIGTERM, SIGHUP and a closed output stop it. In that case, ``stopped_by`` holds the cause, and ``vectors``
        returns the vectors so far. Raises SettingError if the loss is not finite.
        """
        began, shown = time.perf_counter(), 0
        with stop_on_signals(self._stop), lasting_progress("training", self.total_words, "word", quiet=quiet) as bar:
            pieces = (piece for _ in range(self.config.epochs) for piece in self.examples.of_an_epoch(self._rng))
            for words, contexts, targets in pieces:
                self._step(contexts, targets)
                self.words_done += words
                write_or_stop(self._stop, bar.update, words)
                if len(contexts) and self.words_done * SHOWN >= (shown + 1) * self.total_words:
                    shown = self.words_done * SHOWN // self.total_words
                    self._show(bar, contexts, targets, time.perf_counter() - began)
                if self.stopped_by:
                    return False
        return True

    def _step(self, contexts: Any, targets: Any) -> None:
        """Train on a piece's examples, in batches."""
        contexts, targets = from_numpy(contexts), from_numpy(targets)
        size, rate = self.batch_size, self.rate()
        for first in range(0, len(contexts), size):
            batch = contexts[first : first + size], targets[first : first + size]
            kernels.negative_sampling_step(self.inputs, self.outputs, *batch, rate)

    def _show(self, bar: Progress, contexts: Any, targets: Any, seconds: float) -> None:
        """Show the speed and the loss of the first examples in the latest piece."""
        some = [from_numpy(ids[: self.batch_size]) for ids in (contexts, targets)]
        with tt.no_grad():
            loss = negative_sampling_loss(tt.tensor(self.inputs), tt.tensor(self.outputs), *some).item() / len(some[0])
        if not host.isfinite(loss):
            raise SettingError(
                f"learning_rate is too high for a batch_size of {self.batch_size}: the loss is no longer finite",
                "learning_rate",
                "batch_size",
            )
        self.losses.append((self.words_done, loss))
        write_or_stop(self._stop, bar.set_postfix_str, f"loss {loss:.3f}, {self.words_done / seconds:,.0f} words/s")

    def _stop(self, by: str) -> None:
        """Stop training after the current piece."""
        self.stopped_by = self.stopped_by or by

    def vectors(self) -> WordVectors:
        """Return the vectors so far."""
        return WordVectors(self.corpus.vocabulary.words, to_numpy(self.inputs).copy())
