"""A run in a folder that an attacker prepared: nothing outside it changes, and no pipe blocks it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from forked import leave_pictures_empty
from plant_links import COMMANDS, KINDS, NAMES, READING, Attack, attempt, folder, pipe, second_name

from tinyformer.data.files import OF_A_RUN
from tinyformer.training.safety import FILES, FOLDERS

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes")


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    with pytest.MonkeyPatch.context() as patch:
        leave_pictures_empty(patch.setattr)
        yield Attack(tmp_path_factory.mktemp("links"))


def test_these_are_the_names_of_all_that_a_run_writes(attack: Attack) -> None:
    written = {path.name for path in attack.whole.iterdir()}
    assert {"config.json", "latest.safetensors", "sample.txt"} <= written
    assert [name for name in written if not any(fnmatch(name, pattern) for pattern in (*FILES, "tensorboard"))] == []
    assert [name for name in NAMES if name in FILES and not any(fnmatch(name, pattern) for pattern in OF_A_RUN)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_special_file_in_a_run_is_rejected_by_name(attack: Attack, command: str) -> None:
    for name in NAMES:
        for plant in KINDS if command == "resume" else KINDS[:2]:
            if (plant is second_name and name not in (".lock", *FOLDERS)) or (
                plant is folder and name in (*FOLDERS, "tensorboard")
            ):
                continue
            status, said = attack(name, plant, command)
            assert status == 2, (name, plant, said)
            assert said.startswith(f"error: {attack.run / name} is a "), (name, plant, said)
            assert said.count("\n") == 1
            assert not (attack.run / ".lock").exists() or name == ".lock"


@pytest.mark.parametrize("name", ["best.safetensors", ".tinyformer.moving/log.csv"])
def test_a_file_with_a_second_name_elsewhere_is_replaced_and_not_written_to(attack: Attack, name: str) -> None:
    attack(name, second_name, "overwrite")  # as in a backup of hard links


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "best.safetensors", "log.csv", ".lock", *FOLDERS])
def test_reading_a_run_never_blocks_on_a_pipe(attack: Attack, name: str) -> None:
    status, said = attack(name, pipe, "sample")
    is_read = name in ("config.json", "tokenizer.json", "best.safetensors")
    assert status == (2 if is_read else 0)
    assert said.startswith(f"error: {attack.run / name} is " if is_read else "")
    assert said.count("\n") <= 1


def test_links_to_the_runs_folder_and_to_inputs_are_allowed(attack: Attack, tmp_path: Path) -> None:
    attack.prepare(is_new=False)
    (tmp_path / "link").symlink_to(attack.run)
    assert attack.call(tmp_path / "link", COMMANDS["resume"])[0] == 0
    elsewhere = attack.run.rename(tmp_path / "elsewhere")
    attack.run.mkdir()
    for name in ("config.json", "tokenizer.json", "best.safetensors"):
        (attack.run / name).symlink_to(elsewhere / name)
    assert attack.call(attack.run, READING["sample"])[0] == 0


def test_anything_under_any_name_in_any_command(attack: Attack) -> None:
    """A small part of what ``python tests/plant_links.py`` tries."""
    found = [attempt(attack, number) for number in range(20)]
    assert [told for result, told in found if result not in ("refused", "went on")] == []
    assert len({result for result, _ in found}) == 2
