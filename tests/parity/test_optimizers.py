"""Optimizers, schedules, clipping and initialisers against PyTorch: whole runs of a small model, from the same weights."""

import copy
import math

import numpy
import pytest
import torch
from parity.compare import assert_close, copy_weights

import tinytensor as tt
from tinytensor.optim import muon

STEPS = 50


def twins():
    """The same small model in both libraries. tanh, so that no rounding decides whether a unit is on."""
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
    ours = tt.nn.Sequential(tt.nn.Linear(5, 8), tt.nn.Tanh(), tt.nn.LayerNorm(8), tt.nn.Linear(8, 3))
    copy_weights(ours, theirs)
    return ours, theirs


def batch(step):
    rng = numpy.random.default_rng(step)
    x = rng.standard_normal((16, 5)).astype("float32")
    return x, numpy.sin(x @ numpy.linspace(-1, 1, 15, dtype="float32").reshape(5, 3))


def backward(ours, theirs, step):
    """Fresh gradients in both models."""
    x, y = batch(step)
    tt.mse_loss(ours(tt.tensor(x)), tt.tensor(y)).backward()
    torch.nn.functional.mse_loss(theirs(torch.tensor(x)), torch.tensor(y)).backward()


def assert_same_parameters(ours, theirs, step):
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert_close(p, q, what=f"{name} after step {step}")


def assert_same_run(ours, theirs, optimizer, reference, steps=STEPS, after_backward=lambda *models: None):
    """Each step moves both models alike: to 1e-5, and the rounding that sets PyTorch apart from itself in float64."""
    exact, exact_reference = copy.deepcopy((theirs, reference))
    exact.double()
    exact_reference.load_state_dict(copy.deepcopy(reference.state_dict()))  # its state in float64
    start = [p.numpy().copy() for p in ours.parameters()]
    for step in range(steps):
        for one in (optimizer, reference, exact_reference):
            one.zero_grad()
        backward(ours, theirs, step)
        x, y = (torch.tensor(array).double() for array in batch(step))
        torch.nn.functional.mse_loss(exact(x), y).backward()
        after_backward(ours, theirs, exact)
        for one in (optimizer, reference, exact_reference):
            one.step()
        for (name, p), q, r in zip(ours.named_parameters(), theirs.parameters(), exact.parameters(), strict=True):
            rounding = (q - r).abs().max().item()
            assert_close(p, q, absolute=rounding, what=f"{name} after step {step}")
    moved = [numpy.abs(p.numpy() - before).max() for p, before in zip(ours.parameters(), start)]
    assert min(moved) > 1e-3  # two optimizers that do nothing agree, too


# --------------------------------------------------------------------------------------------------------- optimizers

