"""CuPy's functions: a table of what each takes, through which calls pass to NumPy's function of the same name."""

from __future__ import annotations

import functools
import inspect
import warnings

import ml_dtypes
import numpy

from ._array import computed, index_parts, launched, ndarray, numbers_in, numpys_index, operand, synchronize, uploads, wrap
from ._graphs import later


def _run(name, function, operands, out=None, **settings):
    """Call NumPy's function without warnings about 0/0, as on a GPU."""
    with numpy.errstate(all="ignore"):
        if out is None:
            empty = name.startswith("empty")
            return wrap(function(*operands, **settings) if empty else computed(name, function, operands, **settings))
        (target,) = out if isinstance(out, tuple) else (out,)
        to = operand(target, scalars=False)

        def compute(to, *operands):
            function(*operands, out=to, **settings)

        if not target.size or launched(name, lambda: later(compute, (to, *operands)), numbers_in((*operands, settings))):
            compute(to, *operands)
        return target


bfloat16 = numpy.dtype(ml_dtypes.bfloat16)

# ---------------------------------------------------------------------------------------------------------- ufuncs

UFUNCS = """
    absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_or bitwise_xor cbrt ceil copysign
    cos cosh divide equal exp exp2 expm1 fabs floor floor_divide fmax fmin greater greater_equal hypot invert isfinite isinf
    isnan left_shift less less_equal log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor maximum
    minimum multiply negative not_equal positive power reciprocal remainder right_shift rint sign signbit sin sinh
    sqrt square subtract tan tanh true_divide trunc
"""


class ufunc:
    """An elementwise function. ``add`` alone has a method, ``at``: few have ``reduceat``."""

    def __init__(self, name):
        self.__name__ = name
        self._host = getattr(numpy, name)

    def __call__(self, *args, out=None, dtype=None, casting="same_kind"):
        if len(args) == self._host.nin + 1:
            *args, out = args
        return _run(self.__name__, self._host, [operand(a) for a in args], out, dtype=dtype, casting=casting)


class _Add(ufunc):
    def at(self, a, slices, value):
        """a[slices] += value, where repeated indices add up. Integer indices need a dtype that the GPU adds atomically."""
        target, parts = operand(a, scalars=False), index_parts(slices)
        by_integers = any(isinstance(part, numpy.ndarray) and part.dtype != bool for part in parts)
        if by_integers and target.dtype not in ATOMIC:
            raise TypeError(f"Unsupported dtype {target.dtype}: add.at only adds floats, int32, uint32 and uint64")
        value = operand(value.astype(a.dtype) if isinstance(value, ndarray) else value)
        given = (target, parts, value)
        size = target[numpys_index(target, parts)].size
        if size and launched("add.at", lambda: later(_add_at, given), numbers_in((parts, value))):
            _add_at(*given)


def _add_at(target, parts, value):
    numpy.add.at(target, numpys_index(target, parts), value)


ATOMIC = (numpy.float16, numpy.float32, numpy.float64, numpy.int32, numpy.uint32, numpy.uint64)  # what the GPU can add so
ufuncs = {name: ufunc(name) for name in UFUNCS.split()} | {"add": _Add("add")}

# ------------------------------------------------------------------------------------------------------- functions

# Positional-only parameters are operands: those named here must be arrays, the others may be scalars.
ARRAYS = {"a", "b", "m", "array", "condition"}

TABLE = {
    "all any": lambda a, /, axis=None, out=None, keepdims=False: ...,
    "arange": lambda start, stop=None, step=1, dtype=None: ...,
    "argmax argmin": lambda a, /, axis=None, dtype=None, out=None, keepdims=False: ...,
    "argsort sort": lambda a, /, axis=-1, kind=None: ...,
    "ascontiguousarray": lambda a, /, dtype=None: ...,
    "broadcast_to": lambda array, /, shape: ...,
    "count_nonzero": lambda a, /, axis=None: ...,
    "cumprod": lambda a, /, axis=None, dtype=None, out=None: ...,
    "cumsum": lambda a, /, axis=None, dtype=None: ...,
    "diagonal": lambda a, /, offset=0, axis1=0, axis2=1: ...,
    "dot matmul": lambda a, b, /, out=None: ...,
    "empty ones zeros": lambda shape, dtype=float, order="C": ...,
    "empty_like ones_like zeros_like": lambda a, /, dtype=None: ...,
    "expand_dims": lambda a, /, axis: ...,
    "eye": lambda N, M=None, k=0, dtype=float: ...,
    "flatnonzero nonzero": lambda a, /: ...,
    "flip": lambda m, /, axis=None: ...,
    "full": lambda shape, fill_value, dtype=None: ...,
    "full_like": lambda a, fill_value, /, dtype=None: ...,
    "isclose": lambda a, b, /, rtol=1e-05, atol=1e-08, equal_nan=False: ...,
    "linspace": lambda start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0: ...,
    "max min": lambda a, /, axis=None, out=None, keepdims=False: ...,
    "mean prod sum": lambda a, /, axis=None, dtype=None, out=None, keepdims=False: ...,
    "moveaxis": lambda a, /, source, destination: ...,
    "pad": lambda array, /, pad_width, mode="constant", *, constant_values=0: ...,
    "ravel": lambda a, /, order="C": ...,
    "repeat": lambda a, /, repeats, axis=None: ...,
    "reshape": lambda a, /, newshape, order="C": ...,
    "round": lambda a, /, decimals=0, out=None: ...,
    "roll": lambda a, /, shift, axis=None: ...,
    "squeeze": lambda a, /, axis=None: ...,
    "std var": lambda a, /, axis=None, dtype=None, out=None, ddof=0, keepdims=False: ...,
    "swapaxes": lambda a, /, axis1, axis2: ...,
    "take": lambda a, indices, /, axis=None, out=None: ...,
    "tensordot": lambda a, b, /, axes=2: ...,
    "transpose": lambda a, /, axes=None: ...,
    "tril triu": lambda m, /, k=0: ...,
    "where": lambda condition, x, y, /: ...,
}


