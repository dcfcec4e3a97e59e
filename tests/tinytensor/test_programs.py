"""Random programs: each value against NumPy, gradients against differences, and what the engine promises about both.

``pytest tests/tinytensor/test_programs.py --programs 25000 --seed 1000`` runs more of them. A program that fails is made as
small as it will go, and printed as Python that can be run by itself.
"""

import re
from contextlib import suppress

import numpy as np
import pytest
from cases import FUNCTIONS
from programs.lines import LINES
from programs.program import Program, operands
from programs.reference import as_float64, in_numpy
from programs.writer import FLOATS, Writer

import tinytensor as tt

EPSILON = {dtype: float(np.finfo(dtype).eps) for dtype in FLOATS}
LENGTH = 12  # lines that are drawn for a program
BLOCKS = 20  # tests that share the programs


class Fault(AssertionError):
    """What a program does wrong."""


def drawn(number):
    """Every second program uses only float64, which differences need. The others mix floating-point types."""
    return Writer(number, ("float64",) if number % 2 else FLOATS).write(LENGTH)


def check(program):
    """Raise Fault if something is wrong. Return True if the gradients could be compared with differences."""
    try:
        check_values(program)
        check_contract(program)
        check_each_line_in_its_own_dtype(program)
        check_other_ways(program)
        check_differences_of_each_line(program)
        return check_differences(program)
    except Fault:
        raise
    except Exception as error:
        raise Fault(f"{type(error).__name__}: {error}") from error


def check_close(got, want, relative, absolute, what):
    """Raise Fault if an error is larger than ``absolute`` + ``relative`` times the largest element."""
    if got.shape != want.shape:
        raise Fault(f"{what} has shape {got.shape}, but {want.shape} is right")
    allowed = absolute + relative * largest([want], 0.0)
    if not (np.abs(got.astype(float) - want) <= allowed).all():
        raise Fault(f"{what} is {got.tolist()}, but {want.tolist()} is right (to {allowed:.2g})")


def largest(arrays, at_least=1.0):
    return max([np.abs(x.astype(float)).max(initial=at_least) for x in arrays], default=at_least)


def rounding(program, names):
    """The relative error of the narrowest floating-point type among the values named."""
    return max([EPSILON.get(program.dtypes[name], 0.0) for name in names])


# ---------------------------------------------------------------------------------------------------------------- values


def check_values(program):
    """Each line's result against NumPy's, of the same operands in float64: its shape, its dtype and its values."""
    values = program.run()
    for name, text in program.steps.items():
        given = {n: as_float64(values[n].numpy()) for n in operands(text)}
        want, got = in_numpy(text, given), values[name].numpy()
        if str(got.dtype) != program.dtypes[name]:
            raise Fault(f"{name} is {got.dtype}, but {program.dtypes[name]} is right")
        error = 64 * rounding(program, [*given, name]) if want.dtype.kind == "f" else 0.0
        check_close(got, want, error, error * largest(given.values()), name)


# ------------------------------------------------------------------------------------------------------------- gradients


def random_like(x, seed=1):
    return tt.tensor(np.random.default_rng(seed).standard_normal(x.shape).astype(str(x.dtype)))


def gradients(out, leaves, cotangent=None, **options):
    """The gradients by those leaves that require them. Zeros for a leaf that nothing depends on."""
    wanted = [x for x in leaves.values() if x.requires_grad]
    found = tt.grad(out, wanted, cotangent, allow_unused=True, **options) if out.requires_grad else [None] * len(wanted)
    return [tt.zeros_like(x) if g is None else g for g, x in zip(found, wanted)]


def dot(pairs):
    return sum(float((x.numpy() * y.numpy()).sum()) for x, y in pairs)


def check_differences(program):
    """First and second gradients along a random direction. Returns whether the first could be compared."""
    if (
        not all(x.dtype == "float64" for x in program.leaves.values() if x.dtype.kind == "f")
        or program.dtypes[program.out] != "float64"
    ):
        return False
    leaves = program.tensors()
    direction = [random_like(x, seed=2) for x in leaves.values() if x.requires_grad]
    out = program.run(leaves)[program.out]
    cotangent = random_like(out)
    seconds = [random_like(x, seed=3 + i) for i, x in enumerate(direction)]

    def value(at):
        with tt.no_grad():
            return dot([(program.run(at)[program.out], cotangent)])

    def slope(at):
        return dot(zip(gradients(program.run(at)[program.out], at, cotangent), seconds))

    first = gradients(out, leaves, cotangent, create_graph=True)
    if not agrees(dot(zip(first, direction)), value, leaves, direction, "the gradient"):
        return False
    total = sum([(g * c).sum() for g, c in zip(first, seconds)])
    agrees(dot(zip(gradients(total, leaves), direction)), slope, leaves, direction, "the second gradient")
    return True


