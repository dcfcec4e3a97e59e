"""The explored models, from runs and pretrained folders, each with its tokenizer."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.makers import newest_runs
from tinyformer.data.batches import check_ids
from tinyformer.decoding.generation import Decoder, batch_of_ids, language_decoder, translation_decoder
from tinyformer.explore.serving.turns import Turns
from tinyformer.models.bert import BertHead
from tinyformer.models.quantizing import num_weights
from tinyformer.pretrained.folders import gguf_at, model_folder, weight_files
from tinyformer.tokenizers.special import cut_at_special, mask_name
from tinyformer.tokenizers.texts import token_texts
from tinyformer.training.checkpoints import read_state
from tinyformer.training.opening import KINDS, Opened, kind_of, open_pretrained, open_run
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.translation import Translator
from tinytensor.common.wording import counted
from tinytensor.device.forks import free_in_forks

LONGEST = 2048  # maximum tokens per pass, which cannot be interrupted
MOST_OPENED = 128 * 2**20  # bytes of snapshot weights in memory; the newest snapshot always stays
AT_ONCE = 256  # tokens that a language model reads before others get a turn


class Subject(Opened):
    """A model to explore, and the tokens around its sequences."""

    def encode(self, text: str, source: bool = False) -> list[int]:
        """Return the ids of a text, including those around it. If ``source`` is set, the text is an encoder-decoder's source.
        Raises UserError for a text that the model cannot read."""
        if source:
            return self._translator().encode(text)
        if self.translator is not None:
            if self.translator.task.lowercase:  # like its training data, except special-token names
                cut = cut_at_special(text, self.tokenizer.special)
                text = "".join(part if special is not None else part.lower() for part, special in cut)
            encode = getattr(self.tokenizer, "encode_target", self.tokenizer.encode)
            return [*self.start, *map(int, encode(text, allow_special=True))]
        ids = self.tokenizer.encode(text, allow_special=True)
        return [*self.before, *map(int, ids), *self.after] or list(self.start)

    def texts(self, ids: Iterable[int], source: bool = False) -> list[str]:
        """Return the text of each id from ``token_texts``. If ``source`` is set, ids belong to an encoder-decoder's source."""
        return token_texts(self.tokenizer, ids, source)

    def check(self, ids: Sequence[int], source: Sequence[int] = ()) -> None:
        """Raise UserError unless the model knows these ids, and has an encoder if and only if ``source`` is passed. Also raises
        it if they exceed an encoder-decoder's positions or (except in a language model) the limit of one pass."""
        if bool(source) != (self.kind == "translation"):
            raise UserError("source must be the ids of a sentence to translate" if not source else "this model has no source")
        check_ids(batch_of_ids([list(ids)], "ids"), self.num_tokens)
        longest, count, config = LONGEST, max(len(ids), len(source)), self.model.config
        if source and getattr(config, "positions", None) == "learned":
            longest = min(longest, config.max_length)
        if self.kind != "language" and count > longest:
            raise UserError(f"the model reads at most {counted(longest, 'token')} at once, not {count}: shorten the text")
        if source:
            check_ids(batch_of_ids([list(source)], "sources"), config.source_vocab_size)

    def special_places(self, ids: Sequence[int]) -> list[int]:
        """Return the positions of tokens without text: those around a sequence, starts, ends, padding. Masks do not count."""
        config, named = self.model.config, getattr(self.tokenizer, "special", {})
        pads = [getattr(config, name, None) for name in ("pad", "source_pad", "target_pad")]
        starts = self.start if self.kind == "translation" else ()  # a GPT may start with a newline
        special = {*named.values(), *self.before, *self.after, *starts, *self.ends, *pads} - {self.mask}
        return [place for place, i in enumerate(ids) if i in special]

    def decoder(self, max_tokens: int, source: Sequence[int] = ()) -> Decoder:
        """Return a new decoder for one sequence of up to ``max_tokens``. An encoder-decoder translates ``source``."""
        if self.kind == "translation":
            return translation_decoder(self.model, [list(source)], max_tokens)
        if self.kind != "language":
            what = "it fills in masks" if self.kind == "masked" else "it predicts no tokens"
            raise UserError(f"this model does not write: {what}")
        return language_decoder(self.model, max_tokens=max_tokens)

    def room(self, ids: Sequence[int], length: int) -> int:
        """Return how many tokens may be generated after ``ids``, at most ``length``. Raises UserError if an encoder-decoder's
        target has reached its maximum length."""
        if self.kind != "translation" or self.longest is None:
            return length
        room = self.longest - (len(ids) - 1)  # as in Translator.search, the start token takes no room
        if room < 1:
            raise UserError(f"the translation has {counted(len(ids), 'token')}, and this model writes only shorter ones")
        return min(length, room)

    @property
    def num_tokens(self) -> int:
        """The number of model outputs. Some may have no token."""
        config = self.model.config
        return int(config.target_vocab_size if self.kind == "translation" else config.vocab_size)

    def facts(self) -> dict[str, Any]:
        """The page's description of the model: class, size and settings."""
        settings = {
            name: value for name, value in vars(self.model.config).items() if isinstance(value, (int, float, str, bool))
        }
        return {
            "kind": self.kind,
            "class": type(self.model).__name__,
            "parameters": num_weights(self.model),
            "settings": settings,
            "longest": self.longest,
            "start": list(self.start),
            "ends": list(self.ends),
            "mask": self.mask,
            "mask_name": mask_name(getattr(self.tokenizer, "special", ())),
            "sentences": self.sentences is not None,
            "labels": list(self.model.labels) if isinstance(self.model, BertHead) else None,
        }

    def _translator(self) -> Translator:
        if self.translator is None:
            raise UserError("this model has no source")
        return self.translator


Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass
class _Entry:
    """A model by name: how to load it, its weight files and other files, and what was loaded, with its ``stamp``."""

    load: Callable[[], Subject]
    weights: Callable[[], list[Path]]
    others: Sequence[Path] = ()
    run: Path | None = None  # folder if it is a run; the weights are then one checkpoint
    loaded: tuple[Stamp, Subject] | None = field(default=None, repr=False)
    state: tuple[Stamp, Mapping[str, Any]] | None = field(default=None, repr=False)

    def stamp(self, files: Iterable[Path] | None = None) -> Stamp:
        """Return a value that changes when one of the files (default: any) is replaced. Raises UserError for a missing file."""
        found = []
        for file in [*self.weights(), *self.others] if files is None else files:
            try:
                about = file.stat()
            except OSError as error:
                raise UserError(f"{file} cannot be read: {error.strerror}") from None
            found.append((file.name, about.st_ino, about.st_size, about.st_mtime_ns))
        return tuple(found)


