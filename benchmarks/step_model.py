"""How long a training step takes on many ranks, computed: with every constant and where it comes from, and tables of GPT-2.

Each rank computes its part of the batch, all sum their gradients, and each updates its parameters. A message of ``n`` bytes
takes latency + n / bandwidth, and every rank sends one while it receives one. Then the sum of ``n`` bytes over N ranks takes

    ring    2 (N - 1) latency + 2 (N - 1) / N n / bandwidth      each rank sends each of N pieces on, once to sum, once to tell
    tree    2 log2(N) (latency + n / bandwidth)                  all of it up a binary tree, and down again

(Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH"; Patarasuk and Yuan 2009,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", who show that no algorithm sends fewer bytes than a
ring). The additions themselves count as free. The processes of one machine sum through windows, which are shared memory:

    windows    (2 + (N - 1) / N) n / bandwidth + 2 barriers for each piece of n

A rank copies n bytes in and n out, and adds its part of what N - 1 others have put there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import measure
from configurations import GPU_GPTS, Sizes

from tinytensor.distributed.processes import WINDOW  # bytes of a piece

GPT2 = GPU_GPTS["GPT-2 124M"]
GPT2_PARAMETERS = 124_439_808  # with its own vocabulary of 50257
WEAK, STRONG = 8, 480  # sequences: of each rank, and of nanoGPT's whole batch
RANKS = [2**n for n in range(11)]


@dataclass(frozen=True)
class Network:
    """What joins the ranks."""

    name: str
    bandwidth: float  # bytes a second that a rank sends, while it receives as many
    latency: float  # seconds that the shortest message, or a barrier, takes
    source: str = ""


NETWORKS = (
    Network("10 Gbit/s Ethernet", 10e9 / 8, 30e-6, "bandwidth: its name; latency: assumed, TCP through one switch"),
    Network("100 Gbit/s Ethernet", 100e9 / 8, 5e-6, "bandwidth: its name; latency: assumed, RDMA (RoCE) through one switch"),
    Network(
        "NVLink",
        450e9,
        3.4e-6,
        "bandwidth: NVIDIA's data sheet of the H100, 900 GB/s in both directions together; latency: a step of a ring in the "
        "tuning table of NCCL's source. No machine joins 1024 GPUs so",
    ),
)


@dataclass(frozen=True)
class Processor:
    """What computes on a rank. ``cores`` are those that all ranks share; None: each rank has its own."""

    name: str
    speed: float  # floating-point operations a second, in the forward and backward passes
    update: float  # seconds of the optimizer's step for each parameter
    fixed: float = 0.0  # seconds of every step, however small its batch
    cores: int | None = None
    shares_updates: bool = False  # whether each rank updates only its part of the parameters, in shared memory
    source: str = ""


H100_PEAK = 989.4e12  # floating-point operations a second in bfloat16 without sparsity: NVIDIA's data sheet (SXM)
H100_MEMORY = 3.35e12  # bytes a second: the same
UTILIZATION = 0.4  # of the peak in a training step: assumed, not measured
ADAMW_BYTES = 28  # AdamW reads a parameter, its gradient and two moments, and writes all but the gradient, in float32
GPU = Processor(
    "an H100",
    UTILIZATION * H100_PEAK,
    ADAMW_BYTES / H100_MEMORY,
    source=f"assumed, not measured: {UTILIZATION:.0%} of the data sheet's {H100_PEAK / 1e12:.0f} TFLOP/s in bfloat16; AdamW "
    f"moves {ADAMW_BYTES} bytes a parameter at {H100_MEMORY / 1e12:.2f} TB/s",
)


@dataclass(frozen=True)
class Job:
    """A model in training. Gradients are float32."""

    parameters: int
    operations: float  # floating-point operations for one sequence, forward and backward

    @property
    def gradient_bytes(self) -> int:
        """What every step sums over the ranks."""
        return 4 * self.parameters


def job_of(configuration: Sizes, parameters: int) -> Job:
    """The arithmetic of a step."""
    return Job(parameters, configuration.operations() / configuration.batch_size)


Reduction = Callable[[int, float, Network], float]  # the seconds of a sum of so many bytes over so many ranks


def ring(ranks: int, size: float, network: Network) -> float:
    """Around a ring: the formula at the top."""
    return 2 * (ranks - 1) * (network.latency + size / ranks / network.bandwidth)


def tree(ranks: int, size: float, network: Network) -> float:
    """Up and down a binary tree: the formula at the top."""
    return 2 * math.ceil(math.log2(ranks)) * (network.latency + size / network.bandwidth)


def windows(ranks: int, size: float, network: Network) -> float:
    """Through the shared memory of one machine: the formula at the top. One rank has nothing to sum."""
    if ranks == 1:
        return 0.0
    copied = (2 + (ranks - 1) / ranks) * size / network.bandwidth
    return copied + 2 * math.ceil(size / WINDOW) * network.latency


def faster(ranks: int, size: float, network: Network) -> float:
    """The faster of ring and tree."""
    return min(ring(ranks, size, network), tree(ranks, size, network))


@dataclass(frozen=True)
class Step:
    """The seconds of a step on one number of ranks, by what takes them."""

    computing: float  # forward, backward, and what every step costs
    reducing: float
    updating: float

    @property
    def total(self) -> float:
        """One after the other, as tinyformer does it."""
        return self.computing + self.reducing + self.updating

    @property
    def overlapped(self) -> float:
        """The bound where all reducing is hidden behind the backward pass, which is two thirds of the computing."""
        return self.computing / 3 + max(2 * self.computing / 3, self.reducing) + self.updating


def step(job: Job, processor: Processor, network: Network, ranks: int, sequences: int, reduction: Reduction = faster) -> Step:
    """A step with so many sequences in its whole batch.

    The largest part decides: of 10 sequences one of 4 ranks gets 3. Where ranks share fewer cores than there are ranks, they
    take turns on them.
    """
    turns = max(1.0, ranks / processor.cores) if processor.cores else 1.0  # how much longer each takes
    largest = max(math.ceil(sequences / ranks), sequences * turns / ranks)
    parts = ranks if processor.shares_updates else 1
    return Step(
        computing=processor.fixed * turns + largest * job.operations / processor.speed,
        reducing=reduction(ranks, job.gradient_bytes, network) * turns,
        updating=processor.update * job.parameters * turns / parts,
    )


def efficiency(sequences: int, ranks: int, seconds: float, alone: int, seconds_alone: float) -> float:
    """The sequences that a rank trains on in a second, over those of a single rank whose batch has ``alone``."""
    return (sequences / ranks / seconds) / (alone / seconds_alone)


# ----------------------------------------------------------------------------------------------- the tables of GPT-2


def ms(seconds: float) -> str:
    """Milliseconds with about three digits."""
    milliseconds = 1000 * seconds
    return f"{milliseconds:.{sum(milliseconds < bound for bound in (100, 10, 1))}f}"


def rows_of_gpt2(processor: Processor, network: Network) -> list[list[str]]:
    """For every number of ranks: the milliseconds of both sums and of computing, and how well ranks are used."""
    job = job_of(GPT2, GPT2_PARAMETERS)
    rows = []
    for n in RANKS:
        row = [str(n), *(ms(way(n, job.gradient_bytes, network)) for way in (ring, tree))]
        for sequences, alone in ((WEAK * n, WEAK), (STRONG, STRONG)):
            seconds_alone = step(job, processor, network, 1, alone).total
            together = step(job, processor, network, n, sequences)
            row.append(ms(together.computing))
            for seconds in (together.total, together.overlapped):
                row.append(f"{100 * efficiency(sequences, n, seconds, alone, seconds_alone):.1f}")
        rows.append(row)
    return rows


def gpt2(places: Sequence[tuple[Processor, Sequence[Network]]]) -> str:
    """The tables of GPT-2 124M: for each processor, over each of its networks."""
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
