"""Check that work fits in memory before it starts. Errors state the required and the available memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tinyformer.common.errors import SettingError, UserError
from tinytensor.common.wording import counted
from tinytensor.device.backend import DType, default_dtype, index_dtype
from tinytensor.device.memory import device_memory, host_memory
from tinytensor.nn import Module

_WORTH_ASKING = 1 << 26  # bytes; a query takes a millisecond, as long as a token of a small model
_LEAST_BLOCK = 3000  # bytes of Python objects per block, whatever its width
_LEAST_BATCH = 500  # bytes of Python objects per batch, whatever its size
_SMALL_MODEL = 1 << 22  # bytes that any model may use, whatever the size of its weights file
_MOST_FOR_A_BYTE = 5  # bytes of a model per byte of its file: 2 for float16, and some tensors may be missing
_MOMENT = 4  # bytes of one optimizer moment of one parameter, in float32
_AT_ONCE = 4  # shards that certainly run simultaneously: the largest default number


def check_fits(needed: int, purpose: str, remedy: str, *settings: str, on_host: bool = False) -> None:
    """Raise UserError if fewer than ``needed`` bytes are available for tensors (with ``on_host``: in main memory). If
    ``settings``, the setting names in the message, are passed, raise SettingError.

    ``needed`` is a lower bound, so rejected work could not have run.
    """
    if needed < _WORTH_ASKING:
        return
    memory = host_memory() if on_host else device_memory()
    if memory is not None and needed > memory:
        message = f"{purpose} needs at least {in_bytes(needed)} of memory, but there are {in_bytes(memory)}: {remedy}"
        raise SettingError(message, *settings) if settings else UserError(message)


@contextmanager
def enough_memory(purpose: str, remedy: str) -> Iterator[None]:
    """Context manager that turns a lack of memory into a UserError with the ``purpose`` and the ``remedy``."""
    try:
        yield
    except MemoryError:
        raise UserError(f"there is not enough memory for {purpose}: {remedy}") from None


def check_model_fits(num_parameters: int, num_blocks: int, *settings: str) -> None:
    """Raise SettingError if a model's weights alone do not fit in memory. ``settings`` determine its size."""
    if (weights := _weights.get()) is not None:
        _check_held(num_parameters, num_blocks, *weights)
    needed = default_dtype.itemsize * num_parameters + _LEAST_BLOCK * int(num_blocks)
    lower = f"{', '.join(settings[:-1])} or {settings[-1]}"
    check_fits(needed, "a model of this size", f"choose a smaller {lower}", *settings)


# The weight bytes for the model being built, and its settings file.
_weights: ContextVar[tuple[int, Path] | None] = ContextVar("weights", default=None)


@contextmanager
def only_as_large_as(weights: int, settings: Path) -> Iterator[None]:
    """Context manager in which building a model raises UserError if it is too large for a file with this many bytes of
    ``weights``. A ``settings`` file may request any size; a model that cannot be loaded is not built."""
    token = _weights.set((weights, settings))
    try:
        yield
    finally:
        _weights.reset(token)


def check_settings_fit(config: Any, weights: Iterable[Path], settings: Path) -> None:
    """Raise UserError if a model of this configuration is too large for the files ``weights``. Without such files, or for
    another configuration type, nothing is checked."""
    files = [file for file in weights if file.is_file()]
    if files and hasattr(config, "num_parameters"):
        blocks = sum(getattr(config, name, 0) for name in ("num_layers", "encoder_layers", "decoder_layers"))
        _check_held(config.num_parameters(), blocks, sum(file.stat().st_size for file in files), settings)


def _check_held(num_parameters: int, num_blocks: int, size: int, settings: Path) -> None:
    needed = default_dtype.itemsize * num_parameters + _LEAST_BLOCK * int(num_blocks)
    if needed > _SMALL_MODEL + _MOST_FOR_A_BYTE * size:
        raise UserError(
            f"{settings}: a model of this size needs at least {in_bytes(needed)}, but its weights have {in_bytes(size)}: "
            "they do not belong together, or one of them is damaged"
        )


def check_cache_fits(numbers: int, dtype: DType, setting: str) -> None:
    """Raise SettingError if a cache of ``numbers`` values for one sequence does not fit in memory, because of ``setting``."""
    check_fits(dtype.itemsize * numbers, f"a cache for this {setting}", "choose a smaller one", setting)


def check_training_fits(model: Module, batches: object, shards: int = 1, moments: int = 2) -> None:
    """Raise SettingError if training certainly does not fit in memory.

    Counts the weights, gradients, optimizer moments, and values that a batch saves for the backward pass (if the configuration
    has ``saved_numbers`` and the batches have ``largest_batch``). ``moments`` is the minimum number of moments per parameter: 2
    for AdamW, and 1 for Muon's matrices.
    """
    needed = training_memory(model, batches, shards, moments)
    is_of_the_batch = getattr(batches, "batch_size", 2) != 1 and training_memory(model, None, shards, moments) != needed
    if not is_of_the_batch:
        check_fits(needed, "training this model", "choose a smaller one")
        return
    check_fits(
        needed,
        "training this model with this batch_size",
        "choose a smaller one, which more gradient_accumulation_steps make up for, or a smaller model",
        "batch_size",
        "gradient_accumulation_steps",
    )


def check_step_fits(batches: object, batches_per_step: int) -> None:
    """Raise SettingError if one step's batches do not fit in memory. All are sampled before the first is used."""
    tokens = batches.largest_batch() if hasattr(batches, "largest_batch") else 0
    needed = int(batches_per_step) * (_LEAST_BATCH + index_dtype.itemsize * tokens)
    setting = "gradient_accumulation_steps"
    check_fits(needed, f"drawing the batches of so many {setting}", "choose fewer", setting)


def training_memory(model: Module, batches: object, shards: int = 1, moments: int = 2) -> int:
    """Return a lower bound on the bytes for training. Measured values were less than twice as high. For ``moments``, see
    ``check_training_fits``.

    Counts the larger of the gradients and a batch's saved values, which are released as gradients are computed.
    """
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = sum(parameter.size * parameter.dtype.itemsize for parameter in trained)
    saved = 0
    if len(trained) == len(parameters) > 0 and hasattr(batches, "largest_batch"):
        numbers = getattr(getattr(model, "config", None), "saved_numbers", lambda: 0)() * batches.largest_batch()
        # If there are many shards, some end before others begin.
        saved = parameters[0].dtype.itemsize * numbers * _AT_ONCE // max(_AT_ONCE, shards)
    weights = sum(parameter.size * parameter.dtype.itemsize for parameter in parameters)
    return weights + moments * _MOMENT * sum(parameter.size for parameter in trained) + max(gradients, saved)


def in_bytes(count: int) -> str:
    """Format a number of bytes: 512 bytes, 9.7 MB, 21 GB, 10^32 bytes."""
    if count >= 10**18:
        return f"10^{int(count.bit_length() * math.log10(2))} bytes"
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            value = count / 10**power
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return counted(count, "byte")
