"""The explorer's server against hostile requests: none may get anything but a refusal in a line, and none may wear it out."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from explored import VALUES, gpt_run, masked_run, serving, translation_run

from tinyformer.explore.serving import connections, server
from tinyformer.explore.serving.server import HEADERS, ExplorerServer
from tinyformer.explore.views.subjects import Subjects


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    folder = tmp_path_factory.mktemp("runs")
    return Subjects([gpt_run(folder / "gpt"), translation_run(folder / "dates"), masked_run(folder / "masked")])


@pytest.fixture(scope="module")
def running(subjects: Subjects) -> Iterator[ExplorerServer]:
    with serving(subjects) as started:
        yield started


@pytest.fixture(autouse=True)
def no_traceback(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Whatever a client sends, the terminal shows nothing."""
    yield
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if "compiles its kernels" not in line] == []


Answered = tuple[int, dict[str, str], bytes]


def raw(to: ExplorerServer, request: bytes | str, ends: bool = True) -> bytes:
    """All that the server sends back to these bytes, after which the connection ``ends`` from this side."""
    with socket.create_connection(to.server_address[:2], timeout=20) as connection:
        connection.sendall(request.encode("latin-1") if isinstance(request, str) else request)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(1 << 16):
            found += part
        return found


def send(to: ExplorerServer, method: str, path: str, body: Any = None, token: str | None = None, **headers: str) -> Answered:
    """Send an ordinary request. ``headers`` have _ in the place of -."""
    connection = http.client.HTTPConnection(*to.server_address[:2], timeout=20)
    with contextlib.closing(connection):
        sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
        content = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, f"/{to.token if token is None else token}/{path}", content, sent)
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()


def asked(to: ExplorerServer, name: str, body: Any) -> tuple[int, Any]:
    """The status of the answer to a question, and its JSON or, of a stream, the list of its lines."""
    status, headers, content = send(to, "POST", f"ask/{name}", body)
    if headers["content-type"] == "application/x-ndjson":
        return status, [json.loads(line) for line in content.splitlines()]
    return status, json.loads(content)


def passage(**changes: Any) -> dict[str, Any]:
    return {"model": next(iter(MODELS)), "ids": [1, 2, 3], **changes}


MODELS: list[str] = []


@pytest.fixture(autouse=True)
def models(subjects: Subjects) -> None:
    MODELS[:] = subjects.names


# ------------------------------------------------------------------------------------------------------ who may ask


def test_page_and_questions_are_answered(running: ExplorerServer) -> None:
    status, headers, content = send(running, "GET", "")
    assert status == 200 and b"<!doctype html>" in content
    assert {name: headers[name.lower()] for name in HEADERS} == HEADERS
    assert asked(running, "about", {})[1]["models"] == MODELS
    assert send(running, "GET", "", Sec_Fetch_Site="same-origin", Origin=running.address[:-1].rpartition("/")[0])[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", "", "[::2]", "10.0.0.1"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_hosts_are_refused(running: ExplorerServer, host: str, method: str) -> None:
    assert send(running, method, "ask/about", {} if method == "POST" else None, Host=host)[0] == 403
    assert send(running, method, "", {} if method == "POST" else None, Host=f"{host}:{running.server_port}")[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:8642", "[::1]:9000"])
def test_names_of_this_computer_are_known_with_any_port(running: ExplorerServer, host: str) -> None:
    """A tunnel such as that of ssh -L has another port."""
    assert send(running, "GET", "", Host=host)[0] == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1", "http://localhost:{port}", "", "*"],
)
def test_other_origins_are_refused(running: ExplorerServer, origin: str) -> None:
    found = send(running, "POST", "ask/about", {}, Origin=origin.format(port=running.server_port))
    assert found[0] == 403 and json.loads(found[2]) == {"error": "another site may not ask this"}


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense", ""])
def test_other_sites_are_refused(running: ExplorerServer, site: str) -> None:
    assert send(running, "POST", "ask/about", {}, Sec_Fetch_Site=site)[0] == 403
    assert send(running, "POST", "ask/about", {}, Sec_Fetch_Site=site, Sec_Fetch_Dest="document")[0] == 403
    assert send(running, "GET", "app.js", Sec_Fetch_Site=site, Sec_Fetch_Dest="script")[0] == 403
    assert send(running, "GET", "", Sec_Fetch_Site=site, Sec_Fetch_Dest="document")[0] == 200  # a link that is followed


def test_only_the_token_opens(running: ExplorerServer) -> None:
    token = running.token
    wrong = [
        "",
        "x",
        token[:-1],
        token + "x",
        token.swapcase(),
        "%" + token,
        "\xe9" * len(token),
        f"%{ord(token[0]):x}{token[1:]}",
    ]
    for other in wrong:
        for line in (f"GET /{other}/ HTTP/1.1", f"POST /{other}/ask/about HTTP/1.1"):
            found = raw(
                running, f"{line}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
            )
            assert found.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), other
    assert len(token) >= 22


