"""Words as vectors: train them on a text, and see which words lie near each other, and why.

By default, skip-gram learns from Tiny Shakespeare. Then the script shows neighbours by cosine and by dot product, analogies and
odd ones out, and draws a map of words. It takes a few seconds of one core with compiled kernels, and about a minute without.

python examples/word_vectors.py                                  # word2vec, skip-gram
python examples/word_vectors.py --method counts                  # count neighbours: PPMI and its singular vectors
python examples/word_vectors.py --data my.txt --ask river bank   # your own text, and your own words
python examples/word_vectors.py --vectors runs/word_vectors/vectors.txt --ask sword --analogy man king woman
python examples/word_vectors.py --vectors vectors.txt --evaluate wordsim353.tsv questions-words.txt
python examples/word_vectors.py --compare one.txt other.txt      # how the neighbours of words differ between two texts
"""

from __future__ import annotations

from tinyformer.common.errors import plain_errors

with plain_errors():  # from here on, a missing package or GPU is told in a line, and Ctrl-C ends without a traceback
    import argparse
    import dataclasses
    from pathlib import Path
    from typing import Any

    import tinytensor as tt
    from tinyformer import (
        Parser,
        RunFolder,
        SettingError,
        UserError,
        add_settings,
        add_text_flag,
        at_least,
        check_fields,
        one_of,
        open_text,
        print_line,
        run_command,
        setting,
        settings_from,
        some_path,
        stop_script,
    )
    from tinyformer.common.errors import note_values
    from tinyformer.data.folders import MARK, mark_results
    from tinyformer.plots import if_possible, word_map
    from tinyformer.runs.makers import found_in
    from tinyformer.word_vectors import (
        Corpus,
        Vocabulary,
        Word2Vec,
        Word2VecConfig,
        WordVectors,
        analogies,
        count_vectors,
        is_of_analogies,
        load_vectors,
        passages,
        save_vectors,
        similarity,
    )
    from tinyformer.word_vectors.corpus import check_known, composed
    from tinytensor.common.wording import counted
    from tinytensor.device.backend import host
    from tinytensor.device.disk import check_names
    from tinytensor.parallel import one_blas_thread

DEFAULT_OUT = "runs/word_vectors"
METHODS = ("counts", "cbow", "skip-gram")
EPOCHS = 10
ENOUGH = 1_000_000  # words, all epochs together: with fewer, word2vec hardly gets away from the random vectors it begins with
WORD2VEC_ONLY = ("negative", "sample", "learning_rate", "min_learning_rate", "epochs", "batch_size")
MOST_EPOCHS = 1000  # more of them do not make up for a text that is too short
SHOWN = 8  # neighbours of a word
COMPARED = 10  # neighbours of a word that two texts are compared by
FREQUENT = 300  # of so many frequent words that both texts have, the script looks for those whose neighbours differ most

# What is asked where the user asks nothing: of all these, what the text has.
ASKED = "king queen love death sword night man house people time".split()
ANALOGIES = ["man king woman", "man he woman", "king queen prince", "father son mother", "day night morning", "go going come"]
ODD = ["king queen prince sword", "hand eye heart city", "day night hour blood", "one two three man", "love hate joy crown"]
MAP = {
    "people": "king queen prince duke lord lady father mother brother sister son daughter wife husband man woman",
    "body": "hand heart eye eyes tongue head face blood",
    "war": "sword war battle soldiers army peace",
    "time": "day night hour morning year time",
    "feelings": "love hate joy grief sorrow fear tears hope",
    "numbers": "one two three four five ten",
}
FEWEST = 12  # words of the map; where the text has fewer of these, some of its frequent words are drawn


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """How a text becomes vectors."""

    method: str = setting("skip-gram", "counts (PPMI and singular vectors), cbow or skip-gram (word2vec)")
    min_count: int = setting(5, "words that occur less often are left out")
    end: str = setting("paragraph", "what ends a passage, beyond which no word has neighbours: paragraph or line")

    def __post_init__(self) -> None:
        check_fields(self)
        one_of(self, "method", METHODS)
        one_of(self, "end", ("paragraph", "line"))
        at_least(self, min_count=1)


