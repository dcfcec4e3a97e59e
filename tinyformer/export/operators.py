"""The nodes for each op, in one table: ``OPERATORS``. For attention, see ``attention.py``.

A function here takes the writer and a call's arguments, and adds nodes. Ops outside the tables cannot be exported, but fused
ops are recorded as the ops of their reference implementation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinyformer.export.attention import ATTENTION
from tinyformer.export.graph import BOOL, DOUBLE, FLOAT, INT, Value
from tinyformer.export.program import Operators, Writer, dtype_of
from tinytensor import creation, functional, ops
from tinytensor.device.backend import host
from tinytensor.ops import activations, indexing, linear_algebra, reductions, running, shapes
from tinytensor.ops.shapes import normalize_axes
from tinytensor.replay.recording import RecordingError, Size

# ------------------------------------------------------------------------------------------------------- elementwise


def _function(operator: str, **attributes: Any) -> Callable[..., Value]:
    """Return a writer for a unary op with a matching ONNX operator."""
    return lambda write, x: write.cast(x, write.dtype).function(operator, **attributes)


def _arithmetic(operator: str, of_booleans: str = "") -> Callable[..., Value]:
    """Return a writer for a binary op on tensors or numbers, which are converted to the result dtype."""

    def write_op(write: Writer, x: Any, y: Any) -> Value:
        name = of_booleans or operator if write.dtype == BOOL else operator
        return write.graph.node(name, write.cast(x, write.dtype), write.cast(y, write.dtype))

    return write_op


def _comparison(operator: str) -> Callable[..., Value]:
    def write_op(write: Writer, x: Any, y: Any) -> Value:
        dtype = write.common(x, y)
        return write.graph.node(operator, write.cast(x, dtype), write.cast(y, dtype))

    return write_op


def _logical(operator: str) -> Callable[..., Value]:
    return lambda write, x, y: write.graph.node(operator, write.cast(x, BOOL), write.cast(y, BOOL))


def _remainder(write: Writer, x: Any, y: Any) -> Value:
    """Return a remainder with the sign of y. ONNX's Mod ensures this only for integers."""
    x, y = write.cast(x, write.dtype), write.cast(y, write.dtype)
    if write.dtype == INT:
        return write.graph.node("Mod", x, y)
    remainder, differs = _truncated_remainder(write, x, y)
    return write.graph.node("Where", differs, remainder + y, remainder)


def _truncated_remainder(write: Writer, x: Value, y: Value) -> tuple[Value, Value]:
    """Return the remainder with the sign of x, and where y has the other sign."""
    remainder = write.graph.node("Mod", x, y, fmod=1)
    return remainder, write.graph.node("Less", remainder.function("Sign") * y.function("Sign"), 0.0)


def _floor_divide(write: Writer, x: Any, y: Any) -> Value:
    """Divide after subtracting the remainder, as NumPy does. x / y may round up to an integer, as in 1 // 0.1."""
    x, y = write.cast(x, write.dtype), write.cast(y, write.dtype)
    if write.dtype == INT:
        return (x - _remainder(write, x, y)) / y
    node = write.graph.node
    remainder, differs = _truncated_remainder(write, x, y)
    quotient = ((x - remainder) / y).function("Round")
    return node("Where", node("Equal", y, 0.0), x / y, node("Where", differs, quotient - 1.0, quotient))


def _clip(write: Writer, x: Value, minimum: Any, maximum: Any) -> Value:
    x = write.cast(x, write.dtype)
    x = x if minimum is None else write.graph.node("Max", x, write.cast(minimum, write.dtype))
    return x if maximum is None else write.graph.node("Min", x, write.cast(maximum, write.dtype))


def _where(write: Writer, condition: Any, x: Any, y: Any) -> Value:
    node = write.graph.node
    condition, x, y = write.cast(condition, BOOL), write.cast(x, write.dtype), write.cast(y, write.dtype)
    if write.dtype == BOOL:  # onnxruntime's Where does not support booleans
        return node("Or", node("And", condition, x), node("And", condition.function("Not"), y))
    return node("Where", condition, x, y)


