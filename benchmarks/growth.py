"""How the time of a training step grows with the batch, the length, the layers and the threads, beside what arithmetic says.

python benchmarks/growth.py                          # configuration A, PyTorch eager
python benchmarks/growth.py --configuration B --compile --largest-block 512 --output benchmarks/results/growth_B.md

Each line compares two setups, before and after one change, which are measured in turns like the sides of train_step.py; it
shows the time after over the time before, both of the fastest quartile of the steps. The arithmetic is the ratio of their
floating-point operations, as configurations.py counts them, divided by that of their threads. A step that grows by less has
a part that does not grow; one that grows by more has outgrown a cache, say.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import measure
from measure import SideError, Worker
from train_step import Setup, described, make_parser, setup_of, start

from tinyformer.errors import plain_errors


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

    def larger(what: str, before: int, **factor: int) -> Change:
        (times,) = factor.values()
        return Change(f"{what} {before} to {times * before}", base, _with(base, configuration=sizes.times(**factor)))

    found, times = [larger("batch", sizes.batch_size, batch=2)], 2
    while times * sizes.block_size <= largest_block:
        found.append(larger("block", sizes.block_size, block=times))
        times *= 2
    found.append(larger("layers", sizes.num_layers, layers=2))
    found.append(Change("threads 1 to 2", _with(base, threads=1), _with(base, threads=2)))
    return found


def _with(setup: Setup, **values: Any) -> Setup:
    return dataclasses.replace(setup, **values)


def run(change: Change, turns: int, steps: int, warm_up: int) -> dict[str, Any]:
    """For each side, ``measure.compare`` of its times after the change and before, and the time before."""
    with ExitStack() as stack:
        before, _ = start(stack, change.before, warm_up)
        after, _ = start(stack, change.after, warm_up)
        workers: dict[str, Worker] = {}
        for name in before:
            workers |= {f"{name}, before": before[name], f"{name}, after": after[name]}
        times = measure.take_turns(workers, turns, steps)
    return {
        name: {
            **measure.compare(times[f"{name}, after"], times[f"{name}, before"]),
            "fastest_quartile_ms_before": 1000 * measure.fastest_quartile(times[f"{name}, before"]),
        }
        for name in before
    }


def report(results: dict[str, dict[str, Any]]) -> str:
    """One table, and below it the changes that could not be measured."""
    names = list(dict.fromkeys(name for result in results.values() for name in result.get("sides", {})))
    head = ["time after over before", "arithmetic", *names, *(f"{name}, ms before" for name in names)]
    rows = []
    for what, result in results.items():
        if "sides" in result:
            sides = [result["sides"][name] for name in names]
            ratios = [f"{side['fastest_quartiles']:.2f}" for side in sides]
            cells = [*ratios, *(f"{side['fastest_quartile_ms_before']:.1f}" for side in sides)]
        else:
            cells = [""] * (2 * len(names))
        rows.append([what, f"{result['arithmetic']:.2f}", *cells])
    failures = [f"- {what} was not measured: {r['error']}" for what, r in results.items() if "error" in r]
    return "\n\n".join([measure.table(head, rows), *failures])


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with the changes that it describes as ``changes``."""
    parser = make_parser("Time how a training step grows with its size, tinyformer's and PyTorch's.", turns=10)
    longest = "sequences grow up to so many tokens"
    parser.add_argument("--largest-block", type=measure.positive, default=1024, metavar="INT", help=longest)
    arguments = parser.parse_args(words)
    arguments.base = setup_of(arguments)
    arguments.changes = changes(arguments.base, arguments.largest_block)
    measure.require(parser, "torch", "threadpoolctl")
    return arguments


@plain_errors()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    results: dict[str, dict[str, Any]] = {}
    for change in arguments.changes:
        print(change.what, file=sys.stderr)
        result: dict[str, Any] = {"arithmetic": change.arithmetic()}
        try:
            result["sides"] = run(change, arguments.turns, arguments.steps, arguments.warm_up)
        except SideError as error:  # the others are worth having, even where one does not fit into memory
            result["error"] = str(error).strip().splitlines()[-1]
        results[change.what] = result
    title = f"Growth of a training step, configuration {arguments.configuration}"
    text = f"Before: {described(arguments.base.configuration)}\n\n{report(results)}"
    print(f"{title}\n\n{text}")
    if arguments.output:
        everything = measure.described({"base": dataclasses.asdict(arguments.base), "changes": results}, "numpy", "torch")
        measure.write_results(arguments.output, title, text, everything)


if __name__ == "__main__":
    main()
