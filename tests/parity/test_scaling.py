"""The model of a step on many ranks gives the numbers that were computed by hand, and the benchmark round it measures ranks."""

import re

import pytest
import scaling
import step_model
from configurations import CONFIGURATIONS, GPTConfiguration
from measure import SideError, Times
from pytest import approx
from scaling import MPI, SHARED_MEMORY
from step_model import GPU, NETWORKS, Job, Network, Processor, Step

NETWORK = Network("a gigabyte a second", 1e9, 1e-6)
TINY = GPTConfiguration(num_layers=1, num_heads=2, d_model=16, block_size=12, batch_size=4)


def test_a_ring_and_a_tree_by_hand():
    assert step_model.ring(4, 8e6, NETWORK) == approx(6e-6 + 12e-3)  # 6 messages of 2 MB
    assert step_model.tree(4, 8e6, NETWORK) == approx(4e-6 + 32e-3)  # 2 levels up and 2 down, of 8 MB
    assert step_model.tree(5, 8e6, NETWORK) == approx(6e-6 + 48e-3)  # a fifth rank needs a third level
    assert step_model.ring(1, 8e6, NETWORK) == step_model.tree(1, 8e6, NETWORK) == 0
    assert step_model.faster(4, 8e6, NETWORK) == step_model.ring(4, 8e6, NETWORK)
    assert step_model.faster(1024, 8, NETWORK) == step_model.tree(1024, 8, NETWORK) == approx(20e-6, rel=0.01)


def test_windows_by_hand():
    three_pieces = 2 * step_model.WINDOW + 1
    assert step_model.windows(2, three_pieces, NETWORK) == approx(2.5e-9 * three_pieces + 6e-6)
    assert step_model.windows(4, three_pieces, NETWORK) == approx(2.75e-9 * three_pieces + 6e-6)
    assert step_model.windows(1, three_pieces, NETWORK) == 0


def test_a_step_by_hand():
    job = Job(parameters=1_000_000, operations=2e9)
    processor = Processor("a core", speed=1e12, update=1e-9, fixed=5e-4)
    found = step_model.step(job, processor, NETWORK, ranks=4, sequences=10)
    assert found.computing == approx(0.5e-3 + 3 * 2e-3)  # one of the ranks has 3 sequences
    assert found.reducing == approx(6e-6 + 6e-3)  # 4 MB round a ring
    assert found.updating == approx(1e-3)
    assert found.total == approx(13.506e-3)
    alone = step_model.step(job, processor, NETWORK, ranks=1, sequences=10)
    assert (alone.computing, alone.reducing, alone.updating) == (approx(20.5e-3), 0, approx(1e-3))


def test_ranks_that_share_cores_take_turns_by_hand():
    job = Job(parameters=1_000_000, operations=2e9)
    processor = Processor("a core", speed=1e12, update=1e-9, fixed=5e-4, cores=2, shares_updates=True)
    two = step_model.step(job, processor, NETWORK, 2, 10, step_model.ring)
    assert (two.computing, two.reducing, two.updating) == (approx(10.5e-3), approx(4.002e-3), approx(0.5e-3))
    four = step_model.step(job, processor, NETWORK, 4, 10, step_model.ring)
    assert (four.computing, four.reducing, four.updating) == (approx(11e-3), approx(2 * 6.006e-3), approx(0.5e-3))


def test_overlap_hides_reducing_behind_two_thirds_of_computing():
    assert Step(computing=9, reducing=5, updating=1).overlapped == approx(3 + 6 + 1)
    assert Step(computing=3, reducing=5, updating=1).overlapped == approx(1 + 5 + 1)
    assert Step(computing=3, reducing=5, updating=1).total == 9


def test_efficiency_by_hand():
    assert step_model.efficiency(16, 2, seconds=4.0, alone=8, seconds_alone=2.0) == 0.5  # a batch that grows
    assert step_model.efficiency(480, 4, seconds=0.5, alone=480, seconds_alone=1.0) == 0.5  # a batch that is divided


def test_gpt2_by_hand():
    job = step_model.job_of(step_model.GPT2, step_model.GPT2_PARAMETERS)
    assert job.gradient_bytes == 497_759_232
    # 6 for each parameter in a matrix and token; in each of 12 layers 12 for each token, place in the block and width
    matrices = 12 * 12 * 768 * 768 + 50304 * 768
    assert job.operations == 6 * matrices * 1024 + 12 * 12 * 1024 * 1024 * 768
    (two,) = [row for row in step_model.rows_of_gpt2(GPU, NETWORKS[0]) if row[0] == "2"]
    # 498 MB at 1.25 GB/s; 8 sequences of 0.875 TFLOP at 396 TFLOP/s take 17.7 ms, and 240 of them 531 ms; AdamW 1.04 ms
    weak, weak_overlapped = 18.73 / (17.69 + 398.27 + 1.04), 18.73 / (17.69 / 3 + 398.27 + 1.04)
    strong, strong_overlapped = 1062.5 / 2 / (530.7 + 398.27 + 1.04), 1062.5 / 2 / (530.7 / 3 + 398.27 + 1.04)
    assert two[:4] == ["2", "398", "796", "17.7"] and two[6] == "531"
    found = [float(cell) for cell in two[4:6] + two[7:]]
    assert found == approx([100 * weak, 100 * weak_overlapped, 100 * strong, 100 * strong_overlapped], abs=0.1)
    assert [row[0] for row in step_model.rows_of_gpt2(GPU, NETWORKS[0])][-1] == "1024"