def test_the_address_without_its_last_slash_leads_to_the_page(running: ExplorerServer) -> None:
    found = raw(running, f"GET /{running.token} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 308") and f"Location: /{running.token}/\r\n".encode() in found


def test_no_answer_lets_other_sites_read_it(running: ExplorerServer) -> None:
    answers = [send(running, "GET", ""), send(running, "OPTIONS", "ask/about", Origin="http://evil.example")]
    answers.append(send(running, "POST", "ask/about", {}, Origin="http://evil.example"))
    assert not [name for _, headers, _ in answers for name in headers if name.startswith("access-control")]


# ------------------------------------------------------------------------------------------------------ what is asked for


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "get", "__class__"])
def test_other_methods_are_refused(running: ExplorerServer, method: str) -> None:
    found = raw(running, f"{method} /{running.token}/ HTTP/1.1\r\nHost: localhost\r\nX-Secret: 1\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 405") and b"Allow: GET, POST\r\n" in found and b"X-Secret" not in found
    assert HEADERS["Content-Security-Policy"].encode() in found


@pytest.mark.parametrize(
    "path",
    [
        "../server.py", "..%2fserver.py", "%2e%2e/server.py", "..\\server.py", "/etc/passwd", "//etc/passwd", "./index.html",
        "page/index.html", "index.html?x", "?x", "index.html/", "INDEX.HTML", "index.html%00.js", "app.js\x00", "ask/about",
        "__init__.py", "~", "C:\\", "file:///etc/passwd", "ask", "\xff",
    ],
)  # fmt: skip
def test_only_the_files_of_the_page_are_handed_out(running: ExplorerServer, path: str) -> None:
    found = raw(running, f"GET /{running.token}/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 404") and b"root:" not in found


@pytest.mark.parametrize(
    "line",
    ["GET http://evil.example/{token}/ HTTP/1.1", "GET {token}/ HTTP/1.1", "GET * HTTP/1.1", "GET /../{token}/ HTTP/1.1",
     "GET /x/../{token}/ HTTP/1.1", "GET /?{token}/ HTTP/1.1"],
)  # fmt: skip
def test_other_forms_of_an_address_are_refused(running: ExplorerServer, line: str) -> None:
    assert raw(running, f"{line.format(token=running.token)}\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "name", ["", "nothing", "ask", "__init__", "about/", "about?x=1", "../ask/about", "%61bout", "About", "x" * 10_000]
)
def test_only_questions_of_the_table_are_answered(running: ExplorerServer, name: str) -> None:
    assert send(running, "POST", f"ask/{name}", {})[0] == 404
    assert send(running, "POST", name, {})[0] == 404


@pytest.mark.parametrize(
    "request_",
    [
        "", "\r\n", "\x00", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/x\r\n\r\n",
        "GET / FTP/1.1\r\n\r\n", "GET / HTTP/1.1 x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01", "\xff" * 100,
        "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/1.1\r\n: empty\r\n\r\n", "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        "GET / HTTP/1.1\r\n" + "x: y\r\n" * 200 + "\r\n", "GET / HTTP/1.1\r\nx: " + "y" * 70_000 + "\r\n\r\n", "G" * 70_000,
        "GET /" + "x" * 70_000 + " HTTP/1.1\r\n\r\n", "GET / HTTP/1.²\r\n\r\n", "é / HTTP/1.1\r\n\r\n",
    ],
)  # fmt: skip
def test_an_invalid_request_is_rejected(running: ExplorerServer, request_: str) -> None:
    found = raw(running, request_)
    assert not found.startswith(b"HTTP/1.1 2") and b"<html" not in found.lower() and b"Traceback" not in found
    assert b" 500" not in found[:20] and b"tinyformer explorer" not in found


