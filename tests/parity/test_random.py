"""Random numbers compared with PyTorch's: frequencies and errors."""

import numpy
import pytest
import torch

import tinytensor as tt

ROWS = 40_000
WEIGHTS = numpy.array([1.0, 0.0, 2.0, 5.0], dtype="float32")


def shares(drawn):
    """How often each pair of places came."""
    return numpy.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16) / ROWS


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial(replacement):
    tt.seed(0)
    torch.manual_seed(0)
    weights = numpy.tile(WEIGHTS, (ROWS, 1))
    ours = tt.random.multinomial(tt.tensor(weights), 2, replacement).numpy()
    theirs = torch.multinomial(torch.tensor(weights), 2, replacement).numpy()
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    numpy.testing.assert_allclose(shares(ours), shares(theirs), atol=0.012)


@pytest.mark.parametrize("weights, count", [(WEIGHTS, 5), (WEIGHTS * 0, 1), (-WEIGHTS, 1), (WEIGHTS, 0)])
def test_multinomial_refuses_what_pytorch_refuses(weights, count):
    with pytest.raises(RuntimeError):
        torch.multinomial(torch.tensor(weights), count)
    with pytest.raises(ValueError, match="multinomial"):
        tt.random.multinomial(tt.tensor(weights), count)


def test_bernoulli():
    tt.seed(0)
    torch.manual_seed(0)
    p = numpy.tile(numpy.array([0.0, 0.3, 1.0], dtype="float32"), (ROWS, 1))
    ours, theirs = tt.random.bernoulli(tt.tensor(p)).numpy(), torch.bernoulli(torch.tensor(p)).numpy()
    assert ours.dtype == theirs.dtype
    numpy.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=0.012)
