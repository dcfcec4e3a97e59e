"""What ``from tinyformer import ...`` gives, and that it loads no more than it needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tinyformer

ROOT = Path(__file__).parents[2]


def test_each_name_is_there():
    assert {"GPT", "Transformer", "Trainer"} <= set(dir(tinyformer))
    for name in tinyformer.__all__:
        value = getattr(tinyformer, name)
        assert (value.__name__ == name and value.__module__.startswith("tinyformer.")) or name == "recording_outputs"


def test_a_type_checker_takes_each_name_for_a_public_one():
    shown = ast.parse(Path(tinyformer.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    assert all(alias.asname == alias.name for node in shown.body if isinstance(node, ast.ImportFrom) for alias in node.names)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'tinyformer' has no attribute 'Gpt'"):
        getattr(tinyformer, "Gp" + "t")
    with pytest.raises(ImportError, match="cannot import name 'Gpt'"):
        exec("from tinyformer import Gpt")


def test_only_requested_modules_are_loaded():
    check = "import sys; from tinyformer import GPT; print(*[m for m in sys.modules if m.startswith('tinyformer.')])"
    loaded = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "tinyformer.models.gpt" in loaded
    others = tuple(f"tinyformer.{n}" for n in "training data decoding tokenizers models.bert models.transformer".split())
    assert [module for module in loaded if module.startswith(others)] == []
