"""The explorer's server: it serves the page's files and answers its questions.

It is only for the user of this computer. It listens on the loopback address, and its URL contains a random token that every
request needs. Requests triggered by other sites are rejected: those that name another host (DNS rebinding) or come from another
origin. Requests never contain file paths.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from http import HTTPStatus
from importlib import resources
from itertools import chain
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import parse_json
from tinyformer.explore.serving.connections import BoundedHandler, BoundedServer
from tinyformer.explore.views.passages import Answer
from tinyformer.explore.views.questions import QUESTIONS, ask
from tinyformer.explore.views.subjects import Subjects
from tinytensor.common.wording import counted

LARGEST_REQUEST = 2_500_000  # bytes; the longest text, where each character may be two \uXXXX escapes
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

# The page may load only content from this server, and no other page may embed it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address contains the token
    "X-Content-Type-Options": "nosniff",
}
# Headers that affect responses. Duplicates are rejected: an attacker may hope that two programs read different ones.
ONLY_ONCE = ("Host", "Origin", "Sec-Fetch-Site", "Content-Type", "Content-Length", "Transfer-Encoding")
ANOTHER_SITE = "another site may not ask this"
FAULT = {"error": "the explorer has a fault: its terminal shows it"}


class Refused(Exception):
    """A rejected request. The message states the reason."""

    def __init__(self, status: HTTPStatus, message: str):
        super().__init__(message)
        self.status = status


class ExplorerServer(BoundedServer):
    """Serves the page at ``address`` and answers questions about these models."""

    def __init__(self, subjects: Subjects, host: str = "127.0.0.1", port: int = 0):
        """Listen on a ``port`` (0: any free port). Raises OSError if it is taken or the host is not this computer."""
        self.subjects = subjects
        self.token = secrets.token_urlsafe(16)
        self.files = page_files()
        self.was_opened = threading.Event()
        super().__init__(host, port, Handler)
        self.names = {host.lower(), _in_address(self.ip)}
        if self.ip.is_loopback or self.ip.is_unspecified:
            self.names |= {"localhost", "127.0.0.1", "[::1]"}
        if not self.ip.is_loopback:
            self.names.add(socket.gethostname().lower())

    @property
    def address(self) -> str:
        """The URL for the browser."""
        return self.address_at(_in_address(self.ip) if not self.ip.is_unspecified else "127.0.0.1")

    def address_at(self, name: str) -> str:
        """Return the URL with another name for this computer."""
        return f"http://{name}:{self.server_port}/{self.token}/"

    def is_ours(self, host: str) -> bool:
        """Return True if a Host header names this computer. A name that an attacker's DNS could point here does not count.

        Any port is accepted, since a tunnel such as ``ssh -L`` changes it.
        """
        found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", host.lower())
        if not found:
            return False
        return found[1] in self.names or (self.ip.is_unspecified and _is_ip(found[1].strip("[]")))


def _in_address(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    return f"[{ip}]" if ip.version == 6 else str(ip)


def _is_ip(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def page_files() -> dict[str, tuple[str, bytes]]:
    """Return the files of the page and of the modules that run models, by name, each with its type. They are read once, so
    requests never reach the disk. The page lists all its modules. The browser can then request them together after its first
    paint, not one by one as imports occur."""
    folders = resources.files("tinyformer.explore") / "page", resources.files("tinyformer.javascript")
    found = {}
    for file in chain.from_iterable(folder.iterdir() for folder in folders):
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind:
            found[file.name] = (f"{kind}; charset=utf-8", file.read_bytes())
    modules = "\n".join(f'<link rel="modulepreload" href="{name}">' for name in sorted(found) if name.endswith(".js"))
    kind, index = found["index.html"]
    found["index.html"] = kind, index.replace(b"<!-- modules -->", modules.encode())
    return found


class Handler(BoundedHandler):
    """Answers the requests of one connection."""

    server: ExplorerServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "tinyformer", ""

    def do_GET(self) -> None:
        """Serve a file of the page."""
        self._guarded(self._file)

    def do_POST(self) -> None:
        """Answer a question."""
        self._guarded(self._answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject requests that http.server cannot parse, and methods other than GET and POST."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._refuse(Refused(status, status.phrase.lower()))

    def _refuse(self, refusal: Refused) -> None:
        """State the reason and close the connection. The rest of the request is not read."""
        self.close_connection = True
        if self.command == "POST":
            self._send(refusal.status, {"error": str(refusal)})
        else:  # shown to a person
            content = b"" if self.command == "HEAD" else f"{refusal}\n".encode()
            self._headers(refusal.status, "text/plain; charset=utf-8", str(len(content)))
            self.wfile.write(content)
        self.end_connection()

    def _guarded(self, respond: Callable[[str], None]) -> None:
        """Respond, or report an error in one line."""
        try:
            respond(self._checked_path())
        except Refused as refusal:
            self._refuse(refusal)
        except (ConnectionError, TimeoutError):
            raise
        except (UserError, OSError, MemoryError) as error:
            self._send(HTTPStatus.BAD_REQUEST, _told(error))
        except Exception:
            traceback.print_exc()
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, FAULT)

    def _checked_path(self) -> str:
        """Return the path after the token. Raises Refused for a request that does not come from the page."""
        self._check_headers()
        host = self.headers.get("Host", "")
        if not self.server.is_ours(host):
            raise Refused(HTTPStatus.FORBIDDEN, "this is not the host that was asked for")
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            raise Refused(HTTPStatus.FORBIDDEN, ANOTHER_SITE)
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not self._is_opening():
            raise Refused(HTTPStatus.FORBIDDEN, ANOTHER_SITE)
        first, token, path = [*self.path.split("/", 2), "", ""][:3]
        if first or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "open the address that the explorer printed: it holds a token")
        return path

    def _check_headers(self) -> None:
        """Raise Refused for ambiguous headers."""
        if self.request_version != "HTTP/1.1":
            raise Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "a request must be of HTTP/1.1")
        if self.headers.defects or any(len(self.headers.get_all(name, ())) > 1 for name in ONLY_ONCE):
            raise Refused(HTTPStatus.BAD_REQUEST, "the headers are not well formed")
        if "Transfer-Encoding" in self.headers:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a request must say its Content-Length")
        if self.command == "GET" and self.headers.get("Content-Length", "0") != "0":
            raise Refused(HTTPStatus.BAD_REQUEST, "what is asked for with GET has no content")

    def _is_opening(self) -> bool:
        """Return True if a user opens the page from a link on another page, such as a terminal in a browser."""
        return self.command == "GET" and self.headers.get("Sec-Fetch-Dest") == "document"

    def _file(self, path: str) -> None:
        if not path and not self.path.endswith("/"):
            self._headers(HTTPStatus.PERMANENT_REDIRECT, "text/plain", "0", Location=f"/{self.server.token}/")
            return
        found = self.server.files.get(path or "index.html")
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such file")
        self._headers(HTTPStatus.OK, found[0], str(len(found[1])))
        self.wfile.write(found[1])
        self.server.was_opened.set()

    def _answer(self, path: str) -> None:
        folder, _, name = path.partition("/")
        if folder != "ask" or name not in QUESTIONS:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such question")
        asked = self._body()
        self.server.is_silent(self.connection, False)
        with self.server.subjects.lock.unless(self._check_that_somebody_waits):
            answer = ask(self.server.subjects, name, asked)
        if isinstance(answer, Iterator):
            self._send_lines(answer)
        elif isinstance(answer, bytes):
            self._headers(HTTPStatus.OK, "application/octet-stream", str(len(answer)))
            self.wfile.write(answer)
        else:
            self._send(HTTPStatus.OK, answer)

    def _check_that_somebody_waits(self) -> None:
        """Raise ConnectionAbortedError if the page has canceled its question, for example while another was answered."""
        if self.is_gone():
            raise ConnectionAbortedError

    def _body(self) -> Any:
        """Return the JSON body. Raises Refused for anything else."""
        if self.headers.get_content_type() != "application/json":  # forms on other sites cannot send this type
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a question must be application/json")
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]+", length):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a question must say its Content-Length")
        if len(length) > 9 or int(length) > LARGEST_REQUEST:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a question has at most {counted(LARGEST_REQUEST, 'byte')}")
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise Refused(HTTPStatus.BAD_REQUEST, "the question is cut off")
        try:
            return _read_json(content)
        except ValueError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"this is not a JSON object: {shortened(str(error))}") from None

    def _send(self, status: HTTPStatus, answer: Answer) -> None:
        content = _as_json(answer)
        self._headers(status, "application/json", str(len(content)))
        self.wfile.write(content)

    def _send_lines(self, answers: Iterator[Answer]) -> None:
        """Send each answer as a line of JSON as soon as it is available. An error after the first answer is also a line."""
        first = next(answers, None)  # an error before it is an ordinary one
        line = b"" if first is None else _as_json(first)
        self._headers(HTTPStatus.OK, "application/x-ndjson", None)
        try:
            if line:
                self._send_chunk(line + b"\n")
            for answer in answers:
                self._send_chunk(_as_json(answer) + b"\n")
        except (ConnectionError, TimeoutError):
            raise
        except (UserError, OSError, MemoryError) as error:
            self._send_chunk(_as_json(_told(error)) + b"\n")
        except Exception:
            traceback.print_exc()
            self._send_chunk(_as_json(FAULT) + b"\n")
        self._send_chunk(b"")

    def _send_chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def _headers(self, status: HTTPStatus, kind: str, length: str | None, **others: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", length)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, POST")
        for name, value in {**HEADERS, **others}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests, because their paths contain the token."""


def _read_json(content: bytes) -> Any:
    """Parse a JSON object in UTF-8. Raises ValueError for anything else, and for text with an unpaired surrogate."""
    asked = parse_json(content.decode())
    if rb"\u" in content:
        try:
            json.dumps(asked, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text has half of a surrogate pair, which is no character") from None
    return asked


def _told(error: BaseException) -> Answer:
    """Return the page's view of an error."""
    if isinstance(error, OSError) and error.strerror:
        return {"error": f"{error.filename}: {error.strerror}" if error.filename else error.strerror}
    return {"error": str(error) or "there is not enough memory for this"}


def _as_json(answer: Answer) -> bytes:
    """Convert an answer to JSON. Raises UserError for numbers that JSON cannot represent."""
    try:
        return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise UserError("the model's outputs are NaN or infinite: its training diverged, or its weights are damaged") from None
