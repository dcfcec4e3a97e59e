"""The navigation of pages of source code, made once for each depth of folders: Sphinx makes it anew for each page, which takes
longer than the page itself. It is the same for all of them, as none of them stands in it.
"""

from __future__ import annotations

import functools
from typing import Any

from sphinx.application import Sphinx


def share_navigation(app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Let a page of source code have the navigation of the pages beside it."""
    if page.startswith("_modules/") and "toctree" in context:
        made = app.builder.__dict__.setdefault("navigation_by_depth", {})
        context["toctree"] = made.setdefault(page.count("/"), functools.cache(context["toctree"]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Come before the theme, which asks for the navigation."""
    app.connect("html-page-context", share_navigation, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
