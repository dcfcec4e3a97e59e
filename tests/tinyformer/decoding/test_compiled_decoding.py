"""A decoded token is one compiled call, where Numba's kernels are used; and it gives what the model gives."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import GPT
from tinyformer.decoding.decoders import GPTDecoder
from tinyformer.models.attention import recording_attention
from tinyformer.models.gpt import GPTConfig

pytestmark = pytest.mark.needs("numba")
LAYERS = 2


@pytest.fixture
def programs(monkeypatch):
    """A list of all programs that are traced in the test."""
    traced, original = [], sys.modules["tinytensor.replay.trace"].Tracer.program

    def program(self, out):
        traced.append(original(self, out))
        return traced[-1]

    monkeypatch.setattr(sys.modules["tinytensor.replay.trace"].Tracer, "program", program)
    return traced


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
    "one head, one layer": {"num_heads": 1, "num_layers": 1},
    "rotary": {"positions": "rotary"},
    "norms of queries and keys": {"query_key_norm": True},
    "rotary, and norms": {"positions": "rotary", "query_key_norm": True, "norm_eps": 0.1},
}


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_token_is_one_call_after_the_embedding_and_the_caches(programs, settings, batch):
    model = make(**settings)
    check(GPTDecoder(model), model, texts(batch, 9))
    (program,) = programs
    layers = model.config.num_layers
    positions = layers if model.config.positions == "rotary" else 1  # each layer's rotation, or those of the model
    assert len(program.steps) == 2 + positions + layers  # the embedding, the positions, each cache, and all else


GROUPED = {"positions": "rotary", "num_heads": 2, "num_key_value_heads": 1, "query_key_norm": True}


@pytest.mark.parametrize("settings, batch", [(GROUPED, 1), ({}, 9)], ids=["grouped heads", "many rows"])
def test_what_the_compiled_loop_does_not_do_runs_step_by_step(programs, settings, batch):
    model = make(**settings)
    check(GPTDecoder(model), model, texts(batch, 6))
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

    take_over = program_loops._take_over.compile(np.dtype("float32"))
    weight, x = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)
    out, bias = np.zeros((1, 64), np.float32), np.zeros(64, np.float32)
    arrays = [x[:1].copy(), weight, bias, out]
    addresses = np.array([array.ctypes.data for array in arrays])
    instructions = np.array([[0, 3, 0, 1, 2, 1, 64, 64, 0, 8]])
    tickets = np.full(16 + 8, -1)
    take_over(instructions, addresses, tickets, 0)
    np.testing.assert_allclose(out, x[:1] @ weight.T, rtol=1e-4, atol=1e-4)
    out[:] = 0
    tickets[16:] = 0  # all parts of instruction 0 are done
    tickets[18] = -1
    take_over(instructions, addresses, tickets, 0)
    assert np.flatnonzero(out).tolist() == list(range(16, 24))


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
    with pytest.raises(ValueError, match=r"shape \(1, 24\) now has shape \(1, 12\)"):
        decoder.next_logits(ids[:, 2:3])
