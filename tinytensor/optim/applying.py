"""Code that applies an optimizer's rule, so that the rule itself is only the formula.

``update_all`` scales the gradients, divides the parameters among ranks and threads, and groups similar parameters. ``update``
steps one group with the rule's fused kernel, or else with the rule itself, using float32 copies of low-precision parameters.
Both record what a captured step repeats (see ``autograd/replaying.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from tinytensor import kernels, parallel
from tinytensor.autograd.engine import note_change
from tinytensor.autograd.replaying import current_step
from tinytensor.device.backend import no_warnings, xp
from tinytensor.kernels.numpy.optimizers import current
from tinytensor.nn.module import Parameter
from tinytensor.optim.fused import Arrays, States, fused_of
from tinytensor.optim.settings import settings_of
from tinytensor.optim.state import State, is_narrow
from tinytensor.parallel.shared import is_in_use, is_shared

if TYPE_CHECKING:
    from tinytensor.optim.optimizer import Optimizer


Update = tuple[Parameter, State, dict[str, Any], float]  # a parameter, its state, its group's settings, and its learning rate


class Ranks(Protocol):
    """The interface of ``distributed.Communicator`` that a step uses."""

    rank: int
    size: int
    shares_memory: bool

    def barrier(self) -> None: ...


def update_all(optimizer: Optimizer, updates: Sequence[Update], threads: int, ranks: Ranks | None, gradient_scale: Any) -> None:
    """Update all these parameters. See ``Optimizer.step`` for the arguments."""
    step = current_step()
    if step.is_captured:
        step.before_replays(_changes_since(optimizer, updates))
    if gradient_scale is not None:
        unscaled = [p for p, _, group, _ in updates if group["gradient_scale"] is None]
        scale_gradients([p.grad.data for p in unscaled if p.grad is not None], gradient_scale)
    of_threads, of_other_ranks = _of_ranks(list(updates), threads, ranks)
    parallel.call_together([partial(_update_part, optimizer, part) for part in of_threads])
    for p, state, group, _ in of_other_ranks:  # other ranks compute the values of these arrays
        if is_narrow(p):
            state.add_master(p.data)
        optimizer.advance(p.data, state, group)
    if ranks is not None and ranks.shares_memory:
        for _, state, *_ in updates:
            _check_shared(optimizer, state)
        ranks.barrier()
    step.repeat(partial(_note_changes, updates))  # not in the threads: they would wait for each other


def _of_ranks(updates: list[Update], threads: int, ranks: Ranks | None) -> tuple[list[list[Update]], list[Update]]:
    """Return this rank's updates (one list per thread) and the updates of other ranks."""
    if ranks is None and any(is_in_use(parameter.data) for parameter, *_ in updates):
        raise RuntimeError(
            "ranks share the memory of these parameters, and each would update all of them: call step(ranks=ranks)"
        )
    if ranks is None or not ranks.shares_memory:
        return _divided(updates, threads), []
    for_all: list[Update] = []
    for_rank_0: list[Update] = []
    to_divide: list[Update] = []
    for update in updates:
        parameter, state, *_ = update
        if state.is_shared and not is_shared(parameter.data):
            raise RuntimeError(
                f"a parameter of shape {parameter.shape} was replaced after ranks began to share its memory: change it in "
                "place (`p.data[...] = values`), on rank 0 alone, and then call ranks.broadcast([p.data])"
            )
        if not is_shared(parameter.data):
            for_all.append(update)
        elif state.is_shared:
            to_divide.append(update)
        else:
            for_rank_0.append(update)
    parts = _divided(to_divide, ranks.size)  # first among ranks: their thread counts may differ
    of_rank = parts.pop(ranks.rank) + for_all + (for_rank_0 if ranks.rank == 0 else [])
    return _divided(of_rank, threads), [*itertools.chain(*parts), *(for_rank_0 if ranks.rank else [])]


