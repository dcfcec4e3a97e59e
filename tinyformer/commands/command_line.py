"""Command lines of training scripts: settings as flags, run flags, and commands such as ``train`` and ``sample``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from tinyformer.common.errors import SettingError, UserError, escaped, plain_errors
from tinyformer.common.settings import as_flag, new_value, old_names, settings_from

# -------------------------------------------------------------------------------------------------------- settings


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help formatter that shows defaults, except for switches and empty lists. Never breaks a line inside a flag."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, [], {}) or action.nargs == 0 else super()._get_help_string(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = textwrap.wrap(" ".join(text.split()), width - len(indent), break_on_hyphens=False)
        return "\n".join(indent + line for line in lines)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose --help shows all defaults, and whose errors are one line (status 2).

    ``choice`` is the flag that determines which other flags exist, such as --architecture lstm. Errors put it before --help.
    """

    def __init__(self, choice: str = "", **options: Any):
        super().__init__(**{"formatter_class": _Help, "allow_abbrev": False, **options})
        self._choice = choice
        self._effects: list[tuple[tuple[str, ...], Callable[[argparse.Namespace], Any], str]] = []

    def has_no_effect(self, names: str | Sequence[str], when: Callable[[argparse.Namespace], Any], where: str) -> None:
        """Reject flags, given by their Python names, if ``when(arguments)`` is true. The message says ``where`` they have no
        effect, such as "with --model". For dataclass settings, see ``setting``."""
        self._effects.append(((names,) if isinstance(names, str) else tuple(names), when, where))

    def _check_effects(self, arguments: argparse.Namespace) -> None:
        for names, when, where in self._effects:
            if when(arguments):
                for name in names:
                    if getattr(arguments, name, self.get_default(name)) != self.get_default(name):
                        flags = [flag for action in self._actions if action.dest == name for flag in action.option_strings]
                        self.error(f"{[*flags, as_flag(name)][0]} has no effect {where}: leave it out")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does. If ``arguments.run`` is set, ``arguments.flags`` holds the names of the command's flags."""
        if "_ARGCOMPLETE" in os.environ and self.add_help and self._subparsers is None and type(self) is Parser:
            import argcomplete

            argcomplete.autocomplete(self)  # answers the shell and exits
        self._words = list(sys.argv[1:] if args is None else args)
        arguments, unknown = super().parse_known_args(args, namespace)
        if "run" in arguments and "flags" not in arguments:  # already set by a command's parser
            arguments.flags = [action.dest for action in self._actions if action.option_strings]
        if not unknown:
            self._check_effects(arguments)
        return arguments, unknown

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but ``refuse`` unknown arguments."""
        arguments, unknown = self.parse_known_args(args, namespace)
        return self.refuse(unknown) if unknown else arguments

    def refuse(self, words: Sequence[str]) -> Any:
        """Exit with an error for unknown arguments that suggests a similar flag."""
        word = next((word for word in words if word.startswith("-")), "").partition("=")[0]
        name, known = (
            word.lstrip("-").replace("_", "-"),
            [action for action in self._actions if action.help != argparse.SUPPRESS],
        )
        flags = {flag.lstrip("-"): flag for action in known for flag in action.option_strings}
        initials = [flag for flag in flags if "".join(part[:1] for part in flag.split("-")) == name]  # lr: learning-rate
        begun = [flag for flag in flags if name and flag.startswith(name)]
        alike = begun if len(begun) == 1 else get_close_matches(name, flags, 1, 0.75)
        near = initials if len(name) > 1 and initials else alike
        hint = f": did you mean {' or '.join([flags[flag] for flag in near])}?" if near else ""
        if word and not near and not word.startswith("--") and any(not action.option_strings for action in known):
            line = shlex.join([*(word for word in self._words if word not in words), "--", *words])
            hint = f": write -- before what begins with -, as in {self.prog} {line}"
        self.error(f"unrecognized arguments: {' '.join(words)}{hint}")

    def error(self, message: str) -> Any:
        if match := re.fullmatch(r"argument (\S+): expected one argument", message):
            flag = next((word for word in self._words if word in match[1].split("/")), None)
            value = self._words[self._words.index(flag) + 1 :][:1] if flag else []
            if value and value[0] not in self._option_string_actions:  # and not missing
                message += f": write {flag}={shlex.quote(value[0])}, as it begins with -"
        self.exit(2, f"error: {escaped(message)} (see {' '.join(filter(None, (self.prog, self._choice)))} --help)\n")


def add_settings(parser: argparse.ArgumentParser, kind: type, title: str, **defaults: Any) -> None:
    """Add a flag to the parser for each ``setting`` of the dataclass ``kind``: d_model becomes --d-model.

    ``title`` is the heading of these flags in --help. The parsed arguments contain only flags on the command line.
    ``settings_from`` turns them into a dataclass. ``defaults`` are the script's defaults, shown in --help.
    """
    group = parser.add_argument_group(title)
    for field in dataclasses.fields(kind):
        if "help" not in field.metadata:
            continue
        default = defaults.get(field.name, field.default)
        type_of = type(default)
        options: dict[str, Any] = {"type": _reader(field.name, type_of), "metavar": type_of.__name__.upper()}
        if type_of is bool:
            options = {"action": argparse.BooleanOptionalAction}
        text = field.metadata["help"] + ("" if default == "" else f" (default: {default})")
        group.add_argument(as_flag(field.name), default=argparse.SUPPRESS, help=text, **options)
        for old in map(as_flag, old_names(field.name)):  # such as --d-inner for --d-ff
            group.add_argument(old, dest=field.name, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options)


def _reader(name: str, type_of: type) -> Callable[[str], Any]:
    """Return a function that converts a flag's text to the setting's value."""

    def read(text: str) -> Any:
        return new_value(name, type_of(text))

    read.__name__ = type_of.__name__  # used in argparse messages
    return read


def as_flags(settings: Mapping[str, Any]) -> str:
    """Format settings as flags: --d-model 64 --norm-first.

    >>> from tinyformer import as_flags
    >>> as_flags({"d_model": 64, "norm_first": True})
    '--d-model 64 --norm-first'
    """
    return " ".join(_as_flag(name, value) for name, value in settings.items())


def _as_flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return as_flag(name) if value else as_flag(f"no_{name}")
    return f"{as_flag(name)} {value}"


# -------------------------------------------------------------------------------------------------------- data and runs


def first_choice(words: Sequence[str], name: str, part: str, kind: type, out: str) -> str:
    """Return a setting that determines which other flags exist, by reading it from ``words`` before all others.

    Its value comes from its flag, else from the config.json of the run that the words resume (setting ``name`` of the section
    ``part``, a dataclass ``kind``), else from the default. ``out`` is the default run folder.
    """
    from tinyformer.training.run_folder import RunFolder  # parsing a command line must not load tinytensor

    parser = Parser(add_help=False)
    add_run_flags(parser, out)
    for flag in ("--data", "--source", as_flag(name)):
        parser.add_argument(flag)
    arguments, _ = parser.parse_known_args(words)
    choice = vars(arguments)[name]
    folder = RunFolder(_run_of(arguments, out))
    if choice is None and arguments.resume and folder.settings.exists():
        with suppress(UserError):  # reported when all settings of the run are read
            return str(getattr(folder.read_part(part, kind), name))
    return str(getattr(settings_from(kind, {} if choice is None else {name: choice}), name))


def some_path(text: str) -> str:
    """Parse a path. Rejects an empty path, the result of an unset shell variable."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty")
    return text


