"""All that the two packages change on disk: no other file of theirs writes, moves or removes a file, or makes a folder. Files
of others are opened here, too, to be read.

A file is always replaced as a whole, so that it is never half-written. It is written under the name of an open folder, which
nobody can exchange meanwhile, rather than by a path (not on Windows, which cannot do that).

In a folder that is guarded, links are never followed. Somebody else may have made that folder, and a link in it would lead what
is written, moved or removed to any other file of this user. So links, pipes and devices are refused there by name. The path
*to* a guarded folder may lead through links: that is the user's own choice.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

PathLike = str | os.PathLike[str]


class FileError(ValueError):
    """A file is missing, damaged or of another kind. The message names the file and says what to do."""


class UnsafeFileError(OSError):
    """A link, a pipe, a device or a folder is in the place of a file. The message names it and says what to do."""


# ------------------------------------------------------------------------------------------------------------ folders

_BY_DESCRIPTOR = {os.open, os.stat, os.unlink, os.mkdir, os.rmdir, os.rename} <= os.supports_dir_fd
_NOT_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", os.O_RDONLY)  # O_PATH needs no permission to list it
_guarded: dict[str, str] = {}  # absolute paths of folders, and what they are in messages


def guard(path: PathLike, what: str) -> None:
    """From now on, do not follow any link in this folder, at any depth. ``what`` it is, in messages: "a run's folder"."""
    _guarded[os.path.abspath(path)] = what


class _Folder:
    """An open folder. ``number`` is its file descriptor, or None where the system cannot name files by one; ``guarded`` is what
    it is in messages if it is guarded."""

    def __init__(self, path: Path, number: int | None, guarded: str | None):
        self.path, self.number, self.guarded = path, number, guarded

    def close(self) -> None:
        if self.number is not None:
            os.close(self.number)
            self.number = None

    def named(self, name: str) -> str:
        """What the functions of ``os`` that are given ``number``, too, call a file of this folder."""
        return str(self.path / name) if self.number is None else name

    def stat(self, name: str) -> os.stat_result | None:
        """What is called so in this folder, even if it is a link; None if there is nothing."""
        try:
            return os.stat(self.named(name), dir_fd=self.number, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def check(self, name: str, is_folder: bool = False, in_place: bool = False) -> bool:
        """Whether a file is called so, or if ``is_folder`` a folder. ``in_place``: whether it is written to, not replaced.

        Raises UnsafeFileError for a pipe, a device or a socket; in a guarded folder or ``in_place`` also for a link, and for a
        folder in the place of a file or the reverse; and ``in_place`` for a file that has other names, too (hard links).
        """
        found = self.stat(name)
        if found is not None:
            self._refuse(name, found, is_folder, in_place)
        return found is not None

    def _refuse(self, name: str, found: os.stat_result, is_folder: bool, in_place: bool) -> None:
        kind = _kind(found)
        wanted = "a folder" if is_folder else "a file"
        if kind == wanted and not (in_place and found.st_nlink > 1):
            return
        if kind in ("a link", "a folder", "a file") and not self.guarded and not in_place:
            return  # the link is replaced, not followed; and for the others the system has its own errors
        kind = "a file with several names (hard links)" if kind == wanted else kind
        why = f": {self.guarded or 'this folder'} may hold only files and folders of its own"
        why = f", not {wanted}" if kind in ("a folder", "a file") else why
        raise UnsafeFileError(f"{self.path / name} is {kind}{why}. Remove it, or choose another folder")

    def names(self) -> list[str]:
        """The names of all that is in this folder, in order."""
        if self.number is None:
            return sorted(os.listdir(self.path))
        number = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.number)
        try:
            return sorted(os.listdir(number))
        finally:
            os.close(number)

    def enter(self, name: str) -> _Folder:
        """A folder in this one, which is closed."""
        self.check(name, is_folder=True)
        number = None
        if self.number is not None:
            number = os.open(name, _FOLDER | _NOT_LINKS, dir_fd=self.number)
        self.close()
        return _Folder(self.path / name, number, self.guarded)


_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
_JUNCTION = 0xA0000003  # the tag of what Windows has beside links to folders


def _kind(found: os.stat_result) -> str:
    """What something is, in messages."""
    if getattr(found, "st_reparse_tag", 0) == _JUNCTION:
        return "a link"
    return _KINDS.get(stat.S_IFMT(found.st_mode), "a device")


@contextlib.contextmanager
def _opened(path: Path, about: Path | None = None) -> Iterator[_Folder]:
    """A context with an open folder. From the guarded folder inwards, no link is followed. Where the system refuses to open it,
    the OSError gets the name ``about``, by default that of the folder."""
    root, names, what = _from_guarded(path)
    about = about or path
    with _named_after(about):
        folder = _Folder(root, os.open(root, _FOLDER) if _BY_DESCRIPTOR else None, what)
    try:
        with _named_after(about):
            for name in names:
                folder = folder.enter(name)
        yield folder
    finally:
        folder.close()


def _from_guarded(path: Path) -> tuple[Path, tuple[str, ...], str | None]:
    """The outermost guarded folder that a path leads through, the names that lead on from there, and what that folder is. For a
    path that is not guarded, the path itself."""
    whole = Path(os.path.abspath(path)) if ".." in path.parts else path
    for folder in reversed((whole, *whole.parents)):
        if what := _guarded.get(os.path.abspath(folder)):
            return folder, whole.relative_to(folder).parts, what
    return path, (), None


@contextlib.contextmanager
def _named_after(path: Path, *others: str) -> Iterator[None]:
    """A context whose OSErrors are named after the whole path, not after a part of it, if they are of the system. With
    ``others``, only if they name nothing or one of these."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (others and error.filename not in (None, *others)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextlib.contextmanager