SETTINGS = [
    ("SGD", {"lr": 0.05}),
    ("SGD", {"lr": 0.05, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.02, "momentum": 0.9}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.05, "momentum": 0.8, "dampening": 0.5, "weight_decay": 0.1}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3}),
    ("Adam", {"lr": 0.01, "betas": (0.0, 0.9)}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.0}),
    ("AdamW", {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.3, "eps": 1e-4}),
    ("Adam", {"lr": 0.01, "betas": (0.9, 0.5), "amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "betas": (0.9, 0.5), "amsgrad": True, "weight_decay": 0.3, "maximize": True}),
    ("SGD", {"lr": 0.002, "momentum": 0.5, "maximize": True}),
    ("RMSprop", {"lr": 0.001, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"alpha": 0.8, "weight_decay": 0.1, "momentum": 0.5, "eps": 1e-3}),
    ("RMSprop", {"lr": 0.001, "alpha": 0.9, "eps": 1e-2, "centered": True}),
    ("RMSprop", {"lr": 0.001, "alpha": 0.9, "eps": 1e-2, "momentum": 0.9, "centered": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.05, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}),
    ("Adagrad", {"lr": 0.01, "maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.7, "eps": 1e-3, "weight_decay": 0.1}),
    ("Adadelta", {"lr": 0.1, "maximize": True}),
]


@pytest.mark.parametrize("name, settings", SETTINGS, ids=str)
def test_optimizers(name, settings):
    """Without settings the defaults are compared."""
    ours, theirs = twins()
    optimizer = getattr(tt.optim, name)(ours.parameters(), **settings)
    reference = getattr(torch.optim, name)(theirs.parameters(), **settings)
    assert_same_run(ours, theirs, optimizer, reference)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta"])
def test_the_defaults_are_pytorchs(name):
    ours, theirs = twins()
    own = getattr(tt.optim, name)(ours.parameters()).param_groups[0]
    its = getattr(torch.optim, name)(theirs.parameters()).param_groups[0]
    assert own.keys() >= {"params", "lr", "weight_decay"}
    assert {k: v for k, v in own.items() if k != "params"} == {k: its[k] for k in own if k != "params"}


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5, "weight_decay": 0.3}], ids=str)
@pytest.mark.parametrize("shape", [(5, 7), (9, 4), (6, 6)], ids=str)
def test_muon(monkeypatch, shape, settings):
    """The update of the published implementation, which rounds to bfloat16 on its way; here it does not."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())
    rng = numpy.random.default_rng(0)
    start = rng.standard_normal(shape).astype("float32")
    ours, theirs = tt.nn.Parameter(start), torch.nn.Parameter(torch.tensor(start))
    settings = {"lr": 0.02, "weight_decay": 0.0, **settings}
    optimizer, reference = tt.optim.Muon([ours], **settings), torch.optim.Muon([theirs], **settings)
    for step in range(STEPS):
        gradient = rng.standard_normal(shape).astype("float32")
        ours.grad, theirs.grad = tt.tensor(gradient), torch.tensor(gradient)
        optimizer.step()
        reference.step()
        assert_close(ours, theirs, what=f"after step {step}")


def test_the_defaults_of_muon_that_pytorch_has():
    own = tt.optim.Muon([tt.nn.Parameter(numpy.ones((2, 2)))]).param_groups[0]
    its = torch.optim.Muon([torch.nn.Parameter(torch.ones(2, 2))]).param_groups[0]
    assert (own["momentum"], its["nesterov"], its["ns_steps"]) == (its["momentum"], True, muon.ROUNDS)
    assert its["ns_coefficients"] == muon.POLYNOMIAL


GROUPS = [
    ("SGD", {"lr": 0.05, "momentum": 0.9}, {"weight_decay": 0.1}, {"lr": 0.01, "momentum": 0.5}),
    ("Adam", {"lr": 0.01}, {"lr": 0.002, "betas": (0.5, 0.9)}, {"weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.2}, {}, {"weight_decay": 0.0, "lr": 0.005}),
    ("Adam", {"lr": 0.01}, {"amsgrad": True}, {"maximize": True, "lr": 0.002}),
    ("RMSprop", {"lr": 0.01}, {"momentum": 0.5}, {"centered": True, "alpha": 0.9, "eps": 1e-2}),
    ("Adagrad", {"lr": 0.1}, {"lr_decay": 0.1}, {"weight_decay": 0.1, "eps": 1e-2}),
    ("Adadelta", {}, {"rho": 0.5}, {"lr": 0.5, "eps": 1e-3}),
]


@pytest.mark.parametrize("name, settings, first, second", GROUPS, ids=str)
def test_parameter_groups(name, settings, first, second):
    """Matrices in one group, vectors in another, with different settings."""
    ours, theirs = twins()

    def groups(parameters):
        parameters = list(parameters)
        return [
            {"params": [p for p in parameters if p.ndim > 1], **first},
            {"params": [p for p in parameters if p.ndim == 1], **second},
        ]

    optimizer = getattr(tt.optim, name)(groups(ours.parameters()), **settings)
    reference = getattr(torch.optim, name)(groups(theirs.parameters()), **settings)
    assert_same_run(ours, theirs, optimizer, reference)


NOW_AND_THEN = [
    ("SGD", {"momentum": 0.9, "dampening": 0.2}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True}),
    ("RMSprop", {"momentum": 0.9}),
    ("Adagrad", {"lr_decay": 0.5}),
    ("Adadelta", {}),
]


@pytest.mark.parametrize("name, settings", NOW_AND_THEN, ids=str)
def test_a_parameter_that_has_a_gradient_only_now_and_then(name, settings):
    """Without one it stays, undecayed, and its own count of steps stands still."""
    ours, theirs = twins()
    optimizer = getattr(tt.optim, name)(ours.parameters(), lr=0.01, weight_decay=0.1, **settings)
    reference = getattr(torch.optim, name)(theirs.parameters(), lr=0.01, weight_decay=0.1, **settings)
    steps = iter(range(STEPS))

    def withhold(*models):
        if next(steps) % 3 == 0:
            for model in models:
                model[0].weight.grad = None

    assert_same_run(ours, theirs, optimizer, reference, after_backward=withhold)


@pytest.mark.parametrize("name, settings", [("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {})], ids=str)
def test_parameters_frozen_and_released(name, settings):
    """From the start, in the middle, and in turns: a frozen one stays, undecayed, and its count of steps stands still."""
    ours, theirs = twins()
    ours[0].weight.requires_grad = theirs[0].weight.requires_grad = False
    optimizer = getattr(tt.optim, name)(ours.parameters(), lr=0.01, weight_decay=0.1, **settings)
    reference = getattr(torch.optim, name)(theirs.parameters(), lr=0.01, weight_decay=0.1, **settings)
    for step in range(STEPS):
        for model in (ours, theirs):
            model[0].weight.requires_grad = step >= 20
            model[0].bias.requires_grad = step % 3 > 0
            model[2].weight.requires_grad = not 10 <= step < 30
        optimizer.zero_grad()
        reference.zero_grad()
        ours.zero_grad()
        backward(ours, theirs, step)
        tt.optim.clip_grad_norm(ours.parameters(), 0.3)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
        optimizer.step()
        reference.step()
        assert_same_parameters(ours, theirs, step)


@pytest.mark.parametrize(
    "name, settings",
    [
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("AdamW", {"betas": (0.7, 0.8)}),
        ("AdamW", {"betas": (0.7, 0.5), "amsgrad": True}),
        ("RMSprop", {"alpha": 0.9, "momentum": 0.5, "eps": 0.1}),
        ("RMSprop", {"alpha": 0.9, "centered": True, "eps": 0.1}),
        ("Adagrad", {"lr_decay": 0.1, "eps": 1e-3}),
        ("Adadelta", {"rho": 0.7, "eps": 1e-4}),
    ],
    ids=str,
)
def test_a_state_restores_the_settings(name, settings):
    """An optimizer made with the defaults takes over all settings from a state, as PyTorch's does."""
    ours, theirs = twins()
    optimizer = getattr(tt.optim, name)(ours.parameters(), lr=0.02, weight_decay=0.3, **settings)
    reference = getattr(torch.optim, name)(theirs.parameters(), lr=0.02, weight_decay=0.3, **settings)
    assert_same_run(ours, theirs, optimizer, reference, steps=20)
    second, its_second = (getattr(library.optim, name)(model.parameters()) for library, model in ((tt, ours), (torch, theirs)))
    second.load_state_dict(optimizer.state_dict())
    its_second.load_state_dict(reference.state_dict())
    assert_same_run(ours, theirs, second, its_second, steps=10)  # far on, RMSprop's rounding adds up