class Subjects:
    """The models in some folders, by name. Each is loaded on first use, and reloaded when its files change, as in a run that is
    still training.

    Hold the ``lock`` while using a model, since recorded values belong to one question at a time. Long work calls
    ``lock.let_others`` from time to time, or takes the lock with ``for_long``. Raises UserError for a folder whose models
    cannot be explored.
    """

    def __init__(self, folders: Sequence[str | Path]):
        self.lock = free_in_forks(Turns())
        self._line = free_in_forks(Turns())
        self.folders = [_as_text(folder) for folder in folders]
        self._paths = list(map(Path, folders))
        self._entries: dict[str, _Entry] = {}
        self._runs: dict[str, Path] = {}  # run folders, by the prefix of their models' names
        # Loaded models, most recently used last.
        self._snapshots: OrderedDict[str, _Entry] = OrderedDict()
        seen: set[Path] = set()
        for path, folder in zip(map(Path, folders), self.folders):
            if path.resolve() in seen:
                raise UserError(f"{folder} is given twice")
            seen.add(path.resolve())
            before = "" if len(self.folders) == 1 else f"{folder}: "
            for name, entry in _entries_of(path).items():
                self._entries[before + name] = entry
                if entry.run is not None:
                    self._runs[before] = entry.run

    @contextmanager
    def for_long(self) -> Iterator[None]:
        """Context manager with the ``lock`` for work that may be long and cannot be split, such as a pass over a complete text.
        Such work queues separately, and only the first in that queue waits for the lock. Short work goes first."""
        with self._line, self.lock:
            yield

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name) or self._snapshot(name)
        if entry is None:
            raise UserError(f"there is no model {shortened(name, 40)!r}: there are {', '.join(self._entries)}")
        return entry

    def _snapshot(self, name: str) -> _Entry | None:
        """Return the snapshot of this name, such as "step 38", whether or not its file exists."""
        found = re.fullmatch(r"(.*)step (0|[1-9][0-9]{0,15})", name, re.DOTALL)
        run = self._runs.get(found[1]) if found else None
        if found is None or run is None:
            return None
        with self.lock:
            if name not in self._snapshots:
                folder = RunFolder(run)
                file = folder.snapshot(int(found[2]))
                others = [folder.settings, folder.tokenizer]
                self._snapshots[name] = _Entry(partial(_load_checkpoint, run, file), lambda: [file], others, run)
            self._snapshots.move_to_end(name)
            return self._snapshots[name]

    def _make_room(self) -> None:
        """Drop the least recently used snapshots."""
        opened = [entry for entry in self._snapshots.values() if entry.loaded is not None]
        sizes = [4 * num_weights(entry.loaded[1].model) for entry in opened if entry.loaded is not None]
        while len(opened) > 1 and sum(sizes) > MOST_OPENED:
            opened.pop(0).loaded = None
            sizes.pop(0)

    def snapshots(self, name: str) -> dict[int, str]:
        """Return the snapshot names of a model's run, by step; empty for a pretrained model."""
        run = self._entry(name).run
        before = next((before for before, path in self._runs.items() if path == run), "")
        return {} if run is None else {step: f"{before}step {step}" for step in RunFolder(run).snapshots()}

    @property
    def names(self) -> list[str]:
        """Return the model names: best and latest of a run, with the folder's name as prefix if there are several folders."""
        return list(self._entries)

    def get(self, name: str) -> Subject:
        """Return the model of this name. Raises UserError if there is none or its files are unreadable."""
        entry = self._entry(name)
        with self.lock:
            stamp = entry.stamp()
            if entry.loaded is None or entry.loaded[0] != stamp:
                entry.loaded = None  # frees the old weights before loading new ones
                entry.loaded = stamp, entry.load()
                self._make_room()
            return entry.loaded[1]

    def folder(self, name: str) -> RunFolder | None:
        """Return the folder of a model's run, or None for a pretrained model."""
        run = self._entry(name).run
        return None if run is None else RunFolder(run)

    def stamp(self, name: str) -> Stamp:
        """Return a value that changes when a model's file is replaced: for each file, its name, two numbers and its
        modification time. Raises UserError for a missing file."""
        return self._entry(name).stamp()

    def written(self, name: str) -> float:
        """Return when a model's weights were written, in seconds since 1970. Raises UserError for a missing file."""
        entry = self._entry(name)
        return max(time for *_, time in entry.stamp(entry.weights())) / 1e9

    def state(self, name: str) -> Mapping[str, Any]:
        """Return the state of a run's checkpoint; empty for a pretrained model. Raises UserError for a damaged file."""
        entry = self._entry(name)
        if entry.run is None:
            return {}
        stamp = entry.stamp(entry.weights())
        if entry.state is None or entry.state[0] != stamp:
            entry.state = stamp, read_state(*entry.weights())
        return entry.state[1]

    def log(self, name: str) -> tuple[Sequence[Any], bool]:
        """Return the log rows of a model's run (empty if unreadable), and whether their training losses are means since the
        previous row. Rows come from the latest checkpoint, written by a Trainer, or else from the best checkpoint of a run
        saved by a script, whose training losses are from single steps."""
        own = [other for other, entry in self._entries.items() if entry.run == self._entry(name).run]
        for kind in ("latest", "best"):
            for checkpoint in own:
                with suppress(UserError):
                    if checkpoint.endswith(kind) and isinstance(rows := self.state(checkpoint).get("rows"), list):
                        return rows, kind == "latest"
        return [], False

    def beside(self) -> list[str]:
        """Return other runs in the parent folders that could be explored, newest first."""
        places = {Path(folder).parent for folder in self._paths}
        known = {path.resolve() for path in self._paths}
        return [_as_text(run) for place in places for run in newest_runs(place, KINDS) if run.resolve() not in known]

    def decoder(self, subject: Subject, max_tokens: int, source: Sequence[int] = ()) -> Decoder:
        """Return a new decoder from ``Subject.decoder``. While a language model reads a long text, others get turns. The caller
        must hold the lock, also while using the decoder."""
        decoder = subject.decoder(max_tokens, source)
        return _InParts(decoder, self.lock, subject.longest) if subject.kind == "language" else decoder


