"""The GPT against the same model in PyTorch with copied weights, in float32: logits, loss, gradients, ten training steps."""

import dataclasses
import itertools

import numpy
import pytest
import torch
from parity.compare import assert_close, to_float64
from torch_models import GPT as Twin, adamw_for as twin_adamw_for, copy_weights

import tinytensor as tt
from tinyformer.data.batches import Batch
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import next_token_loss
from tinyformer.training.optimizing import optimizer_for
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer
from tinytensor.optim import Cosine, clip_grad_norm

STEPS = 10
LENGTH = 16
TRAINING = TrainingConfig(steps=STEPS, warmup=3, learning_rate=1e-2, min_learning_rate=1e-3, weight_decay=0.1, clip=1.0)
SCHEDULE = Cosine(TRAINING.warmup, TRAINING.steps, TRAINING.min_learning_rate / TRAINING.learning_rate)

# AdamW divides by sqrt(v) + eps. At the default eps of 1e-8 its first step is the SIGN of each gradient, so that an element
# whose gradient is 0 but for rounding moves by the whole learning rate, in a direction that rounding picks. The biases of
# the keys are such (they add the same to all scores of a row, and softmax does not see it). So the float32 tests take an eps
# that turns rounding back into rounding, yet lies below most clipped gradients, so that the division still counts: a
# test holds it to that. The default eps is compared in float64.
EPS = 1e-4


def twin_of(config):
    """The same in PyTorch, where all other settings are always the defaults."""
    names = ("vocab_size", "block_size", "num_layers", "num_heads", "d_model", "dropout", "bias")
    return Twin(**{name: getattr(config, name) for name in names})


def twins(bias, dropout=0.0, seed=0):
    """The same small GPT in both libraries, every parameter random: a bias of 0 or a norm's weight of 1 hides mistakes, and
    so does an attention that is all but uniform."""
    config = GPTConfig(vocab_size=11, block_size=LENGTH, num_layers=3, num_heads=4, d_model=32, dropout=dropout, bias=bias)
    ours = GPT(config)
    rng = numpy.random.default_rng(seed)
    for p in ours.parameters():
        p.assign((0.2 * rng.standard_normal(p.shape) + (p.ndim == 1)).astype("float32"))
    theirs = twin_of(config)
    copy_weights(ours, theirs)
    return ours, theirs


def tokens(step, batch=8, length=LENGTH):
    """Random windows (batch, length + 1)."""
    return numpy.random.default_rng(1000 + step).integers(0, 11, (batch, length + 1))


def our_batch(windows):
    return Batch(tt.tensor(windows[:, :-1]), tt.tensor(windows[:, 1:]), windows[:, 1:].size)


def our_loss(ours, windows):
    return next_token_loss(ours, our_batch(windows))


def their_loss(theirs, windows):
    return theirs.loss(torch.tensor(windows[:, :-1]), torch.tensor(windows[:, 1:]))


def assert_same_gradients(ours, theirs):
    for (name, p), (same, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == same
        assert_close(p.grad, q.grad, what=f"the gradient of {name}")


def assert_same_parameters(ours, theirs, step, relative=1e-5):
    for (name, p), (same, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == same
        assert_close(p, q, relative, what=f"{name} after step {step}")


# ------------------------------------------------------------------------------------------------------------ one pass


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("length", [1, 7, LENGTH])
def test_logits_loss_and_gradients(bias, length):
    ours, theirs = twins(bias)
    windows = tokens(0, length=length)
    assert_close(ours(tt.tensor(windows[:, :-1])), theirs(torch.tensor(windows[:, :-1])), what="the logits")
    loss, expected = our_loss(ours, windows), their_loss(theirs, windows)
    assert_close(loss, expected, what="the loss")
    loss.backward()
    expected.backward()
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("bias", [True, False])
def test_evaluation_ignores_dropout(bias):
    ours, theirs = twins(bias, dropout=0.5)
    windows = tokens(0)
    assert_close(our_loss(ours.eval(), windows), their_loss(theirs.eval(), windows), what="the loss")


def test_the_initial_model():
    """The weights as the library itself makes them, not only those of the tests above."""
    config = GPTConfig(vocab_size=65, block_size=64, num_layers=4, num_heads=4, d_model=128)
    tt.seed(0)
    ours, theirs = GPT(config), twin_of(config)
    copy_weights(ours, theirs)
    windows = numpy.random.default_rng(0).integers(0, 65, (4, 65))
    loss, expected = our_loss(ours, windows), their_loss(theirs, windows)
    assert_close(loss, expected, what="the loss")
    loss.backward()
    expected.backward()
    assert_same_gradients(ours, theirs)


# ------------------------------------------------------------------------------------------------------------ training


def their_optimizer(theirs, eps=EPS):
    betas = (TRAINING.beta1, TRAINING.beta2)
    return twin_adamw_for(theirs, TRAINING.learning_rate, betas, TRAINING.weight_decay, eps=eps)


def set_eps(optimizer):
    for group in optimizer.param_groups:
        group["eps"] = EPS


def our_step(ours, optimizer, step, windows):
    """One step; the loss and the norm before clipping."""
    optimizer.zero_grad()
    loss = our_loss(ours, windows)
    loss.backward()
    norm = clip_grad_norm(ours.parameters(), TRAINING.clip)
    optimizer.step(SCHEDULE(step))
    return loss, norm


def their_step(theirs, optimizer, step, parts):
    """One step on the mean of the parts' losses, by their numbers of targets; the loss and the norm before clipping."""
    for group in optimizer.param_groups:
        group["lr"] = TRAINING.learning_rate * SCHEDULE(step)
    optimizer.zero_grad()
    count = sum(windows[:, 1:].size for windows in parts)
    total = 0.0
    for windows in parts:
        loss = their_loss(theirs, windows) * (windows[:, 1:].size / count)
        loss.backward()
        total = total + loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), TRAINING.clip)
    optimizer.step()
    return total, norm


