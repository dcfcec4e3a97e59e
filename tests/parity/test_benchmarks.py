"""What the benchmarks of single ops and of tricks measure is what they say."""

import dataclasses

import ops
import pytest
import tricks
from configurations import CONFIGURATIONS


@pytest.fixture(scope="module")
def sides():
    return ops.Tinytensor(), ops.PyTorch()


@pytest.mark.parametrize("op", [*ops.INPUTS, *ops.OPTIMIZERS])
def test_both_libraries_compute_the_same(sides, op):
    case = ops.Case(op, "A")
    parameters = sides[0].parameters("A")
    for side in sides:
        side.prepare(case, parameters)
    ops.check(case, *[side.results() for side in sides])


def test_other_results_are_found(sides):
    case = ops.Case("residual", "A")
    found = []
    for side in sides:
        side.prepare(case, [])
        found.append({name: array.copy() for name, array in side.results().items()})
    found[0]["gradient of y"][0, 0, 0] += 1
    with pytest.raises(ops.SideError, match="residual, configuration A: gradient of y differs"):
        ops.check(case, *found)


def test_every_trick_is_switched_off(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")  # so that there are shards
    names = [name for name in tricks.VARIANTS if name != tricks.ALL]
    # Wide enough for several blocks in the optimizer, and 16 sequences a shard for two blocks of attention.
    small = dataclasses.replace(CONFIGURATIONS["A"], num_layers=1, d_model=192, batch_size=32)
    results = tricks.run(small, names, turns=1, steps=1, warm_up=2)
    assert results["without_effect"] == []
    assert set(results["variants"]) == set(tricks.VARIANTS)


def test_a_switch_that_fits_the_library_no_more_is_an_error():
    with pytest.raises(AttributeError, match="no attribute '_GONE'"):
        tricks.replace(tricks.ATTENTION, "_GONE", 0)
