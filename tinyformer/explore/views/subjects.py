"""What is explored: models of runs and of pretrained folders, each with what reads and writes its texts."""

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

LONGEST = 2048  # tokens that a model reads in one pass, which nobody can interrupt
MOST_OPENED = 128 * 2**20  # bytes of the weights of snapshots that are kept in memory; the newest one stays in any case
AT_ONCE = 256  # tokens that a language model reads before others get their turns


class Subject(Opened):
    """A model that can be explored, and the tokens around its texts."""

    def encode(self, text: str, source: bool = False) -> list[int]:
        """The ids of a text, with those around it; with ``source``, of a text that an encoder-decoder reads. Raises UserError
        for a text that the model cannot read."""
        if source:
            return self._translator().encode(text)
        if self.translator is not None:
            if self.translator.task.lowercase:  # as all that it was trained on, but for the names of special tokens
                cut = cut_at_special(text, self.tokenizer.special)
                text = "".join(part if special is not None else part.lower() for part, special in cut)
            encode = getattr(self.tokenizer, "encode_target", self.tokenizer.encode)
            return [*self.start, *map(int, encode(text, allow_special=True))]
        ids = self.tokenizer.encode(text, allow_special=True)
        return [*self.before, *map(int, ids), *self.after] or list(self.start)

    def texts(self, ids: Iterable[int], source: bool = False) -> list[str]:
        """The text of each id, as ``token_texts`` gives it; with ``source``, of those that an encoder-decoder reads."""
        return token_texts(self.tokenizer, ids, source)

    def check(self, ids: Sequence[int], source: Sequence[int] = ()) -> None:
        """Raise UserError unless the model knows these ids, and reads the ``source`` if, and only if, it has an encoder.
        Also for more ids than an encoder-decoder has positions, or any model but a language model reads in one pass."""
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
        """The places of tokens that stand for no text: those around each text, starts, ends, padding. A mask stands for one."""
        config, named = self.model.config, getattr(self.tokenizer, "special", {})
        pads = [getattr(config, name, None) for name in ("pad", "source_pad", "target_pad")]
        starts = self.start if self.kind == "translation" else ()  # a GPT may begin with a new line
        special = {*named.values(), *self.before, *self.after, *starts, *self.ends, *pads} - {self.mask}
        return [place for place, i in enumerate(ids) if i in special]

    def decoder(self, max_tokens: int, source: Sequence[int] = ()) -> Decoder:
        """A new decoder for one text of this model, of up to ``max_tokens``. An encoder-decoder translates ``source``."""
        if self.kind == "translation":
            return translation_decoder(self.model, [list(source)], max_tokens)
        if self.kind != "language":
            what = "it fills in masks" if self.kind == "masked" else "it predicts no tokens"
            raise UserError(f"this model does not write: {what}")
        return language_decoder(self.model, max_tokens=max_tokens)

    def room(self, ids: Sequence[int], length: int) -> int:
        """How many tokens may be written after ``ids``, at most ``length``. Raises UserError if an encoder-decoder's target is
        as long as it can be."""
        if self.kind != "translation" or self.longest is None:
            return length
        room = self.longest - (len(ids) - 1)  # as in Translator.search, where the start token takes no room
        if room < 1:
            raise UserError(f"the translation has {counted(len(ids), 'token')}, and this model writes only shorter ones")
        return min(length, room)

    @property
    def num_tokens(self) -> int:
        """How many tokens the model can write: its outputs, of which some may belong to no token."""
        config = self.model.config
        return int(config.target_vocab_size if self.kind == "translation" else config.vocab_size)

    def facts(self) -> dict[str, Any]:
        """What the page says about the model: its class, its size and its settings."""
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
    """A model by its name: how to load it, its files of weights and the others; and what was loaded with their ``stamp``."""

    load: Callable[[], Subject]
    weights: Callable[[], list[Path]]
    others: Sequence[Path] = ()
    run: Path | None = None  # the folder, if it is a run's; then the weights are one checkpoint
    loaded: tuple[Stamp, Subject] | None = field(default=None, repr=False)
    state: tuple[Stamp, Mapping[str, Any]] | None = field(default=None, repr=False)

    def stamp(self, files: Iterable[Path] | None = None) -> Stamp:
        """What differs once one of the files was replaced, by default any. Raises UserError for a file that is gone."""
        found = []
        for file in [*self.weights(), *self.others] if files is None else files:
            try:
                about = file.stat()
            except OSError as error:
                raise UserError(f"{file} cannot be read: {error.strerror}") from None
            found.append((file.name, about.st_ino, about.st_size, about.st_mtime_ns))
        return tuple(found)


