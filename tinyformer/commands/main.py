"""The ``tinyformer`` command: the table of subcommands, its --help, and running a subcommand.

Nothing slow is imported here. A command's module is imported when it runs.
"""

from __future__ import annotations

from tinyformer.common.errors import UserError, plain_errors

with plain_errors():  # from here on, Ctrl-C exits without a traceback
    import importlib
    import os
    import sys

# The commands by group: the arguments after each, its help, its module, and the first word of that module's command line, if
# any.
COMMANDS: dict[str, dict[str, tuple[str, str, str, str]]] = {
    "Train:": {
        "train gpt": ("", "a GPT or a recurrent network", "gpt", "train"),
        "train translator": ("", "an encoder-decoder, on sentence pairs", "translator", "train"),
        "train bert": ("", "a BERT, with masked words", "bert", "train"),
        "train vectors": ("", "word vectors", "vectors", "train"),
    },
    "Use:": {
        "sample": ("[RUN]", "generate text", "gpt", "sample"),
        "translate": ("SENTENCE", "translate sentences", "translator", "translate"),
        "compare": ("RUN RUN", "compare translators", "compare", ""),
        "fill": ("SENTENCE", "fill in [MASK] tokens", "bert", "fill"),
        "vectors": ("[FILE]", "show neighbors, analogies and a map of words", "vectors", "ask"),
        "generate": ("[FOLDER]", "generate text with a pretrained model", "generate", ""),
        "chat": ("FOLDER", "chat with a pretrained model", "chat", ""),
        "explore": ("[RUN]", "look inside a model in the browser", "explore", ""),
        "save": ("[RUN] FOLDER", "save a model in Hugging Face format", "gpt", "save"),
        "export": ("RUN FILE", "export a model to ONNX", "export", ""),
    },
}
ALL = {name: command for group in COMMANDS.values() for name, command in group.items()}


def help_text() -> str:
    """Return the --help text: a table of contents that fits on one screen."""
    lines = ["tinyformer COMMAND: train small language models and look inside them"]
    for group, commands in COMMANDS.items():
        lines.append(group)
        lines += [f"  {f'{name} {more}':20s}  {text}" for name, (more, text, _, _) in commands.items()]
    return "\n".join([*lines, "Details: tinyformer COMMAND --help. Version: tinyformer --version"])


def command_of(words: list[str]) -> tuple[str, list[str]]:
    """Split words into the command and its arguments. Raises UserError for an unknown command."""
    name = " ".join(words[: 2 if words[0] == "train" else 1])
    if name in ALL:
        return name, words[len(name.split()) :]
    import difflib

    from tinyformer.common.makers import GONE

    if script := GONE.get(name.removeprefix("train ")):
        raise UserError(f"there is no command {name!r} any more: run python examples/{script}, of the source code")
    known = [one for one in ALL if words[0] != "train" or one.startswith("train ")]
    ends = {one.split()[-1]: one for one in known}  # by the last word, since users forget "train"
    near = difflib.get_close_matches(words[1] if name.startswith("train ") else name, ends, 1)
    if not near and words[0] == "train":
        trained = ", ".join(one.removeprefix("train ") for one in ALL if one.startswith("train "))
        raise UserError(f"tinyformer train needs to know what to train: {trained} (see tinyformer --help)")
    hint = f": did you mean tinyformer {ends[near[0]]}?" if near else ""
    raise UserError(f"there is no command {name!r}{hint} (see tinyformer --help)")


def complete() -> None:
    """Complete a command line with argcomplete: command names here, flags by the command's parser."""
    import argcomplete

    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    words = argcomplete.lexers.split_line(line, point)[3]
    name = next((name for name in ALL if words[1 : 1 + len(name.split())] == name.split()), "")
    if name:
        os.environ["_ARGCOMPLETE"] = str(1 + len(name.split()))  # the parser ignores earlier words
        _, _, module, first = ALL[name]
        importlib.import_module(f"tinyformer.commands.{module}").parse([first] if first else [])
    import argparse

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    training = commands.add_parser("train").add_subparsers()
    for name in ALL:
        *train, last = name.split()
        (training if train else commands).add_parser(last)
    argcomplete.autocomplete(parser)


def run(words: list[str]) -> None:
    """Run a command line, without the program name."""
    if not words or words[0] in ("-h", "--help") or words in (["train", "-h"], ["train", "--help"]):
        print(help_text())
        return
    if words == ["--version"]:
        print(f"tinyformer {importlib.import_module('tinyformer').__version__}")
        return
    name, options = command_of(words)
    _, _, module, first = ALL[name]
    program = importlib.import_module(f"tinyformer.commands.{module}")
    from tinyformer.commands.command_line import run_command

    run_command(program.parse, [first, *options] if first else options)


def main() -> None:
    """Run this process's command line. Errors are printed as in ``plain_errors``."""
    with plain_errors():
        if "_ARGCOMPLETE" in os.environ:
            complete()
        run(sys.argv[1:])
