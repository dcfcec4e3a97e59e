"""A run's folder: its settings, its log, its two checkpoints. Each file is replaced whole, so none is ever half-written.

``best.safetensors`` holds the weights with the lowest validation loss. ``latest.safetensors`` holds all that a run needs
to go on as if it had never stopped: weights, optimizer state, random states, and the log so far, in one file, so that
they always belong together.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyformer.command_line import Settings, changed_settings, damaged, read_json, settings_from, write_json
from tinyformer.errors import UserError
from tinytensor import FileError, Tensor, save
from tinytensor.io import atomic_write, load_with_metadata
from tinytensor.nn import Module

LOG_COLUMNS = ("step", "learning_rate", "train_loss", "validation_loss", "gradient_norm", "seconds")


class RunFolder:
    """The paths of a run, and how its files are written and read."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.settings = self.path / "config.json"
        self.tokenizer = self.path / "tokenizer.json"
        self.best = self.path / "best.safetensors"
        self.latest = self.path / "latest.safetensors"
        self.log = self.path / "log.csv"
        self.curve = self.path / "loss.png"
        self.attention = self.path / "attention.png"
        self.attention_heads = self.path / "attention_heads.png"
        self.sample = self.path / "sample.txt"

    def weights(self, step: int) -> Path:
        """Where the weights at a step are kept for averaging."""
        return self.path / f"weights-{step:08d}.safetensors"

    def kept_weights(self) -> list[Path]:
        """The weights that are kept for averaging, oldest first."""
        return sorted(self.path.glob("weights-*.safetensors"))

    def create(self, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        """Make the folder and write the settings, dataclasses or values for JSON by name. Raises UserError where a run is
        there already, unless ``overwrite``, which removes that run's files first."""
        mine = [self.settings, self.tokenizer, self.best, self.latest, self.log, self.curve, self.attention, self.sample]
        mine += [self.attention_heads, *self.kept_weights()]
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, not a folder: choose another --out")
        if any(file.exists() for file in mine) and not overwrite:
            raise UserError(
                f"{self.path} holds a run already: --resume continues it, --overwrite replaces it, --out starts another"
            )
        for file in mine:
            file.unlink(missing_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.settings, settings)

    def read_settings(self) -> dict[str, Any]:
        """What ``create`` wrote."""
        return read_json(self.settings)

    def read_part(self, name: str, kind: type[Settings]) -> Settings:
        """The dataclass that ``create`` wrote under this name. Raises UserError where there is none."""
        settings = self.read_settings()
        with damaged(self.settings):
            return settings_from(kind, settings[name])

    def refuse_changes(self, given: Mapping[str, Any], *parts: Any) -> None:
        """A resumed run is the same run: raises UserError for flags in ``given`` that are not what these parts of its
        settings, dataclasses, say."""
        changed = [flag for part in parts for flag in changed_settings(type(part), given, part)]
        if changed:
            raise UserError(
                f"--resume goes on with the settings of {self.path}: leave out {', '.join(changed)}, or start a new run"
            )

    def write_log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the log as CSV: an empty cell where a row has no such number."""
        with atomic_write(self.log) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, LOG_COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def save_checkpoint(path: Path, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write named groups of tensors and a JSON ``state`` to one file. Raises UserError, and leaves the file that was
    there, where there is no space or no permission."""
    tensors = {f"{group}/{name}": tensor for group, members in groups.items() for name, tensor in members.items()}
    try:
        save(tensors, path, {"state": json.dumps(state)})
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"the checkpoint {path} could not be written ({reason}); the one before it is as it was") from None


def load_checkpoint(path: Path, kind: str) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """What ``save_checkpoint`` wrote. Raises UserError where the file is missing, damaged or not a checkpoint of ``kind``
    (a value that its state holds)."""
    try:
        tensors, metadata = load_with_metadata(path)
        state = json.loads(metadata["state"])
    except FileError as error:
        raise UserError(str(error)) from None
    except (KeyError, ValueError):
        raise UserError(f"{path} is not a checkpoint of tinyformer: it holds tensors, but no training state") from None
    if not isinstance(state, dict) or state.get("kind") != kind:
        raise UserError(f"{path} is not a checkpoint of the kind {kind!r}")
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, member = name.partition("/")
        groups.setdefault(group, {})[member] = tensor
    return groups, state


def load_weights(model: Module, path: Path) -> dict[str, Any]:
    """Put a checkpoint's weights into the model; its state is returned. Raises UserError where they do not fit."""
    groups, state = load_checkpoint(path, "best" if path.name.startswith("best") else "latest")
    try:
        model.load_state_dict(groups.get("model", {}))
    except ValueError as error:
        raise UserError(f"{path} does not fit the model in {path.parent}: {error}") from None
    return state
