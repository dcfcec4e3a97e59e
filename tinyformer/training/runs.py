"""A run's folder: its settings, its log, its two checkpoints. Each file is replaced whole, so none is ever half-written.

``best.safetensors`` holds the weights with the lowest validation loss. ``latest.safetensors`` holds all that a run needs
to go on as if it had never stopped: weights, optimizer state, random states, and the log so far, in one file, so that
they always belong together. Both say which settings and which tokenizer they were trained with.

A run that is new is written to the folder's ``.tinyformer.new`` until its first checkpoint, or, where it replaces another,
until it has trained a step: a run that never got so far leaves nothing, and the one before it stays.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tinyformer.errors import UserError, shortened
from tinyformer.files import as_json, damaged, read_json, write_json
from tinyformer.old_names import with_new_names
from tinyformer.schema import read_dataclass
from tinyformer.settings import changed_settings, is_changeable
from tinyformer.training.checkpoints import load_checkpoint, put_weights
from tinyformer.training.lock import locked
from tinytensor.io import atomic_write, remove_stale
from tinytensor.nn import Module

LOG_COLUMNS = ("step", "learning_rate", "train_loss", "validation_loss", "gradient_norm", "seconds")

Settings = TypeVar("Settings")


class RunFolder:
    """The paths of a run, and how its files are written and read."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._new = self.path / ".tinyformer.new"  # written, but not yet to be kept
        self._complete = self.path / ".tinyformer.complete"  # to be kept, while the run before it is removed
        self._moving = self.path / ".tinyformer.moving"  # to be kept, on the way to its place
        self._use(self.path)
        self._settings: dict[str, Any] | None = None  # as JSON has them
        self._tokenizer_print: str | None = None
        self._parts: dict[str, type] = {}  # the dataclasses of the settings' parts
        self.replaces = False  # whether there is another run that this one is to replace
        self.changes = False  # whether a resumed run takes over settings that are not those it was trained with

    def _use(self, folder: Path) -> None:
        """The run's files are in this folder from now on."""
        self._inside = folder
        self.settings = folder / "config.json"
        self.tokenizer = folder / "tokenizer.json"
        self.best = folder / "best.safetensors"
        self.latest = folder / "latest.safetensors"
        self.log = folder / "log.csv"
        self.curve = folder / "loss.png"
        self.attention = folder / "attention.png"
        self.attention_heads = folder / "attention_heads.png"
        self.sample = folder / "sample.txt"

    def _files(self) -> list[Path]:
        """The files of a run, of those that are there."""
        checkpoints = [self.best, self.latest, *self.kept_weights()]
        pictures = [self.curve, self.attention, self.attention_heads]
        files = [self.settings, self.tokenizer, self.log, self.sample, *checkpoints, *pictures]
        return [file for file in files if file.exists()]

    def weights(self, step: int) -> Path:
        """Where the weights at a step are kept for averaging."""
        return self._inside / f"weights-{step:08d}.safetensors"

    def kept_weights(self) -> list[Path]:
        """The weights that are kept for averaging, oldest first."""
        return sorted(self._inside.glob("weights-*.safetensors"))

    # ----------------------------------------------------------------------------------------------------- one writer

    @contextmanager
    def held(self) -> Iterator[RunFolder]:
        """This folder, which no other process may hold meanwhile; made if it is not there, and gone again if nothing came into
        it. What a run that was killed left half-written is removed. Raises UserError that names the other process."""
        self._check_path()
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.path / ".lock"):
                self._tidy()
                try:
                    yield self
                finally:
                    self._drop_new()
        finally:
            with suppress(OSError):  # the first that is not empty ends it
                for folder in made:
                    folder.rmdir()

    def _check_path(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, not a folder: choose another --out")
        if self.path.is_symlink() and not self.path.exists():
            raise UserError(f"{self.path} is a link to {os.readlink(self.path)}, which does not exist: make that folder first")

    def _tidy(self) -> None:
        """Remove what a process that was killed could not remove."""
        remove_stale(self.path)
        self._finish_moving()
        self._drop_new()

    def _drop_new(self) -> None:
        shutil.rmtree(self._new, ignore_errors=True)
        self._use(self.path)

    # ----------------------------------------------------------------------------------------------------- a new run

    def create(self, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        """Begin a run with these settings, dataclasses or values for JSON by name. Raises UserError where a run is there
        already, unless ``overwrite``: then that run's files stay until ``move_into_place``."""
        self._check_path()
        self._drop_new()
        self.replaces = bool(self._files())
        if self.replaces and not overwrite:
            what = "--resume continues it, " if self.latest.exists() else ""
            raise UserError(f"{self.path} holds a run already: {what}--overwrite replaces it, --out starts another")
        self._new.mkdir(parents=True, exist_ok=True)
        self._use(self._new)
        self._settings, self._tokenizer_print = json.loads(as_json(settings)), None
        self._parts = {name: type(part) for name, part in settings.items() if dataclasses.is_dataclass(part)}
        write_json(self.settings, self._settings or {})

    def move_into_place(self) -> None:
        """Put the files of a new run in their places, and remove those of the run that was there before."""
        if self._inside == self._new:
            self._use(self.path)
            self._new.rename(self._complete)
            self._finish_moving()
            self.replaces = False

    def _finish_moving(self) -> None:
        """Do what is left to do of ``move_into_place``, at which a process may have been killed anywhere."""
        if self._complete.exists():
            for file in self._files():
                file.unlink()
            self._complete.rename(self._moving)
        if self._moving.exists():
            for file in list(self._moving.iterdir()):
                os.replace(file, self.path / file.name)
            self._moving.rmdir()

    # ------------------------------------------------------------------------------------------------- a run that is there

    def is_there(self) -> bool:
        """Whether there is a run, even one whose process was killed while it put its files in their places."""
        return any(path.exists() for path in (self.settings, self._complete, self._moving))

    def read_settings(self) -> dict[str, Any]:
        """What ``create`` wrote."""
        if self._settings is None:
            if self.is_there() and not self.settings.exists():
                raise UserError(
                    f"the files of the run in {self.path} are not all in their places, as the process that moved them there "
                    "was killed, or is at it now: --resume mends it"
                )
            with damaged(self.settings):
                self._settings = with_new_names(read_json(self.settings))
        return self._settings

    def read_part(self, name: str, kind: type[Settings]) -> Settings:
        """The dataclass that ``create`` wrote under this name. Raises UserError where there is none, or not of this kind."""
        settings = self.read_settings()
        with damaged(self.settings):
            if name not in settings:
                raise UserError(f"{name} is missing")
            self._parts[name] = kind
            return read_dataclass(kind, settings[name], name)

    def resumed(self, name: str, kind: type[Settings], given: Mapping[str, Any]) -> Settings:
        """A part of the settings of a run to be resumed, where ``given`` are the flags. Raises UserError for a flag that would
        change it, unless ``given["resume"]`` is "changed": then those that a run can change are."""
        part = self.read_part(name, kind)
        changed = changed_settings(kind, given, part)
        fixed = [field for field in changed if not is_changeable(kind, field)]
        flags = ", ".join("--" + field.replace("_", "-") for field in (fixed or changed))
        self.changes = given.get("resume") == "changed"
        if changed and not self.changes:
            raise UserError(
                f"--resume goes on with the settings of {self.path}: leave out {flags}, or start a new run"
                + ("" if fixed else ", or say --resume-changed")
            )
        if fixed:
            raise UserError(f"a run cannot change {flags} on its way: leave that out, or start a new run")
        part = dataclasses.replace(part, **{field: given[field] for field in changed})  # type: ignore[type-var]
        self.read_settings()[name] = json.loads(as_json({"part": part}))["part"]
        return part

    def identity(self, lasting: bool) -> dict[str, Any]:
        """What a checkpoint says of the run that it belongs to: all settings, or, if ``lasting``, those that no resumed run can
        change; and the SHA-256 of the tokenizer's file. Nothing, where a run has no settings."""
        if self._settings is None:
            return {}
        settings = {name: self._lasting(name, part) if lasting else part for name, part in self._settings.items()}
        self._tokenizer_print = self._tokenizer_print or _fingerprint(self.tokenizer)
        return {"settings": settings, "tokenizer": self._tokenizer_print}

    def _lasting(self, name: str, part: Any) -> Any:
        kind = self._parts.get(name)
        return part if kind is None else {key: value for key, value in part.items() if not is_changeable(kind, key)}

    def check_identity(self, state: Mapping[str, Any], path: Path) -> None:
        """Raises UserError where the settings or the tokenizer here are not those that a checkpoint's state names."""
        if state.get("settings") is None:  # from before there were such entries, or of no run
            return
        if not isinstance(state["settings"], Mapping):
            raise UserError(f"{path} is damaged: its settings are no object")
        for key, trained, found in _differences(state["settings"], self.read_settings()):
            can_change = self._can_change(key)
            if not (self.changes and can_change):
                raise UserError(
                    f"{self.settings} says {found} for {key}, but {path.name} was trained with {trained}: put that back"
                    + (", or take it over with --resume-changed" if can_change else "")
                )
        if state.get("tokenizer") != _fingerprint(self.tokenizer):
            raise UserError(f"{self.tokenizer} is not the tokenizer that {path.name} was trained with: put that one back")

    def _can_change(self, key: str) -> bool:
        part, _, name = key.partition(".")
        return part in self._parts and is_changeable(self._parts[part], name)

    def keep_changes(self) -> None:
        """Write the settings that ``resumed`` changed."""
        write_json(self.settings, self.read_settings())

    def write_log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the log as CSV: an empty cell where a row has no such number."""
        with atomic_write(self.log) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, LOG_COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _differences(trained: Any, found: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """What is not as it was, of what there was: its key, such as model.num_heads, what it was and what it is."""
    if isinstance(trained, Mapping) and isinstance(found, Mapping):
        for name, value in trained.items():
            yield from _differences(value, found.get(name), f"{key}.{name}" if key else name)
    elif type(trained) is not type(found) or trained != found:
        yield key, shortened(json.dumps(trained), 80), shortened(json.dumps(found), 80)


def _fingerprint(path: Path) -> str | None:
    """The SHA-256 of a file; None where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def load_weights(model: Module, path: Path) -> dict[str, Any]:
    """Put a checkpoint's weights into the model; its state is returned. Raises UserError where they do not fit, or where the
    settings or the tokenizer beside it are not those that it was trained with."""
    groups, state = load_checkpoint(path, "best" if path.name.startswith("best") else "latest")
    RunFolder(path.parent).check_identity(state, path)
    put_weights(model, groups.get("model", {}), path)
    return state
