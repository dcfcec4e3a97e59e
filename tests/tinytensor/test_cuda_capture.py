"""Captured steps, on the stand-in's CUDA graphs: they do what steps do, and what cannot be captured is told."""

import dataclasses
import gc

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.optimizing import optimizer_for
from tinytensor import CaptureError, capture, capturing, kernels, nn, optim
from tinytensor.backend import xp
from tinytensor.kernels.cupy import cublaslt, optimizers

CONFIG = GPTConfig(vocab_size=11, block_size=8, num_layers=2, num_heads=2, d_model=8, dropout=0.2)
STEPS = 100


class Training:
    """A model, its optimizer, and a step with both. ``run`` takes many steps; the schedule and the batches change in each."""

    def __init__(self, config=CONFIG, dtype="float32", clip=1.0, accumulate=1, **settings):
        tt.seed(0)
        self.model = GPT(config).astype(dtype).train()
        self.optimizer = optimizer_for(self.model, TrainingConfig(**settings))
        self.clip, self.accumulate = clip, accumulate

    def step(self, ids, targets, rate):
        self.optimizer.zero_grad()
        loss = tt.zeros(())
        for _ in range(self.accumulate):
            part = self.model.loss(ids, targets) / self.accumulate
            part.backward()
            loss = loss + part.detach()
        norm, scale = optim.norm_and_scale(self.model.parameters(), self.clip)
        self.optimizer.step(rate, gradient_scale=scale)
        return loss, norm

    def run(self, step, steps=STEPS, after=lambda number: None):
        """All numbers that came of it: losses and norms, and at last parameters and what the optimizer remembers."""
        rng, found = np.random.default_rng(0), []
        for number in range(steps):
            batch = rng.integers(0, 11, (3, 9))
            results = step(batch[:, :-1], batch[:, 1:], 0.97**number)
            found += [float(x) for x in results]
            after(number)
        state = [*self.model.parameters(), *self.optimizer.state_dict().values()]
        return found, [x.numpy().tobytes() for x in state], tt.random.get_state()


def in_tensors(step):
    return lambda ids, targets, rate: step(tt.tensor(ids), tt.tensor(targets), rate)


@pytest.fixture(autouse=True)
def by_cublaslt(monkeypatch):
    """So that products are added up in the same order, also on a GPU."""
    monkeypatch.setattr(cublaslt, "is_on_everywhere", True)


