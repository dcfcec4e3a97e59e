"""Processes with a GPU each, which reach each other by NCCL, on the fake CuPy: the communicator's contract, training,
ranks that die, and which GPU each process takes."""

import multiprocessing
import os
import threading
from contextlib import nullcontext
from pathlib import Path

import experiments
import gpu_ranks
import pytest
from closeness import assert_same_bits

from tinyformer.common.errors import UserError
from tinyformer.training.config import best_workers
from tinytensor import distributed
from tinytensor.device.backend import BackendError, xp
from tinytensor.distributed import Alone, Communicator, RankError, processes
from tinytensor.distributed.gpus import gpus_of_ranks, showing
from tinytensor.distributed.nccl import Nccl

pytestmark = pytest.mark.needs("standin")

ROOT = Path(__file__).resolve().parents[2]
GPUS = 4  # that the fake CuPy imagines


@pytest.fixture
def nccl():
    from cupy.cuda import nccl

    return nccl


# ---------------------------------------------------------------------------------------------------- what ranks do


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_keep_the_contract(count, tmp_path):
    gpu_ranks.check_contract(distributed.run(gpu_ranks.contract, str(tmp_path), workers=count), count)


def test_two_ranks_train_as_one_does_with_two_shards():
    assert_same_bits(gpu_ranks.training(workers=2, shards=2), gpu_ranks.training(workers=1, shards=2))


def test_more_shards_than_ranks_and_uneven_parts():
    found, expected = gpu_ranks.training(workers=3, shards=5), gpu_ranks.training(workers=1, shards=5)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    assert found["validation"] == pytest.approx(expected["validation"], rel=1e-6)


def test_the_best_number_of_processes_is_that_of_the_gpus():
    assert best_workers(batch_size=12) == distributed.num_gpus() == GPUS
    assert best_workers(batch_size=6) == 3  # four would not be done sooner
    assert experiments.trainer(experiments.model(), workers=0, shards=0).shards == GPUS


# ---------------------------------------------------------------------------------------------------- ranks that die


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("is killed", RankError, r"^rank {} \(process \d+\) was killed by SIGKILL"),
        ("exits", RankError, r"^rank {} \(process \d+\) ended with status 3$"),
        ("raises", LookupError, "^nothing to be found here$"),
    ],
)
def test_rank_0_does_not_wait_for_a_rank_that(how, error, words, victim):
    with pytest.raises(error, match=words.format(victim)):
        distributed.run(gpu_ranks.fail, victim, how, workers=3)
    gpu_ranks.assert_nothing_is_left()


def test_no_rank_waits_for_rank_0_that_raises():
    with pytest.raises(LookupError):
        distributed.run(gpu_ranks.fail, 0, "raises", workers=3)
    gpu_ranks.assert_nothing_is_left()


def test_rank_0_does_not_wait_for_a_rank_that_waits_for_one_that_is_killed():
    with pytest.raises(RankError, match=r"^rank 2 \(process \d+\) was killed by SIGKILL"):
        distributed.run(gpu_ranks.wait_for_a_rank_that_waits, workers=3)
    gpu_ranks.assert_nothing_is_left()


def test_training_says_which_rank_was_killed():
    trained = experiments.trainer(experiments.model(), workers=2, shards=2)
    with (
        pytest.raises(UserError, match=r"^rank 1 .* was killed by SIGKILL.*: training stops after step 2"),
        trained.on_all_ranks(),
    ):
        experiments.losses_of(2, trained)
        multiprocessing.active_children()[0].kill()
        trained.train_step()
    gpu_ranks.assert_nothing_is_left()


class FirstOfTwo(Communicator):
    """Rank 0, whose other rank answers as it should, and then never comes to NCCL."""

    size = 2

    def scatter(self, values=None):
        return values[0]

    def gather(self, value):
        return [value, ("elsewhere", "a GPU")]

    def barrier(self):
        pass

    broadcast = all_reduce = None


def say_that_one_has_ended():
    raise RankError("rank 1 has ended")


def test_a_rank_that_never_comes_is_not_waited_for(nccl, monkeypatch):
    freed = threading.Event()
    monkeypatch.setattr(nccl, "NcclCommunicator", lambda size, name, rank: freed.wait())
    with pytest.raises(RankError, match=r"^rank 1 has ended$"):
        Nccl(FirstOfTwo(), say_that_one_has_ended)
    freed.set()


def test_an_error_of_the_network_ends_the_wait(nccl, monkeypatch):
    def refuse(self):
        raise nccl.NcclError(6)

    alone = Nccl(Alone())
    monkeypatch.setattr(nccl.NcclCommunicator, "check_async_error", refuse)
    with pytest.raises(RankError, match=r"NCCL cannot reach another rank .*: check the network"):
        alone.all_reduce([xp.ones(3)])
    with pytest.raises(nccl.NcclError):  # it was given up
        alone.all_reduce([xp.ones(3)])


def test_a_communicator_ends_with_its_processes(nccl):
    """Where NCCL would otherwise wait for them when the communicator is let go."""
    with pytest.raises(nccl.NcclError):
        distributed.run(gpu_ranks.itself, workers=2).all_reduce([xp.ones(3)])


# ---------------------------------------------------------------------------------------------- which GPU a rank takes


def test_each_process_sees_its_own_gpu():
    assert gpus_of_ranks(1) == ["0"]
    assert gpus_of_ranks(4) == ["0", "1", "2", "3"]


