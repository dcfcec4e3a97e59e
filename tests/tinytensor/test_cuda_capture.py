"""Captured steps, on the fake CuPy's CUDA graphs: they equal normal steps, and an error reports what cannot be captured."""

import dataclasses
import gc

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.optimizing import optimizer_for
from tinytensor import CaptureError, capture, kernels, nn, optim
from tinytensor.autograd.replaying import current_step
from tinytensor.device.backend import xp
from tinytensor.kernels.cupy import cublaslt, optimizers
from tinytensor.replay import capture as graphs

CONFIG = GPTConfig(vocab_size=11, block_size=8, num_layers=2, num_heads=2, d_model=8, dropout=0.2)
WIDE = dataclasses.replace(CONFIG, d_model=16, num_layers=1, num_heads=1)  # a width of heads that flash attention takes
STEPS = 20


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
        """Return the losses and norms, and then the parameters and the optimizer's state."""
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
    "Muon": {"optimizer": "muon"},
    "Muon in bfloat16": {"optimizer": "muon", "dtype": "bfloat16"},
    "without clipping": {"clip": float("inf")},
    "several batches": {"accumulate": 3},
    "flash attention": {"dtype": "bfloat16", "config": WIDE},
    "flash attention and Muon": {"dtype": "bfloat16", "config": WIDE, "optimizer": "muon"},
    "other layers": {
        "config": GPTConfig(
            vocab_size=11, block_size=8, num_layers=1, num_heads=2, d_model=8, dropout=0.1, bias=True, positions="rotary",
            norm="rms", activation="swiglu", query_key_norm=True, tie_output=False,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_captured_steps_are_steps(kind):
    steps = 100 if kind == "AdamW" else STEPS  # replays are alike: a hundred of one kind tell what many lead to
    plain = Training(**KINDS[kind])
    expected = plain.run(in_tensors(plain.step), steps)
    captured = Training(**KINDS[kind])
    assert captured.run(capture(captured.step), steps) == expected


def test_flash_attention_and_its_dropout_are_in_the_graph():
    """So each replay makes other bits of the dropout mask, as its random key is read on the GPU."""
    training = Training(**KINDS["flash attention"])
    step = capture(training.step)
    training.run(step, steps=4)
    names = [name for name, *_ in step._graph._launches]
    flash = ["flash_forward", "flash_backward_queries", "flash_backward_keys"]
    assert [name for name in names if name in (*flash, "keep_bits_of_tiles")] == ["keep_bits_of_tiles", *flash]
    assert not {"softmax", "softmax_backward", "upload"} & set(names)


@pytest.mark.parametrize("given", ["NumPy arrays", "tensors"])
@pytest.mark.parametrize("kind", ["AdamW", "Muon", "flash attention", "several batches"])
def test_a_captured_step_is_one_launch_and_waits_for_nothing(kind, given):
    training = Training(**KINDS[kind])
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


def test_a_step_may_have_its_own_generator():
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


@pytest.mark.parametrize("place", ["first", "last", "twice"])
def test_the_step_may_forget_its_gradients_at_either_end(place):
    """So after each call ``.grad`` is what it would be without a graph."""
    found = []
    for step_of in (in_tensors, capture):
        training, seen = Training(), []

        def step(*inputs, training=training):
            results = training.step(*inputs)  # which forgets them first
            if place != "first":
                training.optimizer.zero_grad()
            return results

        def look(number, training=training, seen=seen):
            gradient = training.optimizer.parameters()[0].grad
            seen.append(None if gradient is None else gradient.numpy().tobytes())
            if place == "twice":
                training.optimizer.zero_grad()

        found.append((training.run(step_of(step), steps=7, after=look), seen))
    assert found[0] == found[1] and (None in seen) == (place != "first")


def backward(weights, optimizer):
    def step(x):
        loss = ((weights * x).sum() ** 2).sum()
        loss.backward()
        return loss.detach()

    return step


def test_gradients_may_be_used_outside_of_the_step():
    """Where the caller forgets them after each step, and takes the optimizer's step."""
    found = []
    for step_of in (lambda step: lambda x: step(tt.tensor(x)), capture):
        weights = nn.Parameter(WEIGHTS)
        optimizer = optim.SGD([weights], lr=0.01)
        step = step_of(backward(weights, optimizer))
        for number in range(7):
            step(X * number)
            optimizer.step()
            optimizer.zero_grad()
        found.append(weights.tolist())
    assert found[0] == found[1] != WEIGHTS


def test_gradients_of_several_calls_do_not_add_up():
    weights = nn.Parameter(WEIGHTS)
    step = capture(backward(weights, None))
    for _ in range(6):
        step(X)
        weights.grad = None
    step(X)
    with pytest.raises(CaptureError, match=r"cannot add to the gradient .* begin the step with zero_grad"):
        step(X)
    with pytest.raises(CaptureError, match="cannot add to the gradient"):
        for _ in range(2):
            capture(backward(weights, None))(X)


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
    "an index in a list": (lambda loss, w: w[[0, 1]], "make it a tensor before"),
    "an index that is a NumPy array": (lambda loss, w: w[np.arange(2)], "make it a tensor before"),
    "shards": (lambda loss, w: tt.parallel.run(lambda x: x, [w, w]), "leave its batch whole"),
    "shards with seeds": (lambda loss, w: tt.parallel.run(lambda x: x, [w, w], [1, 2]), "leave its batch whole"),
    "a checkpoint": (lambda loss, w: tt.checkpoint(lambda x: x * x, w), "the same random numbers"),
    "another step": (lambda loss, w: small(lambda *_: None)(X, 1.0), "cannot capture another"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_captured_step_cannot_do(name):
    use, message = REFUSED[name]
    step = small(use)
    with pytest.raises(CaptureError, match=message):
        for _ in range(5):
            step(X, 1.0)
    assert not current_step().is_captured and not xp.cuda.get_current_stream().is_capturing()
    assert tt.tensor([1.0]).item() == 1.0  # all is as before


def test_a_number_in_a_formula_that_changes():
    """A GPU would not notice, and would use the first. The fake CuPy compares with the step before."""
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
    for dtype, part in (("float32", x), ("bfloat16", x[:, :48])):  # heads of width 10, and of width 16 for flash attention
        parts = [part.reshape(5, 7, 10) if dtype == "float32" else part.reshape(3, 7, 16).astype(dtype)] * 3
        attended = [
            kernels.attention_forward([True] * 3, *parts, None, None, True, 0.3, each, 0.5)[0] for each in (key, on_gpu, (1, 2))
        ]
        assert attended[0].get().tobytes() == attended[1].get().tobytes() != attended[2].get().tobytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.AdamW(p, lr=0.1, betas=(0.9, 0.5), amsgrad=True),
        lambda p: optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True, maximize=True),
        lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.5, initial_accumulator_value=0.5),
        lambda p: optim.Adadelta(p, lr=1.0),
        lambda p: optim.Lion(p, lr=0.1, weight_decay=0.1),
    ],
    ids=["amsgrad", "rmsprop", "adagrad", "adadelta", "lion"],
)
def test_steps_in_array_operations_are_repeated(make):
    """The learning rate changes in each step, and with Adagrad and Adam the count of the step matters."""

    def trained(wrapped):
        weights = nn.Parameter(WEIGHTS)
        optimizer = make([weights])

        def step(x, rate):
            optimizer.zero_grad()
            loss = ((weights * x).sum() ** 2).sum()
            loss.backward()
            optimizer.step(rate)
            return loss.detach()

        take = wrapped(step)
        for number in range(7):
            take(X * (1 + number % 3), 0.9**number)
        return [x.numpy().tobytes() for x in (weights, *optimizer.state_dict().values())]

    assert trained(capture) == trained(lambda step: lambda x, rate: step(tt.tensor(x), rate))


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


