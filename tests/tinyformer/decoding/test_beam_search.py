"""Beam search against its two extremes: greedy decoding, and an exhaustive search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.decoding.beam_search import BeamStep, Hypothesis, WuRule, beam_search, log_softmax
from tinyformer.decoding.generation import GPTDecoder, TransformerDecoder, sample
from tinyformer.decoding.sampling import Sampling
from tinyformer.models.transformer import Transformer, TransformerConfig

START, END = 1, 2


class Tree:
    """A decoder whose logits depend on the whole text so far, at random, and differ from row to row of the batch."""

    def __init__(self, vocab_size: int, seeds: list[int], scale: float = 2.0):
        self.vocab_size = vocab_size
        self.scale = scale
        self.texts: list[tuple[int, ...]] = [(seed,) for seed in seeds]
        self.steps = 0

    def next_logits(self, new: Any) -> Any:
        assert len(new) == len(self.texts)
        self.steps += 1
        self.texts = [(*text, *map(int, ids)) for text, ids in zip(self.texts, new)]
        return np.stack([self.logits_after(text) for text in self.texts]).astype(np.float32)

    def logits_after(self, text: tuple[int, ...]) -> Any:
        return self.scale * np.random.default_rng(text).standard_normal(self.vocab_size)

    def select(self, rows: Any) -> None:
        self.texts = [self.texts[row] for row in rows]


class Given(Tree):
    """A decoder that knows the probabilities after each text, without its start; elsewhere the end is certain."""

    def __init__(self, probabilities: dict[tuple[int, ...], list[float]]):
        self.probabilities = probabilities
        super().__init__(len(next(iter(probabilities.values()))), [0])

    def logits_after(self, text: tuple[int, ...]) -> Any:
        certain = np.eye(self.vocab_size)[END]
        with np.errstate(divide="ignore"):
            return np.log(np.array(self.probabilities.get(text[2:], certain)))


def log_probability(decoder: Tree, seed: int, ids: tuple[int, ...]) -> float:
    """The log-probability of the ids after the start."""
    total = 0.0
    for place, token in enumerate(ids):
        logits = decoder.logits_after((seed, START, *ids[:place])).astype(np.float32).astype(np.float64)
        total += logits[token] - math.log(np.exp(logits).sum())
    return total


def every_text(decoder: Tree, seed: int, max_tokens: int, alpha: float) -> list[Hypothesis]:
    """All texts that end, and all that reach max_tokens without an end, best first."""
    others = [token for token in range(decoder.vocab_size) if token != END]
    found = []
    for length in range(max_tokens + 1):
        for ids in itertools.product(others, repeat=length):
            whole = ids if length == max_tokens else (*ids, END)
            score = log_probability(decoder, seed, whole) / ((5 + len(whole)) / 6) ** alpha
            found.append(Hypothesis(ids, score))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


def assert_same_texts(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in expected]
    for one, other in zip(found, expected):
        assert one.score == pytest.approx(other.score, rel=1e-6)


def spread(model: Any) -> Any:
    """Make the logits differ clearly, as a trained model's do."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            tt.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture
