"""The training loop: schedule, gradient accumulation, clipping, evaluation, checkpoints, and exact resuming."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, SupportsFloat

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError, shortened
from tinyformer.common.files import damaged
from tinyformer.common.memory import check_step_fits, check_training_fits
from tinyformer.common.progress import Progress, lasting_progress, stop_on_signals, write_or_stop
from tinyformer.common.settings import read_dataclass
from tinyformer.data.batches import Batches
from tinyformer.models.quantizing import refuse_quantized
from tinyformer.training.checkpoints import check_class, class_of, learned_state, load_checkpoint, put_weights, save_checkpoint
from tinyformer.training.config import TrainingConfig, best_workers, training_dtype
from tinyformer.training.evaluation import Work, accuracy, deal, evaluate, perplexity
from tinyformer.training.logging import CsvLog, Logger, TrainingState, at_work, measured, tell
from tinyformer.training.losses import LossFunction, class_loss, next_token_loss
from tinyformer.training.optimizing import OPTIMIZERS, optimizer_for
from tinyformer.training.replica import CapturedSteps, Replica, StepFunction
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.snapshots import SnapshotFiles, Snapshots
from tinytensor import Tensor, distributed, parallel
from tinytensor.common.wording import counted
from tinytensor.device.disk import remove
from tinytensor.distributed import Alone, RankError, Team
from tinytensor.nn import Module
from tinytensor.nn.lora import lora_weights
from tinytensor.optim import norm_and_scale
from tinytensor.parallel.threads import accumulate, shard_gradients
from tinytensor.replay import capture


def take_step(replica: Replica, work: Sequence[Work], rate: SupportsFloat) -> tuple[Tensor, Tensor]:
    """Take one optimizer step on all ranks: forward, backward, clip, update.

    ``work`` holds this rank's shards of the batches to accumulate. ``rate`` multiplies the learning rate. Returns the mean loss
    over all targets of all ranks, and the gradient norm before clipping, both of shape ().
    """
    model, optimizer, ranks = replica.model, replica.optimizer, replica.ranks
    num_targets = max(sum(batch.num_targets for batch in work), 1)  # a batch may have none, as where all are ignored
    mean_loss: Tensor = tt.zeros(())

    def forward_and_backward(shard: Any, weight: float) -> Tensor:
        loss = replica.loss_function(model, shard) * weight
        with shard_gradients():  # added to .grad in the order of the shards
            loss.backward()
        return loss.detach()

    optimizer.zero_grad()
    for batch in work:
        if batch.shards:
            # Weight by the number of targets, so that the sum is the mean over all targets, as in one large batch.
            of_shard = partial(forward_and_backward, weight=batch.num_targets / num_targets)
            # Called for each shard, in a separate thread if there are several.
            mean_loss = mean_loss + accumulate(of_shard, batch.shards, batch.seeds)
    ranks.sum_gradients(model.parameters(), [mean_loss.data])  # does nothing for a single rank
    norm, gradient_scale = norm_and_scale(model.parameters(), replica.clip)
    optimizer.step(rate, max(len(batch.shards) for batch in work) or 1, ranks, gradient_scale)
    return mean_loss, norm


class Trainer:
    """Trains a model on batches and updates the run's folder. ``train()`` runs to the end unless it is stopped.

    ``on_evaluation`` returns a text about the current model, such as a sample, to print after each evaluation. The ``loggers``
    receive progress, in addition to the run's log. The model is converted to the dtype in ``config``. If the model has LoRA
    adapters (``tt.nn.add_lora``), checkpoints store only trained parameters. Raises UserError for a quantized model without
    adapters. Raises SettingError if the backend cannot train in that dtype or training does not fit in memory.
    """

    def __init__(
        self,
        model: Module,
        batches: Batches,
        config: TrainingConfig,
        folder: RunFolder,
        loss_function: LossFunction = next_token_loss,
        on_evaluation: Callable[[], str] | None = None,
        loggers: Sequence[Logger] = (),
    ):
        if not any(lora_weights(model)):
            refuse_quantized(model, "trained", "train it in float32 and quantize it afterwards, or tt.nn.add_lora(model) first")
        self.on_evaluation = on_evaluation
        self.loggers = [CsvLog(), *loggers]
        self.model = model.astype(training_dtype(config.dtype))
        check_training_fits(model, batches, config.shards, OPTIMIZERS[config.optimizer].least_moments)
        check_step_fits(batches, config.gradient_accumulation_steps)
        self.batches = batches
        self.config = config
        self.folder = folder
        self.loss_function = loss_function
        self.workers = config.workers or best_workers(config.batch_size)
        ranks = distributed.num_ranks(self.workers)
        if config.workers > 1 and ranks != config.workers:
            raise SettingError(f"workers must be 1 under mpiexec, whose ranks ({ranks}) share the batch, got {config.workers}")
        self.shards = config.shards or (ranks if ranks > 1 else parallel.default_shards())
        self.optimizer = optimizer_for(model, config)
        self.schedule = config.make_schedule()
        self._team = Team(Alone(), Replica(Alone(), model, self.optimizer, loss_function, config.clip))
        self._take_step: StepFunction = CapturedSteps(take_step) if capture.is_wanted and ranks == 1 else take_step
        self.snapshots = SnapshotFiles(folder, Snapshots(model, config.steps, config.snapshots))
        self.step = 0
        self.best_loss = math.inf
        self.best_step = 0
        self.seconds = 0.0  # in training steps
        self.total_seconds = 0.0  # including evaluations and checkpoints
        self.stopped_by: str | None = None
        self.rows: list[dict[str, Any]] = []
        self._unread: list[tuple[int, Any, Any]] = []  # (step, loss, gradient norm) since the last log row; may be on a GPU

    # ------------------------------------------------------------------------------------------------- one step

    def train_step(self) -> tuple[Tensor, Tensor, int]:
        """Take one optimizer step. Return the mean loss, the gradient norm before clipping, and the number of targets."""
        drawn = [self.batches.sample() for _ in range(self.config.gradient_accumulation_steps)]
        work = zip(*[deal(batch, self.shards, self._team.ranks) for batch in drawn])
        rate = self.schedule(self.step)
        loss, norm = self._team.call(self._take_step, [(own, rate) for own in work])  # on all ranks
        self.step += 1
        return loss, norm, sum(batch.num_targets for batch in drawn)

    @contextmanager
    def on_all_ranks(self) -> Iterator[None]:
        """Context manager in which all ranks share each step and evaluation: ``workers`` processes, or those of mpiexec.

        ``train`` enters it. Raises UserError if another rank is killed or unreachable.
        """
        alone, parts = self._team, (self.model, self.optimizer, self.loss_function, self.config.clip)
        try:
            with distributed.team(Replica, *parts, workers=self.workers) as self._team:
                yield
        except RankError as error:
            if self._team is alone:  # it did not even start
                raise UserError(str(error)) from None
            resume = f": resume from the checkpoints in {self.folder.path}, which are complete" if self._is_saved() else ""
            raise UserError(f"{error}: training stops after step {self.step}{resume}") from None
        finally:
            self._team = alone

    def _is_saved(self) -> bool:
        """True if the folder has a checkpoint of this run."""
        return self.folder.latest.exists() and not self.folder.replaces

    # ------------------------------------------------------------------------------------------------- the loop

    def train(self) -> bool:
        """Train to the last step. Return True if nothing stopped it.

        Ctrl-C, SIGTERM, SIGHUP and an unwritable output stop it. In that case, it writes a checkpoint, and ``stopped_by`` holds
        the cause. Raises UserError if a loss or gradient norm is NaN or infinite. Checkpoints then date from before that step.
        """
        config, self.stopped_by = self.config, None
        self.folder.make()
        self.model.train()
        began, before = time.perf_counter(), self.total_seconds
        bar_of_steps = lasting_progress("training", config.steps, "step", self.step)
        with self.on_all_ranks(), stop_on_signals(self._stop), at_work(self), bar_of_steps as bar:
            self.snapshots.forget_after(self.step)
            if not self.rows:  # a resumed run already has rows
                if told := self.snapshots.told():
                    self._print(bar.write, told)
                self._evaluate(bar)
                self._keep_snapshot(bar)
                tell(self, "log", self.step, measured(self._row()))
                self._save_latest()
            since, steps, tokens = time.perf_counter(), 0, 0
            while self.step < config.steps and self.stopped_by is None:
                loss, norm, count = self.train_step()
                self._unread.append((self.step, loss, norm))
                steps, tokens = steps + 1, tokens + count
                self._print(bar.update)
                self._keep_snapshot(bar)
                if self.folder.replaces:  # after the first step, the run may replace another
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
                    tell(self, "log", self.step, {**measured(self._row()), "tokens_per_second": tokens / elapsed})
                    if self._due(config.eval_every):
                        self.total_seconds = before + time.perf_counter() - began
                        self._save_latest()
                    since, steps, tokens = time.perf_counter(), 0, 0
            if self.step < config.steps:
                self.seconds += time.perf_counter() - since
                self.total_seconds = before + time.perf_counter() - began
                self._save_latest()
        return self.stopped_by is None  # it may also have been stopped in the last step

    def _stop(self, by: str) -> None:
        """Stop training after the current step."""
        self.stopped_by = self.stopped_by or by

    def _print(self, write: Callable[..., object], *text: str) -> None:
        """Call ``write``, which prints text or the progress bar. If that fails, training stops."""
        write_or_stop(self._stop, write, *text)

    def stop_message(self, command: str) -> str:
        """Return the message after ``train`` was stopped. ``command --resume`` resumes the run."""
        if self.step == 0 and self.folder.replaces:
            return f"Stopped by {self.stopped_by} before its first step: {self.folder.path} stays as it was."
        return f"Stopped by {self.stopped_by} after step {self.step} and saved. Resume with: {command} --resume"

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.config.steps

    def _show(self, bar: Progress, seconds_a_step: float, tokens_a_second: float) -> None:
        self._print(
            bar.set_postfix_str,
            f"loss {self._last('train_loss'):.3f}, val {self._last('validation_loss'):.3f}, "
            f"{1000 * seconds_a_step:.0f} ms/step, {tokens_a_second:,.0f} tokens/s",
        )

    def _read_losses(self) -> None:
        """Fetch losses and gradient norms since the last log row. This is the only point where training waits for a GPU."""
        self._unread = [(step, float(loss), float(norm)) for step, loss, norm in self._unread]
        for step, loss, norm in self._unread:
            self._check_finite("loss", loss, step, step - 1)
            self._check_finite("gradient's norm", norm, step, step - 1)

    def _check_finite(self, what: str, value: float, step: int, updates: int) -> None:
        """Raise UserError for a NaN or infinite value, computed after ``updates`` updates of the weights."""
        if math.isfinite(value):
            return
        if updates == 0:  # so changing update settings cannot help
            raise UserError(
                f"the {what} is {value} with the weights that training began with: they or the data hold NaN, or numbers that "
                "are too large"
            )
        saved = f" The checkpoints in {self.folder.path} are from before that." if self._is_saved() else ""
        message = f"the {what} became {value} at step {step}: training stops.{saved}{self.config.remedy()}"
        raise SettingError(message, "learning_rate", "muon_learning_rate", "clip")

    def _log(self) -> None:
        """Add the mean loss since the last log row, and the last gradient norm, to the log."""
        row = self._row()
        row["train_loss"] = sum(loss for _, loss, _ in self._unread) / len(self._unread)
        row["gradient_norm"] = self._unread[-1][2]
        self._unread = []

    def _row(self) -> dict[str, Any]:
        """Return the log row of the current step. Add it if the log has none."""
        if not self.rows or self.rows[-1]["step"] != self.step:
            rate = self.optimizer.param_groups[0]["lr"] * self.schedule(max(self.step - 1, 0))
            empty = {"train_loss": None, "validation_loss": None, "gradient_norm": None}
            self.rows.append({"step": self.step, "learning_rate": rate, **empty, "seconds": round(self.seconds, 2)})
        return self.rows[-1]

    def _last(self, column: str) -> float:
        return next((row[column] for row in reversed(self.rows) if row[column] is not None), math.nan)

    def _validation_loss(self) -> float:
        return evaluate(self.model, self.batches, self.loss_function, self.shards, self._team)

    def _told(self, loss: float) -> str:
        """Return the validation loss as text with its meaning: token perplexity, or a classifier's accuracy."""
        if self.loss_function is not class_loss:
            return f"validation loss {loss:.4f}, perplexity {perplexity(loss):.2f}"
        right = accuracy(self.model, self.batches.validation_batches())
        return f"validation loss {loss:.4f}, {100 * right:.1f} % right"

    def _evaluate(self, bar: Progress) -> None:
        self._team.call_alike(Replica.check_weights)
        loss = self._validation_loss()
        self._check_finite("validation loss", loss, self.step, self.step)
        self._row()["validation_loss"] = loss
        self._print(bar.write, f"step {self.step:5d}: {self._told(loss)}")
        if loss < self.best_loss:
            self._save_best(loss)
        if self.config.average > 1 and self.step > 0:  # untrained weights are not averaged
            self._keep_weights()
            if self.step == self.config.steps:
                self._try_average(bar)
        text = ""
        if self.on_evaluation is not None and self.step:
            text = self.on_evaluation()
            self._print(bar.write, text)
        tell(self, "evaluated", self, text)
        bar.unpause()  # the estimate of remaining time excludes evaluations

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _save_best(self, loss: float) -> None:
        self.best_loss, self.best_step = loss, self.step
        state = {"kind": "best", "step": self.step, "validation_loss": loss, **class_of(self.model)}
        state |= self.folder.identity(lasting=True)
        save_checkpoint(self.folder.best, {"model": learned_state(self.model)}, state)

    def _keep_snapshot(self, bar: Progress) -> None:
        for line in self.snapshots.keep(self.step):
            self._print(bar.write, line)

    def _keep_weights(self) -> None:
        """Save the weights of this evaluation for averaging, and remove outdated ones."""
        save_checkpoint(self.folder.weights(self.step), {"model": learned_state(self.model)}, {"kind": "weights"})
        for old in self.folder.kept_weights()[: -self.config.average]:
            remove(old)

    def _try_average(self, bar: Progress) -> None:
        """Evaluate the mean of the saved weights, and save it if it is the best. The model's weights do not change."""
        own = {name: tensor.copy() for name, tensor in learned_state(self.model).items()}
        states = [load_checkpoint(path, "weights")[0]["model"] for path in self.folder.kept_weights()]
        self.model.load_state_dict({name: _mean([s[name] for s in states]) for name in own}, strict=False)
        self._team.call_alike(Replica.take_weights)
        loss = self._validation_loss()
        mean = f"the mean of the weights of the last {counted(len(states), 'evaluation')}"
        self._print(bar.write, f"{mean}: {self._told(loss)}")
        if loss < self.best_loss:
            self._save_best(loss)
        self.model.load_state_dict(own, strict=False)
        self._team.call_alike(Replica.take_weights)

    def _save_latest(self) -> None:
        self._read_losses()
        for path in self.folder.put_back():
            self._print(print, f"{path} was missing: it is written again, as no checkpoint is of use without it.")
        state = {
            "kind": "latest",
            "step": self.step,
            "best_loss": self.best_loss if math.isfinite(self.best_loss) else None,
            "best_step": self.best_step,
            "seconds": self.seconds,
            "total_seconds": self.total_seconds,
            "shards": self.shards,
            "kernels": tt.kernels_name,
            "random": tt.random.get_state(),
            "batches": self.batches.get_state(),
            "rows": self.rows,
            "unread": self._unread,
            **class_of(self.model),
            **self.folder.identity(lasting=False),
        }
        groups = {"model": learned_state(self.model), "optimizer": self.optimizer.state_dict(copy=False)}
        save_checkpoint(self.folder.latest, groups, state)
        tell(self, "saved", self)
        if self.step > 0 or not self.folder.replaces:  # a run without a step must not replace another
            self.folder.move_into_place()

    def resume(self) -> None:
        """Resume exactly from the folder's latest checkpoint.

        Optimizer settings and the number of shards come from the checkpoint. With --resume-changed, they come from the
        configuration (shards 0: from the checkpoint).

        Raises UserError if the checkpoint is missing, damaged, or belongs to another model or other settings.
        """
        latest = self.folder.latest
        groups, state = load_checkpoint(latest, "latest")
        with damaged(latest):
            found = read_dataclass(TrainingState, state)
        self.folder.check_identity(state, latest)
        check_class(self.model, state, latest)
        if found.step > self.config.steps:
            raise SettingError(f"steps must be at least {found.step}, the number taken already, got {self.config.steps}")
        put_weights(self.model, groups.get("model", {}), latest)
        own = [{name: group[name] for name in group if name != "params"} for group in self.optimizer.param_groups]
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
        if found.kernels != tt.kernels_name:
            print(
                f"This run was trained with the kernels of {found.kernels} and continues with those of {tt.kernels_name}: "
                "later steps differ by rounding. (TINYTENSOR_KERNELS chooses.)"
            )
        changed_shards = self.config.shards if self.folder.changes else 0
        self.shards = changed_shards or found.shards  # a different number changes rounding and dropout masks
        if self.folder.changes:
            for group, settings in zip(self.optimizer.param_groups, own):
                group.update(settings)
            self._save_latest()
            self.folder.keep_changes()


def _mean(tensors: list[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0].astype("float32")) / len(tensors)  # sums in bfloat16 would be rounded each time
