"""The server of the explorer: it hands out the page's files, and answers its questions.

It is meant for the person at this computer alone. So it listens on the loopback address, its address holds a random token
without which nothing is answered, and requests that other sites make a browser send are refused: those that name another host
(DNS rebinding) or come from another origin. Nothing in a request is ever a path of a file.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import traceback
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from tinyformer.errors import UserError, shortened
from tinyformer.explore.passages import Answer
from tinyformer.explore.questions import QUESTIONS, ask
from tinyformer.explore.subjects import Subjects
from tinyformer.files import parse_json

LARGEST_REQUEST = 1_000_000  # bytes
PATIENCE = 60.0  # seconds that a connection may say nothing
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

# The page may load only what comes from this server, and nothing may show it inside another page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}


class Refused(Exception):
    """A request that is not answered. The message says why."""

    def __init__(self, status: HTTPStatus, message: str):
        super().__init__(message)
        self.status = status


class ExplorerServer(ThreadingHTTPServer):
    """Serves the page and the answers about these models at ``address``."""

    daemon_threads = True

    def __init__(self, subjects: Subjects, host: str = "127.0.0.1", port: int = 0):
        """Listen on a ``port``; 0: any free one. Raises OSError if it is taken."""
        self.subjects = subjects
        self.token = secrets.token_urlsafe(16)
        self.files = page_files()
        super().__init__((host, port), Handler)
        self.hosts = {f"{name}:{self.server_port}" for name in {host, "127.0.0.1", "localhost"}}

    @property
    def address(self) -> str:
        """What the browser opens."""
        host = self.server_address[0]
        return f"http://{host!s}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where a browser closed its connection, as it does when writing is stopped."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def page_files() -> dict[str, tuple[str, bytes]]:
    """The files of the page by name, each with its type. They are read once: no request reaches the disk."""
    folder = resources.files("tinyformer.explore") / "page"
    found = {}
    for file in folder.iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind:
            found[file.name] = (f"{kind}; charset=utf-8", file.read_bytes())
    return found


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: ExplorerServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a token goes out at once
    timeout = PATIENCE
    server_version, sys_version = "tinyformer", ""

    def do_GET(self) -> None:
        """A file of the page."""
        self._guarded(self._file)

    def do_POST(self) -> None:
        """The answer to a question."""
        self._guarded(self._answer)

    def _guarded(self, respond: Any) -> None:
        """Respond, or say in a line why not."""
        try:
            respond(self._checked_path())
        except Refused as refusal:
            self.close_connection = True  # what is left of the request is not read
            self._send(refusal.status, {"error": str(refusal)})
        except (UserError, OSError, MemoryError) as error:
            if isinstance(error, (ConnectionError, TimeoutError)):
                raise
            self._send(HTTPStatus.BAD_REQUEST, {"error": str(error) or "there is not enough memory for this"})
        except Exception:
            traceback.print_exc()
            message = "the explorer has a fault: its terminal shows it"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": message})

    def _checked_path(self) -> str:
        """The path after the token. Raises Refused for a request that does not come from the page."""
        host = self.headers.get("Host", "")
        if host not in self.server.hosts:
            raise Refused(HTTPStatus.FORBIDDEN, "this is not the host that was asked for")
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            raise Refused(HTTPStatus.FORBIDDEN, "another site may not ask this")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise Refused(HTTPStatus.FORBIDDEN, "another site may not ask this")
        token, slash, path = self.path.removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "open the address that the explorer printed: it holds a token")
        return path

    def _file(self, path: str) -> None:
        found = self.server.files.get(path or "index.html")
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such file")
        self._headers(HTTPStatus.OK, found[0], str(len(found[1])))
        self.wfile.write(found[1])

    def _answer(self, path: str) -> None:
        folder, _, name = path.partition("/")
        if folder != "ask" or name not in QUESTIONS:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such question")
        answer = ask(self.server.subjects, name, self._body())
        if isinstance(answer, Iterator):
            self._send_lines(answer)
        else:
            self._send(HTTPStatus.OK, answer)

    def _body(self) -> Any:
        """The JSON that was sent. Raises Refused for anything else."""
        if self.headers.get_content_type() != "application/json":  # which no form of another site can send
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a question must be application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a question must say its Content-Length")
        if len(length) > 9 or int(length) > LARGEST_REQUEST:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a question has at most {LARGEST_REQUEST} bytes")
        try:
            return parse_json(self.rfile.read(int(length)).decode())
        except ValueError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"this is not a JSON object: {shortened(str(error))}") from None

    def _send(self, status: HTTPStatus, answer: Answer) -> None:
        content = _as_json(answer)
        self._headers(status, "application/json", str(len(content)))
        self.wfile.write(content)

    def _send_lines(self, answers: Iterator[Answer]) -> None:
        """Send each answer as a line of JSON as soon as it is there. An error after the first is a line, too."""
        first = next(answers, None)  # an error before it is an ordinary one
        self._headers(HTTPStatus.OK, "application/x-ndjson", None)
        try:
            if first is not None:
                self._send_chunk(_as_json(first) + b"\n")
            for answer in answers:
                self._send_chunk(_as_json(answer) + b"\n")
        except (UserError, MemoryError) as error:
            self._send_chunk(_as_json({"error": str(error) or "there is not enough memory for this"}) + b"\n")
        self._send_chunk(b"")

    def _send_chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def _headers(self, status: HTTPStatus, kind: str, length: str | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", length)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: their paths hold the token."""


def _as_json(answer: Answer) -> bytes:
    return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()
