"""Single ops, and the steps of an optimizer: tinytensor beside PyTorch (eager).

python benchmarks/ops.py                             # all public ops, on 8, 10,000 and 1,000,000 elements
python benchmarks/ops.py --only exp sort --size 8    # some of them, on few elements
python benchmarks/ops.py --configuration A C D       # layers and optimizers, at the sizes of a training step
python benchmarks/ops.py --configuration A --only LSTM --threads 2

Public ops (public_ops.py) are timed forward, and forward and backward. Layers are timed forward and backward, at their sizes in
a training step of the configurations (for D, in its decoder). Recurrent layers have a single size. Both libraries compute the
same from the same arrays, and their results and gradients must agree before anything is timed.

By default each library uses one thread, so the benchmark compares kernels. In training tinytensor gives each core a part of the
batch (tinytensor/parallel/threads.py), on which these ops run as they do here.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import measure
from configurations import CONFIGURATIONS
from measure import Side, SideError, Times, TorchSide, Worker, positive
from public_ops import CONSTANTS, ROWS, SIZES, array, pytorchs, tinytensors

OURS, THEIRS = "tinytensor", "PyTorch"
DROPOUT = 0.1
LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-3, (0.9, 0.99), 0.1
SHRINKING = 0.9999  # each clipping is to this fraction of the last norm, so that every one scales the gradients
SECONDS_A_TURN = 0.02  # the length of the slower side's turn, unless MOST_STEPS steps are shorter
MOST_STEPS = 100
DIRECTIONS = ("forward", "forward and backward")
LARGEST = 12  # ratios that the summary names

# The shapes of each op's inputs. ``ids`` and ``targets`` are tokens, ``mask`` is padding. All others get gradients.
ACTIVATIONS, HEADS, TOKENS = "batch length width", "batch length heads head_width", "batch length"
INPUTS: dict[str, dict[str, str]] = {
    "linear": {"x": ACTIVATIONS, "weight": "inner width", "bias": "inner"},
    "layer_norm": {"x": ACTIVATIONS, "weight": "width", "bias": "width"},
    "rms_norm": {"x": ACTIVATIONS, "weight": "width"},
    "gelu": {"x": "batch length inner"},
    "attention, causal": {"query": HEADS, "key": HEADS, "value": HEADS},
    "attention, padding": {"query": HEADS, "key": HEADS, "value": HEADS, "mask": "batch 1 1 length"},
    "softmax": {"x": "batch heads length length"},
    "cross_entropy": {"logits": "batch length vocabulary", "targets": TOKENS},
    "linear_cross_entropy": {"x": ACTIVATIONS, "weight": "vocabulary width", "targets": TOKENS},
    "dropout": {"x": ACTIVATIONS},
    "embedding": {"weight": "vocabulary width", "ids": TOKENS},
    "residual": {"x": ACTIVATIONS, "y": ACTIVATIONS},
}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}  # blocks of rows in the weights of recurrent layers
NO_CONFIGURATION = "-"  # recurrent layers have one size: 64 steps, 32 sequences, 64 inputs, 512 hidden units
for layer, gates in GATES.items():
    rows = str(gates * 512)
    weights = {"weight_ih_l0": f"{rows} 64", "weight_hh_l0": f"{rows} 512", "bias_ih_l0": rows, "bias_hh_l0": rows}
    INPUTS[layer] = {"x": "64 32 64", **weights}
OPTIMIZERS = ("AdamW", "clip_grad_norm")
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A public op with a number of elements, a layer at the sizes of a configuration, or an optimizer of its model."""

    op: str
    size: str  # the number of elements, or the configuration

    @property
    def is_public(self) -> bool:
        """Return whether the op is in the table of public ops."""
        return self.size.isdecimal()

    def __str__(self) -> str:
        return f"{self.op}, {int(self.size):,} elements" if self.is_public else f"{self.op}, configuration {self.size}"

    def arrays(self) -> Arrays:
        """Return random inputs, the same in every process. Those named with a letter of CONSTANTS get no gradient."""
        import numpy

        rng = numpy.random.default_rng(0)
        if self.is_public:
            codes = ROWS[self.op].inputs
            return {f"{code}{i}": array(code, SIZES[int(self.size)], rng) for i, code in enumerate(codes)}
        if self.op in OPTIMIZERS:
            model, _, _ = CONFIGURATIONS[self.size].tinyformer()
            return {name: rng.standard_normal(p.shape, "float32") for name, p in model.named_parameters()}
        sizes = {} if self.op in GATES else self._sizes()
        arrays: Arrays = {}
        for name, words in INPUTS[self.op].items():
            shape = [int(word) if word.isdecimal() else sizes[word] for word in words.split()]
            if name in ("ids", "targets"):
                arrays[name] = rng.integers(0, sizes["vocabulary"], shape)
            elif name == "mask":  # sentences of all lengths from half the longest
                longest = sizes["length"]
                arrays[name] = numpy.arange(longest) < rng.integers(longest // 2, longest + 1, (*shape[:-1], 1))
            else:
                arrays[name] = rng.standard_normal(shape, "float32")
                if name.startswith("weight") and len(shape) == 2:  # so that outputs are about as large as inputs
                    arrays[name] *= shape[1] ** -0.5
        return arrays

    def _sizes(self) -> dict[str, int]:
        c = CONFIGURATIONS[self.size]
        sizes = {"batch": c.batch_size, "length": c.block_size, "width": c.d_model, "vocabulary": c.vocab_size}
        heads = {"heads": c.num_heads, "head_width": c.d_model // c.num_heads}
        return {**sizes, **heads, "inner": getattr(c, "d_ff", 4 * c.d_model)}


class Library(Side):
    """A side that runs one case after the other. Subclasses set its library's functions."""

    functions: Mapping[str, Callable[..., Any]]  # the layers
    namespace: Any  # of public ops
    tensor: Callable[..., Any]  # (array, requires_grad=False)
    optimizer: Callable[[Sequence[Any]], Any]  # AdamW for these parameters
    clip: Callable[[Sequence[Any], float], Any]  # clips the parameters' gradients to a norm
    work: Callable[[], Any]  # one step of the current case

    def prepare(self, case: Case, arrays: Arrays, backward: bool = True) -> None:
        """Switch to this case, with these inputs."""
        import numpy

        rng = numpy.random.default_rng(1)
        constant = CONSTANTS if case.is_public else ""
        is_variable = {name: backward and a.dtype.kind == "f" and name[0] not in constant for name, a in arrays.items()}
        inputs = {name: self.tensor(a, requires_grad=is_variable[name]) for name, a in arrays.items()}
        self.differentiated = {name: x for name, x in inputs.items() if is_variable[name]}
        self.block = 50 if case.size == "8" else 1  # so that reading the clock takes no noticeable time
        leaves = list(self.differentiated.values())
        if case.op in OPTIMIZERS:
            self.work = self._optimization(case.op, leaves, rng)
            return
        function = functools.partial(ROWS[case.op].call, self.namespace) if case.is_public else self.functions[case.op]
        arguments, named = ([*inputs.values()], {}) if case.is_public else ([], inputs)
        out = function(*arguments, **named)
        if not getattr(out, "requires_grad", False):
            self.differentiated = {}
            self.work = functools.partial(function, *arguments, **named)
            return
        g = self.tensor(rng.standard_normal(out.shape, "float32").astype(out.detach().numpy().dtype)) if out.shape else None

        def forward_and_backward() -> Any:
            for x in leaves:
                x.grad = None
            out = function(*arguments, **named)
            out.backward(g)  # a loss starts from 1
            return out

        self.work = forward_and_backward

    def _optimization(self, op: str, leaves: Sequence[Any], rng: Any) -> Callable[[], Any]:
        gradients = [rng.standard_normal(tuple(p.shape), "float32") for p in leaves]
        for parameter, gradient in zip(leaves, gradients):
            parameter.grad = self.tensor(gradient)
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
        norms = (norm * SHRINKING**n for n in itertools.count(1))
        return self.optimizer(leaves).step if op == "AdamW" else lambda: self.clip(leaves, next(norms))

    def step(self) -> Any:
        return self.work()

    def results(self) -> Arrays:
        """Return the results of running twice: a single step of an optimizer would not show its moments."""
        import numpy

        self.step()
        out = self.step()
        arrays = {} if out is None else {"output": out.detach().numpy() if hasattr(out, "detach") else numpy.asarray(out)}
        for name, x in self.differentiated.items():
            arrays |= {name: x.detach().numpy(), f"gradient of {name}": x.grad.numpy()}
        return arrays


def ops_of(functional: Any, ops: Mapping[str, Callable[..., Any]]) -> Mapping[str, Callable[..., Any]]:
    """Return the ops, and those with the same name in both libraries."""

    def attention(query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False) -> Any:
        heads = [x.swapaxes(1, 2) for x in (query, key, value)]  # from (batch, length, heads, ...)
        return functional.scaled_dot_product_attention(*heads, mask, is_causal=is_causal)

    return {
        "linear": functional.linear,
        "gelu": lambda x: functional.gelu(x, approximate="tanh"),
        "softmax": lambda x: functional.softmax(x, -1),
        "dropout": lambda x: functional.dropout(x, DROPOUT),
        "embedding": lambda weight, ids: functional.embedding(ids, weight),
        "attention, causal": lambda query, key, value: attention(query, key, value, is_causal=True),
        "attention, padding": attention,
        "residual": lambda x, y: x + y,
        **ops,
    }


class Tinytensor(Library):
    """tinytensor."""

    def __init__(self) -> None:
        import tinytensor as tt
        from tinytensor import optim

        names = ("layer_norm", "rms_norm", "cross_entropy", "linear_cross_entropy")
        recurrent = {layer: self._recurrent(layer) for layer in GATES}
        self.namespace = tinytensors()
        self.functions = ops_of(tt.functional, {**{name: getattr(tt, name) for name in names}, **recurrent})
        # Only parameters can be optimized.
        self.tensor = lambda a, requires_grad=False: tt.nn.Parameter(tt.tensor(a)) if requires_grad else tt.tensor(a)
        self.optimizer = lambda parameters: optim.AdamW(parameters, LEARNING_RATE, BETAS, weight_decay=WEIGHT_DECAY)
        self.clip = optim.clip_grad_norm

    def _recurrent(self, name: str) -> Callable[..., Any]:
        from tinytensor import nn

        layer: Any = getattr(nn, name)(64, 512)

        def outputs(x: Any, **parameters: Any) -> Any:
            for name, parameter in parameters.items():
                setattr(layer, name, parameter)
            return layer(x)[0]

        return outputs


class PyTorch(Library, TorchSide):
    """PyTorch, with its fastest AdamW (``fused``)."""

    def __init__(self) -> None:
        import torch
        import torch.nn.functional as F

        def cross_entropy(logits: Any, targets: Any) -> Any:
            return F.cross_entropy(logits.flatten(0, -2), targets.flatten())

        ops: Mapping[str, Callable[..., Any]] = {
            "layer_norm": lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias),
            "rms_norm": lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-5),
            "cross_entropy": cross_entropy,
            "linear_cross_entropy": lambda x, weight, targets: cross_entropy(F.linear(x, weight), targets),
            **{layer: self._recurrent(layer) for layer in GATES},
        }
        self.functions = ops_of(F, ops)
        self.namespace = pytorchs()
        self.tensor = torch.tensor
        self.optimizer = lambda parameters: torch.optim.AdamW(
            parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        self.clip = torch.nn.utils.clip_grad_norm_

    def _recurrent(self, name: str) -> Callable[..., Any]:
        import torch

        layer = getattr(torch.nn, name)(64, 512)
        return lambda x, **parameters: torch.func.functional_call(layer, parameters, (x,))[0]


def check(case: Case, ours: Arrays, theirs: Arrays) -> None:
    """Raise SideError unless the results agree to rounding, except for elements dropped by dropout."""
    for name, a in ours.items():
        b, both = theirs[name], ...
        if case.op == "dropout" and name[0] != "x":
            both = (a != 0) & (b != 0)
            if any(abs((x == 0).mean() - DROPOUT) > 0.01 + a.size**-0.5 for x in (a, b)):
                raise SideError(f"{case}: {(a == 0).mean():.3f} and {(b == 0).mean():.3f} of {name} were dropped")
        if a.shape != b.shape:
            raise SideError(f"{case}: {name} has shape {a.shape} and {b.shape}")
        error, largest = abs(1.0 * a[both] - b[both]).max(initial=0.0), abs(1.0 * b).max(initial=0.0)
        if not error <= (4e-3 if "float16" in case.op else 5e-5) * largest:
            raise SideError(f"{case}: {name} differs by {error:.3g} of {largest:.3g}")


def run(cases: Sequence[Case], turns: int, threads: int) -> Iterator[str]:
    """Measure every case, and yield a report. Public ops yield one after each size, with all so far."""
    with ExitStack() as stack, measure.environment(measure.thread_variables(threads)):
        sides: measure.Sides = {OURS: (Tinytensor,), THEIRS: (PyTorch,), **measure.with_numpys_kernels(OURS, Tinytensor)}
        workers = measure.start_all(stack, sides)
        for report in (_public_tables if cases[0].is_public else _layer_tables)(workers, cases, turns):
            yield "\n\n".join([*report, f"Threads: {threads}.", measure.library_list(workers)])


def _times(workers: Mapping[str, Worker], case: Case, turns: int, backward: bool = True) -> Mapping[str, Times]:
    """Return the times of a case, after checking that both libraries agree."""
    print(f"{case}{'' if backward else ', forward'}", file=sys.stderr)
    measure.call_all(workers, "prepare", case, case.arrays(), backward)
    results = measure.call_all(workers, "results")
    check(case, results[OURS], results[THEIRS])
    # Enough steps to outlast the effects of the side before.
    slowest = max(map(statistics.median, measure.call_all(workers, "turn", 2, 3).values()))
    steps = min(MOST_STEPS, max(2, round(SECONDS_A_TURN / slowest)))
    return measure.take_turns(workers, turns, steps, settle=max(1, steps // 4))


def _layer_tables(workers: Mapping[str, Worker], cases: Sequence[Case], turns: int) -> Iterator[list[str]]:
    rows = []
    for case in cases:
        times = _times(workers, case, turns)
        arrays = case.arrays()
        shapes = ", ".join(f"{name} {'×'.join(map(str, array.shape))}" for name, array in arrays.items())
        if case.op in OPTIMIZERS:
            shapes = f"{sum(array.size for array in arrays.values()):,} parameters"
        medians = [f"{1000 * side.median:.3f}" for side in times.values()]
        rows.append([case.op, case.size, shapes, *medians, *reversed(times[OURS].over(times[THEIRS]))])
    head = [
        "op",
        "configuration",
        "shapes",
        *(f"{name} ms" for name in workers),
        "ratio of fastest quartiles",
        "ratio of medians",
    ]
    yield [measure.table(head, rows), f"Forward and backward together, medians; ratios below 1 where {OURS} is faster."]


def _public_tables(workers: Mapping[str, Worker], cases: Sequence[Case], turns: int) -> Iterator[list[str]]:
    """Yield a report after each size: a summary, and PyTorch's microseconds and our ratio for each op."""
    ours = [name for name in workers if name != THEIRS]
    ratios: dict[tuple[str, str, str], dict[str, float]] = {}  # of ops, by side, size and direction
    cells: dict[str, list[str]] = {case.op: [] for case in cases}
    sizes: list[str] = []
    for size, of_size in itertools.groupby(cases, lambda case: case.size):
        sizes.append(size)
        for case in of_size:
            both = [_times(workers, case, turns, backward) for backward in (False, True)]
            microseconds = [f"{1e6 * times[THEIRS].fastest_quartile:.1f}" for times in both]
            cells[case.op].append(" / ".join(microseconds))
            for side in ours:
                values = [times[side].fastest_quartile / times[THEIRS].fastest_quartile for times in both]
                cells[case.op].append(" / ".join(f"{value:.2f}" for value in values))
                for direction, value in zip(DIRECTIONS, values):
                    ratios.setdefault((side, size, direction), {})[case.op] = value
        head = [f"{int(size):,}: {name}" for size in sizes for name in (f"{THEIRS} µs", *ours)]
        yield [
            _summary(ratios),
            measure.table(["op", *head], [[op, *row] for op, row in cells.items()]),
            f"Fastest quartiles, forward / forward and backward: {THEIRS}'s time in microseconds, and ours in units of it.",
        ]


def _summary(ratios: Mapping[tuple[str, str, str], Mapping[str, float]]) -> str:
    """Return the median and the largest ratios of all ops, by side, size and direction."""
    rows = []
    for (side, size, direction), by_op in ratios.items():
        largest = sorted(by_op, key=lambda op: -by_op[op])[:LARGEST]
        slow = ", ".join(f"{op} {by_op[op]:.1f}" for op in largest)
        over = sum(value > 3 for value in by_op.values())
        rows.append([side, f"{int(size):,}", direction, f"{statistics.median(by_op.values()):.2f}", str(over), slow])
    return measure.table(["", "elements", "", "median", "over 3", "largest"], sorted(rows))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = measure.make_parser("Time single ops of tinytensor beside PyTorch's, in turns.", turns=15)
    several: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    sizes = [str(size) for size in SIZES]
    parser.add_argument("--configuration", **several, choices=CONFIGURATIONS, help="time layers and optimizers at these sizes")
    parser.add_argument("--size", **several, choices=sizes, default=sizes, help=f"elements of public ops: {', '.join(sizes)}")
    parser.add_argument("--only", **several, help="only these ops")
    parser.add_argument("--threads", type=positive, default=1, metavar="INT", help="threads of each library")
    arguments = measure.parse(parser, words, "torch", "threadpoolctl")
    known = [*INPUTS, *OPTIMIZERS] if arguments.configuration else [*ROWS]
    arguments.only = arguments.only or known
    if unknown := [op for op in arguments.only if op not in known]:
        parser.error(f"--only: unknown op {unknown[0]!r}; expected one of {', '.join(known)}")
    return arguments


def chosen(ops: Sequence[str], sizes: Sequence[str]) -> list[Case]:
    """Return the cases of these ops, at these sizes or configurations."""
    cases = [Case(op, size) for op in ops for size in ([NO_CONFIGURATION] if op in GATES else sizes)]
    return sorted(cases, key=lambda case: sizes.index(case.size) if case.is_public else 0)  # public ops size by size


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    name, title = ("layers", "Layers and optimizers") if arguments.configuration else ("ops", "All public ops")
    name += "" if arguments.threads == 1 else f"_threads_{arguments.threads}"
    title = f"{title} beside PyTorch"
    for report in run(chosen(arguments.only, arguments.configuration or arguments.size), arguments.turns, arguments.threads):
        measure.write(arguments.output, name, title, report, "numpy", "torch")
    print(f"{title}\n\n{report}")


if __name__ == "__main__":
    main()
