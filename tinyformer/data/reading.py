"""Reading texts: from files and folders, from the network, and again when a run is resumed."""

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


def read_text(path: str | Path, flag: str = "--data") -> str:
    """The text of a UTF-8 file, or of all files in a folder and its subfolders, in the order of their names.

    In a folder, hidden files and anything but regular files, such as pipes, are left out. Links to files are followed, links to
    folders are not. Raises UserError, which names the file and the ``flag`` to give another one with, if it is missing, empty,
    not UTF-8, not a regular file, or does not fit in memory.
    """
    wanted = f"pass {flag} a text file or a folder of them"
    found = status(path, wanted)
    path = Path(path)
    files = _files_in(path) if stat.S_ISDIR(found.st_mode) else [path]
    if not files:
        raise UserError(f"the folder {path} has no files: pass a text file, or a folder of them")
    sizes = [check_file(file, wanted) for file in files]
    check_fits(READING * sum(sizes), f"the text in {path}", f"pass {flag} a shorter one", on_host=True)
    text = "\n".join(decoded(file, read_bytes(file)).replace("\r\n", "\n") for file in files)
    if not text.strip():
        raise UserError(f"{path} is empty: pass {flag} a text to learn from")
    return text


READING = 3  # bytes of memory for each byte of a file, at least: the bytes, the text, and what is made of the text


def status(path: str | Path, wanted: str) -> os.stat_result:
    """The status of the file or folder at a path. Links are followed. Raises UserError if there is none; ``wanted`` is the end
    of the message and says what to do."""
    if not os.fspath(path):
        raise UserError(f"an empty name is not a path: {wanted}")
    try:
        return os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise UserError(f"{path} is a link to {os.readlink(path)}, which does not exist: {wanted}") from None
        raise UserError(f"{path} does not exist: {wanted}") from None
    except ValueError:
        raise UserError(f"{os.fspath(path)!r} cannot be a path: {wanted}") from None


def check_file(path: str | Path, wanted: str) -> int:
    """The size of a regular file. Raises UserError for anything else: reading from a pipe or a device may never end."""
    found = status(path, wanted)
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise UserError(f"{path} is not a regular file but {kinds.get(stat.S_IFMT(found.st_mode), 'a device')}: {wanted}")
    return found.st_size


def read_bytes(path: str | Path) -> bytes:
    """The content of a file. Raises OSError that names the file: the error of a failed read, unlike that of a failed open, does
    not name it by itself."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _files_in(folder: Path) -> list[Path]:
    """The files in a folder and its subfolders, in the order of their names. Raises UserError for a link that leads nowhere,
    and OSError for a folder that may not be read: otherwise their texts would be missing without notice."""
    found = []
    for place, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(place, name) for name in names if not name.startswith(".")]
        found += [path for path in paths if stat.S_ISREG(status(path, "remove or mend it").st_mode)]
    return sorted(found)


def _refuse(error: OSError) -> None:
    raise error


def decoded(path: str | Path, content: bytes | bytearray) -> str:
    """The text in the content of a UTF-8 file, without a byte order mark. Raises UserError, which names the file and the byte,
    if it is not UTF-8."""
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): convert it, as in iconv -t UTF-8") from None


def cache_folder() -> Path:
    """The folder for downloads: $TINYFORMER_CACHE if it is set, else "tinyformer" in the user's cache folder."""
    chosen = os.environ.get("TINYFORMER_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else base / "tinyformer"


def download(url: str, sha256: str, timeout: float = 10.0) -> Path:
    """The path of the file at ``url``, which is downloaded once and then kept in the cache. Raises OSError if that fails (no
    network, no such file, no space), and UserError if its checksum is not ``sha256``."""
    path = cache_folder() / sha256[:16] / url.rsplit("/", 1)[-1]
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
        return path
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            content = response.read()
    except http.client.HTTPException as error:  # such as a connection that ends too early
        raise OSError(f"{type(error).__name__}: {error}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"the download from {url} is not the expected file (its checksum differs): try again, or pass --data")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return path


def default_text() -> tuple[str, str]:
    """The text for a user who gives none, and its name: Tiny Shakespeare or, without a network, the sources of Python's
    standard library."""
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
    """Where the text of a run came from. ``path`` is None for a default text."""

    path: str | None
    name: str
    sha256: str

    def read_again(self, run: str | Path, moved_to: str | None = None) -> str:
        """The text that ``run`` was trained on, read from ``moved_to`` if it is at another place now. Raises UserError for any
        other text."""
        path = self.path if moved_to is None else moved_to
        if path is not None:
            text = read_text(path)
        else:
            text = standard_library_text() if self.name == STANDARD_LIBRARY else default_text()[0]
        if fingerprint(text) != self.sha256:
            raise UserError(f"the text is not the one that {run} was trained on ({self.name}): --resume needs the same text")
        return text


def open_text(path: str | None, flag: str = "--data") -> tuple[str, TextSource]:
    """The text at a path, or a default text if it is None, and where it came from. Raises UserError as ``read_text`` does, and
    for a path that is not UTF-8, as it could not be written to the settings of a run."""
    if path is not None and not _is_text(path):
        raise UserError(f"the name {path!r} is not UTF-8: rename it")
    text, name = default_text() if path is None else (read_text(path, flag), path)
    return text, TextSource(path, name, fingerprint(text))


def _is_text(path: str) -> bool:
    """Whether a path is UTF-8. Python keeps other bytes as halves of surrogate pairs."""
    return path == path.encode("utf-8", "ignore").decode("utf-8")


def fingerprint(text: str) -> str:
    """The SHA-256 of a text. It shows whether a resumed run reads the same text as before."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def standard_library_text(limit: int = 1_100_000) -> str:
    """The sources at the top level of Python's standard library that are ASCII, in the order of their names, up to ``limit``
    characters. Raises UserError if there are none."""
    parts: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_bytes()
        if source.isascii():
            parts.append(source.decode("ascii").replace("\r\n", "\n"))
        if sum(map(len, parts)) >= limit:
            break
    if not parts:
        raise UserError("this Python comes without the sources of its library: pass --data a text file")
    return "\n".join(parts)[:limit]
