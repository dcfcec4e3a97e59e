"""Writing files: whole or not at all, and in a guarded folder never through a link, with and without folders' descriptors."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tinytensor as tt
from tinytensor.device import disk
from tinytensor.device.disk import UnsafeFileError, atomic_write, remove_stale, write_text


@pytest.fixture(params=["descriptors", "paths"], autouse=True)
def naming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How files are named to the system: by open folders, or by paths as on Windows."""
    if request.param == "paths":
        monkeypatch.setattr(disk, "_BY_DESCRIPTOR", False)
    elif not disk._BY_DESCRIPTOR:
        pytest.skip("this system has no names by descriptor")


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A guarded folder in which a file, and a folder with a file, are."""
    monkeypatch.setattr(disk, "_guarded", {})
    folder = tmp_path / "guarded"
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_text("old")
    (folder / "sub" / "file").write_text("old")
    (tmp_path / "outside" / "folder").mkdir(parents=True)
    (tmp_path / "outside" / "file").write_text("precious")
    (tmp_path / "outside" / "folder" / "file").write_text("precious")
    disk.guard(folder, "a test's folder")
    before = contents(tmp_path / "outside")
    yield folder
    assert contents(tmp_path / "outside") == before


def in_a_process(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    root = Path(tt.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-B", "-c", code, *map(str, paths)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def contents(folder: Path) -> dict[str, str | None]:
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else None for path in folder.rglob("*")}


# -------------------------------------------------------------------------------------------------------- whole or not


@pytest.mark.parametrize("named", [None, "other"])
def test_an_error_names_the_file_that_was_to_be_written(named: str | None, tmp_path: Path) -> None:
    # The error of a full disk names no file, and the temporary file's name would not help.
    with pytest.raises(OSError, match="No space") as caught, atomic_write(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device", *filter(None, [named]))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == ("other" if named == "other" else str(tmp_path / "file"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_told_by_the_files_own_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "nowhere" / "file", "text")
    assert caught.value.filename == str(tmp_path / "nowhere" / "file")


def test_text_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "ö\n")
    assert (tmp_path / "file").read_bytes() == "ö\n".encode()
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file", "new \ud800")
    assert (tmp_path / "file").read_bytes() == "ö\n".encode()
    assert len(list(tmp_path.iterdir())) == 1


def test_only_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    code = """
import os, sys
from tinytensor.device.disk import atomic_write
with atomic_write(sys.argv[1]) as one, atomic_write(sys.argv[2]) as other:
    one.write(b"half")
    other.write(b"half")
    os._exit(1)
