"""Counts and articles in messages, and phrases that no page, docstring or message has."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tinytensor.common.wording import a_or_an, counted, plural

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("number", "what", "said"),
    [
        (0, "pair", "0 pairs"),
        (1, "pair", "1 pair"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (1, "query", "1 query"),
        (12345, "query", "12,345 queries"),
        (2, "key", "2 keys"),
        (2, "axis", "2 axes"),
        (3, "class", "3 classes"),
        (1, "different source sentence", "1 different source sentence"),
        (2, "held-out problem", "2 held-out problems"),
    ],
)
def test_counts(number: int, what: str, said: str) -> None:
    assert counted(number, what) == said


def test_an_irregular_plural() -> None:
    assert (counted(1, "matrix", "matrices"), counted(2, "matrix", "matrices")) == ("1 matrix", "2 matrices")
    assert plural("box") == "boxes"


# Plurals that messages put after a number. Where the number can be 1, ``counted`` must choose the word.
COUNTABLE = (
    "animals|arguments|axes|batches|bits|bytes|channels|characters|classes|columns|cores|counts|dimensions|draws|elements|entries|"
    "epochs|evaluations|files|folders|frames|gates|GPUs|gradients|heads|ids|indices|inputs|integers|keys|kinds|layers|leaves|"
    "letters|lines|masks|matrices|minutes|models|names|nodes|numbers|occurrences|ones|ops|orders|others|outputs|pairs|parameters|"
    "parts|pieces|places|points|positions|problems|processes|queries|questions|ranks|recordings|rows|runs|samples|seconds|"
    "sentences|settings|shapes|shards|sources|states|steps|symbols|targets|tensors|texts|threads|times|tokens|values|vectors|"
    "weights|words|workers"
)
PLURAL = re.compile(rf"(?: [a-z-]+){{0,2}}? ({COUNTABLE})\b(?!/)")
OF_SEVERAL = re.compile(" (are|were|have|do) ")
VERBS = re.compile(r" (has|holds|is|was|cannot|asks|takes|needs|names|leaves|got|must|of|with|in|each|instead|that|as)\b")
# Numbers that are never 1, and values that are no numbers.
NOT_COUNTED = {
    "model.num_parameters()", "translator.model.num_parameters()", "transcriber.model.num_parameters()", "len(VOICES)",
    "num_weights(model)", "around", "longest", "together", "len(dtypes)", "axes[name]", "min_count", "tokens_a_second",
    "self.words_done / seconds", "int(count.bit_length() * math.log10(2))",
    "name", "side", "both", "counts", "which", "path", "given", "speed", "self.positions", "found[name].dtype", "value.dtype",
    "query_name.partition(': ')[2]", "key_name.partition(': ')[2]", "shortened(' '.join(numbers), 60)",
}  # fmt: skip


def in_the_packages(faults: Callable[[str], list[str]]) -> dict[str, list[str]]:
    """The files of the packages in whose source there are such faults, and which."""
    return {
        path.relative_to(ROOT).as_posix(): found
        for folder in ("tinyformer", "tinytensor")
        for path in (ROOT / folder).rglob("*.py")
        if (found := faults(path.read_text(encoding="utf-8")))
    }


def wrongly_counted(source: str) -> list[str]:
    """Return the f-strings of a file that put a number before a fixed plural, or choose an ending."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, [*node.values[1:], None]):
            if not isinstance(value, ast.FormattedValue):
                continue
            number = ast.unparse(value.value)
            after = str(text.value) if isinstance(text, ast.Constant) else ""
            is_number = "len(" in number or (value.format_spec is not None and "," in ast.unparse(value.format_spec))
            is_plural = PLURAL.match(after) or (is_number and OF_SEVERAL.match(after))
            is_known = number in NOT_COUNTED or number.isupper() or number.startswith("counted(") or VERBS.match(after)
            if (is_plural and not is_known) or re.match(r"'e?s' (\*|if)", number):
                wrong.append(f"{node.lineno}: {{{number}}}{after}")
    return wrong


