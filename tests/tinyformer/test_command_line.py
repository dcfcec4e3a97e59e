"""Settings as flags, a script's commands, JSON files, and errors in one line."""

from __future__ import annotations

import ast
import errno
import importlib
import io
import itertools
import os
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import pytest

from tinyformer.commands.command_line import (
    Commands,
    Parser,
    add_pair_flags,
    add_run_flags,
    add_run_settings,
    add_settings,
    add_text_flag,
    as_flags,
    first_choice,
    folder_for,
    next_command,
    parse_command,
    run_command,
)
from tinyformer.commands.inputs import piped_lines, typed_lines
from tinyformer.commands.main import ALL
from tinyformer.common.errors import SettingError, UserError, plain_errors, renamed_settings
from tinyformer.common.files import read_json, write_json
from tinyformer.common.settings import changed_settings, check_effects, is_changeable, one_of, setting, settings_from
from tinyformer.data.pair_files import PairFiles
from tinyformer.models.transformer import TransformerConfig
from tinyformer.training.run_folder import RunFolder
from tinytensor import distributed

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Settings:
    given: int
    d_model: int = setting(128, "the width")
    rate: float = setting(0.5, "the rate, 100%% of it", changeable=True)
    bias: bool = setting(False, "whether to add one")
    hidden: int = 7


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="program")
    parser.add_argument("--name", default="nobody", help="whose")
    parser.add_argument("--quiet", action="store_true", help="say nothing")
    add_settings(parser, Settings, "settings")
    return parser


# ---------------------------------------------------------------------------------------------------------- settings


def test_defaults(parser: Parser) -> None:
    arguments = vars(parser.parse_args([]))
    assert settings_from(Settings, arguments, given=1) == Settings(1)


def test_flags(parser: Parser) -> None:
    arguments = vars(parser.parse_args(["--d-model", "32", "--rate", "1e-3", "--bias", "--name", "x"]))
    assert settings_from(Settings, arguments, given=1) == Settings(1, 32, 1e-3, True)
    arguments = vars(parser.parse_args(["--no-bias"]))
    assert settings_from(Settings, arguments, given=1) == Settings(1)


def test_help_shows_every_setting_with_its_default(parser: Parser) -> None:
    text = " ".join(parser.format_help().split())
    assert "--d-model INT the width (default: 128)" in text
    assert "--rate FLOAT the rate, 100% of it (default: 0.5)" in text
    assert "--bias, --no-bias whether to add one (default: False)" in text
    assert "--name NAME whose (default: nobody)" in text
    assert "--quiet say nothing --" not in text
    assert "say nothing (default" not in text  # a switch is off unless it is given
    assert "hidden" not in text


def test_help_shows_the_scripts_own_defaults_and_no_empty_lists() -> None:
    parser = Parser(prog="program")
    parser.add_argument("--words", nargs="+", default=[], help="some words")
    add_settings(parser, Settings, "settings", d_model=32)
    text = " ".join(parser.format_help().split())
    assert "the width (default: 32)" in text
    assert "(default: 0.5)" in text
    assert "[])" not in text


def test_a_description_keeps_its_flags_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in range(40, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = Parser(prog="program", description="--vocab-size 400 " * 20).format_help()
        assert " ".join(text.split()).count("--vocab-size 400") == 20
        assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--d-model", "ten"], "argument --d-model: invalid int value: 'ten'"),
        (["--d-model", "1.5"], "argument --d-model: invalid int value: '1.5'"),
        (["--rate"], "argument --rate: expected one argument"),
        (["--hidden", "3"], "unrecognized arguments: --hidden 3"),
        # It is not guessed, but asked: --d might become ambiguous one day.
        (["--d-mod", "3"], "unrecognized arguments: --d-mod 3: did you mean --d-model?"),
        (["--d_model=3"], "unrecognized arguments: --d_model=3: did you mean --d-model?"),
        (["--dm", "3"], "unrecognized arguments: --dm 3: did you mean --d-model?"),
        (["--rate", "-x"], "argument --rate: expected one argument: write --rate=-x, as it begins with -"),
        (["--rate", "--d-model"], "argument --rate: expected one argument"),
    ],
)
def test_wrong_flags_print_one_line(parser: Parser, words: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {message} (see program --help)\n"


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ([], []),
        (["--d-model", "32", "--bias"], []),  # what the saved settings say
        (["--d-model", "64"], ["d_model"]),
        (["--d-model", "128"], ["d_model"]),  # the default, but given, and not what is saved
        (["--no-bias", "--rate", "1"], ["rate", "bias"]),
        (["--name", "x"], []),
    ],
)
def test_changed_settings(parser: Parser, words: list[str], changed: list[str]) -> None:
    assert changed_settings(Settings, vars(parser.parse_args(words)), Settings(1, 32, 0.5, True)) == changed


