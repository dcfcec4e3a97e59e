"""How long training on Tiny Shakespeare takes until the validation loss reaches a mark: char_gpt.py's recipe beside nanoGPT's.

python benchmarks/speedrun.py --output benchmarks/results             # three marks, three seeds: hours
python benchmarks/speedrun.py --marks 1.886 --seeds 1337              # the first mark alone: minutes
python benchmarks/speedrun.py --ablations --output benchmarks/results # what each change of the recipe brings
python benchmarks/speedrun.py --output benchmarks/results --resume    # go on after an interruption

What is measured is said in the report (``DEFINITION``). The sides train in short turns (race.py). Nothing is chosen by the test
split, the beginning of the text, on which no side trains; its loss is told beside that of validation. nanoGPT's recipe is that
of its README for a CPU: the default settings of tinyformer's dataclasses. PyTorch is eager, with as many threads as it chooses.
"""

from __future__ import annotations

import argparse
import dataclasses
import runpy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure
from measure import Worker
from race import Log, Points, PyTorch, Run, Runner, Start, Tinyformer, race, reached, turns_of

from tinyformer.common.errors import UserError
from tinyformer.programs.command_line import some_path

if TYPE_CHECKING:  # who only parses a command line may still choose the kernels
    from tinyformer.data.text import TextBatches

OURS, PYTORCH = "tinyformer's recipe", "nanoGPT's recipe, PyTorch"
# By mark: the steps of our recipe and of nanoGPT's. 1.886 is nanoGPT's published result on a CPU.
STEPS = {1.886: (250, 2500), 1.70: (600, 10_000), 1.60: (1150, 10_000)}
SEEDS = (1337, 1338, 1339)
EVALUATE_EVERY = 25
WARM_UP = 4  # steps of the throw-away model
ABLATION_STEPS, ABLATION_EVALUATE_EVERY = 1050, 150
Recipe = Mapping[str, Mapping[str, Any]]  # settings by part: "model" and "training"


def recipes() -> dict[str, dict[str, dict[str, Any]]]:
    """The recipes of examples/char_gpt.py, by name."""
    path = Path(__file__).resolve().parents[1] / "examples" / "char_gpt.py"
    found: dict[str, dict[str, dict[str, Any]]] = runpy.run_path(str(path), run_name="char_gpt")["RECIPES"]
    return found


@dataclasses.dataclass(frozen=True)
class Text:
    """A text as ids of characters. The first ``test_fraction`` of it is the test split, and the last tenth validates."""

    name: str
    ids: Any
    vocab_size: int
    test_fraction: float

    def batches(self, block_size: int) -> TextBatches:
        """Those that both sides draw from. Raises SettingError where a split has no room for a window."""
        from tinyformer.data.text import TextBatches

        return TextBatches(self.ids, block_size, 1, vocab_size=self.vocab_size, test_fraction=self.test_fraction)


def read(path: str | None, test_fraction: float) -> Text:
    """The text at a path, or Tiny Shakespeare, which is downloaded once. Raises UserError if it cannot be read."""
    from tinyformer.data.downloads import download
    from tinyformer.data.files import decoded
    from tinyformer.data.reading import TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256, fingerprint, read_text
    from tinyformer.tokenizers.char import CharTokenizer

    if path is None:
        try:
            text = decoded(TINY_SHAKESPEARE, download(TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256))
        except OSError as error:
            raise UserError(f"Tiny Shakespeare could not be downloaded ({error}): pass it with --data") from None
    else:
        text = read_text(path)
    tokenizer = CharTokenizer.train(text)
    name = "Tiny Shakespeare" if fingerprint(text) == TINY_SHAKESPEARE_SHA256 else Path(str(path)).name
    return Text(name, tokenizer.encode(text), tokenizer.vocab_size, test_fraction)


