"""The CUDA kernels that move attention's heads, run on the CPU by the fake CuPy, against the views of them."""

import pytest
from cuda_checks import dtypes, in_each_order, numbers

import tinytensor as tt
from tinytensor.device.backend import xp
from tinytensor.kernels import attention as views
from tinytensor.kernels.cupy import heads

# (batch, length, parts, heads, width): rows of packs and of single elements, more of either than a warp has lanes, tiles that
# are full and that are not, and nothing at all.
SIZES = [
    (2, 5, 3, 2, 8), (1, 64, 1, 3, 64), (3, 65, 3, 2, 5), (2, 130, 2, 4, 16), (2, 3, 1, 1, 37), (1, 2, 3, 2, 300),
    (4, 1, 3, 6, 1), (0, 4, 3, 2, 8), (2, 0, 3, 2, 8),
]  # fmt: skip


@dtypes
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_heads_are_split_and_joined(monkeypatch, sizes, dtype):
    batch, length, parts, num_heads, width = sizes
    packed = numbers((batch, length, parts * num_heads * width), dtype)
    (split,) = in_each_order(monkeypatch, lambda: [heads.split_heads(packed, parts, num_heads)])
    want = xp.ascontiguousarray(views.split_heads(packed, parts, num_heads))
    assert split.flags.c_contiguous and (split.shape, split.dtype) == (want.shape, want.dtype)
    assert split.get().tobytes() == want.get().tobytes()
    last = numbers((batch, length, num_heads * width), dtype, 1)
    (both,) = in_each_order(monkeypatch, lambda: [heads.split_heads(packed, parts, num_heads, last)])
    want = xp.concatenate([split, views.split_heads(last, 1, num_heads)])
    assert both.get().tobytes() == want.get().tobytes()
    (joined,) = in_each_order(monkeypatch, lambda: [heads.join_heads(split)])
    assert (joined.shape, joined.get().tobytes()) == (packed.shape, packed.get().tobytes())


@dtypes
def test_arrays_that_are_not_aligned_or_not_contiguous(monkeypatch, dtype):
    whole = numbers(1 + 2 * 9 * 3 * 2 * 8, dtype)
    packed = whole[1:].reshape(2, 9, 48)
    (split,) = in_each_order(monkeypatch, lambda: [heads.split_heads(packed, 3, 2)])
    assert split.get().tobytes() == xp.ascontiguousarray(views.split_heads(packed, 3, 2)).get().tobytes()
    wide = numbers((2, 9, 96), dtype)[:, :, ::2]
    want = xp.ascontiguousarray(views.split_heads(wide, 3, 2))
    assert heads.split_heads(wide, 3, 2).get().tobytes() == want.get().tobytes()
    assert heads.join_heads(want[:, ::-1]).get().tobytes() == xp.ascontiguousarray(wide[::-1]).get().tobytes()


@pytest.mark.parametrize("with_memory", [False, True])
@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)], ids=str)
def test_an_attention_product_of_all_heads_is_one_call(with_memory, needed):
    x = tt.tensor(numbers((2, 6, 24 if with_memory else 72), "float32"))
    memory = tt.tensor(numbers((2, 7, 48), "float32", 1)) if with_memory else None
    x.requires_grad = needed[0] or not with_memory
    if memory is not None:
        memory.requires_grad = needed[1]
    before = len(xp.launches)
    tt.multi_head_attention(x, 3, memory).sum().backward()
    launched = xp.launches[before:]
    own = (needed[0], needed[1], needed[1]) if with_memory else (True, True, True)
    assert launched.count("gemmStridedBatchedEx") == 3 + sum(own)  # scores, output, the weights' gradient; and what is wanted
    assert launched.count("gemmEx") == 0
