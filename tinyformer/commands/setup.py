"""The steps around training: start or resume a run, stop early, and plot the losses."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from tinyformer import plots
from tinyformer.common.errors import UserError, stop_script
from tinyformer.common.makers import RECORD, Maker, tinyformer_command
from tinyformer.common.settings import check_effects, settings_from
from tinyformer.data.reading import TextSource, fingerprint, open_text
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.tensorboard import TensorBoardLogger
from tinyformer.training.trainer import Trainer
from tinytensor.common.wording import counted

if TYPE_CHECKING:
    from tinyformer.tokenizers import Tokenizer

Settings = TypeVar("Settings")


class RunSetup:
    """The settings, data and tokenizer of a run, either new or loaded from a resumed run's folder.

    ::

        setup = RunSetup(folder, arguments, {"model": GPTConfig, "training": TrainingConfig})
        config = setup.settings(TrainingConfig)
        text, source = setup.text(arguments.data)
        tokenizer = setup.tokenizer(lambda: CharTokenizer.train(text))
        model = GPT(setup.settings(GPTConfig, vocab_size=tokenizer.vocab_size))
        trainer = Trainer(model, TextBatches(...), config, folder)
        setup.begin(trainer, tokenizer)
    """

    def __init__(
        self, folder: RunFolder, arguments: argparse.Namespace, kinds: Mapping[str, type], made_by: Maker | None = None
    ):
        """Read the settings of a resumed run.

        ``arguments`` are the parsed flags, including those from ``add_run_flags``. ``kinds`` maps names in config.json to
        settings dataclasses. ``made_by`` is stored in a new run's config.json.

        Raises UserError for a flag that would change a resumed run's setting, unless --resume-changed allows it. Also raises it
        if --tensorboard needs a package that is not installed.
        """
        self.folder = folder
        self.is_resumed = bool(arguments.resume)
        self._arguments = arguments
        self._names = {kind: name for name, kind in kinds.items()}
        record = {} if made_by is None else {RECORD: made_by}
        self._parts: dict[str, Any] = {**record, **dict.fromkeys(kinds)}  # the contents of config.json, in this order
        if self.is_resumed:
            folder.check_resumable()
            self._parts = {name: folder.resumed(name, kind, vars(arguments)) for name, kind in kinds.items()}
        shown = arguments.tensorboard or (self.is_resumed and folder.event_files())
        self._tensorboard = TensorBoardLogger() if shown else None

    def settings(self, kind: type[Settings], defaults: Mapping[str, Any] | None = None, **found: Any) -> Settings:
        """Return the settings of type ``kind``. A new run takes them from the flags, then from ``defaults``.

        ``found`` are settings determined by the data, such as ``vocab_size``. Raises UserError if a resumed run's tokenizer and
        model have different vocabulary sizes. Raises SettingError for a flag that has no effect with the other settings.
        """
        name = self._names[kind]
        if not self.is_resumed:
            self._parts[name] = settings_from(kind, {**(defaults or {}), **vars(self._arguments)}, **found)
        part: Settings = self._parts[name]
        check_effects(part, vars(self._arguments))
        for field, value in found.items():
            if field.endswith("vocab_size") and getattr(part, field) != value:
                raise UserError(
                    f"{self.folder.tokenizer} has {counted(value, 'token')}, but the model has {getattr(part, field)}"
                )
        return part

    def text(self, path: str | None, field: str | None = None, conversations: bool = False) -> tuple[str, TextSource]:
        """Return the text at ``path`` (or one ``field`` of its records) and its source. See ``open_text``.

        The default is Tiny Shakespeare, or a resumed run's text. Raises UserError if a resumed run was trained on another text.
        """
        if self.is_resumed:
            source = self.folder.read_part("data", TextSource)
            return source.read_again(self.folder.path, path or self.folder.as_found(source.path), field), source
        text, source = open_text(path, field=field, conversations=conversations)
        self._parts |= {"data": source, "started_in": self._here()}
        return text, source

    def files(self, kind: type[Settings]) -> Settings:
        """Return the files set by flags as a dataclass of paths. If no flags are set, return a resumed run's files."""
        files = settings_from(kind, vars(self._arguments))
        if self.is_resumed:
            if files != kind():
                return files
            files = self.folder.read_part("files", kind)
            paths = {name: self.folder.as_found(path) for name, path in vars(files).items()}
            return dataclasses.replace(files, **paths)  # type: ignore[type-var]
        self._parts |= {"files": files, "started_in": self._here()}
        return files

    def _here(self) -> str:
        """Return the working folder, which the user's paths are relative to, relative to the run's folder."""
        try:
            return os.path.relpath(os.path.realpath("."), os.path.realpath(self.folder.path))
        except ValueError:  # they are on different drives
            return os.path.realpath(".")

    def check_data(self, what: str, data: object) -> None:
        """Raise UserError if a resumed run was trained on other data. ``what`` is a plural noun for the message."""
        sha256 = fingerprint(repr(data))
        if not self.is_resumed:
            self._parts["sha256"] = sha256
        elif sha256 != self.folder.read_settings().get("sha256"):
            raise UserError(f"{what} are not the ones {self.folder.path} was trained on: start a new run")

    def tokenizer(self, train: Callable[[], Tokenizer]) -> Tokenizer:
        """Return the resumed run's tokenizer, or call ``train`` for a new one."""
        from tinyformer.tokenizers import load_tokenizer  # loads slowly, and not every script needs it

        return load_tokenizer(self.folder.tokenizer) if self.is_resumed else train()

    def begin(self, trainer: Trainer, tokenizer: Tokenizer | None = None, sample: Callable[[], str] | None = None) -> None:
        """Save the new run's settings and tokenizer to its folder, or resume from the latest checkpoint.

        With --tensorboard, the trainer gets a TensorBoardLogger that logs the result of ``sample``. Raises UserError if the
        folder already holds a run (unless resumed or overwritten), or if the checkpoint does not fit.
        """
        if self._tensorboard is not None:
            self._tensorboard.sample = sample
            trainer.loggers.append(self._tensorboard)
            package = "" if find_spec("tensorboard") else " (after pip install tensorboard)"
            print(f"Watch it: tensorboard --logdir {shlex.quote(str(self.folder.path))}{package}")
        if self.is_resumed:
            trainer.resume()
            return
        self.folder.create(self._parts, self._arguments.overwrite)
        if tokenizer is not None:
            tokenizer.save(self.folder.tokenizer)


def train_to_end(trainer: Trainer, command: str) -> None:
    """Train to the last step. If training is stopped, print that ``command --resume`` resumes it, and exit with a nonzero
    status (``stop_script``)."""
    if not trainer.train():
        stop_script(str(trainer.stopped_by), trainer.stop_message(command))


def tell_next(use: str, maker: Maker, trainer: Trainer) -> None:
    """Print the next commands for a finished run: ``use`` it (as in "Write more"), look inside, train longer."""
    folder = trainer.folder.path
    rows = {
        use: maker.use_command(folder),
        "Look inside": tinyformer_command("explore", str(folder)),
        "Train longer": f"{maker.train_command(folder)} --resume-changed --steps {2 * trainer.config.steps}",
    }
    print()
    for title, command in rows.items():
        print(f"{title + ':':14s}{command}")


def draw_losses(trainer: Trainer, title: str, dropout: float) -> None:
    """Plot the run's losses to its folder, or print that matplotlib is missing."""
    with plots.if_possible():
        plots.loss_curve(trainer.rows, trainer.folder.curve, title=title, note=plots.note_on_losses(dropout))
        print(f"Drew {trainer.folder.curve}")
