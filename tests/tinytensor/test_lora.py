"""LoRA: additions to frozen weights in float32 and low precision, and how they are trained, merged and removed."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn
from tinytensor.nn.lora import LoraWeight, lora_weights


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.fixture(params=["float32", "bfloat16", "int8"])
def dtype(request):
    return request.param


def network(dtype="float32"):
    tt.seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    return model if dtype == "float32" else nn.quantize_(model, dtype).train()


def with_values(model, seed=5):
    """Return the model with nonzero values in all of its additions."""
    for i, (_, value) in enumerate(sorted(nn.lora_state(model).items())):
        value.data[...] = tt.tensor(normal(*value.shape, seed=seed + i)).data
    return model


def learned(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


# ---------------------------------------------------------------------------------------------------- what is computed


def test_at_first_nothing_changes(dtype):
    model, x = network(dtype), tt.tensor(normal(3, 6))
    before = model(x).numpy()
    assert nn.add_lora(model, rank=2) is model
    np.testing.assert_array_equal(model(x).numpy(), before)
    assert [name for name, _ in lora_weights(model)] == ["0.weight", "2.weight"]
    assert all(bound <= 6**-0.5 for bound in [np.abs(model[0].weight.additions[0].down.numpy()).max()])
    assert np.abs(model[0].weight.additions[0].down.numpy()).min() > 0


@pytest.mark.parametrize("stabilized, scale", [(False, 12.0 / 4), (True, 12.0 / 2)])
def test_a_layer_computes_with_the_sum(dtype, stabilized, scale):
    layer = network(dtype)[0]
    base = layer.weight.numpy().copy()
    with_values(nn.add_lora(layer, rank=4, alpha=12, rank_stabilized=stabilized))
    added = layer.weight.additions[0]
    want = base + scale * added.up.numpy() @ added.down.numpy()
    np.testing.assert_allclose(layer.weight.numpy(), want, rtol=1e-5, atol=1e-5)
    x = normal(2, 3, 6)
    found = layer(tt.tensor(x)).numpy()
    np.testing.assert_allclose(found, x @ want.T + layer.bias.numpy(), atol=0.05 if dtype == "int8" else 1e-4)


def test_several_additions_each_on_its_rows(dtype):
    layer = network(dtype)[0]
    base, x = layer.weight.numpy().copy(), tt.tensor(normal(3, 6))
    before = layer(x).numpy()
    nn.add_lora(layer, rank=2, rows=(0, 3))
    nn.add_lora(layer, rank=3, rows=(5, 8))
    nn.add_lora(with_values(layer), rank=1, rows=(2, 4))  # some of them again
    one, two, three = with_values(layer).weight.additions
    change = np.zeros((8, 6), "float32")
    for added, part in [(one, slice(0, 3)), (two, slice(5, 8)), (three, slice(2, 4))]:
        change[part] += 16 / len(added.down) * added.up.numpy() @ added.down.numpy()
    np.testing.assert_allclose(layer.weight.numpy() - base, change, atol=1e-4)
    np.testing.assert_allclose(layer(x).numpy() - before, x.numpy() @ change.T, atol=1e-4)
    np.testing.assert_array_equal(layer(x).numpy()[:, 4], before[:, 4])


@pytest.mark.parametrize(
    "targets, found",
    [
        (None, ["0.0", "0.1", "1"]),
        (["0"], ["0.0"]),
        (["1"], ["0.1", "1"]),
        (["0.1", "0.0"], ["0.0", "0.1"]),
        (r"0\..*", ["0.0", "0.1"]),
        ("1", ["1"]),
    ],
)
def test_targets(targets, found):
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    nn.add_lora(model, targets=targets)
    assert [name.removesuffix(".weight") for name, _ in lora_weights(model)] == found


def test_dropout_is_that_of_training():
    layer = with_values(nn.add_lora(nn.Linear(50, 1), rank=1, dropout=0.5))
    x = tt.ones((1, 50))
    assert len({layer(x).item() for _ in range(5)}) == 5
    layer.eval()
    assert len({layer(x).item() for _ in range(5)}) == 1
    assert not nn.add_lora(nn.Linear(2, 2).eval(), dropout=0.5).weight.additions[0].dropout.training


def test_a_tied_weight_stays_tied():
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6, bias=False))
    model[1].weight = model[0].weight
    with_values(nn.add_lora(model, rank=2))
    assert model[0].weight is model[1].weight
    ids = tt.tensor([[1, 5], [0, 0]])
    np.testing.assert_allclose(model[0](ids).numpy(), model[0].weight.numpy()[ids.numpy()], rtol=1e-6)
    loss = model(ids).sum()
    loss.backward()
    assert all(p.grad is not None for p in learned(model).values())


def test_layers_that_share_a_weight_get_one_addition():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert list(nn.lora_state(nn.add_lora(model))) == ["0.weight.additions.0.down", "0.weight.additions.0.up"]
    assert model[0].weight is model[1].weight


# ------------------------------------------------------------------------------------------------------------- learning


def test_gradients_of_before_are_forgotten():
    """They would count in the norm by which those of the additions are clipped."""
    model, x = network(), tt.tensor(normal(3, 6))
    (1000 * model(x)).sum().backward()
    assert all(p.grad is None for p in nn.add_lora(model, rank=2).parameters())


def test_only_the_additions_learn(dtype):
    model = nn.add_lora(network(dtype), rank=2)
    assert sorted(learned(model)) == sorted(f"{i}.weight.additions.0.{part}" for i in (0, 2) for part in ("down", "up"))
    state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    optimizer = tt.optim.AdamW(model.parameters(), lr=1e-2)
    x, targets = tt.tensor(normal(20, 6)), tt.tensor(normal(20, 5, seed=1))
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        losses.append(tt.mse_loss(model(x), targets))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1].item() < 0.8 * losses[0].item()
    changed = {name for name, value in model.state_dict().items() if (value.numpy() != state[name]).any()}
    assert changed == set(learned(model)) == set(nn.lora_state(model))


def test_gradients_are_those_of_a_layer_with_the_sum():
    layer, plain = network()[0], nn.Linear(6, 8)
    with_values(nn.add_lora(layer, rank=2, alpha=6))
    plain.weight.assign(layer.weight.numpy())
    plain.bias.assign(layer.bias)
    x, g = tt.tensor(normal(4, 6), requires_grad=True), tt.tensor(normal(4, 8, seed=1))
    (layer(x) * g).sum().backward()
    found, x.grad = x.grad.numpy(), None
    (plain(x) * g).sum().backward()
    np.testing.assert_allclose(found, x.grad.numpy(), rtol=1e-4, atol=1e-4)
    added, of_weight = layer.weight.additions[0], plain.weight.grad.numpy()
    np.testing.assert_allclose(added.up.grad.numpy(), 3 * of_weight @ added.down.numpy().T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(added.down.grad.numpy(), 3 * added.up.numpy().T @ of_weight, rtol=1e-4, atol=1e-4)


def test_gradients_flow_through_weights_of_fewer_bits(dtype):
    """Through the second layer, which has no additions, to those of the first."""
    model = nn.add_lora(network(dtype), rank=2, targets=["0"])
    w, x, g = model[2].weight.numpy(), tt.tensor(normal(3, 6)), tt.tensor(normal(3, 5, seed=2))
    hidden = model[1](model[0](x))
    hidden = tt.tensor(hidden.numpy(), requires_grad=True)
    (model[2](hidden) * g).sum().backward()
    np.testing.assert_allclose(hidden.grad.numpy(), g.numpy() @ w, rtol=1e-5, atol=1e-5)
    (model(x) * g).sum().backward()
    assert np.abs(model[0].weight.additions[0].up.grad.numpy()).max() > 0


def test_second_derivatives(dtype):
    layer = with_values(nn.add_lora(network(dtype), rank=2))
    x = tt.tensor(normal(2, 6), requires_grad=True)
    (first,) = tt.grad(layer(x).sum(), [x], create_graph=True)
    (second,) = tt.grad((first * first).sum(), [x])
    assert np.abs(second.numpy()).max() > 0


def test_without_additions_no_gradient_flows_through_weights_of_fewer_bits():
    with pytest.raises(RuntimeError, match=r"train additions to its weights with tt\.nn\.add_lora\(model\)"):
        network("int8")(tt.tensor(normal(2, 6))).sum().backward()


def test_other_parameters_may_learn_too(dtype):
    model = nn.add_lora(network(dtype), rank=2, targets=["0"])
    model[2].bias.requires_grad = True
    model(tt.tensor(normal(3, 6))).sum().backward()
    np.testing.assert_array_equal(model[2].bias.grad.numpy(), [3.0] * 5)
    assert "2.bias" in nn.lora_state(model)


def test_shards_learn_what_the_whole_batch_does(dtype):
    model = with_values(nn.add_lora(network(dtype), rank=2))
    x, targets = tt.tensor(normal(8, 6)), tt.tensor(normal(8, 5, seed=1))
    tt.mse_loss(model(x), targets).backward()
    want = {name: p.grad.numpy() for name, p in learned(model).items()}
    model.zero_grad()
    tt.parallel.backward(lambda part: tt.mse_loss(model(part[0]), part[1]) / 2, [(x[:4], targets[:4]), (x[4:], targets[4:])])
    for name, p in learned(model).items():
        np.testing.assert_allclose(p.grad.numpy(), want[name], rtol=1e-4, atol=1e-5)
    assert not [name for name, p in model.named_parameters() if p.grad is not None and not p.requires_grad]


def test_activation_checkpointing(dtype):
    model, x = nn.add_lora(network(dtype), rank=2, dropout=0.5), tt.tensor(normal(8, 6))
    gradients = []
    for call in (model, lambda x: tt.checkpoint(model, x)):
        tt.seed(1)
        model.zero_grad()
        call(x).sum().backward()
        gradients.append({name: p.grad.numpy() for name, p in learned(model).items() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() != set()
    for name, gradient in gradients[0].items():
        np.testing.assert_array_equal(gradients[1][name], gradient)


def test_a_trace_follows_what_is_learned(dtype):
    model = nn.add_lora(network(dtype), rank=2, rows=(1, 4)).eval()
    traced, x = tt.trace(model), tt.tensor(normal(3, 6))
    traced(x)
    with_values(model)
    for rows in (x, tt.tensor(normal(3, 6, seed=9))):
        with tt.no_grad():
            np.testing.assert_allclose(traced(rows).numpy(), model(rows).numpy(), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------- merging, and states


def test_merging_and_taking_out_again(dtype):
    model, x = with_values(nn.add_lora(network(dtype), rank=2), seed=1), tt.tensor(normal(3, 6))
    base = {name: weight.base.numpy().copy() for name, weight in lora_weights(model)}
    before, sums = model(x).numpy(), {name: weight.numpy() for name, weight in lora_weights(model)}
    merged = nn.merge_lora(model)
    assert sorted(model.state_dict()) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert not learned(model)
    for name, p in model.named_parameters():
        if name in sums:
            np.testing.assert_allclose(p.numpy(), sums[name], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model(x).numpy(), before, atol=1.0 if dtype == "int8" else 1e-4)
    nn.unmerge_lora(model, merged)
    np.testing.assert_allclose(model(x).numpy(), before, atol=1e-4)
    for name, weight in lora_weights(model):
        check = np.testing.assert_allclose if dtype == "float32" else np.testing.assert_array_equal
        check(weight.base.numpy(), base[name], **({"atol": 1e-5} if dtype == "float32" else {}))
    model(x).sum().backward()
    assert all(p.grad is not None for p in learned(model).values())


def test_what_is_taken_out_follows_the_model():
    model = with_values(nn.add_lora(network(), rank=2, dropout=0.5))
    merged = nn.merge_lora(model)
    nn.unmerge_lora(model.eval().astype("float64"), merged)
    assert not any(module.training for module in model.modules())
    assert {str(value.dtype) for value in model.state_dict().values()} == {"float64"}


def test_a_copy_of_a_merged_model():
    model = with_values(nn.add_lora(network(), rank=2))
    x, before = tt.tensor(normal(2, 6)), model(tt.tensor(normal(2, 6))).numpy()
    merged = nn.merge_lora(model)
    duplicate = copy.deepcopy(model)
    nn.unmerge_lora(duplicate, copy.deepcopy(merged))
    np.testing.assert_allclose(duplicate(x).numpy(), before, atol=1e-4)
    assert isinstance(model[0].weight, nn.Parameter)


def test_a_merged_model_is_quantized():
    model = nn.add_lora(network(), rank=2)
    with pytest.raises(ValueError, match=r"0\.weight\.base has additions: quantize before add_lora, or after merge_lora"):
        nn.quantize_(model)
    assert list(nn.merge_lora(model)) == ["0.weight", "2.weight"]
    assert nn.merge_lora(nn.quantize_(model)) == {}


def test_the_state_goes_through_a_file(dtype, tmp_path):
    model = with_values(nn.add_lora(network(dtype), rank=2))
    tt.save(nn.lora_state(model), tmp_path / "adapter.safetensors")
    other = nn.add_lora(network(dtype), rank=2)
    x = tt.tensor(normal(2, 6))
    assert other.load_state_dict(tt.load(tmp_path / "adapter.safetensors"), strict=False).unexpected_keys == []
    np.testing.assert_array_equal(other(x).numpy(), model(x).numpy())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"])
def test_a_duplicate_gives_the_same_and_learns(dtype, duplicate):
    model, x = with_values(nn.add_lora(network(dtype), rank=2, rows=(1, 3))), tt.tensor(normal(2, 6))
    other = duplicate(model)
    np.testing.assert_array_equal(other(x).numpy(), model(x).numpy())
    other(x).sum().backward()
    assert learned(other).keys() == learned(model).keys()
    assert all(p.grad is None for p in learned(model).values())


def test_repr():
    lines = repr(nn.add_lora(nn.Linear(3, 4), rank=2, rows=(1, 3), rank_stabilized=True)).splitlines()
    assert [line.split("  ")[0] for line in lines[:2]] == ["Linear(3, 4)", ""]
    assert "LoraWeight((4, 3))" in lines[1]
    assert "0: Addition(rank=2, alpha=16, rank_stabilized=True, rows 1 to 3)" in lines[3]


WRONG = {
    "target": ({"targets": ["0", "query"]}, "the model has no linear layer named 'query': there are 0, 2"),
    "expression": ({"targets": "x.*"}, r"no linear layer that 'x\.\*' matches"),
    "no target": ({"targets": []}, "targets are empty: omit them"),
    "wrong expression": ({"targets": "("}, r"the regular expression '\(' is wrong"),
    "many rows": ({"rows": (0, 1, 2)}, "rows must be two numbers, the first and the last, got 3"),
    "rank": ({"rank": 0}, "rank must be at least 1 and alpha positive, got 0 and 16.0"),
    "alpha": ({"alpha": -1}, "got 8 and -1"),
    "no alpha": ({"alpha": float("nan")}, "alpha positive"),
    "rows": ({"rows": (0, 6)}, r"a weight \(5, 8\) has no rows 0 to 6"),
    "no rows": ({"rows": (2, 2)}, "has no rows 2 to 2"),
    "dropout": ({"dropout": 1.5}, "1.5"),
}


@pytest.mark.parametrize("arguments, message", WRONG.values(), ids=WRONG)
def test_what_cannot_be_added(arguments, message):
    model = network()
    with pytest.raises(ValueError, match=message):
        nn.add_lora(model, **arguments)
    assert not list(lora_weights(model))
    assert len(learned(model)) == 4


def test_what_cannot_be_taken_out():
    merged = nn.merge_lora(nn.add_lora(network(), rank=2))
    with pytest.raises(ValueError, match=r"the model has no weight 0\.weight of shape \(8, 6\)"):
        nn.unmerge_lora(nn.Sequential(nn.Linear(6, 7), nn.Linear(1, 1)), merged)


def test_a_model_without_linear_layers():
    with pytest.raises(ValueError, match="no linear layer at all: there are none"):
        nn.add_lora(nn.Embedding(3, 2))


def test_a_model_of_another_dtype():
    layer = nn.add_lora(nn.Linear(3, 2).astype("float64"), rank=1)
    assert {str(value.dtype) for value in layer.state_dict().values()} == {"float64"}
    assert isinstance(layer.weight, LoraWeight)
    assert layer.weight.dtype == "float64"