# ---------------------------------------------------------------------------------------------------------- training


def settings_of(arguments: argparse.Namespace) -> tuple[TextConfig, Word2VecConfig]:
    """The settings that were given, checked. Counting shares some of word2vec's."""
    config = settings_from(TextConfig, vars(arguments))
    note_values(vars(config))
    of_word2vec = "skip-gram" if config.method == "counts" else config.method
    return config, settings_from(Word2VecConfig, {"epochs": EPOCHS, **vars(arguments), "method": of_word2vec})


def read(path: str | None, flag: str, field: str | None, config: TextConfig) -> Corpus:
    """The words of a text, or of a field of it, for which ``flag`` gave the path."""
    text, source = open_text(path, flag, field)
    corpus = Corpus.of(passages(text, config.end), config.min_count, source.name)
    print_line(
        f"{source.name}: {counted(corpus.num_words, 'word')}, with {counted(len(corpus.vocabulary), 'different one')} of at "
        f"least {counted(config.min_count, 'occurrence')}"
    )
    return corpus


def train(corpus: Corpus, config: TextConfig, settings: Word2VecConfig) -> tuple[WordVectors, str, str]:
    """The vectors of a text; what stopped their training before its end, if anything did; and how far it came."""
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
        print(f"This text is short, and word2vec needs about {ENOUGH:,} words, all epochs together: try {more}--method counts,")
        print("which needs fewer.")
    with one_blas_thread():
        training.train()
    come = f"{training.words_done:,} of {counted(training.total_words, 'word')}"
    return training.vectors(), training.stopped_by or "", come


def check_free(out: Path, names: list[str], overwrite: bool) -> None:
    """Raise UserError if the folder has vectors, which training would replace, or folders in their place; and OSError for links
    in the place of what will be written."""
    for path in (out / name for name in names):
        if path.is_dir():
            raise UserError(f"{path} is a folder, and cannot be replaced by vectors: choose another --out")
        if path.exists() and not overwrite:
            raise UserError(f"{path} is there already: ask it with --vectors, or pass --overwrite, or another --out")
    check_names(out, [*names, "map.png", MARK])


def keep(vectors: WordVectors, path: Path, stopped_by: str, come: str) -> None:
    """Save vectors. Those of a training that was stopped are saved beside complete ones, and the script ends."""
    if stopped_by:
        path = path.with_stem(f"{path.stem}-unfinished")
    mark_results(path.parent)
    save_vectors(vectors, path)
    if stopped_by:
        stop_script(stopped_by, f"Stopped by {stopped_by} after {come}; the vectors so far are in {path}")
    print(f"Saved the vectors to {path}")


# --------------------------------------------------------------------------------------------------------- questions


def show_lookup(vectors: WordVectors) -> None:
    """Show that the vector of a word is a product with a one-hot vector."""
    word = vectors.words[min(len(vectors) - 1, 100)]
    number = vectors.ids[word]
    one_hot = host.arange(len(vectors)) == number
    difference = abs(one_hot @ vectors.matrix - vectors[word]).max()
    print(
        f"\nThe vector of {word!r} is row {number} of a matrix {vectors.matrix.shape}. The product of its one-hot vector with "
        f"the matrix differs from it by {difference:g}."
    )


def show_neighbours(vectors: WordVectors, words: list[str]) -> None:
    """Show the neighbours of words by cosine and by dot product, and how long their vectors are."""
    print("\nNearest words by cosine, which compares directions, and by dot product, for which long vectors count more:")
    lengths: dict[str, list[float]] = {"cosine": [], "dot": []}
    for word in words:
        for by in lengths:
            near = vectors.nearest(word, SHOWN, by)
            lengths[by] += [float(vectors.lengths[vectors.ids[other]]) for other, _ in near]
            print(
                f"{word if by == 'cosine' else '':>14s}  {by:6s}  {', '.join(f'{other} {score:.2f}' for other, score in near)}"
            )
    means = {by: sum(found) / len(found) for by, found in lengths.items()}
    print(
        f"The vectors of all words are {vectors.lengths.mean():.2f} long in the mean, those of neighbours by cosine "
        f"{means['cosine']:.2f}, by dot product {means['dot']:.2f}."
    )


