"""Folders for what is kept between runs: the user's own, closed to others, and never one with the name "~"."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinytensor import caches
from tinytensor.caches import make_private, user_cache
from tinytensor.kernels.numba import cache as numba_cache

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="of POSIX")


def test_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert user_cache("tinytensor") == tmp_path / "tinytensor"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as without HOME, for a user who is not in /etc/passwd
    assert user_cache("tinytensor") is None


def test_a_folder_is_made_and_found_again(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        assert make_private(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert make_private(tmp_path / "a" / "b")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_folder_that_others_may_enter_is_not_taken(mode: int, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    assert not make_private(tmp_path / "a")


def test_other_things_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not make_private(tmp_path / "file")
    assert not make_private(tmp_path / "file" / "below")
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("own")
    assert not make_private(tmp_path / "link")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not make_private(tmp_path / "own")


def test_without_any_folder_compiled_code_lasts_for_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(numba_cache, "make_private", lambda folder: False)
    monkeypatch.setattr(numba_cache, "user_cache", lambda name: None)
    found = numba_cache.folder.__wrapped__()
    assert found == caches.of_this_run() and found.stat().st_mode & 0o777 == 0o700
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_leaves_its_parents_folder(tmp_path: Path) -> None:
    code = (
        "import os, sys; from tinytensor.caches import of_this_run; made = of_this_run(); child = os.fork()\n"
        "if not child: sys.exit()\n"
        "os.waitpid(child, 0); print(made.is_dir())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == "True\n", result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root becomes somebody else")
def test_a_user_whom_nobody_knows(tmp_path: Path) -> None:
    """As in a container: no HOME, no entry in /etc/passwd."""
    code = (
        "import os; from tinytensor.caches import user_cache; from tinyformer.data.downloads import cache_folder; "
        "os.environ.pop('HOME'); os.setgid(54321); os.setuid(54321); print(user_cache('x'), cache_folder())"
    )
    path = os.pathsep.join(filter(None, sys.path))
    environment = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "TINYFORMER_CACHE")}
    result = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "PYTHONPATH": path, "HOME": "/nowhere"}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.stdout == "None None\n", result.stderr
    assert list(tmp_path.iterdir()) == []
