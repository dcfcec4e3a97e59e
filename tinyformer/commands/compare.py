"""Compare finished translators: scores by sentence length, and alignments.

tinyformer compare runs/lstm runs/translate                 # two or more runs with the same held-out sentences
tinyformer compare runs/* --sentence "Zwei Hunde spielen."  # and their alignments for this sentence
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import tinyformer.plots as plots
from tinyformer.commands.command_line import Parser, some_path
from tinyformer.data.pair_files import PairFiles
from tinyformer.training import comparison
from tinyformer.training.comparison import ScoreTable
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.translation import Attended
from tinytensor.common.wording import counted

DEFAULT_OUT = "runs/translate_comparison"


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        prog="tinyformer compare",
        description="Compare finished runs with the same held-out sentences: BLEU and chrF (for dates: exact matches) by "
        "source length, and the alignments of one sentence.",
    )
    parser.add_argument("folders", help="run folders, two or more", type=some_path, nargs="+", metavar="RUN")
    parser.add_argument("--sentence", help="sentence to align (default: a held-out one of median length)", metavar="TEXT")
    parser.add_argument("--out", help="folder for the plots", default=DEFAULT_OUT, type=some_path, metavar="FOLDER")
    parser.set_defaults(run=compare)
    return parser.parse_args(words)


def compare(arguments: argparse.Namespace) -> None:
    """Compare finished runs by their translations of the same held-out sentences and by their attention."""
    folders = comparison.names_of_runs([RunFolder(path) for path in arguments.folders])
    translated = {name: comparison.read_translations(folder.sample) for name, folder in folders.items()}
    comparison.check_same_sentences(translated)
    first, *_ = translated.values()
    sentence = comparison.middle_sentence(first) if arguments.sentence is None else arguments.sentence
    attended = comparison.attended_by(folders, sentence)

    are_languages = next(iter(folders.values())).read_part("files", PairFiles).are_given()  # the same in all runs
    tables: list[ScoreTable] = []
    try:
        measures, settings = comparison.measures_of(translated, are_languages)
        held_out = counted(len(first), "held-out sentence")
        for name, score in measures.items():
            tables.append(comparison.score_by_length(translated, name, score))
            print(f"{name}: for the {held_out}, by source length\n{tables[-1]}\n")
        if settings is not None:
            print(f"{settings.signature()}\n")
    except ImportError:
        print(comparison.NO_SCORES)
    print(f"{sentence}  ->")
    for name, seen in attended.items():
        print(f"    {seen.translation}   ({name})")
    draw_comparison(tables, attended, Path(arguments.out))


def draw_comparison(tables: Sequence[ScoreTable], attended: Mapping[str, Attended], out: Path) -> None:
    """Plot scores by length (first metric) and alignments of networks with attention. Print the paths."""
    aligned = {name: seen for name, seen in attended.items() if seen.alignments()}
    without = ", ".join(name for name in attended if name not in aligned)
    note = f"Without attention: {without}." if without else ""
    with plots.if_possible():
        pictures = [plots.scores_by_length(tables[0], out / "score_by_length.png")] if tables else []
        pictures += [plots.alignments(aligned, note, out / "alignments.png")] if aligned else []
        if without:
            print(f"No alignments for {without}: no attention to draw")
        if pictures:
            print(f"Drew {' and '.join(map(str, pictures))}")