def test_settings_as_flags_are_parsed_to_the_same_settings(parser: Parser) -> None:
    for settings in ({"d_model": 32, "rate": 1e-3, "bias": True}, {"bias": False}):
        parsed = vars(parser.parse_args(as_flags(settings).split()))
        assert {name: parsed[name] for name in settings} == settings
    assert as_flags({"d_model": 32, "bias": False}) == "--d-model 32 --no-bias"


# ---------------------------------------------------------------------------------------------------------- runs


def test_what_a_resumed_run_can_change() -> None:
    can = {name: is_changeable(Settings, name) for name in ("given", "d_model", "rate", "hidden", "unheard_of")}
    assert can == {"given": False, "d_model": False, "rate": True, "hidden": False, "unheard_of": False}


def test_run_flags(capsys) -> None:
    parser = Parser(prog="program")
    add_run_flags(parser, "runs/program")
    usual = {"out": None, "resume": False, "overwrite": False, "tensorboard": False}
    for words, expected in (
        ([], {}),
        (["--out", "x", "--resume"], {"out": "x", "resume": True}),
        (["--resume-changed"], {"resume": "changed"}),
        (["--overwrite"], {"overwrite": True}),
        (["--tensorboard"], {"tensorboard": True}),
    ):
        assert vars(parser.parse_args(words)) == {**usual, **expected}
    choices = ("--resume", "--resume-changed", "--overwrite")
    for one, other in itertools.permutations(choices, 2):
        with pytest.raises(SystemExit):
            parser.parse_args([one, other])
        assert "not allowed with argument" in capsys.readouterr().err
    for empty in ("", "  "):  # as from a variable of the shell that is not set
        with pytest.raises(SystemExit) as caught:
            parser.parse_args(["--out", empty])
        assert caught.value.code == 2
        assert "argument --out: the path is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "folder"),
    [
        (None, "runs/program"),
        ("my.txt", "runs/program-my"),
        ("texts/My Book (2).txt", "runs/program-My_Book_2_"),
        ("/data/pairs.tsv.gz", "runs/program-pairs"),
        ("train.de.gz", "runs/program-train.de"),
        ("a.txt/", "runs/program-a"),
        ("notes.txt.bak", "runs/program-notes.txt.bak"),
        (".txt", "runs/program-data"),
        ("/", "runs/program-data"),
        ("日本語.txt", "runs/program-日本語"),
        ("$(rm).txt", "runs/program-_rm_"),
    ],
)
def test_a_folder_named_after_the_data(data: str | None, folder: str) -> None:
    assert folder_for("runs/program", data) == folder


def test_a_folder_named_after_the_folder_that_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poems" / "old").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "poems" / "old")
    assert folder_for("runs/program", ".") == "runs/program-old"
    assert folder_for("runs/program", "..") == "runs/program-poems"


@pytest.mark.parametrize(
    ("words", "command"), [([], "train"), (["--fast"], "train"), (["train"], "train"), (["sample"], "sample")]
)
def test_without_a_command_it_is_train(words: list[str], command: str) -> None:
    parser = Parser(prog="program")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("train").add_argument("--fast", action="store_true")
    commands.add_parser("sample")
    assert parse_command(parser, commands.choices, words).command == command


def test_the_next_command_can_be_pasted_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["my scripts/program.py", "--fast"])
    assert next_command("runs/program", "runs/program", "sample") == "python 'my scripts/program.py' sample"
    assert next_command("a b", "runs/program") == "python 'my scripts/program.py' --out 'a b'"


def train(arguments: Namespace) -> None:
    print("trained in", arguments.out)


def sample(arguments: Namespace) -> None:
    if arguments.count < 1:
        raise SettingError(f"count must be at least 1, got {arguments.count}")
    print("sampled from", arguments.out, arguments.count)


def count(arguments: Namespace) -> None:
    print("counted")


