"""A run's folder: what may be replaced, and errors about damaged or foreign checkpoints."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import struct
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.makers import Maker
from tinyformer.common.settings import is_changeable, setting
from tinyformer.training.checkpoints import load_checkpoint, save_checkpoint
from tinyformer.training.config import TrainingConfig
from tinyformer.training.logging import LOG_COLUMNS, write_log
from tinyformer.training.run_folder import RunFolder, load_weights
from tinytensor.nn import Linear, Module

NEW = "a field that this version does not know: remove it if you added it, or use the version that wrote it, or a later one"


def save_model(path: Path, model: Linear, kind: str = "best", **state: object) -> None:
    save_checkpoint(path, {"model": model.state_dict()}, {"kind": kind, **state})


def entries(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def contents(folder: Path) -> dict[str, str]:
    """The texts of its files, but not of those in folders within it."""
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file()}


# ---------------------------------------------------------------------------------------------------------- create


def test_create_makes_the_folder_and_those_above_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    folder.create({"model": {"width": 3}, "name": "ö"})
    assert folder.read_settings() == {"model": {"width": 3}, "name": "ö"}
    assert entries(folder.path) == [".tinyformer.new"]  # until it has a checkpoint
    folder.move_into_place()
    assert entries(folder.path) == ["config.json"]
    assert folder.settings == folder.path / "config.json"
    assert RunFolder(tmp_path / "a" / "b").read_settings() == {"model": {"width": 3}, "name": "ö"}


@dataclass(frozen=True)
class Model:
    width: int
    depth: int = 2


@dataclass(frozen=True)
class Speed:
    rate: float = setting(0.5, "how fast", changeable=True)
    steps: int = setting(10, "how long", changeable=True)
    seed: int = setting(1, "of what is drawn")

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SettingError(f"steps must be at least 1, got {self.steps}")


def settled(path: Path, **settings: object) -> RunFolder:
    """A run of these settings, as another process would find it."""
    folder = RunFolder(path)
    folder.create(settings, overwrite=True)
    folder.move_into_place()
    return RunFolder(path)


def test_parts_come_back_as_they_were(tmp_path: Path) -> None:
    folder = settled(tmp_path, model=Model(3, depth=5), speed=Speed(), name="ö")
    assert json.loads(folder.settings.read_text(encoding="utf-8")) == {
        "model": {"width": 3, "depth": 5}, "speed": {"rate": 0.5, "steps": 10, "seed": 1}, "name": "ö"
    }  # fmt: skip
    assert folder.read_part("model", Model) == Model(3, depth=5)
    assert folder.read_part("speed", Speed) == Speed()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "model is missing"),
        ({"model": None}, "model must be an object of settings, got None"),
        ({"model": []}, "model must be an object of settings, got []"),
        ({"model": {"depth": 5}}, "model.width is missing"),
        ({"model": {"width": 3, "height": 5}}, f"model.height is 5, {NEW}"),
        ({"model": {"width": 3.0}}, "model.width must be an integer, got 3.0"),
        ({"model": {"width": True}}, "model.width must be an integer, got True"),
    ],
)
def test_a_part_that_is_not_there_or_is_another(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    folder = settled(tmp_path, **settings)
    with pytest.raises(UserError) as caught:
        folder.read_part("model", Model)
    state = "" if "this version" in message else " is damaged"
    state += ", or of another program" if message == "model is missing" else ""
    assert str(caught.value) == f"{folder.settings}{state}: {message}"


def test_checkpoints_do_not_depend_on_what_made_the_run(tmp_path: Path) -> None:
    """So a program may be renamed, and a run of before, which does not say what made it, stores the same."""
    folders = []
    for name, record in (("said", {"made_by": Maker("language model", "my_gpt.py")}), ("before", {})):
        folder = RunFolder(tmp_path / name)
        folder.create({**record, "model": Model(3)})
        folder.move_into_place()
        folders.append(folder)
    said, before = folders
    assert said.maker() == Maker("language model", "my_gpt.py") and before.maker() is None
    for lasting in (False, True):
        assert (
            said.identity(lasting)
            == before.identity(lasting)
            == {"settings": {"model": {"width": 3, "depth": 2}}, "tokenizer": None}
        )
    said.check_identity({**before.identity(False)}, said.best)


# Both are known to be a program's: the first by its settings, as the first version wrote them.
@pytest.mark.parametrize(
    "early",
    [
        {"model": {"block_size": 4}, "training": {}, "data": {}},
        {"made_by": {"kind": "language model", "program": "my_gpt.py"}, "model": {}},
    ],
)
def test_a_part_that_came_later_has_its_defaults(tmp_path: Path, early: dict[str, Any]) -> None:
    folder = settled(tmp_path, **early)
    assert folder.read_part("later", TrainingConfig) == TrainingConfig()
    assert folder.resumed("later", TrainingConfig, {"resume": True}) == TrainingConfig()
    assert folder.read_settings() == early
    assert folder.resumed("later", TrainingConfig, {"resume": "changed", "steps": 7}).steps == 7
    assert folder.read_settings() == {**early, "later": {"steps": 7}}
    with pytest.raises(UserError, match="damaged, or of another program: later is missing"):
        settled(tmp_path, model={}).read_part("later", TrainingConfig)  # who knows whose that is


@pytest.mark.parametrize("off", [None, False, 0, 0.0, "", "none", [], {}], ids=repr)
def test_a_setting_of_another_version_that_is_switched_off_does_not_matter(tmp_path: Path, off: object) -> None:
    assert settled(tmp_path, model={"width": 3, "height": off}).read_part("model", Model) == Model(3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"[]", "it holds no JSON object"),
        (b'{"model": {"width": 3}, "model": {"width": 4}}', "it has the key 'model' twice"),
        (b'{"model": {"width": NaN}}', "NaN is not a number in JSON"),
        (b'{"model": {"width": -Infinity}}', "-Infinity is not a number in JSON"),
        (b'{"model": ' + b"[" * 100_000, "it is nested too deeply"),
        (b'{"model": {"width": ' + b"9" * 5000 + b"}}", "limit"),
        (b"\xff\xfe", "'utf-8' codec"),
    ],
    ids=["empty", "list", "twice", "nan", "infinity", "deep", "long", "bytes"],
)
def test_settings_that_are_no_settings(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError) as caught:
        RunFolder(tmp_path).read_part("model", Model)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'} is damaged: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_settings_that_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UserError, match=r"config\.json is a folder, not a regular file"):
        RunFolder(tmp_path).read_settings()
    (tmp_path / "config.json").rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "config.json")
        with pytest.raises(UserError, match=r"config\.json is a pipe"):  # and nobody waits for a writer
            RunFolder(tmp_path).read_settings()


# --------------------------------------------------------------------------------------------------------- resumed


def test_a_resumed_run_refuses_flags_that_would_change_it(tmp_path: Path) -> None:
    folder = settled(tmp_path / "run", model=Model(3), speed=Speed(0.25))
    assert folder.resumed("model", Model, {"resume": True}) == Model(3)
    given = {"width": 3, "rate": 0.25, "out": "run", "resume": True}  # as they are, and others
    assert folder.resumed("model", Model, given) == Model(3)
    assert folder.resumed("speed", Speed, given) == Speed(0.25)
    given = {"rate": 0.5, "seed": 4, "width": 4, "depth": 2, "out": "run", "resume": True}
    for name, kind, flags, more in (("model", Model, "--width", ""), ("speed", Speed, "--seed", "")):
        with pytest.raises(UserError) as caught:
            folder.resumed(name, kind, given)
        message = f"--resume keeps the settings of {folder.path}: leave out {flags}, or start a new run{more}"
        assert str(caught.value) == message
    with pytest.raises(UserError) as caught:
        folder.resumed("speed", Speed, {"rate": 0.5, "steps": 3, "resume": True})
    assert str(caught.value) == (
        f"--resume keeps the settings of {folder.path}: leave out --rate, --steps, or start a new run, or pass --resume-changed"
    )
    assert not folder.changes


def test_resume_changed_takes_over_new_settings(tmp_path: Path) -> None:
    folder = settled(tmp_path, model=Model(3), speed=Speed(0.25))
    before = folder.settings.read_bytes()
    given = {"rate": 0.5, "width": 3, "resume": "changed"}
    assert folder.resumed("model", Model, given) == Model(3)
    assert folder.resumed("speed", Speed, given) == Speed(0.5)
    assert folder.changes
    assert folder.settings.read_bytes() == before  # nothing is changed before the checkpoint fits
    folder.keep_changes()
    again = RunFolder(tmp_path)
    assert (again.read_part("model", Model), again.read_part("speed", Speed)) == (Model(3), Speed(0.5))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": 2}, "a resumed run cannot change --seed: leave that out, or start a new run"),
        ({"rate": 0.75, "seed": 2}, "a resumed run cannot change --seed: leave that out, or start a new run"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_what_a_resumed_run_cannot_change(tmp_path: Path, given: dict[str, object], message: str) -> None:
    folder = settled(tmp_path, speed=Speed(0.25))
    before = folder.settings.read_bytes()
    with pytest.raises(UserError) as caught:
        folder.resumed("speed", Speed, {**given, "resume": "changed"})
    assert str(caught.value) == message
    assert folder.settings.read_bytes() == before


def test_a_resumed_run_can_change_how_it_trains_but_for_the_optimizer_the_seed_and_the_dtype() -> None:
    names = [field.name for field in fields(TrainingConfig)]
    assert [name for name in names if not is_changeable(TrainingConfig, name)] == ["optimizer", "seed", "dtype"]


# ------------------------------------------------------------------------------------------------------- one writer


def test_a_locked_folder_is_closed_to_others(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").held() as folder:
        assert folder.path == tmp_path / "run"
        with pytest.raises(UserError, match=f"run is being written by process {os.getpid()} on "):
            RunFolder(tmp_path / "run").held().__enter__()
        with RunFolder(tmp_path / "other").held():
            pass
    with RunFolder(tmp_path / "run").held():
        pass


def test_folders_into_which_nothing_came_are_gone_again(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "a" / "b").held() as folder:
        assert folder.path.is_dir()
    assert entries(tmp_path) == []
    (tmp_path / "a").mkdir()
    with RunFolder(tmp_path / "a" / "b" / "c").held() as folder:
        folder.create({})  # and not settled
    assert entries(tmp_path) == ["a"]
    assert entries(tmp_path / "a") == []
    with RunFolder(tmp_path / "a" / "b" / "c").held() as folder:
        folder.create({})
        folder.move_into_place()
    assert entries(tmp_path / "a" / "b" / "c") == ["config.json"]


def test_folders_of_a_users_own_stay(tmp_path: Path) -> None:
    for name in (".new", ".complete", ".moving"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("somebody else's")
    settled(tmp_path, step=1)
    with RunFolder(tmp_path).held():
        pass
    assert entries(tmp_path) == [".complete", ".moving", ".new", "config.json"]
    assert all((tmp_path / name / "config.json").exists() for name in (".new", ".complete", ".moving"))


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"link is a link to nowhere, which does not exist: make that folder first"):
        RunFolder(tmp_path / "link").held().__enter__()
    (tmp_path / "nowhere").mkdir()
    with RunFolder(tmp_path / "link").held() as folder:
        folder.create({})
        folder.move_into_place()
    assert entries(tmp_path / "nowhere") == ["config.json"]


def test_a_part_of_another_folder_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "results" / "one").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"one is a link: a run's folder may hold only files and folders of its own"):
        RunFolder(tmp_path / "results" / "one", within=tmp_path / "results").held().__enter__()
    with pytest.raises(OSError, match=r"one is a link: a run's folder may hold only files and folders of its own"):
        RunFolder(tmp_path / "results" / "one", within=tmp_path / "results").create({})
    (tmp_path / "link").symlink_to(tmp_path / "results")
    with RunFolder(tmp_path / "link" / "two", within=tmp_path / "link").held() as folder:
        folder.create({})
        folder.move_into_place()
    assert entries(tmp_path / "elsewhere") == []
    assert entries(tmp_path / "results") == ["one", "two"]


def test_a_run_that_does_not_get_to_a_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(MemoryError), RunFolder(tmp_path / "run").held() as folder:
        folder.create({})
        folder.tokenizer.write_text("a tokenizer")
        raise MemoryError
    assert entries(tmp_path) == []


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    old = settled(tmp_path, step=1)
    expected = contents(tmp_path)
    (tmp_path / f".latest.safetensors.{'0' * 16}.tmp").write_text("half of it")
    (tmp_path / ".lock").write_text("process 1 on a machine")
    (tmp_path / ".tinyformer.new").mkdir()
    (tmp_path / ".tinyformer.new" / "latest.safetensors").write_text("the beginning of another")
    (tmp_path / ".hidden").write_text("somebody else's")
    with RunFolder(tmp_path).held():
        assert set(entries(tmp_path)) == {".lock", ".hidden", *expected}
    assert contents(tmp_path) == {".hidden": "somebody else's", **expected}
    assert old.read_settings() == {"step": 1}


def test_a_run_that_is_only_half_in_its_place_is_there(tmp_path: Path) -> None:
    folder = settled(tmp_path / "run", step=1)
    half = folder._moving
    half.mkdir()
    folder.settings.rename(half / "config.json")
    assert RunFolder(tmp_path / "run").is_there()
    with pytest.raises(
        UserError, match=r"some files of the run in .*run are not in place yet.*\. What moves the rest: --resume$"
    ):
        RunFolder(tmp_path / "run").read_settings()
    with RunFolder(tmp_path / "run").held() as mended:
        assert mended.read_settings() == {"step": 1}
    assert not RunFolder(tmp_path / "another").is_there()


class Killed(OSError):
    """What stands for a kill: from then on no file can be changed, whatever tries to tidy up."""


class Disk:
    """Stops changes to files at the one numbered ``last``, just before or just after it."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int, made: bool):
        self.count = 0
        self.last = last
        self.made = made
        self.inside = False
        for owner, names in ((os, ("replace", "rename", "unlink", "rmdir", "mkdir")), (Path, ("rename", "unlink", "rmdir"))):
            for name in names:
                patch.setattr(owner, name, self.watched(getattr(owner, name)))

    @property
    def dead(self) -> bool:
        return self.count > self.last or (self.count == self.last and self.made)

    def watched(self, change: Any) -> Any:
        def changed(*given: Any, **more: Any) -> Any:
            if self.inside:  # one is made of another
                return change(*given, **more)
            if self.dead:
                raise Killed
            self.count += 1
            if self.dead and not self.made:
                raise Killed
            self.inside = True
            try:
                done = change(*given, **more)
            finally:
                self.inside = False
            if self.dead:
                raise Killed
            return done

        return changed