def in_a_row(near: list[tuple[str, float]]) -> str:
    """Words and their scores."""
    return ", ".join(f"{word} {score:.2f}" for word, score in near)


def show_analogies(vectors: WordVectors, questions: list[list[str]]) -> None:
    """Show answers to analogies."""
    if questions:
        print("\nAnalogies: the words nearest to second - first + third. They need far more text than neighbours do:")
    for first, second, third in questions:
        near = vectors.analogy(first, second, third, 4)
        print(f"  {first} is to {second} as {third} is to: {in_a_row(near)}")


def show_odd(vectors: WordVectors, rows: list[list[str]]) -> None:
    """Show which of several words does not belong to the others."""
    if rows:
        print("\nThe odd one out:")
    for words in rows:
        print(f"  {' '.join(words)}: {vectors.odd_one_out(words)}")


def show_evaluation(vectors: WordVectors, path: str) -> None:
    """Show how well vectors agree with a file of word pairs or of analogies."""
    if is_of_analogies(path):
        sections = analogies(vectors, path)
        print(f"\nAnalogies of {path}:")
        for section in sections:
            unknown = f", {section.unknown:,} with an unknown word left out" if section.unknown else ""
            print(f"  {section.name}: {section.right:,} of {section.asked:,} right ({100 * section.accuracy:.1f} %){unknown}")
    else:
        found = similarity(vectors, path)
        print(
            f"\nRatings of {path}: Spearman's correlation {found.correlation:.3f} on {counted(found.known, 'pair')}, "
            f"{found.unknown:,} with an unknown word left out"
        )


def known(vectors: WordVectors, rows: list[str], fewest: int) -> list[list[str]]:
    """What a text has of rows of words: the known words of each row, if there are at least so many."""
    found = [[word for word in row.split() if word in vectors] for row in rows]
    return [words for words in found if len(words) >= fewest]


