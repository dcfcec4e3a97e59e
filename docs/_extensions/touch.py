"""Pictures that can be touched: a page that has a place for one loads its script, and no other page does. Without JavaScript
the place says so; where a GPT would write, stands what it wrote once.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

PLACE = re.compile(r'(<div class="touch" data-touch="(\w+)"[^>]*>)(?=</div>)')
SAMPLE = Path(__file__).parents[2] / "benchmarks" / "results" / "char_gpt" / "sample.txt"
WRITTEN = "With JavaScript a GPT writes here as you type. This is what it wrote once:"


def instead(name: str) -> str:
    """What a place shows without JavaScript."""
    if name == "livegpt":
        return f"<p>{WRITTEN}</p><pre>{escape(SAMPLE.read_text(encoding='utf-8').strip())}</pre>"
    return "<p>With JavaScript there is a picture here that can be touched.</p>"


def load(app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Sphinx's event: fill the places of a page, and add their scripts."""
    body = context.get("body", "")
    names = dict.fromkeys(name for _, name in PLACE.findall(body))
    needed = ["base", *(["livegpt"] if "heads" in names else []), *names]
    for name in dict.fromkeys(needed) if names else []:
        app.add_js_file(f"touch/{name}.js")
    if names:
        context["body"] = PLACE.sub(lambda place: f"{place[1]}<noscript>{instead(place[2])}</noscript>", body)


def setup(app: Sphinx) -> dict[str, Any]:
    """Load where a page is made."""
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
