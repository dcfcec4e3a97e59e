"""TensorBoard logs, read by TensorBoard's reader."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Program, entries, result_of

import tinytensor as tt
from tinyformer import GPT, GPTConfig, RunFolder, TensorBoardLogger, TextBatches, Trainer, TrainingConfig, UserError
from tinyformer.models.attention import MultiHeadAttention, recording_attention

pytest.importorskip("tensorboardX")
accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

EVERYTHING = {"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}
IDS = np.random.default_rng(5).integers(0, 11, 300)
SETTINGS = {"steps": 20, "batch_size": 4, "eval_every": 10, "log_every": 3, "warmup": 2, "learning_rate": 1e-2, "shards": 1}


class Log:
    """What TensorBoard reads of a run."""

    def __init__(self, run: Path):
        self.accumulator = accumulators.EventAccumulator(str(run / "tensorboard"), size_guidance=EVERYTHING)
        self.accumulator.Reload()

    @property
    def scalars(self) -> dict[str, list[tuple[int, float]]]:
        """The (step, number) of each scalar."""
        names = self.accumulator.Tags()["scalars"]
        return {name: [(event.step, event.value) for event in self.accumulator.Scalars(name)] for name in names}

    @property
    def exact(self) -> dict[str, list[tuple[int, float]]]:
        """The scalars that a run repeats exactly."""
        return {name: found for name, found in self.scalars.items() if name not in ("seconds", "tokens_per_second")}

    @property
    def texts(self) -> dict[str, list[tuple[int, str]]]:
        found = {name: self.accumulator.Tensors(name) for name in self.accumulator.Tags()["tensors"]}
        return {
            name.removesuffix("/text_summary"): [(e.step, e.tensor_proto.string_val[0].decode()) for e in events]
            for name, events in found.items()
        }

    @property
    def pictures(self) -> dict[str, list[tuple[int, np.ndarray]]]:
        from PIL import Image

        def pixels(event: Any) -> np.ndarray:
            return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))

        names = self.accumulator.Tags()["images"]
        return {name: [(event.step, pixels(event)) for event in self.accumulator.Images(name)] for name in names}

    @property
    def histograms(self) -> dict[str, list[tuple[int, Any]]]:
        names = self.accumulator.Tags()["histograms"]
        return {name: [(e.step, e.histogram_value) for e in self.accumulator.Histograms(name)] for name in names}


def csv_of(run: Path) -> dict[str, list[tuple[int, float]]]:
    """The (step, number) of each column of log.csv, as float32, as which TensorBoard keeps them."""
    with open(run / "log.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name != "step"]
    return {name: [(int(row["step"]), float(np.float32(row[name]))) for row in rows if row[name]] for name in names}


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    """A trainer of a tiny GPT with dropout, the same each time, which logs for TensorBoard."""

    def make(name: str = "run", watched: bool = True, sample: Any = None, **settings: Any) -> Trainer:
        config = TrainingConfig(**{**SETTINGS, **settings})
        tt.seed(config.seed)
        model = GPT(GPTConfig(11, 8, 2, 2, 16, dropout=0.2))
        batches = TextBatches(IDS, 8, config.batch_size, config.seed)
        loggers = [TensorBoardLogger(sample)] if watched else []
        return Trainer(model, batches, config, RunFolder(tmp_path / name), loggers=loggers)

    return make


def begin(trainer: Trainer, overwrite: bool = False) -> Trainer:
    """Begin a new run in its folder."""
    trainer.folder.create({"model": trainer.model.config, "training": trainer.config}, overwrite)
    return trainer


def resumed(trainer: Trainer) -> Trainer:
    trainer.folder.read_part("model", GPTConfig)
    trainer.resume()
    return trainer


def fails_at(trainer: Trainer, step: int, fail: Callable[[], object]) -> Trainer:
    """The trainer; but something happens as it draws the batch of this step."""
    sample = trainer.batches.sample

    def sampling() -> Any:
        if trainer.step + 1 == step:
            fail()
        return sample()

    trainer.batches.sample = sampling  # type: ignore[method-assign]
    return trainer


def power_cut() -> None:
    raise SystemExit


# ------------------------------------------------------------------------------------------------------ what is logged


def test_numbers_are_those_of_the_log(make_trainer) -> None:
    trainer = begin(make_trainer())
    trainer.train()
    scalars = Log(trainer.folder.path).scalars
    speeds = scalars.pop("tokens_per_second")
    assert scalars == csv_of(trainer.folder.path)
    assert [step for step, _ in scalars["validation_loss"]] == [0, 10, 20]
    assert [step for step, _ in speeds] == [3, 6, 9, 10, 12, 15, 18, 20]
    assert all(speed > 0 for _, speed in speeds)


def test_settings_and_samples_are_texts(make_trainer) -> None:
    samples = iter(["ROMEO:\n  What, ho!", "second", "third"])
    trainer = begin(make_trainer(sample=lambda: next(samples)))
    trainer.train()
    texts = Log(trainer.folder.path).texts
    assert texts["sample"] == [(0, "    ROMEO:\n      What, ho!\n"), (10, "    second\n"), (20, "    third\n")]
    ((step, settings),) = texts["settings"]
    assert (step, json.loads(settings)) == (0, trainer.folder.read_settings())


def test_weights_are_histograms(make_trainer) -> None:
    trainer = begin(make_trainer())
    trainer.train()
    histograms = Log(trainer.folder.path).histograms
    state = trainer.model.state_dict()
    assert list(histograms) == [f"weights/{name}" for name in state]
    for name, tensor in state.items():
        steps, found = zip(*histograms[f"weights/{name}"])
        values, last = tensor.numpy().astype(np.float64), found[-1]
        assert steps == (0, 10, 20)
        assert (last.min, last.max, last.num) == (values.min(), values.max(), values.size)
        assert (last.sum, last.sum_squares) == pytest.approx((values.sum(), (values**2).sum()))
        limits = np.array(last.bucket_limit)
        below = [(values < limit).sum() for limit in limits[1:-1]]  # the last bin has its upper limit, too
        assert np.cumsum(last.bucket)[1:-1].tolist() == below
        assert (last.bucket[0], limits[0], limits[-1], sum(last.bucket)) == (0, values.min(), values.max(), values.size)


def test_attention_is_pictures(make_trainer) -> None:
    trainer = begin(make_trainer())
    trainer.train()
    pictures = Log(trainer.folder.path).pictures
    batch = next(trainer.batches.validation_batches())
    with recording_attention(trainer.model.eval()) as recorded:
        trainer.model(batch.inputs[:1])
    assert list(pictures) == [f"attention/{name}" for name in recorded] != []
    for name, (weights,) in recorded.items():
        steps, found = zip(*pictures[f"attention/{name}"])
        assert steps == (0, 10, 20)
        assert found[0].shape == found[-1].shape == (240, 2 * 240 + 4, 3)
        assert (found[-1][:, 240:244] == found[-1][0, 240]).all()  # between the heads
        for head in range(2):
            shown = found[-1][:, 244 * head : 244 * head + 240].astype(float)
            expected = weights.numpy()[0, head].repeat(30, axis=0).repeat(30, axis=1)
            assert (shown[expected == 0] == 255).all()  # the future is white
            assert np.abs(((255 - shown[..., 0]) / (255 - 8)) ** 2 - expected).max() < 0.01


def test_a_run_is_the_same_with_and_without_it(make_trainer) -> None:
    without = begin(make_trainer("without", watched=False))
    without.train()
    watched = begin(make_trainer("watched", sample=lambda: str(tt.random.normal((2,)).tolist())))
    watched.train()
    assert result_of(watched.folder.path) == result_of(without.folder.path)
    assert entries(watched.folder.path) == sorted([*entries(without.folder.path), "tensorboard"])


# ------------------------------------------------------------------------------------------------------------ resuming


@pytest.fixture
def whole(make_trainer) -> Log:
    """The log of a run that nothing stopped."""
    trainer = begin(make_trainer("whole"))
    trainer.train()
    return Log(trainer.folder.path)


def assert_same(log: Log, expected: Log) -> None:
    """The same steps and numbers, and the same pictures and weights."""
    assert log.exact == expected.exact
    assert [step for step, _ in log.scalars["seconds"]] == [step for step, _ in expected.scalars["seconds"]]
    assert log.histograms == expected.histograms
    for name, pictures in expected.pictures.items():
        assert [step for step, _ in log.pictures[name]] == [step for step, _ in pictures]
        assert all((ours == theirs).all() for (_, ours), (_, theirs) in zip(log.pictures[name], pictures))


@pytest.mark.parametrize("step", [2, 8, 11, 18])
def test_a_killed_run_resumes_in_the_same_log(make_trainer, whole: Log, step: int) -> None:
    trainer = fails_at(begin(make_trainer()), step, power_cut)
    with pytest.raises(SystemExit):
        trainer.train()
    folder = trainer.folder.path
    watching = Log(folder)  # goes on reading
    logged = [step for step, _ in watching.scalars["seconds"]]
    assert logged == [s for s in (0, 3, 6, 9, 10, 12, 15, 18) if s < step]  # also after the last checkpoint
    (file,) = trainer.folder.event_files()
    with open(file, "ab") as cut_off:
        cut_off.write(bytes([200, *[0] * 50]))  # half a record
    resumed(make_trainer()).train()
    watching.accumulator.Reload()
    assert_same(Log(folder), whole)
    assert watching.exact == whole.exact


def test_it_may_be_stopped_and_resumed_many_times(make_trainer, whole: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1.7e9)  # all within a second
    interrupt = lambda: signal.raise_signal(signal.SIGINT)  # noqa: E731
    trainer = fails_at(begin(make_trainer()), 4, interrupt)
    assert not trainer.train()
    for step in (5, 12, 13, 20):
        trainer = fails_at(resumed(make_trainer()), step, interrupt)
        trainer.train()
    assert trainer.step == 20
    assert_same(Log(trainer.folder.path), whole)
    files = trainer.folder.event_files()
    assert resumed(make_trainer()).train()  # at its end already
    assert trainer.folder.event_files() == files


def test_rows_that_were_not_logged_are_added(make_trainer, whole: Log) -> None:
    trainer = fails_at(begin(make_trainer(watched=False)), 12, lambda: signal.raise_signal(signal.SIGINT))
    trainer.train()
    assert trainer.folder.event_files() == []
    trainer = fails_at(resumed(make_trainer()), 14, lambda: signal.raise_signal(signal.SIGINT))
    trainer.train()
    log = Log(trainer.folder.path)
    assert [step for step, _ in log.texts["settings"]] == [12]
    trainer = fails_at(resumed(make_trainer(watched=False)), 17, lambda: signal.raise_signal(signal.SIGINT))
    trainer.train()
    resumed(make_trainer()).train()
    assert Log(trainer.folder.path).exact == whole.exact


def test_a_run_that_replaces_another_has_a_new_log(make_trainer) -> None:
    begin(make_trainer()).train()
    before = make_trainer().folder.event_files()
    with pytest.raises(UserError, match="holds a run already"):
        begin(make_trainer())
    failing = fails_at(begin(make_trainer(seed=7), overwrite=True), 1, power_cut)
    with pytest.raises(SystemExit):
        failing.train()
    assert failing.folder.event_files() == before  # it replaces nothing before its first step
    other = begin(make_trainer(seed=7, log_every=7), overwrite=True)
    other.train()
    assert Log(other.folder.path).scalars.keys() == csv_of(other.folder.path).keys() | {"tokens_per_second"}
    assert Log(other.folder.path).scalars["train_loss"] == csv_of(other.folder.path)["train_loss"]
    unwatched = begin(make_trainer(watched=False), overwrite=True)
    unwatched.train()
    assert "tensorboard" not in entries(unwatched.folder.path)


def test_a_trainer_without_settings_starts_from_scratch(make_trainer, whole: Log) -> None:
    make_trainer(seed=7).train()
    trainer = make_trainer()
    trainer.train()
    assert_same(Log(trainer.folder.path), whole)
    ((step, settings),) = Log(trainer.folder.path).texts["settings"]
    assert (step, json.loads(settings)) == (0, dataclasses.asdict(trainer.config))


def test_processes_that_share_a_batch_log_once(make_trainer) -> None:
    trainer = begin(make_trainer(workers=2, shards=2))
    trainer.train()
    assert len(trainer.folder.event_files()) == 1
    log = Log(trainer.folder.path)
    assert {name: found for name, found in log.scalars.items() if name != "tokens_per_second"} == csv_of(trainer.folder.path)
    assert log.histograms and log.pictures


# ------------------------------------------------------------------------------------------------------ what can go wrong


class FullDisk(io.FileIO):
    """A file that takes some bytes, and then no more."""

    room = 30_000

    def write(self, content: Any) -> int:
        taken = super().write(content[: self.room])
        self.room -= taken
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return taken


def test_a_full_disk(make_trainer, whole: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    from tinyformer.training import events

    monkeypatch.setattr(events, "new_file", lambda path: FullDisk(path, "x"))
    trainer = begin(make_trainer())
    with pytest.raises(OSError, match="No space left on device") as caught:
        trainer.train()
    (file,) = trainer.folder.event_files()
    assert caught.value.filename == str(file)
    assert file.stat().st_size == 30_000
    monkeypatch.undo()
    resumed(make_trainer()).train()
    assert_same(Log(trainer.folder.path), whole)


def test_a_file_in_the_folders_place(make_trainer) -> None:
    trainer = begin(make_trainer())
    trainer.folder.tensorboard.write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"tensorboard is a file, not a folder: move it, or leave out --tensorboard$"):
        trainer.train()
    assert not trainer.folder.latest.exists()
    assert trainer.folder.tensorboard.read_text(encoding="utf-8") == "mine"


def test_what_cannot_be_drawn_is_left_out(make_trainer) -> None:
    trainer = begin(make_trainer(eval_every=20))
    names = {f"weights/{name}" for name in trainer.model.state_dict()}
    trainer.model.unused = MultiHeadAttention(4, 2)
    trainer.model.empty = tt.nn.Parameter(tt.zeros((0, 3)))
    assert "empty" in trainer.model.state_dict()
    trainer.train()
    log = Log(trainer.folder.path)
    assert list(log.pictures) == ["attention/blocks.0.attention", "attention/blocks.1.attention"]
    assert set(log.histograms) - names == {f"weights/unused.{name}" for name in trainer.model.unused.state_dict()}


def test_no_attention_without_a_validation_split(make_trainer) -> None:
    trainer = begin(make_trainer(eval_every=20))
    trainer.batches.validation_batches = lambda: iter(())
    trainer.train()
    log = Log(trainer.folder.path)
    assert log.pictures == {}
    assert log.histograms


# ---------------------------------------------------------------------------------------------------------- the programs

TINY = ["--num-heads", "2", "--d-model", "16", "--warmup", "2", "--tensorboard", "--out", "run"]
SHORT = ["--steps", "6", "--eval-every", "3", "--log-every", "2"]
SMALL = ["--encoder-layers", "1", "--decoder-layers", "1", "--d-ff", "16"]
PAIRS = ["--data", "pairs.tsv", "--vocab-size", "270", "--validation", "10", "--test", "5", "--beam", "1"]


def write_data(folder: Path) -> None:
    """Questions and statements; and sentences with what they are backwards."""
    rng = random.Random(0)
    words = "the quick brown fox jumps over a lazy dog and then it sleeps".split()
    lines = [" ".join(rng.choices(words, k=6)) + rng.choice("?.") for _ in range(300)]
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    pairs = [f"{line}\t{line[::-1]}\n" for line in lines]
    (folder / "pairs.tsv").write_text("".join(pairs), encoding="utf-8")


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    yield {**os.environ, "TINYFORMER_CACHE": str(tmp_path_factory.mktemp("cache"))}


@pytest.mark.parametrize(
    "command, words, runs, layers",
    [
        ("train gpt", ["--data", "text.txt", *TINY, "--block-size", "8", "--num-layers", "2"], ["run"], 2),
        ("train gpt", ["--architecture", "lstm", "--data", "text.txt", "--d-model", "8", *TINY[-3:]], ["run"], 0),
        ("train bert", ["--data", "text.txt", *TINY, "--wordpieces", "80", "--classify-steps", "6"],
         ["run", "run/from-scratch", "run/pretrained"], 2),
        ("train translator", [*TINY, *SMALL, *PAIRS], ["run"], 3),
        ("train translator", ["--architecture", "attention", *TINY[2:], "--d-embedding", "8", *PAIRS], ["run"], 1),
    ],
)  # fmt: skip
def test_every_program(
    tmp_path: Path, environment: dict[str, str], command: str, words: list[str], runs: list[str], layers: int
) -> None:
    write_data(tmp_path)
    printed = Program(command, tmp_path, environment).good(*words, *SHORT)
    assert f"Watch it: tensorboard --logdir {Path(runs[0])}\n" in printed
    for run in runs:
        log = Log(tmp_path / run)
        scalars = log.scalars
        assert scalars.pop("tokens_per_second")
        assert scalars == csv_of(tmp_path / run)
        assert len(log.pictures) == layers
        assert log.histograms
        assert "settings" in log.texts
        assert ("sample" in log.texts) == (run == runs[0])


def test_a_program_that_is_interrupted_and_resumed(tmp_path: Path, environment: dict[str, str]) -> None:
    write_data(tmp_path)
    program = Program("train gpt", tmp_path, environment)
    words = ["--data", "text.txt", *TINY, "--block-size", "8", "--num-layers", "1", "--eval-every", "20"]
    rest = program.interrupted("step    20: ", *words, "--steps", "1000000", "--schedule", "constant")
    step = int(rest.split("after step ")[1].split()[0])
    steps = [step for step, _ in Log(tmp_path / "run").scalars["train_loss"]]
    assert steps == list(range(10, step + 1, 10))
    program.good("--resume-changed", "--out", "run", "--steps", str(step + 30))  # without --tensorboard: it goes on by itself
    log = Log(tmp_path / "run")
    scalars = log.scalars
    del scalars["tokens_per_second"]
    assert scalars == csv_of(tmp_path / "run")
    assert [json.loads(text)["training"]["steps"] for _, text in log.texts["settings"]] == [1000000, step + 30]
