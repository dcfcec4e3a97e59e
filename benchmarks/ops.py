"""Forward and backward of single ops, and the steps of an optimizer: tinytensor beside PyTorch (eager).

python benchmarks/ops.py                             # every op, at the sizes of every configuration
python benchmarks/ops.py --only layer_norm --configuration A --output ops.md

The sizes are those that the ops have in a training step of train_step.py's configurations. Both libraries compute the same
from the same arrays, and their results and gradients must agree before anything is timed.

Each library uses one thread unless ``--threads`` says otherwise: what is compared is the kernels. In training tinytensor
uses several cores by giving each a part of the batch (tinytensor/parallel.py), on which these ops run as they do here; with
several ``--threads`` its products alone use them, while PyTorch's other ops do, too.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import measure
from configurations import CONFIGURATIONS
from measure import Side, SideError, TorchSide, Worker

from tinyformer.command_line import Parser
from tinyformer.errors import plain_errors

OURS, THEIRS = "tinytensor", "PyTorch"
DROPOUT = 0.1
LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-3, (0.9, 0.99), 0.1
SHRINKING = 0.9999  # each clipping is to this part of the last norm, so that every one has to scale the gradients
SECONDS_A_TURN = 0.05  # what the slower side's turn takes, or MOST_STEPS steps where that is less
MOST_STEPS = 100

# --------------------------------------------------------------------------------------------------------------- sizes


@dataclass(frozen=True)
class Sizes:
    """What the shapes of an op's inputs follow from."""

    batch: int
    length: int
    width: int
    inner_width: int
    heads: int
    vocabulary: int

    @property
    def activations(self) -> tuple[int, int, int]:
        """The shape of what flows between a model's layers."""
        return self.batch, self.length, self.width

    @property
    def inner(self) -> tuple[int, int, int]:
        """The shape of what flows inside the feed-forward network."""
        return self.batch, self.length, self.inner_width

    @property
    def heads_apart(self) -> tuple[int, int, int, int]:
        """The shape of queries, keys and values in the order in which a linear layer makes them."""
        return self.batch, self.length, self.heads, self.width // self.heads

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """The shape of attention's weights."""
        return self.batch, self.heads, self.length, self.length


def sizes_of(name: str) -> Sizes:
    """The sizes of a configuration: those of its decoder's layers, where it has an encoder, too."""
    configuration = CONFIGURATIONS[name]
    model, width = configuration.model(), configuration.d_model
    vocabulary = model.get("vocab_size") or model["target_vocab_size"]
    inner_width = model.get("d_ff", 4 * width)
    return Sizes(configuration.batch_size, configuration.block_size, width, inner_width, configuration.num_heads, vocabulary)


# -------------------------------------------------------------------------------------------------------------- inputs