def until_killed(last: int, made: bool, work: Any) -> bool:
    """Whether the work comes to its end before its files' last change."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, last, made)
        try:
            work()
        except Killed:
            pass
        except UserError as error:
            raise AssertionError("a kill was taken for something else") from error
        return not disk.dead


def fill(folder: RunFolder, text: str) -> None:
    for file in (folder.tokenizer, folder.latest):
        file.write_text(text)


def replace_run(path: Path) -> None:
    with RunFolder(path).held() as folder:
        folder.create({"run": "new"}, overwrite=True)
        fill(folder, "new")
        folder.move_into_place()
        folder.sample.write_text("new")  # what comes at the end of a run


def tidy(path: Path) -> None:
    with RunFolder(path).held():
        pass


def old_run(path: Path) -> dict[str, str]:
    folder = settled(path, run="old")
    fill(folder, "old")
    for file in (folder.sample, folder.weights(3), path / "notes.txt"):
        file.write_text("old")
    return contents(path)


@pytest.mark.parametrize("made", [True, False])
def test_a_kill_anywhere_leaves_the_old_run_or_the_new_one(tmp_path: Path, made: bool) -> None:
    old = old_run(tmp_path / "whole")
    replace_run(tmp_path / "whole")
    new = contents(tmp_path / "whole")
    assert new["notes.txt"] == "old"
    new_without_sample = {name: text for name, text in new.items() if name != "sample.txt"}
    found = []
    for last in range(1, 100):
        path = tmp_path / f"{last}"
        old_run(path)
        whole = until_killed(last, made, lambda path=path: replace_run(path))
        # The next start is killed, too, wherever that may be; and the one after it tidies up.
        for again in range(1, 100):
            copy = tmp_path / f"{last}-{again}"
            shutil.copytree(path, copy)
            second = until_killed(again, made, lambda copy=copy: tidy(copy))
            tidy(copy)
            assert contents(copy) in (old, new, new_without_sample), (last, again)
            assert entries(copy) == sorted(contents(copy)), (last, again)  # no folder is left in it
            found.append(contents(copy) != old)
            shutil.rmtree(copy)
            if second:
                break
        else:
            raise AssertionError("it comes to no end")
        if whole:
            break
    else:
        raise AssertionError("it comes to no end")
    # There is one change from which on it is the new run.
    assert found == sorted(found)
    assert set(found) == {False, True}
    assert last > 15


@pytest.mark.parametrize("made", [True, False])
def test_a_kill_anywhere_before_the_first_checkpoint_leaves_nothing(tmp_path: Path, made: bool) -> None:
    def begin(path: Path) -> None:
        with RunFolder(path).held() as folder:
            folder.create({"run": "new"})
            folder.tokenizer.write_text("new")
            folder.log.write_text("new")

    for last in range(1, 100):
        path = tmp_path / f"{last}"
        whole = until_killed(last, made, lambda path=path: begin(path))
        tidy(path)
        assert not path.exists() or entries(path) == []  # a folder that was made before is not this process's to remove
        with RunFolder(path).held() as folder:
            folder.create({})  # nothing says that there is a run already
        if whole:
            break
    assert last > 5


# ------------------------------------------------------------------------------------------- whether they are the same


def resumable(path: Path, **settings: object) -> tuple[RunFolder, dict[str, Any]]:
    """Return a loaded run, and its checkpoint's metadata."""
    folder = settled(path, **settings)
    folder.tokenizer.write_text("a tokenizer")
    folder.resumed("model", Model, {"resume": True})
    folder.resumed("speed", Speed, {"resume": True})
    return folder, folder.identity(lasting=False)