def add_code_flag(parser: argparse.ArgumentParser) -> None:
    """Add --code to the parser, for runs with the user's model classes. ``run_command`` runs the file."""
    parser.add_argument("--code", help="Python file that defines your model class", type=some_path, metavar="FILE.py")


def run_code(path: str) -> None:
    """Run a file that defines model classes, so that their runs can be loaded. Raises UserError if the file fails."""
    from tinyformer.common.files import read_file  # parsing a command line must not load tinytensor

    module = sys.modules[path] = ModuleType(path)
    try:
        exec(compile(read_file(Path(path), None), path, "exec"), vars(module))
    except Exception as error:  # the user's code may raise any exception
        raise UserError(f"--code {path}: {type(error).__name__}: {error}") from error


def some_text(text: str) -> str:
    """Parse a name. Rejects an empty name."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def add_text_flag(parser: argparse.ArgumentParser, group: argparse._MutuallyExclusiveGroup | None = None) -> None:
    """Add --data (a corpus) and --field (one field of its records) to the parser. ``group`` holds flags that exclude --data."""
    text = "a UTF-8 text file or a folder of them (default: Tiny Shakespeare, downloaded once)"
    (group or parser).add_argument("--data", help=text, metavar="PATH", type=some_path)
    text = "use only this key or column (name or number) of .jsonl, .json, .csv or .tsv data"
    parser.add_argument("--field", help=text, metavar="NAME", type=some_text)


def add_model_flag(parser: argparse.ArgumentParser) -> None:
    """Add --model to the parser, to use a pretrained model instead of a run."""
    text = "pretrained model to use instead: a folder or a name on the Hugging Face hub"
    parser.add_argument("--model", help=text, type=some_path, metavar="FOLDER_OR_NAME")


def add_pair_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag to the parser for each path of ``PairFiles``."""
    files = parser.add_argument_group("data")
    text = "sentence, tab, translation on each line; or .jsonl, .json, .csv (or .gz)"
    files.add_argument("--data", help=text, type=some_path, metavar="FILE")
    for part in ("", "validation-", "test-"):
        default = " (default: pairs held out from training)" if part else ""
        for side in ("source", "target"):
            text = f"{part.replace('-', ' ')}{side} sentences{default}"
            files.add_argument(f"--{part}{side}", help=text, type=some_path, metavar="FILE")


