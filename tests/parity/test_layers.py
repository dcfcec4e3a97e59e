"""Every layer and every function of the neural-network part against PyTorch, in float32."""

import math

import numpy
import pytest
import torch
import torch.nn.functional as F
from parity.compare import assert_close, assert_same, assert_same_module

import tinytensor as tt


def normal(*shape, scale=1.0, seed=0):
    """float32 numbers, the same on every run."""
    return (numpy.random.default_rng(seed).standard_normal(shape) * scale).astype("float32")


# Small, large and in between, zeros of both signs: the places where an activation changes its formula.
EDGES = numpy.array([-100, -30, -5, -1, -0.5, -1e-3, -0.0, 0.0, 1e-3, 0.5, 1, 5, 30, 100], dtype="float32")


# ---------------------------------------------------------------------------------------------------------- functions


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5), (2, 1, 3, 5), (0, 5)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    arrays = [normal(*shape), normal(7, 5, seed=1), normal(7, seed=2)][: 3 if bias else 2]
    assert_same(tt.functional.linear, F.linear, *arrays)


@pytest.mark.parametrize("ids", [[3, 0, 3, 3, 7], [[1, 2, 1], [9, 9, 1]], [], 4], ids=str)
def test_embedding(ids):
    assert_same(tt.functional.embedding, F.embedding, numpy.array(ids, dtype="int64"), normal(10, 6))


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6)], ids=str)
@pytest.mark.parametrize("given", ["neither", "weight", "weight and bias"])
def test_layer_norm(shape, given):
    count = ["neither", "weight", "weight and bias"].index(given)
    arrays = [normal(*shape, scale=3.0) + 2, normal(6, seed=1), normal(6, seed=2)][: 1 + count]
    for eps in (1e-5, 0.1):
        assert_same(
            lambda x, *affine, eps=eps: tt.layer_norm(x, *affine, eps=eps),
            lambda x, *affine, eps=eps: F.layer_norm(x, (6,), *affine, eps=eps),
            *arrays,
        )


def test_layer_norm_with_bias_alone():
    assert_same(
        lambda x, b: tt.layer_norm(x, bias=b), lambda x, b: F.layer_norm(x, (6,), bias=b), normal(4, 6), normal(6, seed=1)
    )


def test_layer_norm_of_a_constant_row():
    """The variance is 0 there, and eps alone decides."""
    x = normal(3, 6)
    x[1] = 2.0
    assert_same(lambda x: tt.layer_norm(x, eps=1e-3), lambda x: F.layer_norm(x, (6,), eps=1e-3), x)


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6)], ids=str)
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(shape, weighted):
    arrays = [normal(*shape, scale=3.0) + 2, normal(6, seed=1)][: 1 + weighted]
    for eps in (1e-5, 0.1):
        assert_same(
            lambda x, *w, eps=eps: tt.rms_norm(x, *w, eps=eps), lambda x, *w, eps=eps: F.rms_norm(x, (6,), *w, eps=eps), *arrays
        )


@pytest.mark.parametrize("p, training", [(0.3, False), (1.0, False), (0.0, True), (1.0, True)])
def test_dropout_where_nothing_is_random(p, training):
    assert_same(lambda x: tt.dropout(x, p, training), lambda x: F.dropout(x, p, training), normal(5, 6))


def test_dropout_scales_the_survivors_as_pytorch_does():
    x = normal(50, 40)
    mine = tt.tensor(x, requires_grad=True)
    out = tt.dropout(mine, 0.3)
    out.backward(tt.ones_like(out))
    its = torch.tensor(x, requires_grad=True)
    expected = F.dropout(its, 0.3)
    expected.backward(torch.ones_like(expected))
    both = (out.numpy() != 0) & (expected.detach().numpy() != 0)
    assert 0.4 * x.size < both.sum() < 0.6 * x.size  # 0.49 expected, with a deviation of 0.011
    assert_close(tt.tensor(out.numpy()[both]), expected[torch.tensor(both)])
    assert_close(tt.tensor(mine.grad.numpy()[both]), its.grad[torch.tensor(both)])


@pytest.mark.parametrize("shape", [(2, 24), (2, 6, 5), (2, 6, 3, 4), (0, 6, 3)], ids=str)
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_norm(shape, groups):
    arrays = [normal(*shape, scale=3.0) + 2, normal(shape[1], seed=1), normal(shape[1], seed=2)]
    for count in (1, 2, 3):
        assert_same(
            lambda x, *affine: tt.group_norm(x, groups, *affine, eps=0.01),
            lambda x, *affine: F.group_norm(x, groups, *affine, eps=0.01),
            *arrays[:count],
            order=2,
        )


