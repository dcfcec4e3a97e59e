"""Shards in threads: they give the loss and gradients of the whole batch, repeat random numbers, and leave nothing behind."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import garbage
import numpy as np
import pytest
from forking import in_a_fork, needs_fork
from threadpoolctl import threadpool_info, threadpool_limits

import tinytensor as tt
from tinytensor import parallel, random
from tinytensor.parallel import threads

ROWS = np.random.default_rng(1).standard_normal((7, 4))


def cut(parts: int) -> list[tt.Tensor]:
    return [tt.tensor(rows) for rows in np.array_split(ROWS, parts)]


def leaves() -> tuple[tt.Tensor, tt.Tensor]:
    rng = np.random.default_rng(2)
    return tuple(tt.tensor(rng.standard_normal(shape), requires_grad=True) for shape in [(4, 3), (3,)])  # type: ignore[return-value]


def loss_of(weight: tt.Tensor, bias: tt.Tensor, dropout: float = 0.0) -> Callable[[tt.Tensor], tt.Tensor]:
    return lambda rows: (tt.dropout(tt.tanh(rows @ weight + bias), dropout) ** 2).sum() / len(ROWS)


# -------------------------------------------------------------------------------------------------- loss and gradients


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_the_sum_of_the_losses_and_all_gradients_are_those_of_the_plain_backward(parts: int) -> None:
    whole, shared = leaves(), leaves()
    plain = loss_of(*whole)(tt.tensor(ROWS))
    plain.backward()
    total = parallel.backward(loss_of(*shared), cut(parts))
    assert not total.requires_grad
    assert (total.shape, total.dtype) == (plain.shape, plain.dtype)
    assert total.item() == pytest.approx(plain.item(), abs=1e-12)
    for one, other in zip(whole, shared):
        assert (other.grad.shape, other.grad.dtype) == (one.shape, one.dtype)
        np.testing.assert_allclose(other.grad.numpy(), one.grad.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("users", [{0}, {1}, {2}, {0, 2}, {1, 2}])
def test_a_leaf_that_some_shards_do_not_use(users: set[int]) -> None:
    everywhere, somewhere = (tt.tensor(np.ones(2), requires_grad=True) for _ in range(2))
    loss = lambda k: (everywhere * (k + 1.0)).sum() + ((somewhere * 10.0**k).sum() if k in users else 0.0)  # noqa: E731
    parallel.backward(loss, [0, 1, 2])
    assert everywhere.grad.tolist() == [6, 6]
    assert somewhere.grad.tolist() == [sum(10**k for k in users)] * 2


@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_are_added_to_those_there_are(parts: int) -> None:
    weight, bias = leaves()
    parallel.backward(loss_of(weight, bias), cut(parts))
    first, values = weight.grad, weight.grad.numpy().copy()
    parallel.backward(loss_of(weight, bias), cut(parts))
    np.testing.assert_allclose(weight.grad.numpy(), 2 * values, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(first.numpy(), values)


def test_gradients_of_shards_add_up_in_the_order_of_the_shards_whichever_thread_is_first() -> None:
    """1 + 1e16 - 1e16 is 0, but 1e16 - 1e16 + 1 is 1."""
    x, last = tt.tensor(np.ones(()), requires_grad=True), threading.Event()
    factors, grads = [1.0, 1e16, -1e16], []

    def forward_and_backward(shard: int) -> tt.Tensor:
        if shard == 2 or last.wait(30):
            loss = x * factors[shard]
            with threads.shard_gradients():
                loss.backward()
            grads.append(x.grad)
            last.set()
        return loss.detach()

    total = threads.accumulate(forward_and_backward, [0, 1, 2])
    assert (total.item(), x.grad.item()) == (0.0, 0.0)
    assert grads == [None] * 3  # .grad changes only when all shards have ended


def test_the_gradients_of_a_shard_that_raises_are_dropped() -> None:
    x = tt.tensor(np.ones(()), requires_grad=True)

    def fail(shard: int) -> tt.Tensor:
        with threads.shard_gradients():
            (x * 2.0).backward()
        raise KeyError(shard)

    with pytest.raises(KeyError, match="0"):
        threads.accumulate(fail, [0, 1])
    assert x.grad is None
    (x * 2.0).backward()
    assert x.grad.item() == 2.0


def test_a_shard_may_run_backward_twice_and_accumulate_inside() -> None:
    x = tt.tensor(np.ones(()), requires_grad=True)

    def twice(shard: int) -> tt.Tensor:
        with threads.shard_gradients():
            (x * 2.0).backward()
            (x * 3.0).backward()
            return parallel.backward(lambda factor: x * factor, [10.0, 20.0])

    assert threads.accumulate(twice, [0, 1]).item() == 60.0
    assert x.grad.item() == 70.0


def test_results_are_in_the_order_of_the_shards_which_run_at_the_same_time() -> None:
    everyone = threading.Barrier(3)  # opens only when all three threads wait at it

    def work(k: int) -> tuple[int, int]:
        everyone.wait(30)
        time.sleep((2 - k) * 0.01)  # the last one ends first
        return k, threading.get_ident()

    results = parallel.run(work, [0, 1, 2])
    assert [k for k, _ in results] == [0, 1, 2]
    assert len({thread for _, thread in results}) == 3


# ------------------------------------------------------------------------------------------------------ random numbers


def step_with_dropout(seed: int, parts: int, steps: int = 3) -> list[bytes]:
    """The bits of the losses and the gradients of some steps."""
    tt.seed(seed)
    weight, bias = leaves()
    losses = [parallel.backward(loss_of(weight, bias, dropout=0.5), cut(parts)) for _ in range(steps)]
    return [x.numpy().tobytes() for x in (*losses, weight.grad, bias.grad)]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_same_seed_and_number_of_shards_repeat_bit_for_bit(parts: int) -> None:
    first = step_with_dropout(5, parts)
    assert step_with_dropout(5, parts) == first
    assert step_with_dropout(6, parts) != first
    assert len(set(first[:3])) == 3  # every step is different


def test_no_shards_share_a_mask() -> None:
    drawn = [parallel.run(lambda _: tt.dropout(tt.ones(100)).tolist(), [0, 1, 2]) for _ in range(2)]
    assert all(a != b for a, b in itertools.combinations(drawn[0] + drawn[1], 2))


def test_one_shard_draws_what_is_drawn_without_shards() -> None:
    weight, bias = leaves()
    tt.seed(4)
    plain = loss_of(weight, bias, dropout=0.5)(tt.tensor(ROWS))
    state = tt.random.get_state()
    tt.seed(4)
    assert parallel.backward(loss_of(weight, bias, dropout=0.5), cut(1)).item() == plain.item()
    assert tt.random.get_state() == state


def test_what_shards_draw_leaves_no_trace_in_this_threads_generator() -> None:
    states = []
    for lengths in ([1, 1], [1000, 3]):
        tt.seed(4)
        before, mine = tt.random.get_state(), random.generator()
        parallel.run(tt.random.normal, lengths)
        assert random.generator() is mine
        states.append(tt.random.get_state())
    assert states[0] == states[1] != before


def test_a_thread_that_has_served_is_as_it_was() -> None:
    def fail(k: int) -> None:
        raise KeyError(k)

    with tt.no_grad(), pytest.raises(KeyError):
        parallel.run(fail, [0, 1])
    served = threads._threads(1)
    generators = [served.submit(random.generator).result() for _ in range(2)]
    assert generators[0] is generators[1] is not random.generator()  # that of the thread, and no shard's
    assert served.submit(lambda: (leaves()[0] * 2).requires_grad).result()


# --------------------------------------------------------------------------------------------------------------- modes


def test_no_grad_holds_in_the_shards() -> None:
    weight, _ = leaves()
    with tt.no_grad():
        assert parallel.run(lambda k: (weight * k).requires_grad, [1, 2, 3]) == [False] * 3
    assert parallel.run(lambda k: (weight * k).requires_grad, [1, 2, 3]) == [True] * 3


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_detect_anomaly_holds_in_the_shards(bad: int) -> None:
    x = tt.tensor(np.array([0.0]), requires_grad=True)
    forward = lambda k: tt.log(x - (k == bad))  # noqa: E731
    backward = lambda k: (tt.sqrt(x) if k == bad else x * 2).sum()  # noqa: E731
    for work, named in [
        (lambda: parallel.run(forward, range(3)), "log"),
        (lambda: parallel.backward(backward, range(3)), "sqrt"),
    ]:
        with tt.detect_anomaly(), pytest.raises(FloatingPointError, match=f"'{named}'"):
            work()
        work()  # outside there is no message


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("bad", [{0}, {1}, {2}, {1, 2}, {0, 2}])
def test_the_first_error_is_raised_after_all_have_ended(bad: set[int]) -> None:
    weight, bias = leaves()
    ended = []

    def loss(k: int) -> tt.Tensor:
        if k in bad:
            raise KeyError(k)
        time.sleep(0.05)  # long after the errors
        ended.append(k)
        return loss_of(weight, bias)(tt.tensor(ROWS))

    with pytest.raises(KeyError) as caught:
        parallel.backward(loss, [0, 1, 2])
    assert caught.value.args == (min(bad),)
    assert set(ended) == {0, 1, 2} - bad
    assert weight.grad is None
    assert parallel.run(lambda k: k + 1, [1, 2, 3]) == [2, 3, 4]


def test_a_step_leaves_nothing_to_the_garbage_collector() -> None:
    weight, bias = leaves()
    parallel.backward(loss_of(weight, bias, dropout=0.5), cut(3))
    with garbage.none_left():
        parallel.backward(loss_of(weight, bias, dropout=0.5), cut(3))


# ------------------------------------------------------------------------------------------------------ BLAS's threads


def blas_threads(_: Any = None) -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


needs_blas = pytest.mark.skipif(not blas_threads(), reason="needs a BLAS whose threads can be limited")


@needs_blas
def test_blas_has_one_thread_in_each_shard_and_its_own_number_afterwards() -> None:
    def fail(k: int) -> None:
        raise KeyError(k)

    with threadpool_limits(3, user_api="blas"):
        assert parallel.run(blas_threads, [0, 1]) == [{1}, {1}]
        assert blas_threads() == {3}
        with pytest.raises(KeyError):
            parallel.run(fail, [0, 1])
        assert blas_threads() == {3}
        assert parallel.run(blas_threads, [0]) == [{3}]  # a single shard may use all of them


@needs_blas
def test_as_many_shards_as_blas_would_use_threads_but_few() -> None:
    for blas, shards in [(1, 1), (3, 3), (9, 4)]:
        with threadpool_limits(blas, user_api="blas"):
            assert parallel.default_shards() == (shards if tt.backend_name == "numpy" else 1)


DEFAULT = "from tinytensor import parallel; print(parallel.default_shards())"


def test_the_environment_says_how_many_shards(python) -> None:
    one = dict.fromkeys(["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"], "1")
    assert python(DEFAULT, TINYTENSOR_BACKEND="numpy", **one).stdout == "1\n"


def test_on_a_gpu_there_is_one_shard(python) -> None:
    root = Path(tt.__file__).parents[1]
    code = f"from threadpoolctl import threadpool_limits; import numpy; threadpool_limits(3); {DEFAULT}"
    here = {"TINYTENSOR_BACKEND": "cupy", "PYTHONPATH": f"{root / 'tests' / 'standin'}:{root}"}
    assert python(code, **here).stdout == "1\n"
    if blas_threads():
        assert python(code, TINYTENSOR_BACKEND="numpy").stdout == "3\n"


def test_shards_inside_a_shard_run_one_after_the_other():
    def inner(n):
        return [n, float(tt.random.normal(()))]

    def outer(n):
        return parallel.run(inner, [n, n + 1])

    results = []
    for _ in range(2):
        tt.seed(0)
        results.append(parallel.run(outer, [10, 20]))
    assert [[n for n, _ in part] for part in results[0]] == [[10, 11], [20, 21]]
    assert results[0] == results[1]
    assert len({x for part in results[0] for _, x in part}) == 4


def test_in_a_shard_there_is_one_by_default() -> None:
    assert parallel.run(lambda _: parallel.default_shards(), [0, 1, 2]) == [1, 1, 1]


def test_no_shards():
    before = tt.random.get_state()
    assert parallel.run(lambda shard: shard, []) == []
    assert tt.random.get_state() == before
    with pytest.raises(ValueError, match="at least one"):
        parallel.backward(lambda shard: shard, [])


# ------------------------------------------------------------------------------------------------- threads and processes


@needs_fork
def test_a_forked_child_has_its_own_shards() -> None:
    doubled = lambda: parallel.run(lambda k: k * 2, [1, 2, 3]) == [2, 4, 6]  # noqa: E731
    assert doubled()
    assert in_a_fork(doubled)
    assert in_a_fork(lambda: in_a_fork(doubled))
    assert doubled()  # the parent goes on as before
    weight, bias = leaves()
    assert in_a_fork(lambda: parallel.backward(loss_of(weight, bias), cut(3)).shape == () and weight.grad is not None)


@needs_blas
@needs_fork
def test_a_child_forked_while_shards_run_is_not_held_to_one_thread() -> None:
    started, done = threading.Barrier(3), threading.Event()

    def wait(_: int) -> None:
        started.wait(30)
        done.wait(30)

    def child() -> bool:
        here = parallel.run(lambda _: blas_threads(), [0, 1])
        return here == [{1}, {1}] and blas_threads() == {3}

    with threadpool_limits(3, user_api="blas"):
        other = threading.Thread(target=lambda: parallel.run(wait, [0, 1]))
        other.start()
        started.wait(30)
        try:
            assert in_a_fork(child)
            assert blas_threads() == {1}
        finally:
            done.set()
            other.join(30)
        assert blas_threads() == {3}
        assert parallel.run(lambda _: in_a_fork(lambda: blas_threads() == {1}), [0]) == [False]
        with parallel.one_blas_thread():
            assert in_a_fork(lambda: blas_threads() == {1})


@needs_blas
@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_blas_has_its_threads_back_when_the_last_of_two_threads_is_done(first_leaves_first: bool) -> None:
    inside = threading.Barrier(3)
    leave = [threading.Event(), threading.Event()]

    def hold(number: int) -> None:
        with parallel.one_blas_thread():
            inside.wait(30)
            leave[number].wait(30)

    with threadpool_limits(3, user_api="blas"):
        threads = [threading.Thread(target=hold, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        inside.wait(30)
        assert blas_threads() == {1}
        if tt.backend_name == "numpy":
            assert parallel.default_shards() == 3
        for number in (0, 1) if first_leaves_first else (1, 0):
            assert blas_threads() == {1}
            leave[number].set()
            threads[number].join(30)
        assert blas_threads() == {3}


@needs_blas
def test_many_threads_use_shards_in_parallel() -> None:
    def work(results: list[Any]) -> None:
        results += [parallel.run(lambda k: k + 1, [1, 2]) for _ in range(100)]

    with threadpool_limits(3, user_api="blas"):
        results: list[Any] = []
        threads = [threading.Thread(target=work, args=(results,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == [[2, 3]] * 600
        assert blas_threads() == {3}


def test_two_threads_do_not_wait_for_one_anothers_shards() -> None:
    everyone = threading.Barrier(6)  # opens only when all shards of both are running

    def work() -> None:
        parallel.run(lambda _: everyone.wait(30), [0, 1, 2])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not everyone.broken


def test_the_threads_of_a_thread_end_with_it() -> None:
    before = threading.active_count()
    other = threading.Thread(target=lambda: parallel.run(lambda k: k, [0, 1, 2, 3]))
    other.start()
    other.join(30)
    for _ in range(500):
        if threading.active_count() <= before:
            return
        time.sleep(0.02)
    raise AssertionError("its shards' threads are still there")


def test_a_backward_inside_the_loss_sets_grad() -> None:
    """As in an adversarial example: the inner gradient is read before the loss is computed."""

    def loss(factor: float) -> tt.Tensor:
        x = tt.tensor([1.0, 2.0], requires_grad=True)
        (x * x).sum().backward()
        return (w * (x.detach() + x.grad)).sum() * factor

    w = tt.tensor([1.0, 1.0], requires_grad=True)
    assert tt.parallel.backward(loss, [1.0, 10.0]).item() == 99.0
    assert w.grad.tolist() == [33.0, 66.0]