def check_differences_of_each_line(program):
    """Check each line by itself, without the errors and the kinks of other lines."""
    values = program.run()
    for name, text in program.steps.items():
        if values[name].requires_grad:
            arrays = {n: values[n].numpy() for n in operands(text)}
            check_differences(Program(arrays, {name: text}, program.dtypes, name))


def agrees(got, f, leaves, direction, what):
    """Raise Fault unless ``got`` is f's derivative along the direction. False if that cannot be decided: near a kink or a
    jump the differences over two distances disagree with each other."""

    def moved(by):
        steps = iter(direction)
        return {
            n: tt.tensor(x.numpy() + by * next(steps).numpy(), requires_grad=True) if x.requires_grad else x
            for n, x in leaves.items()
        }

    h = 1e-4
    try:
        far_left, left, here, right, far_right = [f(moved(i * h)) for i in (-2, -1, 0, 1, 2)]
    except ValueError:  # a mask now selects another number of elements
        return False
    near, far = (right - left) / (2 * h), (far_right - far_left) / (4 * h)
    bend, far_bend = right - 2 * here + left, far_right - 2 * here + far_left
    scale = max(abs(near), 1.0)
    if not scale < 1e4 or abs(far - near) > 1e-5 * scale or abs(far_bend - 4 * bend) > 1e-9 * scale:
        return False
    want = (4 * near - far) / 3
    if not abs(got - want) <= 1e-5 * scale:
        raise Fault(f"{what} along a direction is {got:.8g}, but differences give {want:.8g}")
    return True


def check_each_line_in_its_own_dtype(program):
    """The gradients of each line alone, in its operands' dtypes, against those of the same numbers in float64."""
    values = program.run()
    if all(array.dtype == "float64" for array in program.leaves.values() if array.dtype.kind == "f"):
        return  # they are the same
    for name, text in program.steps.items():
        if not values[name].requires_grad:
            continue
        arrays = {n: values[n].numpy() for n in operands(text)}
        wide = {n: as_float64(x) for n, x in arrays.items()}
        cotangent = random_like(values[name]).numpy()
        own = gradients_of_line(name, text, arrays, cotangent)
        exact = gradients_of_line(name, re.sub(r"'float\d+'", "'float64'", text), wide, cotangent.astype("float64"))
        error = 64 * rounding(program, [*arrays, name])
        for i, (g, want) in enumerate(zip(own, exact)):
            check_close(g, want, error, error * largest(exact), f"gradient {i} of the line of {name}, alone,")


def gradients_of_line(name, text, arrays, cotangent):
    line = Program(arrays, {name: text}, {}, name)
    leaves = line.tensors()
    return [g.numpy() for g in gradients(line.run(leaves)[name], leaves, tt.tensor(cotangent))]


# -------------------------------------------------------------------------------------------------------- the contract


def check_contract(program):
    """Gradients fit their tensors and share no memory, nothing is mutated, and neither a graph of the gradient nor
    a second backward through a retained one changes it."""
    plain, recorded = [check_backward(program, create_graph) for create_graph in (False, True)]
    if plain.keys() != recorded.keys():
        raise Fault(f"gradients reach {[*plain]}, but with create_graph {[*recorded]}")
    error = 2000 * rounding(program, program.dtypes) * largest(plain.values())
    for name, g in plain.items():
        check_close(recorded[name], g.astype(float), 0.0, error, f"with create_graph the gradient of {name}")


def check_backward(program, create_graph):
    """The gradients that backward leaves in the leaves."""
    leaves = program.tensors()
    values = program.run(leaves)
    out = values[program.out]
    if not out.requires_grad:
        return {}
    values["the cotangent"] = cotangent = random_like(out)
    before = {name: x.numpy().copy() for name, x in values.items()}
    out.backward(cotangent, retain_graph=True, create_graph=create_graph)
    for name, x in values.items():
        if not np.array_equal(x.numpy(), before[name]):
            raise Fault(f"backward changes {name}")
    found = {name: x.grad.numpy() for name, x in leaves.items() if x.requires_grad and x.grad is not None}
    for name, g in found.items():
        if (g.shape, g.dtype) != (leaves[name].shape, leaves[name].dtype):
            raise Fault(f"the gradient of {name}, {leaves[name].dtype}{leaves[name].shape}, is {g.dtype}{g.shape}")
        check_memory(name, g, found, values, f" (create_graph={create_graph})")
    again = tt.grad(out, [leaves[name] for name in found], cotangent, retain_graph=True, create_graph=create_graph)
    for (name, g), other in zip(found.items(), again):
        if not np.array_equal(g, other.numpy()):
            raise Fault(f"a second backward gives {name} another gradient (create_graph={create_graph})")
    for name in found:
        leaves[name].grad = None  # with create_graph the gradient and its leaf hold each other
    return found


