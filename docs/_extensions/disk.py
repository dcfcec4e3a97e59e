"""The search's summaries for pages that are opened from a disk: a browser reads no other page there, so their text comes in a
script, ``_static/texts.js``, which ``search_from_disk.js`` loads only then.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

BEGINNING = "window.siteTexts = "


def gather(app: Sphinx, document: nodes.document, page: str) -> None:
    """Sphinx's event: keep the text of a page: of each section its anchor, and what its paragraphs say."""
    found: dict[str, list[str]] = {}
    for part in document.findall(nodes.paragraph):
        around = part.parent
        while around is not None and not (isinstance(around, nodes.section) and around["ids"]):
            around = around.parent
        found.setdefault(around["ids"][0] if around is not None else "", []).append(part.astext())
    texts = {anchor: " ".join(" ".join(parts).split()) for anchor, parts in found.items()}
    app.builder.__dict__.setdefault("texts", {})[page] = texts


def write(app: Sphinx, error: Exception | None) -> None:
    """Sphinx's event at the end: write the texts."""
    texts = app.builder.__dict__.get("texts")
    if error is None and texts:
        path, before = Path(app.outdir, "_static", "texts.js"), {}
        if path.exists():  # of a build that came before; only pages that changed were written now
            before = json.loads(path.read_text(encoding="utf-8").removeprefix(BEGINNING).removesuffix(";\n"))
        merged = {page: text for page, text in (before | texts).items() if page in app.env.found_docs}
        path.write_text(f"{BEGINNING}{json.dumps(merged, ensure_ascii=False, sort_keys=True)};\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Gather while pages are written, as all of them are then."""
    app.connect("doctree-resolved", gather)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
