"""What each thing that makes tinytensor fast buys: a training step of tinyformer's GPT without it, beside one with all.

python benchmarks/tricks.py                          # configuration A
python benchmarks/tricks.py --configuration C --output benchmarks/results/tricks_C.md

Each variant lives in a process of its own, where one thing is switched off before the model is made: a fused op is replaced
by its reference, or a constant by one that leaves nothing to cut. Nothing in the library is there for this benchmark alone.

A variant is timed only where it is seen to do something else: the calls, in one step, of the function that the trick saves or
needs are compared with those of the step with all tricks (for memory, the page faults are). The losses of the first steps must
stay the same to rounding, for which there is no dropout.
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
from typing import Any

import measure
from configurations import GPTS, Configuration
from measure import SideError, Worker
from train_step import Tinyformer

ALL, NONE = "all tricks", "none of them"
GIVEN_BACK, IN_ONE = "freed memory given back", "batch not cut into shards"
WHOLE = 1 << 62  # elements in a block: more than there ever are
PAGE_FAULTS = "page faults"  # counted like calls
FUNCTIONAL = "tinytensor.functional"
ATTENTION = "tinytensor.kernels.numpy.attention"
OPTIMIZERS = "tinytensor.kernels.numpy.optimizers"
Switch = Callable[[], None]


def replace(module: str, name: str, value: Any) -> None:
    """Set a module's attribute. Raises AttributeError where there is none of that name to replace."""
    found = importlib.import_module(module)
    getattr(found, name)
    setattr(found, name, value)


def replaced(module: str, value: Any, *names: str) -> Switch:
    """A switch that sets these attributes of a module."""

    def switch() -> None:
        for name in names:
            replace(module, name, value)

    return switch


def not_fused(*names: str) -> Switch:
    """A switch that lets tinytensor.functional use the references of these fused ops."""

    def switch() -> None:
        for name in names:
            replace(FUNCTIONAL, name, getattr(importlib.import_module(FUNCTIONAL), name).reference)

    return switch


def one_shard() -> None:
    """One thread for the batch and the optimizer, and in it products that use all threads of BLAS."""
    replace("tinytensor.parallel", "default_shards", lambda: 1)


def silence_each_op() -> None:
    """Warnings are silenced in every op, and not once for a shard."""
    for module in ("modes", "engine"):
        replace(f"tinytensor.{module}", "quietly", nullcontext)


def whole_gradients_of_pieces() -> None:
    """The gradient of a piece is an array of its tensor's size, zero but for the piece."""
    indexing: Any = importlib.import_module("tinytensor.ops.indexing")
    indexing._getitem.rules["x"] = lambda g, x_shape, index: indexing._scatter(g, index, x_shape)


def embedding_row_by_row() -> None:
    """The gradient of an embedding is added up row by row."""
    from tinytensor.backend import scatter_add, xp

    def sum_rows(rows: Any, ids: Any, num_rows: int) -> Any:
        out = xp.zeros((num_rows, rows.shape[-1]), dtype=rows.dtype)
        scatter_add(out, ids, rows)
        return out

    replace("tinytensor.kernels", "sum_rows", sum_rows)


def heads_apart() -> None:
    """Attention's outputs and gradients lie in memory as they are indexed, head by head."""
    from tinytensor.backend import xp

    replace(ATTENTION, "joinable", xp.empty)


def optimizer_in_one_thread() -> None:
    """All parameters are updated by the thread that asks for it."""
    from tinytensor.optim import Optimizer

    step: Any = Optimizer.step
    Optimizer.step = lambda self, scale=1.0, threads=1: step(self, scale, threads=1)  # type: ignore[method-assign]


@dataclasses.dataclass(frozen=True)
class Trick:
    """How to do without it, and which function is then called more often in a step, or else less often."""

    switch: Switch
    function: str
    more: bool = True
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of the environment
    is_part: bool = False  # of another trick, or it saves memory rather than time

    def shows(self, before: Mapping[str, int], after: Mapping[str, int]) -> bool:
        """Whether the calls in a step show that the trick is off."""
        a, b = before.get(self.function, 0), after.get(self.function, 0)
        return b > a if self.more else b < a


def _nothing() -> None:
    pass


