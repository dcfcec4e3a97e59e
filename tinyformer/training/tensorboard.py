"""Log a run's values, samples, attention and weights for TensorBoard. View them with ``tensorboard --logdir RUN``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.files import as_json
from tinyformer.models.attention import RecordsAttention, recording_attention
from tinyformer.training.config import MOST_SHARDS
from tinyformer.training.logging import Logger, measured
from tinytensor import Tensor
from tinytensor.device.backend import host
from tinytensor.parallel import one_blas_thread

if TYPE_CHECKING:
    from tinyformer.training.trainer import Trainer

BINS = 64  # of a histogram
LONGEST = 256  # maximum number of queries and keys in an image
WIDE = 240  # width in pixels of an enlarged head
DARK_BLUE = (8, 48, 107)
GREY = (200, 200, 200)  # between the heads


class TensorBoardLogger(Logger):
    """Logs to TensorBoard in the run's folder: measured values and settings. Each evaluation adds a sample, the attention in
    the first validation row, and a histogram of each weight.

    ``sample`` returns a generated sample (default: the result of the trainer's ``on_evaluation``). A resumed run continues the
    same log: entries after its checkpoint are removed, and missing rows of the run's log are added. Raises UserError without
    tensorboardX or pillow.
    """

    def __init__(self, sample: Callable[[], str] | None = None):
        try:
            import PIL.Image  # noqa: F401, with which tensorboardX writes pictures
            import tensorboardX  # noqa: F401, first, so that it is named if it is missing, and not the protobuf that it brings

            from tinyformer.training.events import EventFiles
        except ModuleNotFoundError as error:
            raise UserError(f"a log for TensorBoard needs {error.name}: pip install 'tinyformer[tensorboard]'") from None
        self.sample = sample
        self._make_files = EventFiles
        self._row: Any = None  # the validation row whose attention is drawn

    def begin(self, trainer: Trainer) -> None:
        """Continue after ``trainer.step``. Raises UserError if a file blocks the log folder's name."""
        folder = trainer.folder
        self._files = self._make_files(folder)
        self._row = None
        if folder.tensorboard.exists() and not folder.tensorboard.is_dir():
            raise UserError(f"{folder.tensorboard} is a file, not a folder: move it, or leave out --tensorboard")
        last = -1
        if folder.is_in_place():  # otherwise the current log belongs to another run, which may stay
            last = self._files.keep_until(trainer.step if trainer.rows else -1)
        if last < 0 or folder.changes:
            settings = folder.identity(lasting=False).get("settings") or dataclasses.asdict(trainer.config)
            self._add_text(trainer.step, "settings", as_json(settings))
        for row in trainer.rows:
            if row["step"] > last:
                self._add_numbers(row["step"], measured(row))
        self._files.flush()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._add_numbers(step, values)
        self._files.flush()

    def evaluated(self, trainer: Trainer, text: str) -> None:
        from tensorboardX import summary

        with one_blas_thread():  # for a single row, more threads cost more than they save
            text = text if self.sample is None else self.sample()
            attention = self._attention(trainer)
        if text:
            self._add_text(trainer.step, "sample", text)
        for name, weights in attention.items():
            self._files.add(trainer.step, summary.image(f"attention/{name}", heat_map(weights), dataformats="HWC"))
        for name, tensor in trainer.model.state_dict().items():
            if histogram := distribution(tensor):
                self._files.add(trainer.step, summary.histogram_raw(f"weights/{name}", **histogram))
        self._files.flush()

    def close(self) -> None:
        self._files.close()

    def _add_numbers(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboardX import summary

        for name, value in values.items():
            self._files.add(step, summary.scalar(name, value))

    def _add_text(self, step: int, name: str, text: str) -> None:
        from tensorboardX import summary

        lines = (f"    {line}\n" for line in text.splitlines())  # TensorBoard renders Markdown, in which this is literal text
        self._files.add(step, summary.text(name, "".join(lines)))

    def _attention(self, trainer: Trainer) -> dict[str, Any]:
        """Return each attention layer's weights (heads, queries, keys) by name."""
        if self._row is None:
            batch = next(iter(trainer.batches.validation_batches()), None)
            if batch is None:
                return {}
            self._row = batch.split(MOST_SHARDS)[0]  # enough that each shard has one row
        attention = {}
        for name, layer in trainer.model.named_modules():
            if isinstance(layer, RecordsAttention):
                with recording_attention(layer) as recorded:  # one by one: weights of a long row take much memory
                    trainer.loss_function(trainer.model, self._row)
                (calls,) = recorded.values()
                if calls:  # a recurrent network attends once per token
                    attention[name] = tt.concatenate(calls, -2)[0].numpy()
        return attention


def heat_map(weights: Any) -> Any:
    """Return an image of attention weights (heads, queries, keys), as (height, width, 3) bytes, with heads side by side.

    In each head, rows are queries and columns are keys. White is 0 and dark blue is 1. Shades follow the square root, to show
    faint weights too. The image covers the first LONGEST queries and keys.
    """
    weights = host.asarray(weights[:, :LONGEST, :LONGEST], dtype=host.float32)
    shades = host.sqrt(weights.clip(0, 1))[..., None] * (host.array(DARK_BLUE) - 255) + 255
    zoom = max(WIDE // max(weights.shape[1:]), 1)
    heads = shades.astype(host.uint8).repeat(zoom, axis=1).repeat(zoom, axis=2)
    gap = host.full((heads.shape[1], 4, 3), GREY, dtype=host.uint8)
    return host.concatenate([part for head in heads for part in (head, gap)][:-1], axis=1)


def distribution(tensor: Tensor) -> dict[str, Any] | None:
    """Return the histogram of a tensor's values in tensorboardX form, or None if none is finite."""
    values = host.asarray(tensor.numpy(), dtype=host.float64).ravel()
    values = values[host.isfinite(values)]
    if not values.size:
        return None
    counts, edges = host.histogram(values, BINS)
    stats = {"min": values.min(), "max": values.max(), "num": values.size, "sum": values.sum(), "sum_squares": values @ values}
    # TensorBoard knows only upper limits. An empty leading bin gives the first bin its lower limit.
    return {**stats, "bucket_limits": edges.tolist(), "bucket_counts": [0, *counts.tolist()]}
