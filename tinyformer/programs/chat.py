"""Talk to a pretrained model that was trained to talk, in a folder in Hugging Face's layout or a GGUF file.

tinyformer chat FOLDER
tinyformer chat smollm2.gguf   # a GGUF file of llama.cpp (tinyformer[gguf])
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
from tinyformer.common.errors import SettingError, UserError, print_line, shortened, stop_script
from tinyformer.common.files import parse_json
from tinyformer.common.settings import check_effects, settings_from
from tinyformer.common.signals import stop_on_signals
from tinyformer.decoding.generation import compile_first
from tinyformer.decoding.sampling import Sampling
from tinyformer.models.quantizing import DTYPES
from tinyformer.scripting.command_line import Parser, add_settings, some_path
from tinyformer.scripting.inputs import text_of_input
from tinytensor.common.wording import counted

CHOICE = {**USUAL, "seed": 1337}  # where neither a flag nor the model's own settings say it
QUOTES, MORE = '"""', "... "  # around a message of several lines, and the prompt before each further one
EXAMPLE = '{"enable_thinking": false}'
HELP = """/reset          begin anew
/system TEXT    tell the model what it is; without TEXT, what its template says
/help           show this
/quit           end, as Ctrl-D does
\"""             begin a message of several lines, or one that begins with /; it ends with \"""
Ctrl-C stops an answer. All else is said to the model."""


def talk(arguments: argparse.Namespace) -> None:
    """Answer what is typed, or comes from a pipe, line by line."""
    settings_from(Sampling, vars(arguments))  # refuses what cannot be before a model is loaded
    if arguments.max_tokens is not None and arguments.max_tokens < 1:
        raise SettingError(f"max_tokens must be at least 1, not {arguments.max_tokens}")
    settings = {"max_tokens": arguments.max_tokens, "system": arguments.system, **arguments.chat_template_kwargs}
    chat = open_chat(arguments.model, arguments.revision, arguments.dtype, **settings)
    chat.sampling = settings_from(Sampling, {**vars(chat.sampling), "seed": CHOICE["seed"], **vars(arguments)})
    check_effects(chat.sampling, vars(arguments))
    compile_first(chat.model, chat.sampling)
    is_typed, all_well = sys.stdin.isatty() and sys.stdout.isatty(), True
    if is_typed:
        print_line("/help shows the commands, and Ctrl-D ends.", sys.stderr)
    for text, is_command in messages(typed if is_typed else piped):
        try:
            if is_command:
                if obey(chat, text):
                    break
            elif text.strip():
                answer(chat, text, is_typed)
        except UserError as error:
            all_well = False
            print(f"error: {error}", file=sys.stderr)
        except KeyboardInterrupt:  # a second Ctrl-C, which waits for no token
            if not is_typed:
                raise
            print()
    if not (all_well or is_typed):
        raise SystemExit(2)


def messages(read: Callable[[str], str | None]) -> Iterator[tuple[str, bool]]:
    """What ``read`` gets after a prompt, a message at a time, and whether that is a command. A message between quotes can have
    several lines; the end of the input ends it, too."""
    while (line := read("> ")) is not None:
        text = line.strip()
        if not text.startswith(QUOTES):
            yield text, text.startswith("/")
            continue
        text = line.lstrip().removeprefix(QUOTES)
        try:
            while not text.rstrip().endswith(QUOTES) and (line := read(MORE)) is not None:
                text += f"\n{line}"
        except KeyboardInterrupt:  # which throws away what was typed of it
            if read is piped:
                raise
            print()
            continue
        yield text.rstrip().removesuffix(QUOTES).strip("\n"), False


def typed(prompt: str) -> str | None:
    """A line that is typed after a prompt. None at the end."""
    with suppress(ImportError):  # Windows has none
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
            print("\nCtrl-D or /quit ends.", file=sys.stderr)
        except UserError as error:  # bytes that are no text
            print(f"error: {error}", file=sys.stderr)


def piped(prompt: str) -> str | None:
    """A line of a pipe or file. None at the end."""
    line = text_of_input(sys.stdin.readline)
    return line.removeprefix("\ufeff").removesuffix("\n") if line else None  # Windows marks the beginning of a text so


def obey(chat: Chat, line: str) -> bool:
    """Do what a line that begins with / says. Returns whether that ends the conversation. Raises UserError for a command that
    there is not."""
    name, _, text = line.partition(" ")
    if name == "/system":
        chat.system = text.strip() or None
        tell(f"From now on the model is told {'this' if chat.system else 'what its template says'}.")
    elif name == "/reset":
        chat.reset()
        tell("The conversation begins anew.")
    elif name == "/help":
        print(HELP, file=sys.stderr)
    elif name != "/quit":
        said = f"{QUOTES}{shortened(line, 40)}{QUOTES}"
        raise UserError(f"there is no command {name}: /help shows them, and {said} is said to the model")
    return name == "/quit"


def answer(chat: Chat, line: str, is_typed: bool) -> None:
    """Print the model's answer while it comes. A first Ctrl-C stops it after the token that comes, and
    where nobody types, it ends the program."""
    stopped: list[str] = []
    with stop_on_signals(stopped.append):
        pieces = chat.say(line)
        if chat.forgotten:
            what = f"Forgotten from its beginning: {counted(chat.forgotten, 'turn')}."
            tell(f"The conversation outgrew {counted(chat.context, 'token')}. {what} /reset begins anew.")
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
        tell(f"This stops after {number}. Ask it to go on{more}.")


def tell(message: str) -> None:
    """Tell what is not the model's, on standard error."""
    print_line(f"({message})", sys.stderr)


def values_in(text: str) -> dict[str, Any]:
    """The ``type`` of the flag for values of a template: a JSON object whose names are not those of what the chat gives it."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}: write a JSON object, as in '{EXAMPLE}'") from None
    own = {"messages", "add_generation_prompt", "continue_final_message"}
    for function in (Chat, open_chat):
        own |= set(inspect.signature(function).parameters)
    if own := own & set(values):
        raise argparse.ArgumentTypeError(f"the chat itself says what {min(own)} is: leave it out")
    return values


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    description = "Talk to a pretrained model that was trained to talk. /help shows what can be typed besides."
    parser = Parser(prog="tinyformer chat", description=description)
    text = "a folder in Hugging Face's layout, a GGUF file, or a name on its hub"
    parser.add_argument("model", help=text, type=some_path, metavar="FOLDER_OR_NAME")
    parser.add_argument("--revision", help="a branch, tag or commit of that name", metavar="TEXT")
    of_weights = "dtype of the weights: fewer bits generate faster (default: as stored)"
    parser.add_argument("--dtype", help=of_weights, choices=DTYPES)
    parser.add_argument("--system", help="tell the model what it is (default: what its template says)", metavar="TEXT")
    said = f"the most tokens of an answer (default: as the model's own settings say, else {MAX_TOKENS})"
    parser.add_argument("--max-tokens", help=said, type=int, metavar="INT")
    given = f"values for the model's template, as a JSON object such as '{EXAMPLE}'"
    parser.add_argument("--chat-template-kwargs", help=given, type=values_in, default={}, metavar="JSON")
    add_settings(parser, Sampling, "choice of tokens", **CHOICE)
    parser.set_defaults(run=talk)
    return parser.parse_args(words)
