"""Text for pictures: what a font can draw, what becomes an escape, and how much there is room for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from fontTools.fontBuilder import FontBuilder  # comes with matplotlib
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from tinyformer.plots.drawing import Lettering, fonts_of_any_weight

pytestmark = pytest.mark.usefixtures("shipped_fonts_only")


@pytest.fixture
def add_font(tmp_path: Path) -> Callable[..., Path]:
    """Makes a font of squares for these characters, which matplotlib finds like one of the system's."""

    def add(family: str, characters: str, ink: bool = True, weight: int = 400) -> Path:
        names = {ord(c): f"u{ord(c):04X}" for c in characters}
        order = [".notdef", *names.values()]
        pen = TTGlyphPen(None)
        if ink:
            pen.moveTo((100, 0))
            for corner in ((900, 0), (900, 800), (100, 800)):
                pen.lineTo(corner)
            pen.closePath()
        builder = FontBuilder(1000, isTTF=True)
        builder.setupGlyphOrder(order)
        builder.setupCharacterMap(names)
        builder.setupGlyf(dict.fromkeys(order, pen.glyph()))
        builder.setupHorizontalMetrics(dict.fromkeys(order, (1000, 100)))
        builder.setupHorizontalHeader(ascent=800, descent=-200)
        builder.setupNameTable({"familyName": family, "styleName": "Regular"})
        builder.setupOS2(usWeightClass=weight)
        builder.setupPost()
        path = tmp_path / f"{family.replace(' ', '')}.ttf"
        builder.save(path)
        fontManager.addfont(path)
        return path

    return add


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("dog", "dog"), (" dog", "␣dog"), (" ", "␣"), ("  ", "␣␣"), ("", "(empty)"),
        ("\n", r"\n"), ("\t", r"\t"), ("\r\n", r"\r \n"), ("\x00", "U+0000"),
        ("\xa0", "U+00A0"), ("\u3000", "U+3000"), ("\u200b", "U+200B"), ("\u2028", "U+2028"), ("\xad", "U+00AD"),
        ("a\u200db", "a U+200D b"), ("\u202eabc", "U+202E abc"), ("❤\ufe0f", "❤ U+FE0F"), ("\ufe0f", "U+FE0F"),
        ("\ud83d", "U+D83D"), ("\U0010ffff", "U+10FFFF"), ("\ue000", "U+E000"),
        ("中文", "U+4E2D U+6587"), (" a中b", "␣a U+4E2D b"), ("e\u0301", "e\u0301"), ("\u0301", "◌\u0301"),
        ("Straße", "Straße"), ("Привет", "Привет"), ("مرحبا", "مرحبا"), ("\\xe6", "\\xe6"), ("$x$", "$x$"),
    ],
)  # fmt: skip
def test_tokens_with_the_fonts_of_matplotlib(token: str, shown: str) -> None:
    assert Lettering([token]).token(token, 20) == shown


def test_a_font_that_has_the_characters_is_used(add_font: Callable[..., Path]) -> None:
    tokens = ["中文", " 中a", "あ"]
    assert [Lettering(tokens).token(token, 20) for token in tokens] == ["U+4E2D U+6587", "␣ U+4E2D a", "U+3042"]
    for i, characters in enumerate(("xyz", "中", "中文")):  # no more than are needed
        add_font(f"Squares {i}", characters)
    lettering = Lettering(tokens)
    assert [lettering.token(token, 20) for token in tokens] == ["中文", "␣中a", "U+3042"]
    assert lettering.families[-2:] == ["Squares 1", "Squares 2"]
    assert "Squares 0" not in lettering.families
    assert Lettering(["dog"]).families == lettering.families[:-2]
    # Drawn in that font: a warning, of a character that no font has, would be an error here.
    figure = Figure()
    extent = figure.text(0, 0, "中文", fontsize=72, fontfamily=lettering.families).get_window_extent()
    assert extent.width == pytest.approx(2 * figure.dpi, rel=0.2)


def test_a_mark_and_its_letter_come_from_one_font(add_font: Callable[..., Path]) -> None:
    add_font("Squares of one", "語")
    add_font("Squares of two", "न\u093f")
    lettering = Lettering(["語\u0301", "e\u0301\u0302", "語\u093fन\u093f"])
    assert lettering.token("語\u0301", 20) == "語 U+0301"
    assert lettering.token("語\u093fन\u093f", 20) == "語 U+093F न\u093f"
    assert lettering.token("e\u0301\u0302", 20) == "e\u0301\u0302"


def test_fonts_that_draw_nothing_are_not_used(add_font: Callable[..., Path]) -> None:
    add_font("Blank", "道", ink=False)
    add_font("Last Resort Squares", "道")  # such a font has a box for every character
    add_font("Gone", "道").unlink()
    add_font("Damaged", "道").write_bytes(b"no font")
    assert Lettering(["道"]).token("道", 20) == "U+9053"
    add_font("Squares at last", "道")
    assert Lettering(["道"]).token("道", 20) == "道"


def test_a_font_of_another_weight_is_used_without_a_word(
    add_font: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    add_font("Squares a little bold", "山", weight=500)
    lettering = Lettering(["山"])
    assert lettering.token("山", 20) == "山"
    with fonts_of_any_weight():
        Figure().text(0, 0, "山", fontfamily=lettering.families).get_window_extent()
    assert caplog.messages == []
    logging.getLogger("matplotlib.font_manager").warning("Failed to find font weight: elsewhere it is still said")
    assert len(caplog.messages) == 1


def test_wide_output_is_cut(add_font: Callable[..., Path]) -> None:
    add_font("Squares for cutting", "川")
    tokens = ["a" * 100_000, "W" * 100_000, "川" * 100_000, "\u0301" * 100_000, "\x00" * 100_000, "abc" + "i" * 20]
    lettering = Lettering(tokens)
    shown = [lettering.token(token, 10) for token in tokens]
    assert [label[-1] for label in shown] == ["…"] * 5 + ["i"]
    assert shown[2] == "川" * 10 + "…"  # an em each
    assert shown[4] == "U+0000 U+0000…"  # not cut within an escape
    assert shown[5] == tokens[5]
    for label in shown:
        assert lettering.width(label) <= 11
        assert len(label) <= 42


def test_a_line_of_words() -> None:
    def line(text: str, widest: float = 40) -> str:
        return Lettering([text]).line(text, widest)

    assert line("A run of  words\n and\ttabs ") == "A run of words and tabs"
    assert line("") == ""
    assert line("日本 $x$") == "U+65E5 U+672C $x$"
    assert line("word " * 100, 10) == "word word word wo…"
    assert line("i" * 121, 99) == "i" * 120 + "…"
