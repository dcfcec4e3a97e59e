"""``nn.RNN``, ``nn.GRU`` and ``nn.LSTM``: states, padding, directions, dropout and errors. tests/parity has the numbers."""

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn
from tinytensor.nn import recurrent

LENGTH, INPUTS, WIDTH = 6, 3, 4
LENGTHS = [6, 2, 0, 5]
nan = float("nan")
KINDS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
kinds = pytest.mark.parametrize("kind", KINDS)


def network(kind, *args, **options):
    return KINDS[kind](INPUTS, WIDTH, *args, **options)


def inputs(batch=4, length=LENGTH, seed=0):
    return np.random.default_rng(seed).standard_normal((length, batch, INPUTS)).astype("float32")


def flat(outputs, state):
    """Return the outputs and each state."""
    return [outputs, *(state if isinstance(state, tuple) else [state])]


def state_of(kind, count, batch, seed=5):
    """An initial state, as the network takes it."""
    arrays = [np.random.default_rng(seed + i).standard_normal((count, batch, WIDTH)).astype("float32") for i in range(2)]
    return tuple(tt.tensor(a) for a in arrays) if kind == "LSTM" else tt.tensor(arrays[0])


def part(state, index):
    """The state of some sequences or layers."""
    return tuple(kind[index] for kind in state) if isinstance(state, tuple) else state[index]


def detached(state):
    return tuple(kind.detach() for kind in state) if isinstance(state, tuple) else state.detach()


def assert_same_bits(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())


def assert_close(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=0, atol=2e-6)


# -------------------------------------------------------------------------------------------------------------- padding


@kinds
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_padding_changes_not_a_bit(kind, layers, bidirectional):
    """Neither outputs nor gradients depend on what stands there, were it NaN."""
    net = network(kind, layers, bidirectional=bidirectional)
    tokens = (np.arange(LENGTH)[:, None] < LENGTHS)[:, :, None]
    state, found = state_of(kind, layers * (1 + bidirectional), 4), []
    for padding in (0.0, 3.0, nan):
        x = tt.tensor(np.where(tokens, inputs(), padding).astype("float32"), requires_grad=True)
        out = flat(*net(x, state, LENGTHS))
        loss = sum((part * part).sum() for part in out)
        found.append([*out, *tt.grad(loss, [x, *net.parameters()])])
    for other in found[1:]:
        assert_same_bits(found[0], other)
    outputs, d_x = found[0][0].numpy(), found[0][len(out)].numpy()
    assert not outputs[~tokens[..., 0]].any()
    assert not d_x[~tokens[..., 0]].any()
    assert all(d_x[t, b].any() for t, b in zip(*np.nonzero(tokens[..., 0])))


@kinds
@pytest.mark.parametrize("order", [1, 2])
def test_not_a_number_in_padding_reaches_no_derivative(kind, order):
    """Second derivatives come from the op's reference implementation."""
    net = network(kind, 2).astype("float64")
    tokens = (np.arange(LENGTH)[:, None] < LENGTHS)[:, :, None]
    x = tt.tensor(np.where(tokens, inputs(), nan), requires_grad=True)
    loss = sum((out * out).sum() for out in flat(*net(x, None, LENGTHS)))
    for _ in range(order):
        gradients = tt.grad(loss, [x, *net.parameters()], create_graph=True)
        loss = sum((g * g).sum() for g in gradients)
    assert all(np.isfinite(g.numpy()).all() for g in gradients)


@kinds
@pytest.mark.parametrize("bidirectional", [False, True])
def test_sequences_in_a_batch_are_as_by_themselves(kind, bidirectional):
    net = network(kind, 2, bidirectional=bidirectional)
    x, state = tt.tensor(inputs()), state_of(kind, 2 * (1 + bidirectional), 4)
    outputs, last = net(x, state, LENGTHS)
    for b, length in enumerate(LENGTHS):
        if length:
            alone = net(x[:length, b : b + 1], part(state, np.s_[:, b : b + 1]))
            together = flat(outputs[:length, b : b + 1], part(last, np.s_[:, b : b + 1]))
            assert_close(flat(*alone), together)
        else:
            assert_same_bits(flat(outputs[:, b], part(last, np.s_[:, b]))[1:], flat(None, part(state, np.s_[:, b]))[1:])


@kinds
def test_lengths_may_be_a_list_an_array_or_a_tensor(kind):
    net, x = network(kind), tt.tensor(inputs())
    results = [flat(*net(x, lengths=given)) for given in (LENGTHS, np.array(LENGTHS), tt.tensor(LENGTHS))]
    assert_same_bits(results[0], results[1])
    assert_same_bits(results[0], results[2])
    assert_same_bits(flat(*net(x)), flat(*net(x, lengths=[LENGTH] * 4)))