def parse(words: list[str]) -> Namespace:
    commands = Commands("program.py", "Train, and sample.", "runs/program")
    training = commands.add(train, help="train a model", description="Train.")
    add_text_flag(training)
    add_run_settings(training, "runs/program", shape=Settings)
    sampling = commands.add_use(sample, help="write", description="Write with a model.")
    sampling.add_argument("--count", type=int, default=3)
    commands.add_use(count, help="count", description="Count what was written.")
    return commands.parse(words)


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ([], "trained in runs/program\n"),
        (["--data", "texts/my.txt", "--d-model", "8"], "trained in runs/program-my\n"),
        (["train", "--data", "texts/my.txt", "--out", "here"], "trained in here\n"),
        (["sample"], "sampled from runs/program 3\n"),
        (["sample", "--out", "there", "--count", "5"], "sampled from there 5\n"),
        (["count"], "counted\n"),
    ],
)
def test_commands_of_a_script(words: list[str], printed: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program.py", *words])
    run_command(parse)
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "--count", "0"], "--count must be at least 1, got 0"),
        (["sample", "--d-model", "8"], "unrecognized arguments: --d-model 8 (see program.py sample --help)"),
        (["--data", " "], "argument --data: the path is empty (see program.py train --help)"),
    ],
)
def test_mistakes_in_commands(words: list[str], message: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program.py", *words])
    with pytest.raises(SystemExit) as caught:
        run_command(parse)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@dataclass(frozen=True)
class Kind:
    kind: str = setting("small", "which")

    def __post_init__(self) -> None:
        one_of(self, "kind", ("small", "large"))


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ([], "small"),
        (["train", "--unknown", "3", "--kind", "large"], "large"),
        (["--kind=large", "--help"], "large"),
        (["--out", "run"], "small"),  # a new run
        (["--out", "run", "--resume"], "large"),
        (["--resume-changed", "--out=run", "--unknown", "3"], "large"),
        (["--out", "run", "--resume", "--kind", "small"], "small"),  # which resuming refuses
        (["--resume", "--data", "texts/my.txt"], "large"),
        (["--resume", "--source", "other.txt"], "small"),  # no run: resuming says so
        (["--resume"], "small"),
    ],
)
def test_a_choice_that_decides_which_flags_there_are(
    tmp_path: Path, words: list[str], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "runs/default-my"):
        run = RunFolder(folder)
        run.create({"part": Kind("large")})
        run.move_into_place()
    assert first_choice(words, "kind", "part", Kind, "runs/default") == chosen


def test_a_choice_that_does_not_exist() -> None:
    with pytest.raises(SettingError, match="kind must be one of small, large, got 'tiny'"):
        first_choice(["--kind", "tiny"], "kind", "part", Kind, "runs/default")


def test_errors_name_the_choice(capsys) -> None:
    with pytest.raises(SystemExit):
        Parser("--kind large", prog="program.py").parse_args(["--other"])
    assert capsys.readouterr().err.endswith("error: unrecognized arguments: --other (see program.py --kind large --help)\n")


