"""The explored models: their names, and reloading when files change."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from explored import RUNS, gpt_run, masked_run, translation_run

from tinyformer.common.errors import UserError
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.pretrained.loading import save_pretrained
from tinyformer.pretrained.tokenizers import save_pretrained_tokenizer
from tinyformer.tokenizers import BPETokenizer
from tinyformer.training.checkpoints import load_checkpoint, save_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return gpt_run(tmp_path / "gpt")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_each_kind_is_loaded(tmp_path: Path, name: str) -> None:
    subject = Subjects([RUNS[name](tmp_path / name)]).get("best")
    kinds = {"gpt": "language", "recurrent": "language", "masked": "masked"}
    assert subject.kind == kinds.get(name, "translation")
    ids = subject.encode("the fox")
    assert "".join(subject.texts(ids)).replace(" ", "").find("thefox") >= 0
    subject.check(ids, [1] if subject.kind == "translation" else [])


def test_names_are_those_of_the_checkpoints_after_those_of_the_folders(run: Path, tmp_path: Path) -> None:
    masked = masked_run(tmp_path / "masked")
    assert Subjects([run]).names == ["best", "latest"]
    assert Subjects([run, masked]).names == [f"{run}: best", f"{run}: latest", f"{masked}: best"]


def test_a_folder_that_is_given_twice_is_reported(run: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(run)
    for second in (run, run / ".." / "gpt", tmp_path / "other", Path(os.path.relpath(run))):
        with pytest.raises(UserError, match="given twice"):
            Subjects([run, second])


def test_a_missing_name_is_reported(run: Path) -> None:
    with pytest.raises(UserError, match=r"there is no model 'x+\.\.\.': there are best, latest"):
        Subjects([run]).get("x" * 1000)


def test_a_model_is_loaded_once_until_a_file_is_replaced(run: Path) -> None:
    subjects = Subjects([run])
    first = subjects.get("best")
    assert subjects.get("best") is first
    groups, state = load_checkpoint(run / "latest.safetensors", "latest")
    save_checkpoint(run / "best.safetensors", groups, {**state, "kind": "best"})
    second = subjects.get("best")
    assert second is not first and subjects.get("best") is second
    name, weight = next(iter(second.model.state_dict().items()))
    assert (weight.numpy() == groups["model"][name].numpy()).all()


def test_a_file_of_the_same_time_and_size_is_a_new_one(run: Path) -> None:
    """Two checkpoints may be written within one tick of the file system's clock."""
    subjects, best = Subjects([run]), run / "best.safetensors"
    first, about = subjects.get("best"), best.stat()
    groups, state = load_checkpoint(best, "best")
    changed = {name: tensor * 2 for name, tensor in groups["model"].items()}
    save_checkpoint(best, {"model": changed}, state)
    os.utime(best, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert best.stat().st_size == about.st_size
    assert subjects.get("best") is not first


def test_another_run_in_the_same_folder_is_reread(run: Path) -> None:
    """Also with other settings, as after --overwrite."""
    subjects = Subjects([run])
    assert subjects.get("best").model.config.d_model == 16
    shutil.rmtree(run)
    gpt_run(run, d_model=32)
    assert subjects.get("best").model.config.d_model == 32
    shutil.rmtree(run)
    masked_run(run)
    assert subjects.get("best").kind == "masked"
    with pytest.raises(UserError, match=r"latest\.safetensors cannot be read: No such file"):
        subjects.get("latest")


def test_damaged_and_missing_files_are_reported_until_restored(run: Path, tmp_path: Path) -> None:
    subjects = Subjects([run])
    subjects.get("best")
    for name in ("best.safetensors", "tokenizer.json", "config.json"):
        file = run / name
        whole = file.read_bytes()
        for damaged in (b"", whole[: len(whole) // 2], b"x" * 50):
            file.write_bytes(damaged)
            with pytest.raises(UserError, match=name.replace(".", "\\.")):
                subjects.get("best")
        file.unlink()
        with pytest.raises(UserError, match=name.replace(".", "\\.")):
            subjects.get("best")
        file.write_bytes(whole)
        assert subjects.get("best").encode("the") == Subjects([run]).get("best").encode("the")
    run.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        subjects.get("best")


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such names")
def test_a_name_that_is_no_text_is_shown_as_bytes(run: Path, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    try:
        run.rename(odd)
    except OSError:
        pytest.skip("the file system refuses such names")
    other = gpt_run(tmp_path / "other", latest=False)
    assert Subjects([odd, other]).names[0] == f"{tmp_path}/\\xff: best"


@pytest.mark.parametrize("architecture", ["transformer", "attention"])
def test_ids_of_a_source_that_the_model_does_not_know_are_refused(architecture: str, tmp_path: Path) -> None:
    subject = Subjects([translation_run(tmp_path / "run", architecture)]).get("best")
    subject.check([0], [0])
    for unknown in (subject.model.config.source_vocab_size, -1):
        with pytest.raises(UserError, match="is out of range"):
            subject.check([0], [0, unknown])


def test_a_translation_is_in_lower_case_if_the_model_is(tmp_path: Path) -> None:
    lower, either = (Subjects([translation_run(tmp_path / str(only), lowercase=only)]).get("best") for only in (True, False))
    for source in (False, True):
        assert lower.encode("The", source) == lower.encode("the", source) == either.encode("the", source)
        assert either.encode("The", source) != either.encode("the", source)
    assert lower.encode("The[EOS]") == [*lower.encode("the"), *lower.ends]


@pytest.mark.parametrize(
    ("settings", "start"), [({}, 0), ({"eos_token_id": [3, 4]}, 3), ({"bos_token_id": 5, "eos_token_id": 3}, 5)]
)
def test_with_which_token_a_pretrained_text_starts(settings: dict[str, Any], start: int, tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train("the fox", 256)
    save_pretrained(GPT(GPTConfig(256, block_size=8, num_layers=1, num_heads=1, d_model=8)), tmp_path)
    save_pretrained_tokenizer(tokenizer, tmp_path)
    written = {"bos_token_id": None, "eos_token_id": None, **settings}
    (tmp_path / "generation_config.json").write_text(json.dumps(written))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | written))
    assert Subjects([tmp_path]).get("pretrained").encode("") == [start]
