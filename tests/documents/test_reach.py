"""Which tests a change can affect: the tests that ``reach.py`` selects catch a fault in any package that the others catch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import reach
from faults import ROOT, Mutant
from mutants import Copy
from reach import Project, tracked

# A fault in each package: a file, a part of a line with what takes its place, and a test in tests/ that notices.
FAULTS = r"""
tinyformer/audio/wav.py: "<H", description, 24) -> "<H", description, 25)
    tinyformer/audio/test_wav.py::test_a_format_that_is_described_at_length
tinyformer/chat/template.py: if content is None: -> if content is not None:
    tinyformer/chat/test_template.py::test_where_it_is_found
tinyformer/common/settings.py: return settings -> pass
    tinyformer/test_old_names.py::test_settings
tinyformer/data/reading.py: if notify and (note -> if notify or (note
    tinyformer/data/test_data.py::test_a_folder_in_the_order_of_names_without_hidden_files
tinyformer/decoding/streaming.py: is_shown = False -> is_shown = True
    tinyformer/decoding/test_streaming.py::test_the_pieces_of_a_word
tinyformer/explore/views/checkpoints.py: or i == len(told) - 1 -> or i != len(told) - 1
    tinyformer/explore/test_film.py::test_long_logs_are_sent_in_parts
tinyformer/export/runs.py: raise UserError(f"{path} holds a pretrained -> str(f"{path} holds a pretrained
    tinyformer/test_export.py::test_a_pretrained_model
tinyformer/markov/transitions.py: sentence[i - order : i]), sentence[i]] += 1 -> sentence[i + order : i]), sentence[i]] += 1
    tinyformer/test_markov.py::test_a_transition_table_counts_within_sentences
