"""Chat with a pretrained model from a folder in Hugging Face format or a GGUF file.

tinyformer chat FOLDER
tinyformer chat smollm2.gguf   # a llama.cpp GGUF file (tinyformer[gguf])
echo "What is a tensor?" | tinyformer chat FOLDER
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tinyformer.chat.conversation import MAX_TOKENS, USUAL, Chat, open_chat
from tinyformer.commands.command_line import Parser, add_settings, some_path
from tinyformer.commands.inputs import text_of_input
from tinyformer.common.errors import SettingError, UserError, print_line, shortened, stop_script
from tinyformer.common.files import parse_json
from tinyformer.common.progress import stop_on_signals
from tinyformer.common.settings import check_effects, settings_from
from tinyformer.decoding.generation import compile_first
from tinyformer.decoding.sampling import Sampling
from tinyformer.models.quantizing import DTYPES
from tinytensor.common.wording import counted

CHOICE = {**USUAL, "seed": 1337}  # used where neither a flag nor the model sets a value
QUOTES, MORE = '"""', "... "  # around a multi-line message, and the prompt before each later line
EXAMPLE = '{"enable_thinking": false}'
HELP = """/reset          start a new conversation
/system TEXT    set the system prompt (empty: restore the template's default)
/help           show this help
/quit           quit (or press Ctrl-D)
\"""             start a message of several lines, or one that starts with /; end it with \"""
Type a message; the answer streams in. Ctrl-C stops it."""


def talk(arguments: argparse.Namespace) -> None:
    """Answer each typed or piped message."""
    settings_from(Sampling, vars(arguments))  # rejects invalid settings before loading a model
    if arguments.max_tokens is not None and arguments.max_tokens < 1:
        raise SettingError(f"max_tokens must be at least 1, got {arguments.max_tokens}")
    settings = {"max_tokens": arguments.max_tokens, "system": arguments.system, **arguments.chat_template_kwargs}
    chat = open_chat(arguments.model, arguments.revision, arguments.dtype, **settings)
    chat.sampling = settings_from(Sampling, {**vars(chat.sampling), "seed": CHOICE["seed"], **vars(arguments)})
    check_effects(chat.sampling, vars(arguments))
    compile_first(chat.model, chat.sampling)
    is_typed, has_failed = sys.stdin.isatty() and sys.stdout.isatty(), False
    if is_typed:
        print_line("Type /help for commands, Ctrl-D to quit.", sys.stderr)
    for text, is_command in messages(typed if is_typed else piped):
        try:
            if is_command:
                if obey(chat, text):
                    break
            elif text.strip():
                answer(chat, text, is_typed)
        except UserError as error:
            has_failed = True
            print(f"error: {error}", file=sys.stderr)
        except KeyboardInterrupt:  # a second Ctrl-C
            if not is_typed:
                raise
            print()
    if has_failed and not is_typed:
        raise SystemExit(2)


def messages(read: Callable[[str], str | None]) -> Iterator[tuple[str, bool]]:
    """Yield each message from ``read``, called with a prompt, and whether it is a command. A message in quotes may span lines.
    The end of input also ends it."""
    while (line := read("> ")) is not None:
        text = line.strip()
        if not text.startswith(QUOTES):
            yield text, text.startswith("/")
            continue
        text = line.lstrip().removeprefix(QUOTES)
        try:
            while not text.rstrip().endswith(QUOTES) and (line := read(MORE)) is not None:
                text += f"\n{line}"
        except KeyboardInterrupt:  # discards the unfinished message
            if read is piped:
                raise
            print()
            continue
        yield text.rstrip().removesuffix(QUOTES).strip("\n"), False


def typed(prompt: str) -> str | None:
    """Read a typed line after a prompt. Return None at the end of input."""
    with suppress(ImportError):  # missing on Windows
        import readline  # noqa: F401 (input() edits lines with it)
    while True:
        try:
            return text_of_input(lambda: input(prompt))
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            if prompt == MORE:
                raise
            print("\nPress Ctrl-D or type /quit to quit.", file=sys.stderr)
        except UserError as error:  # bytes that are not text
            print(f"error: {error}", file=sys.stderr)


