"""The explorer's command, and its page in a real browser: headless Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

from tinyformer.commands.main import main

ROOT = Path(__file__).resolve().parents[1]
# In PATH, or where the variable says. Chromium's headless shell comes first: a page costs it less than half the time.
NAMES = "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
SVG = "{http://www.w3.org/2000/svg}"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["__main__", "browsing", "preloaded"])


class Explorer:
    """A process that runs the explorer's command line. It is forked from a process that has imported the library, because the
    imports of a new process take longer than most tests."""

    def __init__(self, *folders: Path, port: int = 0):
        words = ["tinyformer", "explore", *map(str, folders), "--no-browser", "--port", str(port)]
        reader, writer = FORKS.Pipe(duplex=False)
        with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):  # where the forking process finds what it preloads
            self.process = FORKS.Process(target=run_command, args=(words, writer), daemon=True)
            self.process.start()
        writer.close()
        self.output = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")  # stays open: the process may print more
        lines = []
        for line in self.output:
            lines.append(line)
            if match := re.search(r"http://\S+", line):
                self.address = match[0]
                self.port = urlsplit(self.address).port or 0
                return
        raise AssertionError("".join(lines))

    def stop(self) -> None:
        """Kill the process, and print what else it printed, such as the traceback of a fault."""
        self.process.kill()
        self.process.join()
        with self.output:
            print(self.output.read(), end="")


def run_command(words: list[str], output: Connection) -> None:
    """Run a command line in this process. What it prints goes to ``output``."""
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, encoding="utf-8")  # the old objects may refer to files
    sys.argv = words
    main()


@contextlib.contextmanager
def exploring(*folders: Path, port: int = 0) -> Iterator[Explorer]:
    """A context with an explorer of these folders."""
    explorer = Explorer(*folders, port=port)
    try:
        yield explorer
    finally:
        explorer.stop()


class Tab:
    """A page of the browser, and what went wrong on it. What it still asks of an explorer that a test has ended is no fault."""

    def __init__(self, browser: Any, width: int = 1280, scheme: str = "light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.explorer: Explorer | None = None
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._listen)

    def _listen(self, said: Any) -> None:
        unanswered = said.text.startswith("Failed to load resource: net::ERR_")  # refused, or cut off
        ended = self.explorer is not None and not self.explorer.process.is_alive()
        if said.type == "error" and not (unanswered and ended):
            self.faults.append(said.text)

    def open(self, explorer: Explorer, view: str = "write", **texts: str) -> Any:
        """Open the explorer's page at a view, with a ``text`` (and a ``source``) as a link brings them. Returns Playwright's
        page."""
        self.explorer = explorer
        if self.page.url.startswith(explorer.address):
            self.page.goto("about:blank")  # a link to the page that is open would not load it again
        self.page.goto(explorer.address + (f"#{view}?{urlencode(texts)}" if texts else ""))
        self.page.wait_for_selector("#prompt[aria-busy='false']")
        self.page.click(f"#tab-{view}")
        return self.page


def wait_until(page: Any, expression: str) -> None:
    """Wait until an expression of JavaScript is true. (Playwright's wait_for_function needs eval, which the page forbids.)"""
    end = time.monotonic() + 30
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"{expression} did not become true"
        page.wait_for_timeout(20)


def saved(page: Any, button: Any) -> tuple[str, bytes]:
    """The name and the content of the file that a button saves, which is pressed by the keyboard."""
    button.focus()
    with page.expect_download() as download:
        button.press("Enter")
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def texts_of(svg: bytes) -> list[str]:
    """The texts of an SVG file, which uses no style sheet."""
    root = ElementTree.fromstring(svg)
    assert not [one for one in root.iter() if one.get("class") or one.tag == f"{SVG}style"]
    return [text.text or "" for text in root.iter(f"{SVG}text")]
