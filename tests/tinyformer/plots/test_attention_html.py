"""Attention weights as HTML."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.plots import attention_html
from tinytensor import Tensor


def weights(heads: int, queries: int, keys: int) -> Tensor:
    scores = np.random.default_rng(0).random((heads, queries, keys))
    return tt.tensor((scores / scores.sum(-1, keepdims=True)).astype("float32"))


class Tags(HTMLParser):
    """Check that each tag of a page is closed, and count the tags."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        assert not {"id", "name", "onclick", "href"} & {name for name, _ in attributes}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def titles(html: str) -> list[str]:
    return [unescape(text) for text in re.findall(r'title="([^"]*)"', html)]


def test_every_weight_has_its_number() -> None:
    given = weights(2, 2, 3)
    html = attention_html({"decoder.blocks.0.cross_attention": given}, ["a", "b", "c"], ["x", "y"])._repr_html_()
    mean, first, second = given.numpy().mean(0), *given.numpy()
    want = [f"{q} → {k}: {m[i, j]:.4f}" for m in (mean, first, second) for i, q in enumerate("xy") for j, k in enumerate("abc")]
    assert titles(html) == want
    assert Tags(html).counts["table"] == 3
    assert html.count("<details open>") == 1


def test_tokens_are_text_and_all_of_them_can_be_seen() -> None:
    tokens = ["<script>", '"&', " dog", "\n", "\u202e", "", "x" * 50, "\u0301"]
    html = attention_html({"blocks.0.attention": weights(1, 8, 8)}, tokens)._repr_html_()
    assert set(Tags(html).counts) == {"div", "style", "details", "summary", "code", *"table thead tbody tr th td span".split()}
    labels = [unescape(label) for label in re.findall(r"<span>(.*?)</span>", html)][:8]
    assert labels == ["<script>", '"&', "␣dog", r"\n", "U+202E", "(empty)", "x" * 13 + "...", "◌\u0301"]


def test_a_row_without_keys_and_numbers_that_are_none() -> None:
    rows = tt.tensor([[[0.0, 0.0], [float("nan"), 1.0]]])
    html = attention_html({"encoder": rows}, ["a", "b"])._repr_html_()
    assert re.findall(r"<td [^>]*>(.*?)</td>", html)[:4] == ["0", "0", "nan", "1.00"]
    assert "rgba(59,130,246,nan)" not in html
    assert titles(attention_html({"encoder": weights(1, 0, 0)}, [])._repr_html_()) == []


def test_long_texts_and_many_layers_are_cut_and_the_page_says_so() -> None:
    maps = {f"blocks.{i}.attention": weights(8, 100, 100) for i in range(12)}
    html = attention_html(maps, ["ab"] * 100)._repr_html_()
    assert len(html) < 3_000_000
    assert html.count("queries: source: the first 40 of 100 tokens") == 12
    assert "left out 8 of 8 heads" in html
    assert Tags(html).counts["td"] <= 20_000


def test_tokens_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"encoder: weights of shape \(1, 3, 3\) do not fit 2 source tokens"):
        attention_html({"encoder": weights(1, 3, 3)}, ["a", "b"])


@pytest.mark.parametrize("token", [7, b"a", None])
def test_tokens_that_are_no_texts(token: Any) -> None:
    with pytest.raises(TypeError, match="decode them first"):
        attention_html({"encoder": weights(1, 2, 2)}, ["a", token])


def test_rows_that_do_not_sum_to_one() -> None:
    def notes(rows: list[list[float]]) -> list[str]:
        return re.findall(
            r'<div class="note">(\d+ of.*?)</div>', attention_html({"encoder": tt.tensor([rows])}, "ab")._repr_html_()
        )

    assert notes([[0.5, 0.5], [0.999, 0.0]]) == []
    assert notes([[0.0, 0.0], [1.0, 0.0]]) == ["1 of 2 rows without a sum of 1"]
    assert notes([[float("nan"), 1.0], [1.0, 1.0]]) == ["2 of 2 rows without a sum of 1"]


def test_weights_without_heads() -> None:
    with pytest.raises(ValueError, match="axes are heads, queries, keys"):
        attention_html({"encoder": tt.ones((2, 2))}, ["a", "b"])


def test_tables_have_names() -> None:
    html = attention_html({"encoder": weights(2, 1, 1)}, ["a"])._repr_html_()
    assert re.findall(r'<table aria-label="([^"]*)"', html) == ["mean over the heads", "head 1", "head 2"]


def test_other_endings(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"end in \.html, got .\.png"):
        attention_html({"encoder": weights(1, 1, 1)}, ["a"]).save(tmp_path / "maps.png")


def test_save(tmp_path: Path) -> None:
    page = attention_html({"encoder": weights(1, 2, 2)}, ["a", "é"])
    text = page.save(tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert page._repr_html_() in text


def test_it_works_without_matplotlib() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import tinytensor as tt; from tinyformer.plots import attention_html\n"
        "print(len(attention_html({'a': tt.ones((1, 1, 1))}, ['x'])._repr_html_()) > 1000)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
