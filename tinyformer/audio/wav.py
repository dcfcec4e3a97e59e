"""Read and write WAV files with one channel of 16-bit samples.

Python's ``wave`` module is used only for writing. The formats it reads depend on the Python version, and it does not detect
12-bit samples, half samples, or files of unknown length.
"""

from __future__ import annotations

import shlex
import struct
import wave
from pathlib import Path
from typing import Any

from tinyformer.audio.features import one_row
from tinyformer.common.errors import UserError
from tinyformer.common.files import read_file
from tinyformer.common.memory import check_fits
from tinyformer.data.files import check_file
from tinytensor.common.wording import counted
from tinytensor.device.backend import host
from tinytensor.device.disk import atomic_write

FULL_SCALE = 32768  # the 16-bit integer for 1.0
SAMPLE_BYTES = 2
PASS = "pass a WAV file"

PCM, EXTENSIBLE = 1, 0xFFFE  # formats: uncompressed integers; real format in a GUID that ends with GUID_END
GUID_END = bytes.fromhex("0000 0000 1000 8000 00aa 0038 9b71")
ENDLESS = 0x7FFFF000  # programs that write to a pipe, of unknown length, declare at least this many bytes, or none


def read_wav(path: str | Path, rate: int) -> Any:
    """Return the samples of a WAV file as a NumPy array (length,), float32, from -1 to 1.

    The file must have one channel of uncompressed 16-bit samples, ``rate`` per second. Raises UserError, with the file name,
    for anything else, and if it is empty or truncated.

    Nothing is converted: averaging two channels may cancel sound, and resampling needs a good low-pass filter. The error
    message suggests a command for the conversion.
    """
    size = check_file(path, PASS, "*.wav")
    check_fits(4 * size, f"the sound in {path}", "pass a shorter one", on_host=True)
    content = memoryview(read_file(path, None))
    if not content:
        raise UserError(f"{path} is empty: {PASS}")
    if bytes(content[:4]) != b"RIFF" or bytes(content[8:12]) != b"WAVE":
        raise UserError(f"{path} is not a WAV file: pass one, or {_remedy(path, rate)}")
    announced, description = _chunk(path, content, b"fmt ")
    _check_format(path, description[:announced], rate)
    announced, samples = _chunk(path, content, b"data")
    _check_length(path, announced, len(samples), rate)
    return host.frombuffer(samples[:announced], dtype="<i2").astype(host.float32) / FULL_SCALE


def write_wav(path: str | Path, samples: Any, rate: int) -> None:
    """Write samples (length,) from -1 to 1 to a WAV file, rounded to 16 bits and clipped.

    An existing file is replaced only once the new one is complete. Raises ValueError unless the samples are finite and 1D.
    """
    rounded = host.clip(host.rint(one_row(samples) * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(host.int16)
    with atomic_write(path) as file, wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(SAMPLE_BYTES)
        sound.setframerate(rate)
        sound.writeframes(rounded.tobytes())


def _chunk(path: str | Path, content: memoryview, name: bytes) -> tuple[int, memoryview]:
    """Return the declared size of a chunk, and all bytes from its start. Raises UserError if it is missing."""
    position = 12
    while position + 8 <= len(content):
        chunk, size = struct.unpack_from("<4sI", content, position)
        position += 8
        if chunk == name:
            return size, content[position:]
        position += size + size % 2  # odd sizes are padded
    raise _broken(path, f"it has no chunk {name.decode()!r}")


def _check_format(path: str | Path, description: memoryview, rate: int) -> None:
    """Raise UserError unless the format is uncompressed 16-bit samples in one channel at this rate."""
    if len(description) < 16:
        raise _broken(path, "its 'fmt ' chunk is too short")
    encoding, channels, file_rate, _, _, bits = struct.unpack_from("<HHIIHH", description)
    if encoding == EXTENSIBLE and description[26:40] == GUID_END:
        (encoding,) = struct.unpack_from("<H", description, 24)
    if encoding != PCM:
        raise UserError(f"{path} has an unsupported or compressed format (number {encoding}): {_remedy(path, rate)}")
    if bits != 8 * SAMPLE_BYTES:
        raise UserError(f"{path} has {bits}-bit samples instead of 16-bit: {_remedy(path, rate)}")
    if channels != 1:
        raise UserError(f"{path} has {counted(channels, 'channel')} instead of one: {_remedy(path, rate)}")
    if file_rate != rate:
        raise UserError(f"{path} has {counted(file_rate, 'sample')} per second instead of {rate:,}: {_remedy(path, rate)}")


def _check_length(path: str | Path, announced: int, size: int, rate: int) -> None:
    """Raise UserError unless the file has as many sample bytes as declared, and no half sample."""
    if size and (announced == 0 or announced >= max(ENDLESS, size + 1)):
        raise UserError(f"{path} does not state its length, as if it was written to a pipe: {_remedy(path, rate)}")
    if announced % SAMPLE_BYTES:
        raise _broken(path, f"{counted(announced, 'byte')} cannot be 16-bit samples")
    if size < announced:
        total = counted(announced // SAMPLE_BYTES, "sample")
        raise UserError(f"{path} is truncated: it has {size // SAMPLE_BYTES:,} of {total}. Record or download it again")
    if not announced:
        raise UserError(f"{path} has no samples: pass a recording that is not empty")


def _broken(path: str | Path, reason: str) -> UserError:
    return UserError(f"{path} is not a complete WAV file ({reason}): {PASS}")


def _remedy(path: str | Path, rate: int) -> str:
    source, target = (shlex.quote(str(name)) for name in (path, Path(path).with_suffix(".converted.wav")))
    return f"convert it, as in ffmpeg -i {source} -ac 1 -ar {rate} -c:a pcm_s16le {target}"
