"""A run's folder: what may be replaced, and what is said about checkpoints that are damaged or another's."""

from __future__ import annotations

import errno
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.errors import UserError
from tinyformer.runs import LOG_COLUMNS, RunFolder, load_checkpoint, load_weights, save_checkpoint
from tinytensor.nn import Linear


def save_model(path: Path, model: Linear, kind: str = "best", **state: object) -> None:
    save_checkpoint(path, {"model": model.state_dict()}, {"kind": kind, **state})


def entries(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ---------------------------------------------------------------------------------------------------------- create


def test_create_makes_the_folder_and_those_above_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    folder.create({"model": {"width": 3}, "name": "ö"})
    assert folder.read_settings() == {"model": {"width": 3}, "name": "ö"}
    assert entries(folder.path) == ["config.json"]


@dataclass(frozen=True)
class Model:
    width: int
    depth: int = 2


@dataclass(frozen=True)
class Speed:
    rate: float = 0.5


def test_parts_come_back_as_they_were(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create({"model": Model(3, depth=5), "speed": Speed(), "name": "ö"})
    assert json.loads(folder.settings.read_text(encoding="utf-8")) == {
        "model": {"width": 3, "depth": 5}, "speed": {"rate": 0.5}, "name": "ö"
    }  # fmt: skip
    assert folder.read_part("model", Model) == Model(3, depth=5)
    assert folder.read_part("speed", Speed) == Speed()


@pytest.mark.parametrize("settings", [{}, {"model": None}, {"model": []}, {"model": {"depth": 5}}])
def test_a_part_that_is_not_there(tmp_path: Path, settings: dict[str, object]) -> None:
    folder = RunFolder(tmp_path)
    folder.create(settings)
    with pytest.raises(UserError, match=r"config\.json is damaged: "):
        folder.read_part("model", Model)


def test_a_resumed_run_refuses_flags_that_would_change_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    parts = Model(3), Speed(0.25)
    folder.refuse_changes({}, *parts)
    folder.refuse_changes({"width": 3, "rate": 0.25, "out": "run", "resume": True}, *parts)  # as they are, and others
    with pytest.raises(UserError) as caught:
        folder.refuse_changes({"rate": 0.5, "width": 4, "depth": 2, "out": "run"}, *parts)
    message = f"--resume goes on with the settings of {folder.path}: leave out --width, --rate, or start a new run"
    assert str(caught.value) == message


@pytest.mark.parametrize("file", ["config.json", "best.safetensors", "latest.safetensors", "log.csv"])
def test_a_run_is_not_replaced_unasked(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("precious")
    with pytest.raises(UserError, match="holds a run already: --resume continues it, --overwrite replaces it"):
        RunFolder(tmp_path).create({})
    assert (tmp_path / file).read_text() == "precious"
    assert entries(tmp_path) == [file]


def test_overwrite_removes_the_runs_files_and_no_others(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for file in (folder.best, folder.latest, folder.log, folder.curve, folder.sample, folder.tokenizer, folder.settings):
        file.write_text("old")
    for picture in (folder.attention, folder.attention_heads):
        picture.write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    folder.create({"new": 1}, overwrite=True)
    assert entries(tmp_path) == ["config.json", "notes.txt"]
    assert folder.read_settings() == {"new": 1}


def test_a_folder_with_other_files_will_do(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    RunFolder(tmp_path).create({})
    assert entries(tmp_path) == ["config.json", "notes.txt"]


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UserError, match="run is a file, not a folder"):
        RunFolder(tmp_path / "run").create({}, overwrite=True)
    assert (tmp_path / "run").read_text() == "a file"


def test_settings_of_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json does not exist: is .* the folder of a run"):
        RunFolder(tmp_path).read_settings()


def test_the_log_has_empty_cells_for_what_was_not_measured(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    row = dict.fromkeys(LOG_COLUMNS, 1.5)
    folder.write_log([{**row, "step": 0, "train_loss": None}, {**row, "step": 10}])
    assert folder.log.read_bytes().decode() == (
        "step,learning_rate,train_loss,validation_loss,gradient_norm,seconds\n0,1.5,,1.5,1.5,1.5\n10,1.5,1.5,1.5,1.5,1.5\n"
    )


# -------------------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_round_trip(tmp_path: Path) -> None:
    groups = {
        "model": {"a.weight": tt.tensor([[1.5, -2.0]]), "a.steps": tt.tensor(3)},
        "optimizer": {"0.first": tt.tensor(np.zeros((0, 2), np.float32))},
    }
    state = {"kind": "latest", "step": 3, "text": "ö\n", "big": 2**100, "none": None, "loss": 0.1}
    save_checkpoint(tmp_path / "c.safetensors", groups, state)
    loaded, loaded_state = load_checkpoint(tmp_path / "c.safetensors", "latest")
    assert loaded_state == state
    assert {group: set(members) for group, members in loaded.items()} == {
        "model": {"a.weight", "a.steps"},
        "optimizer": {"0.first"},
    }
    for group, members in groups.items():
        for name, tensor in members.items():
            assert loaded[group][name].dtype == tensor.dtype
            np.testing.assert_array_equal(loaded[group][name].numpy(), tensor.numpy())


def test_load_weights(tmp_path: Path) -> None:
    one, two = Linear(3, 2), Linear(3, 2)
    save_model(tmp_path / "best.safetensors", one, step=7)
    assert load_weights(two, tmp_path / "best.safetensors")["step"] == 7
    np.testing.assert_array_equal(two.weight.numpy(), one.weight.numpy())
    np.testing.assert_array_equal(two.bias.numpy(), one.bias.numpy())


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"best\.safetensors does not exist"):
        load_weights(Linear(3, 2), tmp_path / "best.safetensors")


def test_a_checkpoint_cut_short_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    save_model(path, Linear(3, 2))
    whole = path.read_bytes()
    model = Linear(3, 2)
    before = model.weight.numpy().copy()
    for length in [0, 1, 7, 8, 50, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"best\.safetensors is not a whole safetensors file"):
            load_weights(model, path)
    np.testing.assert_array_equal(model.weight.numpy(), before)


def test_bytes_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    for content in (np.random.default_rng(0).bytes(1000), b"\x89PNG\r\n\x1a\n" + b"x" * 99, b"text\n" * 50):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"best\.safetensors is not a whole safetensors file"):
            load_weights(Linear(3, 2), path)


def test_a_header_that_lies_about_its_size(tmp_path: Path) -> None:
    # The first 8 bytes say how long the header is: a huge number there must not be taken for a size to allocate.
    path = tmp_path / "best.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        load_weights(Linear(3, 2), path)


@pytest.mark.parametrize("metadata", [None, {"author": "someone"}, {"state": "no json"}])
def test_tensors_of_another_program(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "best.safetensors"
    tt.save(Linear(3, 2).state_dict(), path, metadata)
    with pytest.raises(UserError, match=r"best\.safetensors is not a checkpoint of tinyformer"):
        load_weights(Linear(3, 2), path)


@pytest.mark.parametrize("state", ["[]", "3", "{}", '{"kind": "latest"}'])
def test_a_state_of_another_kind(tmp_path: Path, state: str) -> None:
    path = tmp_path / "best.safetensors"
    tt.save(Linear(3, 2).state_dict(), path, {"state": state})
    with pytest.raises(UserError, match="not a checkpoint of the kind 'best'"):
        load_weights(Linear(3, 2), path)


def test_weights_of_another_width(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    save_model(path, Linear(4, 2))
    model = Linear(3, 2)
    before = model.weight.numpy().copy()
    with pytest.raises(UserError, match=r"does not fit the model in .*weight: shape \(2, 4\) instead of \(2, 3\)"):
        load_weights(model, path)
    np.testing.assert_array_equal(model.weight.numpy(), before)


def test_weights_of_another_model(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    save_checkpoint(path, {"model": {"other": tt.tensor([1.0])}}, {"kind": "best"})
    with pytest.raises(UserError, match=r"missing: weight, bias; unexpected: other"):
        load_weights(Linear(3, 2), path)


# ---------------------------------------------------------------------------------------------------------- full disk


def test_a_full_disk_keeps_the_checkpoint_that_was_there(tmp_path: Path) -> None:
    # A limit on the size of files makes the system itself refuse, in the middle of the write.
    resource = pytest.importorskip("resource")
    path = tmp_path / "best.safetensors"
    good = Linear(3, 2)
    save_model(path, good)
    whole = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(UserError) as caught:
            save_model(path, Linear(100, 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    message = str(caught.value)
    assert str(path) in message
    assert "could not be written (File too large); the one before it is as it was" in message
    assert path.read_bytes() == whole
    assert entries(tmp_path) == ["best.safetensors"]  # and no half-written file beside it


def test_no_space_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The system may also notice only when the data are to reach the disk.
    path = tmp_path / "best.safetensors"
    save_model(path, Linear(3, 2))
    whole = path.read_bytes()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        save_model(path, Linear(3, 2))
    assert path.read_bytes() == whole
    assert entries(tmp_path) == ["best.safetensors"]


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be written"):
        save_model(tmp_path / "gone" / "best.safetensors", Linear(3, 2))


def test_settings_and_log_survive_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.create({"step": 1})
    folder.write_log([])
    before = folder.settings.read_bytes(), folder.log.read_bytes()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write_log([dict.fromkeys(LOG_COLUMNS, 1)])
    assert (folder.settings.read_bytes(), folder.log.read_bytes()) == before
    assert json.loads(before[0]) == {"step": 1}
    assert entries(tmp_path) == ["config.json", "log.csv"]
