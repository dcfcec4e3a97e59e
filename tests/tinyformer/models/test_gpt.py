"""The model: its shapes and size, its first weights, and that it cannot see the future."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from causal import check_that_the_past_is_unchanged
from trainings import check_that_it_learns

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.blocks import NORMS
from tinyformer.models.gpt import GPT, GPTConfig, GPTVectors
from tinyformer.models.positions import RotaryScaling

CHOICES = [
    {"positions": "learned"},
    {"positions": "sinusoidal"},
    {"positions": "rotary"},
    {"positions": "rotary", "norm": "rms", "activation": "swiglu"},
    {"positions": "rotary", "num_key_value_heads": 1, "query_key_norm": True, "tie_output": False},
    {"positions": "rotary", "d_head": 6, "rotary_base": 50.0, "rotary_scaling": RotaryScaling("linear", 2.0)},
    {"positions": "learned", "num_key_value_heads": 1, "query_key_value_bias": True, "d_ff": 10, "norm_eps": 0.1},
    {"positions": "rotary", "norm": "rms", "activation": "geglu", "d_head": 6, "scale_embeddings": True},
]


def random_ids(*shape: int, vocab_size: int = 11, seed: int = 0) -> tt.Tensor:
    return tt.tensor(np.random.default_rng(seed).integers(0, vocab_size, shape))


# ---------------------------------------------------------------------------------------------------------- size


def expected_parameters(vocab: int, block: int, layers: int, d: int, bias: bool) -> int:
    """Counted on paper. A layer: 3dd + dd of attention, 4dd + 4dd of feed-forward; two norms; biases if any."""
    b = 1 if bias else 0
    layer = 12 * d * d + 2 * d + b * (3 * d + d + 4 * d + d + 2 * d)
    return vocab * d + block * d + layers * layer + d + b * d


@pytest.mark.parametrize(
    ("vocab", "block", "layers", "heads", "d", "bias"),
    [
        (11, 8, 2, 2, 16, False),
        (11, 8, 2, 2, 16, True),
        (65, 64, 4, 4, 128, False),
        (3, 1, 1, 1, 1, True),
        (10, 4, 1, 12, 768, True),  # a block of GPT-2's width
    ],
)
def test_parameter_count(vocab: int, block: int, layers: int, heads: int, d: int, bias: bool) -> None:
    model = GPT(GPTConfig(vocab, block, layers, heads, d, bias=bias))
    assert model.num_parameters() == expected_parameters(vocab, block, layers, d, bias)


def test_the_formula_gives_the_published_size_of_gpt2_small() -> None:
    # The formula is held to real models above, so half a gigabyte need not be filled to know what it says here.
    assert expected_parameters(50257, 1024, 12, 768, True) == 124_439_808


def test_output_layer_is_the_token_embedding(make_gpt) -> None:
    model = make_gpt()
    names = [name for name, _ in model.named_parameters()]
    assert names.count("token_embedding.weight") == 1
    assert not any("output" in name and "attention" not in name for name in names)
    # The gradient has a part from each use: an id that is never an input still gets one, from the softmax.
    loss = tt.cross_entropy(model(tt.tensor([[1, 2, 3]])), tt.tensor([[2, 3, 4]]))
    loss.backward()
    gradient = model.token_embedding.weight.grad.numpy()
    assert np.abs(gradient[9]).max() > 0
    # And the logits are the normed hidden states times that very matrix: a row of zeros gives a logit of 0.
    weight = model.token_embedding.weight.numpy().copy()
    weight[9] = 0.0
    model.token_embedding.weight.assign(tt.tensor(weight))
    logits = model(tt.tensor([[1, 2, 3]])).numpy()
    assert (logits[..., 9] == 0).all()
    assert (logits[..., 8] != 0).all()


# ---------------------------------------------------------------------------------------------------------- forward


@pytest.mark.parametrize("length", [1, 5, 8])
@pytest.mark.parametrize("batch", [1, 3])
def test_logits_for_every_position(make_gpt, batch: int, length: int) -> None:
    logits = make_gpt()(random_ids(batch, length))
    assert logits.shape == (batch, length, 11)
    assert logits.dtype == np.float32


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_a_changed_token_leaves_every_earlier_logit_bit_identical(make_gpt, choices: dict[str, Any]) -> None:
    check_that_the_past_is_unchanged(make_gpt(**choices), np.random.default_rng(1).integers(0, 11, (2, 8)))


def test_the_gradient_of_a_logit_reaches_no_later_position(make_gpt) -> None:
    model = make_gpt()
    logits = model(tt.tensor([[1, 2, 3, 4, 5]]))
    (logits[0, 2] * tt.tensor(np.arange(11.0, dtype=np.float32))).sum().backward()
    gradient = model.position_embedding.weight.grad.numpy()
    assert (np.abs(gradient[:3]).max(axis=1) > 0).all()
    assert (gradient[3:] == 0).all()


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_order_matters(make_gpt, positions: str) -> None:
    # Without positions, the last position of a one-layer model would see the same set of tokens.
    model = make_gpt(num_layers=1, positions=positions)
    for parameter in model.parameters():
        tt.nn.init.normal_(parameter, std=0.5)  # at first, attention is too even for rotary positions to show
    one = model(tt.tensor([[1, 2, 3]])).numpy()[0, -1]
    two = model(tt.tensor([[2, 1, 3]])).numpy()[0, -1]
    assert np.abs(one - two).max() > 1e-6


def test_dropout_acts_in_training_only(make_gpt) -> None:
    model = make_gpt(dropout=0.5)
    ids = random_ids(2, 8)
    assert np.abs(model(ids).numpy() - model(ids).numpy()).max() > 0
    model.eval()
    evaluated = model(ids).numpy()
    assert model(ids).numpy().tobytes() == evaluated.tobytes()
    assert make_gpt(dropout=0.0)(ids).numpy().tobytes() == evaluated.tobytes()  # the same weights, without dropout


def test_the_embeddings_are_dropped_too(make_gpt) -> None:
    # With blocks that add nothing, whatever is random is what goes into them.
    model = make_gpt(dropout=0.5)
    for block in model.blocks:
        for layer in (block.attention.output, block.feed_forward.down):
            layer.weight.assign(np.zeros(layer.weight.shape, np.float32))
    ids = random_ids(2, 8)
    assert np.abs(model(ids).numpy() - model(ids).numpy()).max() > 0


def test_the_logits_from_embeddings_blocks_and_norm(make_gpt) -> None:
    model = make_gpt(bias=True)
    for parameter in model.parameters():
        tt.nn.init.normal_(parameter, std=0.3)
    ids = np.random.default_rng(0).integers(0, 11, (2, 6))
    p = {name: value.numpy().astype(np.float64) for name, value in model.named_parameters()}
    x = p["token_embedding.weight"][ids] + p["position_embedding.weight"][:6]
    for block in model.blocks:
        x = block(tt.tensor(x.astype(np.float32)), is_causal=True).numpy().astype(np.float64)
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p["norm.weight"] + p["norm.bias"]
    np.testing.assert_allclose(model(tt.tensor(ids)).numpy(), x @ p["token_embedding.weight"].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 9), (1, 0), (8,), (1, 2, 3)])
def test_ids_of_a_wrong_shape(make_gpt, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"ids must be \(batch, length\) with length 1 to 8") as caught:
        make_gpt()(tt.tensor(np.zeros(shape, dtype=np.int64)))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("choices", CHOICES, ids=str)
@pytest.mark.parametrize("steps", [[8], [1] * 8, [3, 1, 4], [7, 1]], ids=str)
def test_with_a_cache_the_logits_are_the_same(make_gpt, choices: dict[str, Any], steps: list[int]) -> None:
    model = make_gpt(**choices)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            tt.nn.init.normal_(parameter, std=0.3)
    ids = random_ids(3, 8)
    cache, start = model.new_cache(), 0
    parts = []
    with tt.no_grad():
        expected = model(ids).numpy()
        for count in steps:
            parts.append(model(ids[:, start : start + count], cache).numpy())
            start += count
            assert cache.length == start
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="length 1 to 0"):  # the context is full
        model(ids[:, :1], cache)


def test_sinusoidal_positions_are_added_to_scaled_embeddings(make_gpt) -> None:
    model = make_gpt(num_layers=1, positions="sinusoidal")
    for layer in (model.blocks[0].attention.output, model.blocks[0].feed_forward.down):
        layer.weight.assign(np.zeros(layer.weight.shape, np.float32))  # a block that adds nothing
    weight = model.token_embedding.weight.numpy().astype(np.float64)
    places = np.arange(3)[:, None] / 10000 ** (np.arange(8) / 8)
    x = 4.0 * weight[[1, 2, 3]] + np.stack([np.sin(places), np.cos(places)], -1).reshape(3, 16)
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(model(tt.tensor([[1, 2, 3]])).numpy()[0], x @ weight.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_choices_decide_the_parameters(make_gpt, choices: dict[str, Any]) -> None:
    names = {name for name, _ in make_gpt(bias=True, **choices).named_parameters()}
    assert ("position_embedding.weight" in names) == (choices["positions"] == "learned")
    assert ("blocks.0.feed_forward.gate.weight" in names) == (choices.get("activation") in ("swiglu", "geglu"))
    assert ("norm.bias" in names) == (choices.get("norm") != "rms")  # an RMS norm has none
    assert ("output.weight" in names) == (not choices.get("tie_output", True))
    assert ("blocks.1.attention.key_norm.weight" in names) == choices.get("query_key_norm", False)


OPTIONS: list[dict[str, Any]] = [
    {"d_ff": 10},
    {"positions": "sinusoidal", "activation": "swiglu"},
    {"norm": "rms"},
    {"num_key_value_heads": 1},
    {"num_key_value_heads": 2, "d_head": 6},
    {"d_head": 10, "num_heads": 3},
    {"query_key_value_bias": True},
    {"query_key_norm": True},
    {"tie_output": False},
    {"num_key_value_heads": 1, "d_head": 2, "query_key_value_bias": True, "query_key_norm": True, "tie_output": False},
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("choices", [*CHOICES, *OPTIONS], ids=str)
def test_parameters_are_counted_without_making_the_model(make_gpt, choices: dict[str, Any], bias: bool) -> None:
    model = make_gpt(bias=bias, **choices)
    assert model.config.num_parameters() == model.num_parameters()


def test_biases_of_queries_keys_and_values_alone(make_gpt) -> None:
    names = [name for name, _ in make_gpt(query_key_value_bias=True, num_layers=1).named_parameters() if name.endswith("bias")]
    assert names == ["blocks.0.attention.query_key_value.bias"]


def test_an_untied_output_layer(make_gpt) -> None:
    model = make_gpt(tie_output=False)
    ids = random_ids(2, 5)
    assert model.output.weight.shape == (11, 16)
    expected = tt.cross_entropy(model(ids), ids)
    expected.backward()
    gradient = model.output.weight.grad.numpy().copy()
    model.zero_grad()
    loss = model.loss(ids, ids)
    loss.backward()
    np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-6)
    np.testing.assert_allclose(model.output.weight.grad.numpy(), gradient, rtol=1e-4, atol=1e-7)
    model.output.weight.assign(tt.zeros((11, 16)))
    assert not model(ids).numpy().any()


def test_the_epsilon_of_the_norms(make_gpt) -> None:
    ids = random_ids(1, 5)
    small, large = make_gpt(), make_gpt(norm_eps=10.0)
    assert np.abs(large(ids).numpy()).max() < 0.5 * np.abs(small(ids).numpy()).max()
    assert {module.eps for module in large.modules() if hasattr(module, "eps")} == {10.0}
    normed = make_gpt(norm_eps=10.0, query_key_norm=True, norm="rms")
    assert {module.eps for module in normed.modules() if hasattr(module, "eps")} == {10.0}


def test_a_cache_is_as_large_as_the_heads_of_keys_and_values(make_gpt, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("tinyformer.models.gpt.check_cache_fits", lambda numbers, *_: asked.append(numbers))
    make_gpt().new_cache()
    make_gpt(num_key_value_heads=1).new_cache()
    make_gpt(num_key_value_heads=1, d_head=2).new_cache()
    assert asked == [2 * 2 * 8 * 16, 2 * 2 * 8 * 8, 2 * 2 * 8 * 2]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"num_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads=3 does not divide num_heads=4"),
        ({"num_key_value_heads": -1}, "num_key_value_heads must be at least 0"),
        ({"d_head": -1}, "d_head must be at least 0"),
        ({"d_ff": -1}, "d_ff must be at least 0"),
        ({"norm_eps": -1.0}, "norm_eps must be at least 0"),
        ({"positions": "rotary", "d_head": 5}, "must be even for rotary positions, got 5"),
        ({"positions": "rotary", "rotary_base": 1.0}, "rotary_base must be above 1, got 1.0"),
        ({"rotary_base": 500.0}, "rotary_base and rotary_scaling are for rotary positions, not learned ones"),
        ({"rotary_scaling": RotaryScaling("linear", 2.0)}, "rotary_base and rotary_scaling are for rotary positions"),
        ({"rotary_scaling": 2.0}, "rotary_scaling must be an object of settings or null, got 2.0"),
        ({"positions": "sinusoidal_halves"}, "positions must be one of learned, sinusoidal, rotary"),
        ({"tie_output": 1}, "tie_output must be true or false, got 1"),
    ],
)
def test_options_that_cannot_be(make_gpt, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make_gpt(**choices)


# ---------------------------------------------------------------------------------------------------------- at first


@pytest.mark.parametrize(("d_model", "layers"), [(768, 1), (128, 3), (192, 2)])
def test_first_weights_are_gpt2s(d_model: int, layers: int) -> None:
    tt.seed(0)
    model = GPT(GPTConfig(500, 64, layers, 4, d_model, bias=True))
    linear_std = 0.02 * math.sqrt(768 / d_model)  # GPT-2's own at its width, and the same size of outputs at others
    seen = set()
    for name, parameter in model.named_parameters():
        values = parameter.numpy()
        kind = name.rsplit(".", 2)[-2:]
        if "norm" in kind[0]:
            assert (values == (1.0 if kind[1] == "weight" else 0.0)).all(), name
        elif kind[1] == "bias":
            assert (values == 0.0).all(), name
        else:
            residual = kind[0] in ("output", "down")  # the two layers of a block that add to the residual stream
            std = 0.02 if "embedding" in kind[0] else linear_std / math.sqrt(2 * layers) if residual else linear_std
            seen.add((kind[0], residual))
            assert values.std() == pytest.approx(std, rel=0.03), name  # the smallest matrix has 8,192 numbers: 0.8 %
            assert abs(values.mean()) < 5 * std / math.sqrt(values.size), name
    assert {name for name, residual in seen if residual} == {"output", "down"}
    assert len(seen) == 6


@pytest.mark.parametrize("vocab_size", [11, 65])
def test_first_loss_is_that_of_a_uniform_guess(make_gpt, vocab_size: int) -> None:
    model = make_gpt(vocab_size=vocab_size, d_model=64)
    ids = random_ids(8, 9, vocab_size=vocab_size)
    loss = float(tt.cross_entropy(model(ids[:, :-1]), ids[:, 1:]))
    assert loss == pytest.approx(math.log(vocab_size), abs=0.1)


@pytest.mark.parametrize("choices", [{"bias": True}, *CHOICES], ids=str)
def test_overfits_one_batch(make_gpt, choices: dict[str, object]) -> None:
    model = make_gpt(**choices)
    ids = random_ids(4, 9)
    # The rows differ from the first or second token on, so that all but the first few targets can be known by heart.
    check_that_it_learns(
        model, lambda: tt.cross_entropy(model(ids[:, :-1])[:, 1:], ids[:, 2:]), below=0.02, lr=2e-2, betas=(0.9, 0.95)
    )


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_every_parameter_gets_a_gradient(make_gpt, choices: dict[str, Any]) -> None:
    model = make_gpt(bias=True, **choices)
    ids = random_ids(4, 9)
    tt.cross_entropy(model(ids[:, :-1]), ids[:, 1:]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert np.abs(parameter.grad.numpy()).max() > 0, name


# ---------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "num_heads=3 does not divide d_model=128"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"d_model": -4}, "d_model must be at least 1, got -4"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and less than 1, got -0.1"),
        ({"num_heads": 2.0}, "num_heads must be an integer, got 2.0"),
        ({"d_model": True}, "d_model must be an integer, got True"),
        ({"dropout": math.inf}, "dropout must be a finite number, got inf"),
        ({"dropout": "0.1"}, "dropout must be a finite number, got '0.1'"),
        ({"dropout": math.nan}, "dropout must be a finite number, got nan"),
        ({"positions": "absolute"}, "positions must be one of learned, sinusoidal, rotary, got 'absolute'"),
        ({"positions": "rotary", "d_model": 12}, "d_model / num_heads must be even for rotary positions, got 3"),
        ({"norm": "batch"}, f"norm must be one of {', '.join(NORMS)}, got 'batch'"),
        ({"activation": "tanh"}, f"activation must be one of {', '.join(ACTIVATIONS)}, got 'tanh'"),
    ],
)
def test_settings_that_make_no_model(changes: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        GPTConfig(**{"vocab_size": 10, **changes})
    assert message in str(caught.value)
    assert next(reversed(changes)) in caught.value.names


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "changes",
    [
        {"d_model": 10**18},
        {"num_layers": 10**8},
        {"num_layers": 10**8, "d_model": 1, "num_heads": 1},  # of which Python's objects are more than the weights
        {"block_size": 10**30},
        {"d_model": np.int64(2**40)},
        {"vocab_size": 10**400},
    ],
    ids=str,
)
def test_a_model_that_cannot_fit_in_memory_is_refused_before_it_is_made(changes: dict[str, int]) -> None:
    config = GPTConfig(**{"vocab_size": 65, **changes})
    with pytest.raises(SettingError, match=r"a model of this size needs at least .* there are .*: choose a smaller d_model"):
        GPT(config)


def test_a_cache_that_cannot_fit_in_memory_is_refused() -> None:
    model = GPT(GPTConfig(5, 10**15, 1, 1, 2, positions="sinusoidal"))
    with pytest.raises(SettingError, match="a cache for this block_size needs at least 16,000 TB"):
        model.new_cache()
    with pytest.raises(SettingError, match="a cache for this length needs at least 1,600 TB"):
        model.new_cache(10**14)


@pytest.mark.parametrize(("asked", "capacity"), [(None, 8), (1, 1), (7, 7), (8, 8), (9, 8)])
def test_a_cache_is_no_larger_than_the_context_or_the_request(make_gpt, asked: int | None, capacity: int) -> None:
    model, ids = make_gpt().eval(), random_ids(1, 8)
    cache = model.new_cache(asked)
    with tt.no_grad():
        model(ids[:, :capacity], cache)
        with pytest.raises(ValueError, match=r"cannot hold|crop them"):
            model(ids[:, :1], cache)


# ---------------------------------------------------------------------------------------- weights of another model


@pytest.mark.parametrize("choices", [*CHOICES, {"tie_output": False, "bias": True}])
@pytest.mark.parametrize("block_size", [1, 5, 8])
def test_the_same_weights_with_a_shorter_context(make_gpt, choices: dict[str, object], block_size: int) -> None:
    model = make_gpt(**choices)
    config = dataclasses.replace(model.config, block_size=block_size, dropout=0.25)
    adapted = model.eval().adapted(config)
    assert adapted.config == config
    assert not adapted.training
    assert adapted.num_parameters() == config.num_parameters()
    ids = random_ids(2, block_size)
    with tt.no_grad():
        assert adapted(ids).numpy().tobytes() == model(ids).numpy().tobytes()
    learned = model.train().adapted(config)
    assert learned.training
    with tt.no_grad():
        assert learned(ids).numpy().tobytes() != model(ids).numpy().tobytes()  # by dropout


def test_adapted_weights_use_no_random_numbers(make_gpt) -> None:
    model = make_gpt()
    expected = make_gpt(seed=1).token_embedding.weight.tolist()
    tt.seed(1)
    model.adapted(dataclasses.replace(model.config, block_size=4))
    assert GPT(model.config).token_embedding.weight.tolist() == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 9}, "block_size must be at most 8, as in these weights"),
        ({"vocab_size": 12}, "vocab_size is 11 in these weights: leave it out"),
        ({"d_model": 32, "dropout": 0.5}, "d_model is 16 in these weights: leave it out"),
        ({"positions": "rotary", "rotary_base": 5e5}, "positions is 'learned' in these weights: leave it out"),
        ({"tie_output": False}, "tie_output is True in these weights: leave it out"),
    ],
)
def test_weights_do_not_suit_another_model(make_gpt, changes: dict[str, object], message: str) -> None:
    model = make_gpt()
    with pytest.raises(SettingError, match=message):
        model.adapted(dataclasses.replace(model.config, **changes))


def test_state_dict_round_trip(make_gpt, bits) -> None:
    one, two = make_gpt(seed=1, bias=True), make_gpt(seed=2, bias=True)
    ids = random_ids(2, 8)
    assert one(ids).numpy().tobytes() != two(ids).numpy().tobytes()
    two.load_state_dict(one.state_dict())
    assert bits(two.state_dict()) == bits(one.state_dict())
    assert one(ids).numpy().tobytes() == two(ids).numpy().tobytes()


def test_a_sliding_window_hides_what_is_before_it() -> None:
    tt.seed(1)
    model = GPT(
        GPTConfig(vocab_size=11, block_size=12, num_layers=1, num_heads=2, d_model=16, positions="rotary", sliding_window=3)
    )
    ids = np.arange(10)[None] % 11
    changed = ids.copy()
    changed[0, 4] = 0
    differs = (model(tt.tensor(ids)).numpy() != model(tt.tensor(changed)).numpy()).any(-1)[0]
    assert np.flatnonzero(differs).tolist() == [4, 5, 6]
    short = tt.tensor(ids[:, :3])
    cache = model.new_cache()
    assert cache.capacity == 3
    with tt.no_grad():
        parts = [model(short[:, :2], cache).numpy(), model(short[:, 2:], cache).numpy()]
        with pytest.raises(ValueError, match="a cache holds at most the sliding_window of 3 tokens"):
            model(tt.tensor([[1]]), cache)
    np.testing.assert_allclose(np.concatenate(parts, 1), model(short).numpy(), rtol=1e-4, atol=1e-5)


def test_a_model_without_output_layer_returns_its_vectors() -> None:
    tt.seed(1)
    model = GPTVectors(GPTConfig(vocab_size=11, block_size=8, num_layers=1, num_heads=2, d_model=16, tie_output=False))
    ids = tt.tensor([[1, 2, 3]])
    vectors = model(ids)
    assert vectors.shape == (1, 3, 16)
    logits = vectors.numpy() @ model.gpt.token_embedding.weight.numpy().T
    np.testing.assert_allclose(model.gpt(ids).numpy(), logits, rtol=1e-4, atol=1e-5)
