"""cuBLASLt on plain memory: a library in C whose functions call those here, so that ctypes loads and calls it as the real one.

It checks the matrices' layouts, and multiplies as the fake CuPy's cuBLAS does. Where cuBLASLt returns a status, or notices
nothing, this returns a status, and ``cublasLtGetStatusString`` says why.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from types import SimpleNamespace

from ._raw import compiled

pointer, number, size, count = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int64
_C = {pointer: "void *", number: "int", size: "unsigned long long", count: "long long"}

# The attributes that are known, with their types: of a product, of a layout, and of preferences.
PRODUCT = {3: ctypes.c_int32, 4: ctypes.c_int32, 7: ctypes.c_uint32, 8: ctypes.c_void_p}
DEFAULT, BIAS = 1, 4  # epilogues
LAYOUT = {5: ctypes.c_int32, 6: ctypes.c_int64}
PREFERENCE = {1: ctypes.c_uint64, **dict.fromkeys((5, 6, 7, 8), ctypes.c_uint32)}

SUCCESS, INVALID_VALUE, NOT_SUPPORTED, EXECUTION_FAILED = 0, 7, 15, 13
HANDLE = 0xC0B1A5
_handles = itertools.count(0xDE5C0000, 16)
_described = {}  # what a handle stands for
_reason = ctypes.create_string_buffer(256)  # of the last refusal; C gets its address
calls = []  # for tests: the numbers of matrices of the products so far


class Refused(Exception):
    """A status, and why."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


def _check(holds, status, reason):
    if not holds:
        raise Refused(status, reason)


def _make(made, **what):
    handle = next(_handles)
    _described[handle] = SimpleNamespace(attributes={}, **what)
    ctypes.c_void_p.from_address(made).value = handle


def _get(handle, kind):
    found = _described.get(handle)
    _check(found is not None and found.kind == kind, INVALID_VALUE, f"{handle} is no handle of a {kind}")
    return found


def _create(made):
    ctypes.c_void_p.from_address(made).value = HANDLE


def _create_product(made, compute, factors):
    _make(made, kind="product", compute=compute, factors=factors)


def _create_layout(made, data_type, rows, columns, leading):
    from cupy_backends.cuda.libs import cublas  # which imports cupy

    _check(data_type in cublas.TYPES, NOT_SUPPORTED, f"the type {data_type}")
    _check(rows > 0 and columns > 0 and leading >= rows, INVALID_VALUE, f"{rows} rows, {columns} columns, {leading} apart")
    _make(made, kind="layout", data_type=data_type, rows=rows, columns=columns, leading=leading)


def _create_preference(made):
    _make(made, kind="preference")


def _setter(kind, known):
    def set_attribute(handle, attribute, value, length):
        described = _get(handle, kind)
        _check(attribute in known, NOT_SUPPORTED, f"the fake CuPy knows no attribute {attribute} of a {kind}")
        fits = length == ctypes.sizeof(known[attribute])
        _check(fits, INVALID_VALUE, f"attribute {attribute} of a {kind} in {length} bytes")
        described.attributes[attribute] = known[attribute].from_address(value).value

    return set_attribute


def _destroyer(kind):
    def destroy(handle):
        _get(handle, kind)
        del _described[handle]

    return destroy


def _key(product, layouts):
    attributes = {**product.attributes, 8: None}  # a bias may lie elsewhere
    return [product.compute, product.factors, attributes, [vars(layout) for layout in layouts]]


_algorithms = {}  # what each was found for, by its number


def _heuristic(handle, product, first, second, added, result, preference, wanted, found, returned):
    _check(handle == HANDLE, 1, "the handle")
    _check(wanted == 1, NOT_SUPPORTED, "the fake CuPy has a single algorithm")
    product, preference = _get(product, "product"), _get(preference, "preference")
    layouts = [_get(layout, "layout") for layout in (first, second, added, result)]
    _shapes(product, layouts)
    number_of_it = len(_algorithms) + 1
    _algorithms[number_of_it] = repr(_key(product, layouts)), dict(preference.attributes)
    ctypes.memset(found, 0, 96)
    ctypes.c_uint64.from_address(found).value = number_of_it
    ctypes.c_size_t.from_address(found + 64).value = preference.attributes.get(1, 0)
    ctypes.c_int.from_address(returned).value = 1


def _shapes(product, layouts):
    """Return the rows, columns and inner length of a product, if the shapes match."""
    from cupy_backends.cuda.libs import cublas

    first, second, added, result = layouts
    transposed = [product.attributes.get(attribute, 0) for attribute in (3, 4)]
    rows, summed = (first.columns, first.rows) if transposed[0] else (first.rows, first.columns)
    length, columns = (second.columns, second.rows) if transposed[1] else (second.rows, second.columns)
    _check(set(transposed) <= {0, 1}, INVALID_VALUE, f"the operations {transposed}")
    _check(length == summed, INVALID_VALUE, f"a product of {summed} columns and {length} rows")
    _check((result.rows, result.columns) == (rows, columns), INVALID_VALUE, f"a result of {result.rows} x {result.columns}")
    _check(vars(added) == vars(result), NOT_SUPPORTED, "what is added has another layout than the result")
    counts = {layout.attributes.get(5, 1) for layout in layouts}
    _check(len(counts) == 1, INVALID_VALUE, f"batches of {counts} matrices")
    kind, given, made = product.compute, first.data_type, result.data_type
    _check(given == second.data_type, NOT_SUPPORTED, "factors of two types")
    _check(kind in cublas.TYPES[given][1], NOT_SUPPORTED, f"the compute type {kind} for {given}")
    _check(made == given or (made == 0 and given in (2, 14)), NOT_SUPPORTED, f"a result of type {made} of {given}")
    epilogue, bias = product.attributes.get(7, DEFAULT), product.attributes.get(8)
    _check(epilogue in (DEFAULT, BIAS), NOT_SUPPORTED, f"the epilogue {epilogue}")
    _check(epilogue == DEFAULT or given != 1, NOT_SUPPORTED, "an epilogue in float64")
    _check(epilogue == DEFAULT or bias, INVALID_VALUE, "no address of the bias")
    _check(product.factors == (1 if given == 1 else 0), NOT_SUPPORTED, f"factors of the type {product.factors}")
    return rows, columns, summed, *counts


