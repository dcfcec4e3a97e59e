"""Formulas as SVG, drawn by ziamath when the site is built: a page needs no script and no font for them.

The sizes are in em and the colour is that of the text, so a formula follows zoom and dark mode. Screen readers read its LaTeX.
"""

from __future__ import annotations

import html
import re
from typing import Any

import ziamath
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

SIZE = 17  # of the font that ziamath draws with, in its units; on the page it is 1.06 em
EM = 16

ziamath.config.precision = 2  # digits after the point: a hundredth of a pixel
ziamath.config.svg2 = False  # glyphs as paths: symbols would share their ids with other formulas of a page


def drawn(latex: str, style: str) -> str:
    """A formula as an SVG element. Raises SphinxError, naming the formula, if ziamath cannot draw it."""
    try:
        formula = ziamath.Latex(latex, size=SIZE, color="currentColor", inline=style == "inline")
        svg, below = formula.svg(), -formula.getyofst()
    except Exception as error:
        raise SphinxError(f"the formula {latex!r} cannot be drawn: {error}") from error
    width, height = (float(re.search(rf'{name}="([\d.]+)"', svg)[1]) / EM for name in ("width", "height"))
    shape = f'width="{width:.3f}em" height="{height:.3f}em" style="vertical-align: -{below / EM:.3f}em"'
    svg = re.sub(r'width="[\d.]+" height="[\d.]+"', shape, svg, count=1)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # a page of HTML knows what an <svg> is
    svg = re.sub(r" ?\b([MLQCZHV])\b ?", r"\1", svg)  # a path's letters need no spaces
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(latex, quote=True)}" ', 1)


def join_punctuation(app: Sphinx, document: nodes.document, page: str) -> None:
    """Give each formula the brackets and the punctuation beside it: a browser may break a line beside a picture, and a comma
    would then stand first on the next one."""
    for formula in list(document.findall(nodes.math)):
        place, siblings = formula.parent.index(formula), formula.parent.children
        if place and isinstance(siblings[place - 1], nodes.Text):
            text = siblings[place - 1].astext()
            formula["before"] = text[len(text.rstrip("([")) :]
            formula.parent[place - 1] = nodes.Text(text.rstrip("(["))
        if place + 1 < len(siblings) and isinstance(siblings[place + 1], nodes.Text):
            text = siblings[place + 1].astext()
            formula["after"] = text[: len(text) - len(text.lstrip(".,:;?!)]"))]
            formula.parent[place + 1] = nodes.Text(text.lstrip(".,:;?!)]"))


def visit_math(self: Any, node: nodes.math) -> None:
    """A formula within a line."""
    formula = node.get("before", "") + drawn(node.astext(), "inline") + node.get("after", "")
    self.body.append(f'<span class="math">{formula}</span>')
    raise nodes.SkipNode


def visit_math_block(self: Any, node: nodes.math_block) -> None:
    """A formula on a line of its own; it scrolls where the page is too narrow."""
    identity = f' id="{node["ids"][0]}"' if node.get("ids") else ""
    self.body.append(f'<div class="math" tabindex="0"{identity}>{drawn(node.astext(), "display")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Make this the way in which formulas become HTML."""
    app.connect("doctree-resolved", join_punctuation)
    app.add_html_math_renderer("ziamath", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
