"""Pictures that can be touched: a page that has a place for one loads its script, and no other page does."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx


def load(app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Sphinx's event: add the scripts of the pictures that stand on the page."""
    names = dict.fromkeys(re.findall(r'data-touch="(\w+)"', context.get("body", "")))
    needed = ["base", *(["livegpt"] if "heads" in names else []), *names]
    for name in dict.fromkeys(needed) if names else []:
        app.add_js_file(f"touch/{name}.js")


def setup(app: Sphinx) -> dict[str, Any]:
    """Load where a page is made."""
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
