"""What the page opens a model with: a text that the model can read, of the run itself where that is still there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from explored import RUNS, gpt_run, masked_run, translation_run

from tinyformer.data.reading import STANDARD_LIBRARY, fingerprint, standard_library_text
from tinyformer.explore.views.opening import PROMPTS
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.training.comparison import write_translations

BEGINNING = "The quick brown fox jumps over the lazy dog.\n" * 60
LINE = "lazy dog jumps over the quick brown fox"
OWN = f"{BEGINNING}the end\nfox\n{LINE}\nThe lazy dog jumps over the fox again.\n"


def opened(run: Path, model: str = "best") -> dict[str, Any]:
    answer = ask(Subjects([run]), "opening", {"model": model})
    assert isinstance(answer, dict)
    return answer


def with_data(run: Path, path: Path | None, text: str, name: str = "") -> Path:
    """The run, as one that was trained on a text."""
    settings = json.loads((run / "config.json").read_text())
    data = {"path": None if path is None else str(path), "name": name or str(path), "sha256": fingerprint(text), "field": ""}
    (run / "config.json").write_text(json.dumps({**settings, "data": data}))
    return run


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "own.txt"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize("name", RUNS)
def test_each_kind_opens_with_what_its_model_reads(tmp_path: Path, name: str) -> None:
    run = RUNS[name](tmp_path / name)
    found, subject = opened(run), Subjects([run]).get("best")
    assert bool(found["source"]) == (subject.kind == "translation")
    source = subject.encode(found["source"], source=True) if found["source"] else []
    ids = subject.encode(found["text"])
    subject.check(ids, source)
    assert subject.room(ids, 1) == 1  # there is a next token
    assert found["text"] and (subject.kind != "masked" or subject.mask in ids)


def test_the_text_is_a_line_from_the_end_of_the_runs_own(tmp_path: Path, text_file: Path) -> None:
    run = with_data(gpt_run(tmp_path / "gpt", block_size=64), text_file, OWN)
    assert opened(run)["text"] == "The quick brown fox jumps over the lazy dog."
    text_file.write_text(whole := BEGINNING + LINE * 6 + f"\n{LINE}\n" * 20)
    run = with_data(gpt_run(tmp_path / "other", block_size=64), text_file, whole)
    assert opened(run)["text"] == LINE  # in the last tenth, where the validation split is


def test_a_mask_stands_in_the_middle_of_the_line(tmp_path: Path, text_file: Path) -> None:
    found = opened(with_data(masked_run(tmp_path / "masked"), text_file, OWN))["text"]
    assert found == "The quick brown [MASK] jumps over the lazy dog."


def test_python_itself_is_read_again_where_it_was_the_text(tmp_path: Path) -> None:
    text = standard_library_text()
    run = with_data(gpt_run(tmp_path / "gpt"), None, text, STANDARD_LIBRARY)
    assert opened(run)["text"] in (*PROMPTS, *map(str.strip, text.split("\n")))


def test_a_text_that_is_not_the_one_of_the_run_is_never_shown(tmp_path: Path, text_file: Path) -> None:
    """A run may come from others: it must not lead the page to any file that its reader has."""
    run = with_data(gpt_run(tmp_path / "gpt", block_size=64), text_file, OWN)
    text_file.write_text(OWN.replace("fox", "dog"))
    assert opened(run)["text"] in PROMPTS
    text_file.unlink()
    assert opened(run)["text"] in PROMPTS
    if hasattr(os, "mkfifo"):  # to open it would wait for ever
        os.mkfifo(text_file)
        assert opened(run)["text"] in PROMPTS
    (run / "sample.txt").write_text(f"the\n{LINE}\n")
    assert opened(run)["text"] == LINE  # what the run wrote at its end


def test_a_translator_opens_with_a_held_out_sentence(tmp_path: Path) -> None:
    run = translation_run(tmp_path / "run")
    sources, ours = ["the fox jumps over", "the lazy dog", "fox"], ["over the fox", "dog", "the"]
    write_translations(run / "sample.txt", sources, ours, ours)
    found = opened(run)
    assert (found["source"], found["text"]) == ("the lazy dog", "dog")  # of the median length
    (run / "sample.txt").write_text("damaged")
    translator = Subjects([run]).get("best").translator
    found = opened(run)
    assert translator is not None and found["text"]  # it does not end, so half of it leaves room to go on
    assert translator.translate([found["source"]])[0].startswith(found["text"])
