"""What each thing that makes tinytensor fast buys: a training step of tinyformer's GPT without it, beside one with all.

python benchmarks/tricks.py                          # configuration A
python benchmarks/tricks.py --configuration C --output benchmarks/results/tricks_C.md

Each variant lives in a process of its own, where one thing is switched off before the model is made: a fused op is replaced
by its reference, or a constant by one that leaves nothing to cut. Nothing in the library is there for this benchmark alone.

A variant is timed only where it is seen to do something else. So one step of each is traced, and the calls of the function
that the trick saves, or needs, are compared with those of the step with all tricks (for memory, the page faults are). The
losses of the first steps must stay the same to rounding, for which there is no dropout.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import measure
from configurations import CONFIGURATIONS, Configuration
from measure import SideError, Times, Worker
from train_step import Tinyformer

from tinyformer.command_line import Parser
from tinyformer.errors import plain_errors

ALL, NONE = "all tricks", "none of them"
GIVEN_BACK, IN_ONE = "freed memory given back", "batch not cut into shards"
HEADS_BY_OPS = "attention's heads cut and joined by ops"
WHOLE = 1 << 62  # elements in a block: more than there ever are
PAGE_FAULTS = "page faults"  # counted like calls
ATTENTION = "tinytensor.kernels.numpy.attention"
ACTIVATIONS = "tinytensor.ops.activations"
HEADS = "tinytensor.functional.attention"
LOSSES = "tinytensor.functional.classification"
OPTIMIZERS = "tinytensor.kernels.numpy.optimizers"

# ------------------------------------------------------------------------------------------------------------ switches


def replace(module: str, name: str, value: Any) -> None:
    """Set a module's attribute. Raises AttributeError where there is none of that name to replace."""
    found = importlib.import_module(module)
    getattr(found, name)
    setattr(found, name, value)


def without_fusing(*names: str) -> None:
    """Let tinytensor use the references of these fused ops, named with their modules."""
    for name in names:
        module, _, function = name.rpartition(".")
        replace(module, function, getattr(importlib.import_module(module), function).reference)


def without_shards() -> None:
    """One thread for the batch and the optimizer, and in it products that use all threads of BLAS."""
    replace("tinytensor.parallel", "default_shards", lambda: 1)


def without_blocks_of_attention() -> None:
    """All sequences and all queries at once."""
    replace(ATTENTION, "_BLOCK", WHOLE)
    replace(ATTENTION, "_QUERIES", WHOLE)


def without_parts() -> None:
    """The gradient of a piece is an array of its tensor's size, zero but for the piece."""
    from tinytensor.ops import indexing

    getitem: Any = indexing._getitem
    if getitem.needs["x"] != ("g", "x_shape", "index"):
        raise TypeError(f"the rule of getitem needs {getitem.needs['x']} now: change this switch, too")
    getitem.rules["x"] = lambda g, x_shape, index: indexing._scatter(g, index, x_shape)


def without_sorting() -> None:
    """The gradient of an embedding is added up row by row."""
    from tinytensor.backend import scatter_add, xp

    def sum_rows(rows: Any, ids: Any, num_rows: int) -> Any:
        out = xp.zeros((num_rows, rows.shape[-1]), dtype=rows.dtype)
        scatter_add(out, ids, rows)
        return out

    replace("tinytensor.kernels", "sum_rows", sum_rows)


def with_heads_apart() -> None:
    """Attention's outputs and gradients lie in memory as they are indexed, head by head."""
    from tinytensor.backend import xp

    replace(ATTENTION, "joinable", xp.empty)


def with_one_thread_for_the_optimizer() -> None:
    """All parameters are updated by the thread that asks for it."""
    from tinytensor.optim import Optimizer

    step: Any = Optimizer.step

    def alone(self: Any, scale: float = 1.0, threads: int = 1) -> None:
        step(self, scale, threads=1)

    Optimizer.step = alone  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------------------------ variants


@dataclass(frozen=True)
class Trick:
    """How to do without it, and which function is then called more often in a step, or else less often."""

    switch: Callable[[], None]
    function: str
    more: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)  # of the environment

    def shows(self, before: Mapping[str, int], after: Mapping[str, int]) -> bool:
        """Whether the calls in a step show that the trick is off."""
        a, b = before.get(self.function, 0), after.get(self.function, 0)
        return b > a if self.more else b < a


def _nothing() -> None:
    pass


