"""The training loop: schedule, accumulation, clipping, whole-split evaluation, checkpoints, exact resume."""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tqdm import tqdm

import tinytensor as tt
from tinyformer.command_line import setting
from tinyformer.decoding import evaluating
from tinyformer.errors import UserError
from tinyformer.gpt import GPT
from tinyformer.runs import RunFolder, load_checkpoint, save_checkpoint
from tinytensor import Tensor, parallel
from tinytensor.backend import bfloat16, default_dtype
from tinytensor.nn import Module
from tinytensor.optim import AdamW, Constant, Cosine, InverseSquareRoot, Linear, Schedule, clip_grad_norm

DTYPES = ("float32", "bfloat16")
SCHEDULES = ("cosine", "linear", "constant", "noam")


@dataclass(frozen=True)
class TrainingConfig:
    """How to train. Raises UserError for values that cannot be."""

    steps: int = setting(2000, "training steps")
    batch_size: int = setting(12, "sequences in a batch")
    accumulation: int = setting(1, "batches whose gradients make one step")
    learning_rate: float = setting(1e-3, "peak learning rate of AdamW")
    schedule: str = setting("cosine", "how the learning rate falls after the warm-up: cosine, linear, constant or noam")
    min_learning_rate: float = setting(1e-4, "learning rate at the end of the cosine or the line")
    warmup: int = setting(100, "steps over which the learning rate rises")
    beta1: float = setting(0.9, "AdamW's decay of the mean gradient")
    beta2: float = setting(0.99, "AdamW's decay of the mean squared gradient")
    weight_decay: float = setting(0.1, "AdamW's weight decay, on matrices only")
    clip: float = setting(1.0, "largest gradient norm; 0 does not clip")
    eval_every: int = setting(250, "steps between evaluations, each on the whole validation split, and checkpoints")
    average: int = setting(1, "weights of that many last evaluations are averaged at the end, and kept if better")
    log_every: int = setting(10, "steps between rows of the log")
    seed: int = setting(1337, "of the weights, the batches and dropout")
    dtype: str = setting("float32", "of weights and activations: float32, or on a GPU bfloat16 (the optimizer keeps float32)")
    shards: int = setting(0, "threads that share a batch; 0: one for each core that BLAS would use, at most 4; on a GPU 1")

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulation", "eval_every", "log_every", "average"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("learning_rate", "min_learning_rate", "warmup", "weight_decay", "clip", "seed", "shards"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} must be a number not below 0, not {getattr(self, name)}")
        if self.schedule not in SCHEDULES:
            raise UserError(f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}")
        if self.dtype not in DTYPES:
            raise UserError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 0 and less than 1, not {getattr(self, name)}")

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


# From a model and a batch its mean loss; from a shard of a batch, its part of that mean: the shards' losses add up to it.
LossFunction = Callable[[Any, Any], Tensor]


def next_token_loss(model: GPT, batch: Any) -> Tensor:
    """The mean cross-entropy of a language model's predictions."""
    return model.loss(batch.inputs, batch.targets, reduction="sum") / batch.num_targets


