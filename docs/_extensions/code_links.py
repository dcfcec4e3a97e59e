"""Code spans that name something public, or a source file, become links: to its entry in the reference, or to its lines.

``tt.grad(output, inputs)`` leads to ``tinytensor.grad``, ``nn.Linear`` to ``tinytensor.nn.Linear``. A bare name such as
``TextBatches`` is meant as the library's where the page's code imports it, or where it has a capital letter or an underscore,
and is not defined by the page itself.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from reference import PUBLIC
from sphinx.application import Sphinx
from sphinx.ext.viewcode import OUTPUT_DIRNAME
from sphinx.util.nodes import make_refnode

ROOTS = {"tt": "tinytensor", "nn": "tinytensor.nn", "optim": "tinytensor.optim"}
LIBRARIES = ("tinyformer", "tinytensor", "tinytensor.nn", "tinytensor.optim", "tinyformer.plots")
NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?", flags=re.DOTALL)
FILE = re.compile(r"(tiny(?:tensor|former)/[\w/]+)\.py")


def imported(code: str) -> dict[str, str]:
    """The public names that the code of a page imports from the libraries, in full."""
    found = {}
    for home, names in re.findall(r"from (tiny\w+(?:\.\w+)*) import (\([^)]*\)|[^\n]*)", code):
        for name in re.findall(r"\w+", names):
            found[name] = f"{home}.{name}"
    return {name: full for name, full in found.items() if full in PUBLIC}


def own(code: str) -> set[str]:
    """What the code of a page defines itself."""
    return {a or b for a, b in re.findall(r"^\s*(?:def|class)\s+(\w+)|^(\w+) = ", code, flags=re.MULTILINE)}


def full_name(span: str, known: dict[str, str], defined: set[str]) -> str | None:
    """The public name that a code span means. None where it means none, or something of the page's own."""
    match = NAME.fullmatch(span)
    if not match:
        return None
    first, _, rest = match[1].partition(".")
    if rest:
        name = f"{ROOTS.get(first, first)}.{rest}"
        return name if name in PUBLIC and first not in defined - {*ROOTS} else None
    if first in defined:
        return None
    if first in known:
        return known[first]
    speaks_for_itself = "_" in first.strip("_") or re.match(r"[A-Z]\w*[a-z]", first)
    homes = [home for home in LIBRARIES if f"{home}.{first}" in PUBLIC]
    return f"{homes[0]}.{first}" if speaks_for_itself and len(homes) == 1 else None


def link(app: Sphinx, document: nodes.document, page: str) -> None:
    """Sphinx's event: put a link around each such code span that stands in no link and no title."""
    if page.startswith("reference/"):  # there docstrings have theirs
        return
    code = "\n".join(block.astext() for block in document.findall(nodes.literal_block))
    known, defined = imported(code), own(code)
    objects = app.env.get_domain("py").objects  # type: ignore[attr-defined]
    sources = getattr(app.env, "_viewcode_modules", {})
    for span in list(document.findall(nodes.literal)):
        if any(isinstance(parent, (nodes.reference, nodes.title)) for parent in parents(span)):
            continue
        text, target = span.astext(), None
        name, file = full_name(text, known, defined), FILE.fullmatch(text)
        if name in objects:
            entry = objects[name]
            target = make_refnode(app.builder, page, entry.docname, entry.node_id, span.deepcopy(), name)
        elif file and sources.get(file[1].replace("/", ".")):
            target = make_refnode(app.builder, page, f"{OUTPUT_DIRNAME}/{file[1]}", None, span.deepcopy(), text)
        if target is not None:
            span.replace_self(target)


def parents(node: nodes.Node) -> Any:
    """The nodes around this one, the nearest first."""
    while node.parent is not None:
        node = node.parent
        yield node


def setup(app: Sphinx) -> dict[str, Any]:
    """Link when all pages are read, so that every entry has its place."""
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
