"""Random weights in blocks of a few bits, and how near products with them must be to those in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import tinytensor as tt
from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.quantized import BLOCK_TYPES, unpack_rows

SCALES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}  # bytes at which a float16 value begins
MIXED = (("Q4_K", 64), ("Q6_K", 33), ("Q8_0", 5), ("Q4_1", 6), ("Q4_0", 7))  # the parts of a weight
EACH = tuple((block_type, 1) for block_type in SCALES)
HALVES = (("BF16", 5),)
USUAL_SCALES = np.random.default_rng(0).normal(0, 1e-3, 999).astype("float16")


def random_blocks(block_type: str, rows: int, width: int, scales: Any = USUAL_SCALES, seed: int = 0) -> Any:
    """Random bytes (rows, bytes of a row), with some of these float16 ``scales``."""
    rng, block = np.random.default_rng(seed), BLOCK_TYPES[block_type]
    blocks = rng.integers(0, 256, (rows * block.row_bytes(width) // block.bytes, block.bytes), "uint8")
    for start in SCALES[block_type]:
        blocks[:, start : start + 2] = rng.choice(scales, (len(blocks), 1)).view("uint8")
    return blocks.reshape(rows, block.row_bytes(width))


def unpacked(blocks: Any, block_type: str, width: int) -> Any:
    """The weights (rows, width) float32 of blocks, as a NumPy array."""
    return tt.tensor(unpack_rows(xp.asarray(blocks), block_type, width)).numpy()


def random_weight(parts: Any, width: int, scales: Any = USUAL_SCALES) -> tuple[Any, Any]:
    """The bytes of a weight of these parts, and its values (outputs, width) in float64."""
    blocks = [(name, random_blocks(name, rows, width, scales)) for name, rows in parts]
    values = np.concatenate([unpacked(each, name, width) for name, each in blocks])
    return np.concatenate([each.ravel() for _, each in blocks]), values.astype("float64")


def assert_near(got: Any, x: Any, values: Any, bias: Any = None) -> None:
    """A product is as close to that in float64 as inputs of 16 bits allow. It is not finite where that one is not."""
    x = np.asarray(x, "float64")
    with np.errstate(all="ignore"):
        want = x @ values.T + (0 if bias is None else bias)
        size = np.linalg.norm(x, axis=-1)[..., None] * np.linalg.norm(values, axis=-1)
        finite, allowed = np.isfinite(want), 3e-5 * size + 1e-6 * np.abs(want) + 1e-30
    assert (got.dtype, got.shape) == ("float32", want.shape)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    assert (np.abs(got[finite] - want[finite]) <= allowed[finite]).all()