# ---------------------------------------------------------------------------------------------------------- schedules


def warmed_up(reference, warmup, after):
    """PyTorch's linear rise over ``warmup`` steps, and then ``after``."""
    if not warmup:
        return after
    rise = torch.optim.lr_scheduler.LinearLR(reference, 1 / (warmup + 1), 1.0, warmup)
    return torch.optim.lr_scheduler.SequentialLR(reference, [rise, after], [warmup])


def scheduler(schedule, reference, lr):
    kinds = torch.optim.lr_scheduler
    if isinstance(schedule, tt.optim.InverseSquareRoot):
        d_model, warmup = schedule.d_model, schedule.warmup

        def noam(step):  # the formula as printed, whose steps count from 1
            return d_model**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)

        return kinds.LambdaLR(reference, noam)
    if isinstance(schedule, tt.optim.OneCycle):
        share, low = schedule.warmup / schedule.steps, schedule.initial / schedule.final
        return kinds.OneCycleLR(reference, lr, schedule.steps, None, None, share, "cos", False, 0, 0, 1 / schedule.initial, low)
    if isinstance(schedule, tt.optim.Step):
        after = kinds.StepLR(reference, schedule.every, schedule.factor)
    elif isinstance(schedule, tt.optim.Constant):
        after = kinds.ConstantLR(reference, 1.0, 1)
    elif isinstance(schedule, tt.optim.LinearDecay):
        after = kinds.LinearLR(reference, 1.0, schedule.final, schedule.steps - schedule.warmup)
    else:
        after = kinds.CosineAnnealingLR(reference, schedule.steps - schedule.warmup, eta_min=schedule.final * lr)
    return warmed_up(reference, schedule.warmup, after)


