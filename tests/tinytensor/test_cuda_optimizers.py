"""The optimizers' CUDA kernels, run on the CPU by the fake CuPy, against the NumPy kernels in float64."""

import itertools
import math

import numpy as np
import pytest
from cuda_checks import TOLERANCE, assert_close, dtypes, in_each_order, numbers, wide

import tinytensor as tt
from tinyformer.models.gpt import GPT, GPTConfig
from tinytensor import kernels, nn, optim
from tinytensor.device.backend import xp
from tinytensor.kernels import numpy as reference
from tinytensor.kernels.cupy import optimizers

# Of all sizes, from nothing to three chunks; some divide into packs and chunks and some do not.
SHAPES = [(), (0,), (1,), (3,), (8,), (5, 7), (1, 0, 2), (64, 64), (4097,), (2, 3, 1500)]
FENCE = 16  # elements on both sides of an array


class Arrays:
    """Lists of arrays with random values, each between fences of NaN: the kernels find them by address, behind the fake CuPy's
    guards. ``shifts`` says by how many elements the arrays of a list are off a multiple of 16 bytes."""

    def __init__(self, dtypes, shapes=SHAPES, shifts=(0, 0, 0, 0, 0), positive=()):
        self.whole, self.lists = [], []
        for place, dtype in enumerate(dtypes):
            made = [numbers(shape, dtype, 100 * place + i) for i, shape in enumerate(shapes)]
            self.lists.append([self._fenced(abs(x) if place in positive else x, shifts[place]) for x in made])

    def _fenced(self, values, shift):
        first = FENCE + shift
        whole = xp.array(np.full(first + values.size + FENCE, np.nan).astype(values.dtype))
        array = whole[first : first + values.size].reshape(values.shape)
        array[...] = values
        self.whole.append((whole, first, first + values.size))
        return array

    def unharmed(self):
        fences = [fence for whole, first, end in self.whole for fence in (whole[:first], whole[end:])]
        return all(np.isnan(fence.get()).all() for fence in fences)


def state_dtypes(dtype, count):
    """Of parameters, gradients, the lists of state, and the masters that narrow parameters have."""
    exact = "float32" if dtype == "bfloat16" else dtype
    return [dtype, dtype, *[exact] * count, *(["float32"] if dtype == "bfloat16" else [])]


def stepped(step, count, dtype, **settings):
    """All arrays after a step: parameters, gradients, state, masters. Masters start close to what they round to."""
    made = Arrays(state_dtypes(dtype, count), positive=(3,), **settings)
    lists = made.lists if dtype == "bfloat16" else [*made.lists, []]
    for parameter, master in zip(lists[0], lists[-1]):
        master[...] = parameter.astype("float32") * 1.0009765625  # within what bfloat16 rounds to
    step(*lists)
    assert made.unharmed()
    return lists


def expected(step, count, dtype):
    """The same by the NumPy kernel in float64, with no masters: the parameters are them."""
    made = Arrays(state_dtypes(dtype, count), positive=(3,)).lists
    lists = [[wide(x) for x in arrays] for arrays in made[: count + 2]]
    if dtype == "bfloat16":
        restarted = [p.astype("float32") * 1.0009765625 for p in made[0]]
        lists[0] = [wide(xp.where(m.astype(dtype) == p, m, p.astype("float32"))) for p, m in zip(made[0], restarted)]
    step(*lists, [])
    return lists


def check_step(monkeypatch, name, count, dtype, settings):
    """A step's kernel against NumPy's, in each order of threads."""

    def run(module):
        return lambda *lists: getattr(module, name)(*lists, *settings)

    flat = in_each_order(monkeypatch, lambda: list(itertools.chain(*stepped(run(kernels), count, dtype))))
    got = [flat[i : i + len(SHAPES)] for i in range(0, len(flat), len(SHAPES))]
    want = expected(run(reference), count, dtype)
    exact = state_dtypes(dtype, 1)[2]
    for arrays, others in zip(got[2:], want[2:]):
        assert_close(arrays, others, exact, slack=2)
    changed = got[-1] if dtype == "bfloat16" else got[0]
    assert_close(changed, want[0], exact, slack=2)
    assert all(p.get().tobytes() == m.astype(dtype).get().tobytes() for p, m in zip(got[0], changed))


