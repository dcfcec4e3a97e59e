"""Choosing tokens: greedy, sampled, top-k, top-p; and writing one token at a time, with a cache or without."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable
from itertools import islice
from types import GeneratorType

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.decoding import generation
from tinyformer.decoding.generation import GPTDecoder, TransformerDecoder, compile_first, generate, sample
from tinyformer.decoding.sampling import Sampling
from tinyformer.models.attention import recording_attention
from tinyformer.models.evaluating import evaluating
from tinyformer.models.transformer import Transformer, TransformerConfig


def greedy_by_hand(model, prompt: list[int], num_tokens: int) -> list[int]:
    ids = list(prompt)
    with tt.no_grad():
        for _ in range(num_tokens):
            ids.append(int(model(tt.tensor([ids[-8:]])).numpy()[0, -1].argmax()))
    return ids[len(prompt) :]


def spread(model):
    """Make the logits differ clearly, as a trained model's do (at first they are nearly equal), and depend on the past."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            tt.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture
def model(make_gpt):
    """A GPT that is like a trained one."""
    return spread(make_gpt(seed=3))


# ---------------------------------------------------------------------------------------------------------- pick


def test_greedy_takes_the_first_of_the_likeliest() -> None:
    rng = np.random.default_rng(0)
    assert Sampling(temperature=0.0).pick(np.array([0.0, 3.0, 1.0, 3.0], np.float32), rng) == 1
    # No random number is used up for it.
    assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize(("temperature", "top_k"), [(0.5, 0), (2.0, 3), (0.7, 4), (1.0, 6)])
def test_picks_follow_the_softmax(temperature: float, top_k: int) -> None:
    logits = np.array([1.0, -0.5, 2.0, 0.3, 1.7, -3.0], np.float32)
    expected = np.exp(logits.astype(np.float64) / temperature)
    if 0 < top_k < 6:
        expected[np.argsort(-logits)[top_k:]] = 0.0
    expected /= expected.sum()
    rng = np.random.default_rng(11)
    n = 20_000
    sampling = Sampling(temperature, top_k)
    counts = np.bincount([sampling.pick(logits, rng) for _ in range(n)], minlength=6)
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    chi_square = ((counts - n * expected)[possible] ** 2 / (n * expected[possible])).sum()
    np.testing.assert_allclose(sampling.probabilities(logits), expected, rtol=1e-12)
    # With at most 5 degrees of freedom a right sampler exceeds 20.5 once in a thousand seeds; this seed is fixed.
    assert chi_square < 20.5


def test_huge_logits_do_not_overflow() -> None:
    logits = np.array([1e30, -1e30, 0.0], np.float32)
    assert Sampling().pick(logits, np.random.default_rng(0)) == 0
    assert Sampling(0.1, top_k=2).pick(-logits, np.random.default_rng(0)) == 1


def test_top_k_with_ties_keeps_exactly_k() -> None:
    rng = np.random.default_rng(0)
    assert {Sampling(top_k=2).pick(np.zeros(5, np.float32), rng) for _ in range(100)} == {0, 1}
    tied = np.array([0.0, 3.0, 1.0, 3.0], np.float32)
    for temperature in (0.0, 1e-10, 1.0, 1e10):  # all of them greedy
        assert {Sampling(temperature, top_k=1).pick(tied, rng) for _ in range(20)} == {1}
    assert {Sampling(top_k=3, top_p=0.3).pick(np.zeros(9), rng) for _ in range(50)} == {0}  # of p as of k