# ------------------------------------------------------------------------------------------------------ how long it is


def post(to: ExplorerServer, headers: str, body: str = "{}") -> str:
    return f"POST /{to.token}/ask/about HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}\r\n{body}"


def statuses(answer: bytes) -> list[int]:
    """The status of each answer in what came over a connection."""
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+) ", answer)]


SMUGGLED = "POST /x/ask/about HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "headers, status",
    [
        ("", 411),
        ("Transfer-Encoding: chunked\r\n", 411),
        ("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", 411),
        ("Transfer-Encoding: identity\r\nContent-Length: 2\r\n", 411),
        ("Transfer-encoding : chunked\r\nContent-Length: 2\r\n", 400),
        ("Content-Length: 2\r\nContent-Length: 60\r\n", 400),
        ("Content-Length: 2\r\nContent-Length: 2\r\n", 400),
        ("Content-Length: 2, 2\r\n", 411),
        ("Content-Length: -1\r\n", 411),
        ("Content-Length: +2\r\n", 411),
        ("Content-Length: 0x2\r\n", 411),
        ("Content-Length: 2_0\r\n", 411),
        ("Content-Length: \xb2\r\n", 411),
        ("Content-Length: 2 2\r\n", 411),
        ("Content-Length: 2\r\nHost: evil.example\r\n", 400),
        ("Content-Length: 2\r\n Transfer-Encoding: chunked\r\n", 411),
        ("Content-Length: 2\rTransfer-Encoding: chunked\r\n", 411),
        ("Content-Length: 99999999999999999999999\r\n", 413),
        ("Content-Length: 3000000\r\n", 413),
        ("Content-Length: 0\r\n", 400),
    ],
)
def test_lengths_that_are_unclear_are_refused_and_nothing_after_them_is_read(
    running: ExplorerServer, headers: str, status: int
) -> None:
    assert statuses(raw(running, post(running, headers, "{}" + SMUGGLED))) == [status]


def test_a_get_with_content_is_refused(running: ExplorerServer) -> None:
    request = f"GET /{running.token}/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(SMUGGLED)}\r\n\r\n{SMUGGLED}"
    assert statuses(raw(running, request)) == [400]


def test_requests_may_follow_each_other(running: ExplorerServer) -> None:
    one = post(running, "Content-Length: 2\r\n")
    refused = post(running, "Content-Length: 2\r\nOrigin: null\r\n")
    assert statuses(raw(running, one + one + refused + one, ends=False)) == [200, 200, 403]


def test_ten_megabytes_are_refused_and_the_sender_reads_why(running: ExplorerServer) -> None:
    status, _, content = send(running, "POST", "ask/encode", b"x" * 10_000_000)
    assert status == 413 and json.loads(content) == {"error": "a question has at most 2,500,000 bytes"}


def test_the_longest_text_fits_however_it_is_written(running: ExplorerServer) -> None:
    status, answer = asked(running, "encode", {"model": MODELS[0], "text": "\U0001f600" * 200_000})
    assert status == 400 and "bytes" not in answer["error"]  # the tokenizer refuses it, not the server


def test_a_question_that_is_cut_off_is_refused(running: ExplorerServer) -> None:
    assert statuses(raw(running, post(running, "Content-Length: 200\r\n"))) == [400]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"])
def test_what_a_form_of_another_site_can_send_is_refused(running: ExplorerServer, kind: str) -> None:
    assert send(running, "POST", "ask/about", "{}", Content_Type=kind)[0] in (400, 415)


# ------------------------------------------------------------------------------------------------------ what it says


