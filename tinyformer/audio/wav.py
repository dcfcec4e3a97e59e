"""WAV files with one channel of 16-bit samples.

They are written with Python's own ``wave``, but read here: what ``wave`` reads depends on Python's version, and it does not
tell samples of 12 bits, half a sample, and a file that does not know its own length.
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

FULL_SCALE = 32768  # the 16-bit integer that stands for 1.0
SAMPLE_BYTES = 2
PASS = "pass a WAV file"

PCM, EXTENSIBLE = 1, 0xFFFE  # formats: uncompressed integers; and one whose real format begins a GUID, which always ends so:
GUID_END = bytes.fromhex("0000 0000 1000 8000 00aa 0038 9b71")
ENDLESS = 0x7FFFF000  # programs that write to a pipe announce so many bytes, or more, or none: they do not know it yet


def read_wav(path: str | Path, rate: int) -> Any:
    """The samples of a WAV file as a NumPy array (length,), float32, from -1 to 1.

    The file must have one channel of uncompressed 16-bit samples, ``rate`` of them a second. Raises UserError, which names the
    file, for anything else, and if it is empty or cut short.

    Nothing is converted here. The mean of two channels may cancel what both contain, and another rate needs a good low-pass
    filter: a program made for it does better, and the message names the command.
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
    """Write samples (length,) from -1 to 1 to a WAV file, rounded to 16 bits. Louder ones are cut off at full scale.

    An existing file stays until the new one is complete. Raises ValueError unless the samples are one row of finite numbers.
    """
    samples = one_row(samples)
    whole = host.clip(host.rint(samples * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(host.int16)
    with atomic_write(path) as file, wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(SAMPLE_BYTES)
        sound.setframerate(rate)
        sound.writeframes(whole.tobytes())


def _chunk(path: str | Path, content: memoryview, name: bytes) -> tuple[int, memoryview]:
    """The bytes that a part of the file announces, and all that follows. Raises UserError if there is no such part."""
    place = 12
    while place + 8 <= len(content):
        found, size = struct.unpack_from("<4sI", content, place)
        place += 8
        if found == name:
            return size, content[place:]
        place += size + size % 2  # a byte fills up an odd size
    raise _broken(path, f"it has no part {name.decode()!r}")


def _check_format(path: str | Path, description: memoryview, rate: int) -> None:
    """Raise UserError unless these are uncompressed 16-bit samples of one channel at this rate."""
    if len(description) < 16:
        raise _broken(path, "it does not say what its samples are")
    kind, channels, found, _, _, bits = struct.unpack_from("<HHIIHH", description)
    if kind == EXTENSIBLE and description[26:40] == GUID_END:
        (kind,) = struct.unpack_from("<H", description, 24)
    if kind != PCM:
        raise UserError(f"{path} is compressed, or of a format that is not read here (number {kind}): {_remedy(path, rate)}")
    if bits != 8 * SAMPLE_BYTES:
        raise UserError(f"{path} has {bits}-bit samples, not 16-bit ones: {_remedy(path, rate)}")
    if channels != 1:
        raise UserError(f"{path} has {counted(channels, 'channel')}, not one: {_remedy(path, rate)}")
    if found != rate:
        raise UserError(f"{path} has {counted(found, 'sample')} a second, not {rate:,}: {_remedy(path, rate)}")


def _check_length(path: str | Path, announced: int, there: int, rate: int) -> None:
    """Raise UserError unless the file has the bytes of samples that it announces, and these are whole samples."""
    if there and (announced == 0 or announced >= max(ENDLESS, there + 1)):
        raise UserError(f"{path} does not say how long it is, as if it was written to a pipe: {_remedy(path, rate)}")
    if announced % SAMPLE_BYTES:
        raise _broken(path, f"{counted(announced, 'byte')} make no whole number of 16-bit samples")
    if there < announced:
        have, of = there // SAMPLE_BYTES, announced // SAMPLE_BYTES
        raise UserError(f"{path} is cut short: it has {have:,} of the {counted(of, 'sample')} that it announces")
    if not announced:
        raise UserError(f"{path} has no samples: pass a recording that is not empty")


def _broken(path: str | Path, reason: str) -> UserError:
    return UserError(f"{path} is not a whole WAV file ({reason}): {PASS}")


def _remedy(path: str | Path, rate: int) -> str:
    source, target = (shlex.quote(str(name)) for name in (path, Path(path).with_suffix(".converted.wav")))
    return f"convert it, as in ffmpeg -i {source} -ac 1 -ar {rate} -c:a pcm_s16le {target}"
