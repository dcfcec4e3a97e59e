"""The sides of benchmarks/train_step.py: the encoder-decoder beside its PyTorch twin, what each option does to both sides,
and the arithmetic beside PyTorch's own count."""

import dataclasses
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import measure
import numpy
import pytest
import torch
import train_step
from configurations import CONFIGURATIONS, LABEL_SMOOTHING, PAD, GPTConfiguration, TransformerConfiguration
from measure import SideError, Worker
from parity.compare import assert_close, to_float64
from running import ROOT
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torch_models import copy_weights
from train_step import Products, PyTorch, Tinyformer, parse, sides_of

import tinytensor as tt
from tinyformer import evaluating
from tinytensor import parallel

GPT = GPTConfiguration(num_layers=2, num_heads=2, d_model=16, block_size=12, batch_size=6)
TRANSFORMER = TransformerConfiguration(
    num_layers=2, num_heads=2, d_model=16, block_size=12, batch_size=6, dropout=0.0, d_ff=24, vocab_size=30
)
both_kinds = pytest.mark.parametrize("configuration", [GPT, TRANSFORMER], ids=["GPT", "encoder-decoder"])


def sides(configuration, weights=None):
    """Both sides with the same weights, or with these."""
    ours, theirs = Tinyformer(configuration), PyTorch(configuration, compiled=False)
    if weights is not None:
        ours.model.load_state_dict({name: tt.tensor(array) for name, array in weights.items()})
    theirs.load(ours.weights())
    return ours, theirs


def times(configuration, **factors):
    """The same with this many times as much of each."""
    return dataclasses.replace(configuration, **{name: n * getattr(configuration, name) for name, n in factors.items()})


def dropouts(side, probability):
    """The names of the model's layers that drop with this probability."""
    layers = side.model.named_modules()
    return {name for name, layer in layers if type(layer).__name__ == "Dropout" and layer.p == probability}


# ------------------------------------------------------------------------------------------------- the encoder-decoder


