"""Functions for several processes with a GPU each; spawned processes import them from here.

python tests/gpu/gpu_ranks.py FOLDER runs two of them, of which the first kills itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import experiments
import ml_dtypes
import numpy as np

import tinytensor as tt
from tinyformer.training.replica import Replica
from tinytensor import distributed, nn
from tinytensor.device.backend import from_numpy, to_numpy, xp
from tinytensor.distributed import Communicator

Found = dict[str, Any]
DTYPES = ["float32", "float64", "float16", ml_dtypes.bfloat16, "int8", "uint8", "int32", "uint32", "int64", "uint64"]
SHAPES = [(7, 3), (), (0,), (100_003,), (1,)]


def numbers(rank: int) -> list[Any]:
    """Arrays of every dtype and shape, other ones for each rank. Sums of integers fit into all dtypes."""
    rng = np.random.default_rng(rank)
    pairs = [(dtype, shape) for dtype in DTYPES for shape in SHAPES]
    wide = [rng.integers(0, 8, shape) if "int" in str(dtype) else rng.standard_normal(shape) for dtype, shape in pairs]
    return [np.asarray(values, dtype) for values, (dtype, _) in zip(wide, pairs)]


# ---------------------------------------------------------------------------------------------------- the contract


def contract(ranks: Communicator, folder: str) -> list[Found] | None:
    """What every method does: on rank 0 the findings of all ranks, which ``check_contract`` judges."""
    found: Found = {"gpu": xp.cuda.runtime.deviceGetPCIBusId(xp.cuda.runtime.getDevice())}

    arrays = [from_numpy(array) for array in numbers(ranks.rank)]
    ranks.broadcast(arrays)
    found["broadcast"] = [to_numpy(array) for array in arrays]

    arrays = [from_numpy(array) for array in numbers(ranks.rank)]
    ranks.all_reduce(arrays)
    found["sums"] = [to_numpy(array) for array in arrays]

    (Path(folder) / str(ranks.rank)).touch()
    ranks.barrier()
    found["came"] = sorted(path.name for path in Path(folder).iterdir())

    found["scattered"] = ranks.scatter([f"for {rank}" for rank in range(ranks.size)] if ranks.rank == 0 else None)
    found["told"] = ranks.tell({"by": ranks.rank})
    found["gathered"] = ranks.gather(ranks.rank)

    found["gradients"] = gradients(ranks)
    try:
        ranks.all_reduce([xp.zeros(3, bool)])
    except TypeError as error:
        found["refused"] = str(error)
    return ranks.gather(found)


def gradients(ranks: Communicator) -> list[Any]:
    """The sums of gradients that all ranks have, that one has, that none has, that two parameters share, and of a frozen
    parameter."""
    all_have, one_has, none_has, first, second, frozen = parameters = [nn.Parameter(tt.zeros((2, 3))) for _ in range(6)]
    all_have.grad = tt.full((2, 3), 1.0 + ranks.rank)
    if ranks.rank == ranks.size - 1:
        one_has.grad = tt.full((3, 2), 5.0).T  # a view, and not contiguous
    first.grad = second.grad = tt.full((2, 3), 10.0)
    frozen.grad, frozen.requires_grad = tt.full((2, 3), 7.0), False
    assert none_has.grad is None
    ranks.sum_gradients(parameters)
    return [None if p.grad is None else p.grad.numpy() for p in parameters]


def check_contract(found: list[Found] | None, ranks: int) -> None:
    """Is this what ``contract`` finds on so many ranks?"""
    assert found is not None and len(found) == ranks
    assert len({one["gpu"] for one in found}) == ranks
    first, of_ranks = found[0], [numbers(rank) for rank in range(ranks)]
    for rank, one in enumerate(found):
        for got, expected, again, terms in zip(one["sums"], first["sums"], one["broadcast"], zip(*of_ranks)):
            assert got.tobytes() == expected.tobytes()  # every rank has the same bits
            assert again.tobytes() == terms[0].tobytes()
            assert (got.shape, got.dtype) == (again.shape, again.dtype) == (terms[0].shape, terms[0].dtype)
            check_sum(got, terms)
        assert one["came"] == [str(number) for number in range(ranks)]
        assert one["scattered"] == f"for {rank}"
        assert one["told"] == {"by": 0}
        assert one["gathered"] == (list(range(ranks)) if rank == 0 else None)
        sums = [ranks * (ranks + 1) / 2, 5.0, None, 10.0 * ranks, 10.0 * ranks, 7.0]
        for got, value in zip(one["gradients"], sums):
            np.testing.assert_array_equal(got, None if value is None else np.full((2, 3), value, "float32"))
        assert "bool" in one["refused"] and "float32" in one["refused"]


def check_sum(got: Any, terms: tuple[Any, ...]) -> None:
    """Is this the sum? Two terms have one sum; of more, the order decides on the last bits."""
    is_narrow = got.dtype in ("float16", ml_dtypes.bfloat16)
    wide = [term.astype("float32") if is_narrow else term for term in terms]
    expected = sum(wide[1:], wide[0])
    if len(terms) == 2 or got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, expected.astype(got.dtype))
    elif is_narrow:
        np.testing.assert_allclose(got.astype("float32"), expected, rtol=2.0**-8)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# -------------------------------------------------------------------------------------------------------- training


def training(workers: int, shards: int, dtype: str = "float32", steps: int = 6) -> Found:
    """A short training run with dropout: its losses, the validation loss, and the weights in the end."""
    trained = experiments.trainer(experiments.model(dropout=0.1), workers=workers, shards=shards, dtype=dtype)
    with trained.on_all_ranks():
        losses = experiments.losses_of(steps, trained)
        validation = trained._validation_loss()
        trained._team.call_alike(Replica.check_weights)
    weights = {f"weights: {name}": experiments.wide(value) for name, value in trained.model.state_dict().items()}
    return {"losses": losses, "validation": np.array(validation), **weights}


# -------------------------------------------------------------------------------------------------------- failures


def fail(ranks: Communicator, victim: int, how: str) -> None:
    """One rank fails while the others' GPUs wait for it."""
    ranks.barrier()
    if ranks.rank == victim:
        FAILURES[how]()
    ranks.all_reduce([xp.ones(3)])


def raise_an_error() -> None:
    raise LookupError("nothing to be found here")


FAILURES = {"is killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "exits": lambda: os._exit(3), "raises": raise_an_error}


def leave_a_number_and_fail(ranks: Communicator, folder: str) -> None:
    """Rank 0 is killed. Each rank leaves its process's number in the folder."""
    (Path(folder) / str(ranks.rank)).write_text(str(os.getpid()))
    fail(ranks, 0, "is killed")


def wait_for_a_rank_that_waits(ranks: Communicator) -> None:
    """Rank 0 waits for rank 1, which waits for rank 2 as a GPU would, and that is killed."""
    ranks.barrier()
    if ranks.rank == 2:
        FAILURES["is killed"]()
    if ranks.rank == 1:
        threading.Event().wait()
    ranks.gather(None)


def assert_nothing_is_left() -> None:
    """No process runs on, and this one's GPU does not wait."""
    assert multiprocessing.active_children() == []
    assert float(xp.ones(3).sum()) == 3.0


def itself(ranks: Communicator) -> Communicator:
    return ranks


if __name__ == "__main__":
    distributed.run(leave_a_number_and_fail, sys.argv[1], workers=2)
