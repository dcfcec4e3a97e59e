"""Forward and backward of single ops, and the steps of an optimizer: tinytensor beside PyTorch (eager).

python benchmarks/ops.py                             # every op, at the sizes of every configuration
python benchmarks/ops.py --only layer_norm --configuration A --output ops.md
python benchmarks/ops.py --only LSTM --threads 2     # a recurrent layer, where each library uses two threads

The sizes are those that the ops have in a training step of the configurations (of D, in its decoder); recurrent layers have one
size of their own. Both libraries compute the same from the same arrays, and their results and gradients must agree before
anything is timed.

By default each library uses one thread: what is compared is the kernels. In training tinytensor uses several cores by giving
each a part of the batch (tinytensor/parallel/threads.py), on which these ops run as they do here.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import measure
from configurations import CONFIGURATIONS
from measure import Side, SideError, TorchSide, Worker, positive

OURS, THEIRS = "tinytensor", "PyTorch"
DROPOUT = 0.1
LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-3, (0.9, 0.99), 0.1
SHRINKING = 0.9999  # each clipping is to this part of the last norm, so that every one has to scale the gradients
SECONDS_A_TURN = 0.05  # what the slower side's turn takes, or MOST_STEPS steps where that is less
MOST_STEPS = 100

# By op, the shapes of what it takes. ``ids`` and ``targets`` are tokens and ``mask`` is padding; the rest gets gradients.
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
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}  # of the recurrent layers: the blocks of rows in their weights
NO_CONFIGURATION = "-"  # they have one size: 64 steps of 32 sequences, 64 numbers in and 512 hidden ones
for layer, gates in GATES.items():
    rows = str(gates * 512)
    weights = {"weight_ih_l0": f"{rows} 64", "weight_hh_l0": f"{rows} 512", "bias_ih_l0": rows, "bias_hh_l0": rows}
    INPUTS[layer] = {"x": "64 32 64", **weights}
OPTIMIZERS = ("AdamW", "clip_grad_norm")
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """An op at the sizes of a configuration, or an optimizer with the parameters of its model."""

    op: str
    configuration: str

    def arrays(self) -> Arrays:
        """Random inputs, the same in every process."""
        import numpy

        rng = numpy.random.default_rng(0)
        if self.op in OPTIMIZERS:
            model, _, _ = CONFIGURATIONS[self.configuration].tinyformer()
            return {name: rng.standard_normal(p.shape, "float32") for name, p in model.named_parameters()}
        sizes = {} if self.op in GATES else self._sizes()
        found: Arrays = {}
        for name, words in INPUTS[self.op].items():
            shape = [int(word) if word.isdecimal() else sizes[word] for word in words.split()]
            if name in ("ids", "targets"):
                found[name] = rng.integers(0, sizes["vocabulary"], shape)
            elif name == "mask":  # of sentences of all lengths from half the longest
                longest = sizes["length"]
                found[name] = numpy.arange(longest) < rng.integers(longest // 2, longest + 1, (*shape[:-1], 1))
            else:
                found[name] = rng.standard_normal(shape, "float32")
                if name.startswith("weight") and len(shape) == 2:  # so that outputs are about as large as inputs
                    found[name] *= shape[1] ** -0.5
        return found

    def _sizes(self) -> dict[str, int]:
        c = CONFIGURATIONS[self.configuration]
        sizes = {"batch": c.batch_size, "length": c.block_size, "width": c.d_model, "vocabulary": c.vocab_size}
        heads = {"heads": c.num_heads, "head_width": c.d_model // c.num_heads}
        return {**sizes, **heads, "inner": getattr(c, "d_ff", 4 * c.d_model)}


class Library(Side):
    """A side that works on one case after the other. Its library gives the three functions and, by name, the ops."""

    functions: Mapping[str, Callable[..., Any]]
    tensor: Callable[..., Any]  # (array, requires_grad=False)
    optimizer: Callable[[Sequence[Any]], Any]  # AdamW for these parameters
    clip: Callable[[Sequence[Any], float], Any]  # of the parameters' gradients; the norm before
    work: Callable[[], Any]  # the current case's

    def prepare(self, case: Case, arrays: Arrays) -> None:
        """Go over to this case, with these inputs."""
        import numpy

        inputs = {name: self.tensor(a, requires_grad=a.dtype.kind == "f") for name, a in arrays.items()}
        self.differentiated = {name: inputs[name] for name, a in arrays.items() if a.dtype.kind == "f"}
        rng, leaves = numpy.random.default_rng(1), list(self.differentiated.values())
        if case.op in OPTIMIZERS:
            gradients = [rng.standard_normal(tuple(p.shape), "float32") for p in leaves]
            for parameter, gradient in zip(leaves, gradients):
                parameter.grad = self.tensor(gradient)
            norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
            norms = (norm * SHRINKING**n for n in itertools.count(1))
            self.work = self.optimizer(leaves).step if case.op == "AdamW" else lambda: self.clip(leaves, next(norms))
            return
        function = self.functions[case.op]
        shape = function(**inputs).shape
        g = self.tensor(rng.standard_normal(shape, "float32")) if shape else None  # a loss starts from 1

        def forward_and_backward() -> Any:
            for x in leaves:
                x.grad = None
            out = function(**inputs)
            out.backward(g)
            return out

        self.work = forward_and_backward

    def step(self) -> Any:
        return self.work()

    def results(self) -> Arrays:
        """What doing the work twice leaves: a single step of an optimizer would not show its moments."""
        self.step()
        out = self.step()
        found = {} if out is None else {"output": out.detach().numpy()}
        for name, x in self.differentiated.items():
            found |= {name: x.detach().numpy(), f"gradient of {name}": x.grad.numpy()}
        return found


def ops_of(functional: Any, ops: Mapping[str, Callable[..., Any]]) -> Mapping[str, Callable[..., Any]]:
    """The ops, with those that both libraries write alike."""

    def attention(query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False) -> Any:
        heads = [x.swapaxes(1, 2) for x in (query, key, value)]  # which lie behind the tokens
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
        recurrent = {kind: self._recurrent(kind) for kind in GATES}
        self.functions = ops_of(tt.functional, {**{name: getattr(tt, name) for name in names}, **recurrent})
        # Only parameters can be optimized.
        self.tensor = lambda a, requires_grad=False: tt.nn.Parameter(tt.tensor(a)) if requires_grad else tt.tensor(a)
        self.optimizer = lambda parameters: optim.AdamW(parameters, LEARNING_RATE, BETAS, weight_decay=WEIGHT_DECAY)
        self.clip = optim.clip_grad_norm

    def _recurrent(self, kind: str) -> Callable[..., Any]:
        from tinytensor import nn

        layer: Any = getattr(nn, kind)(64, 512)

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
            **{kind: self._recurrent(kind) for kind in GATES},
        }
        self.functions = ops_of(F, ops)
        self.tensor = torch.tensor
        self.optimizer = lambda parameters: torch.optim.AdamW(
            parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        self.clip = torch.nn.utils.clip_grad_norm_

    def _recurrent(self, kind: str) -> Callable[..., Any]:
        import torch

        layer = getattr(torch.nn, kind)(64, 512)
        return lambda x, **parameters: torch.func.functional_call(layer, parameters, (x,))[0]


def check(case: Case, ours: Arrays, theirs: Arrays) -> None:
    """Raise SideError unless the results agree to rounding; dropped elements are each library's own."""
    what = f"{case.op}, configuration {case.configuration}"
    for name, a in ours.items():
        b, both = theirs[name], ...
        if case.op == "dropout" and name != "x":
            both = (a != 0) & (b != 0)
            if any(abs((x == 0).mean() - DROPOUT) > 0.01 for x in (a, b)):
                raise SideError(f"{what}: {(a == 0).mean():.3f} and {(b == 0).mean():.3f} of {name} were dropped")
        error, largest = abs(a[both] - b[both]).max(initial=0.0), abs(b).max(initial=0.0)
        if a.shape != b.shape or not error <= 2e-5 * largest:
            raise SideError(f"{what}: {name} differs by {error:.3g} of {largest:.3g}")


