"""WAV files with one channel of 16-bit samples, read and written with Python's own ``wave``."""

from __future__ import annotations

import shlex
import wave
from pathlib import Path
from typing import Any

from tinyformer.data.reading import check_file
from tinyformer.errors import UserError
from tinyformer.memory import check_fits
from tinytensor.backend import host
from tinytensor.io import atomic_write

FULL_SCALE = 32768  # the 16-bit integer that stands for 1.0
SAMPLE_BYTES = 2


def read_wav(path: str | Path, rate: int) -> Any:
    """The samples of a WAV file as a NumPy array (length,), float32, from -1 to 1.

    The file must have one channel of uncompressed 16-bit samples, ``rate`` of them a second. Raises UserError, which names the
    file, for anything else, and if it is empty or cut short.

    Nothing is converted here. The mean of two channels may cancel what both contain, and another rate needs a good low-pass
    filter: a program made for it does better, and the message names the command.
    """
    size = check_file(path, "pass a WAV file")
    check_fits(4 * size, f"the sound in {path}", "pass a shorter one", on_host=True)
    try:
        with open(path, "rb") as file, wave.open(file) as sound:
            _check_format(path, sound, rate)
            count, content = sound.getnframes(), sound.readframes(sound.getnframes())
    except (wave.Error, EOFError, RuntimeError) as error:  # the last for a chunk that would end behind the file
        raise _unreadable(path, error, rate) from None
    there = len(content) // SAMPLE_BYTES
    if there < count:
        raise UserError(f"{path} is cut short: it has {there:,} of the {count:,} samples that it announces")
    if not count:
        raise UserError(f"{path} has no samples: pass a recording that is not empty")
    return host.frombuffer(content, dtype=host.int16).astype(host.float32) / FULL_SCALE


def write_wav(path: str | Path, samples: Any, rate: int) -> None:
    """Write samples (length,) from -1 to 1 to a WAV file, rounded to 16 bits. Louder ones are cut off at full scale.

    An existing file stays until the new one is complete. Raises ValueError unless the samples are one row of finite numbers.
    """
    samples = host.asarray(samples)
    if samples.ndim != 1 or not host.isfinite(samples).all():
        raise ValueError(f"samples must be one row of finite numbers, not of shape {samples.shape} or infinite")
    whole = host.clip(host.rint(samples * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(host.int16)
    with atomic_write(path) as temporary, wave.open(str(temporary), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(SAMPLE_BYTES)
        sound.setframerate(rate)
        sound.writeframes(whole.tobytes())


def _check_format(path: str | Path, sound: wave.Wave_read, rate: int) -> None:
    """Raise UserError unless these are 16-bit samples of one channel at this rate."""
    channels, width, found = sound.getnchannels(), sound.getsampwidth(), sound.getframerate()
    if width != SAMPLE_BYTES:
        raise UserError(f"{path} has {8 * width}-bit samples, not 16-bit ones: {_remedy(path, rate)}")
    if channels != 1:
        raise UserError(f"{path} has {channels} channels, not one: {_remedy(path, rate)}")
    if found != rate:
        raise UserError(f"{path} has {found:,} samples a second, not {rate:,}: {_remedy(path, rate)}")


def _unreadable(path: str | Path, error: Exception, rate: int) -> UserError:
    """What Python's ``wave`` says, in other words."""
    if str(error).startswith("unknown format"):
        return UserError(f"{path} is compressed, or of a format that is not read here ({error}): {_remedy(path, rate)}")
    reason = str(error) or "it ends too early"
    return UserError(f"{path} is not a whole WAV file ({reason}): pass a WAV file")


def _remedy(path: str | Path, rate: int) -> str:
    return f"convert it, as in ffmpeg -i {shlex.quote(Path(path).name)} -ac 1 -ar {rate} -c:a pcm_s16le converted.wav"
