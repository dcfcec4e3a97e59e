"""Imports run one way: there is no circle when a program runs, and nothing imports what is built on it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {name_of(file): file for package in ("tinytensor", "tinyformer") for file in (ROOT / package).rglob("*.py")}


def running(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a file that run, or may: all but what is for type checkers alone."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children = node.orelse if ast.unparse(node.test) == "TYPE_CHECKING" else node.body
    else:
        yield node
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from running(child)


def imported(text: str) -> set[str]:
    """The modules of the two packages that a file imports, in its functions, too."""
    found = set()
    for node in running(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in FILES else node.module for name in names}
    return found & set(FILES)


GRAPH = {name: imported(file.read_text(encoding="utf-8")) for name, file in FILES.items()}


def test_there_is_no_circle():
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_a_circle_would_be_found():
    a_circle = {"a": {"b"}, "b": {"a"}}
    with pytest.raises(CycleError):
        TopologicalSorter(a_circle).prepare()
    assert imported(
        "import tinyformer.common.memory\nfrom tinytensor import nn, Tensor\ndef f():\n    import tinytensor.io"
    ) == {
        "tinyformer.common.memory",
        "tinytensor.nn",
        "tinytensor",
        "tinytensor.io",
    }
    assert imported("if TYPE_CHECKING:\n    import tinytensor.io\nelse:\n    import tinyformer.common.files") == {
        "tinyformer.common.files"
    }


def of(package: str, names: str) -> tuple[str, ...]:
    return tuple(f"{package}.{name}" for name in names.split())


# What each may not import: what is built on it, and packages beside it that it does not need.
SCRIPTS = "command_line scripts transcription translation"
ABOVE = {
    "tinytensor": ("tinyformer",),
    "tinytensor.kernels": of("tinytensor", "changes checks engine calling op ops tensor functional fused nn"),
    "tinytensor.ops": ("tinytensor.autograd.tensor", "tinytensor.nn"),
    "tinyformer.models": of("tinyformer", f"tokenizers data training decoding {SCRIPTS}"),
    "tinyformer.tokenizers": of("tinyformer", f"models data training decoding {SCRIPTS}"),
    "tinyformer.data": of("tinyformer", f"models tokenizers training decoding {SCRIPTS}"),
    "tinyformer.training": of("tinyformer", f"tokenizers decoding {SCRIPTS}"),
    "tinyformer.decoding": of("tinyformer", f"tokenizers training {SCRIPTS}"),
}


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("package", ABOVE)
def test_nothing_imports_what_is_built_on_it(package):
    inside = [name for name in FILES if within(name, package)]
    assert inside
    upward = [(name, other) for name in inside for other in GRAPH[name] for above in ABOVE[package] if within(other, above)]
    assert upward == []


def test_every_import_names_its_file():
    """``from tinyformer import GPT`` inside of tinyformer, or a relative import, would hide from these tests what it loads."""
    whole = [name for name in FILES if name.partition(".")[0] in GRAPH[name]]
    nodes = {name: ast.walk(ast.parse(file.read_text(encoding="utf-8"))) for name, file in FILES.items()}
    relative = [name for name in FILES for node in nodes[name] if isinstance(node, ast.ImportFrom) and node.level]
    assert whole == relative == []
