"""A run that is given to another script than the one that made it: the message says which one that was, and its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import ROOT, Program

RUNS = {  # by script: what its config.json has, and the command that uses a run
    "char_gpt.py": ({"text": {"bpe_tokens": 0}}, "sample"),
    "fill_mask.py": ({"text": {"wordpieces": 40}}, "fill"),
    "translate.py": ({"task": {"length_penalty": 1.0}}, "translate"),
    "dial_tones.py": ({"task": {"snr": 0.0}}, "transcribe"),
}
COMMANDS = {
    "char_gpt.py": [["sample"], ["save", "new"], ["--resume"], ["--resume-changed", "--steps", "9"]],
    "fill_mask.py": [["fill", "a [MASK]"], ["--resume"]],
    "translate.py": [["translate", "one"], ["--resume"], ["train", "--resume"]],
    "dial_tones.py": [["transcribe", "a.wav"], ["--resume"]],
}


@pytest.mark.parametrize("script", COMMANDS)
def test_the_script_that_made_a_run_is_named(script: str, tmp_path: Path, environment: dict[str, str]) -> None:
    program = Program(script, tmp_path, environment)
    for made, (settings, use) in RUNS.items():
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run/config.json").write_text(json.dumps(settings))
        for words in COMMANDS[script] if made != script else []:
            expected = (
                f"run holds a run of {made}, not of {script}: use it with python {ROOT / 'examples' / made} {use} --out run"
            )
            assert program.bad(*words, "--out", "run").strip() == expected


def test_a_pretrained_model_is_used_in_place_of_any_run(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text(json.dumps(RUNS["char_gpt.py"][0]))
    for script, words in (("fill_mask.py", ["fill", "a"]), ("translate.py", ["translate", "one"])):
        message = Program(script, tmp_path, environment).bad(*words, "--model", "nowhere/at-all", "--out", "run")
        assert "char_gpt" not in message
