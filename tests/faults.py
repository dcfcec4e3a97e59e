"""Small faults for mutants.py to put into the source: where they can be, and a random choice of them.

A fault is another operator (+ for -, <= for <, ``and`` for ``or``), a constant or bound (of a slice or range) 1 larger, a
negated condition, or a statement that is left out. Annotations, assertions, texts of errors and ``__all__`` stay as they are.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OF_TINYTENSOR = ("autograd", "transforms", "replay", "ops", "functional", "nn", "optim", "kernels/numpy")
OF_TINYFORMER = ("decoding", "tokenizers", "training")
ROOMS = {
    **{name: [f"tinytensor/{name}/*.py"] for name in OF_TINYTENSOR},
    **{name: [f"tinyformer/{name}/*.py"] for name in OF_TINYFORMER},
}
OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A file with the bytes from ``start`` to ``end`` replaced. A test that runs one of the ``lines`` may notice."""

    room: str
    file: str
    kind: str
    start: int
    end: int
    new: bytes
    lines: range

    def source(self) -> bytes:
        """The changed file."""
        old = (ROOT / self.file).read_bytes()
        return old[: self.start] + self.new + old[self.end :]

    def is_wanted(self) -> bool:
        """Whether it is Python, and may matter when the program runs."""
        with suppress(SyntaxError):
            return b"TYPE_CHECKING" not in self.new and bool(compile(self.source(), self.file, "exec"))
        return False

    def row(self) -> dict[str, str]:
        """What the table says about it: where it is, and its lines before and after."""
        old = (ROOT / self.file).read_bytes()
        first, last = old.rfind(b"\n", 0, self.start) + 1, old.find(b"\n", self.end)
        after = old[first : self.start] + self.new + old[self.end : last]
        lines = [" ".join(text.decode().split()) for text in (old[first:last], after)]
        line = old.count(b"\n", 0, self.start) + 1
        return {"room": self.room, "place": f"{self.file}:{line}", "kind": self.kind, "before": lines[0], "after": lines[1]}


