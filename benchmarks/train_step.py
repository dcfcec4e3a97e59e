"""One training step of tinyformer beside PyTorch's: forward, backward, clipping, AdamW, on random tokens.

python benchmarks/train_step.py                      # configuration A, a GPT, PyTorch eager
python benchmarks/train_step.py --configuration C --compile --output benchmarks/results
python benchmarks/train_step.py --busy 1             # while another program uses the machine, too
python benchmarks/train_step.py --workers 2          # two processes of tinyformer beside two threads of it
python benchmarks/train_step.py --without            # also tinyformer without each of its optimizations

Both models start from the same weights and see the same batches. Their first losses must agree before anything is timed. The
ratio of the fastest quartiles compares the libraries on an undisturbed machine. The ratio of the medians includes its slow
moments.

The last sides compute only the step's matrix products: NumPy's BLAS, tinytensor's kernels and PyTorch. The fastest of them is
the upper limit for any step. NumPy and tinytensor use the faster of two ways: each product is split between threads, or each
thread computes the products of its shard of the batch.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import measure
from configurations import CONFIGURATIONS, Configuration
from measure import Side, SideError, TorchSide, Worker

OPTIMIZER = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "clip": 1.0}
TRAINING: dict[str, Any] = {**OPTIMIZER, "min_learning_rate": 1e-3, "warmup": 0}  # for both, with a constant learning rate
OURS, EAGER, COMPILED = "tinyformer", "PyTorch eager", "PyTorch compiled"
ALONE = "matrix products alone"
PRODUCTS = {ALONE: "numpy", f"{ALONE}, tinytensor": "tinytensor", f"{ALONE}, PyTorch": "torch"}


ATTENTION = "tinytensor.functional.attention"
UNFUSED = {  # fused ops to replace by their reference implementations
    "layer norm not fused": ["tinytensor.functional.layer_norm"],
    "gelu not fused": ["tinytensor.ops.activations._gelu_tanh"],
    "attention not fused": [f"{ATTENTION}._multi_head_attention", f"{ATTENTION}._attention"],
}


def sides_of(configuration: Configuration, compiled: bool = False, workers: int = 1, slower: bool = False) -> measure.Sides:
    """Return tinyformer, whose time is compared with all others, and PyTorch, also ``compiled``. With several ``workers``
    (processes) the same number of threads is a side, and ``slower`` adds tinyformer without each optimization."""
    ours: dict[str, tuple[Any, ...]] = {OURS: (Tinyformer, configuration)}
    if workers > 1:
        threads = (Tinyformer, configuration, workers)  # as many shards
        ours = {f"{OURS}, {workers} processes": (*threads, "float32", workers), OURS: threads}
    theirs = {name: (PyTorch, configuration, name == COMPILED) for name in (EAGER, COMPILED)[: 1 + compiled]}
    without = {
        "freed memory given back": (measure.made_in, {"TINYTENSOR_KEEP_MEMORY": "0"}, *ours[OURS]),
        "batch not cut into shards": (Tinyformer, configuration, 1),
        **{name: (unfused, ops, configuration) for name, ops in UNFUSED.items()},
    }
    (name, side), *_ = ours.items()
    return {**ours, **theirs, **(without if slower else {}), **measure.with_numpys_kernels(name, *side)}


class Training(Side):
    """A side whose step is a training step and returns the loss."""

    def losses(self, steps: int) -> list[float]:
        """Take ``steps`` steps and return their losses."""
        return [float(self.step()) for _ in range(steps)]


class Tinyformer(Training):
    """The step of tinyformer's trainer, with its shards in threads, or divided among ``workers`` processes."""

    def __init__(self, configuration: Configuration, shards: int = 0, dtype: str = "float32", workers: int = 1):
        import tinytensor as tt
        from tinyformer.training.config import TrainingConfig
        from tinyformer.training.evaluation import evaluate
        from tinyformer.training.run_folder import RunFolder
        from tinyformer.training.trainer import Trainer
        from tinytensor.parallel import one_blas_thread

        self.imported()
        self.evaluate, self.one_blas_thread = evaluate, one_blas_thread
        tt.seed(0)
        self.model, batches, loss_function = configuration.tinyformer()
        sizes: dict[str, Any] = {"batch_size": configuration.batch_size, "shards": shards, "dtype": dtype}
        training = TrainingConfig(**TRAINING, **sizes, workers=workers)
        # Batches made in advance: the benchmark compares steps, not data loading.
        data: Any = SimpleNamespace(sample=itertools.cycle(batches).__next__, validation_batches=lambda: iter(batches[:1]))
        self.trainer = Trainer(self.model, data, training, RunFolder("never-written"), loss_function)
        self._ranks = ExitStack()
        self._ranks.enter_context(self.trainer.on_all_ranks())

    def end(self) -> None:
        self._ranks.close()

    def memory_of_ranks(self) -> list[dict[str, int]]:
        """Return the ``status`` of the other ranks' processes. Empty except on Linux."""
        return [measure.status(pid) for pid in measure.child_processes()]

    def weights(self) -> dict[str, Any]:
        """Return the model's parameters as NumPy arrays."""
        return {name: value.numpy() for name, value in self.model.state_dict().items()}

    def load(self, weights: Mapping[str, Any]) -> None:
        """Keep the weights: the same seed made them."""

    def first_loss(self) -> float:
        """Return the loss of the first batch without dropout."""
        trainer = self.trainer
        return self.evaluate(self.model, trainer.batches, trainer.loss_function, trainer.shards)

    def step(self) -> Any:
        return self.trainer.train_step()[0]

    def libraries(self) -> list[str]:
        if self.trainer.workers == 1:
            return in_shards(self.trainer.shards)
        with self.one_blas_thread():  # as in a step
            return [f"{self.trainer.workers} processes, and in each: {'; '.join(measure.thread_pools())}"]