class Maker:
    """Random arrays, the same in every process."""

    def __init__(self) -> None:
        import numpy

        self.rng = numpy.random.default_rng(0)

    def normal(self, *shape: int) -> Any:
        """float32, standard normal."""
        return self.rng.standard_normal(shape, dtype="float32")

    def weight(self, outputs: int, inputs: int) -> Any:
        """float32, so small that a linear layer's outputs are about as large as its inputs."""
        return self.normal(outputs, inputs) * inputs**-0.5

    def ids(self, sizes: Sizes) -> Any:
        """A token for each position."""
        return self.rng.integers(0, sizes.vocabulary, (sizes.batch, sizes.length))

    def padding(self, sizes: Sizes) -> Any:
        """The mask (batch, 1, 1, length) of sentences of all lengths from half the longest."""
        import numpy

        ends = self.rng.integers(sizes.length // 2, sizes.length + 1, (sizes.batch, 1, 1, 1))
        return numpy.arange(sizes.length) < ends


Arrays = dict[str, Any]
Inputs = Callable[[Maker, Sizes], Arrays]


def _queries_keys_values(make: Maker, sizes: Sizes) -> Arrays:
    return {name: make.normal(*sizes.heads_apart) for name in ("query", "key", "value")}


# By op, the arrays that it takes; those of floats get gradients.
INPUTS: dict[str, Inputs] = {
    "linear": lambda make, s: {
        "x": make.normal(*s.activations),
        "weight": make.weight(s.inner_width, s.width),
        "bias": make.normal(s.inner_width),
    },
    "layer_norm": lambda make, s: {
        "x": make.normal(*s.activations),
        "weight": make.normal(s.width),
        "bias": make.normal(s.width),
    },
    "rms_norm": lambda make, s: {"x": make.normal(*s.activations), "weight": make.normal(s.width)},
    "gelu": lambda make, s: {"x": make.normal(*s.inner)},
    "attention, causal": _queries_keys_values,
    "attention, padding": lambda make, s: {**_queries_keys_values(make, s), "mask": make.padding(s)},
    "softmax": lambda make, s: {"x": make.normal(*s.scores)},
    "cross_entropy": lambda make, s: {"logits": make.normal(s.batch, s.length, s.vocabulary), "targets": make.ids(s)},
    "linear_cross_entropy": lambda make, s: {
        "x": make.normal(*s.activations),
        "weight": make.weight(s.vocabulary, s.width),
        "targets": make.ids(s),
    },
    "dropout": lambda make, s: {"x": make.normal(*s.activations)},
    "embedding": lambda make, s: {"weight": make.normal(s.vocabulary, s.width), "ids": make.ids(s)},
    "residual": lambda make, s: {"x": make.normal(*s.activations), "y": make.normal(*s.activations)},
}
OPTIMIZERS = ("AdamW", "clip_grad_norm")


Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """An op at the sizes of a configuration."""

    op: str
    configuration: str

    def arrays(self) -> Arrays:
        """The op's inputs."""
        return INPUTS[self.op](Maker(), sizes_of(self.configuration))

    def shapes(self, parameters: Shapes) -> str:
        """The inputs in words; those of an optimizer are the model's parameters, of these shapes."""
        if self.op in OPTIMIZERS:
            return f"{sum(map(math.prod, parameters)):,} parameters"
        return ", ".join(f"{name} {'×'.join(map(str, array.shape))}" for name, array in self.arrays().items())


# ----------------------------------------------------------------------------------------------------------- libraries


class Library:
    """What the work below needs to know of a library."""

    functions: Mapping[str, Callable[..., Any]]  # by op

    def tensor(self, array: Any, requires_grad: bool = False) -> Any:
        """A tensor with the array's values."""
        raise TypeError(f"{type(self).__name__} has no tensor method: write one")

    def adamw(self, parameters: Sequence[Any]) -> Any:
        """An optimizer for these parameters."""
        raise TypeError(f"{type(self).__name__} has no adamw method: write one")

    def clip(self, parameters: Sequence[Any], max_norm: float) -> Any:
        """Clip the parameters' gradients."""
        raise TypeError(f"{type(self).__name__} has no clip method: write one")


class TinytensorLibrary(Library):
    """tinytensor."""

    def __init__(self) -> None:
        import tinytensor as tt

        def attention(query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False) -> Any:
            query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
            return tt.scaled_dot_product_attention(query, key, value, mask, is_causal)

        self.functions = {
            "linear": tt.linear,
            "layer_norm": tt.layer_norm,
            "rms_norm": tt.rms_norm,
            "gelu": lambda x: tt.gelu(x, approximate="tanh"),
            "attention, causal": lambda query, key, value: attention(query, key, value, is_causal=True),
            "attention, padding": attention,
            "softmax": tt.softmax,
            "cross_entropy": tt.cross_entropy,
            "linear_cross_entropy": tt.linear_cross_entropy,
            "dropout": lambda x: tt.dropout(x, DROPOUT),
            "embedding": lambda weight, ids: tt.functional.embedding(ids, weight),
            "residual": lambda x, y: x + y,
        }

    def tensor(self, array: Any, requires_grad: bool = False) -> Any:
        """A tensor, or, as only those can be optimized, a parameter."""
        import tinytensor as tt

        return tt.nn.Parameter(tt.tensor(array)) if requires_grad else tt.tensor(array)

    def adamw(self, parameters: Sequence[Any]) -> Any:
        """tinytensor's."""
        from tinytensor.optim import AdamW

        return AdamW(parameters, LEARNING_RATE, BETAS, weight_decay=WEIGHT_DECAY)

    def clip(self, parameters: Sequence[Any], max_norm: float) -> Any:
        """tinytensor's."""
        from tinytensor.optim import clip_grad_norm

        return clip_grad_norm(parameters, max_norm)


class PyTorchLibrary(Library):
    """PyTorch, with its fastest AdamW (``fused``)."""

    def __init__(self) -> None:
        import torch
        import torch.nn.functional as F

        def attention(query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False) -> Any:
            query, key, value = (x.transpose(1, 2) for x in (query, key, value))
            return F.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal)

        def cross_entropy(logits: Any, targets: Any) -> Any:
            return F.cross_entropy(logits.flatten(0, -2), targets.flatten())

        self.functions = {
            "linear": F.linear,
            "layer_norm": lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias),
            "rms_norm": lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-5),
            "gelu": lambda x: F.gelu(x, approximate="tanh"),
            "attention, causal": lambda query, key, value: attention(query, key, value, is_causal=True),
            "attention, padding": attention,
            "softmax": lambda x: torch.softmax(x, -1),
            "cross_entropy": cross_entropy,
            "linear_cross_entropy": lambda x, weight, targets: cross_entropy(F.linear(x, weight), targets),
            "dropout": lambda x: F.dropout(x, DROPOUT),
            "embedding": lambda weight, ids: F.embedding(ids, weight),
            "residual": lambda x, y: x + y,
        }

    def tensor(self, array: Any, requires_grad: bool = False) -> Any:
        """A tensor."""
        import torch

        return torch.tensor(array, requires_grad=requires_grad)

    def adamw(self, parameters: Sequence[Any]) -> Any:
        """PyTorch's."""
        import torch

        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)

    def clip(self, parameters: Sequence[Any], max_norm: float) -> Any:
        """PyTorch's."""
        import torch

        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)


