"""One training step of tinyformer's GPT beside PyTorch's: forward, backward, clipping, AdamW, on random tokens.

python benchmarks/train_step.py                      # configuration A, PyTorch eager
python benchmarks/train_step.py --configuration C --compile --output benchmarks/results/train_step_C.md

Both models start from the same weights and see the same batches, and their first losses must agree before anything is
timed. Of the two ratios reported, that of the fastest quartiles compares the libraries on an undisturbed machine; that of
the medians includes its slow spells.

Beside them, as a third side, NumPy runs the step's matrix products and nothing else: the ceiling for any step that
leaves its products to the same BLAS.

Floating-point operations of a step, with N parameters in matrices that multiply (the linear layers and the output layer,
which is the token embedding), T = batch * block tokens, and a multiplication and an addition counted as two:

    6 N T + 12 layers T block width

2 N T for the forward pass and twice that for the backward pass; and in the same way attention's two products, query
keyᵀ and weights value, each 2 T block width a layer, as if it were not causal.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import measure
from measure import Side, SideError, Times, TorchSide, Worker

from tinyformer.command_line import Parser

VOCAB_SIZE = 65
LEARNING_RATE, BETAS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.99), 0.1, 1.0
BATCHES = 16  # different batches, used in turn


@dataclass(frozen=True)
class Configuration:
    """The size of a model and of its batches."""

    num_layers: int
    num_heads: int
    d_model: int
    block_size: int
    batch_size: int

    def model(self) -> dict[str, Any]:
        """The arguments of both libraries' models."""
        return {
            "vocab_size": VOCAB_SIZE,
            "block_size": self.block_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "d_model": self.d_model,
            "dropout": 0.0,
            "bias": False,
        }

    def shape(self) -> str:
        """The model's size in words."""
        return f"{self.num_layers} layers, {self.num_heads} heads, {self.d_model} wide, block {self.block_size}"

    def tokens(self) -> Any:
        """Random ids (batches, batch, length + 1), the same on every call."""
        import numpy

        shape = (BATCHES, self.batch_size, self.block_size + 1)
        return numpy.random.default_rng(0).integers(0, VOCAB_SIZE, shape)

    def matrices(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of every matrix that multiplies activations."""
        d = self.d_model
        return [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)] * self.num_layers + [(VOCAB_SIZE, d)]

    def product_operations(self) -> float:
        """Floating-point operations of these matrices in a step."""
        return 6.0 * sum(n * k for n, k in self.matrices()) * self.batch_size * self.block_size

    def operations(self) -> float:
        """Floating-point operations of a step's matrix products, attention's included: the formula at the top."""
        tokens = self.batch_size * self.block_size
        return self.product_operations() + 12.0 * self.num_layers * tokens * self.block_size * self.d_model


CONFIGURATIONS = {
    "A": Configuration(num_layers=4, num_heads=4, d_model=128, block_size=64, batch_size=12),
    "B": Configuration(num_layers=6, num_heads=6, d_model=192, block_size=128, batch_size=16),
    "C": Configuration(num_layers=6, num_heads=6, d_model=384, block_size=256, batch_size=8),
}


# ------------------------------------------------------------------------------------------------------------- sides


class Tinyformer(Side):
    """The step of tinyformer's own trainer."""

    def __init__(self, configuration: Configuration):
        super().__init__()
        import tinytensor as tt
        from tinyformer.data import Batch
        from tinyformer.gpt import GPT, GPTConfig
        from tinyformer.runs import RunFolder
        from tinyformer.training import Trainer, TrainingConfig

        self.imported()
        tt.seed(0)
        self.model = GPT(GPTConfig(**configuration.model()))
        windows = [tt.tensor(w) for w in configuration.tokens()]
        size = configuration.batch_size * configuration.block_size
        training = TrainingConfig(
            batch_size=configuration.batch_size,
            learning_rate=LEARNING_RATE,
            min_learning_rate=LEARNING_RATE,
            warmup=0,  # with the line above, a constant rate, as on PyTorch's side
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=WEIGHT_DECAY,
            clip=CLIP,
        )
        batches = _Given([Batch(w[:, :-1], w[:, 1:], size) for w in windows])
        self.trainer = Trainer(self.model, batches, training, RunFolder("never-written"))

    def weights(self) -> dict[str, Any]:
        """The model's values as NumPy arrays."""
        return {name: value.numpy() for name, value in self.model.state_dict().items()}

    def step(self) -> Any:
        """A training step; its loss."""
        return self.trainer.train_step()[0]

    def losses(self, steps: int) -> list[float]:
        """The losses of as many steps."""
        return [float(self.step()) for _ in range(steps)]


class _Given:
    """Batches for a trainer, made beforehand: what is compared is the step, not the data."""

    def __init__(self, batches: Sequence[Any]):
        self._next = itertools.cycle(batches)

    def sample(self) -> Any:
        """The next one."""
        return next(self._next)

    def validation_batches(self) -> Any:
        """None."""
        return iter(())

    def get_state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing."""


class PyTorch(TorchSide):
    """The same step in PyTorch, eager or compiled, with its fastest AdamW (``fused``)."""

    def __init__(self, configuration: Configuration, compiled: bool):
        super().__init__()
        import torch
        from torch_gpt import GPT, adamw_for

        self.imported()
        self.model = GPT(**configuration.model())
        self.optimizer = adamw_for(self.model, LEARNING_RATE, BETAS, WEIGHT_DECAY, fused=True)
        self.loss = torch.compile(self.model.loss) if compiled else self.model.loss
        self.clip = torch.nn.utils.clip_grad_norm_
        windows = [torch.tensor(w) for w in configuration.tokens()]
        self.batches = itertools.cycle([(w[:, :-1].contiguous(), w[:, 1:].contiguous()) for w in windows])

    def load(self, weights: dict[str, Any]) -> None:
        """Start from these values."""
        from torch_gpt import load_weights

        load_weights(weights, self.model)

    def step(self) -> Any:
        """A training step; its loss."""
        ids, targets = next(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        loss: Any = self.loss(ids, targets)
        loss.backward()
        self.clip(self.model.parameters(), CLIP)
        self.optimizer.step()
        return loss.detach()

    def losses(self, steps: int) -> list[float]:
        """The losses of as many steps."""
        return [float(self.step()) for _ in range(steps)]


class Products(Side):
    """The step's matrix products alone, of the same shapes and layouts, in NumPy and into memory that is there already."""

    def __init__(self, configuration: Configuration):
        super().__init__()
        import numpy

        self.imported()
        self.numpy = numpy
        rng = numpy.random.default_rng(0)

        def normal(*shape: int) -> Any:
            return rng.standard_normal(shape, dtype="float32")

        tokens = configuration.batch_size * configuration.block_size
        activations = {width: normal(tokens, width) for width in {n for shape in configuration.matrices() for n in shape}}
        self.products = []
        for outputs, inputs in configuration.matrices():
            weight, x, g = normal(outputs, inputs), activations[inputs], activations[outputs]
            for a, b in ((x, weight.T), (g, weight), (g.T, x)):
                self.products.append((a, b, numpy.empty((a.shape[0], b.shape[1]), dtype="float32")))

    def step(self) -> None:
        """Every product once."""
        for a, b, out in self.products:
            self.numpy.matmul(a, b, out=out)


# -------------------------------------------------------------------------------------------------------- measurement

OURS, EAGER, COMPILED, PRODUCTS = "tinyformer", "PyTorch eager", "PyTorch compiled", "matrix products alone"


def run(configuration: Configuration, turns: int, steps: int, warm_up: int, compiled: bool) -> dict[str, Any]:
    """Measure all sides; everything that the report shows."""
    sides: dict[str, tuple[Any, ...]] = {OURS: (Tinyformer, configuration), EAGER: (PyTorch, configuration, False)}
    if compiled:
        sides[COMPILED] = (PyTorch, configuration, True)
    sides[PRODUCTS] = (Products, configuration)
    with ExitStack() as stack:
        workers = measure.start_all(stack, sides)
        rivals = [name for name in sides if name not in (OURS, PRODUCTS)]
        first_loss = _start_together(workers, rivals, warm_up)
        times = measure.take_turns(workers, turns, steps)
        memory = {name: workers[name].call("memory") for name in (OURS, *rivals)}
        libraries = {name: workers[name].call("libraries") for name in (OURS, *rivals)}
    return {
        "first_loss": first_loss,
        "sides": _sides(configuration, times, memory),
        "ratios": {name: measure.compare(times[OURS], times[name]) for name in rivals},
        "libraries": libraries,
    }


def _start_together(workers: dict[str, Worker], rivals: Sequence[str], warm_up: int) -> float:
    """Copy our weights to the others and warm all up; our first loss. Raises SideError where another's first loss differs
    by more than rounding."""
    weights = workers[OURS].call("weights")
    for name in rivals:
        workers[name].call("load", weights)
    losses = {name: workers[name].call("losses", warm_up) for name in (OURS, *rivals)}
    for name in rivals:
        if not math.isclose(losses[OURS][0], losses[name][0], rel_tol=1e-5):
            raise SideError(f"the first losses differ: {losses[OURS][0]} and, of {name}, {losses[name][0]}")
    workers[PRODUCTS].call("turn", warm_up, 1)
    return float(losses[OURS][0])


def _sides(configuration: Configuration, times: dict[str, Times], memory: dict[str, tuple[int, int]]) -> dict[str, Any]:
    ceiling = configuration.product_operations() / measure.fastest_quartile(times[PRODUCTS])
    sides = {}
    for name, seconds in times.items():
        operations = configuration.product_operations() if name == PRODUCTS else configuration.operations()
        speed = operations / measure.fastest_quartile(seconds)
        imported, peak = memory.get(name, (None, None))
        sides[name] = {
            "median_ms": 1000 * measure.median(seconds),
            "fastest_quartile_ms": 1000 * measure.fastest_quartile(seconds),
            "gflops": speed / 1e9,
            "share_of_ceiling": speed / ceiling,
            "imported_bytes": imported,
            "peak_bytes": peak,
        }
    return sides


# ------------------------------------------------------------------------------------------------------------- report


def report(results: dict[str, Any]) -> str:
    """Two tables and what they were measured with."""
    head = ["", "median ms", "fastest quartile ms", "GFLOP/s", "share of ceiling", "peak MB", "MB after imports"]
    rows = [
        [
            name,
            f"{side['median_ms']:.1f}",
            f"{side['fastest_quartile_ms']:.1f}",
            f"{side['gflops']:.0f}",
            f"{side['share_of_ceiling']:.2f}",
            measure.megabytes(side["peak_bytes"]),
            measure.megabytes(side["imported_bytes"]),
        ]
        for name, side in results["sides"].items()
    ]
    ratios = measure.ratio_table(OURS, results["ratios"])
    return "\n\n".join([measure.table(head, rows), ratios, measure.library_list(results["libraries"])])


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    lines = [f"{name}: {c.shape()}, batch {c.batch_size}" for name, c in CONFIGURATIONS.items()]
    parser = Parser(
        description="Time one training step of tinyformer's GPT beside PyTorch's, in turns. Needs PyTorch and threadpoolctl: "
        'pip install "tinytensor[bench]".',
        epilog="The configurations: " + "; ".join(lines) + ". OPENBLAS_NUM_THREADS and OMP_NUM_THREADS limit the threads.",
    )
    parser.add_argument("--configuration", choices=CONFIGURATIONS, default="A", help="the size of the model")
    parser.add_argument("--turns", type=measure.positive, default=30, metavar="INT", help="turns of each side")
    parser.add_argument("--steps", type=measure.positive, default=4, metavar="INT", help="timed steps in a turn")
    parser.add_argument("--warm-up", type=measure.positive, default=5, metavar="INT", help="steps before the first turn")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile, too (needs a C++ compiler)")
    parser.add_argument("--output", type=measure.output_file, metavar="FILE", help="write the results to FILE.md or FILE.json")
    arguments = parser.parse_args(words)
    measure.require(parser, "torch", "threadpoolctl")
    return arguments


def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    configuration = CONFIGURATIONS[arguments.configuration]
    try:
        results = run(configuration, arguments.turns, arguments.steps, arguments.warm_up, arguments.compile)
    except SideError as error:
        sys.exit(f"error: {error}")
    title = f"A training step, configuration {arguments.configuration}"
    text = report(results)
    print(f"{title}\n\n{text}")
    if arguments.output:
        everything = measure.described({"configuration": configuration.__dict__, **results}, "numpy", "torch")
        measure.write_results(arguments.output, title, text, everything)


if __name__ == "__main__":
    main()