TRICKS = {
    GIVEN_BACK: Trick(_nothing, PAGE_FAULTS, variables={"TINYTENSOR_KEEP_MEMORY": "0"}),
    IN_ONE: Trick(without_shards, "tinytensor.parallel.one_blas_thread", more=False),
    "optimizer in one thread": Trick(with_one_thread_for_the_optimizer, "tinytensor.optim.optimizers.update"),
    "warnings silenced op by op": Trick(
        lambda: replace("tinytensor.engine", "without_warnings", nullcontext), "tinytensor.backend.no_warnings"
    ),
    "layer norm not fused": Trick(
        lambda: without_fusing("tinytensor.functional.layer_norm"), "tinytensor.functional.normalization.layer_norm"
    ),
    "gelu not fused": Trick(lambda: without_fusing(f"{ACTIVATIONS}._gelu_tanh"), f"{ACTIVATIONS}._gelu_tanh"),
    HEADS_BY_OPS: Trick(lambda: without_fusing(f"{HEADS}._multi_head_attention"), f"{HEADS}._multi_head_attention"),
    "attention not fused": Trick(
        lambda: without_fusing(f"{HEADS}._multi_head_attention", f"{HEADS}._attention"), f"{HEADS}._attention"
    ),
    "loss apart from the output layer": Trick(
        lambda: without_fusing(f"{LOSSES}._linear_cross_entropy"), f"{LOSSES}._linear_cross_entropy"
    ),
    "loss not fused at all": Trick(
        lambda: without_fusing(f"{LOSSES}._linear_cross_entropy", f"{LOSSES}._cross_entropy"), f"{LOSSES}._cross_entropy"
    ),
    "attention not in blocks": Trick(without_blocks_of_attention, f"{ATTENTION}._scores", more=False),
    "attention's heads not joined in memory": Trick(with_heads_apart, f"{ATTENTION}.joinable", more=False),
    "attention's weights computed again": Trick(lambda: replace(ATTENTION, "_KEPT", 0), f"{ATTENTION}._scores"),
    "gradients of pieces not added in place": Trick(without_parts, "tinytensor.engine._add_part", more=False),
    "embedding's gradient row by row": Trick(without_sorting, "tinytensor.backend.scatter_add"),
    "optimizer not in blocks": Trick(lambda: replace(OPTIMIZERS, "_BLOCK", WHOLE), f"{OPTIMIZERS}._blocks", more=False),
}


# What is part of another trick, or saves memory rather than time.
CONTAINED = (HEADS_BY_OPS, "loss apart from the output layer", "optimizer in one thread", "attention's weights computed again")
NONE_OF = [name for name in TRICKS if name not in CONTAINED]


def _switch_all() -> None:
    for name in NONE_OF:
        TRICKS[name].switch()


VARIANTS = {
    ALL: Trick(_nothing, "", more=False),
    **TRICKS,
    NONE: Trick(_switch_all, PAGE_FAULTS, variables=TRICKS[GIVEN_BACK].variables),
}