# ---------------------------------------------------------------------------------------------------------------- work


class Differentiation:
    """Forward and backward of an op, for a random gradient of its output."""

    def __init__(self, library: Library, case: Case, parameters: Shapes):
        self.function = library.functions[case.op]
        arrays = case.arrays()
        self.inputs = {name: library.tensor(a, requires_grad=a.dtype.kind == "f") for name, a in arrays.items()}
        self.differentiated = {name: self.inputs[name] for name, a in arrays.items() if a.dtype.kind == "f"}
        out = self.function(**self.inputs)
        self.gradient = library.tensor(Maker().normal(*out.shape)) if out.shape else None  # a loss starts from 1

    def run(self) -> Any:
        """The output; the gradients are in the inputs' ``.grad``."""
        for x in self.differentiated.values():
            x.grad = None
        out = self.function(**self.inputs)
        out.backward(self.gradient)
        return out

    def results(self) -> Arrays:
        """The output and the gradients."""
        found = {"output": self.run().detach().numpy()}
        return found | {f"gradient of {name}": x.grad.numpy() for name, x in self.differentiated.items()}


class _Gradients:
    """A model's parameters, with gradients."""

    def __init__(self, library: Library, case: Case, parameters: Shapes):
        make = Maker()
        self.parameters = [library.tensor(make.normal(*shape), requires_grad=True) for shape in parameters]
        for parameter in self.parameters:
            parameter.grad = library.tensor(make.normal(*parameter.shape))

    def gradients(self) -> Arrays:
        """The gradients' values."""
        return {f"gradient {i}": p.grad.numpy() for i, p in enumerate(self.parameters)}


