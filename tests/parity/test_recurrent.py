"""Recurrent networks beside PyTorch's, with copied weights: outputs, final states, and the gradients of all that has one."""

import math

import numpy
import pytest
import torch
from parity.compare import COTANGENTS, assert_close, copy_weights

import tinytensor as tt

LENGTH, BATCH, INPUTS, WIDTH = 7, 4, 5, 6
LENGTHS = [7, 3, 1, 5]  # in no order, which PyTorch sorts
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
KINDS = {"RNN": {}, "RNN, relu": {"nonlinearity": "relu"}, "GRU": {}, "LSTM": {}}
OPTIONS = {
    "plain": {},
    "bidirectional": {"bidirectional": True},
    "2 layers": {"num_layers": 2},
    "2 layers, bidirectional": {"num_layers": 2, "bidirectional": True},
    "2 layers, bidirectional, batch first": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "2 layers, no bias, bidirectional": {"num_layers": 2, "bias": False, "bidirectional": True},
}
PROJECTED = {
    "plain": {},
    "2 layers, bidirectional": {"num_layers": 2, "bidirectional": True},
    "no bias, batch first": {"bias": False, "batch_first": True},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE)


def networks(kind, dtype="float32", **options):
    """Ours and PyTorch's, with PyTorch's initial weights."""
    name = kind.split(",")[0]
    torch.manual_seed(1)
    theirs = getattr(torch.nn, name)(INPUTS, WIDTH, **KINDS[kind], **options).to(getattr(torch, dtype))
    ours = getattr(tt.nn, name)(INPUTS, WIDTH, **KINDS[kind], **options).astype(dtype)
    copy_weights(ours, theirs)
    return ours, theirs


def flat(outputs, state):
    return [outputs, *(state if isinstance(state, tuple) else [state])]


def packed(theirs, x, state, lengths):
    """PyTorch's outputs and final state for sequences of these lengths."""
    pack, pad = torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence
    outputs, state = theirs(pack(x, torch.tensor(lengths), theirs.batch_first, enforce_sorted=False), state)
    return pad(outputs, theirs.batch_first, total_length=LENGTH)[0], state


def assert_same_network(ours, theirs, dtype, lengths=None, with_state=True, is_single=False):
    rng = numpy.random.default_rng(2)
    count = theirs.num_layers * (2 if theirs.bidirectional else 1)
    axes = (BATCH, LENGTH) if theirs.batch_first else (LENGTH, BATCH)
    widths = [theirs.proj_size or WIDTH, WIDTH][: 2 if isinstance(theirs, torch.nn.LSTM) else 1]
    if is_single:
        shapes = [(LENGTH, INPUTS), *[(count, width) for width in widths]]
    else:
        shapes = [(*axes, INPUTS), *[(count, BATCH, width) for width in widths]]
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes[: None if with_state else 1]]
    mine, its = [tt.tensor(a, requires_grad=True) for a in arrays], [torch.tensor(a, requires_grad=True) for a in arrays]
    own, expected = [None if not s else tuple(s) if len(s) == 2 else s[0] for s in (mine[1:], its[1:])]
    got = flat(*ours(mine[0], own, lengths))
    want = flat(*(theirs(its[0], expected) if lengths is None else packed(theirs, its[0], expected, lengths)))
    rng = numpy.random.default_rng(COTANGENTS)
    cotangents = [rng.standard_normal(tuple(out.shape)).astype(dtype) for out in want]
    sum((a * tt.tensor(c)).sum() for a, c in zip(got, cotangents, strict=True)).backward()
    sum((a * torch.tensor(c)).sum() for a, c in zip(want, cotangents)).backward()

    allowed = {"relative": TOLERANCE[dtype], "absolute": TOLERANCE[dtype]}
    for name, a, b in zip(("the outputs", "the final state", "the final cell"), got, want):
        assert_close(a, b, **allowed, what=name)
    for name, a, b in zip(("the input", "the state", "the cell"), mine, its):
        assert_close(a.grad, b.grad, **allowed, what=f"the gradient of {name}")
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert_close(p.grad, q.grad, **allowed, what=f"the gradient of {name}")


@dtypes
@every_kind
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all steps", "lengths"])
def test_networks(kind, options, lengths, dtype):
    assert_same_network(*networks(kind, dtype, **options), dtype, lengths)


@dtypes
@every_kind
def test_networks_that_start_from_zeros(kind, dtype):
    ours, theirs = networks(kind, dtype, num_layers=2, bidirectional=True)
    assert_same_network(ours, theirs, dtype, LENGTHS, with_state=False)


