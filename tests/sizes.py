"""How large the project is: the lines of each room, the largest files, and the budgets that a test holds it to.

python tests/sizes.py

Lines are all those of Python files, blank ones, comments and docstrings among them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("tinytensor", "tinyformer")
OTHERS = ("benchmarks", "examples", "tests")
CORE = [f"tinytensor/autograd/{name}.py" for name in ("engine", "op")]
# The most lines, which only fall: what comes must make room.
MOST_OF_PACKAGES, MOST_OF_BENCHMARKS = 55_340, 3_660


@dataclass(frozen=True)
class Budget:
    """A number of lines, and how many are used."""

    what: str
    used: int
    most: int


def lines_of(folder: str) -> dict[str, int]:
    """The lines of each Python file in a folder of the project and in those below it, by its path from the root."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): len(file.read_text(encoding="utf-8").splitlines()) for file in files}


def of_packages() -> dict[str, int]:
    """The lines of each file of the packages."""
    return {name: count for package in PACKAGES for name, count in lines_of(package).items()}


def rooms() -> dict[str, int]:
    """The lines of each room: of the folders of both packages with all below them, and of the files beside these folders."""
    found: Counter[str] = Counter()
    for name, count in of_packages().items():
        found["/".join(name.split("/")[:-1][:2]) + "/"] += count
    return {**found, **{f"{folder}/": sum(lines_of(folder).values()) for folder in OTHERS}}


def budgets() -> list[Budget]:
    """All budgets."""
    files = of_packages()
    largest = max(files, key=lambda name: files[name])
    return [
        Budget(f"the largest file of the packages, {largest}", files[largest], 400),
        Budget("the core: engine and op", sum(files[name] for name in CORE), 599),
        Budget("autograd: the core and the files around it", sum(lines_of("tinytensor/autograd").values()), 1_815),
        Budget("benchmarks", sum(lines_of("benchmarks").values()), MOST_OF_BENCHMARKS),
        Budget("both packages", sum(files.values()), MOST_OF_PACKAGES),
    ]


def main() -> None:
    """Print all of it."""
    largest = Counter(of_packages()).most_common(10)
    for title, counts in (("Rooms", rooms().items()), ("Largest files", largest)):
        print(f"\n{title}", *(f"{count:8,}  {name}" for name, count in counts), sep="\n")
    print("\nBudgets")
    for budget in budgets():
        state = "holds" if budget.used <= budget.most else "IS EXCEEDED"
        print(f"{budget.used:8,}  of {budget.most:,}: {budget.what}: {state}")


if __name__ == "__main__":
    main()
