"""Runs of scripts as forks of a process that has already imported the libraries.

Importing NumPy, tinyformer and Matplotlib takes longer than the tests' tiny runs. A fork has what a new process has: its own
arguments, folder, input, output, exit status and memory. A test needs a new process only for what happens at the start, such as
a package that is missing or a variable that is read at import.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any


class Forks:
    """A process that imports what the scripts import, and then forks for each run."""

    def __init__(self, environment: dict[str, str]):
        command = [sys.executable, __file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}  # its standard error is ours
        self._process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)

    def run(self, script: Path, words: Sequence[str], folder: Path, typed: bytes, **how: Any) -> tuple[int, bytes, bytes]:
        """Run a script with these ``words``. Returns its exit status as subprocess does, its output and its errors.

        ``draws=True`` draws its pictures; otherwise their files are empty, as drawing takes longer than all the rest. With
        ``signal_at=(line, number)`` the fork sends itself the signal when it prints a line that starts so. ``closed`` are the
        numbers of the streams that it begins without.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.NamedTemporaryFile()) for _ in range(3)]
            files[0].write(typed)
            files[0].flush()
            names = [file.name for file in files]
            request = {"script": str(script), "words": list(words), "folder": str(folder), "files": names, **how}
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
                status = int(self._process.stdout.readline())
            except BaseException:  # such as a timeout of the test
                os.killpg(self._process.pid, signal.SIGKILL)
                raise
            return status, files[1].read(), files[2].read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve() -> None:
    """Fork for each line of standard input, and print the fork's exit status. The fork runs a script."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401

    from tinyformer.commands.main import ALL

    imported = set()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        name = " ".join(request["words"][: 2 if request["words"][:1] == ["train"] else 1])
        if name in ALL and name not in imported:
            imported.add(name)
            importlib.import_module(f"tinyformer.commands.{ALL[name][2]}")
            gc.collect()
            gc.freeze()  # a fork that ends collects garbage, and so would copy all this memory
        child = os.fork()
        if not child:
            run(**request)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(
    script: str,
    words: list[str],
    folder: str,
    files: list[str],
    draws: bool = False,
    signal_at: tuple[str, int] | None = None,
    closed: Sequence[int] = (),
) -> None:
    """Run a script in this process, with these files as its three streams."""
    import tinytensor as tt

    for number, (file, mode) in enumerate(zip(files, (os.O_RDONLY, *2 * [os.O_WRONLY | os.O_APPEND]))):
        opened = os.open(file, mode)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors)  # the old object may have read ahead
    for number in closed:
        name = ("stdin", "stdout", "stderr")[number]
        getattr(sys, name).close() if number == 0 else os.close(number)
        setattr(sys, name, None)  # as Python finds it
        setattr(sys, f"__{name}__", None)
    os.chdir(folder)
    sys.argv = [script, *words]
    sys.path[0] = str(Path(script).parent)
    tt.seed(int.from_bytes(os.urandom(8), "little"))  # a new process has a seed of its own, too
    if not draws:
        leave_pictures_empty()
    if signal_at:
        sys.stdout.write = watched(sys.stdout.write, *signal_at)  # type: ignore[method-assign]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise
        end(ended.code or 0)
    end(0)


def end(status: int) -> None:
    """End this process as Python does, but leave its memory to the system: to free each object takes longer than most runs."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(status)


def leave_pictures_empty(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let all pictures of runs be empty files from now on."""
    from tinyformer import plots

    for name in plots.__all__:
        if "path" in inspect.signature(getattr(plots, name)).parameters:
            replace(plots, name, undrawn(getattr(plots, name)))


def undrawn(draw: Callable[..., Any]) -> Callable[..., Path]:
    """A function that takes what ``draw`` takes, and leaves its picture empty."""
    from tinytensor.device import disk

    signature = inspect.signature(draw)

    def leave_empty(*values: Any, **named: Any) -> Path:
        path = Path(signature.bind(*values, **named).arguments["path"])
        disk.make_folder(path.parent)
        with disk.atomic_write(path):
            return path

    return leave_empty


def watched(write: Callable[[str], int], start: str, number: int) -> Callable[[str], int]:
    """A function that writes to a stream, and sends this process a signal after a text that begins so."""

    def write_and_signal(text: str) -> int:
        count = write(text)
        if text.startswith(start):
            signal.raise_signal(number)
        return count

    return write_and_signal


if __name__ == "__main__":
    serve()
