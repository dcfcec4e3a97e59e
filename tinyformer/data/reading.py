"""Text: where it comes from, and how it is cut into batches."""

from __future__ import annotations

import hashlib
import http.client
import os
import stat
import sysconfig
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tinyformer.errors import UserError
from tinyformer.memory import check_fits
from tinytensor.io import atomic_write

TINY_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
STANDARD_LIBRARY = "Python's standard library"


# ---------------------------------------------------------------------------------------------------------- sources


def read_text(path: str | Path) -> str:
    """A UTF-8 file's text, or that of all files in a folder, in the order of their names, hidden ones left out. Links to files
    are followed, those to folders are not; what is no file, such as a pipe, is left out.

    Raises UserError for what is missing, empty, not UTF-8, no file at all, or does not fit in memory, naming the file.
    """
    wanted = "pass --data a text file or a folder of them"
    found = status(path, wanted)
    path = Path(path)
    files = _files_in(path) if stat.S_ISDIR(found.st_mode) else [path]
    if not files:
        raise UserError(f"the folder {path} has no files: pass a text file, or a folder of them")
    sizes = [check_file(file, wanted) for file in files]
    check_fits(READING * sum(sizes), f"the text in {path}", "pass --data a shorter one", on_host=True)
    text = "\n".join(decoded(file, read_bytes(file)).replace("\r\n", "\n") for file in files)
    if not text.strip():
        raise UserError(f"{path} is empty: pass --data a text to learn from")
    return text


READING = 3  # bytes of memory for each that is read, at least: what was read, the text, and what is made of it


def status(path: str | Path, wanted: str) -> os.stat_result:
    """What is at a path, links followed. Raises UserError where there is nothing; ``wanted`` says what to do about it."""
    if not os.fspath(path):
        raise UserError(f"an empty name is no path: {wanted}")
    try:
        return os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise UserError(f"{path} is a link to {os.readlink(path)}, which does not exist: {wanted}") from None
        raise UserError(f"{path} does not exist: {wanted}") from None
    except ValueError:
        raise UserError(f"{os.fspath(path)!r} cannot be a path: {wanted}") from None


def check_file(path: str | Path, wanted: str) -> int:
    """A regular file's size. Raises UserError for anything else: from a pipe or a device reading may never end."""
    found = status(path, wanted)
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise UserError(f"{path} is not a regular file but {kinds.get(stat.S_IFMT(found.st_mode), 'a device')}: {wanted}")
    return found.st_size


def read_bytes(path: str | Path) -> bytes:
    """A file's content. Raises OSError that names the file; the system's own does not, where it could be opened."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _files_in(folder: Path) -> list[Path]:
    """The files below a folder in the order of their names. Raises UserError for a link that leads nowhere, and OSError for a
    folder that may not be read: their texts would be missed in silence."""
    found = []
    for place, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(place, name) for name in names if not name.startswith(".")]
        found += [path for path in paths if stat.S_ISREG(status(path, "remove or mend it").st_mode)]
    return sorted(found)


def _refuse(error: OSError) -> None:
    raise error


def decoded(path: str | Path, content: bytes | bytearray) -> str:
    """The text of a UTF-8 file's content, without a byte order mark. Raises UserError that names the file and the byte."""
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): convert it, as in iconv -t UTF-8") from None


def cache_folder() -> Path:
    """Where downloads are kept: $TINYFORMER_CACHE, else tinyformer in the user's cache folder."""
    chosen = os.environ.get("TINYFORMER_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else base / "tinyformer"


def download(url: str, sha256: str, timeout: float = 10.0) -> Path:
    """The file at ``url``, from the cache after the first time. Raises OSError (no network, no such file, no space) or
    UserError where its checksum is not ``sha256``."""
    path = cache_folder() / sha256[:16] / url.rsplit("/", 1)[-1]
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
        return path
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            content = response.read()
    except http.client.HTTPException as error:  # such as a connection that ends too soon
        raise OSError(f"{type(error).__name__}: {error}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"what came from {url} is not the file expected (its checksum differs): try again, or pass --data")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return path


def default_text() -> tuple[str, str]:
    """A text to learn from without being given one, and where it came from: Tiny Shakespeare, or, with no network,
    the sources of Python's standard library."""
    try:
        return read_text(download(TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256)), "Tiny Shakespeare"
    except (OSError, UserError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        print(
            f"Tiny Shakespeare could not be downloaded ({reason}): training on Python's own sources instead (or pass --data)."
        )
    return standard_library_text(), STANDARD_LIBRARY


@dataclass(frozen=True)
class TextSource:
    """Where the text of a run came from; ``path`` is None for a default one."""

    path: str | None
    name: str
    sha256: str

    def read_again(self, run: str | Path, moved_to: str | None = None) -> str:
        """The text that ``run`` was trained on, perhaps from where it is now. Raises UserError for any other text."""
        path = self.path if moved_to is None else moved_to
        if path is not None:
            text = read_text(path)
        else:
            text = standard_library_text() if self.name == STANDARD_LIBRARY else default_text()[0]
        if fingerprint(text) != self.sha256:
            raise UserError(f"the text is not the one that {run} was trained on ({self.name}): --resume needs that one")
        return text


def open_text(path: str | None) -> tuple[str, TextSource]:
    """The text at a path, or a default one without it, and where it came from. Raises UserError as ``read_text`` does, and for
    a path that cannot be written down as UTF-8, as a run's settings hold it."""
    if path is not None and not _is_text(path):
        raise UserError(f"the name {path!r} is not UTF-8: rename it")
    text, name = default_text() if path is None else (read_text(path), path)
    return text, TextSource(path, name, fingerprint(text))


def _is_text(path: str) -> bool:
    """False where a path has bytes that are no UTF-8: Python keeps them as halves of characters."""
    return path == path.encode("utf-8", "ignore").decode("utf-8")


def fingerprint(text: str) -> str:
    """The SHA-256 of a text: tells whether a resumed run has the one that it had."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def standard_library_text(limit: int = 1_100_000) -> str:
    """The ASCII sources at the top of Python's standard library, in the order of their names, up to ``limit`` characters."""
    parts: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_bytes()
        if source.isascii():
            parts.append(source.decode("ascii").replace("\r\n", "\n"))
        if sum(map(len, parts)) >= limit:
            break
    if not parts:
        raise UserError("this Python comes without its library's sources: pass --data a text file")
    return "\n".join(parts)[:limit]
