"""Processes that have a GPU each and sum gradients by NCCL: one process on one GPU, and more where there are more GPUs."""

import os
import subprocess
import sys

import gpu_ranks
import numpy as np
import pytest
from closeness import assert_same_bits
from living import check_that_they_end

import tinytensor as tt
from tinytensor import distributed
from tinytensor.distributed import Alone, RankError

if tt.backend_name == "cupy":
    from cupy.cuda import nccl

    from tinytensor.distributed.nccl import Nccl

    if not nccl.available:
        pytest.skip("needs NCCL: pip install nvidia-nccl-cu13 (or -cu12)", allow_module_level=True)

two_gpus = pytest.mark.skipif(
    tt.backend_name == "cupy" and distributed.num_gpus() < 2, reason="needs two GPUs that CUDA_VISIBLE_DEVICES shows"
)


def test_one_rank_has_a_communicator_of_nccl(tmp_path):
    alone = Nccl(Alone())
    try:
        gpu_ranks.check_contract(gpu_ranks.contract(alone, str(tmp_path)), 1)
    finally:
        alone.close()


@two_gpus
def test_all_gpus_keep_the_contract(tmp_path):
    count = distributed.num_gpus()
    gpu_ranks.check_contract(distributed.run(gpu_ranks.contract, str(tmp_path), workers=count), count)


@two_gpus
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_gpus_train_as_one_does_with_two_shards(dtype):
    assert_same_bits(gpu_ranks.training(workers=2, shards=2, dtype=dtype), gpu_ranks.training(workers=1, shards=2, dtype=dtype))


@two_gpus
def test_all_gpus_train_as_one_does_with_as_many_shards():
    count = distributed.num_gpus()
    found, expected = gpu_ranks.training(workers=0, shards=count), gpu_ranks.training(workers=1, shards=count)
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
    assert found["validation"] == pytest.approx(expected["validation"], abs=1e-5)


@two_gpus
@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("is killed", RankError, r"^rank 1 \(process \d+\) was killed by SIGKILL"),
        ("exits", RankError, r"^rank 1 \(process \d+\) ended with status 3$"),
        ("raises", LookupError, "^nothing to be found here$"),
    ],
)
def test_rank_0_does_not_wait_for_a_rank_that(how, error, words):
    with pytest.raises(error, match=words):
        distributed.run(gpu_ranks.fail, 1, how, workers=2)
    gpu_ranks.assert_nothing_is_left()


@two_gpus
def test_no_rank_waits_for_rank_0_that_raises():
    with pytest.raises(LookupError):
        distributed.run(gpu_ranks.fail, 0, "raises", workers=2)
    gpu_ranks.assert_nothing_is_left()


@two_gpus
def test_no_rank_waits_for_rank_0_that_is_killed(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, gpu_ranks.__file__, str(tmp_path)], timeout=120, env=environment)
    assert run.returncode == -9
    check_that_they_end([int((tmp_path / "1").read_text())], 60.0)