@pytest.mark.parametrize(
    "body",
    [
        b"", b"x", b"[]", b"null", b"1", b'"x"', b"{", b"{}x", b"{}{}", b'{"a": NaN}', b'{"a": Infinity}',
        b"\xff\xfe{}", b'{"\xff": 1}',
        b'{"model": 1, "model": 2}', b"[" * 100_000, b'{"a":' * 100_000, b'{"a": ' + b"9" * 10_000 + b"}",
        b'\xef\xbb\xbf{}', b"{'a': 1}",
        b'{"a": "\\ud800"}', b'{"\\udfff": 1}', b'{"a": ["\\ud83d"]}', b'{"a": "\\u12"}', b'{"a": "\x01"}', b"{\x00}",
    ],
)  # fmt: skip
def test_json_that_is_no_object_is_rejected_in_one_line(running: ExplorerServer, body: bytes) -> None:
    status, _, content = send(running, "POST", "ask/encode", body)
    error = json.loads(content)["error"]
    assert status == 400 and "\n" not in error and len(error) < 500


@pytest.mark.parametrize("value", VALUES)
def test_no_value_is_a_fault(running: ExplorerServer, value: str) -> None:
    """Whatever is asked has such values in all places: test_questions.py. Here they come over a connection."""
    body = json.dumps({"passage": passage(ids=[1, "HERE"])}).replace('"HERE"', value)
    for name, sent in (("next_token", body), ("write", body[:-1] + ', "length": 2}'), ("encode", f'{{"text": {value}}}')):
        status, _, content = send(running, "POST", f"ask/{name}", sent)
        assert status in (200, 400)
        error = json.loads(content.splitlines()[-1]).get("error") if content else None
        assert error is None or (len(error.splitlines()) <= 2 and len(error) < 1000 and "fault" not in error)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"ids": [1] * 20_001}, "ids must have 1 to 20,000"),
        ({"ids": []}, "ids must have 1 to 20,000"),
        ({"ids": [1, 10_000]}, "is out of range"),
        ({"ids": [-1]}, "is out of range"),
        ({"ids": [True]}, "must be an integer"),
        ({"ids": [1.0]}, "must be an integer"),
        ({"ids": [10**30]}, "token ids must be integers"),
        ({"ids": [2**63]}, "token id 9223372036854775808 is out of range for any vocabulary"),
        ({"ids": [2**63, -1]}, "token ids must be integers"),
        ({"ids": [1], "source": [1]}, "no source"),
        ({"ids": "123"}, "must be a list"),
        ({"model": "best\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")}, "there is no model"),
        ({"model": "../../etc"}, "there is no model"),
        ({"file": "/etc/passwd"}, "does not know"),
    ],
)
def test_passages_that_are_too_long_are_reported(running: ExplorerServer, changes: dict[str, Any], told: str) -> None:
    status, answer = asked(running, "next_token", {"passage": passage(**changes)})
    assert status == 400 and told in answer["error"]
    status, answer = asked(running, "write", {"passage": passage(**changes), "length": 3})
    assert status == 400 and told in answer["error"]


@pytest.mark.parametrize(
    "text", ["", "\x00", "\u202e", "ﬃ", "e\u0301", "<script>alert(1)</script>", "\U0010ffff", "\ufeff", "\r\n", " " * 9999]
)
def test_any_text_is_cut_into_tokens_or_refused_in_a_line(running: ExplorerServer, text: str) -> None:
    for model in MODELS:
        for source in (False, True):
            status, answer = asked(running, "encode", {"model": model, "text": text, "source": source})
            assert status == 200 or (status == 400 and len(answer["error"]) < 500), answer


def test_a_text_that_is_too_long_is_reported(running: ExplorerServer) -> None:
    for count, told in ((200_001, "more than 200000"), (20_001, "more than 20000")):
        status, answer = asked(running, "encode", {"model": MODELS[0], "text": "a" * count})
        assert status == 400 and told in answer["error"]


# ------------------------------------------------------------------------------------------------------ faults of ours