# ----------------------------------------------------------------------------------------------------------------- steps


@dtypes
@pytest.mark.parametrize(("decay", "decoupled"), [(0.0, True), (0.1, True), (0.1, False)], ids=["no decay", "adamw", "adam"])
@pytest.mark.parametrize("step", [1, 7])
def test_adam_step(monkeypatch, dtype, step, decay, decoupled):
    check_step(monkeypatch, "adam_step", 2, dtype, (step, 0.05, 0.8, 0.95, 1e-3, decay, decoupled))


SGD = {  # is_first, lr, momentum, dampening, nesterov, weight_decay
    "plain": (True, 0.05, 0.0, 0.0, False, 0.0),
    "decay": (False, 0.05, 0.0, 0.0, False, 0.1),
    "first": (True, 0.05, 0.9, 0.3, False, 0.1),
    "later": (False, 0.05, 0.9, 0.3, False, 0.0),
    "nesterov, first": (True, 0.05, 0.9, 0.0, True, 0.1),
    "nesterov": (False, 0.05, 0.9, 0.0, True, 0.1),
}


@dtypes
@pytest.mark.parametrize("settings", SGD.values(), ids=SGD)
def test_sgd_step(monkeypatch, dtype, settings):
    check_step(monkeypatch, "sgd_step", 1, dtype, settings)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_rate_may_be_numpys_number(kind):
    found = []
    for number in (float, kind):
        parameter = nn.Parameter(np.arange(5.0, dtype="float32"))
        (parameter * parameter).sum().backward()
        optim.AdamW([parameter], lr=number(0.5)).step(number(0.25))
        found.append(parameter.tolist())
    assert found[0] == found[1]


def test_the_first_velocity_is_written_and_not_read():
    parameter, gradient, velocity = numbers(9, "float32"), numbers(9, "float32", 1), xp.full(9, math.nan, "float32")
    kernels.sgd_step([parameter], [gradient], [velocity], [], *SGD["first"][:5], 0.0)
    assert velocity.tolist() == gradient.tolist()


def test_an_infinite_parameter_without_decay_gets_no_nan():
    for step in (
        lambda *a: kernels.sgd_step(*a, [], [], *SGD["plain"]),
        lambda p, g: kernels.adam_step(p, g, [xp.zeros(1)], [xp.zeros(1)], [], 1, 0.1, 0.9, 0.99, 1e-8, 0.0, False),
    ):
        parameter = xp.array([math.inf])
        step([parameter], [xp.ones(1)])
        assert parameter.item() == math.inf


ADAM = (3, 0.05, 0.8, 0.95, 1e-3, 0.1, True)


def adam(*lists):
    kernels.adam_step(*lists, *ADAM)


def sgd(*lists):
    kernels.sgd_step(*lists, *SGD["later"])


def bits(lists):
    return [x.get().tobytes() for arrays in lists for x in arrays]


each_step = pytest.mark.parametrize(("step", "count"), [(adam, 2), (sgd, 1)], ids=["adam", "sgd"])


@dtypes
@each_step
def test_many_arrays_in_one_call_equal_one_call_each(step, count, dtype):
    def one_by_one(*lists):
        for i in range(len(SHAPES)):
            step(*[arrays[i : i + 1] for arrays in lists])

    assert bits(stepped(step, count, dtype)) == bits(stepped(one_by_one, count, dtype))


@dtypes
@each_step
def test_more_chunks_than_blocks(monkeypatch, step, count, dtype):
    want = bits(stepped(step, count, dtype))
    monkeypatch.setattr(optimizers, "_MOST_BLOCKS", 2)
    assert bits(stepped(step, count, dtype)) == want