ACTIVATIONS = {
    "relu": (tt.functional.relu, F.relu),
    "leaky_relu": (tt.functional.leaky_relu, F.leaky_relu),
    "leaky_relu, slope 0.2": (lambda x: tt.functional.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
    "gelu": (tt.gelu, F.gelu),
    "gelu, tanh": (lambda x: tt.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "silu": (tt.functional.silu, F.silu),
    "softplus": (tt.functional.softplus, F.softplus),
    "softplus, beta": (lambda x: tt.functional.softplus(x, 0.3), lambda x: F.softplus(x, 0.3)),
    "elu": (tt.functional.elu, F.elu),
    "sigmoid": (tt.functional.sigmoid, F.sigmoid),
    "tanh": (tt.functional.tanh, F.tanh),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    ours, theirs = ACTIVATIONS[name]
    assert_same(ours, theirs, normal(3, 4, 5, scale=2.0))
    for x in EDGES:  # one at a time: beside 100, an error in the value at 0.001 would not be seen
        # PyTorch's gelu loses its tail to cancellation in float32: at -5 the exact one is -1.490e-6, where -1.433e-6 is right,
        # and the slope of the other is wrong by 2.5e-7.
        absolute = {"gelu": 1e-7, "gelu, tanh": 3e-7}.get(name, 1e-8)
        assert_same(ours, theirs, numpy.array([x]), absolute=absolute)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_softmax_family(name, axis):
    theirs = getattr(torch if name == "logsumexp" else F, name)
    ours = getattr(tt.functional, name)
    for x in (normal(3, 4, 5, scale=2.0), normal(3, 4, 5, scale=200.0), normal(3, 4, 5) + 1000):
        # PyTorch's slope of logsumexp is exp(x - out), where out is rounded: near 1000 by up to 3e-5. Here it sums to 1.
        relative = 1e-4 if name == "logsumexp" else 1e-5
        assert_same(lambda x: ours(x, axis), lambda x: theirs(x, axis), x, relative=relative)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_softmax_family_with_minus_infinity(name):
    x = normal(3, 5)
    x[0, 1] = x[2, 4] = -numpy.inf
    theirs = getattr(torch if name == "logsumexp" else F, name)
    assert_same(lambda x: getattr(tt.functional, name)(x, -1), lambda x: theirs(x, -1), x)


def test_one_hot():
    ids = numpy.array([[0, 3], [2, 2]])
    assert_close(tt.functional.one_hot(tt.tensor(ids), 5), F.one_hot(torch.tensor(ids), 5).float())


# ---------------------------------------------------------------------------------------------------------- attention


def query_key_value(lead=(2, 3), queries=5, keys=5, width=4, value_width=4):
    return (normal(*lead, queries, width), normal(*lead, keys, width, seed=1), normal(*lead, keys, value_width, seed=2))


def bottom_right_causal(queries, keys):
    """Query t sees the keys up to t, counted from the end: PyTorch's own ``is_causal`` counts from the start."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("queries, keys, value_width", [(5, 5, 4), (3, 7, 6), (7, 3, 2), (1, 6, 4)])
def test_attention(lead, scale, queries, keys, value_width):
    assert_same(
        lambda q, k, v: tt.scaled_dot_product_attention(q, k, v, scale=scale),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=scale),
        *query_key_value(lead, queries, keys, 4, value_width),
    )


def test_causal_attention():
    assert_same(
        lambda q, k, v: tt.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *query_key_value(),
    )


@pytest.mark.parametrize("queries, keys", [(3, 7), (7, 3), (1, 6)])
def test_causal_attention_counts_from_the_end(queries, keys):
    """With more queries than keys the first ones see nothing: zeros and no gradient, in both libraries."""
    assert_same(
        lambda q, k, v: tt.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=bottom_right_causal(queries, keys)),
        *query_key_value(queries=queries, keys=keys),
    )


@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 6), (2, 1, 4, 6), (2, 1, 1, 6), (1, 6), (2, 3, 4, 6)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_mask(shape, causal):
    mask = numpy.random.default_rng(3).random(shape) < 0.6
    mask[..., 0] = True
    theirs = torch.tensor(mask) & bottom_right_causal(4, 6) if causal else torch.tensor(mask)
    assert_same(
        lambda q, k, v: tt.scaled_dot_product_attention(q, k, v, tt.tensor(mask), is_causal=causal),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=theirs),
        *query_key_value(queries=4, keys=6, value_width=3),
    )


def test_attention_with_fully_masked_rows():
    mask = numpy.random.default_rng(3).random((2, 1, 4, 6)) < 0.6
    mask[0, :, 1] = False
    mask[1] = False
    assert_same(
        lambda q, k, v: tt.scaled_dot_product_attention(q, k, v, tt.tensor(mask)),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor(mask)),
        *query_key_value(queries=4, keys=6),
    )


@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 6), (2, 1, 4, 6), (2, 1, 1, 6), (1, 6), (2, 3, 4, 6)], ids=str)
@pytest.mark.parametrize("hidden", ["nothing", "some keys", "whole rows"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_a_mask_of_numbers(shape, hidden, causal):
    """It is added to the scores, and gets a gradient, as a learned bias does; -inf hides a key."""
    mask = normal(*shape, seed=3)
    if hidden != "nothing":
        mask[..., 1::2] = -math.inf
    if hidden == "whole rows":
        mask[..., :1, :] = -math.inf
    theirs = torch.where(bottom_right_causal(4, 6), 0.0, -math.inf) if causal else torch.zeros(4, 6)
    assert_same(
        lambda q, k, v, m: tt.scaled_dot_product_attention(q, k, v, m, is_causal=causal),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m + theirs),
        *query_key_value(queries=4, keys=6, value_width=3),
        mask,
    )


def test_self_attention_of_one_tensor():
    """The query, the key and the value are one tensor: three gradients add up."""
    assert_same(
        lambda x: tt.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        normal(2, 5, 4),
    )


@pytest.mark.parametrize("kv_lead", [(1, 3), (2, 1), (1, 1)], ids=str)
def test_attention_broadcasts_its_leading_axes(kv_lead):
    """One key and value for several heads."""
    query, _, _ = query_key_value()
    _, key, value = query_key_value(kv_lead)
    assert_same(
        lambda q, k, v: tt.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        query,
        key,
        value,
    )


# ------------------------------------------------------------------------------------------------------------- layers


LAYERS = {
    "Linear": (tt.nn.Linear(6, 4), torch.nn.Linear(6, 4)),
    "Linear, no bias": (tt.nn.Linear(6, 4, bias=False), torch.nn.Linear(6, 4, bias=False)),
    "Embedding": (tt.nn.Embedding(10, 4), torch.nn.Embedding(10, 4)),
    "LayerNorm": (tt.nn.LayerNorm(6), torch.nn.LayerNorm(6)),
    "LayerNorm, no bias": (tt.nn.LayerNorm(6, bias=False), torch.nn.LayerNorm(6, bias=False)),
    "LayerNorm, eps": (tt.nn.LayerNorm(6, eps=0.1), torch.nn.LayerNorm(6, eps=0.1)),
    "LayerNorm, axes": (tt.nn.LayerNorm((3, 6)), torch.nn.LayerNorm((3, 6))),
    "LayerNorm, axes, no bias": (tt.nn.LayerNorm([3, 6], bias=False), torch.nn.LayerNorm([3, 6], bias=False)),
    "LayerNorm, no weights": (tt.nn.LayerNorm(6, elementwise_affine=False), torch.nn.LayerNorm(6, elementwise_affine=False)),
    "LayerNorm, axes, no weights": (tt.nn.LayerNorm((2, 3, 6), 0.1, False), torch.nn.LayerNorm((2, 3, 6), 0.1, False)),
    "GroupNorm": (tt.nn.GroupNorm(1, 3), torch.nn.GroupNorm(1, 3)),
    "GroupNorm, instances": (tt.nn.GroupNorm(3, 3, 0.1), torch.nn.GroupNorm(3, 3, 0.1)),
    "GroupNorm, no weights": (tt.nn.GroupNorm(3, 3, affine=False), torch.nn.GroupNorm(3, 3, affine=False)),
    "Identity": (tt.nn.Identity(), torch.nn.Identity()),
    "Flatten": (tt.nn.Flatten(), torch.nn.Flatten()),
    "Flatten, all": (tt.nn.Flatten(0), torch.nn.Flatten(0)),
    "Flatten, first": (tt.nn.Flatten(0, 1), torch.nn.Flatten(0, 1)),
    "Flatten, one": (tt.nn.Flatten(-2, 1), torch.nn.Flatten(-2, 1)),
    "RMSNorm": (tt.nn.RMSNorm(6, eps=1e-5), torch.nn.RMSNorm(6, eps=1e-5)),
    "Dropout, eval": (tt.nn.Dropout(0.5).eval(), torch.nn.Dropout(0.5).eval()),
    "Dropout, p=0": (tt.nn.Dropout(0.0), torch.nn.Dropout(0.0)),
    "Dropout, p=1": (tt.nn.Dropout(1.0), torch.nn.Dropout(1.0)),
    "ReLU": (tt.nn.ReLU(), torch.nn.ReLU()),
    "LeakyReLU": (tt.nn.LeakyReLU(), torch.nn.LeakyReLU()),
    "LeakyReLU, slope": (tt.nn.LeakyReLU(0.2), torch.nn.LeakyReLU(0.2)),
    "ELU": (tt.nn.ELU(), torch.nn.ELU()),
    "ELU, alpha": (tt.nn.ELU(0.3), torch.nn.ELU(0.3)),
    "Softplus, beta": (tt.nn.Softplus(3.0), torch.nn.Softplus(3.0)),
    "GELU": (tt.nn.GELU(), torch.nn.GELU()),
    "GELU, tanh": (tt.nn.GELU(approximate="tanh"), torch.nn.GELU(approximate="tanh")),
    "SiLU": (tt.nn.SiLU(), torch.nn.SiLU()),
    "Softplus": (tt.nn.Softplus(), torch.nn.Softplus()),
    "Sigmoid": (tt.nn.Sigmoid(), torch.nn.Sigmoid()),
    "Tanh": (tt.nn.Tanh(), torch.nn.Tanh()),
    "Softmax": (tt.nn.Softmax(), torch.nn.Softmax(dim=-1)),
    "Softmax, axis": (tt.nn.Softmax(1), torch.nn.Softmax(dim=1)),
    "Sequential": (
        tt.nn.Sequential(tt.nn.Linear(6, 5), tt.nn.Tanh(), tt.nn.LayerNorm(5), tt.nn.Linear(5, 2)),
        torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.LayerNorm(5), torch.nn.Linear(5, 2)),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    """The names and shapes of the state, the output and every gradient; no layer starts from its trivial weights."""
    ours, theirs = LAYERS[name]
    with torch.no_grad():
        for i, p in enumerate(theirs.parameters()):
            p.copy_(torch.tensor(normal(*p.shape, seed=i + 1)))
    x = numpy.array([[1, 9, 1], [0, 1, 5]]) if name == "Embedding" else normal(2, 3, 6)
    assert_same_module(ours, theirs, x)


def test_every_layer_is_compared():
    others = {tt.nn.Module, tt.nn.ModuleList, tt.nn.ModuleDict}
    recurrent = {getattr(tt.nn, kind + cell) for kind in ("RNN", "GRU", "LSTM") for cell in ("", "Cell")}
    layers = {v for v in vars(tt.nn).values() if isinstance(v, type) and issubclass(v, tt.nn.Module)} - others
    layers -= recurrent  # which are in test_recurrent.py
    assert layers == {type(ours) for ours, _ in LAYERS.values()}


def test_a_dict_of_modules():
    found = []
    for make, nn in ((tt.nn.ModuleDict, tt.nn), (torch.nn.ModuleDict, torch.nn)):
        heads = make([("b", nn.Linear(2, 3)), ("a", nn.ReLU())])
        heads["c"] = nn.Linear(2, 3, bias=False)
        heads["b"] = nn.Linear(2, 1)
        removed = heads.pop("a")
        heads.update({"d": removed, "e": removed})
        listed = list(heads.keys()), list(heads), len(heads), "a" in heads, "e" in heads, list(heads.state_dict())
        found.append((*listed, [n for n, _ in heads.named_modules()], [n for n, _ in heads.named_children()]))
        assert list(heads.values()) == [heads[name] for name in heads] == [module for _, module in heads.items()]
        assert list(heads.children()) == [heads["b"], heads["c"], removed]
        assert heads.get_submodule("c") is heads["c"]
    assert found[0] == found[1]


# ----------------------------------------------------------------------------------------------- what a layer starts as


def moments(values):
    """The mean, the standard deviation and the largest magnitude, of either library's numbers."""
    values = values.detach().numpy()
    return float(values.mean()), float(values.std()), float(numpy.abs(values).max())


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_linear_starts_within_pytorchs_bounds(name):
    """Evenly within 1/sqrt(in_features): 40,000 numbers come within a thousandth of the ends, and never pass them."""
    tt.seed(0)
    torch.manual_seed(0)
    ours = getattr(tt.nn.Linear(16, 40_000 if name == "bias" else 2_500), name)
    theirs = getattr(torch.nn.Linear(16, 40_000 if name == "bias" else 2_500), name)
    for mean, std, largest in (moments(ours), moments(theirs)):
        assert abs(mean) < 0.01
        assert std == pytest.approx(0.25 / math.sqrt(3), rel=0.02)
        assert 0.2495 < largest <= 0.25


def test_embedding_starts_standard_normal_as_in_pytorch():
    tt.seed(0)
    torch.manual_seed(0)
    for mean, std, largest in (moments(tt.nn.Embedding(400, 100).weight), moments(torch.nn.Embedding(400, 100).weight)):
        assert abs(mean) < 0.03
        assert std == pytest.approx(1.0, rel=0.02)
        assert 3.3 < largest < 6.5


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_norms_start_as_in_pytorch(name):
    ours, theirs = getattr(tt.nn, name)(6), getattr(torch.nn, name)(6)
    for (own, p), (its, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert own == its
        assert_close(p, q, relative=0.0)
