"""Comparing translations of the same sentences by several runs: their scores by the length of the source.

A context vector has as many numbers for a long sentence as for a short one. So the scores of a network without attention fall
with the length, and those of one with attention fall less (Bahdanau et al. 2015, figure 2).
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_file
from tinyformer.common.makers import check_kind, resume_command
from tinyformer.data.pair_files import one_line
from tinyformer.training.opened import Opened
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.text_scores import TextScores, count_words
from tinyformer.training.translation import KIND, Attended, TranslationConfig, trained_translator
from tinytensor.device.disk import write_text

NO_SCORES = "(no scores: they need sacrebleu, pip install sacrebleu)"
HEADER = ("source", "ours", "reference")
Measure = Callable[[Sequence[str], Sequence[str]], float]  # of translations beside their references
MOST_BINS = 8  # the most bins before those with few sentences are joined
FEWEST = 20  # the fewest sentences in a bin


@dataclass(frozen=True)
class Translated:
    """A held-out sentence, its translation by a run, and the right one. Each is one line without tabs."""

    source: str
    ours: str
    reference: str

    @property
    def length(self) -> int:
        """The number of words of the source, as ``count_words`` counts them."""
        return count_words(self.source)


def write_translations(path: Path, sources: Sequence[str], ours: Sequence[str], references: Sequence[str]) -> None:
    """Write a file of the sentences, their translations and the right ones: a header, then one line a sentence, with tabs."""
    lines = ["\t".join(row) for row in (HEADER, *zip(sources, ours, references))]
    write_text(path, "\n".join(lines) + "\n")


def read_translations(path: Path) -> list[Translated]:
    """What ``write_translations`` wrote. Raises UserError for a file that is missing, as in an unfinished run, or damaged."""
    try:
        header, *lines = io.StringIO(read_file(path).decode("utf-8"), newline=None).read().removesuffix("\n").split("\n")
    except FileNotFoundError:
        finish = resume_command(path.parent)
        raise UserError(f"{path} does not exist: a run has it once its training is finished, as by {finish}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged: it is not UTF-8 text") from None
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate((header.split("\t"), *rows), 1):
        if len(row) != 3 or (number == 1 and tuple(row) != HEADER):
            raise UserError(f"{path} is damaged: line {number} should be {', '.join(HEADER)}, with tabs between them")
    if not rows:
        raise UserError(f"{path} is damaged: it has no sentences")
    return [Translated(*row) for row in rows]


def sample_text(opened: Opened, folder: RunFolder) -> tuple[str, int]:
    """A sentence to try the model of a run with, and how many tokens it may write for that."""
    assert opened.translator is not None
    task = opened.translator.task
    text = read_translations(folder.sample)[0].source if folder.sample.exists() else "hello"
    return one_line(text, task.lowercase), task.max_tokens + 1


def check_same_sentences(runs: Mapping[str, Sequence[Translated]]) -> None:
    """Raise UserError unless all runs translated the same sentences, with the same references."""
    (first, expected), *others = runs.items()
    for name, found in others:
        for number, (one, other) in enumerate(zip(expected, found), 1):
            for a, b in ((one.source, other.source), (one.reference, other.reference)):
                if a != b:
                    shown = f"sentence {number} is {shortened(a, 60)!r} in one and {shortened(b, 60)!r} in the other"
                    raise UserError(f"{first} and {name} cannot be compared, as their held-out sentences differ:", shown)
        if len(found) != len(expected):
            counts = f"{len(expected):,} and {len(found):,}"
            raise UserError(f"{first} and {name} cannot be compared: the numbers of their held-out sentences are {counts}")


def names_of_runs(folders: Sequence[RunFolder]) -> dict[str, RunFolder]:
    """The runs of translation by their names: that of the folder, or its whole path if several have that name, and the
    architecture unless the name says it. Raises UserError for a folder that is no run, and for fewer than two runs."""
    paths = [folder.path.resolve() for folder in folders]
    if len(set(paths)) < len(paths) or len(paths) < 2:
        raise UserError("name two or more different runs to compare")
    named = {}
    for folder, path in zip(folders, paths):
        check_kind(KIND, folder.path)
        architecture = folder.read_part("task", TranslationConfig).architecture
        name = path.name if [other.name for other in paths].count(path.name) == 1 else str(folder.path)
        named[name if architecture in name.lower() else f"{name} ({architecture})"] = folder
    return named


def attended_by(folders: Mapping[str, RunFolder], sentence: str) -> dict[str, Attended]:
    """What the network of each run looks at while it translates a sentence. A UserError names the run."""
    found = {}
    for name, folder in folders.items():
        translator = trained_translator(folder)
        try:
            found[name] = translator.attended(sentence)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    return found


def middle_sentence(translated: Sequence[Translated]) -> str:
    """The first of the sentences that have the median number of words."""
    return sorted(translated, key=lambda one: one.length)[len(translated) // 2].source


# ---------------------------------------------------------------------------------------------------------------- scores


def bins_of(lengths: Sequence[int]) -> list[range]:
    """Bins of lengths: all but joined ones equally wide, 1, 2, 5, 10, ... words, and at most MOST_BINS.

    Where a bin would have less than FEWEST of the ``lengths``, it is joined with the next one, and the last one with the one
    before. The first bin begins at the shortest length, and the last one ends at the longest.
    """
    shortest, longest, counts = min(lengths), max(lengths), Counter(lengths)
    widths = (digit * 10**zeros for zeros in count() for digit in (1, 2, 5))
    width = next(w for w in widths if (longest - 1) // w - (shortest - 1) // w < MOST_BINS)
    bins: list[range] = []
    first, held = shortest, 0
    for length in range(shortest, longest + 1):
        held += counts[length]
        if length == longest and held < FEWEST and bins:
            first = bins.pop().start
        if length == longest or (length % width == 0 and held >= FEWEST):
            bins.append(range(first, length + 1))
            first, held = length + 1, 0
    return bins


@dataclass(frozen=True)
class ScoreTable:
    """The scores of runs by the length of the source.

    ``counts`` and the ``scores`` of each run begin with those of all sentences; one for each of the ``bins`` follows.
    """

    measure: str
    bins: Sequence[range]
    counts: Sequence[int]
    scores: Mapping[str, Sequence[float]]

    def labels(self) -> list[str]:
        """The words of a source in each bin: 5, or 6-10."""
        return [f"{b[0]}-{b[-1]}" if len(b) > 1 else str(b[0]) for b in self.bins]

    def __str__(self) -> str:
        """The table, in which a column is a bin and a row a run."""
        rows = [
            ["words of the source", "all", *self.labels()],
            ["sentences", *map(str, self.counts)],
            *([name, *(f"{score:.2f}" for score in scores)] for name, scores in self.scores.items()),
        ]
        first = max(len(row[0]) for row in rows)
        return "\n".join(row[0].ljust(first) + "".join(cell.rjust(9) for cell in row[1:]) for row in rows)


def exactly_right(translations: Sequence[str], references: Sequence[str]) -> float:
    """The percentage of the translations that equal their references."""
    return 100 * sum(ours == reference for ours, reference in zip(translations, references)) / len(references)


def text_scores(references: Sequence[str]) -> TextScores | None:
    """What scores translations into the language of the references; None without sacrebleu."""
    try:
        return TextScores(references)
    except ImportError:
        return None


def scores(translations: Sequence[str], references: Sequence[str], kind: str, measured: TextScores | None = None) -> str:
    """How good translations are, in a line: exact matches for "dates", else BLEU and chrF."""
    if kind == "dates":
        right = sum(ours == reference for ours, reference in zip(translations, references))
        return f"{right} of {len(references)} exactly right ({100 * right / len(references):.2f} %)"
    if measured is None:
        return NO_SCORES
    return f"BLEU {measured.bleu(translations, references):.2f}, chrF {measured.chrf(translations, references):.2f}"


def measures_of(runs: Mapping[str, Sequence[Translated]], are_languages: bool) -> tuple[dict[str, Measure], TextScores | None]:
    """How translations are scored, by the names of the measures: BLEU and chrF for languages, with their settings, else how
    many are exactly right. Raises ImportError for languages without sacrebleu."""
    if not are_languages:
        return {"exactly right (%)": exactly_right}, None
    scores = TextScores([one.reference for one in next(iter(runs.values()))])
    return {"BLEU": scores.bleu, "chrF": scores.chrf}, scores


def score_by_length(runs: Mapping[str, Sequence[Translated]], measure: str, score: Measure) -> ScoreTable:
    """What a measure gives for each run. The runs must have translated the same sentences."""
    lengths = [one.length for one in next(iter(runs.values()))]
    bins = bins_of(lengths)
    parts = [range(len(lengths)), *([i for i, length in enumerate(lengths) if length in b] for b in bins)]
    scores = {
        name: [score([found[i].ours for i in part], [found[i].reference for i in part]) for part in parts]
        for name, found in runs.items()
    }
    return ScoreTable(measure, bins, [len(part) for part in parts], scores)
