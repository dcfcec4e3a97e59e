"""Connections that cannot wear the server out: there are at most so many at once, and each request must come in time."""

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
PATIENCE = 60.0  # seconds for which a connection may be silent
MOST_SECONDS = 30.0  # that a whole request may take, and that a write may wait for its reader
SENDING = 1 << 17  # bytes that wait in the system for the reader of one connection
STUCK = 1.0  # seconds after which a connection that does not read its answer may be ended for another one
LONG = 5.0  # seconds after which one that is still being answered may be ended, if all are
LINGERING = 2.0  # seconds for which a refused request is still read, so that its sender gets to read the answer
MOST_LINGERING = 1 << 24  # bytes of it


class BoundedServer(ThreadingHTTPServer):
    """A server with a thread for each connection, and at most MOST_CONNECTIONS of them. A new one takes the place of that which
    has been silent for longest, or has not read its answer for longest, or has been answered for longest. Where all have come
    just now, it gets status 503."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS
    allow_reuse_address = os.name == "posix"  # elsewhere this would let two servers share a port

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]):
        """Listen on a ``port``; 0: any free one. Raises OSError if it is taken, and if the host is not this computer."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)  # one of IPv4 if there is any
        self.address_family = family
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._silent: dict[socket.socket, None] = {}  # connections from which a request is awaited, the oldest first
        self._writing: dict[socket.socket, float] = {}  # those to which is written, and since when; the oldest first
        self._answered: dict[socket.socket, float] = {}  # those whose question is being answered, likewise
        self._lock = free_in_forks(threading.Lock())
        super().__init__(address, handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Take the port. (HTTPServer would ask for the name of the host, too, which can take seconds.)"""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address that is listened on."""
        return ipaddress.ip_address(self.server_name)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, once there is room for it."""
        if not self._room.acquire(blocking=False) and not (self._end_another() and self._room.acquire(timeout=0.5)):
            with contextlib.suppress(OSError):
                request.setblocking(False)
                request.sendall(FULL)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # there can be no more threads
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection until its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                for known in (self._silent, self._writing, self._answered):
                    known.pop(request, None)
            self._room.release()

    def is_silent(self, connection: socket.socket, is_it: bool) -> None:
        """Whether a request is awaited from this connection, so that it may be ended for another one; or it is answered now."""
        with self._lock:
            self._silent.pop(connection, None)
            self._answered.pop(connection, None)
            if is_it:
                self._silent[connection] = None
            else:
                self._answered[connection] = time.monotonic()

    def is_writing(self, connection: socket.socket, is_it: bool) -> None:
        """Whether a part of an answer is being written to this connection. If that takes long, it may be ended for another."""
        with self._lock:
            self._writing.pop(connection, None)
            if is_it:
                self._writing[connection] = time.monotonic()

    def _end_another(self) -> bool:
        """End the connection that has the least right to its place. Returns False if there is none."""
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
                others[0].shutdown(socket.SHUT_RDWR)  # its thread finds the end of the connection, and ends
            return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where a browser closed its connection, as it does when writing is stopped."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


_TOO_MANY = b'{"error":"the explorer has too many connections"}'  # as the page understands it
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\n%s" % (len(_TOO_MANY), _TOO_MANY)
)


class Incoming(io.RawIOBase):
    """What comes from a connection. Raises TimeoutError for a request that does not begin, or is not complete, in time."""

    def __init__(self, connection: socket.socket):
        super().__init__()
        self._connection = connection
        self.await_request()

    def await_request(self) -> None:
        """From now on another request is awaited."""
        self._begun = False
        self._end = time.monotonic() + PATIENCE

    def linger(self) -> None:
        """From now on little more is awaited."""
        self._begun = True
        self._end = time.monotonic() + LINGERING

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with what has come, at least a byte unless the connection has ended."""
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
    """What goes to a connection. The server knows while a write waits for its reader. Raises TimeoutError if that takes longer
    than MOST_SECONDS."""

    def __init__(self, server: BoundedServer, connection: socket.socket):
        super().__init__()
        self._server, self._connection = server, connection

    def writable(self) -> bool:
        """It can be written."""
        return True

    def write(self, content: Any) -> int:
        """Write all of it."""
        self._server.is_writing(self._connection, True)
        try:
            self._connection.sendall(content)
        finally:
            self._server.is_writing(self._connection, False)
        return len(content)


class BoundedHandler(BaseHTTPRequestHandler):
    """A handler for the connections of a BoundedServer."""

    server: BoundedServer
    disable_nagle_algorithm = True  # a token goes out at once
    timeout = PATIENCE

    def setup(self) -> None:
        """Read requests through Incoming, and write through Outgoing."""
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENDING)
        self.rfile.close()
        self._incoming = Incoming(self.connection)
        self.rfile = io.BufferedReader(self._incoming)
        self.wfile = Outgoing(self.server, self.connection)

    def handle_one_request(self) -> None:
        """Await a request, and answer it."""
        self._incoming.await_request()
        self.server.is_silent(self.connection, True)
        super().handle_one_request()

    def is_gone(self) -> bool:
        """Whether the other end has closed the connection, so that nobody waits for an answer."""
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        return not self.connection.recv(1, socket.MSG_PEEK)

    def end_connection(self) -> None:
        """Close the connection after an answer. What is still being sent is read for a moment: otherwise the sender would find
        the connection broken, and never read the answer."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self._incoming.linger()
            count = 0
            while count < MOST_LINGERING and (found := self.rfile.read1(1 << 16)):
                count += len(found)
