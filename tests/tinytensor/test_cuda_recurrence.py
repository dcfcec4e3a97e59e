"""The recurrent layers' CUDA kernels, run on the CPU by the fake CuPy, against NumPy's in float64."""

import numpy as np
import pytest
from cuda_checks import assert_close, dtypes, in_each_order, numbers, wide

from tinytensor import kernels
from tinytensor.device.backend import xp
from tinytensor.kernels import numpy as reference

pytest.importorskip("ml_dtypes")

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
SETTINGS = {"rnn": ("tanh",), "rnn, relu": ("relu",), "gru": (), "gru, no bias": (), "lstm": ()}
NAME = {layer: layer.split(",")[0] for layer in SETTINGS}
ACCUMULATOR = {"float64": "float64", "float32": "float32", "bfloat16": "float32"}
# (length, batch, width): one of each; no sequence; odd numbers; and more numbers in a state than a block has threads.
SHAPES = [(1, 1, 1), (2, 0, 3), (3, 2, 5), (4, 3, 8), (3, 5, 67)]
layers = pytest.mark.parametrize("layer", SETTINGS)


@pytest.fixture(autouse=True)
def numpy_kernels_compute_with_numpy(monkeypatch):
    for name in ("recurrence", "activations"):
        monkeypatch.setattr(f"tinytensor.kernels.numpy.{name}.xp", np)
    monkeypatch.setattr("tinytensor.kernels.numpy.recurrence.sum_over", np.sum)


def inputs(layer, shape, dtype):
    """The layer's inputs, in the order of its kernel; no state comes near relu's edge."""
    (length, batch, width), gates = shape, GATES[NAME[layer]]
    projected = numbers((length, batch, gates * width), dtype)
    if layer == "rnn, relu":
        projected = projected + xp.where(projected > 0, 2.0, -2.0).astype(dtype)
    weight = (numbers((gates * width, width), dtype, 1) * (0.3 / width**0.5)).astype(dtype)
    bias = {"gru": [numbers(gates * width, dtype, 2)], "gru, no bias": [None]}.get(layer, [])
    states = [numbers((batch, width), dtype, seed) for seed in ((3, 4) if layer == "lstm" else (3,))]
    return [projected, weight, *bias, *states]


def results(module, layer, xs, *how, needed=None):
    """The output, and the gradient of each input."""
    name = NAME[layer]
    if module is reference:
        xs, how = [None if x is None else wide(x).get() for x in xs], [x.get() if hasattr(x, "get") else x for x in how]
    needed = needed or [x is not None for x in xs]
    out, kept = getattr(module, f"{name}_forward")(needed, *xs, *how, *SETTINGS[layer])
    g = numbers(out.shape, xs[0].dtype.name, 9)
    found = getattr(module, f"{name}_backward")(
        g.get() if module is reference else g, kept, needed, *xs, *how, *SETTINGS[layer]
    )
    return [out, *found]


def assert_results_close(got, want, dtype, slack):
    """Gradients of a weight, a bias and a state are not rounded to bfloat16: they are sums."""
    assert_close(got[:2], want[:2], dtype, slack)
    for a, b in zip(got[2:], want[2:], strict=True):
        assert a is None or a.dtype.name == ACCUMULATOR[dtype]
        assert_close([a if a is None else a.astype(dtype)], [b], dtype, slack)


MASKS = {"no mask": lambda t, b: None, "padding": lambda t, b: xp.asarray(np.arange(t)[:, None] < np.arange(t, t - b, -1))}


@dtypes
@layers
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layers(monkeypatch, layer, shape, dtype):
    xs = inputs(layer, shape, dtype)
    ways = [("no mask", False), ("padding", True)]
    if dtype == "float64":
        ways += [("no mask", True), ("padding", False)]
    for mask, is_reversed in ways:
        how = (MASKS[mask](*shape[:2]), is_reversed)
        got = in_each_order(monkeypatch, lambda how=how: results(kernels, layer, xs, *how))
        slack = 16 if dtype == "bfloat16" else 8  # of rounded states, rounded gradients are made
        assert_results_close(got, results(reference, layer, xs, *how), dtype, slack)


@layers
def test_layers_of_any_layout(monkeypatch, layer):
    xs = inputs(layer, (4, 3, 8), "float32")
    mask = MASKS["padding"](3, 4).T
    strided = [None if x is None else xp.repeat(x, 2, -1)[..., ::2] for x in xs]
    got = in_each_order(monkeypatch, lambda: results(kernels, layer, strided, mask, False))
    for a, b in zip(got, results(kernels, layer, xs, mask.copy(), False), strict=True):
        assert a is b is None or a.get().tobytes() == b.get().tobytes()


@layers
def test_layers_compute_what_is_needed(layer):
    xs, name = inputs(layer, (3, 2, 5), "float64"), NAME[layer]
    want = results(kernels, layer, xs, None, False)
    out, kept = getattr(kernels, f"{name}_forward")([False] * len(xs), *xs, None, False, *SETTINGS[layer])
    assert out.get().tobytes() == want[0].get().tobytes()
    assert name == "rnn" or kept[-1] is None
    found = results(kernels, layer, xs, None, False, needed=[i == 0 for i in range(len(xs))])
    assert found[1].get().tobytes() == want[1].get().tobytes()
    assert found[2] is None


@layers
def test_not_a_number_in_padding_goes_nowhere(layer):
    shape = (4, 3, 8)
    xs, mask = inputs(layer, shape, "float32"), MASKS["padding"](*shape[:2])
    want = results(kernels, layer, xs, mask, False)
    xs[0] = xp.where(mask[:, :, None], xs[0], xp.asarray(np.nan, "float32"))
    for a, b in zip(results(kernels, layer, xs, mask, False), want, strict=True):
        assert a is b is None or a.get().tobytes() == b.get().tobytes()


def test_the_cell_of_bfloat16_is_kept_in_float32():
    """600 steps that each add 1/256 to a cell of 4, where bfloat16's next number is 4.03."""
    length, added = 600, 1 / 256
    gates = np.array([np.log(added / (1 - added)), 40.0, 40.0, 40.0])  # i = 1/256, and f = u = o = 1
    projected = xp.array(np.broadcast_to(gates, (length, 1, 4)).astype("bfloat16"))
    zeros, four = xp.zeros((1, 1), "bfloat16"), xp.array([[4.0]], "bfloat16")
    out, _ = kernels.lstm_forward([True] * 4, projected, xp.zeros((4, 1), "bfloat16"), zeros, four, None, False)
    exact = 4 + length / (1 + np.exp(-float(projected[0, 0, 0])))
    assert abs(float(out[1, -1, 0, 0]) - exact) < 0.04
