"""The explorer's questions: ``.. questions::`` writes a table of them, and for each what it takes and what it answers.

All of it is read from the functions, their dataclasses and docstrings, so it cannot say anything else than the code.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Iterator
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from reference import as_rst, escaped, summary
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tinyformer.explore.views.questions import QUESTIONS
from tinyformer.explore.views.writing import distribution

PARTS = (distribution,)  # functions that make a part of several answers

WORDS = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "null"}


def kind_of(function: Callable[..., Any]) -> Any:
    """The dataclass that says what is asked."""
    return typing.get_type_hints(function)["asked"]


def objects() -> list[Any]:
    """The dataclasses that are inside of those that are asked, in the order in which they occur."""
    found: list[Any] = []
    for kind in [kind_of(function) for function in QUESTIONS.values()]:
        found += [inner for inner in inside(kind) if inner not in found]
    return found


def inside(kind: Any) -> Iterator[Any]:
    """The dataclasses of the fields of a dataclass, and of their fields."""
    for hint in typing.get_type_hints(kind).values():
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part):
                yield part
                yield from inside(part)


def in_words(hint: Any) -> str:
    """The type of a field, as a reader of JSON calls it."""
    if dataclasses.is_dataclass(hint):
        return f"object, see :ref:`{hint.__name__} <explorer-{hint.__name__}>`"
    if typing.get_origin(hint) is list:
        return f"list of {in_words(typing.get_args(hint)[0])}\\ s"  # nothing else may follow a reference at once
    if typing.get_origin(hint) is tuple:
        return f"list of {len(typing.get_args(hint))}: {', '.join(map(in_words, typing.get_args(hint)))}"
    if typing.get_args(hint):
        return " or ".join(map(in_words, typing.get_args(hint)))
    return WORDS.get(hint, str(hint))


def fields(kind: Any) -> Iterator[str]:
    """A list of the fields of a dataclass, with types and defaults."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        made = field.default_factory
        default = made() if made is not dataclasses.MISSING else field.default
        if default is dataclasses.MISSING:
            told = ""
        elif dataclasses.is_dataclass(default):
            told = ", by default that with all defaults"
        else:
            told = f", by default ``{json.dumps(default)}``"
        about = field.metadata.get("help", "")
        yield f"* ``{field.name}``: {in_words(hints[field.name])}{told}{': ' + escaped(about) if about else ''}"


def described(value: Any) -> list[str]:
    """What the docstring of a dataclass or a function says, without its examples: they are in Python."""
    text = (inspect.getdoc(value) or "").partition("\n\n>>>")[0]
    return as_rst(text.splitlines(), f"tinyformer.{value.__name__}", value)


def lines() -> Iterator[str]:
    """The table and all entries, as reStructuredText."""
    yield from (".. list-table::", "   :class: names", "   :widths: 32 68", "")
    for name, function in QUESTIONS.items():
        yield from (f"   * - :ref:`{name} <explorer-{name}>`", f"     - {summary(function, 'tinyformer.explore')}")
    for name, function in QUESTIONS.items():
        kind = kind_of(function)
        streams = "Iterator" in str(typing.get_type_hints(function)["return"]) and inspect.isgeneratorfunction(function)
        yield from ("", f".. _explorer-{name}:", "", f".. describe:: POST ask/{name}", "")
        text = ["**Asked:**", "", *described(kind), "", *fields(kind), ""]
        text += ["**Answer" + (", a line for each part" if streams else "") + ":**", ""]
        text += described(function)
        yield from ("   " + line if line else "" for line in text)
    for part in (*PARTS, *objects()):
        yield from ("", f".. _explorer-{part.__name__}:", "", f".. describe:: {part.__name__}", "")
        listed = fields(part) if dataclasses.is_dataclass(part) else ()
        yield from ("   " + line if line else "" for line in [*described(part), "", *listed])


class Questions(SphinxDirective):
    """See the head of this file."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(__file__)
        for part in [*QUESTIONS.values(), *map(kind_of, QUESTIONS.values()), *objects()]:
            self.env.note_dependency(inspect.getfile(part))
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(list(lines()), source="<the explorer's questions>"), 0, node)
        return node.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive."""
    app.add_directive("questions", Questions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
