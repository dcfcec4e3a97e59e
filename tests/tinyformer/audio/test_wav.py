"""WAV files: reading restores what was written, and unreadable files raise errors."""

from __future__ import annotations

import os
import re
import shlex
import struct
import uuid
import wave
from pathlib import Path

import numpy as np
import pytest

from tinyformer.audio.wav import read_wav, write_wav
from tinyformer.common.errors import UserError

RATE = 8000
NOISE = np.random.default_rng(0).uniform(-1, 1, 500)


def write_any(path: Path, channels: int = 1, width: int = 2, rate: int = RATE, count: int = 100) -> None:
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(bytes(count * channels * width))


def write_chunks(path: Path, description: bytes, samples: bytes, announced: int | None = None) -> None:
    """A file whose format is described so, and which may announce another number of bytes than it has."""
    size = len(samples) if announced is None else announced
    chunks = b"WAVEfmt " + struct.pack("<I", len(description)) + description + b"data" + struct.pack("<I", size) + samples
    path.write_bytes(b"RIFF" + struct.pack("<I", len(chunks)) + chunks)


def described(kind: int = 1, bits: int = 16) -> bytes:
    return struct.pack("<HHIIHH", kind, 1, RATE, 2 * RATE, 2, bits)


def refused(path: Path) -> str:
    with pytest.raises(UserError) as error:
        read_wav(path, RATE)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


def test_samples_are_rounded_to_16_bits_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "noise.wav"
    write_wav(path, NOISE, RATE)
    samples = read_wav(path, RATE)
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, NOISE, rtol=0, atol=0.5 / 32768 + 1e-7)
    again = tmp_path / "again.wav"
    write_wav(again, samples, RATE)
    assert again.read_bytes() == path.read_bytes()
    with wave.open(str(path)) as sound:
        assert sound.getparams()[:4] == (1, 2, RATE, 500)


def test_samples_beyond_full_scale_are_cut_off(tmp_path: Path) -> None:
    write_wav(tmp_path / "loud.wav", [-3.0, -1.0, 0.0, 0.5, 1.0, 3.0], RATE)
    largest = 1 - 1 / 32768
    assert read_wav(tmp_path / "loud.wav", RATE).tolist() == [-1.0, -1.0, 0.0, 0.5, largest, largest]


@pytest.mark.parametrize("samples", [[0.0, np.nan], [np.inf], [[0.0, 0.1]], 0.5])
def test_only_rows_of_samples_are_written(tmp_path: Path, samples: object) -> None:
    write_wav(tmp_path / "kept.wav", NOISE, RATE)
    with pytest.raises(ValueError, match="one row of finite numbers"):
        write_wav(tmp_path / "kept.wav", samples, RATE)
    assert len(read_wav(tmp_path / "kept.wav", RATE)) == 500
    assert os.listdir(tmp_path) == ["kept.wav"]


def test_a_failed_write_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept.wav"
    write_wav(path, NOISE, RATE)
    before = path.read_bytes()

    def full(self: wave.Wave_write, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wave.Wave_write, "writeframes", full)
    with pytest.raises(OSError, match="No space left"):
        write_wav(path, -NOISE, RATE)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["kept.wav"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"channels": 2}, r"has 2 channels instead of one: convert it, as in ffmpeg -i \S*/it\.wav -ac 1 -ar 8000"),
        ({"rate": 44100}, "has 44,100 samples per second instead of 8,000: convert it"),
        ({"width": 1}, "has 8-bit samples instead of 16-bit: convert it"),
        ({"width": 3}, "has 24-bit samples instead of 16-bit: convert it"),
        ({"count": 0}, "has no samples"),
    ],
)
def test_other_kinds_of_wav_files(tmp_path: Path, how: dict[str, int], message: str) -> None:
    path = tmp_path / "it.wav"
    write_any(path, **how)
    assert re.search(message, refused(path))


