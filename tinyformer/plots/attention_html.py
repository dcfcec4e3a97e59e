"""Attention weights as HTML that shows a row's values on hover, without scripts or matplotlib."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tinyformer.common.errors import shortened
from tinyformer.plots.attention import axes_of
from tinyformer.plots.drawing import CIRCLE, NAMED, SPACE, UNSEEN
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.disk import make_folder, write_text

MOST_TOKENS = 40  # on each side of a map
MOST_CELLS = 20_000  # over all maps; each takes about 100 characters of HTML
LONGEST_TOKEN = 16  # letters of a label
UPRIGHT = 2  # letters that fit above a key's column; longer labels are rotated

STYLE = """<style>
.tf-attention { --line: rgba(128,128,128,.25); font-family: sans-serif; font-size: 12px; }
.tf-attention .maps { display: flex; flex-wrap: wrap; gap: 1em 2em; align-items: flex-end; }
.tf-attention .map { max-width: 100%; overflow-x: auto; }
.tf-attention table { border-collapse: collapse; border: none; margin: .3em 0; font-size: 11px; width: auto; color: inherit; }
.tf-attention tr, .tf-attention tr:hover { background: none !important; }
.tf-attention th { font-weight: normal; white-space: nowrap; padding: 0 4px; text-align: right; border: none;
  background: none; max-width: none; }
.tf-attention thead th { vertical-align: bottom; height: auto; padding: 4px 0; text-align: center; }
.tf-attention thead span { writing-mode: vertical-rl; transform: rotate(180deg); display: inline-block; line-height: 24px; }
.tf-attention .upright thead span { writing-mode: horizontal-tb; transform: none; }
.tf-attention td { width: 26px; min-width: 26px; height: 20px; padding: 0; text-align: center; font-size: 9px;
  color: transparent; border: 1px solid var(--line); max-width: none; }
.tf-attention tbody tr:hover td, .tf-attention tbody tr:focus-within td { color: inherit; }
.tf-attention tbody tr:hover th, .tf-attention tbody tr:focus-within th { text-decoration: underline; }
.tf-attention summary { cursor: pointer; font-size: 13px; margin: .4em 0; }
.tf-attention details details { margin-left: 1em; }
.tf-attention .note { opacity: .7; }
</style>"""

HOW_TO_READ = (
    "Each row is a query: the token that attends. Each column is a key: a token it may attend to. Each row sums to 1 "
    "unless a note says otherwise. Bluer means more. Point at a row, or tap its token, to see its numbers."
)


class AttentionHTML:
    """Attention maps. A notebook displays them, and ``save`` writes them to a page."""

    def __init__(self, html: str):
        self._html = html

    def __repr__(self) -> str:
        return "attention maps: a notebook shows them, .save('attention.html') writes them to a file"

    def _repr_html_(self) -> str:
        return self._html

    def save(self, path: str | Path) -> Path:
        """Write a self-contained page and return its path. Raises ValueError unless the path ends in .html."""
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"the path of attention maps must end in .html, got {path.suffix or path.name!r}")
        make_folder(path.parent)
        write_text(
            path,
            '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>Attention weights</title>'
            '<meta name="viewport" content="width=device-width"><style>:root { color-scheme: light dark }</style>\n'
            f"{self._html}\n</html>\n",
        )
        return path


def attention_html(
    maps: Mapping[str, Tensor], source_tokens: Sequence[str], target_tokens: Sequence[str] = ()
) -> AttentionHTML:
    """Return attention weights as static HTML: each layer's mean over heads, and each head, collapsed.

    ``maps`` maps layer names to weights (heads, queries, keys). The name determines the tokens of queries and keys, as in
    ``attention_maps``. If there are many tokens or maps, the page shows only the first, with a note. Raises ValueError if the
    tokens do not match the weights' shape, and TypeError if they are not strings.
    """
    for token in (*source_tokens, *target_tokens):
        if not isinstance(token, str):
            raise TypeError(f"tokens must be strings, got {type(token).__name__} {token!r}: decode them first")
    left = MOST_CELLS
    layers: list[str] = []
    for name, weights in maps.items():
        (query_name, queries), (key_name, keys) = axes_of(name, source_tokens, target_tokens)
        heads = weights.numpy().astype("float32")
        if heads.shape[1:] != (len(queries), len(keys)):
            raise ValueError(
                f"{name}: weights of shape {weights.shape} do not fit {len(queries)} {query_name.partition(': ')[2]} tokens as "
                f"queries and {len(keys)} {key_name.partition(': ')[2]} tokens as keys: their axes are heads, queries, keys"
            )
        cells = min(len(queries), MOST_TOKENS) * min(len(keys), MOST_TOKENS)
        fitting = min(left // max(cells, 1), len(heads) + 1) if len(heads) else 0
        left -= fitting * cells
        drawn = [_map("mean over the heads", heads.mean(axis=0), queries, keys)] if fitting else []
        drawn += [_map(f"head {i + 1}", heads[i], queries, keys) for i in range(fitting - 1)]
        notes = _cut(queries, query_name) + _cut(keys, key_name) + _other_sums(heads)
        layers.append(_layer(name, drawn, len(heads), notes, is_open=not layers))
    return AttentionHTML(f'<div class="tf-attention">{STYLE}<div class="note">{HOW_TO_READ}</div>{"".join(layers)}</div>')


def _layer(name: str, drawn: list[str], num_heads: int, notes: list[str], is_open: bool) -> str:
    """Return a layer's mean and its heads, as collapsible HTML."""
    heads = drawn[1:]
    if len(heads) < num_heads:
        notes.append(f"left out {num_heads - len(heads)} of {counted(num_heads, 'head')}: the page is full. Pass fewer layers.")
    inner = "".join(f'<div class="note">{escape(note)}</div>' for note in notes) + "".join(drawn[:1])
    if heads:
        summary = f"<summary>{counted(len(heads), 'head')}</summary>"
        inner += f'<details>{summary}<div class="maps">{"".join(heads)}</div></details>'
    return f"<details{' open' * is_open}><summary><code>{escape(name)}</code></summary>{inner}</details>"