"""
    assert in_a_process(code, tmp_path / "config.json", tmp_path / "two\nlines").returncode == 1
    left = set(tmp_path.iterdir())
    assert len(left) == 2
    digits = "0123456789abcdef"
    others = [".file.tmp", f"file.{digits}.tmp", f"..{digits}.tmp", f".file.{digits}.tmp.bak", f".file.{digits.upper()}.tmp"]
    others += [f".file.{digits[1:]}.tmp", f".file.{digits}", f".file.x{digits[1:]}.tmp"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / f".folder.{digits}.tmp").mkdir()
    (tmp_path / f".link.{digits}.tmp").symlink_to(tmp_path / "file.txt")
    kept = set(tmp_path.iterdir()) - left
    assert set(remove_stale(tmp_path)) == left
    assert set(tmp_path.iterdir()) == kept
    assert remove_stale(tmp_path / "nowhere") == []


def test_an_interrupt_keeps_the_previous_file(tmp_path: Path) -> None:
    tt.save({"x": tt.tensor([1.0, 2.0])}, tmp_path / "file")
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "file") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert tt.load(tmp_path / "file")["x"].tolist() == [1, 2]


def test_one_thread_writes_to_a_path_twice_at_once(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "file") as first, atomic_write(tmp_path / "file") as second:
        first.write(b"first")
        second.write(b"second")
    assert (tmp_path / "file").read_text() == "first"  # this one ended last
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_atomic_write_replaces_the_file_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with atomic_write(target) as file:
        file.write(b"new")
        assert target.read_text() == "old"
        assert len(list(tmp_path.iterdir())) == 2  # on the same disk, so that renaming is one step
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_text(tmp_path / "one", "text")
    (tmp_path / "other").write_text("text")
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a folder that may not be listed")
def test_a_folder_that_may_be_written_to_but_not_listed(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir(mode=0o300)
    write_text(tmp_path / "box" / "file", "text")
    assert remove_stale(tmp_path / "box") == []


# -------------------------------------------------------------------------------------------------------------- guarded


def link_to_a_file(path: Path) -> None:
    path.symlink_to(path.parents[1] / "outside" / "file")


def link_to_a_folder(path: Path) -> None:
    path.symlink_to(path.parents[1] / "outside" / "folder")


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parents[1] / "outside" / "nothing")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # a name of at most 108 bytes


PLANTED = {
    link_to_a_file: "a link",
    link_to_a_folder: "a link",
    link_to_nothing: "a link",
    pipe: "a pipe",
    unix_socket: "a socket",
    Path.mkdir: "a folder, not a file",
}
CHANGES: dict[str, Callable[[Path], object]] = {
    "write": lambda path: write_text(path, "new"),
    "save": lambda path: tt.save({"x": tt.ones(1)}, path),
    "in place": lambda path: disk.open_in_place(path),
    "move": lambda path: disk.move(path, path.with_name("moved")),
    "move to": lambda path: disk.move(path.with_name("file"), path),
    "remove": disk.remove,
    "check": lambda path: disk.check_names(path.parent, ("pl*",)),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_no_file_is_refused(guarded: Path, plant: Callable[[Path], None], change: str) -> None:
    place = guarded / "planted"
    plant(place)
    if plant is Path.mkdir and change == "move":
        return
    before = contents(guarded)
    with pytest.raises(UnsafeFileError) as caught:
        CHANGES[change](place)
    assert str(caught.value).startswith(f"{place} is {PLANTED[plant]}")
    assert str(caught.value).endswith(". Remove it, or choose another folder")
    assert contents(guarded) == before


def test_a_file_with_two_names_is_only_replaced(guarded: Path) -> None:
    (guarded / "planted").hardlink_to(guarded.parent / "outside" / "file")
    with pytest.raises(UnsafeFileError, match=r"planted is a file with several names \(hard links\): a test's folder may hold"):
        disk.open_in_place(guarded / "planted")
    write_text(guarded / "planted", "new")
    assert (guarded / "planted").read_text() == "new"


@pytest.mark.parametrize("change", [*CHANGES, "make", "make within", "list", "stale", "new", "remove folder"])
def test_no_link_is_followed_on_the_way(guarded: Path, change: str) -> None:
    link_to_a_folder(guarded / "link")
    also: dict[str, Callable[[Path], object]] = {
        "make": lambda path: disk.make_folder(path.parent),
        "make within": lambda path: disk.make_folder(path.parent / "deeper"),
        "list": lambda path: disk.list_folder(path.parent),
        "stale": lambda path: remove_stale(path.parent),
        "new": lambda path: disk.new_file(path.with_name("another")),
        "remove folder": disk.remove_folder,
    }
    for path in (guarded / "link" / "file", guarded / "sub" / ".." / "link" / "file"):
        with pytest.raises(UnsafeFileError, match="link is a link: a test's folder may hold only files and folders of its own"):
            {**CHANGES, **also}[change](path)


def test_a_link_in_a_folder_within(guarded: Path) -> None:
    (guarded / "sub" / "link").symlink_to(guarded.parent / "outside")
    with pytest.raises(UnsafeFileError, match="sub/link is a link"):
        write_text(guarded / "sub" / "link" / "file", "new")
    disk.guard(guarded / "sub" / "link", "an inner folder")  # the outer one counts
    with pytest.raises(UnsafeFileError, match="sub/link is a link"):
        write_text(guarded / "sub" / "link" / "file", "new")


def test_a_relative_path_is_guarded_alike(guarded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link_to_a_folder(guarded / "link")
    monkeypatch.chdir(guarded)
    for path in ("link/file", "../guarded/link/file", f"{guarded}/link/file", "./sub/../link/file"):
        with pytest.raises(UnsafeFileError, match="link is a link"):
            write_text(path, "new")
    write_text("file", "new")
    assert (guarded / "file").read_text() == "new"


def test_the_path_to_a_guarded_folder_may_be_a_link(guarded: Path) -> None:
    (guarded.parent / "way").symlink_to(guarded)
    disk.guard(guarded.parent / "way", "a test's folder")
    write_text(guarded.parent / "way" / "sub" / "file", "new")
    assert (guarded / "sub" / "file").read_text() == "new"


def test_elsewhere_a_link_is_replaced_and_its_folder_may_be_one(guarded: Path) -> None:
    free = guarded.parent / "free"
    free.mkdir()
    (guarded.parent / "to free").symlink_to(free)
    (free / "file").symlink_to(guarded.parent / "outside" / "file")
    write_text(guarded.parent / "to free" / "file", "new")
    assert not (free / "file").is_symlink()
    assert (free / "file").read_text() == "new"
    (free / "mark").symlink_to(guarded.parent / "outside" / "file")
    with pytest.raises(UnsafeFileError, match="mark is a link: this folder may hold only"):  # which would be written to
        disk.open_in_place(free / "mark")


@pytest.mark.skipif(not disk._BY_DESCRIPTOR, reason="needs names by descriptor")
def test_a_folder_that_is_exchanged_while_a_file_is_written(guarded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_BY_DESCRIPTOR", True)
    with atomic_write(guarded / "sub" / "file") as file:
        file.write(b"new")
        (guarded / "sub").rename(guarded / "was sub")
        link_to_a_folder(guarded / "sub")
    assert (guarded / "was sub" / "file").read_text() == "new"
    assert [path.name for path in (guarded / "was sub").iterdir()] == ["file"]


def test_no_descriptor_is_left_open(guarded: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("nobody tells which are open")
    link_to_a_file(guarded / "planted")
    before = os.listdir("/proc/self/fd")
    for change in CHANGES.values():
        with pytest.raises(UnsafeFileError):
            change(guarded / "planted")
    for path in (guarded / "sub" / "file", guarded / "sub" / "new"):
        write_text(path, "new")
    disk.make_folder(guarded / "a" / "b")
    disk.list_folder(guarded / "sub")
    for path in ("nowhere/file", "file/file"):
        with pytest.raises(OSError):
            write_text(guarded / path, "new")
    assert os.listdir("/proc/self/fd") == before


def test_folders_are_made_and_moved_and_removed(guarded: Path) -> None:
    assert disk.make_folder(guarded / "a" / "b") == [guarded / "a" / "b", guarded / "a"]
    assert disk.make_folder(guarded / "a" / "b") == []
    disk.new_file(guarded / "a" / "b" / "file").close()
    with pytest.raises(FileExistsError) as caught:
        disk.new_file(guarded / "a" / "b" / "file")
    assert caught.value.filename == str(guarded / "a" / "b" / "file")
    disk.move(guarded / "a", guarded / "c")
    assert disk.list_folder(guarded / "c" / "b") == [guarded / "c" / "b" / "file"]
    disk.remove(guarded / "c" / "b" / "file")
    with pytest.raises(OSError) as caught_too:
        disk.remove_folder(guarded / "c")
    assert caught_too.value.errno == errno.ENOTEMPTY
    disk.remove_folder(guarded / "c" / "b")
    disk.remove_folder(guarded / "c")
    assert disk.list_folder(guarded / "c") == []
    with pytest.raises(FileExistsError):
        disk.make_folder(guarded / "file")
    with pytest.raises(UnsafeFileError, match="file is a file, not a folder"):
        disk.make_folder(guarded / "file" / "sub")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_reading_does_not_wait(guarded: Path) -> None:
    pipe(guarded / "planted")
    for name in (guarded / "planted", "/dev/null"):
        with pytest.raises(disk.FileError, match=r"is a (device|pipe), not a note"):
            disk.open_regular(name, "a note")
    with pytest.raises(disk.FileError, match="sub is a folder, not a note"):
        disk.open_regular(guarded / "sub", "a note")
    with disk.open_regular(guarded / "file", "a note") as file:
        assert file.read() == b"old"
