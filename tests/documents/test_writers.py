"""Only a few files write to disk. Any other could leave a partial file, or follow a link in a run's folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITER = "tinytensor/device/disk.py"
OF_RUNS = ("tinyformer/training/run_folder.py", "tinyformer/training/safety.py")  # which refuse links first

# What changes a file or a folder. Methods and functions of the same name mean the same.
CHANGING = {
    *("write_bytes", "unlink", "rename", "renames", "rmdir", "mkdir", "makedirs", "removedirs", "touch", "symlink_to"),
    *("symlink", "hardlink_to", "link", "truncate", "chmod", "mkfifo", "mknod", "rmtree", "copyfile", "copy2", "copytree"),
    *("mkdtemp", "mkstemp", "NamedTemporaryFile", "TemporaryDirectory", "TemporaryFile", "FileIO", "memmap", "tofile", "savez"),
    *("ZipFile", "TarFile", "FileHandler", "SummaryWriter", "save_file", "serialize_file", "imsave", "savetxt"),
}  # fmt: skip
OF_OS = {"open", "remove", "replace"}  # are also methods of what is no file
# Other files that may: none of these paths lies in the folder of a run that is there already.
ALLOWED = {
    ("tinytensor/device/caches.py", "mkdir"),  # of compiled kernels, in this user's cache
    ("tinytensor/device/caches.py", "mkdtemp"),
    ("tinytensor/device/caches.py", "rmtree"),
    ("tinytensor/kernels/numba/compiling.py", "rmtree"),
    ("tinytensor/distributed/mpi.py", "unlink"),  # names of shared memory
    ("tinyformer/common/errors.py", "open"),  # the system's empty stream
    ("tinyformer/common/errors.py", "os.open"),
    ("tinyformer/commands/explore.py", "mkstemp"),  # what leads a browser to the page
    ("tinyformer/commands/explore.py", "open"),
    ("tinyformer/commands/explore.py", "unlink"),
}


def changes(text: str) -> Iterator[str]:
    """What a Python text calls, or hands on to be called, that changes files or folders."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            if node.attr in CHANGING:
                yield node.attr
            if isinstance(node.value, ast.Name) and node.value.id in ("os", "shutil") and node.attr in {*OF_OS, "move", "copy"}:
                yield f"{node.value.id}.{node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil", "tempfile"):
            yield f"from {node.module}"
        if isinstance(node, ast.Call):
            yield from _changes_of_a_call(node)


def _changes_of_a_call(node: ast.Call) -> Iterator[str]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "FileIO" and isinstance(node.func, ast.Name):
        yield name
    if name in ("open", "fdopen"):
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if owner == "browser" or (node.args and ast.unparse(node.args[0]) == "file"):  # which is open already
            return
        is_method = owner not in ("", "io", "gzip", "wave", "os")
        place = 0 if is_method else 1
        modes = [word.value for word in node.keywords if word.arg == "mode"] + node.args[place : place + 1]
        if any(not isinstance(mode, ast.Constant) or set(str(mode.value)) & set("wax+") for mode in modes):
            yield name
    if name == "write_text" and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) != "disk":
        yield name
    if name == "replace" and isinstance(node.func, ast.Attribute) and len(node.args) == 1 and not node.keywords:
        yield name  # of a path: that of a text takes two
    if name == "savefig" and node.args and ast.unparse(node.args[0]) != "file":
        yield name


FILES = {
    str(path.relative_to(ROOT)): path
    for folder in ("tinytensor", "tinyformer", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def test_nothing_else_changes_what_is_on_disk() -> None:
    found = {(name, what) for name, path in FILES.items() for what in changes(path.read_text(encoding="utf-8"))}
    assert {(name, what) for name, what in found if name not in (WRITER, *OF_RUNS)} == ALLOWED
    assert {what for name, what in found if name == WRITER} >= {"open", "os.open", "os.replace", "unlink", "mkdir"}


@pytest.mark.parametrize(
    "text",
    [
        'open(path, "w")', 'open(path, mode="rb+")', "open(path, how)", 'path.open("a")', 'gzip.open(path, "wt")',
        'wave.open(path, "wb")', 'io.open(path, "x")', "os.open(path, flags)", "os.replace(a, b)", "os.remove(a)",
        "path.replace(other)", "path.rename(other)", "path.unlink()", "each(Path.unlink, paths)", "shutil.move(a, b)",
        "shutil.copy(a, b)", "from shutil import move", 'path.write_text("")', 'path.write_bytes(b"")', "path.touch()",
        "path.mkdir()", "os.makedirs(path)", "figure.savefig(path)", 'FileIO(path, "w")', "tempfile.mkdtemp()",
    ],
)  # fmt: skip
def test_a_writer_would_be_found(text: str) -> None:
    assert list(changes(text))


@pytest.mark.parametrize(
    "text",
    [
        "open(path)", 'open(path, "rb")', 'path.open("rb")', 'gzip.open(path, "rb")', 'text.replace("a", "b")',
        "names.remove(a)", "dataclasses.replace(part, **found)", 'wave.open(file, "rb")', "write_text(path, text)",
        "figure.savefig(file, dpi=3)", "file: FileIO | None = None", "browser.open(address)", "disk.remove(path)",
        "disk.write_text(path, text)",
    ],
)  # fmt: skip
def test_who_only_reads_is_not_meant(text: str) -> None:
    assert list(changes(text)) == []