def test_rank_0_keeps_the_gpu_that_it_has(monkeypatch):
    monkeypatch.setattr(xp.cuda.runtime, "getDevice", lambda: 2)
    assert gpus_of_ranks(3) == ["2", "0", "1"]


def test_gpus_have_the_names_that_the_variable_gives_them(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937,3,1")
    monkeypatch.setattr(xp.cuda.runtime, "getDeviceCount", lambda: 3)
    assert gpus_of_ranks(3) == ["GPU-8932f937", "3", "1"]
    words = r"^each of 4 processes needs a GPU.* 3 GPUs visible in CUDA_VISIBLE_DEVICES: start at most 3$"
    with pytest.raises(BackendError, match=words):
        gpus_of_ranks(4)


def test_more_processes_than_gpus():
    with pytest.raises(BackendError, match=r"^each of 5 processes needs a GPU, and this machine has 4 GPUs: start at most 4$"):
        distributed.run(gpu_ranks.fail, 0, "raises", workers=5)
    gpu_ranks.assert_nothing_is_left()


@pytest.mark.parametrize("before", [None, "3,2"])
def test_the_variable_is_as_it_was_after_a_start(before, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    with pytest.raises(LookupError), showing("1"):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
        raise LookupError
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


def test_two_ranks_with_the_same_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "showing", lambda gpu: nullcontext())
    with pytest.raises(
        RankError, match=r"^ranks 0 and 1 have the same GPU, 0000:00:00.0 of .*: start at most one rank per GPU"
    ):
        distributed.run(gpu_ranks.contract, str(tmp_path), workers=2)
    gpu_ranks.assert_nothing_is_left()


def test_nccl_is_missing(nccl, monkeypatch):
    monkeypatch.setattr(nccl, "available", False)
    with pytest.raises(BackendError, match=r"^several GPUs need NVIDIA's NCCL.*: pip install nvidia-nccl-cu13"):
        Nccl(Alone())


def first_gpu(python, **variables):
    """The number of the GPU that a process with these variables takes, or the reason why it takes none."""
    code = "import tinytensor, cupy; print(cupy.cuda.runtime.deviceGetPCIBusId(0))"
    path = os.pathsep.join([str(ROOT / "tests" / "standin"), str(ROOT)])
    run = python(code, PYTHONPATH=path, TINYTENSOR_BACKEND="cupy", **variables)
    return int(run.stdout[5:7]) if run.returncode == 0 else run.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("variables", "gpu"),
    [
        ({}, 0),
        ({"MPI_LOCALRANKID": "0"}, 0),
        ({"MPI_LOCALRANKID": "3"}, 3),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
        ({"SLURM_LOCALID": "1"}, 1),
        ({"MPI_LOCALRANKID": "1", "SLURM_LOCALID": "0"}, 1),  # mpiexec within a job of Slurm
        ({"MPI_LOCALRANKID": "1", "CUDA_VISIBLE_DEVICES": "3,2,0"}, 2),
        ({"MPI_LOCALRANKID": "0", "CUDA_VISIBLE_DEVICES": "3,2,0"}, 3),
        ({"MPI_LOCALRANKID": "1", "CUDA_VISIBLE_DEVICES": "3"}, 3),  # the launcher has chosen
    ],
)
def test_a_process_of_a_launcher_takes_its_own_gpu(variables, gpu, python):
    assert first_gpu(python, **variables) == gpu


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "process number 5 of this machine has no GPU 4: start at most one process for each GPU"),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, "process number 5 of this machine has no GPU, as CUDA_VISIBLE_DEVICES=2,3 shows 2"),
        (
            {"CUDA_VISIBLE_DEVICES": ""},
            "no usable NVIDIA GPU: check that nvidia-smi lists one and that CUDA_VISIBLE_DEVICES does",
        ),
    ],
)
def test_a_launcher_that_starts_too_many_processes(variables, words, python):
    assert words in first_gpu(python, MPI_LOCALRANKID="4", **variables)


# -------------------------------------------------------------------------------------- the fake CuPy is strict

REFUSED = {
    "a name that is no bytes": (TypeError, lambda nccl, ours, x: nccl.NcclCommunicator(1, tuple(nccl.get_unique_id()), 0)),
    "a rank beyond the others": (RuntimeError, lambda nccl, ours, x: nccl.NcclCommunicator(1, nccl.get_unique_id(), 1)),
    "an array for an address": (TypeError, lambda nccl, ours, x: ours.allReduce(x, x, 3, nccl.NCCL_FLOAT32, 0, 0)),
    "more than there is": (ValueError, lambda nccl, ours, x: ours.broadcast(x.data.ptr, x.data.ptr, 13, nccl.NCCL_UINT8, 0, 0)),
    "a wider dtype": (ValueError, lambda nccl, ours, x: ours.allReduce(x.data.ptr, x.data.ptr, 3, nccl.NCCL_FLOAT64, 0, 0)),
    "no stream": (TypeError, lambda nccl, ours, x: ours.allReduce(x.data.ptr, x.data.ptr, 3, nccl.NCCL_FLOAT32, 0)),
    "a stream for its address": (
        TypeError,
        lambda nccl, ours, x: ours.allReduce(x.data.ptr, x.data.ptr, 3, nccl.NCCL_FLOAT32, 0, xp.cuda.get_current_stream()),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the name's listener, which nobody comes to
def test_the_stand_in_refuses(what, nccl):
    error, call = REFUSED[what]
    ours, x = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0), xp.ones(3, xp.float32)
    with pytest.raises(error):
        call(nccl, ours, x)
