"""The base of optimizers: groups of parameters, their states, steps, saving and loading."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, SupportsFloat

from tinytensor.autograd.replaying import current_step
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked, shown
from tinytensor.device.backend import host, is_floating, no_warnings, xp
from tinytensor.nn.leaves import clear_gradients
from tinytensor.nn.module import Parameter
from tinytensor.nn.state import check_state
from tinytensor.optim import applying
from tinytensor.optim.dividing import Ranks, Update
from tinytensor.optim.fused import Arrays, Rule, States, fused_of
from tinytensor.optim.settings import CHECKS, check_count, plain, settings_of
from tinytensor.optim.state import State, is_narrow, state_dtype


def tensors_in(caller: str, given: Any) -> list[Any]:
    """One tensor, or an iterable of tensors, as a list. Raises TypeError for anything else, also for a set, whose order is not
    fixed, and for a dict, of which it would take the names."""
    if isinstance(given, Tensor):
        return [given]
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, (Set, Mapping, str)) else [given]
    for x in several:
        if not isinstance(x, Tensor):
            raise TypeError(f"{caller} needs parameters, as a list or model.parameters(), not {shown(x)}")
    return several


class Optimizer:
    """The base of optimizers. It has groups of parameters, and a state for each parameter.

    A group is a dict of its parameters (``params``) and its settings. With the setting ``maximize`` steps go up along the
    gradients, not down. The argument ``parameters`` is an iterable of parameters,
    or a list of groups, whose settings override the optimizer's. Frozen parameters (``p.requires_grad = False``) may be among
    them, and any may be frozen later. They do not change until they require gradients again.

    A parameter narrower than float32 has a float32 copy in its state, its "master". A step changes the master and rounds it
    to the parameter. If something else has written to the parameter (load_state_dict, an initialiser), the next step notices:
    it takes those elements of the master from the parameter that do not round to it.

    A subclass defines ``rule``, and names the arrays of its state in ``state_names``:

    >>> class Momentum(tt.optim.Optimizer):
    ...     state_names = ("velocity",)
    ...
    ...     def rule(self, p, g, state, settings):
    ...         v = state["velocity"]
    ...         v[...] = settings.momentum * v + g
    ...         p -= settings.lr * v
    >>> optimizer = Momentum([tt.nn.Parameter([1.0])], lr=0.1, momentum=0.9)
    """

    state_names: tuple[str, ...] = ()
    checks = CHECKS  # of settings, by name: they raise TypeError or ValueError

    def rule(self, p: Any, g: Any, state: State, settings: Any) -> None:
        """Take one step with a parameter ``p`` and its gradient ``g``: change ``p`` and the arrays in ``state`` in place.

        ``p`` and ``g`` have one shape and dtype, float32 or float64: of a low-precision parameter, ``p`` is the master. The
        arrays of the state have that shape and dtype, too, and are zeros at first. ``settings`` has the group's settings as
        attributes; ``settings.lr`` is the learning rate of this step. If "steps" is among the ``state_names``, ``settings.t``
        counts the parameter's steps from 1. ``settings.is_first`` is True at the first step with this state.
        """
        raise TypeError(f"{type(self).__name__} has no rule method: write one")

    def rule_for(self, group: Mapping[str, Any]) -> Rule:
        """The rule for the parameters of a group, where an optimizer has several."""
        return self.rule

    def __init__(self, parameters: Iterable[Tensor | dict[str, Any]], **defaults: Any):
        self._defaults = defaults
        self._checked: list[dict[str, Any]] = []  # the settings of each group that the last step has checked
        self.param_groups: list[dict[str, Any]] = []
        self.state: list[State] = []
        for group in self._given_groups(parameters):
            self.add_param_group(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add a group: its parameters under "params", and settings that override the optimizer's. It is checked first."""
        added = self._group(group)
        self._check_parameters(added["params"])
        self.check_group(added)
        self.param_groups.append(added)
        self.state += [State() for _ in added["params"]]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises AttributeError for a setting, which would be without effect."""
        if name == "learning_rate" or (name != "lr" and name in vars(self).get("_defaults", ())):
            where = "it is lr" if name == "learning_rate" else f"set it in its groups, as param_groups[0][{name!r}] = {value!r}"
            raise AttributeError(f"{name} is no attribute of {type(self).__name__}: {where}")
        object.__setattr__(self, name, value)

    @property
    def lr(self) -> Any:
        """The learning rate, of all groups. Setting it sets it for all. Raises ValueError if they have several."""
        rates = [group["lr"] for group in self.param_groups]
        if any(rate != rates[0] for rate in rates):
            raise ValueError(f"the groups have several learning rates, {rates}: read those of optimizer.param_groups")
        return rates[0]

    @lr.setter
    def lr(self, rate: Any) -> None:
        for group in self.param_groups:
            self.check({**settings_of(group), "lr": plain(rate)})
        for group in self.param_groups:
            group["lr"] = rate

    def _given_groups(self, parameters: Any) -> list[Any]:
        """The groups that the user gave, or one group of all parameters."""
        if isinstance(parameters, Tensor):
            raise TypeError(f"{type(self).__name__} takes several parameters, not a single one: pass model.parameters() or [p]")
        given = list(parameters) if isinstance(parameters, Iterator) else parameters
        if isinstance(given, (list, tuple)) and not given:
            raise ValueError(f"{type(self).__name__} got no parameters: pass model.parameters()")
        return list(given) if isinstance(given, (list, tuple)) and isinstance(given[0], dict) else [{"params": given}]

    def _group(self, given: Any) -> dict[str, Any]:
        """The group with all settings, and with its parameters in a list. Raises ValueError for an unknown setting."""
        if not isinstance(given, dict) or "params" not in given:
            raise ValueError(f"{type(self).__name__}: each group must be a dict with its parameters under 'params'")
        self._check_names(name for name in given if name != "params")
        return {**self._defaults, **given, "params": tensors_in(type(self).__name__, given["params"])}

    def _check_parameters(self, added: Sequence[Parameter]) -> None:
        for p in added:
            if p.node is not None and p.node.op is not None:
                raise ValueError(
                    f"{type(self).__name__} got a tensor that {p.node.op.name!r} computed, and no step would change it: "
                    "pass the parameters that it was computed from, or nn.Parameter(...) of it"
                )
            if not isinstance(p, Parameter) and not p.requires_grad:
                raise TypeError(f"{type(self).__name__} got a constant: make it nn.Parameter(...), or let it require gradients")
        parameters = [*self.parameters(), *added]
        if len({id(p) for p in parameters}) < len(parameters):
            raise ValueError(f"{type(self).__name__}: a parameter occurs twice in its groups")

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a group that is added is not valid."""
        self.check(settings_of(group))

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a setting of a group is not valid."""
        for name, check in self.checks.items():
            if name in settings:
                check(name, settings[name])

    def parameters(self) -> list[Parameter]:
        """The parameters of all groups, in the order of ``state``."""
        return [p for group in self.param_groups for p in group["params"]]

    @checked
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or with False make them zeros."""
        clear_gradients(self.parameters(), set_to_none)

    def step(
        self, scale: SupportsFloat = 1.0, threads: int = 1, ranks: Ranks | None = None, gradient_scale: Any = None
    ) -> None:
        """Change every parameter that has a gradient and is not frozen.

        ``scale``, at least 0, multiplies the learning rates; a schedule gives it. The parameters are divided among so many
        ``threads``, and among ``ranks`` that share their memory. That changes only the time that a step takes.

        ``gradient_scale``, an array of one element as ``norm_and_scale`` gives it, multiplies the gradients. Some optimizers
        leave the gradients as they are and multiply what they read; the others multiply them in place.

        Ranks that share the parameters but not their states, as when each has made an optimizer of its own, leave those
        parameters to rank 0, whose states are then complete.
        """
        check_count("threads", threads, least=1)
        states = iter(self.state)
        updates: list[Update] = []
        for group, settings in zip(self.param_groups, self._checked_settings()):
            settings["gradient_scale"] = gradient_scale if self._reads_gradient_scale(settings) else None
            lr = current_step().changing(partial(_learning_rate, group, scale))
            updates += [(p, state, settings, lr) for p, state in zip(group["params"], states) if _learns(p)]
        applying.take_step(self, updates, threads, ranks, gradient_scale)

    def _checked_settings(self) -> list[dict[str, Any]]:
        """The settings of each group. Raises ValueError or TypeError if one of them was set to what is not valid."""
        found = [settings_of(group) for group in self.param_groups]
        if found != self._checked:
            for settings in found:
                self._check_names(settings)
                self.check(settings)
            self._checked = [dict(settings) for settings in found]
        return found

    def _check_names(self, settings: Iterable[Any]) -> None:
        if unknown := [name for name in settings if name not in self._defaults]:
            raise ValueError(f"{type(self).__name__} has no setting {', '.join(map(str, unknown))}")

    def advance(self, parameter: Any, state: State, group: dict[str, Any]) -> None:
        """Prepare the state of one parameter for its next step: add the arrays that it lacks, and count the step.

        ``update`` calls this for each of its parameters. For those that another rank updates, only this is called. Arrays
        made by ``state.new``, under one of the ``state_names``, are the same memory on all ranks of a machine.
        """
        names = self.names_of_state(group)
        for name in names:
            if name not in state:
                state[name] = 0 if name == "steps" else state.new(name, state.get("master", parameter))
        if "steps" in names:
            state["steps"] += 1

    @property
    def advances_all(self) -> bool:
        """Whether ``advance`` prepares all that ``update`` needs, so that any rank can update any parameter.

        It does not where a class changes ``update`` alone. Then rank 0, which keeps the state, updates all shared parameters.
        """
        changes = next(vars(kind) for kind in type(self).__mro__ if vars(kind).keys() & {"advance", "update"})
        return "advance" in changes

    def _reads_gradient_scale(self, group: Mapping[str, Any]) -> bool:
        """Whether steps of a group multiply its gradients by the scale themselves. An ``update`` of a user does not."""
        fused = fused_of(self.rule_for(group), group)
        return type(self).update is Optimizer.update and fused is not None and fused.reads_gradient_scale

    def names_of_state(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of what the state of each parameter of a group has after a step: of all groups the ``state_names``, unless
        an optimizer treats some otherwise."""
        return self.state_names

    def array_names(self) -> list[list[str]]:
        """For each parameter the names of the arrays that its state may have."""
        names: list[list[str]] = []
        for group in self.param_groups:
            arrays = [name for name in self.names_of_state(group) if name != "steps"]
            names += [["master", *arrays] if is_narrow(p) else arrays for p in group["params"]]
        return names

    def update(self, parameters: Arrays, gradients: Arrays, states: States, group: dict[str, Any], lr: float) -> None:
        """Change these arrays of parameters in place: apply the rule to each of them.

        All parameters are of one group and one dtype, and their states have the same names and the same number of steps.
        """
        applying.update(self, parameters, gradients, states, group, lr)

    # ------------------------------------------------------------------------------------------ saving and loading

    def state_dict(self, copy: bool = True) -> dict[str, Tensor]:
        """The state of each parameter and the settings of each group, by number and name, as in "0.first" and "groups.0.lr".

        Later steps do not change it. Without ``copy`` they do, as its arrays are the optimizer's own. That saves the memory
        where the state is written to a file at once.
        """
        # What a setting needed that has changed since, such as a momentum, is left out, as ``load_state_dict`` would refuse it.
        known = [{"steps", *names} for names in self.array_names()]
        values = {f"{i}.{n}": value for i, s in enumerate(self.state) for n, value in s.items() if n in known[i]}
        for i, group in enumerate(self.param_groups):
            values |= {f"groups.{i}.{name}": value for name, value in settings_of(group).items()}
        array = xp.array if copy else xp.asarray
        return {key: Tensor._wrap(array(value)) for key, value in values.items()}

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a copy of what ``state_dict`` returned, as tensors or arrays, with the settings of the groups if it has them.

        Raises ValueError or TypeError, before anything is changed, if the state belongs to another optimizer or model. The
        master of a narrow parameter may be missing, as in the state of a float32 run; it then starts from the parameter.
        """
        check_state(state)
        state = {key: value if isinstance(value, Tensor) else Tensor(value) for key, value in state.items()}
        settings = self._loaded_settings({key: value for key, value in state.items() if key.startswith("groups.")})
        with no_warnings():
            self.state = self._loaded_state(
                {key: value for key, value in state.items() if not key.startswith("groups.")}, settings
            )
        for group, found in zip(self.param_groups, settings):
            group.update(found)

    def _loaded_settings(self, state: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """The settings of each group in a loaded state."""
        own = [settings_of(group) for group in self.param_groups]
        loaded: list[dict[str, Any]] = [{} for _ in own]
        for key, value in state.items():
            place, _, name = key.removeprefix("groups.").partition(".")
            fits = place in map(str, range(len(own))) and name in own[int(place)]
            if not fits or value.shape != host.shape(own[int(place)][name]):
                raise ValueError(f"the state's {key!r} of shape {value.shape} does not fit this {type(self).__name__}")
            loaded[int(place)][name] = tuple(value.tolist()) if value.ndim else value.item()
        if any(loaded) and not all(loaded):
            raise ValueError(f"the state has fewer groups than this {type(self).__name__}, which has {len(own)}")
        for mine, found in zip(own, loaded):
            self.check({**mine, **found})
        return loaded

    def _loaded_state(self, state: Mapping[str, Tensor], settings: Sequence[Mapping[str, Any]]) -> list[State]:
        """The arrays and the number of steps of each parameter in a loaded state, which was made with these settings."""
        parameters, groups = self.parameters(), [{**group, **found} for group, found in zip(self.param_groups, settings)]
        places = set(map(str, range(len(parameters))))
        names = [set(self.names_of_state(group)) for group in groups for _ in group["params"]]
        loaded = [State() for _ in parameters]
        for key, value in state.items():
            place, _, name = key.partition(".")
            known = place in places and (name in names[int(place)] or (name == "master" and is_narrow(parameters[int(place)])))
            if not known or value.shape != (() if name == "steps" else parameters[int(place)].shape):
                raise ValueError(f"the state's {key!r} of shape {value.shape} does not fit this {type(self).__name__}")
            if name != "steps" and not is_floating(value.dtype):
                raise ValueError(f"the state's {key!r} has {value.dtype} values instead of floating-point ones")
            parameter = parameters[int(place)]
            dtype = state_dtype(parameter)  # as in a run with this model
            loaded[int(place)][name] = _steps(value.item()) if name == "steps" else value.data.astype(dtype)
        for i, found in enumerate(loaded):
            if found.keys() - {"master"} and (missing := sorted(names[i] - found.keys())):
                raise ValueError(f"the state lacks {', '.join(missing)} of parameter {i}, which {type(self).__name__} needs")
        return loaded


def _steps(count: float) -> int:
    """The number of steps in a loaded state, which may be a whole float, as PyTorch's is."""
    if not (0 <= count < 2**63 and count == int(count)):
        raise ValueError(f"the state's number of steps must be whole and not negative, not {count}")
    return int(count)


def _learning_rate(group: Mapping[str, Any], scale: SupportsFloat) -> float:
    if not 0.0 <= float(scale) < math.inf:
        raise ValueError(f"step: scale must be a finite number of at least 0, got {float(scale)}")
    rate: float = plain(group["lr"]) * float(scale)
    return rate


def _learns(parameter: Parameter) -> bool:
    return parameter.requires_grad and parameter.grad is not None