@pytest.mark.parametrize("kind", [float, np.float32, np.float64])
def test_a_number_may_be_numpys(kind):
    step, same = small(lambda *_: None), small(lambda *_: None)
    for number in range(6):
        assert step(X, kind(number / 4)).item() == same(X, number / 4).item()


def test_not_a_valid_input():
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


CHANGES = {
    "a weight decay": (lambda t: t.optimizer.param_groups[0].update(weight_decay=0.5), "a setting of the optimizer was"),
    "a state": (lambda t: t.optimizer.load_state_dict(t.optimizer.state_dict()), "another state of the optimizer was loaded"),
    "a frozen parameter": (lambda t: setattr(t.optimizer.parameters()[1], "requires_grad", False), "was frozen since"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_may_change_before_the_capture(name):
    change, found = CHANGES[name][0], []
    for step_of in (in_tensors, capture):
        training = Training()

        def after(number, training=training):
            if number == 1:
                change(training)

        found.append(training.run(step_of(training.step), steps=7, after=after))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", CHANGES)
def test_what_may_not_change_after_the_capture(name):
    change, message = CHANGES[name]
    training = Training()
    step = capture(training.step)
    training.run(step, steps=4)
    change(training)
    before = tt.random.get_state(), training.optimizer.state_dict()["0.steps"].item()
    with pytest.raises(CaptureError, match=message):
        training.run(step, steps=1)
    assert (tt.random.get_state(), training.optimizer.state_dict()["0.steps"].item()) == before  # nothing was done


def test_a_parameter_that_is_frozen_from_the_first_may_not_learn_later():
    training = Training()
    parameter = training.optimizer.parameters()[1]
    parameter.requires_grad = False
    step = capture(training.step)
    training.run(step, steps=6)
    parameter.requires_grad = True
    with pytest.raises(CaptureError, match="was unfrozen since"):
        training.run(step, steps=1)


def test_threads_of_the_optimizer_are_this_thread():
    """Others would launch their work beside the graph."""
    found = []
    for step_of in (lambda step: lambda *inputs: step(*map(tt.tensor, inputs)), capture):
        weights = [nn.Parameter(WEIGHTS), nn.Parameter([1.0, 1.0, 1.0])]
        optimizer = optim.AdamW(weights, lr=0.1)

        def step(x, weights=weights, optimizer=optimizer):
            optimizer.zero_grad()
            ((weights[0] * weights[1] * x).sum() ** 2).backward()
            optimizer.step(threads=2)
            return weights[1].detach() * 1.0

        step = step_of(step)
        found.append([step(X * n).tolist() for n in range(7)])
    assert found[0] == found[1]


def test_more_numbers_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(graphs, "_NUMBERS", 64)
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
        current_step().repeat(count)
        first = current_step().numbers(lambda: [counted[0], float(rate)], "float32")
        current_step().repeat(count)
        second = current_step().numbers(lambda: [counted[0]], np.uint64)
        return tt.concatenate([tt.Tensor(first), tt.Tensor(second.astype("float32")), x])

    captured = capture(step)
    for number in range(6):
        seen.append(captured(np.full(1, number, "float32"), number / 2).tolist())
    assert seen == [[2 * n + 1, n / 2, 2 * n + 2, n] for n in range(6)]
