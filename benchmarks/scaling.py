"""A training step on several ranks: measured here on a few, and computed for GPT-2 124M on up to 1024.

python benchmarks/scaling.py --output benchmarks/results --picture benchmarks/results/scaling.png

One rank alone, a sum of gradients over two, and a barrier are measured. They are the constants of a model (step_model.py),
whose steps on 2, 3 and 4 ranks then stand beside measured ones: processes that share memory, and those of MPI, where mpi4py and
mpiexec are installed. The same model computes the tables of GPT-2, of this machine's cores and of GPUs, over networks.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import measure
import ranks
import step_model
from configurations import CONFIGURATIONS, GPU_GPTS, Configuration, Sizes
from measure import Times
from ranks import MPI, SHARED_MEMORY
from step_model import GPU, NETWORKS, Job, Network, Processor, Reduction

from tinytensor.cores import cores

MEASURED = ("A", "C")  # of CONFIGURATIONS
REDUCTIONS: dict[str, Reduction] = {SHARED_MEMORY: step_model.windows, MPI: step_model.ring}
EXCHANGES = 20  # sums, barriers and messages in a turn: each takes a moment only
GPT2 = GPU_GPTS["GPT-2 124M"]
GPT2_PARAMETERS = 124_439_808  # with its own vocabulary of 50257
WEAK, STRONG = 8, 480  # sequences: of each rank, and of nanoGPT's whole batch
RANKS = [2**n for n in range(11)]

Key = tuple[str, ...]  # ("alone", configuration), ("half", configuration), ("MPI", configuration, ranks), ("MPI",)
Found = dict[Key, dict[str, Times]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured: these models on up to so many ranks, in so many turns."""

    configurations: Mapping[str, Configuration]
    most_ranks: int
    turns: int
    steps: int
    warm_up: int

    def calls(self) -> dict[Key, tuple[object, ...]]:
        """The arguments of ``ranks.measured`` for everything that is measured."""
        calls: dict[Key, tuple[object, ...]] = {}
        counts = (self.warm_up, self.steps)
        for name, whole in self.configurations.items():
            half = dataclasses.replace(whole, batch_size=whole.batch_size // 2)
            calls["alone", name] = (SHARED_MEMORY, 1, ranks.alone, whole, *counts)
            calls["half", name] = (SHARED_MEMORY, 1, ranks.alone, half, *counts)
            for by in ranks.transports():
                for n in range(2, self.most_ranks + 1):
                    calls[by, name, str(n)] = (by, n, ranks.together, whole, n, *counts)
        for by in ranks.transports():
            calls[(by,)] = (by, 2, ranks.exchange, 2, dict(self.configurations), EXCHANGES)
        return calls

    def measure(self) -> Found:
        """All of it, one after the other, ``turns`` times."""
        found: Found = {}
        for turn in range(self.turns):
            for key, call in self.calls().items():
                print(f"turn {turn + 1} of {self.turns}: {' '.join(key)}", file=sys.stderr, flush=True)
                for what, seconds in ranks.measured(*call).items():  # type: ignore[arg-type]
                    found.setdefault(key, {}).setdefault(what, Times()).turns.append(seconds)
        return found


# ------------------------------------------------------------------------------------------------------- the constants


def job_of(configuration: Sizes, parameters: int) -> Job:
    """The arithmetic of a step."""
    return Job(parameters, configuration.operations() / configuration.batch_size)


@functools.cache
def num_parameters(configuration: Configuration) -> int:
    """Those of tinyformer's model."""
    return sum(p.size for p in configuration.tinyformer()[0].parameters())


def processor_from(job: Job, sequences: int, whole: float, half: float, update: float, shares_updates: bool) -> Processor:
    """One core here, from the seconds of a step of one rank with so many sequences, of one with half of them, and of the
    optimizer's step. What a step with half of the batch takes too long for is what every step costs."""
    fixed = min(max(2 * half - whole - update, 0.0), 0.5 * (whole - update))
    speed = sequences * job.operations / (whole - update - fixed)
    return Processor("a core as here", speed, update / job.parameters, fixed, cores(), shares_updates)


def network_from(by: str, job: Job, reducing: float, latency: float) -> Network:
    """The network whose bandwidth makes two ranks' sum of these gradients take so many seconds."""
    moved = REDUCTIONS[by](2, job.gradient_bytes, Network(by, 1.0, 0.0))
    waiting = REDUCTIONS[by](2, job.gradient_bytes, Network(by, float("inf"), latency))
    return Network(by, moved / max(reducing - waiting, 0.1 * reducing), latency)


def latency_of(by: str, found: Found) -> float:
    """What a sum waits for: of ranks that share memory barriers, of MPI's messages."""
    return found[(by,)]["barrier" if by == SHARED_MEMORY else "message"].fastest_quartile


def constants(plan: Plan, found: Found, name: str, by: str) -> tuple[Job, Processor, Network]:
    """Those of a configuration and a transport, all from the fastest quartiles."""
    configuration = plan.configurations[name]
    job = job_of(configuration, num_parameters(configuration))
    whole, half = found["alone", name], found["half", name]["step"].fastest_quartile
    update = whole["update"].fastest_quartile
    step = whole["step"].fastest_quartile
    processor = processor_from(job, configuration.batch_size, step, half, update, by == SHARED_MEMORY)
    return job, processor, network_from(by, job, found[(by,)][name].fastest_quartile, latency_of(by, found))


# ---------------------------------------------------------------------------------------------------------- the report


def ms(seconds: float) -> str:
    """Milliseconds to about three digits."""
    return f"{1000 * seconds:.{0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 3 if seconds < 0.001 else 2}f}"


def exchanges(plan: Plan, found: Found) -> str:
    """What two ranks need to sum gradients, to meet, and to send a message."""
    rows = []
    for by in ranks.transports():
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
        for by in ranks.transports():
            job, processor, network = constants(plan, found, name, by)
            for n in range(2, plan.most_ranks + 1):
                times = found[by, name, str(n)]["step"]
                modelled = step_model.step(job, processor, network, n, configuration.batch_size, REDUCTIONS[by])
                parts = map(ms, (modelled.computing, modelled.reducing, modelled.updating, modelled.total))
                error = modelled.total / times.fastest_quartile - 1
                rows.append([f"{name}, {by}, {n}", *times.milliseconds(), *parts, f"{error:+.0%}"])
    head = ["configuration, transport, ranks", *(f"measured {t}" for t in measure.TIMES)]
    return measure.table([*head, "model: computing ms", "reducing", "updating", "in all", "model's error"], rows)


def constants_here(plan: Plan, found: Found) -> str:
    """What was measured of one rank alone."""
    lines = []
    for name in plan.configurations:
        job, processor, _ = constants(plan, found, name, SHARED_MEMORY)
        lines.append(
            f"- {name}, one rank alone: {processor.speed / 1e9:.1f} GFLOP/s forward and backward, {ms(processor.fixed)} ms "
            f"that every step costs, {ms(processor.update * job.parameters)} ms of the optimizer's step"
        )
    for by in ranks.transports():
        speeds = [f"{constants(plan, found, name, by)[2].bandwidth / 1e9:.1f} GB/s ({name})" for name in plan.configurations]
        lines.append(f"- {by}: latency {1e6 * latency_of(by, found):.0f} us, bandwidth {', '.join(speeds)}")
    if MPI not in ranks.transports():
        lines.append('- MPI was not measured: mpi4py or mpiexec is not installed (pip install "tinytensor[mpi]")')
    return "\n".join(lines)


def rows_of_gpt2(processor: Processor, network: Network) -> list[list[str]]:
    """For every number of ranks: the milliseconds of both sums and of computing, and how well ranks are used."""
    job = job_of(GPT2, GPT2_PARAMETERS)
    rows = []
    for n in RANKS:
        row = [str(n), *(ms(way(n, job.gradient_bytes, network)) for way in (step_model.ring, step_model.tree))]
        for sequences, alone in ((WEAK * n, WEAK), (STRONG, STRONG)):
            seconds_alone = step_model.step(job, processor, network, 1, alone).total
            together = step_model.step(job, processor, network, n, sequences)
            row.append(ms(together.computing))
            for seconds in (together.total, together.overlapped):
                row.append(f"{100 * step_model.efficiency(sequences, n, seconds, alone, seconds_alone):.1f}")
        rows.append(row)
    return rows


Places = Sequence[tuple[Processor, Sequence[Network]]]  # what computes on each rank, and the networks it is tabulated with


def gpt2(places: Places) -> str:
    """The tables of GPT-2 124M."""
    job = job_of(GPT2, GPT2_PARAMETERS)
    head = ["ranks", "ring ms", "tree ms"]
    for kind in (f"{WEAK} a rank:", f"{STRONG} in all:"):
        head += [f"{kind} computing ms", f"{kind} used %", f"{kind} used % if overlapped"]
    parts = [
        f"{GPT2_PARAMETERS:,} parameters, so {job.gradient_bytes / 1e6:.0f} MB of float32 gradients to sum in a step; "
        f"sequences of {GPT2.block_size} tokens, {job.operations / 1e12:.3f} TFLOP each. Either every rank has {WEAK} "
        f"sequences (weak scaling), or nanoGPT's batch of {STRONG} is divided (strong scaling; some ranks get a sequence more "
        f"than others, and ranks beyond {STRONG} none). Used: sequences a second and rank, in percent of those of one rank "
        "alone, with the faster of ring and tree. Overlapped is the bound where reducing hides behind the backward pass; "
        "tinyformer does one after the other."
    ]
    for processor, joined_by in places:
        told = f"{processor.speed / 1e9:,.0f} GFLOP/s, {ms(processor.update * GPT2_PARAMETERS)} ms for the optimizer's step"
        parts.append(f"### Each rank has {processor.name}: {told} ({processor.source})")
        for network in joined_by:
            parts += [network.name, measure.table(head, rows_of_gpt2(processor, network))]
    return "\n\n".join(parts)


def networks() -> str:
    """The constants of the networks."""
    rows = [[n.name, f"{n.bandwidth / 1e9:g}", f"{1e6 * n.latency:g}"] for n in NETWORKS]
    sources = [f"- {n.name}: {n.source}." for n in NETWORKS]
    return "\n".join([measure.table(["network", "GB/s", "latency us"], rows), "", *sources])


def draw(path: Path, places: Places) -> None:
    """Draw how well ranks are used, over their number, to a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    titles = (f"{WEAK} sequences a rank", f"{STRONG} sequences in all")
    for axes, title, column in zip(panels, titles, (4, 7)):
        for (processor, joined_by), style in zip(places, ("--", "-")):
            for network, color in zip(joined_by, ("#dc2626", "#d97706", "#2563eb")):
                used = [float(row[column]) for row in rows_of_gpt2(processor, network)]
                axes.plot(RANKS, used, style, color=color, marker="o", markersize=3, label=f"{processor.name}, {network.name}")
        axes.set_xscale("log", base=2)
        axes.set_xticks(RANKS, [str(n) for n in RANKS])
        axes.set_ylim(0, 105)
        axes.set_xlabel("ranks")
        axes.set_title(title)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("used, % of one rank alone")
    panels[0].legend(frameon=False, fontsize=8)
    figure.suptitle("GPT-2 124M, computed: no overlap of reducing with computing")
    figure.savefig(path, dpi=120)


ABOUT_THE_MODEL = f"""\
All ranks together have the batch of one; each has a shard and one BLAS thread. The model's constants are one rank's alone and
two ranks' sums; it knows no measured step of several ranks. Sums follow the windows of {SHARED_MEMORY}, and with MPI a ring.
The error is that of the whole step, over the fastest quartile that was measured.

What the model leaves out makes it too fast: handing out the batch and waiting for the slowest rank in every step; gradients
that have left the cache before they are summed; cores that share the bandwidth of memory. With more ranks than cores it lets
them share the cores without loss, but the system wakes a rank late, and MPI's ranks compute nothing while they wait and yet
keep a core busy. Where another program uses the machine, the errors say more about that program than about the model."""


def report(plan: Plan, found: Found) -> tuple[str, Places]:
    """The whole report, and what GPT-2's tables are about."""
    largest = list(plan.configurations)[-1]
    measured_core = constants(plan, found, largest, SHARED_MEMORY)[1]
    core = dataclasses.replace(
        measured_core, fixed=0.0, cores=None, shares_updates=False, source=f"measured above, configuration {largest}"
    )
    places = [(core, NETWORKS[:2]), (GPU, NETWORKS)]
    parts = [
        f"## Measured here, on {measure.counted(cores(), 'core')}",
        exchanges(plan, found),
        constants_here(plan, found),
        "## The model beside what was measured",
        ABOUT_THE_MODEL,
        beside_measured(plan, found),
        "## GPT-2 124M, computed",
        networks(),
        gpt2(places),
    ]
    return "\n\n".join(parts), places


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = measure.make_parser("Time a training step on a few ranks, and compute it for many.", turns=4, steps=6, warm_up=2)
    parser.add_argument("--ranks", type=measure.positive, default=4, metavar="INT", help="measure up to so many ranks")
    parser.add_argument("--picture", type=picture, metavar="FILE.png", help="draw how well ranks are used (needs matplotlib)")
    return measure.parse(parser, words, "threadpoolctl")


def picture(text: str) -> Path:
    """The type of a flag that names a picture: what is wrong with it is found out before anything is measured."""
    path = Path(text)
    if path.suffix != ".png" or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .png, or its folder does not exist")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError('matplotlib is not installed: pip install "tinytensor[plot]"')
    return path


@measure.script()
def main() -> None:
    """Measure, compute, print, write and draw."""
    arguments = parse()
    configurations = {name: CONFIGURATIONS[name] for name in MEASURED}
    plan = Plan(configurations, arguments.ranks, arguments.turns, arguments.steps, arguments.warm_up)
    text, places = report(plan, plan.measure())
    measure.publish(arguments.output, "scaling", "A training step on many ranks", text, "numpy", "mpi4py", "mpich")
    if arguments.picture:
        draw(arguments.picture, places)


if __name__ == "__main__":
    main()