@dtypes
@each_step
@pytest.mark.parametrize("shifted", [range(5), *[[i] for i in range(5)]], ids=str)
def test_arrays_that_are_not_aligned(step, count, dtype, shifted):
    shifts = [int(i in shifted) for i in range(5)]
    assert bits(stepped(step, count, dtype, shifts=shifts)) == bits(stepped(step, count, dtype))


@dtypes
@each_step
def test_arrays_of_any_layout(step, count, dtype):
    def lists(places, layout):
        made = Arrays(state_dtypes(dtype, count), shapes=[(6, 70), (4,)], positive=(3,)).lists
        made = [[layout(x) for x in arrays] if i in places else arrays for i, arrays in enumerate(made)]
        return made if dtype == "bfloat16" else [*made, []]

    def strided(x):
        return xp.concatenate([x, x], axis=-1)[..., : x.shape[-1] * 2 : 2]

    def settle(made, like):
        for arrays, others in zip(made, like):
            for x, y in zip(arrays, others):
                x[...] = y
        step(*made)
        return [[x.copy() for x in arrays] for arrays in made]

    layouts = [lambda x: x.T.copy().T, strided]
    want = bits(settle(lists((), None), lists((), None)))
    for layout, place in itertools.product(layouts, [*range(len(state_dtypes(dtype, count))), None]):
        places = range(9) if place is None else (place,)
        assert bits(settle(lists(places, layout), lists((), None))) == want


def test_a_master_is_kept_where_it_rounds_to_its_parameter():
    parameter = xp.array(np.array([1.0, 1.0, 2.0, math.nan, -0.0], "float32")).astype("bfloat16")
    settings = (1, 0.0, *ADAM[2:])  # a learning rate of 0
    for step in (
        lambda p, g, m: kernels.adam_step(p, g, [xp.zeros(5, "float32")], [xp.ones(5, "float32")], m, *settings),
        lambda p, g, m: kernels.sgd_step(p, g, [], m, True, 0.0, 0.0, 0.0, False, 0.0),
    ):
        master = xp.array(np.array([1.001, 1.01, 5.0, 1.0, 1e-30], "float32"))
        step([parameter.copy()], [xp.zeros(5, "bfloat16")], [master])
        np.testing.assert_array_equal(master.get(), np.array([1.001, 1.0, 2.0, math.nan, -0.0], "float32"))


def test_a_state_of_another_dtype_is_refused():
    x, y = [xp.zeros(2, "bfloat16")], [xp.zeros(2, "float32")]
    for call in (
        lambda: kernels.adam_step(x, x, x, x, [], *ADAM),
        lambda: kernels.adam_step(x, x, y, y, x, *ADAM),
        lambda: kernels.adam_step([*y, *x], [*y, *x], [*y, *y], [*y, *y], [], *ADAM),
        lambda: kernels.sgd_step(y, y, [xp.zeros(2, "float64")], [], *SGD["later"]),
    ):
        with pytest.raises(TypeError, match="_step needs parameters of one dtype and float32 state or wider: "):
            call()


def test_nothing_at_all():
    adam([], [], [], [], [])
    sgd([], [], [], [])
    kernels.scale_all([], xp.ones(()))
    assert norm_of(kernels, []).item() == norm_of(kernels, [xp.zeros(0, "float32")]).item() == 0.0


# --------------------------------------------------------------------------------------------------------- norm and scale


def norm_of(module, arrays):
    return module.norm_and_scale(arrays, 1.0)[0]


@dtypes
@pytest.mark.parametrize("shift", [0, 1])
def test_the_norm(monkeypatch, dtype, shift):
    made = Arrays([dtype], shifts=(shift,))
    want = norm_of(reference, [wide(x) for x in made.lists[0]])
    exact = state_dtypes(dtype, 1)[2]
    for most in (optimizers._MOST_SUMS, 2):
        monkeypatch.setattr(optimizers, "_MOST_SUMS", most)
        got = in_each_order(monkeypatch, lambda: [norm_of(kernels, made.lists[0])])
        assert_close(got, [want], exact)
    assert made.unharmed()