@dataclasses.dataclass(frozen=True)
class Entrant:
    """What takes part in a race: a library, a recipe, and the number of steps."""

    kind: type[Runner]
    recipe: Recipe
    steps: int

    def side(self, text: Text) -> tuple[Any, ...]:
        """What a worker makes the side of."""
        from tinyformer.models.gpt import GPTConfig

        model = dataclasses.asdict(GPTConfig(vocab_size=text.vocab_size, **self.recipe["model"]))
        batches = text.batches(model["block_size"])
        if self.kind is Tinyformer:
            return Tinyformer, text.ids, text.test_fraction, model
        names = ("training", "validation", *(["test"] if text.test_fraction else []))
        return self.kind, {name: getattr(batches, name).numpy() for name in names}, model

    def start(self, seed: int) -> Start:
        """The arguments of the side's ``start``."""
        from tinyformer.training.config import TrainingConfig

        config = TrainingConfig(**{**self.recipe["training"], "steps": self.steps, "seed": seed})
        schedule = config.make_schedule()
        return dataclasses.asdict(config), [config.learning_rate * schedule(step) for step in range(self.steps)]


Entrants = Mapping[str, Entrant]  # by the side's name


def for_mark(mark: float) -> dict[str, Entrant]:
    """The sides of the race to a mark."""
    modern, nanogpt = recipes()["modern"], recipes()["nanogpt"]
    ours, theirs = STEPS[mark]
    return {OURS: Entrant(Tinyformer, modern, ours), PYTORCH: Entrant(PyTorch, nanogpt, theirs)}


# --------------------------------------------------------------------------------------------------------- the ablations

# The changes that take a part of the recipe back, each by itself. AdamW's rate without Muon was chosen by the validation loss
# after 600 steps of one seed: 0.003 gave 1.831, and 0.006 gave 1.859; 0.0015 gave 1.857.
ADAMW_RATE = 3e-3
LARGER = "4 layers, 128 wide, as many steps as take the same time"
LARGER_STEPS = 0.415  # of the recipe's steps: as measured in turns on two cores of an AMD EPYC
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "AdamW in place of Muon": {"training": {"muon_learning_rate": 0.0, "learning_rate": ADAMW_RATE}},
    "learned positions in place of rotary ones": {"model": {"positions": "learned"}},
    "queries and keys not normed": {"model": {"query_key_norm": False}},
    "gelu in place of swiglu": {"model": {"activation": "gelu_tanh"}},
    "layer norm in place of RMS norm": {"model": {"norm": "layer"}},
    "rates fall along a cosine to a tenth": {"training": {"schedule": "cosine"}},
    "block 64, batch 24": {"model": {"block_size": 64}, "training": {"batch_size": 24}},
    LARGER: {"model": {"num_layers": 4, "d_model": 128}},
}
WHOLE, NANOGPT = "the whole recipe", "nanoGPT's recipe"


def changed(recipe: Recipe, change: Recipe) -> Recipe:
    """The recipe with a change. The lowest rate of a cosine is a tenth of the highest."""
    found = {part: {**recipe[part], **change.get(part, {})} for part in ("model", "training")}
    if found["training"].get("schedule") == "cosine":
        found["training"]["min_learning_rate"] = 0.1 * found["training"]["learning_rate"]
    return found


def ablations(steps: int) -> dict[str, Entrant]:
    """The recipe, the recipe with each change, and nanoGPT's."""
    modern, nanogpt = recipes()["modern"], recipes()["nanogpt"]
    kinds = {WHOLE: modern, **{name: changed(modern, change) for name, change in CHANGES.items()}, NANOGPT: nanogpt}
    sides = {name: Entrant(Tinyformer, recipe, steps) for name, recipe in kinds.items()}
    return {**sides, LARGER: dataclasses.replace(sides[LARGER], steps=max(1, round(LARGER_STEPS * steps)))}


# ------------------------------------------------------------------------------------------------------------- the races