def check_memory(name, g, found, values, when):
    if not g.flags.writeable:
        raise Fault(f"the gradient of {name} is read-only{when}")
    others = {f"the gradient of {n}": x for n, x in found.items() if n != name} | {n: x.numpy() for n, x in values.items()}
    for other, x in others.items():
        if np.shares_memory(g, x):
            raise Fault(f"the gradient of {name} shares memory with {other}{when}")


# ------------------------------------------------------------------------------------------------- other ways to run it


def check_other_ways(program):
    """The program gives the same when it is traced, and inside of a checkpoint."""
    program = program.ending_at(program.out)
    error = 64 * rounding(program, program.dtypes)

    def function(*leaves):
        return program.run(dict(zip(program.leaves, leaves)))[program.out]

    leaves = program.tensors()
    out = function(*leaves.values())
    plain = gradients(out, leaves, random_like(out))
    kept = gradients(tt.checkpoint(function, *leaves.values()), leaves, random_like(out))
    for i, (g, other) in enumerate(zip(plain, kept)):
        allowed = error * largest([g.numpy()])
        check_close(other.numpy(), g.numpy().astype(float), 0.0, allowed, f"under a checkpoint gradient {i}")

    traced = tt.trace(function)
    try:
        traced(*leaves.values())
    except (RuntimeError, TypeError) as refusal:  # for random numbers, and for indices that are arrays
        if "trace" in str(refusal):
            return
        raise
    others = [x * 0.75 if x.dtype.kind == "f" else x for x in leaves.values()]
    with suppress(IndexError, ValueError):  # other elements may be selected, so shapes may not fit
        want = function(*others).numpy().astype(float)
        check_close(traced(*others).numpy(), want, 0.0, error * largest([want]), "traced, for other inputs, the result")


# ------------------------------------------------------------------------------------------------------------- the tests


def fault_of(program):
    try:
        check(program)
    except Fault as fault:
        return str(fault)
    return ""


def shrunk(program):
    """A smaller program that still fails. It ends earlier, and some lines are replaced by leaves."""
    made = program.run(as_far_as_it_goes=True)
    smaller = [program.ending_at(name) for name in program.steps if name != program.out]
    smaller += [
        program.with_leaf(name, made[name].numpy().copy()) for name in program.steps if name != program.out and name in made
    ]
    return next((shrunk(p) for p in smaller if len(p.steps) < len(program.steps) and fault_of(p)), program)


def reports(numbers):
    """For each program that fails: its fault, and the smallest version of the program."""
    for number in numbers:
        if fault_of(program := drawn(number)):
            small = shrunk(program)
            yield f"program {number}: {fault_of(small)}\n{small}"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs(block, pytestconfig):
    count, seed = pytestconfig.getoption("programs"), pytestconfig.getoption("seed")
    numbers = range(seed + count * block // BLOCKS, seed + count * (block + 1) // BLOCKS)
    found = list(reports(numbers))
    assert not found, f"{len(found)} of {len(numbers)} programs fail\n\n" + "\n\n".join(found[:5])


def test_most_gradients_can_be_compared_with_differences():
    assert sum(check_differences(drawn(number)) for number in range(1, 101, 2)) > 35


def test_every_op_is_drawn():
    assert FUNCTIONS - {"allclose"} == set(LINES)  # which returns Python's True or False
    missing, number = set(LINES) - {"getitem"}, 0
    while missing and number < 600:
        lines = " ".join(drawn(number).lines())
        missing, number = {name for name in missing if f"tt.{name}(" not in lines}, number + 1
    assert missing == set()


@pytest.mark.parametrize(
    ("op", "rule"),
    [
        # the rule of arctan, because no other op's rule uses it
        ("arctan", lambda g, x: g / (1 + x * x) * 1.0001),
        ("arctan", lambda g, x: g / (1 + x * x) if isinstance(x, np.ndarray) else g / (1 + x * x).detach()),
        ("arctan", lambda g, x: g),
    ],
)
def test_a_wrong_rule_is_found_and_the_program_small(op, rule, monkeypatch):
    monkeypatch.setitem(getattr(tt, op).rules, "x", rule)
    found = next(reports(range(1, 400)))
    assert f"tt.{op}(" in found
    assert len(found.splitlines()) < 12