SCHEDULES = [
    tt.optim.Constant(),
    tt.optim.Constant(warmup=7),
    tt.optim.LinearDecay(steps=50),
    tt.optim.LinearDecay(warmup=10, steps=50, final=0.2),
    tt.optim.LinearDecay(warmup=10, steps=30),
    tt.optim.Cosine(steps=50),
    tt.optim.Cosine(warmup=1, steps=50),
    tt.optim.Cosine(warmup=10, steps=50, final=0.0),
    tt.optim.InverseSquareRoot(warmup=12, d_model=64),
    tt.optim.Step(every=20),
    tt.optim.Step(warmup=5, every=7, factor=0.5),
    tt.optim.Step(every=1, factor=0.97),
    tt.optim.OneCycle(warmup=15, steps=50),
    tt.optim.OneCycle(warmup=30, steps=60, initial=0.2, final=0.01),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR warns about a call of its own
def test_schedules(schedule):
    """A complete run: the learning rate of every step, and the final weights."""
    lr = 1.0 if isinstance(schedule, tt.optim.InverseSquareRoot) else 0.02
    ours, theirs = twins()
    optimizer = tt.optim.AdamW(ours.parameters(), lr=lr)
    reference = torch.optim.AdamW(theirs.parameters(), lr=lr)
    rates = scheduler(schedule, reference, lr)
    for step in range(STEPS):
        optimizer.zero_grad()
        reference.zero_grad()
        backward(ours, theirs, step)
        assert lr * schedule(step) == pytest.approx(reference.param_groups[0]["lr"], rel=1e-6, abs=1e-12), f"step {step}"
        optimizer.step(schedule(step))
        reference.step()
        rates.step()
        assert_same_parameters(ours, theirs, step)


def test_the_defaults_of_one_cycle_are_pytorchs():
    reference = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    rates = torch.optim.lr_scheduler.OneCycleLR(reference, 1.0, 1000, cycle_momentum=False)
    for step in range(1000):
        assert tt.optim.OneCycle()(step) == pytest.approx(reference.param_groups[0]["lr"], rel=1e-6), f"step {step}"
        reference.step()
        if step < 999:
            rates.step()


PLATEAUS = [
    {},
    {"factor": 0.5, "patience": 2},
    {"factor": 0.5, "patience": 0, "cooldown": 3},
    {"mode": "max", "patience": 1, "threshold": 0.1},
    {"mode": "max", "patience": 1, "threshold": 0.1, "threshold_mode": "abs"},
    {"patience": 1, "threshold": 0.3},
    {"patience": 1, "threshold": 0.3, "threshold_mode": "abs", "factor": 0.7},
]


@pytest.mark.parametrize("settings", PLATEAUS, ids=str)
@pytest.mark.parametrize("low", [0.0, 0.05])
def test_plateau(settings, low):
    """Random walks and values that are NaN, and a state that goes into another in the middle."""
    lr = 0.5
    reference = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=lr)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(reference, min_lr=low * lr, eps=0, **settings)
    ours = tt.optim.Plateau(final=low, **settings)
    losses = numpy.abs(numpy.random.default_rng(0).standard_normal(80).cumsum()) * 0.5 + numpy.linspace(3, 0, 80)
    losses[[7, 31]] = math.nan
    for step, loss in enumerate(losses.tolist()):
        ours.measure(loss)
        theirs.step(loss)
        assert lr * ours(step) == pytest.approx(reference.param_groups[0]["lr"], rel=1e-6), f"step {step}"
        if step == 40:
            state, ours = ours.state_dict(), tt.optim.Plateau(final=low, **settings)
            ours.load_state_dict(state)
    assert ours() < 1


def test_a_schedule_scales_every_group():
    ours, theirs = twins()
    parameters, twin_parameters = list(ours.parameters()), list(theirs.parameters())
    optimizer = tt.optim.SGD([{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:]}], lr=0.02)
    reference = torch.optim.SGD([{"params": twin_parameters[:2], "lr": 0.1}, {"params": twin_parameters[2:]}], lr=0.02)
    rates = torch.optim.lr_scheduler.LinearLR(reference, 1.0, 0.0, 20)
    schedule = tt.optim.LinearDecay(steps=20)
    for step in range(20):
        backward(ours, theirs, step)
        optimizer.step(schedule(step))
        reference.step()
        rates.step()
        assert_same_parameters(ours, theirs, step)


