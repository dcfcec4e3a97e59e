"""See a model think, in the browser: python -m tinyformer.explore runs/char_gpt."""

from __future__ import annotations

from tinyformer.errors import plain_errors

with plain_errors():  # from here on, a missing package or GPU is told in a line, and Ctrl-C ends without a traceback
    import argparse
    import contextlib
    import errno
    import os
    import socket
    import sys
    import threading
    import webbrowser
    from collections.abc import Sequence

    from tinyformer.command_line import Parser, some_path
    from tinyformer.errors import UserError
    from tinyformer.explore.server import ExplorerServer
    from tinyformer.explore.subjects import Subjects

PORT = 8642  # if it is free: the same address each time lets the page keep its texts
IN_THE_TERMINAL = {"www-browser", "links", "elinks", "lynx", "w3m"}  # browsers that webbrowser starts where there is no screen


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog="python -m tinyformer.explore",
        description="Open a page in the browser that shows how a model writes, what its attention looks at, what each of its "
        "layers holds, and how it compares with another. A folder is that of a run of char_gpt.py, translate.py or "
        "fill_mask.py, or of a pretrained model in Hugging Face's layout. The page needs no network. Ctrl-C ends it.",
    )
    parser.add_argument("folders", help="the folders, such as runs/char_gpt", type=some_path, metavar="FOLDER", nargs="+")
    parser.add_argument("--no-browser", help="print the address, and do not open it", action="store_true")
    parser.add_argument("--port", help=f"the port; 0: any free one. Without this, {PORT} if it is free", type=int)
    parser.add_argument(
        "--host",
        help="the address to listen on; any but this makes it reachable from other computers",
        type=some_path,
        default="127.0.0.1",
    )
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Serve the page until Ctrl-C."""
    arguments = parse(words)
    if arguments.port is not None and not 0 <= arguments.port <= 65535:
        raise UserError(f"--port must be from 0 to 65535, not {arguments.port}")
    subjects = Subjects(arguments.folders)
    subjects.get(subjects.names[0])  # what cannot be read is told now
    server = _server(subjects, arguments.host, arguments.port)
    if not server.ip.is_loopback:
        print(
            f"Warning: --host {arguments.host} lets other computers reach this page. Whoever knows its address can use the "
            "model, and the connection is not encrypted.",
            file=sys.stderr,
        )
    print(f"Exploring {', '.join(subjects.folders)} at {server.address}  (Ctrl-C ends it)", flush=True)
    if server.ip.is_unspecified:
        print(f"From other computers: {server.address_at(socket.gethostname())}", flush=True)
    if not arguments.no_browser:  # in a thread, as some browsers only return when they are closed
        threading.Thread(target=_open, args=(server.address,), daemon=True).start()
    # Also in a thread, so that Ctrl-C, which reaches only the main thread, never comes in the middle of accepting a connection.
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        serving.start()
        while serving.is_alive():
            serving.join(1)


def _open(address: str) -> None:
    """Open the address in a browser with windows, if there is one. The address has been printed in any case."""
    with contextlib.suppress(webbrowser.Error, OSError):
        browser = webbrowser.get()
        if os.path.basename(getattr(browser, "name", "")) not in IN_THE_TERMINAL:
            browser.open(address)


def _server(subjects: Subjects, host: str, port: int | None) -> ExplorerServer:
    """A server on this port; without one, on the usual port or any that is free."""
    if port is None:
        with contextlib.suppress(OSError, UnicodeError):
            return ExplorerServer(subjects, host, PORT)
    try:
        return ExplorerServer(subjects, host, port or 0)
    except (OSError, UnicodeError) as error:  # the latter for names with an empty or overlong part
        said = getattr(error, "strerror", None) or "this is no name of a computer"
        is_taken = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        raise UserError(f"{host}, port {port or 0}: {said}. Choose another --{'port' if is_taken else 'host'}") from None


if __name__ == "__main__":
    with plain_errors():
        main(sys.argv[1:])
