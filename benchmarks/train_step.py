"""One training step of tinyformer beside PyTorch's: forward, backward, clipping, AdamW, on random tokens.

python benchmarks/train_step.py                      # configuration A, a GPT, PyTorch eager
python benchmarks/train_step.py --configuration C --compile --output benchmarks/results/train_step_C.md
python benchmarks/train_step.py --configuration D    # the encoder-decoder, with dropout and label smoothing

Both models start from the same weights and see the same batches, and their first losses, without dropout, must agree before
anything is timed. Of the two ratios reported, that of the fastest quartiles compares the libraries on an undisturbed machine;
that of the medians includes its slow spells.

Beside them, as a third side, NumPy runs the step's matrix products and nothing else, in the faster of two ways: BLAS splits
each product between its threads, or the batch is split between as many threads, each of which computes the products of its
own rows and for which BLAS uses no other (adding up what each finds of a matrix's gradient is left out). That is the ceiling
for any step that leaves its products to the same BLAS.

How many floating-point operations a step has: configurations.py says it.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import measure
from configurations import CONFIGURATIONS, Configuration
from measure import Side, SideError, Times, TorchSide, Worker

from tinyformer.command_line import Parser
from tinyformer.errors import plain_errors

LEARNING_RATE, BETAS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.99), 0.1, 1.0


@dataclass(frozen=True)
class Setup:
    """What is measured: a configuration, whether also with torch.compile, and with how many threads.

    Without ``threads`` the libraries choose. ``shards`` is the trainer's setting; 0 lets it choose.
    """

    configuration: Configuration
    compiled: bool = False
    threads: int | None = None
    shards: int = 0


# ------------------------------------------------------------------------------------------------------------- sides


class Tinyformer(Side):
    """The step of tinyformer's own trainer."""

    def __init__(self, configuration: Configuration, shards: int = 0, dtype: str = "float32"):
        super().__init__()
        import tinytensor as tt
        from tinyformer.data import pairs  # noqa: F401  before imported(), as it is what D needs most of all
        from tinyformer.training.config import TrainingConfig
        from tinyformer.training.evaluation import evaluate
        from tinyformer.training.runs import RunFolder
        from tinyformer.training.trainer import Trainer

        self.imported()
        self.evaluate = evaluate
        tt.seed(0)
        self.model, batches, loss_function = configuration.tinyformer()
        training = TrainingConfig(
            batch_size=configuration.batch_size,
            learning_rate=LEARNING_RATE,
            min_learning_rate=LEARNING_RATE,
            warmup=0,  # with the line above, a constant rate, as on PyTorch's side
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=WEIGHT_DECAY,
            clip=CLIP,
            shards=shards,
            dtype=dtype,
        )
        self.trainer = Trainer(self.model, _Given(batches), training, RunFolder("never-written"), loss_function)

    def weights(self) -> dict[str, Any]:
        """The model's values as NumPy arrays."""
        return {name: value.numpy() for name, value in self.model.state_dict().items()}

    def first_loss(self) -> float:
        """The loss of the first batch, without dropout."""
        trainer = self.trainer
        return self.evaluate(self.model, trainer.batches, trainer.loss_function, trainer.shards)

    def step(self) -> Any:
        """A training step; its loss."""
        return self.trainer.train_step()[0]

    def losses(self, steps: int) -> list[float]:
        """The losses of as many steps."""
        return [float(self.step()) for _ in range(steps)]

    def libraries(self) -> list[str]:
        return _in_shards(self.trainer.shards)


class _Given:
    """Batches for a trainer, made beforehand: what is compared is the step, not the data."""

    def __init__(self, batches: Sequence[Any]):
        self._first = batches[0]
        self._next = itertools.cycle(batches)

    def sample(self) -> Any:
        """The next one."""
        return next(self._next)

    def validation_batches(self) -> Iterator[Any]:
        """The first."""
        return iter([self._first])

    def get_state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing."""


class PyTorch(TorchSide):
    """The same step in PyTorch, eager or compiled, with its fastest AdamW (``fused``); with ``bfloat16`` in automatic mixed
    precision."""

    def __init__(self, configuration: Configuration, compiled: bool, device: str = "cpu", bfloat16: bool = False):
        super().__init__()
        import torch
        from torch_gpt import adamw_for

        self.imported()
        self.torch = torch
        self.model = configuration.pytorch().to(device)
        self.precision = torch.autocast(device, torch.bfloat16, enabled=bfloat16)
        self.optimizer = adamw_for(self.model, LEARNING_RATE, BETAS, WEIGHT_DECAY, fused=True)
        self.loss = torch.compile(self.model.loss) if compiled else self.model.loss
        batches = [tuple([torch.tensor(a, device=device) for a in arrays]) for arrays in configuration.batches()]
        self.first_batch, self.batches = batches[0], itertools.cycle(batches)

    def load(self, weights: dict[str, Any]) -> None:
        """Start from these values."""
        from torch_gpt import load_weights

        load_weights(weights, self.model)

    def first_loss(self) -> float:
        """The loss of the first batch, without dropout."""
        self.model.eval()
        with self.torch.no_grad(), self.precision:
            loss = float(self.loss(*self.first_batch))
        self.model.train()
        return loss

    def step(self) -> Any:
        """A training step; its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision:
            loss: Any = self.loss(*next(self.batches))
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return loss.detach()

    def losses(self, steps: int) -> list[float]:
        """The losses of as many steps."""
        return [float(self.step()) for _ in range(steps)]