class _InParts:
    """A decoder that reads long texts in chunks, and lets others have turns in between."""

    def __init__(self, decoder: Decoder, lock: Turns, longest: int | None):
        self.decoder = decoder
        self.lock = lock
        self.longest = longest
        self._has_read = False

    def next_logits(self, new: Any) -> Any:
        """Return the logits (batch, vocab_size) after the new ids (batch, count)."""
        if not self._has_read:
            new = batch_of_ids(new, "prompts")
            if self.longest is not None:
                new = new[:, -self.longest :]  # a GPT reads no others anyway
            self._has_read = True
        while new.shape[1] > AT_ONCE:
            self.decoder.next_logits(new[:, :AT_ONCE])
            self.lock.let_others()
            new = new[:, AT_ONCE:]
        return self.decoder.next_logits(new)

    def select(self, rows: Any) -> None:
        """Keep these rows of the batch."""
        self.decoder.select(rows)


def _as_text(folder: str | Path) -> str:
    """Return a folder's name as text for JSON. Bytes that are not UTF-8 become escapes such as ``\\xff``."""
    return os.fsencode(folder).decode(errors="backslashreplace")


def _entries_of(path: Path) -> Mapping[str, _Entry]:
    folder = RunFolder(path)
    is_elsewhere = gguf_at(path) is not None or model_folder(path) != path
    if is_elsewhere or "model_type" in folder.read_settings():  # as in Hugging Face files
        base = model_folder(path)
        others = [base / "config.json"] if gguf_at(base) is None else []
        return {"pretrained": _Entry(lambda: Subject(**vars(open_pretrained(path))), partial(_weights_in, path), others)}
    kind_of(folder, "explored")
    checkpoints = {file.stem: file for file in (folder.best, folder.latest) if file.exists()}
    if not checkpoints:
        raise UserError(f"{path} has the settings of a run, but no checkpoint: start that run again")
    others = [folder.settings, folder.tokenizer]
    return {
        name: _Entry(partial(_load_checkpoint, path, file), partial(list, (file,)), others, path)
        for name, file in checkpoints.items()
    }


def _weights_in(path: Path) -> list[Path]:
    base = model_folder(path)
    return [*weight_files(base), *(weight_files(path) if base != path else [])]


def _load_checkpoint(path: Path, file: Path) -> Subject:
    folder = RunFolder(path)  # reopened, since another run may have replaced the first
    return Subject(**vars(open_run(folder, file, "explored")))
