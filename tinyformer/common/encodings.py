"""Guess the content of a file that is not UTF-8, and the command that converts it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

# The first bytes of files that are not text.
BEGINNINGS = {
    b"\x89PNG": "a PNG picture", b"\xff\xd8\xff": "a JPEG picture", b"GIF8": "a GIF picture", b"%PDF": "a PDF document",
    b"PK\x03\x04": "a ZIP archive, as .docx, .odt and .epub are", b"\x1f\x8b": "compressed with gzip",
    b"BZh": "compressed with bzip2", b"\xfd7zXZ\x00": "compressed with xz", b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"\xd0\xcf\x11\xe0": "an old Office document", b"RIFF": "a sound or film", b"ID3": "a sound", b"\x7fELF": "a program",
    b"SQLite format 3": "a database", b"PAR1": "a Parquet table", b"GGUF": "a model",
}  # fmt: skip
MARKS = {b"\xff\xfe\x00\x00": "UTF-32", b"\x00\x00\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
# Programs that unpack compressed files.
UNPACKING = {"compressed with gzip": "gunzip", "compressed with bzip2": "bunzip2", "compressed with xz": "unxz",
             "compressed with zstd": "unzstd"}  # fmt: skip
CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b"))


def how_to_read(path: str | Path, content: bytes | bytearray) -> str:
    """Describe what a file that is not UTF-8 seems to contain, and the command that converts it to UTF-8."""
    content = bytes(content)
    if file_type := next((name for start, name in BEGINNINGS.items() if content.startswith(start)), None):
        unpack = f": {UNPACKING[file_type]} {shlex.quote(str(path))} unpacks it" if file_type in UNPACKING else ", not text"
        return f"it is {file_type}{unpack}"
    name = encoding_of(content)
    if name is None:
        return "it does not seem to be text at all"
    is_packed = Path(path).suffix == ".gz"
    source, stem = shlex.quote(str(path)), Path(path).with_suffix("") if is_packed else Path(path)
    target = shlex.quote(str(stem.with_name(f"{stem.stem}.utf8{stem.suffix}")))
    unpacked = f"gunzip -c {source} | " if is_packed else ""
    drop, source = " -c" if name == "UTF-8" else "", "" if is_packed else f" {source}"
    seems = "a few bytes of it are damaged, and this leaves them out" if drop else f"it seems to be {name}, so convert it"
    return f"{seems}: {unpacked}iconv{drop} -f {name} -t UTF-8{source} > {target}"


def encoding_of(content: bytes) -> str | None:
    """Guess the encoding of text that is not UTF-8, by its iconv name. Return "UTF-8" if only a few bytes are wrong, and None
    if it is not text. The content can be decoded with this encoding."""
    for mark, name in MARKS.items():
        if content.startswith(mark):
            return name if _decodes(content, name) else None
    zeros = content.count(0)
    if 5 * zeros > len(content):  # UTF-16 ASCII text has a zero in every second byte
        name = "UTF-16LE" if 2 * content[1::2].count(0) > zeros else "UTF-16BE"
        return name if _decodes(content, name) else None
    if 50 * (len(content) - len(content.translate(None, CONTROLS))) > len(content):
        return None
    kept = content.decode("utf-8", "replace")
    wrong, letters = kept.count("\ufffd"), sum(letter > "\x7f" for letter in kept)
    if letters > 5 * wrong:
        return "UTF-8"
    if _runs(content) > 0.5:
        for name, codec, fits, share in SCRIPTS:
            if _share(content, codec, fits) >= share:
                return name
        best = max(ALPHABETS, key=lambda name: _share(content, *ALPHABETS[name]))
        if _share(content, *ALPHABETS[best]) >= 0.6:
            return best
    # LATIN1 maps every byte to a character, but nothing printable from 0x80 to 0x9f.
    return "CP1252" if re.search(rb"[\x80-\x9f]", content) and _decodes(content, "cp1252") else "LATIN1"


def _decodes(content: bytes, codec: str) -> bool:
    try:
        content.decode(codec)
    except UnicodeDecodeError:
        return False
    return True


def _runs(content: bytes) -> float:
    """Return the share of non-ASCII bytes next to another one. It is small for languages in Latin script."""
    above = re.findall(rb"[\x80-\xff]+", content)
    return sum(len(run) for run in above if len(run) > 1) / max(sum(map(len, above)), 1)


def _share(content: bytes, codec: str, fits: Callable[[str], bool]) -> float:
    """Return the share of non-ASCII letters that fit, after decoding with this encoding, or 0 if decoding fails."""
    if not _decodes(content, codec):
        return 0.0
    letters = [letter for letter in content.decode(codec)[:20_000] if letter > "\x7f"]
    return sum(map(fits, letters)) / max(len(letters), 1)


def _between(*ranges: str) -> Callable[[str], bool]:
    return lambda letter: any(ends[0] <= letter <= ends[1] for ends in ranges)


def _leads(codec: str, first: int, last: int) -> Callable[[str], bool]:
    """Return a test for frequent characters, which have the lowest codes."""
    return lambda letter: first <= letter.encode(codec, "replace")[0] <= last


KANA = _between("\u3041\u30ff")
# An encoding's iconv and Python names, the frequent characters in its languages, and their share.
SCRIPTS: list[tuple[str, str, Callable[[str], bool], float]] = [
    ("EUC-JP", "euc_jp", KANA, 0.2),
    ("CP932", "cp932", KANA, 0.2),
    ("CP949", "cp949", _between("\uac00\ud7a3"), 0.9),
    ("GB18030", "gb18030", _leads("gb2312", 0xB0, 0xD7), 0.6),
    ("BIG5", "big5", _leads("big5", 0xA4, 0xC6), 0.6),
]
LOWER_CYRILLIC = _between("\u0430\u0451")
ALPHABETS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "CP1251": ("cp1251", LOWER_CYRILLIC),
    "KOI8-R": ("koi8_r", LOWER_CYRILLIC),
    "CP866": ("cp866", LOWER_CYRILLIC),
    "ISO-8859-5": ("iso8859_5", LOWER_CYRILLIC),
    "ISO-8859-7": ("iso8859_7", _between("\u03ac\u03ce")),
    "CP1255": ("cp1255", _between("\u05d0\u05ea")),
    "CP1256": ("cp1256", _between("\u0621\u064a")),
    "TIS-620": ("tis_620", _between("\u0e01\u0e5b")),
}
