"""Smaller files: a reader on a slow line waits less, and the whole site can be sent as one archive.

Pages lose the marks of what has no look of its own, and pages of source code the links to all other pages, which would be most
of a small file. Pictures have 256 colours, which is more than a diagram needs. The theme's source maps are left out.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from PIL import Image
from sphinx.application import Sphinx

COLOURS = 256
UNMARKED = [
    (re.compile(r'<span class="(?:n|p|w|pre)">([^<]*)</span>'), r"\1"),  # names, brackets and spaces look like plain text
    (re.compile(r'(<a class="reference internal" href="[^"]*") title="[\w.]+"'), r"\1"),  # where in the source a type stands
]
SOURCE = "_modules"  # the folder of source code
OPERATOR = re.compile(r'<span class="o">([^<]*)</span>')
SPRITE = re.compile(r'<svg xmlns="[^"]*" style="display: none;">.*?</svg>\s*(?=<input)', flags=re.DOTALL)  # the theme's icons
MAPPED = re.compile(r"(?m)^(/\*|//)# sourceMappingURL=.*\n?")  # a line at the end of a script or a style sheet
VERBATIM = re.compile(r"(<pre\b.*?</pre>|<script\b.*?</script>)", flags=re.DOTALL)


def slim_code(app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Sphinx's event: take marks without a meaning out of a page's code; and in source code, those of operators."""
    if "body" in context:
        for mark, rest in UNMARKED:
            context["body"] = mark.sub(rest, context["body"])
        if page.startswith(f"{SOURCE}/"):
            context["body"] = OPERATOR.sub(r"\1", context["body"])


def slim_navigation(app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Sphinx's event: beside source code, only the main parts of the site are listed. Sphinx would make the whole list anew for
    each page, which takes longer than the page itself."""
    if page.startswith(f"{SOURCE}/") and "toctree" in context:
        whole, made = context["toctree"], app.builder.__dict__.setdefault("short_navigation", {})

        def short(**settings: Any) -> str:
            depth = page.count("/")
            if depth not in made:  # the links of pages in one folder are the same
                made[depth] = whole(**(settings | {"maxdepth": 1}))
            return made[depth]

        context["toctree"] = short


def slim_files(app: Sphinx, error: Exception | None) -> None:
    """Sphinx's event at the end: leave out of pages the spaces at the beginning of lines and icons that they do not use; give
    pages of source code their icons by one script; write pictures with fewer colours, where that makes them smaller; delete
    source maps, and the lines that name them."""
    if error is None:
        for path in Path(app.outdir, "_static").rglob("*.map"):
            path.unlink()
            if (mapped := path.with_suffix("")).exists():
                mapped.write_text(MAPPED.sub("", mapped.read_text(encoding="utf-8")), encoding="utf-8")
        for path in Path(app.outdir).rglob("*.html"):
            text = path.read_text(encoding="utf-8")
            smaller = without_indents(without_icons(text))
            place = path.relative_to(app.outdir)
            if place.parts[0] == SOURCE:
                smaller = with_shared_icons(smaller, Path(app.outdir), len(place.parts) - 1)
            if smaller != text:
                path.write_text(smaller, encoding="utf-8")
        for path in Path(app.outdir, "_images").glob("*.png"):
            with Image.open(path) as picture:
                if picture.mode != "P":
                    smaller = with_fewer_colours(picture)
                    if len(smaller) < path.stat().st_size:
                        path.write_bytes(smaller)


def without_indents(text: str) -> str:
    """A page without empty lines and the spaces at the beginning of lines, but where they count."""
    parts = VERBATIM.split(text)
    return "".join(part if i % 2 else re.sub(r"\s*\n\s*", "\n", part) for i, part in enumerate(parts))


def without_icons(text: str) -> str:
    """A page without the theme's icons that nothing on it shows."""

    def kept(icon: re.Match[str]) -> str:
        return icon[0] if f'href="#{icon[1]}"' in text else ""

    return re.sub(r'<symbol id="([\w-]+)".*?</symbol>', kept, text, flags=re.DOTALL)


def with_shared_icons(text: str, site: Path, depth: int) -> str:
    """A page of so many folders' depth that gets its icons from a script, which is written, too. It would be mostly icons."""
    sprite = SPRITE.search(text)
    if sprite is None:
        return text
    script = f'document.currentScript.insertAdjacentHTML("afterend", {json.dumps(sprite[0])});\n'
    (site / "_static" / "icons.js").write_text(script, encoding="utf-8")
    return text.replace(sprite[0], f'<script src="{"../" * depth}_static/icons.js"></script>\n', 1)


def with_fewer_colours(picture: Image.Image) -> bytes:
    """A picture on white, as a PNG file with a palette."""
    layers = picture.convert("RGBA")
    white = Image.new("RGBA", layers.size, "white")
    white.alpha_composite(layers)
    file = io.BytesIO()
    white.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG")
    return file.getvalue()


def setup(app: Sphinx) -> dict[str, Any]:
    """Come before the theme, which asks for the navigation."""
    app.connect("html-page-context", slim_navigation, priority=100)
    app.connect("html-page-context", slim_code)
    app.connect("build-finished", slim_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