def _rounding(operator: str) -> Callable[..., Value]:
    """Return a writer for a rounding op. Integers are unchanged."""
    return lambda write, x: x if write.dtype == INT else x.function(operator)


def _round(write: Writer, x: Value, decimals: int) -> Value:
    if write.dtype == INT and decimals >= 0:
        return x
    factor = 10.0**decimals
    return (x * factor).function("Round") / factor if decimals else x.function("Round")


def _softplus(write: Writer, x: Value, beta: float) -> Value:
    return (write.cast(x, FLOAT) * beta).function("Softplus") / beta


def _silu(write: Writer, x: Value, factor: Value | None) -> Value:
    x = write.cast(x, write.dtype)
    out = x * x.function("Sigmoid")
    return out if factor is None else out * factor


ELEMENTWISE: Operators = {
    **{op: _function(operator) for op, operator in {
        ops.abs: "Abs", ops.arccos: "Acos", ops.arcsin: "Asin", ops.arctan: "Atan", ops.cos: "Cos", ops.cosh: "Cosh",
        ops.erf: "Erf", ops.exp: "Exp", ops.log: "Log", ops.negative: "Neg", ops.reciprocal: "Reciprocal", ops.relu: "Relu",
        ops.sigmoid: "Sigmoid", ops.sign: "Sign", ops.sin: "Sin", ops.sinh: "Sinh", ops.sqrt: "Sqrt", ops.tan: "Tan",
        ops.tanh: "Tanh",
    }.items()},
    **{op: _arithmetic(*operators) for op, operators in {
        ops.add: ("Add", "Or"), ops.subtract: ("Sub",), ops.multiply: ("Mul", "And"), ops.divide: ("Div",),
        ops.power: ("Pow",), ops.maximum: ("Max", "Or"), ops.minimum: ("Min", "And"), ops.bitwise_and: ("BitwiseAnd", "And"),
        ops.bitwise_or: ("BitwiseOr", "Or"), ops.bitwise_xor: ("BitwiseXor", "Xor"),
    }.items()},
    **{op: _comparison(operator) for op, operator in {
        ops.equal: "Equal", ops.less: "Less", ops.less_equal: "LessOrEqual", ops.greater: "Greater",
        ops.greater_equal: "GreaterOrEqual",
    }.items()},
    **{op: _logical(operator) for op, operator in {
        ops.logical_and: "And", ops.logical_or: "Or", ops.logical_xor: "Xor",
    }.items()},
    activations._gelu_exact: _function("Gelu", approximate="none"),
    activations._gelu_tanh: _function("Gelu", approximate="tanh"),
    activations._silu: _silu,
    activations._softplus: _softplus,
    ops.logsigmoid: lambda write, x: write.cast(x, FLOAT).function("Neg").function("Softplus").function("Neg"),
    ops.leaky_relu: lambda write, x, slope: write.cast(x, FLOAT).function("LeakyRelu", alpha=slope),
    ops.elu: lambda write, x, alpha: write.cast(x, FLOAT).function("Elu", alpha=alpha),
    ops.rsqrt: lambda write, x: write.cast(x, FLOAT).function("Sqrt").function("Reciprocal"),
    ops.square: lambda write, x: write.cast(x, write.dtype) * write.cast(x, write.dtype),
    ops.log2: lambda write, x: write.cast(x, FLOAT).function("Log") * (1 / math.log(2.0)),
    ops.log10: lambda write, x: write.cast(x, FLOAT).function("Log") * (1 / math.log(10.0)),
    ops.exp2: lambda write, x: write.graph.node("Pow", 2.0, write.cast(x, FLOAT)),
    ops.floor: _rounding("Floor"),
    ops.ceil: _rounding("Ceil"),
    ops.round: _round,
    ops.remainder: _remainder,
    ops.floor_divide: _floor_divide,
    ops.clip: _clip,
    ops.where: _where,
    ops.copy: lambda write, x: x,
    ops.astype: lambda write, x, dtype: write.cast(x, dtype_of(host.dtype(dtype))),
    ops.not_equal: lambda write, x, y: _comparison("Equal")(write, x, y).function("Not"),
    ops.logical_not: lambda write, x: write.cast(x, BOOL).function("Not"),
    ops.invert: lambda write, x: x.function("Not" if write.dtype == BOOL else "BitwiseNot"),
    ops.isnan: lambda write, x: write.cast(x, FLOAT).function("IsNaN"),
    ops.isinf: lambda write, x: write.cast(x, FLOAT).function("IsInf"),
    ops.isfinite: lambda write, x: write.graph.node("Less", write.cast(x, FLOAT).function("Abs"), math.inf),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ shapes


def _reshape(write: Writer, x: Value, shape: int | Sequence[int | Size]) -> Value:
    """Use 0 for an unchanged length and -1 for one unknown length, so that no node needs to compute the shape."""
    shape = write.shape
    short = [0 if isinstance(n, Size) and x.shape[axis : axis + 1] == (n,) else n for axis, n in enumerate(shape)]
    unknown = [axis for axis, n in enumerate(short) if isinstance(n, Size)]
    if 0 in shape or len(unknown) > 1:
        return write.graph.node("Reshape", x, write.as_shape(shape), allowzero=1)
    return x.reshape(*[-1 if axis in unknown else n for axis, n in enumerate(short)])


def _transpose(write: Writer, x: Value, axes: Sequence[int] | None) -> Value:
    return x.transpose(*(range(len(x.shape))[::-1] if axes is None else [a % len(x.shape) for a in axes]))


def _swapaxes(write: Writer, x: Value, axis1: int, axis2: int) -> Value:
    axes = [*range(len(x.shape))]
    axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    return x.transpose(*axes)


def _pad(write: Writer, x: Value, pairs: Any, constant: float) -> Value:
    counts = [before for before, _ in pairs] + [after for _, after in pairs]
    return write.graph.node("Pad", x, write.as_shape(counts), write.cast(constant, write.dtype))


def _full(write: Writer, shape: Any, value: Any, dtype: Any) -> Value:
    return write.graph.node("Expand", write.cast(value, write.dtype), write.as_shape(shape))


SHAPES: Operators = {
    ops.reshape: _reshape,
    ops.transpose: _transpose,
    ops.swapaxes: _swapaxes,
    ops.broadcast_to: lambda write, x, shape: write.graph.node("Expand", x, write.as_shape(write.shape)),
    shapes._concatenate: lambda write, arrays, axis: write.graph.concatenate(
        [write.cast(x, write.dtype) for x in arrays], axis=axis
    ),
    shapes._pad: _pad,
    creation.full: _full,
    creation.arange: lambda write, start, stop, dtype: write.cast(write.range(start, stop), write.dtype),
}


# ---------------------------------------------------------------------------------------------------------- indexing


def _getitem(write: Writer, x: Value, index: Any) -> Value:
    """Apply slices first, then numbers and tensors from last axis to first, then new axes."""
    parts = _part_of_each_axis(index, len(x.shape))
    on_axes = [part for part in parts if part is not None]
    arrays = [part for part in on_axes if isinstance(part, Value)]
    if any(isinstance(part, bool) or getattr(part, "dtype", "") == BOOL for part in parts):
        raise RecordingError("boolean indices are not supported: use where instead")
    if len(arrays) > 1:
        return _elements(write, x, parts, len(arrays))
    if arrays and any(isinstance(part, (int, Size)) for part in on_axes):
        raise RecordingError("an index with a number and a tensor is not supported: index twice")
    out = _sliced(write, x, [part if isinstance(part, slice) else slice(None) for part in on_axes])
    for axis, part in reversed([*enumerate(on_axes)]):
        if not isinstance(part, slice):
            out = out.take(part if isinstance(part, Value) else write.scalar(part), axis)
    new: list[int] = []
    axis = 0
    for part in parts:
        new += [axis] if part is None else []
        axis += len(part.shape) if isinstance(part, Value) else 0 if isinstance(part, (int, Size)) else 1
    return out.unsqueeze(*new) if new else out


def _part_of_each_axis(index: Any, ndim: int) -> list[Any]:
    """Return the index with one entry per axis, and None for new axes."""
    parts = [*index] if isinstance(index, list) else [index]
    missing = ndim - sum(part is not None and part is not Ellipsis for part in parts)
    ellipsis = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    return [*parts[:ellipsis], *[slice(None)] * missing, *parts[ellipsis + 1 :]]


def _sliced(write: Writer, x: Value, slices: Sequence[slice]) -> Value:
    cut = {axis: part for axis, part in enumerate(slices) if part not in (slice(None), slice(0, x.shape[axis]))}
    ends = [(part.step or 1, *_ends(part)) for part in cut.values()]
    columns = [write.as_shape([end[i] for end in ends]) for i in (1, 2)]
    return write.graph.node("Slice", x, *columns, [*cut], [step for step, *_ in ends]) if cut else x


def _ends(part: slice) -> tuple[Any, Any]:
    first, last = (0, 2**62) if (part.step or 1) > 0 else (2**62, -(2**62))
    return (first if part.start is None else part.start, last if part.stop is None else part.stop)


def _elements(write: Writer, x: Value, parts: Sequence[Any], count: int) -> Value:
    """Return x[rows, columns]: elements selected by tensors on the leading axes."""
    if not all(isinstance(part, Value) for part in parts[:count]) or any(part != slice(None) for part in parts[count:]):
        raise RecordingError("several tensors in an index must be on the first axes, with nothing after them")
    shape = write.as_shape(write.shape[: len(write.shape) - (len(parts) - count)])
    rows = [write.graph.node("Expand", part, shape).unsqueeze(-1) for part in parts[:count]]
    return write.graph.node("GatherND", x, write.graph.concatenate(rows, axis=-1))


INDEXING: Operators = {
    indexing._getitem: _getitem,
    indexing._embedding: lambda write, weight, ids: weight.take(ids),
    ops.one_hot: lambda write, ids, count: write.graph.node("OneHot", ids, write.scalar(count), [0.0, 1.0]),
}


# -------------------------------------------------------------------------------------------------------- reductions


def _axes(x: Value, axis: Any) -> list[int]:
    return [*normalize_axes(axis, len(x.shape))]


def _reduction(operator: str, dtype: str = "") -> Callable[..., Value]:
    """Return a writer for a reduction in the result dtype or another dtype."""

    def write_op(write: Writer, x: Value, axis: Any, keepdims: bool) -> Value:
        wide = write.cast(x, dtype or write.dtype)
        return _reduce(write, operator, wide, _axes(x, axis), keepdims)

    return write_op


def _reduce(write: Writer, operator: str, x: Value, axes: list[int], keepdims: bool) -> Value:
    """Reduce over the axes. If there are none, each element is reduced alone. (ONNX treats an empty list as all axes.)"""
    if not axes:
        return write.graph.node(operator, x.unsqueeze(-1), [-1], keepdims=0)
    return write.graph.node(operator, x, axes, keepdims=int(keepdims))


def _truth(operator: str) -> Callable[..., Value]:
    """Return a writer for ``any`` or ``all``: the maximum or minimum of 0 and 1."""
    reduce = _reduction(operator, INT)
    return lambda write, x, axis, keepdims: reduce(write, _known(x.astype(BOOL), BOOL, x.shape), axis, keepdims).astype(BOOL)


def _known(value: Value, dtype: str, shape: tuple[Any, ...]) -> Value:
    value.dtype, value.shape = dtype, shape
    return value


def _index_of(operator: str) -> Callable[..., Value]:
    """Return a writer for ``argmax`` or ``argmin``. If there is no axis, x is flattened."""

    def write_op(write: Writer, x: Value, axis: int | None, keepdims: bool) -> Value:
        wide = write.cast(x, FLOAT if x.dtype == FLOAT else DOUBLE)  # float64 holds all integers in use
        if axis is not None and x.shape:
            return wide.function(operator, axis=axis, keepdims=int(keepdims))
        return wide.reshape(-1).function(operator, axis=0, keepdims=0).reshape(*[1] * len(write.shape))

    return write_op


def _variance(write: Writer, x: Value, axis: Any, keepdims: bool, ddof: float) -> Value:
    x, axes = _known(write.cast(x, FLOAT), FLOAT, x.shape), _axes(x, axis)
    distance = x - _reduce(write, "ReduceMean", x, axes, True)
    out = _reduce(write, "ReduceMean", distance * distance, axes, keepdims)
    if not ddof:
        return out
    count = write.graph.node("ReduceProd", write.as_shape([x.shape[a] for a in axes]), [0], keepdims=0).astype(FLOAT)
    return out * count / (count - float(ddof))


REDUCTIONS: Operators = {
    **{op: _reduction(operator) for op, operator in {
        ops.sum: "ReduceSum", ops.mean: "ReduceMean", ops.max: "ReduceMax", ops.min: "ReduceMin",
        ops.logsumexp: "ReduceLogSumExp", reductions._norm: "ReduceL2",
    }.items()},
    reductions._prod: lambda write, x: write.graph.node("ReduceProd", write.cast(x, write.dtype), [-1], keepdims=0),
    ops.any: _truth("ReduceMax"),
    ops.all: _truth("ReduceMin"),
    ops.argmax: _index_of("ArgMax"),
    ops.argmin: _index_of("ArgMin"),
    ops.var: _variance,
    ops.std: lambda write, *arguments: _variance(write, *arguments).function("Sqrt"),
    ops.softmax: lambda write, x, axis: write.cast(x, FLOAT).function("Softmax", axis=axis),
    ops.log_softmax: lambda write, x, axis: write.cast(x, FLOAT).function("LogSoftmax", axis=axis),
    running._cumsum: lambda write, x, axis: write.graph.node("CumSum", write.cast(x, write.dtype), axis),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- products and norms


def _linear(write: Writer, x: Value, weight: Value, bias: Value | None) -> Value:
    y = x @ write.transposed(weight)
    return y if bias is None else y + bias


def _einsum(write: Writer, arrays: Sequence[Value], terms: Sequence[str], output: str) -> Value:
    operands = [write.cast(x, write.dtype) for x in arrays]
    return write.graph.node("Einsum", *operands, equation=f"{','.join(terms)}->{output}")


def _layer_norm(write: Writer, x: Value, weight: Value | None, bias: Value | None, eps: float) -> Value:
    x = write.cast(x, write.dtype)
    if weight is None:
        distance = x - x.mean()
        out = distance / ((distance * distance).mean() + eps).function("Sqrt")
        return out if bias is None else out + bias
    parameters = [weight] if bias is None else [weight, bias]
    return write.graph.node("LayerNormalization", x, *parameters, axis=-1, epsilon=eps)


PRODUCTS: Operators = {
    linear_algebra._matmul: _arithmetic("MatMul"),
    linear_algebra._inner: _arithmetic("MatMul"),
    linear_algebra._einsum: _einsum,
    ops.linear: _linear,
    functional.layer_norm: _layer_norm,
}

OPERATORS: Operators = {**ELEMENTWISE, **SHAPES, **INDEXING, **REDUCTIONS, **PRODUCTS, **ATTENTION}
