"""The contract of a communicator, as checks that run on every rank. So one start of ranks makes all of them.

They are in a module, and not in a test's file, because spawned processes and those of mpiexec import it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinytensor import Tensor, distributed, nn
from tinytensor.distributed import Communicator, RankError, check_same
from tinytensor.distributed.processes import WINDOW  # the bytes that Processes sums at once

Check = Callable[[Communicator], None]

# -------------------------------------------------------------------------------------------------------- arrays


def terms(shape: Any, dtype: Any, size: int, seed: int = 0) -> list[np.ndarray]:
    """An array for each rank. Their sums have no rounding, in whatever order they are added."""
    rng = np.random.default_rng(seed)
    return [np.resize(rng.integers(0, 8, 1009), shape).astype(dtype) for _ in range(size)]  # a large array repeats itself


def same_on_all(ranks: Communicator, arrays: Sequence[np.ndarray]) -> None:
    """Check that all ranks have the same bits."""
    found = ranks.gather([hashlib.sha256(np.ascontiguousarray(array)).digest() for array in arrays])
    if found is not None:
        assert all(other == found[0] for other in found)


def reduces(ranks: Communicator, shapes: Sequence[Any], dtypes: Sequence[Any]) -> None:
    """Check the sums of arrays of these shapes and dtypes, all in one call."""
    of_ranks = [terms(shape, dtype, ranks.size, seed) for seed, (shape, dtype) in enumerate(zip(shapes, dtypes))]
    own = [each[ranks.rank].copy() for each in of_ranks]
    ranks.all_reduce(own)
    for array, each in zip(own, of_ranks):
        assert array.dtype == each[0].dtype
        np.testing.assert_array_equal(array, sum(each[1:], each[0]))
    same_on_all(ranks, own)


def check_all_reduce_of_each_dtype(ranks: Communicator) -> None:
    for dtype in ("float16", "float32", "float64", "int8", "uint8", "int32", "int64"):
        reduces(ranks, [(5, 3)], [dtype])


def check_all_reduce_of_a_foreign_byte_order(ranks: Communicator) -> None:
    with contextlib.suppress(ValueError):  # a transport may refuse it, but must not add the wrong bytes
        reduces(ranks, [(5,)], [">f4"])
    ranks.barrier()


def check_all_reduce_of_several_arrays(ranks: Communicator) -> None:
    reduces(ranks, [(2, 3), (4,), (1, 1, 1), (7,)], ["float32"] * 4)


def check_all_reduce_of_mixed_dtypes(ranks: Communicator) -> None:
    dtypes = ["float32", "float64", "float16", "float32", "int64", "float16"]
    reduces(ranks, [(3,), (2, 2), (5,), (4,), (6,), (1,)], dtypes)


def check_all_reduce_of_nothing(ranks: Communicator) -> None:
    ranks.all_reduce([])
    reduces(ranks, [(0,)], ["float32"])
    reduces(ranks, [(0, 3), (2,), (0,), ()], ["float32"] * 4)


def check_all_reduce_of_a_number(ranks: Communicator) -> None:
    reduces(ranks, [()], ["float32"])
    reduces(ranks, [(), (), (3,)], ["float32", "float64", "float32"])


def check_all_reduce_of_a_whole_window(ranks: Communicator) -> None:
    for count in (WINDOW // 4 - 1, WINDOW // 4, WINDOW // 4 + 1, WINDOW // 2):
        reduces(ranks, [count], ["float32"])
    reduces(ranks, [WINDOW // 4, 1], ["float32"] * 2)


def check_all_reduce_of_more_than_a_window(ranks: Communicator) -> None:
    reduces(ranks, [1000, WINDOW // 2 + 5, 3, WINDOW // 4 - 1, 0, 77], ["float32"] * 6)
    reduces(ranks, [WINDOW // 4, WINDOW // 4], ["float64", "float32"])


def check_all_reduce_again_and_again(ranks: Communicator) -> None:
    for step in range(100):
        array = np.full(1 + step % 3, step + ranks.rank, np.float32)
        ranks.all_reduce([array])
        assert set(array.tolist()) == {step * ranks.size + sum(range(ranks.size))}


def check_all_reduce_rounds_alike_on_all_ranks(ranks: Communicator) -> None:
    own = np.random.default_rng(ranks.rank).standard_normal(1001).astype(np.float32)
    all_terms = [np.random.default_rng(rank).standard_normal(1001) for rank in range(ranks.size)]
    ranks.all_reduce([own])
    np.testing.assert_allclose(own, sum(all_terms), rtol=0, atol=1e-5)
    same_on_all(ranks, [own])


def check_all_reduce_of_infinities_is_silent(ranks: Communicator) -> None:
    own = np.array([np.inf if ranks.rank == 0 else -np.inf, 3e38], np.float32)
    ranks.all_reduce([own])
    if ranks.size > 1:
        assert np.isnan(own[0])
        assert np.isinf(own[1])


def check_that_arrays_which_cannot_be_filled_are_refused(ranks: Communicator) -> None:
    if ranks.size > 1:
        for array in (np.ones((3, 4), np.float32).T, np.ones(8, np.float32)[::2]):
            for exchange in (ranks.all_reduce, ranks.broadcast):
                message = ""
                try:
                    exchange([array])
                except ValueError as error:
                    message = str(error)
                assert "contiguous" in message


def check_broadcast(ranks: Communicator) -> None:
    shapes: list[Any] = [(3,), (2, 2), (0,), (), WINDOW // 4, WINDOW // 2 + 1]
    for dtype in ("float32", "float16", "int64"):
        rank_0 = [terms(shape, dtype, 1, seed)[0] for seed, shape in enumerate(shapes)]
        own = [array.copy() if ranks.rank == 0 else np.zeros_like(array) for array in rank_0]
        ranks.broadcast(own)
        for array, expected in zip(own, rank_0):
            np.testing.assert_array_equal(array, expected)
    mixed = [np.full(3, 1 - min(ranks.rank, 1), "f4"), np.full(2, 1 - min(ranks.rank, 1), "f8")]
    ranks.broadcast(mixed)
    assert [array.tolist() for array in mixed] == [[1, 1, 1], [1, 1]]


def check_barrier(ranks: Communicator) -> None:
    time.sleep(0.02 * ranks.rank)
    before = time.monotonic()
    ranks.barrier()
    moments = ranks.gather((before, time.monotonic()))
    if moments is not None:
        assert min(after for _, after in moments) >= max(before for before, _ in moments)


# -------------------------------------------------------------------------------------------------------- values


def check_scatter_and_gather(ranks: Communicator) -> None:
    values = [{"rank": rank, "text": "é" * rank} for rank in range(ranks.size)]
    assert ranks.scatter(values if ranks.rank == 0 else None) == values[ranks.rank]
    found = ranks.gather(("from", ranks.rank))
    assert found == ([("from", rank) for rank in range(ranks.size)] if ranks.rank == 0 else None)
    assert ranks.scatter([None] * ranks.size if ranks.rank == 0 else None) is None


def check_large_values(ranks: Communicator) -> None:
    text = "x" * 3_000_000
    assert ranks.tell(text if ranks.rank == 0 else None) == text
    found = ranks.gather(text)
    assert found is None or found == [text] * ranks.size


def check_own(ranks: Communicator) -> None:
    for count in (0, 1, 2, 3, 7, 12):
        rows = list(range(count))
        parts = ranks.gather(rows[ranks.own(count)])
        if parts is not None:
            assert list(itertools.chain(*parts)) == rows
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


# ----------------------------------------------------------------------------------------------------- gradients


def parameters(count: int) -> list[nn.Parameter]:
    return [nn.Parameter(np.zeros((3, 2), np.float32)) for _ in range(count)]


def some(rank: int) -> np.ndarray:
    return np.arange(6, dtype=np.float32).reshape(3, 2) + rank


def total(ranks: Communicator) -> np.ndarray:
    return np.sum([some(rank) for rank in range(ranks.size)], axis=0)


def check_sum_gradients(ranks: Communicator) -> None:
    one, other = parameters(2)
    one.grad, other.grad = Tensor(some(ranks.rank)), Tensor(2 * some(ranks.rank))
    ranks.sum_gradients([one, other])
    np.testing.assert_array_equal(one.grad.numpy(), total(ranks))
    np.testing.assert_array_equal(other.grad.numpy(), 2 * total(ranks))
    one.grad = Tensor(some(ranks.rank))
    ranks.sum_gradients(one)
    np.testing.assert_array_equal(one.grad.numpy(), total(ranks))


def check_gradients_that_are_missing(ranks: Communicator) -> None:
    everywhere, last_only, nowhere = parameters(3)
    everywhere.grad = Tensor(some(ranks.rank))
    if ranks.rank == ranks.size - 1:
        last_only.grad = Tensor(some(0))
    ranks.sum_gradients([everywhere, last_only, nowhere])
    np.testing.assert_array_equal(everywhere.grad.numpy(), total(ranks))
    np.testing.assert_array_equal(last_only.grad.numpy(), some(0))
    assert nowhere.grad is None


def check_no_gradients_at_all(ranks: Communicator) -> None:
    ranks.sum_gradients([])
    several = parameters(2)
    ranks.sum_gradients(several)
    assert [p.grad for p in several] == [None, None]


def check_frozen_parameters_are_left_alone(ranks: Communicator) -> None:
    frozen, trained = parameters(2)
    frozen.requires_grad = False
    trained.grad = Tensor(some(ranks.rank))
    ranks.sum_gradients([frozen, trained])
    assert frozen.grad is None
    np.testing.assert_array_equal(trained.grad.numpy(), total(ranks))


def check_gradients_in_any_memory(ranks: Communicator) -> None:
    transposed, strided, read_only, repeated = several = parameters(4)
    transposed.grad = Tensor._wrap(np.asfortranarray(some(ranks.rank)))
    wide = np.zeros((3, 4), np.float32)
    wide[:, ::2] = some(ranks.rank)
    strided.grad = Tensor._wrap(wide[:, ::2])
    kept = some(ranks.rank)
    kept.flags.writeable = False
    read_only.grad = Tensor._wrap(kept)
    repeated.grad = Tensor._wrap(np.broadcast_to(np.float32(ranks.rank + 1), (3, 2)))
    ranks.sum_gradients(several)
    for p in (transposed, strided, read_only):
        np.testing.assert_array_equal(p.grad.numpy(), total(ranks))
    assert set(repeated.grad.numpy().ravel().tolist()) == {sum(range(1, ranks.size + 1))}


def check_gradients_that_share_memory(ranks: Communicator) -> None:
    one, other, reshaped = several = [*parameters(2), nn.Parameter(np.zeros((2, 3), np.float32))]
    shared = some(ranks.rank)
    one.grad, other.grad, reshaped.grad = Tensor._wrap(shared), Tensor._wrap(shared), Tensor._wrap(shared.reshape(2, 3))
    ranks.sum_gradients(several)
    for p in several:
        np.testing.assert_array_equal(p.grad.numpy().ravel(), total(ranks).ravel())


def check_gradients_that_share_memory_on_one_rank_only(ranks: Communicator) -> None:
    one, other = several = parameters(2)
    if ranks.rank == 0:
        one.grad = other.grad = Tensor._wrap(some(0))
    ranks.sum_gradients(several)
    for p in several:
        np.testing.assert_array_equal(p.grad.numpy(), some(0))


def check_a_parameter_that_occurs_twice(ranks: Communicator) -> None:
    (tied,) = parameters(1)
    tied.grad = Tensor._wrap(some(ranks.rank))
    ranks.sum_gradients([tied, tied])
    np.testing.assert_array_equal(tied.grad.numpy(), total(ranks))


def check_large_gradients_that_share_memory(ranks: Communicator) -> None:
    """They are in different summed pieces, so the second would see the sum of the first."""
    one, other = several = [nn.Parameter(np.zeros(WINDOW // 4, np.float32)) for _ in range(2)]
    shared = np.full(WINDOW // 4, ranks.rank + 1, np.float32)
    one.grad, other.grad = Tensor._wrap(shared), Tensor._wrap(shared[:])
    ranks.sum_gradients(several)
    for p in several:
        assert (p.grad.numpy() == sum(range(1, ranks.size + 1))).all()


# ----------------------------------------------------------------------------------------------------- agreement


def difference(ranks: Communicator, values: dict[str, Any]) -> str | None:
    try:
        check_same(ranks, "settings", values, "Mend that.")
    except RankError as error:
        return str(error)
    return None


def check_that_equal_values_agree(ranks: Communicator) -> None:
    array = np.arange(6.0).reshape(2, 3)
    order = array if ranks.rank else np.asfortranarray(array)  # equal values in another memory
    assert difference(ranks, {"array": order, "tensor": Tensor(array), "text": "x", "number": 0.1, "none": None}) is None
    assert difference(ranks, {}) is None


def check_that_other_values_are_named(ranks: Communicator) -> None:
    if ranks.size == 1:
        return
    last = ranks.rank == ranks.size - 1
    about = f"rank {ranks.size - 1} on "
    for value, other in (
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.array([0.0, 1e-300])),
        (Tensor(np.zeros(2)), Tensor(np.ones(2))),
        (1, 2),
        ("a", "b"),
    ):
        message = difference(ranks, {"same": 3, "different": other if last else value})
        assert message is not None
        assert message.startswith(about)
        assert message.endswith(" has other settings than rank 0: different. Mend that.")
    message = difference(ranks, {"missing": 1} if not last else {})
    assert message is not None
    assert ": missing. " in message
    message = difference(ranks, {f"value {i}": int(last) for i in range(5)})
    assert message is not None
    assert ": value 0, value 1, value 2 and 2 more. " in message


# ------------------------------------------------------------------------------------------------- all of the above

CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_") and name != "check_same"
}


def all_checks(ranks: Communicator) -> list[str] | None:
    """On rank 0: what went wrong, with the check's name and a traceback for each rank where something did."""
    found = []
    for name, check in CHECKS.items():
        message = ""
        try:
            check(ranks)
        except Exception:
            message = f"{name}, rank {ranks.rank}: {traceback.format_exc()}"
        found += [text for text in ranks.gather(message) or [] if text]
    return found if ranks.rank == 0 else None


if __name__ == "__main__":  # under mpiexec, with the file for what is found
    result = distributed.run(all_checks)
    if result is not None:
        with open(sys.argv[1], "wb") as file:
            pickle.dump(result, file)