def _place(path: PathLike) -> Iterator[tuple[_Folder, str]]:
    """A context with the open folder that a path lies in, and the name there. OSErrors in it get the name of the path."""
    check_path(path)
    path = Path(path)
    with _opened(path.parent, path) as folder, _named_after(path):
        yield folder, path.name


def check_path(path: PathLike) -> None:
    """Raise FileError for what no file can be called: an empty name, or one that the system cannot encode."""
    try:
        usable = Path(path).name != "" and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise FileError(f"{os.fspath(path)!r} cannot be the name of a file")


def check_names(folder: PathLike, files: Sequence[str], folders: Sequence[str] = ()) -> None:
    """Raise UnsafeFileError if something in a guarded folder has a name of these patterns, but is no file, or no folder."""
    with contextlib.suppress(FileNotFoundError), _opened(Path(folder)) as opened:
        for name in opened.names():
            for patterns, is_folder in ((files, False), (folders, True)):
                if any(fnmatchcase(name, pattern) for pattern in patterns):
                    opened.check(name, is_folder)


def list_folder(path: PathLike) -> list[Path]:
    """The paths of all that is in a folder, in order; none if there is no folder."""
    with contextlib.suppress(FileNotFoundError), _opened(Path(path)) as folder:
        return [Path(path) / name for name in folder.names()]
    return []


def make_folder(path: PathLike) -> list[Path]:
    """Make a folder and those above it, as far as they are missing. Returns what was made, the innermost first."""
    path = Path(path)
    made: list[Path] = []
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        with contextlib.suppress(FileExistsError), _place(folder) as (opened, name):
            os.mkdir(opened.named(name), dir_fd=opened.number)
            made.insert(0, folder)
    if not path.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with _opened(path):  # raises for a link on the way
        return made


def remove_folder(path: PathLike) -> None:
    """Remove an empty folder. Raises OSError if it is not empty, or not there."""
    with _place(path) as (folder, name):
        os.rmdir(folder.named(name), dir_fd=folder.number)


# -------------------------------------------------------------------------------------------------------------- files