def test_messages_count_with_it() -> None:
    """No message puts a number before a fixed plural: "1 pairs", "1 are different". (The examples stay simple instead.)"""
    assert not in_the_packages(wrongly_counted)


@pytest.mark.parametrize(
    "text",
    ["{len(pairs)} pairs", "{n:,} held-out sentences", "{steps} steps", "of {k} very small files", "{left:,} are different",
     "{n} key{'s' * (n > 1)}", "{n} batch{'es' if n > 1 else ''}"],
)  # fmt: skip
def test_a_fixed_plural_is_found(text: str) -> None:
    assert wrongly_counted(f'print(f"{text}")')


def test_correct_plurals_are_not_found() -> None:
    said = "{counted(n, 'pair')} of {MOST} pairs in {path} at {speed:,} tokens/s; {shape} do not fit; {folder} has no files"
    assert not wrongly_counted(f'print(f"{said}")')


@pytest.mark.parametrize(
    "said",
    ["a list", "an int", "an ndarray", "a numpy.ndarray", "an Embedding", "a UnigramTokenizer", "a GPT", "an LSTM",
     "an RMSNorm", "a RobertaModel", "a NoneType", "a BPETokenizer"],
)  # fmt: skip
def test_articles(said: str) -> None:
    assert a_or_an(said.partition(" ")[2]) == said


def articles_by_hand(source: str) -> list[str]:
    """The f-strings of a file in which the name of a type follows "a" or "an": for some types it is the other one."""
    return [
        f"{node.lineno}: {text.value}{{{ast.unparse(value.value)}}}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.JoinedStr)
        for text, value in zip(node.values, node.values[1:])
        if isinstance(text, ast.Constant) and re.search(r"\b[Aa]n? $", str(text.value))
        if isinstance(value, ast.FormattedValue) and re.search(r"__name__|kind_name\(", ast.unparse(value.value))
    ]


def test_messages_choose_the_article_with_it() -> None:
    """Nothing is called "a int" or "a Embedding"."""
    assert not in_the_packages(articles_by_hand)


@pytest.mark.parametrize("text", ["not a {type(x).__name__}", "A {kind_name(x)} is no tensor", "{name} is an {op.__name__}"])
def test_a_fixed_article_is_found(text: str) -> None:
    assert articles_by_hand(f'print(f"{text}")')


def test_correct_articles_are_not_found() -> None:
    assert not articles_by_hand('print(f"not {a_or_an(type(x).__name__)}, the {type(y).__name__} of a {folder}")')


# Phrases that a reader has to decode. The lists only grow, and have no exceptions.
RIDDLES = (
    "a look at|as it stands|brings nothing|comes to its end|costs nothing|for its own sake|formerly|going on|hence|in sight|"
    "is dear|is to be told|of no use|of old|of that kind|out of sight|so that of|such as it is|thereby|therein|thereof|till|"
    "went on|what is told|wherefore|wherein|whereby|without a word|anew|are told|as they stand|but for|by hand|go on|goes on|"
    "is told|looks at|stand-in|the way back|told apart|twin|twins|unsure|what is typed"
)
ON_PAGES = "at once|in a row|in place of|of its own|of their own|of which|the like|those that"


def riddles(text: str, phrases: str = RIDDLES) -> list[str]:
    """The phrases of a list in a text, also where they run over a line."""
    return re.findall(rf"\b(?:{phrases})\b", re.sub(r"\s+(?:# )?", " ", text), flags=re.IGNORECASE)


def test_no_docstring_or_message_is_a_riddle() -> None:
    assert not in_the_packages(riddles)


def test_no_page_is_a_riddle() -> None:
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    pages = [path for path in paths if "_build" not in path.parts]
    assert len(pages) > 50
    assert not {path.name: said for path in pages if (said := riddles(path.read_text("utf-8"), f"{RIDDLES}|{ON_PAGES}"))}


@pytest.mark.parametrize("text", ["Hence it falls.", "# labels that are\n# of no use here", "The weights, such as it is,"])
def test_a_riddle_is_found(text: str) -> None:
    assert len(riddles(text)) == 1 and not riddles("thence, untilled, henceforth")