# ----------------------------------------------------------------------------------------------------------- clipping


@pytest.mark.parametrize("share", [0.1, 0.999, 1.001, 10.0])
def test_clip_grad_norm(share):
    """The largest norm allowed is this share of the norm that there is."""
    ours, theirs = twins()
    backward(ours, theirs, 0)
    ours[0].bias.grad = theirs[0].bias.grad = None
    total = math.sqrt(sum(float((q.grad**2).sum()) for q in theirs.parameters() if q.grad is not None))
    norm = tt.optim.clip_grad_norm(ours.parameters(), share * total)
    assert_close(norm, torch.nn.utils.clip_grad_norm_(theirs.parameters(), share * total), what="the norm")
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters()):
        if q.grad is None:
            assert p.grad is None
        else:
            assert_close(p.grad, q.grad, what=f"the gradient of {name}")


def test_clipped_run():
    ours, theirs = twins()
    optimizer = tt.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)

    def clip(ours, *theirs):
        tt.optim.clip_grad_norm(ours.parameters(), 0.3)
        for model in theirs:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)

    assert_same_run(ours, theirs, optimizer, reference, after_backward=clip)


# ------------------------------------------------------------------------------------------------------- initialisers


def moments(values):
    """The mean, the standard deviation and the largest magnitude, of either library's numbers."""
    values = values.detach().numpy()
    return float(values.mean()), float(values.std()), float(numpy.abs(values).max())


INITIALISERS = [
    ("xavier_uniform_", {}, {}),
    ("xavier_uniform_", {"gain": 3.0}, {"gain": 3.0}),
    ("xavier_normal_", {}, {}),
    ("xavier_normal_", {"gain": 3.0}, {"gain": 3.0}),
    ("kaiming_uniform_", {}, {}),
    ("kaiming_uniform_", {"gain": 1.0}, {"nonlinearity": "linear"}),
    ("kaiming_normal_", {}, {"nonlinearity": "relu"}),
    ("kaiming_normal_", {"gain": 1.0}, {"nonlinearity": "linear"}),
    ("normal_", {}, {}),
    ("normal_", {"mean": 3.0, "std": 0.02}, {"mean": 3.0, "std": 0.02}),
    ("uniform_", {}, {}),
    ("uniform_", {"low": -2.0, "high": 3.0}, {"a": -2.0, "b": 3.0}),
    ("trunc_normal_", {}, {}),
    ("trunc_normal_", {"std": 0.02, "low": -0.03, "high": 0.01}, {"std": 0.02, "a": -0.03, "b": 0.01}),
    ("constant_", {"value": 0.3}, {"val": 0.3}),
    ("zeros_", {}, {}),
    ("ones_", {}, {}),
]


@pytest.mark.parametrize("name, settings, its_settings", INITIALISERS, ids=str)
def test_initialisers(name, settings, its_settings):
    """200,000 numbers each: mean and deviation to a hundredth, and for those with bounds the bounds to a thousandth.

    The weight is far from square, so that taking its inputs for its outputs would show.
    """
    tt.seed(0)
    torch.manual_seed(0)
    own = getattr(tt.nn.init, name)(tt.nn.Parameter(numpy.full((800, 250), 7.0, dtype="float32")), **settings)
    its = getattr(torch.nn.init, name)(torch.empty(800, 250), **its_settings)
    assert own.dtype == "float32" and own.requires_grad
    (mean, std, largest), (its_mean, its_std, its_largest) = moments(own), moments(its)
    assert mean == pytest.approx(its_mean, abs=0.01 * (its_std or 1e-4))
    assert std == pytest.approx(its_std, rel=0.01, abs=1e-6)
    if "normal" not in name or "trunc" in name:
        assert largest == pytest.approx(its_largest, rel=1e-3)


@pytest.mark.parametrize("name", [n for n in vars(tt.nn.init) if n.endswith("_") and not n.startswith("_")])
def test_every_initialiser_is_compared(name):
    assert name in {row[0] for row in INITIALISERS}