def _divided(updates: Sequence[Update], parts: int) -> list[list[Update]]:
    """Divide the updates into parts of nearly equal total size."""
    divided: list[list[Update]] = [[] for _ in range(parts)]
    sizes = [0] * parts
    for update in sorted(updates, key=lambda update: update[0].size, reverse=True):
        least = sizes.index(min(sizes))
        divided[least].append(update)
        sizes[least] += update[0].size
    return divided


def scale_gradients(gradients: Arrays, scale: Any) -> None:
    """Multiply gradients in place. An array that two parameters share is multiplied only once."""
    with no_warnings():
        kernels.scale_all(list({id(g): g for g in gradients}.values()), scale)
    for gradient in gradients:
        note_change(gradient)


def _update_part(optimizer: Optimizer, updates: Sequence[Update]) -> None:
    """Update the parameters, calling ``update`` once for each combination of group, dtype and state."""
    alike: dict[Any, list[Update]] = {}
    for update in updates:
        p, state, group, _ = update
        alike.setdefault((id(group), p.data.dtype.num, state.get("steps"), *sorted(state)), []).append(update)
    for members in alike.values():
        parameters, states, (group, *_), (lr, *_) = zip(*members)
        if is_narrow(parameters[0]):
            for p, state in zip(parameters, states):
                if state.add_master(p.data):
                    state["master"][...] = p.data
        with no_warnings():
            gradients = [-p.grad.data if group.get("maximize") else p.grad.data for p in parameters]
            optimizer.update([p.data for p in parameters], gradients, states, group, lr)


def update(
    optimizer: Optimizer, parameters: Arrays, gradients: Arrays, states: States, group: dict[str, Any], lr: float
) -> None:
    """Update parameters of one group. See ``Optimizer.update`` for the arguments."""

    def advance() -> None:
        for parameter, state in zip(parameters, states):
            optimizer.advance(parameter, state, group)

    is_first = not states[0].keys() >= set(optimizer.names_of_state(group))
    step = current_step()
    step.repeat(advance)
    t = step.changing(lambda: states[0].get("steps", 0))
    settings = SimpleNamespace(**{**group, "lr": lr, "t": t, "is_first": is_first})
    rule = optimizer.rule_for(group)
    if fused := fused_of(rule, group):
        fused.step(optimizer, parameters, gradients, states, settings)
        return
    for parameter, gradient, state in zip(parameters, gradients, states):
        p = current(state["master"], parameter) if "master" in state else parameter
        if p.size:
            rule(p, gradient.astype(p.dtype, copy=False), state, settings)
        if p is not parameter:
            parameter[...] = p.astype(parameter.dtype)


def _check_shared(optimizer: Optimizer, state: State) -> None:
    """Raise TypeError if a shared state contains an array that only this rank can see."""
    private = [name for name, value in state.items() if isinstance(value, xp.ndarray) and not is_shared(value)]
    if state.is_shared and private:
        raise TypeError(
            f"{type(optimizer).__name__}.advance must make the state's arrays by state.new(name, like), and steps must change "
            f"them in place, as other ranks need them, too: name them in state_names: {', '.join(private)}"
        )


def _changes_since(optimizer: Optimizer, updates: Sequence[Update]) -> Callable[[], str]:
    """Return a function that describes later changes that a captured step would miss: replaced arrays of parameters or state,
    and settings other than the learning rate. It returns "" if there are no such changes."""
    parameters, state = [(p, p.data) for p, *_ in updates], optimizer.state
    settings = [_fixed_settings(group) for group in optimizer.param_groups]

    def changed() -> str:
        if any(p.data is not array for p, array in parameters):
            return "a parameter was replaced"
        if optimizer.state is not state:
            return "another state of the optimizer was loaded"
        is_same = [_fixed_settings(group) for group in optimizer.param_groups] == settings
        return "" if is_same else "a setting of the optimizer was changed that is not the learning rate"

    return changed


def _fixed_settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group that a replay does not reread."""
    return {name: value for name, value in settings_of(group).items() if name != "lr"}


def _note_changes(updates: Sequence[Update]) -> None:
    for p, *_ in updates:
        note_change(p.data)
