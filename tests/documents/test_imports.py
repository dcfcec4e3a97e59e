"""Imports run one way, without circles."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from reach import imported, running

ROOT = Path(__file__).parents[2]


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {name_of(file): file for package in ("tinytensor", "tinyformer") for file in (ROOT / package).rglob("*.py")}


def modules(text: str) -> set[str]:
    """The modules of the two packages that a file imports, in its functions, too."""
    return {name if name in FILES else name.rpartition(".")[0] for name in imported(running(ast.parse(text)))} & set(FILES)


GRAPH = {name: modules(file.read_text(encoding="utf-8")) for name, file in FILES.items()}


def test_there_is_no_circle():
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_a_circle_would_be_found():
    a_circle = {"a": {"b"}, "b": {"a"}}
    with pytest.raises(CycleError):
        TopologicalSorter(a_circle).prepare()
    assert modules(
        "import tinyformer.common.memory\nfrom tinytensor import nn, Tensor\ndef f():\n    import tinytensor.io"
    ) == {"tinyformer.common.memory", "tinytensor.nn", "tinytensor", "tinytensor.io"}
    assert modules("if TYPE_CHECKING:\n    import tinytensor.io\nelse:\n    import tinyformer.common.files") == {
        "tinyformer.common.files"
    }


# The rooms of each package, from the ground up: a room imports those before it in this list, and never one after it.
ROOMS = {
    "tinytensor": (
        "device common autograd kernels random creation ops functional nn parallel optim transforms linalg io replay display "
        "distributed"
    ).split(),
    "tinyformer": (
        "common data audio tokenizers models decoding markov word_vectors plots pretrained chat training export javascript "
        "explore commands"
    ).split(),
}


def room_of(name: str) -> tuple[str, str]:
    package, _, rest = name.partition(".")
    return package, rest.partition(".")[0]


def test_every_room_has_its_place():
    guide = (ROOT / "docs/guides/reading_the_source.md").read_text(encoding="utf-8")
    tables = dict(re.findall(r"\*\*(tiny\w+)\*\*\n\n((?:\|.*\n)+)", guide))
    for package, rooms in ROOMS.items():
        assert re.findall(r"`(\w+)(?:/|\.py)`", "".join(re.findall(r"(?m)^\|[^|]+\|", tables[package]))) == rooms
        assert {room_of(name)[1] for name in FILES if name.startswith(f"{package}.")} - {"__main__"} == set(rooms)
        assert len(set(rooms)) == len(rooms)


def test_the_files_that_guides_name_are_there():
    """Every path below a package that README, CONTRIBUTING and the pages of docs/ name."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.rst")]
    named = [(p.name, path) for p in pages for path in re.findall(r"`(tiny\w+/[\w/.]+)`", p.read_text(encoding="utf-8"))]
    assert len(named) > 50
    assert [(page, path) for page, path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", FILES)
def test_a_room_imports_only_those_below_it(name):
    package, room = room_of(name)
    if room in ("", "__main__"):  # the package itself brings everything together
        return
    for other in GRAPH[name]:
        of_package, of_room = room_of(other)
        if of_package != package:
            assert (package, of_package) == ("tinyformer", "tinytensor"), other
        elif of_room != room:
            assert of_room in ROOMS[package][: ROOMS[package].index(room)], other


def test_every_import_names_its_file():
    """``from tinyformer import GPT`` inside of tinyformer, or a relative import, would hide from these tests what it loads."""
    whole = [name for name in FILES if name.partition(".")[0] in GRAPH[name]]
    relative = [name for name, file in FILES.items() if re.search(r"(?m)^\s*from\s+\.", file.read_text(encoding="utf-8"))]
    assert whole == relative == []
