"""How much a training step gives the GPU to do: its kernels and calls of cuBLAS, counted on the fake CuPy.

Each costs the CPU a few microseconds, so a step of many small ones waits for Python. The number depends on the model's layers,
not on its width or the batch, so narrow models do.
"""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.optimizing import optimizer_for
from tinytensor import optim
from tinytensor.device.backend import xp
from tinytensor.kernels.cupy import attention, cross_entropy

CHARACTERS = GPTConfig(vocab_size=65, block_size=16, num_layers=6, num_heads=6, d_model=24, dropout=0.2)
GPT2 = GPTConfig(vocab_size=97, block_size=16, num_layers=12, num_heads=12, d_model=48, bias=True)

ATTENTION = ["gemmStridedBatchedEx", "softmax", "softmax_backward", "split_heads", "join_heads", "keep_bits_of_tiles"]
UPLOAD = "upload"  # a copy from the host: the addresses of arrays, where CuPy's pool gives them other memory than before


def launches(config, dtype, batch=3):
    """The names of what a training step launches, forward, backward, clipping and AdamW, once it has warmed up."""
    tt.seed(0)
    model = GPT(config).astype(dtype).train()
    optimizer = optimizer_for(model, TrainingConfig())
    ids = tt.tensor(np.random.default_rng(0).integers(0, config.vocab_size, (batch, config.block_size)))
    for _ in range(2):
        first, waits = len(xp.launches), xp.synchronizations
        optimizer.zero_grad()
        model.loss(ids, ids).backward()
        _, scale = optim.norm_and_scale(model.parameters(), 1.0)
        optimizer.step(0.5, gradient_scale=scale)
    assert xp.synchronizations == waits
    return Counter(name for name in xp.launches[first:] if name != UPLOAD)


dtypes = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


@dtypes
def test_a_step_of_the_model_of_characters(dtype):
    found = launches(CHARACTERS, dtype)
    assert found.total() <= 250, found
    assert found["gemmStridedBatchedEx"] == 6 * 6  # scores and output, and four gradients
    assert launches(CHARACTERS, dtype, batch=1).total() <= found.total()


@dtypes
def test_a_step_of_gpt2(dtype):
    found = launches(GPT2, dtype)
    assert found.total() <= 600, found
    assert found["gemmStridedBatchedEx"] == 12 * 6


@pytest.mark.parametrize(("dtype", "most"), [("float32", 920), ("bfloat16", 990)])
def test_a_step_of_gpt2_at_its_full_length(monkeypatch, dtype, most):
    """1,024 tokens are cut into four blocks of queries, whose weights the backward pass computes again. Here 16 tokens are cut
    so. Two chunks of logits are made, as of 8 x 1,024 tokens.

    There are more launches than in a short step, by those of three more blocks. Larger blocks would compute more of the scores
    that causality hides.
    """
    monkeypatch.setattr(attention, "_QUERIES", 4)
    monkeypatch.setattr(attention, "_KEPT", 0)
    monkeypatch.setattr(cross_entropy, "_CHUNK", math.ceil(3 * 16 * 97 / 2))
    found = launches(GPT2, dtype)
    assert found["gemmStridedBatchedEx"] == 12 * 4 * (2 + 5)
    others = found.total() - sum(found[name] for name in ATTENTION)
    assert others <= 470 and found.total() <= most, found


@pytest.mark.parametrize(
    ("config", "most", "dropout"), [(CHARACTERS, 196, True), (GPT2, 470, False)], ids=["characters", "GPT-2"]
)
def test_a_step_with_flash_attention(monkeypatch, config, most, dropout):
    """Where a head has a width that it does: three launches a layer, however long the sequences are."""
    monkeypatch.setattr(attention, "_QUERIES", 4)
    monkeypatch.setattr(attention, "_KEPT", 0)
    found = launches(replace(config, d_model=16 * config.num_heads), "bfloat16")
    assert found.total() <= most, found
    assert [found[f"flash_{name}"] for name in ("forward", "backward_queries", "backward_keys")] == [config.num_layers] * 3
    assert found["keep_bits_of_tiles"] == (config.num_layers if dropout else 0)
    assert not any(found[name] for name in ATTENTION if name != "keep_bits_of_tiles")


def test_the_count_is_of_what_a_gpu_does():
    x = xp.zeros((4, 6), "float32")
    first = len(xp.launches)
    y = x.T[1:].reshape(5, 4)  # a view
    xp.empty((3, 3)), x.astype("float32", copy=False), xp.asarray(x), xp.ascontiguousarray(x), x[:0] + x[:0]
    assert xp.launches[first:] == []
    y + 1.0, y.sum(), y.T.reshape(-1), x.copy(), x.astype("float64"), xp.ascontiguousarray(y.T), x.__setitem__(0, 1.0)
    x += x
    x @ x.T, x[xp.array([1, 2])]
    names = ["add", "sum", "copy", "copy", "astype", "ascontiguousarray", "assign", "add", "matmul", "upload", "take"]
    assert xp.launches[first:] == names
