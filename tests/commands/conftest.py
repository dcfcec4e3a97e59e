"""What the tests of the programs share: a folder to run one in, and a finished run.

A module of tests sets COMMAND (the words that come first), FIRST_RUN (the words of the finished run) and, unless the program
reads text.txt, ``write_data`` (which writes data into a folder).
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import Program, write_text


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of every run: its cache is empty, and its network does not answer."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # a bound port that does not listen refuses at once
        yield {
            **{name: value for name, value in os.environ.items() if name.lower() not in ("no_proxy", "https_proxy")},
            "TINYFORMER_CACHE": str(tmp_path_factory.mktemp("cache")),
            "HTTPS_PROXY": f"http://127.0.0.1:{nobody.getsockname()[1]}",
        }


def data_of(module: Any) -> Callable[[Path], None]:
    """What writes the data of a module of tests."""
    return getattr(module, "write_data", write_text)


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path, environment: dict[str, str]) -> Program:
    """The program in a folder with only its data."""
    data_of(request.module)(tmp_path)
    return Program(request.module.COMMAND, tmp_path, environment)


@pytest.fixture(scope="module")
def first_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> tuple[Path, str]:
    """A folder with data and a finished run, and what the run printed. A test copies the folder before it changes it."""
    folder = tmp_path_factory.mktemp("finished")
    data_of(request.module)(folder)
    return folder, Program(request.module.COMMAND, folder, environment, draws=True).good(*request.module.FIRST_RUN)


@pytest.fixture
def finished(request: pytest.FixtureRequest, first_run: tuple[Path, str], environment: dict[str, str]) -> Program:
    """The finished run itself, for tests that only read it."""
    return Program(request.module.COMMAND, first_run[0], environment)


@pytest.fixture
def copied(request: pytest.FixtureRequest, first_run: tuple[Path, str], tmp_path: Path, environment: dict[str, str]) -> Program:
    """A copy of the finished run, for tests that change it."""
    shutil.copytree(first_run[0], tmp_path / "copy")
    return Program(request.module.COMMAND, tmp_path / "copy", environment)