SAMPLINGS = [
    Sampling(temperature, top_k, top_p)
    for temperature in (0.0, 1e-10, 1.0, 1e10)
    for top_k in (0, 1, 3, 99)
    for top_p in (1e-9, 0.5, 1.0)
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_only_what_has_a_probability_is_picked(sampling: Sampling) -> None:
    logits = np.array([0.0, 3.0, 1.0, 3.0, -np.inf, 2.5], np.float32)
    probabilities = sampling.probabilities(logits)
    assert probabilities.dtype == np.float64 and probabilities.sum() == pytest.approx(1)
    rng = np.random.default_rng(0)
    picked = {sampling.pick(logits, rng) for _ in range(300)}
    assert picked == set(np.flatnonzero(probabilities).tolist())
    if sampling.temperature == 0 or sampling.top_k == 1:
        assert probabilities.tolist() == [0, 1, 0, 0, 0, 0]
    np.testing.assert_array_equal(logits, np.array([0.0, 3.0, 1.0, 3.0, -np.inf, 2.5], np.float32))


UNUSABLE = {
    "NaN": [[1.0, math.nan, 2.0], [math.nan] * 3, [math.inf, math.nan, 0.0], [-math.inf, math.nan, -math.inf]],
    "infinite": [[1.0, math.inf, 2.0], [math.inf] * 3, [-math.inf, 0.0, math.inf]],
    "-inf for every allowed token": [[-math.inf] * 3],
}


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_outputs_that_say_nothing(sampling: Sampling) -> None:
    rng = np.random.default_rng(0)
    for message, examples in UNUSABLE.items():
        for logits in examples:
            for dtype in (np.float16, np.float32, np.float64):
                with pytest.raises(UserError, match=f"the model's outputs are {message}"):
                    sampling.pick(np.array(logits, dtype), rng)
                with pytest.raises(UserError, match=f"the model's outputs are {message}"):
                    sampling.probabilities(np.array(logits, dtype))
    possible = np.array([-math.inf, 1.0, -math.inf, 0.0, -math.inf])
    assert {sampling.pick(possible, rng) for _ in range(50)} <= {1, 3}


def test_a_model_whose_outputs_are_nan(model) -> None:
    model.token_embedding.weight.assign(np.full(model.token_embedding.weight.shape, np.nan))
    for sampling in (Sampling(), Sampling(temperature=0.0)):
        with pytest.raises(UserError, match="the model's outputs are NaN"):
            next(generate(model, [1], 3, sampling))


def test_a_row_that_has_ended_need_not_say_anything() -> None:
    logits = np.array([[0.0, 0.0, 50.0], [50.0, 0.0, 0.0], [math.nan] * 3])  # 0 -> 2, the end; 1 -> 0
    steps = np.array(list(sample(Table(logits), [[0], [1]], 5, Sampling(), end=2)))
    np.testing.assert_array_equal(steps.T, [[2, 2], [0, 2]])


def test_extreme_temperatures() -> None:
    logits, rng = np.array([1.0, 1.0 + 1e-6, -1e30]), np.random.default_rng(0)
    assert {Sampling(1e-10).pick(logits, rng) for _ in range(50)} == {1}
    assert {Sampling(5e-324).pick(logits, rng) for _ in range(50)} == {1}
    assert {Sampling(1e10).pick(logits, rng) for _ in range(50)} == {0, 1}
    assert {Sampling(1e300).pick(logits, rng) for _ in range(100)} == {0, 1, 2}
    assert {Sampling(1e300).pick(np.array([1.0, -np.inf]), rng) for _ in range(100)} == {0}


@pytest.mark.parametrize("top_k", [0, 40, 50, 99])
def test_top_p_of_one_leaves_nothing_out(top_k: int) -> None:
    # Beside the first, the others are so unlikely that added one by one they do not change the sum.
    logits = np.array([0.0, *[-40.0] * 49])
    kept = np.count_nonzero(Sampling(top_k=top_k, top_p=1.0)._weights(logits))
    assert kept == (40 if top_k == 40 else 50)


def hugging_face(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The probabilities that Hugging Face's warpers make of them: temperature, top_k, and top_p from the least likely on."""
    scores = logits.astype(np.float64) / temperature
    if top_k:
        scores[scores < np.sort(scores)[-min(top_k, len(scores))]] = -np.inf
    if top_p < 1:
        order = np.argsort(scores)
        probabilities = np.exp(scores[order] - scores.max())
        cumulative = np.cumsum(probabilities / probabilities.sum())
        removed = cumulative <= 1 - top_p
        removed[-1] = False
        scores[order[removed]] = -np.inf
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, 20, 99])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.8, 0.99, 1.0])
def test_what_is_sampled_from_is_as_with_hugging_face(temperature: float, top_k: int, top_p: float) -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        logits = rng.standard_normal(20) * 3  # without ties, of which Hugging Face keeps all
        probabilities = Sampling(temperature, top_k, top_p).probabilities(logits)
        np.testing.assert_allclose(probabilities, hugging_face(logits, temperature, top_k, top_p), atol=1e-12)


# ---------------------------------------------------------------------------------------------------------- generate


def test_temperature_zero_is_the_argmax_of_each_step(model) -> None:
    expected = greedy_by_hand(model, [1, 2], 15)
    assert len(set(expected)) > 1  # or any constant would pass
    assert list(generate(model, [1, 2], 15, Sampling(temperature=0.0))) == expected
    assert list(generate(model, [1, 2], 15, Sampling(temperature=0.0, seed=9))) == expected