class Places(ast.NodeVisitor):
    """Finds all mutants of a file. Annotations, assertions, the texts of errors and ``__all__`` are left as they are."""

    def __init__(self, room: str, file: str):
        self.room, self.file = room, file
        self.source = (ROOT / file).read_bytes()
        self.found: list[Mutant] = []
        self._line_starts = [0, *(match.end() for match in re.finditer(b"\n", self.source))]
        self._importing = range(1, len(self._line_starts) + 1)  # the lines that may show what is done on import
        self._lines: range | None = None  # of the statement within a function, if any
        self._block = False  # whether the statement is one of a block in a function, not of the function itself
        self.visit(ast.parse(self.source))

    def _at(self, line: int, column: int) -> int:
        return self._line_starts[line - 1] + column

    def _span(self, node: Any) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _add(self, kind: str, start: int, end: int, new: str) -> None:
        self.found.append(Mutant(self.room, self.file, kind, start, end, new.encode(), self._lines or self._importing))

    def _swap(self, kind: str, operator: ast.AST, left: ast.AST, right: ast.AST, suffix: str = "") -> None:
        """Another operator between two expressions."""
        old, new = OPERATORS.get(type(operator), ("@", "@"))
        start, end = self._span(left)[1], self._span(right)[0]
        place = self.source.find((old + suffix).encode(), start, end)
        if old != new and place >= 0:
            self._add(kind, place, place + len(old), new)

    def _wrap(self, kind: str, node: ast.AST, before: str, after: str) -> None:
        start, end = self._span(node)
        self._add(kind, start, end, before + self.source[start:end].decode() + after)

    def _condition(self, test: ast.expr) -> None:
        decided = isinstance(test, ast.Compare) and isinstance(
            test.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
        )
        if not decided and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            self._wrap("condition", test, "not (", ")")  # the others are negated as operators

    def visit(self, node: ast.AST) -> None:
        """Visit a node; a statement in a function is seen by the tests that run its first lines."""
        before = self._lines
        if isinstance(node, ast.stmt) and self._lines is not None:
            inner = getattr(node, "body", None)
            self._lines = range(node.lineno, max(inner[0].lineno, node.lineno + 1) if inner else (node.end_lineno or 0) + 1)
        if self._is_droppable(node):
            self._add("statement", *self._span(node), "pass")
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            self._condition(node.test)
        super().visit(node)
        self._lines = before

    def _is_droppable(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Assign):  # not the only assignment of a name: that would always be noticed
            names = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
            target = node.targets[0]
            return isinstance(target, (ast.Attribute, ast.Subscript)) or (isinstance(target, ast.Name) and target.id in names)
        if isinstance(node, ast.Return):
            return self._block
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Call)
        return isinstance(node, (ast.AugAssign, ast.Raise, ast.Delete, ast.Break, ast.Continue))

    def _statements(self, nodes: Sequence[ast.AST], block: bool) -> None:
        before, self._block = self._block, block
        for node in nodes:
            self.visit(node)
        self._block = before

    def generic_visit(self, node: ast.AST) -> None:
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._statements(value, block=not isinstance(node, (ast.Module, ast.ClassDef)))
            else:
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.AST):
                        self.visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if any(isinstance(part, ast.Name) and part.id == "overload" for part in node.decorator_list):
            return
        before = self._lines, self._importing
        if self._lines is None:  # decorators and defaults: those who call the function may notice
            first = min([node.lineno, *(part.lineno for part in node.decorator_list)])
            self._importing = range(first, (node.end_lineno or 0) + 1)
        for part in [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]:
            if part is not None:
                self.visit(part)
        self._lines = range(0)
        self._statements(node.body, block=False)
        self._lines, self._importing = before

    def visit_Lambda(self, node: ast.Lambda) -> None:
        before, self._lines = self._lines, self._lines or range(node.lineno, (node.end_lineno or 0) + 1)
        self.generic_visit(node)
        self._lines = before

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not (isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"):
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def _leave(self, node: ast.AST) -> None:
        pass

    visit_Raise = visit_Assert = visit_JoinedStr = _leave

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if self._lines is not None or not isinstance(node.op, ast.BitOr):  # of types, as names of them are made on import
            self._swap("arithmetic", node.op, node.left, node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._swap("arithmetic", node.op, node.target, node.value, suffix="=")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators):
            self._swap("comparison", operator, left, right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:]):
            self._swap("and, or", node.op, left, right)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        start = self._span(node)[0]
        if isinstance(node.op, ast.Not):
            self._add("condition", start, start + len("not"), "")
        elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            self._add("sign", start, start + 1, "+")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, (bool, int, float)):
            new = not node.value if isinstance(node.value, bool) else node.value + 1
            self._add("constant", *self._span(node), repr(new))

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                self._wrap("bound", bound, "(", ") + 1")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if (
            isinstance(node.func, ast.Name)
            and node.func.id == "range"
            and not isinstance(node.args[-1], (ast.Constant, ast.Starred))
        ):
            self._wrap("bound", node.args[-1], "(", ") + 1")
        self.generic_visit(node)


def mutants_of(room: str) -> list[Mutant]:
    """All mutants of a room, in the order of its files."""
    files = sorted(path for pattern in ROOMS[room] for path in ROOT.glob(pattern))
    return [mutant for path in files for mutant in Places(room, path.relative_to(ROOT).as_posix()).found]


def all_mutants() -> list[Mutant]:
    """Those of all rooms."""
    return [mutant for room in ROOMS for mutant in mutants_of(room)]


def draw(seed: int, count: int) -> list[Mutant]:
    """Draw this many mutants from the packages in turn. A larger count draws the same ones first."""
    shuffled = []
    for room in ROOMS:
        shuffled.append(mutants_of(room))
        random.Random(f"{seed} {room}").shuffle(shuffled[-1])
    return list(islice((mutant for turn in zip_longest(*shuffled) for mutant in turn if mutant and mutant.is_wanted()), count))
