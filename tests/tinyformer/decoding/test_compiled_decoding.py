"""A decoded token is one compiled call, where Numba's kernels are used; and it gives what the model gives."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import GPT
from tinyformer.decoding.generation import GPTDecoder, TransformerDecoder
from tinyformer.models.activations import ACTIVATIONS, Activation
from tinyformer.models.attention import recording_attention
from tinyformer.models.gpt import GPTConfig
from tinyformer.models.quantizing import quantize
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinytensor import kernels
from tinytensor.autograd.op import op
from tinytensor.functional.attention import memory_attention
from tinytensor.kernels.numba import instructions

pytestmark = pytest.mark.needs("numba")
LAYERS = 2


def make(seed=0, **settings) -> GPT:
    tt.seed(seed)
    settings = {"block_size": 16, "num_layers": LAYERS, "num_heads": 3, "d_model": 24, "bias": True, **settings}
    model = GPT(GPTConfig(vocab_size=11, **settings))
    for parameter in model.parameters():  # biases of 0 and norms of 1 would hide a mistake
        parameter.assign(parameter + tt.random.normal(parameter.shape, std=0.1))
    return model.eval()


def texts(batch, length, seed=0):
    return np.random.default_rng(seed).integers(0, 11, (batch, length))


def check(decoder, model, ids):
    """One id after the other gives the logits of the model for the whole text."""
    for end in range(1, ids.shape[1] + 1):
        with tt.no_grad():
            want = model(tt.tensor(ids[:, :end])).numpy()[:, -1]
        np.testing.assert_allclose(decoder.next_logits(ids[:, end - 1 : end]), want, rtol=2e-4, atol=2e-5)


SETTINGS = {
    "plain": {},
    "no biases": {"bias": False},
    "RMS norm, exact gelu": {"norm": "rms", "activation": "gelu_exact"},
    "relu, sinusoidal": {"activation": "relu", "positions": "sinusoidal"},
    "swiglu": {"activation": "swiglu"},
    "Gemma": {"activation": "geglu", "norm": "rms", "positions": "rotary", "d_head": 6, "scale_embeddings": True},
    "one head, one layer": {"num_heads": 1, "num_layers": 1},
    "rotary": {"positions": "rotary"},
    "norms of queries and keys": {"query_key_norm": True},
    "rotary, and norms": {"positions": "rotary", "query_key_norm": True, "norm_eps": 0.1},
    "grouped heads": {"positions": "rotary", "num_heads": 4, "num_key_value_heads": 2, "query_key_norm": True},
}
EACH = SETTINGS | {name: {"activation": name} for name in ACTIVATIONS}  # a new activation needs an instruction for its op


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("settings", EACH.values(), ids=EACH)
def test_a_token_is_one_call_after_the_embedding_and_the_caches(programs, settings, batch):
    model = make(**settings)
    check(GPTDecoder(model), model, texts(batch, 9))
    (program,) = programs
    layers = model.config.num_layers
    positions = layers if model.config.positions == "rotary" else 1  # each layer's rotation, or those of the model
    assert len(program.steps) == 2 + positions + layers  # the embedding, the positions, each cache, and all else


def test_every_instruction_is_of_an_op_that_decoding_calls(monkeypatch):
    """One whose name fits no op would never be used: decoding would be slow, and nothing else would tell."""
    names, fuse = set(), kernels.fuse
    monkeypatch.setattr(kernels, "fuse", lambda steps, *rest: names.update(step.name for step in steps) or fuse(steps, *rest))
    low = quantize(make(d_model=32, num_heads=2, d_ff=64), "int8")
    for model in (low, *[make(**settings) for settings in SETTINGS.values()]):
        GPTDecoder(model).next_logits(texts(1, 1))
    model = Transformer(TransformerConfig(11, 11, d_model=24, num_heads=3, encoder_layers=1, decoder_layers=1, d_ff=20)).eval()
    decoder = TransformerDecoder(model, texts(1, 4), 6)
    for _ in range(2):  # the first call fills the cache of the source
        decoder.next_logits(texts(1, 1))
    assert set(instructions._WRITERS) <= names


def test_a_users_op_with_the_name_of_ours_is_computed_by_its_own_function(programs, monkeypatch):
    @op(x=lambda g: g)
    def relu(x):
        return x - 1

    model = make(activation="relu")
    monkeypatch.setitem(ACTIVATIONS, "relu", Activation(relu))
    check(GPTDecoder(model), model, texts(1, 4))
    assert len(programs[0].steps) > 20


def test_many_rows_run_step_by_step(programs):
    model = make()
    check(GPTDecoder(model), model, texts(9, 6))
    assert len(programs[0].steps) > 20


def test_another_dtype_runs_step_by_step(programs):
    model = make()
    for parameter in model.parameters():
        parameter.data = parameter.data.astype(np.float64)
    check(GPTDecoder(model), model, texts(1, 6))
    assert len(programs[0].steps) > 20


def test_weights_may_change_between_tokens():
    model, other = make(), make(seed=1)
    decoder, ids = GPTDecoder(model), texts(1, 3)
    decoder.next_logits(ids[:, :1])
    decoder.next_logits(ids[:, 1:2])
    before = model.token_embedding.weight.numpy().copy()
    model.token_embedding.weight.assign(other.token_embedding.weight)  # the output layer, too
    changed = decoder.next_logits(ids[:, 2:])
    model.token_embedding.weight.assign(tt.tensor(before))
    again = GPTDecoder(model)
    again.next_logits(ids[:, :1])
    again.next_logits(ids[:, 1:2])
    assert np.abs(again.next_logits(ids[:, 2:]) - changed).max() > 0.01
    model.load_state_dict(other.state_dict())
    check(GPTDecoder(model), other, ids)


def test_rows_are_chosen_in_the_cache(programs):
    model, ids = make(), texts(3, 6)
    decoder = GPTDecoder(model)
    for column in ids[:, :4].T:
        decoder.next_logits(column[:, None])
    rows = [2, 0, 2]
    decoder.select(rows)
    with tt.no_grad():
        want = model(tt.tensor(np.concatenate([ids[rows, :4], ids[:, 4:5]], axis=1))).numpy()[:, -1]
    np.testing.assert_allclose(decoder.next_logits(ids[:, 4:5]), want, rtol=2e-4, atol=2e-5)
    assert len(programs) == 1


@pytest.mark.parametrize("beams", [1, 3])
def test_a_translated_token_is_one_call_too(programs, beams):
    tt.seed(0)
    sizes = {"d_model": 24, "num_heads": 3, "encoder_layers": 1, "decoder_layers": LAYERS, "d_ff": 40}
    model = Transformer(TransformerConfig(11, 11, **sizes)).eval()
    for parameter in model.parameters():
        parameter.assign(parameter + tt.random.normal(parameter.shape, std=0.1))
    source, ids = np.array([[3, 4, 5, 6], [7, 8, 0, 0]]), texts(2 * beams, 6)
    decoder = TransformerDecoder(model, source, 6)
    ids[:, 0] = 1
    decoder.next_logits(ids[:2, :1])
    decoder.select(np.repeat([0, 1], beams))
    for end in range(2, 7):
        with tt.no_grad():
            want = model(tt.tensor(source.repeat(beams, axis=0)), tt.tensor(ids[:, :end])).numpy()[:, -1]
        np.testing.assert_allclose(decoder.next_logits(ids[:, end - 1 : end]), want, rtol=2e-4, atol=2e-5)
    (program,) = programs
    assert len(program.steps) == 2 + 2 * LAYERS + 1  # the embedding, the positions, the caches, and all else


def test_no_text_sees_a_memory_that_is_hidden():
    stored, x = tt.random.normal((2, 2, 3, 4, 8)).numpy(), tt.random.normal((4, 1, 24)).numpy()
    mask = np.array([[True, False, True, True], [False] * 4]).reshape(2, 1, 1, 4)
    stored[:, 0, :, 1] = np.nan
    attend = tt.opaque(memory_attention)

    def function(x, stored, mask):
        for _ in range(8):  # of fewer steps no program is made
            x = attend(x, stored, mask, 3) * 2.0
        return x

    given = [tt.tensor(array) for array in (x, stored, mask)]
    fast = tt.trace(function)
    first = fast(*given).numpy()
    again = fast(*given).numpy()
    np.testing.assert_allclose(again, first, rtol=1e-4, atol=1e-5)
    assert np.isfinite(again).all() and again[:2].any() and not again[2:].any()


def test_logits_belong_to_the_caller():
    model, ids = make(), texts(1, 4)
    decoder = GPTDecoder(model)
    kept = [decoder.next_logits(column[:, None]) for column in ids.T]
    copies = [logits.copy() for logits in kept]
    decoder.next_logits(ids[:, :1])
    for logits, copy in zip(kept, copies):
        np.testing.assert_array_equal(logits, copy)
        logits[:] = 0  # each is an array of its own


def test_an_id_that_is_none_leaves_the_cache_as_it_was():
    model, ids = make(), texts(1, 5)
    decoder = GPTDecoder(model)
    decoder.next_logits(ids[:, :1])
    decoder.next_logits(ids[:, 1:2])
    for wrong in (11, -1):
        with pytest.raises(IndexError):
            decoder.next_logits(np.array([[wrong]]))
    with tt.no_grad():
        want = model(tt.tensor(ids[:, :3])).numpy()[:, -1]
    np.testing.assert_allclose(decoder.next_logits(ids[:, 2:3]), want, rtol=2e-4, atol=2e-5)


def test_nan_stays_nan():
    model = make()
    decoder = GPTDecoder(model)
    decoder.next_logits(texts(1, 1))
    decoder.next_logits(texts(1, 1))
    model.blocks[0].feed_forward.up.bias.assign(np.full(96, np.nan))
    assert np.isnan(decoder.next_logits(texts(1, 1))).all()


def written(model, ids):
    decoder = GPTDecoder(model)
    return np.stack([decoder.next_logits(column[:, None]) for column in ids.T])


def test_a_second_thread_changes_no_bit(monkeypatch):
    from tinytensor.kernels.numba import programs as compiled

    model, ids = make(d_model=96), texts(3, 12)
    monkeypatch.setattr(compiled, "has_second_core", lambda: False)
    alone = written(model, ids)
    monkeypatch.setattr(compiled, "has_second_core", lambda: True)
    monkeypatch.setattr(compiled, "_SHARED", 0)
    monkeypatch.setattr(compiled, "_PART", 1 << 10)
    parts = []
    original = compiled._Program._cut
    monkeypatch.setattr(compiled._Program, "_cut", lambda self: parts.append(original(self)) or parts[-1])
    for _ in range(20):
        np.testing.assert_array_equal(written(model, ids), alone)
    assert min(parts) > 20
    monkeypatch.setattr(compiled.helper().__class__, "call", lambda self, function: None)  # it never gets a core
    np.testing.assert_array_equal(written(model, ids), alone)


def test_parts_that_another_thread_took_and_did_not_finish_are_computed():
    from tinytensor.kernels.numba import program_loops
    from tinytensor.kernels.numba.instructions import LINEAR

    take_parts = program_loops._take_parts.for_python(np.dtype("float32"))
    weight, x = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)
    out, bias = np.zeros((1, 64), np.float32), np.zeros(64, np.float32)
    arrays = [x[:1].copy(), weight, bias, out]
    places, settings = np.array([[array.ctypes.data for array in arrays]]), np.zeros(1, np.float32)
    instructions = np.array([[LINEAR, 3, 0, 1, 2, 0, 1, 64, 64, 0, 0, 8, 4 * 64, 0, 0, 64, 0]])
    tickets = np.full(16 + 8, -1)
    tickets[0] = 8  # all parts are taken, and none is done
    take_parts(settings, instructions, places, tickets, True)
    np.testing.assert_allclose(out, x[:1] @ weight.T, rtol=1e-4, atol=1e-4)
    out[:] = 0
    tickets[18] = -1  # all others are done
    take_parts(settings, instructions, places, tickets, True)
    assert np.flatnonzero(out).tolist() == list(range(16, 24))


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [70, 128, 3])
def test_how_a_weight_is_cut_changes_no_bit(monkeypatch, together, dtype, width):
    from tinytensor.kernels.numba import compiling, row_dots

    monkeypatch.setattr(compiling, "_is_caching", False)
    monkeypatch.setattr(row_dots, "_several", lambda: together)
    monkeypatch.setattr(row_dots, "_float32_dots", row_dots._dots(False))
    monkeypatch.setattr(row_dots, "_bfloat16_dots", row_dots._dots(True))
    part = row_dots.loop(getattr(row_dots, f"{dtype}_part").function)
    weight, x = np.random.default_rng(0).standard_normal((2, 13, width)).astype(np.float32)
    bias, out = np.arange(13, dtype=np.float32), np.empty((3, 13), np.float32)
    stored = weight if dtype == "float32" else (weight.view(np.uint32) >> 16).astype(np.uint16)
    if dtype == "bfloat16":
        weight = (stored.astype(np.uint32) << 16).view(np.float32)
    part(x[:3], stored.ctypes.data, bias, out)
    np.testing.assert_allclose(out, x[:3] @ weight.T + bias, rtol=1e-4, atol=1e-4)
    cut = np.empty_like(out)
    for first, last in ((0, 1), (1, 6), (6, 13)):
        part(x[:3], stored[first:last].ctypes.data, bias[first:last], cut[:, first:last])
    np.testing.assert_array_equal(cut, out)


def test_the_second_thread_sleeps_while_the_first_has_lost_its_core(monkeypatch):
    from tinytensor.kernels.numba import programs as compiled

    def end_help():
        done = threading.Event()
        while not done.wait(0.01):  # a call is left out while another waits
            compiled.helper().call(done.set)

    model, ids, naps = make(d_model=96), texts(1, 4), []
    end_help()  # it may still sleep for the program before
    monkeypatch.setattr(compiled, "has_second_core", lambda: True)
    monkeypatch.setattr(compiled, "_SHARED", 0)
    monkeypatch.setattr(compiled.time, "sleep", naps.append)
    ended, original = iter([False, False, True]), compiled.run_of

    def run_of(*kernels):
        run = original(*kernels)
        return lambda *arguments: run(*arguments) if arguments[-1] else next(ended, True)

    monkeypatch.setattr(compiled, "run_of", run_of)
    np.testing.assert_array_equal(written(model, ids), written(model, ids))
    end_help()
    assert naps[:2] == [compiled._PAUSE, 2 * compiled._PAUSE]


def test_attention_is_recorded_also_after_tracing():
    model, ids = make(), texts(1, 5)
    decoder = GPTDecoder(model)
    for column in ids[:, :3].T:
        decoder.next_logits(column[:, None])
    with recording_attention(model) as recorded:
        decoder.next_logits(ids[:, 3:4])
    assert [[weights.shape for weights in layer] for layer in recorded.values()] == [[(1, 3, 1, 4)]] * LAYERS
    with tt.no_grad():
        want = model(tt.tensor(ids)).numpy()[:, -1]
    np.testing.assert_allclose(decoder.next_logits(ids[:, 4:]), want, rtol=2e-4, atol=2e-5)


def test_a_position_table_of_another_shape_is_refused():
    model, ids = make(), texts(1, 4)
    decoder = GPTDecoder(model)
    decoder.next_logits(ids[:, :1])
    decoder.next_logits(ids[:, 1:2])
    weight = model.position_embedding.weight
    weight.requires_grad = False  # a weight that learns keeps its shape
    weight.data = np.zeros((16, 12), np.float32)
    with pytest.raises(ValueError, match=r"add of shapes \(1, 1, 24\), \(1, 12\)"):
        decoder.next_logits(ids[:, 2:3])