def test_top_k_of_one_is_greedy(model) -> None:
    assert list(generate(model, [1, 2], 15, Sampling(top_k=1, seed=4))) == greedy_by_hand(model, [1, 2], 15)


def test_a_seed_repeats(model) -> None:
    first = list(generate(model, [1], 30, Sampling(seed=7)))
    assert list(generate(model, [1], 30, Sampling(seed=7))) == first
    assert list(generate(model, [1], 30, Sampling(seed=8))) != first
    assert all(type(i) is int and 0 <= i < 11 for i in first)


def test_sampling_leaves_the_global_generator_alone(model) -> None:
    # A sample drawn in the middle of training must not change the rest of the run.
    tt.seed(1)
    expected = tt.random.get_state()
    list(generate(model, [1], 5, Sampling(seed=7)))
    assert tt.random.get_state() == expected


def test_top_k_restricts_each_step_to_its_likeliest(model) -> None:
    ids = [1]
    generated = list(generate(model, [1], 30, Sampling(temperature=2.0, top_k=3, seed=0)))
    picked_ranks = set()
    for i in generated:
        logits = model(tt.tensor([ids[-8:]])).numpy()[0, -1]
        picked_ranks.add(int((logits > logits[i]).sum()))
        ids.append(i)
    assert picked_ranks == {0, 1, 2}


def test_the_context_is_the_last_block(model) -> None:
    # Block size 8: of a prompt of 12, and beyond the block while generating, only the last 8 ids count.
    long, other = [5, 6, 7, 8, *range(8)], [0, 0, 0, 0, *range(8)]
    expected = greedy_by_hand(model, long, 12)
    assert list(generate(model, long, 12, Sampling(temperature=0.0))) == expected
    assert list(generate(model, other, 12, Sampling(temperature=0.0))) == expected


def test_the_prompt_stays_as_it_was(model) -> None:
    prompt = [1, 2]
    list(generate(model, prompt, 3, Sampling(seed=0)))
    assert prompt == [1, 2]
    assert len(list(generate(model, np.array([1, 2]), 3, Sampling(seed=0)))) == 3  # what a tokenizer returns


def test_tokens_come_one_by_one(model, monkeypatch) -> None:
    calls = 0
    next_logits = GPTDecoder.next_logits

    def counting(*arguments):
        nonlocal calls
        calls += 1
        return next_logits(*arguments)

    monkeypatch.setattr(GPTDecoder, "next_logits", counting)
    ids = generate(model, [1], 1_000_000, Sampling(seed=0))
    assert isinstance(ids, GeneratorType)
    assert calls == 0
    for n in range(1, 4):
        next(ids)
        assert calls == n


def test_no_tokens(model) -> None:
    assert list(generate(model, [1], 0)) == []


def test_nothing_is_recorded(model) -> None:
    list(generate(model, [1, 2], 3, Sampling(seed=0)))
    assert all(p.grad is None for p in model.parameters())
    assert (model(tt.tensor([[1]]))).requires_grad  # and afterwards recording is on again


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_the_mode_comes_back(make_gpt, training: bool) -> None:
    model = make_gpt(dropout=0.5).train(training)
    first = list(generate(model, [1], 10, Sampling(temperature=0.0)))
    assert list(generate(model, [1], 10, Sampling(temperature=0.0))) == first
    assert all(m.training is training for m in model.modules())


def test_the_mode_comes_back_when_the_consumer_stops_early(make_gpt) -> None:
    model = make_gpt(dropout=0.5).train()
    ids = generate(model, [1], 100)
    assert len(list(islice(ids, 3))) == 3
    assert all(m.training for m in model.modules())  # while the generator still waits
    ids.close()
    assert all(m.training for m in model.modules())


def test_evaluating_brings_back_the_mode_of_every_module(make_gpt) -> None:
    # A part that was frozen in evaluation mode must not wake up; nor must an error leave the model in the wrong mode.
    model = make_gpt().train()
    model.blocks[0].eval()
    before = [m.training for m in model.modules()]
    with pytest.raises(KeyError), evaluating(model):
        assert not any(m.training for m in model.modules())
        raise KeyError
    assert [m.training for m in model.modules()] == before