tinyformer/models/attention.py: (num_heads + 2 * self -> (num_heads + 3 * self
    tinyformer/models/test_attention.py::test_without_a_mask
tinyformer/plots/curves.py: [100 * fraction for -> [10 * fraction for
    tinyformer/plots/test_curves.py::test_accuracies_have_a_line_for_each_model_and_one_for_guessing
tinyformer/pretrained/sentences.py: skipped = 0 -> skipped = 1
    tinyformer/pretrained/test_sentences.py::test_batches_and_cores_change_nothing
tinyformer/commands/main.py: if words == ["--version"]: -> if words == ["--versions"]:
    commands/test_main.py::test_both_packages_have_the_same_version
tinyformer/training/snapshots.py: or not math.isfinite(loss) -> or math.isfinite(loss)
    tinyformer/test_finished.py::test_losses_may_be_any_numbers
tinyformer/commands/setup.py: tokenizer.save(self.folder.tokenizer) -> pass
    tinyformer/test_scripts.py::test_a_new_run_has_the_scripts_defaults_and_the_flags_over_them
tinyformer/training/comparison.py: without < _ENOUGH * letters: -> without > _ENOUGH * letters:
    tinyformer/test_text_scores.py::test_the_tokenizer_follows_the_script
tinyformer/tokenizers/texts.py: pieces[i].replace("▁", " ") -> pieces[i].replace("▁", "")
    tinyformer/tokenizers/test_texts.py::test_a_marian_tokenizer_has_two_languages
tinyformer/training/optimizing.py: groups += [{"params": matrices, -> groups or [{"params": matrices,
    tinyformer/training/test_optimizing.py::test_muon_changes_the_matrices_of_the_blocks
tinyformer/word_vectors/word2vec.py: (contexts, 0)] * is_context).sum(axis=1) -> (contexts, 0)] - is_context).sum(axis=1)
    tinyformer/word_vectors/test_word2vec.py::test_a_step_descends_the_gradient_of_the_loss
tinytensor/autograd/engine.py: = self.gradients[node] + gradient -> = self.gradients[node] - gradient
    tinytensor/test_engine.py::test_gradients_of_a_hand_worked_example
tinytensor/common/wording.py: noun[:-1] + "ies" -> noun[:-2] + "ies"
    tinytensor/test_wording.py::test_counts
tinytensor/creation.py: steps = -((start - stop) -> steps = +((start - stop)
    tinytensor/test_creation.py::test_values
tinytensor/device/disk.py: if not usable: -> if usable:
    tinytensor/test_disk.py::test_text_is_written_whole_or_not_at_all
tinytensor/display/notebook.py: precision=4, max -> precision=5, max
    tinytensor/test_display.py::test_a_large_matrix_is_shortened_as_numpy_does
tinytensor/distributed/agreement.py: raise RankError(message) -> pass
    tinytensor/test_distributed.py::test_the_contract
tinytensor/functional/normalization.py: out = x * rsqrt(mean(square(x) -> out = x * rsqrt(2 * mean(square(x)
    tinytensor/test_ops.py::test_op[rms_norm]
tinytensor/io.py: _PIECE = 1 << 20 -> _PIECE = 1 >> 20
    tinytensor/test_io.py::test_round_trip
tinytensor/kernels/numpy/activations.py: d_x += 1.0 -> d_x += 2.0
    tinytensor/test_ops.py::test_op[silu]
tinytensor/linalg.py: columns.ndim < 2 -> columns.ndim <= 2
    tinytensor/test_linalg.py::test_rejected_inputs
tinytensor/nn/leaves.py: None if set_to_none or -> None if not set_to_none or
    tinytensor/test_nn.py::test_zero_grad
tinytensor/ops/angles.py: g * (out * out + 1.0)) -> g / (out * out + 1.0))
    tinytensor/test_ops.py::test_op[tan]
tinytensor/optim/state.py: if name in self.memory else xp -> if name not in self.memory else xp
    tinytensor/test_optim.py::test_steps_follow_the_formulas
tinytensor/parallel/threads.py: backend.name != "numpy" or _here -> backend.name != "numpy" and _here
    tinytensor/test_parallel.py::test_on_a_gpu_there_is_one_shard
tinytensor/random.py: (weights > 0).sum(-1) -> (weights > 0).sum(-2)
    tinytensor/test_random.py::test_a_seed_repeats_everything
tinytensor/replay/trace.py: out = out[0] -> pass
    tinytensor/test_trace.py::test_it_gives_what_the_function_gives
tinytensor/transforms/checkpoint.py: region.outer != outer -> region.outer == outer
    tinytensor/test_checkpoint.py::test_values_gradients_and_random_numbers_are_the_same
""".strip()


@pytest.fixture(scope="module")
def project() -> Project:
    return Project(tracked())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy of the project, to plant faults in."""
    return Copy(tmp_path_factory.mktemp("planted"), ROOT, "numpy")


@pytest.mark.parametrize("fault", re.findall(r"(?m)^(.*?): (.*) -> (.*)\n +(.*)$", FAULTS), ids=lambda fault: fault[0])
def test_a_planted_fault_fails_a_selected_test(project, copy, fault):
    file, before, after, test = fault
    source, test = (ROOT / file).read_bytes(), f"tests/{test}"
    assert source.count(before.encode()) == 1, f"{file} has changed: plant another fault"
    start = source.index(before.encode())
    assert test.split("::")[0] in project.affected([file])
    with copy.holding(Mutant("", file, "planted", start, start + len(before.encode()), after.encode(), range(0))):
        assert copy.run([test], seconds=10) == ("caught", test.split("[")[0])


def test_every_package_has_a_fault():
    """All but ``tinyformer/javascript``, which has no Python: the tests in a browser notice its faults."""
    paths = [path for name in reach.PACKAGES for path in (ROOT / name).glob("*") if path.is_dir() or path.suffix == ".py"]
    names = {path.relative_to(ROOT).as_posix() for path in paths if not path.name.startswith("__")}
    assert names - set(re.findall(r"(?m)^(\w+/[\w.]+)", FAULTS)) == {"tinyformer/javascript"}


@pytest.mark.parametrize(
    "changed, selected, left_out",
    [
        ("tinytensor/autograd/engine.py", "tests/browser/test_write.py", None),
        ("tinyformer/models/gpt.py", "tests/parity/test_gpt.py", "tests/tinytensor/test_ops.py"),
        ("tinyformer/explore/page/write.js", "tests/browser/test_write.py", "tests/parity/test_gpt.py"),
        ("tinyformer/javascript/products.js", "tests/browser/test_write.py", "tests/parity/test_gpt.py"),
        ("tinyformer/commands/chat.py", "tests/commands/test_chat.py", "tests/commands/test_bert.py"),
        ("tests/running.py", "tests/commands/test_bert.py", "tests/tinytensor/test_ops.py"),
        ("tests/standin/cupy/__init__.py", "tests/tinytensor/test_ops.py", None),
        ("docs/lessons/01_engine.md", "tests/site/test_site.py", "tests/tinytensor/test_ops.py"),
        ("examples/char_gpt.py", "tests/examples/test_results.py", "tests/tinytensor/test_ops.py"),
        ("benchmarks/measure.py", "tests/parity/test_benchmarks.py", "tests/tinytensor/test_ops.py"),
        ("tests/conftest.py", "tests/cuda/test_names.py", None),
        ("pyproject.toml", "tests/cuda/test_names.py", None),
        ("a_new_file.cfg", "tests/cuda/test_names.py", None),
    ],
)
def test_what_a_change_affects(project, changed, selected, left_out):
    affected = project.affected([changed])
    assert selected in affected
    assert left_out not in affected
    if left_out is None:
        tests = (file for file in project.files if file.startswith("tests/"))
        assert affected == sorted(file for file in tests if Path(file).match("*/test_*.py"))
    assert {file for file in affected if file.startswith("tests/documents/")} == {
        f"tests/documents/{path.name}" for path in (ROOT / "tests/documents").glob("test_*.py")
    }


def test_who_imports_a_file_that_is_gone_is_affected(tmp_path, monkeypatch):
    monkeypatch.setattr(reach, "ROOT", tmp_path)
    texts = {
        "tinyformer/__init__.pyi": "",
        "tests/x/test_stale.py": "from tinyformer.gone import name",
        "tests/x/test_other.py": "import tinyformer.here",
    }
    for file, text in texts.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    project = Project([*texts, "tinyformer/here.py", "tinyformer/gone.py"])
    assert project.affected(["tinyformer/gone.py"]) == ["tests/x/test_stale.py"]
