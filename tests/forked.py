"""Runs of a script in processes that are forked from one that has imported the libraries already.

Importing NumPy, tinyformer and Matplotlib takes longer than the tiny runs of the tests do. A fork has all that a new process
has: arguments, folder, input, output, exit status and memory of its own. What a start alone can show, such as a package that is
missing or a variable that is read at import, needs a new process.
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
    """A process that imports what a script imports, and forks for each run."""

    def __init__(self, script: Path, environment: dict[str, str]):
        self.environment = environment
        command = [sys.executable, __file__, str(script)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}  # what it says on standard error is shown
        self._process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)

    def run(self, words: Sequence[str], folder: Path, typed: bytes) -> tuple[int, bytes, bytes]:
        """The exit status (as subprocess has it), standard output and standard error of ``script words``."""
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
            except BaseException:  # such as a test's time that is over
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
    """Fork for each line of standard input, and answer with the exit status; the fork becomes the script."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401

    import tinytensor as tt

    runpy.run_path(script, run_name="imported")
    gc.collect()
    gc.freeze()  # a fork that looked through all this memory, as it does when it ends, would copy it
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
    sys.stdin = os.fdopen(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors)  # the old one may have read ahead
    os.chdir(request["folder"])
    sys.argv = [script, *request["words"]]
    sys.path[0] = str(Path(script).parent)
    tt.seed(int.from_bytes(os.urandom(8), "little"))  # as in a new process: unlike any other
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