def test_evaluating_holds_until_the_last_thread_has_left(make_gpt) -> None:
    model = make_gpt(dropout=0.5).train()
    with evaluating(model):
        other = threading.Thread(target=lambda: next(generate(model, [1], 1)))
        other.start()
        other.join(30)
        assert not any(m.training for m in model.modules())
        with evaluating(model):
            pass
        assert not any(m.training for m in model.modules())
    assert all(m.training for m in model.modules())
    # One enters while the other is inside, and leaves after it.
    first, second = evaluating(model), evaluating(model)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert not any(m.training for m in model.modules())
    second.__exit__()
    assert all(m.training for m in model.modules())


def test_decoders_keep_no_array_of_the_callers(model, make_transformer) -> None:
    for decoder in (GPTDecoder(model, False), TransformerDecoder(make_transformer(), SOURCE[:1], 4, False)):
        expected, new = [], np.array([[1]])
        for changed in (1, 9):
            decoder.ids = None
            new[:] = 1
            decoder.next_logits(new)
            new[:] = changed
            expected.append(decoder.next_logits(np.array([[2]])))
        np.testing.assert_array_equal(*expected)


def test_decoders_take_lists_and_rows_before_the_first_token(model, make_transformer) -> None:
    assert GPTDecoder(model).next_logits([[1, 2]]).shape == (1, 11)
    with pytest.raises(UserError, match=r"must be \(batch, length\), got shape \(2,\)"):
        GPTDecoder(model).next_logits(np.array([1, 2]))
    decoder, other = (TransformerDecoder(make_transformer(), SOURCE, 4) for _ in range(2))
    decoder.select(np.array([2, 0]))
    logits = decoder.next_logits([[1], [1]])
    np.testing.assert_allclose(logits, other.next_logits([[1]] * 3)[[2, 0]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": np.zeros(0, np.int64)}, "the prompt is empty"),
        ({"num_tokens": -1}, "the length must be at least 0, got -1"),
        ({"prompt": [1.0, 2.0]}, "token ids must be integers, got float64"),
        ({"prompt": [True]}, "token ids must be integers, got bool"),
        ({"prompt": ["a"]}, "token ids must be integers, got <U1"),
        ({"prompt": [[1, 2], [3, 4]]}, r"the prompts must be \(batch, length\), got shape \(1, 2, 2\)"),
    ],
)
def test_arguments_that_make_no_sense(model, arguments: dict[str, object], message: str) -> None:
    # At once, not when the first token is asked for: a caller may have printed the prompt by then.
    with pytest.raises(UserError, match=message):
        generate(model, **{"prompt": [1], "num_tokens": 3, **arguments})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, r"temperature must be 0 \(greedy\) or more, got -0.1"),
        ({"temperature": math.nan}, "temperature must be a finite number, got nan"),
        ({"temperature": math.inf}, "temperature must be a finite number, got inf"),
        ({"top_k": -2}, "top_k must be at least 0, got -2"),
        ({"top_k": 2.0}, "top_k must be an integer, got 2.0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        ({"top_p": math.nan}, "top_p must be a finite number, got nan"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        Sampling(**settings)
    assert caught.value.names == tuple(settings)


# ---------------------------------------------------------------------------------------------------------- top p


def nucleus_by_hand(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The probabilities that are sampled from: tokens are added from the likeliest on until their sum reaches top_p."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    weights = {i: math.exp(float(logits[i]) / temperature) for i in (order[:top_k] if top_k else order)}
    total = sum(weights.values())
    kept: dict[int, float] = {}
    for i, weight in weights.items():
        if sum(kept.values()) >= top_p:
            break
        kept[i] = weight / total
    return np.array([kept.get(i, 0.0) / sum(kept.values()) for i in range(len(logits))])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 4, 99])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.2, 1e-9])
def test_what_is_sampled_from(temperature: float, top_k: int, top_p: float) -> None:
    # The token is the one under a uniform number when the kept probabilities, in the order of the ids, are laid end to end.
    rng = np.random.default_rng(1)
    sampling = Sampling(temperature, top_k, top_p)
    for _ in range(20):
        logits = rng.standard_normal(9).astype(np.float32) * 2
        cumulative = np.cumsum(nucleus_by_hand(logits, temperature, top_k, top_p))
        for number in [0.0, 0.999999, *rng.random(10)]:
            expected = int(np.flatnonzero(cumulative > number * cumulative[-1])[0])
            assert sampling.pick(logits, Uniform(number)) == expected