@pytest.mark.parametrize("kind", [2, 3, 6, 7, 85])  # ADPCM, floating point, A-law, mu-law, MP3
def test_compressed_files(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "it.wav"
    write_any(path)
    content = bytearray(path.read_bytes())
    content[20:22] = struct.pack("<H", kind)
    path.write_bytes(content)
    assert "has an unsupported or compressed format" in refused(path)


GUID_END = uuid.UUID("00000001-0000-0010-8000-00aa00389b71").bytes_le[2:]  # of Microsoft's KSDATAFORMAT_SUBTYPE_PCM, and others


def extended(kind: int) -> bytes:
    """A format as programs describe it that are made for more channels, or more bits."""
    return described(0xFFFE) + struct.pack("<HHIH", 22, 16, 4, kind) + GUID_END


def test_a_format_that_is_described_at_length(tmp_path: Path) -> None:
    path = tmp_path / "it.wav"
    write_chunks(path, extended(1), struct.pack("<3h", 16384, 0, -32768))
    assert read_wav(path, RATE).tolist() == [0.5, 0.0, -1.0]
    write_chunks(path, extended(3), bytes(4))
    assert "has an unsupported or compressed format (number 3): convert it" in refused(path)
    write_chunks(path, extended(1)[:-1] + b"?", bytes(4))
    assert "(number 65534)" in refused(path)


def test_parts_of_other_programs_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "it.wav"
    write_wav(path, NOISE, RATE)
    whole = path.read_bytes()
    samples = read_wav(path, RATE)
    odd = b"LIST" + struct.pack("<I", 5) + b"hello" + b"\0"  # filled up to an even size
    path.write_bytes(whole[:36] + odd + whole[36:] + odd)
    np.testing.assert_array_equal(read_wav(path, RATE), samples)


@pytest.mark.parametrize("announced", [0, 0x7FFFF000, 0x80000000, 0xFFFFFFFF])  # as of ffmpeg, SoX and arecord
def test_a_file_that_was_written_to_a_pipe(tmp_path: Path, announced: int) -> None:
    path = tmp_path / "it.wav"
    write_chunks(path, described(), bytes(2000), announced)
    assert "it.wav does not state its length, as if it was written to a pipe: convert it, as in ffmpeg -i" in refused(path)


def test_samples_of_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "it.wav"
    write_chunks(path, described(bits=12), bytes(2000))
    assert "has 12-bit samples instead of 16-bit: convert it" in refused(path)
    write_chunks(path, described(), bytes(2001))
    assert "is not a complete WAV file (2,001 bytes cannot be 16-bit samples)" in refused(path)


def test_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "it.wav"
    write_wav(path, NOISE, RATE)
    whole = path.read_bytes()
    path.write_bytes(whole[:30])
    assert "is not a complete WAV file" in refused(path)
    path.write_bytes(b"")
    assert refused(path) == f"{path} is empty: pass a WAV file"
    path.write_bytes(whole[:-201])
    assert "is truncated: it has 399 of 500 samples" in refused(path)


def test_other_kinds_of_files(tmp_path: Path) -> None:
    path = tmp_path / "it's.mp3"  # a name that a shell would not take without quotes
    write_wav(path, NOISE, RATE)
    whole = path.read_bytes()
    for content in (b"no sound", b"ID3\4" + bytes(100), b"?" + whole[1:10] + b"?" * 100, whole[:4] + whole[8:]):
        path.write_bytes(content)
        message = refused(path)
        assert message.startswith(f"{path} is not a WAV file: pass one, or convert it, as in ffmpeg -i ")
        words = shlex.split(message.partition("as in ")[2])
        assert words == [
            "ffmpeg",
            "-i",
            str(path),
            *"-ac 1 -ar 8000 -c:a pcm_s16le".split(),
            str(tmp_path / "it's.converted.wav"),
        ]


def test_a_changed_byte_in_the_header_never_ends_in_another_error(tmp_path: Path) -> None:
    path = tmp_path / "it.wav"
    write_wav(path, NOISE, RATE)
    whole = path.read_bytes()
    refusals = 0
    for place in range(44):
        for value in (0, 1, whole[place] ^ 128, 255):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                read_wav(path, RATE)
            except UserError:
                refusals += 1
    assert refusals > 80


def test_not_a_valid_file(tmp_path: Path) -> None:
    assert "does not exist: pass a WAV file" in refused(tmp_path / "absent.wav")
    assert "is a folder, not a regular file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe.wav")
    assert "is a pipe, not a regular file" in refused(tmp_path / "pipe.wav")
