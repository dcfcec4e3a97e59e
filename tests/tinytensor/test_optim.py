"""Optimizers, schedules and clipping."""

import copy
import math
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn, optim
from tinytensor.device import backend
from tinytensor.device.backend import xp
from tinytensor.optim import applying


def muon(parameters):
    """Muon for matrices, and AdamW for others; each parameter is a group, so that they keep their order."""
    return optim.Muon([{"params": [p], "orthogonal": p.ndim == 2} for p in parameters], lr=0.05, weight_decay=0.1)


OPTIMIZERS = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.05),
    "sgd weight decay": lambda ps: optim.SGD(ps, lr=0.05, weight_decay=0.1),
    "momentum": lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9),
    "dampening": lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "nesterov": lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda ps: optim.Adam(ps, lr=0.05),
    "adam weight decay": lambda ps: optim.Adam(ps, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    "adamw": lambda ps: optim.AdamW(ps, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1),
    "amsgrad": lambda ps: optim.Adam(ps, lr=0.05, betas=(0.8, 0.5), weight_decay=0.1, amsgrad=True),
    "amsgrad decoupled": lambda ps: optim.AdamW(ps, lr=0.05, betas=(0.8, 0.5), weight_decay=0.01, amsgrad=True),
    "muon": muon,
    "rmsprop": lambda ps: optim.RMSprop(ps, lr=0.05, alpha=0.9),
    "rmsprop centered": lambda ps: optim.RMSprop(ps, lr=0.01, alpha=0.9, eps=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda ps: optim.Adagrad(ps, lr=0.5, weight_decay=0.01),
    "adagrad lr decay": lambda ps: optim.Adagrad(ps, lr=0.5, lr_decay=0.01, initial_accumulator_value=0.3, eps=1e-3),
    "adadelta": lambda ps: optim.Adadelta(ps, lr=0.3, rho=0.9, eps=1e-3, weight_decay=0.01),
    "lion": lambda ps: optim.Lion(ps, lr=0.008, betas=(0.5, 0.75)),
    "lion weight decay": lambda ps: optim.Lion(ps, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1),
}
each_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def textbook(
    w, gradients, lr, kind, momentum=0.0, dampening=0.0, nesterov=False, betas=(0.9, 0.999), eps=1e-8, decay=0.0,
    amsgrad=False, centered=False, lr_decay=0.0, start=0.0,
):  # fmt: skip
    """The formulas of the papers, in float64, with one step for each gradient."""
    v = m = s = largest = 0.0
    for t, g in enumerate(gradients, start=1):
        if kind in ("adamw", "muon", "lion"):
            w = w - lr * decay * w
        else:
            g = g + decay * w
        if kind == "sgd":
            v = g if t == 1 else momentum * v + (1 - dampening) * g
            w = w - lr * (g + momentum * v if nesterov else v if momentum else g)
        elif kind == "muon":
            v = momentum * v + (1 - momentum) * g
            w = w - lr * max(1, w.shape[0] / w.shape[1]) ** 0.5 * orthogonal(momentum * v + (1 - momentum) * g)
        elif kind == "lion":
            w = w - lr * np.sign(betas[0] * m + (1 - betas[0]) * g)
            m = betas[1] * m + (1 - betas[1]) * g
        elif kind == "rmsprop":
            s, m = betas[1] * s + (1 - betas[1]) * g * g, betas[1] * m + (1 - betas[1]) * g
            v = momentum * v + g / (np.sqrt(s - centered * m * m) + eps)
            w = w - lr * v
        elif kind == "adagrad":
            s = s + g * g
            w = w - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(s + start) + eps)
        elif kind == "adadelta":
            s = betas[1] * s + (1 - betas[1]) * g * g
            v = np.sqrt(m + eps) / np.sqrt(s + eps) * g
            m = betas[1] * m + (1 - betas[1]) * v * v
            w = w - lr * v
        else:
            m = betas[0] * m + (1 - betas[0]) * g
            s = betas[1] * s + (1 - betas[1]) * g * g
            largest = np.maximum(largest, s) if amsgrad else s
            w = w - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(largest / (1 - betas[1] ** t)) + eps)
    return w


