"""Read text from files, folders and cached downloads, and read it again to resume a run."""

from __future__ import annotations

import hashlib
import http.client
import os
import stat
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tinyformer.common.errors import UserError, print_line
from tinyformer.common.files import read_file
from tinyformer.common.memory import check_fits, enough_memory
from tinyformer.data.conversations import conversations_in
from tinyformer.data.fields import field_of, format_of, notice
from tinyformer.data.files import READING, check_file, decoded, status, texts_in
from tinytensor.common.wording import counted
from tinytensor.device.caches import user_cache
from tinytensor.device.disk import atomic_write, make_folder

TINY_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
STANDARD_LIBRARY = "Python's standard library"


# ---------------------------------------------------------------------------------------------------------- sources


def read_text(path: str | Path, flag: str = "--data", field: str = "", notify: bool = True) -> str:
    """Read a UTF-8 file, or all UTF-8 files in a folder and its subfolders, sorted by path.

    If ``field`` is set, read only that key or column of record files (JSON Lines, JSON, CSV, TSV). ``texts_in`` selects the
    files of a folder; skipped files are reported. If ``notify``, a line is also printed for record files read without a
    ``field``.

    Raises UserError, with the file and the ``flag`` that selects another, if it is missing, empty, not UTF-8, not a regular
    file, lacks the field, or does not fit in memory.
    """
    is_folder = stat.S_ISDIR(status(path, f"pass {flag} a text file or a folder of them").st_mode)
    path = Path(path)
    with enough_memory(f"the text in {path}", f"pass {flag} a shorter one"):
        read = _read_folder if is_folder else _read_file
        text = "\n".join(read(path, flag, field, notify))
    if not text.strip():
        raise UserError(f"{path} has no text: pass {flag} a text to learn from")
    return text


def _read_file(path: Path, flag: str, field: str, notify: bool) -> Iterator[str]:
    """Yield the text of a file or of one of its fields."""
    _check_size(path, check_file(path, f"pass {flag} a text file or a folder of them"), flag)
    text = decoded(path, read_file(path, None))
    if notify and not field and (note := notice(path, text)):
        print_line(note)
    yield field_of(path, text, field) if field else text


def _read_folder(folder: Path, flag: str, field: str, notify: bool) -> Iterator[str]:
    """Yield the text of each file in a folder. If ``field`` is set, use only record files."""
    files, left_out = texts_in(folder)
    if left_out:
        print_line(left_out)
    if not files:
        raise UserError(f"the folder {folder} has no UTF-8 text files: pass {flag} a text file or a folder of them")
    _check_size(folder, sum(path.stat().st_size for path in files), flag)
    with_fields = list(filter(format_of, files))
    if field:
        if not with_fields:
            raise UserError(f"the folder {folder} has no .jsonl, .json, .csv or .tsv: leave out --field")
        if len(with_fields) < len(files):
            print_line(f"{folder}: left out {counted(len(files) - len(with_fields), 'file')} without fields")
        yield from (field_of(path, decoded(path, read_file(path, None)), field) for path in with_fields)
        return
    for path in files:
        text = decoded(path, read_file(path, None))
        if notify and (note := notice(path, text)):
            print_line(note)
            notify = False  # later files are probably similar
        yield text


def _check_size(path: Path, size: int, flag: str) -> None:
    check_fits(READING * size, f"the text in {path}", f"pass {flag} a shorter one", on_host=True)


def default_text() -> tuple[str, str]:
    """Return the default text and its name: Tiny Shakespeare or, without network access, the Python standard library's
    source."""
    try:
        return _tiny_shakespeare(), "Tiny Shakespeare"
    except (OSError, UserError) as error:
        print_line(f"{_not_downloaded(error)}: training on Python's own sources instead.")
    return standard_library_text(), STANDARD_LIBRARY


def _tiny_shakespeare() -> str:
    return decoded(TINY_SHAKESPEARE, download(TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256))


def _not_downloaded(error: Exception) -> str:
    return f"Tiny Shakespeare could not be downloaded ({error.reason if isinstance(error, urllib.error.URLError) else error})"