def test_the_norm_of_more_chunks_than_a_block_has_threads(monkeypatch):
    monkeypatch.setattr(optimizers, "_CHUNK", 16)
    arrays = [numbers(n, "float32", n) for n in (4803, 9)]
    got = in_each_order(monkeypatch, lambda: [norm_of(kernels, arrays)])
    assert_close(got, [norm_of(reference, [wide(a) for a in arrays])], "float32")


@pytest.mark.parametrize(("kinds", "dtype"), [(["bfloat16", "float32"], "float32"), ([*TOLERANCE], "float64")], ids=str)
def test_the_norm_of_several_dtypes(monkeypatch, kinds, dtype):
    arrays = [numbers(n, kind, n) for n, kind in zip([5000, 300, 7, 4096, 1], [*kinds, *kinds])]
    got = in_each_order(monkeypatch, lambda: [norm_of(kernels, arrays)])
    assert_close(got, [norm_of(reference, [wide(a) for a in arrays])], dtype)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite(bad):
    arrays = [numbers(5000, "float32"), xp.array([1.0, bad])]
    np.testing.assert_equal(norm_of(kernels, arrays).item(), bad)


@dtypes
@pytest.mark.parametrize("shift", [0, 1])
def test_scale_all(monkeypatch, dtype, shift):
    def scaled():
        made = Arrays([dtype], shifts=(shift,))
        kernels.scale_all(made.lists[0], factor)
        assert made.unharmed()
        return made.lists[0]

    factor = xp.array(0.37, dtype="float32")
    got = in_each_order(monkeypatch, scaled)
    assert_close(got, [wide(x) * wide(factor) for x in Arrays([dtype]).lists[0]], dtype)
    monkeypatch.setattr(optimizers, "_MOST_BLOCKS", 2)
    assert bits([scaled()]) == bits([got])


def test_scaling_arrays_of_several_dtypes_and_layouts():
    arrays = [numbers((4, 6), dtype).T[::2] for dtype in TOLERANCE]
    want = [wide(x) * 0.5 for x in arrays]
    kernels.scale_all(arrays, xp.array(0.5))
    for x, y, dtype in zip(arrays, want, TOLERANCE):
        assert_close([x], [y], dtype)


def test_scaling_by_one_writes_nothing():
    x = xp.array(np.array([0x7F800001], "uint32").view("float32"))  # a NaN that any product would make a quiet one
    kernels.scale_all([x], xp.ones((), "float32"))
    assert x.get().view("uint32").tolist() == [0x7F800001]


# -------------------------------------------------------------------------------------------------------- what a call costs


@pytest.fixture
def costs(monkeypatch):
    """What has been done since the last call of costs(): the kernels launched, and how many other functions, copies to the
    GPU and waits for it there were."""
    from cupy import _functions, _raw

    launched, others = [], []
    launch, run = _raw.RawKernel.__call__, _functions._run
    monkeypatch.setattr(_raw.RawKernel, "__call__", lambda self, *a: launched.append(self.name) or launch(self, *a))
    monkeypatch.setattr(_functions, "_run", lambda *a, **k: others.append(a) or run(*a, **k))
    counts = [(0, 0)]

    def report():
        counts.append((len(xp.uploads), xp.synchronizations))
        copies, waits = [now - before for before, now in zip(*counts[-2:])]
        found = launched[:], len(others), copies, waits
        launched.clear(), others.clear()
        return found

    return report


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_of_a_whole_model_is_one_launch(costs, dtype):
    model = GPT(GPTConfig(vocab_size=11, block_size=8, num_layers=2, num_heads=2, d_model=16)).astype(dtype)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    ids = tt.tensor(np.arange(8).reshape(1, 8))
    model.loss(ids, ids).backward()
    optimizer.step()
    costs()
    optimizer.step()
    assert costs() == (["adam_step"], 0, 0, 0)
    optim.clip_grad_norm(model.parameters(), 0.5)
    costs()
    optim.clip_grad_norm(model.parameters(), 0.5)
    launched, others, copied, waits = costs()
    assert (launched, copied, waits) == (["sum_squares", "root_of_sum", "scale_all"], 0, 0)
    assert others == 3  # the memory for three small arrays


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_clipped_step_takes_three_launches_and_no_wait(costs, dtype):
    parameters = [nn.Parameter(tt.tensor(numbers(shape, dtype, i))) for i, shape in enumerate(SHAPES)]
    optimizer = optim.AdamW(parameters, lr=0.1)
    for p in parameters:
        p.grad = p.detach() * 3.0
    for _ in range(2):
        costs()
        _, scale = optim.norm_and_scale(parameters, 0.5)
        optimizer.step(gradient_scale=scale)
    launched, _, copied, waits = costs()
    assert (launched, copied, waits) == (["sum_squares", "root_of_sum", "adam_step"], 0, 0)