def ready(stack: ExitStack, entrants: Entrants, text: Text) -> tuple[dict[str, Worker], list[str]]:
    """A worker for each side, which has imported and compiled all it needs; and a line about each. ``stack`` ends them."""
    workers, lines = {}, []
    for name, entrant in entrants.items():
        began = time.perf_counter()
        workers[name] = stack.enter_context(Worker(name, *entrant.side(text)))
        workers[name].call("start", *dataclasses.replace(entrant, steps=WARM_UP).start(seed=0))
        for _ in range(turns_of(WARM_UP, WARM_UP)):
            workers[name].call("advance", WARM_UP)
        seconds = time.perf_counter() - began
        pools = "; ".join(workers[name].call("libraries"))
        lines.append(f"- {name}: {pools}. Imported and compiled in {seconds:.1f} s, which are not counted.")
    return workers, lines


def hold(races: Mapping[str, Entrants], seeds: Sequence[int], text: Text, log: Log, every: int) -> Iterator[list[str]]:
    """Hold each race with each seed, unless the log has it. After each, the log has its runs; yields lines about the sides."""
    missing = [(name, seed) for seed in seeds for name, entrants in races.items() if not is_held(name, entrants, seed, log)]
    if not missing:
        return
    with ExitStack() as stack:
        workers, lines = ready(stack, next(iter(races.values())), text)
        for name, seed in missing:
            entrants = races[name]
            starts = {side: entrant.start(seed) for side, entrant in entrants.items()}
            turns = sum(turns_of(entrant.steps, every) for entrant in entrants.values())
            with measure.progress(f"{name}, seed {seed}", turns) as tell:
                points = race(workers, starts, every, tell)
            log.add({run: points[run.side] for run in runs(name, entrants, seed)})
            yield lines


def runs(race: str, entrants: Entrants, seed: int) -> list[Run]:
    """What the log calls the runs of a race."""
    return [Run(race, side, seed, entrant.steps) for side, entrant in entrants.items()]


def is_held(race: str, entrants: Entrants, seed: int, log: Log) -> bool:
    """Whether the log has every run of a race."""
    return log.runs.keys() >= set(runs(race, entrants, seed))


def held(race: str, entrants: Entrants, seeds: Sequence[int], log: Log) -> dict[str, list[Points]]:
    """For each side of a race its runs, one for each of the seeds whose race was held."""
    done = [seed for seed in seeds if is_held(race, entrants, seed, log)]
    return {side: [log.runs[Run(race, side, seed, entrant.steps)] for seed in done] for side, entrant in entrants.items()}


# ------------------------------------------------------------------------------------------------------------ the report

DEFINITION = """\
The seconds are what the clock shows at the first evaluation at or below the mark. The clock counts training steps, the drawing
of batches included, and stands during evaluations; importing and compiling come before. Each side evaluates the whole
validation split, the last tenth of the text in adjacent windows of its block size, every {every} steps. Sides take turns of as
many steps.

The number of steps decides when the rate has fallen. So each mark has a run of its own, whose number of steps was chosen for it
on the validation split, for both recipes."""
OF_THE_TEST_SPLIT = "Nothing was chosen by the test split, the first {:.0%} of the text, on which no side trains."


