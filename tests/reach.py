"""Find the test files that a change can affect: all that depend on a changed file, directly or through other files.

``python tests/reach.py BASE`` prints the test files that depend on what the working tree changes since the commit BASE. A file
depends on

- what it imports, in its functions too, and each ``__init__.py`` on the way;
- for a test file: the ``conftest.py`` files beside and above it, the files it names, the commands of ``tinyformer`` it runs;
- what ``USES`` lists for it.

``tests/documents`` is always printed. A changed file on which nothing depends affects all tests, unless it is Python or a page.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("tinytensor", "tinyformer")
ALWAYS = "tests/documents/"
SEARCHED = ("", "tests/", "tests/gpu/", "tests/standin/", "benchmarks/", "docs/_extensions/")  # where tests find modules
# What a file, or every file below a folder, uses without importing or naming it: files, or all files below a folder.
USES = {
    "tests/": [".ci/", ".github/", "pyproject.toml"],
    "tests/browser/test_site.py": ["docs/"],
    "tests/commands/test_kept_runs.py": ["tests/commands/kept_runs/", "tests/commands/runs_of_before/"],
    "tests/commands/test_runs_of_before.py": ["tests/commands/runs_of_before/"],
    "tests/cuda/": ["tinytensor/kernels/cupy/"],
    "tests/examples/": ["examples/"],
    "tests/javascript_modules.py": ["tinyformer/javascript/"],
    "tests/site/": ["docs/"],
    "tests/standin/": ["tests/standin/"],
    "tests/tinytensor/test_cuda": ["tests/standin/"],
    "tests/wheel/": ["LICENSE", "README.md"],
    "docs/_extensions/results.py": ["benchmarks/results/"],
    "tinyformer/explore/serving/server.py": ["tinyformer/explore/page/", "tinyformer/javascript/"],
    "tinyformer/export/web.py": ["tinyformer/export/page/", "tinyformer/javascript/"],
    "tinytensor/common/missing.py": ["tinytensor/common/names_elsewhere.md"],
    "tinytensor/kernels/cupy/": ["tinytensor/kernels/cupy/"],
    "tinyformer/__init__.py": ["tinyformer/__init__.pyi"],
}
# A test file that imports from one of these modules runs the commands that it names.
RUNNERS = r"(subprocess|running|forked|browsing|importlib|tinyformer\.commands\.main)(\.|$)"


def running(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes of a file that run, or may run: all but those for type checkers alone."""
    nodes, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in (test := ast.unparse(node.test)):
            waiting += node.orelse if test == "TYPE_CHECKING" else node.body
        else:
            nodes.append(node)
            waiting += ast.iter_child_nodes(node)
    return nodes


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the dotted names that nodes import, such as ``a.b`` for ``from a import b``: a module, or a name in one."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tinyformer":
            names.add(f"tinyformer.{node.attr}")
    return names


