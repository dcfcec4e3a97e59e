"""Operators and methods of tensors. Ops depend on the Tensor class, so this file adds them to it.

The methods are listed at the end of the class. Some ops are functions only: ops on lists of tensors (``concatenate``,
``einsum``, ...), ops that have an operator (``==``, ``&``, ...), the ``logical_`` ops, ``where``, ``scatter``, ``sum_rows``,
``diag``, ``embedding``, ``linear``, ``tensordot``, ``gelu``, ``arctan2``, ``diff`` and similar ops, and all of functional/.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from tinytensor import ops
from tinytensor.autograd.engine import note_change
from tinytensor.autograd.inputs import as_array, check_fits
from tinytensor.autograd.modes import modes
from tinytensor.autograd.replaying import read_values
from tinytensor.autograd.tensor import Tensor
from tinytensor.device.backend import Array, host, is_floating, is_host_array, no_warnings, xp

Self = TypeVar("Self", bound=Tensor)


class Methods:
    """The operators and methods of ``Tensor``. Type checkers see this class as the base of ``Tensor``."""

    # ------------------------------------------------------------------------------------------------------ indexing

    def __getitem__(self: Tensor, index: Any) -> Tensor:
        return ops.indexing._getitem(self, ops.indexing.as_index(index))

    def __setitem__(self: Tensor, index: Any, value: Any) -> None:
        if self.node is not None and (modes().recording or self.node.op is not None):
            raise RuntimeError(
                "x[i] = y would lose the gradients that flow through x: build the result with tt.where or tt.concatenate "
                "(or change a leaf under tt.no_grad())"
            )
        if modes().recording and _requires_grad(value):
            raise RuntimeError(
                "x[i] = y would lose the gradient of y, which requires gradients: build the result with tt.where or "
                "tt.concatenate, or assign y.detach()"
            )
        is_unshared = self.node is not None or (xp is host and self._data.base is None and sys.getrefcount(self._data) == 2)
        changed = self._data if is_unshared else self._data.copy()  # a view, tensor or graph may refer to the array
        read_values((self._data, index, value))
        value = value.item() if isinstance(value, host.generic) else value
        if type(value) in (bool, int, float):
            check_fits(value, self.dtype)
            values = value
        else:
            values = as_array(value, self.dtype)
        with no_warnings():
            changed[ops.indexing.as_index(index)] = values
        if self.node is None:
            self._data = changed
        else:
            note_change(changed)

    # ----------------------------------------------------------------------------------------------------- operators

    def __add__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.add(self, other)

    def __radd__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.add(other, self)

    def __sub__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.subtract(self, other)

    def __rsub__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.subtract(other, self)

    def __mul__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.multiply(self, other)

    def __rmul__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.multiply(other, self)

    def __truediv__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.divide(self, other)

    def __rtruediv__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.divide(other, self)

    def __floordiv__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.floor_divide(self, other)

    def __rfloordiv__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.floor_divide(other, self)

    def __mod__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.remainder(self, other)

    def __rmod__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.remainder(other, self)

    def __pow__(self: Tensor, other: Tensor | float) -> Tensor:
        special = {2: ops.square, 0.5: ops.sqrt, -0.5: ops.rsqrt}.get(other) if isinstance(other, (int, float)) else None
        if special is None or (other == 2 and isinstance(other, float) and not is_floating(self.dtype)):
            return ops.power(self, other)  # an integer to the power 2.0 is floating-point
        return special(self)

    def __rpow__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.power(other, self)

    def __matmul__(self: Tensor, other: Tensor) -> Tensor:
        return ops.matmul(self, other)

    def __rmatmul__(self: Tensor, other: Tensor) -> Tensor:
        return ops.matmul(other, self)

    def __neg__(self: Tensor) -> Tensor:
        return ops.negative(self)

    def __pos__(self: Tensor) -> Tensor:
        return self.copy()

    def __abs__(self: Tensor) -> Tensor:
        return ops.abs(self)

    def __round__(self: Tensor, decimals: int | None = None) -> Tensor:
        return ops.round(self, 0 if decimals is None else decimals)

    def __floor__(self: Tensor) -> Tensor:
        return ops.floor(self)

    def __ceil__(self: Tensor) -> Tensor:
        return ops.ceil(self)

    def __trunc__(self: Tensor) -> Tensor:
        return ops.trunc(self)

    def __eq__(self: Tensor, other: Any) -> Tensor:  # type: ignore[override]
        return NotImplemented if other is None else ops.equal(self, other)

    def __ne__(self: Tensor, other: Any) -> Tensor:  # type: ignore[override]
        return NotImplemented if other is None else ops.not_equal(self, other)

    def __lt__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.less(self, other)

    def __le__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.less_equal(self, other)

    def __gt__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.greater(self, other)

    def __ge__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.greater_equal(self, other)

    def __and__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.bitwise_and(self, other)

    def __or__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.bitwise_or(self, other)

    def __xor__(self: Tensor, other: Tensor | float) -> Tensor:
        return ops.bitwise_xor(self, other)

    def _changed(self: Tensor, result: Tensor, operator: str) -> Any:
        """Return the value of ``x += y``: the new tensor ``result``, which holds x + y.

        As in PyTorch, a leaf that requires gradients is instead changed in place if no graph is recorded.
        """
        if self.node is None or self.node.op is not None:
            return result
        if modes().recording:
            raise RuntimeError(
                f"x {operator} y would not change x, which requires gradients, but name another tensor x: put it under "
                f"tt.no_grad() to change x itself, or write x = x {operator[:-1]} y"
            )
        if result.shape != self.shape:
            raise ValueError(f"x {operator} y: values of shape {result.shape} do not fit x of shape {self.shape}")
        self._data[...] = read_values(result._data)
        note_change(self._data)
        return self

    def __iadd__(self: Self, other: Tensor | float) -> Self:
        return self._changed(ops.add(self, other), "+=")

    def __isub__(self: Self, other: Tensor | float) -> Self:
        return self._changed(ops.subtract(self, other), "-=")

    def __imul__(self: Self, other: Tensor | float) -> Self:
        return self._changed(ops.multiply(self, other), "*=")

    def __itruediv__(self: Self, other: Tensor | float) -> Self:
        return self._changed(ops.divide(self, other), "/=")

    def __ipow__(self: Self, other: Tensor | float) -> Self:
        return self._changed(self**other, "**=")

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self: Tensor) -> Tensor:
        return ops.invert(self)

    # -------------------------------------------------------------------------------------- the ops, as methods

    @property
    def T(self: Tensor) -> Tensor:
        """The tensor with its axes reversed."""
        return ops.transpose(self)

    def reshape(self: Tensor, *shape: Any) -> Tensor:
        """Return the same elements in another shape: ``x.reshape(2, 3)`` or ``x.reshape((2, 3))``."""
        return ops.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self: Tensor, *axes: Any) -> Tensor:
        """Permute the axes: ``x.transpose(0, 2, 1)`` or ``x.transpose((0, 2, 1))``. Without arguments, reverse them."""
        order: Sequence[int] | None = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return ops.transpose(self, order)

    add, subtract, multiply, divide, power = ops.add, ops.subtract, ops.multiply, ops.divide, ops.power
    negative, abs, sign, square, sqrt = ops.negative, ops.abs, ops.sign, ops.square, ops.sqrt
    rsqrt, reciprocal, exp, expm1, log, log1p = ops.rsqrt, ops.reciprocal, ops.exp, ops.expm1, ops.log, ops.log1p
    log2, log10, exp2, copy = ops.log2, ops.log10, ops.exp2, ops.copy
    floor, ceil, round, trunc = ops.floor, ops.ceil, ops.round, ops.trunc
    remainder, floor_divide, logaddexp = ops.remainder, ops.floor_divide, ops.logaddexp
    sin, cos, tanh, sigmoid, erf, clip = ops.sin, ops.cos, ops.tanh, ops.sigmoid, ops.erf, ops.clip
    tan, arcsin, arccos, arctan, sinh, cosh = ops.tan, ops.arcsin, ops.arccos, ops.arctan, ops.sinh, ops.cosh
    arcsinh, arccosh, arctanh = ops.arcsinh, ops.arccosh, ops.arctanh
    maximum, minimum, masked_fill = ops.maximum, ops.minimum, ops.masked_fill
    relu, leaky_relu, silu, softplus = ops.relu, ops.leaky_relu, ops.silu, ops.softplus
    elu, logsigmoid, glu = ops.elu, ops.logsigmoid, ops.glu
    softmax, log_softmax = ops.softmax, ops.log_softmax
    sum, mean, std, var, prod = ops.sum, ops.mean, ops.std, ops.var, ops.prod
    max, min, argmax, argmin = ops.max, ops.min, ops.argmax, ops.argmin
    logsumexp, norm, cumsum, any, all = ops.logsumexp, ops.norm, ops.cumsum, ops.any, ops.all
    swapaxes, moveaxis, squeeze, expand_dims = ops.swapaxes, ops.moveaxis, ops.squeeze, ops.expand_dims
    broadcast_to, split, flip, pad = ops.broadcast_to, ops.split, ops.flip, ops.pad
    repeat, tile, tril, triu, astype = ops.repeat, ops.tile, ops.tril, ops.triu, ops.astype
    take, take_along_axis, index_add = ops.take, ops.take_along_axis, ops.index_add
    sort, argsort, topk, one_hot = ops.sort, ops.argsort, ops.topk, ops.one_hot
    diagonal, roll, cumprod, cummax, cummin = ops.diagonal, ops.roll, ops.cumprod, ops.cummax, ops.cummin
    matmul, dot, outer, isnan, isfinite = ops.matmul, ops.dot, ops.outer, ops.isnan, ops.isfinite
    isinf, isclose, allclose = ops.isinf, ops.isclose, ops.allclose

    # ------------------------------------------------------------------------------------------ calls by NumPy

    def __array_ufunc__(self: Tensor, ufunc: Any, method: str, *operands: Any, **settings: Any) -> Any:
        """Handle np.exp(x), and operators whose left operand is a NumPy array or number."""
        if method == "__call__" and settings.keys() == {"out"} and isinstance(settings["out"][0], xp.ndarray):
            return _into_array(ufunc, operands, settings["out"][0])
        function = getattr(ops, ufunc.__name__, None)
        operands = tuple([x[()] if is_host_array(x) and x.ndim == 0 else x for x in operands])  # [()] converts it to a number
        if function and method == "__call__" and any(isinstance(x, host.generic) for x in operands):
            return function(*operands)
        raise _not_for_tensors(ufunc.__name__)

    def __array_function__(self: Tensor, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run or reject a NumPy function called on a tensor, such as np.sum(x).

        Only functions that need just the shape, and ``broadcast_arrays`` (which ``plt.bar`` calls), are allowed.
        """
        if function in (host.shape, host.ndim, host.size, host.broadcast_arrays):
            return function.__wrapped__(*args, **kwargs)
        raise _not_for_tensors(function.__name__)