def test_logits_losses_and_gradients_of_the_encoder_decoder():
    """Every parameter is random: a bias of 0 or a norm's weight of 1 hides mistakes, and so does an even attention. In float64
    rounding is so small that it passes for no mistake, nor a mistake for it."""
    ours, batches, loss_function = TRANSFORMER.tinyformer()
    rng = numpy.random.default_rng(0)
    for p in ours.parameters():
        p.assign((0.2 * rng.standard_normal(p.shape) + (p.ndim == 1)).astype("float32"))
    theirs = TRANSFORMER.pytorch()
    copy_weights(ours, theirs)
    to_float64(ours)
    theirs.double()
    batch, arrays = batches[0], [torch.tensor(a) for a in TRANSFORMER.batches()[0]]
    assert_close(ours(batch.source, batch.target_inputs), theirs(*arrays[:2]), 1e-10, what="the logits")
    with evaluating(ours), tt.no_grad():
        expected = theirs.eval().loss(*arrays)
        assert_close(loss_function(ours, batch), expected, 1e-10, what="the loss that is not smoothed")
    loss, expected = loss_function(ours.train(), batch), theirs.train().loss(*arrays)
    assert_close(loss, expected, 1e-10, what="the smoothed loss")
    loss.backward()
    expected.backward()
    for (name, p), (same, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == same
        assert_close(p.grad, q.grad, 1e-10, what=f"the gradient of {name}")


def test_padding_and_smoothing_count():
    source, inputs, outputs = TRANSFORMER.batches()[0]
    assert (source == PAD).any() and (outputs == PAD).any() and ((inputs == PAD) == (outputs == PAD)).all()
    assert (source != PAD).mean() > 5 / 6
    torch.manual_seed(0)
    theirs = TRANSFORMER.pytorch()
    arrays = [torch.tensor(a) for a in (source, inputs, outputs)]
    with torch.no_grad():
        targets = arrays[2].flatten()
        plain = torch.nn.functional.cross_entropy(theirs(*arrays[:2]).flatten(0, 1)[targets != PAD], targets[targets != PAD])
        assert float(theirs.eval().loss(*arrays)) == pytest.approx(float(plain))
        assert LABEL_SMOOTHING > 0 and float(theirs.train().loss(*arrays)) != pytest.approx(float(plain), rel=1e-4)


# ------------------------------------------------------------------------------------------------------------ the sides


@both_kinds
def test_both_sides_take_the_same_steps(configuration):
    ours, theirs = sides(configuration)
    assert ours.first_loss() == pytest.approx(theirs.first_loss(), rel=1e-5)
    losses = ours.losses(5)
    assert losses == pytest.approx(theirs.losses(5), rel=1e-4)
    assert len(set(losses)) == 5


@both_kinds
def test_the_first_loss_is_without_dropout_and_before_training(configuration):
    plain, _ = sides(configuration)
    ours, theirs = sides(dataclasses.replace(configuration, dropout=0.5), plain.weights())
    assert [ours.first_loss(), theirs.first_loss()] == pytest.approx(2 * [plain.first_loss()], rel=1e-5)
    assert ours.model.training and theirs.model.training


@both_kinds
def test_dropout_is_in_the_same_places_and_acts(configuration):
    plain, _ = sides(configuration)
    ours, theirs = sides(dataclasses.replace(configuration, dropout=0.25), plain.weights())
    assert dropouts(ours, 0.25) == dropouts(theirs, 0.25) == dropouts(plain, 0.0) != set()
    (without,) = plain.losses(1)
    for side in (ours, theirs):
        assert side.losses(1) != pytest.approx([without], rel=1e-5)


def test_a_difference_is_refused():
    for other in ([1.1, 2.0], [1.0, 2.1]):  # the first loss, and the first in training
        with pytest.raises(SideError, match=r"the first losses differ: PyTorch eager has \d\.1, tinyformer has [12]\.0"):
            train_step.check_losses(train_step.EAGER, other, [1.0, 2.0], 1e-5)
    train_step.check_losses(train_step.EAGER, [1.000001, 2.0], [1.0, 2.0], 1e-5)


def test_sides_that_differ_are_not_measured():
    with ExitStack() as stack, pytest.raises(SideError, match="the first losses differ: PyTorch eager has"):
        other = dataclasses.replace(GPT, batch_size=GPT.batch_size + 1)  # other batches
        sides = {train_step.OURS: (Tinyformer, GPT), train_step.EAGER: (PyTorch, other, False)}
        train_step.start(stack, GPT, sides, warm_up=1)


# ---------------------------------------------------------------------------------------------------------- the options


def test_configuration_dropout_and_sides_from_the_command_line(monkeypatch):
    found = []
    monkeypatch.setattr(train_step, "run", lambda configuration, sides, *_: found.append((configuration, list(sides))) or "")
    monkeypatch.setattr(tt, "kernels_name", "numpy")
    ours, eager = train_step.OURS, train_step.EAGER
    dropping = GPTConfiguration(num_layers=4, num_heads=4, d_model=128, block_size=64, batch_size=12, dropout=0.2)
    without = ["freed memory given back", "batch not cut into shards", *train_step.UNFUSED]
    assert CONFIGURATIONS["A"].dropout == 0.0 and CONFIGURATIONS["D"].dropout == 0.1
    for words, expected in {
        "": (CONFIGURATIONS["A"], [ours, eager]),
        "--configuration D": (CONFIGURATIONS["D"], [ours, eager]),
        "--configuration D --dropout 0": (dataclasses.replace(CONFIGURATIONS["D"], dropout=0.0), [ours, eager]),
        "--dropout 0.2 --compile": (dropping, [ours, eager, train_step.COMPILED]),
        "--workers 3": (CONFIGURATIONS["A"], ["tinyformer, 3 processes", ours, eager]),
        "--without": (CONFIGURATIONS["A"], [ours, eager, *without]),
    }.items():
        monkeypatch.setattr("sys.argv", ["train_step.py", *words.split()])
        train_step.main()
        assert found.pop() == expected


SWITCHED_OFF = """
import sys, train_step
from configurations import GPTConfiguration
name, operations = sys.argv[1:]
small = GPTConfiguration(num_layers=1, num_heads=2, d_model=16, block_size=12, batch_size=6)
side = train_step.unfused(train_step.UNFUSED.get(name, []), small)
import kernel_times
called = set()
side.losses(1)
with kernel_times.watched(called.add):
    side.losses(1)
print(*sorted(called & {*operations.split()}))
"""


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("layer norm not fused", "layer_norm_forward layer_norm_backward"),
        ("gelu not fused", "gelu_tanh_forward gelu_tanh_backward"),
        ("attention not fused", "multi_head_attention_forward multi_head_attention_backward"),
    ],
)
def test_a_side_without_a_fused_op_does_not_call_its_kernels(name, kernels):
    def called(name):
        path = os.pathsep.join(map(str, [ROOT, ROOT / "benchmarks", ROOT / "tests"]))
        environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "TINYTENSOR_KERNELS": "numpy"}
        command = [sys.executable, "-c", SWITCHED_OFF, name, kernels]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    assert called(name) == []
    assert called("nothing") == sorted(kernels.split())


