"""A training step on several ranks: measured here on a few, and computed for GPT-2 124M on up to 1024.

python benchmarks/scaling.py --output benchmarks/results

One rank alone, and what two ranks need for a sum of gradients, a barrier and a message, are measured. They are the constants
of a model (step_model.py), whose steps on 2, 3 and 4 ranks then stand beside measured ones: processes that share memory, and
those of MPI, where mpi4py and mpiexec are installed. The same model computes the tables of GPT-2, of this machine's cores and
of GPUs, over networks.

Each measurement has ranks of its own, which end with it: a rank of MPI that waits keeps its core busy.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import measure
import step_model
from configurations import CONFIGURATIONS, Configuration
from measure import SideError, Times
from step_model import GPU, NETWORKS, Job, Network, Processor, Reduction
from train_step import Tinyformer

from tinytensor import distributed
from tinytensor.device.backend import host
from tinytensor.device.cores import cores
from tinytensor.distributed import Communicator

MEASURED = ("A", "C")  # of CONFIGURATIONS
SHARED_MEMORY, MPI = "shared memory", "MPI"
REDUCTIONS: dict[str, Reduction] = {SHARED_MEMORY: step_model.windows, MPI: step_model.ring}
EXCHANGES = 20  # sums, barriers and messages in a turn: each takes a moment only
Seconds = dict[str, list[float]]  # of each call, by what was called
Key = tuple[str, ...]  # ("alone", configuration), ("half", configuration), ("MPI", configuration, ranks), ("MPI",)
Found = dict[Key, dict[str, Times]]

# --------------------------------------------------------------------------------------------------- what ranks measure


def transports() -> dict[str, str | None]:
    """How ranks reach each other, and for MPI the path of mpiexec, if it and mpi4py are installed."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    mpiexec = shutil.which("mpiexec", path=folders)
    found = importlib.util.find_spec("mpi4py") is not None and mpiexec is not None
    return {SHARED_MEMORY: None, **({MPI: mpiexec} if found else {})}


def measured(by: str, ranks: int, function: Callable[..., Seconds], *arguments: Any) -> Seconds:
    """What ``function(ranks, *arguments)`` of this file returns in a new process that leads so many ranks, each with one BLAS
    thread. Raises SideError with what it printed, if it fails."""
    launcher = [transports()[MPI] or "", "-n", str(ranks)] if by == MPI else []
    here = Path(__file__).resolve().parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, **measure.thread_variables(1), "PYTHONPATH": path}
    code = "import scaling; scaling.distributed.lead(scaling.answer)"
    given = pickle.dumps((function.__name__, ranks, *arguments))
    done = subprocess.run([*launcher, sys.executable, "-c", code], input=given, env=variables, capture_output=True)
    if done.returncode:
        raise SideError(f"{function.__name__} on {measure.counted(ranks, 'rank')} by {by} failed:\n{done.stderr.decode()}")
    found: Seconds = json.loads(done.stdout.splitlines()[-1])
    return found


def answer() -> None:
    """In the new process: do what standard input says, and print the seconds."""
    name, *arguments = pickle.load(sys.stdin.buffer)
    print(json.dumps(globals()[name](*arguments)))


def training(ranks: int, configuration: Configuration, warm_up: int, steps: int) -> Seconds:
    """Training steps with a shard on each rank; and as many of the optimizer's alone, if there is one rank."""
    side = Tinyformer(configuration, shards=ranks, workers=ranks)
    try:
        found = {"step": side.turn(warm_up, steps)}
        return found if ranks > 1 else {**found, "update": _timed(side.trainer.optimizer.step, steps)}
    finally:
        side.end()


def exchange(ranks: int, configurations: dict[str, Configuration], times: int) -> Seconds:
    """Sums of the gradients of these models over the ranks, by the models' names; barriers, and messages."""
    shapes = {name: [p.shape for p in c.tinyformer()[0].parameters()] for name, c in configurations.items()}
    with distributed.team(Exchange, workers=ranks) as team:
        sums = {name: team.call_alike("all_reduce", arrays, times) for name, arrays in shapes.items()}
        return {**sums, "barrier": team.call_alike("barrier", times), "message": team.call_alike("message", times)}


class Exchange:
    """What one rank does to measure how it reaches the others."""

    def __init__(self, ranks: Communicator):
        self.ranks = ranks

    def all_reduce(self, shapes: list[tuple[int, ...]], times: int) -> list[float]:
        """The seconds of sums of arrays of these shapes, in float32. All ranks start each at once."""
        arrays = [host.zeros(shape, host.float32) for shape in shapes]
        return _timed(lambda: self.ranks.all_reduce(arrays), times, before=self.ranks.barrier)

    def barrier(self, times: int) -> list[float]:
        """The seconds of barriers."""
        return _timed(self.ranks.barrier, times)

    def message(self, times: int) -> list[float]:
        """The seconds of a small message: half of those there and back."""

        def there_and_back() -> None:
            self.ranks.tell(0)
            self.ranks.gather(0)

        return [seconds / 2 for seconds in _timed(there_and_back, times)]


