"""Compare runs that translated the same sentences: exact matches, BLEU and chrF by source length.

A context vector has a fixed size, however long the sentence. Without attention, scores therefore fall with sentence length.
With attention, they fall less (Bahdanau et al. 2015, figure 2).
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import regex

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_file
from tinyformer.common.makers import TRANSLATOR, check_kind, resume_command
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.translation import Attended, TranslationConfig, trained_translator
from tinytensor.device.disk import write_text

NO_SCORES = "(no scores: they need sacrebleu, pip install sacrebleu)"
HEADER = ("source", "ours", "reference")
Measure = Callable[[Sequence[str], Sequence[str]], float]  # of translations against their references
MOST_BINS = 8  # the maximum before merging bins with few sentences
FEWEST = 20  # the minimum number of sentences per bin


@dataclass(frozen=True)
class Translated:
    """A held-out sentence, a run's translation, and the reference, each on one line without tabs."""

    source: str
    ours: str
    reference: str

    @property
    def length(self) -> int:
        """The number of words in the source. See ``count_words``."""
        return count_words(self.source)


def write_translations(path: Path, sources: Sequence[str], ours: Sequence[str], references: Sequence[str]) -> None:
    """Write sentences, translations and references to a tab-separated file with a header."""
    lines = ["\t".join(row) for row in (HEADER, *zip(sources, ours, references))]
    write_text(path, "\n".join(lines) + "\n")


def read_translations(path: Path) -> list[Translated]:
    """Read a file from ``write_translations``. Raises UserError if it is damaged or missing, as in an unfinished run."""
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


def check_same_sentences(runs: Mapping[str, Sequence[Translated]]) -> None:
    """Raise UserError unless all runs translated the same sentences with the same references."""
    (first, expected), *remaining = runs.items()
    for name, rows in remaining:
        for number, (one, other) in enumerate(zip(expected, rows), 1):
            for a, b in ((one.source, other.source), (one.reference, other.reference)):
                if a != b:
                    shown = f"sentence {number} is {shortened(a, 60)!r} in one and {shortened(b, 60)!r} in the other"
                    raise UserError(f"{first} and {name} cannot be compared, as their held-out sentences differ:", shown)
        if len(rows) != len(expected):
            counts = f"{len(expected):,} and {len(rows):,}"
            raise UserError(f"{first} and {name} cannot be compared: the numbers of their held-out sentences are {counts}")


def names_of_runs(folders: Sequence[RunFolder]) -> dict[str, RunFolder]:
    """Return translator runs by name: the folder's name, or its path if names collide, plus the architecture if the name lacks
    it. Raises UserError for any other folder, or fewer than two runs."""
    paths = [folder.path.resolve() for folder in folders]
    if len(set(paths)) < len(paths) or len(paths) < 2:
        raise UserError("name two or more different runs to compare")
    named = {}
    for folder, path in zip(folders, paths):
        check_kind(TRANSLATOR, folder.path)
        architecture = folder.read_part("task", TranslationConfig).architecture
        name = path.name if [other.name for other in paths].count(path.name) == 1 else str(folder.path)
        named[name if architecture in name.lower() else f"{name} ({architecture})"] = folder
    return named


def attended_by(folders: Mapping[str, RunFolder], sentence: str) -> dict[str, Attended]:
    """Return each run's attention while translating a sentence. UserErrors include the run's name."""
    attended = {}
    for name, folder in folders.items():
        translator = trained_translator(folder)
        try:
            attended[name] = translator.attended(sentence)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    return attended


