"""Cache folders: owned by the user, closed to others, and never named "~"."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tinyformer.data.reading import cache_folder
from tinyformer.pretrained import folders
from tinyformer.pretrained.folders import find_folder
from tinytensor.device import caches
from tinytensor.device.caches import make_private, user_cache
from tinytensor.kernels.numba import compiling

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


@pytest.mark.parametrize(("mode", "is_taken"), [(0o777, False), (0o1777, True), (0o775, True)])
def test_a_folder_above_in_which_all_may_rename(mode: int, is_taken: bool, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(mode)
    (tmp_path / "link").symlink_to("shared")
    assert make_private(tmp_path / "shared" / "a" / "b") == is_taken
    assert make_private(tmp_path / "link" / "c") == is_taken


def test_what_is_made_on_the_way_is_the_users_too(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        assert make_private(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(old)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o755, 0o755]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives a folder to somebody else")
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o700)
    os.chown(tmp_path / "a", 54321, 54321)
    assert not make_private(tmp_path / "a")


@pytest.mark.parametrize("set_to", ["~/kept", "~nobody-has-this-name/kept"])
def test_a_cache_named_with_a_tilde(set_to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Dockerfile sets it, where no shell puts the home in its place."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TINYFORMER_CACHE", set_to)
    assert cache_folder() == (tmp_path / "kept" if set_to.startswith("~/") else None)


def test_downloads_from_the_hub_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def snapshot_download(name: str, **given: object) -> str:
        asked.append(given)
        return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    for variable in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    find_folder("gpt2")
    monkeypatch.setattr(folders, "has_home", lambda: False)
    find_folder("gpt2")
    assert "cache_dir" not in asked[0]
    assert asked[1]["cache_dir"] == caches.of_this_run()


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
    monkeypatch.setattr(compiling, "make_private", lambda folder: False)
    monkeypatch.setattr(compiling, "user_cache", lambda name: None)
    found = compiling.folder.__wrapped__()
    assert found == caches.of_this_run() and found.stat().st_mode & 0o777 == 0o700
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_leaves_its_parents_folder(tmp_path: Path) -> None:
    code = (
        "import os, sys; from tinytensor.device.caches import of_this_run; made = of_this_run(); child = os.fork()\n"
        "if not child: sys.exit()\n"
        "os.waitpid(child, 0); print(made.is_dir())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == "True\n", result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root becomes somebody else")
def test_an_unknown_user(tmp_path: Path) -> None:
    """As in a container: no HOME, no entry in /etc/passwd."""
    code = (
        "import os; from tinytensor.device.caches import user_cache; from tinyformer.data.reading import cache_folder; "
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