@pytest.mark.parametrize("bias", [True, False])
def test_ten_steps(bias):
    ours, theirs = twins(bias)
    optimizer, reference = optimizer_for(ours, TRAINING), their_optimizer(theirs)
    set_eps(optimizer)
    start = [p.numpy().copy() for p in ours.parameters()]
    norms = []
    for step in range(STEPS):
        loss, norm = our_step(ours, optimizer, step, tokens(step))
        expected, expected_norm = their_step(theirs, reference, step, [tokens(step)])
        assert_close(loss, expected, what=f"the loss of step {step}")
        assert_close(norm, expected_norm, what=f"the norm of step {step}")
        assert_same_gradients(ours, theirs)  # as they were clipped
        assert_same_parameters(ours, theirs, step)
        norms.append(float(norm))
    moved = [numpy.abs(p.numpy() - before).max() for p, before in zip(ours.parameters(), start)]
    assert min(moved) > 1e-3  # models that stand still agree, too
    assert min(norms) < TRAINING.clip < max(norms)  # some steps are clipped, and some are not
    sizes = numpy.concatenate([numpy.abs(p.grad.numpy()).ravel() for p in ours.parameters()])
    assert numpy.median(sizes) > 2 * EPS  # by the last step; at the first it is 7 times EPS


@pytest.mark.parametrize("bias", [True, False])
def test_ten_steps_in_float64_at_the_default_eps(bias):
    ours, theirs = twins(bias)
    to_float64(ours)
    theirs.double()
    optimizer = optimizer_for(ours, TRAINING)
    reference = their_optimizer(theirs, eps=1e-8)
    for step in range(STEPS):
        loss, norm = our_step(ours, optimizer, step, tokens(step))
        expected, expected_norm = their_step(theirs, reference, step, [tokens(step)])
        assert_close(loss, expected, 1e-10, what=f"the loss of step {step}")
        assert_close(norm, expected_norm, 1e-10, what=f"the norm of step {step}")
        assert_same_parameters(ours, theirs, step, 1e-8)


@pytest.mark.parametrize("sizes", [(8, 8), (8, 3, 1)], ids=str)
def test_ten_steps_of_the_trainer_with_accumulation(sizes, tmp_path):
    """Unequal batches count by their targets, as if they were one."""
    ours, theirs = twins(bias=True)
    parts = [[tokens(100 * step + i, batch=n) for i, n in enumerate(sizes)] for step in range(STEPS)]
    batches = Given([our_batch(windows) for step in parts for windows in step])
    settings = dataclasses.replace(TRAINING, gradient_accumulation_steps=len(sizes))
    trainer = Trainer(ours, batches, settings, RunFolder(tmp_path))
    set_eps(trainer.optimizer)
    reference = their_optimizer(theirs)
    for step in range(STEPS):
        loss, norm, count = trainer.train_step()
        expected, expected_norm = their_step(theirs, reference, step, parts[step])
        assert count == sum(sizes) * LENGTH
        assert_close(loss, expected, what=f"the loss of step {step}")
        assert_close(norm, expected_norm, what=f"the norm of step {step}")
        assert_same_parameters(ours, theirs, step)


def test_accumulated_gradients_are_those_of_one_batch():
    ours, theirs = twins(bias=True)
    windows = tokens(0)
    for part in (windows[:5], windows[5:]):
        (our_loss(ours, part) * (len(part) / len(windows))).backward()
    their_loss(theirs, windows).backward()
    assert_same_gradients(ours, theirs)


class Given:
    """Batches that were made beforehand."""

    def __init__(self, batches):
        self._batches = itertools.cycle(batches)

    def sample(self):
        return next(self._batches)