@kinds
def test_batch_first_swaps_axes(kind):
    net = network(kind, 2, bidirectional=True, batch_first=True)
    other = network(kind, 2, bidirectional=True)
    other.load_state_dict(net.state_dict())
    x, state = tt.tensor(inputs()), state_of(kind, 4, 4)
    outputs, last = net(x.swapaxes(0, 1), state, LENGTHS)
    assert outputs.shape == (4, LENGTH, 2 * WIDTH)
    assert_close(flat(outputs.swapaxes(0, 1), last), flat(*other(x, state, LENGTHS)))


@kinds
def test_one_sequence_needs_no_axis_for_the_batch(kind):
    net, x, state = network(kind, 2), tt.tensor(inputs(1)), state_of(kind, 2, 1)
    together = flat(*net(x, state))
    alone = flat(*net(x[:, 0], part(state, np.s_[:, 0])))
    assert_same_bits(alone, [together[0][:, 0], *[kind[:, 0] for kind in together[1:]]])


# --------------------------------------------------------------------------------------------------------------- states


@kinds
def test_the_initial_state_is_zeros(kind):
    net, x = network(kind, 2), tt.tensor(inputs())
    zeros = tt.zeros((2, 4, WIDTH))
    assert_same_bits(flat(*net(x)), flat(*net(x, (zeros, zeros) if kind == "LSTM" else zeros)))


@kinds
def test_the_final_state_is_that_of_the_last_step(kind):
    outputs, last = network(kind, 2, bidirectional=True)(tt.tensor(inputs()))
    h = flat(outputs, last)[1]
    assert h.shape == (4, 4, WIDTH)
    assert_same_bits([h[2], h[3]], [outputs[-1, :, :WIDTH], outputs[0, :, WIDTH:]])  # the one from the end stops at the start


@kinds
def test_the_other_direction_is_the_reversed_sequence(kind):
    both, one = network(kind, bidirectional=True), network(kind)
    one.load_state_dict({name.removesuffix("_reverse"): v for name, v in both.state_dict().items() if "reverse" in name})
    x = tt.tensor(inputs())
    outputs, last = both(x)
    want, state = one(tt.flip(x, 0))
    assert_close(flat(outputs[..., WIDTH:], part(last, np.s_[1:])), flat(tt.flip(want, 0), state))


# ------------------------------------------------------------------------------------ truncated backpropagation through time


@kinds
def test_pieces_of_a_text_give_what_the_whole_gives(kind):
    net, x = network(kind, 2), tt.tensor(inputs(3, 9))
    whole = flat(*net(x))
    outputs, state = [], None
    for start in range(0, 9, 4):
        piece, state = net(x[start : start + 4], state)
        state = detached(state)
        outputs.append(piece)
    assert_close(whole, flat(tt.concatenate(outputs), state))


@kinds
def test_no_gradient_crosses_a_detached_state(kind):
    net = network(kind, 2)
    first, second = [tt.tensor(inputs(3, 4, seed), requires_grad=True) for seed in (0, 1)]
    _, state = net(first)
    through = (net(second, state)[0] ** 2).sum()
    cut = (net(second, detached(state))[0] ** 2).sum()
    assert tt.grad(through, first, retain_graph=True).numpy().any()
    assert tt.grad(cut, [first, second], allow_unused=True, retain_graph=True)[0] is None
    of_the_piece = [tt.grad(loss, net.weight_hh_l1).numpy() for loss in (through, cut)]
    assert np.abs(of_the_piece[0] - of_the_piece[1]).max() > 1e-4


# -------------------------------------------------------------------------------------------------------------- dropout


@kinds
def test_dropout_is_repeated_by_its_seed_and_off_in_eval(kind):
    net, plain = network(kind, 3, dropout=0.5), network(kind, 3)
    plain.load_state_dict(net.state_dict())
    x, found = tt.tensor(inputs()), []
    for seed in (1, 1, 2):
        tt.seed(seed)
        found.append(net(x)[0].numpy())
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()
    assert_same_bits(flat(*net.eval()(x)), flat(*plain(x)))


def test_dropout_of_a_single_layer_warns():
    with pytest.warns(UserWarning, match="there is one layer: it does nothing"):
        nn.GRU(3, 4, dropout=0.5)


# ------------------------------------------------------------------------------------------------- parameters and errors


