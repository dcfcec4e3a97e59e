"""word2vec: its examples, its gradient, and that it learns."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.word_vectors import batches
from tinyformer.word_vectors.batches import Examples, keep_probabilities, windows, word_table
from tinyformer.word_vectors.corpus import Corpus
from tinyformer.word_vectors.word2vec import Word2Vec, Word2VecConfig, negative_sampling_loss
from tinytensor import kernels
from tinytensor.device.backend import from_numpy, to_numpy

# -------------------------------------------------------------------------------------------------------- examples


def corpus_of(*rows: str) -> Corpus:
    return Corpus.of([row.split() for row in rows], 1)


class Widest:
    """Random numbers that are always the largest: the window is never shrunk."""

    def integers(self, low: int, high: int, size: Any, dtype: Any = int) -> np.ndarray:
        return np.full(size, high - 1, dtype)


def test_the_words_around_each_word_of_a_passage() -> None:
    ids, passage = np.array([5, 6, 7, 8, 9, 4]), np.array([0, 0, 0, 0, 1, 2])
    centers, contexts = windows(ids, passage, 2, Widest())
    assert centers.tolist() == [5, 6, 7, 8]  # the others are alone in their passages
    assert contexts.tolist() == [[-1, -1, 6, 7], [-1, 5, 7, 8], [5, 6, 8, -1], [6, 7, -1, -1]]


def test_windows_of_all_sizes_are_drawn_equally_often() -> None:
    ids = np.arange(20_000)
    _, contexts = windows(ids, np.zeros(20_000, int), 4, np.random.default_rng(0))
    reach = (contexts >= 0).mean(axis=0)
    np.testing.assert_allclose(reach, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25], atol=0.02)
    inner = contexts[4:-4] >= 0
    assert (inner == inner[:, ::-1]).all()


def test_no_words_have_no_windows() -> None:
    centers, contexts = windows(np.empty(0, int), np.empty(0, int), 3, np.random.default_rng(0))
    assert (centers.shape, contexts.shape) == ((0,), (0, 6))


def test_words_are_drawn_by_their_counts_to_the_power_of_three_quarters() -> None:
    counts = np.array([10_000, 500, 20, 1, 1])
    found = np.bincount(word_table(counts), minlength=5) / len(word_table(counts))
    np.testing.assert_allclose(found, counts**0.75 / (counts**0.75).sum(), atol=2e-6)
    many = word_table(np.ones(100_000, int))
    assert np.bincount(many).min() >= 31


def test_frequent_words_are_left_out_at_random() -> None:
    counts = np.array([900, 90, 9, 1])
    f = counts / 1000
    np.testing.assert_allclose(keep_probabilities(counts, 0.01), np.minimum(np.sqrt(0.01 / f) + 0.01 / f, 1))
    assert keep_probabilities(counts, 0.01)[2:].tolist() == [1, 1]
    assert keep_probabilities(counts, 0).tolist() == [1, 1, 1, 1]
    corpus = Corpus.of([(["often"] * 9 + ["seldom"]) * 1000], 1)
    rng = np.random.default_rng(0)
    targets = np.concatenate([t[:, 0] for _, _, t in Examples(corpus, False, 5, 2, 0.01).of_an_epoch(rng)])
    left = np.bincount(targets) / corpus.vocabulary.counts
    np.testing.assert_allclose(left, keep_probabilities(corpus.vocabulary.counts, 0.01), rtol=0.1)


@pytest.mark.parametrize("piece", [3, 10_000])
def test_skip_gram_predicts_a_word_from_each_word_around_it(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PIECE", piece)
    corpus = corpus_of("a b c", "d e f")
    pairs: Counter[tuple[str, str]] = Counter()
    name = corpus.vocabulary.words.__getitem__
    total = 0
    for words, contexts, targets in Examples(corpus, True, 1, 4, 0).of_an_epoch(np.random.default_rng(0)):
        assert contexts.shape == (len(targets), 1)
        assert targets.shape[1] == 5
        assert not (targets[:, 1:] == targets[:, :1]).any()  # no word is drawn against itself
        pairs.update(zip(map(name, contexts[:, 0]), map(name, targets[:, 0])))
        total += words
    assert total == 6
    assert pairs == Counter((a, b) for pair in ("ab", "bc", "de", "ef") for a, b in (pair, pair[::-1]))


# -------------------------------------------------------------------------------------------------------- gradient


def some_batch(examples: int, contexts: int, targets: int, words: int = 9, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ids with many repetitions, and holes in all columns but the first."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, words, (examples, contexts)), rng.integers(0, words, (examples, targets))
    for ids in found:
        ids[:, 1:][rng.random(ids[:, 1:].shape) < 0.3] = -1
    return found


@pytest.mark.parametrize(("contexts", "targets"), [(1, 6), (10, 6), (3, 1), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_descends_the_gradient_of_the_loss(contexts: int, targets: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal((9, 5)).astype(dtype) for _ in range(2)]
    ids = [from_numpy(part) for part in some_batch(40, contexts, targets)]
    tensors = [tt.tensor(w, requires_grad=True) for w in weights]
    gradients = tt.grad(negative_sampling_loss(*tensors, *ids), tensors)
    stepped = [from_numpy(w) for w in weights]
    kernels.negative_sampling_step(*stepped, *ids, 0.5)
    for before, after, gradient in zip(weights, stepped, gradients):
        assert to_numpy(after).dtype == dtype
        tolerance = 1e-12 if dtype == "float64" else 5e-6
        np.testing.assert_allclose((before - to_numpy(after)) / 0.5, gradient.numpy(), rtol=tolerance, atol=tolerance)
        assert abs(gradient.numpy()).max() > 1


def test_the_loss_against_its_formula() -> None:
    inputs, outputs = tt.tensor([[1.0, 2.0], [3.0, 0.0], [9.0, 9.0]]), tt.tensor([[1.0, 0.0], [0.0, -1.0], [9.0, 9.0]])
    contexts, targets = (from_numpy(np.array(ids)) for ids in ([[0, 1, -1]], [[0, 1, -1]]))
    right, wrong = 2.0, -1.0  # the scores of h = (2, 1)
    want = np.log1p(np.exp(-right)) + np.log1p(np.exp(wrong))
    assert negative_sampling_loss(inputs, outputs, contexts, targets).item() == pytest.approx(want)


def test_each_context_gets_the_whole_gradient_of_the_mean() -> None:
    inputs, outputs = (np.random.default_rng(i).standard_normal((4, 3)) for i in range(2))
    h = tt.tensor(inputs[:3].mean(axis=0, keepdims=True), requires_grad=True)
    one, three = (from_numpy(np.array([ids])) for ids in ([0], [0, 1, 2]))
    targets = from_numpy(np.array([[3, 1]]))
    (of_mean,) = tt.grad(negative_sampling_loss(h, tt.tensor(outputs), one, targets), [h])
    x = tt.tensor(inputs, requires_grad=True)
    (of_words,) = tt.grad(negative_sampling_loss(x, tt.tensor(outputs), three, targets), [x])
    np.testing.assert_allclose(of_words.numpy()[:3], np.repeat(of_mean.numpy(), 3, axis=0), rtol=1e-12)


def test_only_the_rows_of_a_batch_change() -> None:
    weights = [from_numpy(np.ones((50, 4), np.float32)) for _ in range(2)]
    kernels.negative_sampling_step(*weights, *[from_numpy(np.array(ids)) for ids in ([[3], [4]], [[7, 8], [7, -1]])], 0.1)
    changed = [np.flatnonzero((to_numpy(w) != 1).any(axis=1)).tolist() for w in weights]
    assert changed == [[3, 4], [7, 8]]


def test_no_examples_change_nothing() -> None:
    weights = [from_numpy(np.ones((5, 4), np.float32)) for _ in range(2)]
    kernels.negative_sampling_step(*weights, *[from_numpy(np.empty((0, n), int)) for n in (1, 6)], 0.1)
    assert all((to_numpy(w) == 1).all() for w in weights)


def test_scores_of_any_size_are_finite() -> None:
    weights = [from_numpy(np.full((3, 2), 1e4, np.float32)) for _ in range(2)]
    kernels.negative_sampling_step(*weights, *[from_numpy(np.array(ids)) for ids in ([[0]], [[1, 2]])], 0.5)
    inputs, outputs = map(to_numpy, weights)
    assert inputs[0].tolist() == [5e3, 5e3]  # the right word's slope is 0, the other's 1
    assert outputs.tolist() == [[1e4, 1e4], [1e4, 1e4], [5e3, 5e3]]


# -------------------------------------------------------------------------------------------------------- training


def colors_and_animals(sentences: int = 400) -> Corpus:
    """Sentences in which colors are used alike, and animals."""
    rng = np.random.default_rng(0)
    kinds = {"it is": ["red", "green", "blue", "white"], "look at": ["cats", "dogs", "mice", "cows"]}
    rows = []
    for _ in range(sentences):
        kind = list(kinds)[int(rng.integers(2))]
        rows.append(
            [*kind.split(), kinds[kind][int(rng.integers(4))], *(["so", "said"] if kind == "it is" else ["and", "run"])]
        )
    return Corpus.of(rows, 1)


QUICK = {"width": 16, "window": 3, "sample": 0.0, "epochs": 20, "batch_size": 32, "learning_rate": 0.05}


@pytest.mark.parametrize("method", ["cbow", "skip-gram"])
def test_words_that_are_used_alike_come_together(method: str) -> None:
    training = Word2Vec(colors_and_animals(), Word2VecConfig(method=method, **QUICK))
    assert training.train(quiet=True)
    losses = [loss for _, loss in training.losses]
    assert len(losses) == 20
    assert losses[-1] < 0.75 * losses[0]
    vectors = training.vectors()
    for words in (["red", "green", "blue", "white"], ["cats", "dogs", "mice", "cows"]):
        for word in words:
            assert {other for other, _ in vectors.nearest(word, 3)} == {*words} - {word}
    assert vectors.odd_one_out(["red", "cows", "green", "blue"]) == "cows"


def test_a_seed_repeats_its_vectors_exactly() -> None:
    found = []
    for seed in (1, 1, 2):
        training = Word2Vec(colors_and_animals(50), Word2VecConfig(**{**QUICK, "epochs": 2}, seed=seed))
        training.train(quiet=True)
        found.append(training.vectors().matrix.tobytes())
    assert found[0] == found[1] != found[2]


def test_batches_are_no_larger_than_the_vocabulary_unless_asked_for() -> None:
    small = colors_and_animals(50)
    large = Corpus.of([[f"w{i}" for i in range(400)]], 1)
    sizes = [Word2Vec(corpus, Word2VecConfig(batch_size=size)).batch_size for corpus in (small, large) for size in (0, 300)]
    assert sizes == [len(small.vocabulary), 300, 256, 300]


def test_the_learning_rate_falls_evenly() -> None:
    training = Word2Vec(colors_and_animals(50), Word2VecConfig(**{**QUICK, "epochs": 4, "min_learning_rate": 0.01}))
    rates = []
    step = training._step
    training._step = lambda *piece: (rates.append(training.rate()), step(*piece))[1]  # type: ignore[method-assign]
    training.train(quiet=True)
    np.testing.assert_allclose(rates, [0.05, 0.04, 0.03, 0.02])
    assert training.rate() == pytest.approx(0.01)


def test_progress_shows_the_speed_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    Word2Vec(colors_and_animals(50), Word2VecConfig(**{**QUICK, "epochs": 3})).train()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    pattern = r"training: word [\d,]+ of 750, loss \d\.\d{3}, [\d,]+ words/s, \d\d:\d\d left"
    assert all(re.fullmatch(pattern, line) for line in lines), lines


def test_a_signal_stops_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PIECE", 100)
    training = Word2Vec(colors_and_animals(), Word2VecConfig(**QUICK))
    step, steps = training._step, []

    def interrupted(*piece: Any) -> None:
        steps.append(step(*piece))
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)

    training._step = interrupted  # type: ignore[method-assign]
    assert not training.train(quiet=True)
    assert training.stopped_by == "Ctrl-C"
    assert len(steps) == 3
    assert training.words_done == 300
    assert len(training.vectors()) == len(training.corpus.vocabulary)


def test_the_end_of_its_output_stops_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def isatty(self) -> bool:
            return False  # lines, of which the first comes during the training

    training = Word2Vec(colors_and_animals(), Word2VecConfig(**QUICK))
    monkeypatch.setattr(sys, "stderr", Full())
    assert not training.train()
    monkeypatch.undo()
    assert training.stopped_by == f"the end of its output ({os.strerror(errno.ENOSPC)})"
    assert len(training.vectors()) == len(training.corpus.vocabulary)


def test_a_rate_that_is_too_high() -> None:
    training = Word2Vec(colors_and_animals(), Word2VecConfig(**{**QUICK, "learning_rate": 1e30, "min_learning_rate": 1e30}))
    with (
        np.errstate(all="ignore"),
        pytest.raises(SettingError, match="learning_rate is too high for a batch_size of 32: the loss is no longer finite"),
    ):
        training.train(quiet=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "glove"}, "method must be one of cbow, skip-gram, got 'glove'"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"negative": 0}, "negative must be at least 1, got 0"),
        ({"sample": -0.1}, "sample must be at least 0"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Word2VecConfig(**settings)


def test_a_window_beyond_the_longest_passage_is_as_one_of_its_length() -> None:
    corpus = corpus_of("a b c d", "a c")
    found = [Examples(corpus, False, window, 2, 0) for window in (3, 10**30)]
    assert [examples.window for examples in found] == [3, 3]
    one, other = (list(examples.of_an_epoch(np.random.default_rng(0))) for examples in found)
    assert all((a == b).all() for a, b in zip(one[0][1:], other[0][1:]))


def test_more_words_drawn_than_fit_in_memory() -> None:
    with pytest.raises(SettingError, match="a piece of the text with this negative needs at least") as error:
        Word2Vec(colors_and_animals(), Word2VecConfig(negative=10**30))
    assert error.value.names == ("negative",)


def test_vectors_that_do_not_fit() -> None:
    with pytest.raises(SettingError, match=r"two vectors for each word needs at least .* choose a smaller width"):
        Word2Vec(colors_and_animals(), Word2VecConfig(width=10**12))