def _cut(tokens: Sequence[str], name: str) -> list[str]:
    """Return a note if only the first tokens are shown."""
    return [f"{name}: the first {MOST_TOKENS} of {counted(len(tokens), 'token')}"] if len(tokens) > MOST_TOKENS else []


def _other_sums(heads: Any) -> list[str]:
    """Return a note if some rows do not sum to 1. For example, a fully masked row is all 0."""
    wrong = ~(abs(heads.sum(axis=-1) - 1) < 0.01)  # also true for NaN
    return [f"{wrong.sum():,} of {counted(wrong.size, 'row')} without a sum of 1"] if wrong.any() else []


def _map(title: str, weights: Any, queries: Sequence[str], keys: Sequence[str]) -> str:
    """Return an HTML table with a colored cell for each weight (queries, keys)."""
    columns = [_label(token) for token in keys[:MOST_TOKENS]]
    head = "".join(f'<th scope="col"><span>{label}</span></th>' for label in columns)
    rows = []
    for token, row in zip(queries[:MOST_TOKENS], weights[:, :MOST_TOKENS].tolist()):
        query = _label(token)
        cells = "".join(_cell(query, key, weight) for key, weight in zip(columns, row))
        rows.append(f'<tr><th scope="row" tabindex="0">{query}</th>{cells}</tr>')
    table = f'<table aria-label="{escape(title)}"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    upright = " upright" if all(len(key) <= UPRIGHT for key in keys) else ""
    return f'<div class="map{upright}"><div>{escape(title)}</div>{table}</div>'


def _cell(query: str, key: str, weight: float) -> str:
    shade = min(max(weight, 0.0), 1.0) * 0.75 if weight == weight else 0.0  # NaN has no color; above 0.75 hides the number
    number = "0" if weight == 0 else f"{weight:.2f}".removeprefix("0")
    return f'<td style="background:rgba(59,130,246,{shade:.3g})" title="{query} → {key}: {weight:.4f}">{number}</td>'


def _label(token: str) -> str:
    """Return a token as HTML text, truncated, with visible spaces and control characters."""
    text = "".join(map(_visible, token[: 4 * LONGEST_TOKEN]))
    if text and unicodedata.category(text[0]).startswith("M"):
        text = CIRCLE + text
    return escape(shortened(text, LONGEST_TOKEN) or "(empty)")


def _visible(letter: str) -> str:
    if letter == " ":
        return SPACE
    return NAMED.get(letter) or (f"U+{ord(letter):04X}" if unicodedata.category(letter) in UNSEEN else letter)
