"""Train word vectors on a text, and show which words lie near each other.

By default, skip-gram trains on Tiny Shakespeare. The program then shows neighbors, analogies and odd ones out, and draws a map
of words. It takes a few seconds on one core with compiled kernels, and about a minute without.

tinyformer train vectors                                  # word2vec, skip-gram
tinyformer train vectors --method counts                  # counts: PPMI and SVD
tinyformer train vectors --data my.txt --ask river bank   # your text and words
tinyformer train vectors --compare one.txt other.txt      # compare neighbors between two corpora
tinyformer vectors --ask sword --analogy man king woman   # query trained vectors
tinyformer vectors vectors.txt --evaluate wordsim353.tsv questions-words.txt
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.commands.asked_vectors import answer, check_words, common_words, compare
from tinyformer.commands.command_line import Commands, Parser, add_settings, add_text_flag, some_path
from tinyformer.common.errors import SettingError, UserError, print_line, stop_script
from tinyformer.common.makers import contents_of, tinyformer_command
from tinyformer.common.settings import at_least, check_fields, one_of, setting, settings_from
from tinyformer.data.files import MARK, mark_results
from tinyformer.data.reading import open_text
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.safety import check_names
from tinyformer.word_vectors import (
    Corpus,
    Word2Vec,
    Word2VecConfig,
    WordVectors,
    count_vectors,
    is_of_analogies,
    load_vectors,
    passages,
    save_vectors,
)
from tinyformer.word_vectors.corpus import composed
from tinytensor.common.wording import counted
from tinytensor.parallel import one_blas_thread

DEFAULT_OUT = "runs/word_vectors"
FILE = "vectors.txt"  # in that folder
METHODS = ("counts", "cbow", "skip-gram")
EPOCHS = 10
ENOUGH = 1_000_000  # words over all epochs; with fewer, word2vec stays near its random initialization
WORD2VEC_ONLY = ("negative", "sample", "learning_rate", "min_learning_rate", "epochs", "batch_size")
MOST_EPOCHS = 1000  # more do not make up for a short text


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """How to turn a text into vectors."""

    method: str = setting("skip-gram", "counts (PPMI and SVD), cbow or skip-gram (word2vec)")
    min_count: int = setting(5, "minimum count of a word")
    end: str = setting("paragraph", "unit that windows do not cross: paragraph or line")

    def __post_init__(self) -> None:
        check_fields(self)
        one_of(self, "method", METHODS)
        one_of(self, "end", ("paragraph", "line"))
        at_least(self, min_count=1)


# ---------------------------------------------------------------------------------------------------------- training


def settings_of(arguments: argparse.Namespace) -> tuple[TextConfig, Word2VecConfig]:
    """Return the validated settings. Counting shares some of word2vec's."""
    config = settings_from(TextConfig, vars(arguments))
    of_word2vec = "skip-gram" if config.method == "counts" else config.method
    return config, settings_from(Word2VecConfig, {"epochs": EPOCHS, **vars(arguments), "method": of_word2vec})


def read(path: str | None, flag: str, field: str | None, config: TextConfig) -> Corpus:
    """Return the words of a text or of one field. ``flag`` set the path."""
    text, source = open_text(path, flag, field)
    corpus = Corpus.of(passages(text, config.end), config.min_count, source.name)
    print_line(
        f"{source.name}: {counted(corpus.num_words, 'word')}, with {counted(len(corpus.vocabulary), 'different one')} of at "
        f"least {counted(config.min_count, 'occurrence')}"
    )
    return corpus


