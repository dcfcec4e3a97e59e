"""What the scripts that attack the programs share: the command line, and the counts of what became of each try."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Set


def parse(about: str | None, tries: int) -> argparse.Namespace:
    """Parse the command line of a stress test: ``about`` describes it, ``tries`` is the default number of attempts."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n", 1)[0])
    parser.add_argument("--tries", type=int, default=tries)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first try")
    return parser.parse_args()


def repeat(arguments: argparse.Namespace, attempt: Callable[[int], tuple[str, str]], good: Set[str]) -> int:
    """Try each number, and print what went wrong and how often each thing came. ``attempt`` gives a try's result and what is to
    be told of it. Returns the exit status: 1 if a result was not ``good``."""
    counts: Counter[str] = Counter()
    slowest = 0.0
    for number in range(arguments.seed, arguments.seed + arguments.tries):
        started = time.monotonic()
        found, told = attempt(number)
        slowest = max(slowest, time.monotonic() - started)
        counts[found] += 1
        if found not in good:
            print(f"{found.upper()}: {told[:1500]}\n", flush=True)
    print(f"{sum(counts.values()):,} tries: {dict(counts)}; the slowest took {slowest:.1f} s")
    return 0 if set(counts) <= good else 1
