"""The explorer's command line, in separate processes: errors print a line or two, and signals end it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from explored import gpt_run

from tinyformer.commands import explore as explore_main
from tinyformer.commands.explore import _open, newest, parse, serve
from tinyformer.common.errors import plain_errors

ROOT = Path(__file__).resolve().parents[3]
PLACES = [str(ROOT), *(os.path.abspath(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place)]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PLACES)}


def start(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    """The process of a command line."""
    command = [sys.executable, "-m", "tinyformer", "explore", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{"env": ENVIRONMENT, **pipes, **options})


@contextlib.contextmanager
def running(*words: str | Path, **options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A context with a process that serves, and its address."""
    process = start(*words, **options)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "http://" in line, line + (process.stderr.read() if process.stderr else "")
        yield process, line.split(" at ")[-1].split()[0]
    finally:
        process.kill()
        process.communicate()


def is_served(address: str) -> bool:
    with urllib.request.urlopen(address, timeout=20) as page:
        return b"<!doctype html>" in page.read()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt_run(tmp_path_factory.mktemp("runs") / "gpt", latest=False)


Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return the error of an invalid command line."""

    def told(*words: str | Path) -> str:
        with pytest.raises(SystemExit) as end, plain_errors():
            serve(parse(list(map(str, words))))
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if "compiles its kernels" not in line]
        assert end.value.code == 2 and out == "" and 1 <= len(lines) <= 2 and lines[0].startswith("error: "), err
        return "\n".join(lines)

    return told


def test_a_mistake_is_no_traceback_and_status_2() -> None:
    process = start("nowhere")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2 and out == ""
    assert err == "error: nowhere does not exist: train first, or name the folder of another run\n"


@pytest.mark.parametrize(
    "words, told",
    [
        (["nowhere"], "nowhere does not exist: train first"),
        ([__file__], "test_main.py is a file: name the folder of a run, or of a model"),
        (["RUN", "RUN"], "given twice"),
        (["RUN", "RUN/../gpt"], "given twice"),
        (["RUN", ""], "the path is empty"),
        (["RUN", "--port", "70000"], "--port must be from 0 to 65535, got 70000"),
        (["RUN", "--port", "-1"], "--port must be from 0 to 65535, got -1"),
        (["RUN", "--port", "text"], "invalid int value"),
        (["RUN", "--host", "no.such.host.invalid"], "Choose another --host"),
        (["RUN", "--host", "192.0.2.1"], "Choose another --host"),
        (["RUN", "--host", "x" * 100], "Choose another --host"),
        (["RUN", "--host", ""], "--host"),
        (["RUN", "--nothing"], "--nothing"),
    ],
)
def test_mistakes_print_one_line(refused: Refused, run: Path, words: list[str], told: str) -> None:
    assert told in refused(*(word.replace("RUN", str(run)) for word in words))


def test_without_a_folder_the_newest_run_opens_or_an_error_helps(
    refused: Refused, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = refused()
    assert len(told.splitlines()) == 2 and "no run to explore in runs" in told and "explore runs/char_gpt" in told
    for name, written in (("old", 100), ("new", 300), ("middle", 200)):
        copied = shutil.copytree(run, tmp_path / "runs" / name)
        os.utime(copied / "best.safetensors", (written, written))
    (tmp_path / "runs" / "unfinished").mkdir()
    assert newest() == Path("runs/new")
    assert capsys.readouterr().err == ("runs/new is the newest of 3 runs in runs. Others: runs/middle, runs/old\n")


def test_a_field_that_is_not_known_is_named_with_its_file_and_what_to_do(refused: Refused, run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    settings = json.loads((folder / "config.json").read_text())
    settings["model"]["num_head"] = 4
    (folder / "config.json").write_text(json.dumps(settings))
    assert refused(folder) == (
        f"error: {folder}/config.json: model.num_head is 4, a field that this version does not know (was model.num_heads "
        "meant?): remove it if you added it, or use the version that wrote it, or a later one"
    )


def test_a_folder_that_holds_no_run_is_reported(refused: Refused, run: Path, tmp_path: Path) -> None:
    assert "config.json does not exist" in refused(tmp_path)
    assert "is a file: name the folder of a run" in refused(run / "config.json")
    config = tmp_path / "config.json"
    whole = ('{"text": 1}', '{"model": {}}', '{"model_type": 3}', '{"text": {"bpe_tokens": 1}}')
    for damaged in ("", "{", "[]", "\xff", "null", *whole):
        config.write_bytes(damaged.encode("latin-1"))
        assert str(tmp_path) in refused(tmp_path)
    config.write_text(json.dumps({"made_by": {"kind": "recall network", "program": "tinyformer"}}))
    assert "a run of a recall network" in refused(tmp_path)  # which no command uses any more


def test_damaged_files_of_a_run_are_reported(refused: Refused, run: Path, tmp_path: Path) -> None:
    for name in ("best.safetensors", "tokenizer.json", "config.json"):
        for content in (b"", b"{}", b"x" * 100):
            folder = tmp_path / f"{name} {len(content)}"
            folder.mkdir()
            for file in ("best.safetensors", "tokenizer.json", "config.json"):
                folder.joinpath(file).write_bytes(content if file == name else (run / file).read_bytes())
            assert str(folder) in refused(folder)
    (folder / "best.safetensors").unlink()
    (folder / "config.json").write_bytes((run / "config.json").read_bytes())
    assert "but no checkpoint: start that run again" in refused(folder)


def test_a_port_in_use_is_reported(refused: Refused, run: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert refused(run, "--port", port) == (f"error: 127.0.0.1, port {port}: Address already in use. Choose another --port")


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse(["--help"])
    out, err = capsys.readouterr()
    assert err == ""
    assert all(flag in out for flag in ("FOLDER", "--no-browser", "--port", "--host", "127.0.0.1", "8642", "Ctrl-C"))


def test_names_with_spaces_and_signs_are_served(run: Path, tmp_path: Path) -> None:
    names = ["a run of 日本 — <b> 'x' \"y\" %s {0}", "another"]
    if sys.platform == "linux":  # other systems refuse a name that is no UTF-8
        names.append(os.fsdecode(b"\xff\xfe"))
    for name in names:
        shutil.copytree(run, tmp_path / name)
    words = [names[0], *(tmp_path / name for name in names[1:])]  # of relative and of absolute paths
    with running(*words, "--no-browser", "--port", "0", cwd=tmp_path) as (_, address):
        assert is_served(address)
        request = urllib.request.Request(f"{address}ask/about", b"{}", {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            folders = json.load(answer)["folders"]
    shown = [str(word).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for word in words]
    assert folders == shown


@pytest.mark.parametrize("name, statuses", [("SIGINT", {0, 130}), ("SIGTERM", {-signal.SIGTERM, 143})])
def test_it_ends_quietly_also_while_it_answers(run: Path, name: str, statuses: set[int]) -> None:
    with running(run, "--no-browser", "--port", "0") as (process, address):
        host, port = address.split("/")[2].split(":")
        body = json.dumps({"passage": {"model": "best", "ids": [1]}, "length": 5000})
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            head = f"POST /{address.split('/')[3]}/ask/write HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert connection.recv(12) == b"HTTP/1.1 200"
            process.send_signal(getattr(signal, name))
            out, err = process.communicate(timeout=20)
    assert process.returncode in statuses and out == "" and err in ("", "interrupted\n", "\ninterrupted\n")


def test_other_computers_are_warned_of(run: Path) -> None:
    with running(run, "--no-browser", "--port", "0", "--host", "0.0.0.0") as (process, address):
        assert address.startswith("http://127.0.0.1:") and is_served(address)
        assert process.stdout is not None and process.stderr is not None
        assert socket.gethostname() in process.stdout.readline()
        assert "Warning: --host 0.0.0.0 lets other computers reach this page" in process.stderr.readline()


def test_it_continues_when_its_output_is_closed(run: Path) -> None:
    """As in | head -1."""
    process = start(run, "--no-browser", "--port", "0")
    assert process.stdout is not None and process.stderr is not None
    try:
        address = process.stdout.readline().split(" at ")[-1].split()[0]
        process.stdout.close()
        process.stderr.close()
        assert is_served(address) and is_served(address)
    finally:
        process.kill()
        process.wait()


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def screenless(folder: Path, **variables: str) -> dict[str, str]:
    """The environment of a terminal without a screen, which has only these programs."""
    graphical = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    kept = {name: value for name, value in ENVIRONMENT.items() if name not in graphical}
    return {**kept, "PATH": str(folder), "TERM": "xterm", **variables}


def test_the_browser_gets_a_private_file_and_may_block(run: Path, tmp_path: Path) -> None:
    """All users may read command lines. So that of the browser does not hold the token."""
    program(tmp_path / "programs", "mybrowser", f'echo "$1" > {tmp_path}/opened; exec /bin/sleep 60')
    environment = screenless(tmp_path / "programs", BROWSER="mybrowser")
    environment["TMPDIR"] = str(tmp_path)
    with running(run, "--port", "0", env=environment, start_new_session=True) as (process, address):
        wait_for(lambda: (tmp_path / "opened").exists() and (tmp_path / "opened").read_text().endswith("\n"))
        (file,) = tmp_path.glob("tinyformer-explore-*.html")
        assert (tmp_path / "opened").read_text() == f"{file.as_uri()}\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert f'content="0; url={address}"' in file.read_text()
        token = address.split("/")[3]
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                assert token.encode() not in folder.joinpath("cmdline").read_bytes()
        assert is_served(address)
        wait_for(lambda: not file.exists())  # once the page was opened
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does, which the browser gets, too
        _, err = process.communicate(timeout=20)
        assert process.returncode in (0, 130) and err in ("", "\ninterrupted\n")


@pytest.fixture
def opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., bool]:
    """Whether a program is started where there is no screen, and only this program. Nothing is said."""

    def does_open(name: str, script: str = "", **variables: str) -> bool:
        program(tmp_path / name, name, f": > {tmp_path}/opened\n{script}")
        for variable in set(os.environ) - set(kept := screenless(tmp_path / name, **variables)):
            monkeypatch.delenv(variable)
        for variable, value in kept.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setattr(webbrowser, "_tryorder", None)  # so that it looks for browsers again
        monkeypatch.setattr(webbrowser, "_browsers", {})
        _open("http://127.0.0.1/")
        assert capfd.readouterr() == ("", "")
        return (tmp_path / "opened").exists()

    return does_open


@pytest.mark.parametrize("name", ["w3m", "lynx", "links", "www-browser"])
def test_a_browser_of_the_terminal_does_not_take_it_over(opens: Callable[..., bool], name: str) -> None:
    assert not opens(name)


def test_the_file_of_a_page_that_is_not_opened_is_removed_at_the_end(run: Path, tmp_path: Path) -> None:
    environment = {**screenless(tmp_path / "none", BROWSER="nothing"), "TMPDIR": str(tmp_path)}
    with running(run, "--port", "0", env=environment) as (process, _):
        wait_for(lambda: bool(list(tmp_path.glob("tinyformer-explore-*.html"))))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert not list(tmp_path.glob("tinyformer-explore-*.html"))


def test_a_browser_that_does_not_open_is_reported(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def print_line(text: str) -> None:
        said.append(text)
        if text == explore_main.NOT_OPENED:
            raise KeyboardInterrupt

    monkeypatch.setattr(explore_main, "SLOW_START", 0.0)
    monkeypatch.setattr(explore_main, "print_line", print_line)
    monkeypatch.setattr(explore_main, "_open", lambda address: None)
    serve(parse([str(run), "--port", "0"]))
    assert [text.partition(" ")[0] for text in said] == ["Exploring", "No"]


def test_a_browser_that_is_missing_or_fails_is_no_matter(opens: Callable[..., bool]) -> None:
    assert not opens("none", BROWSER="mybrowser")
    assert opens("mybrowser", "exit 3", BROWSER="mybrowser")


# ------------------------------------------------------------------------------------------------------ a long life


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not say how much memory a process has")
def test_memory_threads_and_sockets_do_not_grow(run: Path) -> None:
    """Some hundred requests of each type, some abandoned, each over a new connection."""

    def numbers(process: subprocess.Popen[str]) -> tuple[int, int, int]:
        """Memory in kB, threads and open files."""
        said = Path(f"/proc/{process.pid}/status").read_text()
        found = {line.split(":")[0]: line.split()[1] for line in said.splitlines() if line.startswith(("VmRSS", "Threads"))}
        return int(found["VmRSS"]), int(found["Threads"]), len(os.listdir(f"/proc/{process.pid}/fd"))

    def settled(process: subprocess.Popen[str], files: int) -> tuple[int, int, int]:
        """The numbers once the connections, which are open files, have ended."""
        end = time.monotonic() + 20
        while numbers(process)[2] > files and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.2)  # for the end of their threads
        return numbers(process)

    with running(run, "--no-browser", "--port", "0") as (process, address):
        files = numbers(process)[2]
        place, token = address.split("/")[2:4]

        def ask(i: int) -> None:
            connection = http.client.HTTPConnection(place, timeout=20)
            with contextlib.closing(connection):
                for j in range(5):
                    passage = {"model": "best", "ids": [1 + (i + k) % 40 for k in range(1 + 30 * (j % 3))]}
                    name, asked = [
                        ("next_token", {"passage": passage}),
                        ("write", {"passage": passage, "length": 10}),
                        ("encode", {"model": "best", "text": "the fox " * (1 + i % 50)}),
                        ("encode", {"model": "nothing", "text": ""}),
                        ("write", {"passage": passage, "length": 5000}),  # of which only a little is read
                    ][j]
                    kind = {"Content-Type": "application/json"}
                    connection.request("POST", f"/{token}/ask/{name}", json.dumps(asked), kind)
                    answer = connection.getresponse()
                    answer.read(100 if j == 4 else None)

        for i in range(20):
            ask(i)
        middle = settled(process, files)
        for i in range(40):
            ask(i)
        last = settled(process, files)
    assert middle[2] == last[2] == files and middle[1] == last[1]
    assert last[0] < middle[0] + 2_000, f"{middle[0]} kB became {last[0]} kB"
