"""Parts of a model that are switched off or replaced, against the same computed in another way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import (
    GPT,
    AttentionRow,
    BertConfig,
    BertForMaskedLM,
    BlockOff,
    BlockOutput,
    GPTConfig,
    HeadOff,
    MeanAttention,
    NetworkOff,
    NeuronOff,
    RecurrentConfig,
    RecurrentLM,
    Transformer,
    TransformerConfig,
    intervening,
    quantize,
    recording_attention,
    recording_means,
    recording_outputs,
    residual_streams,
)
from tinyformer.common.errors import UserError
from tinytensor.nn import Module
from tinytensor.nn.hooks import hooked

IDS = tt.tensor([[3, 4, 5, 6, 2, 7]])
TARGET = tt.tensor([[1, 4, 5, 6]])


def gpt(**settings: Any) -> GPT:
    return GPT(GPTConfig(11, block_size=8, **{"num_layers": 2, "num_heads": 2, "d_model": 16, **settings}))


MODELS: dict[str, tuple[Callable[[], Module], str]] = {
    "learned positions": (lambda: gpt(positions="learned", bias=True), "blocks.1"),
    "rotary, SwiGLU, RMS norms": (lambda: gpt(positions="rotary", activation="swiglu", norm="rms"), "blocks.0"),
    "grouped heads": (lambda: gpt(num_heads=4, num_key_value_heads=2, d_head=6, query_key_norm=True), "blocks.1"),
    "a sliding window": (lambda: gpt(sliding_window=3), "blocks.1"),
    "BERT": (lambda: BertForMaskedLM(BertConfig(11, num_layers=2, num_heads=2, d_model=16, d_ff=24)), "bert.encoder.blocks.0"),
    "an encoder": (lambda: translator(), "encoder.blocks.1"),
    "a decoder": (lambda: translator(norm_first=True), "decoder.blocks.0"),
}


def translator(**settings: Any) -> Transformer:
    sizes = {"d_model": 16, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 24}
    return Transformer(TransformerConfig(11, 11, **sizes, **settings))


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> tuple[Module, str, tuple[tt.Tensor, ...]]:
    """A model with large weights, the name of one of its blocks, and what it reads."""
    make, block = MODELS[request.param]
    tt.seed(3)
    model = make().eval()
    for parameter in model.parameters():
        parameter.assign(parameter * 2)
    return model, block, (IDS, TARGET) if isinstance(model, Transformer) else (IDS,)


def run(model: Module, inputs: tuple[tt.Tensor, ...], *interventions: Any, means: Any = None) -> np.ndarray:
    before = state_of(model)
    with tt.no_grad(), intervening(model, interventions, means):
        found = model(*inputs).numpy()
    assert state_of(model) == before
    return np.asarray(found)


def output_of(model: Module, part: str, inputs: tuple[tt.Tensor, ...], *interventions: Any) -> np.ndarray:
    """What a part of the model gives in a run with interventions, those at the part itself included."""
    means = means_of(model, inputs)
    with intervening(model, interventions, means), recording_outputs(model.get_submodule(part)) as recorded, tt.no_grad():
        model(*inputs)
    return np.asarray(recorded[""][0].numpy())


def state_of(model: Module) -> tuple[dict[str, bytes], list[str]]:
    """The bytes of all weights, and the modules that have hooks."""
    weights = {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}
    return weights, [name for name, module in model.named_modules() if "_forward_hooks" in vars(module)]


def means_of(model: Module, inputs: tuple[tt.Tensor, ...]) -> dict[str, tt.Tensor]:
    with tt.no_grad(), recording_means(model) as means:
        model(*inputs)
    return means


def edited(model: Module, name: str, change: Callable[[np.ndarray], None]) -> Module:
    """Return a copy of the model with an edited weight."""
    other = copy.deepcopy(model)
    weight = other.get_submodule(name).weight
    array = weight.numpy().copy()
    change(array)
    weight.assign(tt.tensor(array))
    return other


def same(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def layers_of(model: Module, block: str) -> list[str]:
    found = [f"{block}.attention"]
    return [*found, f"{block}.cross_attention"] if model.get_submodule(block).cross_attention is not None else found


def test_a_head_off_is_its_columns_of_the_output_projection_at_zero(case: Any) -> None:
    model, block, inputs = case
    for name in layers_of(model, block):
        width = model.get_submodule(name).d_head

        def zero(weight: np.ndarray, width: int = width) -> None:
            weight[:, width : 2 * width] = 0

        found = run(model, inputs, HeadOff(name, 1))
        same(found, run(edited(model, f"{name}.output", zero), inputs))
        assert abs(found - run(model, inputs)).max() > 1e-2


def test_a_head_replaced_by_its_mean_gives_the_same_at_each_token(case: Any) -> None:
    model, block, inputs = case
    for name in layers_of(model, block):
        layer, given = model.get_submodule(name), []
        with tt.no_grad(), hooked([(layer, "heads", lambda layer, inputs, heads: given.append(heads.numpy()))]):  # noqa: B023
            model(*inputs)
        (heads,) = given
        part = slice(layer.d_head, 2 * layer.d_head)
        column = layer.output.weight.numpy()[:, part]
        expected = layer.output(tt.tensor(heads)).numpy()
        expected = expected + (heads[:, :, part].mean(1, keepdims=True) - heads[:, :, part]) @ column.T
        same(output_of(model, name, inputs, HeadOff(name, 1, "mean")), expected)


def test_a_network_off_is_its_last_layer_at_zero(case: Any) -> None:
    model, block, inputs = case
    name = f"{block}.feed_forward"
    other = copy.deepcopy(model)
    down = other.get_submodule(f"{block}.feed_forward.down")
    for weight in (down.weight, down.bias):
        if weight is not None:
            weight.assign(weight * 0)
    same(run(model, inputs, NetworkOff(name)), run(other, inputs))
    before, after = output_of(model, name, inputs), output_of(model, name, inputs, NetworkOff(name, "mean"))
    same(after, np.broadcast_to(before.mean(1, keepdims=True), before.shape))


def test_neurons_off_are_columns_of_the_last_layer_at_zero(case: Any) -> None:
    model, block, inputs = case
    name = f"{block}.feed_forward"

    def zero(weight: np.ndarray) -> None:
        weight[:, [3, 7]] = 0

    found = run(model, inputs, NeuronOff(name, 3), NeuronOff(name, 7))
    same(found, run(edited(model, f"{name}.down", zero), inputs))
    assert abs(found - run(model, inputs, NeuronOff(name, 3))).max() > 1e-3


def test_a_neuron_replaced_by_its_mean(case: Any) -> None:
    model, block, inputs = case
    network = model.get_submodule(f"{block}.feed_forward")
    inner = []
    with tt.no_grad(), hooked([(network.down, "forward", lambda down, inputs, output: inner.append(inputs[0].numpy()))]):
        model(*inputs)
    changed = inner[0].copy()
    changed[..., 5] = changed[..., 5].mean()
    name = f"{block}.feed_forward"
    same(output_of(model, name, inputs, NeuronOff(name, 5, "mean")), network.down(tt.tensor(changed)).numpy())


def test_a_block_turned_off_passes_its_input_on(case: Any) -> None:
    model, block, inputs = case
    got: list[np.ndarray] = []
    with hooked([(model.get_submodule(block), "forward", lambda block, inputs, output: got.append(inputs[0].numpy()))]):
        run(model, inputs)
    added = (output_of(model, block, inputs) - got[0]).mean((0, 1))
    same(output_of(model, block, inputs, BlockOff(block)), got[0])
    same(output_of(model, block, inputs, BlockOff(block, "mean")), got[0] + added)


def test_a_gpt_without_a_block_is_a_gpt_with_one_fewer() -> None:
    tt.seed(0)
    model = gpt().eval()
    smaller = gpt(num_layers=1).eval()
    state = {name.replace("blocks.1.", "blocks.0."): tensor for name, tensor in model.state_dict().items() if "s.0" not in name}
    smaller.load_state_dict(state)
    same(run(model, (IDS,), BlockOff("blocks.0")), run(smaller, (IDS,)))


def test_mean_attention_is_the_same_for_all_queries_but_for_what_they_may_see(case: Any) -> None:
    model, block, inputs = case
    for name in layers_of(model, block):
        layer = model.get_submodule(name)
        with recording_attention(layer) as recorded:
            model(*inputs)
        weights = recorded[""][0].numpy()[0, 1]
        rows = np.zeros_like(weights)
        for query in range(weights.shape[0]):
            seen = [key for key in range(weights.shape[1]) if weights[query, key] > 0]
            means = [weights[weights[:, key] > 0, key].mean() for key in seen]
            rows[query, seen] = np.array(means) / sum(means)
        by_hand = [AttentionRow(name, 1, query, row.tolist()) for query, row in enumerate(rows)]
        found = run(model, inputs, MeanAttention(name, 1))
        same(found, run(model, inputs, *by_hand))
        assert abs(found - run(model, inputs)).max() > 1e-4


def test_a_row_of_attention_mixes_the_values_as_it_says(case: Any) -> None:
    model, block, inputs = case
    layer, query, read = model.get_submodule(f"{block}.attention"), 3, []
    with (
        hooked([(layer, "forward", lambda layer, inputs, output: read.append(inputs[0]))]),
        recording_outputs(layer) as recorded,
    ):
        run(model, inputs)
        row = [0.25 if place == query else 0.75 if place == query - 1 else 0.0 for place in range(read[0].shape[1])]
        with recording_attention(layer) as attention:
            run(model, inputs, AttentionRow(f"{block}.attention", 1, query, row))
    before, after = (output.numpy()[0] for output in recorded[""])
    weights = attention[""][0].numpy()[0, 1, query]
    _, _, value = layer.heads(layer.query_key_value(read[0]), None)
    values = layer.for_each_query(value).numpy()[0, 1]  # (keys, d_head)
    column = layer.output.weight.numpy()[:, layer.d_head : 2 * layer.d_head]
    expected = before.copy()
    expected[query] += column @ ((np.array(row) - weights) @ values)
    same(after, expected)


def test_the_last_block_patched_at_all_tokens_is_the_other_run() -> None:
    tt.seed(0)
    model = gpt(num_layers=3).eval()
    other = tt.tensor([[3, 9, 5, 6, 8, 7]])
    streams = residual_streams(model, other)["blocks"]
    clean, whole = run(model, (IDS,)), run(model, (other,))
    patched = run(model, (tt.concatenate([IDS] * 6),), BlockOutput("blocks.2", range(6), streams[3][0]))
    for place in range(6):
        same(patched[place, place], whole[0, place])
        others = [i for i in range(6) if i != place]
        same(patched[place, others], clean[0, others])
    # The texts differ from place 1 on, so before it nothing changes; and block 1 at a place reaches what comes after.
    early = run(model, (tt.concatenate([IDS] * 2),), BlockOutput("blocks.0", [0, 1], streams[1][0, :2]))
    same(early[0], clean[0])
    assert abs(early[1, 5] - clean[0, 5]).max() > 1e-4


def test_interventions_add_up() -> None:
    tt.seed(0)
    model = gpt().eval()
    both = HeadOff("blocks.0.attention", 0), HeadOff("blocks.0.attention", 1)

    def zero(weight: np.ndarray) -> None:
        weight[:] = 0

    same(run(model, (IDS,), *both), run(edited(model, "blocks.0.attention.output", zero), (IDS,)))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantized_weights(dtype: str) -> None:
    tt.seed(0)
    model = quantize(gpt(d_model=64).eval(), dtype)
    network = model.blocks[1].feed_forward
    inner = []
    watched = (network.down, "forward", lambda down, inputs, output: inner.append(inputs[0].numpy()))
    with hooked([watched]), recording_outputs(network) as outputs:
        run(model, (IDS,), NeuronOff("blocks.1.feed_forward", 2))
    changed = inner[0].copy()
    changed[..., 2] = 0
    np.testing.assert_allclose(outputs[""][0].numpy(), network.down(tt.tensor(changed)).numpy(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("intervention", "said"),
    [
        (HeadOff("blocks.9.attention", 0), "has no MultiHeadAttention 'blocks.9.attention': choose one of blocks.0.attention"),
        (HeadOff("blocks.0.attention", 2), "head must be from 0 to 1, got 2"),
        (HeadOff("blocks.0.attention", 0, "half"), "by must be one of zero, mean, got 'half'"),
        (HeadOff("blocks.0.attention", 0, "mean"), "means has no blocks.0.attention"),
        (NetworkOff("blocks.0"), "has no FeedForward 'blocks.0'"),
        (NeuronOff("blocks.0.feed_forward", 64), "neuron must be from 0 to 63, got 64"),
        (BlockOff("blocks.2"), "has no Block 'blocks.2'"),
        (MeanAttention("blocks.0.attention", -1), "head must be from 0 to 1, got -1"),
        (AttentionRow("blocks.0.attention", 0, 6, [1.0]), "query must be from 0 to 5, got 6"),
        (AttentionRow("blocks.0.attention", 0, 1, [0.5, 0.5]), "6 weights, one for each key, got 2"),
        (AttentionRow("blocks.0.attention", 0, 1, [0.5, 0.0, 0.5, 0, 0, 0]), "cannot attend to all keys"),
        (BlockOutput("blocks.0", [6], tt.zeros((1, 16))), "place must be from 0 to 5, got 6"),
        (BlockOutput("blocks.0", [0, 1], tt.zeros((2, 16))), "places and vectors must have one row per text, 1: got 2 places"),
    ],
)
def test_what_is_not_there_is_refused(intervention: Any, said: str) -> None:
    model = gpt(activation="gelu_tanh").eval()
    with pytest.raises(UserError, match=said):
        run(model, (IDS,), intervention)
    assert not any("_forward_hooks" in vars(module) for module in model.modules())


def test_weights_that_are_no_row_are_refused() -> None:
    for weights in ([0.5, 0.4], [1.5, -0.5], [float("nan"), 1.0]):
        with pytest.raises(UserError, match="must be non-negative and sum to 1"):
            AttentionRow("blocks.0.attention", 0, 1, weights)


def test_a_recurrent_network_is_refused() -> None:
    model = RecurrentLM(RecurrentConfig(11, "gru", num_layers=1, d_model=8))
    with pytest.raises(UserError, match="RecurrentLM has no Block: interventions are for Transformers"):
        run(model, (IDS,), BlockOff("layers"))