def _multiply(
    handle, product, one, a, first, b, second, before, c, added, d, result, algorithm, workspace, length, stream
):  # fmt: skip
    from cupy_backends.cuda.libs import cublas

    from . import _array, cuda

    _check(handle == HANDLE, 1, "the handle")
    _check((stream or 0) == cuda.get_current_stream().ptr, INVALID_VALUE, "another stream than the current one")
    product = _get(product, "product")
    layouts = [_get(layout, "layout") for layout in (first, second, added, result)]
    rows, columns, summed, matrices = _shapes(product, layouts)
    found_for, preferences = _algorithms.get(ctypes.c_uint64.from_address(algorithm).value, ("", {}))
    _check(found_for == repr(_key(product, layouts)), NOT_SUPPORTED, "an algorithm that was found for something else")
    for attribute, address in zip((5, 6, 7, 8), (a, b, c, d)):
        least = preferences.get(attribute, 256)
        _check(address and address % least == 0, NOT_SUPPORTED, f"an address that is no multiple of {least}, as was said")
    _check(c == d, NOT_SUPPORTED, "what is added lies elsewhere than the result")
    _check(length >= preferences.get(1, 0), INVALID_VALUE, f"a workspace of {length} bytes")
    inside = any(start <= workspace and workspace + length <= end for start, end, *_ in _array.here.handed_out)
    _check(inside, EXECUTION_FAILED, "a workspace beyond its array")
    steps = [layout.attributes.get(6, 0) for layout in layouts]
    (one_of, two_of, _, to), (transa, transb) = layouts, [product.attributes.get(attribute, 0) for attribute in (3, 4)]
    try:
        compute = cublas.product(
            cuda.HANDLE, transa, transb, rows, columns, summed, one, a, one_of.data_type, one_of.leading, steps[0],
            b, two_of.data_type, two_of.leading, steps[1], before, d, to.data_type, to.leading, steps[3], matrices,
            product.compute, cublas.CUBLAS_GEMM_DEFAULT, product.attributes.get(8) or 0,
        )  # fmt: skip
    except cublas.CUBLASError as error:
        raise Refused(INVALID_VALUE, str(error)) from None
    calls.append(matrices)
    if _array.launched("cublasLtMatmul", lambda: compute):
        compute()


FUNCTIONS = {
    "cublasLtCreate": (_create, [pointer]),
    "cublasLtMatmulDescCreate": (_create_product, [pointer, number, number]),
    "cublasLtMatmulDescSetAttribute": (_setter("product", PRODUCT), [pointer, number, pointer, size]),
    "cublasLtMatmulDescDestroy": (_destroyer("product"), [pointer]),
    "cublasLtMatrixLayoutCreate": (_create_layout, [pointer, number, size, size, count]),
    "cublasLtMatrixLayoutSetAttribute": (_setter("layout", LAYOUT), [pointer, number, pointer, size]),
    "cublasLtMatrixLayoutDestroy": (_destroyer("layout"), [pointer]),
    "cublasLtMatmulPreferenceCreate": (_create_preference, [pointer]),
    "cublasLtMatmulPreferenceSetAttribute": (_setter("preference", PREFERENCE), [pointer, number, pointer, size]),
    "cublasLtMatmulPreferenceDestroy": (_destroyer("preference"), [pointer]),
    "cublasLtMatmulAlgoGetHeuristic": (_heuristic, [*[pointer] * 7, number, pointer, pointer]),
    "cublasLtMatmul": (_multiply, [*[pointer] * 14, size, pointer]),
}


def _answering(function):
    """The function with a status for C: no exception may leave it."""

    def answer(*arguments):
        try:
            function(*arguments)
        except Refused as refused:
            _reason.value = str(refused).encode()[:200]
            return refused.status
        except Exception as error:  # a fault of the fake CuPy; ctypes would only print it
            _reason.value = f"{type(error).__name__}: {error}".encode()[:200]
            return EXECUTION_FAILED
        return SUCCESS

    return answer


def _source():
    """C: each function passes its arguments on to the address that ``on_...`` holds."""
    lines = ['extern "C" {', "const char *reason;", "const char *cublasLtGetStatusString(int) { return reason; }"]
    for name, (_, types) in FUNCTIONS.items():
        given = ", ".join(f"{_C[kind]} x{i}" for i, kind in enumerate(types))
        passed = ", ".join(f"x{i}" for i in range(len(types)))
        lines += [f"int (*on_{name})({given});", f"int {name}({given}) {{ return on_{name}({passed}); }}"]
    return "\n".join([*lines, "}"])


@functools.cache
def library_path():
    """Where the library is, once its functions lead here."""
    path = compiled(_source(), ("-shared", "-fPIC", "-O1", "-w"))
    library = ctypes.CDLL(str(path))
    ctypes.c_void_p.in_dll(library, "reason").value = ctypes.addressof(_reason)
    for name, (function, types) in FUNCTIONS.items():
        callback = ctypes.CFUNCTYPE(ctypes.c_int, *types)(_answering(function))
        _kept.append(callback)
        ctypes.c_void_p.in_dll(library, f"on_{name}").value = ctypes.cast(callback, ctypes.c_void_p).value
    return str(path)


_kept = []  # the callbacks and with them what C may call