def _training_dtype(name: str) -> Any:
    if name == "bfloat16" and tt.backend_name == "numpy":
        raise UserError(
            "dtype bfloat16 needs a GPU, as NumPy has no fast bfloat16: set TINYTENSOR_BACKEND=cupy, or train in float32"
        )
    if name == "bfloat16" and bfloat16 is None:
        raise UserError("dtype bfloat16 needs the package ml_dtypes: pip install ml_dtypes")
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
    """Trains a model on batches and keeps its folder up to date. ``train()`` runs to the end, or to Ctrl-C.

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
        self.seconds = 0.0
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
        """Train to the last step; False where Ctrl-C ended it before, after a checkpoint.

        Raises UserError at a loss that is NaN or infinite; the checkpoints then are from before it.
        """
        config = self.config
        self.model.train()
        bar = tqdm(total=config.steps, initial=self.step, unit="step", dynamic_ncols=True, smoothing=0.1)
        with bar, _stop_on_interrupt() as stopped:
            if self.step == 0:
                self._evaluate(bar)
                self._save_latest()
            since, steps, tokens = time.perf_counter(), 0, 0
            while self.step < config.steps and not stopped.is_set():
                loss, norm, count = self.train_step()
                self._unread.append((self.step, loss, norm))
                steps, tokens = steps + 1, tokens + count
                bar.update()
                if self._due(config.log_every) or self._due(config.eval_every):
                    self._read_losses()
                    elapsed = time.perf_counter() - since
                    self.seconds += elapsed
                    self._log()
                    self._show(bar, elapsed / steps, tokens / elapsed)
                    if self._due(config.eval_every):
                        self._evaluate(bar)
                        self._save_latest()
                    since, steps, tokens = time.perf_counter(), 0, 0
            if self.step < config.steps:
                self.seconds += time.perf_counter() - since
                self._save_latest()
        return self.step == config.steps

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.config.steps

    def _show(self, bar: Any, seconds_a_step: float, tokens_a_second: float) -> None:
        bar.set_postfix_str(
            f"loss {self._last('train_loss'):.3f}, val {self._last('validation_loss'):.3f}, "
            f"{1000 * seconds_a_step:.0f} ms/step, {tokens_a_second:,.0f} tokens/s"
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
                f"the {what} became {value} at step {step}: training stops. The checkpoints in {self.folder.path} are from "
                "before that; a lower --learning-rate or --clip 1 usually helps"
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

    def _evaluate(self, bar: Any) -> None:
        loss = evaluate(self.model, self.batches, self.loss_function, self.shards)
        self._check("validation loss", loss, self.step)
        self._row()["validation_loss"] = loss
        bar.write(f"step {self.step:5d}: validation loss {loss:.4f}, perplexity {perplexity(loss):.2f}")
        if loss < self.best_loss:
            self._save_best(loss)
        if self.config.average > 1 and self.step > 0:  # the first weights know nothing
            self._keep_weights()
            if self.step == self.config.steps:
                self._try_average(bar)
        if self.on_evaluation is not None and self.step:
            bar.write(self.on_evaluation())
        bar.unpause()  # so that the time left is reckoned from the steps alone

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _save_best(self, loss: float) -> None:
        self.best_loss, self.best_step = loss, self.step
        state = {"kind": "best", "step": self.step, "validation_loss": loss}
        save_checkpoint(self.folder.best, {"model": self.model.state_dict()}, state)

    def _keep_weights(self) -> None:
        """Write this evaluation's weights beside those of the last ones, and drop what is older than the average goes back."""
        save_checkpoint(self.folder.weights(self.step), {"model": self.model.state_dict()}, {"kind": "weights"})
        for old in self.folder.kept_weights()[: -self.config.average]:
            old.unlink()

    def _try_average(self, bar: Any) -> None:
        """Evaluate the mean of the kept weights, and make it the best if it is. The model's own weights stay as they are."""
        own = {name: tensor.copy() for name, tensor in self.model.state_dict().items()}
        states = [load_checkpoint(path, "weights")[0]["model"] for path in self.folder.kept_weights()]
        self.model.load_state_dict({name: _mean([s[name] for s in states]) for name in own})
        loss = evaluate(self.model, self.batches, self.loss_function, self.shards)
        bar.write(f"the mean of the last {len(states)} weights: validation loss {loss:.4f}, perplexity {perplexity(loss):.2f}")
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
            "shards": self.shards,
            "random": tt.random.get_state(),
            "batches": self.batches.get_state(),
            "rows": self.rows,
            "unread": self._unread,
        }
        groups = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        save_checkpoint(self.folder.latest, groups, state)
        self.folder.write_log(self.rows)

    def resume(self) -> None:
        """Go on from the folder's latest checkpoint exactly, with the optimizer's settings from there, too. Raises UserError
        where it is missing, damaged or another's."""
        groups, state = load_checkpoint(self.folder.latest, "latest")
        try:
            self.model.load_state_dict(groups.get("model", {}))
            self.optimizer.load_state_dict(groups.get("optimizer", {}))
            tt.random.set_state(state["random"])
            self.batches.set_state(state["batches"])
            self.step, self.seconds, self.rows = state["step"], state["seconds"], state["rows"]
            self.shards = state.get("shards", 1)  # another number would round, and drop, differently; once there was but one
            self.best_loss = math.inf if state["best_loss"] is None else state["best_loss"]
            self.best_step, self._unread = state["best_step"], [(step, loss, norm) for step, loss, norm in state["unread"]]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.folder.latest} does not fit this run: {error}") from None


def _mean(tensors: list[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0].astype("float32")) / len(tensors)  # bfloat16 would round each sum


def perplexity(loss: float) -> float:
    """e to the loss: among how many equally likely tokens the model hesitates."""
    return math.exp(loss) if loss < 700 else math.inf


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that a step is finished before training stops; a second Ctrl-C interrupts at once.
    Signals reach the main thread only; elsewhere the event is never set."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    previous = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: Any) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, previous)