def _timed(call: Callable[[], Any], times: int, before: Callable[[], Any] = lambda: None) -> list[float]:
    """The seconds of so many calls, after one that is not timed."""
    seconds = []
    for _ in range(times + 1):
        before()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured: these models on up to so many ranks, in so many turns."""

    configurations: Mapping[str, Configuration]
    most_ranks: int
    turns: int
    steps: int
    warm_up: int

    def calls(self) -> dict[Key, tuple[Any, ...]]:
        """The arguments of ``measured`` for everything that is measured."""
        calls: dict[Key, tuple[Any, ...]] = {}
        counts = (self.warm_up, self.steps)
        for name, whole in self.configurations.items():
            half = dataclasses.replace(whole, batch_size=whole.batch_size // 2)
            calls["alone", name] = (SHARED_MEMORY, 1, training, whole, *counts)
            calls["half", name] = (SHARED_MEMORY, 1, training, half, *counts)
            for by in transports():
                for n in range(2, self.most_ranks + 1):
                    calls[by, name, str(n)] = (by, n, training, whole, *counts)
        for by in transports():
            calls[(by,)] = (by, 2, exchange, dict(self.configurations), EXCHANGES)
        return calls

    def measure(self) -> Found:
        """All of it, one after the other, ``turns`` times."""
        found: Found = {}
        for turn in range(self.turns):
            for key, call in self.calls().items():
                print(f"turn {turn + 1} of {self.turns}: {' '.join(key)}", file=sys.stderr, flush=True)
                for what, seconds in measured(*call).items():
                    found.setdefault(key, {}).setdefault(what, Times()).turns.append(seconds)
        return found


# ------------------------------------------------------------------------------------------------------- the constants


@functools.cache
def num_parameters(configuration: Configuration) -> int:
    """Those of tinyformer's model."""
    return sum(p.size for p in configuration.tinyformer()[0].parameters())


def processor_from(job: Job, sequences: int, whole: float, half: float, update: float, shares_updates: bool) -> Processor:
    """One core here, from the seconds of a step of one rank with so many sequences, of one with half of them, and of the
    optimizer's step. What half of the batch takes beyond half of the time is what every step costs."""
    fixed = 2 * half - whole - update
    fixed = min(max(fixed, 0.0), 0.5 * (whole - update))  # noise may make it negative, or more than there is
    speed = sequences * job.operations / (whole - update - fixed)
    return Processor("a core as here", speed, update / job.parameters, fixed, cores(), shares_updates)


def network_from(by: str, job: Job, reducing: float, latency: float) -> Network:
    """The network whose bandwidth makes two ranks' sum of these gradients take so many seconds."""
    moved = REDUCTIONS[by](2, job.gradient_bytes, Network(by, 1.0, 0.0))
    waiting = REDUCTIONS[by](2, job.gradient_bytes, Network(by, float("inf"), latency))
    moving = max(reducing - waiting, 0.1 * reducing)  # noise may make it negative
    return Network(by, moved / moving, latency)


def latency_of(by: str, found: Found) -> float:
    """What a sum waits for: of ranks that share memory barriers, of MPI's messages."""
    return found[(by,)]["barrier" if by == SHARED_MEMORY else "message"].fastest_quartile


def constants(plan: Plan, found: Found, name: str, by: str) -> tuple[Job, Processor, Network]:
    """Those of a configuration and a transport, all from the fastest quartiles."""
    configuration = plan.configurations[name]
    job = step_model.job_of(configuration, num_parameters(configuration))
    whole, half = found["alone", name], found["half", name]["step"].fastest_quartile
    update = whole["update"].fastest_quartile
    step = whole["step"].fastest_quartile
    processor = processor_from(job, configuration.batch_size, step, half, update, by == SHARED_MEMORY)
    return job, processor, network_from(by, job, found[(by,)][name].fastest_quartile, latency_of(by, found))


# ---------------------------------------------------------------------------------------------------------- the report


def exchanges(plan: Plan, found: Found) -> str:
    """What two ranks need to sum gradients, to meet, and to send a message."""
    rows = []
    for by in transports():
        for what, times in found[(by,)].items():
            if what in plan.configurations:
                job = constants(plan, found, what, by)[0]
                what = f"sum of the gradients of {what}, {job.gradient_bytes / 1e6:.1f} MB"
            rows.append([f"{what}, {by}", *times.milliseconds(3)])
    return measure.table(["between two processes", *measure.TIMES], rows)