Product = tuple[Any, Any, Any]  # two matrices, and the memory for what they make


class Products(Side):
    """The step's matrix products alone, of the same shapes and layouts, in NumPy and into memory that is there already."""

    def __init__(self, configuration: Configuration):
        super().__init__()
        from tinytensor import parallel

        self.imported()
        self.run = parallel.run
        threads = parallel.default_shards()
        # Split by BLAS, all is one shard. With one thread the two ways are the same.
        self.ways = [_products(configuration, shards) for shards in sorted({1, threads})]
        self.shards = self.ways[0]

    def choose(self, trials: int) -> None:
        """Take the faster way from now on."""

        def fastest(way: list[list[Product]]) -> float:
            self.shards = way
            return min(self.turn(1, trials))

        self.shards = min(self.ways, key=fastest)
        self.ways = [self.shards]

    def step(self) -> None:
        """Every product once."""
        self.run(_multiply, self.shards)

    def libraries(self) -> list[str]:
        return _in_shards(len(self.shards))


def _products(configuration: Configuration, shards: int) -> list[list[Product]]:
    """For each shard of the batch all products of a step: every matrix forward, and backward for both gradients."""
    import numpy

    rng = numpy.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype="float32")

    matrices = configuration.matrices()
    activations = {width: normal(configuration.num_tokens(), width) for width in {n for shape in matrices for n in shape}}
    found: list[list[Product]] = [[] for _ in range(shards)]
    for outputs, inputs in matrices:
        weight = normal(outputs, inputs)
        xs, gs = (numpy.array_split(activations[width], shards) for width in (inputs, outputs))
        for shard, x, g in zip(found, xs, gs):
            for a, b in ((x, weight.T), (g, weight), (g.T, x)):
                shard.append((a, b, numpy.empty((a.shape[0], b.shape[1]), dtype="float32")))
    return found


def _multiply(products: list[Product]) -> None:
    import numpy

    for a, b, out in products:
        numpy.matmul(a, b, out=out)


def _in_shards(count: int) -> list[str]:
    """The thread pools as each of so many shards finds them: with several, BLAS uses one thread in each."""
    from tinytensor import parallel

    pools = parallel.run(lambda _: measure.thread_pools(), list(range(count)))[0]
    return pools if count == 1 else [f"{count} shards, a thread each, and in each: {'; '.join(pools)}"]


# -------------------------------------------------------------------------------------------------------- measurement

OURS, EAGER, COMPILED, PRODUCTS = "tinyformer", "PyTorch eager", "PyTorch compiled", "matrix products alone"


def start(stack: ExitStack, setup: Setup, warm_up: int) -> tuple[dict[str, Worker], float]:
    """Workers of tinyformer and its rivals, with the same weights and warm, and the first loss; ``stack`` ends them."""
    sides: dict[str, tuple[Any, ...]] = {
        OURS: (Tinyformer, setup.configuration, setup.shards),
        EAGER: (PyTorch, setup.configuration, False),
    }
    if setup.compiled:
        sides[COMPILED] = (PyTorch, setup.configuration, True)
    with measure.environment(measure.thread_variables(setup.threads)):
        workers = measure.start_all(stack, sides)
    weights = workers[OURS].call("weights")
    for name in rivals(workers):
        workers[name].call("load", weights)
    for worker in workers.values():
        worker.call("forget_peak")  # the weights on their way between processes are no part of training
    first_losses = {name: worker.call("first_loss") for name, worker in workers.items()}
    _check_same("first losses", first_losses)
    losses = {name: worker.call("losses", warm_up)[0] for name, worker in workers.items()}
    if not setup.configuration.dropout:
        _check_same("first losses in training", losses)
    return workers, first_losses[OURS]


def rivals(names: Mapping[str, Any]) -> list[str]:
    """Those of the names that are not ours, nor that of the products."""
    return [name for name in names if name not in (OURS, PRODUCTS)]


