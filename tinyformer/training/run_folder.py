"""The folder of a run: its settings, its tokenizer, its log and its checkpoints.

``best.safetensors`` holds the weights with the lowest validation loss. ``latest.safetensors`` holds the weights, the state of
the optimizer, the random states and the log: with config.json, tokenizer.json and the same data, a run resumes exactly. Both
checkpoints store the settings and the tokenizer that they were trained with. To average weights, ``weights-STEP.safetensors``
hold those of the last evaluations. ``snapshot-STEP.safetensors`` are weights along the run in float16. Each file is replaced in
one step, so none is ever half-written. Only TensorBoard's logs, in the folder ``tensorboard``, are appended to.

The files of a new run are first written to ``.tinyformer.new``. They move into place at the first checkpoint or, if they
replace another run, after the first step. So a run that fails earlier leaves nothing behind, and the other run stays.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tinyformer.common.errors import UserError
from tinyformer.common.files import as_json, damaged, read_json, write_json
from tinyformer.common.makers import PRETRAINED, RECORD, Maker, contents_of, maker_of, resume_command, runs_below
from tinyformer.common.memory import check_settings_fit
from tinyformer.common.settings import as_flag, changed_settings, differences, is_changeable, read_dataclass, with_new_names
from tinyformer.training.checkpoints import UNFINISHED, check_class, load_checkpoint, put_weights
from tinyformer.training.safety import EVENTS, check_folder, locked, remove_stale
from tinytensor.device.disk import make_folder, remove, write_text
from tinytensor.nn import Module

Settings = TypeVar("Settings")


class RunFolder:
    """The folder of a run: the paths of its files, and methods that write and read them.

    Somebody else may have made the folder, so links, pipes and devices with the names of a run's files raise UnsafeFileError,
    an OSError. ``path`` itself may be a link to the folder.
    """

    def __init__(self, path: str | Path, within: str | Path | None = None):
        """``within``: a folder around this one. Only the path to that folder may lead through links."""
        self.path = Path(path)
        self._within = self.path if within is None else Path(within)
        self._new = self.path / UNFINISHED  # the files of a new run, before its first step
        self._complete = self.path / ".tinyformer.complete"  # the same, while the files of the run that it replaces are removed
        self._moving = self.path / ".tinyformer.moving"  # the same, while they are moved into place
        self._use(self.path)
        self.tensorboard = self.path / "tensorboard"  # written to only when the run is in place
        self._settings: dict[str, Any] | None = None  # the content of config.json
        self._tokenizer_hash: str | None = None
        self._tokenizer_text: str | None = None  # what is written again if the file is removed
        self._parts: dict[str, type] = {}  # the dataclass of each part of the settings
        self.replaces = False  # whether this run is about to replace another one in the folder
        self.changes = False  # whether a resumed run may change settings that it was trained with

    def _use(self, folder: Path) -> None:
        """Set the paths of the run's files to be in this folder."""
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
        """Return the files of the run that exist."""
        checkpoints = [self.best, self.latest, *self.kept_weights(), *self._inside.glob("snapshot-*.safetensors")]
        pictures = [self.curve, self.attention, self.attention_heads]
        files = [self.settings, self.tokenizer, self.log, self.sample, *checkpoints, *pictures, *self.event_files()]
        return [file for file in files if file.exists()]

    def is_in_place(self) -> bool:
        """Return whether the run's files are in place, as those of a new run are after ``move_into_place``."""
        return self._inside == self.path

    def event_files(self) -> list[Path]:
        """Return the paths of TensorBoard's logs, oldest first."""
        return sorted(self.tensorboard.glob(EVENTS))

    def weights(self, step: int) -> Path:
        """Return the path of the weights at a step, saved for averaging."""
        return self._inside / f"weights-{step:08d}.safetensors"

    def kept_weights(self) -> list[Path]:
        """Return the paths of the weights saved for averaging, oldest first."""
        return sorted(self._inside.glob("weights-*.safetensors"))

    def snapshot(self, step: int) -> Path:
        """Return the path of the snapshot at a step."""
        return self._inside / f"snapshot-{step:08d}.safetensors"

    def snapshots(self) -> dict[int, Path]:
        """Return the paths of the saved snapshots by step."""
        numbers = {path.stem.removeprefix("snapshot-") for path in self._inside.glob("snapshot-*.safetensors")}
        steps = sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())
        return {step: path for step in steps if (path := self.snapshot(step)).exists()}

    # ----------------------------------------------------------------------------------------------------- one writer

    @contextmanager
    def held(self) -> Iterator[RunFolder]:
        """A context that locks this folder against other processes.

        The folder is made if it does not exist, and removed at the end if it is empty. Half-written files of a killed run are
        removed. Raises UserError, which names the process, if another process holds the folder.
        """
        made = self.make()
        try:
            with locked(self.path / ".lock"):
                self._clean_up()
                try:
                    yield self
                finally:
                    with suppress(OSError):  # the next run removes leftovers
                        self._drop_new()
        finally:
            with suppress(OSError):  # stop at the first folder that is not empty
                for folder in made:
                    folder.rmdir()

    def make(self) -> list[Path]:
        """Make the folder if necessary, and return the folders that were made. Raises as ``check_folder``."""
        check_folder(self.path, self._within)
        return make_folder(self.path)

    def _clean_up(self) -> None:
        """Finish or remove what a killed process left unfinished."""
        remove_stale(self.path)
        self._finish_moving()
        self._drop_new()

    def _drop_new(self) -> None:
        self._use(self.path)
        with suppress(FileNotFoundError):
            for file in sorted(self._new.iterdir()):
                remove(file)
            self._new.rmdir()

    # ----------------------------------------------------------------------------------------------------- a new run

    def create(self, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        """Begin a new run. ``settings`` maps names to dataclasses or other values that JSON can hold.

        Raises UserError if the folder holds a run already, unless ``overwrite``: then the old run's files stay until
        ``move_into_place``.
        """
        check_folder(self.path, self._within)
        self._drop_new()
        self.replaces = bool(self._files())
        if self.replaces:
            self._check_replacing(settings, overwrite)
        make_folder(self._new)
        self._use(self._new)
        self._settings, self._tokenizer_hash, self._tokenizer_text = json.loads(as_json(settings)), None, None
        self._parts = {name: type(part) for name, part in settings.items() if dataclasses.is_dataclass(part)}
        write_json(self.settings, self._settings or {})

    def _check_replacing(self, settings: Mapping[str, Any], overwrite: bool) -> None:
        """Raise UserError unless a run with these settings may replace what is in the folder."""
        contents = contents_of(self.path)
        if contents is not None and contents.kind == PRETRAINED:
            raise UserError(f"{self.path} holds {contents.what}, which no run may replace: choose another folder")
        if overwrite:
            return
        maker = maker_of(json.loads(as_json(settings)))
        is_other = contents is not None and (maker is None or contents.what != maker.what)
        what = contents.what if contents is not None and is_other else "a run"
        how = "--resume continues it, " if self.latest.exists() and not is_other else ""
        raise UserError(f"{self.path} holds {what} already: {how}--overwrite replaces it, --out starts another")

    def move_into_place(self) -> None:
        """Move the files of a new run into place, and remove those of the previous run."""
        if self._inside == self._new:
            self._use(self.path)
            self._new.rename(self._complete)
            self._finish_moving()
            self.replaces = False

    def _finish_moving(self) -> None:
        """Finish ``move_into_place``, even after a process was killed in the middle of it."""
        if self._complete.exists():
            for file in self._files():
                remove(file)
            with suppress(OSError):  # missing, or with other files in it
                self.tensorboard.rmdir()
            self._complete.rename(self._moving)
        if self._moving.exists():
            for file in sorted(self._moving.iterdir()):
                file.replace(self.path / file.name)
            self._moving.rmdir()

    # ------------------------------------------------------------------------------------------------- a run that is there

    def is_there(self) -> bool:
        """Return whether the folder holds a run, even one whose process was killed while moving files into place."""
        return any(path.exists() for path in (self.settings, self._complete, self._moving))

    def read_settings(self) -> dict[str, Any]:
        """Return the settings that ``create`` wrote, with new names for old ones. Raises UserError if missing or damaged."""
        if self._settings is None:
            if self.is_there() and not self.settings.exists():
                part = self._complete if self._complete.exists() else self._moving
                raise UserError(
                    f"some files of the run in {self.path} are not in place yet: the process that moves them was killed, or is "
                    f"still at work. What moves the rest: {resume_command(self.path, part)}"
                )
            if not self.settings.exists():
                self._check_missing()
            settings = read_json(self.settings)
            with damaged(self.settings):
                self._settings = with_new_names(settings)
        return self._settings

    def maker(self) -> Maker | None:
        """Return what made the run and its kind, or None if unknown. Raises UserError for a damaged record."""
        settings = self.read_settings()
        with damaged(self.settings):
            return maker_of(settings)

    def _check_missing(self) -> None:
        """Raise UserError for a folder that has no settings, but was probably confused with another."""
        contents, below = contents_of(self.path), runs_below(self.path)
        if contents is not None:
            raise contents.refusal(self.path, "a run")
        if below:
            raise UserError(f"{self.path} holds no run itself, but folders of runs: {', '.join(map(str, below))}")
        if not os.path.lexists(self.path):
            raise UserError(f"{self.path} does not exist: train first, or name the folder of another run")

    def read_part(self, name: str, kind: type[Settings]) -> Settings:
        """Return the dataclass that ``create`` wrote under this name. Raises UserError if it is missing or damaged."""
        settings = self.read_settings()
        if name not in settings and (self.maker() is None or not _has_defaults(kind)):
            raise UserError(f"{self.settings} is damaged, or of another program: {name} is missing")
        with damaged(self.settings):
            self._parts[name] = kind
            part = read_dataclass(kind, settings.get(name, {}), name)  # an older run may lack newer parts
        if not self.adds_to_another():
            check_settings_fit(part, (self.best, self.latest), self.settings)
        return part

    def adds_to_another(self) -> bool:
        """Return whether the run trained only an adapter of a pretrained model."""
        part = self.read_settings().get("lora")
        return isinstance(part, Mapping) and bool(part.get("lora_rank"))

    def as_found(self, path: str | None) -> str | None:
        """Return a path that the run was given, as seen from the present working folder."""
        base = self.read_settings().get("started_in")
        if path is None or not isinstance(base, str):  # runs of early versions do not say where they began
            return path
        original = os.path.join(os.path.realpath(self.path), base, path)
        return os.path.normpath(original) if os.path.exists(original) else path

    def resumed(self, name: str, kind: type[Settings], flags: Mapping[str, Any]) -> Settings:
        """Return one part of the settings of a resumed run. ``flags`` are the parsed flags.

        Raises UserError for a flag that would change a setting. With "changed" for ``flags["resume"]``, flags may change the
        settings that are changeable.
        """
        part = self.read_part(name, kind)
        changed = changed_settings(kind, flags, part)
        fixed = [field for field in changed if not is_changeable(kind, field)]
        named = ", ".join(map(as_flag, fixed or changed))
        self.changes = flags.get("resume") == "changed"
        if changed and not self.changes:
            raise UserError(
                f"--resume goes on with the settings of {self.path}: leave out {named}, or start a new run"
                + ("" if fixed else ", or pass --resume-changed")
            )
        if fixed:
            raise UserError(f"a resumed run cannot change {named}: leave that out, or start a new run")
        part = dataclasses.replace(part, **{field: flags[field] for field in changed})  # type: ignore[type-var]
        if changed:  # only these, as an older run may lack new settings
            self.read_settings().setdefault(name, {}).update({field: flags[field] for field in changed})
        return part

    def identity(self, lasting: bool) -> dict[str, Any]:
        """Return what a checkpoint stores about its run: the settings, without what made it, and the SHA-256 of the tokenizer's
        file. Empty if the run has no settings.

        With ``lasting``, only the settings that a resumed run cannot change.
        """
        if self._settings is None:
            return {}
        parts = {name: part for name, part in self._settings.items() if name != RECORD}
        settings = {name: self._lasting(name, part) if lasting else part for name, part in parts.items()}
        self._tokenizer_hash = self._tokenizer_hash or _sha256(self.tokenizer)
        return {"settings": settings, "tokenizer": self._tokenizer_hash}

    def _lasting(self, name: str, part: Any) -> Any:
        kind = self._parts.get(name)
        return part if kind is None else {key: value for key, value in part.items() if not is_changeable(kind, key)}

    def check_identity(self, state: Mapping[str, Any], path: Path) -> None:
        """Raise UserError unless this folder has the settings and the tokenizer that a checkpoint's state stores."""
        if state.get("settings") is None:  # it is of an early version, or of no run
            return
        if not isinstance(state["settings"], Mapping):
            raise UserError(f"{path} is damaged: its settings are not an object")
        for key, trained, current in differences(state["settings"], self.read_settings()):
            can_change = self._can_change(key)
            if not (self.changes and can_change):
                raise UserError(
                    f"{self.settings} says {current} for {key}, but {path.name} was trained with {trained}: put that back"
                    + (", or keep the change with --resume-changed" if can_change else "")
                )
        if state.get("tokenizer") != _sha256(self.tokenizer):
            raise UserError(f"{self.tokenizer} is not the tokenizer that {path.name} was trained with: put that one back")

    def _can_change(self, key: str) -> bool:
        part, _, name = key.partition(".")
        return part in self._parts and is_changeable(self._parts[part], name)

    def check_resumable(self) -> None:
        """Raise UserError for a run without a latest checkpoint, such as one of ``save_run``."""
        if self.best.exists() and not self.latest.exists():
            raise UserError(
                f"{self.latest} does not exist: without it this run can be used, but not resumed: choose another folder"
            )

    def put_back(self) -> list[Path]:
        """Write config.json and tokenizer.json again if they were removed since the run began: checkpoints need them. Returns
        the paths that were missing."""
        if self._settings is None or not self._inside.is_dir():
            return []
        if self._tokenizer_text is None and self.tokenizer.is_file():
            self._tokenizer_text = self.tokenizer.read_bytes().decode("utf-8")
        missing = []
        if not self.settings.exists():
            missing.append(self.settings)
            write_json(self.settings, self._settings)
        if self._tokenizer_text is not None and not self.tokenizer.exists():
            missing.append(self.tokenizer)
            write_text(self.tokenizer, self._tokenizer_text)
        return missing

    def keep_changes(self) -> None:
        """Write the settings that ``resumed`` changed to config.json."""
        write_json(self.settings, self.read_settings())


def _has_defaults(kind: type) -> bool:
    """Return whether every field of a dataclass has a default."""
    none = dataclasses.MISSING
    return all(field.default is not none or field.default_factory is not none for field in dataclasses.fields(kind))


def _sha256(path: Path) -> str | None:
    """Return the SHA-256 of a file, or None if it is missing."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def load_weights(model: Module, path: Path) -> dict[str, Any]:
    """Put the weights of a checkpoint into the model and set it to evaluation mode (``model.train()`` trains it further).
    Returns the checkpoint's state. Raises UserError if the weights do not fit, or if its folder has other settings or another
    tokenizer than it was trained with."""
    kind = path.name.split(".")[0].split("-")[0]
    groups, state = load_checkpoint(path, kind if kind in ("best", "snapshot") else "latest")
    RunFolder(path.parent).check_identity(state, path)
    check_class(model, state, path)
    put_weights(model, groups.get("model", {}), path)
    model.eval()
    return state
