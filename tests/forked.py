"""Runs of a script as forks of a process that has already imported the libraries.

Importing NumPy, tinyformer and Matplotlib takes longer than the tests' tiny runs. A fork has what a new process has: its own
arguments, folder, input, output, exit status and memory. A test needs a new process only for what happens at the start, such as
a package that is missing or a variable that is read at import.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path


class Forks:
    """A process that imports what a script imports, and then forks for each run."""

    def __init__(self, script: Path, environment: dict[str, str]):
        self.environment = environment
        command = [sys.executable, __file__, str(script)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}  # its standard error is ours
        self._process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)

    def run(self, words: Sequence[str], folder: Path, typed: bytes) -> tuple[int, bytes, bytes]:
        """Run the script with these ``words``. Returns its exit status as subprocess does, its output and its errors."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.NamedTemporaryFile()) for _ in range(3)]
            files[0].write(typed)
            files[0].flush()
            request = {"words": list(words), "folder": str(folder), "files": [file.name for file in files]}
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


def serve(script: str) -> None:
    """Fork for each line of standard input, and print the fork's exit status. The fork runs the script."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401

    import tinytensor as tt

    runpy.run_path(script, run_name="imported")
    gc.collect()
    gc.freeze()  # a fork that ends collects garbage, and so would copy all this memory
    for line in sys.stdin.buffer:
        child = os.fork()
        if not child:
            request = json.loads(line)
            break
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    else:
        return
    for number, (file, mode) in enumerate(
        zip(request["files"], (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND))
    ):
        opened = os.open(file, mode)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors)  # the old object may have read ahead
    os.chdir(request["folder"])
    sys.argv = [script, *request["words"]]
    sys.path[0] = str(Path(script).parent)
    tt.seed(int.from_bytes(os.urandom(8), "little"))  # a new process has a seed of its own, too
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