def learned(corpus: Corpus, config: TextConfig, settings: Word2VecConfig) -> tuple[WordVectors, str, str]:
    """Train vectors on a text. Return them, what stopped training early (or ""), and the progress."""
    if config.method == "counts":
        width = min(settings.width, len(corpus.vocabulary))
        print(f"counts, {counted(width, 'number')} a word, from neighbours up to {counted(settings.window, 'word')} away")
        return count_vectors(corpus, width, settings.window, seed=settings.seed), "", ""
    training = Word2Vec(corpus, settings)
    print(
        f"{config.method}, {counted(settings.width, 'number')} a word, {counted(settings.epochs, 'epoch')}, with the "
        f"kernels of {tt.kernels_name}"
    )
    if training.total_words < ENOUGH:
        epochs = -(-ENOUGH // len(corpus.ids))
        more = f"--epochs {epochs}, or\n" if epochs <= MOST_EPOCHS else ""
        print(f"This text is short: word2vec needs about {ENOUGH:,} words over all epochs. Try {more}--method counts,")
        print("which needs fewer.")
    with one_blas_thread():
        training.train()
    come = f"{training.words_done:,} of {counted(training.total_words, 'word')}"
    return training.vectors(), training.stopped_by or "", come


def check_free(out: Path, names: list[str], overwrite: bool) -> None:
    """Raise UserError if the folder has vectors that training would replace, or subfolders with their names. Raise OSError for
    links in place of the new files."""
    for path in (out / name for name in names):
        if path.is_dir():
            raise UserError(f"{path} is a folder, and cannot be replaced by vectors: choose another --out")
        if path.exists() and not overwrite:
            raise UserError(
                f"{path} is there already: ask it with `{tinyformer_command('vectors', str(path))}`, or pass --overwrite, or "
                "another --out"
            )
    check_names(out, [*names, "map.png", MARK])


def keep(vectors: WordVectors, path: Path, stopped_by: str, come: str) -> None:
    """Save vectors. If training was stopped, save them under another name and exit."""
    if stopped_by:
        path = path.with_stem(f"{path.stem}-unfinished")
    mark_results(path.parent)
    save_vectors(vectors, path)
    if stopped_by:
        stop_script(stopped_by, f"Stopped by {stopped_by} after {come}; the vectors so far are in {path}")
    print(f"Saved the vectors to {path}")


# ------------------------------------------------------------------------------------------------------ command line


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line of ``train`` or ``ask``."""
    both = Commands("tinyformer", "Train word vectors, and ask them.", DEFAULT_OUT)
    training = both.add(
        train,
        help="train",
        description="Train word vectors on a text, then show neighbors, analogies, odd ones out and a map.",
        shown="train vectors",
    )
    source = training.add_mutually_exclusive_group()
    add_text_flag(training, source)
    source.add_argument("--compare", help="train on two corpora and compare them", nargs=2, type=some_path, metavar=("A", "B"))
    add_questions(training, "folder for the vectors and the map")
    training.add_argument("--overwrite", help="overwrite the vectors in --out", action="store_true")
    add_settings(training, TextConfig, "text")
    add_settings(training, Word2VecConfig, "vectors (of --method counts only width, window and seed)", epochs=EPOCHS)
    training.has_no_effect(
        WORD2VEC_ONLY, lambda arguments: getattr(arguments, "method", None) == "counts", "with --method counts"
    )
    training.has_no_effect(
        ["analogy", "odd", "evaluate"], lambda arguments: arguments.compare, "with --compare, which knows only --ask"
    )

    asking = both.add(
        ask, help="query word vectors", description="Show neighbors, analogies and a map of words.", shown="vectors"
    )
    default = str(Path(DEFAULT_OUT, FILE))
    of_file = "the vectors, in word2vec's text format, or the folder of their run"
    asking.add_argument(
        "vectors", help=f"{of_file} (default: {default})", nargs="?", type=some_path, default=argparse.SUPPRESS, metavar="FILE"
    )
    asking.add_argument("--vectors", help=argparse.SUPPRESS, type=some_path)
    asking.add_argument("--limit", help="maximum number of words to read (default: all)", type=int, metavar="INT")
    add_questions(asking, "folder for the map")
    asking.has_no_effect("out", draws_nothing, "with these questions: the map is of --ask")
    return both.parse(words)


def add_questions(parser: Parser, out: str) -> None:
    """Add the question flags to the parser, and --out with this help text."""
    several: dict[str, Any] = {"action": "extend", "nargs": "+", "default": []}
    questions: dict[str, Any] = {"action": "append", "type": composed, "default": [], "metavar": "WORD"}
    parser.add_argument("--ask", help="show the neighbors of these words", type=composed, metavar="WORD", **several)
    parser.add_argument("--analogy", help="first is to second as third is to ...; may be repeated", nargs=3, **questions)
    parser.add_argument("--odd", help="words with one odd one out; may be repeated", nargs="+", **questions)
    parser.add_argument("--evaluate", help="files of rated word pairs or analogies", type=some_path, metavar="FILE", **several)
    parser.add_argument("--out", help=out, default=DEFAULT_OUT, type=some_path, metavar="FOLDER")


def draws_nothing(arguments: argparse.Namespace) -> bool:
    """Return True if these flags draw no map."""
    return bool(not arguments.ask and (arguments.analogy or arguments.odd or arguments.evaluate))


def check_questions(arguments: argparse.Namespace) -> None:
    """Raise SettingError for an unanswerable question, and UserError for an unreadable file."""
    if any(len(set(words)) < 3 for words in arguments.odd):
        raise SettingError("odd needs at least three different words to choose from")
    for path in arguments.evaluate:
        is_of_analogies(path)


def train(arguments: argparse.Namespace) -> None:
    """Train vectors, then answer questions."""
    check_questions(arguments)
    with RunFolder(arguments.out).held():  # creates the folder if possible
        learn(arguments)


def in_folder(path: str) -> str:
    """Return the word vector file at a path or in its run folder. Raises UserError for another run's folder."""
    contents = contents_of(path)
    if contents is not None and contents.kind != "word vectors":
        raise contents.refusal(path, "word vectors")
    return path if contents is None else str(Path(path, FILE))


def ask(arguments: argparse.Namespace) -> None:
    """Load vectors from a file and answer questions."""
    check_questions(arguments)
    if arguments.limit is not None and arguments.limit < 1:
        raise SettingError(f"limit must be at least 1, got {arguments.limit}")
    path = arguments.vectors or str(Path(DEFAULT_OUT, FILE))
    if arguments.vectors is None and not Path(path).exists():
        raise UserError(f"{path} does not exist: train first, or name another file")
    vectors = load_vectors(in_folder(path), arguments.limit)
    if len(vectors) < 2:
        remedy = ": --limit 2 is the least" if arguments.limit == 1 else ", and there are no others"
        raise UserError(f"one word alone, {vectors.words[0]!r} of {path}, has no neighbours{remedy}")
    check_words(arguments, vectors)
    print(f"{path}: {counted(len(vectors), 'word')}, {counted(vectors.width, 'number')} a word")
    answer(vectors, arguments)


def learn(arguments: argparse.Namespace) -> None:
    """Check the questions, train on one or two corpora, then answer the questions."""
    out, names, paths, flag = Path(arguments.out), [FILE], [arguments.data], "--data"
    if arguments.compare:
        names, paths, flag = ["first.txt", "second.txt"], arguments.compare, "--compare"
    config, settings = settings_of(arguments)
    check_free(out, names, arguments.overwrite)
    corpora = [read(path, flag, arguments.field, config) for path in paths]
    for corpus, path in zip(corpora, paths):
        check_words(arguments, corpus.vocabulary, f" in {path}" if arguments.compare else "")
    if arguments.compare:
        common_words(corpora[0].vocabulary, corpora[1].vocabulary, config.min_count)

    trained = []
    for corpus, name in zip(corpora, names):
        vectors, *stopped = learned(corpus, config, settings)
        keep(vectors, out / name, *stopped)
        trained.append(vectors)
    if arguments.compare:
        compare(trained[0], trained[1], arguments.ask)
    else:
        answer(trained[0], arguments)