def make_transformer() -> Callable[[int], Transformer]:
    def make(seed: int) -> Transformer:
        tt.seed(seed)
        sizes = {"d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 8}
        return spread(Transformer(TransformerConfig(7, 7, **sizes)))

    return make


SOURCE = np.array([[3, 4, 5, 6], [6, 5, 0, 0], [4, 0, 0, 0]])


# ------------------------------------------------------------------------------------------------------ the two ends


def greedy(decoder: Any, batch_size: int, max_tokens: int) -> list[tuple[int, ...]]:
    """What greedy decoding writes before the end."""
    starts = np.full((batch_size, 1), START)
    steps = np.array(list(sample(decoder, starts, max_tokens, Sampling(temperature=0.0), end=END)))
    return [tuple(map(int, itertools.takewhile(lambda i: i != END, row))) for row in steps.T]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_of_one_is_greedy(alpha: float) -> None:
    lengths = set()
    for seed in range(60):
        seeds = [3 * seed, 3 * seed + 1, 3 * seed + 2]
        found = beam_search(Tree(5, seeds), [[START]] * 3, END, beam=1, max_tokens=6, rule=WuRule(alpha))
        expected = greedy(Tree(5, seeds), 3, 6)
        assert [hypotheses[0].ids for hypotheses in found] == expected
        lengths |= set(map(len, expected))
    assert lengths == {0, 1, 2, 3, 4, 5, 6}  # some end at once, and some never


def test_a_beam_of_one_is_greedy_with_real_models(make_transformer, make_gpt) -> None:
    written = set()
    for seed in range(15):
        transformer, gpt = make_transformer(seed), spread(make_gpt(seed, num_layers=1))
        for make in (lambda m=transformer: TransformerDecoder(m, SOURCE, 8), lambda m=gpt: GPTDecoder(m)):
            found = beam_search(make(), [[START]] * 3, END, beam=1, max_tokens=8)
            expected = greedy(make(), 3, 8)
            assert [hypotheses[0].ids for hypotheses in found] == expected
            written |= set(expected)
    assert len(written) > 20


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("vocab_size", "max_tokens"), [(3, 4), (4, 3), (5, 2), (3, 1)])
def test_a_beam_of_everything_finds_the_best(vocab_size: int, max_tokens: int, alpha: float) -> None:
    width = vocab_size**max_tokens
    for seed in range(12):
        decoder = Tree(vocab_size, [seed])
        expected = every_text(decoder, seed, max_tokens, alpha)
        (found,) = beam_search(decoder, [[START]], END, beam=width, max_tokens=max_tokens, rule=WuRule(alpha))
        assert_same_texts(found, expected[:1])


@pytest.mark.parametrize("n_best", [2, 5, 31])
def test_the_n_best_of_everything(n_best: int) -> None:
    # With 3 tokens and at most 4 of them there are 1 + 2 + 4 + 8 texts that end, and 16 that do not.
    for seed in range(8):
        decoder = Tree(3, [seed])
        expected = every_text(decoder, seed, 4, 0.6)
        assert len(expected) == 31
        (found,) = beam_search(decoder, [[START]], END, beam=81, max_tokens=4, n_best=n_best)
        assert_same_texts(found, expected[:n_best])


def test_a_wider_beam_is_better_on_average() -> None:
    scores = [
        np.mean([beam_search(Tree(6, [s]), [[START]], END, beam, 5, rule=WuRule(0.0))[0][0].score for s in range(40)])
        for beam in (1, 3, 8)
    ]
    assert scores[0] < scores[1] < scores[2]


# ------------------------------------------------------------------------------------------------------ between them


def test_scores_are_normalised_log_probabilities() -> None:
    decoder = Tree(6, [4])
    (found,) = beam_search(decoder, [[START]], END, beam=4, max_tokens=5, rule=WuRule(0.9), n_best=4)
    for hypothesis in found:
        whole = hypothesis.ids if len(hypothesis.ids) == 5 else (*hypothesis.ids, END)
        expected = log_probability(decoder, 4, whole) / ((5 + len(whole)) / 6) ** 0.9
        assert hypothesis.score == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("beam", [2, 3, 7])
def test_the_n_best_are_sorted_and_distinct(beam: int) -> None:
    for seed in range(30):
        (found,) = beam_search(Tree(5, [seed]), [[START]], END, beam=beam, max_tokens=5, n_best=beam)
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.ids for hypothesis in found}) == len(found) == beam
        assert all(len(h.ids) <= 5 and END not in h.ids for h in found)
        (best,) = beam_search(Tree(5, [seed]), [[START]], END, beam=beam, max_tokens=5)
        assert_same_texts(best, found[:1])


def test_a_text_that_ended_early_is_kept() -> None:
    # Ending at once has the probability 0.4. Of what goes on instead, nothing reaches that, but each step is likelier than
    # the end was: a search that forgot the texts that have ended would return the longest.
    other, another = 0, 3
    probabilities = {(): [0.6, 0.0, 0.4, 0.0], (other,): [0.55, 0.0, 0.0, 0.45], (other, other): [0.6, 0.0, 0.0, 0.4]}
    (found,) = beam_search(Given(probabilities), [[START]], END, beam=3, max_tokens=8, rule=WuRule(0.0), n_best=3)
    assert [h.ids for h in found] == [(), (other, another), (other, other, other)]
    assert [math.exp(h.score) for h in found] == pytest.approx([0.4, 0.27, 0.198])
    # Greedy decoding takes the way of the likelier first step.
    assert beam_search(Given(probabilities), [[START]], END, beam=1, max_tokens=8)[0][0].ids == (other, other, other)


