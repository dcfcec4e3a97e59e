"""The training time on Tiny Shakespeare until the validation loss reaches a mark: tinyformer's recipe beside nanoGPT's.

python benchmarks/speedrun.py --output benchmarks/results             # three marks, three seeds: hours
python benchmarks/speedrun.py --marks 1.886 --seeds 1337              # the first mark alone: minutes

The report says what is measured (``DEFINITION``). The test split is the beginning of the text. No side trains on it and nothing
is chosen by it; its loss is reported beside the validation loss. nanoGPT's recipe is the one in its README for a CPU, which is
also the default of tinyformer's dataclasses. PyTorch is eager, with its default number of threads.

The sides train in short turns. In each turn a side evaluates first and then trains, so that the idle threads of the side before
have stopped spinning when the clock starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import measure
from measure import Worker
from train_step import TorchTraining, Training, in_shards

from tinyformer.commands.command_line import some_path
from tinyformer.common.errors import UserError

OURS, PYTORCH = "tinyformer's recipe", "nanoGPT's recipe, PyTorch"
# By mark: the steps of our recipe and of nanoGPT's. 1.886 is nanoGPT's published result on a CPU.
STEPS = {1.886: (250, 2500), 1.70: (600, 10_000), 1.60: (1150, 10_000)}
SEEDS = (1337, 1338, 1339)
WARM_UP = 4  # steps of a model that is thrown away


@dataclasses.dataclass(frozen=True)
class Point:
    """The losses of an evaluation. The test split, if there is one, is evaluated only after the last step."""

    step: int
    seconds: float
    validation: float
    test: float | None = None


class Runner(Training):
    """A side that trains one model after another, each made by ``start``."""

    steps = done = 0
    seconds = 0.0
    splits: Mapping[str, Any] = {}  # by name, "test" among them if there is one

    def start(self, training: Mapping[str, Any], rates: Sequence[float]) -> None:
        """Start a run with a new model and optimizer. ``training`` holds the fields of a ``TrainingConfig``, and ``rates`` the
        learning rate of each step."""
        self.steps, self.done, self.seconds = training["steps"], 0, 0.0

    def loss(self, split: str) -> float:
        """Return the mean loss over every target of the "validation" or "test" split, in adjacent windows."""
        raise TypeError(f"{type(self).__name__} has no loss method: write one")

    def advance(self, steps: int) -> Point:
        """Evaluate, and then train for up to ``steps`` steps. Returns the evaluation's result."""
        is_tested = self.done == self.steps and "test" in self.splits
        point = Point(self.done, self.seconds, self.loss("validation"), self.loss("test") if is_tested else None)
        count = min(steps, self.steps - self.done)
        self.seconds += sum(self.turn(settle=0, steps=count))
        self.done += count
        return point


class Tinyformer(Runner):
    """tinyformer's GPT and trainer. The last tenth of the ids is the validation split."""

    def __init__(self, ids: Any, test_fraction: float, model: Mapping[str, Any]):
        self.ids, self.model = ids, model
        self.split = {"vocab_size": model["vocab_size"], "test_fraction": test_fraction}

    def start(self, training: Mapping[str, Any], rates: Sequence[float]) -> None:
        import tinytensor
        from tinyformer.data.text import TextBatches
        from tinyformer.models.gpt import GPT, GPTConfig
        from tinyformer.training.config import TrainingConfig
        from tinyformer.training.run_folder import RunFolder
        from tinyformer.training.trainer import Trainer

        super().start(training, rates)
        config = TrainingConfig(**training)  # its schedule gives the rates
        tinytensor.seed(config.seed)
        batches = TextBatches(self.ids, self.model["block_size"], config.batch_size, config.seed, **self.split)
        self.trainer = Trainer(GPT(GPTConfig(**self.model)), batches, config, RunFolder("never-written"))
        self.splits = {"validation": batches, **({"test": batches.with_test_split()} if len(batches.test) else {})}

    def step(self) -> Any:
        return self.trainer.train_step()[0]

    def loss(self, split: str) -> float:
        from tinyformer.training.evaluation import evaluate

        return evaluate(self.trainer.model, self.splits[split], shards=self.trainer.shards)

    def libraries(self) -> list[str]:
        return in_shards(self.trainer.shards)


