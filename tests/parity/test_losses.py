"""The losses against PyTorch in float32. PyTorch's class axis is the second, ours the last."""

import numpy
import pytest
import torch
import torch.nn.functional as F
from parity.compare import assert_same

import tinytensor as tt

REDUCTIONS = ["mean", "sum", "none"]


def normal(*shape, scale=1.0, seed=0):
    """float32 numbers, the same on every run."""
    return (numpy.random.default_rng(seed).standard_normal(shape) * scale).astype("float32")


def classes_second(x):
    """PyTorch's order of the axes: (batch, classes, ...) for (batch, ..., classes)."""
    return x.movedim(-1, 1) if x.ndim > 1 else x


def targets(shape, classes=7, ignored=None):
    ids = numpy.random.default_rng(1).integers(0, classes, shape)
    if ignored is not None:
        ids.reshape(-1)[::3] = ignored
    return ids


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignored", [None, -100, 3], ids=lambda i: f"ignore {i}")
@pytest.mark.parametrize("shape", [(), (8,), (2, 5), (2, 3, 4)], ids=str)
def test_cross_entropy_of_classes(shape, ignored, label_smoothing, reduction):
    if shape == () and ignored is not None:
        ids = targets(shape)  # one row that is ignored is a mean over nothing, which has a test of its own
    else:
        ids = targets(shape, ignored=ignored)
    settings = {"label_smoothing": label_smoothing, "reduction": reduction}
    settings["ignore_index"] = -100 if ignored is None or shape == () else ignored
    assert_same(
        lambda x: tt.cross_entropy(x, tt.tensor(ids), **settings),
        lambda x: F.cross_entropy(classes_second(x), torch.tensor(ids), **settings),
        normal(*shape, 7, scale=3.0),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(), (8,), (2, 5), (2, 3, 4)], ids=str)
def test_cross_entropy_of_probabilities(shape, label_smoothing, reduction):
    """The targets have a gradient, too."""
    chances = normal(*shape, 7, seed=1)
    chances = numpy.exp(chances) / numpy.exp(chances).sum(-1, keepdims=True)
    settings = {"label_smoothing": label_smoothing, "reduction": reduction}
    assert_same(
        lambda x, t: tt.cross_entropy(x, t, **settings),
        lambda x, t: F.cross_entropy(classes_second(x), classes_second(t), **settings),
        normal(*shape, 7, scale=3.0),
        chances,
    )


@pytest.mark.parametrize("shift, scale", [(1000.0, 1.0), (-1000.0, 1.0), (0.0, 100.0)])
def test_cross_entropy_of_large_logits(shift, scale):
    x, ids = normal(6, 7, scale=scale) + numpy.float32(shift), targets((6,))
    assert_same(lambda x: tt.cross_entropy(x, tt.tensor(ids)), lambda x: F.cross_entropy(x, torch.tensor(ids)), x)


def test_cross_entropy_of_classes_ruled_out():
    """Logits of -inf for classes that are not the target: a probability of exactly 0, and no NaN."""
    x = normal(4, 7)
    x[:, 5] = -numpy.inf
    ids = numpy.array([0, 6, 2, 2])
    assert_same(lambda x: tt.cross_entropy(x, tt.tensor(ids)), lambda x: F.cross_entropy(x, torch.tensor(ids)), x)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_cross_entropy_where_all_is_ignored(reduction):
    ids = numpy.full(4, -100)
    assert_same(
        lambda x: tt.cross_entropy(x, tt.tensor(ids), reduction=reduction),
        lambda x: F.cross_entropy(x, torch.tensor(ids), reduction=reduction),
        normal(4, 7),
    )


def test_cross_entropys_mean_over_nothing_is_zero():
    """PyTorch's is NaN; a batch of padding alone should not end a run."""
    logits = tt.tensor(normal(4, 7), requires_grad=True)
    loss = tt.cross_entropy(logits, tt.tensor(numpy.full(4, -100)))
    loss.backward()
    assert loss.item() == 0.0
    assert not logits.grad.numpy().any()
    assert torch.isnan(F.cross_entropy(torch.tensor(normal(4, 7)), torch.full((4,), -100)))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)], ids=str)
def test_mse(shape, reduction):
    assert_same(
        lambda x, y: tt.mse_loss(x, y, reduction),
        lambda x, y: F.mse_loss(x, y, reduction=reduction),
        normal(*shape),
        normal(*shape, seed=1),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)], ids=str)
def test_binary_cross_entropy_with_logits(shape, reduction):
    assert_same(
        lambda x, t: tt.binary_cross_entropy_with_logits(x, t, reduction),
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction=reduction),
        normal(*shape, scale=3.0),
        numpy.random.default_rng(1).random(shape, dtype="float32"),
    )


@pytest.mark.parametrize("logit", [-200.0, -50.0, -12.0, -1e-3, 0.0, 1e-3, 12.0, 50.0, 200.0])
@pytest.mark.parametrize("target", [0.0, 0.25, 1.0])
def test_binary_cross_entropy_of_one_logit(logit, target):
    """In float64, as PyTorch's own float32 has no digit left where the logit is sure and right."""
    assert_same(
        lambda x, t: tt.binary_cross_entropy_with_logits(x, t),
        lambda x, t: F.binary_cross_entropy_with_logits(x, t),
        numpy.array([logit]),
        numpy.array([target]),
        relative=1e-12,
        absolute=1e-14,
    )


@pytest.mark.parametrize("logit, target", [(12.0, 1.0), (50.0, 1.0), (-12.0, 0.0), (-50.0, 0.0)])
def test_binary_cross_entropy_keeps_its_digits_where_the_logit_is_right(logit, target):
    """The loss is log(1 + e^-|x|) there, and must not be found as the difference of two large numbers."""
    x = tt.tensor([logit], requires_grad=True)
    loss = tt.binary_cross_entropy_with_logits(x, tt.tensor([target]))
    loss.backward()
    z = torch.tensor([abs(logit)], dtype=torch.float64)
    assert loss.item() == pytest.approx(F.softplus(-z).item(), rel=1e-6)
    assert abs(x.grad.item()) == pytest.approx(torch.sigmoid(-z).item(), rel=1e-6)


def test_binary_cross_entropy_of_hard_targets():
    t = (numpy.random.default_rng(1).random(20) < 0.5).astype("float32")
    assert_same(
        lambda x: tt.binary_cross_entropy_with_logits(x, tt.tensor(t)),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.tensor(t)),
        normal(20, scale=3.0),
    )
