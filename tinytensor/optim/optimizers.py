"""SGD, Adam and AdamW over groups of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tinytensor import kernels, parallel
from tinytensor.backend import default_dtype, xp
from tinytensor.nn.module import Parameter
from tinytensor.tensor import Tensor

Arrays = Sequence[Any]
States = Sequence[dict[str, Any]]


class Optimizer:
    """The base: parameter groups, each a dict of its ``params`` and settings, and an array or two of state a parameter.

    ``parameters`` is an iterable of parameters, or of such dicts, whose settings come before the optimizer's own.

    A parameter narrower than float32 has in its state a float32 "master" of its values, which the steps change and round to
    the parameter. Whatever else writes to the parameter (load_state_dict, an initialiser) is noticed at the next step: there
    the master starts again from it, but for the elements to which it still rounds.
    """

    state_names: tuple[str, ...] = ()

    def __init__(self, parameters: Iterable[Parameter] | Iterable[dict[str, Any]], **defaults: Any):
        given: list[Any] = list(parameters)
        if not given:
            raise ValueError(f"{type(self).__name__} got no parameters: pass model.parameters()")
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        self.param_groups: list[dict[str, Any]] = [{**defaults, **g, "params": list(g["params"])} for g in groups]
        self.state: list[dict[str, Any]] = [{} for _ in self._parameters()]
        self._check(defaults)

    def _check(self, defaults: Mapping[str, Any]) -> None:
        parameters = self._parameters()
        if any(not isinstance(p, Tensor) or not p.requires_grad for p in parameters):
            raise TypeError(f"{type(self).__name__} needs parameters that require gradients")
        if len({id(p) for p in parameters}) < len(parameters):
            raise ValueError(f"{type(self).__name__}: a parameter stands twice in its groups")
        for group in self.param_groups:
            if strange := [name for name in group if name not in defaults and name != "params"]:
                raise ValueError(f"{type(self).__name__} has no setting {', '.join(strange)}")
            if group["lr"] < 0 or group["weight_decay"] < 0:
                raise ValueError(f"lr and weight_decay must not be negative: {group['lr']}, {group['weight_decay']}")

    def _parameters(self) -> list[Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for p in self._parameters():
            p.grad = None

    def step(self, scale: float = 1.0, threads: int = 1) -> None:
        """Change every parameter that has a gradient. ``scale`` multiplies the learning rates: a schedule's value. The
        parameters are shared out among so many ``threads``, which changes nothing but the time it takes."""
        states = iter(self.state)
        updates = [(p, next(states), group, group["lr"] * scale) for group in self.param_groups for p in group["params"]]
        shares: list[list[Any]] = [[] for _ in range(threads)]
        sizes = [0] * threads
        for update in sorted(updates, key=lambda update: update[0].size, reverse=True):
            least = sizes.index(min(sizes))
            shares[least].append(update)
            sizes[least] += update[0].size
        parallel.call_together([partial(self._update_all, share) for share in shares])

    def _update_all(self, updates: list[Any]) -> None:
        """Change the parameters, in as few calls of ``update`` as their groups, dtypes and states allow."""
        alike: dict[Any, list[Any]] = {}
        for p, state, group, lr in updates:
            if p.grad is not None:
                kind = (id(group), p.data.dtype.num, state.get("steps"), *sorted(state))
                alike.setdefault(kind, []).append((p, state, group, lr))
        for members in alike.values():
            parameters, states, (group, *_), (lr, *_) = zip(*members)
            if _is_narrow(parameters[0]):
                for p, state in zip(parameters, states):
                    if "master" not in state:
                        state["master"] = p.data.astype(default_dtype)
            self.update([p.data for p in parameters], [p.grad.data for p in parameters], states, group, lr)
            for p in parameters:
                p.node.version += 1

    def update(self, parameters: Arrays, gradients: Arrays, states: States, group: dict[str, Any], lr: float) -> None:
        """Change these parameters' arrays in place. All are of one group and dtype, with the same names and count in their
        states. Every optimizer writes its own."""
        raise TypeError(f"{type(self).__name__} has no update method: write one")

    # ------------------------------------------------------------------------------------------ saving and loading

    def state_dict(self) -> dict[str, Tensor]:
        """The state's arrays and counts, by the number of their parameter and their name: "0.first"."""
        return {f"{i}.{name}": Tensor._wrap(xp.asarray(value)) for i, s in enumerate(self.state) for name, value in s.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state_dict`` returned. Raises ValueError where it is another optimizer's or model's. A narrow
        parameter's state may lack the master, as that of a float32 run does: it starts from the parameter."""
        parameters = self._parameters()
        loaded: list[dict[str, Any]] = [{} for _ in parameters]
        for key, value in state.items():
            place, _, name = key.partition(".")
            fits = place.isdigit() and int(place) < len(parameters)
            known = (*self.state_names, "master") if fits and _is_narrow(parameters[int(place)]) else self.state_names
            if not fits or name not in known or value.shape != (() if name == "steps" else parameters[int(place)].shape):
                raise ValueError(f"the state's {key!r} of shape {value.shape} does not fit this {type(self).__name__}")
            parameter = parameters[int(place)]
            dtype = default_dtype if _is_narrow(parameter) else parameter.dtype  # that of a run with this model
            loaded[int(place)][name] = value.item() if name == "steps" else value.data.astype(dtype)
        for i, found in enumerate(loaded):
            if found.keys() - {"master"} and (missing := [n for n in self.state_names if n not in found]):
                raise ValueError(f"the state lacks {', '.join(missing)} of parameter {i}, which {type(self).__name__} needs")
        self.state = loaded


def _is_narrow(parameter: Parameter) -> bool:
    return parameter.dtype.itemsize < default_dtype.itemsize


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as in PyTorch: v = momentum v + (1 - dampening) g, the first v being g."""

    state_names = ("velocity",)

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ):
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")
        settings = {"lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(parameters, **settings)

    def update(self, parameters: Arrays, gradients: Arrays, states: States, group: dict[str, Any], lr: float) -> None:
        """One step."""
        is_first = "velocity" not in states[0]
        if group["momentum"] and is_first:
            for parameter, state in zip(parameters, states):
                state["velocity"] = xp.empty_like(state.get("master", parameter))
        kernels.sgd_step(
            parameters,
            gradients,
            [state["velocity"] for state in states] if group["momentum"] else [],
            [state["master"] for state in states if "master" in state],
            is_first,
            lr,
            group["momentum"],
            group["dampening"],
            group["nesterov"],
            group["weight_decay"],
        )


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); ``weight_decay`` here adds to the gradient, as in PyTorch."""

    state_names = ("first", "second", "steps")
    decoupled = False

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas lie between 0 and 1: {betas}")
        super().__init__(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def update(self, parameters: Arrays, gradients: Arrays, states: States, group: dict[str, Any], lr: float) -> None:
        """One step."""
        for parameter, state in zip(parameters, states):
            if "steps" not in state:
                like = state.get("master", parameter)
                state.update(first=xp.zeros_like(like), second=xp.zeros_like(like), steps=0)
            state["steps"] += 1
        beta1, beta2 = group["betas"]
        kernels.adam_step(
            parameters,
            gradients,
            [state["first"] for state in states],
            [state["second"] for state in states],
            [state["master"] for state in states if "master" in state],
            states[0]["steps"],
            lr,
            beta1,
            beta2,
            group["eps"],
            group["weight_decay"],
            self.decoupled,
        )


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters directly (Loshchilov and Hutter 2019); 0.01 by default."""

    decoupled = True

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ):
        super().__init__(parameters, lr, betas, eps, weight_decay)
