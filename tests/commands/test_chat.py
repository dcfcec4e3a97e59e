"""`tinyformer chat` as its users run it, with a model that is written here: from a pipe, and in a terminal."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_templates import TEMPLATES
from running import Program

import tinytensor as tt
from tinyformer import GPT, BPETokenizer, GPTConfig, Sampling, Writing, open_chat, save_pretrained, save_pretrained_tokenizer
from tinyformer.commands import chat as chat_program

COMMAND = "chat model"
TEXT = "the quick brown fox jumps over a lazy dog, and then it sleeps.\n" * 20
SAID = ["--temperature", "0", "--max-tokens", "5"]
CUT = "(Stopped after 5 tokens. Ask the model to continue, or choose a higher --max-tokens.)\n"
FIRST_RUN = ["--help"]


def write_data(folder: Path, name: str = "model", context: int = 200) -> None:
    """A model whose answers have no end, in a folder with its tokenizer and its template."""
    tt.seed(0)
    tokenizer = BPETokenizer.train(TEXT, 300, special=["<|im_start|>", "<|im_end|>"])
    shape: dict[str, Any] = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "tie_output": False}
    model = GPT(GPTConfig(tokenizer.vocab_size, block_size=context, num_layers=1, num_heads=2, d_model=16, **shape))
    for weight in (model.token_embedding.weight, model.output_weight()):
        weight.assign(weight * 10)
    save_pretrained(model, folder / name, Writing(forbidden=(298, 299)))
    save_pretrained_tokenizer(tokenizer, folder / name)
    (folder / name / "chat_template.jinja").write_text(TEMPLATES["turns"], encoding="utf-8")


def answers(folder: Path, *lines: str, sampling: Sampling | None = None, length: int = 5, **settings: Any) -> str:
    """Return the output for these lines in one conversation."""
    chat = open_chat(folder / "model", sampling=sampling or Sampling(temperature=0), max_tokens=length, **settings)
    return "".join("".join(chat.say(line)) + "\n" for line in lines)


def test_each_line_of_a_pipe_is_answered(finished: Program) -> None:
    result = finished(*SAID, typed="\ufeffhi\n\n  the dog \r\nfox")
    assert result.returncode == 0
    assert (result.stdout, result.stderr) == (answers(finished.folder, "hi", "the dog", "fox"), CUT * 3)
    assert finished.good(*SAID, typed="") == ""


def test_the_flags(finished: Program) -> None:
    expected = answers(finished.folder, "hi", sampling=Sampling(temperature=2.0, top_k=9, top_p=0.9, seed=3), system="be a fox")
    words = ["--max-tokens", "5", "--temperature", "2", "--top-k", "9", "--top-p", "0.9", "--seed", "3", "--system", "be a fox"]
    assert finished.good(*words, typed="hi") == expected
    usual = Sampling(temperature=0.3, top_k=50, seed=1337)
    assert finished.good("--max-tokens", "5", typed="hi") == answers(finished.folder, "hi", sampling=usual)
    for dtype in ("int8", "int4"):
        assert finished.good(*SAID, "--dtype", dtype, typed="hi") == answers(finished.folder, "hi", dtype=dtype)


def test_values_for_the_template(copied: Program) -> None:
    (copied.folder / "model" / "chat_template.jinja").write_text("{{ x }}" + TEMPLATES["turns"])
    expected = answers(copied.folder, "hi", x=["fox"])
    assert copied.good(*SAID, "--chat-template-kwargs", '{"x": ["fox"]}', typed="hi") == expected
    assert copied.good(*SAID, typed="hi") != expected


def test_the_commands(finished: Program) -> None:
    shown = finished.good(*SAID, typed="hi\n/reset\nhi\n/system be a fox\n/reset\nhi\n/system\n/reset\nhi\n/quit\nhi")
    once, fox = answers(finished.folder, "hi"), answers(finished.folder, "hi", system="be a fox")
    assert shown == once + once + fox + once
    assert once != fox
    said = finished(*SAID, typed="/system be a fox\n/system\n/reset").stderr.splitlines()
    assert said == [
        "(The system prompt is now set.)",
        "(The system prompt is now the default of the template.)",
        "(Started a new conversation.)",
    ]
    result = finished(typed="/help")
    commands = ["/reset", "/system", "/help", "/quit", '"""', "Type"]
    assert [line.split()[0] for line in result.stderr.splitlines()] == commands
    assert result.stdout == ""