class Uniform:
    """A generator of one number."""

    def __init__(self, number: float):
        self.number = number

    def random(self) -> float:
        return self.number


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = np.log(np.array([0.125, 0.5, 0.125, 0.25]))
    picked = {p: {Sampling(top_p=p, seed=0).pick(logits, Uniform(i / 64)) for i in range(64)} for p in (0.3, 0.6, 0.8, 1.0)}
    # Of the two equal ones the first is taken.
    assert picked == {0.3: {1}, 0.6: {1, 3}, 0.8: {0, 1, 3}, 1.0: {0, 1, 2, 3}}
    # Where the sum is p exactly, it has been reached.
    assert {Sampling(top_p=0.5).pick(np.zeros(4), Uniform(i / 64)) for i in range(64)} == {0, 1}


# ---------------------------------------------------------------------------------------------------------- the cache

CHOICES = [
    {"positions": "learned"},
    {"positions": "sinusoidal"},
    {"positions": "rotary", "norm": "rms", "activation": "swiglu"},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(top_k=5, seed=2), Sampling(top_p=0.9, seed=3)], ids=str
)
def test_gpt_writes_the_same_with_and_without_a_cache(make_gpt, choices: dict[str, str], sampling: Sampling) -> None:
    # 20 tokens: from a prompt within the block, over its end, to far beyond it.
    model = spread(make_gpt(seed=3, **choices))
    written = set()
    for prompt in ([4], [1, 2, 3], list(range(8)), list(range(10))):
        plain = list(generate(model, prompt, 20, sampling, use_cache=False))
        assert list(generate(model, prompt, 20, sampling)) == plain
        written |= set(plain)
    assert len(written) > 1  # or any constant would pass


def test_the_cache_saves_work(model) -> None:
    lengths = []
    forward = model.forward
    model.forward = lambda ids, *settings, **named: (lengths.append(ids.shape[1]), forward(ids, *settings, **named))[1]
    list(generate(model, [1, 2, 3], 8))
    # One token's step is traced, and then runs without the model; the block is full after eight tokens: then it shifts.
    assert lengths == [3, 1, 8, 8]
    lengths.clear()
    list(generate(model, [1, 2, 3], 3, use_cache=False))
    assert lengths == [3, 4, 5]


def test_a_full_cache_is_given_back(model) -> None:
    """When the context is full, nothing reads the cache any more, the traced step neither."""
    decoder = GPTDecoder(model)
    cache = weakref.ref(decoder.cache)
    steps = sample(decoder, [[1]], 30, Sampling())
    for _ in range(8):
        next(steps)
    assert cache() is not None
    next(steps)
    gc.collect()
    assert cache() is None
    list(steps)
    assert decoder.ids.shape == (1, 8)  # nor is the whole text kept


@pytest.mark.parametrize("max_tokens", [1, 3, 5, 8, 99])
def test_a_cache_for_fewer_tokens_writes_the_same(model, max_tokens: int) -> None:
    # Also more than it was made for: without the cache, then.
    decoder = GPTDecoder(model, max_tokens=max_tokens)
    assert decoder.cache is not None
    assert decoder.cache.capacity == min(max_tokens, 8)
    written = [int(ids[0]) for ids in sample(decoder, [[1, 2, 3]], 12, Sampling(temperature=0.0))]
    assert written == greedy_by_hand(model, [1, 2, 3], 12)


def test_generate_makes_no_larger_a_cache_than_its_text_needs(make_gpt) -> None:
    model, made = make_gpt(block_size=10**12, positions="rotary"), []
    new_cache = model.new_cache
    model.new_cache = lambda max_tokens: made.append(new_cache(max_tokens)) or made[-1]
    assert len(list(generate(model, [1, 2, 3], 4))) == 4
    assert [cache.capacity for cache in made] == [7]
    with pytest.raises(SettingError, match="a cache for this length needs at least"):
        generate(model, [1, 2, 3], 10**12)


@pytest.fixture
def make_transformer() -> Callable[..., Transformer]:
    """A small encoder-decoder whose logits differ clearly."""

    def make(seed: int = 0, **changes: object) -> Transformer:
        tt.seed(seed)
        sizes = {"d_model": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "d_ff": 24}
        return spread(Transformer(TransformerConfig(11, 11, **{**sizes, **changes})))

    return make


SOURCE = np.array([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]])