class Optimization(_Gradients):
    """An optimizer's step for all parameters of a model, with gradients that stay the same."""

    def __init__(self, library: Library, case: Case, parameters: Shapes):
        super().__init__(library, case, parameters)
        self.optimizer = library.adamw(self.parameters)

    def run(self) -> None:
        """A step."""
        self.optimizer.step()

    def results(self) -> Arrays:
        """The parameters after two steps: the first alone would not show the moments."""
        self.run()
        self.run()
        return {f"parameter {i}": p.detach().numpy() for i, p in enumerate(self.parameters)}


class Clipping(_Gradients):
    """Clipping the gradients of all parameters of a model."""

    def __init__(self, library: Library, case: Case, parameters: Shapes):
        super().__init__(library, case, parameters)
        self.library = library
        self.max_norm = sum(float((g**2).sum()) for g in self.gradients().values()) ** 0.5

    def run(self) -> Any:
        """The norm before; the next clipping is to a smaller one."""
        self.max_norm *= SHRINKING
        return self.library.clip(self.parameters, self.max_norm)

    def results(self) -> Arrays:
        """The norm and the clipped gradients."""
        return {"norm": self.run().numpy(), **self.gradients()}


WORK: dict[str, type[Optimization | Clipping]] = {"AdamW": Optimization, "clip_grad_norm": Clipping}


class OpsSide(Side):
    """A side that works on one case after the other."""

    library: Library

    def prepare(self, case: Case, parameters: Shapes) -> None:
        """Go over to this case, of a model with parameters of these shapes."""
        kind = WORK.get(case.op, Differentiation)
        self.work: Differentiation | Optimization | Clipping = kind(self.library, case, parameters)

    def step(self) -> Any:
        """The case's work once."""
        return self.work.run()

    def results(self) -> Arrays:
        """What the case's work computes, as NumPy arrays."""
        return self.work.results()


class Tinytensor(OpsSide):
    """tinytensor."""

    def __init__(self) -> None:
        super().__init__()
        self.library = TinytensorLibrary()
        self.imported()

    def parameters(self, configuration: str) -> Shapes:
        """The shapes of all parameters of its model."""
        model, _, _ = CONFIGURATIONS[configuration].tinyformer()
        return [p.shape for p in model.parameters()]


class PyTorch(OpsSide, TorchSide):
    """PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.library = PyTorchLibrary()
        self.imported()


# --------------------------------------------------------------------------------------------------------- measurement


def check(case: Case, ours: Arrays, theirs: Arrays) -> None:
    """Raise SideError unless the results agree to rounding; dropped elements are each library's own."""
    for name, a in ours.items():
        b = theirs[name]
        both = _kept_by_both(case, a, b) if case.op == "dropout" else ...
        error, largest = abs(a[both] - b[both]).max(initial=0.0), abs(b).max(initial=0.0)
        if a.shape != b.shape or not error <= 2e-5 * largest:
            raise SideError(f"{case.op}, configuration {case.configuration}: {name} differs by {error:.3g} of {largest:.3g}")


def _kept_by_both(case: Case, a: Any, b: Any) -> Any:
    for x in (a, b):
        share = (x != 0).mean()
        if abs(share - (1 - DROPOUT)) > 0.01:
            raise SideError(f"dropout, configuration {case.configuration}: {share:.3f} were kept")
    return (a != 0) & (b != 0)


