"""Positions as nodes of a graph. ``places`` are the numbers of the positions, (batch, length), where the batch may be 1."""

from __future__ import annotations

from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.export.graph import DOUBLE, FLOAT, Value
from tinyformer.models.positions import LearnedPositions, RotaryPositions, SinusoidalPositions
from tinytensor.device.backend import host
from tinytensor.nn import Module


def count_from_zero(x: Value, start: Value | None = None) -> Value:
    """The places (1, length) of x (batch, length, ...): 0, 1, ...; or those after ``start`` others."""
    length = x.length(1)
    places = x.graph.range(length) if start is None else x.graph.range(start + length).rest(0, start)
    return places.unsqueeze(0)


def add_positions(layer: Module | None, x: Value, places: Value) -> Value:
    """x (batch, length, d_model) plus its positions. Without a layer there are none to add."""
    if layer is None:
        return x
    if isinstance(layer, LearnedPositions):
        return x + x.graph.weight(layer.weight).take(places)
    if isinstance(layer, SinusoidalPositions):
        return x + sinusoidal(places, layer.d_model, layer.halves)
    raise UserError(f"the positions {type(layer).__name__} cannot be exported: choose learned, sinusoidal or rotary")


def sinusoidal(places: Value, d_model: int, halves: bool = False) -> Value:
    """Sinusoidal positions, (batch, length, d_model). They are computed: there is no last one with which a table could end.
    A cosine follows its sine or, with ``halves``, all cosines follow all sines."""
    angles = _angles(places, 10000.0 ** (-host.arange(0, d_model, 2) / d_model))
    both = [angles.function(name).astype(FLOAT).unsqueeze(3) for name in ("Sin", "Cos")]
    table = places.graph.concatenate(both, axis=2 if halves else 3).reshape(0, 0, -1)
    return table.beginning(2, [d_model]) if d_model % 2 else table


def _angles(places: Value, frequencies: Any) -> Value:
    """Places times frequencies, (batch, length, number of frequencies), in float64: for late places float32 is too coarse."""
    return places.astype(DOUBLE).unsqueeze(-1) * places.graph.constant(frequencies, DOUBLE)


class Rotation:
    """Rotary positions: what turns the queries and keys of every layer."""

    def __init__(self, rotary: RotaryPositions, places: Value):
        angles = _angles(places, rotary.frequencies).unsqueeze(1)  # (batch, 1, length, d_head / 2)
        self.cosine, self.sine = [angles.function(name).astype(FLOAT) for name in ("Cos", "Sin")]
        self.half = len(rotary.frequencies)

    def __call__(self, x: Value) -> Value:
        """x (batch, heads, length, d_head), rotated."""
        first, second = x.split(self.half, self.half)
        turned = [first * self.cosine - second * self.sine, first * self.sine + second * self.cosine]
        return x.graph.concatenate(turned, axis=-1)


def rotation_of(rotary: RotaryPositions | None, places: Value) -> Rotation | None:
    """The rotation at these places, if there are rotary positions."""
    return None if rotary is None else Rotation(rotary, places)