@dataclass(frozen=True)
class TextSource:
    """The origin of a run's text. ``path`` is None for a default text. For ``field``, see ``read_text``."""

    path: str | None
    name: str
    sha256: str
    field: str = ""

    def read_again(self, run: str | Path, moved_to: str | None = None, field: str | None = None) -> str:
        """Return the text that ``run`` was trained on. Read it from ``moved_to`` if it has moved. Raises UserError if the text
        or the ``field`` differs."""
        if field is not None and field != self.field:
            learned = f"the field {self.field}" if self.field else "the full text"
            raise UserError(f"{run} was trained on {learned} of {self.name}: leave out --field {field}, or start a new run")
        path = self.path if moved_to is None else moved_to
        if path is not None:
            text = read_text(path, field=self.field, notify=False)
        elif self.name == STANDARD_LIBRARY:
            text = standard_library_text()
        else:
            try:
                text = _tiny_shakespeare()
            except (OSError, UserError) as error:
                raise UserError(f"{_not_downloaded(error)}, but {run} was trained on it: pass the file with --data") from None
        if fingerprint(text) != self.sha256:
            raise UserError(f"the text is not the one that {run} was trained on ({self.name}): --resume needs the same text")
        return text

    def still_there(self, path: str | None, limit: int) -> str | None:
        """Return the text, now in the file at ``path``, without downloading it. Return None if it is missing, has changed or
        exceeds ``limit`` bytes."""
        if path is not None:
            file = Path(path)
            if not file.is_file() or file.stat().st_size > limit:
                return None
            text = read_text(file, field=self.field, notify=False)
        elif self.name == STANDARD_LIBRARY:
            text = standard_library_text()
        else:
            content = downloaded(TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256)
            if content is None:
                return None
            text = decoded(TINY_SHAKESPEARE, content)
        return text if fingerprint(text) == self.sha256 else None


def open_text(
    path: str | None, flag: str = "--data", field: str | None = None, conversations: bool = False
) -> tuple[str, TextSource]:
    """Return the text at a path (None: a default text), and its source. Raises UserError as ``read_text`` does. Also raises it
    for a ``field`` of the default text, a conversations field unless ``conversations``, or a path that is not UTF-8, since run
    settings could not store it."""
    if path is None:
        if field is not None:
            raise UserError(f"--field chooses a field of {flag}: give both or neither")
        text, name = default_text()
        return text, TextSource(None, name, fingerprint(text))
    if path != path.encode("utf-8", "ignore").decode("utf-8"):  # Python stores other bytes as surrogates
        raise UserError(f"the name {path!r} is not UTF-8: rename the file")
    text = read_text(path, flag, field or "")
    if field and not conversations and conversations_in(text):
        raise UserError(
            f"{field} in {path} holds conversations, not text: choose another field, or learn them with train gpt --init-from"
        )
    return text, TextSource(path, path, fingerprint(text), field or "")


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a text. A resumed run recognizes its text by it."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def standard_library_text(limit: int = 1_100_000) -> str:
    """Return the ASCII source of top-level standard library modules, sorted by name, up to ``limit`` characters. Raises
    UserError if there is none."""
    parts: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_bytes()
        if source.isascii():
            parts.append(source.decode("ascii").replace("\r\n", "\n"))
        if sum(map(len, parts)) >= limit:
            break
    if not parts:
        raise UserError("this Python has no sources of its standard library: choose a text file")
    return "\n".join(parts)[:limit]


# ------------------------------------------------------------------------------------------------------------------- downloads


def cache_folder() -> Path | None:
    """Return the download folder: $TINYFORMER_CACHE if set, else "tinyformer" in the user's cache folder. Return None without a
    home folder."""
    chosen = os.path.expanduser(os.environ.get("TINYFORMER_CACHE", ""))
    if chosen.startswith("~"):
        return None
    return Path(chosen) if chosen else user_cache("tinyformer")


def kept_at(url: str, sha256: str) -> Path | None:
    """Return the cache path of a download, or None without a cache."""
    folder = cache_folder()
    return folder / sha256[:16] / url.rsplit("/", 1)[-1] if folder is not None else None


def downloaded(url: str, sha256: str) -> bytes | None:
    """Return the content cached by ``download``, or None."""
    path = kept_at(url, sha256)
    if path is not None:
        with suppress(OSError, UserError):
            content = read_file(path)
            if hashlib.sha256(content).hexdigest() == sha256:
                return content
    return None


def download(url: str, sha256: str, timeout: float = 10.0) -> bytes:
    """Return the content of the file at ``url``, from the cache if possible; prints a line if it cannot be cached. Raises
    OSError if the download fails (no network, no such file), and UserError if the checksum is not ``sha256``."""
    cached = downloaded(url, sha256)
    if cached is not None:
        return cached
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            content = response.read()
    except http.client.HTTPException as error:  # for example, the connection ends too early
        raise OSError(f"{type(error).__name__}: {error}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"the download from {url} has the wrong checksum: it is not the expected file")
    _keep(kept_at(url, sha256), content)
    return content


def _keep(path: Path | None, content: bytes) -> None:
    """Write a download to the cache, or print why it failed."""
    try:
        if path is None:
            raise OSError("there is no home folder")
        make_folder(path.parent)
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        where = f" in {path.parent}" if path is not None else ""
        print_line(f"Cannot save the download{where} ({error.strerror or error}). Set TINYFORMER_CACHE to another folder.")
