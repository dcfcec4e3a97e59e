"""What each thing that makes tinytensor fast buys: a training step of tinyformer's GPT without it, beside one with all.

python benchmarks/tricks.py                          # configuration A
python benchmarks/tricks.py --configuration C --output benchmarks/results

Each variant lives in a process of its own, where one thing is switched off before the model is made: a fused op is replaced
by its reference, a compiled kernel by NumPy's, or a constant by one that leaves nothing to cut. Nothing in the library is
there for this benchmark alone.

A variant is timed only where it is seen to do something else: the calls, in one step, of the function that the trick saves or
needs are compared with those of the step with all tricks (for memory, the page faults are). The losses of the first steps must
stay the same to rounding, for which there is no dropout.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import math
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from operator import attrgetter
from typing import Any

import measure
import numpy
from configurations import GPTS, Configuration
from measure import SideError, Worker
from train_step import Tinyformer

from tinytensor import kernels
from tinytensor.autograd.op import all_ops

ALL, NONE = "all tricks", "none of them"
GIVEN_BACK, IN_ONE, IN_NUMPY = "freed memory given back", "batch not cut into shards", "no kernel compiled"
ENVIRONMENTS = {GIVEN_BACK: {"TINYTENSOR_KEEP_MEMORY": "0"}, IN_NUMPY: {"TINYTENSOR_KERNELS": "numpy"}}
ENVIRONMENTS[NONE] = ENVIRONMENTS[GIVEN_BACK] | ENVIRONMENTS[IN_NUMPY]
WHOLE = 1 << 62  # elements in a block: more than there ever are
PAGE_FAULTS = "page faults"  # counted like calls
CORE, THREADS = "tinytensor.autograd", "tinytensor.parallel.threads"
ATTENTION = "tinytensor.kernels.numpy.attention"
ATTENTIONS = "tinytensor.functional.attention"
LOSSES = "tinytensor.functional.classification"
OPTIMIZERS = "tinytensor.kernels.numpy.optimizers"


@dataclasses.dataclass(frozen=True)
class Trick:
    """How to do without it, and the function, or module, that is then called more often in a step, or else less often."""

    function: str
    changes: Mapping[str, Callable[[Any], Any]]  # by the name of what is replaced: from what it is to what it becomes
    more: bool = True
    is_part: bool = False  # of another trick, or it saves memory rather than time

    def shows(self, before: Mapping[str, int], after: Mapping[str, int]) -> bool:
        """Whether the calls in a step show that the trick is off."""
        a, b = before.get(self.function, 0), after.get(self.function, 0)
        return b > a if self.more else b < a


def replace(name: str, change: Callable[[Any], Any]) -> None:
    """Replace an attribute of a module or class. Raises AttributeError where there is none of that name."""
    place, _, attribute = name.rpartition(".")
    owner = pkgutil.resolve_name(place)
    setattr(owner, attribute, change(getattr(owner, attribute)))


def not_fused(file: str, *names: str, is_part: bool = False) -> Trick:
    """The references of these fused ops of a file in their place; the last is the one that is then called."""
    changes = {f"{file}.{name}": attrgetter("reference") for name in names}
    return Trick(f"{file}.{names[-1]}", changes, is_part=is_part)


def numpys(name: str, _: Any) -> Any:
    """NumPy's kernel of this name."""
    return pkgutil.resolve_name(f"tinytensor.kernels.numpy:{name}")


def not_compiled() -> dict[str, Trick]:
    """For each file of compiled kernels, NumPy's in their place: in the slot, and in the ops that hold them."""
    compiled = importlib.import_module("tinytensor.kernels.numba")
    holders = {"tinytensor.kernels": kernels, **{f"{op.__module__}.{op.forward.__name__}": op for op in all_ops.values()}}
    held = [(f"{place}.{name}", value) for place, holder in holders.items() for name, value in vars(holder).items()]
    tricks = {}
    for _, file, _ in pkgutil.iter_modules(compiled.__path__):
        module = f"{compiled.__name__}.{file}"
        own = {id(value): name for name, value in vars(importlib.import_module(module)).items() if name in compiled.__all__}
        if changes := {place: partial(numpys, own[id(value)]) for place, value in held if id(value) in own}:
            tricks[f"{file}.py not compiled"] = Trick(module, changes, more=False, is_part=True)
    return tricks