def unfused(ops: Sequence[str], configuration: Configuration) -> Tinyformer:
    """Make a side of tinyformer with the reference implementations of these ops."""
    for path in ops:
        name, _, op = path.rpartition(".")
        module = importlib.import_module(name)
        setattr(module, op, getattr(module, op).reference)
    return Tinyformer(configuration)


class TorchTraining(TorchSide):
    """A side that trains the same model in PyTorch, with its fastest AdamW (``fused``)."""

    def __init__(self) -> None:
        import torch
        import torch_models

        self.imported()
        self.torch, self.twins = torch, torch_models

    def train_with(self, model: Any, training: Mapping[str, Any]) -> None:
        """Set the model to train, with the settings of a ``TrainingConfig``."""
        betas = training["beta1"], training["beta2"]
        self.model, self.clip = model, training["clip"]
        self.optimizer = self.twins.adamw_for(model, training["learning_rate"], betas, training["weight_decay"], fused=True)

    def update(self, loss_of_batch: Callable[[], Any]) -> Any:
        """Take a training step and return the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of_batch()
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss.detach()


class PyTorch(Training, TorchTraining):
    """The same step in PyTorch. ``bfloat16`` is automatic mixed precision."""

    def __init__(self, configuration: Configuration, compiled: bool, bfloat16: bool = False, device: str = "cpu"):
        super().__init__()
        torch = self.torch
        self.train_with(configuration.pytorch().to(device), TRAINING)
        self.precision = torch.autocast(device, torch.bfloat16, enabled=bfloat16)
        self.loss = torch.compile(self.model.loss) if compiled else self.model.loss
        batches = [tuple([torch.tensor(a, device=device) for a in arrays]) for arrays in configuration.batches()]
        self.first_batch, self.batches = batches[0], itertools.cycle(batches)

    def load(self, weights: Mapping[str, Any]) -> None:
        """Load these weights."""
        self.twins.load_weights(weights, self.model)

    def first_loss(self) -> float:
        """Return the loss of the first batch without dropout."""
        self.model.eval()
        with self.torch.no_grad():
            loss = float(self.loss_of(self.first_batch))
        self.model.train()
        return loss

    def loss_of(self, batch: Sequence[Any]) -> Any:
        """Return the loss of a batch in the chosen precision."""
        with self.precision:
            return self.loss(*batch)

    def step(self) -> Any:
        return self.update(lambda: self.loss_of(next(self.batches)))


Product = tuple[Any, Any, Any]  # two matrices, and the memory for their product


class Products(Side):
    """Only the step's matrix products, with the same shapes and layouts, in one of the libraries."""

    def __init__(self, configuration: Configuration, library: str = "numpy"):
        from tinytensor import parallel

        self.run = parallel.run
        convert, self.multiply = _multiplication(library)
        # With one shard BLAS splits each product. With one thread both ways are the same.
        counts = {1} if library == "torch" else {1, parallel.default_shards()}
        self.shards = min([_products(configuration, shards, convert) for shards in sorted(counts)], key=self.fastest)

    def fastest(self, shards: list[list[Product]]) -> float:
        """Return the seconds of the fastest of five steps with these shards."""
        self.shards = shards
        return min(self.turn(settle=1, steps=5))

    def step(self) -> None:
        self.run(self.all_of, self.shards)

    def all_of(self, products: list[Product]) -> None:
        """Compute the products of one shard."""
        for a, b, out in products:
            self.multiply(a, b, out=out)

    def libraries(self) -> list[str]:
        return in_shards(len(self.shards))


