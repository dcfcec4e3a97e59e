"""The training loop: schedule, accumulation, clipping, whole-split evaluation, checkpoints, exact resume."""

from __future__ import annotations

import copy
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import tinytensor as tt
from tinyformer.command_line import setting
from tinyformer.decoding import evaluating
from tinyformer.errors import SettingError, UserError, shortened
from tinyformer.files import damaged
from tinyformer.gpt import GPT
from tinyformer.memory import check_drawn_fit, check_training_fits
from tinyformer.progress import Progress, show_progress
from tinyformer.runs import RunFolder, load_checkpoint, put_weights, save_checkpoint
from tinyformer.schema import check_fields, read_dataclass
from tinytensor import Tensor, parallel
from tinytensor.backend import bfloat16, default_dtype
from tinytensor.nn import Module
from tinytensor.optim import AdamW, Constant, Cosine, InverseSquareRoot, Linear, Schedule, clip_grad_norm

DTYPES = ("float32", "bfloat16")
SCHEDULES = ("cosine", "linear", "constant", "noam")
MOST_SHARDS = 1024
MOST_STEPS = 10**15  # nobody takes as many, and all that is reckoned from them is still exact


@dataclass(frozen=True)
class TrainingConfig:
    """How to train. Raises UserError for values that cannot be."""

    steps: int = setting(2000, "training steps", changeable=True)
    batch_size: int = setting(12, "sequences in a batch", changeable=True)
    accumulation: int = setting(1, "batches whose gradients make one step", changeable=True)
    learning_rate: float = setting(1e-3, "peak learning rate of AdamW", changeable=True)
    schedule: str = setting(
        "cosine", "how the learning rate falls after the warm-up: cosine, linear, constant or noam", changeable=True
    )
    min_learning_rate: float = setting(1e-4, "learning rate at the end of the cosine or the line", changeable=True)
    warmup: int = setting(100, "steps over which the learning rate rises", changeable=True)
    beta1: float = setting(0.9, "AdamW's decay of the mean gradient", changeable=True)
    beta2: float = setting(0.99, "AdamW's decay of the mean squared gradient", changeable=True)
    weight_decay: float = setting(0.1, "AdamW's weight decay, on matrices only", changeable=True)
    clip: float = setting(1.0, "largest gradient norm; 0 does not clip", changeable=True)
    eval_every: int = setting(
        250, "steps between evaluations, each on the whole validation split, and checkpoints", changeable=True
    )
    average: int = setting(
        1, "weights of that many last evaluations are averaged at the end, and kept if better", changeable=True
    )
    log_every: int = setting(10, "steps between rows of the log", changeable=True)
    seed: int = setting(1337, "of the weights, the batches and dropout")
    dtype: str = setting("float32", "of weights and activations: float32, or on a GPU bfloat16 (the optimizer keeps float32)")
    shards: int = setting(
        0, "threads that share a batch; 0: one for each core that BLAS would use, at most 4; on a GPU 1", changeable=True
    )

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("steps", "batch_size", "accumulation", "eval_every", "log_every", "average"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("learning_rate", "min_learning_rate", "warmup", "weight_decay", "clip", "seed", "shards"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.steps > MOST_STEPS:
            raise SettingError(f"steps must be at most {MOST_STEPS:,}")
        if self.shards > MOST_SHARDS:
            raise SettingError(f"shards must be at most {MOST_SHARDS}, as each is a thread, not {self.shards}")
        if self.schedule not in SCHEDULES:
            raise SettingError(f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}")
        if self.dtype not in DTYPES:
            raise SettingError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 0 and less than 1, not {getattr(self, name)}")

    def make_schedule(self) -> Schedule:
        """The factors of the learning rate. "noam" is the Transformer paper's, which falls as 1/sqrt(step)."""
        final = self.min_learning_rate / self.learning_rate if self.learning_rate else 0.0
        if self.schedule == "cosine":
            return Cosine(self.warmup, self.steps, final)
        if self.schedule == "linear":
            return Linear(self.warmup, self.steps, final)
        if self.schedule == "noam":
            return InverseSquareRoot(self.warmup, d_model=1 / max(self.warmup, 1))  # this width makes its peak 1
        return Constant(self.warmup)


class Batch(Protocol):
    """What a trainer needs to know of a batch: how many targets its mean loss is over, and how to cut it."""

    num_targets: int

    def split(self, parts: int) -> list[Any]:
        """The batch in that many shards, or fewer, each with the whole batch's ``num_targets``."""


class Batches(Protocol):
    """Where batches come from."""

    def sample(self) -> Any:
        """The next training batch."""

    def validation_batches(self) -> Iterator[Any]:
        """The whole validation split."""

    def get_state(self) -> dict[str, Any]:
        """Where ``sample`` stands: values for JSON."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``get_state`` returned."""


@dataclass(frozen=True)
class LogRow:
    """A row of the log; None where there is no such number."""

    step: int
    learning_rate: float
    train_loss: float | None
    validation_loss: float | None
    gradient_norm: float | None
    seconds: float


@dataclass(frozen=True)
class Progressed:
    """How far a run is: what ``latest.safetensors`` says beside its tensors. Raises UserError for what cannot be."""

    kind: str
    step: int
    best_loss: float | None
    best_step: int
    seconds: float
    random: dict[str, Any]
    batches: dict[str, Any]
    rows: list[LogRow]
    unread: list[tuple[int, float, float]]
    shards: int = 1  # once there was but one
    total_seconds: float = 0.0
    settings: dict[str, Any] | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        steps = [row.step for row in self.rows]
        if not 0 <= self.best_step <= self.step:
            raise UserError(f"best_step is {self.best_step}, and step {self.step}")
        if any(a >= b for a, b in zip([-1, *steps], [*steps, self.step + 1])):
            raise UserError("the steps of its rows do not rise from 0 to its own")
        if any(not 0 < step <= self.step for step, _, _ in self.unread):
            raise UserError("unread has steps that were not yet taken")
        if not 1 <= self.shards <= MOST_SHARDS:
            raise UserError(f"shards is {self.shards}")
        if min(self.seconds, self.total_seconds) < 0:
            raise UserError("its seconds are negative")


# From a model and a batch its mean loss; from a shard of a batch, its part of that mean: the shards' losses add up to it.
LossFunction = Callable[[Any, Any], Tensor]


def next_token_loss(model: GPT, batch: Any) -> Tensor:
    """The mean cross-entropy of a language model's predictions."""
    return model.loss(batch.inputs, batch.targets, reduction="sum") / batch.num_targets


def _training_dtype(name: str) -> Any:
    if name == "bfloat16" and tt.backend_name == "numpy":
        raise SettingError(
            "dtype bfloat16 needs a GPU, as NumPy has no fast bfloat16: set TINYTENSOR_BACKEND=cupy, or train in float32"
        )
    if name == "bfloat16" and bfloat16 is None:
        raise SettingError("dtype bfloat16 needs the package ml_dtypes: pip install ml_dtypes")
    return bfloat16 if name == "bfloat16" else default_dtype


def adamw_for(model: Module, config: TrainingConfig) -> AdamW:
    """AdamW that decays matrices but not biases and norms, as GPT-2 was trained."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW([g for g in groups if g["params"]], lr=config.learning_rate, betas=(config.beta1, config.beta2))


def evaluate(model: Module, batches: Batches, loss_function: LossFunction = next_token_loss, shards: int = 1) -> float:
    """The mean loss over every target of the validation split, each batch cut into ``shards``, with a thread for each."""
    losses: list[Tensor] = []
    counts: list[int] = []
    total = 0
    own = copy.deepcopy(tt.random.generator())  # evaluating, or not, changes none of the random numbers of training
    with tt.no_grad(), evaluating(model), tt.random.using(own):
        for batch in batches.validation_batches():
            parts = parallel.run(partial(loss_function, model), batch.split(shards))
            losses += parts
            counts += [batch.num_targets] * len(parts)
            total += batch.num_targets
    values = tt.stack(losses).tolist() if losses else []  # read but once, at the end
    return sum(value * count for value, count in zip(values, counts)) / max(total, 1)


class Trainer:
    """Trains a model on batches and keeps its folder up to date. ``train()`` runs to the end, or until it is told to stop.

    The model is converted to the configuration's dtype. Raises UserError where the backend cannot train in that.
    """

    def __init__(
        self,
        model: Module,
        batches: Batches,
        config: TrainingConfig,
        folder: RunFolder,
        loss_function: LossFunction = next_token_loss,
        on_evaluation: Callable[[], str] | None = None,
    ):
        self.on_evaluation = on_evaluation  # says something about the model as it is now, such as a sample
        self.model = model.astype(_training_dtype(config.dtype))
        check_training_fits(model, batches, config.shards)
        check_drawn_fit(batches, config.accumulation)
        self.batches = batches
        self.config = config
        self.folder = folder
        self.loss_function = loss_function
        self.shards = config.shards or parallel.default_shards()
        self.optimizer = adamw_for(model, config)
        self.schedule = config.make_schedule()
        self.step = 0
        self.best_loss = math.inf
        self.best_step = 0
        self.seconds = 0.0  # of the training steps
        self.total_seconds = 0.0  # evaluations and checkpoints included
        self.stopped_by: str | None = None
        self.rows: list[dict[str, Any]] = []
        self._unread: list[tuple[int, Any, Any]] = []  # (step, loss, gradient norm) since the log's last row, on the device

    # ------------------------------------------------------------------------------------------------- one step

    def train_step(self) -> tuple[Tensor, Tensor, int]:
        """One optimizer step: the mean loss, the gradient's norm before clipping, and the number of targets."""
        drawn = [self.batches.sample() for _ in range(self.config.accumulation)]
        count = sum(batch.num_targets for batch in drawn)
        self.optimizer.zero_grad()
        mean_loss: Tensor = tt.zeros(())
        for batch in drawn:
            # Each batch counts by its number of targets: the sum is the mean over all of them, as in one large batch.
            part = partial(self._part_of_the_loss, batch.num_targets / count)
            mean_loss = mean_loss + parallel.backward(part, batch.split(self.shards))
        norm = clip_grad_norm(self.model.parameters(), self.config.clip or math.inf)
        self.optimizer.step(self.schedule(self.step), self.shards)
        self.step += 1
        return mean_loss, norm, count

    def _part_of_the_loss(self, share: float, shard: Any) -> Tensor:
        return self.loss_function(self.model, shard) * share

    # ------------------------------------------------------------------------------------------------- the loop

    def train(self) -> bool:
        """Train to the last step; False where it was told to stop meanwhile, after a checkpoint: by Ctrl-C, SIGTERM or SIGHUP,
        or as nobody reads its output any more. ``stopped_by`` then says which; it may have been while the last step was taken.

        Raises UserError at a loss that is NaN or infinite; the checkpoints then are from before it.
        """
        config, self.stopped_by = self.config, None
        self.model.train()
        began, before = time.perf_counter(), self.total_seconds
        bar = show_progress("training", config.steps, "step", self.step)
        with _stop_on_signals(self._stop), _closing(bar):
            if self.step == 0:
                self._evaluate(bar)
                self._save_latest()
            since, steps, tokens = time.perf_counter(), 0, 0
            while self.step < config.steps and self.stopped_by is None:
                loss, norm, count = self.train_step()
                self._unread.append((self.step, loss, norm))
                steps, tokens = steps + 1, tokens + count
                self._tell(bar.update)
                if self.folder.replaces:  # once it has taken a step, the run may take another's place
                    self._save_latest()
                if self._due(config.log_every) or self._due(config.eval_every):
                    self._read_losses()
                    elapsed = time.perf_counter() - since
                    self.seconds += elapsed
                    self._log()
                    self._show(bar, elapsed / steps, tokens / elapsed)
                    self.total_seconds = before + time.perf_counter() - began
                    if self._due(config.eval_every):
                        self._evaluate(bar)
                        self.total_seconds = before + time.perf_counter() - began
                        self._save_latest()
                    since, steps, tokens = time.perf_counter(), 0, 0
            if self.step < config.steps:
                self.seconds += time.perf_counter() - since
                self.total_seconds = before + time.perf_counter() - began
                self._save_latest()
        return self.stopped_by is None

    def _stop(self, by: str) -> None:
        """Stop after the step that is being taken."""
        self.stopped_by = self.stopped_by or by

    def _tell(self, tell: Callable[..., object], *what: str) -> None:
        """Show something. Where that cannot be, as when the terminal was closed, training stops and is saved."""
        try:
            tell(*what)
        except OSError as error:
            self._stop(f"the end of its output ({error.strerror})")

    def farewell(self, command: str) -> str:
        """What to say where ``train`` stopped before the end, and ``command --resume`` goes on."""
        if self.step == 0 and self.folder.replaces:
            return f"Stopped by {self.stopped_by} before its first step: {self.folder.path} is as it was."
        return f"Stopped by {self.stopped_by} after step {self.step} and saved. Go on with: {command} --resume"

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.config.steps

    def _show(self, bar: Progress, seconds_a_step: float, tokens_a_second: float) -> None:
        self._tell(
            bar.set_postfix_str,
            f"loss {self._last('train_loss'):.3f}, val {self._last('validation_loss'):.3f}, "
            f"{1000 * seconds_a_step:.0f} ms/step, {tokens_a_second:,.0f} tokens/s",
        )

    def _read_losses(self) -> None:
        """Fetch the losses and gradient norms since the log's last row; only here does a GPU have to be waited for."""
        self._unread = [(step, float(loss), float(norm)) for step, loss, norm in self._unread]
        for step, loss, norm in self._unread:
            self._check("loss", loss, step)
            self._check("gradient's norm", norm, step)

    def _check(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            raise UserError(
                f"the {what} became {value} at step {step}: training stops. What {self.folder.path} holds is from before "
                "that; a lower --learning-rate or --clip 1 usually helps"
            )

    def _log(self) -> None:
        """Add to the log the mean loss since its last row and the last gradient norm."""
        row = self._row()
        row["train_loss"] = sum(loss for _, loss, _ in self._unread) / len(self._unread)
        row["gradient_norm"] = self._unread[-1][2]
        self._unread = []

    def _row(self) -> dict[str, Any]:
        """The log's row of the current step."""
        if not self.rows or self.rows[-1]["step"] != self.step:
            rate = self.optimizer.param_groups[0]["lr"] * self.schedule(max(self.step - 1, 0))
            empty = {"train_loss": None, "validation_loss": None, "gradient_norm": None}
            self.rows.append({"step": self.step, "learning_rate": rate, **empty, "seconds": round(self.seconds, 2)})
        return self.rows[-1]

    def _last(self, column: str) -> float:
        return next((row[column] for row in reversed(self.rows) if row[column] is not None), math.nan)

    def _evaluate(self, bar: Progress) -> None:
        loss = evaluate(self.model, self.batches, self.loss_function, self.shards)
        self._check("validation loss", loss, self.step)
        self._row()["validation_loss"] = loss
        self._tell(bar.write, f"step {self.step:5d}: validation loss {loss:.4f}, perplexity {perplexity(loss):.2f}")
        if loss < self.best_loss:
            self._save_best(loss)
        if self.config.average > 1 and self.step > 0:  # the first weights know nothing
            self._keep_weights()
            if self.step == self.config.steps:
                self._try_average(bar)
        if self.on_evaluation is not None and self.step:
            self._tell(bar.write, self.on_evaluation())
        bar.unpause()  # so that the time left is reckoned from the steps alone

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _save_best(self, loss: float) -> None:
        self.best_loss, self.best_step = loss, self.step
        state = {"kind": "best", "step": self.step, "validation_loss": loss, **self.folder.identity(lasting=True)}
        save_checkpoint(self.folder.best, {"model": self.model.state_dict()}, state)

    def _keep_weights(self) -> None:
        """Write this evaluation's weights beside those of the last ones, and drop what is older than the average goes back."""
        save_checkpoint(self.folder.weights(self.step), {"model": self.model.state_dict()}, {"kind": "weights"})
        for old in self.folder.kept_weights()[: -self.config.average]:
            old.unlink()

    def _try_average(self, bar: Progress) -> None:
        """Evaluate the mean of the kept weights, and make it the best if it is. The model's own weights stay as they are."""
        own = {name: tensor.copy() for name, tensor in self.model.state_dict().items()}
        states = [load_checkpoint(path, "weights")[0]["model"] for path in self.folder.kept_weights()]
        self.model.load_state_dict({name: _mean([s[name] for s in states]) for name in own})
        loss = evaluate(self.model, self.batches, self.loss_function, self.shards)
        mean = f"the mean of the last {len(states)} weights"
        self._tell(bar.write, f"{mean}: validation loss {loss:.4f}, perplexity {perplexity(loss):.2f}")
        if loss < self.best_loss:
            self._save_best(loss)
        self.model.load_state_dict(own)

    def _save_latest(self) -> None:
        self._read_losses()
        state = {
            "kind": "latest",
            "step": self.step,
            "best_loss": self.best_loss if math.isfinite(self.best_loss) else None,
            "best_step": self.best_step,
            "seconds": self.seconds,
            "total_seconds": self.total_seconds,
            "shards": self.shards,
            "random": tt.random.get_state(),
            "batches": self.batches.get_state(),
            "rows": self.rows,
            "unread": self._unread,
            **self.folder.identity(lasting=False),
        }
        groups = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        save_checkpoint(self.folder.latest, groups, state)
        self.folder.write_log(self.rows)
        if self.step > 0 or not self.folder.replaces:  # before its first step, another run is worth more
            self.folder.settle()

    def resume(self) -> None:
        """Go on from the folder's latest checkpoint exactly, with the optimizer's settings from there, too; or with settings
        that were changed on purpose. Raises UserError where it is missing, damaged, another's, or of other settings."""
        latest = self.folder.latest
        groups, state = load_checkpoint(latest, "latest")
        with damaged(latest):
            found = read_dataclass(Progressed, state)
        self.folder.check_identity(state, latest)
        if found.step > self.config.steps:
            raise SettingError(f"steps must be at least the {found.step} that were taken already, not {self.config.steps}")
        put_weights(self.model, groups.get("model", {}), latest)
        own = [{name: group[name] for name in ("lr", "betas", "weight_decay")} for group in self.optimizer.param_groups]
        try:
            self.optimizer.load_state_dict(groups.get("optimizer", {}))
            tt.random.set_state(found.random)
            self.batches.set_state(found.batches)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
            raise UserError(f"{latest} does not fit this run: {shortened(str(error))}") from None
        self.step, self.seconds, self.total_seconds = found.step, found.seconds, found.total_seconds
        self.rows = [dataclasses.asdict(row) for row in found.rows]
        self.best_loss = math.inf if found.best_loss is None else found.best_loss
        self.best_step, self._unread = found.best_step, list(found.unread)
        changed_shards = self.config.shards if self.folder.changes else 0
        self.shards = changed_shards or found.shards  # another number would round, and drop, differently
        if self.folder.changes:
            for group, settings in zip(self.optimizer.param_groups, own):
                group.update(settings)
            self._save_latest()
            self.folder.keep_changes()


def _mean(tensors: list[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0].astype("float32")) / len(tensors)  # bfloat16 would round each sum


def perplexity(loss: float) -> float:
    """e to the loss: among how many equally likely tokens the model hesitates."""
    return math.exp(loss) if loss < 700 else math.inf


@contextmanager
def _closing(bar: Progress) -> Iterator[None]:
    """Ends the bar at the end, if there still is a terminal for it."""
    try:
        yield
    finally:
        with suppress(OSError):
            bar.__exit__(None, None, None)


@contextmanager
def _stop_on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Call ``stop`` at Ctrl-C, SIGTERM and SIGHUP, so that a step is finished before training stops; a second Ctrl-C interrupts
    at once. A signal that is ignored, as SIGHUP under nohup, stays so. Signals reach the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}
    signals = {getattr(signal, name): said for name, said in names.items() if hasattr(signal, name)}  # Windows has no SIGHUP
    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in signals}

    def handle(number: int, frame: Any) -> None:
        stop(signals[signal.Signals(number)])
        if number == signal.SIGINT:
            signal.signal(number, previous[signal.SIGINT])

    for number, before in previous.items():
        if before is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