def test_ranks_that_cannot_work_together(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where mpi4py belongs to another MPI than mpiexec."""

    def lead(main: object) -> None:
        raise distributed.RankError("each is alone")

    monkeypatch.setattr(distributed, "lead", lead)
    with pytest.raises(SystemExit) as caught:
        run_command(parse)
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: each is alone\n"


def test_help_of_a_command(capsys) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--resume-changed" in text
    assert "shape: --d-model INT the width (default: 128)" in text


def test_help_without_a_command_names_the_other_commands(capsys) -> None:
    told = "To write, see `program.py sample --help`. To count, see `program.py count --help`."
    for words, named in ((["--help"], True), (["train", "--help"], True), (["sample", "--help"], False)):
        with pytest.raises(SystemExit):
            parse(words)
        assert (told in " ".join(capsys.readouterr().out.split())) == named


def test_a_flag_for_each_file_of_pairs() -> None:
    names = [field.name for field in fields(PairFiles)]
    training = Parser(prog="program")
    add_pair_flags(training)
    words = [word for name in names for word in (f"--{name.replace('_', '-')}", f"{name}.txt")]
    assert vars(training.parse_args(words)) == {name: f"{name}.txt" for name in names}
    assert vars(training.parse_args([])) == dict.fromkeys(names)


def test_typed_lines(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n  two \n\nafter an empty line\n"))
    assert list(typed_lines("Type a line.")) == ["one", "two"]
    assert capsys.readouterr() == ("", "Type a line.\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("one"))  # the input ends without an empty line
    assert list(typed_lines("Type a line.")) == ["one"]


def test_piped_lines(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    text = "\ufeffone\r\n  two \n\nafter an empty line\x0b and a vertical tab\n\nlast"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))
    assert piped_lines() == ["one", "two", "", "after an empty line\x0b and a vertical tab", "", "last"]
    assert piped_lines() == []
    terminal = io.StringIO("one")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert piped_lines() is None
    assert terminal.read() == "one"  # it is left to be typed
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("read", [piped_lines, lambda: list(typed_lines("Type a line."))])
def test_an_input_that_is_no_text(read, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ncaf\xe9\n"), encoding="utf-8"))
    with pytest.raises(UserError, match="the input is not utf-8 text: convert it, as in iconv -f LATIN1 -t UTF-8"):
        read()


IN_ASCII = {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "LC_ALL": "C"}


@pytest.mark.parametrize("settings", [{}, {"PYTHONIOENCODING": "ascii"}])
def test_pipes_are_utf8_where_the_locale_is_ascii(settings: dict[str, str]) -> None:
    """Unless the user says otherwise: Python itself would decode them as ASCII."""
    code = (
        "from tinyformer.common.errors import plain_errors\nfrom tinyformer.commands.inputs import piped_lines\n"
        "with plain_errors(): print(*piped_lines())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **IN_ASCII, **settings}, input="Fr\u00fchling \u65e5\u672c\n".encode(),
        capture_output=True, check=False,
    )  # fmt: skip
    if settings:
        assert (result.returncode, result.stdout) == (2, b"") and b"the input is not ascii text" in result.stderr
    else:
        assert (result.returncode, result.stdout.decode()) == (0, "Fr\u00fchling \u65e5\u672c\n"), result.stderr


# ---------------------------------------------------------------------------------------- flags without effect


@dataclass(frozen=True)
class Tuning:
    schedule: str = setting("cosine", "how it falls")
    least: float = setting(0.1, "where it ends", unless={"schedule": ["constant"]})


def test_a_setting_that_has_no_effect_beside_the_others_is_refused() -> None:
    check_effects(Tuning("constant"), [])  # it was not given
    check_effects(Tuning("cosine", 0.2), ["least", "schedule", "other"])
    with pytest.raises(SettingError) as error:
        check_effects(Tuning("constant"), ["least"])  # also where it is the default
    assert str(error.value) == "least has no effect with schedule constant: leave it out, or choose another schedule"
    assert error.value.names == ("least", "schedule")


def settings_of_programs() -> list[type]:
    modules = {module for _, _, module, _ in ALL.values()}
    programs = [vars(importlib.import_module(f"tinyformer.commands.{name}")) for name in sorted(modules)]
    kinds = {kind for program in programs for kind in program.values() if isinstance(kind, type) and is_dataclass(kind)}
    kinds.add(TransformerConfig)  # which train translator has in a table
    return sorted(kinds, key=lambda kind: (kind.__module__, kind.__name__))


def test_each_setting_depends_on_settings_that_there_are() -> None:
    found = set()
    for kind in settings_of_programs():
        names = {field.name: field for field in fields(kind)}
        for field in names.values():
            for other, values in field.metadata.get("unless", {}).items():
                found.add(field.name)
                assert type(names[other].default)(values[0]) == values[0]
                assert "help" in names[other].metadata
    assert found >= {
        "bpe_tokens",
        "min_learning_rate",
        "classify_learning_rate",
        "marks",
        "top_k",
        "top_p",
        "seed",
        "max_length",
    }


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        ("bert", ["fill", "--model", "m", "--out", "o", "a [MASK]"], "--out has no effect with --model"),
        ("translator", ["translate", "--model", "m", "--out", "o", "hi"], "--out has no effect with --model, without"),
        ("translator", ["train", "--lowercase"], "--lowercase has no effect on dates"),
        ("translator", ["train", "--source", "a", "--target", "b", "--validation", "3", "--validation-source", "c",
                          "--validation-target", "d"], "--validation has no effect with --validation-source"),
        ("translator", ["train", "--data", "a", "--test", "3", "--test-source", "c", "--test-target", "d"],
         "--test has no effect"),
        ("generate", ["--revision", "main"], "--revision has no effect without a name on the hub"),
        ("gpt", ["sample", "r", "--out", "o"], "--out has no effect where the run's folder comes first"),
        ("vectors", ["ask", "v", "--odd", "a", "b", "c", "--out", "o"], "--out has no effect with these"),
        ("vectors", ["train", "--method", "counts", "--sample", "0.1"], "--sample has no effect with --method counts"),
        ("vectors", ["train", "--compare", "a", "b", "--evaluate", "e"], "--evaluate has no effect with --compare"),
    ],
)  # fmt: skip
def test_a_flag_that_has_no_effect_beside_the_others_is_refused(
    program: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parse = importlib.import_module(f"tinyformer.commands.{program}").parse
    with pytest.raises(SystemExit) as end:
        parse(words)
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count("\n") == 1
    assert error.startswith(f"error: {message}") and ": leave it out" in error


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("bert", ["fill", "--model", "m", "a [MASK]"]),
        ("translator", ["translate", "--model", "m", "--heat-map", "--out", "o", "hi"]),
        ("translator", ["train", "--data", "a", "--lowercase", "--test", "3"]),
        ("vectors", ["ask", "v", "--odd", "a", "b", "c", "--ask", "d", "--out", "o", "--limit", "5"]),
        ("vectors", ["train", "--method", "counts", "--window", "3", "--width", "20", "--seed", "1", "--overwrite"]),
    ],
)
def test_a_flag_that_has_an_effect_is_taken(program: str, words: list[str]) -> None:
    importlib.import_module(f"tinyformer.commands.{program}").parse(words)


# ---------------------------------------------------------------------------------------------------------- files


def test_json_round_trip(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [1, 2.5, None, "ö😀"]})
    assert read_json(tmp_path / "a.json") == {"a": [1, 2.5, None, "ö😀"]}
    assert "ö😀" in (tmp_path / "a.json").read_text(encoding="utf-8")  # readable for people, too
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_what_json_cannot_hold_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert read_json(tmp_path / "a.json") == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


# ---------------------------------------------------------------------------------------------------------- errors


LESS = (
    "Lower batch_size (gradient_accumulation_steps make up for it) or block_size, or use a smaller model or less data; "
    "no checkpoint was touched."
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("the text is too short"), "the text is too short"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.txt"), "a.txt: No such file or directory"),
        (OSError(errno.ENOSPC, "No space left on device", "run/log.csv"), "run/log.csv: No space left on device"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (SettingError("batch_size must be at least 1"), "batch_size must be at least 1"),
        (OSError("of another kind"), "of another kind"),
        (ModuleNotFoundError("No module named 'tqdm'", name="tqdm"), "the package 'tqdm' is not installed: pip install tqdm"),
        (ImportError("no usable GPU"), "no usable GPU"),
        (MemoryError(), f"there is not enough memory for this\n{LESS}"),
        (MemoryError("Unable to allocate 9 TiB"), f"there is not enough memory for this: Unable to allocate 9 TiB\n{LESS}"),
    ],
)
def test_a_users_mistake_is_a_line_and_status_2(error: Exception, message: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught, plain_errors():
        raise error
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EFBIG", "EIO", "EBADF"])
def test_an_output_that_is_lost_is_status_1(name: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught, plain_errors():
        raise OSError(getattr(errno, name), "it is full")
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: standard output: it is full\n"


def test_ctrl_c(capsys) -> None:
    with pytest.raises(SystemExit) as caught, plain_errors():
        raise KeyboardInterrupt
    assert caught.value.code == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


# What a script does when Ctrl-C comes: nothing of it shows a traceback, and nothing goes on.
INTERRUPTIONS = {
    "between its imports and its work": "raise_signal(SIGINT)",
    "in a callback that cannot raise": """
class Callback:
    def __del__(self): raise_signal(SIGINT)
with plain_errors():
    Callback()
    sleep(20)
""",
    "in a package that then says it is broken": """
with plain_errors():
    try:
        raise_signal(SIGINT)
    except KeyboardInterrupt:
        raise ImportError("a package is damaged")
""",
    "in a package that forgets it": """
with plain_errors():
    try:
        raise_signal(SIGINT)
    except KeyboardInterrupt:
        pass
with plain_errors():
    sleep(20)
""",
}


@pytest.mark.parametrize("when", INTERRUPTIONS)
def test_ctrl_c_comes(when: str) -> None:
    program = f"""
from tinyformer.common.errors import plain_errors
from signal import SIGINT, default_int_handler, raise_signal, signal
from time import sleep
signal(SIGINT, default_int_handler)  # what runs in the background ignores Ctrl-C
with plain_errors():
    pass
{INTERRUPTIONS[when]}
print("it goes on")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert (result.returncode, result.stdout, result.stderr.strip()) == (130, b"", b"interrupted")


def test_the_command_first_gets_ready_for_errors_and_ctrl_c() -> None:
    program = (ROOT / "tinyformer/commands/main.py").read_text(encoding="utf-8")
    _, future, first, second, *others = ast.parse(program).body
    assert [ast.unparse(node) for node in (future, first)] == [
        "from __future__ import annotations",
        "from tinyformer.common.errors import UserError, plain_errors",
    ]
    assert isinstance(second, ast.With) and ast.unparse(second.items[0]) == "plain_errors()"
    assert not [node for node in others if isinstance(node, ast.Import | ast.ImportFrom)]


def test_getting_ready_imports_next_to_nothing() -> None:
    small = "sys, contextlib, errno, warnings, __future__"  # parts of Python that some environments load by themselves
    program = f"import {small}; before = {{*sys.modules}}; import tinyformer.PART; print(*{{*sys.modules}} - before)"
    result = subprocess.run(
        [sys.executable, "-c", program.replace("PART", "common.errors")], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert {*result.stdout.split()} <= {"atexit", "tinyformer", "tinyformer.common", "tinyformer.common.errors"}


@pytest.mark.parametrize("error", [ZeroDivisionError(), ValueError("a bug"), KeyError("x")])
def test_a_fault_of_the_program_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)), plain_errors():
        raise error