def _multiplication(library: str) -> tuple[Callable[[Any], Any], Callable[..., Any]]:
    """Return the library's conversion from NumPy, and its product of two matrices into ``out``."""
    if library == "torch":
        import torch

        return torch.from_numpy, torch.mm
    import numpy

    from tinytensor import kernels

    return numpy.asarray, numpy.matmul if library == "numpy" else kernels.matmul


def _products(configuration: Configuration, shards: int, convert: Callable[[Any], Any] = lambda x: x) -> list[list[Product]]:
    """Return the products of a step by shard: every matrix forward, and backward for both gradients."""
    import numpy

    rng = numpy.random.default_rng(0)
    matrices, tokens = configuration.matrices(), configuration.num_tokens()
    widths = {width for shape in matrices for width in shape}
    activations = {width: rng.standard_normal((tokens, width), "float32") for width in widths}
    products: list[list[Product]] = [[] for _ in range(shards)]
    for outputs, inputs in matrices:
        weight = rng.standard_normal((outputs, inputs), "float32")
        xs, gs = (numpy.array_split(activations[width], shards) for width in (inputs, outputs))
        for shard, x, g in zip(products, xs, gs):
            for a, b in ((x, weight.T), (g, weight), (g.T, x)):
                shard.append((convert(a), convert(b), convert(numpy.empty((a.shape[0], b.shape[1]), "float32"))))
    return products


def in_shards(count: int) -> list[str]:
    """Return the thread pools seen by each shard. With several shards BLAS uses one thread in each."""
    from tinytensor import parallel

    pools = parallel.run(lambda _: measure.thread_pools(), list(range(count)))[0]
    return pools if count == 1 else [f"{count} shards, a thread each, and in each: {'; '.join(pools)}"]


def start(
    stack: ExitStack,
    configuration: Configuration,
    sides: measure.Sides,
    warm_up: int,
    rounding: Mapping[str, float] | None = None,
    attempt: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    when_warm: Callable[[str, Worker], None] = lambda name, worker: None,
) -> dict[str, Worker]:
    """Start workers with the first one's weights, check that their first losses agree up to ``rounding``, and warm them up.

    Each is started in ``attempt(name)``, and ``when_warm(name, worker)`` is called before the next one starts. ``stack`` ends
    them. Raises SideError if a loss differs, or if the first worker cannot be started.
    """
    workers: dict[str, Worker] = {}
    weights: Any = None
    expected: list[float] = []
    for name, side in sides.items():
        with attempt(name), ExitStack() as until_warm:
            worker = until_warm.enter_context(Worker(name, *side))
            if weights:
                worker.call("load", weights)
            weights = weights or worker.call("weights")
            losses = [worker.call("first_loss"), *worker.call("losses", warm_up)]
            worker.call("forget_peak")  # moving weights and compiling are not part of training
            losses = losses[: 1 if configuration.dropout else 2]  # in training, elements are dropped at random
            expected = expected or losses
            check_losses(name, losses, expected, (rounding or {}).get(name, 1e-5))
            when_warm(name, worker)
            workers[name] = worker
            stack.push(until_warm.pop_all())
        if not workers:
            raise SideError(f"cannot compare without {name}")
    return workers


