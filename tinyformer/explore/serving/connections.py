"""Connections with limits on their number and on the time per request, so that they cannot exhaust the server."""

from __future__ import annotations

import contextlib
import io
import ipaddress
import os
import select
import socket
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tinytensor.device.forks import free_in_forks

MOST_CONNECTIONS = 64
PATIENCE = 60.0  # seconds that a connection may be silent
MOST_SECONDS = 30.0  # maximum for a complete request, and for a write to wait for its reader
SENDING = 1 << 17  # bytes buffered by the system for the reader of a connection
STUCK = 1.0  # seconds before a connection that does not read its response may be replaced
LONG = 5.0  # seconds before a connection in progress may be replaced, if all are in progress
LINGERING = 2.0  # seconds to keep reading a rejected request, so that its sender reads the response
MOST_LINGERING = 1 << 24  # bytes read in that time


class BoundedServer(ThreadingHTTPServer):
    """A server with one thread per connection and at most MOST_CONNECTIONS connections. A new one replaces the connection that
    has been silent, has not read its response, or has been in progress for longest. If all are recent, the new connection gets
    status 503."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS
    allow_reuse_address = os.name == "posix"  # elsewhere, two servers could share a port

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]):
        """Listen on a ``port`` (0: any free port). Raises OSError if it is taken or the host is not this computer."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)  # prefers IPv4
        self.address_family = family
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._silent: dict[socket.socket, None] = {}  # connections waiting for a request, oldest first
        self._writing: dict[socket.socket, float] = {}  # connections being written to, with start time, oldest first
        self._answered: dict[socket.socket, float] = {}  # connections whose response is being computed, likewise
        self._lock = free_in_forks(threading.Lock())
        super().__init__(address, handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Bind the port. (HTTPServer would also look up the host name, which can take seconds.)"""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The listening address."""
        return ipaddress.ip_address(self.server_name)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a new thread once there is room."""
        if not self._room.acquire(blocking=False) and not (self._end_another() and self._room.acquire(timeout=0.5)):
            with contextlib.suppress(OSError):
                request.setblocking(False)
                request.sendall(FULL)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # cannot start more threads
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection until it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                for known in (self._silent, self._writing, self._answered):
                    known.pop(request, None)
            self._room.release()

    def is_silent(self, connection: socket.socket, is_it: bool) -> None:
        """Mark whether the connection is waiting for a request and may be replaced, or is in progress."""
        with self._lock:
            self._silent.pop(connection, None)
            self._answered.pop(connection, None)
            if is_it:
                self._silent[connection] = None
            else:
                self._answered[connection] = time.monotonic()

    def is_writing(self, connection: socket.socket, is_it: bool) -> None:
        """Mark whether a response is being written to this connection. If writing is slow, it may be replaced."""
        with self._lock:
            self._writing.pop(connection, None)
            if is_it:
                self._writing[connection] = time.monotonic()

    def _end_another(self) -> bool:
        """Close the connection with the lowest priority. Return False if there is none."""
        now = time.monotonic()
        with self._lock:
            others = list(self._silent)[:1]
            for since, least in ((self._writing, STUCK), (self._answered, LONG)):
                others += [connection for connection, begun in list(since.items())[:1] if now - begun >= least]
            if not others:
                return False
            for known in (self._silent, self._writing, self._answered):
                known.pop(others[0], None)
            with contextlib.suppress(OSError):
                others[0].shutdown(socket.SHUT_RDWR)  # its thread sees the end of the connection and exits
            return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections closed by the browser, as when generation is stopped."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


_TOO_MANY = b'{"error":"the explorer has too many connections"}'  # in the page's error format
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\n%s" % (len(_TOO_MANY), _TOO_MANY)
)


class Incoming(io.RawIOBase):
    """Input from a connection. Raises TimeoutError for a request that does not start or finish in time."""

    def __init__(self, connection: socket.socket):
        super().__init__()
        self._connection = connection
        self.await_request()

    def await_request(self) -> None:
        """Start waiting for another request."""
        self._begun = False
        self._end = time.monotonic() + PATIENCE

    def linger(self) -> None:
        """Expect only a little more input."""
        self._begun = True
        self._end = time.monotonic() + LINGERING

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with available input, at least one byte unless the connection has ended."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        try:
            count = self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(MOST_SECONDS)  # for writing
        if not self._begun:
            self._begun = True
            self._end = time.monotonic() + MOST_SECONDS
        return count


class Outgoing(io.BufferedIOBase):
    """Output to a connection. The server tracks writes that wait for their reader. Raises TimeoutError if a write takes longer
    than MOST_SECONDS."""

    def __init__(self, server: BoundedServer, connection: socket.socket):
        super().__init__()
        self._server, self._connection = server, connection

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, content: Any) -> int:
        """Write all of the content."""
        self._server.is_writing(self._connection, True)
        try:
            self._connection.sendall(content)
        finally:
            self._server.is_writing(self._connection, False)
        return len(content)


class BoundedHandler(BaseHTTPRequestHandler):
    """A handler for the connections of a BoundedServer."""

    server: BoundedServer
    disable_nagle_algorithm = True  # sends each token immediately
    timeout = PATIENCE

    def setup(self) -> None:
        """Read requests through Incoming and write through Outgoing."""
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENDING)
        self.rfile.close()
        self._incoming = Incoming(self.connection)
        self.rfile = io.BufferedReader(self._incoming)
        self.wfile = Outgoing(self.server, self.connection)

    def handle_one_request(self) -> None:
        """Wait for a request and respond."""
        self._incoming.await_request()
        self.server.is_silent(self.connection, True)
        super().handle_one_request()

    def is_gone(self) -> bool:
        """Return True if the peer has closed the connection and nobody is waiting for a response."""
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        return not self.connection.recv(1, socket.MSG_PEEK)

    def end_connection(self) -> None:
        """Close the connection after a response. Keep reading input briefly. Otherwise the sender would see a broken connection
        and never read the response."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self._incoming.linger()
            count = 0
            while count < MOST_LINGERING and (found := self.rfile.read1(1 << 16)):
                count += len(found)
