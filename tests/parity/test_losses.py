"""The losses against PyTorch in float32. PyTorch's class axis is the second, ours the last."""

import math

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


# ------------------------------------------------------------------------------------------------- further losses

DISTANCES = {
    "l1": (tt.l1_loss, F.l1_loss),
    "huber": (
        lambda x, y, reduction: tt.huber_loss(x, y, reduction, 0.7),
        lambda x, y, **r: F.huber_loss(x, y, delta=0.7, **r),
    ),
    "smooth l1": (lambda x, y, r: tt.smooth_l1_loss(x, y, r, 0.7), lambda x, y, **r: F.smooth_l1_loss(x, y, beta=0.7, **r)),
    "smooth l1, no rounding": (
        lambda x, y, r: tt.smooth_l1_loss(x, y, r, 0.0),
        lambda x, y, **r: F.smooth_l1_loss(x, y, beta=0.0, **r),
    ),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", DISTANCES)
def test_distances(name, reduction):
    ours, theirs = DISTANCES[name]
    order = 2 if name in ("huber", "smooth l1") else 1
    x, y = normal(3, 4, scale=2.0).astype("float64"), normal(3, 4, seed=1).astype("float64")
    assert_same(lambda x, y: ours(x, y, reduction), lambda x, y: theirs(x, y, reduction=reduction), x, y, order=order)


@pytest.mark.filterwarnings("ignore:reduction")  # PyTorch's advice to take batchmean
@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div(log_target, reduction):
    x, t = [torch.log_softmax(torch.tensor(normal(3, 4, seed=i)), -1).numpy() for i in (0, 1)]
    assert_same(
        lambda x, t: tt.kl_div(x, t, reduction, log_target),
        lambda x, t: F.kl_div(x, t, reduction=reduction, log_target=log_target),
        x,
        t if log_target else numpy.exp(t),
        absolute=1e-6,
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 3])
@pytest.mark.parametrize("shape", [(8,), (2, 3, 4)], ids=str)
def test_nll_loss(shape, ignored, weighted, reduction):
    ids, weight = targets(shape, ignored=ignored), numpy.linspace(0.5, 2.0, 7, dtype="float32")
    settings = {"ignore_index": -100 if ignored is None else ignored, "reduction": reduction}
    assert_same(
        lambda x: tt.nll_loss(x, tt.tensor(ids), tt.tensor(weight) if weighted else None, **settings),
        lambda x: F.nll_loss(
            classes_second(x).contiguous(), torch.tensor(ids), torch.tensor(weight) if weighted else None, **settings
        ),
        normal(*shape, 7),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", ["classes", "some ignored", "probabilities"])
@pytest.mark.parametrize("shape", [(), (8,), (2, 3, 4)], ids=str)
def test_cross_entropy_with_class_weights(shape, kind, label_smoothing, reduction):
    weight = numpy.linspace(0.5, 2.0, 7, dtype="float32")
    settings = {"label_smoothing": label_smoothing, "reduction": reduction}
    if kind == "probabilities":
        target = torch.softmax(torch.tensor(normal(*shape, 7, seed=1)), -1).numpy()
    else:
        target = targets(shape, ignored=-100 if kind == "some ignored" and shape else None)
    assert_same(
        lambda x: tt.cross_entropy(x, tt.tensor(target), weight=tt.tensor(weight), **settings),
        lambda x: F.cross_entropy(
            classes_second(x),
            classes_second(torch.tensor(target)) if kind == "probabilities" else torch.tensor(target),
            weight=torch.tensor(weight),
            **settings,
        ),
        normal(*shape, 7, scale=3.0),
        absolute=1e-6,
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy_with_weights(reduction):
    x, t = normal(3, 4, scale=3.0), numpy.random.default_rng(1).random((3, 4), dtype="float32")
    weight, positive = abs(normal(3, 4, seed=2)), abs(normal(4, seed=3))
    assert_same(
        lambda x, t: tt.binary_cross_entropy_with_logits(x, t, reduction, tt.tensor(weight), tt.tensor(positive)),
        lambda x, t: F.binary_cross_entropy_with_logits(
            x, t, torch.tensor(weight), pos_weight=torch.tensor(positive), reduction=reduction
        ),
        x,
        t,
    )
    assert_same(
        lambda p, t: tt.binary_cross_entropy(p, t, reduction, tt.tensor(weight)),
        lambda p, t: F.binary_cross_entropy(p, t, torch.tensor(weight), reduction=reduction),
        1 / (1 + numpy.exp(-x)),
        t,
    )


def test_binary_cross_entropy_of_certainties():
    p, t = tt.tensor([0.0, 1.0, 0.0, 1.0]), tt.tensor([0.0, 1.0, 1.0, 0.0])
    assert tt.binary_cross_entropy(p, t, "none").tolist() == [0.0, 0.0, 100.0, 100.0]


# ------------------------------------------------------------------------------------------------- half precision

HALVES = {
    "layer_norm": (tt.layer_norm, lambda x: F.layer_norm(x, x.shape[-1:])),
    "rms_norm": (tt.rms_norm, lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5)),
    "gelu": (tt.gelu, F.gelu),
    "gelu, tanh": (lambda x: tt.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
}


@pytest.mark.parametrize("name", HALVES)
def test_float16_is_computed_in_float32(name):
    """Of 300 the square does not fit float16, and of 50 the cube."""
    ours, theirs = HALVES[name]
    x = normal(3, 8, scale=300.0).astype("float16")
    mine, its = tt.tensor(x, requires_grad=True), torch.tensor(x).double().requires_grad_()
    out, expected = ours(mine), theirs(its)
    out.sum().backward()
    expected.sum().backward()
    assert out.dtype == mine.grad.dtype == "float16"
    numpy.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=2e-3, atol=2e-3)
    numpy.testing.assert_allclose(mine.grad.numpy(), its.grad.numpy(), rtol=2e-3, atol=2e-3)


def test_losses_of_float16_are_float32():
    """A count of 70,000 rows does not fit float16."""
    x, ids = normal(70_000, 3).astype("float16"), targets((70_000,), 3)
    mine, its = tt.tensor(x, requires_grad=True), torch.tensor(x).float()
    losses = [
        (tt.cross_entropy(mine, tt.tensor(ids)), F.cross_entropy(its, torch.tensor(ids))),
        (tt.nll_loss(mine, tt.tensor(ids)), F.nll_loss(its, torch.tensor(ids))),
        (tt.mse_loss(mine, tt.zeros_like(mine)), F.mse_loss(its, torch.zeros_like(its))),
    ]
    for ours, theirs in losses:
        assert ours.dtype == "float32"
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-4)
    losses[0][0].backward()
    assert mine.grad.dtype == "float16"


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_weight_of_a_wider_dtype_widens_the_loss(reduction):
    x, ids, weight = tt.tensor([[0.5, 1.0], [0.0, 0.2]]), tt.tensor([0, 1]), tt.tensor(numpy.array([0.3, 0.7]))
    for loss in (tt.nll_loss, tt.cross_entropy):
        out = loss(x, ids, weight=weight, reduction=reduction)
        assert out.dtype == "float64"
        wide = loss(x.astype("float64"), ids, weight=weight, reduction=reduction)
        numpy.testing.assert_allclose(out.numpy(), wide.numpy(), rtol=1e-6)