@pytest.mark.parametrize(("options", "shown"), [([], False), (["-W", "default"], True)])  # who asks for them sees them
def test_warnings_of_numbers_that_overflow_are_for_those_who_ask(options: list[str], shown: bool) -> None:
    program = """
import numpy
from tinyformer.common.errors import plain_errors
with plain_errors():
    numpy.float32(1e30) * numpy.float32(1e30)
"""
    result = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, check=True)
    assert (b"RuntimeWarning: overflow" in result.stderr) == shown
    assert result.stderr == b"" or shown


END = """
from tinyformer.common.errors import plain_errors
with plain_errors():
    print("what it has to say")
    {last}
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("last", ["pass", "raise SystemExit(0)", "raise SystemExit(2)"])  # the second as after --help
def test_standard_output_is_full(last: str) -> None:
    with open("/dev/full", "wb") as full:
        program = END.format(last=last)
        held_back = {**os.environ, "PYTHONUNBUFFERED": ""}  # so that the end is the first to notice
        result = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, env=held_back, check=False
        )
    assert result.stderr == b"error: standard output: No space left on device\n"
    assert result.returncode == 1


@contextmanager
def without_reader() -> Iterator[socket.socket]:
    """A closed output, also if another process holds a copy of the reader's end."""
    read, write = socket.socketpair()
    with read, write:
        read.shutdown(socket.SHUT_RDWR)
        yield write


