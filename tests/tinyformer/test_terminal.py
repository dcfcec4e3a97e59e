"""Texts from elsewhere on a terminal: they clear no screen, write over no line and forge none."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tinytensor as tt
from tinyformer import GPT, CharTokenizer, GPTConfig, from_pretrained, load_tokenizer, save_pretrained
from tinyformer.common.errors import SettingError, UserError, escaped, plain_errors, print_line
from tinyformer.common.files import read_json
from tinyformer.data.pair_files import PairFiles
from tinyformer.data.reading import open_text
from tinyformer.pretrained.tokenizers import pretrained_tokenizer
from tinyformer.training.run_folder import RunFolder
from tinyformer.word_vectors import load_vectors

fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))

# It clears the screen, writes over the line, names the window, forges a line, shows letters in reverse, and what C1 does.
ATTACK = "a\x1b[2J\x1b[Hb\r\x1b]0;c\x07\nerror: forged\u2028d\u202ee\u2066f\x9b2Jg\x08\x7f"
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")


def in_a_terminal(code: str, *words: str, folder: Path | None = None) -> tuple[int, str, str]:
    """Run Python code whose standard output and error are two terminals. Returns its status, and what they show."""
    pairs = [pty.openpty() for _ in range(2)]
    for _, theirs in pairs:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=pairs[0][1], stderr=pairs[1][1], cwd=folder)
    for _, theirs in pairs:
        os.close(theirs)
    shown = ["".join(read(ours)).replace("\r\n", "\n") for ours, _ in pairs]
    return process.wait(), shown[0], shown[1]


def read(terminal: int) -> Iterator[str]:
    content = b""
    while True:
        try:
            found = os.read(terminal, 1 << 16)
        except OSError:  # its end, on Linux
            found = b""
        if not found:
            os.close(terminal)
            yield content.decode()
            return
        content += found


START = "import sys\nfrom tinyformer.common.errors import UserError, plain_errors, print_line\n"


# ------------------------------------------------------------------------------------------------- what is printed


def test_a_text_on_a_terminal_keeps_its_letters_and_lines() -> None:
    code = f"{START}with plain_errors():\n    print({ATTACK!r}, 'é日\\t😀', end='')"
    assert in_a_terminal(code)[:2] == (0, "a[2J[Hb]0;c\nerror: forged\u2028def2Jg é日\t😀")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_text_in_a_pipe_stays_as_it_is(stream: str) -> None:
    code = f"{START}with plain_errors():\n    print({ATTACK!r}, file=sys.{stream})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert getattr(result, stream).decode() == ATTACK + "\n"


def test_a_text_on_the_terminal_of_errors_moves_nothing() -> None:
    code = f"{START}with plain_errors():\n    print({ATTACK!r}, file=sys.stderr)\n    print('x\\x1b[2K\\ry', file=sys.stderr)"
    assert in_a_terminal(code)[2] == "a[2J[Hb]0;c\nerror: forged\u2028def2Jg\nx[2Ky\n"


def test_a_progress_bar_still_moves() -> None:
    code = (
        f"{START}from tinyformer.common.progress import show_progress\n"
        f"with plain_errors(), show_progress({ATTACK!r}, 3, 'step') as bar:\n"
        "    for i in range(3):\n        bar.update()\n        bar.refresh()\n    bar.write('a line\\x1b[2J')"
    )
    status, out, errors = in_a_terminal(code)
    assert (status, out) == (0, "a line[2J\n")
    assert errors.count("\r") >= 3 and "| 3/3 [" in errors
    assert "\x1b[2J" not in errors and "\\x1b[2J" in errors and "\nerror" not in errors


@pytest.mark.parametrize("error", ["UserError", "OSError", "ImportError", "MemoryError"])
def test_an_error_is_escaped_everywhere(error: str) -> None:
    code = f"{START}with plain_errors():\n    raise {error}(sys.argv[1])"
    status, _, shown = in_a_terminal(code, ATTACK)
    piped = subprocess.run([sys.executable, "-c", code, ATTACK], capture_output=True, check=False, encoding="utf-8")
    for text in (shown, piped.stderr):
        assert text.startswith("error: ") and text.endswith("\n")
        assert text.count("\n") == (2 if error in ("MemoryError", "ImportError") else 1)
        assert not CONTROLS.search(text.replace("\n", "")) and r"a\x1b[2J\x1b[Hb\r" in text and r"\u202ee" in text
    assert status == piped.returncode == 2


def test_a_line_of_a_message_is_not_endless_and_keeps_its_remedy() -> None:
    said = str(UserError(f"config.json: {'a' * 100_000} is not known: use another", "the second line"))
    first, second = said.splitlines()
    assert len(first) == 800 and " ... " in first and first.endswith("is not known: use another")
    assert first.startswith("config.json: aaa") and second == "the second line"


def test_a_mistyped_flag_is_escaped() -> None:
    code = f"{START}from tinyformer import Parser\nwith plain_errors():\n    Parser(prog='it.py').parse_args(sys.argv[1:])"
    status, _, shown = in_a_terminal(code, ATTACK)
    assert (status, shown.count("\n")) == (2, 1) and r"a\x1b[2J" in shown


def test_lines_of_messages(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(ATTACK)
    print_line(Path("é\n"), file=sys.stderr)
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 1 and not CONTROLS.search(shown.out[:-1]) and shown.err == "é\\n\n"
    assert str(UserError("one\nline", "two\x1b")) == "one\\nline\ntwo\\x1b"
    assert str(SettingError("a_b\n", "a_b").renamed({"a_b": "--a-b"})) == "--a-b\\n"
    assert escaped(escaped(ATTACK)) == escaped(ATTACK)
    assert escaped("letters é日😀 stay, \\ too") == "letters é日😀 stay, \\ too"


# ------------------------------------------------------------------------------- what files hold, and what they are called


def told(work: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """All that is shown of an error."""
    with pytest.raises(SystemExit), plain_errors():
        print(work())
    return capsys.readouterr().err


def a_pretrained_model(folder: Path) -> Path:
    model = GPT(GPTConfig(9, block_size=4, num_layers=1, num_heads=1, d_model=4, d_ff=16, activation="gelu_tanh"))
    save_pretrained(model, folder)
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def files(folder: Path) -> dict[str, Any]:
    """Things that raise an error about a name or a text of a file, by what that is."""
    pretrained = a_pretrained_model(folder / "model")
    (folder / ATTACK[:40]).mkdir()
    named = folder / ATTACK[:40] / "a.json"
    named.write_text("{", encoding="utf-8")
    run = RunFolder(folder / "run")
    run.path.mkdir()
    run.settings.write_text(json.dumps({"model": {ATTACK: 1}}), encoding="utf-8")
    shards = a_pretrained_model(folder / "shards")
    (shards / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"wte.weight": ATTACK}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    tensors = a_pretrained_model(folder / "tensors")
    tt.save({ATTACK: tt.zeros((2,)), "wte.weight": tt.zeros((2,))}, tensors / "model.safetensors")
    edit(pretrained / "config.json", architectures=[ATTACK], model_type=ATTACK)
    kind = folder / "kind.json"
    kind.write_text(json.dumps({"type": ATTACK, "format": ATTACK}), encoding="utf-8")
    (folder / "vectors.txt").write_text(f"2 2\n{ATTACK.replace(chr(10), '')} 1 x\nb 1 2\n", encoding="utf-8")
    (folder / "pairs.tsv").write_text(f"{ATTACK.replace(chr(10), '')}\n", encoding="utf-8")
    return {
        "a file's name": lambda: read_json(named),
        "a text that is not there": lambda: open_text(ATTACK),
        "a key of a run's config.json": lambda: run.read_part("model", GPTConfig),
        "a kind of model": lambda: from_pretrained(pretrained),
        "a shard's name": lambda: from_pretrained(shards),
        "a tensor's name": lambda: from_pretrained(tensors),
        "a tokenizer's kind": lambda: load_tokenizer(kind),
        "a character": lambda: CharTokenizer("ab").encode(ATTACK),
        "a line of vectors": lambda: load_vectors(folder / "vectors.txt"),
        "a line of pairs": lambda: PairFiles(data=str(folder / "pairs.tsv")).read(1, 1, False),
        "no tokenizer": lambda: pretrained_tokenizer(tensors),
    }


def test_messages_about_names_and_texts_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for what, work in files(tmp_path).items():
        said = told(work, capsys)
        assert said.startswith("error: "), (what, said)
        assert said.count("\n") <= 2 and "\nerror" not in said and not CONTROLS.search(said.replace("\n", "")), (what, said)


def test_all_programs_protect_the_terminal() -> None:
    root = Path(__file__).resolve().parents[2]
    content = (root / "tinyformer/commands/main.py").read_text(encoding="utf-8")
    assert re.search(r"with plain_errors\(\):\n(?: {8}.*\n)* {8}run\(", content)
