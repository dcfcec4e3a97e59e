"""The folder of a run: links and foreign files are rejected by name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tinytensor as tt
from tinyformer.training.safety import UnsafeFileError, check_is, check_names, new_file, open_in_place, remove_stale


def in_a_process(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    root = Path(tt.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-B", "-c", code, *map(str, paths)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


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


# ------------------------------------------------------------------------------------------------- what is no file


def link_to_a_file(path: Path) -> None:
    path.with_name("target").write_text("precious")
    path.symlink_to("target")


def link_to_a_folder(path: Path) -> None:
    path.symlink_to(path.parent)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # a name of at most 108 bytes


OWN = ": a run's folder may hold only files and folders of its own"
PLANTED = {
    link_to_a_file: f"a link{OWN}",
    link_to_a_folder: f"a link{OWN}",
    link_to_nothing: f"a link{OWN}",
    pipe: f"a pipe{OWN}",
    unix_socket: f"a socket{OWN}",
    Path.mkdir: "a folder, not a file",
    Path.touch: "a file, not a folder",
}
CHECKS: dict[str, Callable[[Path], object]] = {
    "in place": lambda path: os.close(open_in_place(path)),
    "a file": lambda path: check_is("a file", path),
    "a folder": lambda path: check_is("a folder", path),
    "files": lambda path: check_names(path.parent, ("pl*",)),
    "folders": lambda path: check_names(path.parent, (), ("pl*",)),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("plant", PLANTED)
def test_foreign_files_in_a_run_are_rejected(tmp_path: Path, plant: Callable[[Path], None], check: str) -> None:
    path = tmp_path / "planted"
    plant(path)
    if plant is (Path.mkdir if "folder" in check else Path.touch):
        CHECKS[check](path)
        return
    with pytest.raises(UnsafeFileError) as caught:
        CHECKS[check](path)
    why = PLANTED[plant]
    assert str(caught.value) == f"{path} is {why}. Remove it, or choose another folder"


def test_a_file_with_two_names_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "planted").hardlink_to(tmp_path / "file")
    with pytest.raises(UnsafeFileError, match=r"planted is a file with several names \(hard links\): a run's folder may hold"):
        open_in_place(tmp_path / "planted")


def test_a_new_file_takes_no_others_place(tmp_path: Path) -> None:
    new_file(tmp_path / "file").close()
    (tmp_path / "link").symlink_to("nothing")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError) as caught:
            new_file(tmp_path / name)
        assert Path(caught.value.filename) == tmp_path / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