KINDS = {
    "AdamW": {},
    "bfloat16": {"dtype": "bfloat16"},
    "Muon": {"muon_learning_rate": 0.02},
    "Muon in bfloat16": {"muon_learning_rate": 0.02, "dtype": "bfloat16"},
    "without clipping": {"clip": float("inf")},
    "several batches": {"accumulate": 3},
    "wide heads": {"dtype": "bfloat16", "config": dataclasses.replace(CONFIG, d_model=32, num_layers=1)},
    "other layers": {
        "config": GPTConfig(
            vocab_size=11, block_size=8, num_layers=1, num_heads=2, d_model=8, dropout=0.1, bias=True, positions="rotary",
            norm="rms", activation="swiglu", query_key_norm=True, tie_output=False,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_captured_steps_are_a_hundred_steps(kind):
    steps = 12 if kind == "wide heads" else STEPS  # attention in tiles takes the stand-in long
    plain = Training(**KINDS[kind])
    expected = plain.run(in_tensors(plain.step), steps)
    captured = Training(**KINDS[kind])
    assert captured.run(capture(captured.step), steps) == expected


@pytest.mark.parametrize("given", ["NumPy arrays", "tensors"])
def test_a_captured_step_is_one_launch_and_waits_for_nothing(given):
    training = Training()
    step = capture(training.step)
    costs = []

    def watched(ids, targets, rate):
        inputs = (ids, targets) if given == "NumPy arrays" else (tt.tensor(ids), tt.tensor(targets))
        first, waits = len(xp.launches), xp.synchronizations
        results = step(*inputs, rate)
        costs.append((xp.launches[first:], xp.synchronizations - waits))
        return results

    training.run(watched, steps=8)
    copies = [] if given == "NumPy arrays" else ["assign", "assign"]
    assert costs[4:] == [([*copies, "upload", "graph"], 0)] * 4
    assert min(len(launches) for launches, _ in costs[:3]) > 50 and not any(waits for _, waits in costs)


def test_a_step_may_have_a_generator_of_its_own():
    found = []
    for step_of in (in_tensors, capture):
        training, own = Training(), np.random.default_rng(7)

        def step(*inputs, training=training, own=own):
            with tt.random.using(own):
                return training.step(*inputs)

        found.append((training.run(step_of(step), steps=7), own.random()))
    assert found[0] == found[1]


def test_settings_of_the_optimizer_may_change_between_steps():
    found = []
    for step_of in (in_tensors, capture):
        training = Training()

        def change(number, groups=training.optimizer.param_groups):
            if number == 6:
                groups[0]["lr"] *= 0.1

        found.append(training.run(step_of(training.step), steps=9, after=change))
    assert found[0] == found[1]
    assert found[0] != Training().run(in_tensors(Training().step), steps=9)


def test_other_work_may_come_between_steps():
    """Evaluation, generation, and steps that are not captured use other memory, and the same parameters."""
    found = []
    for step_of in (in_tensors, capture):
        training = Training()
        plain = in_tensors(training.step)

        def between(number, training=training, plain=plain):
            if number % 3 == 1:
                with tt.no_grad():
                    training.model(tt.tensor(np.arange(10).reshape(2, 5)))
                optimizers._on_device.cache_clear()  # as if many other tables had been made
                optimizers._chunks.cache_clear()
                gc.collect()
            if number == 7:
                plain(np.ones((2, 6), int), np.ones((2, 6), int), 0.5)

        found.append(training.run(step_of(training.step), steps=12, after=between))
    assert found[0] == found[1]


def test_two_captured_steps_share_a_model():
    found = []
    for step_of in (in_tensors, capture):
        training = Training()
        short, long = step_of(training.step), step_of(training.step)

        def either(ids, targets, rate, short=short, long=long):
            return short(ids[:2, :4], targets[:2, :4], rate) if rate < 0.8 and int(rate * 1e6) % 2 else long(ids, targets, rate)

        found.append(training.run(either, steps=20))
    assert found[0] == found[1]


def test_a_graph_that_a_replayed_step_made_stale_is_refused():
    training = Training()
    step = capture(training.step)
    training.run(step, steps=5)
    before = training.model.loss(tt.zeros((2, 3), dtype=int), tt.zeros((2, 3), dtype=int))
    training.run(step, steps=1)
    with pytest.raises(RuntimeError, match="changed in place since then"):
        before.backward()


def test_results_are_overwritten_by_the_next_call():
    training = Training()
    step = capture(training.step)
    kept = []
    training.run(lambda *inputs: kept.append(step(*inputs)[0]) or [kept[-1]], steps=7)
    losses = [float(loss) for loss in kept]
    assert losses[3] == losses[4] == losses[6] and len(set(losses[:4])) == 4


# ------------------------------------------------------------------------------------------------------ what is refused

WEIGHTS = [0.5, -1.0, 2.0]


def small(use, make=lambda p: optim.AdamW(p, lr=0.1)):
    """A captured step of three weights, in which ``use`` does something with the loss or the weights."""
    weights = nn.Parameter(WEIGHTS)
    optimizer = make([weights])

    def step(x, rate):
        optimizer.zero_grad()
        loss = ((weights * x).sum() ** 2).sum()
        loss.backward()
        use(loss, weights)
        optimizer.step(rate)
        return loss.detach()

    return capture(step)


X = np.array([1.0, 2.0, 3.0], np.float32)
REFUSED = {
    "reading the loss": (lambda loss, w: loss.item(), "reading a value"),
    "an if": (lambda loss, w: 1 if loss > 0 else 0, "reading a value"),
    "NumPy": (lambda loss, w: w.grad.numpy(), "reading a value"),
    "a tensor of numbers": (lambda loss, w: w.detach() * tt.tensor([1.0, 2.0, 3.0]), "make it before, and pass it in"),
    "random numbers": (lambda loss, w: tt.random.normal((3,)), "draw them before, and pass them in"),
    "a permutation": (lambda loss, w: tt.random.permutation(3), "draw them before"),
    "another step": (lambda loss, w: small(lambda *_: None)(X, 1.0), "cannot capture another"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_captured_step_cannot_do(name):
    use, message = REFUSED[name]
    step = small(use)
    with pytest.raises(CaptureError, match=message):
        for _ in range(5):
            step(X, 1.0)
    assert not capturing.is_on() and not xp.cuda.get_current_stream().is_capturing()
    assert tt.tensor([1.0]).item() == 1.0  # all is as before


def test_a_number_in_a_formula_that_changes():
    """It cannot be seen on a GPU, which would go on with the first. The stand-in compares with the step before."""
    steps = []
    step = small(lambda loss, weights: steps.append(1) or loss * len(steps))
    with pytest.raises(RuntimeError, match=r"multiply, has the numbers .*: they would never change again"):
        for _ in range(4):
            step(X, 1.0)


def test_dropout_takes_its_random_key_from_the_gpu_too():
    key, x = (2**64 - 1, 12345), xp.array(np.random.default_rng(0).standard_normal((7, 50)).astype("float32"))
    on_gpu = xp.array(np.array(key, np.uint64))
    for keep in (0.3, 1 / 512):  # the second often needs further bits
        assert (kernels.keep_mask(on_gpu, (70, 9), keep).get() == kernels.keep_mask(key, (70, 9), keep).get()).all()
        dropped = [kernels.dropout_forward([True], x, x, each, keep)[0] for each in (key, on_gpu)]
        assert dropped[0].get().tobytes() == dropped[1].get().tobytes()
    attended = [
        kernels.attention_forward([True] * 3, *[x.reshape(5, 7, 10)] * 3, None, None, True, 0.3, each, 0.5)[0]
        for each in (key, on_gpu)
    ]
    assert attended[0].get().tobytes() == attended[1].get().tobytes()


def test_an_optimizer_that_would_keep_its_learning_rate():
    with pytest.raises(CaptureError, match="as Adam, AdamW and Muon do"):
        small(lambda *_: None, lambda p: optim.SGD(p, lr=0.1))(X, 1.0)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((X[:2], 1.0), r"input 0 of the captured step was a NumPy array of float32\(3,\), and now it is .*\(2,\)"),
        ((X.astype("float64"), 1.0), "float64"),
        ((tt.tensor(X), 1.0), "a tensor"),
        ((X, X), "input 1 of the captured step was a number"),
        ((X,), "takes 2 inputs, not 1"),
    ],
)
@pytest.mark.parametrize("calls", [1, 5])
def test_inputs_do_not_change_their_shapes(inputs, message, calls):
    step = small(lambda *_: None)
    for _ in range(calls):
        step(X, 1.0)
    with pytest.raises(CaptureError, match=message):
        step(*inputs)


def test_what_is_no_input():
    with pytest.raises(TypeError, match="not list"):
        small(lambda *_: None)([1.0, 2.0, 3.0], 1.0)


def test_a_parameter_that_is_replaced():
    training = Training()
    step = capture(training.step)
    training.run(step, steps=5)
    state = {name: tensor.copy() for name, tensor in training.model.state_dict().items()}
    training.model.load_state_dict(state)  # in place
    training.run(step, steps=1)
    training.model.load_state_dict(state, assign=True)
    with pytest.raises(CaptureError, match="was replaced since the step was captured"):
        training.run(step, steps=1)


def test_more_numbers_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(capturing, "_NUMBERS", 64)
    training = Training()
    with pytest.raises(CaptureError, match="more than 64 bytes of numbers"):
        training.run(capture(training.step), steps=1)


def test_after_a_failure_tables_are_whole():
    """Tables that were to be filled after the capture are in caches, where others find them."""
    training = Training()
    plain = in_tensors(training.step)
    optimizers._on_device.cache_clear()
    captured = capture(lambda *inputs: (training.step(*inputs), 1 / (captured._runs - 3)))
    with pytest.raises(ZeroDivisionError):
        training.run(lambda *inputs: captured(*inputs)[0], steps=4)
    tables = [table for table in gc.get_objects() if isinstance(table, xp.ndarray) and table.dtype == np.uint64]
    assert all(np.iinfo(np.uint64).max not in table.get() for table in tables)
    training.run(plain, steps=2)


def test_numbers_and_work_come_in_their_order():
    """Of each kind: some need what others did before."""
    counted, seen = [0], []

    def count():
        counted[0] += 1

    def step(x, rate):
        capturing.repeat(count)
        first = capturing.numbers(lambda: [counted[0], float(rate)], "float32")
        capturing.repeat(count)
        second = capturing.numbers(lambda: [counted[0]], np.uint64)
        return tt.concatenate([tt.Tensor(first), tt.Tensor(second.astype("float32")), x])

    captured = capture(step)
    for number in range(6):
        seen.append(captured(np.full(1, number, "float32"), number / 2).tolist())
    assert seen == [[2 * n + 1, n / 2, 2 * n + 2, n] for n in range(6)]
