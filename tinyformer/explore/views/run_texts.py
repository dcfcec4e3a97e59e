"""The text of a run by which it was validated, for questions about what a model does in its data."""

from __future__ import annotations

import os

from tinyformer.common.errors import UserError
from tinyformer.data.reading import STANDARD_LIBRARY, TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256, TextSource, kept_at
from tinyformer.explore.views.kept import Kept
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.training.run_folder import RunFolder

LARGEST = 64 * 2**20  # bytes of files that are read for it
LONGEST = 200_000  # characters of the text that are used
VALIDATES = 0.9  # where the part begins that validates, as in ``TextBatches``

_kept = Kept(4 * 2**20)  # bytes


def validation_text(subjects: Subjects, model: str, subject: Subject) -> tuple[str, str] | None:
    """The last tenth of the text that a run was trained on, or the first LONGEST characters of that, and the text's name. None
    for a model of no run, and where the run does not say which text it was, or that cannot be read any more, or is another by
    now. Nothing is downloaded."""
    folder = subjects.folder(model)
    if folder is None:
        return None
    return _kept.get(subject.model, None, lambda: _read(folder), lambda found: 4 * len(found[0]) if found else 1)


def _read(folder: RunFolder) -> tuple[str, str] | None:
    try:
        source = folder.read_part("data", TextSource)
        path = folder.as_found(source.path)
        if not _is_at_hand(source, path):
            return None
        text = source.read_again(folder.path, path)
    except (UserError, OSError):
        return None
    begin = int(len(text) * VALIDATES)
    return text[begin : begin + LONGEST], os.path.basename(source.name.rstrip("/")) or source.name


def _is_at_hand(source: TextSource, path: str | None) -> bool:
    """Whether the text is on this computer, and not too large."""
    if path is None:
        kept = kept_at(TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256)
        return source.name == STANDARD_LIBRARY or (kept is not None and kept.is_file())
    if os.path.isfile(path):
        return os.path.getsize(path) <= LARGEST
    return sum(os.path.getsize(os.path.join(base, file)) for base, _, files in os.walk(path) for file in files) <= LARGEST