class Variant(Tinyformer):
    """tinyformer's training step without a trick."""

    def __init__(self, configuration: Configuration, name: str):
        VARIANTS[name].switch()
        super().__init__(configuration)

    def shards(self) -> int:
        """The parts that a batch is cut into."""
        return int(self.trainer.shards)

    def calls(self) -> dict[str, int]:
        """How often this thread calls each of the library's functions in a step, and the process's page faults in another."""
        import resource

        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self.step()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        counted = Counter({PAGE_FAULTS: faults})

        def note(frame: Any, event: str, argument: Any) -> None:
            if event == "call":
                counted[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"] += 1

        sys.setprofile(note)
        try:
            self.step()
        finally:
            sys.setprofile(None)
        return dict(counted)


# --------------------------------------------------------------------------------------------------------- measurement


def start(stack: ExitStack, configuration: Configuration, name: str) -> Worker:
    """A worker for the variant; ``stack`` ends it."""
    with measure.environment(VARIANTS[name].variables):
        return stack.enter_context(Worker(name, Variant, configuration, name))


def run(configuration: Configuration, names: Sequence[str], turns: int, steps: int, warm_up: int) -> dict[str, Any]:
    """Measure the step with all tricks and these variants; everything that the report shows."""
    with ExitStack() as stack:
        workers = {name: start(stack, configuration, name) for name in (ALL, *names)}
        losses = {name: worker.call("losses", warm_up) for name, worker in workers.items()}
        for name in names:
            _check_losses(name, losses[ALL], losses[name])
        calls = {name: worker.call("calls") for name, worker in workers.items()}
        shards = {name: worker.call("shards") for name, worker in workers.items()}
        idle = [name for name in names if not VARIANTS[name].shows(calls[ALL], calls[name])]
        if {NONE, IN_ONE} <= calls.keys():
            _check_all_off(calls, [name for name in NONE_OF if name in names and name not in idle])
        timed = {name: worker for name, worker in workers.items() if name not in idle}
        times = measure.take_turns(timed, turns, steps)
        memory = {name: worker.call("memory")[1] for name, worker in timed.items()}
        libraries = {ALL: workers[ALL].call("libraries")}
    variants = {name: _variant(times[ALL], times[name]) for name in timed}
    for name, variant in variants.items():
        variant |= {"peak_bytes": memory[name], "page_faults": calls[name][PAGE_FAULTS], "shards": shards[name]}
        variant["evidence"] = _evidence(name, calls[ALL], calls[name])
    return {"variants": variants, "without_effect": idle, "libraries": libraries}


def _check_losses(name: str, expected: Sequence[float], found: Sequence[float]) -> None:
    for step, (a, b) in enumerate(zip(expected, found)):
        if not math.isclose(a, b, rel_tol=1e-4):
            raise SideError(f"{name}: the loss of step {step} is {b}, and with all tricks {a}")


def _check_all_off(calls: Mapping[str, Mapping[str, int]], expected: Sequence[str]) -> None:
    """Raise SideError unless each of these tricks shows as switched off where all are. Calls are those of one thread: what
    is computed in a single one is compared with its like."""
    for name in expected:
        before = calls[ALL if name == IN_ONE else IN_ONE]
        if not TRICKS[name].shows(before, calls[NONE]):
            raise SideError(f"{NONE}: {name} by itself shows in the calls, but not here")


def _variant(all_tricks: Times, times: Times) -> dict[str, Any]:
    return {
        "median_ms": 1000 * measure.median(times),
        "fastest_quartile_ms": 1000 * measure.fastest_quartile(times),
        "ratio": measure.compare(times, all_tricks),
    }


def _evidence(name: str, before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, Any]:
    function = VARIANTS[name].function
    return {"function": function, "with": before.get(function, 0), "without": after.get(function, 0)}


# -------------------------------------------------------------------------------------------------------------- report


def report(results: Mapping[str, Any]) -> str:
    """A row for each variant, and those that change nothing here."""
    head = ["", "median ms", "fastest quartile ms", "ratio of medians", "ratio of fastest quartiles", "peak MB", "page faults"]
    rows = [
        [
            name,
            f"{variant['median_ms']:.1f}",
            f"{variant['fastest_quartile_ms']:.1f}",
            f"{variant['ratio']['medians']:.2f}",
            f"{variant['ratio']['fastest_quartiles']:.2f}",
            measure.megabytes(variant["peak_bytes"]),
            str(variant["page_faults"]),
        ]
        for name, variant in results["variants"].items()
    ]
    shards = results["variants"][ALL]["shards"]
    note = f"Ratios are to the step with {ALL}, which cuts a batch into {shards}. Page faults are those of one step."
    idle = ", ".join(results["without_effect"])
    notes = [note, *([f"Without effect here, and so not timed: {idle}."] if idle else [])]
    return "\n\n".join([measure.table(head, rows), *notes, measure.library_list(results["libraries"])])


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    names = [name for name in VARIANTS if name != ALL]
    parser = Parser(
        description="Time a training step of tinyformer's GPT without each of the things that make it fast.",
        epilog="The variants: " + "; ".join(names) + ". OPENBLAS_NUM_THREADS limits the threads, and the shards with them.",
    )
    parser.add_argument("--configuration", choices=CONFIGURATIONS, default="A", help="the size of the model")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="VARIANT", help="these variants")
    parser.add_argument("--turns", type=measure.positive, default=15, metavar="INT", help="turns of each variant")
    parser.add_argument("--steps", type=measure.positive, default=4, metavar="INT", help="timed steps in a turn")
    parser.add_argument("--warm-up", type=measure.positive, default=5, metavar="INT", help="steps before the first turn")
    parser.add_argument("--output", type=measure.output_file, metavar="FILE", help="write the results to FILE.md or FILE.json")
    return parser.parse_args(words)


@plain_errors()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    configuration = dataclasses.replace(CONFIGURATIONS[arguments.configuration], dropout=0.0)
    try:
        results = run(configuration, arguments.only, arguments.turns, arguments.steps, arguments.warm_up)
    except SideError as error:
        sys.exit(f"error: {error}")
    title, text = f"A training step without each trick, configuration {arguments.configuration}", report(results)
    print(f"{title}\n\n{text}")
    if arguments.output:
        everything = measure.described({"configuration": dataclasses.asdict(configuration), **results}, "numpy")
        measure.write_results(arguments.output, title, text, everything)


if __name__ == "__main__":
    main()
