"""Writing files completely or not at all, and reading foreign files without blocking."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import tinytensor as tt
from tinytensor.device import disk
from tinytensor.device.disk import atomic_write, write_text


@pytest.mark.parametrize("named", [None, "other"])
def test_an_error_names_the_file_that_was_to_be_written(named: str | None, tmp_path: Path) -> None:
    # The error of a full disk names no file, and the temporary file's name would not help.
    with pytest.raises(OSError, match="No space") as caught, atomic_write(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device", *filter(None, [named]))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == ("other" if named == "other" else str(tmp_path / "file"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_reported_by_the_files_own_name(tmp_path: Path) -> None:
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


def test_an_interrupt_keeps_the_previous_file(tmp_path: Path) -> None:
    tt.save({"x": tt.tensor([1.0, 2.0])}, tmp_path / "file")
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "file") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert tt.load(tmp_path / "file")["x"].tolist() == [1, 2]


def test_one_thread_writes_to_a_path_twice_in_parallel(tmp_path: Path) -> None:
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


def test_a_link_is_replaced_and_its_folder_may_be_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "to folder").symlink_to(tmp_path / "folder")
    (tmp_path / "outside").write_text("precious")
    (tmp_path / "folder" / "file").symlink_to(tmp_path / "outside")
    write_text(tmp_path / "to folder" / "file", "new")
    assert not (tmp_path / "folder" / "file").is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "new"
    assert (tmp_path / "outside").read_text() == "precious"


def test_a_file_with_two_names_is_only_replaced(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("precious")
    (tmp_path / "file").hardlink_to(tmp_path / "outside")
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "outside").read_text() == "precious"


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # a name of at most 108 bytes


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("change", [lambda path: write_text(path, "new"), disk.remove], ids=["write", "remove"])
def test_a_pipe_and_a_socket_stay(tmp_path: Path, change: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    unix_socket(tmp_path / "socket")
    for name in ("pipe", "socket"):
        with pytest.raises(OSError, match=f"{name} is a {name}, not a file. Remove it, or choose another name"):
            change(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "socket"]


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("nobody tells which are open")
    before = os.listdir("/proc/self/fd")
    for _ in range(2):
        write_text(tmp_path / "file", "new")
    for path in ("nowhere/file", "file/file", "."):
        with pytest.raises((OSError, disk.FileError)):
            write_text(tmp_path / path, "new")
    assert os.listdir("/proc/self/fd") == before


def test_folders_are_made(tmp_path: Path) -> None:
    assert disk.make_folder(tmp_path / "a" / "b") == [tmp_path / "a" / "b", tmp_path / "a"]
    assert disk.make_folder(tmp_path / "a" / "b") == []
    (tmp_path / "file").write_text("old")
    with pytest.raises(FileExistsError):
        disk.make_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError) as caught:
        disk.make_folder(tmp_path / "file" / "sub")
    assert caught.value.filename == str(tmp_path / "file" / "sub")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_reading_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(disk.FileError, match=r"is a (device|pipe), not a note"):
            disk.open_regular(name, "a note")
    with pytest.raises(disk.FileError, match="is a folder, not a note"):
        disk.open_regular(tmp_path, "a note")
    (tmp_path / "file").write_text("old")
    with disk.open_regular(tmp_path / "file", "a note") as file:
        assert file.read() == b"old"