def test_a_long_text_wins_by_length_normalisation() -> None:
    # 0.4 for one token, the end; 0.6 * 0.6 = 0.36 for three.
    probabilities = {(): [0.6, 0.0, 0.4], (0,): [0.6, 0.0, 0.4]}
    best = {
        alpha: beam_search(Given(probabilities), [[START]], END, beam=4, max_tokens=8, rule=WuRule(alpha))[0][0].ids
        for alpha in (0.0, 1.0)
    }
    assert best == {0.0: (), 1.0: (0, 0)}
    assert WuRule(0.7).score(-2.0, 1) == -2.0
    assert WuRule(1.0).score(-2.0, 7) == -1.0


def test_an_end_takes_no_place_in_the_beam() -> None:
    # The end is the likeliest first token; beside it, both others fit into a beam of two.
    probabilities = {(): [0.3, 0.0, 0.5, 0.2], (0,): [0.5, 0.0, 0.0, 0.5]}
    (found,) = beam_search(Given(probabilities), [[START]], END, beam=2, max_tokens=8, rule=WuRule(0.0), n_best=2)
    assert [h.ids for h in found] == [(), (3,)]


def test_a_search_continues_while_a_long_text_can_win() -> None:
    # log 0.4 over (13/6)^2, for eight tokens, is above log 0.6; for two tokens it is not.
    probabilities = {(): [0.4, 0.0, 0.6], **{(0,) * n: [1.0, 0.0, 0.0] for n in range(1, 9)}}
    (found,) = beam_search(Given(probabilities), [[START]], END, beam=2, max_tokens=8, rule=WuRule(2.0))
    assert found[0].ids == (0,) * 8


def test_what_cannot_be_is_not_found() -> None:
    # Two texts are possible, so a wider beam does not make up others.
    probabilities = {(): [0.7, 0.0, 0.3], (0,): [0.0, 0.0, 1.0]}
    (found,) = beam_search(Given(probabilities), [[START]], END, beam=5, max_tokens=4, n_best=5)
    assert {h.ids for h in found} == {(), (0,)}
    assert all(math.isfinite(h.score) for h in found)
    # Nor does the end, where it cannot come: these go on to the last token.
    endless = {(0,) * n: [1.0, 0.0, 0.0] for n in range(9)}
    (found,) = beam_search(Given(endless), [[START]], END, beam=3, max_tokens=4, n_best=3)
    assert [(h.ids, h.score) for h in found] == [((0, 0, 0, 0), 0.0)]


def test_a_search_stops_when_nothing_can_get_better() -> None:
    decoder = Given({(): [0.04, 0.0, 0.96], (0,): [1.0, 0.0, 0.0]})
    (found,) = beam_search(decoder, [[START]], END, beam=4, max_tokens=1000, rule=WuRule(0.0))
    assert found[0].ids == ()
    assert decoder.steps == 1


# ------------------------------------------------------------------------------------------------------ watching it


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_the_steps_that_are_watched_make_the_tree_of_the_search(beam: int) -> None:
    seeds, settings = [3, 4, 5, 6], {"beam": beam, "max_tokens": 4, "n_best": beam, "rule": WuRule(0.8)}
    steps: list[BeamStep] = []
    found = beam_search(Tree(5, seeds), [[START]] * 4, END, **settings, watch=steps.append)
    assert found == beam_search(Tree(5, seeds), [[START]] * 4, END, **settings)
    assert [step.step for step in steps] == sorted(step.step for step in steps)
    ended_at_the_limit = 0
    for row, seed in enumerate(seeds):
        texts: list[tuple[int, ...]] = [()]
        finished: dict[tuple[int, ...], float] = {}
        for number, step in enumerate((step for step in steps if step.row == row), 1):
            assert step.step == number
            sums = [candidate.log_probability for candidate in step.candidates]
            assert sums == sorted(sums, reverse=True)
            kept = []
            for candidate in step.candidates:
                ids = (*texts[candidate.parent], candidate.token)
                assert candidate.log_probability == pytest.approx(log_probability(Tree(5, [0]), seed, ids), rel=1e-6)
                if candidate.kept is None:
                    assert candidate.token == END or number == 4
                    assert candidate.score == WuRule(0.8).score(candidate.log_probability, number)
                    finished[ids] = candidate.score
                    ended_at_the_limit += candidate.token != END
                else:
                    assert candidate.kept == len(kept) and candidate.score is None
                    kept.append(ids)
            assert len(kept) <= beam
            texts = kept
        best = sorted(finished.items(), key=lambda item: -item[1])[:beam]
        assert [((*h.ids, h.end) if h.end is not None else h.ids, h.score) for h in found[row]] == best
    assert ended_at_the_limit