def test_a_fault_of_ours_is_shown_in_the_terminal_alone(
    running: ExplorerServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def at_once(subjects: Subjects, name: str, asked: Any) -> Any:
        raise KeyError("secret")

    def later(subjects: Subjects, name: str, asked: Any) -> Any:
        def lines() -> Iterator[dict[str, int]]:
            yield {"id": 1}
            raise KeyError("secret")

        return lines()

    fault = {"error": "the explorer has a fault: its terminal shows it"}
    monkeypatch.setattr(server, "ask", at_once)
    assert asked(running, "about", {}) == (500, fault)
    monkeypatch.setattr(server, "ask", later)
    assert asked(running, "about", {}) == (200, [{"id": 1}, fault])
    assert capfd.readouterr().err.count("KeyError: 'secret'") == 2


def test_an_answer_with_nan_prints_one_line(running: ExplorerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ({"a": float("nan")}, [{"a": float("inf")}]):
        monkeypatch.setattr(server, "ask", lambda *_, answer=answer: iter(answer) if isinstance(answer, list) else answer)
        status, found = asked(running, "about", {})
        assert status == 400 and "NaN or infinite" in found["error"]
    monkeypatch.setattr(server, "ask", lambda *_: iter([{"id": 1}, {"a": float("nan")}]))
    status, found = asked(running, "about", {})
    assert found[0] == {"id": 1} and "NaN or infinite" in found[1]["error"] and len(found) == 2


# ------------------------------------------------------------------------------------------------------ wearing it out


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.01)


def handlers() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.fixture
def narrow(subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExplorerServer]:
    """A server of few connections."""
    wait_for(lambda: handlers() == 0)
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 10)
    with serving(subjects) as started:
        yield started


def test_silent_connections_make_room_for_new_ones(narrow: ExplorerServer) -> None:
    with contextlib.ExitStack() as stack:
        for i in range(3 * connections.MOST_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(narrow.server_address[:2]))
            connection.sendall([b"", b"GET / HT", post(narrow, "Content-Length: 100\r\n").encode()][i % 3])
        assert asked(narrow, "about", {})[0] == 200
        assert handlers() <= connections.MOST_CONNECTIONS
    wait_for(lambda: handlers() == 0)
    assert not narrow._silent


def test_a_connection_that_is_being_answered_is_not_ended(narrow: ExplorerServer, subjects: Subjects) -> None:
    with subjects.lock, contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(begin(narrow, "next_token", {"passage": passage()})) for _ in range(5)]
        wait_for(lambda: handlers() >= 5 and not narrow._silent)
        for _ in range(2 * connections.MOST_CONNECTIONS):
            stack.enter_context(socket.create_connection(narrow.server_address[:2]))
        wait_for(lambda: handlers() == connections.MOST_CONNECTIONS)
        subjects.lock.release()
        try:
            assert all(connection.recv(12) == b"HTTP/1.1 200" for connection in waiting)
        finally:
            subjects.lock.acquire()


