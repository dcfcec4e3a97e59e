"""Optimizers on several ranks: parameters and states are, bit for bit, those of one process that adds the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rank_checks import same_on_all

from tinytensor import Tensor, distributed, nn
from tinytensor.distributed import Communicator, default_method
from tinytensor.distributed.processes import processes
from tinytensor.optim import SGD, Adadelta, Adagrad, Adam, AdamW, Lion, Muon, Optimizer, RMSprop

pytestmark = pytest.mark.needs("numpy")

STEPS = 5
SHAPES = [(7, 5), (5,), (3, 4, 2), (), (40, 3), (2,)]


class Several(nn.Module):
    """Parameters of several sizes. The first has two names."""

    def __init__(self, dtype: str = "float32"):
        rng = np.random.default_rng(0)
        for i, shape in enumerate(SHAPES):
            setattr(self, f"p{i}", nn.Parameter(rng.standard_normal(shape).astype(dtype)))
        self.tied = self.p0


def groups(model: Several) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [{"params": parameters[::2], "lr": 0.1, "weight_decay": 0.2}, {"params": parameters[1::2]}]


def muon(model: Several) -> Optimizer:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    return Muon([{"params": matrices}, {"params": rest, "orthogonal": False, "lr": 0.01}], lr=0.1)


def case(make: Callable[[Several], Optimizer], dtype: str = "float32") -> Callable[[], tuple[Several, Optimizer]]:
    def both() -> tuple[Several, Optimizer]:
        model = Several(dtype)
        return model, make(model)

    return both


CASES = {
    "adamw": case(lambda model: AdamW(model.parameters(), lr=0.01)),
    "adam with groups": case(lambda model: Adam(groups(model), lr=0.01)),
    "amsgrad": case(lambda model: AdamW(groups(model), lr=0.01, amsgrad=True)),
    "rmsprop": case(lambda model: RMSprop(groups(model), momentum=0.9, centered=True, eps=0.1)),
    "adagrad": case(lambda model: Adagrad(groups(model), lr_decay=0.1, initial_accumulator_value=0.1)),
    "masters of adadelta": case(lambda model: Adadelta(model.parameters(), maximize=True), "float16"),
    "lion": case(lambda model: Lion(groups(model), lr=0.01)),
    "masters of lion": case(lambda model: Lion(groups(model), lr=0.01), "float16"),
    "sgd": case(lambda model: SGD(model.parameters(), lr=0.01)),
    "momentum": case(lambda model: SGD(groups(model), lr=0.01, momentum=0.9, dampening=0.5)),
    "nesterov": case(lambda model: SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)),
    "masters": case(lambda model: AdamW(groups(model), lr=0.01), "float16"),
    "muon": case(muon),
    "masters of muon": case(muon, "float16"),
    "masters with momentum": case(lambda model: SGD(model.parameters(), lr=0.01, momentum=0.9), "float16"),
}


def gradient(step: int, number: int, rank: int, p: nn.Parameter) -> np.ndarray | None:
    """Some ranks have none at some steps, and parameter 2 has none anywhere at odd steps."""
    rng = np.random.default_rng([step, number, rank])
    if (number == 2 and step % 2) or rng.random() < 0.2:
        return None
    return (rng.integers(-64, 64, p.shape) / 16).astype(p.dtype)  # sums of these are exact


def thaw(model: Several, step: int) -> None:
    """Two parameters are frozen; one of them thaws."""
    model.p1.requires_grad = step >= 2
    model.p4.requires_grad = False


def alone(model: Several, optimizer: Optimizer, size: int, steps: range) -> None:
    """Return the result that this many ranks should have."""
    for step in steps:
        thaw(model, step)
        for number, p in enumerate(model.parameters()):
            found = [g for rank in range(size) if (g := gradient(step, number, rank, p)) is not None]
            if p.requires_grad:
                p.grad = Tensor(sum(found[1:], found[0])) if found else None
        optimizer.step(1.0 - step / 10, threads=2)


def together(ranks: Communicator, model: Several, optimizer: Optimizer, steps: range, threads: int) -> None:
    for step in steps:
        thaw(model, step)
        for number, p in enumerate(model.parameters()):
            if p.requires_grad:
                found = gradient(step, number, ranks.rank, p)
                p.grad = None if found is None else Tensor(found)
        ranks.sum_gradients(model.parameters())
        optimizer.step(1.0 - step / 10, threads, ranks)
    same_on_all(ranks, [p.data for p in model.parameters()])


def bits(model: Several, optimizer: Optimizer) -> dict[str, tuple[str, bytes]]:
    values = {**model.state_dict(), **{f"state {name}": value for name, value in optimizer.state_dict().items()}}
    return {name: (str(value.dtype), value.numpy().tobytes()) for name, value in values.items()}


@pytest.mark.parametrize("name, size", [(name, 2 + number % 2) for number, name in enumerate(CASES)])
def test_ranks_equal_one_process(name: str, size: int) -> None:
    expected, found = CASES[name](), CASES[name]()
    alone(*expected, size, range(STEPS))
    distributed.run(together, *found, range(STEPS), 1 + size % 2, workers=size)
    assert bits(*found) == bits(*expected)
    # It goes on, alone and then on ranks again.
    for both in (expected, found):
        alone(*both, size, range(STEPS, STEPS + 2))
    assert bits(*found) == bits(*expected)
    alone(*expected, size, range(STEPS + 2, STEPS + 4))
    distributed.run(together, *found, range(STEPS + 2, STEPS + 4), 1, workers=size)
    assert bits(*found) == bits(*expected)


def test_spawned_ranks_equal_one_process() -> None:
    expected, found = CASES["masters"](), CASES["masters"]()
    alone(*expected, 2, range(STEPS))
    arguments = [*found, range(STEPS), 1]
    with processes(2, together, arguments, "spawn") as ranks:
        together(ranks, *found, range(STEPS), 1)
    assert bits(*found) == bits(*expected)


@pytest.mark.parametrize("name", ["adamw", "momentum", "masters"])
def test_a_state_that_was_loaded_before(name: str) -> None:
    expected, found = CASES[name](), CASES[name]()
    alone(*expected, 2, range(STEPS))
    alone(*found, 2, range(2))
    state = found[1].state_dict()
    again = CASES[name]()
    again[0].load_state_dict(found[0].state_dict())
    again[1].load_state_dict(state)
    distributed.run(together, *again, range(2, STEPS), 1, workers=2)
    assert bits(*again) == bits(*expected)


# ------------------------------------------------------------------------------------ what is not in shared memory


def all_made_inside(ranks: Communicator, name: str) -> dict[str, tuple[str, bytes]]:
    both = CASES[name]()
    together(ranks, *both, range(STEPS), 1)
    found = ranks.gather(bits(*both))
    assert found is None or all(other == found[0] for other in found)
    return bits(*both)


def optimizer_made_inside(ranks: Communicator, model: Several) -> dict[str, tuple[str, bytes]]:
    optimizer = AdamW(model.parameters(), lr=0.01)
    together(ranks, model, optimizer, range(STEPS), 1)
    return bits(model, optimizer)


def state_loaded_inside(ranks: Communicator, model: Several, optimizer: Optimizer, state: dict[str, Any]) -> None:
    together(ranks, model, optimizer, range(2), 1)
    optimizer.load_state_dict(state)
    together(ranks, model, optimizer, range(2, STEPS), 1)


@pytest.mark.parametrize("name, size", [("adamw", 3), ("masters", 2)])
def test_a_model_that_each_rank_makes(name: str, size: int) -> None:
    expected = CASES[name]()
    alone(*expected, size, range(STEPS))
    assert distributed.run(all_made_inside, name, workers=size) == bits(*expected)


def test_an_optimizer_that_each_rank_makes() -> None:
    expected = CASES["adamw"]()
    alone(*expected, 3, range(STEPS))
    model, _ = CASES["adamw"]()
    assert distributed.run(optimizer_made_inside, model, workers=3) == bits(*expected)


def test_a_state_that_each_rank_loads() -> None:
    expected, found = CASES["adamw"](), CASES["adamw"]()
    alone(*expected, 2, range(2))
    state = {name: Tensor(value.numpy()) for name, value in expected[1].state_dict().items()}
    alone(*expected, 2, range(2, STEPS))
    distributed.run(state_loaded_inside, *found, state, workers=2)
    assert bits(*found) == bits(*expected)


@pytest.mark.skipif(default_method() != "fork", reason="needs a fork")
def test_a_model_in_a_closure() -> None:
    """No argument is shared, so every rank has its own model."""
    expected, found = CASES["adamw"](), CASES["adamw"]()
    alone(*expected, 2, range(STEPS))
    distributed.run(lambda ranks: together(ranks, *found, range(STEPS), 1), workers=2)
    assert bits(*found) == bits(*expected)


class Momentum(Optimizer):
    """As a user writes one, who knows nothing of ranks: it has no ``advance``."""

    state_names = ("speed",)

    def update(self, parameters: Any, gradients: Any, states: Any, group: dict[str, Any], lr: float) -> None:
        for p, g, state in zip(parameters, gradients, states):
            state["speed"] = 0.9 * state.get("speed", 0) + g
            p -= lr * state["speed"]


class Signs(AdamW):
    """A change of ``update`` alone, with a state that the inherited ``advance`` does not know of."""

    state_names = (*AdamW.state_names, "sign")

    def update(self, parameters: Any, gradients: Any, states: Any, group: dict[str, Any], lr: float) -> None:
        for g, state in zip(gradients, states):
            state["sign"] = np.sign(g)
        super().update(parameters, [state["sign"] for state in states], states, group, lr)


@pytest.mark.parametrize("kind", [Momentum, Signs])
def test_an_optimizer_with_a_custom_update(kind: type[Optimizer]) -> None:
    """Its state is whole on rank 0 when the ranks have ended."""
    expected, found = [case(lambda model: kind(model.parameters(), lr=0.01))() for _ in range(2)]
    alone(*expected, 2, range(STEPS))
    distributed.run(together, *found, range(STEPS), 1, workers=2)
    assert bits(*found) == bits(*expected)
    alone(*expected, 2, range(STEPS, STEPS + 2))
    distributed.run(together, *found, range(STEPS, STEPS + 2), 1, workers=2)
    assert bits(*found) == bits(*expected)


def replaced_inside(ranks: Communicator, model: Several, optimizer: Optimizer) -> None:
    model.p0.data = model.p0.data * 2
    together(ranks, model, optimizer, range(1), 1)


def test_a_parameter_that_is_replaced_on_ranks() -> None:
    with pytest.raises(RuntimeError, match=r"shape \(7, 5\) was replaced after ranks began.* in place"):
        distributed.run(replaced_inside, *CASES["adamw"](), workers=2)


def step_without_ranks(ranks: Communicator, model: Several, optimizer: Optimizer) -> None:
    model.p0.grad = Tensor(np.ones(SHAPES[0], "float32"))
    optimizer.step()


def test_a_step_that_knows_nothing_of_ranks() -> None:
    model, optimizer = CASES["adamw"]()
    with pytest.raises(RuntimeError, match=r"each would update all of them: call step\(ranks=ranks\)$"):
        distributed.run(step_without_ranks, model, optimizer, workers=2)
    optimizer.step()  # now there are no ranks any more


class Private(Momentum):
    def advance(self, parameter: Any, state: Any, group: dict[str, Any]) -> None:
        state.setdefault("speed", np.zeros_like(parameter))

    def update(self, parameters: Any, gradients: Any, states: Any, group: dict[str, Any], lr: float) -> None:
        for p, state in zip(parameters, states):
            self.advance(p, state, group)
        super().update(parameters, gradients, states, group, lr)


class Replacing(Optimizer):
    """Its rule puts new arrays into the state, which the other ranks would not see."""

    state_names = ("speed",)

    def rule(self, p: Any, g: Any, state: Any, settings: Any) -> None:
        state["speed"] = 0.9 * state["speed"] + g
        p -= settings.lr * state["speed"]


@pytest.mark.parametrize("kind", [Private, Replacing])
def test_a_state_that_is_not_in_shared_memory(kind: type[Optimizer]) -> None:
    both = case(lambda model: kind(model.parameters(), lr=0.01))()
    says = rf"^{kind.__name__}.advance must make .* by state.new\(name, like\), and steps must change them in place.*: speed$"
    with pytest.raises(TypeError, match=says):
        distributed.run(together, *both, range(STEPS), 1, workers=2)


class InPlace(Replacing):
    def rule(self, p: Any, g: Any, state: Any, settings: Any) -> None:
        state["speed"][...] = 0.9 * state["speed"] + g
        p -= settings.lr * state["speed"]


def test_a_rule_of_a_user_on_ranks() -> None:
    """The rule knows nothing of ranks, nor of masters."""
    expected, found = [case(lambda model: InPlace(model.parameters(), lr=0.01), "float16")() for _ in range(2)]
    alone(*expected, 2, range(STEPS))
    distributed.run(together, *found, range(STEPS), 1, workers=2)
    assert bits(*found) == bits(*expected)