def number(values: Sequence[float], digits: int = 3) -> str:
    """The mean, and in brackets the lowest and the highest where there are several; nothing where there is none."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else mean


def clock_at(points: Points, mark: float) -> str:
    """The cell of a run in the table of marks."""
    point = reached(points, mark)
    if point is not None:
        return f"{point.seconds:.1f}"
    return f"not reached, best {min(point.validation for point in points):.3f}"


def seconds_to(found: Sequence[Points], mark: float) -> list[float] | None:
    """The seconds of each run to a mark, or None unless all reached it."""
    points = [reached(points, mark) for points in found]
    return [point.seconds for point in points if point] if all(points) else None


def over(found: Sequence[Points], rivals: Sequence[Points], mark: float) -> str:
    """The time to a mark over that of the rival in the same race. Of a rival that does not reach it, the time of its whole run
    counts: then it is a bound."""
    ours, theirs = seconds_to(found, mark), seconds_to(rivals, mark)
    if ours is None:
        return ""
    bound = theirs is None
    theirs = theirs or [points[-1].seconds for points in rivals]
    return "below " * bound + number([a / b for a, b in zip(ours, theirs)], 2)


def mark_report(races: Mapping[str, Entrants], seeds: Sequence[int], log: Log) -> str:
    """The tables of the marks: seconds, and losses at the end of each run."""
    times, losses = [], []
    for name, entrants in races.items():
        found = held(name, entrants, seeds, log)
        for side, its_runs in found.items():
            if not its_runs:
                continue
            mark, steps = float(name), entrants[side].steps
            ends = [points[-1] for points in its_runs]
            cells = [clock_at(points, mark) for points in its_runs]
            seconds = seconds_to(its_runs, mark)
            mean = f"{statistics.fmean(seconds):.1f}" if seconds else ""
            ratio = "1" if side == PYTORCH else over(its_runs, found[PYTORCH], mark)
            padding = [""] * (len(seeds) - len(cells))
            times.append([f"{name}, {side}", f"{steps:,}", f"{1000 * seconds_a_step(ends):.1f}", *cells, *padding, mean, ratio])
            losses.append([f"{name}, {side}", f"{steps:,}", number(_validation(ends)), number(_test(ends))])
    head = ["mark, side", "steps", "ms a step", *(f"s, seed {seed}" for seed in seeds), "mean s", f"time over {PYTORCH}"]
    tables = [measure.table(head, times), "The losses after the last step of these runs: mean (lowest to highest)."]
    return "\n\n".join([*tables, measure.table(["mark, side", "steps", "validation", "test"], losses)])


def _validation(points: Points) -> list[float]:
    return [point.validation for point in points]


def _test(points: Points) -> list[float]:
    return [point.test for point in points if point.test is not None]


def seconds_a_step(ends: Points) -> float:
    """The mean over runs, from their last evaluations."""
    return sum(point.seconds for point in ends) / sum(point.step for point in ends)


def ablation_report(races: Mapping[str, Entrants], seeds: Sequence[int], log: Log) -> str:
    """The table of what each change brings."""
    ((name, entrants),) = races.items()
    ends = {side: [points[-1] for points in found] for side, found in held(name, entrants, seeds, log).items()}
    whole = ends[WHOLE]
    rows = []
    for side, points in ends.items():
        worse = [a - b for a, b in zip(_validation(points), _validation(whole))]
        of_a_step = seconds_a_step(points) / seconds_a_step(whole)
        difference = f"{statistics.fmean(worse):+.3f}" if side != WHOLE else ""
        cells = [number(_validation(points)), difference, number(_test(points)), f"{of_a_step:.2f}"]
        rows.append([side, f"{entrants[side].steps:,}", *cells])
    head = ["", "steps", "validation", "worse by", "test", "time of a step"]
    about = (
        f"Losses after the last step, of {measure.counted(len(whole), 'seed')}: the mean, and the lowest to the highest. Each "
        "line but the first and the last takes one change of the recipe back. The time of a step is that over the recipe's; "
        f"all train in turns. Without Muon, AdamW's rate is {ADAMW_RATE:g}."
    )
    return f"{about}\n\n{measure.table(head, rows)}"


def draw(races: Mapping[str, Entrants], seed: int, log: Log, path: Path) -> None:
    """Draw the validation losses of a seed's runs against the clock to a PNG. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    from tinyformer.plots.curves import COLORS
    from tinyformer.plots.drawing import save

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    labelled = set()
    for name, entrants in races.items():
        axes.axhline(float(name), color="#475569", linewidth=0.8, linestyle=":")
        for i, (side, found) in enumerate(held(name, entrants, [seed], log).items()):
            for points in found:
                curve = [(point.seconds, point.validation) for point in points if point.step]
                label = None if side in labelled else side
                axes.plot(*zip(*curve), color=COLORS[i], linewidth=1.5, label=label)
                labelled.add(side)
    axes.set_xscale("log")
    axes.set_yticks([1.5, 2.0, 2.5, 3.0, *map(float, races)], ["1.5", "2.0", "2.5", "3.0", *races])
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation loss (nats a character)")
    axes.set_title(f"A run for each mark, seed {seed}")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    save(figure, path, 120)