def test_what_the_library_does_not_have_cannot_be_left_out():
    with pytest.raises(AttributeError, match="no attribute '_gone'"):
        train_step.unfused([f"{train_step.ATTENTION}._gone"], GPT)


@pytest.mark.parametrize("words", ["--dropout 1", "--dropout x", "--turns 0", "--steps -1", "--warm-up x"])
def test_what_cannot_be_is_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(words.split())
    assert ended.value.code == 2 and words.split()[0] in capsys.readouterr().err


@both_kinds
def test_sizes_reach_the_models_and_the_batches(configuration):
    larger = times(configuration, batch_size=2, block_size=3, num_layers=2)
    ours, theirs = sides(larger)
    assert ours.first_loss() == pytest.approx(theirs.first_loss(), rel=1e-5)
    assert all(array.shape == (12, 36) for array in larger.batches()[0])
    assert len({name for name, _ in theirs.model.named_modules() if name.endswith("attention")}) == larger.num_attentions()


def test_shards_are_the_trainers_and_are_said():
    assert Tinyformer(GPT, shards=3).trainer.shards == 3
    assert [line.split(",")[0] for line in Tinyformer(GPT, shards=3).libraries()] == ["3 shards"]
    assert "1 thread" in Tinyformer(GPT, shards=3).libraries()[0]
    assert not any("shards" in line for line in Tinyformer(GPT, shards=1).libraries())
    one, three = Tinyformer(GPT, shards=1), Tinyformer(GPT, shards=3)
    assert one.losses(3) == pytest.approx(three.losses(3), rel=1e-5)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_processes_take_the_steps_of_threads_and_end_with_their_side():
    sides = sides_of(GPT, workers=2)
    with Worker("threads", *sides[train_step.OURS]) as threads, Worker("processes", *sides["tinyformer, 2 processes"]) as side:
        assert [threads.call("first_loss"), *threads.call("losses", 5)] == [side.call("first_loss"), *side.call("losses", 5)]
        assert side.call("libraries")[0].startswith("2 processes, and in each: ")
        (memory,) = side.call("memory_of_ranks")
        assert threads.call("memory_of_ranks") == []
        assert 0 < memory["RssShmem"] < memory["VmHWM"]
        pid = side._process.pid
        (rank,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert not Path(f"/proc/{rank}").exists()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_reach_every_side(threads):
    with measure.environment(measure.thread_variables(threads)):
        made = {
            "plain": Worker("plain", Tinyformer, GPT, 1),
            "sharded": Worker("sharded", Tinyformer, GPT, 0),
            "theirs": Worker("theirs", PyTorch, GPT, False),
        }
    said = {}
    for name, worker in made.items():
        with worker:
            said[name] = worker.call("libraries")
    expected = measure.counted(threads, "thread")
    assert said["plain"][0].endswith(expected) and said["theirs"][-1] == expected
    assert ("2 shards" in said["sharded"][0]) == (threads == 2)


def test_the_environment_is_as_before(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(measure.os.environ)
    with measure.environment(measure.thread_variables(3)):
        assert measure.os.environ["OMP_NUM_THREADS"] == measure.os.environ["MKL_NUM_THREADS"] == "3"
    assert dict(measure.os.environ) == before


# ------------------------------------------------------------------------------------------------------- the arithmetic


@both_kinds
@pytest.mark.parametrize("factors", [{}, {"num_layers": 2}, {"block_size": 2, "batch_size": 3}], ids=str)
def test_operations_are_what_pytorch_counts(configuration, factors):
    configuration = times(configuration, **factors)
    model = configuration.pytorch()
    arrays = [torch.tensor(a) for a in configuration.batches()[0]]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.loss(*arrays).backward()
    assert configuration.operations() == counter.get_total_flops()


@both_kinds
def test_both_ways_of_the_products_do_all_of_them(configuration):
    for shards in (1, 4):
        products = [product for shard in train_step._products(configuration, shards) for product in shard]
        assert 2 * sum(a.shape[0] * a.shape[1] * b.shape[1] for a, b, _ in products) == configuration.product_operations()


@pytest.mark.parametrize("library", ["numpy", "tinytensor"])
def test_the_faster_way_of_the_products_is_taken(monkeypatch, library):
    monkeypatch.setattr(parallel, "default_shards", lambda: 2)
    for shards in (1, 2):
        monkeypatch.setattr(Products, "turn", lambda side, settle, steps: [1.0 + (len(side.shards) != shards)] * steps)  # noqa: B023
        side = Products(GPT, library)
        assert len(side.shards) == shards and side.libraries()[0].startswith("2 shards") == (shards == 2)
        side.step()


def test_all_libraries_compute_the_same_products():
    found = []
    for library in train_step.PRODUCTS.values():
        convert, multiply = train_step._multiplication(library)
        (products,) = train_step._products(GPT, 1, convert)
        for a, b, out in products:
            multiply(a, b, out=out)
        found.append([numpy.asarray(out) for _, _, out in products])
    for first, *others in zip(*found):
        for other in others:
            numpy.testing.assert_allclose(other, first, rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------------------------------------------------- the scripts


def test_a_whole_measurement(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(CONFIGURATIONS, "D", dataclasses.replace(TRANSFORMER, dropout=0.1))
    output = tmp_path / "results.md"
    words = f"train_step.py --configuration D --turns 2 --steps 1 --warm-up 1 --output {output}".split()
    monkeypatch.setattr("sys.argv", words)
    train_step.main()
    said = capsys.readouterr().out
    assert "dropout 0.1" in said and "matrix products alone" in said
    written = output.read_text(encoding="utf-8")
    assert written.startswith(f"# {said.rstrip()}\n\nMeasured on ") and "vocabularies of 30" in written
    lines = [line.strip("| ").split("|") for line in written.splitlines() if line.startswith("| ")]
    models = [train_step.OURS, train_step.EAGER, *measure.with_numpys_kernels(train_step.OURS, Tinyformer)]
    rows = {cells[0].strip(): [float(cell) for cell in cells[1:] if cell.strip()] for cells in lines[2 : 5 + len(models)]}
    assert list(rows) == [*models, *train_step.PRODUCTS]
    for name in models:
        median, fastest, _, of_ceiling, peak, imported = rows[name]
        assert 0 < fastest <= median and of_ceiling >= 0 and 0 < imported <= peak


def test_a_whole_measurement_of_processes():
    report = train_step.run(GPT, sides_of(GPT, workers=2), turns=2, steps=1, warm_up=1)
    ours = "tinyformer, 2 processes"
    rows = [line.strip("| ").split(" | ")[0].strip() for line in report.splitlines() if line.startswith("| ")]
    numpys = list(measure.with_numpys_kernels(ours, Tinyformer))
    measured, compared = [ours, train_step.OURS, train_step.EAGER, *numpys], [train_step.OURS, train_step.EAGER, *numpys]
    assert [row for row in rows[1:] if "---" not in row] == [*measured, *train_step.PRODUCTS, f"time of {ours} over", *compared]
    if sys.platform.startswith("linux"):
        assert re.search(r"^- memory of rank 1 .*: peak \d+ MB; after the steps all ranks share \d+ MB", report, re.M)
