"""Look inside a model in the browser: ``tinyformer explore runs/char_gpt``."""

from __future__ import annotations

import argparse
import contextlib
import errno
import html
import os
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path

from tinyformer.commands.command_line import Parser, add_code_flag, some_path
from tinyformer.common.errors import UserError, print_line
from tinyformer.common.makers import RUNS, newest_run, tinyformer_command
from tinyformer.explore.serving.server import ExplorerServer
from tinyformer.explore.views.opening import opening
from tinyformer.explore.views.passages import Named
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.training.opening import KINDS, names_of_kinds

PORT = 8642  # if it is free; a fixed address lets the page save its texts
LONGEST_START = 60.0  # seconds in which a browser may open the page
SLOW_START = 15.0  # seconds before the page says how to open it
NOT_OPENED = "No browser has opened the page yet. If yours cannot read the file that leads there, open the address above."
REDIRECT = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>tinyformer</title><meta name="referrer" content="no-referrer">'
    '<meta http-equiv="refresh" content="0; url={0}"><p><a href="{0}">Open the explorer</a></p></html>\n'
)
IN_THE_TERMINAL = {"www-browser", "links", "elinks", "lynx", "w3m"}  # text browsers that webbrowser may start


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        prog="tinyformer explore",
        description="Open a page in the browser that shows how a model writes, what its attention heads attend to, the values "
        f"in each layer, and how it compares with another model. A folder holds a run of {names_of_kinds()}, or a pretrained "
        "model in Hugging Face format; a GGUF file works, too. The page needs no network. Ctrl-C ends it. The default is the "
        "newest run in runs.",
    )
    parser.add_argument("folders", help="folders of runs or pretrained models", type=some_path, metavar="FOLDER", nargs="*")
    add_code_flag(parser)
    parser.add_argument("--no-browser", help="print the address without opening it", action="store_true")
    parser.add_argument("--port", help=f"port; 0: any free port (default: {PORT} if it is free)", type=int)
    parser.add_argument(
        "--host",
        help="address to listen on; any other makes the page reachable from other computers",
        type=some_path,
        default="127.0.0.1",
    )
    parser.set_defaults(run=serve)
    return parser.parse_args(words)


def newest() -> Path:
    """Return the newest run in runs. Raises UserError if there is none."""
    if run := newest_run(KINDS):
        return run
    train, show = tinyformer_command("train", "gpt"), tinyformer_command("explore", f"{RUNS}/char_gpt")
    raise UserError(
        f"name the folder of a run or of a pretrained model, as there is no run to explore in {RUNS}:",
        f"{train} makes one in some minutes, and {show} shows it",
    )


def serve(arguments: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C."""
    if arguments.port is not None and not 0 <= arguments.port <= 65535:
        raise UserError(f"--port must be from 0 to 65535, got {arguments.port}")
    subjects = Subjects(arguments.folders or [newest()])
    first = subjects.names[0]
    subjects.get(first)  # reports unreadable files immediately
    server = _server(subjects, arguments.host, arguments.port)
    if not server.ip.is_loopback:
        print(
            f"Warning: --host {arguments.host} lets other computers reach this page. Whoever knows its address can use the "
            "model, and the connection is not encrypted.",
            file=sys.stderr,
        )
    print_line(f"Exploring {', '.join(subjects.folders)} at {server.address}  (press Ctrl-C to stop)")
    if server.ip.is_unspecified:
        print(f"From other computers: {server.address_at(socket.gethostname())}", flush=True)
    # In a thread: Ctrl-C reaches only the main thread and so never interrupts accepting a connection.
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    redirect = contextlib.nullcontext() if arguments.no_browser else _redirect_to(server.address)
    with server, redirect as file, contextlib.suppress(KeyboardInterrupt):
        serving.start()
        threading.Thread(target=_get_ready, args=(subjects, first), daemon=True).start()
        if file is not None:  # in a thread, since some browsers return only when closed
            threading.Thread(target=_open, args=(file.as_uri(),), daemon=True).start()
        started, is_told = time.monotonic(), file is None
        while serving.is_alive():
            serving.join(1)
            is_open, waited = server.was_opened.is_set(), time.monotonic() - started
            if file is not None and (is_open or waited > LONGEST_START):
                file.unlink(missing_ok=True)
            if not (is_told or is_open) and waited > SLOW_START:
                is_told = True
                print_line(NOT_OPENED)


def _get_ready(subjects: Subjects, model: str) -> None:
    """Compute the page's initial view while the browser starts. A process's first computation loads compiled kernels."""
    with contextlib.suppress(UserError, OSError, MemoryError), subjects.lock:
        subject, opened = subjects.get(model), opening(subjects, Named(model))
        source = subject.encode(opened["source"], source=True) if opened["source"] else []
        ask(subjects, "attention", {"passage": {"model": model, "ids": subject.encode(opened["text"]), "source": source}})


@contextlib.contextmanager
def _redirect_to(address: str) -> Iterator[Path | None]:
    """Context manager that yields a file that redirects a browser to the address, or None if it cannot be written.

    All users of the computer can read command lines, and anyone who knows the address can use the page. The browser therefore
    gets this file, which only the current user can read, instead of the address.
    """
    file = None
    try:
        with contextlib.suppress(OSError):
            number, name = tempfile.mkstemp(".html", "tinyformer-explore-")  # mode 600
            file = Path(name)
            with open(number, "w", encoding="utf-8") as opened:
                opened.write(REDIRECT.format(html.escape(address)))
        yield file
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


def _open(address: str) -> None:
    """Open the address in a graphical browser, if there is one."""
    with contextlib.suppress(webbrowser.Error, OSError):
        browser = webbrowser.get()
        if os.path.basename(getattr(browser, "name", "")) not in IN_THE_TERMINAL:
            browser.open(address)


def _server(subjects: Subjects, host: str, port: int | None) -> ExplorerServer:
    """Return a server on this port (default: PORT or any free port)."""
    if port is None:
        with contextlib.suppress(OSError, UnicodeError):
            return ExplorerServer(subjects, host, PORT)
    try:
        return ExplorerServer(subjects, host, port or 0)
    except (OSError, UnicodeError) as error:  # UnicodeError for names with an empty or overlong component
        said = getattr(error, "strerror", None) or "this is no name of a computer"
        is_taken = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        raise UserError(f"{host}, port {port or 0}: {said}. Choose another --{'port' if is_taken else 'host'}") from None