def test_a_message_of_several_lines_stands_between_quotes(finished: Program) -> None:
    typed = '"""the dog\n\n  /quit \nfox\n"""\n  """/reset"""\n"""fox\nthe dog'
    result = finished(*SAID, typed=typed)
    assert result.returncode == 0
    assert result.stdout == answers(finished.folder, "the dog\n\n  /quit \nfox", "/reset", "fox\nthe dog")
    assert finished.good(*SAID, typed='""" """\n""""""') == ""  # nothing to say


def test_a_line_of_a_pipe_that_is_refused_loses_no_other(finished: Program) -> None:
    result = finished(*SAID, typed=f"/bye now\nhi\n{'fox ' * 300}\nfox")
    assert result.returncode == 2
    assert result.stdout == answers(finished.folder, "hi", "fox")
    first, cut, second, _ = result.stderr.splitlines()
    assert first == 'error: unknown command /bye: see /help. To send it as a message, type """/bye now"""'
    assert cut == CUT.removesuffix("\n") and second.startswith("error: the message has ")


def test_an_answer_has_the_room_that_there_is(finished: Program) -> None:
    told = finished("--temperature", "0", "--max-tokens", "1000", typed="the dog").stderr
    assert re.fullmatch(r"\(Stopped after 1\d\d tokens\. Ask the model to continue\.\)\n", told)


def test_a_conversation_that_is_too_long(finished: Program) -> None:
    result = finished("--temperature", "0", "--max-tokens", "30", typed="the dog\n" * 5)
    assert result.returncode == 0
    assert "(The conversation exceeds 200 tokens. Dropped the oldest 1 turn. Type /reset to start over.)" in result.stderr
    assert result.stdout == answers(finished.folder, *["the dog"] * 5, length=30)


@pytest.mark.parametrize(
    ("words", "typed", "message"),
    [
        (["--max-tokens", "0"], "", "--max-tokens must be at least 1, got 0"),
        (["--temperature", "-1"], "", "--temperature must be 0 (greedy) or more, got -1.0"),
        (["--top-k", "3", "--temperature", "0"], "", "--top-k has no effect"),
        (["--revision", "main"], "", "model is a folder and has no revision 'main': leave it out"),
        (["--chat-template-kwargs", "x=1"], "", "Expecting value: line 1 column 1 (char 0): write a JSON object, as in '{"),
        (["--chat-template-kwargs", '{"context": 3}'], "", "the chat itself says what context is: leave it out"),
        (["more"], "", "unrecognized arguments: more (see tinyformer chat --help)"),
        ([], "/bye", "unknown command /bye: see /help."),
        ([], "fox " * 300, "the limit is 199: send a shorter one"),
        ([], b"\xff\xfe", "the input is not utf-8 text"),
    ],
)
def test_mistakes(finished: Program, words: list[str], typed: str | bytes, message: str) -> None:
    assert message in finished.bad(*words, typed=typed)


def test_a_folder_without_a_template(copied: Program) -> None:
    (copied.folder / "model" / "chat_template.jinja").unlink()
    message = copied.bad(typed="hi")
    assert message.startswith(
        "model has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json), so it "
    )
    assert message.endswith("use this one with tinyformer generate model\n")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('Nobody talks.') }}", "Nobody talks."),
        (
            "{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "rendering took too long and was stopped",
        ),
    ],
)
def test_a_template_that_fails(copied: Program, template: str, message: str) -> None:
    (copied.folder / "model" / "chat_template.jinja").write_text(template)
    assert copied.bad(typed="hi").startswith(f"{Path('model/chat_template.jinja')}: {message}")


def test_without_jinja(program: Program) -> None:
    message = program.bad(typed="hi", **program.without("jinja2"))
    assert message == 'a chat template needs the package jinja2: pip install "tinyformer[chat]"\n'


# --------------------------------------------------------------------------------------------------------- in a terminal