@pytest.mark.parametrize("choices", [{}, {"norm_first": True, "positions": "learned", "norm": "rms"}], ids=str)
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(3.0, seed=2)], ids=str)
def test_a_transformer_writes_the_same_with_and_without_a_cache(make_transformer, choices, sampling: Sampling) -> None:
    model = make_transformer(**choices)
    starts = np.ones((3, 1), np.int64)
    cached, plain = (
        np.array(list(sample(TransformerDecoder(model, SOURCE, 12, use_cache), starts, 12, sampling)))
        for use_cache in (True, False)
    )
    np.testing.assert_array_equal(cached, plain)
    if sampling.temperature:
        assert (cached == 0).any()  # padding's id, too: a token that was written counts, whichever it is


def test_decoders_continue_with_the_selected_rows(make_gpt, make_transformer) -> None:
    gpt, transformer = spread(make_gpt()), make_transformer()
    for use_cache in (True, False):
        for make in (lambda u=use_cache: GPTDecoder(gpt, u), lambda u=use_cache: TransformerDecoder(transformer, SOURCE, 4, u)):
            decoder = make()
            prompt = np.array([[1, 2], [3, 4], [5, 6]])
            decoder.next_logits(prompt)
            decoder.select(np.array([2, 0, 0]))
            logits = decoder.next_logits(np.array([[7], [8], [9]]))
            for row, (old, new) in enumerate([(2, 7), (0, 8), (0, 9)]):
                other = make()
                other.next_logits(prompt)
                expected = other.next_logits(np.full((3, 1), new))[old]
                np.testing.assert_allclose(logits[row], expected, rtol=1e-4, atol=1e-4)


# Of three sources: beams of each, of which some change places; fewer of one; sources that end; and beams that mix.
SELECTIONS = [
    ([0, 0, 1, 1, 2, 2], 2), ([1, 0, 2, 2, 4, 5], 2), ([0, 1, 2, 4, 5], 1), ([0, 1, 3, 4], 2), ([2, 3, 3, 3], 4), ([0, 3], 2),
]  # fmt: skip


def test_texts_of_one_source_share_its_memory(make_transformer) -> None:
    model, rng = make_transformer(), np.random.default_rng(0)
    cached, plain = (TransformerDecoder(model, SOURCE, 8, use_cache) for use_cache in (True, False))
    new = np.ones((3, 1), np.int64)
    for rows, together in SELECTIONS:
        np.testing.assert_allclose(cached.next_logits(new), plain.next_logits(new), rtol=1e-4, atol=1e-4)
        cached.select(np.array(rows))
        plain.select(rows)
        assert cached.texts_of_each == together
        assert all(block.cross_attention.read().shape[1] == len(rows) / together for block in cached.cache.blocks)
        new = rng.integers(1, 4, (len(rows), 1))  # so that some texts begin alike
    np.testing.assert_allclose(cached.next_logits(new), plain.next_logits(new), rtol=1e-4, atol=1e-4)


