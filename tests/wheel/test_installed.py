"""Every command of ``tinyformer``, as it is installed from a wheel, in a folder that knows nothing of this checkout."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SMALL = "--steps 2 --eval-every 2 --batch-size 4 --d-model 8 --num-heads 2"
RECURRENT = "--steps 2 --eval-every 2 --batch-size 4 --d-model 8 --d-embedding 8 --out runs/lstm"
PAIRS = "--data pairs.tsv --vocab-size 270 --validation 6 --test 6"
LAYERS = "--encoder-layers 1 --decoder-layers 1"
# In this order: what comes later uses what was made before.
LINES = [
    "--version",
    f"train gpt --data text.txt --num-layers 1 --block-size 8 {SMALL} --out runs/gpt",
    "sample runs/gpt --length 5",
    "export runs/gpt --web page.html",
    "save runs/gpt saved",
    "generate saved --length 5",
    f"train translator {PAIRS} {LAYERS} {SMALL} --out runs/translator",
    "translate --out runs/translator 'one two'",
    f"train translator {PAIRS} --architecture lstm --num-layers 1 {RECURRENT}",
    "compare runs/translator runs/lstm",
    f"train bert --data text.txt --num-layers 1 --wordpieces 60 --window 8 --classify-steps 0 {SMALL} --out runs/bert",
    "fill --out runs/bert 'one [MASK]'",
    "train vectors --data text.txt --epochs 1 --min-count 1 --width 4 --out runs/vectors",
    "vectors runs/vectors --ask two --out runs/vectors",
]
TINYFORMER = str(Path(sysconfig.get_path("scripts")) / "tinyformer")


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    words = "one two three four five six seven eight nine ten".split()
    lines = [" ".join(words[(i * j) % 10] for j in range(1, 8)) for i in range(1, 60)]
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "pairs.tsv").write_text("\n".join(f"{a} {b}\t{b} {a}" for a in words for b in words[:6]))
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([TINYFORMER, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_it_is_the_wheel_that_runs(elsewhere: Path) -> None:
    found = subprocess.check_output(
        [sys.executable, "-c", "import tinyformer, tinytensor; print(tinyformer.__file__, tinytensor.__file__)"],
        cwd=elsewhere,
        text=True,
    )
    assert found.count("site-packages") == 2
    assert run(elsewhere, "--version").stdout == f"tinyformer {importlib.metadata.version('tinyformer')}\n"


@pytest.mark.parametrize("line", LINES)
def test_a_command_runs(line: str, elsewhere: Path) -> None:
    result = run(elsewhere, *shlex.split(line))
    assert result.returncode == 0, result.stderr
    assert result.stdout and "Traceback" not in result.stderr


def test_the_explorer_serves_its_page(elsewhere: Path) -> None:
    words = [TINYFORMER, "explore", "runs/gpt", "--no-browser", "--port", "0"]
    with subprocess.Popen(words, cwd=elsewhere, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    assert " at http://" in line


def test_a_mistake_prints_one_line(elsewhere: Path) -> None:
    assert run(elsewhere, "explore", "nowhere").stderr.startswith("error: ")
    for words in (["sampel"], ["train", "gtp"], ["train"], ["--frobnicate"]):
        result = run(elsewhere, *words)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    shutil.rmtree(elsewhere / "runs")
    message = run(elsewhere, "sample").stderr
    assert message == "error: runs/char_gpt does not exist: train first, or name the folder of another run\n"