TRICKS = {
    GIVEN_BACK: Trick(PAGE_FAULTS, {}),  # by a variable of the environment
    IN_ONE: Trick(f"{THREADS}.one_blas_thread", {"tinytensor.parallel.default_shards": lambda _: lambda: 1}, more=False),
    "optimizer in one thread": Trick(
        "tinytensor.optim.optimizers.update",
        {
            "tinytensor.optim.Optimizer.step": lambda step: (
                lambda self, scale=1.0, threads=1, *others: step(self, scale, 1, *others)
            )
        },
        is_part=True,
    ),
    "warnings silenced op by op": Trick(
        "tinytensor.device.backend.no_warnings",
        {f"{module}.without_warnings": lambda _: nullcontext for module in (f"{CORE}.modes", f"{CORE}.engine", THREADS)},
    ),
    "layer norm not fused": Trick(
        "tinytensor.functional.normalization.layer_norm", {"tinytensor.functional.layer_norm": attrgetter("reference")}
    ),
    "gelu not fused": not_fused("tinytensor.ops.activations", "_gelu_tanh"),
    "attention's heads cut and joined by ops": not_fused(ATTENTIONS, "_multi_head_attention", is_part=True),
    "attention not fused": not_fused(ATTENTIONS, "_multi_head_attention", "_attention"),
    "loss apart from the output layer": not_fused(LOSSES, "_linear_cross_entropy", is_part=True),
    "loss not fused at all": not_fused(LOSSES, "_linear_cross_entropy", "_cross_entropy"),
    "attention not in blocks": Trick(
        f"{ATTENTION}._scores", {f"{ATTENTION}.{size}": lambda _: WHOLE for size in ("_BLOCK", "_QUERIES")}, more=False
    ),
    "attention's heads not joined in memory": Trick(
        f"{ATTENTION}.joinable", {f"{ATTENTION}.joinable": lambda _: numpy.empty}, more=False
    ),
    "attention's weights computed again": Trick(f"{ATTENTION}._scores", {f"{ATTENTION}._KEPT": lambda _: 0}, is_part=True),
    "optimizer not in blocks": Trick(f"{OPTIMIZERS}._blocks", {f"{OPTIMIZERS}._BLOCK": lambda _: WHOLE}, more=False),
    **not_compiled(),
    IN_NUMPY: Trick(f"{OPTIMIZERS}.adam_step", {}),  # by a variable of the environment
}
NONE_OF = [name for name, trick in TRICKS.items() if not trick.is_part]
VARIANTS = {
    ALL: Trick("", {}),
    **TRICKS,
    NONE: Trick(PAGE_FAULTS, {name: change for trick in NONE_OF for name, change in TRICKS[trick].changes.items()}),
}


class Variant(Tinyformer):
    """tinyformer's training step without a trick."""

    def __init__(self, configuration: Configuration, name: str):
        for place, change in VARIANTS[name].changes.items():
            replace(place, change)
        super().__init__(configuration)

    def calls(self) -> dict[str, int]:
        """How often this thread calls each of the functions and modules in a step, and the page faults in another."""
        import resource

        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self.step()
        counted = Counter({PAGE_FAULTS: resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before})

        def note(frame: Any, event: str, argument: Any) -> None:
            if event == "call":
                module = frame.f_globals.get("__name__")
                counted.update((module, f"{module}.{frame.f_code.co_name}"))

        sys.setprofile(note)
        try:
            self.step()
        finally:
            sys.setprofile(None)
        return dict(counted)


def run(configuration: Configuration, turns: int, steps: int, warm_up: int) -> str:
    """Measure all variants: a table, those that change nothing here, and the libraries."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in VARIANTS:
            with measure.environment(ENVIRONMENTS.get(name, {})):
                workers |= measure.start_all(stack, {name: (Variant, configuration, name)})
        _check_losses(measure.call_all(workers, "losses", warm_up))
        measure.call_all(workers, "forget_peak")  # compiling is no part of training
        calls = measure.call_all(workers, "calls")
        idle = [name for name in VARIANTS if name != ALL and not VARIANTS[name].shows(calls[ALL], calls[name])]
        _check_all_off(calls, [name for name in NONE_OF if name not in idle])
        timed = {name: worker for name, worker in workers.items() if name not in idle}
        times = measure.take_turns(timed, turns, steps)
        memory = measure.call_all(timed, "memory")
        libraries = measure.library_list({ALL: workers[ALL]})
    head = ["", *measure.TIMES, "ratio of medians", "ratio of fastest quartiles", "peak MB", "page faults"]
    rows = []
    for name, side in times.items():
        peak, _ = memory[name]
        cells = [*side.milliseconds(), *side.over(times[ALL]), measure.megabytes(peak), str(calls[name][PAGE_FAULTS])]
        rows.append([name, *cells])
    notes = [f"Ratios are to the step with {ALL}. Page faults are those of one step."]
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
    report = run(GPTS[arguments.configuration], arguments.turns, arguments.steps, arguments.warm_up)
    title = f"A training step without each trick, configuration {arguments.configuration}"
    measure.publish(arguments.output, f"tricks_{arguments.configuration}", title, report, "numpy")


if __name__ == "__main__":
    main()