class PyTorch(Runner, TorchTraining):
    """The same GPT in PyTorch, with nanoGPT's initialization and PyTorch's fastest AdamW (``fused``).

    ``splits`` are ids: "training", "validation" and, if there is one, "test".
    """

    def __init__(self, splits: Mapping[str, Any], model: Mapping[str, Any]):
        super().__init__()
        torch = self.torch
        names = ("vocab_size", "block_size", "num_layers", "num_heads", "d_model", "dropout", "bias")
        self.sizes = {name: model[name] for name in names}
        self.splits = {name: torch.tensor(ids, dtype=torch.int64) for name, ids in splits.items()}
        self.window = torch.arange(model["block_size"] + 1)

    def start(self, training: Mapping[str, Any], rates: Sequence[float]) -> None:
        super().start(training, rates)
        self.torch.manual_seed(training["seed"])
        self.model = self.twins.GPT(**self.sizes)
        self.twins.nanogpt_weights(self.model)
        self.train_with(self.model, training)
        self.rates, self.batch_size = iter(rates), training["batch_size"]

    def step(self) -> Any:
        rate = next(self.rates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        ids = self.splits["training"]
        windows = ids[self.torch.randint(len(ids) - len(self.window) + 1, (self.batch_size, 1)) + self.window]
        return self.update(lambda: self.model.loss(windows[:, :-1], windows[:, 1:]))

    def loss(self, split: str) -> float:
        self.model.eval()
        total = 0.0
        with self.torch.no_grad():
            for windows in self._adjacent(self.splits[split]):
                total += float(self.model.loss(windows[:, :-1], windows[:, 1:])) * windows[:, 1:].numel()
        self.model.train()
        return total / (len(self.splits[split]) - 1)

    def _adjacent(self, ids: Any, batch_size: int = 64) -> Iterator[Any]:
        """Yield windows that predict every id but the first exactly once. The last may be shorter."""
        block = len(self.window) - 1
        full = ids.unfold(0, block + 1, block)
        yield from full.split(batch_size)
        if len(full) * block + 1 < len(ids):
            yield ids[None, len(full) * block :]


# ------------------------------------------------------------------------------------------------------------- the races

Points = Sequence[Point]
Start = tuple[Mapping[str, Any], Sequence[float]]  # the arguments of a side's ``start``


def recipes() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the recipes of ``tinyformer train gpt``, by name."""
    from tinyformer.commands.gpt import RECIPES

    return RECIPES


@dataclasses.dataclass(frozen=True)
class Text:
    """A text as ids of characters. Its first ``test_fraction`` is the test split, and its last tenth the validation split."""

    name: str
    ids: Any
    vocab_size: int
    test_fraction: float


def read(path: str | None, test_fraction: float) -> Text:
    """Read the text at a path, or download Tiny Shakespeare once. Raises UserError if it cannot be read."""
    from tinyformer.data.files import decoded
    from tinyformer.data.reading import TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256, download, fingerprint, read_text
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
    """A participant of a race: a library, a recipe, and the number of steps."""

    runner: type[Runner]
    recipe: Mapping[str, Mapping[str, Any]]  # settings by part: "model" and "training"
    steps: int

    def side(self, text: Text) -> tuple[Any, ...]:
        """Return the class and arguments of the side. Raises SettingError if a split of the text is shorter than a window."""
        from tinyformer.data.text import TextBatches
        from tinyformer.models.gpt import GPTConfig

        model = dataclasses.asdict(GPTConfig(vocab_size=text.vocab_size, **self.recipe["model"]))
        split: dict[str, Any] = {"vocab_size": text.vocab_size, "test_fraction": text.test_fraction}
        batches = TextBatches(text.ids, model["block_size"], 1, **split)
        if self.runner is Tinyformer:
            return Tinyformer, text.ids, text.test_fraction, model
        names = ("training", "validation", *(["test"] if text.test_fraction else []))
        return self.runner, {name: getattr(batches, name).numpy() for name in names}, model

    def start(self, seed: int) -> Start:
        """Return the arguments of the side's ``start``."""
        from tinyformer.training.config import TrainingConfig

        config = TrainingConfig(**{**self.recipe["training"], "steps": self.steps, "seed": seed})
        schedule = config.make_schedule()
        return dataclasses.asdict(config), [config.learning_rate * schedule(step) for step in range(self.steps)]


Entrants = Mapping[str, Entrant]  # by the side's name
Runs = dict[tuple[str, str], list[Points]]  # by race and side: one for each seed so far


def for_mark(mark: float) -> dict[str, Entrant]:
    """Return the sides of the race to a mark."""
    ours, theirs = STEPS[mark]
    return {OURS: Entrant(Tinyformer, recipes()["modern"], ours), PYTORCH: Entrant(PyTorch, recipes()["nanogpt"], theirs)}


def race(
    workers: Mapping[str, Worker], starts: Mapping[str, Start], every: int, tell: Callable[[str], None]
) -> dict[str, list[Point]]:
    """Train each side once, in turns of ``every`` steps, and return its evaluations.

    The next turn goes to the side that has completed the smallest fraction of its turns. So the turns of a side with few steps
    are spread over the race, and a slow moment of the machine affects all. ``tell`` is called after each turn.
    """
    points: dict[str, list[Point]] = {name: [] for name in starts}
    for name, start in starts.items():
        workers[name].call("start", *start)
    turns = {name: turns_of(training["steps"], every) for name, (training, _) in starts.items()}
    while waiting := [name for name in starts if len(points[name]) < turns[name]]:
        name = min(waiting, key=lambda name: len(points[name]) / turns[name])
        points[name].append(workers[name].call("advance", every))
        losses = [f"{name} {curve[-1].validation:.3f} ({curve[-1].step})" for name, curve in points.items() if curve]
        tell(", ".join(losses))
    return points


def turns_of(steps: int, every: int) -> int:
    """Return the number of turns for ``steps`` steps. The last one only evaluates."""
    return math.ceil(steps / every) + 1


def reached(points: Points, mark: float) -> Point | None:
    """Return the first evaluation at or below a mark."""
    return next((point for point in points if point.validation <= mark), None)


def ready(stack: ExitStack, entrants: Entrants, text: Text) -> tuple[dict[str, Worker], list[str]]:
    """Start a worker for each side and let it import and compile. Also return a line about each. ``stack`` ends them."""
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


def hold(races: Mapping[str, Entrants], seeds: Sequence[int], text: Text, every: int) -> Iterator[tuple[Runs, list[str]]]:
    """Hold each race with each seed. After each, yield all runs so far and lines about the sides."""
    runs: Runs = {(name, side): [] for name, entrants in races.items() for side in entrants}
    with ExitStack() as stack:
        workers, lines = ready(stack, next(iter(races.values())), text)
        for seed in seeds:
            for name, entrants in races.items():
                starts = {side: entrant.start(seed) for side, entrant in entrants.items()}
                turns = sum(turns_of(entrant.steps, every) for entrant in entrants.values())
                with measure.progress(f"{name}, seed {seed}", turns) as tell:
                    for side, points in race(workers, starts, every, tell).items():
                        runs[name, side].append(points)
                yield runs, lines


# ------------------------------------------------------------------------------------------------------------ the report

DEFINITION = """\
The seconds are the time at the first evaluation at or below the mark. They count training steps, including the drawing of
batches, but not evaluations, importing and compiling. Each side evaluates the complete validation split, the last tenth of the
text in adjacent windows of its block size, every {every} steps. Sides take turns of as many steps.

The number of steps sets the learning rate schedule. So each mark has its own run, with a number of steps chosen on the
validation split, for both recipes."""
OF_THE_TEST_SPLIT = "The test split is the first {:.0%} of the text. No side trains on it, and nothing was chosen by it."


def number(values: Sequence[float], digits: int = 3) -> str:
    """Format the mean, followed by the lowest and the highest of several values. Empty without values."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else mean


def clock_at(points: Points, mark: float) -> str:
    """Return a run's cell in the table of marks."""
    point = reached(points, mark)
    if point is not None:
        return f"{point.seconds:.1f}"
    return f"not reached, best {min(point.validation for point in points):.3f}"


def seconds_to(runs: Sequence[Points], mark: float) -> list[float] | None:
    """Return the seconds of each run to a mark, or None unless all reached it."""
    points = [reached(points, mark) for points in runs]
    return [point.seconds for point in points if point] if all(points) else None


def over(runs: Sequence[Points], rivals: Sequence[Points], mark: float) -> str:
    """Format the time to a mark over the rival's in the same race. Empty unless all reached it."""
    ours, theirs = seconds_to(runs, mark), seconds_to(rivals, mark)
    return number([a / b for a, b in zip(ours or [], theirs or [])], 2)


def report(races: Mapping[str, Entrants], seeds: Sequence[int], runs: Runs) -> str:
    """Return the tables of the marks: seconds, and final losses."""
    times, losses = [], []
    for (name, side), curves in runs.items():
        if not curves:
            continue
        mark, steps, ends = float(name), races[name][side].steps, [points[-1] for points in curves]
        cells = [clock_at(points, mark) for points in curves] + [""] * (len(seeds) - len(curves))
        seconds = seconds_to(curves, mark)
        mean = f"{statistics.fmean(seconds):.1f}" if seconds else ""
        ratio = "1" if side == PYTORCH else over(curves, runs[name, PYTORCH], mark)
        of_a_step = sum(point.seconds for point in ends) / sum(point.step for point in ends)
        times.append([f"{name}, {side}", f"{steps:,}", f"{1000 * of_a_step:.1f}", *cells, mean, ratio])
        tested = [point.test for point in ends if point.test is not None]
        losses.append([f"{name}, {side}", f"{steps:,}", number([point.validation for point in ends]), number(tested)])
    head = ["mark, side", "steps", "ms a step", *(f"s, seed {seed}" for seed in seeds), "mean s", f"time over {PYTORCH}"]
    between = "Losses after the last step of these runs: mean (lowest to highest)."
    return "\n\n".join(
        [measure.table(head, times), between, measure.table(["mark, side", "steps", "validation", "test"], losses)]
    )


def draw(runs: Runs, seed: int, path: Path) -> None:
    """Draw the validation losses of the runs with the first seed over time to a PNG. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    from tinyformer.plots.curves import COLORS
    from tinyformer.plots.drawing import save

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    marks = list(dict.fromkeys(name for name, _ in runs))
    for (name, side), curves in runs.items():
        curve = [(point.seconds, point.validation) for point in curves[0] if point.step]
        label = side if name == marks[0] else None
        axes.plot(*zip(*curve), color=COLORS[(OURS, PYTORCH).index(side)], linewidth=1.5, label=label)
    for mark in marks:
        axes.axhline(float(mark), color="#475569", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yticks([1.5, 2.0, 2.5, 3.0, *map(float, marks)], ["1.5", "2.0", "2.5", "3.0", *marks])
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation loss (nats a character)")
    axes.set_title(f"A run for each mark, seed {seed}")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    save(figure, path, 120)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = measure.make_parser("Time training until marks of the validation loss, beside nanoGPT's recipe on PyTorch.")
    about = "the text (default: Tiny Shakespeare, downloaded once)"
    parser.add_argument("--data", type=some_path, metavar="FILE", help=about)
    parser.add_argument(
        "--marks", type=float, nargs="+", choices=STEPS, default=[*STEPS], metavar="LOSS", help="losses to reach"
    )
    about = "seeds of the weights and the batches; each race is held with each seed"
    parser.add_argument("--seeds", type=measure.positive, nargs="+", default=[*SEEDS], metavar="INT", help=about)
    every = "steps between evaluations"
    parser.add_argument("--evaluate-every", type=measure.positive, default=25, metavar="INT", help=every)
    return measure.parse(parser, words, "torch", "threadpoolctl")


@measure.script()
def main() -> None:
    """Hold the races. Results are written after each, and printed and drawn at the end."""
    arguments = parse()
    from tinyformer.plots.drawing import if_possible

    text = read(arguments.data, recipes()["modern"]["text"].get("test_fraction", 0.0))
    file = measure.result_file(arguments.output, "speedrun") if arguments.output else None
    races, seeds = {f"{mark:g}": for_mark(mark) for mark in arguments.marks}, list(dict.fromkeys(arguments.seeds))
    about = f"{text.name}, {len(text.ids):,} characters.\n\n{DEFINITION.format(every=arguments.evaluate_every)}"
    if text.test_fraction:
        about += "\n\n" + OF_THE_TEST_SPLIT.format(text.test_fraction)
    title, text_of_report = "The time to a loss", ""
    for runs, lines in hold(races, seeds, text, arguments.evaluate_every):
        text_of_report = "\n\n".join([about, report(races, seeds, runs), "\n".join(lines)])
        measure.write(file, "speedrun", title, text_of_report, "numpy", "torch")
    print(f"{title}\n\n{text_of_report}")
    if file:
        with if_possible():
            draw(runs, seeds[0], file.with_suffix(".png"))


if __name__ == "__main__":
    main()
