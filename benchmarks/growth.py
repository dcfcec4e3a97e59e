"""How the time of a training step grows with the batch, the length, the layers and the threads, beside what arithmetic says.

python benchmarks/growth.py --output benchmarks/results

Each line compares two setups, before and after one change, which are measured in turns like the sides of train_step.py. It
shows the time after over the time before, both of the fastest quartile of the steps. The arithmetic is the ratio of their
floating-point operations (configurations.py), divided by that of their threads. A step that grows by less has a part that does
not grow; one that grows by more has outgrown a cache, say.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import measure
from measure import SideError, Times, Worker
from train_step import Setup, make_parser, setup_of, start


@dataclass(frozen=True)
class Change:
    """Two setups that differ in one thing."""

    what: str
    before: Setup
    after: Setup

    def arithmetic(self) -> float:
        """How many times as long a step would take if only its products took time, and threads shared them evenly."""
        operations = self.after.configuration.operations() / self.before.configuration.operations()
        return operations * (self.before.threads or 1) / (self.after.threads or 1)


def changes(base: Setup, largest_block: int) -> list[Change]:
    """A batch twice as large; sequences 2, 4, 8, ... times as long, up to ``largest_block``; twice the layers; two threads
    instead of one."""
    sizes = base.configuration

    def larger(what: str, name: str, times: int = 2) -> Change:
        before = getattr(sizes, name)
        after = replace(sizes, **{name: times * before})
        return Change(f"{what} {before} to {times * before}", base, replace(base, configuration=after))

    doublings = range(1, (largest_block // sizes.block_size).bit_length())
    return [
        larger("batch", "batch_size"),
        *[larger("block", "block_size", 2**n) for n in doublings],
        larger("layers", "num_layers"),
        Change("threads 1 to 2", replace(base, threads=1), replace(base, threads=2)),
    ]


def run(change: Change, turns: int, steps: int, warm_up: int) -> dict[str, tuple[Times, Times]]:
    """For each side, its times before the change and after."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for when, setup in (("before", change.before), ("after", change.after)):
            with measure.environment(measure.thread_variables(setup.threads)):
                started = start(stack, setup.configuration, setup.sides(), warm_up)
            workers |= {f"{name}, {when}": worker for name, worker in started.items()}
        times = measure.take_turns(workers, turns, steps)
    return {name: (times[f"{name}, before"], times[f"{name}, after"]) for name in change.before.sides()}


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser("Time how a training step grows with its size, tinyformer's and PyTorch's.", turns=10)
    longest = "sequences grow up to so many tokens"
    parser.add_argument("--largest-block", type=measure.positive, default=1024, metavar="INT", help=longest)
    return measure.parse(parser, words, "torch", "threadpoolctl")


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    base = setup_of(arguments)
    names = list(base.sides())
    rows, failures = [], []
    for change in changes(base, arguments.largest_block):
        print(change.what, file=sys.stderr)
        cells = [""] * (2 * len(names))
        try:
            times = run(change, arguments.turns, arguments.steps, arguments.warm_up)
        except SideError as error:  # the others are worth having, even where one does not fit into memory
            failures.append(f"- {change.what} was not measured: {str(error).strip().splitlines()[-1]}")
        else:
            ratios = [f"{after.fastest_quartile / before.fastest_quartile:.2f}" for before, after in times.values()]
            cells = [*ratios, *(f"{1000 * before.fastest_quartile:.1f}" for before, _ in times.values())]
        rows.append([change.what, f"{change.arithmetic():.2f}", *cells])
    head = ["time after over before", "arithmetic", *names, *(f"{name}, ms before" for name in names)]
    report = "\n\n".join([f"Before: {base.configuration.described()}", measure.table(head, rows), *failures])
    title, name = f"Growth of a training step, configuration {arguments.configuration}", f"growth_{arguments.configuration}"
    measure.publish(arguments.output, name, title, report, "numpy", "torch")


if __name__ == "__main__":
    main()
