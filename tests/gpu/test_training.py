"""A GPT on the GPU beside the same on NumPy: weights, gradients, steps, runs, tokens and files."""

import experiments
import numpy as np
import pytest
from closeness import assert_close, assert_same_bits


def part(found, kind):
    return {name: value for name, value in found.items() if name.partition(":")[0] == kind}


def test_a_gpt_starts_with_the_same_weights_and_computes_the_same(on_numpy):
    found, expected = experiments.gpt(), on_numpy("gpt")
    assert_same_bits(part(found, "weights"), part(expected, "weights"))
    for kind in ("logits", "loss", "gradient"):  # the last two with dropout
        assert part(expected, kind)
        assert_close(part(found, kind), part(expected, kind))


def test_ten_steps_of_adamw_end_where_those_of_numpy_do(on_numpy):
    found, expected = experiments.gpt(), on_numpy("gpt")
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
    assert len(set(found["losses"])) == 10
    # Adam makes every step as long as the next: where a gradient is all rounding, so is the step's sign. Few are.
    for name, after in part(expected, "stepped").items():
        before = expected[name.replace("stepped", "weights")]
        moved, error = np.sqrt(np.mean((after - before) ** 2)), np.sqrt(np.mean((found[name] - after) ** 2))
        assert error < 0.01 * moved, f"{name}: {error:.3g} off after moving {moved:.3g}"


def test_a_second_run_has_the_same_bits():
    assert_same_bits(experiments.gpt(), experiments.gpt())


def test_the_losses_of_a_run_follow_those_of_numpy(on_numpy):
    found, expected = experiments.training(), on_numpy("training")
    assert expected["losses"][-10:].mean() < 0.85 * expected["losses"][0]  # it learns
    np.testing.assert_allclose(found["losses"][:30], expected["losses"][:30], rtol=1e-4)
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=0.02)  # what rounding does grows
    assert found["validation"] == pytest.approx(expected["validation"], abs=0.01)


def test_bfloat16_learns_as_float32_does():
    narrow, wide = experiments.training("bfloat16"), experiments.training("float32")
    last = len(wide["losses"]) // 3
    assert narrow["losses"][-last:].mean() == pytest.approx(wide["losses"][-last:].mean(), abs=0.01)
    assert narrow["validation"] == pytest.approx(wide["validation"], abs=0.01)
    assert not np.array_equal(narrow["losses"], wide["losses"])  # it is another dtype


def test_greedy_decoding_writes_what_numpy_does(on_numpy):
    expected = on_numpy("greedy")["tokens"]
    np.testing.assert_array_equal(experiments.greedy()["tokens"], expected)
    assert len({tuple(row) for row in expected}) == 5 and len(set(expected.ravel())) > 5


@pytest.fixture(scope="module")
def uninterrupted(on_numpy, tmp_path_factory):
    """The run on NumPy, without a stop."""
    return on_numpy("uninterrupted", tmp_path_factory.mktemp("uninterrupted"))


def assert_same_run(found, expected):
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
    assert len(expected["losses"]) == 6
    assert_close(part(found, "weights"), part(expected, "weights"), slack=100)  # Adam's steps where there is no gradient


def test_a_run_started_on_numpy_resumes_here(on_numpy, uninterrupted, tmp_path):
    on_numpy("begin", tmp_path)
    assert_same_run(experiments.go_on(str(tmp_path)), uninterrupted)


def test_a_run_started_here_resumes_on_numpy(on_numpy, uninterrupted, tmp_path):
    experiments.begin(str(tmp_path))
    assert_same_run(on_numpy("go_on", tmp_path), uninterrupted)
