"""The explorer's speed: how soon its page is painted, and how long a sampled token takes to the screen.

python benchmarks/explorer.py runs/char_gpt                        # a run of char_gpt.py, such as of configuration A
python benchmarks/explorer.py runs/char_gpt --output benchmarks/results

It needs Playwright (pip install playwright) and Chromium, whose path the variable CHROMIUM may tell.

- A token's way: the explorer's server runs in this process, and notes when the library has picked each token. A client in
  Python notes when its line has come; in Chromium a MutationObserver notes when it stands in the page, and the next animation
  frame when it is about to be painted. All three read the same clock.
- The same tokens are sampled without the explorer, too: how much longer a token takes with it is what its work costs.
- First paint: the process of ``python -m tinyformer.explore`` is started anew each time. The browser is open already, and goes
  to the address as soon as that is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import measure

PROMPT = "ROMEO:\n"
LIBRARY, CLIENT, PAGE, FRAME = "the library alone", "a client in Python", "the page", "the frame that shows it"

# Notes when each token that is written stands in the page, and when the next frame begins.
WATCH = """() => {
  const written = () => document.querySelectorAll("#view-write .written button.token").length;
  const now = () => (performance.timeOrigin + performance.now()) / 1000;
  window.came = [];
  window.framed = [];
  const before = written();
  new MutationObserver(() => {
    const count = written() - before;
    const time = now();
    const first = window.came.length;
    while (window.came.length < count) window.came.push(time);
    requestAnimationFrame(() => {
      for (let i = first; i < count; i++) window.framed[i] ??= now();
    });
  }).observe(document.getElementById("view-write"), { childList: true, subtree: true });
}"""
PAINTED = """() => {
  const [entry] = performance.getEntriesByName("first-contentful-paint");
  return entry ? [performance.timeOrigin / 1000, entry.startTime / 1000] : null;
}"""


class Watched:
    """An explorer's server in this process, which notes when the library has picked each token."""

    def __init__(self, folder: str):
        from tinyformer.decoding.sampling import sample
        from tinyformer.explore.serving.server import ExplorerServer
        from tinyformer.explore.views import writing
        from tinyformer.explore.views.subjects import Subjects

        self.subjects = Subjects([folder])
        self.model = self.subjects.names[0]
        self.sample = sample
        self.picked: list[float] = []
        setattr(writing, "sample", self._sample)  # noqa: B010 - a type checker need not know
        self.server = ExplorerServer(self.subjects)

    def _sample(self, *given: Any) -> Iterator[Any]:
        self.picked = []
        for ids in self.sample(*given):
            self.picked.append(time.time())
            yield ids

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """A context in which it answers."""
        thread = threading.Thread(target=self.server.serve_forever)
        with self.server:
            thread.start()
            try:
                yield
            finally:
                self.server.shutdown()
                thread.join()

    def alone(self, count: int) -> list[float]:
        """When each token was picked without the explorer."""
        from tinyformer.decoding.sampling import Sampling

        subject = self.subjects.get(self.model)
        ids = subject.encode(PROMPT)
        decoder = subject.decoder(len(ids) + count)
        return [time.time() for _ in self.sample(decoder, [ids], count, Sampling(), subject.ends, subject.forbidden)]

    def over_http(self, count: int) -> list[float]:
        """When the line of each token had come to a client."""
        ids = self.subjects.get(self.model).encode(PROMPT)
        asked = {"passage": {"model": self.model, "ids": ids}, "length": count}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port)
        with contextlib.closing(connection):
            path = f"/{self.server.token}/ask/write"
            connection.request("POST", path, json.dumps(asked), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return [time.time() for _ in iter(answer.readline, b"")]


def on_the_page(page: Any, count: int) -> tuple[list[float], list[float]]:
    """When each token stood in the page, and when the frame began that shows it."""
    page.reload()
    page.fill("#text", PROMPT)
    page.wait_for_selector("#prompt[aria-busy='false']")
    page.click("#tab-write")
    page.fill("#view-write input[name='length']", str(count))
    page.evaluate(WATCH)
    page.click("#view-write button.first")
    wait(lambda: page.evaluate("window.framed.length") >= count)
    return page.evaluate("[window.came, window.framed]")


def wait(until: Callable[[], Any]) -> Any:
    """What it gives as soon as that is true. Raises SideError after a minute."""
    end = time.monotonic() + 60
    while not (found := until()):
        if time.monotonic() > end:
            raise measure.SideError("the page did not show what was written")
        time.sleep(0.05)
    return found


def token_times(folder: str, browser: Any, turns: int, count: int) -> str:
    """A table of the time of a token, and one of its way from the library."""
    watched = Watched(folder)
    spans: dict[str, list[float]] = {name: [] for name in (LIBRARY, CLIENT, PAGE)}
    ways: dict[str, list[float]] = {name: [] for name in (CLIENT, PAGE, FRAME)}

    def note(name: str, came: Sequence[float]) -> None:
        """Add the seconds between tokens, and since the library picked each."""
        if name in spans:
            spans[name] += [later - earlier for earlier, later in pairwise(came)]
        if name in ways:
            ways[name] += [later - picked for picked, later in zip(watched.picked, came)]

    with watched.serving():
        page = browser.new_page()
        page.goto(watched.server.address)
        page.wait_for_selector("#prompt[aria-busy='false']")
        for turn in range(turns + 1):
            note(LIBRARY, watched.alone(count))
            note(CLIENT, watched.over_http(count))
            shown, framed = on_the_page(page, count)
            note(PAGE, shown)
            note(FRAME, framed)
            if not turn:  # it compiles, and fills caches
                for seconds in (*spans.values(), *ways.values()):
                    seconds.clear()
        page.close()
    base = statistics.median(spans[LIBRARY])
    rows = [[name, *_ms(statistics.median(s), statistics.median(s) - base)] for name, s in spans.items()]
    first = measure.table(["from one token to the next", "median ms", "over the library ms"], rows)
    rows = [[name, *_ms(statistics.median(w), _percentile(w), max(w))] for name, w in ways.items()]
    return f"{first}\n\n" + measure.table(["from the library to", "median ms", "95 % below ms", "longest ms"], rows)


def first_paints(folder: str, browser: Any, turns: int) -> str:
    """A table of how soon the page is painted."""
    from browsing import exploring

    names = ("process started to address printed", "process started to first contentful paint", "navigation to it")
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns + 1):  # the first is not counted: it reads files that the disk's cache does not hold yet
        context = browser.new_context()
        page = context.new_page()
        start = time.time()
        with exploring(Path(folder)) as explorer:
            printed = time.time()
            page.goto(explorer.address, wait_until="commit")
            origin, painted = wait(functools.partial(page.evaluate, PAINTED))
        context.close()
        if turn:
            for name, seconds in zip(names, (printed - start, origin + painted - start, painted)):
                found[name].append(seconds)
    rows = [[name, *_ms(statistics.median(times), max(times))] for name, times in found.items()]
    return measure.table(["first paint", "median ms", "longest ms"], rows)


