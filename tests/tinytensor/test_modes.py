"""Modes: each thread and each task of asyncio has its own, however it enters and leaves them."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tinytensor as tt
from tinytensor.autograd import modes
from tinytensor.autograd.replaying import tracing


def leaf(value):
    return tt.tensor(value, requires_grad=True)


def test_one_context_object_in_several_threads_and_inside_itself():
    x, plain = leaf(2.0), tt.no_grad()
    inside, left = threading.Event(), threading.Event()
    seen = []

    def other():
        with plain:
            inside.set()
            left.wait(10)
            seen.append((x * x).requires_grad)
        seen.append((x * x).requires_grad)

    thread = threading.Thread(target=other)
    with plain, tt.enable_grad():
        thread.start()
        assert inside.wait(10)
        with plain:
            assert not (x * x).requires_grad
        assert (x * x).requires_grad
    assert (x * x).requires_grad
    left.set()
    thread.join()
    assert seen == [False, True]


def test_contexts_may_be_left_in_any_order():
    x = leaf(2.0)

    def plain():
        with tt.no_grad():
            yield

    first, second = plain(), plain()
    next(first)
    with tt.enable_grad():
        next(second)
        first.close()
        assert not (x * x).requires_grad
        second.close()
        assert (x * x).requires_grad
    assert (x * x).requires_grad


def test_a_context_that_another_thread_leaves():
    """So the garbage collector may close a generator. It changes nothing in that thread."""
    plain = tt.no_grad()

    def leave():
        with tt.no_grad():
            plain.__exit__(None, None, None)
            return (leaf(2.0) * 2.0).requires_grad

    with plain, ThreadPoolExecutor(1) as thread:
        assert not thread.submit(leave).result()
        assert not (leaf(2.0) * 2.0).requires_grad


MODES = {
    "no_grad": (tt.no_grad, "recording"),
    "detect_anomaly": (tt.detect_anomaly, "detecting_anomalies"),
    "keep_values": (tt.keep_values, "keeping_values"),
    "full_precision": (lambda: modes.Switched("full_precision", not modes.modes().full_precision), "full_precision"),
    "tracing": (lambda: tracing("a tracer"), "tracer"),
    "skipped": (tt.nn.init.skipped, "initialising"),
    "using": (lambda: tt.random.using(np.random.default_rng(0)), "generator"),
}


@pytest.mark.parametrize("mode, name", MODES.values(), ids=MODES)
def test_modes_hold_for_one_task(mode, name):
    """Of two tasks of asyncio that take turns, each has its own modes."""

    def value():
        return getattr(modes.modes(), name)

    async def inside():
        with mode():
            within = [value()]
            for _ in range(3):
                await asyncio.sleep(0)
                within.append(value())
        return within[0] != value() and len(set(map(id, within))) == 1

    async def outside():
        seen = [value()]
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(value())
        return seen == [usual] * 4

    async def together():
        return await asyncio.gather(inside(), outside(), inside(), outside())

    usual = value()
    assert asyncio.run(together()) == [True] * 4
    assert value() == usual


def test_a_decorated_coroutine_and_an_asynchronous_generator():
    x = leaf(2.0)

    @tt.no_grad()
    async def plain():
        before = (x * x).requires_grad
        await asyncio.sleep(0)
        return [before, (x * x).requires_grad]

    @tt.no_grad()
    async def items():
        for _ in range(2):
            try:
                yield (x * x).requires_grad
            except KeyError:
                yield "caught"

    async def use():
        with tt.enable_grad():
            results = await plain()
            found = items()
            async for item in found:
                results += [item, (x * x).requires_grad]
            found = items()
            return [*results, await found.asend(None), await found.athrow(KeyError), await found.aclose()]

    assert asyncio.run(use()) == [False, False, False, True, False, True, False, "caught", None]


def test_many_contexts_left_in_the_order_in_which_they_were_entered():
    contexts = [tt.no_grad() for _ in range(2000)]
    before = modes.modes()
    for context in contexts:
        context.__enter__()
    for context in contexts:
        context.__exit__()
    assert modes.modes() is before


def test_what_a_mode_decorates():
    x = leaf(2.0)

    class Plain:
        def __call__(self):
            yield (x * x).requires_grad

    class Awaited:
        async def __call__(self):
            return (x * x).requires_grad

    assert list(tt.no_grad()(Plain())()) == [False]
    assert asyncio.run(tt.no_grad()(Awaited())()) is False
    with pytest.raises(TypeError, match="functions and methods, not Plain"):
        tt.no_grad()(Plain)


def test_shards_have_all_modes_of_their_thread():
    """And those only: the threads of a pool may have been started inside of others."""
    with tt.nn.init.skipped():
        assert tt.parallel.run(lambda _: modes.modes().initialising, [0, 1]) == [False, False]
    assert tt.parallel.run(lambda _: modes.modes().initialising, [0, 1]) == [True, True]


def test_a_mode_decorates_without_parentheses() -> None:
    @tt.no_grad
    def double(x: tt.Tensor) -> tt.Tensor:
        return x * 2

    x = leaf(2.0)
    assert not double(x).requires_grad and double.__name__ == "double"
    assert tt.no_grad(tt.enable_grad(lambda: x * 2))().requires_grad
    for wrong in (False, 1):
        with pytest.raises(TypeError, match="decorate functions and methods, not"):
            tt.no_grad(wrong)