def edit(path: Path, **changes: object) -> None:
    """Write other values into a run's settings: part__name=value."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if value is GONE:
            del settings[part][key]
        else:
            settings[part][key] = value
    path.write_text(json.dumps(settings), encoding="utf-8")


GONE = object()


def test_what_a_checkpoint_says_of_its_run(tmp_path: Path) -> None:
    folder, state = resumable(tmp_path, model=Model(3), speed=Speed(), data={"name": "a"})
    settings = {"model": {"width": 3, "depth": 2}, "speed": {"rate": 0.5, "steps": 10, "seed": 1}, "data": {"name": "a"}}
    digest = hashlib.sha256(b"a tokenizer").hexdigest()
    assert state == {"settings": settings, "tokenizer": digest}
    lasting = {**settings, "speed": {"seed": 1}}
    assert folder.identity(lasting=True) == {"settings": lasting, "tokenizer": digest}
    for one in (state, folder.identity(lasting=True), {}, {"settings": None}):
        folder.check_identity(one, folder.latest)


def test_a_new_run_in_the_same_folder_is_another(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    prints = []
    for text in ("one tokenizer", "another"):
        folder.create({"model": Model(3)}, overwrite=True)
        folder.tokenizer.write_text(text)
        prints.append(folder.identity(lasting=True)["tokenizer"])
        folder.move_into_place()
    assert prints == [hashlib.sha256(text).hexdigest() for text in (b"one tokenizer", b"another")]


def test_a_folder_without_settings_says_nothing(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).identity(lasting=False) == {}


@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize(
    ("change", "message", "can_change"),
    [
        ({"model__width": 4}, "says 4 for model.width, but latest.safetensors was trained with 3: put that back", False),
        ({"model__width": 3.0}, "says 3.0 for model.width, but latest.safetensors was trained with 3: put that back", False),
        ({"model__depth": GONE}, "says null for model.depth, but latest.safetensors was trained with 5: put that back", False),
        ({"speed__seed": 2}, "says 2 for speed.seed, but latest.safetensors was trained with 1: put that back", False),
        ({"data__name": "b"}, 'says "b" for data.name, but latest.safetensors was trained with "a": put that back', False),
        ({"speed__rate": 0.75}, "says 0.75 for speed.rate, but latest.safetensors was trained with 0.5: put that back", True),
        ({"speed__rate": 0.75, "model__width": 4}, "says 4 for model.width, but latest", False),
    ],
)
def test_settings_that_were_edited(
    tmp_path: Path, change: dict[str, object], message: str, can_change: bool, changed: bool
) -> None:
    folder, state = resumable(tmp_path, model=Model(3, depth=5), speed=Speed(), data={"name": "a"})
    edit(folder.settings, **change)
    folder = RunFolder(tmp_path)
    if "width" not in str(change):  # which read_part itself may refuse
        folder.resumed("model", Model, {})
    folder.resumed("speed", Speed, {"resume": "changed" if changed else True})
    if changed and can_change:
        folder.check_identity(state, folder.latest)
        return
    with pytest.raises(UserError) as caught:
        folder.check_identity(state, folder.latest)
    assert str(caught.value).startswith(f"{folder.settings} {message}")
    assert str(caught.value).endswith(", or keep the change with --resume-changed") == can_change


@pytest.mark.parametrize("settings", [3, [], "settings", True])
def test_a_checkpoint_that_says_no_settings(tmp_path: Path, settings: object) -> None:
    folder, state = resumable(tmp_path, model=Model(3), speed=Speed())
    with pytest.raises(UserError) as caught:
        folder.check_identity({**state, "settings": settings}, folder.best)
    assert str(caught.value) == f"{folder.best} is damaged: its settings are not an object"


def test_settings_that_are_too_long_to_show(tmp_path: Path) -> None:
    folder, state = resumable(tmp_path, model=Model(3), speed=Speed(), data={"name": "a" * 10_000})
    edit(folder.settings, data__name=["b"] * 10_000)
    with pytest.raises(
        UserError, match=r'config.json says \["b", .*\.\.\. for data\.name, but .* with "aaa.*\.\.\.: put'
    ) as caught:
        RunFolder(tmp_path).check_identity(state, folder.latest)
    assert len(str(caught.value)) < 600


def test_a_tokenizer_that_was_exchanged(tmp_path: Path) -> None:
    folder, state = resumable(tmp_path, model=Model(3), speed=Speed())
    for damage in (lambda path: path.write_text("another"), Path.unlink):
        damage(folder.tokenizer)
        folder = RunFolder(tmp_path)
        folder.resumed("speed", Speed, {"resume": "changed"})
        with pytest.raises(UserError) as caught:
            folder.check_identity(state, folder.latest)
        message = "is not the tokenizer that latest.safetensors was trained with: put that one back"
        assert str(caught.value) == f"{folder.tokenizer} {message}"


def test_weights_whose_settings_were_edited_are_not_loaded(tmp_path: Path) -> None:
    folder, _ = resumable(tmp_path, model=Model(3), speed=Speed())
    save_model(folder.best, Linear(3, 2), **folder.identity(lasting=True))
    load_weights(Linear(3, 2), folder.best)
    edit(folder.settings, speed__rate=0.75)  # that is of no matter to weights
    load_weights(Linear(3, 2), folder.best)
    edit(folder.settings, model__depth=7)
    model = Linear(3, 2)
    before = model.weight.numpy().copy()
    with pytest.raises(UserError, match=r"says 7 for model\.depth, but best\.safetensors was trained with 2: put that back$"):
        load_weights(model, folder.best)
    np.testing.assert_array_equal(model.weight.numpy(), before)


# ------------------------------------------------------------------------------------------- folders that are in use


@pytest.mark.parametrize("file", ["config.json", "best.safetensors", "latest.safetensors", "log.csv"])
def test_a_run_is_not_replaced_unasked(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("precious")
    what = "--resume continues it, " if file == "latest.safetensors" else ""  # nothing else could be continued
    with pytest.raises(UserError) as caught:
        RunFolder(tmp_path).create({})
    assert str(caught.value) == f"{tmp_path} holds a run already: {what}--overwrite replaces it, --out starts another"
    assert (tmp_path / file).read_text() == "precious"
    assert entries(tmp_path) == [file]


def test_overwrite_removes_only_the_runs_files_and_not_immediately(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    files = [folder.best, folder.latest, folder.log, folder.curve, folder.sample, folder.tokenizer, folder.settings]
    for file in (*files, folder.attention, folder.weights(7)):
        file.write_text("old")
    for picture in (folder.attention, folder.attention_heads):
        picture.write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    folder.create({"new": 1}, overwrite=True)
    assert folder.replaces
    assert folder.read_settings() == {"new": 1}
    assert contents(tmp_path) == before
    assert folder.kept_weights() == []  # its own
    folder.move_into_place()
    assert not folder.replaces
    assert entries(tmp_path) == ["config.json", "notes.txt"]
    assert RunFolder(tmp_path).read_settings() == {"new": 1}
    folder.move_into_place()  # once is enough
    assert entries(tmp_path) == ["config.json", "notes.txt"]


def test_a_folder_with_other_files_will_do(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    folder = RunFolder(tmp_path)
    folder.create({})
    assert not folder.replaces
    folder.move_into_place()
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
    write_log(folder.log, [{**row, "step": 0, "train_loss": None}, {**row, "step": 10}])
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


@pytest.mark.parametrize(
    "metadata",
    [None, {"author": "someone"}, {"state": "no json"}, {"state": "[]"}, {"state": "3"}, {"state": "[" * 100_000}],
    ids=["none", "author", "text", "list", "number", "deep"],
)
def test_tensors_of_another_program(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "best.safetensors"
    tt.save(Linear(3, 2).state_dict(), path, metadata)
    with pytest.raises(UserError, match=r"best\.safetensors is not a checkpoint of tinyformer"):
        load_weights(Linear(3, 2), path)


@pytest.mark.parametrize("state", ["{}", '{"kind": "latest"}', '{"kind": ["best"]}'])
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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["model/weight", "optimizer/0.first"])
def test_values_that_are_no_numbers_are_not_saved(tmp_path: Path, name: str, value: float) -> None:
    path = tmp_path / "latest.safetensors"
    save_model(path, Linear(3, 2), "latest")
    whole = path.read_bytes()
    group, _, member = name.partition("/")
    groups = {"model": {"weight": tt.zeros((2, 3)), "steps": tt.tensor(3)}, "optimizer": {"0.first": tt.zeros((0,))}}
    groups[group][member] = tt.tensor([0.0, value, 1.0])
    with pytest.raises(UserError) as caught:
        save_checkpoint(path, groups, {"kind": "latest"})
    said = f"{name} became NaN or infinite: {path} is not written, and the checkpoint before it stays as it was"
    assert str(caught.value) == said
    assert path.read_bytes() == whole
    assert entries(tmp_path) == ["latest.safetensors"]


@pytest.mark.parametrize("file", ["best", "latest"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([0.5, np.nan], np.float32), "is damaged: model/bias has values that are NaN or infinite"),
        (np.array([np.inf, 0.5], np.float32), "is damaged: model/bias has values that are NaN or infinite"),
        (np.array([-np.inf, 0.5], np.float16), "is damaged: model/bias has values that are NaN or infinite"),
        (np.array([1, 2], np.int32), "is damaged: bias is of int32, but the model's is of float32"),
        (np.array([1, 2], np.uint8), "is damaged: bias is of uint8, but the model's is of float32"),
        (np.array([True, False]), "is damaged: bias is of bool, but the model's is of float32"),
        (np.array([0.5, 1.5], np.float64), "is damaged: bias is of float64, but the model's is of float32"),
    ],
)
def test_weights_that_are_no_numbers_or_of_another_dtype(tmp_path: Path, file: str, values: np.ndarray, message: str) -> None:
    path = tmp_path / f"{file}.safetensors"
    model = Linear(3, 2)
    before = model.weight.numpy().copy(), model.bias.numpy().copy()
    weights = {"model/weight": tt.zeros((2, 3)), "model/bias": tt.tensor(values, dtype=values.dtype)}
    tt.save(weights, path, {"state": json.dumps({"kind": file})})
    with pytest.raises(UserError) as caught:
        load_weights(model, path)
    assert str(caught.value) == f"{path} {message}"
    np.testing.assert_array_equal(model.weight.numpy(), before[0])
    np.testing.assert_array_equal(model.bias.numpy(), before[1])


def test_a_model_of_integers_alone_takes_integers_of_its_own_dtype(tmp_path: Path) -> None:
    class Counter(Module):
        def __init__(self, count: int, dtype: str = "int64"):
            self.register_buffer("count", tt.tensor(count, dtype))

    path = tmp_path / "best.safetensors"
    save_checkpoint(path, {"model": Counter(7).state_dict()}, {"kind": "best"})
    counter = Counter(0)
    load_weights(counter, path)
    assert counter.state_dict()["count"].item() == 7
    with pytest.raises(UserError, match="is damaged: count is of int64, but the model's is of int32"):
        load_weights(Counter(0, "int32"), path)


def test_weights_of_half_the_width_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    halves = {"model/weight": tt.ones((2, 3)).astype("float16"), "model/bias": tt.zeros((2,)).astype("float16")}
    tt.save(halves, path, {"state": json.dumps({"kind": "best"})})
    model = Linear(3, 2)
    load_weights(model, path)
    assert model.weight.tolist() == [[1.0] * 3] * 2
    assert model.weight.dtype == "float32"
    # A model of half the width takes float32, rounded, but nothing wider.
    model = Linear(3, 2).astype("float16")
    save_model(path, Linear(3, 2))
    load_weights(model, path)
    assert model.weight.dtype == "float16"
    doubles = {"model/weight": tt.ones((2, 3)).astype("float64"), "model/bias": tt.zeros((2,)).astype("float64")}
    tt.save(doubles, path, {"state": json.dumps({"kind": "best"})})
    with pytest.raises(UserError, match="is of float64, but the model's is of float16"):
        load_weights(model, path)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    save_model(path, Linear(3, 2))
    whole = path.read_bytes()
    model = Linear(3, 2)
    for place in (len(whole) - 1, len(whole) - 20):  # a bit of a number's fraction: a number like any other
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError, match=r"best\.safetensors is damaged: its checksum is not that of its content"):
            load_weights(model, path)


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
    assert "could not be written (File too large); the one before it stays as it was" in message
    assert path.read_bytes() == whole
    assert entries(tmp_path) == ["best.safetensors"]  # and no half-written file beside it


@pytest.mark.parametrize("folder", ["run", "run/.tinyformer.new"])
def test_no_message_promises_a_checkpoint_that_does_not_last(tmp_path: Path, folder: str) -> None:
    """There is none yet, or it belongs to a run that fails before it replaces another."""
    path = tmp_path / folder / "latest.safetensors"
    path.parent.mkdir(parents=True)
    bad = {"model": {"weight": tt.tensor([math.nan])}}
    with pytest.raises(UserError) as caught:
        save_checkpoint(path, bad, {"kind": "latest"})
    assert str(caught.value) == f"model/weight became NaN or infinite: {path} is not written"
    path.write_bytes(b"one before")
    with pytest.raises(UserError) as caught:
        save_checkpoint(path, bad, {"kind": "latest"})
    assert str(caught.value).endswith("stays as it was") == (folder == "run")
    path.unlink()
    path.mkdir()  # which cannot be replaced by a file
    with pytest.raises(UserError, match="could not be written") as caught:
        save_checkpoint(path, {"model": {"weight": tt.ones(1)}}, {"kind": "latest"})
    assert ("stays as it was" in str(caught.value)) == (folder == "run")


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
    folder = settled(tmp_path, step=1)
    write_log(folder.log, [])
    before = folder.settings.read_bytes(), folder.log.read_bytes()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_log(folder.log, [dict.fromkeys(LOG_COLUMNS, 1)])
    assert caught.value.filename == str(folder.log)  # which the system does not say
    with pytest.raises(OSError, match="No space left") as caught:
        folder.keep_changes()
    assert caught.value.filename == str(folder.settings)
    assert (folder.settings.read_bytes(), folder.log.read_bytes()) == before
    assert json.loads(before[0]) == {"step": 1}
    assert entries(tmp_path) == ["config.json", "log.csv"]