def orthogonal(matrix):
    """Jordan's polynomial, five times, of the singular values themselves."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.sqrt((s * s).sum())
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ v


FORMULAS = {
    "sgd": {"kind": "sgd"},
    "sgd weight decay": {"kind": "sgd", "decay": 0.1},
    "momentum": {"kind": "sgd", "momentum": 0.9},
    "dampening": {"kind": "sgd", "momentum": 0.9, "dampening": 0.3, "decay": 0.1},
    "nesterov": {"kind": "sgd", "momentum": 0.9, "nesterov": True, "decay": 0.1},
    "adam": {"kind": "adam"},
    "adam weight decay": {"kind": "adam", "betas": (0.8, 0.95), "eps": 1e-3, "decay": 0.1},
    "adamw": {"kind": "adamw", "betas": (0.8, 0.95), "decay": 0.1},
    "amsgrad": {"kind": "adam", "betas": (0.8, 0.5), "decay": 0.1, "amsgrad": True},
    "amsgrad decoupled": {"kind": "adamw", "betas": (0.8, 0.5), "decay": 0.01, "amsgrad": True},
    "muon": {"kind": "muon", "momentum": 0.95, "decay": 0.1},
    "rmsprop": {"kind": "rmsprop", "betas": (0, 0.9)},
    "rmsprop centered": {"lr": 0.01, "kind": "rmsprop", "betas": (0, 0.9), "momentum": 0.5, "centered": True, "eps": 1e-3},
    "adagrad": {"lr": 0.5, "kind": "adagrad", "eps": 1e-10, "decay": 0.01},
    "adagrad lr decay": {"lr": 0.5, "kind": "adagrad", "eps": 1e-3, "lr_decay": 0.01, "start": 0.3},
    "adadelta": {"lr": 0.3, "kind": "adadelta", "eps": 1e-3, "betas": (0, 0.9), "decay": 0.01},
    "lion": {"lr": 0.008, "kind": "lion", "betas": (0.5, 0.75)},
    "lion weight decay": {"lr": 0.01, "kind": "lion", "betas": (0.8, 0.95), "decay": 0.1},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_follow_the_formulas(name):
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal((3, 2)), rng.standard_normal((6, 3, 2))
    p = tt.tensor(start, requires_grad=True)
    optimizer = OPTIMIZERS[name]([p])
    for g in gradients:
        p.grad = tt.tensor(g)
        optimizer.step()
    np.testing.assert_allclose(p.numpy(), textbook(start, gradients, **{"lr": 0.05, **FORMULAS[name]}), rtol=1e-10)


@each_optimizer
def test_maximising_goes_up_where_minimising_the_negative_goes_down(make):
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal((3, 2)), rng.standard_normal((6, 3, 2))
    up, down = nn.Parameter(start), nn.Parameter(start)
    maximising, minimising = make([up]), make([down])
    maximising.param_groups[0]["maximize"] = True
    for g in gradients:
        up.grad, down.grad = tt.tensor(g), tt.tensor(-g)
        maximising.step()
        minimising.step()
        assert up.grad.tolist() == g.tolist()
    assert up.tolist() == down.tolist()


@each_optimizer
def test_a_quadratic_is_minimised(make):
    target = np.array([1.0, -2.0, 0.5])
    p = nn.Parameter(np.zeros(3, "float32"))
    optimizer = make([p])
    losses = []
    for _ in range(300):
        loss = ((p - tt.tensor(target)) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    decays = optimizer.param_groups[0]["weight_decay"] > 0  # decay moves the minimum towards 0
    np.testing.assert_allclose(p.numpy(), target, atol=0.2 if decays else 0.02)
    assert losses[-1] < 0.02 * losses[0]


def state_of(optimizer):
    """The state of the parameters, without the settings of the groups."""
    return {name: value for name, value in optimizer.state_dict().items() if not name.startswith("groups.")}


def values(model):
    return [p.tolist() for p in model.parameters()]


def train(model, optimizer, steps):
    data = np.random.default_rng(1)
    x = tt.tensor(data.standard_normal((8, 3)).astype("float32"))
    y = tt.tensor(data.integers(0, 2, 8))
    for _ in range(steps):
        optimizer.zero_grad()
        tt.cross_entropy(model(x), y).backward()
        optimizer.step()


def network():
    tt.seed(2)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


@each_optimizer
def test_a_saved_run_resumes_bit_for_bit(make, tmp_path):
    through = network()
    optimizer = make(through.parameters())
    train(through, optimizer, 4)
    tt.save(through.state_dict(), tmp_path / "model")
    tt.save(optimizer.state_dict(), tmp_path / "optimizer")
    train(through, optimizer, 4)

    resumed = network()
    resumed.load_state_dict(tt.load(tmp_path / "model"))
    again = make(resumed.parameters())
    again.load_state_dict(tt.load(tmp_path / "optimizer"))
    train(resumed, again, 4)
    for a, b in zip(through.parameters(), resumed.parameters()):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@each_optimizer
def test_a_state_goes_back_to_where_it_was_taken(make):
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer, 2)
    weights, state = copy.deepcopy(model.state_dict()), optimizer.state_dict()
    train(model, optimizer, 3)
    expected = values(model)
    for _ in range(2):  # the state is still what it was, also after an optimizer that loaded it went on
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        train(model, optimizer, 3)
        assert values(model) == expected


def test_a_state_without_a_copy_is_the_optimizers_own():
    model = network()
    optimizer = optim.Adam(model.parameters())
    train(model, optimizer, 1)
    arrays = [value for state in optimizer.state for value in (state["first"], state["second"])]
    shared = [t.data for name, t in optimizer.state_dict(copy=False).items() if name.endswith(("first", "second"))]
    assert shared and all(any(a is b for b in arrays) for a in shared)


def test_a_loaded_state_is_a_copy():
    model = network()
    optimizer = optim.Adam(model.parameters())
    train(model, optimizer, 1)
    state = optimizer.state_dict()
    other = optim.Adam(network().parameters())
    other.load_state_dict(state)
    kept = {name: t.numpy().copy() for name, t in other.state_dict().items()}
    train(model, optimizer, 2)
    for name, t in other.state_dict().items():
        np.testing.assert_array_equal(t.numpy(), kept[name])


def test_a_loaded_state_takes_the_dtype_of_the_model():
    model, wide = network(), network().astype("float64")
    optimizer, other = optim.Adam(model.parameters()), optim.Adam(wide.parameters())
    train(model, optimizer, 1)
    other.load_state_dict(optimizer.state_dict())
    assert {t.dtype.name for name, t in state_of(other).items() if not name.endswith("steps")} == {"float64"}


@pytest.mark.parametrize(
    "make, setting",
    [
        (lambda parameters, **changed: optim.SGD(parameters, **{"momentum": 0.9} | changed), {"momentum": 0.0}),
        (lambda parameters, **changed: optim.Adam(parameters, **{"amsgrad": True} | changed), {"amsgrad": False}),
        (lambda parameters, **changed: optim.RMSprop(parameters, **{"centered": True} | changed), {"centered": False}),
    ],
)
def test_a_setting_that_needs_less_state_leaves_a_state_that_loads(make, setting):
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer, 1)
    optimizer.param_groups[0].update(setting)
    train(model, optimizer, 1)
    for other in (make(model.parameters()), make(model.parameters(), **setting)):
        other.load_state_dict(optimizer.state_dict())
        assert state_of(other).keys() == state_of(optimizer).keys()


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    model = network()
    adam = optim.Adam(model.parameters())
    train(model, adam, 1)
    good = adam.state_dict()
    for bad in (
        {**good, "0.velocity": good["0.first"]},  # of another optimizer
        {**good, f"{len(adam.parameters())}.first": good["0.first"]},  # of a larger model
        {**good, "0.first": tt.ones((1, 1))},
        {**good, "nonsense": tt.ones(1)},
        {name: t for name, t in good.items() if name != "1.second"},  # half of a parameter's state
    ):
        before = {name: t.numpy().copy() for name, t in adam.state_dict().items()}
        with pytest.raises(ValueError, match="Adam"):
            adam.load_state_dict(bad)
        assert all(np.array_equal(t.numpy(), before[name]) for name, t in adam.state_dict().items())


def test_parameters_without_a_gradient_stay():
    a, b = nn.Parameter([1.0]), nn.Parameter([1.0])
    optimizer = optim.AdamW([a, b], lr=0.1, weight_decay=0.5)
    a.grad = tt.ones(1)
    optimizer.step()
    assert b.tolist() == [1]
    assert a.tolist() != [1]
    assert set(state_of(optimizer)) == {"0.first", "0.second", "0.steps"}


# ---------------------------------------------------------------------------------------------------- frozen parameters


def gradients_of_one(*parameters):
    for p in parameters:
        p.grad = tt.ones_like(p)


@each_optimizer
def test_frozen_parameters_stay_and_the_others_learn_as_if_alone(make):
    model, twin = network(), network()
    frozen = [model[0].weight, model[2].bias]
    for p in frozen:
        p.requires_grad = False
    optimizer = make(model.parameters())
    alone = make([twin[0].bias, twin[2].weight])
    start = values(network())
    for _ in range(3):
        train(model, optimizer, 1)
        optim.clip_grad_norm(model.parameters(), 0.1)
        train(twin, alone, 1)
        twin[0].weight.grad = twin[2].bias.grad = None
    assert [p.tolist() for p in frozen] == [start[0], start[3]]
    assert [model[0].bias.tolist(), model[2].weight.tolist()] == [twin[0].bias.tolist(), twin[2].weight.tolist()]
    assert not optimizer.state[0] and not optimizer.state[3]


@each_optimizer
def test_frozen_after_the_optimizer_was_made_and_released_later(make):
    p, other = nn.Parameter([1.0]), nn.Parameter([1.0])
    optimizer = make([p, other])
    gradients_of_one(p, other)
    optimizer.step()
    held = p.tolist()
    p.requires_grad = False
    for _ in range(2):
        optimizer.zero_grad()
        gradients_of_one(other)
        optimizer.step()
    assert p.tolist() == held
    p.requires_grad = True
    gradients_of_one(p)
    optimizer.step()
    assert p.tolist() != held
    twin = nn.Parameter([1.0])  # steps that it did not take do not count
    optimizer = make([twin])
    gradients_of_one(twin)
    optimizer.step()
    optimizer.step()
    assert p.tolist() == twin.tolist()


@each_optimizer
def test_a_run_with_frozen_parameters_resumes_bit_for_bit(make, tmp_path):
    """Parameters are frozen from the start, later, or no longer. The state holds what each had when it was saved."""

    def start():
        model = network()
        model[0].weight.requires_grad = False
        return model, make(model.parameters())

    def go_on(model, optimizer):
        train(model, optimizer, 2)
        model[0].weight.requires_grad = True
        model[2].weight.requires_grad = False
        train(model, optimizer, 2)

    through, optimizer = start()
    train(through, optimizer, 3)
    tt.save(through.state_dict(), tmp_path / "model")
    tt.save(optimizer.state_dict(), tmp_path / "optimizer")
    go_on(through, optimizer)
    resumed, again = start()
    resumed.load_state_dict(tt.load(tmp_path / "model"))
    again.load_state_dict(tt.load(tmp_path / "optimizer"))
    go_on(resumed, again)
    assert values(resumed) == values(through)


def test_nothing_but_frozen_parameters():
    p = nn.Parameter([1.0], requires_grad=False)
    count = nn.Parameter([3], requires_grad=False)  # integers, so it must be frozen
    optimizer = optim.AdamW([p, count], lr=1.0)
    optimizer.zero_grad()
    optimizer.step()
    assert (p.tolist(), count.tolist()) == ([1.0], [3])
    assert optim.clip_grad_norm([p, count], 1.0).item() == 0


# -------------------------------------------------------------------------------------------------------------- Muon


@pytest.mark.parametrize("shape", [(4, 4), (3, 8), (8, 3), (1, 5), (5, 1)], ids=str)
def test_muon_steps_are_nearly_orthogonal(shape):
    """All singular values of a step are near the learning rate, however different those of the gradient."""
    rng = np.random.default_rng(0)
    u, _, v = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    values = 10.0 ** -np.linspace(0, 2, min(shape))
    p = nn.Parameter(np.zeros(shape))
    p.grad = tt.tensor(u * values @ v)
    optim.Muon([p], lr=1.0).step()
    found = np.linalg.svd(-p.numpy(), compute_uv=False) / max(1, shape[0] / shape[1]) ** 0.5
    assert 0.6 < found.min() <= found.max() < 1.3
    assert (p.numpy() * p.grad.numpy()).sum() < 0  # downhill


def test_muon_parts_are_separate_matrices():
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal((6, 5)), rng.standard_normal((4, 6, 5))
    whole, parts = nn.Parameter(start), [nn.Parameter(start[i : i + 2]) for i in (0, 2, 4)]
    together, alone = optim.Muon([whole], parts=3, weight_decay=0.1), optim.Muon(parts, weight_decay=0.1)
    for gradient in gradients:
        whole.grad = tt.tensor(gradient)
        for i, part in enumerate(parts):
            part.grad = tt.tensor(gradient[2 * i : 2 * i + 2])
        together.step()
        alone.step()
    np.testing.assert_allclose(whole.numpy(), np.concatenate([part.numpy() for part in parts]), rtol=1e-12)


@pytest.mark.parametrize("gradient", [0.0, 1e-20, 1e18, 1e30, 2e38])
def test_muon_with_tiny_and_huge_gradients(gradient):
    p = nn.Parameter(np.ones((2, 3), "float32"))
    p.grad = tt.tensor(np.full((2, 3), gradient, "float32"))
    optim.Muon([p], lr=0.1).step()
    assert np.isfinite(p.numpy()).all()
    assert (p.numpy() == 1).all() == (gradient < 1)


# -------------------------------------------------------------------------------------------------------------- Lion


def test_lion_moves_every_element_by_the_learning_rate():
    """However large the gradient, and none where momentum and gradient are 0."""
    p = nn.Parameter(np.zeros(5))
    p.grad = tt.tensor(np.array([1e-20, -1e-3, 5.0, -1e20, 0.0]))
    optimizer = optim.Lion([p], lr=0.125)
    for steps in (1, 2, 3):
        optimizer.step()
        assert p.tolist() == [-0.125 * steps, 0.125 * steps, -0.125 * steps, 0.125 * steps, 0.0]
    assert set(state_of(optimizer)) == {"0.first"}


def test_lion_follows_the_gradient_immediately_and_the_momentum_long():
    """The gradient counts 1 - beta1 in a step, and 1 - beta2 in the momentum."""
    p = nn.Parameter(np.zeros(1))
    optimizer = optim.Lion([p], lr=1.0, betas=(0.5, 0.75))
    signs = []
    for g in (1.0, -0.5, 0.0, 0.0):  # the momentum before: 0, 0.25, 0.0625, 0.046875
        before = p.item()
        p.grad = tt.tensor(np.array([g]))
        optimizer.step()
        signs.append(before - p.item())
    assert signs == [1.0, -1.0, 1.0, 1.0]
    assert optimizer.state[0]["first"].tolist() == [0.0625 * 0.75**2]


def test_lion_decays_weights_by_the_learning_rate():
    p = nn.Parameter([2.0, -4.0])
    p.grad = tt.zeros(2)
    optim.Lion([p], lr=0.5, weight_decay=0.25).step()
    assert p.tolist() == [1.75, -3.5]


# ------------------------------------------------------------------------------------------------- restored settings

CHANGED = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.5, momentum=0.3, dampening=0.2, nesterov=False, weight_decay=0.7),
    "nesterov": lambda ps: optim.SGD(ps, lr=0.5, momentum=0.3, nesterov=True),
    "adam": lambda ps: optim.Adam(ps, lr=0.5, betas=(0.1, 0.3), eps=0.1, weight_decay=0.7),
    "adamw": lambda ps: optim.AdamW(ps, lr=1, betas=(0, 0.3), eps=0.1, weight_decay=0.7),
    "amsgrad": lambda ps: optim.Adam(ps, lr=0.5, amsgrad=True, maximize=True),
    "muon": lambda ps: optim.Muon(ps, lr=1, momentum=0.3, weight_decay=0.7, maximize=True),
    "rmsprop": lambda ps: optim.RMSprop(ps, lr=0.5, alpha=0.3, eps=0.1, momentum=0.3, centered=True, maximize=True),
    "adagrad": lambda ps: optim.Adagrad(ps, lr=0.5, lr_decay=0.1, initial_accumulator_value=0.5, eps=0.1, maximize=True),
    "adadelta": lambda ps: optim.Adadelta(ps, lr=0.5, rho=0.5, eps=0.1, weight_decay=0.1, maximize=True),
    "lion": lambda ps: optim.Lion(ps, lr=0.5, betas=(0.5, 0.25), weight_decay=0.1, maximize=True),
}


@pytest.mark.parametrize("make", CHANGED.values(), ids=CHANGED)
def test_a_state_brings_the_settings(make, tmp_path):
    def groups(model):
        return [{"params": [model[0].weight]}, {"params": [model[2].weight], "lr": 0.1, "weight_decay": 0.0}]

    through = network()
    optimizer = make(groups(through))
    train(through, optimizer, 2)
    tt.save(optimizer.state_dict(), tmp_path / "optimizer")
    resumed = network()
    again = (
        type(optimizer)(groups(resumed), momentum=0.1) if "SGD" in str(type(optimizer)) else type(optimizer)(groups(resumed))
    )
    resumed.load_state_dict(through.state_dict())
    again.load_state_dict(tt.load(tmp_path / "optimizer"))
    for mine, its in zip(again.param_groups, optimizer.param_groups):
        assert {n: v for n, v in mine.items() if n != "params"} == {n: v for n, v in its.items() if n != "params"}
        assert all(type(v) in (int, float, bool, tuple) for n, v in mine.items() if n != "params")
    train(through, optimizer, 2)
    train(resumed, again, 2)
    assert values(resumed) == values(through)


def test_a_state_without_settings_leaves_them():
    """Older files have no settings."""
    model = network()
    optimizer = optim.AdamW(model.parameters(), lr=0.5, betas=(0.1, 0.2))
    train(model, optimizer, 1)
    other = optim.AdamW(network().parameters(), lr=0.25, betas=(0.3, 0.4))
    other.load_state_dict(state_of(optimizer))
    assert (other.param_groups[0]["lr"], other.param_groups[0]["betas"]) == (0.25, (0.3, 0.4))
    assert other.state[0]["steps"] == 1


def test_settings_that_do_not_fit_are_refused_and_change_nothing():
    parts = [nn.Parameter([1.0]), nn.Parameter([1.0])]
    optimizer = optim.AdamW([{"params": [p]} for p in parts], lr=0.5)
    gradients_of_one(*parts)
    optimizer.step()
    good = optimizer.state_dict()
    for bad in (
        {**good, "groups.0.speed": tt.ones(())},
        {**good, "groups.2.lr": tt.ones(())},
        {**good, "groups.x.lr": tt.ones(())},
        {**good, "groups.0": tt.ones(())},
        {**good, "groups.0.lr": tt.ones(2)},
        {**good, "groups.0.betas": tt.ones(3)},
        {**good, "groups.0.lr": tt.tensor(-1.0)},
        {**good, "groups.1.betas": tt.ones(2)},
        {name: value for name, value in good.items() if not name.startswith("groups.1.")},
        optim.SGD(parts, momentum=0.5).state_dict(),
    ):
        before = {name: t.tolist() for name, t in good.items()}
        with pytest.raises(ValueError, match=r"AdamW|lr must|betas must"):
            optimizer.load_state_dict({**bad, "0.first": tt.ones(1) * 9})
        assert {name: t.tolist() for name, t in optimizer.state_dict().items()} == before


# ------------------------------------------------------------------------------------------------- calls of kernels


def counted(monkeypatch, name):
    """The lengths of the lists in all later calls of a kernel."""
    kernel, calls = getattr(tt.kernels, name), []
    monkeypatch.setattr(tt.kernels, name, lambda arrays, *rest: calls.append(len(arrays)) or kernel(arrays, *rest))
    return calls


@pytest.mark.parametrize(("name", "make"), [("sgd_step", OPTIMIZERS["nesterov"]), ("adam_step", OPTIMIZERS["adamw"])])
def test_one_call_changes_all_that_is_alike(monkeypatch, name, make):
    calls = counted(monkeypatch, name)
    parameters = [nn.Parameter([1.0]) for _ in range(5)]
    optimizer = make([{"params": parameters[:2]}, {"params": parameters[2:]}])
    for p in parameters[:4]:
        p.grad = tt.ones(1)
    optimizer.step()
    assert calls == [2, 2]
    parameters[4].grad = tt.ones(1)  # its first step, and the others' second
    optimizer.step()
    assert sorted(calls[2:]) == [1, 2, 2]
    optimizer.step()
    assert sum(calls[5:]) == 5
    alone = nn.Parameter([1.0])  # the same two steps, without other parameters
    twin = make([alone])
    alone.grad = tt.ones(1)
    twin.step()
    twin.step()
    assert parameters[4].tolist() == alone.tolist() != parameters[3].tolist()


FUSED = [name for name, make in OPTIMIZERS.items() if hasattr(make([nn.Parameter([1.0])]).rule, "fused")]


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_equal_the_rules(monkeypatch, name, dtype):
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal((5, 7)), rng.standard_normal((6, 5, 7))
    results = []
    for has_kernels in (True, False):
        if not has_kernels:
            monkeypatch.setattr(applying, "fused_of", lambda rule, group: None)
        p = nn.Parameter(start.astype(dtype))
        optimizer = OPTIMIZERS[name]([p])
        for g in gradients:
            p.grad = tt.tensor(g.astype(dtype))
            optimizer.step()
        results.append([p, *state_of(optimizer).values()])
    for a, b in zip(*results):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-7)


def test_the_kernels_of_sgd_and_adam_are_used(monkeypatch):
    """So that the test before compares them with something else."""
    sgd, adam = counted(monkeypatch, "sgd_step"), counted(monkeypatch, "adam_step")
    for make in (optim.SGD, optim.AdamW, lambda ps: optim.Muon(ps, orthogonal=False), Signs, optim.Lion):
        p = nn.Parameter([1.0])
        gradients_of_one(p)
        make([p]).step()
    assert (sgd, adam) == ([1], [1, 1])


@each_optimizer
def test_a_parameter_without_dimensions_learns_like_one_of_one_element(make):
    point, row = nn.Parameter(2.0), nn.Parameter([2.0])
    one, other = make([point]), make([row])
    for _ in range(3):
        point.grad, row.grad = tt.tensor(0.5), tt.tensor([0.5])
        one.step()
        other.step()
    assert point.item() == row.item() != 2.0


def test_a_momentum_set_later_starts_with_the_gradient():
    p, late = nn.Parameter([1.0]), nn.Parameter([1.0])
    optimizer, again = optim.SGD([p], lr=0.5, momentum=0.9), optim.SGD([late], lr=0.5)
    late.grad = tt.zeros(1)
    again.step()
    again.param_groups[0]["momentum"] = 0.9
    for _ in range(2):
        p.grad = late.grad = tt.ones(1)
        optimizer.step()
        again.step()
    assert p.tolist() == late.tolist() == pytest.approx([1 - 0.5 - 0.5 * 1.9])


def test_clipping_takes_one_call_for_the_norm_and_one_for_the_scale(monkeypatch):
    norms, scales = counted(monkeypatch, "norm_and_scale"), counted(monkeypatch, "scale_all")
    parameters = [nn.Parameter([1.0]) for _ in range(3)]
    for p in parameters:
        p.grad = tt.ones(1)
    optim.clip_grad_norm(parameters, 0.5)
    assert norms == scales == [3]


# --------------------------------------------------------------------------------------------------- narrow parameters

NARROW = "float16" if backend.bfloat16 is None else "bfloat16"


def narrow(values):
    p = nn.Module()
    p.only = nn.Parameter(np.asarray(values, "float32"))
    return p.astype(NARROW).only


@each_optimizer
def test_a_narrow_parameter_is_its_float32_twin_rounded(make):
    rng = np.random.default_rng(0)
    p = narrow(rng.standard_normal((300, 3)))
    twin = nn.Parameter(p.astype("float32"))
    optimizer, other = make([p]), make([twin])
    for _ in range(5):
        p.grad = tt.tensor(rng.standard_normal((300, 3)).astype("float32")).astype(NARROW)
        twin.grad = p.grad.astype("float32")
        optimizer.step()
        other.step()
    state, expected = state_of(optimizer), state_of(other)
    assert (p.dtype, {t.dtype.name for t in state.values()} - {"int64"}) == (NARROW, {"float32"})
    assert state.pop("0.master").tolist() == twin.tolist()
    assert {n: t.tolist() for n, t in state.items()} == {n: t.tolist() for n, t in expected.items()}
    assert p.tolist() == twin.astype(NARROW).tolist()


def test_steps_too_small_for_a_narrow_parameter_add_up():
    p = narrow([1.0])
    optimizer = optim.SGD([p], lr=1e-4)
    p.grad = tt.ones(1).astype(NARROW)
    optimizer.step()
    assert p.tolist() == [1.0]
    for _ in range(299):
        optimizer.step()
    assert p.item() == pytest.approx(0.97, abs=0.004)


def test_a_master_follows_what_is_loaded_and_keeps_its_digits_otherwise():
    model = nn.Linear(2, 3).astype(NARROW)
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        for p in model.parameters():
            p.grad = tt.ones_like(p)
        optimizer.step()

    def masters():
        return [state["master"].tolist() for state in optimizer.state]

    for _ in range(3):
        step()
    own = {name: t.copy() for name, t in model.state_dict().items()}
    before = masters()
    model.load_state_dict({name: t * 0 + 5.0 for name, t in own.items()})
    model.load_state_dict(own)  # the values that it already has
    optimizer.param_groups[0]["lr"] = 0.0
    step()
    assert masters() == before != [t.tolist() for t in own.values()]
    model.load_state_dict({name: t * 0 + 5.0 for name, t in own.items()})
    step()
    assert all(x == 5.0 for master in masters() for x in np.ravel(master))


@pytest.mark.parametrize("optimizer_first", [False, True])
@each_optimizer
def test_a_saved_narrow_run_resumes_bit_for_bit(make, optimizer_first, tmp_path):
    through = network().astype(NARROW)
    optimizer = make(through.parameters())
    train(through, optimizer, 4)
    tt.save(through.state_dict(), tmp_path / "model")
    tt.save(optimizer.state_dict(), tmp_path / "optimizer")
    train(through, optimizer, 4)

    resumed = network().astype(NARROW)
    again = make(resumed.parameters())
    parts = [(resumed, "model"), (again, "optimizer")]
    for part, name in reversed(parts) if optimizer_first else parts:
        part.load_state_dict(tt.load(tmp_path / name))
    train(resumed, again, 4)
    assert [p.tolist() for p in resumed.parameters()] == [p.tolist() for p in through.parameters()]
    states = [{name: t.tolist() for name, t in o.state_dict().items()} for o in (again, optimizer)]
    assert states[0] == states[1]


def test_states_of_narrow_and_wide_runs():
    wide, thin = network(), network().astype(NARROW)
    first, second = optim.Adam(wide.parameters()), optim.Adam(thin.parameters())
    train(wide, first, 1)
    second.load_state_dict(first.state_dict())  # this state has no masters, so they start from the parameters
    train(thin, second, 1)
    with pytest.raises(ValueError, match="master"):
        first.load_state_dict(second.state_dict())


def test_a_model_converted_after_its_optimizer_was_made_trains_on():
    model = network()
    optimizer = optim.Adam(model.parameters())
    train(model, optimizer, 2)
    model.astype(NARROW)
    train(model, optimizer, 2)
    assert {p.dtype.name for p in model.parameters()} == {NARROW}
    assert all(np.allclose(p.tolist(), s["master"].tolist(), rtol=0.01) for p, s in zip(model.parameters(), optimizer.state))


def test_the_norm_of_narrow_gradients_is_taken_in_float32():
    p = narrow(np.zeros(4000))
    p.grad = tt.full(4000, 0.1).astype(NARROW)
    each = p.grad[0].item()
    norm = optim.clip_grad_norm([p], 1.0)
    assert (norm.dtype, p.grad.dtype) == ("float32", NARROW)
    assert norm.item() == pytest.approx(each * math.sqrt(4000), rel=1e-5)
    assert p.grad[0].item() == pytest.approx(each / norm.item(), rel=0.005)


# ------------------------------------------------------------------------------------------------------------- the rest


def test_zero_grad():
    p = nn.Parameter([1.0])
    optimizer = optim.SGD([p])
    p.grad = tt.ones(1)
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0.0]
    optimizer.zero_grad()
    assert p.grad is None


def test_ways_to_give_parameters():
    a, b = nn.Parameter([1.0]), tt.tensor([1.0], requires_grad=True)
    for given in ([a, b], (a, b), iter([a, b]), [{"params": [a]}, {"params": b}], ({"params": x} for x in (a, b))):
        optimizer = optim.SGD(given, lr=0.25)
        before = a.item(), b.item()
        gradients_of_one(a, b)
        optimizer.step()
        assert (a.item(), b.item()) == (before[0] - 0.25, before[1] - 0.25)
    empty = optim.SGD([{"params": []}, {"params": [a]}], lr=0.25)
    empty.zero_grad()
    empty.step()
    assert a.grad is None


@pytest.mark.parametrize("number", [float, np.float64, np.float32, tt.tensor, lambda x: tt.tensor([x])[0]])
@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_settings_may_be_numbers_of_any_kind(kind, number):
    """Neither the result nor a dtype changes."""

    def result(number):
        model = network()
        optimizer = kind(model.parameters(), lr=number(0.5), weight_decay=number(0.25))
        optimizer.param_groups[0]["lr"] = number(0.125)
        train(model, optimizer, 2)
        for p in model.parameters():
            p.grad = p.grad * 0.5
        optimizer.step(number(0.5))
        again = kind(network().parameters())
        again.load_state_dict(optimizer.state_dict())
        assert again.param_groups[0]["lr"] == 0.125
        assert {p.dtype.name for p in model.parameters()} == {"float32"}
        return values(model)

    assert result(number) == result(float)


@each_optimizer
def test_a_parameter_without_elements(make):
    a, b = nn.Parameter(tt.zeros((0, 3))), nn.Parameter(tt.ones((3, 2)))
    c = nn.Parameter(tt.zeros((2, 0)))
    optimizer = make([a, b, c])
    for _ in range(2):
        gradients_of_one(a, b, c)
        assert optim.clip_grad_norm([a, b, c], 1.0).item() > 1.0
        optimizer.step()
    assert (a.shape, c.shape) == ((0, 3), (2, 0))
    assert b[0, 0].item() < 1.0
    make([a, b, c]).load_state_dict(optimizer.state_dict())


def test_a_model_and_its_optimizer_are_copied_together():
    model = network()
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, 2)
    for duplicate in (copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))):
        twin, its = duplicate((model, optimizer))
        before = values(model)
        assert values(twin) == before
        train(twin, its, 2)
        assert values(model) == before
        again, own = duplicate((model, optimizer))
        train(again, own, 2)
        assert values(again) == values(twin) != before


def test_groups_have_their_own_settings():
    a, b = nn.Parameter([1.0]), nn.Parameter([1.0])
    optimizer = optim.SGD([{"params": [a], "lr": 0.5}, {"params": [b]}], lr=0.1)
    a.grad, b.grad = tt.ones(1), tt.ones(1)
    optimizer.step()
    np.testing.assert_allclose([a.item(), b.item()], [0.5, 0.9], rtol=1e-6)
    optimizer.param_groups[1]["lr"] = 0.2  # settings may be changed at any time
    optimizer.step()
    np.testing.assert_allclose([a.item(), b.item()], [0.0, 0.7], atol=1e-6)


def test_a_group_may_be_added_later():
    a, b = nn.Parameter([1.0]), nn.Parameter([1.0])
    optimizer = optim.SGD([a], lr=0.5, momentum=0.9)
    gradients_of_one(a, b)
    optimizer.step()
    optimizer.add_param_group({"params": b, "lr": 0.25})
    assert optimizer.param_groups[1]["momentum"] == 0.9
    optimizer.step()
    np.testing.assert_allclose([a.item(), b.item()], [1 - 0.5 - 0.95, 0.75], rtol=1e-6)
    for wrong, kind in [({"params": [a]}, ValueError), ({"params": [tt.ones(1)]}, TypeError), ({"lr": 1.0}, ValueError)]:
        with pytest.raises(kind):
            optimizer.add_param_group(wrong)
    with pytest.raises(ValueError, match="lr must be finite"):
        optimizer.add_param_group({"params": [nn.Parameter([1.0])], "lr": -1.0})
    assert (len(optimizer.param_groups), len(optimizer.state), optimizer.parameters()) == (2, 2, [a, b])


def test_the_learning_rate_of_all_groups():
    a, b = nn.Parameter([1.0]), nn.Parameter([1.0])
    optimizer = optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.25)
    with pytest.raises(ValueError, match=r"several learning rates, \[0\.25, 0\.5\]: read them from optimizer\.param_groups"):
        _ = optimizer.lr
    with pytest.raises(ValueError, match="lr must be finite and not negative"):
        optimizer.lr = -1.0
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.5]
    optimizer.lr = 0.125
    assert optimizer.lr == 0.125
    gradients_of_one(a, b)
    optimizer.step()
    assert (a.item(), b.item()) == (0.875, 0.875)


def test_a_schedule_scales_every_group():
    a, b = nn.Parameter([1.0]), nn.Parameter([1.0])
    optimizer = optim.SGD([{"params": [a], "lr": 0.5}, {"params": [b]}], lr=0.1)
    a.grad, b.grad = tt.ones(1), tt.ones(1)
    optimizer.step(scale=0.5)
    np.testing.assert_allclose([a.item(), b.item()], [0.75, 0.95], rtol=1e-6)


def test_steps_change_parameters_in_place_and_gradients_not():
    p = nn.Parameter([1.0, 2.0])
    p.grad = tt.tensor([0.5, -0.5])
    for make in OPTIMIZERS.values():
        make([p]).step()
        assert p.grad.tolist() == [0.5, -0.5]
    assert p.dtype == "float32"


BAD = {
    "no parameters": (lambda p: optim.SGD([]), ValueError, "model.parameters()"),
    "negative lr": (lambda p: optim.SGD([p], lr=-1.0), ValueError, "negative"),
    "negative decay": (lambda p: optim.AdamW([p], weight_decay=-0.1), ValueError, "negative"),
    "negative lr of a group": (lambda p: optim.Adam([{"params": [p], "lr": -1.0}]), ValueError, "negative"),
    "beta": (lambda p: optim.Adam([p], betas=(1.0, 0.9)), ValueError, "betas"),
    "nesterov without momentum": (lambda p: optim.SGD([p], nesterov=True), ValueError, "momentum"),
    "nesterov with dampening": (lambda p: optim.SGD([p], momentum=0.9, dampening=0.1, nesterov=True), ValueError, "dampening"),
    "a constant": (lambda p: optim.SGD([tt.ones(1)]), TypeError, "nn.Parameter(...)"),
    "an array": (lambda p: optim.SGD([np.ones(1)]), TypeError, "model.parameters(), not a numpy.ndarray"),
    "one parameter": (
        lambda p: optim.SGD(p),
        TypeError,
        "SGD takes several parameters, not a single one: pass model.parameters() or [p]",
    ),
    "one matrix": (lambda p: optim.AdamW(nn.Parameter(tt.ones((2, 2)))), TypeError, "or [p]"),
    "a module": (lambda p: optim.SGD(nn.Linear(1, 1)), TypeError, "not a tinytensor.Linear"),
    "a list of modules": (
        lambda p: optim.SGD(nn.Sequential(nn.Linear(1, 1))),
        TypeError,
        "model.parameters(), not a tinytensor.Linear",
    ),
    "a state": (lambda p: optim.SGD(nn.Linear(1, 1).state_dict()), TypeError, "model.parameters(), not a dict"),
    "names": (lambda p: optim.SGD(nn.Linear(1, 1).named_parameters()), TypeError, "model.parameters(), not the tuple"),
    "a set": (lambda p: optim.SGD({p}), TypeError, "a list or model.parameters(), not a set"),
    "nothing": (lambda p: optim.SGD(None), TypeError, "model.parameters(), not None"),
    "no parameters of a model": (lambda p: optim.SGD(nn.ReLU().parameters()), ValueError, "model.parameters()"),
    "a computed tensor": (lambda p: optim.SGD([p * 2]), ValueError, "a tensor that 'multiply' computed"),
    "a view": (lambda p: optim.SGD([p[0]]), ValueError, "a tensor that 'getitem' computed"),
    "a computed tensor of a group": (
        lambda p: optim.SGD([{"params": [p]}, {"params": p * 2}]),
        ValueError,
        "a tensor that 'multiply' computed",
    ),
    "a group without parameters": (lambda p: optim.SGD([{"lr": 1.0}]), ValueError, "'params'"),
    "a group that is none": (lambda p: optim.SGD([{"params": [p]}, p]), ValueError, "each group must be a dict"),
    "lr that is no number": (lambda p: optim.SGD([p], lr=math.nan), ValueError, "lr"),
    "negative momentum": (lambda p: optim.SGD([p], momentum=-0.5), ValueError, "momentum"),
    "negative eps": (lambda p: optim.Adam([p], eps=-1e-8), ValueError, "eps"),
    "betas of a group": (lambda p: optim.Adam([{"params": [p], "betas": (2.0, 0.9)}]), ValueError, "betas"),
    "one beta": (lambda p: optim.Adam([p], betas=(0.9,)), ValueError, "betas"),
    "nesterov of a group": (lambda p: optim.SGD([{"params": [p], "nesterov": True}]), ValueError, "momentum"),
    "clip by what is no number": (lambda p: optim.clip_grad_norm([p], math.nan), ValueError, "positive"),
    "clip a module": (
        lambda p: optim.clip_grad_norm(nn.Linear(1, 1), 1.0),
        TypeError,
        "model.parameters(), not a tinytensor.Linear",
    ),
    "clip names": (lambda p: optim.clip_grad_norm(nn.Linear(1, 1).named_parameters(), 1.0), TypeError, "not the tuple"),
    "twice": (lambda p: optim.SGD([p, p]), ValueError, "twice"),
    "twice in groups": (lambda p: optim.SGD([{"params": [p]}, {"params": [p]}]), ValueError, "twice"),
    "unknown setting": (lambda p: optim.SGD([{"params": [p], "speed": 1}]), ValueError, "speed"),
    "clip": (lambda p: optim.clip_grad_norm([p], 0.0), ValueError, "positive"),
    "a vector for Muon": (
        lambda p: optim.Muon([p]),
        ValueError,
        "expected matrices, got a parameter of shape (1,): put it into",
    ),
    "parts that do not divide": (
        lambda p: optim.Muon([nn.Parameter(tt.ones((4, 2)))], parts=3),
        ValueError,
        "cannot cut a parameter of shape (4, 2) into 3 parts",
    ),
    "no parts": (lambda p: optim.Muon([nn.Parameter(tt.ones((4, 2)))], parts=0), ValueError, "parts must be at least 1"),
    "parts and a half": (lambda p: optim.Muon([nn.Parameter(tt.ones((4, 2)))], parts=1.5), TypeError, "an integer, got 1.5"),
    "a part that is True": (
        lambda p: optim.Muon([nn.Parameter(tt.ones((4, 2)))], parts=True),
        TypeError,
        "an integer, got True",
    ),
    "lr in words": (lambda p: optim.SGD([{"params": [p], "lr": "0.1"}]), TypeError, "lr must be a number, got '0.1'"),
    "huge lr": (lambda p: optim.SGD([p], lr=10**400), ValueError, "lr must be finite and not negative, got 1000"),
    "lr of another kind": (lambda p: optim.SGD([p], lr=Fraction(1, 10)), TypeError, "lr must be a number, got a fractions"),
    "a single group": (lambda p: optim.SGD({"params": [p]}), TypeError, "model.parameters(), not a dict"),
    "lr that is True": (lambda p: optim.SGD([{"params": [p], "lr": True}]), TypeError, "lr must be a number, got True"),
    "infinite lr": (lambda p: optim.SGD([p], lr=math.inf), ValueError, "lr must be finite and not negative, got inf"),
    "decay that is no number": (lambda p: optim.AdamW([p], weight_decay=math.nan), ValueError, "weight_decay must be finite"),
    "dampening": (lambda p: optim.SGD([p], momentum=0.5, dampening=math.nan), ValueError, "dampening must be finite"),
    "a single number": (
        lambda p: optim.Adam([{"params": [p], "betas": 0.9}]),
        ValueError,
        "betas must be two numbers, got 0.9",
    ),
    "betas in words": (
        lambda p: optim.Adam([{"params": [p], "betas": "no"}]),
        ValueError,
        "betas must be two numbers, got 'no'",
    ),
    "beta in words": (lambda p: optim.Adam([{"params": [p], "betas": ("0", 0)}]), TypeError, "betas must be a number, got '0'"),
    "nesterov in words": (lambda p: optim.SGD([{"params": [p], "nesterov": "no"}]), TypeError, "True or False, got 'no'"),
    "orthogonal in words": (lambda p: optim.Muon([{"params": [p], "orthogonal": "no"}]), TypeError, "True or False, got 'no'"),
    "amsgrad in words": (lambda p: optim.Adam([p], amsgrad="no"), TypeError, "amsgrad must be True or False, got 'no'"),
    "maximize in words": (lambda p: optim.SGD([p], maximize=1.0), TypeError, "maximize must be True or False, got 1.0"),
    "alpha": (lambda p: optim.RMSprop([p], alpha=-0.1), ValueError, "alpha must be finite and not negative"),
    "large alpha": (lambda p: optim.RMSprop([p], alpha=1.5), ValueError, "alpha must be at most 1, got 1.5"),
    "alpha that is no number": (lambda p: optim.RMSprop([p], alpha=math.nan), ValueError, "alpha must be finite"),
    "centered": (lambda p: optim.RMSprop([p], centered=2), TypeError, "centered must be True or False, got 2"),
    "rho": (lambda p: optim.Adadelta([p], rho=1.5), ValueError, "rho must be at most 1, got 1.5"),
    "lr_decay": (lambda p: optim.Adagrad([p], lr_decay=-1), ValueError, "lr_decay must be finite and not negative"),
    "no rule": (
        lambda p: gradients_of_one(p) or optim.Optimizer([p], lr=1).step(),
        TypeError,
        "Optimizer has no rule method: write one",
    ),
    "betas of Lion": (
        lambda p: optim.Lion([p], betas=(0.9, 1.0)),
        ValueError,
        "each of the betas must be below 1 and not negative",
    ),
    "no threads": (lambda p: optim.SGD([p]).step(threads=0), ValueError, "threads must be at least 1, got 0"),
    "steps": (lambda p: optim.Cosine(steps=-1), ValueError, "steps must be at least 0, got -1"),
    "warmup": (lambda p: optim.Constant(warmup=1.5), TypeError, "warmup must be an integer, got 1.5"),
    "negative warmup": (lambda p: optim.InverseSquareRoot(warmup=-1), ValueError, "warmup must be at least 0, got -1"),
    "final": (lambda p: optim.LinearDecay(final=math.nan), ValueError, "final must be finite and not negative, got nan"),
    "final in words": (lambda p: optim.Cosine(final="0"), TypeError, "final must be a number, got '0'"),
    "every": (lambda p: optim.Step(every=0), ValueError, "every must be at least 1, got 0"),
    "factor": (lambda p: optim.Step(factor=-1), ValueError, "factor must be finite and not negative, got -1"),
    "initial": (lambda p: optim.OneCycle(initial=math.inf), ValueError, "initial must be finite"),
    "factor of a plateau": (lambda p: optim.Plateau(factor=1.0), ValueError, "factor must be below 1"),
    "patience": (lambda p: optim.Plateau(patience=-1), ValueError, "patience must be at least 0, got -1"),
    "cooldown": (lambda p: optim.Plateau(cooldown=1.5), TypeError, "cooldown must be an integer, got 1.5"),
    "threshold": (lambda p: optim.Plateau(threshold=math.nan), ValueError, "threshold must be finite"),
    "final of a plateau": (lambda p: optim.Plateau(final=-1.0), ValueError, "final must be finite and not negative"),
    "mode": (lambda p: optim.Plateau(mode="mean"), ValueError, "mode must be 'min' or 'max'"),
    "threshold_mode": (lambda p: optim.Plateau(threshold_mode="no"), ValueError, "'rel' or 'abs', got 'min' and 'no'"),
    "a loss in words": (lambda p: optim.Plateau().measure("low"), TypeError, "value must be a number, got 'low'"),
    "d_model": (lambda p: optim.InverseSquareRoot(d_model=0), ValueError, "d_model must be above 0"),
    "momentum of 1": (
        lambda p: optim.Muon([nn.Parameter(tt.ones((4, 2)))], momentum=1),
        ValueError,
        "momentum must be below 1",
    ),
}


@pytest.mark.parametrize(("act", "kind", "says"), BAD.values(), ids=BAD)
def test_bad_settings(act, kind, says):
    with pytest.raises(kind, match=re.escape(says)):
        act(nn.Parameter([1.0]))


# ------------------------------------------------------------------------------------------------------------- schedules


def test_constant():
    schedule = optim.Constant(warmup=4)
    np.testing.assert_allclose([schedule(i) for i in range(6)], [0.2, 0.4, 0.6, 0.8, 1, 1])
    assert optim.Constant()(0) == optim.Constant()(10**6) == 1


def test_linear():
    schedule = optim.LinearDecay(warmup=10, steps=110, final=0.2)
    np.testing.assert_allclose([schedule(i) for i in (10, 60, 110, 500)], [1, 0.6, 0.2, 0.2])
    assert 0 < schedule(0) < schedule(9) < 1


def test_cosine():
    schedule = optim.Cosine(warmup=10, steps=110, final=0.1)
    quarter = 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2
    np.testing.assert_allclose([schedule(i) for i in (10, 35, 60, 110, 500)], [1, quarter, 0.55, 0.1, 0.1])
    assert 0 < schedule(0) < schedule(9) < 1


def test_inverse_square_root():
    schedule = optim.InverseSquareRoot(warmup=400, d_model=64)
    peak = 1 / math.sqrt(64 * 400)  # at step 400, counted from 1, the two sides of the paper's minimum are equal
    np.testing.assert_allclose(schedule(399), peak)
    np.testing.assert_allclose([schedule(199), schedule(1599)], [peak / 2, peak / 2])
    assert schedule(0) == pytest.approx(peak / 400)
    assert max(schedule(i) for i in range(2000)) == pytest.approx(peak)


def test_step():
    schedule = optim.Step(warmup=4, every=10, factor=0.5)
    np.testing.assert_allclose([schedule(i) for i in (0, 3, 4, 13, 14, 24)], [0.2, 0.8, 1, 1, 0.5, 0.25])


def test_one_cycle():
    schedule = optim.OneCycle(warmup=11, steps=31, initial=0.2, final=0.1)
    np.testing.assert_allclose([schedule(i) for i in (0, 5, 10, 20, 30, 500)], [0.2, 0.6, 1, 0.55, 0.1, 0.1])


@pytest.mark.parametrize("warmup", [0, 1])
def test_one_cycle_without_warmup_begins_at_its_peak(warmup):
    schedule = optim.OneCycle(warmup=warmup, steps=21, final=0.1)
    np.testing.assert_allclose([schedule(i) for i in (0, 10, 20, 99)], [1, 0.55, 0.1, 0.1])


def test_a_plateau_is_kept_with_a_run(tmp_path):
    plateau = optim.Plateau(factor=0.5, patience=1, cooldown=1)
    for loss in (3.0, tt.tensor(2.0), np.float32(2.0), 2.0):
        plateau.measure(loss)
    assert (plateau(), plateau(7)) == (0.5, 0.5)
    state = plateau.state_dict()
    plateau.measure(1.0)
    tt.save(state, tmp_path / "plateau")
    other = optim.Plateau(factor=0.5, patience=1, cooldown=1)
    other.load_state_dict(tt.load(tmp_path / "plateau"))
    assert {name: value for name, value in vars(other).items() if vars(plateau)[name] != value} == {"best": 2.0, "waiting": 1}
    for wrong in ({}, {**state, "more": 1.0}):
        with pytest.raises(ValueError, match="the state of a Plateau must have scale, best, bad, waiting, got"):
            other.load_state_dict(wrong)
    p = nn.Parameter([1.0])
    p.grad = tt.ones(1)
    optim.SGD([p], lr=0.5).step(other())
    assert p.item() == 0.75


@pytest.mark.parametrize(
    "schedule",
    [
        optim.LinearDecay(warmup=5, steps=5),
        optim.Cosine(warmup=5, steps=3),
        optim.InverseSquareRoot(warmup=0),
        optim.OneCycle(warmup=0, steps=0),
        optim.OneCycle(warmup=1, steps=1),
        optim.OneCycle(warmup=9, steps=3),
        optim.Step(every=1, factor=0),
    ],
)
def test_degenerate_schedules_stay_finite(schedule):
    assert all(math.isfinite(schedule(i)) and schedule(i) >= 0 for i in range(20))


# -------------------------------------------------------------------------------------------------------------- clipping


def test_clipping_scales_all_gradients_together():
    a, b = nn.Parameter([0.0, 0.0]), nn.Parameter([[0.0]])
    a.grad, b.grad = tt.tensor([3.0, 0.0]), tt.tensor([[4.0]])
    norm = optim.clip_grad_norm([a, b], 1.0)
    assert norm.item() == pytest.approx(5)
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0], rtol=1e-5)
    np.testing.assert_allclose(b.grad.numpy(), [[0.8]], rtol=1e-5)


def test_clipping_the_gradient_of_one_parameter():
    p = nn.Parameter([[0.0, 0.0], [0.0, 0.0]])
    p.grad = tt.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert optim.clip_grad_norm(p, 1).item() == pytest.approx(5)
    np.testing.assert_allclose(p.grad.numpy(), [[0.6, 0], [0, 0.8]], rtol=1e-5)


@pytest.mark.parametrize("gradient", [[3.0, 4.0], [math.inf, 1.0], [math.nan, 1.0], [0.0, 0.0]], ids=str)
def test_an_infinite_limit_changes_nothing(gradient):
    p = nn.Parameter([0.0, 0.0])
    p.grad = tt.tensor(gradient)
    norm = optim.clip_grad_norm([p], math.inf).item()
    np.testing.assert_array_equal(p.grad.numpy(), np.float32(gradient))
    np.testing.assert_array_equal(norm, np.linalg.norm(gradient))


@pytest.mark.parametrize(("gradient", "clipped"), [([math.inf, 1.0], [math.nan, 0.0]), ([math.nan, 1.0], [math.nan] * 2)])
def test_gradients_that_are_no_numbers_stop_nothing(gradient, clipped):
    """Neither clipping nor a step raises: whoever reads the norm or the loss decides."""
    for make in OPTIMIZERS.values():
        p = nn.Parameter([0.0, 0.0])
        p.grad = tt.tensor(gradient)
        optimizer = make([p])
        optimizer.step()
        optim.clip_grad_norm([p], 1.0)
        np.testing.assert_array_equal(p.grad.numpy(), clipped)
        optimizer.step()
        assert math.isnan(p[0].item())


def test_small_gradients_are_left_alone():
    p = nn.Parameter([0.0])
    p.grad = tt.tensor([0.5])
    assert optim.clip_grad_norm([p], 1.0).item() == 0.5
    assert p.grad.tolist() == [0.5]


def test_parameters_without_gradients_do_not_count():
    a, b = nn.Parameter([0.0]), nn.Parameter([0.0])
    assert optim.clip_grad_norm([a, b], 1.0).item() == 0
    b.grad = tt.tensor([2.0])
    assert optim.clip_grad_norm(iter([a, b]), 1.0).item() == 2
    assert a.grad is None


def test_clipping_keeps_each_gradients_dtype():
    a, b = nn.Parameter([0.0]), tt.tensor(np.zeros(1), requires_grad=True)
    a.grad, b.grad = tt.tensor([3.0]), tt.tensor(np.array([4.0]))
    optim.clip_grad_norm([a, b], 1.0)
    assert (a.grad.dtype, b.grad.dtype) == ("float32", "float64")


def test_clipping_gradients_that_share_a_tensor():
    # With create_graph, x + y gives one gradient tensor to both; each must be scaled once.
    x, y = nn.Parameter([0.0]), nn.Parameter([0.0])
    (x + y).backward(tt.tensor([3.0]), create_graph=True)
    optim.clip_grad_norm([x, y], 1.0)
    np.testing.assert_allclose([x.grad.item(), y.grad.item()], [1 / math.sqrt(2)] * 2, rtol=1e-5)


def test_a_norm_that_is_no_number_is_reported():
    p = nn.Parameter([0.0])
    p.grad = tt.tensor([math.nan])
    assert math.isnan(optim.clip_grad_norm([p], 1.0).item())


@pytest.mark.parametrize("threads", [2, 3, 9])
def test_threads_change_nothing(threads):
    def trained(**options):
        tt.seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False))
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            (model(tt.ones((2, 5))) ** 2).sum().backward()
            optimizer.step(0.5, **options)
        return [p.numpy().tolist() for p in model.parameters()]

    assert trained(threads=threads) == trained()


class Plain(optim.Optimizer):
    """An optimizer of a user, which knows nothing of scales."""

    def update(self, parameters, gradients, states, group, lr):
        for parameter, gradient in zip(parameters, gradients):
            parameter -= lr * gradient


class Signs(optim.AdamW):
    """A user's rule, which AdamW's kernel does not implement."""

    def rule(self, p, g, state, settings):
        p -= settings.lr * xp.sign(g)


class Halved(optim.AdamW):
    """A user's change of ``update``, which does not read the scale, though AdamW's does."""

    def update(self, parameters, gradients, states, group, lr):
        super().update(parameters, [g * 0.5 for g in gradients], states, group, lr)


SCALED = {
    "adamw": lambda p: optim.AdamW(p, lr=0.1),
    "adam": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.1),
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "muon": lambda p: optim.Muon([{"params": p[:2]}, {"params": p[2:], "orthogonal": False, "lr": 0.1}]),
    "amsgrad": lambda p: optim.AdamW(p, lr=0.1, amsgrad=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "adadelta": lambda p: optim.Adadelta(p),
    "lion": lambda p: optim.Lion(p, lr=0.1),
    "a user's": lambda p: Plain(p, lr=0.1),
    "a user's rule": lambda p: Signs(p, lr=0.1),
    "a user's change": lambda p: Halved(p, lr=0.1),
}


FLOAT16 = pytest.mark.needs("numpy")


@pytest.mark.parametrize(
    ("dtype", "max_norm"),
    [("float32", 0.5), ("float32", 1e9), ("float64", 0.5), ("float64", math.inf), pytest.param("float16", 0.5, marks=FLOAT16)],
)
@pytest.mark.parametrize("make", SCALED.values(), ids=SCALED)
def test_a_step_that_scales_has_the_bits_of_clipping_first(make, max_norm, dtype):
    def stepped(clipping_first):
        tt.seed(5)
        shapes = [(6, 4), (300, 301), (7,), ()]
        parameters = [nn.Parameter(tt.random.normal(shape).astype(dtype)) for shape in shapes]
        optimizer, norms = make(parameters), []
        for _ in range(3):
            for p in parameters:
                p.grad = tt.random.normal(p.shape).astype(dtype)
            if clipping_first:
                norm, scale = optim.clip_grad_norm(parameters, max_norm), None
            else:
                norm, scale = optim.norm_and_scale(iter(parameters), max_norm)
            optimizer.step(0.5, gradient_scale=scale)
            norms.append(norm)
        return [x.numpy().tobytes() for x in (*norms, *parameters, *optimizer.state_dict().values())]

    assert stepped(True) == stepped(False)


def test_the_scale_of_no_gradients_is_none_and_a_norm_must_be_positive():
    norm, scale = optim.norm_and_scale([nn.Parameter([1.0])], 1.0)
    assert norm.item() == 0 and scale is None
    with pytest.raises(ValueError, match="norm_and_scale: max_norm must be positive, got 0"):
        optim.norm_and_scale([nn.Parameter([1.0])], 0.0)


# ------------------------------------------------------------------------------------------- states that were changed


def trained_state():
    p = nn.Parameter([1.0, 2.0])
    optimizer = optim.Adam([p])
    p.grad = tt.ones(2)
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"0.steps": tt.tensor(1.5)}, ValueError, "the state's number of steps must be an integer of at least 0, got 1.5"),
        ({"0.steps": tt.tensor(-1)}, ValueError, "must be an integer of at least 0, got -1"),
        ({"0.steps": tt.tensor(math.nan)}, ValueError, "must be an integer of at least 0, got nan"),
        ({0: tt.ones(2)}, TypeError, "a state has tensors by name, and 0 cannot be a name"),
        ({"².first": tt.ones(2)}, ValueError, "the state's '².first' of shape (2,) does not fit this Adam"),
        ({"00.first": tt.ones(2)}, ValueError, "the state's '00.first' of shape (2,) does not fit this Adam"),
        ({"groups.00.lr": tt.tensor(1.0)}, ValueError, "the state's 'groups.00.lr' of shape () does not fit this Adam"),
    ],
)
def test_an_invalid_state_of_an_optimizer(changes, kind, says):
    optimizer = optim.Adam([nn.Parameter([1.0, 2.0])])
    with pytest.raises(kind, match=re.escape(says)):
        optimizer.load_state_dict({**trained_state(), **changes})
    assert optimizer.state == [{}]


@pytest.mark.parametrize("state", [None, [1]])
def test_a_state_has_names(state):
    for target in (optim.Adam([nn.Parameter([1.0])]), nn.Linear(1, 1)):
        with pytest.raises(TypeError, match="state must be a dict of values by name, such as a state_dict"):
            target.load_state_dict(state)


def test_a_state_of_arrays_and_numbers():
    """PyTorch's number of steps is a float."""
    optimizer = optim.Adam([nn.Parameter([1.0, 2.0])])
    optimizer.load_state_dict({"0.first": np.ones(2), "0.second": [1.0, 2.0], "0.steps": 3.0})
    (state,) = optimizer.state
    assert type(state["steps"]) is int
    assert [state["steps"], state["first"].tolist(), state["second"].tolist()] == [3, [1.0, 1.0], [1.0, 2.0]]


