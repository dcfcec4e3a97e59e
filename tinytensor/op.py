"""What an operation is: a forward function on arrays, and one gradient rule for each of its inputs.

A rule's parameter NAMES say what it needs, and only that is saved: ``g`` (the incoming gradient), an input's name, ``out``,
``<input>_shape``, or one of the op's settings. A rule returns the gradient of its input: ``g`` itself, a view, or a new array,
of the input's shape or of one that broadcasting made of it. It may also return a saved array, which is then copied, as the
engine adds to gradients in place. No rule mentions broadcasting or dtypes: the engine undoes both in one place.

Rules are polymorphic. On an ordinary backward pass they are fed raw arrays and nothing is recorded; with
``create_graph=True`` they are fed tensors, and so record themselves: that gives derivatives of every order.

What happens when an op is called stands in calling.py.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tinytensor.backend import Array, default_dtype, is_array, is_floating, wide, xp
from tinytensor.calling import call, explain, wrap

if TYPE_CHECKING:
    from tinytensor.engine import Node

Function = TypeVar("Function", bound=Callable[..., Any])

all_ops: dict[str, Op] = {}


def op(*, floating: bool = False, several: bool = False, **rules: Callable[..., Any]) -> Callable[[Function], Function]:
    """Declare a function on arrays as a differentiable op on tensors: ``@op(x=lambda g, out: g * out)``.

    Each keyword is an input of the function and its gradient rule. Parameters without a rule are settings: they get no
    gradient. The result takes tensors, or, inside a rule on an ordinary backward pass, raw arrays. A ``floating`` op computes
    with floating-point numbers alone: integers and booleans reach its function as float32. The first argument of an op of
    ``several`` tensors is a sequence of them; its one rule returns a gradient for each.
    """

    def declare(forward: Function) -> Function:
        return cast(Function, Op(forward, rules, floating=floating, several=several))

    return declare


class Op:
    """A forward function and a gradient rule for each of its inputs; see ``op``."""

    def __init__(
        self,
        forward: Callable[..., Any],
        rules: dict[str, Callable[..., Any]],
        inputs: tuple[str, ...] = (),
        floating: bool = False,
        several: bool = False,
    ):
        functools.update_wrapper(self, forward)
        self.name = forward.__name__.lstrip("_")
        self.forward = forward
        self.floating = floating
        self.several = several
        self.rules = rules
        self.needs = {n: tuple(inspect.signature(rule).parameters) for n, rule in rules.items()}
        self.differentiable = bool(rules)
        parameters = inspect.signature(forward).parameters
        self.names = tuple(parameters)
        self.places = {name: place for place, name in enumerate(self.names)}
        self.required = [n for n, p in parameters.items() if p.default is p.empty]
        self.defaults = [None if p.default is p.empty else p.default for p in parameters.values()]
        self.inputs = inputs or tuple(n for n in self.names if n in rules) or tuple(self.required)
        self.input_places = [self.places[name] for name in self.inputs]
        self.setting_places = [place for name, place in self.places.items() if name not in self.inputs]
        self.nothing = (False,) * len(self.inputs)  # which gradients are needed where none is
        self._check_rules()
        all_ops[self.name] = self

    def _check_rules(self) -> None:
        known = {"g", "out", *self.names, *(f"{n}_shape" for n in self.names)}
        for name in self.rules:
            strange = [n for n in self.needs[name] if n not in known]
            if name not in self.names or strange:
                raise TypeError(f"{self.name}: the rule for {name!r} asks for {strange or name}, which the op does not have")

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """An op set on the Tensor class is a method."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return call(self, args, settings)

    def input_name(self, place: int) -> str:
        """What to call the input of that number in an error."""
        return f"operand {place}" if self.several else repr(self.inputs[place])

    # -- forward: what calling.py asks of an op, and a FusedOp answers in other ways

    def compute(self, arguments: list[Any], needed: Sequence[bool]) -> tuple[Any, Any]:
        """The output for arrays, and what else the gradients ``needed`` want saved: nothing, but for a fused op."""
        try:
            return self.forward(*arguments), None
        except (ValueError, IndexError, TypeError) as error:
            raise explain(self, arguments, error) from error

    def promoted(self, arrays: list[Any]) -> list[Any]:
        """Convert integer operands, where that must be: to the floating type of the others (NumPy would turn int64 and float32
        to float64), or to float32 where the op needs floating-point numbers, or a Python number is one."""
        dtypes = {x.dtype for x in arrays if hasattr(x, "dtype")}
        floating = [d for d in dtypes if is_floating(d)]
        if len(floating) == len(dtypes):
            return arrays
        if floating:
            dtype = functools.reduce(xp.promote_types, floating)
        elif self.floating or (self.differentiable and any(type(x) is float for x in arrays)):
            dtype = default_dtype
        else:
            return arrays
        return [x.astype(dtype) if hasattr(x, "dtype") and not is_floating(x.dtype) else x for x in arrays]

    def rounded(self, out: Array, arrays: Sequence[Any]) -> Array:
        """The output, in half precision if all floats that went in are: sums are computed in float32, and with a Python number
        the array packages compute bfloat16 in float32, too."""
        floating = {x.dtype for x in arrays if hasattr(x, "dtype") and is_floating(x.dtype)}
        if len(floating) != 1 or "dtype" in self.places or not is_floating(out.dtype):
            return out
        (dtype,) = floating
        return out if wide(dtype) is None else out.astype(dtype, copy=False)

    def saved(self, arguments: Sequence[Any], out: Array, residuals: Any, needed: tuple[bool, ...]) -> Any:
        """Only what the rules of the inputs that need a gradient name."""
        values = {}
        for name, place, of_shape in self._to_save(needed):
            values[name] = out if place is None else _shape_of(arguments[place]) if of_shape else arguments[place]
        return values

    @functools.lru_cache(maxsize=4096)  # noqa: B019 (ops live as long as the program)
    def _to_save(self, needed: tuple[bool, ...]) -> list[tuple[str, int | None, bool]]:
        """What those rules name, but for the gradient that comes in: its name, its place among the arguments (None: the output)
        and whether it is a shape."""
        rules = self.inputs if self.several else [name for name, wanted in zip(self.inputs, needed) if wanted]
        names = sorted({n for name in rules for n in self.needs[name]} - {"g"})
        return [
            (n, None, False) if n == "out" else (n, self.places[n.removesuffix("_shape")], n not in self.places) for n in names
        ]

    # -- backward

    def backward(self, node: Node, g: Any, create_graph: bool) -> Sequence[Any]:
        """The gradient for each of the node's parents; None where a parent is None."""
        saved = {**node.saved, "g": g}
        if create_graph:
            saved = self._as_tensors(node, saved)
        if self.several:
            (name,) = self.inputs
            gradients: Sequence[Any] = self.rules[name](*[saved[n] for n in self.needs[name]])
            if len(gradients) != len(node.parents):
                raise ValueError(
                    f"the gradient rule of {self.name!r} returned {len(gradients)} gradients: it has {len(node.parents)} "
                    "operands, each of which needs one (or None)"
                )
        else:
            gradients = [
                None if parent is None else self.rules[name](*[saved[n] for n in self.needs[name]])
                for name, parent in zip(self.inputs, node.parents)
            ]
        if create_graph:
            return gradients
        return _apart(gradients, g, [*saved.values(), *(saved.get(self.inputs[0], ()) if self.several else ())])

    def _as_tensors(self, node: Node, saved: dict[str, Any]) -> dict[str, Any]:
        """The saved arrays as tensors that know where they came from, so that the rules record themselves."""
        if "out" in saved:
            saved["out"] = wrap(saved["out"], node)
        if self.several:
            if self.inputs[0] in saved:
                saved[self.inputs[0]] = [wrap(a, p) for a, p in zip(saved[self.inputs[0]], node.parents)]
            return saved
        for name, parent in zip(self.inputs, node.parents):
            if name in saved and is_array(saved[name]):
                saved[name] = wrap(saved[name], parent)
        return saved


def _shape_of(value: Any) -> Any:
    return [v.shape for v in value] if isinstance(value, (tuple, list)) else getattr(value, "shape", ())


def _apart(gradients: Sequence[Any], g: Any, saved: Sequence[Any]) -> Sequence[Any]:
    """What rules returned, with copies in place of arrays that were saved, or returned twice: the engine adds to gradients in
    place, and knows by itself only that g, which many rules return as it is, belongs to another."""
    held = set(map(id, saved))
    apart = []
    for gradient in gradients:
        if gradient is not None and gradient is not g and id(gradient) in held and is_array(gradient):
            gradient = gradient.copy()
        held.add(id(gradient))
        apart.append(gradient)
    return apart
