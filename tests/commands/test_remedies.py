"""The commands that error messages name: each is run as it is written, and does what it says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from running import Program

from tinyformer import BertConfig, BertForMaskedLM, WordPieceTokenizer, save_pretrained, save_pretrained_tokenizer
from tinyformer.commands.main import ALL
from tinyformer.tokenizers.wordpiece import SPECIAL

COMMAND = "generate"
FIRST_RUN = ["--help"]
SHORT = "--length 2"
KEPT = Path(__file__).with_name("kept_runs")
# The folders that the commands are given, and the words before and after a folder. Each takes some of them, and refuses others.
FOLDERS = ["gpt", "lstm", "bert", "transformer", "pretrained", "published", "vectors", "nothing", "text.txt", "gtp"]
USES = [
    "chat {}", f"generate {{}} {SHORT}", f"sample {{}} {SHORT}", "fill 'a [MASK]' --model {}", "fill 'a [MASK]' --out {}",
    "translate one --model {}", "translate one --out {}", "vectors {}", "save {} new",
    "train gpt --data text.txt --steps 1 --block-size 8 --out new --init-from {}", "compare transformer {}",
]  # fmt: skip
MISTAKES = [
    "sampel", "train gtp", "train", "generate --lenght 3", "sample --temp 3", "train gpt --batch_size 3",
    "generate --file nowhere", "translate --out transformer one -the", "generate pretrained --prompt -x", "train gpt --lr 3",
    "chat", "export vectors new.onnx",
]  # fmt: skip


def write_data(folder: Path) -> None:
    """Write runs of each type, pretrained models, word vectors, and files that are none of these."""
    for name in set(FOLDERS) & {path.name for path in KEPT.iterdir()}:
        shutil.copytree(KEPT / name, folder / name)
    tokenizer = WordPieceTokenizer.train("a sentence with a [MASK] " * 20, len(SPECIAL) + 20)
    shape = {"num_layers": 1, "num_heads": 2, "d_model": 8, "d_ff": 8, "max_length": 16}
    save_pretrained(BertForMaskedLM(BertConfig(tokenizer.vocab_size, 0, **shape)), folder / "published")
    save_pretrained_tokenizer(tokenizer, folder / "published")
    (folder / "nothing").mkdir()
    (folder / "text.txt").write_text("to be or not to be, that is the question. " * 40)


def named_in(message: str) -> list[list[str]]:
    """The words of each command that a message names."""
    found = re.findall(r"(?:python -m )?\btinyformer ((?:(?!, or |, and | \(see|\. |; |: |\?|\)|\n).)+)", message)
    return [words for words in map(shlex.split, found) if words and words[0] in {name.split()[0] for name in ALL}]


@pytest.mark.parametrize("lines", [*([use.format(folder) for folder in FOLDERS] for use in USES), MISTAKES])
def test_the_commands_that_messages_name_work(lines: list[str], copied: Program) -> None:
    tried = 0
    for line in lines:
        result = copied(*shlex.split(line))
        for words in named_in(result.stderr) if result.returncode == 2 else []:
            again = copied(*words)
            assert again.returncode == 0, (result.stderr, words, again.stderr)
            tried += 1
    assert tried > 3