@dtypes
@pytest.mark.parametrize("max_norm", [0.5, 1e9])
@pytest.mark.parametrize("make", [optim.AdamW, optim.SGD, optim.Adam], ids=["adamw", "sgd", "adam"])
def test_a_step_that_scales_has_the_bits_of_clipping_first(monkeypatch, dtype, max_norm, make):
    def stepped(clipping_first):
        parameters = [nn.Parameter(tt.tensor(numbers(shape, dtype, i))) for i, shape in enumerate(SHAPES)]
        optimizer, found = make(parameters, lr=0.1, weight_decay=0.1), []
        for step in range(3):
            for i, p in enumerate(parameters):
                p.grad = tt.tensor(numbers(p.shape, dtype, 100 * step + i))
            if clipping_first:
                norm, scale = optim.clip_grad_norm(parameters, max_norm), None
            else:
                norm, scale = optim.norm_and_scale(parameters, max_norm)
            optimizer.step(0.5, gradient_scale=scale)
            found.append(norm.data)
        return [*found, *[p.data for p in parameters], *[x for s in optimizer.state for x in s.values() if hasattr(x, "get")]]

    once, other = [in_each_order(monkeypatch, lambda first=first: stepped(first)) for first in (True, False)]
    assert bits([once]) == bits([other])


@dtypes
def test_the_scale_is_that_of_numpys_formula(dtype):
    for factor in (1.0, 1e-3, 0.0, math.nan, math.inf):
        arrays = [numbers(5000, dtype) * factor, numbers(7, dtype, 1) * factor]
        norm, scale = kernels.norm_and_scale(arrays, 0.75)
        assert (norm.dtype, scale.dtype) == (state_dtypes(dtype, 1)[2], "float64")  # float32 may be too narrow for it
        want = xp.minimum(0.75 / (norm + 1e-6), 1.0)
        np.testing.assert_allclose(scale.get(), want.get(), rtol=1e-6 if norm.dtype == "float32" else 1e-12)


def test_the_table_of_addresses_is_copied_when_a_gradient_moves(costs):
    parameters, gradients = [numbers(5, "float32"), numbers(3, "float32", 1)], [xp.ones(5, "float32"), xp.ones(3, "float32")]

    def step():
        before = [p.copy() for p in parameters]
        costs()
        kernels.sgd_step(parameters, gradients, [], [], *SGD["plain"])
        _, _, copied, waits = costs()
        assert waits == 0
        for p, g, old in zip(parameters, gradients, before):
            np.testing.assert_allclose(p.get(), old.get() - 0.05 * g.get(), rtol=1e-6)
        return copied

    assert step() > 0
    assert step() == 0
    first = gradients[1]
    gradients[1] = xp.full(3, 2.0, "float32")
    assert step() == 1  # the addresses, not the chunks
    assert step() == 0
    gradients[1] = first
    assert step() == 0  # both are known


def test_a_shared_gradient_is_scaled_once():
    shared = xp.array([3.0, 4.0])
    parameters = [nn.Parameter(np.zeros(2)) for _ in range(2)]
    for p in parameters:
        p.grad = tt.Tensor._wrap(shared)
    optim.clip_grad_norm(parameters, 1.0)
    np.testing.assert_allclose(shared.get(), np.array([3.0, 4.0]) / math.sqrt(50), rtol=1e-5)