# ------------------------------------------------------------------------------------------------------ batches, caches


@pytest.mark.parametrize("beam", [1, 3, 5])
def test_a_batch_finds_what_each_row_finds_alone(beam: int) -> None:
    # Rows end at different steps, and the others go on without them.
    seeds = list(range(20))
    settings = {"beam": beam, "max_tokens": 6, "n_best": beam}
    together = beam_search(Tree(5, seeds), [[START]] * 20, END, **settings)
    steps = set()
    for seed in seeds:
        decoder = Tree(5, [seed])
        (alone,) = beam_search(decoder, [[START]], END, **settings)
        assert together[seed] == alone
        steps.add(decoder.steps)
    assert len(steps) > 1


def test_real_models_in_a_batch_and_with_a_cache(make_transformer) -> None:
    different = 0
    for seed in range(6):
        model = make_transformer(seed)
        settings = {"beam": 4, "max_tokens": 7, "n_best": 4}
        cached, plain = (
            beam_search(TransformerDecoder(model, SOURCE, 7, use_cache), [[START]] * 3, END, **settings)
            for use_cache in (True, False)
        )
        for row, length in enumerate((4, 2, 1)):
            assert_same_texts(cached[row], plain[row])
            decoder = TransformerDecoder(model, SOURCE[row : row + 1, :length], 7)
            (alone,) = beam_search(decoder, [[START]], END, **settings)
            assert [h.ids for h in alone] == [h.ids for h in cached[row]]
            np.testing.assert_allclose([h.score for h in alone], [h.score for h in cached[row]], rtol=1e-4)
        different += len({h.ids for row in cached for h in row})
    assert different > 40


def test_a_gpt_beyond_its_block(make_gpt) -> None:
    # The beam goes on past the eight tokens of the block, where there is no cache any more.
    model = spread(make_gpt(seed=3))
    settings = {"beam": 3, "max_tokens": 14, "n_best": 3, "rule": WuRule(1.0)}
    decoders = (GPTDecoder(model, use_cache) for use_cache in (True, False))
    cached, plain = (beam_search(decoder, [[START]] * 2, 99, **settings) for decoder in decoders)
    for one, other in zip(cached, plain):
        assert_same_texts(one, other)
        assert {len(h.ids) for h in one} == {14}  # the id 99 is none of the model's, so no text ends


# ------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam": 0}, "beam must be at least 1, got 0"),
        ({"beam": -1}, "beam must be at least 1, got -1"),
        ({"beam": 2.0}, "beam must be an integer, got 2.0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"n_best": 0}, "n_best must be at least 1, got 0"),
        ({"n_best": 4, "beam": 3}, "n_best must be at most beam, 3, got 4"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        beam_search(Tree(5, [0]), [[START]], END, **changes)
    assert caught.value.names == tuple(changes)


def test_no_rows() -> None:
    decoder = Tree(5, [])
    assert beam_search(decoder, [], END) == []
    assert decoder.steps == 0


@pytest.mark.parametrize("beam", [1, 2, 9])
def test_outputs_that_say_nothing(beam: int) -> None:
    for wrong, message in [(math.nan, "NaN"), (math.inf, "infinite")]:
        for text in [(), (0,)]:  # at once, or after a step

            class Broken(Tree):
                def logits_after(self, ids: tuple[int, ...], text: Any = text, wrong: float = wrong) -> Any:
                    return np.array([3.0, wrong if ids[2:] == text else 1.0, 1.0, 1.0])

            with pytest.raises(UserError, match=f"the model's outputs are {message}"):
                beam_search(Broken(4, [0]), [[START]], END, beam=beam, max_tokens=4)
    with pytest.raises(UserError, match="-inf for every allowed token, so that no token is possible"):
        log_softmax(np.full((2, 3), -np.inf))


def test_log_softmax() -> None:
    logits = np.array([[1000.0, 1001.0, -1e30], [0.0, 0.0, 0.0]])
    expected = [[-math.log(1 + math.e), 1 - math.log(1 + math.e), -1e30], [-math.log(3)] * 3]
    np.testing.assert_allclose(log_softmax(logits), expected, rtol=1e-12)