def run(cases: Sequence[Case], turns: int, threads: int) -> str:
    """Measure every case: a table, and what multiplied matrices."""
    with ExitStack() as stack, measure.environment(measure.thread_variables(threads)):
        sides: measure.Sides = {OURS: (Tinytensor,), THEIRS: (PyTorch,), **measure.with_numpys_kernels(OURS, Tinytensor)}
        workers = measure.start_all(stack, sides)
        rows = []
        for number, case in enumerate(cases):
            print(f"{number + 1}/{len(cases)} {case.op}, configuration {case.configuration}", file=sys.stderr)
            rows.append(_measure(workers, case, turns))
        libraries = measure.library_list(workers)
    of_each = [f"{name} ms" for name in sides]
    head = ["op", "configuration", "shapes", *of_each, "ratio of fastest quartiles", "ratio of medians"]
    note = f"Forward and backward together, medians; ratios below 1 where {OURS} is faster. Threads: {threads}."
    return "\n\n".join([measure.table(head, rows), note, libraries])


def _measure(workers: Mapping[str, Worker], case: Case, turns: int) -> list[str]:
    """The case's row."""
    arrays = case.arrays()
    measure.call_all(workers, "prepare", case, arrays)
    results = measure.call_all(workers, "results")
    check(case, results[OURS], results[THEIRS])
    # Enough steps that a turn is free of what the other side left behind.
    slowest = max(map(statistics.median, measure.call_all(workers, "turn", 2, 3).values()))
    steps = min(MOST_STEPS, max(2, round(SECONDS_A_TURN / slowest)))
    times = measure.take_turns(workers, turns, steps, settle=max(1, steps // 4))
    shapes = ", ".join(f"{name} {'×'.join(map(str, array.shape))}" for name, array in arrays.items())
    if case.op in OPTIMIZERS:
        shapes = f"{sum(array.size for array in arrays.values()):,} parameters"
    medians = [f"{1000 * side.median:.3f}" for side in times.values()]
    return [case.op, case.configuration, shapes, *medians, *reversed(times[OURS].over(times[THEIRS]))]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = measure.make_parser("Time forward and backward of single ops of tinytensor beside PyTorch's, in turns.", turns=15)
    ops = (*INPUTS, *OPTIMIZERS)
    several: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--configuration", **several, choices=CONFIGURATIONS, default=list(CONFIGURATIONS), help="whose sizes")
    parser.add_argument("--only", **several, choices=ops, default=list(ops), help=f"only these of {', '.join(ops)}")
    parser.add_argument("--threads", type=positive, default=1, metavar="INT", help="threads of each library")
    return measure.parse(parser, words, "torch", "threadpoolctl")


def chosen(ops: Sequence[str], configurations: Sequence[str]) -> list[Case]:
    """The cases of these ops, in these configurations."""
    return [Case(op, name) for op in ops for name in ([NO_CONFIGURATION] if op in GATES else configurations)]


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    report = run(chosen(arguments.only, arguments.configuration), arguments.turns, arguments.threads)
    measure.publish(arguments.output, "ops", "Single ops, forward and backward", report, "numpy", "torch")


if __name__ == "__main__":
    main()
