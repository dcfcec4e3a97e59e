"""The base class of optimizers: parameter groups, states, steps, saving and loading."""

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
from tinytensor.optim.applying import Ranks, Update
from tinytensor.optim.fused import Arrays, Rule, States, fused_of
from tinytensor.optim.settings import CHECKS, check_count, plain, settings_of
from tinytensor.optim.state import State, is_narrow, state_dtype


def tensors_in(caller: str, parameters: Any) -> list[Any]:
    """Return a tensor or an iterable of tensors as a list. Raises TypeError for anything else, including dicts and (unordered)
    sets."""
    is_ordered = isinstance(parameters, Iterable) and not isinstance(parameters, (Tensor, Set, Mapping, str))
    tensors = list(parameters) if is_ordered else [parameters]
    for x in tensors:
        if not isinstance(x, Tensor):
            raise TypeError(f"{caller} needs parameters, as a list or model.parameters(), not {shown(x)}")
    return tensors


class Optimizer:
    """The base class of optimizers, with groups of parameters and a state for each parameter.

    A group is a dict with its parameters (``params``) and settings. ``maximize`` steps uphill along the gradients. The argument
    ``parameters`` is an iterable of parameters, or a list of groups whose settings override those of the optimizer. Frozen
    parameters (``p.requires_grad = False``) do not change until they require gradients again.

    The state of a low-precision parameter includes a float32 "master" copy. A step changes the master and rounds it to the
    parameter. If other code wrote to the parameter (load_state_dict, an initializer), the next step first updates the elements
    of the master that no longer round to the parameter.

    A subclass defines ``rule`` and lists the arrays of its state in ``state_names``:

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
    checks = CHECKS  # checks of settings, by name; they raise TypeError or ValueError

    def rule(self, p: Any, g: Any, state: State, settings: Any) -> None:
        """Update a parameter ``p`` from its gradient ``g``: change ``p`` and the arrays in ``state`` in place.

        ``p`` and ``g`` have the same shape and dtype, float32 or float64. For a low-precision parameter, ``p`` is its master.
        The arrays in the state share this shape and dtype and start at zero. ``settings`` holds the group's settings as
        attributes; ``settings.lr`` is the learning rate of this step. If ``state_names`` includes "steps", ``settings.t``
        counts the parameter's steps from 1. ``settings.is_first`` is True at the first step, if there is a state.
        """
        raise TypeError(f"{type(self).__name__} has no rule method: write one")

    def rule_for(self, group: Mapping[str, Any]) -> Rule:
        """Return the rule for a group. Optimizers with several rules override this method."""
        return self.rule

    def __init__(self, parameters: Iterable[Tensor | dict[str, Any]], **defaults: Any):
        self._defaults = defaults
        self._checked: list[dict[str, Any]] = []  # the most recently checked settings of each group
        self.param_groups: list[dict[str, Any]] = []
        self.state: list[State] = []
        for group in self._given_groups(parameters):
            self.add_param_group(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Check and add a group: parameters under "params", and settings that override those of the optimizer."""
        added = self._group(group)
        self._check_parameters(added["params"])
        self.check_group(added)
        self.param_groups.append(added)
        self.state += [State() for _ in added["params"]]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises AttributeError for a setting, because assigning it would have no effect."""
        if name == "learning_rate" or (name != "lr" and name in vars(self).get("_defaults", ())):
            where = "it is lr" if name == "learning_rate" else f"set it in its groups, as param_groups[0][{name!r}] = {value!r}"
            raise AttributeError(f"{name} is no attribute of {type(self).__name__}: {where}")
        object.__setattr__(self, name, value)

    @property
    def lr(self) -> Any:
        """The learning rate of all groups. Raises ValueError if the groups differ."""
        rates = [group["lr"] for group in self.param_groups]
        if any(rate != rates[0] for rate in rates):
            raise ValueError(f"the groups have several learning rates, {rates}: read them from optimizer.param_groups")
        return rates[0]

    @lr.setter
    def lr(self, rate: Any) -> None:
        for group in self.param_groups:
            self.check({**settings_of(group), "lr": plain(rate)})
        for group in self.param_groups:
            group["lr"] = rate

    def _given_groups(self, parameters: Any) -> list[Any]:
        """Return the user's groups, or one group of all parameters."""
        if isinstance(parameters, Tensor):
            raise TypeError(f"{type(self).__name__} takes several parameters, not a single one: pass model.parameters() or [p]")
        items = list(parameters) if isinstance(parameters, Iterator) else parameters
        if isinstance(items, (list, tuple)) and not items:
            raise ValueError(f"{type(self).__name__} got no parameters: pass model.parameters()")
        return list(items) if isinstance(items, (list, tuple)) and isinstance(items[0], dict) else [{"params": items}]

    def _group(self, group: Any) -> dict[str, Any]:
        """Return the group with all settings and with its parameters as a list. Raises ValueError for an unknown setting."""
        if not isinstance(group, dict) or "params" not in group:
            raise ValueError(f"{type(self).__name__}: each group must be a dict with its parameters under 'params'")
        self._check_names(name for name in group if name != "params")
        return {**self._defaults, **group, "params": tensors_in(type(self).__name__, group["params"])}

    def _check_parameters(self, added: Sequence[Parameter]) -> None:
        for p in added:
            if p.node is not None and p.node.op is not None:
                raise ValueError(
                    f"{type(self).__name__} got a tensor that {p.node.op.name!r} computed, which no step would change: "
                    "pass the parameters that it was computed from, or nn.Parameter(...) of it"
                )
            if not isinstance(p, Parameter) and not p.requires_grad:
                raise TypeError(f"{type(self).__name__} got a constant: make it nn.Parameter(...), or let it require gradients")
        parameters = [*self.parameters(), *added]
        if len({id(p) for p in parameters}) < len(parameters):
            raise ValueError(f"{type(self).__name__}: a parameter occurs twice in its groups")

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError for an invalid group."""
        self.check(settings_of(group))

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError for an invalid setting of a group."""
        for name, check in self.checks.items():
            if name in settings:
                check(name, settings[name])

    def parameters(self) -> list[Parameter]:
        """Return the parameters of all groups, in the order of ``state``."""
        return [p for group in self.param_groups for p in group["params"]]

    @checked
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None or, if ``set_to_none`` is False, to zeros."""
        clear_gradients(self.parameters(), set_to_none)

    def step(
        self, scale: SupportsFloat = 1.0, threads: int = 1, ranks: Ranks | None = None, gradient_scale: Any = None
    ) -> None:
        """Update every parameter that has a gradient and is not frozen.

        ``scale``, at least 0, multiplies the learning rates; schedules return it. ``threads``, and ``ranks`` that share memory,
        divide the parameters among themselves. This affects only the speed.

        ``gradient_scale``, a one-element array from ``norm_and_scale``, multiplies the gradients. Some optimizers scale them as
        they read them, others in place.

        If ranks share parameters but not states, as when each created its own optimizer, rank 0 updates these parameters, so
        that its states are complete.
        """
        check_count("threads", threads, least=1)
        if getattr(gradient_scale, "shape", ()):
            gradient_scale = gradient_scale.reshape(())  # a shape of (1,) would not match a parameter of shape ()
        states = iter(self.state)
        updates: list[Update] = []
        for group, settings in zip(self.param_groups, self._checked_settings()):
            settings["gradient_scale"] = gradient_scale if self._reads_gradient_scale(settings) else None
            lr = current_step().changing(partial(_learning_rate, group, scale))
            updates += [(p, state, settings, lr) for p, state in zip(group["params"], states) if _learns(p)]
        applying.update_all(self, updates, threads, ranks, gradient_scale)

    def _checked_settings(self) -> list[dict[str, Any]]:
        """Return the settings of each group. Raises ValueError or TypeError if a setting has an invalid value."""
        of_groups = [settings_of(group) for group in self.param_groups]
        if of_groups != self._checked:
            for group, settings in zip(self.param_groups, of_groups):
                self._check_names(settings)
                self.check_group(group)
            self._checked = [dict(settings) for settings in of_groups]
        return of_groups

    def _check_names(self, settings: Iterable[Any]) -> None:
        if unknown := [name for name in settings if name not in self._defaults]:
            raise ValueError(f"{type(self).__name__} has no setting {', '.join(map(str, unknown))}")

    def advance(self, parameter: Any, state: State, group: dict[str, Any]) -> None:
        """Prepare the state of one parameter for its next step: add missing arrays and count the step.

        ``update`` calls this method for its parameters. If another rank updates a parameter, only this method is called. Arrays
        from ``state.new`` under one of the ``state_names`` share memory across all ranks of a machine.
        """
        names = self.names_of_state(group)
        for name in names:
            if name not in state:
                state[name] = 0 if name == "steps" else state.new(name, state.get("master", parameter))
        if "steps" in names:
            state["steps"] += 1

    @property
    def advances_all(self) -> bool:
        """Return True if ``advance`` prepares everything that ``update`` needs, so that any rank can update any parameter.

        If a class overrides only ``update``, return False. Rank 0, which stores the state, then updates all shared parameters.
        """
        return "advance" in next(vars(base) for base in type(self).__mro__ if vars(base).keys() & {"advance", "update"})

    def _reads_gradient_scale(self, group: Mapping[str, Any]) -> bool:
        """Return True if steps of a group scale its gradients as they read them. A user-defined ``update`` does not."""
        fused = fused_of(self.rule_for(group), group)
        return type(self).update is Optimizer.update and fused is not None and fused.reads_gradient_scale

    def names_of_state(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names in the states of a group after a step: ``state_names``, unless an optimizer overrides this."""
        return self.state_names

    def array_names(self) -> list[list[str]]:
        """Return, for each parameter, the names of the arrays that its state may contain."""
        names: list[list[str]] = []
        for group in self.param_groups:
            arrays = [name for name in self.names_of_state(group) if name != "steps"]
            names += [["master", *arrays] if is_narrow(p) else arrays for p in group["params"]]
        return names

    def update(self, parameters: Arrays, gradients: Arrays, states: States, group: dict[str, Any], lr: float) -> None:
        """Apply the rule to these parameter arrays in place.

        The parameters belong to one group and have the same dtype. Their states have the same names and number of steps.
        """
        applying.update(self, parameters, gradients, states, group, lr)

    # ------------------------------------------------------------------------------------------ saving and loading

    def state_dict(self, copy: bool = True) -> dict[str, Tensor]:
        """Return each parameter's state and each group's settings by index and name, as in "0.first" and "groups.0.lr".

        ``copy=False`` saves memory when writing a file, but later steps change the returned arrays.
        """
        # Omit arrays that the settings no longer need, because ``load_state_dict`` would reject them.
        known = [{"steps", *names} for names in self.array_names()]
        values = {f"{i}.{n}": value for i, s in enumerate(self.state) for n, value in s.items() if n in known[i]}
        for i, group in enumerate(self.param_groups):
            values |= {f"groups.{i}.{name}": value for name, value in settings_of(group).items()}
        array = xp.array if copy else xp.asarray
        return {key: Tensor._wrap(array(value)) for key, value in values.items()}

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a copy of a ``state_dict()`` of tensors or arrays, including the settings of groups if present.

        Raises ValueError or TypeError, before any change, if the state belongs to another optimizer or model. If the master of
        a low-precision parameter is missing, as in the state of a float32 run, it starts from the parameter.
        """
        check_state(state)
        state = {key: value if isinstance(value, Tensor) else Tensor(value) for key, value in state.items()}
        settings = self._loaded_settings({key: value for key, value in state.items() if key.startswith("groups.")})
        with no_warnings():
            self.state = self._loaded_state(
                {key: value for key, value in state.items() if not key.startswith("groups.")}, settings
            )
        for group, loaded in zip(self.param_groups, settings):
            group.update(loaded)

    def _loaded_settings(self, state: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return the settings of each group from a loaded state."""
        current = [settings_of(group) for group in self.param_groups]
        loaded: list[dict[str, Any]] = [{} for _ in current]
        for key, value in state.items():
            number, _, name = key.removeprefix("groups.").partition(".")
            fits = number in map(str, range(len(current))) and name in current[int(number)]
            if not fits or value.shape != host.shape(current[int(number)][name]):
                raise ValueError(f"the state's {key!r} of shape {value.shape} does not fit this {type(self).__name__}")
            loaded[int(number)][name] = tuple(value.tolist()) if value.ndim else value.item()
        if any(loaded) and not all(loaded):
            raise ValueError(f"the state has fewer groups than this {type(self).__name__}, which has {len(current)}")
        for group, settings in zip(self.param_groups, loaded):
            self.check_group({**group, **settings})
        return loaded

    def _loaded_state(self, state: Mapping[str, Tensor], settings: Sequence[Mapping[str, Any]]) -> list[State]:
        """Return each parameter's arrays and number of steps from a state that was saved with these settings."""
        parameters, groups = self.parameters(), [{**group, **loaded} for group, loaded in zip(self.param_groups, settings)]
        numbers = set(map(str, range(len(parameters))))
        names = [set(self.names_of_state(group)) for group in groups for _ in group["params"]]
        states = [State() for _ in parameters]
        for key, value in state.items():
            number, _, name = key.partition(".")
            i = int(number) if number in numbers else -1
            is_known = i >= 0 and (name in names[i] or (name == "master" and is_narrow(parameters[i])))
            if not is_known or value.shape != (() if name == "steps" else parameters[i].shape):
                raise ValueError(f"the state's {key!r} of shape {value.shape} does not fit this {type(self).__name__}")
            if name != "steps" and not is_floating(value.dtype):
                raise ValueError(f"the state's {key!r} has {value.dtype} values instead of floating-point ones")
            states[i][name] = _steps(value.item()) if name == "steps" else value.data.astype(state_dtype(parameters[i]))
        for i, loaded in enumerate(states):
            if loaded.keys() - {"master"} and (missing := sorted(names[i] - loaded.keys())):
                raise ValueError(f"the state lacks {', '.join(missing)} of parameter {i}, which {type(self).__name__} needs")
        return states


def _steps(count: float) -> int:
    """Return the number of steps from a loaded state. PyTorch stores it as a float."""
    if not (0 <= count < 2**63 and count == int(count)):
        raise ValueError(f"the state's number of steps must be an integer of at least 0, got {count}")
    return int(count)


def _learning_rate(group: Mapping[str, Any], scale: SupportsFloat) -> float:
    if not 0.0 <= float(scale) < math.inf:
        raise ValueError(f"step: scale must be a finite number of at least 0, got {float(scale)}")
    rate: float = plain(group["lr"]) * float(scale)
    return rate


def _learns(parameter: Parameter) -> bool:
    return parameter.requires_grad and parameter.grad is not None
