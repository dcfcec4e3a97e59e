"""Positions: the sinusoidal table by its formula, the limit of learned ones, and what rotary ones leave unchanged."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.models.positions import (
    LearnedPositions,
    RotaryPositions,
    RotaryScaling,
    SinusoidalPositions,
    absolute_positions,
    rotary_positions,
    sinusoidal,
)


def sinusoidal_by_hand(place: int, dimension: int, d_model: int) -> float:
    """Section 3.5 of Vaswani et al., one number at a time."""
    angle = place / 10000 ** (dimension // 2 * 2 / d_model)
    return math.cos(angle) if dimension % 2 else math.sin(angle)


@pytest.mark.parametrize("d_model", [1, 6, 7, 16])
def test_sinusoidal_table(d_model: int) -> None:
    table = sinusoidal(40, d_model)
    assert table.dtype == np.float32
    expected = [[sinusoidal_by_hand(p, i, d_model) for i in range(d_model)] for p in range(40)]
    np.testing.assert_allclose(table.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("d_model", [1, 6, 7, 16])
def test_sines_before_cosines(d_model: int) -> None:
    table, halves = sinusoidal(40, d_model).numpy(), sinusoidal(40, d_model, halves=True).numpy()
    np.testing.assert_array_equal(halves, np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1))


def test_kinds_of_absolute_positions() -> None:
    table = sinusoidal(3, 6, halves=True).numpy()
    np.testing.assert_array_equal(absolute_positions("sinusoidal_halves", 3, 6)(3).numpy(), table)
    assert not np.array_equal(absolute_positions("sinusoidal", 3, 6)(3).numpy(), table)
    assert isinstance(absolute_positions("learned", 3, 6), LearnedPositions)
    assert absolute_positions("rotary", 3, 6) is None and rotary_positions("learned", 6) is None


@pytest.mark.parametrize("halves", [False, True])
def test_sinusoidal_positions_grow(halves: bool) -> None:
    positions = SinusoidalPositions(6, halves)
    whole = sinusoidal(300, 6, halves).numpy()
    for length, start in [(3, 0), (1, 3), (100, 0), (5, 200), (2, 0)]:
        out = positions(length, start)
        np.testing.assert_array_equal(out.numpy(), whole[start : start + length])


def test_the_sinusoidal_table_is_neither_learned_nor_saved() -> None:
    # A table that grows would not fit a saved one.
    positions = SinusoidalPositions(6)
    positions(10)
    assert list(positions.parameters()) == []
    assert positions.state_dict() == {}


def test_learned_positions() -> None:
    positions = LearnedPositions(5, 3)
    weight = positions.weight.numpy()
    np.testing.assert_array_equal(positions(5).numpy(), weight)
    np.testing.assert_array_equal(positions(2, 3).numpy(), weight[3:])
    positions(2, 1).sum().backward()
    np.testing.assert_array_equal(positions.weight.grad.numpy(), np.array([0, 1, 1, 0, 0])[:, None] * np.ones(3))


@pytest.mark.parametrize(("length", "start"), [(6, 0), (2, 4), (1, 5)])
def test_learned_positions_end(length: int, start: int) -> None:
    with pytest.raises(ValueError, match=f"a text of {length + start} tokens? is too long for 5 learned positions"):
        LearnedPositions(5, 3)(length, start)


# ---------------------------------------------------------------------------------------------------------- rotary


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((2, 3, 7, 6)).astype(np.float32)


def test_rotary_turns_pairs_of_dimensions(x: np.ndarray) -> None:
    # As complex numbers: dimension i is the real part and i + 3 the imaginary part of a number that is turned.
    turned = RotaryPositions(6).rotate(tt.tensor(x), start=2).numpy()
    angles = np.arange(2, 9)[:, None] * 10000.0 ** (-np.arange(3) / 3)
    expected = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angles)
    np.testing.assert_allclose(turned, np.concatenate([expected.real, expected.imag], axis=-1), atol=1e-5)


def test_rotary_keeps_the_norm_and_the_first_place(x: np.ndarray) -> None:
    turned = RotaryPositions(6).rotate(tt.tensor(x)).numpy()
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(turned[..., 0, :], x[..., 0, :])
    assert (np.abs(turned - x)[..., 1:, :].max(axis=-1) > 1e-3).all()


def test_rotary_dot_products_depend_on_the_distance_alone() -> None:
    rotary = RotaryPositions(6)
    query, key = np.random.default_rng(1).standard_normal((2, 6)).astype(np.float32)
    places = tt.tensor(np.ones((20, 1), np.float32))
    queries, keys = (rotary.rotate(places * tt.tensor(vector)).numpy() for vector in (query, key))
    products = queries @ keys.T
    for distance in range(-19, 20):
        same = np.diagonal(products, distance)
        np.testing.assert_allclose(same, same[0], atol=1e-5)
    # ... but on that they do depend.
    assert products[0].std() > 0.1


def test_rotary_starts_at_the_given_position_and_grows(x: np.ndarray) -> None:
    rotary = RotaryPositions(6)
    first = rotary.rotate(tt.tensor(x)).numpy()
    parts = [rotary.rotate(tt.tensor(x[..., i : i + 1, :]), start=i).numpy() for i in range(7)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=-2), first)
    far = rotary.rotate(tt.tensor(x), start=500).numpy()
    np.testing.assert_array_equal(RotaryPositions(6).rotate(tt.tensor(x), start=500).numpy(), far)
    np.testing.assert_array_equal(rotary.rotate(tt.tensor(x)).numpy(), first)


def test_rotary_gradient_turns_back(x: np.ndarray) -> None:
    # A rotation's transpose is its inverse: turning a turned gradient gives what came in.
    inputs = tt.tensor(x, requires_grad=True)
    rotary = RotaryPositions(6)
    g = np.random.default_rng(2).standard_normal(x.shape).astype(np.float32)
    rotary.rotate(inputs, start=4).backward(tt.tensor(g))
    np.testing.assert_allclose(rotary.rotate(inputs.grad, start=4).numpy(), g, atol=1e-5)


def test_rotary_needs_pairs() -> None:
    with pytest.raises(ValueError, match="d_head must be even for rotary positions, got 5"):
        RotaryPositions(5)


# ---------------------------------------------------------------------------------------------------------- threads


def test_a_table_is_long_enough_although_another_thread_made_a_shorter_one() -> None:
    """Shards share a model, and each rebuilds the table for the length of its texts."""

    class Sines(SinusoidalPositions):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, sinusoidal(1, 8) if name == "table" else value)

    class Turns(RotaryPositions):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value[:1] if isinstance(value, tt.Tensor) else value)

    np.testing.assert_array_equal(Sines(8)(5).numpy(), sinusoidal(5, 8).numpy())
    x = tt.tensor(np.random.default_rng(0).standard_normal((1, 1, 5, 8)).astype("float32"))
    np.testing.assert_array_equal(Turns(8).rotate(x).numpy(), RotaryPositions(8).rotate(x).numpy())


# ---------------------------------------------------------------------------------------------------------- their frequencies


@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_the_base_of_the_frequencies(base: float) -> None:
    found = RotaryPositions(8, base).frequencies
    np.testing.assert_allclose(found, [1.0, base**-0.25, base**-0.5, base**-0.75], rtol=1e-12)
    x = tt.tensor(np.eye(8, dtype=np.float32)[None])  # the first half of its rows turn towards the second half
    angles = np.arange(8)[:4] * found
    rows = RotaryPositions(8, base).rotate(x).numpy()[0]
    np.testing.assert_allclose([rows[i, i] for i in range(4)], np.cos(angles), atol=1e-6)
    np.testing.assert_allclose([rows[i, i + 4] for i in range(4)], np.sin(angles), atol=1e-6)


def test_linear_scaling_divides_all_frequencies() -> None:
    plain = RotaryPositions(8).frequencies
    np.testing.assert_allclose(RotaryPositions(8, scaling=RotaryScaling("linear", 2.5)).frequencies, plain / 2.5, rtol=1e-12)


def llama3_by_hand(frequency: float, factor: float, low: float, high: float, length: int) -> float:
    """As Llama 3.1's code has it, by wavelengths instead of turns."""
    wavelength = 2 * math.pi / frequency
    if wavelength < length / high:
        return frequency
    if wavelength > length / low:
        return frequency / factor
    smooth = (length / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def test_llama3_scaling() -> None:
    plain = RotaryPositions(64, 500_000.0).frequencies
    scaled = RotaryPositions(64, 500_000.0, RotaryScaling("llama3", 8.0, 1.0, 4.0, 8192)).frequencies
    np.testing.assert_allclose(scaled, [llama3_by_hand(f, 8.0, 1.0, 4.0, 8192) for f in plain], rtol=1e-12)
    changes = plain / scaled
    assert sum(changes == 1.0) > 5  # some stay, some are divided by 8, and some lie between
    assert sum(np.isclose(changes, 8.0, rtol=1e-12)) > 5
    assert sum((changes > 1.01) & (changes < 7.9)) > 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("yarn", 2.0), "kind must be one of linear, llama3, got 'yarn'"),
        (("linear", 0.0), "positive values"),
        (("linear", -1.0), "positive values"),
        (("linear", float("nan")), "factor must be a finite number"),
        (("llama3", 8.0, 4.0, 4.0), "a low factor below the high one"),
        (("llama3", 8.0, 1.0, 4.0, 0), "positive values"),
        (("llama3", 8.0, 1.0, 4.0, 1.5), "original_length must be an integer"),
    ],
)
def test_scaling_that_cannot_be(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        RotaryScaling(*arguments)