def frequent_words(vectors: WordVectors, count: int) -> list[str]:
    """Frequent words, but not the most frequent ones of all, which are used with any others."""
    first = min(50, len(vectors) // 4)
    return list(vectors.words[first : first + count])


def draw(vectors: WordVectors, asked: list[str], path: Path) -> None:
    """Draw a map of words: groups of words, or frequent words, and those that were asked for."""
    groups = {name: words for name, row in MAP.items() for words in known(vectors, [row], 1)}
    if sum(map(len, groups.values())) < FEWEST:
        groups = {"frequent words": frequent_words(vectors, 60)}
    of_groups = {word for words in groups.values() for word in words}
    groups["asked for"] = [word for word in asked if word not in of_groups]
    groups = {name: words for name, words in groups.items() if words}
    words = list(dict.fromkeys(word for row in groups.values() for word in row))
    points, share = vectors.plane(words)
    note = (
        f"Words as points of the plane that shows most of their differences, {100 * share:.0f} % (PCA of "
        f"{counted(vectors.width, 'number')} a word). Words that are used alike lie near each other; the "
        "axes have no meaning of their own."
    )
    with if_possible():
        print(f"Drew {word_map(dict(zip(words, points.tolist())), groups, note, path)}")


# --------------------------------------------------------------------------------------------------------- comparing


def common_words(
    first: Vocabulary | WordVectors, second: Vocabulary | WordVectors, min_count: int = TextConfig.min_count
) -> list[str]:
    """The words of both, of texts whose words occur ``min_count`` times. Raises UserError for fewer than can be compared."""
    common = [word for word in first.words if word in second.ids]
    if len(common) < COMPARED + 2:
        raise UserError(
            f"the texts have {counted(len(common), 'word')} in common, too few to compare: give longer ones"
            + (", or a lower --min-count" if min_count > 1 else "")
        )
    return common


def compare(first: WordVectors, second: WordVectors, words: list[str]) -> None:
    """Show how the neighbours of words differ between the vectors of two texts, among the words that both have."""
    common = common_words(first, second)
    one, two = (WordVectors(common, v.matrix[[v.ids[word] for word in common]]) for v in (first, second))
    near = {word: [[w for w, _ in v.nearest(word, COMPARED)] for v in (one, two)] for word in (words or common[:FREQUENT])}
    shared = {word: len({*a} & {*b}) for word, (a, b) in near.items()}
    print(f"\nIn both texts: {counted(len(common), 'word')}. Of the {COMPARED} nearest words, both texts share:")
    order = sorted(near, key=lambda word: (shared[word], one.ids[word]))
    shown = order if words else dict.fromkeys(order[:8] + order[-8:])
    if len(shown) < len(near):
        print(
            f"(of {counted(len(near), 'frequent word')} the 8 whose neighbours differ most, and the 8 whose neighbours differ "
            "least)"
        )
    for word in shown:
        print(f"{word:>14s} {shared[word]:3d}  first:  {', '.join(near[word][0])}")
        print(f"{'':>14s}      second: {', '.join(near[word][1])}")
    print(f"In the mean over {counted(len(near), 'word')}, both share {sum(shared.values()) / len(near):.1f} of {COMPARED}.")


# ------------------------------------------------------------------------------------------------------ command line


def parse(words: list[str]) -> argparse.Namespace:
    """The command line, whose only command is to get vectors and to ask them."""
    parser = Parser(
        prog="word_vectors.py",
        description="Train word vectors on a text, and show what they know: neighbours, analogies, odd ones out and a map.",
    )
    source = parser.add_mutually_exclusive_group()
    add_text_flag(parser, source)
    source.add_argument(
        "--vectors", help="no training: vectors of this file, in word2vec's text format", type=some_path, metavar="FILE"
    )
    source.add_argument("--compare", help="train on two texts, and compare", nargs=2, type=some_path, metavar=("A", "B"))
    parser.add_argument("--limit", help="read only so many words of --vectors", type=int, metavar="INT")
    several: dict[str, Any] = {"action": "extend", "nargs": "+", "default": []}
    questions: dict[str, Any] = {"action": "append", "type": composed, "default": [], "metavar": "WORD"}
    parser.add_argument("--ask", help="words to show the neighbours of", type=composed, metavar="WORD", **several)
    parser.add_argument("--analogy", help="first is to second as third is to ...; may be repeated", nargs=3, **questions)
    parser.add_argument("--odd", help="words of which one does not belong; may be repeated", nargs="+", **questions)
    parser.add_argument(
        "--evaluate", help="files of rated word pairs or of analogies", type=some_path, metavar="FILE", **several
    )
    parser.add_argument("--out", help="the folder of vectors and map", default=DEFAULT_OUT, type=some_path, metavar="FOLDER")
    parser.add_argument("--overwrite", help="replace the vectors in --out", action="store_true")
    add_settings(parser, TextConfig, "text")
    add_settings(parser, Word2VecConfig, "vectors (of --method counts only width, window and seed)", epochs=EPOCHS)
    fields = (field.name for kind in (TextConfig, Word2VecConfig) for field in dataclasses.fields(kind))
    of_training = ["field", "overwrite", *fields]
    parser.has_no_effect(of_training, lambda given: given.vectors, "with --vectors, which need no training")
    parser.has_no_effect(WORD2VEC_ONLY, lambda given: getattr(given, "method", None) == "counts", "with --method counts")
    parser.has_no_effect("limit", lambda given: not given.vectors, "without --vectors")
    parser.has_no_effect(["analogy", "odd", "evaluate"], lambda given: given.compare, "with --compare, which knows only --ask")
    parser.has_no_effect("out", draws_nothing, "with these questions of --vectors: the map is of --ask")
    parser.set_defaults(run=run)
    return parser.parse_args(words)


def draws_nothing(given: argparse.Namespace) -> bool:
    """Whether nothing is written with these flags."""
    return bool(given.vectors and not given.ask and (given.analogy or given.odd or given.evaluate))


def run(arguments: argparse.Namespace) -> None:
    """Train or read vectors, and show what they know."""
    if arguments.limit is not None and arguments.limit < 1:
        raise SettingError(f"limit must be at least 1, not {arguments.limit}")
    if any(len(set(words)) < 3 for words in arguments.odd):
        raise SettingError("odd needs at least three different words to choose from")
    for path in arguments.evaluate:
        is_of_analogies(path)  # raises UserError for a file that cannot be read
    if arguments.vectors:
        ask(arguments)
        return
    with RunFolder(arguments.out).held():  # makes the folder, if that is possible
        learn(arguments)


def in_folder(path: str) -> str:
    """The file of word vectors at a path, which may be the folder of their run. Raises UserError for that of another run."""
    found = found_in(path)
    if found is not None and found.kind != "word vectors":
        raise found.refusal(path, "word vectors")
    return path if found is None else str(Path(path, "vectors.txt"))


def ask(arguments: argparse.Namespace) -> None:
    """Read vectors from a file, and show what they know."""
    vectors = load_vectors(in_folder(arguments.vectors), arguments.limit)
    if len(vectors) < 2:
        remedy = ": --limit 2 is the least" if arguments.limit == 1 else ", and there are no others"
        raise UserError(f"one word alone, {vectors.words[0]!r} of {arguments.vectors}, has no neighbours{remedy}")
    check_words(arguments, vectors)
    print(f"{arguments.vectors}: {counted(len(vectors), 'word')}, {counted(vectors.width, 'number')} a word")
    answer(vectors, arguments)


def learn(arguments: argparse.Namespace) -> None:
    """Train on a text, or on two, and show what the vectors know. What is asked is checked before."""
    out, names, paths, flag = Path(arguments.out), ["vectors.txt"], [arguments.data], "--data"
    if arguments.compare:
        names, paths, flag = ["first.txt", "second.txt"], arguments.compare, "--compare"
    config, settings = settings_of(arguments)
    check_free(out, names, arguments.overwrite)
    corpora = [read(path, flag, arguments.field, config) for path in paths]
    for corpus, path in zip(corpora, paths):
        check_words(arguments, corpus.vocabulary, f" in {path}" if arguments.compare else "")
    if arguments.compare:
        common_words(*(corpus.vocabulary for corpus in corpora), config.min_count)

    learned = []
    for corpus, name in zip(corpora, names):
        vectors, *stopped = train(corpus, config, settings)
        keep(vectors, out / name, *stopped)
        learned.append(vectors)
    if arguments.compare:
        compare(*learned, arguments.ask)
    else:
        answer(*learned, arguments)


def check_words(arguments: argparse.Namespace, there: Vocabulary | WordVectors, where: str = "") -> None:
    """Raise UserError for a word of a question that is not known."""
    for row in [arguments.ask, *arguments.analogy, *arguments.odd]:
        for word in row:
            check_known(word, there.ids, there.words, where)


def answer(vectors: WordVectors, arguments: argparse.Namespace) -> None:
    """Answer what the user asks, or where that is nothing, show what there is."""
    asks = bool(arguments.ask or arguments.analogy or arguments.odd or arguments.evaluate)
    asked = arguments.ask
    if not asks:
        show_lookup(vectors)
        asked = [word for words in known(vectors, ASKED, 1) for word in words][:6] or frequent_words(vectors, 6)
    if asked:
        show_neighbours(vectors, asked)
    show_analogies(vectors, arguments.analogy if asks else known(vectors, ANALOGIES, 3))
    show_odd(vectors, arguments.odd if asks else known(vectors, ODD, 4))
    for path in arguments.evaluate:
        show_evaluation(vectors, path)
    if not asks or arguments.ask:
        draw(vectors, arguments.ask, Path(arguments.out) / "map.png")


if __name__ == "__main__":
    run_command(parse)