def piped(prompt: str) -> str | None:
    """Read a line from a pipe or file. Return None at the end of input."""
    line = text_of_input(sys.stdin.readline)
    return line.removeprefix("\ufeff").removesuffix("\n") if line else None  # Windows starts text with this mark


def obey(chat: Chat, line: str) -> bool:
    """Run a command (a line that starts with /). Return True if it ends the chat. Raises UserError for an unknown command."""
    name, _, text = line.partition(" ")
    if name == "/system":
        chat.system = text.strip() or None
        tell(f"The system prompt is now {'set' if chat.system else 'the default of the template'}.")
    elif name == "/reset":
        chat.reset()
        tell("Started a new conversation.")
    elif name == "/help":
        print(HELP, file=sys.stderr)
    elif name != "/quit":
        said = f"{QUOTES}{shortened(line, 40)}{QUOTES}"
        raise UserError(f"unknown command {name}: see /help. To send it as a message, type {said}")
    return name == "/quit"


def answer(chat: Chat, line: str, is_typed: bool) -> None:
    """Stream the model's answer. Ctrl-C stops it after the next token. If messages are piped, Ctrl-C ends the program."""
    stopped: list[str] = []
    with stop_on_signals(stopped.append):
        pieces = chat.say(line)
        if chat.forgotten:
            dropped = f"Dropped the oldest {counted(chat.forgotten, 'turn')}."
            tell(f"The conversation exceeds {counted(chat.context, 'token')}. {dropped} Type /reset to start over.")
        for piece in pieces:
            print(piece, end="", flush=True)
            if stopped:
                break
        pieces.close()
    print(flush=True)
    if stopped and (stopped[0] != "Ctrl-C" or not is_typed):
        stop_script(stopped[0], "")
    if chat.is_cut:
        number = counted(len(chat.answer_ids), "token")
        more = ", or choose a higher --max-tokens" if len(chat.answer_ids) == chat.max_tokens else ""
        tell(f"Stopped after {number}. Ask the model to continue{more}.")


def tell(message: str) -> None:
    """Print a notice to standard error."""
    print_line(f"({message})", sys.stderr)


def values_in(text: str) -> dict[str, Any]:
    """Parse the template-variables flag: a JSON object without names that the chat passes itself."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}: write a JSON object, as in '{EXAMPLE}'") from None
    reserved = {"messages", "add_generation_prompt", "continue_final_message"}
    for function in (Chat, open_chat):
        reserved |= set(inspect.signature(function).parameters)
    if taken := reserved & set(values):
        raise argparse.ArgumentTypeError(f"the chat itself says what {min(taken)} is: leave it out")
    return values


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    description = "Chat with a pretrained model. Type /help for commands."
    parser = Parser(prog="tinyformer chat", description=description)
    text = "a folder in Hugging Face's format, a GGUF file, or a name on the Hugging Face hub"
    parser.add_argument("model", help=text, type=some_path, metavar="FOLDER_OR_NAME")
    parser.add_argument("--revision", help="branch, tag or commit on the hub", metavar="TEXT")
    of_weights = "dtype of the weights: fewer bits generate faster (default: as stored)"
    parser.add_argument("--dtype", help=of_weights, choices=DTYPES)
    parser.add_argument("--system", help="system prompt (default: the template's)", metavar="TEXT")
    said = f"maximum tokens per answer (default: the model's setting, else {MAX_TOKENS})"
    parser.add_argument("--max-tokens", help=said, type=int, metavar="INT")
    variables = f"variables for the chat template, as JSON: '{EXAMPLE}'"
    parser.add_argument("--chat-template-kwargs", help=variables, type=values_in, default={}, metavar="JSON")
    add_settings(parser, Sampling, "sampling", **CHOICE)
    parser.set_defaults(run=talk)
    return parser.parse_args(words)