@kinds
def test_a_state_dict_is_loaded_again(kind, tmp_path):
    options = {"num_layers": 2, "bidirectional": True}
    net, other = network(kind, **options), network(kind, **options)
    x = tt.tensor(inputs())
    assert (net(x)[0].numpy() != other(x)[0].numpy()).any()
    tt.save(net.state_dict(), tmp_path / "net.safetensors")
    other.load_state_dict(tt.load(tmp_path / "net.safetensors"))
    assert_same_bits(flat(*net(x)), flat(*other(x)))


@kinds
def test_every_parameter_and_state_gets_a_gradient(kind):
    net = network(kind, 2, bidirectional=True)
    state = state_of(kind, 4, 4)
    states = list(state) if kind == "LSTM" else [state]
    for s in states:
        s.requires_grad = True
    outputs, _ = net(tt.tensor(inputs()), state)
    (outputs**2).sum().backward()
    parameters = list(net.parameters())
    assert len(parameters) == 16
    for p in [*parameters, *states]:
        assert p.grad.shape == p.shape
        assert np.abs(p.grad.numpy()).max() > 0


def test_what_a_network_is_printed_as():
    assert repr(nn.LSTM(3, 4)).split("  ")[0] == "LSTM(3, 4)"
    several = nn.GRU(3, 4, 2, dropout=0.5, bidirectional=True)
    assert repr(several).split("  ")[0] == "GRU(3, 4, num_layers=2, bidirectional=True, dropout=0.5)"
    assert repr(nn.LSTM(3, 4, proj_size=2)).split("  ")[0] == "LSTM(3, 4, proj_size=2)"
    assert repr(nn.GRUCell(3, 4)).split("  ")[0] == "GRUCell(3, 4)"
    assert repr(nn.RNNCell(3, 4, bias=False)).split("  ")[0] == "RNNCell(3, 4, bias=False)"


@kinds
@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_steps_as_its_network_does(kind, bias):
    """Also to the second derivative."""
    whole, cell = network(kind, bias=bias), getattr(nn, f"{kind}Cell")(INPUTS, WIDTH, bias)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in whole.state_dict().items()})
    x, state = tt.tensor(inputs(), requires_grad=True), None
    outputs, last = whole(x)
    for step, expected in zip(x, outputs):
        state = cell(step, state)
        np.testing.assert_allclose(flat(None, state)[1].numpy(), expected.numpy(), atol=1e-6)
    results = []
    for final in (flat(None, last)[1:], flat(None, state)[1:]):
        (slope,) = tt.grad(sum((s * s).sum() for s in final), [x], create_graph=True)
        results.append([slope, *tt.grad((slope * slope).sum(), [x])])
    assert_close(*results)


def test_a_cell_without_a_step_says_so():
    class Own(recurrent.Cell):
        gates = 1

    with pytest.raises(TypeError, match="Own has no step"):
        Own(3, 4)(tt.ones((2, 3)))


def test_cells_start_within_the_bounds_of_their_width():
    tt.seed(0)
    for cell in (nn.RNNCell(5, 64), nn.GRUCell(5, 64), nn.LSTMCell(5, 64)):
        values = np.concatenate([p.numpy().ravel() for p in cell.parameters()])
        assert 0.99 / 8 < np.abs(values).max() <= 1 / 8


def test_a_projection_keeps_what_padding_must_not_change():
    model = nn.LSTM(INPUTS, WIDTH, 2, bidirectional=True, proj_size=2)
    x = inputs()
    x[2:, 1] = nan
    outputs, (h, c) = model(tt.tensor(x), lengths=LENGTHS)
    alone, (h1, c1) = model(tt.tensor(x[:2, 1:2]))
    assert (outputs.shape, h.shape, c.shape) == ((LENGTH, 4, 4), (4, 4, 2), (4, 4, WIDTH))
    assert_close([outputs[:2, 1:2], h[:, 1:2], c[:, 1:2]], [alone, h1, c1])
    assert not outputs[2:, 1].any()


