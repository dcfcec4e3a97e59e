"""The files of a translation run: where its pairs of sentences are, and how they are cleaned and split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyformer.common.errors import SettingError, UserError, print_line
from tinyformer.data.pair_columns import read_pairs
from tinyformer.data.pairs import Pair, read_two_files, split_pairs, without_empty
from tinytensor.common.wording import counted


@dataclass(frozen=True)
class PairFiles:
    """Paths of files with pairs of sentences.

    The pairs to train on are in ``data``, which ``read_pairs`` reads, or in ``source`` and ``target`` (line by line). Those to
    validate and to test with may have files of their own.
    """

    data: str | None = None
    source: str | None = None
    target: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None

    def are_given(self) -> bool:
        """Whether there is at least one file."""
        return self != PairFiles()

    def read(self, lowercase: bool, validation: int, test: int) -> list[list[Pair]]:
        """The pairs to train on, to validate with and to test with.

        ``validation``, ``test``: how many pairs are held out of the others where a part has no files of its own. Raises
        UserError for files that do not go together, that hold no pairs, or too few.
        """
        pairs = self._read("", lowercase)
        own = [self._read(part, lowercase) for part in ("validation_", "test_")]
        if not pairs:
            raise UserError("there are no sentences to train on: give --data, or --source and --target")
        wanted = {name: count for name, count, found in zip(("validation", "test"), (validation, test), own) if not found}
        different = list(dict.fromkeys(pairs))
        if len(different) < len(pairs):
            repeated = counted(len(pairs) - len(different), "pair")
            left = f"left out {repeated} that occurred before, of {counted(len(pairs), 'pair')}"
            print_line(f"{self.data or self.source}: {left}")
        training, *held_out = split_by_settings(different, wanted)
        return [training, *(found or held_out.pop(0) for found in own)]

    def _read(self, part: str, lowercase: bool) -> list[Pair]:
        """The cleaned pairs of a part's files. The list is empty where there are no files."""
        data, source, target = None if part else self.data, getattr(self, f"{part}source"), getattr(self, f"{part}target")
        if (source is None) != (target is None):
            raise UserError("give a source and a target file together: the sentences of one are the translations of the other")
        if data is not None and source is not None:
            raise UserError("give either --data, or --source and --target: each holds the pairs to train on")
        if data is None and source is None:
            return []
        found = read_pairs(data) if data is not None else read_two_files(source, target)
        # They are cleaned before they are split: sentences that the model sees as one must not go to two parts.
        pairs, empty = without_empty([(one_line(s, lowercase), one_line(t, lowercase)) for s, t in found])
        if not pairs:
            raise UserError(f"{data or source} has no pair of sentences: every line is empty on one side")
        if empty:
            print_line(f"{data or source}: skipped {counted(empty, 'pair')} with an empty side")
        return pairs


def split_by_settings(pairs: Sequence[Pair], held_out: Mapping[str, int]) -> list[list[Pair]]:
    """As ``split_pairs``, but the numbers of ``held_out`` pairs have the names of their settings, which the errors tell."""
    try:
        return split_pairs(pairs, list(held_out.values()))
    except UserError as error:
        most = len({source for source, _ in pairs}) - 1
        if most < len(held_out):
            raise UserError(f"{error}. Give more pairs, or files to validate and to test with") from None
        together = "together " if len(held_out) > 1 else ""
        message = f"{error}. Choose smaller {' and '.join(held_out)}: {together}at most {most:,}"
        raise SettingError(message, *held_out) from None


def one_line(text: str, lowercase: bool = False) -> str:
    """The text with single spaces between its words, in lower case if ``lowercase``.

    >>> from tinyformer import one_line
    >>> one_line("  Two   words ", lowercase=True)
    'two words'
    """
    text = " ".join(text.split())
    return text.lower() if lowercase else text
