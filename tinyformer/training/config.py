"""Training settings, and the schedule and dtype derived from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.common.settings import at_least, check_fields, one_of, setting
from tinyformer.training.optimizing import OPTIMIZERS, unless_read
from tinytensor import distributed, parallel
from tinytensor.common.wording import counted
from tinytensor.device.backend import bfloat16, default_dtype
from tinytensor.optim import Constant, Cosine, InverseSquareRoot, LinearDecay, Schedule

DTYPES = ("float32", "bfloat16")
SCHEDULES = ("cosine", "linear", "constant", "noam")
MOST_SHARDS = 1024
MOST_WORKERS = 256
MOST_STEPS = 10**15  # float arithmetic on steps stays exact


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings. Raises SettingError for an invalid value."""

    steps: int = setting(2000, "training steps", changeable=True)
    batch_size: int = setting(12, "sequences per batch", changeable=True)
    gradient_accumulation_steps: int = setting(1, "batches per step (gradient accumulation)", changeable=True)
    optimizer: str = setting("adamw", f"{', '.join(OPTIMIZERS)}; muon: Muon for block matrices, AdamW for other parameters")
    learning_rate: float = setting(
        1e-3, "peak learning rate (of AdamW, with muon); for lion use 3 to 10 times less", changeable=True
    )
    muon_learning_rate: float = setting(
        0.02, "peak learning rate of Muon", changeable=True, unless=unless_read("muon_learning_rate")
    )
    schedule: str = setting("cosine", "learning rate schedule: cosine, linear, constant or noam", changeable=True)
    min_learning_rate: float = setting(
        1e-4, "final learning rate of the cosine or linear schedule", changeable=True, unless={"schedule": ["constant", "noam"]}
    )
    warmup: int = setting(100, "warm-up steps", changeable=True)
    momentum: float = setting(0.9, "momentum of sgd", changeable=True, unless=unless_read("momentum"))
    beta1: float = setting(
        0.9,
        "AdamW's decay of the mean gradient; the momentum's weight in a step of lion",
        changeable=True,
        unless=unless_read("beta1"),
    )
    beta2: float = setting(
        0.99, "AdamW's decay of the mean squared gradient; lion's of the momentum", changeable=True, unless=unless_read("beta2")
    )
    weight_decay: float = setting(0.1, "weight decay of matrices (with muon: only AdamW's)", changeable=True)
    clip: float = setting(1.0, "maximum gradient norm; 0: no clipping", changeable=True)
    eval_every: int = setting(250, "steps between evaluations and checkpoints", changeable=True)
    average: int = setting(1, "average the weights of this many evaluations at the end, if better", changeable=True)
    snapshots: int = setting(
        0,
        "snapshots of the weights, which the explorer shows as a film: from step 0 to the last, evenly in the logarithm of the "
        "step, each of 2 bytes a parameter (float16); 0: none; -1: up to 8, as many as 5 MB hold",
        changeable=True,
    )
    log_every: int = setting(10, "steps between log rows", changeable=True)
    seed: int = setting(1337, "random seed")
    dtype: str = setting("float32", "float32, or on a GPU bfloat16 (the optimizer keeps float32)")
    shards: int = setting(0, "threads per batch; 0: one per core, at most 4 (on a GPU: 1)", changeable=True)
    workers: int = setting(
        1, "processes per batch; 0: the best number for this machine (mpiexec sets its own)", changeable=True
    )

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, steps=1, batch_size=1, gradient_accumulation_steps=1, eval_every=1, log_every=1, average=1)
        at_least(
            self,
            learning_rate=0,
            min_learning_rate=0,
            momentum=0,
            warmup=0,
            weight_decay=0,
            clip=0,
            seed=0,
            shards=0,
            workers=0,
            snapshots=-1,
        )
        if self.steps > MOST_STEPS:
            raise SettingError(f"steps must be at most {MOST_STEPS:,}")
        if self.shards > MOST_SHARDS:
            raise SettingError(f"shards must be at most {MOST_SHARDS}, as each is a thread, got {self.shards}")
        if self.workers > MOST_WORKERS:
            raise SettingError(f"workers must be at most {MOST_WORKERS}, as each is a process, got {self.workers}")
        one_of(self, "optimizer", OPTIMIZERS)
        one_of(self, "schedule", SCHEDULES)
        one_of(self, "dtype", DTYPES)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 0 and less than 1, got {getattr(self, name)}")
        if self.optimizer == "muon" and self.muon_learning_rate <= 0:
            message = f"muon_learning_rate must be above 0, got {self.muon_learning_rate}: without Muon, choose optimizer adamw"
            raise SettingError(message, "muon_learning_rate", "optimizer")

    def without_effect(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield settings that have no effect because of others: the setting with those it depends on, and a message."""
        if self.warmup >= self.steps and self.schedule != "constant":
            why = f"as warmup, {self.warmup}, is not below steps, {self.steps}: choose a smaller warmup, or more steps"
            for name in ("schedule", "min_learning_rate"):
                yield (name, "warmup", "steps"), f"{name} has no effect, {why}"
        if self.shards > self.batch_size:
            problem = f"a batch of {counted(self.batch_size, 'sequence')} cannot be cut into {counted(self.shards, 'shard')}"
            yield ("shards", "batch_size"), f"{problem}: choose a smaller shards, or a larger batch_size"

    def make_schedule(self) -> Schedule:
        """Return the learning rate schedule. "noam" is the Transformer paper's schedule, which falls as 1/sqrt(step)."""
        final = self.min_learning_rate / self.learning_rate if self.learning_rate else 0.0
        if self.schedule == "cosine":
            return Cosine(self.warmup, self.steps, final)
        if self.schedule == "linear":
            return LinearDecay(self.warmup, self.steps, final)
        if self.schedule == "noam":
            return InverseSquareRoot(self.warmup, d_model=1 / max(self.warmup, 1))  # with this width, the peak is 1
        return Constant(self.warmup)

    def remedy(self) -> str:
        """Return a sentence that suggests settings to change if training diverged."""
        rates = ["learning_rate", *(["muon_learning_rate"] if self.optimizer == "muon" else [])]
        ways = [f"a lower {name}" for name in rates if getattr(self, name)]
        ways += [] if 0 < self.clip <= 1 else ["clip 1"]
        return f" What usually helps: {' or '.join(ways)}" if ways else ""


def training_dtype(name: str) -> Any:
    """Return the dtype of this name. Raises SettingError if the backend does not support training in it."""
    if name == "bfloat16" and tt.backend_name == "numpy":
        raise SettingError(
            "dtype bfloat16 needs a GPU, as NumPy has no fast bfloat16: set TINYTENSOR_BACKEND=cupy, or train in float32"
        )
    if name == "bfloat16" and bfloat16 is None:
        raise SettingError("dtype bfloat16 needs the package ml_dtypes: pip install ml_dtypes")
    return bfloat16 if name == "bfloat16" else default_dtype


def best_workers(batch_size: int) -> int:
    """Return the fastest number of training processes on this machine.

    Use one process per GPU or BLAS core, unless fewer processes have an equally small largest shard: 12 rows take as long on 8
    cores as on 6. If processes cannot fork, use one process whose threads share the batch.
    """
    if tt.backend_name == "cupy":
        limit = distributed.num_gpus()
    elif distributed.default_method() == "fork":
        limit = parallel.blas_threads()
    else:
        return 1
    rows = -(-batch_size // min(limit, MOST_WORKERS))
    return -(-batch_size // rows)