def _check_same(what: str, losses: Mapping[str, float]) -> None:
    """Raise SideError where a loss differs from ours by more than rounding."""
    for name, loss in losses.items():
        if not math.isclose(losses[OURS], loss, rel_tol=1e-5):
            raise SideError(f"the {what} differ: {losses[OURS]} and, of {name}, {loss}")


def run(setup: Setup, turns: int, steps: int, warm_up: int) -> dict[str, Any]:
    """Measure all sides; everything that the report shows."""
    with ExitStack() as stack:
        workers, first_loss = start(stack, setup, warm_up)
        memory_of = list(workers)
        with measure.environment(measure.thread_variables(setup.threads)):
            workers |= measure.start_all(stack, {PRODUCTS: (Products, setup.configuration)})
        workers[PRODUCTS].call("choose", warm_up)
        times = measure.take_turns(workers, turns, steps)
        memory = {name: workers[name].call("memory") for name in memory_of}
        libraries = {name: worker.call("libraries") for name, worker in workers.items()}
    return {
        "setup": dataclasses.asdict(setup),
        "operations": setup.configuration.operations(),
        "first_loss": first_loss,
        "sides": _sides(setup.configuration, times, memory),
        "ratios": {name: measure.compare(times[OURS], times[name]) for name in rivals(times)},
        "libraries": libraries,
    }


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


def described(configuration: Configuration) -> str:
    """The size and the arithmetic in a sentence."""
    dropout = f"dropout {configuration.dropout:g}" if configuration.dropout else "no dropout"
    size = f"{configuration.shape()}, batch {configuration.batch_size}, {dropout}"
    return f"{size[0].upper()}{size[1:]}; {configuration.operations() / 1e9:.1f} GFLOP a step."


def make_parser(description: str, turns: int) -> argparse.ArgumentParser:
    """A parser of what every benchmark of training steps asks."""
    lines = [f"{name}: {c.shape()}, batch {c.batch_size}, dropout {c.dropout:g}" for name, c in CONFIGURATIONS.items()]
    parser = Parser(
        description=f'{description} Needs PyTorch and threadpoolctl: pip install -e ".[bench]".',
        epilog="The configurations: " + "; ".join(lines) + ".",
    )
    parser.add_argument("--configuration", choices=CONFIGURATIONS, default="A", help="the size of the model")
    parser.add_argument("--dropout", type=measure.probability, metavar="FLOAT", help="instead of the configuration's own")
    parser.add_argument("--threads", type=measure.positive, metavar="INT", help="threads of every side, instead of all cores")
    shards = "tinyformer's --shards: 1 leaves the threads to BLAS; 0: the trainer's choice"
    parser.add_argument("--shards", type=measure.zero_or_more, default=0, metavar="INT", help=shards)
    parser.add_argument("--turns", type=measure.positive, default=turns, metavar="INT", help="turns of each side")
    parser.add_argument("--steps", type=measure.positive, default=4, metavar="INT", help="timed steps in a turn")
    parser.add_argument("--warm-up", type=measure.positive, default=5, metavar="INT", help="steps before the first turn")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile, too (needs a C++ compiler)")
    parser.add_argument("--output", type=measure.output_file, metavar="FILE", help="write the results to FILE.md or FILE.json")
    return parser


def setup_of(arguments: argparse.Namespace) -> Setup:
    """What the arguments of ``make_parser`` ask for."""
    configuration = CONFIGURATIONS[arguments.configuration]
    if arguments.dropout is not None:
        configuration = dataclasses.replace(configuration, dropout=arguments.dropout)
    return Setup(configuration, arguments.compile, arguments.threads, arguments.shards)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with the setup that it describes as ``setup``."""
    parser = make_parser("Time one training step of tinyformer beside PyTorch's, in turns.", turns=30)
    for name, what in (("batch", "sequences in a batch"), ("block", "tokens in a sequence"), ("layers", "layers")):
        text = f"so many times as many {what} as the configuration has"
        parser.add_argument(f"--{name}-times", type=measure.positive, default=1, metavar="INT", help=text)
    arguments = parser.parse_args(words)
    setup = setup_of(arguments)
    larger = setup.configuration.times(arguments.batch_times, arguments.block_times, arguments.layers_times)
    arguments.setup = dataclasses.replace(setup, configuration=larger)
    measure.require(parser, "torch", "threadpoolctl")
    return arguments


@plain_errors()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    try:
        results = run(arguments.setup, arguments.turns, arguments.steps, arguments.warm_up)
    except SideError as error:
        sys.exit(f"error: {error}")
    title = f"A training step, configuration {arguments.configuration}"
    text = f"{described(arguments.setup.configuration)}\n\n{report(results)}"
    print(f"{title}\n\n{text}")
    if arguments.output:
        measure.write_results(arguments.output, title, text, measure.described(results, "numpy", "torch"))


if __name__ == "__main__":
    main()