def _into_array(ufunc: Any, operands: Sequence[Any], out: Array) -> Array:
    """Apply ``p.data -= x`` for a tensor x, changing the array in place. Raises TypeError if x requires gradients."""
    if any(_requires_grad(x) for x in operands):
        raise TypeError(f"{ufunc.__name__} into an array would lose the tensor's gradients: use x.detach(), or tt.no_grad()")
    ufunc(*[x._data if isinstance(x, Tensor) else x for x in operands], out=out)
    note_change(out)
    return out


def _not_for_tensors(name: str) -> TypeError:
    return TypeError(
        f"NumPy's {name} got a tensor: use tinytensor's functions and make arrays tensors with tt.tensor(...), "
        "or take the values out with .numpy()"
    )


def _requires_grad(value: Any) -> bool:
    """Return True for a tensor that requires gradients, or a nested list that contains one."""
    if isinstance(value, (list, tuple)):
        return any(_requires_grad(item) for item in value)
    return isinstance(value, Tensor) and value.node is not None


def _put_on_tensor() -> None:
    """Copy the contents of ``Methods`` to ``Tensor``, as if they were defined there."""

    class Empty:
        pass

    for name in vars(Methods).keys() - vars(Empty).keys() - {"__hash__"}:
        method = vars(Methods)[name]
        if getattr(method, "__qualname__", "").startswith("Methods."):
            method.__module__, method.__qualname__ = Tensor.__module__, f"Tensor.{name}"
        setattr(Tensor, name, method)


_put_on_tensor()
