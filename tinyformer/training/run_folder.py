"""A run's folder: settings, tokenizer, log and checkpoints.

``best.safetensors`` holds the weights with the lowest validation loss. ``latest.safetensors`` holds the weights, optimizer
state, random state and log. Together with config.json, tokenizer.json and the same data, it lets a run resume exactly. Both
checkpoints store the settings and tokenizer used in training. ``weights-STEP.safetensors`` holds weights of recent evaluations,
for averaging. ``snapshot-STEP.safetensors`` holds float16 weights along the run. Each file is replaced atomically. Only
TensorBoard logs, in the folder ``tensorboard``, are appended to.

A new run first writes to ``.tinyformer.new``. Its files move into place at the first checkpoint or, if they replace another
run, after the first step. A run that fails earlier leaves nothing behind, and the old run stays.
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
    """A run's folder: file paths, and methods that read and write the files.

    Someone else may have created the folder. Links, pipes and devices with the names of a run's files therefore raise
    UnsafeFileError, an OSError. ``path`` itself may be a link to the folder.
    """

    def __init__(self, path: str | Path, within: str | Path | None = None):
        """``within`` is a parent folder. Only the path to it may contain links."""
        self.path = Path(path)
        self._within = self.path if within is None else Path(within)
        self._new = self.path / UNFINISHED  # a new run's files before the first step
        self._complete = self.path / ".tinyformer.complete"  # same, while removing the files of the replaced run
        self._moving = self.path / ".tinyformer.moving"  # same, while moving them into place
        self._use(self.path)
        self.tensorboard = self.path / "tensorboard"  # used only once the run is in place
        self._settings: dict[str, Any] | None = None  # the content of config.json
        self._tokenizer_hash: str | None = None
        self._tokenizer_text: str | None = None  # rewritten if the file is removed
        self._parts: dict[str, type] = {}  # the dataclass of each settings section
        self.replaces = False  # True if this run will replace another one in the folder
        self.changes = False  # True if a resumed run may change settings

    def _use(self, folder: Path) -> None:
        """Point the paths of the run's files to this folder."""
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
        """Return the existing files of the run."""
        checkpoints = [self.best, self.latest, *self.kept_weights(), *self._inside.glob("snapshot-*.safetensors")]
        pictures = [self.curve, self.attention, self.attention_heads]
        files = [self.settings, self.tokenizer, self.log, self.sample, *checkpoints, *pictures, *self.event_files()]
        return [file for file in files if file.exists()]

    def is_in_place(self) -> bool:
        """Return True if the run's files are in place. Those of a new run are in place after ``move_into_place``."""
        return self._inside == self.path

    def event_files(self) -> list[Path]:
        """Return the paths of TensorBoard logs, oldest first."""
        return sorted(self.tensorboard.glob(EVENTS))

    def weights(self, step: int) -> Path:
        """Return the path of the weights saved at a step for averaging."""
        return self._inside / f"weights-{step:08d}.safetensors"

    def kept_weights(self) -> list[Path]:
        """Return the paths of all weights saved for averaging, oldest first."""
        return sorted(self._inside.glob("weights-*.safetensors"))

    def snapshot(self, step: int) -> Path:
        """Return the path of a step's snapshot."""
        return self._inside / f"snapshot-{step:08d}.safetensors"

    def snapshots(self) -> dict[int, Path]:
        """Return the snapshot paths by step."""
        numbers = {path.stem.removeprefix("snapshot-") for path in self._inside.glob("snapshot-*.safetensors")}
        steps = sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())
        return {step: path for step in steps if (path := self.snapshot(step)).exists()}

    # ----------------------------------------------------------------------------------------------------- one writer

    @contextmanager
    def held(self) -> Iterator[RunFolder]:
        """Context manager that locks this folder against other processes.

        Creates the folder if needed, and removes it at the end if empty. Removes half-written files of a killed run. Raises
        UserError, with the process, if another process has locked the folder.
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
        """Create the folder if needed. Return the folders that were created. Raises as ``check_folder`` does."""
        check_folder(self.path, self._within)
        return make_folder(self.path)

    def _clean_up(self) -> None:
        """Finish or remove the leftovers of a killed process."""
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
        """Start a new run. ``settings`` maps names to dataclasses or other JSON-serializable values.

        Raises UserError if the folder already holds a run, unless ``overwrite`` is True. In that case, the old files stay until
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
        """Raise UserError unless a run with these settings may replace the folder's content."""
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
        """Move a new run's files into place and remove those of the previous run."""
        if self._inside == self._new:
            self._use(self.path)
            self._new.rename(self._complete)
            self._finish_moving()
            self.replaces = False

    def _finish_moving(self) -> None:
        """Finish ``move_into_place``, even if a process was killed during it."""
        if self._complete.exists():
            for file in self._files():
                remove(file)
            with suppress(OSError):  # missing, or contains other files
                self.tensorboard.rmdir()
            self._complete.rename(self._moving)
        if self._moving.exists():
            for file in sorted(self._moving.iterdir()):
                file.replace(self.path / file.name)
            self._moving.rmdir()

    # ----------------------------------------------------------------------------------------------------- an existing run

    def is_there(self) -> bool:
        """Return True if the folder holds a run, even if its process was killed while moving files into place."""
        return any(path.exists() for path in (self.settings, self._complete, self._moving))

    def read_settings(self) -> dict[str, Any]:
        """Return the settings written by ``create``, with old names renamed. Raises UserError if missing or damaged."""
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
        """Return what created the run, and its type, or None if unknown. Raises UserError for a damaged record."""
        settings = self.read_settings()
        with damaged(self.settings):
            return maker_of(settings)

    def _check_missing(self) -> None:
        """Raise UserError for a folder without settings that was probably confused with another."""
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
            part = read_dataclass(kind, settings.get(name, {}), name)  # an older run may lack newer sections
        if not self.adds_to_another():
            check_settings_fit(part, (self.best, self.latest), self.settings)
        return part

    def adds_to_another(self) -> bool:
        """Return True if the run trained only an adapter of a pretrained model."""
        part = self.read_settings().get("lora")
        return isinstance(part, Mapping) and bool(part.get("lora_rank"))

    def as_found(self, path: str | None) -> str | None:
        """Resolve a path from the run's settings relative to the current working folder."""
        base = self.read_settings().get("started_in")
        if path is None or not isinstance(base, str):  # early versions do not record their working folder
            return path
        original = os.path.join(os.path.realpath(self.path), base, path)
        return os.path.normpath(original) if os.path.exists(original) else path

    def resumed(self, name: str, kind: type[Settings], flags: Mapping[str, Any]) -> Settings:
        """Return one settings section of a resumed run. ``flags`` are the parsed flags.

        Raises UserError for a flag that would change a setting. If ``flags["resume"]`` is "changed", flags may change the
        settings that are changeable.
        """
        part = self.read_part(name, kind)
        changed = changed_settings(kind, flags, part)
        fixed = [field for field in changed if not is_changeable(kind, field)]
        named = ", ".join(map(as_flag, fixed or changed))
        self.changes = flags.get("resume") == "changed"
        if changed and not self.changes:
            raise UserError(
                f"--resume keeps the settings of {self.path}: leave out {named}, or start a new run"
                + ("" if fixed else ", or pass --resume-changed")
            )
        if fixed:
            raise UserError(f"a resumed run cannot change {named}: leave that out, or start a new run")
        part = dataclasses.replace(part, **{field: flags[field] for field in changed})  # type: ignore[type-var]
        if changed:  # only these: an older run may lack new settings
            self.read_settings().setdefault(name, {}).update({field: flags[field] for field in changed})
        return part

    def identity(self, lasting: bool) -> dict[str, Any]:
        """Return what a checkpoint records about its run: the settings, without what created it, and the SHA-256 of the
        tokenizer file. Empty if the run has no settings.

        If ``lasting``, return only settings that a resumed run cannot change.
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
        """Raise UserError unless this folder's settings and tokenizer match those in a checkpoint's state."""
        if state.get("settings") is None:  # from an early version or no run
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
        """Raise UserError for a run without a latest checkpoint, such as one saved with ``save_run``."""
        if self.best.exists() and not self.latest.exists():
            raise UserError(
                f"{self.latest} does not exist: without it this run can be used, but not resumed: choose another folder"
            )

    def put_back(self) -> list[Path]:
        """Rewrite config.json and tokenizer.json if they were removed during the run, since checkpoints need them. Return the
        missing paths."""
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
        """Save settings changed by ``resumed`` to config.json."""
        write_json(self.settings, self.read_settings())


def _has_defaults(kind: type) -> bool:
    """Return True if all fields of a dataclass have defaults."""
    none = dataclasses.MISSING
    return all(field.default is not none or field.default_factory is not none for field in dataclasses.fields(kind))


def _sha256(path: Path) -> str | None:
    """Return a file's SHA-256, or None if it is missing."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def load_weights(model: Module, path: Path) -> dict[str, Any]:
    """Load a checkpoint's weights into the model and put it into evaluation mode (call ``model.train()`` to train further).
    Return the checkpoint's state. Raises UserError if the weights do not fit, or if its folder's settings or tokenizer have
    changed."""
    kind = path.name.split(".")[0].split("-")[0]
    groups, state = load_checkpoint(path, kind if kind in ("best", "snapshot") else "latest")
    RunFolder(path.parent).check_identity(state, path)
    check_class(model, state, path)
    put_weights(model, groups.get("model", {}), path)
    model.eval()
    return state