def test_constants_are_found_again_in_what_they_cause():
    job = Job(parameters=1000, operations=6.0)
    found = scaling.processor_from(job, 10, whole=12.0, half=7.0, update=1.0, shares_updates=True)  # 1 a sequence, 1 always
    assert (found.speed, found.fixed, found.update, found.shares_updates) == (6.0, 1.0, 0.001, True)
    assert step_model.step(job, found, NETWORK, 1, 10).total == approx(12.0)
    noisy = scaling.processor_from(job, 10, whole=12.0, half=6.0, update=1.0, shares_updates=True)
    assert noisy.fixed == 0 and step_model.step(job, noisy, NETWORK, 1, 10).total == approx(12.0)


@pytest.mark.parametrize("by", [SHARED_MEMORY, MPI])
def test_bandwidth_is_found_again_in_the_sum_of_two_ranks(by):
    job = Job(parameters=10_000_000, operations=1.0)
    seconds = scaling.REDUCTIONS[by](2, job.gradient_bytes, NETWORK)
    found = scaling.network_from(by, job, seconds, NETWORK.latency)
    assert (found.bandwidth, found.latency) == (approx(1e9), 1e-6)
    assert scaling.network_from(by, job, seconds, latency=1.0).bandwidth > 0  # barriers that took longer than the sum


def times(*seconds):
    found = Times()
    found.turns = [list(seconds)]
    return found


def test_the_model_stands_beside_what_was_measured(monkeypatch):
    monkeypatch.setattr(scaling, "transports", lambda: {SHARED_MEMORY: None})
    monkeypatch.setattr(scaling, "cores", lambda: 2)
    found = {
        ("alone", "A"): {"step": times(0.050), "update": times(0.002)},
        ("half", "A"): {"step": times(0.027)},  # 12 ms a sequence, and 2 ms of every step but the optimizer's 2
        (SHARED_MEMORY, "A", "2"): {"step": times(0.032)},
        (SHARED_MEMORY,): {"A": times(0.004), "barrier": times(1e-6), "message": times(1e-6)},
    }
    plan = scaling.Plan({"A": TINY}, most_ranks=2, turns=1, steps=1, warm_up=1)
    last = scaling.beside_measured(plan, found).splitlines()[-1]
    # half of 46 ms and what every step costs, the sum of two ranks as measured, half of the optimizer's step
    assert re.split(r" *\| *", last.strip("| ")) == [
        "A, shared memory, 2",
        "32.0",
        "32.0",
        "25.0",
        "4.00",
        "1.00",
        "30.0",
        "-6%",
    ]
    assert "MPI was not measured: mpi4py or mpiexec is not installed" in scaling.constants_here(plan, found)


def test_what_fails_on_a_rank_is_told():
    with pytest.raises(SideError, match=r"(?s)training on 1 rank by shared memory failed:.*AttributeError"):
        scaling.measured(SHARED_MEMORY, 1, scaling.training, None, 1, 1)


def test_every_transport_sums_and_trains():
    for by in scaling.transports():
        found = scaling.measured(by, 2, scaling.exchange, {"tiny": TINY}, 3)
        assert {what: len(seconds) for what, seconds in found.items()} == {"tiny": 3, "barrier": 3, "message": 3}
        (seconds,) = scaling.measured(by, 2, scaling.training, TINY, 1, 4).values()
        assert len(seconds) == 4 and min(seconds) > 0


def test_a_whole_measurement(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(scaling, "transports", lambda: {SHARED_MEMORY: None})
    for name in scaling.MEASURED:
        monkeypatch.setitem(CONFIGURATIONS, name, TINY)
    output = tmp_path / "scaling.md"
    words = f"--turns 1 --steps 1 --warm-up 1 --ranks 2 --output {output}"
    monkeypatch.setattr("sys.argv", ["scaling.py", *words.split()])
    scaling.main()
    text = output.read_text(encoding="utf-8")
    assert text.startswith("# A training step on many ranks\n\n## Measured here, on ")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].strip("| ") for row in rows if re.match(r"\| [AC], ", row)] == [
        *["A, one rank", "A, shared memory, 2"],
        *["C, one rank", "C, shared memory, 2"],
    ]
    assert sum(row.startswith("| 1024 ") for row in rows) == 2 + 3  # a core with two networks, a GPU with three
    assert "turn 1 of 1: shared memory A 2" in capsys.readouterr().err


def test_no_ranks_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        scaling.parse(["--ranks", "0"])
    assert ended.value.code == 2 and "--ranks" in capsys.readouterr().err