def strings(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the strings among nodes, without docstrings."""
    constants = {id(node): node.value for node in nodes if isinstance(node, ast.Constant)}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return {value for key, value in constants.items() if isinstance(value, str) and key not in docstrings}


def git(*words: str) -> set[str]:
    """Return the lines that a command of git prints."""
    command = ["git", "-C", str(ROOT), *words]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())


class Project:
    """The files of the project, by their paths from its root, and which of them each file depends on."""

    def __init__(self, files: Iterable[str]):
        self.files = frozenset(files)  # a file that is gone may be among them: who imports it depends on it
        self._used: dict[str, set[str]] = {}
        self._reached: dict[str, set[str]] = {}

    @cached_property
    def lazy(self) -> dict[str, str]:
        """The module of each name that ``import tinyformer`` loads when it is used."""
        nodes = ast.parse((ROOT / "tinyformer/__init__.pyi").read_text(encoding="utf-8")).body
        return {
            f"tinyformer.{alias.name}": f"{node.module}.{alias.name}"
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    @cached_property
    def commands(self) -> dict[str, str]:
        """The file of each command, by the last word of the command."""
        tree = ast.parse((ROOT / "tinyformer/commands/main.py").read_text(encoding="utf-8"))
        table = next(node.value for node in tree.body if isinstance(node, ast.AnnAssign) and node.value is not None)
        groups = ast.literal_eval(table).values()
        return {name.split()[-1]: f"tinyformer/commands/{row[2]}.py" for group in groups for name, row in group.items()}

    def module(self, name: str, folder: str) -> set[str]:
        """Return the file of a dotted name, with each ``__init__.py`` on the way. It is empty for other projects' modules."""
        name = self.lazy.get(name, name)
        for dotted in (name, name.rpartition(".")[0]):
            path = dotted.replace(".", "/")
            for base in (f"{folder}/", *SEARCHED):
                for file in {f"{base}{path}.py", f"{base}{path}/__init__.py"} & self.files:
                    packages = {f"{base}{parent}/__init__.py" for parent in Path(path).parents}
                    return {file} | (packages & self.files)
        return set()

    def uses(self, path: str) -> set[str]:
        """Return the files on which a file depends directly."""
        if path not in self._used:
            used = {one for start, paths in USES.items() if path.startswith(start) for one in paths}
            self._used[path] = {file for file in self.files if file.startswith(tuple(used))} | self._says(path)
        return self._used[path]

    def _says(self, path: str) -> set[str]:
        """Return the files that a file of Python, or a page with Python, imports or names."""
        if not path.endswith((".py", ".md")) or not (ROOT / path).exists():
            return set()
        folder, text = str(Path(path).parent), (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            text = "\n".join(re.findall(r"(?m)^(?:from [\w.]+ import [\w, ]*\w|import [\w., ]*\w)", text))
        nodes = running(ast.parse(text))
        names = imported(nodes)
        used = set().union(*(self.module(name, folder) for name in names))
        return used | self._tests_use(path, folder, names, strings(nodes)) if path.startswith("tests/") else used

    def _tests_use(self, path: str, folder: str, names: set[str], said: set[str]) -> set[str]:
        """Return what a file of tests uses besides its imports: ``conftest.py`` files, files it names, commands it runs."""
        used = {f"{parent}/conftest.py" for parent in Path(path).parents}
        used |= {f"{start}{name}" for name in said for start in ("", f"{folder}/")}
        if "*.py" in said:  # it reads the source
            used |= {file for file in self.files if file.startswith(PACKAGES)}
        if any(re.match(RUNNERS, name) for name in names) and path != "tests/conftest.py":  # which names files for all tests
            every = "tinyformer.commands.main.ALL" in names and Path(path).name.startswith("test_")
            words = set(re.findall(r"\w+", " ".join(said)))
            used |= {file for word, file in self.commands.items() if every or word in words}
        return used & self.files

    def reach(self, path: str) -> set[str]:
        """Return all files on which a file depends, and the file itself."""
        if path not in self._reached:
            seen, waiting = {path}, [path]
            while waiting:
                new = self.uses(waiting.pop()) - seen
                seen |= new
                waiting += new
            self._reached[path] = seen
        return self._reached[path]

    def affected(self, changed: Iterable[str]) -> list[str]:
        """Return the test files that depend on a changed file."""
        changed = set(changed)
        tests = sorted(file for file in self.files if re.fullmatch(r"tests/.*/test_\w+\.py", file) and (ROOT / file).exists())
        reached = {test: self.reach(test) for test in tests}
        unknown = changed.difference(*reached.values())
        if any(not file.endswith((".py", ".md")) for file in unknown):
            return tests
        return [test for test in tests if test.startswith(ALWAYS) or reached[test] & changed]


def tracked() -> set[str]:
    """Return the files of the working tree that git does not ignore."""
    return git("ls-files", "--cached", "--others", "--exclude-standard")


def changed_since(base: str) -> set[str]:
    """Return the files that differ between a commit and the working tree, new files included."""
    return git("diff", "--name-only", "--no-renames", base) | git("ls-files", "--others", "--exclude-standard")


def main() -> None:
    """Print the test files that a change can affect."""
    parser = argparse.ArgumentParser(description="Print the test files that a change can affect.")
    parser.add_argument("base", metavar="BASE", help="a commit to compare the working tree with")
    changed = changed_since(parser.parse_args().base)
    print(*Project(tracked() | changed).affected(changed), sep="\n")


if __name__ == "__main__":
    main()