class Terminal:
    """The program in a terminal."""

    def __init__(self, program: Program, *words: str):
        pty = pytest.importorskip("pty")
        self.ours, theirs = pty.openpty()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        self.process = program.begin(*words, **streams, start_new_session=True, preexec_fn=lambda: take_terminal())
        os.close(theirs)

    def read(self, until: str, pressing: str = "") -> str:
        """What is shown, up to this text. A key is pressed first, and again when nothing comes for seconds, as people do:
        Python loses a Ctrl-C that comes just before it waits for input."""
        shown = b""
        self.type(pressing)
        while until.encode() not in shown:
            if pressing and not select.select([self.ours], [], [], 5)[0]:
                self.type(pressing)
            shown += os.read(self.ours, 1000)
        return shown.decode(errors="replace").replace("\r\n", "\n")

    def type(self, text: str | bytes) -> None:
        os.write(self.ours, text.encode() if isinstance(text, str) else text)

    def ends(self) -> int:
        status = self.process.wait(timeout=60)
        os.close(self.ours)
        return status


def take_terminal() -> None:
    """Make this the program's controlling terminal. A Ctrl-C does not discard pending output."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    settings = termios.tcgetattr(0)
    settings[3] |= termios.NOFLSH
    termios.tcsetattr(0, termios.TCSANOW, settings)


@pytest.mark.skipif(os.name != "posix", reason="needs a terminal")
def test_a_conversation_in_a_terminal(finished: Program) -> None:
    terminal = Terminal(finished, *SAID)
    assert "Type /help for commands, Ctrl-D to quit." in terminal.read("> ")
    terminal.type("hi\n")
    said = answers(finished.folder, "hi").rstrip("\n")
    assert said in terminal.read("> ").replace("hi\n", "", 1)
    terminal.type("/bye\n")
    assert "error: unknown command /bye: see /help." in terminal.read("> ")
    terminal.type(b"caf\xe9 \xff\n")
    assert "error: the input is not utf-8 text" in terminal.read("> ")
    assert "Press Ctrl-D or type /quit to quit." in terminal.read("> ", pressing="\x03")
    terminal.type('"""fox\n')
    terminal.read("... ")
    assert "Ctrl-D" not in terminal.read("> ", pressing="\x03")  # what was typed of the message is dropped
    terminal.type('"""the dog\n')
    terminal.read("... ")
    terminal.type('fox"""\n')
    assert answers(finished.folder, "hi", "the dog\nfox").splitlines()[1] in terminal.read("> ")
    terminal.type("\x04")
    assert terminal.ends() == 0


@pytest.mark.skipif(os.name != "posix", reason="needs a terminal")
def test_ctrl_c_stops_an_answer_and_not_the_program(program: Program) -> None:
    write_data(program.folder, "long", 8000)  # which takes seconds to be filled
    terminal = Terminal(program, "chat", "long", "--max-tokens", "8000", "--temperature", "2")
    terminal.read("> ")
    terminal.type("hi\n")
    terminal.read("hi\r\n")
    assert os.read(terminal.ours, 10)
    terminal.type("\x03")
    shown = terminal.read("\n> ")
    assert "Ctrl-D or /quit ends." not in shown and "This stops" not in shown
    terminal.type("/quit\n")
    assert terminal.ends() == 0


@pytest.mark.skipif(os.name != "posix", reason="needs a signal sent to another process")
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_chat_without_a_terminal(finished: Program, by: signal.Signals) -> None:
    """An answer of 150 tokens may end before the signal arrives; this many lines do not."""
    process = finished.begin("--max-tokens", "150", "--temperature", "2", stdin=-1)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("hi\n/reset\n" * 5000)
    process.stdin.flush()
    assert process.stdout.read(5)
    process.send_signal(by)
    _, errors = process.communicate()
    assert process.returncode == 128 + by
    assert "Traceback" not in errors


def test_a_second_ctrl_c_stops_an_answer_and_not_the_program(finished: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    def interrupted(chat: Any, line: str, is_typed: bool) -> None:
        said.append(line)
        raise KeyboardInterrupt

    monkeypatch.setattr(chat_program, "answer", interrupted)
    typed = iter(["the dog", "/reset", "fox"])
    monkeypatch.setattr(chat_program, "typed", lambda prompt: next(typed, None))
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    chat_program.talk(chat_program.parse([str(finished.folder / "model")]))
    assert said == ["the dog", "fox"]