@pytest.mark.parametrize("begin", ["", "GET / HTTP/1.1\r\nHo", "POST"])
def test_requests_that_do_not_come_in_time_are_ended(
    running: ExplorerServer, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    """Also requests that send a byte now and then."""
    monkeypatch.setattr(connections, "PATIENCE", 0.3)
    monkeypatch.setattr(connections, "MOST_SECONDS", 0.3)
    sent = post(running, "Content-Length: 100\r\n") if begin == "POST" else begin
    with socket.create_connection(running.server_address[:2], timeout=20) as connection:
        connection.sendall(sent.encode())
        start = time.monotonic()
        if begin:
            with contextlib.suppress(ConnectionError):
                while time.monotonic() < start + 10:
                    connection.sendall(b" ")
                    time.sleep(0.05)
            assert time.monotonic() < start + 5
        else:
            assert connection.recv(1) == b""
    wait_for(lambda: handlers() == 0)


def test_questions_that_the_page_gave_up_on_are_not_answered(
    running: ExplorerServer, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = []

    def ask(*given: Any) -> dict[str, Any]:
        with subjects.lock:
            answered.append(given)
        return {}

    monkeypatch.setattr(server, "ask", ask)
    with subjects.lock:
        for _ in range(5):
            with socket.create_connection(running.server_address[:2]) as connection:
                connection.sendall(post(running, "Content-Length: 2\r\n").encode())
                wait_for(lambda: handlers() > 0 and not running._silent)
    wait_for(lambda: handlers() == 0)
    assert answered == []


def test_a_stream_without_an_answer_has_no_line(running: ExplorerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ask", lambda *given: iter(()))
    assert asked(running, "write", {}) == (200, [])


def test_a_stream_that_is_given_up_on_ends(running: ExplorerServer) -> None:
    wait_for(lambda: handlers() == 0)
    body = json.dumps({"passage": passage(), "length": 5000})
    for _ in range(5):
        with socket.create_connection(running.server_address[:2]) as connection:
            head = f"POST /{running.token}/ask/write HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert connection.recv(12) == b"HTTP/1.1 200"
    wait_for(lambda: handlers() == 0)


def begin(to: ExplorerServer, name: str, asked: Any, **options: Any) -> socket.socket:
    """A connection that has asked a question, and has read nothing."""
    body = json.dumps(asked)
    head = f"POST /{to.token}/ask/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    connection = socket.socket()
    for option, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
    connection.settimeout(20)
    connection.connect(to.server_address[:2])
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return connection


def everything(connection: socket.socket) -> bytes:
    found = b""
    while part := connection.recv(1 << 16):
        found += part
    return found


def test_unread_streams_do_not_block(subjects: Subjects) -> None:
    with serving(subjects) as started, contextlib.ExitStack() as stack:
        for _ in range(4):  # each would send some megabytes, and nothing of it is read
            asked = {"passage": passage(), "length": 5000}
            stack.enter_context(begin(started, "write", asked, SO_RCVBUF=4096)).recv(12)
        start = time.monotonic()
        quick: list[tuple[str, Any]] = [("next_token", {"passage": passage()}), ("embeddings", {"model": subjects.names[0]})]
        for name, what in quick:
            with begin(started, name, what) as connection:
                assert everything(connection).startswith(b"HTTP/1.1 200")
        assert time.monotonic() < start + 10


def stuck(to: ExplorerServer, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Connections that have asked for more than fits into all buffers, and read nothing."""
    search = {"passage": passage(), "beam": 16, "length": 200}
    found = [stack.enter_context(begin(to, "search", search, SO_RCVBUF=1024)) for _ in range(count)]
    wait_for(lambda: len(to._writing) >= count and time.monotonic() - max(to._writing.values()) > connections.STUCK)
    return found


def test_readers_who_never_read_make_room_for_a_new_page(narrow: ExplorerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STUCK", 0.2)
    monkeypatch.setattr(connections, "SENDING", 4096)
    with contextlib.ExitStack() as stack:
        stuck(narrow, connections.MOST_CONNECTIONS, stack)
        for _ in range(5):
            start = time.monotonic()
            assert asked(narrow, "about", {})[0] == 200
            assert time.monotonic() < start + 2
    wait_for(lambda: handlers() == 0)
    assert not narrow._writing and not narrow._silent


def test_a_reader_who_never_reads_is_ended(running: ExplorerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SENDING", 4096)
    monkeypatch.setattr(connections, "MOST_SECONDS", 0.5)
    monkeypatch.setattr(connections, "STUCK", 0.1)
    wait_for(lambda: handlers() == 0)
    with contextlib.ExitStack() as stack:
        stuck(running, 1, stack)
        wait_for(lambda: handlers() == 0)


def test_questions_that_take_long_make_room_for_a_new_page(narrow: ExplorerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a question computes for somebody who reads nothing of what would fit into the buffers."""
    monkeypatch.setattr(connections, "LONG", 0.3)
    with contextlib.ExitStack() as stack:
        for _ in range(connections.MOST_CONNECTIONS):
            stack.enter_context(begin(narrow, "write", {"passage": passage(), "length": 5000}))
        wait_for(lambda: len(narrow._answered) == connections.MOST_CONNECTIONS)
        time.sleep(connections.LONG)
        statuses = []
        for _ in range(5):
            statuses.append(asked(narrow, "about", {})[0])
            time.sleep(0.2)
        assert 200 in statuses and set(statuses) <= {200, 503}
    wait_for(lambda: handlers() == 0)
    assert not narrow._answered


def test_too_many_connections_are_rejected(narrow: ExplorerServer, subjects: Subjects) -> None:
    with subjects.lock, contextlib.ExitStack() as stack:
        for _ in range(connections.MOST_CONNECTIONS):
            stack.enter_context(begin(narrow, "next_token", {"passage": passage()}))
        wait_for(lambda: handlers() == connections.MOST_CONNECTIONS and not narrow._silent)
        start = time.monotonic()
        for _ in range(20):  # at once, so that those who come after them need not wait
            with socket.create_connection(narrow.server_address[:2], timeout=20) as connection:
                head, _, body = everything(connection).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503 ") and f"Content-Length: {len(body)}".encode() in head
                assert json.loads(body) == {"error": "the explorer has too many connections"}
        assert time.monotonic() < start + 2
    wait_for(lambda: handlers() == 0)


def test_many_parallel_searches_leave_room_for_others(subjects: Subjects) -> None:
    with serving(subjects) as started, contextlib.ExitStack() as stack:
        for _ in range(12):
            search = {"passage": passage(), "beam": 16, "length": 200}
            stack.enter_context(begin(started, "search", search)).recv(12)
        with begin(started, "next_token", {"passage": passage()}) as connection:
            assert everything(connection).startswith(b"HTTP/1.1 200")


def test_pages_that_write_take_turns(subjects: Subjects) -> None:
    with serving(subjects) as started, contextlib.ExitStack() as stack:
        came: list[list[float]] = [[], [], []]

        def read(connection: socket.socket, times: list[float]) -> None:
            with connection.makefile("rb") as lines:
                times += [time.monotonic() for line in lines if line.startswith(b"{")]

        asked = {"passage": passage(), "length": 200}
        readers = [
            threading.Thread(target=read, args=(stack.enter_context(begin(started, "write", asked)), times)) for times in came
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    assert [len(times) for times in came] == [200, 200, 200]
    half = [times[100] for times in came]  # nobody is done before the others have come far
    assert max(half) < min(times[-1] for times in came)


def test_half_a_text_is_left_while_others_are_answered(subjects: Subjects) -> None:
    """A connection that this side has closed for sending still gets its whole answer."""
    with serving(subjects) as started, begin(started, "next_token", {"passage": passage()}) as connection:
        connection.shutdown(socket.SHUT_WR)
        found = everything(connection)
        assert found == b"" or found.startswith(b"HTTP/1.1 200")


# ------------------------------------------------------------------------------------------------------ other addresses


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as tried:
        tried.bind(("::1", 0))
        return True
    return False


@pytest.mark.parametrize("host", ["::1", "::"])
@pytest.mark.skipif(not has_ipv6(), reason="this computer has no IPv6")
def test_ipv6(subjects: Subjects, host: str) -> None:
    with serving(subjects, host) as started:
        assert started.address.startswith("http://[::1]:" if host == "::1" else "http://127.0.0.1:")
        connection = http.client.HTTPConnection("::1", started.server_port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", f"/{started.token}/", headers={"Host": f"[::1]:{started.server_port}"})
            assert connection.getresponse().status == 200
        assert started.is_ours("[fe80::1]:80") == (host == "::")


def test_all_addresses_are_those_that_no_dns_can_fake(subjects: Subjects) -> None:
    with serving(subjects, "0.0.0.0") as started:
        assert started.address.startswith("http://127.0.0.1:")
        for host in ("192.168.7.8:80", "[fe80::1]", "localhost", socket.gethostname(), socket.gethostname().upper() + ":1"):
            assert started.is_ours(host), host
        for host in ("evil.example", "1.2.3", "[1.2.3.4", "::1", "0x7f.1", "127.0.0.1:80:80", "127.0.0.1 ", "localhost:"):
            assert not started.is_ours(host), host
        assert send(started, "GET", "")[0] == 200
        assert send(started, "GET", "", token="wrong")[0] == 403


def test_localhost_is_a_loopback_address(subjects: Subjects) -> None:
    with serving(subjects, "localhost") as started:
        assert started.ip.is_loopback
        assert send(started, "GET", "", Host=f"localhost:{started.server_port}")[0] == 200