@pytest.mark.parametrize(
    ("last", "status", "errors"), [("raise SystemExit(0)", 1, b""), ("raise KeyboardInterrupt", 130, b"\ninterrupted\n")]
)
def test_a_reader_who_has_left_when_it_ends(last: str, status: int, errors: bytes) -> None:
    program = END.format(last=last)
    held_back = {**os.environ, "PYTHONUNBUFFERED": ""}  # so that the end is the first to notice
    with without_reader() as write:
        result = subprocess.run(
            [sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, env=held_back, check=False
        )
    assert (result.returncode, result.stderr) == (status, errors)


@pytest.mark.parametrize("lines", [1, 100_000])  # held back in a buffer until the end, or too many for one
def test_a_reader_who_has_left_is_no_error(lines: int) -> None:
    program = f"""
from tinyformer.common.errors import plain_errors
with plain_errors():
    for i in range({lines}):
        print(i)
"""
    with without_reader() as write:
        result = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 1
    assert result.stderr == b""


def test_a_command_names_its_own_flags(parser: Parser, capsys) -> None:
    def run(arguments: Namespace) -> None:
        raise SettingError("window is not d_model, nor the d_model2 of name", "window", "d_model")

    parser.set_defaults(run=run)
    with pytest.raises(SystemExit):
        run_command(parser.parse_args, [])
    assert capsys.readouterr().err == "error: window is not --d-model, nor the d_model2 of name\n"


def test_settings_with_other_names() -> None:
    with pytest.raises(SettingError) as caught, renamed_settings(most="fewest", other="one"):
        raise SettingError("most must be at most 3, other than 4", "most")
    assert (str(caught.value), caught.value.names) == ("fewest must be at most 3, other than 4", ("fewest",))