def test_weights_of_texts_that_share_a_memory_are_recorded_for_each(make_transformer) -> None:
    model = make_transformer()
    recorded = []
    for use_cache in (True, False):
        decoder = TransformerDecoder(model, SOURCE, 4, use_cache)
        decoder.next_logits(np.ones((3, 1), np.int64))
        decoder.select([0, 0, 1, 1, 2, 2])
        with recording_attention(model) as weights:
            decoder.next_logits(np.arange(1, 7)[:, None])
        recorded.append(weights["decoder.blocks.1.cross_attention"][0].numpy()[:, :, -1])
    np.testing.assert_allclose(*recorded, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------- sample


class Table:
    """A decoder that knows the logits after each token, and is asked for them one step after the other."""

    def __init__(self, logits: np.ndarray):
        self.logits = np.asarray(logits)
        self.asked: list[np.ndarray] = []

    def next_logits(self, new: np.ndarray) -> np.ndarray:
        self.asked.append(np.array(new))
        return self.logits[new[:, -1]]

    def select(self, rows: np.ndarray) -> None:
        pass  # what comes next depends on nothing but the last token


def cycle(*order: int) -> np.ndarray:
    """Logits that make each token follow the one before it, and the first the last."""
    logits = np.zeros((len(order), len(order)))
    for now, then in zip(order, [*order[1:], order[0]]):
        logits[now, then] = 50.0
    return logits


def test_a_batch_writes_what_each_row_writes_alone(model, make_transformer) -> None:
    greedy = Sampling(temperature=0.0)
    prompts = np.array([[1, 2], [3, 4], [5, 6]])
    together = np.array(list(sample(GPTDecoder(model), prompts, 12, greedy)))
    assert together.shape == (12, 3)
    for row in range(3):
        assert list(generate(model, prompts[row], 12, greedy)) == list(together[:, row])
    transformer = make_transformer()
    starts = np.ones((3, 1), np.int64)
    together = np.array(list(sample(TransformerDecoder(transformer, SOURCE, 9), starts, 9, greedy)))
    for row, length in enumerate((4, 2, 1)):
        decoder = TransformerDecoder(transformer, SOURCE[row : row + 1, :length], 9)
        alone = np.array(list(sample(decoder, starts[:1], 9, greedy)))
        np.testing.assert_array_equal(alone[:, 0], together[:, row])


def test_the_prompt_is_given_whole_and_then_each_token() -> None:
    decoder = Table(cycle(0, 1, 2, 3))
    steps = list(sample(decoder, [[3, 0], [0, 2]], 3, Sampling()))
    np.testing.assert_array_equal(steps, [[1, 3], [2, 0], [3, 1]])
    np.testing.assert_array_equal(decoder.asked[0], [[3, 0], [0, 2]])
    np.testing.assert_array_equal(decoder.asked[1:], [[[1], [3]], [[2], [0]]])  # and nothing after the last


def test_finished_rows_stay_and_all_of_them_end_it() -> None:
    # 4 is the end; the first row needs four steps to it, the second two, the third one.
    decoder = Table(cycle(0, 1, 2, 3, 4))
    steps = np.array(list(sample(decoder, [[0], [2], [3]], 100, Sampling(), end=4)))
    np.testing.assert_array_equal(steps.T, [[1, 2, 3, 4], [3, 4, 4, 4], [4, 4, 4, 4]])
    # An end in the prompt is not one that was written, and without an end nothing stops.
    assert [int(ids[0]) for ids in sample(decoder, [[4]], 100, Sampling(), end=4)] == [0, 1, 2, 3, 4]
    assert len(list(sample(decoder, [[0]], 12, Sampling()))) == 12


def test_the_end_of_a_gpts_text(model) -> None:
    free = list(generate(model, [1], 30, Sampling(seed=7)))
    end = free[4]
    expected = free[: free.index(end) + 1]
    assert list(generate(model, [1], 30, Sampling(seed=7), end=end)) == expected


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1, 2, 3], [4, 5]], "the prompts have from 2 to 3 tokens: all texts of a batch must have the same length"),
        ([np.arange(3), np.arange(2)], "the prompts have from 2 to 3 tokens"),
        ([[1], []], "the prompts have from 0 to 1 token"),
        ([[], []], "the prompt is empty"),
        (np.zeros((2, 0), np.int64), "the prompt is empty"),
        ([1, 2, 3], r"the prompts must be \(batch, length\), got shape \(3,\)"),
        ([[[1]]], r"must be \(batch, length\), got shape \(1, 1, 1\)"),
        ([[1.0, 2.5]], "token ids must be integers, got float64"),
        (np.zeros((1, 2), np.float32), "token ids must be integers, got float32"),
        ([["a", "b"]], "token ids must be integers"),
    ],
)
def test_prompts_that_are_none(prompts: object, message: str) -> None:
    with pytest.raises(UserError, match=message):  # at once, as with generate
        sample(Table(np.zeros((5, 5))), prompts, 3, Sampling())
    with pytest.raises(UserError, match="the length must be at least 0, got -2"):
        sample(Table(np.zeros((5, 5))), [[1]], -2, Sampling())


def test_prompts_of_any_kind_of_integers() -> None:
    expected = list(sample(Table(cycle(0, 1, 2, 3)), [[3, 0], [0, 2]], 3, Sampling()))
    for prompts in (np.array([[3, 0], [0, 2]], np.uint8), tt.tensor([[3, 0], [0, 2]]), [np.array([3, 0]), (0, 2)]):
        np.testing.assert_array_equal(list(sample(Table(cycle(0, 1, 2, 3)), prompts, 3, Sampling())), expected)


def test_no_prompts() -> None:
    for prompts in ([], np.zeros((0, 3), np.int64), np.zeros((0, 0))):
        assert list(sample(Table(np.zeros((5, 5))), prompts, 3, Sampling(), end=1)) == []


