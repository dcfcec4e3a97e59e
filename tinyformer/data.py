"""Text: where it comes from, and how it is cut into batches."""

from __future__ import annotations

import hashlib
import http.client
import os
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import tinytensor as tt
from tinyformer.errors import UserError
from tinytensor import Tensor
from tinytensor.backend import Array, from_numpy, host, xp
from tinytensor.io import atomic_write

TINY_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
STANDARD_LIBRARY = "Python's standard library"


# ---------------------------------------------------------------------------------------------------------- sources


def read_text(path: str | Path) -> str:
    """A UTF-8 file's text, or that of all files in a folder, in the order of their names, hidden ones left out.

    Raises UserError for what is missing, empty, or not UTF-8, naming the file.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(
            p for p in path.rglob("*") if p.is_file() and not any(q.startswith(".") for q in p.relative_to(path).parts)
        )
        if not files:
            raise UserError(f"the folder {path} has no files: pass a text file, or a folder of them")
        text = "\n".join(_read_file(file) for file in files)
    elif path.exists():
        text = _read_file(path)
    else:
        raise UserError(f"{path} does not exist: pass --data a text file or a folder of them")
    if not text.strip():
        raise UserError(f"{path} is empty: pass --data a text to learn from")
    return text


def _read_file(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8").replace("\r\n", "\n").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): convert it, as in iconv -t UTF-8") from None


def cache_folder() -> Path:
    """Where downloads are kept: $TINYFORMER_CACHE, else tinyformer in the user's cache folder."""
    chosen = os.environ.get("TINYFORMER_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else base / "tinyformer"


def download(url: str, sha256: str, timeout: float = 10.0) -> Path:
    """The file at ``url``, from the cache after the first time. Raises OSError (no network, no such file, no space) or
    UserError where its checksum is not ``sha256``."""
    path = cache_folder() / sha256[:16] / url.rsplit("/", 1)[-1]
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
        return path
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            content = response.read()
    except http.client.HTTPException as error:  # such as a connection that ends too soon
        raise OSError(f"{type(error).__name__}: {error}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"what came from {url} is not the file expected (its checksum differs): try again, or pass --data")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return path


def default_text() -> tuple[str, str]:
    """A text to learn from without being given one, and where it came from: Tiny Shakespeare, or, with no network,
    the sources of Python's standard library."""
    try:
        return read_text(download(TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256)), "Tiny Shakespeare"
    except (OSError, UserError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        print(
            f"Tiny Shakespeare could not be downloaded ({reason}): training on Python's own sources instead (or pass --data)."
        )
    return standard_library_text(), STANDARD_LIBRARY


@dataclass(frozen=True)
class TextSource:
    """Where the text of a run came from; ``path`` is None for a default one."""

    path: str | None
    name: str
    sha256: str

    def read_again(self, run: str | Path, moved_to: str | None = None) -> str:
        """The text that ``run`` was trained on, perhaps from where it is now. Raises UserError for any other text."""
        if moved_to or self.path:
            text = read_text(moved_to or str(self.path))
        else:
            text = standard_library_text() if self.name == STANDARD_LIBRARY else default_text()[0]
        if fingerprint(text) != self.sha256:
            raise UserError(f"the text is not the one that {run} was trained on ({self.name}): --resume needs that one")
        return text


def open_text(path: str | None) -> tuple[str, TextSource]:
    """The text at a path, or a default one without it, and where it came from."""
    text, name = (read_text(path), path) if path else default_text()
    return text, TextSource(path, name, fingerprint(text))


def fingerprint(text: str) -> str:
    """The SHA-256 of a text: tells whether a resumed run has the one that it had."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def standard_library_text(limit: int = 1_100_000) -> str:
    """The ASCII sources at the top of Python's standard library, in the order of their names, up to ``limit`` characters."""
    parts: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_bytes()
        if source.isascii():
            parts.append(source.decode("ascii").replace("\r\n", "\n"))
        if sum(map(len, parts)) >= limit:
            break
    if not parts:
        raise UserError("this Python comes without its library's sources: pass --data a text file")
    return "\n".join(parts)[:limit]


# ---------------------------------------------------------------------------------------------------------- batches


Self = TypeVar("Self", bound="Rows")


@dataclass
class Rows:
    """The base of batches: dataclasses of tensors and NumPy arrays with a row for each sequence, and how many targets there
    are in all."""

    def split(self: Self, parts: int) -> list[Self]:
        """The rows cut into ``parts`` shards of as many rows, give or take one; fewer where there are fewer rows. A shard
        has its whole batch's number of targets, as that is what a mean loss is over."""
        if parts == 1:
            return [self]
        columns = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), (Tensor, host.ndarray))}
        count = len(next(iter(columns.values())))
        parts = min(parts, count)
        cuts = [count * part // parts for part in range(parts + 1)]
        return [replace(self, **{name: c[a:b] for name, c in columns.items()}) for a, b in zip(cuts, cuts[1:])]


@dataclass
class Batch(Rows):
    """Token ids (batch, length), the ids one place later, and how many targets there are."""

    inputs: Tensor
    targets: Tensor
    num_targets: int


def check_ids(ids: Any, vocab_size: int) -> None:
    """Raises UserError unless all ids, a NumPy array or a sequence, are 0 to vocab_size - 1. Models check them on the CPU
    alone: on a GPU that would mean to wait for it."""
    ids = host.asarray(ids)
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.size:
        raise UserError(f"the token id {int(wrong.flat[0])} is outside of the vocabulary: its {vocab_size} ids start at 0")


class TextBatches:
    """Random windows of a training text, and the whole of a validation text, in order.

    The last ``validation_share`` of the ids is the validation split. Raises UserError where a split is shorter than one
    window, and for an id outside of ``vocab_size``, if that is given: a GPU does not notice.
    """

    def __init__(
        self,
        ids: Any,
        block_size: int,
        batch_size: int,
        seed: int = 0,
        validation_share: float = 0.1,
        vocab_size: int | None = None,
    ):
        if not 0.0 < validation_share < 1.0:
            raise UserError(f"the validation share must be above 0 and below 1, not {validation_share}")
        cut = int(len(ids) * (1.0 - validation_share))
        if min(cut, len(ids) - cut) < block_size + 1:
            need = int((block_size + 1) / min(validation_share, 1.0 - validation_share)) + 2
            raise UserError(
                f"the text has {len(ids)} tokens, too few for windows of {block_size}: "
                f"use at least {need}, or a smaller --block-size"
            )
        if batch_size < 1:
            raise UserError(f"the batch size must be at least 1, not {batch_size}")
        if vocab_size is not None:
            check_ids(ids, vocab_size)
        # The corpus lives where the model does. A batch is gathered there: all that is copied for it is where windows start.
        self.training = tt.tensor(ids[:cut])
        self.validation = tt.tensor(ids[cut:])
        self._window = xp.arange(block_size + 1)
        self.block_size = block_size
        self.batch_size = batch_size
        self._rng = host.random.default_rng(seed)

    def sample(self) -> Batch:
        """The next training batch: windows at random places, each as likely as the next."""
        starts = self._rng.integers(0, len(self.training) - self.block_size, self.batch_size)
        return self._batch(self.training, from_numpy(starts))

    def validation_batches(self, batch_size: int = 64) -> Iterator[Batch]:
        """Every target of the validation split exactly once, in windows side by side; the last may be shorter."""
        full = (len(self.validation) - 1) // self.block_size
        starts = xp.arange(full) * self.block_size
        for first in range(0, full, batch_size):
            yield self._batch(self.validation, starts[first : first + batch_size])
        if full * self.block_size + 1 < len(self.validation):
            yield _inputs_and_targets(self.validation[full * self.block_size :].reshape(1, -1))

    def _batch(self, ids: Tensor, starts: Array) -> Batch:
        return _inputs_and_targets(ids[starts[:, None] + self._window])

    def get_state(self) -> dict[str, Any]:
        """Where the random choice of windows stands: values for JSON."""
        return dict(self._rng.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``get_state`` returned."""
        self._rng.bit_generator.state = state


def _inputs_and_targets(windows: Tensor) -> Batch:
    return Batch(windows[:, :-1], windows[:, 1:], windows.shape[0] * (windows.shape[1] - 1))