def _ms(*seconds: float) -> list[str]:
    return [f"{1000 * s:.2f}" for s in seconds]


def _percentile(seconds: Sequence[float]) -> float:
    """What 95 % are at or below."""
    return statistics.quantiles(seconds, n=20, method="inclusive")[-1]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = measure.make_parser("Time the explorer: its first paint, and a sampled token's way to the screen.", turns=10)
    parser.add_argument("folder", metavar="FOLDER", help="a run of char_gpt.py, such as runs/char_gpt")
    parser.add_argument("--tokens", type=measure.positive, default=200, metavar="INT", help="tokens written in a turn")
    return measure.parse(parser, words)


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    from browsing import CHROMIUM, SWITCHES
    from playwright.sync_api import sync_playwright

    if not CHROMIUM:
        raise measure.SideError("there is no Chromium: apt install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        paints = first_paints(arguments.folder, browser, arguments.turns)
        tokens = token_times(arguments.folder, browser, arguments.turns, arguments.tokens)
        version = browser.version
        browser.close()
    what = f"{arguments.tokens} tokens in each of {arguments.turns} turns, sampled with temperature 1; Chromium {version}."
    title = "The explorer: first paint, and a sampled token's way to the screen"
    measure.publish(arguments.output, "explorer", title, f"{what}\n\n{paints}\n\n{tokens}", "numpy", "playwright")


if __name__ == "__main__":
    main()
