"""A module in a notebook: a tree that opens and closes, with the numbers of parameters."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinytensor.nn.module import Module


_ROW = "clear:both;padding-left:1.1em"  # the number of the row before, which may need a line of its own, stays with that row


def module_html(module: Module) -> str:
    """The tree of modules that the module's repr prints. At first its own parts are shown, and theirs are closed."""
    style = "font-family:monospace;max-width:48em;display:flow-root;overflow-wrap:anywhere"
    return f'<div style="{style}">{_tree(module, "", ())}</div>'


def _tree(module: Module, name: str, above: tuple[Module, ...]) -> str:
    label = f"{escape(name)}: " if name else ""
    kind = escape(type(module).__name__)
    if any(module is other for other in above):
        return f'<div style="{_ROW}">{label}{kind}, as above</div>'
    count = module.num_parameters()
    line = f"{label}<b>{kind}</b>({escape(module.extra_repr())})"
    if count:
        line += f' <span style="float:right" title="parameters">{count:,}</span>'
    parts = "".join(_tree(child, child_name, (*above, module)) for child_name, child in module._own_modules())
    if not parts:
        return f'<div style="{_ROW}">{line}</div>'
    opened = "" if above else " open"
    return f'<details style="clear:both"{opened}><summary>{line}</summary><div style="{_ROW}">{parts}</div></details>'