ERRORS = {
    "sizes": (lambda: nn.RNN(3, 0), "hidden_size and num_layers must be at least 1, got 3, 0 and 1"),
    "a nonlinearity": (lambda: nn.RNN(3, 4, nonlinearity="gelu"), "nonlinearity must be 'tanh' or 'relu', got 'gelu'"),
    "dropout": (lambda: nn.GRU(3, 4, 2, dropout=1.5), "1.5"),
    "features": (lambda: nn.GRU(3, 4)(tt.ones((2, 2, 5))), r"GRU takes \(length, batch, 3\) or \(length, 3\), got \(2, 2, 5\)"),
    "axes": (lambda: nn.GRU(3, 4)(tt.ones(3)), r"GRU takes \(length, batch, 3\) or \(length, 3\), got \(3,\)"),
    "no steps": (lambda: nn.GRU(3, 4)(tt.ones((0, 2, 3))), "a length of at least 1"),
    "a state's shape": (
        lambda: nn.GRU(3, 4)(tt.ones((5, 2, 3)), tt.ones((2, 4))),
        r"GRU takes a state of shape \(1, 2, 4\), got \[\(2, 4\)\]",
    ),
    "a state of one sequence": (
        lambda: nn.GRU(3, 4)(tt.ones((5, 3)), tt.ones((1, 1, 4))),
        r"GRU takes a state of shape \(1, 4\), got \[\(1, 1, 4\)\]",
    ),
    "one state of two": (
        lambda: nn.LSTM(3, 4)(tt.ones((5, 2, 3)), (tt.ones((1, 2, 4)),)),
        r"LSTM takes a pair of states of shape \(1, 2, 4\), got \[\(1, 2, 4\)\]",
    ),
    "lengths of another batch": (
        lambda: nn.GRU(3, 4)(tt.ones((5, 2, 3)), lengths=[1, 2, 3]),
        r"lengths must be 2 integers, one for each sequence, got int64 \(3,\)",
    ),
    "lengths that are no integers": (
        lambda: nn.GRU(3, 4)(tt.ones((5, 2, 3)), lengths=[1.0, 2.0]),
        r"lengths must be 2 integers, one for each sequence, got float32 \(2,\)",
    ),
    "a projection": (lambda: nn.LSTM(3, 4, proj_size=4), "proj_size must be at least 0 and below hidden_size 4, got 4"),
    "no steps of a projection": (lambda: nn.LSTM(3, 4, proj_size=2)(tt.ones((0, 2, 3))), "needs a length of at least 1"),
    "states of a projection": (
        lambda: nn.LSTM(3, 4, proj_size=2)(tt.ones((5, 2, 3)), (tt.ones((1, 2, 4)), tt.ones((1, 2, 4)))),
        r"LSTM takes a pair of states of shape \(1, 2, 2\) and \(1, 2, 4\), got",
    ),
    "sizes of a cell": (lambda: nn.GRUCell(0, 4), "must be at least 1, got 0 and 4"),
    "a cell's nonlinearity": (
        lambda: nn.RNNCell(3, 4, nonlinearity="gelu"),
        "nonlinearity must be 'tanh' or 'relu', got 'gelu'",
    ),
    "features of a cell": (lambda: nn.GRUCell(3, 4)(tt.ones((2, 5))), r"GRUCell takes \(batch, 3\) or \(3,\), got \(2, 5\)"),
    "a cell's axes": (lambda: nn.RNNCell(3, 4)(tt.ones((1, 2, 3))), r"got \(1, 2, 3\)"),
    "a cell's state": (
        lambda: nn.GRUCell(3, 4)(tt.ones((2, 3)), tt.ones(4)),
        r"GRUCell takes a state of shape \(2, 4\), got \[\(4,\)\]",
    ),
    "a cell's pair of states": (
        lambda: nn.LSTMCell(3, 4)(tt.ones((2, 3)), (tt.ones((2, 4)),)),
        r"LSTMCell takes a pair of states of shape \(2, 4\), got \[\(2, 4\)\]",
    ),
    "shapes of the op": (
        lambda: tt.lstm(tt.ones((5, 2, 8)), tt.ones((4, 2)), tt.ones((2, 2)), tt.ones((2, 2))),
        r"projected must be \(length, batch, 4 \* width\) with a length of at least 1",
    ),
    "the bias of the op": (
        lambda: tt.gru(tt.ones((5, 2, 6)), tt.ones((6, 2)), tt.ones(2), tt.ones((2, 2))),
        "its bias of one row",
    ),
}


@pytest.mark.parametrize("f, message", ERRORS.values(), ids=ERRORS)
def test_errors_name_what_is_wrong(f, message):
    with pytest.raises(ValueError, match=message):
        f()


@pytest.mark.needs("numpy")
@pytest.mark.parametrize("lengths", [[1, 6], [-1, 2]])
def test_lengths_outside_of_the_steps(lengths):
    """On a GPU they are not read, as the CPU would wait for it."""
    with pytest.raises(ValueError, match=r"lengths must be from 0 to 5, the steps of x, got \["):
        nn.GRU(3, 4)(tt.ones((5, 2, 3)), lengths=lengths)


@kinds
def test_a_network_without_biases_is_one_whose_biases_are_zero(kind):
    net, bare = network(kind, 2), network(kind, 2, bias=False)
    for name, parameter in net.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
    bare.load_state_dict({name: value for name, value in net.state_dict().items() if not name.startswith("bias")})
    x = tt.tensor(inputs())
    assert_close(flat(*net(x)), flat(*bare(x)))
