"""End tokens, forbidden tokens and forced ends, in sampling and in beam search."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.decoding.beam_search import HuggingFaceRule, WuRule, beam_search
from tinyformer.decoding.generation import GPTDecoder, TransformerDecoder, generate, sample
from tinyformer.decoding.sampling import Sampling, TokenRules
from tinyformer.models.gpt import GPT
from tinyformer.models.transformer import Transformer, TransformerConfig

GREEDY = Sampling(temperature=0.0)
RULES = [WuRule(), HuggingFaceRule()]
PROBABILITIES = [WuRule(0.0), HuggingFaceRule(0.0)]  # whose scores are log-probabilities, whatever the length


class Table:
    """A decoder whose logits follow from the newest token: a row of the table. Those of the last call are kept."""

    def __init__(self, table: Any):
        self.table = np.log(np.array(table, np.float32), where=np.array(table) > 0, out=np.full(np.shape(table), -np.inf))
        self.logits: Any = None

    def next_logits(self, new: Any) -> Any:
        self.logits = self.table[new[:, -1]]
        return self.logits

    def select(self, rows: Any) -> None:
        """The newest tokens are all that counts."""


# 0 leads to 1, 1 to 2, 2 to 3, and 3 to 0, each with the next two tokens as less likely ways.
CYCLE = np.array([[0.0, 0.6, 0.3, 0.1], [0.1, 0.0, 0.6, 0.3], [0.3, 0.1, 0.0, 0.6], [0.6, 0.3, 0.1, 0.0]])


def written(*arguments: Any, **settings: Any) -> list[list[int]]:
    """What ``sample`` writes in each row."""
    return np.array(list(sample(*arguments, **settings))).T.tolist()


# ------------------------------------------------------------------------------------------------------ the rules alone


def test_scores_that_are_left() -> None:
    scores = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    before = scores.copy()
    assert TokenRules(0).restrict(scores, is_last=True) is scores
    restricted = TokenRules(None, [2, 0]).restrict(scores, is_last=False)
    np.testing.assert_array_equal(restricted, [[-np.inf, 2.0, -np.inf], [-np.inf, 5.0, -np.inf]])
    forced = TokenRules([0, 1], [0], force_end=True).restrict(scores, is_last=True)
    np.testing.assert_array_equal(forced, [[0.0, 0.0, -np.inf]] * 2)
    np.testing.assert_array_equal(scores, before)
    assert restricted.dtype == forced.dtype == np.float32


def test_ids_in_every_form() -> None:
    for end in (4, np.int64(4), [4], (4, 4), {4}, np.array([4]), iter([4])):
        assert TokenRules(end).ends == [4]
    assert TokenRules(None).ends == TokenRules([]).ends == []
    assert TokenRules([9, 4], {2, 1}).ends == [4, 9]


@pytest.mark.parametrize("wrong", [-1, 1.0, "x", True, None])
def test_ids_that_are_none(wrong: Any) -> None:
    with pytest.raises(SettingError, match=f"forbidden must be token ids, integers of at least 0, got {wrong!r}"):
        TokenRules(0, [1, wrong])
    with pytest.raises(SettingError, match=f"end must be token ids, integers of at least 0, got {wrong!r}"):
        TokenRules([1, wrong])


def test_rules_that_leave_nothing() -> None:
    with pytest.raises(SettingError, match="force_end needs an end token: pass its id as end"):
        TokenRules(None, force_end=True)
    scores = np.zeros((2, 3))
    with pytest.raises(UserError, match="every token of the vocabulary is forbidden, 3 in all: allow at least one"):
        TokenRules(0, range(3)).restrict(scores, is_last=False)
    for rules, is_last in [(TokenRules(0, [1, 3]), False), (TokenRules([1, 3], force_end=True), True)]:
        with pytest.raises(UserError, match="the token 3 cannot be forbidden or forced: the vocabulary has only 3 tokens"):
            rules.restrict(scores, is_last)


# ------------------------------------------------------------------------------------------------------ sampling


def test_several_ends() -> None:
    assert written(Table(CYCLE), [[0], [3], [1]], 9, GREEDY, [3, 1]) == [[1, 1], [0, 1], [2, 3]]
    assert written(Table(CYCLE), [[0], [2]], 9, GREEDY, (1, 3)) == [[1], [3]]
    # A row that has ended repeats its own end.
    assert written(Table(CYCLE), [[0], [1], [3]], 9, GREEDY, [2, 3]) == [[1, 2, 2], [2, 2, 2], [0, 1, 2]]


def test_an_end_in_the_prompt_is_no_end() -> None:
    assert written(Table(CYCLE), [[1]], 9, GREEDY, [1]) == [[2, 3, 0, 1]]


def test_forbidden_tokens_are_not_sampled() -> None:
    decoder = Table(CYCLE)
    assert written(decoder, [[0]], 5, GREEDY, None, [1]) == [[2, 3, 0, 2, 3]]
    np.testing.assert_array_equal(decoder.logits, decoder.table[[2]])  # the decoder's own are as they were
    (ids,) = written(Table(CYCLE), [[0]], 400, Sampling(), None, [1])
    assert set(ids) == {0, 2, 3}
    after_zero = [b for a, b in zip(ids, ids[1:]) if a == 0]
    assert np.mean(np.array(after_zero) == 2) == pytest.approx(0.75, abs=0.1)  # 0.3 of the 0.4 that is left


def test_a_forbidden_end_ends_nothing() -> None:
    assert written(Table(CYCLE), [[0]], 4, GREEDY, 1, [1]) == [[2, 3, 0, 2]]
    assert written(Table(CYCLE), [[0]], 4, GREEDY, 1, [1], True) == [[2, 3, 0, 1]]  # except where it is forced


def test_a_forced_end_is_the_last_token() -> None:
    assert written(Table(CYCLE), [[0], [2]], 3, GREEDY, 3, force_end=True) == [[1, 2, 3], [3, 3, 3]]
    assert written(Table(CYCLE), [[2], [0]], 2, GREEDY, 0, force_end=True) == [[3, 0], [1, 0]]
    assert written(Table(CYCLE), [[0]], 1, GREEDY, 2, force_end=True) == [[2]]
    several = {
        ids[0][0] for seed in range(20) for ids in [written(Table(CYCLE), [[0]], 1, Sampling(seed=seed), [0, 2], (), True)]
    }
    assert several == {0, 2}


def test_what_is_left_is_impossible() -> None:
    certain = Table([[0.0, 1.0], [0.0, 1.0]])
    for sampling in (GREEDY, Sampling()):
        with pytest.raises(UserError, match="-inf for every allowed token, so that no token is possible"):
            written(certain, [[0]], 3, sampling, None, [1])
    for rule in RULES:
        with pytest.raises(UserError, match="-inf for every allowed token, so that no token is possible"):
            beam_search(certain, [[0]], None, beam=2, rule=rule, forbidden=[1])
    with pytest.raises(UserError, match="every token of the vocabulary is forbidden, 2 in all"):
        beam_search(certain, [[0]], 0, forbidden=[0, 1])


def test_generate_passes_them_on(make_gpt) -> None:
    model = make_gpt(3)
    (ids,) = written(GPTDecoder(model), [[1, 2]], 12, Sampling(seed=1), [4, 5], [0, 7])
    assert list(generate(model, [1, 2], 12, Sampling(seed=1), [4, 5], forbidden=[0, 7])) == ids
    everything = set(generate(model, [1], 300, Sampling(), forbidden=range(3, 11)))
    assert everything == {0, 1, 2}


# ------------------------------------------------------------------------------------------------------ beam search


@pytest.mark.parametrize("rule", PROBABILITIES)
def test_beams_with_several_ends(rule: Any) -> None:
    (found,) = beam_search(Table(CYCLE), [[0]], [2, 3], beam=4, max_tokens=2, n_best=4, rule=rule)
    assert [(h.ids, h.end) for h in found] == [((1,), 2), ((), 2), ((1,), 3), ((), 3)]
    assert [math.exp(h.score) for h in found] == pytest.approx([0.36, 0.3, 0.18, 0.1])


def test_more_ends_than_the_beam_is_wide_leave_unfinished_texts() -> None:
    # The three ends are likelier than each of the others, and of the longer texts both are better.
    table = np.array([[0.1, 0.08, 0.3, 0.27, 0.25], [0.1, 0.1, 0.8, 0.0, 0.0], *[[0.2] * 5] * 3])
    rule = HuggingFaceRule(9.0, "never")
    (found,) = beam_search(Table(table), [[0]], [2, 3, 4], beam=2, max_tokens=2, n_best=2, rule=rule)
    assert [(h.ids, h.end) for h in found] == [((1,), 2), ((0,), 2)]


@pytest.mark.parametrize("rule", PROBABILITIES)
def test_beams_without_forbidden_tokens(rule: Any) -> None:
    (found,) = beam_search(Table(CYCLE), [[0]], 3, beam=3, max_tokens=3, n_best=3, rule=rule, forbidden=[1])
    assert [(h.ids, h.end) for h in found] == [((2,), 3), ((), 3), ((2, 0, 2), None)]
    # The others' probabilities are the model's own: 0.3 * 0.6, and not 0.75 * 0.6.
    assert [math.exp(h.score) for h in found] == pytest.approx([0.3 * 0.6, 0.1, 0.3 * 0.3 * 0.3])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("beam", [1, 2, 4, 50])
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_beams_with_a_forced_end(rule: Any, beam: int, max_tokens: int) -> None:
    for forbidden in ([], [1], [3], [0, 1, 2]):
        (found,) = beam_search(Table(CYCLE), [[0]], 3, beam, max_tokens, beam, rule, forbidden, force_end=True)
        assert found
        for hypothesis in found:
            ids = (0, *hypothesis.ids)
            assert hypothesis.end == 3
            assert len(hypothesis.ids) < max_tokens
            assert not {3, *forbidden} & set(hypothesis.ids)
            steps = [*zip(ids, ids[1:]), *([] if len(ids) == max_tokens else [(ids[-1], 3)])]  # a forced end costs nothing
            probability = math.prod(CYCLE[step] for step in steps)
            assert hypothesis.score == pytest.approx(rule.score(math.log(probability), len(ids)), rel=1e-6)


def test_prompts_of_several_tokens(make_gpt) -> None:
    model: GPT = make_gpt(5)
    prompts = np.random.default_rng(2).integers(0, 11, (3, 4))
    for parameter in model.parameters():
        parameter.assign(parameter * 8)
    settings: dict[str, Any] = {"beam": 3, "max_tokens": 4, "n_best": 3}
    together = beam_search(GPTDecoder(model), prompts, [9, 10], **settings)
    for prompt, found in zip(prompts.tolist(), together):
        (alone,) = beam_search(GPTDecoder(model, use_cache=False), [prompt], [9, 10], **settings)
        assert [(h.ids, h.end) for h in alone] == [(h.ids, h.end) for h in found]
        for hypothesis in found:
            new = [*hypothesis.ids, *([] if hypothesis.end is None else [hypothesis.end])]
            logits = model.eval()(tt.tensor([prompt + new])).numpy()[0, 3:-1].astype(np.float64)
            total = sum(row[i] - np.log(np.exp(row).sum()) for row, i in zip(logits, new))
            assert hypothesis.score == pytest.approx(WuRule().score(total, len(new)), rel=1e-4)
    (greedy,) = beam_search(GPTDecoder(model), prompts[:1], None, beam=1, max_tokens=4)
    assert list(greedy[0].ids) == list(generate(model, prompts[0], 4, GREEDY))


@pytest.mark.parametrize("use_cache", [True, False])
def test_an_encoder_decoder_may_start_with_padding(use_cache: bool) -> None:
    tt.seed(1)
    model = Transformer(TransformerConfig(7, 7, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=8))
    source = np.array([[3, 4, 5], [6, 0, 0]])
    for parameter in model.parameters():
        parameter.assign(parameter * 3)
    pad, settings = model.config.source_pad, {"forbidden": [model.config.source_pad], "force_end": True}
    (first, second) = written(TransformerDecoder(model, source, 6, use_cache), [[pad]] * 2, 6, GREEDY, 2, **settings)
    found = beam_search(TransformerDecoder(model, source, 6, use_cache), [[pad]] * 2, 2, 1, 6, **settings)
    for ids, (hypothesis,) in zip((first, second), found):
        assert ids[: len(hypothesis.ids) + 1] == [*hypothesis.ids, 2]
    read = np.array([[pad, *first[:-1]]])
    logits = model.eval()(tt.tensor(source[:1]), tt.tensor(read)).numpy()[0, :-1]
    logits[:, pad] = -np.inf
    stop = first.index(2)
    assert logits.argmax(axis=-1)[:stop].tolist() == first[:stop]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [([[]], "the prompt is empty"), ([[1], [1, 2]], "must have the same length"), ([1], "the prompts must be"), ([[99]], "99")],
)
def test_prompts_that_cannot_be(make_gpt, prompts: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        beam_search(GPTDecoder(make_gpt()), prompts, 1)


def test_equally_likely_texts_are_taken_in_order() -> None:
    for rule in RULES:
        (found,) = beam_search(Table(np.full((6, 6), 1 / 6)), [[0]], None, beam=3, max_tokens=3, n_best=3, rule=rule)
        assert {h.ids for h in found} == {(0, 0, 0), (0, 0, 1), (0, 0, 2)}