def check_losses(name: str, losses: Sequence[float], expected: Sequence[float], rounding: float) -> None:
    """Raise SideError if the losses differ by more than rounding."""
    for a, b in zip(losses, expected, strict=True):
        if not math.isclose(a, b, rel_tol=rounding):
            raise SideError(f"the first losses differ: {name} has {a}, {OURS} has {b}")


def run(configuration: Configuration, sides: measure.Sides, turns: int, steps: int, warm_up: int) -> str:
    """Measure all sides (the first is ours), and return a table, the ratios, and the libraries."""
    with ExitStack() as stack:
        workers = start(stack, configuration, sides, warm_up, dict.fromkeys(UNFUSED, 1e-4))
        workers |= measure.start_all(stack, {name: (Products, configuration, library) for name, library in PRODUCTS.items()})
        times = measure.take_turns(workers, turns, steps)
        libraries = measure.library_list(workers)
        ours, *rivals = sides
        memory = {name: workers[name].call("memory") for name in sides}
        ranks = workers[ours].call("memory_of_ranks")
    operations = {
        **dict.fromkeys(sides, configuration.operations()),
        **dict.fromkeys(PRODUCTS, configuration.product_operations()),
    }
    speeds = {name: operations[name] / times[name].fastest_quartile for name in times}
    ceiling = max(speeds[name] for name in PRODUCTS)
    head = ["", *measure.TIMES, "GFLOP/s", "share of ceiling", "peak MB", "MB after imports"]
    rows = []
    for name, speed in speeds.items():
        bytes_held = map(measure.megabytes, memory.get(name, (None, None)))
        rows.append([name, *times[name].milliseconds(), f"{speed / 1e9:.0f}", f"{speed / ceiling:.2f}", *bytes_held])
    ratios = measure.ratio_table(times, ours, rivals)
    lines = [libraries, *(memory_line(rank, memory) for rank, memory in enumerate(ranks, 1) if memory)]
    return "\n\n".join([measure.table(head, rows), ratios, "\n".join(lines)])


def memory_line(rank: int, memory: Mapping[str, int]) -> str:
    """Describe the memory of a rank other than the first."""
    peak, shared = (measure.megabytes(memory[name]) for name in ("VmHWM", "RssShmem"))
    return f"- memory of rank {rank} (rank 0: see the table): peak {peak} MB; after the steps all ranks share {shared} MB of it"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    about = "Time one training step of tinyformer beside PyTorch's, in turns."
    parser = measure.make_parser(about, CONFIGURATIONS, turns=30, steps=4, warm_up=5)
    parser.add_argument("--dropout", type=measure.fraction, metavar="FLOAT", help="replace the configuration's dropout")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile, too (needs a C++ compiler)")
    beside = "run this many busy processes at the same time"
    parser.add_argument("--busy", type=measure.positive, default=0, metavar="INT", help=beside)
    processes = "also measure tinyformer with this many processes, and with as many threads"
    parser.add_argument("--workers", type=measure.positive, default=1, metavar="INT", help=processes)
    slower = "also measure tinyformer without each of its optimizations"
    parser.add_argument("--without", action="store_true", help=slower)
    parser.has_no_effect("without", lambda arguments: arguments.workers > 1, "with --workers")
    return measure.parse(parser, words, "torch", "threadpoolctl")


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    configuration = CONFIGURATIONS[arguments.configuration]
    if arguments.dropout is not None:
        configuration = dataclasses.replace(configuration, dropout=arguments.dropout)
    sides = sides_of(configuration, arguments.compile, arguments.workers, arguments.without)
    title, name = f"A training step, configuration {arguments.configuration}", f"train_step_{arguments.configuration}"
    name += "_dropout" * (arguments.dropout is not None) + f"_busy_{arguments.busy}" * bool(arguments.busy)
    name += f"_workers_{arguments.workers}" * (arguments.workers > 1) + "_without" * arguments.without
    title += f", {arguments.workers} processes" * (arguments.workers > 1)
    title += f", beside {measure.counted(arguments.busy, 'busy program')} of one thread each" * bool(arguments.busy)
    with measure.busy(arguments.busy):
        report = run(configuration, sides, arguments.turns, arguments.steps, arguments.warm_up)
    measure.publish(arguments.output, name, title, f"{configuration.described()}\n\n{report}", "numpy", "torch")


if __name__ == "__main__":
    main()