@pytest.mark.parametrize("use_cache", [True, False])
def test_ids_out_of_range(model, make_transformer, use_cache: bool) -> None:
    for wrong in (-1, 11):
        with pytest.raises(UserError, match=f"token id {wrong} is out of range"):
            list(generate(model, [1, wrong], 2, use_cache=use_cache))
        with pytest.raises(UserError, match=f"token id {wrong} is out of range"):
            TransformerDecoder(make_transformer(), SOURCE, 4, use_cache).next_logits(np.array([[wrong]] * 3))
        with pytest.raises(UserError, match=f"token id {wrong} is out of range"):
            TransformerDecoder(make_transformer(), [[1, wrong]], 4, use_cache)
        if tt.backend_name != "numpy":  # where ids are trusted, as a look at them would wait for the GPU
            continue
        for decoder in (GPTDecoder(model, use_cache), TransformerDecoder(make_transformer(), SOURCE, 8, use_cache)):
            for _ in range(3):
                decoder.next_logits(np.ones((3, 1), np.int64))
            expected = [decoder.ids.copy(), decoder.cache and decoder.cache.length]
            with pytest.raises(IndexError, match=f"id {wrong} is outside the table of 11 rows"):
                decoder.next_logits(np.full((3, 1), wrong))
            np.testing.assert_array_equal(decoder.ids, expected[0])  # it can go on as if that had not been
            assert (decoder.cache and decoder.cache.length) == expected[1]


@pytest.mark.parametrize("use_cache", [True, False])
def test_decoders_refuse_what_does_not_fit_them(model, make_transformer, use_cache: bool) -> None:
    with pytest.raises(UserError, match="the source is empty"):
        TransformerDecoder(make_transformer(), np.zeros((2, 0), np.int64), 4, use_cache)
    decoder = TransformerDecoder(make_transformer(), SOURCE, 2, use_cache)
    for rows in (1, 2, 4):  # one row would broadcast
        with pytest.raises(UserError, match=f"a decoder of 3 sources got ids for {rows}"):
            decoder.next_logits(np.ones((rows, 1), np.int64))
    list(sample(decoder, [[1]] * 3, 2, Sampling()))
    with pytest.raises(UserError, match="this decoder takes 2 tokens, not 3: pass it a larger max_tokens"):
        decoder.next_logits(np.ones((3, 1), np.int64))
    gpt = GPTDecoder(model, use_cache)
    list(sample(gpt, [[1]] * 3, 2, Sampling()))
    with pytest.raises(UserError, match="a decoder of 3 texts got ids for 2: make a new decoder for other texts"):
        list(sample(gpt, [[1]] * 2, 2, Sampling()))


def test_samples_come_step_by_step_and_by_seed() -> None:
    decoder = Table(np.zeros((5, 5)))
    steps = sample(decoder, [[0]] * 4, 1_000_000, Sampling(seed=1))
    assert decoder.asked == []
    for n in range(1, 4):
        next(steps)
        assert len(decoder.asked) == n
    drawn = [np.array(list(sample(Table(np.zeros((5, 5))), [[0]] * 4, 20, Sampling(seed=seed)))) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
    assert (drawn[0][:, 0] != drawn[0][:, 1]).any()  # equal rows of a batch are drawn apart


def test_without_a_seed_the_librarys_generator_picks_the_tokens(make_gpt):
    model = make_gpt(3)
    tt.seed(1)
    first, second = (list(generate(model, [1, 2], 20)) for _ in range(2))
    assert first != second
    tt.seed(1)
    assert list(generate(model, [1, 2], 20)) == first
    assert list(generate(model, [1, 2], 20, Sampling(seed=2))) == list(generate(model, [1, 2], 20, Sampling(seed=2)))
    assert list(generate(model, [1, 2], 20)) == second  # a seed of its own draws nothing from the generator


@pytest.mark.parametrize("context", [1, 2, 8])
def test_kernels_are_compiled_before_a_text_begins(make_gpt, context: int, monkeypatch) -> None:
    """And random numbers stay those of a text without it."""
    model, sampling = make_gpt(block_size=context).eval(), Sampling(top_k=3)
    tt.seed(0)
    expected = list(generate(model, [1], 5, sampling))
    counts = []
    for kernels in ("numpy", "numba"):
        monkeypatch.setattr(generation, "kernels_name", kernels)
        with recording_attention(model) as recorded:
            tt.seed(0)
            compile_first(model, sampling)
        counts.append(sum(map(len, recorded.values())))
        assert list(generate(model, [1], 5, sampling)) == expected
    assert counts[0] == 0 < counts[1]