@dtypes
@every_kind
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_single_sequence(kind, batch_first, dtype):
    """It has no axis for the batch, so ``batch_first`` changes nothing."""
    ours, theirs = networks(kind, dtype, num_layers=2, bidirectional=True, batch_first=batch_first)
    assert_same_network(ours, theirs, dtype, is_single=True)


without_warning = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


@without_warning
@dtypes
@pytest.mark.parametrize("options", PROJECTED.values(), ids=PROJECTED)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all steps", "lengths"])
@pytest.mark.parametrize("with_state", [False, True])
def test_projections(options, lengths, with_state, dtype):
    assert_same_network(*networks("LSTM", dtype, proj_size=2, **options), dtype, lengths, with_state)


@without_warning
def test_projections_of_a_single_sequence():
    assert_same_network(*networks("LSTM", proj_size=3, num_layers=2), "float32", is_single=True)


# ---------------------------------------------------------------------------------------------------------------- cells


@dtypes
@every_kind
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(BATCH,), ()], ids=["batch", "single"])
@pytest.mark.parametrize("with_state", [True, False])
def test_cells(kind, bias, batch, with_state, dtype):
    """Three steps, whose inputs all get gradients."""
    name = kind.split(",")[0] + "Cell"
    theirs = getattr(torch.nn, name)(INPUTS, WIDTH, bias, **KINDS[kind]).to(getattr(torch, dtype))
    ours = getattr(tt.nn, name)(INPUTS, WIDTH, bias, **KINDS[kind]).astype(dtype)
    copy_weights(ours, theirs)
    rng = numpy.random.default_rng(COTANGENTS)
    states = 2 if name == "LSTMCell" else 1
    shapes = [*[(*batch, INPUTS)] * 3, *[(*batch, WIDTH)] * (states if with_state else 0)]
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    cotangents = [rng.standard_normal((*batch, WIDTH)).astype(dtype) for _ in range(states)]
    results = []
    for library, cell in ((tt, ours), (torch, theirs)):
        inputs = [library.tensor(a, requires_grad=True) for a in arrays]
        state = None if not with_state else tuple(inputs[3:]) if states == 2 else inputs[3]
        for x in inputs[:3]:
            state = cell(x, state)
        last = state if states == 2 else (state,)
        sum((s * library.tensor(c)).sum() for s, c in zip(last, cotangents, strict=True)).backward()
        results.append([*last, *[x.grad for x in inputs], *[p.grad for p in cell.parameters()]])
    for a, b in zip(*results, strict=True):
        assert_close(a, b, relative=TOLERANCE[dtype], absolute=TOLERANCE[dtype])


# ----------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_parameters_are_pytorchs_and_start_within_its_bounds(kind, options):
    tt.seed(0)
    ours, theirs = getattr(tt.nn, kind)(5, 64, **options), getattr(torch.nn, kind)(5, 64, **options)
    assert [(n, tuple(p.shape)) for n, p in ours.named_parameters()] == [
        (n, tuple(p.shape)) for n, p in theirs.named_parameters()
    ]
    values = numpy.concatenate([p.numpy().ravel() for p in ours.parameters()])
    assert 0.99 / math.sqrt(64) < numpy.abs(values).max() <= 1 / math.sqrt(64)
    assert abs(values.mean()) < 0.005
    assert values.std() == pytest.approx(1 / math.sqrt(64) / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_weights_go_back_to_pytorch(kind):
    ours = getattr(tt.nn, kind)(INPUTS, WIDTH, 2, bidirectional=True)
    theirs = getattr(torch.nn, kind)(INPUTS, WIDTH, 2, bidirectional=True)
    theirs.load_state_dict({name: torch.tensor(value.numpy()) for name, value in ours.state_dict().items()})
    assert_same_network(ours, theirs, "float32", LENGTHS)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_dropout_is_drawn_between_layers_alone(kind, layers):
    """With p = 1 nothing is random: all that reaches a layer after the first is 0, and the last outputs are not dropped."""
    ours, theirs = networks(kind, num_layers=layers, dropout=1.0)
    x = numpy.random.default_rng(0).standard_normal((LENGTH, BATCH, INPUTS)).astype("float32")
    for mode in ("train", "eval"):
        getattr(ours, mode)()
        getattr(theirs, mode)()
        for a, b in zip(flat(*ours(tt.tensor(x))), flat(*theirs(torch.tensor(x))), strict=True):
            assert_close(a, b, absolute=1e-6)