def run(chosen: Sequence[Case], turns: int, threads: int) -> dict[str, Any]:
    """Measure every case; everything that the report shows."""
    with ExitStack() as stack:
        with measure.environment(measure.thread_variables(threads)):
            workers = measure.start_all(stack, {OURS: (Tinytensor,), THEIRS: (PyTorch,)})
        rows = []
        for number, case in enumerate(chosen):
            print(f"{number + 1}/{len(chosen)} {case.op}, configuration {case.configuration}", file=sys.stderr)
            rows.append(_measure(workers, case, turns))
        libraries = {name: worker.call("libraries") for name, worker in workers.items()}
    return {"ops": rows, "threads": threads, "libraries": libraries}


def _measure(workers: Mapping[str, Worker], case: Case, turns: int) -> dict[str, Any]:
    parameters = workers[OURS].call("parameters", case.configuration)
    for worker in workers.values():
        worker.call("prepare", case, parameters)
    check(case, workers[OURS].call("results"), workers[THEIRS].call("results"))
    steps = _steps(workers)
    times = measure.take_turns(workers, turns, steps, settle=max(1, steps // 4))
    return {
        "op": case.op,
        "configuration": case.configuration,
        "shapes": case.shapes(parameters),
        "steps": steps,
        "median_ms": {name: 1000 * measure.median(t) for name, t in times.items()},
        "fastest_quartile_ms": {name: 1000 * measure.fastest_quartile(t) for name, t in times.items()},
        "ratio": measure.compare(times[OURS], times[THEIRS]),
    }


def _steps(workers: Mapping[str, Worker]) -> int:
    """So many that a turn takes long enough to be free of what the other side left behind."""
    slowest = max(statistics.median(worker.call("turn", 2, 3)) for worker in workers.values())
    return min(MOST_STEPS, max(2, round(SECONDS_A_TURN / slowest)))


# -------------------------------------------------------------------------------------------------------------- report


def report(results: Mapping[str, Any]) -> str:
    """A row for each case, and what they were measured with."""
    head = ["op", "configuration", "shapes", f"{OURS} ms", f"{THEIRS} ms", "ratio of fastest quartiles", "ratio of medians"]
    rows = [
        [
            row["op"],
            row["configuration"],
            row["shapes"],
            *(f"{row['median_ms'][name]:.3f}" for name in (OURS, THEIRS)),
            f"{row['ratio']['fastest_quartiles']:.2f}",
            f"{row['ratio']['medians']:.2f}",
        ]
        for row in results["ops"]
    ]
    note = f"Forward and backward together, medians; ratios below 1 where {OURS} is faster. Threads: {results['threads']}."
    return "\n\n".join([measure.table(head, rows), note, measure.library_list(results["libraries"])])


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    ops = (*INPUTS, *OPTIMIZERS)
    parser = Parser(
        description="Time forward and backward of single ops of tinytensor beside PyTorch's, in turns. Needs PyTorch: "
        'pip install -e ".[bench]".',
        epilog=f"The ops: {', '.join(ops)}. The configurations are train_step.py's.",
    )
    several: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--configuration", **several, choices=CONFIGURATIONS, default=list(CONFIGURATIONS), help="whose sizes")
    parser.add_argument("--only", **several, choices=ops, default=list(ops), help="these ops")
    parser.add_argument("--turns", type=measure.positive, default=15, metavar="INT", help="turns of each side")
    parser.add_argument("--threads", type=measure.positive, default=1, metavar="INT", help="threads of each library")
    parser.add_argument("--output", type=measure.output_file, metavar="FILE", help="write the results to FILE.md or FILE.json")
    arguments = parser.parse_args(words)
    measure.require(parser, "torch", "threadpoolctl")
    return arguments


@plain_errors()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    chosen = [Case(op, configuration) for op in arguments.only for configuration in arguments.configuration]
    try:
        results = run(chosen, arguments.turns, arguments.threads)
    except SideError as error:
        sys.exit(f"error: {error}")
    title, text = "Single ops, forward and backward", report(results)
    print(f"{title}\n\n{text}")
    if arguments.output:
        measure.write_results(arguments.output, title, text, measure.described(results, "numpy", "torch"))


if __name__ == "__main__":
    main()