def beside_measured(plan: Plan, found: Found) -> str:
    """The model beside the measured steps on a few ranks."""
    rows = []
    for name, configuration in plan.configurations.items():
        rows.append([f"{name}, one rank", *found["alone", name]["step"].milliseconds(), *[""] * 5])  # the model is made from it
        for by in transports():
            job, processor, network = constants(plan, found, name, by)
            for n in range(2, plan.most_ranks + 1):
                times = found[by, name, str(n)]["step"]
                modelled = step_model.step(job, processor, network, n, configuration.batch_size, REDUCTIONS[by])
                parts = map(step_model.ms, (modelled.computing, modelled.reducing, modelled.updating, modelled.total))
                error = modelled.total / times.fastest_quartile - 1
                rows.append([f"{name}, {by}, {n}", *times.milliseconds(), *parts, f"{error:+.0%}"])
    head = ["configuration, transport, ranks", *(f"measured {t}" for t in measure.TIMES)]
    return measure.table([*head, "model: computing ms", "reducing", "updating", "in all", "model's error"], rows)


def constants_here(plan: Plan, found: Found) -> str:
    """The model's constants: of one rank alone, and of what joins two."""
    lines = []
    for name in plan.configurations:
        job, processor, _ = constants(plan, found, name, SHARED_MEMORY)
        always, updating = step_model.ms(processor.fixed), step_model.ms(processor.update * job.parameters)
        lines.append(
            f"- {name}, one rank alone: {processor.speed / 1e9:.1f} GFLOP/s forward and backward, {always} ms that every step "
            f"costs, {updating} ms of the optimizer's step"
        )
    for by in transports():
        speeds = [f"{constants(plan, found, name, by)[2].bandwidth / 1e9:.1f} GB/s ({name})" for name in plan.configurations]
        lines.append(f"- {by}: latency {1e6 * latency_of(by, found):.0f} us, bandwidth {', '.join(speeds)}")
    if MPI not in transports():
        lines.append('- MPI was not measured: mpi4py or mpiexec is not installed (pip install "tinytensor[mpi]")')
    return "\n".join(lines)


ABOUT_THE_MODEL = f"""\
All ranks together have the batch of one; each has a shard and one BLAS thread. The model's constants are one rank's alone and
two ranks' sums; it knows no measured step of several ranks. Sums follow the windows of {SHARED_MEMORY}, and with MPI a ring.
The error is that of the whole step, over the fastest quartile that was measured.

What the model leaves out makes it too fast: handing out the batch and waiting for the slowest rank in every step; gradients
that have left the cache before they are summed; cores that share the bandwidth of memory. With more ranks than cores it lets
them share the cores without loss, but the system wakes a rank late, and MPI's ranks compute nothing while they wait and yet
keep a core busy. Where another program uses the machine, the errors say more about that program than about the model."""


def report(plan: Plan, found: Found) -> str:
    """The whole report."""
    largest = list(plan.configurations)[-1]
    measured_core = constants(plan, found, largest, SHARED_MEMORY)[1]
    core = dataclasses.replace(
        measured_core, fixed=0.0, cores=None, shares_updates=False, source=f"measured above, configuration {largest}"
    )
    parts = [
        f"## Measured here, on {measure.counted(cores(), 'core')}",
        exchanges(plan, found),
        constants_here(plan, found),
        "## The model beside what was measured",
        ABOUT_THE_MODEL,
        beside_measured(plan, found),
        "## GPT-2 124M, computed",
        step_model.networks(),
        step_model.gpt2([(core, NETWORKS[:2]), (GPU, NETWORKS)]),
    ]
    return "\n\n".join(parts)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = measure.make_parser("Time a training step on a few ranks, and compute it for many.", turns=4, steps=6, warm_up=2)
    parser.add_argument("--ranks", type=measure.positive, default=4, metavar="INT", help="measure up to so many ranks")
    return measure.parse(parser, words, "threadpoolctl")


@measure.script()
def main() -> None:
    """Measure, compute, print, write and draw."""
    arguments = parse()
    configurations = {name: CONFIGURATIONS[name] for name in MEASURED}
    plan = Plan(configurations, arguments.ranks, arguments.turns, arguments.steps, arguments.warm_up)
    text = report(plan, plan.measure())
    measure.publish(arguments.output, "scaling", "A training step on many ranks", text, "numpy", "mpi4py", "mpich")


if __name__ == "__main__":
    main()