def add_run_flags(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --out, --resume, --resume-changed, --overwrite and --tensorboard to the parser.

    ``default`` describes the default folder in --help. ``arguments.resume`` is False, True, or "changed".
    """
    parser.add_argument("--out", help=f"run folder (default: {default})", type=some_path, metavar="FOLDER")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--resume", help="resume the run in --out", action="store_true")
    choice.add_argument(
        "--resume-changed",
        help="resume with changed training settings (from the command line or config.json)",
        action="store_const",
        const="changed",
        dest="resume",
        default=False,
    )
    choice.add_argument("--overwrite", help="overwrite the run in --out after the first training step", action="store_true")
    parser.add_argument(
        "--tensorboard", help="also log losses, samples, attention and weights for TensorBoard", action="store_true"
    )


def add_run_settings(
    parser: argparse.ArgumentParser, out: str, defaults: Mapping[str, Mapping[str, Any]] | None = None, **kinds: type
) -> None:
    """Call ``add_run_flags``, then ``add_settings`` for each dataclass, with its keyword as the title. ``defaults`` maps titles
    to the script's defaults."""
    add_run_flags(parser, f"{out}; with --data, {out}-NAME, after the data")
    for title, kind in kinds.items():
        add_settings(parser, kind, title, **(defaults or {}).get(title, {}))


def folder_for(out: str, data: str | None) -> str:
    """Return the default run folder: ``out``, followed by the name of the user's data, if any."""
    if data is None:
        return out
    name = re.sub(r"(\.(txt|tsv|csv|jsonl|ndjson|json|gz))+$", "", Path(data).resolve().name)
    name = re.sub(r"[^\w.-]+", "_", name)
    return f"{out}-{name or 'data'}"


def _run_of(arguments: argparse.Namespace, out: str) -> str:
    """Return the folder in --out, or the default for the data."""
    data = getattr(arguments, "data", None) or getattr(arguments, "source", None)
    return arguments.out or folder_for(out, data)


# -------------------------------------------------------------------------------------------------------- commands


class Commands:
    """The command line of a script that trains a model and uses it.

    The first command is ``train``, which is also the default. ``out`` is the default run folder. If ``kind`` is set (see
    ``Maker``), runs of other types are rejected.

    ::

        commands = Commands("my_script.py", "Train a model, and sample from it.", "runs/my_script")
        training = commands.add(train, help="train", description="Train a model.")
        add_run_settings(training, commands.out, model=GPTConfig, training=TrainingConfig)
        sampling = commands.add_use(sample, help="write with a trained model", description="Write.")
        run_command(commands.parse)
    """

    def __init__(self, script: str, description: str, out: str, kind: str = ""):
        self.out = out
        self._kind = kind
        self._parser = Parser(prog=script, description=description)
        self._commands: argparse._SubParsersAction[Parser] = self._parser.add_subparsers(
            dest="command", metavar="COMMAND", required=True
        )

    def add(
        self, run: Callable[[argparse.Namespace], None], help: str, description: str, choice: str = "", shown: str = ""
    ) -> Parser:
        """Add a command named after the function ``run`` (in --help: ``shown``). Return its parser. For ``choice``, see
        ``Parser``. ``help`` describes the command, such as "generate text"."""
        prog = f"{self._parser.prog} {shown or run.__name__}"
        command = self._commands.add_parser(run.__name__, help=help, description=description, choice=choice, prog=prog)
        command.set_defaults(run=run)
        first = next(iter(self._commands.choices.values()))
        if command is not first:  # the script's --help is the first command's and lists the others
            first.epilog = f"{first.epilog or ''} To {help}, see `{command.prog} --help`.".lstrip()
        return command

    def add_use(self, use: Callable[[argparse.Namespace], None], help: str, description: str, run: bool = False) -> Parser:
        """Add a command that uses a trained model, with the flag --out. If ``run`` is True, the folder may also be the first
        argument, as in ``sample runs/char_gpt``."""
        command = self.add(use, help, description)
        command.set_defaults(uses_run=True)
        where = f"run folder (default: {'newest in runs' if self._kind else self.out})"
        add_code_flag(command)
        if run:
            command.add_argument("run_folder", help=where, nargs="?", type=some_path, metavar="RUN")
            command.has_no_effect("out", lambda arguments: arguments.run_folder, "where the run's folder comes first")
        command.add_argument("--out", help=argparse.SUPPRESS if run else where, type=some_path, metavar="FOLDER")
        return command

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments. Run the command with ``arguments.run(arguments)``. Without --out, ``folder_for`` names the
        folder after the data, and commands that use a run take the newest of its type."""
        arguments = parse_command(self._parser, self._commands.choices, words)
        uses_run = self._kind and getattr(arguments, "uses_run", False) and not getattr(arguments, "model", None)
        arguments.out = getattr(arguments, "run_folder", None) or arguments.out
        if uses_run and not arguments.out:
            from tinyformer.common.makers import newest_run

            arguments.out = newest_run([self._kind])
        arguments.out = str(_run_of(arguments, self.out))
        if uses_run or (self._kind and getattr(arguments, "resume", False)):
            from tinyformer.common.makers import check_kind

            check_kind(self._kind, arguments.out)
        return arguments


def parse_command(parser: argparse.ArgumentParser, commands: Mapping[str, Parser], words: Sequence[str]) -> argparse.Namespace:
    """Parse words that start with one of the parser's ``commands``, or else belong to ``train``."""
    words = words if words and words[0] in commands else ["train", *words]
    arguments, unknown = parser.parse_known_args(words)
    if unknown:  # the command's --help lists the available flags
        commands[words[0]].refuse(unknown)
    return arguments


def next_command(out: str, default: str, *words: str) -> str:
    """Return a command of this script for the run in ``out``, to paste into a shell. Omits the ``default`` folder."""
    return shlex.join(["python", sys.argv[0], *words, *([] if out == default else ["--out", out])])


def run_command(parse: Callable[[list[str]], argparse.Namespace], words: list[str] | None = None) -> None:
    """Run the script's command. Errors are printed as in ``plain_errors``, with flags instead of setting names. ``words`` is
    the command line (default: the script's arguments).

    Under mpiexec, rank 0 runs the command, and all ranks share the training.
    """

    from tinytensor import distributed  # parsing a command line must not load tinytensor

    def main() -> None:
        arguments = None
        try:
            arguments = parse(sys.argv[1:] if words is None else words)
            if code := getattr(arguments, "code", None):
                run_code(code)
            arguments.run(arguments)
        except SettingError as error:  # while parsing flags, every setting is a flag
            flags = {name: as_flag(name) for name in error.names if arguments is None or name in arguments.flags}
            raise error.renamed(flags) from None

    with plain_errors():
        try:
            distributed.lead(main)
        except distributed.RankError as error:
            raise UserError(str(error)) from None