class Subjects:
    """The models of some folders, by name. Each is loaded when it is first asked for, and again when its files have changed, as
    those of a run that is still training do.

    Whoever uses a model holds the ``lock``: what is recorded inside a model belongs to one question at a time. Long work calls
    ``lock.let_others`` now and then, or takes the lock with ``for_long``. Raises UserError for a folder whose models cannot be
    explored.
    """

    def __init__(self, folders: Sequence[str | Path]):
        self.lock = free_in_forks(Turns())
        self._line = free_in_forks(Turns())
        self.folders = [_as_text(folder) for folder in folders]
        self._paths = list(map(Path, folders))
        self._entries: dict[str, _Entry] = {}
        self._runs: dict[str, Path] = {}  # the folders of runs, by what stands before the names of their models
        # Those that were asked for, the one asked for last at the end.
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
        """A context with the ``lock`` for work that may be long and cannot be cut, such as a pass over a whole text. Those who
        take it so stand in a line of their own, and only the first of them waits for the lock: short work passes the others."""
        with self._line, self.lock:
            yield

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name) or self._snapshot(name)
        if entry is None:
            raise UserError(f"there is no model {shortened(name, 40)!r}: there are {', '.join(self._entries)}")
        return entry

    def _snapshot(self, name: str) -> _Entry | None:
        """The snapshot that is called so, such as "step 38", whether its file is there or not."""
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
        """Let go of snapshots that were not asked for the longest."""
        opened = [entry for entry in self._snapshots.values() if entry.loaded is not None]
        sizes = [4 * num_weights(entry.loaded[1].model) for entry in opened if entry.loaded is not None]
        while len(opened) > 1 and sum(sizes) > MOST_OPENED:
            opened.pop(0).loaded = None
            sizes.pop(0)

    def snapshots(self, name: str) -> dict[int, str]:
        """The names of the snapshots of the run that a model is of, by step; none for a pretrained model."""
        run = self._entry(name).run
        before = next((before for before, path in self._runs.items() if path == run), "")
        return {} if run is None else {step: f"{before}step {step}" for step in RunFolder(run).snapshots()}

    @property
    def names(self) -> list[str]:
        """The names of the models: best and latest of a run, after the folder's name if there are several folders."""
        return list(self._entries)

    def get(self, name: str) -> Subject:
        """The model of this name. Raises UserError if there is none, and if its files cannot be read."""
        entry = self._entry(name)
        with self.lock:
            stamp = entry.stamp()
            if entry.loaded is None or entry.loaded[0] != stamp:
                entry.loaded = None  # the old weights need not stay in memory beside the new ones
                entry.loaded = stamp, entry.load()
                self._make_room()
            return entry.loaded[1]

    def folder(self, name: str) -> RunFolder | None:
        """The folder of the run that a model is of; None for a pretrained one."""
        run = self._entry(name).run
        return None if run is None else RunFolder(run)

    def stamp(self, name: str) -> Stamp:
        """What differs once a file of a model was replaced: for each the name, two numbers and when it was written.
        Raises UserError for a file that is gone."""
        return self._entry(name).stamp()

    def written(self, name: str) -> float:
        """When a model's weights were written, in seconds since 1970. Raises UserError for a file that is gone."""
        entry = self._entry(name)
        return max(time for *_, time in entry.stamp(entry.weights())) / 1e9

    def state(self, name: str) -> Mapping[str, Any]:
        """What a run's checkpoint says of itself; nothing for a pretrained model. Raises UserError for a damaged file."""
        entry = self._entry(name)
        if entry.run is None:
            return {}
        stamp = entry.stamp(entry.weights())
        if entry.state is None or entry.state[0] != stamp:
            entry.state = stamp, read_state(*entry.weights())
        return entry.state[1]

    def log(self, name: str) -> tuple[Sequence[Any], bool]:
        """The rows of the log of a model's run, none where they cannot be read; and whether their training losses are means of
        the steps since the row before. They are those of the latest checkpoint, which a Trainer writes, or of the best of a run
        that a script has saved, whose training losses are those of single steps."""
        own = [other for other, entry in self._entries.items() if entry.run == self._entry(name).run]
        for kind in ("latest", "best"):
            for checkpoint in own:
                with suppress(UserError):
                    if checkpoint.endswith(kind) and isinstance(rows := self.state(checkpoint).get("rows"), list):
                        return rows, kind == "latest"
        return [], False

    def beside(self) -> list[str]:
        """The other runs in the folders where these are, the newest first: they could be explored, too."""
        places = {Path(folder).parent for folder in self._paths}
        known = {path.resolve() for path in self._paths}
        return [_as_text(run) for place in places for run in newest_runs(place, KINDS) if run.resolve() not in known]

    def decoder(self, subject: Subject, max_tokens: int, source: Sequence[int] = ()) -> Decoder:
        """A new decoder as ``Subject.decoder`` makes it. While a language model reads a long text, others have their turns. The
        caller holds the lock, also when it uses the decoder."""
        decoder = subject.decoder(max_tokens, source)
        return _InParts(decoder, self.lock, subject.longest) if subject.kind == "language" else decoder


class _InParts:
    """A decoder that reads long texts in parts, and lets others have their turns in between."""

    def __init__(self, decoder: Decoder, lock: Turns, longest: int | None):
        self.decoder = decoder
        self.lock = lock
        self.longest = longest
        self._has_read = False

    def next_logits(self, new: Any) -> Any:
        """The logits (batch, vocab_size) after the new ids (batch, count)."""
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
        """Go on with these rows of the batch."""
        self.decoder.select(rows)


def _as_text(folder: str | Path) -> str:
    """A folder's name as text that JSON can hold: bytes of it that are no UTF-8 are shown as such as ``\\xff``."""
    return os.fsencode(folder).decode(errors="backslashreplace")


def _entries_of(path: Path) -> Mapping[str, _Entry]:
    folder = RunFolder(path)
    is_elsewhere = gguf_at(path) is not None or model_folder(path) != path
    if is_elsewhere or "model_type" in folder.read_settings():  # as in Hugging Face's files
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
    folder = RunFolder(path)  # a new one, as another run may have taken the place of the first
    return Subject(**vars(open_run(folder, file, "explored")))