# ------------------------------------------------------------------------------------------------------ the command line


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = measure.make_parser("Time training until marks of the validation loss, beside nanoGPT's recipe on PyTorch.")
    about = "the text (default: Tiny Shakespeare, downloaded once)"
    parser.add_argument("--data", type=some_path, metavar="FILE", help=about)
    about = f"losses to reach (default: {' '.join(map(str, STEPS))})"
    parser.add_argument("--marks", type=float, nargs="+", choices=list(STEPS), metavar="LOSS", help=about)
    about = f"of the weights and the batches; each race is held with each seed (default: {' '.join(map(str, SEEDS))})"
    parser.add_argument("--seeds", type=measure.positive, nargs="+", metavar="INT", help=about)
    every = f"steps between evaluations (default: {EVALUATE_EVERY}, with --ablations {ABLATION_EVALUATE_EVERY})"
    parser.add_argument("--evaluate-every", type=measure.positive, metavar="INT", help=every)
    about = f"steps of every run (default: those chosen for each mark, with --ablations {ABLATION_STEPS})"
    parser.add_argument("--steps", type=measure.positive, metavar="INT", help=about)
    about = "instead take back each change of the recipe by itself, and compare losses after the same number of steps"
    parser.add_argument("--ablations", action="store_true", help=about)
    about = "keep the runs that the log beside --output has already; they must be of the same text and flags"
    parser.add_argument("--resume", action="store_true", help=about)
    arguments = measure.parse(parser, words, "torch", "threadpoolctl")
    if arguments.ablations and arguments.marks:
        parser.error("--ablations has no marks: leave out --marks")
    if arguments.resume and not arguments.output:
        parser.error("--resume goes on with the log beside --output: name that, too")
    arguments.marks, arguments.seeds = (list(dict.fromkeys(a)) for a in (arguments.marks or STEPS, arguments.seeds or SEEDS))
    return arguments


def plan(arguments: argparse.Namespace) -> dict[str, Entrants]:
    """The races that the arguments ask for, by their names in the log."""
    steps = arguments.steps
    if arguments.ablations:
        return {f"{steps or ABLATION_STEPS} steps": ablations(steps or ABLATION_STEPS)}

    def with_steps(entrant: Entrant) -> Entrant:
        return dataclasses.replace(entrant, steps=steps or entrant.steps)

    return {f"{mark:g}": {side: with_steps(e) for side, e in for_mark(mark).items()} for mark in arguments.marks}


@measure.script()
def main() -> None:
    """Measure, print, write and draw."""
    arguments = parse()
    run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Hold the races. What is known is written after each."""
    from tinyformer.plots.drawing import if_possible

    text = read(arguments.data, recipes()["modern"]["text"].get("test_fraction", 0.0))
    name, title = "speedrun", "The time to a loss"
    report: Callable[..., str] = mark_report
    if arguments.ablations:
        name, title, report = "speedrun_ablations", "What each change of the recipe brings", ablation_report
    file = measure.result_file(arguments.output, name) if arguments.output else None
    log = Log(file.with_suffix(".csv") if file else None)
    if arguments.resume:
        log.read()
    races = plan(arguments)
    every = arguments.evaluate_every or (ABLATION_EVALUATE_EVERY if arguments.ablations else EVALUATE_EVERY)
    about = f"{text.name}, {len(text.ids):,} characters."
    if not arguments.ablations:
        about += "\n\n" + DEFINITION.format(every=every)
    if text.test_fraction:
        about += "\n\n" + OF_THE_TEST_SPLIT.format(text.test_fraction)

    def told(lines: Sequence[str]) -> str:
        return "\n\n".join([about, report(races, arguments.seeds, log), *(["\n".join(lines)] if lines else [])])

    lines: list[str] = []
    for lines in hold(races, arguments.seeds, text, log, every):
        measure.write(arguments.output, name, title, told(lines), "numpy", "torch")
    measure.publish(arguments.output, name, title, told(lines), "numpy", "torch")
    if file and not arguments.ablations:
        with if_possible():
            draw(races, arguments.seeds[0], log, file.with_suffix(".png"))


if __name__ == "__main__":
    main()
