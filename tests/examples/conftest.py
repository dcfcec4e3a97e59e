"""Run scripts of examples/, each in a new folder and without a network."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import write_text

from tinyformer import GPT, BPETokenizer, GPTConfig, save_pretrained, save_pretrained_tokenizer

ROOT = Path(__file__).resolve().parents[2]


class Script:
    """A script of examples/. Relative paths are in ``folder``, which has a text, long.txt."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.folder = folder
        self.environment = environment

    def command(self, name: str, *words: str) -> list[str]:
        """The command that runs the script of this name."""
        return [sys.executable, str(ROOT / "examples" / f"{name}.py"), *words]

    def __call__(self, name: str, *words: str, before: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the script of this name. ``before`` is Python that comes before it, such as what makes its default text short."""
        command = self.command(name, *words)
        if before:
            path = command[1]
            run = f"{before}\nimport runpy, sys\nsys.argv = {[path, *words]!r}\nrunpy.run_path({path!r}, run_name='__main__')"
            command = [sys.executable, "-c", run]
        environment = {**self.environment, **variables}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    def good(self, name: str, *words: str, before: str = "") -> str:
        """Run it, check that all goes well, and return what it prints."""
        result = self(name, *words, before=before)
        assert result.returncode == 0, result.stderr
        assert "Traceback" not in result.stderr
        return result.stdout

    def bad(self, name: str, *words: str, **variables: str) -> str:
        """Run it, check that it refuses a mistake in a line or two, and return the message."""
        result = self(name, *words, **variables)
        assert result.returncode == 2, result.stderr
        assert result.stderr.startswith("error: "), result.stderr
        assert result.stderr.count("\n") <= 2, result.stderr
        return result.stderr


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of every run: its cache is empty, and its network does not answer."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # a bound port that does not listen refuses at once
        paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        yield {
            **{name: value for name, value in os.environ.items() if name.lower() not in ("no_proxy", "https_proxy")},
            "TINYFORMER_CACHE": str(tmp_path_factory.mktemp("cache")),
            "HTTPS_PROXY": f"http://127.0.0.1:{nobody.getsockname()[1]}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *paths]),
            "PYTHONIOENCODING": "utf-8",
        }


@pytest.fixture
def script(tmp_path: Path, environment: dict[str, str]) -> Script:
    """What runs the scripts in a new folder."""
    write_text(tmp_path)
    text = (tmp_path / "text.txt").read_text(encoding="utf-8")
    (tmp_path / "long.txt").write_text("\n\n".join([text] * 6), encoding="utf-8")
    return Script(tmp_path, environment)


@pytest.fixture(scope="session")
def small_gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pretrained model that has learned nothing."""
    folder = tmp_path_factory.mktemp("pretrained") / "small"
    tokenizer = BPETokenizer.train("the quick brown fox jumps over the lazy dog " * 20, 270, special=["<|endoftext|>"])
    shape = {"block_size": 32, "num_layers": 1, "num_heads": 2, "d_model": 16}
    model = GPT(GPTConfig(tokenizer.vocab_size, **shape, positions="rotary", norm="rms", activation="swiglu"))
    save_pretrained(model, folder)
    save_pretrained_tokenizer(tokenizer, folder)
    return folder