@contextlib.contextmanager
def atomic_write(path: PathLike) -> Iterator[BinaryIO]:
    """A context that gives a temporary file to write to. At the end it is renamed to ``path``; after an error it is removed.

    So the file ``path`` is always complete: the previous one or the new one. If several threads or processes write to it at
    the same time, each has its own temporary file, and the last one to finish wins. If the system does not say which file it
    could not write, as for a full disk, the OSError gets the name ``path``.
    """
    check_path(path)
    target = Path(path)
    with _opened(target.parent, target) as folder:
        named = folder.named(target.name)
        temporary = folder.named(f".{target.name[:50]}.{secrets.token_hex(8)}.tmp")  # a name has at most 255 bytes
        with _named_after(target, named, temporary):
            folder.check(target.name)
            number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOT_LINKS, 0o666, dir_fd=folder.number)
            try:
                with open(number, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(number)
                os.replace(temporary, named, src_dir_fd=folder.number, dst_dir_fd=folder.number)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder.number)


def write_text(path: PathLike, text: str) -> None:
    """Write a UTF-8 file. An existing file is not touched until the new one is complete. An OSError names ``path``."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def new_file(path: PathLike) -> io.FileIO:
    """A new file that is written to at once, without a buffer. Raises FileExistsError if anything has its name already."""
    with _place(path) as (folder, name):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOT_LINKS
        return io.FileIO(os.open(folder.named(name), flags, 0o666, dir_fd=folder.number), "w")


def open_in_place(path: PathLike) -> int:
    """The descriptor of a file that is read and written where it is, such as a lock. It is made if it is missing.

    Raises UnsafeFileError for a link, and for a file that has another name, too: what is written would change that as well.
    """
    with _place(path) as (folder, name):
        folder.check(name, in_place=True)
        number = os.open(folder.named(name), os.O_RDWR | os.O_CREAT | _NOT_LINKS, 0o666, dir_fd=folder.number)
        try:
            folder._refuse(name, os.fstat(number), is_folder=False, in_place=True)
        except BaseException:
            os.close(number)
            raise
        return number


def is_at(number: int, path: PathLike) -> bool:
    """Whether an open file is the one at ``path``."""
    with _place(path) as (folder, name):
        found = folder.stat(name)
        return found is not None and os.path.samestat(os.fstat(number), found)


def move(old: PathLike, new: PathLike) -> None:
    """Rename a file or a folder. A file that is at ``new`` is replaced."""
    with _place(old) as (folder, name), _place(new) as (other, new_name):
        found = folder.stat(name)
        is_folder = found is not None and stat.S_ISDIR(found.st_mode)
        folder.check(name, is_folder)
        other.check(new_name, is_folder)
        os.replace(folder.named(name), other.named(new_name), src_dir_fd=folder.number, dst_dir_fd=other.number)


def remove(path: PathLike) -> None:
    """Remove a file. Raises OSError if there is none."""
    with _place(path) as (folder, name):
        folder.check(name)
        os.unlink(folder.named(name), dir_fd=folder.number)


_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)


def remove_stale(folder: PathLike) -> list[Path]:
    """Remove the temporary files that killed processes left in a folder, and return their paths.

    Other files, and folders, stay. Use it only while nobody writes to the folder: a file that is being written looks the same.
    """
    removed = []
    try:
        with _opened(Path(folder)) as opened:
            for name in filter(_TEMPORARY.fullmatch, opened.names()):
                found = opened.stat(name)
                if found is not None and stat.S_ISREG(found.st_mode):
                    with contextlib.suppress(OSError):
                        os.unlink(opened.named(name), dir_fd=opened.number)
                        removed.append(Path(folder) / name)
    except UnsafeFileError:
        raise
    except OSError:  # the folder is not there, or may not be read
        pass
    return removed


def open_regular(path: PathLike, wanted: str) -> BinaryIO:
    """A file opened to read its bytes. Links to it are followed. Raises FileError unless it is a regular file: opening a FIFO
    would wait for a writer, and a device may have no end. ``wanted`` is what should be there. Other failures are OSError."""
    check_path(path)
    _check_regular(path, os.stat(path), wanted)  # before it is opened: opening alone can set a device to work
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115
    try:
        _check_regular(path, os.fstat(file.fileno()), wanted)  # again, as it may have been replaced
    except FileError:
        file.close()
        raise
    return file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a FIFO, too, is opened without waiting


def _check_regular(path: PathLike, found: os.stat_result, wanted: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{path} is {_kind(found)}, not {wanted}")
