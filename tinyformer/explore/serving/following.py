"""Following a long computation that tells a callback how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

Tell = Callable[[Any], None]


class _GivenUp(Exception):
    """Nobody waits for the computation any more."""


def follow(work: Callable[[Tell], Any]) -> Iterator[Any]:
    """What ``work`` tells the function that it is given, and then what it returns, as an iterator.

    The work runs in a thread, and waits until each thing that it tells was asked for. If the iterator is closed, the work ends
    when it next tells something. Whatever it raises, the iterator raises.
    """
    asked: Queue[bool] = Queue()
    told: Queue[tuple[bool, Any]] = Queue()  # each with whether it is the last

    def tell(news: Any) -> None:
        told.put((False, news))
        if not asked.get():
            raise _GivenUp

    def run() -> None:
        try:
            found = work(tell) if asked.get() else None
        except _GivenUp:
            return
        except BaseException as error:
            told.put((True, error))
        else:
            told.put((True, found))

    threading.Thread(target=run, daemon=True).start()
    is_last = False
    try:
        while not is_last:
            asked.put(True)
            is_last, news = told.get()
            if is_last and isinstance(news, BaseException):
                raise news
            yield news
    finally:
        asked.put(False)
