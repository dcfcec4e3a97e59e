"""Answer questions with word vectors: neighbors, analogies, odd ones out, a map, and a comparison of two corpora."""

from __future__ import annotations

import argparse
from pathlib import Path

from tinyformer.common.errors import UserError
from tinyformer.plots import if_possible, word_map
from tinyformer.word_vectors import Vocabulary, WordVectors, analogies, is_of_analogies, similarity
from tinyformer.word_vectors.corpus import check_known
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

SHOWN = 8  # neighbors per word
COMPARED = 10  # neighbors per word when comparing two corpora
FREQUENT = 300  # frequent words of both corpora whose neighbors are compared

# Default questions, if the corpus has their words.
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
FEWEST = 12  # minimum words of the map; if fewer are known, frequent words are drawn


def check_words(arguments: argparse.Namespace, vocabulary: Vocabulary | WordVectors, where: str = "") -> None:
    """Raise UserError for an unknown word in a question."""
    for row in [arguments.ask, *arguments.analogy, *arguments.odd]:
        for word in row:
            check_known(word, vocabulary.ids, vocabulary.words, where)


def answer(vectors: WordVectors, arguments: argparse.Namespace) -> None:
    """Answer the user's questions or, if there are none, the default questions."""
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


def show_lookup(vectors: WordVectors) -> None:
    """Show that looking up a word's vector equals a product with a one-hot vector."""
    word = vectors.words[min(len(vectors) - 1, 100)]
    number = vectors.ids[word]
    one_hot = host.arange(len(vectors)) == number
    difference = abs(one_hot @ vectors.matrix - vectors[word]).max()
    print(
        f"\nThe vector of {word!r} is row {number} of a matrix {vectors.matrix.shape}. The product of its one-hot vector with "
        f"the matrix differs from it by {difference:g}."
    )


def show_neighbours(vectors: WordVectors, words: list[str]) -> None:
    """Show the neighbors of words by cosine and by dot product, and the lengths of their vectors."""
    print("\nNearest words by cosine (compares directions) and by dot product (favors long vectors):")
    lengths: dict[str, list[float]] = {"cosine": [], "dot": []}
    for word in words:
        for by in lengths:
            near = vectors.nearest(word, SHOWN, by)
            lengths[by] += [float(vectors.lengths[vectors.ids[other]]) for other, _ in near]
            print(f"{word if by == 'cosine' else '':>14s}  {by:6s}  {in_a_row(near)}")
    means = {by: sum(values) / len(values) for by, values in lengths.items()}
    print(
        f"Mean vector length: all words {vectors.lengths.mean():.2f}, nearest by cosine {means['cosine']:.2f}, "
        f"nearest by dot product {means['dot']:.2f}."
    )


def in_a_row(near: list[tuple[str, float]]) -> str:
    """Format words and their scores."""
    return ", ".join(f"{word} {score:.2f}" for word, score in near)


def show_analogies(vectors: WordVectors, questions: list[list[str]]) -> None:
    """Print answers to analogies."""
    if questions:
        print("\nAnalogies, by the words nearest to second - first + third (they need much more text):")
    for first, second, third in questions:
        near = vectors.analogy(first, second, third, 4)
        print(f"  {first} is to {second} as {third} is to: {in_a_row(near)}")


def show_odd(vectors: WordVectors, rows: list[list[str]]) -> None:
    """Print the odd one out in each row of words."""
    if rows:
        print("\nThe odd one out:")
    for words in rows:
        print(f"  {' '.join(words)}: {vectors.odd_one_out(words)}")


def show_evaluation(vectors: WordVectors, path: str) -> None:
    """Print how well vectors agree with a file of word pairs or analogies."""
    if is_of_analogies(path):
        sections = analogies(vectors, path)
        print(f"\nAnalogies of {path}:")
        for section in sections:
            unknown = f", {section.unknown:,} with an unknown word left out" if section.unknown else ""
            print(f"  {section.name}: {section.right:,} of {section.asked:,} right ({100 * section.accuracy:.1f} %){unknown}")
    else:
        rated = similarity(vectors, path)
        print(
            f"\nRatings of {path}: Spearman's correlation {rated.correlation:.3f} on {counted(rated.known, 'pair')}, "
            f"{rated.unknown:,} with an unknown word left out"
        )


def known(vectors: WordVectors, rows: list[str], fewest: int) -> list[list[str]]:
    """Return the known words of each row with at least ``fewest`` of them."""
    known_words = ([word for word in row.split() if word in vectors] for row in rows)
    return [words for words in known_words if len(words) >= fewest]


def frequent_words(vectors: WordVectors, count: int) -> list[str]:
    """Return frequent words, except the most frequent, which occur next to any other word."""
    first = min(50, len(vectors) // 4)
    return list(vectors.words[first : first + count])


def draw(vectors: WordVectors, asked: list[str], path: Path) -> None:
    """Draw a map of words: groups of words or frequent words, and the user's words."""
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


def common_words(first: Vocabulary | WordVectors, second: Vocabulary | WordVectors, min_count: int = 1) -> list[str]:
    """Return the words that two corpora share. Raises UserError for too few, and may suggest a lower ``min_count``."""
    common = [word for word in first.words if word in second.ids]
    if len(common) < COMPARED + 2:
        raise UserError(
            f"the texts have {counted(len(common), 'word')} in common, too few to compare: give longer ones"
            + (", or a lower --min-count" if min_count > 1 else "")
        )
    return common


def compare(first: WordVectors, second: WordVectors, words: list[str]) -> None:
    """Show how the neighbors of shared words differ between two corpora."""
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
    print(f"On average over {counted(len(near), 'word')}, both share {sum(shared.values()) / len(near):.1f} of {COMPARED}.")
