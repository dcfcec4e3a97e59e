"""Markov models: the tables, the votes with skips, and Kneser-Ney smoothing against the formula, term by term."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tinytensor as tt
from tinyformer import UserError
from tinyformer.markov import KneserNey, SkipVotes, TransitionTable
from tinyformer.markov.kneser_ney import discounts


def sizes(n: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, n - 1), min_size=12, max_size=60)


def by_the_formula(ids: list[int], order: int, vocab_size: int, context: tuple[int, ...], token: int) -> Fraction:
    """The probability as Chen and Goodman write it, with sets and counters of tuples."""
    context = context[len(context) - min(order, len(context)) :]
    grams = {n: [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)] for n in range(1, order + 2)}

    def counts(n: int) -> Counter[tuple[int, ...]]:
        return Counter(grams[n]) if n == order + 1 else Counter(gram[1:] for gram in set(grams[n + 1]))

    def probability(context: tuple[int, ...]) -> Fraction:
        lower = probability(context[1:]) if context else Fraction(1, vocab_size)
        of = counts(len(context) + 1)
        after = {gram: count for gram, count in of.items() if gram[:-1] == context}
        total = sum(after.values())
        if not total:
            return lower
        taken = [Fraction(float(d)) for d in discounts(np.array(list(of.values())))]
        freed = sum(taken[min(count, 3)] for count in after.values())
        count = after.get((*context, token), 0)
        return (count - taken[min(count, 3)] + freed * lower) / total

    return probability(context)


@given(sizes(4), st.integers(0, 4), st.lists(st.integers(0, 4), max_size=6))
def test_kneser_ney_is_the_formula(ids: list[int], order: int, context: list[int]) -> None:
    model = KneserNey(ids, order, vocab_size=5)  # token 4 never occurs
    found = model.probabilities(context)
    wanted = [float(by_the_formula(ids, order, 5, tuple(context), token)) for token in range(5)]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert abs(found.sum() - 1) < 1e-9
    assert (found > 0).all()


def test_log_probabilities_are_those_of_each_context() -> None:
    rng = np.random.default_rng(0)
    model = KneserNey(rng.integers(0, 6, 500), 3, vocab_size=7)
    text = rng.integers(0, 7, 40)
    wanted = [np.log(model.probabilities(text[:i])[text[i]]) for i in range(len(text))]
    np.testing.assert_allclose(model.log_probabilities(text), wanted, rtol=1e-12)
    assert model.loss(text) == pytest.approx(-np.mean(wanted[1:]), rel=1e-12)
    for length in (1, 2, 3, 4):  # not longer than a context, or hardly
        np.testing.assert_allclose(model.log_probabilities(text[:length]), wanted[:length], rtol=1e-12)


def test_a_frequent_word_that_follows_one_word_only_is_a_bad_guess_elsewhere() -> None:
    """ "san francisco" is frequent, but only after "san"; "york" and "table" follow several words."""
    san, francisco, table, a, the, that, new = range(7)
    ids = [san, francisco] * 20 + [a, table, the, table, that, table]
    model = KneserNey(ids, 1, vocab_size=7)
    assert ids.count(francisco) > ids.count(table)
    after_new = model.probabilities([new])
    assert after_new[table] > after_new[francisco]
    assert model.probabilities([san]).argmax() == francisco


def test_unseen_counts_what_raw_counts_rule_out() -> None:
    model = KneserNey([0, 1, 0, 1, 2], 1, vocab_size=4)
    assert model.unseen([0, 1, 2, 0]) == pytest.approx(1 / 3)  # 2 0 never occurred
    assert model.unseen([3, 3, 3]) == 1


def test_generate_is_repeatable_and_follows_certain_contexts() -> None:
    ids = [0, 1, 2, 3] * 500
    model = KneserNey(ids, 2, vocab_size=4)
    one, two = (model.generate([0, 1], 40, np.random.default_rng(5)) for _ in range(2))
    assert one == two
    assert one == ([2, 3, 0, 1] * 10)


def test_discounts_are_estimated_or_half_of_the_count() -> None:
    counts = np.repeat([1, 2, 3, 4, 5], [60, 30, 20, 10, 7])
    share = 60 / (60 + 2 * 30)
    wanted = [0, 1 - 2 * share * 30 / 60, 2 - 3 * share * 20 / 30, 3 - 4 * share * 10 / 20]
    np.testing.assert_allclose(discounts(counts), wanted)
    np.testing.assert_allclose(discounts(np.array([7, 9, 12])), [0, 0.5, 1, 1.5])


@pytest.mark.parametrize(
    ("ids", "order", "message"),
    [
        ([0, 1], 2, "a text of 2 tokens is too short for a model of order 2: pass a longer text"),
        ([0, 1, 2], -1, "order must be at least 0, got -1"),
        ([0, 1, 5], 1, "token id 5 is out of range: the vocabulary's ids are 0 to 2"),
        ([0, 1.5, 1], 1, "token ids must be integers, got float64"),
        ([[0, 1, 2], [2, 1, 0]], 1, r"token ids must be one row, got shape \(2, 3\): pass one text"),
    ],
)
def test_kneser_ney_refuses(ids: object, order: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        KneserNey(ids, order, 3)


def test_texts_that_cannot_be_judged() -> None:
    model = KneserNey([0, 1, 2, 0, 1], 2, 3)
    with pytest.raises(UserError, match="a text of 1 token has no token to predict"):
        model.loss([0])
    with pytest.raises(UserError, match="a text of 2 tokens is too short for order 2"):
        model.unseen([0, 1])
    for ask in (model.probabilities, model.loss, model.unseen):
        with pytest.raises(UserError, match="token id 3 is out of range"):
            ask([0, 1, 3])


# ------------------------------------------------------------------------------------------------ tables and votes


def test_a_transition_table_counts_within_sentences() -> None:
    table = TransitionTable([[0, 1, 0, 2], [2, 1]], 3)
    np.testing.assert_allclose(table.matrix.numpy(), [[0, 0.5, 0.5], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(table.predict([1, 0]).numpy(), table.matrix.numpy()[0])
    pairs = TransitionTable([[0, 1, 0, 2], [2, 1]], 3, order=2)
    np.testing.assert_allclose(pairs.predict([2, 0, 1]).numpy(), [1, 0, 0])
    np.testing.assert_allclose(pairs.predict([2, 1]).numpy(), [0, 0, 0])  # nothing ever came after it
    with pytest.raises(UserError, match="a context of 1 token is too short for order 2"):
        pairs.predict([1])
    with pytest.raises(UserError, match="order must be at least 1, got 0"):
        TransitionTable([[0]], 1, order=0)


def test_votes_are_those_of_pairs_anywhere_before() -> None:
    votes = SkipVotes([[0, 3, 2, 1], [1, 3, 2, 0]], 4)
    assert votes.votes.shape == (4, 4, 4)
    np.testing.assert_allclose(votes.votes.numpy()[2, 0], [0, 1, 0, 0])  # "0 ... 2" was followed by 1
    np.testing.assert_allclose(votes.votes.numpy()[2, 3], [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(votes.votes.numpy()[3, 2], 0)  # never in this order
    np.testing.assert_allclose(votes.mask.numpy()[2], [1, 1, 0, 0])
    assert not votes.mask.numpy()[3].any()  # after 3 always comes 2


def test_weights_are_the_product_of_query_mask_and_keys() -> None:
    votes = SkipVotes([[0, 3, 2, 1], [1, 3, 2, 0]], 4)
    np.testing.assert_allclose(votes.weights([0, 3, 2]).numpy(), [1, 0])
    np.testing.assert_allclose(votes.weights([0, 3, 2], masked=False).numpy(), [0.5, 0.5])
    np.testing.assert_allclose(votes.weights([0, 0, 3]).numpy(), [0.5, 0.5])  # silenced altogether: all count the same
    np.testing.assert_allclose(votes.predict([0, 3, 2]).numpy(), [0, 1, 0, 0])
    np.testing.assert_allclose(votes.predict([0, 3, 2], masked=False).numpy(), [0.25, 0.75, 0, 0])
    np.testing.assert_allclose(votes.predict([2]).numpy(), [0.5, 0.5, 0, 0])  # no pair: the last word alone


@pytest.mark.parametrize("threshold", [0, -0.5, 1.5, float("nan")])
def test_a_threshold_is_a_part_of_the_probability(threshold: float) -> None:
    with pytest.raises(UserError, match="threshold must be above 0 and at most 1"):
        SkipVotes([[0, 1]], 2, threshold)


def test_a_pair_counts_from_the_threshold_on() -> None:
    sentences = [[0, 3, 1], [0, 3, 2], [1, 3, 1], [1, 3, 1]]  # after 3: 1 in 3 of 4; after "0 ... 3": in 1 of 2
    assert tt.isclose(SkipVotes(sentences, 4).first_order.predict([3])[1], tt.tensor(0.75)).item()
    assert SkipVotes(sentences, 4, threshold=0.25).mask.numpy()[3, 0] == 1
    assert SkipVotes(sentences, 4, threshold=0.26).mask.numpy()[3, 0] == 0


ANIMALS = {"dog": "barked", "cat": "purred", "lion": "roared", "owl": "hooted", "wolf": "howled", "duck": "quacked"}
PLACES = ["ran through", "slept in", "lived by"]


def encoded(*sentences: str) -> tuple[list[str], list[list[int]]]:
    """The words of sentences, and their ids."""
    words = sorted({word for sentence in sentences for word in sentence.split()})
    return words, [[words.index(word) for word in sentence.split()] for sentence in sentences]


def test_only_pairs_reach_a_word_that_is_far_away() -> None:
    words, ids = encoded(*(f"the {a} that {place} the old park {voice}" for a, voice in ANIMALS.items() for place in PLACES))
    votes, two = SkipVotes(ids, len(words)), TransitionTable(ids, len(words), 2)
    for *context, last in ids:
        for table in (votes.first_order, two):
            assert table.predict(context).tolist()[last] == pytest.approx(1 / 6)
        unmasked, masked = votes.predict(context, masked=False), votes.predict(context)
        assert unmasked.argmax().item() == masked.argmax().item() == last
        assert (unmasked.tolist()[last], masked.tolist()[last]) == (pytest.approx(2 / 7), pytest.approx(1))
        assert votes.weights(context).tolist() == [0, 1, 0, 0, 0, 0, 0]


def test_without_a_mask_the_frequent_wins() -> None:
    dogs = [f"the dog that {place} the old park barked" for place in PLACES[:2]]
    words, ids = encoded(*dogs, "the cat that slept in the old park purred")
    votes = SkipVotes(ids, len(words))
    unmasked = votes.predict(ids[2][:-1], masked=False)
    assert words[int(unmasked.argmax().item())] == "barked" and unmasked.max().item() == pytest.approx(11 / 21)
    for *context, last in ids:
        assert votes.predict(context).tolist()[last] == pytest.approx(1)