TRICKS = {
    GIVEN_BACK: Trick(_nothing, PAGE_FAULTS, variables={"TINYTENSOR_KEEP_MEMORY": "0"}),
    IN_ONE: Trick(one_shard, "tinytensor.parallel.one_blas_thread", more=False),
    "optimizer in one thread": Trick(optimizer_in_one_thread, "tinytensor.optim.optimizers.update", is_part=True),
    "warnings silenced op by op": Trick(silence_each_op, "tinytensor.backend.quiet"),
    "layer norm not fused": Trick(not_fused("layer_norm"), f"{FUNCTIONAL}.layer_norm"),
    "gelu not fused": Trick(not_fused("_gelu_tanh"), f"{FUNCTIONAL}._gelu_tanh"),
    "attention's heads cut and joined by ops": Trick(
        not_fused("_multi_head_attention"), f"{FUNCTIONAL}._multi_head_attention", is_part=True
    ),
    "attention not fused": Trick(not_fused("_multi_head_attention", "_attention"), f"{FUNCTIONAL}._attention"),
    "loss apart from the output layer": Trick(
        not_fused("_linear_cross_entropy"), f"{FUNCTIONAL}._linear_cross_entropy", is_part=True
    ),
    "loss not fused at all": Trick(not_fused("_linear_cross_entropy", "_cross_entropy"), f"{FUNCTIONAL}._cross_entropy"),
    "attention not in blocks": Trick(replaced(ATTENTION, WHOLE, "_BLOCK", "_QUERIES"), f"{ATTENTION}._scores", more=False),
    "attention's heads not joined in memory": Trick(heads_apart, f"{ATTENTION}.joinable", more=False),
    "attention's weights computed again": Trick(replaced(ATTENTION, 0, "_KEPT"), f"{ATTENTION}._scores", is_part=True),
    "gradients of pieces not added in place": Trick(whole_gradients_of_pieces, "tinytensor.engine._add_part", more=False),
    "embedding's gradient row by row": Trick(embedding_row_by_row, "tinytensor.backend.scatter_add"),
    "optimizer not in blocks": Trick(replaced(OPTIMIZERS, WHOLE, "_BLOCK"), f"{OPTIMIZERS}._blocks", more=False),
}
NONE_OF = [name for name, trick in TRICKS.items() if not trick.is_part]


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
        counted = Counter({PAGE_FAULTS: resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before})

        def note(frame: Any, event: str, argument: Any) -> None:
            if event == "call":
                counted[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"] += 1

        sys.setprofile(note)
        try:
            self.step()
        finally:
            sys.setprofile(None)
        return dict(counted)


def run(configuration: Configuration, names: Sequence[str], turns: int, steps: int, warm_up: int) -> str:
    """Measure the step with all tricks and these variants: a table, those that change nothing here, and the libraries."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in (ALL, *names):
            with measure.environment(VARIANTS[name].variables):
                workers |= measure.start_all(stack, {name: (Variant, configuration, name)})
        _check_losses(measure.call_all(workers, "losses", warm_up))
        calls = measure.call_all(workers, "calls")
        idle = [name for name in names if not VARIANTS[name].shows(calls[ALL], calls[name])]
        if {NONE, IN_ONE} <= calls.keys():
            _check_all_off(calls, [name for name in NONE_OF if name in names and name not in idle])
        timed = {name: worker for name, worker in workers.items() if name not in idle}
        times = measure.take_turns(timed, turns, steps)
        memory = measure.call_all(timed, "memory")
        shards, libraries = workers[ALL].call("shards"), measure.library_list({ALL: workers[ALL]})
    head = ["", *measure.TIMES, "ratio of medians", "ratio of fastest quartiles", "peak MB", "page faults"]
    rows = []
    for name, side in times.items():
        cells = [
            *side.milliseconds(),
            *side.over(times[ALL]),
            measure.megabytes(memory[name][0]),
            str(calls[name][PAGE_FAULTS]),
        ]
        rows.append([name, *cells])
    notes = [f"Ratios are to the step with {ALL}, which cuts a batch into {shards}. Page faults are those of one step."]
    if idle:
        notes.append(f"Without effect here, and so not timed: {', '.join(idle)}.")
    return "\n\n".join([measure.table(head, rows), *notes, libraries])


def _check_losses(losses: Mapping[str, Sequence[float]]) -> None:
    for name, of_variant in losses.items():
        for step, (a, b) in enumerate(zip(losses[ALL], of_variant)):
            if not math.isclose(a, b, rel_tol=1e-4):
                raise SideError(f"{name}: the loss of step {step} is {b}, and with all tricks {a}")


def _check_all_off(calls: Mapping[str, Mapping[str, int]], expected: Sequence[str]) -> None:
    """Raise SideError unless each of these tricks shows as switched off where all are. Calls are those of one thread: what
    is computed in a single one is compared with its like."""
    for name in expected:
        before = calls[ALL if name == IN_ONE else IN_ONE]
        if not TRICKS[name].shows(before, calls[NONE]):
            raise SideError(f"{NONE}: {name} by itself shows in the calls, but not here")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about = "Time a training step of tinyformer's GPT without each of the things that make it fast."
    return measure.parse(measure.make_parser(about, GPTS, turns=15, steps=4, warm_up=5), words, "threadpoolctl")


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    names = [name for name in VARIANTS if name != ALL]
    report = run(GPTS[arguments.configuration], names, arguments.turns, arguments.steps, arguments.warm_up)
    measure.publish(
        arguments.output, f"A training step without each trick, configuration {arguments.configuration}", report, "numpy"
    )


if __name__ == "__main__":
    main()