def test_losses_of_integers():
    small, zero = tt.tensor(numpy.array([200, 3], "uint8")), tt.tensor(numpy.array([0, 5], "uint8"))
    assert tt.mse_loss(small, zero).item() == (200**2 + 2**2) / 2
    assert tt.l1_loss(small, zero).item() == 101
    assert tt.binary_cross_entropy_with_logits(tt.zeros(2), tt.tensor([True, False])).item() == pytest.approx(math.log(2))
    assert tt.layer_norm(tt.tensor(numpy.array([[100, 120]], "int8"))).dtype == "float32"


def test_an_ignored_row_is_not_read():
    """Not even where it holds NaN or infinity: 0 times those would be NaN."""
    x = tt.tensor([[float("nan"), 1.0], [float("inf"), 0.0], [1.0, 2.0]], requires_grad=True)
    for e in (0.0, 0.1):
        loss = tt.cross_entropy(x, tt.tensor([-100, -100, 1]), label_smoothing=e)
        wanted = tt.cross_entropy(tt.tensor([[1.0, 2.0]]), tt.tensor([1]), label_smoothing=e)
        assert loss.item() == pytest.approx(wanted.item())
        for recorded in (False, True):
            (gradient,) = tt.grad(
                tt.cross_entropy(x, tt.tensor([-100, -100, 1]), label_smoothing=e), [x], create_graph=recorded
            )
            assert numpy.isfinite(gradient.numpy()).all()
            assert not gradient.numpy()[:2].any()