def middle_sentence(translated: Sequence[Translated]) -> str:
    """Return the first sentence of median length in words."""
    return sorted(translated, key=lambda one: one.length)[len(translated) // 2].source


# ---------------------------------------------------------------------------------------------------------------- scores


def bins_of(lengths: Sequence[int]) -> list[range]:
    """Return at most MOST_BINS bins that cover all lengths. Bins are 1, 2, 5, 10, ... words wide.

    A bin with fewer than FEWEST of the ``lengths`` is merged with the next bin, and the last with the previous one.
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
    """Scores of runs by source length.

    ``counts`` and each run's ``scores`` start with the total over all sentences, followed by one entry per bin.
    """

    measure: str
    bins: Sequence[range]
    counts: Sequence[int]
    scores: Mapping[str, Sequence[float]]

    def labels(self) -> list[str]:
        """Return the label of each bin in words: 5, or 6-10."""
        return [f"{b[0]}-{b[-1]}" if len(b) > 1 else str(b[0]) for b in self.bins]

    def __str__(self) -> str:
        """Return a table with one column per bin and one row per run."""
        rows = [
            ["words of the source", "all", *self.labels()],
            ["sentences", *map(str, self.counts)],
            *([name, *(f"{score:.2f}" for score in scores)] for name, scores in self.scores.items()),
        ]
        first = max(len(row[0]) for row in rows)
        return "\n".join(row[0].ljust(first) + "".join(cell.rjust(9) for cell in row[1:]) for row in rows)


def exactly_right(translations: Sequence[str], references: Sequence[str]) -> float:
    """Return the percentage of translations that equal their references."""
    return 100 * sum(map(str.__eq__, translations, references)) / len(references)


def text_scores(references: Sequence[str]) -> TextScores | None:
    """Return a scorer for the language of the references, or None without sacrebleu."""
    try:
        return TextScores(references)
    except ImportError:
        return None


def scores(translations: Sequence[str], references: Sequence[str], kind: str, measured: TextScores | None = None) -> str:
    """Return a line with the translation quality: exact matches for "dates", else BLEU and chrF."""
    if kind == "dates":
        right = sum(map(str.__eq__, translations, references))
        return f"{right} of {len(references)} exactly right ({100 * right / len(references):.2f} %)"
    if measured is None:
        return NO_SCORES
    return f"BLEU {measured.bleu(translations, references):.2f}, chrF {measured.chrf(translations, references):.2f}"


def measures_of(runs: Mapping[str, Sequence[Translated]], are_languages: bool) -> tuple[dict[str, Measure], TextScores | None]:
    """Return the translation metrics by name, and their settings: BLEU and chrF for languages, else exact matches. Raises
    ImportError for languages without sacrebleu."""
    if not are_languages:
        return {"exactly right (%)": exactly_right}, None
    scores = TextScores([one.reference for one in next(iter(runs.values()))])
    return {"BLEU": scores.bleu, "chrF": scores.chrf}, scores


def score_by_length(runs: Mapping[str, Sequence[Translated]], measure: str, score: Measure) -> ScoreTable:
    """Score each run with a metric. All runs must have translated the same sentences."""
    lengths = [one.length for one in next(iter(runs.values()))]
    bins = bins_of(lengths)
    parts = [range(len(lengths)), *([i for i, length in enumerate(lengths) if length in b] for b in bins)]
    scores = {
        name: [score([rows[i].ours for i in part], [rows[i].reference for i in part]) for part in parts]
        for name, rows in runs.items()
    }
    return ScoreTable(measure, bins, [len(part) for part in parts], scores)


_LETTER = regex.compile(r"\p{L}")
# Letters of scripts without spaces between words, by Unicode line-breaking class and by script.
_CLASSES, _SCRIPTS = "LB=ID LB=CJ LB=SA LB=AK", "Han Hiragana Katakana Bopomofo Tibetan Javanese Balinese"
_UNSPACED = "[[" + "".join(rf"\p{{{name}}}" for name in f"{_CLASSES} {_SCRIPTS}".split()) + r"]&&\p{L}]"
_WITHOUT_SPACES = regex.compile(_UNSPACED, regex.VERSION1)
_COUNTED = regex.compile(rf"{_UNSPACED}[^\s\p{{L}}\p{{N}}]*|(?:(?!{_UNSPACED})\S)+", regex.VERSION1)  # with marks that follow
_HAN, _KANA, _HANGUL = (regex.compile(rf"[{scripts}]") for scripts in (r"\p{Han}", r"\p{Hiragana}\p{Katakana}", r"\p{Hangul}"))
# The share of all letters. It is low because words in such a script have few letters, and Latin names have many.
_ENOUGH = 0.25
_KANA_ENOUGH = 0.05  # share of kana among a text's Chinese characters and kana
_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}  # extra packages to install with sacrebleu


def count_words(text: str) -> int:
    """Count the words of a text. In scripts without spaces between words, each letter counts as a word.

    >>> from tinyformer.training.comparison import count_words
    >>> count_words("I love you."), count_words("我爱你。")
    (3, 3)
    """
    return sum(1 for _ in _COUNTED.finditer(text))


def bleu_tokenizer(references: Sequence[str]) -> str:
    """Return the sacrebleu tokenizer for the script of most references: zh for Chinese, ja-mecab for Japanese, ko-mecab for
    Korean, char for other scripts without spaces between words (such as Thai), otherwise 13a.

    >>> from tinyformer.training.comparison import bleu_tokenizer
    >>> bleu_tokenizer(["我爱你"]), bleu_tokenizer(["I love you."])
    ('zh', '13a')
    """
    text = "".join(references)

    def count(pattern: regex.Pattern[str]) -> int:
        return sum(1 for _ in pattern.finditer(text))

    han, kana, hangul, without = count(_HAN), count(_KANA), count(_HANGUL), count(_WITHOUT_SPACES)
    letters = count(_LETTER)
    if hangul >= _ENOUGH * letters and hangul > without:
        return "ko-mecab"
    if not without or without < _ENOUGH * letters:
        return "13a"
    if kana and kana >= _KANA_ENOUGH * (han + kana) and 2 * (han + kana) >= without:
        return "ja-mecab"
    return "zh" if 2 * han >= without else "char"


class TextScores:
    """BLEU (Papineni et al. 2002) and chrF (Popović 2015) of translations against ``references`` in one language.

    ``tokenizer`` is sacrebleu's BLEU tokenizer. ``note`` says what to install for a better one. If no translation has four
    tokens, BLEU uses its effective order. Raises ImportError without sacrebleu.
    """

    def __init__(self, references: Sequence[str]):
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        self.tokenizer, self.note = bleu_tokenizer(references), ""
        try:
            self._bleu = BLEU(tokenize=self.tokenizer, effective_order=True)
        except (ImportError, RuntimeError):  # MeCab is not installed
            package = f'pip install "sacrebleu[{_EXTRAS[self.tokenizer]}]"'
            self.note = f"BLEU of characters, as sacrebleu's tokenizer {self.tokenizer} is not installed: {package}"
            self.tokenizer = "char"
            self._bleu = BLEU(tokenize=self.tokenizer, effective_order=True)
        self._chrf = CHRF()

    def bleu(self, translations: Sequence[str], references: Sequence[str]) -> float:
        """Return the corpus BLEU, from 0 to 100."""
        return float(self._bleu.corpus_score(translations, [references]).score)

    def chrf(self, translations: Sequence[str], references: Sequence[str]) -> float:
        """Return the corpus chrF, from 0 to 100."""
        return float(self._chrf.corpus_score(translations, [references]).score)

    def signature(self) -> str:
        """Return sacrebleu's signatures of both scores, then the note. Call it after computing the scores."""
        lines = [f"BLEU {self._bleu.get_signature()}", f"chrF {self._chrf.get_signature()}", self.note]
        return "\n".join(filter(None, lines))