def test_a_setting_without_effect_is_refused() -> None:
    optimizer = optim.AdamW([nn.Parameter(tt.ones(2))])
    for name, says in {"learning_rate": "it is lr", "weight_decay": r"param_groups\[0\]\['weight_decay'\] = 0.5"}.items():
        with pytest.raises(AttributeError, match=says):
            setattr(optimizer, name, 0.5)
    for name, value, says in (("learning_rate", 0.5, "no setting learning_rate"), ("lr", "0.5", "lr must be a number")):
        held = dict(optimizer.param_groups[0])
        optimizer.param_groups[0][name] = value
        with pytest.raises((TypeError, ValueError), match=says):
            optimizer.step()
        optimizer.param_groups[0].clear()
        optimizer.param_groups[0].update(held)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_scale_of_shape_1_fits_a_parameter_of_shape_0(name: str) -> None:
    parameters = []
    for shape in ((), (1,)):
        p = nn.Parameter(2.0)
        p.grad = tt.tensor(4.0)
        OPTIMIZERS[name]([p]).step(gradient_scale=xp.full(shape, 0.5))
        parameters.append(p)
    assert parameters[0].shape == parameters[1].shape == ()
    assert parameters[0].item() == parameters[1].item() != 2.0


def test_parts_that_do_not_fit_are_refused_before_anything_changes() -> None:
    p = nn.Parameter(np.ones((4, 2), np.float32))
    p.grad = tt.ones((4, 2))
    optimizer = optim.Muon([p], parts=2)
    state = optimizer.state_dict()
    state["groups.0.parts"] = tt.tensor(3)
    with pytest.raises(ValueError, match=r"cannot cut a parameter of shape \(4, 2\) into 3 parts"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["parts"] == 2
    optimizer.param_groups[0]["parts"] = 3
    with pytest.raises(ValueError, match=r"cannot cut a parameter of shape \(4, 2\) into 3 parts"):
        optimizer.step()
    assert not optimizer.state[0]
    assert p.tolist() == [[1, 1]] * 4