def _sorting(function):
    def run(a, axis=-1, kind=None):
        if kind not in (None, "stable"):
            raise ValueError("kind can only be None or 'stable'")
        if a.dtype.name == "bfloat16":
            raise NotImplementedError("Sorting arrays with dtype 'bfloat16' is not supported")
        return function(a, axis, kind="stable")

    return run


def _waiting(function):
    def run(a):
        synchronize()  # the size of the result depends on the values
        return function(a)

    return run


def _silent(function):
    def run(a, *args, **settings):
        if a.size:
            return function(a, *args, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of the mean of nothing
            return function(a, *args, **settings)

    return run


def _tree(function):
    """CuPy adds up in a tree along every axis, and loses nothing of a long float32 sum; NumPy along the last axis alone."""

    def run(a, axis=None, dtype=None, **settings):
        dtype = a.dtype if dtype is None else numpy.dtype(dtype)
        if dtype != "float32":
            return function(a, axis=axis, dtype=None if dtype == a.dtype else dtype, **settings)
        return numpy.asarray(function(a, axis=axis, dtype="float64", **settings)).astype(dtype)

    return run


def _product(function):
    def run(a, b, out=None):
        if a.dtype == b.dtype == bfloat16 and out is None:
            return function(a, b).astype(bfloat16)  # NumPy answers in float32
        return function(a, b, out)

    return run


def _where(condition, x, y):
    dtypes = {value.dtype for value in (x, y) if isinstance(value, (numpy.ndarray, numpy.generic))}
    if bfloat16 in dtypes:  # which CuPy's where does not know
        x, y = [value.astype("float32") if getattr(value, "dtype", None) == bfloat16 else value for value in (x, y)]
    return numpy.where(condition, x, y)


def _matmul(a, b, out=None):
    if a.ndim > 2 or b.ndim > 2:
        if "bfloat16" in (a.dtype.name, b.dtype.name):
            raise TypeError("CuPy crashes in a product of bfloat16 with more than 2 dimensions: use kernels.matmul")
        if a.dtype.kind == "f":
            raise TypeError("CuPy copies what is transposed in a batch, and has no TF32 for one: use kernels.matmul")
    return _product(numpy.matmul)(a, b, out)


# Where NumPy's function of that name would do something else.
def _take(a, indices, axis=None):
    """Indices out of range wrap around silently. NumPy's own "wrap" takes so long for large ones that it seems to hang, and
    those in the memory of a graph that has not run are the largest."""
    length = a.size if axis is None else a.shape[axis]
    return numpy.take(a, indices % length if length else indices, axis, mode="wrap")


SPECIAL = {
    "argsort": _sorting(numpy.argsort),
    "cumsum": _tree(numpy.cumsum),
    "dot": _product(numpy.dot),
    "flatnonzero": _waiting(numpy.flatnonzero),
    "matmul": _matmul,
    "mean": _silent(numpy.mean),
    "nonzero": _waiting(numpy.nonzero),
    "sort": _sorting(numpy.sort),
    "std": _silent(numpy.std),
    "sum": _tree(numpy.sum),
    "take": _take,
    "var": _silent(numpy.var),
    "where": _where,
}


def _checked(name, declaration):
    """The function that takes what the declaration says, and passes it on to NumPy."""
    kinds = [p.name in ARRAYS for p in inspect.signature(declaration).parameters.values() if p.kind is p.POSITIONAL_ONLY]
    host = SPECIAL.get(name) or getattr(numpy, name)

    def function(*args, **settings):
        declaration(*args, **settings)  # which raises TypeError for what it does not take
        hosts = [operand(value, scalars=not array) for value, array in zip(args, kinds)]
        result = _run(name, host, [*hosts, *args[len(kinds) :]], **settings)
        same = hosts and isinstance(result, ndarray) and result._host is hosts[0]
        return args[0] if same else result

    function.__name__ = name
    return function


functions = {name: _checked(name, declaration) for names, declaration in TABLE.items() for name in names.split()}


def clip(a, a_min, a_max, out=None):
    low, high = [bound if bound is None else operand(bound) for bound in (a_min, a_max)]
    return _run("clip", numpy.clip, [operand(a, scalars=False), low, high], out)


def concatenate(tup, axis=0):
    return _run("concatenate", numpy.concatenate, [[operand(a, scalars=False) for a in tup]], axis=axis)


def stack(tup, axis=0):
    return _run("stack", numpy.stack, [[operand(a, scalars=False) for a in tup]], axis=axis)


def einsum(subscripts, *operands, dtype=None, optimize=False):
    hosts = [operand(a, scalars=False) for a in operands]
    terms, _, output = subscripts.partition("->")
    summed_over = {letter for term in terms.split(",")[1:] for letter in term} - set(output)
    if summed_over and any(a.dtype.name == "bfloat16" for a in hosts):
        raise TypeError("CuPy crashes where einsum contracts arrays of bfloat16, as that is a batch of products")
    return _run("einsum", numpy.einsum, [subscripts, *hosts], dtype=dtype, optimize=optimize)


# ------------------------------------------------------------------------------------- the border with the host


def array(obj, dtype=None, copy=True, order="K", ndmin=0):
    """A new array: this, ``asarray`` and ``asnumpy`` are where NumPy arrays and lists may cross."""
    if isinstance(obj, ndarray):
        same = not copy and obj.dtype == (obj.dtype if dtype is None else numpy.dtype(dtype)) and obj.ndim >= ndmin
        made = functools.partial(numpy.array, dtype=dtype, order=order, ndmin=ndmin)
        return obj if same else wrap(computed("copy", made, [obj._host]))
    host = numpy.array(obj, dtype=dtype, order=order, ndmin=ndmin)
    if host.dtype.kind not in "biufc" and host.dtype != bfloat16:
        raise ValueError(f"Unsupported dtype {host.dtype}")
    uploads.append(host.nbytes)
    if host.size:
        launched("upload")
    return wrap(host)


def asarray(a, dtype=None, order="K"):
    return array(a, dtype, copy=False, order=order)


def asnumpy(a):
    return a.get() if isinstance(a, ndarray) else numpy.asarray(a)


# ------------------------------------------------------------------------------------------- methods and operators

METHODS = """
    all any argmax argmin argsort cumprod cumsum diagonal dot max mean min nonzero prod ravel repeat squeeze std sum
    swapaxes take var
"""

OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift",
    "rshift": "right_shift", "matmul": "matmul",
}  # fmt: skip

COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}


def _yields(other):
    """Whether the other operand's class asks to answer in CuPy's place."""
    if hasattr(other, "__array_ufunc__"):
        return other.__array_ufunc__ is None
    return getattr(other, "__array_priority__", 0) > ndarray.__array_priority__


def _operator(function):
    return lambda self, other: NotImplemented if _yields(other) else function(self, other)


def _array_ufunc(self, ufunc, method, *inputs, **settings):
    """``numpy.exp(x)``, and a NumPy scalar times x: CuPy's function of that name answers."""
    known = method == "__call__" and ufunc.__name__ in ufuncs
    return ufuncs[ufunc.__name__](*inputs, **settings) if known else NotImplemented


def _astype(self, dtype, order="K", casting="unsafe", copy=True):
    with numpy.errstate(all="ignore"):  # CuPy gives no warnings, as of NaN that becomes an integer
        host = computed("astype", lambda x: x.astype(dtype, order, casting, copy=copy), [self._host])
    return self if host is self._host else wrap(host)


def _reshape(self, *shape, order="C"):
    return wrap(computed("copy", lambda x: x.reshape(*shape, order=order), [self._host]))


def _give_methods():
    for name in METHODS.split():
        setattr(ndarray, name, functions[name])
    for name, called in OPERATORS.items():
        function = {**functions, **ufuncs}[called]
        setattr(ndarray, f"__{name}__", _operator(function))
        setattr(ndarray, f"__r{name}__", _operator(lambda self, other, function=function: function(other, self)))
        if name != "matmul":
            setattr(ndarray, f"__i{name}__", lambda self, other, function=function: function(self, other, out=self))
    for name, called in COMPARISONS.items():
        setattr(ndarray, f"__{name}__", _operator(ufuncs[called]))
    for name, called in {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}.items():
        setattr(ndarray, f"__{name}__", lambda self, function=ufuncs[called]: function(self))
    ndarray.__array_ufunc__ = _array_ufunc
    ndarray.astype = _astype
    ndarray.clip = lambda self, min=None, max=None, out=None: clip(self, min, max, out)
    ndarray.copy = lambda self, order="C": wrap(computed("copy", lambda x: x.copy(order), [self._host]))
    ndarray.fill = lambda self, value: self.__setitem__(Ellipsis, value)
    ndarray.flatten = lambda self, order="C": wrap(computed("copy", lambda x: x.flatten(order), [self._host]))
    ndarray.reshape = _reshape
    ndarray.transpose = lambda self, *axes: wrap(self._host.transpose(*axes))
    ndarray.view = lambda self, dtype=None: wrap(self._host.view(dtype or self.dtype))


_give_methods()
