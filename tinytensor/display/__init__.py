"""How tensors, modules and graphs look in a notebook: static HTML and SVG, without scripts.

Colours are the page's own colour for text and see-through fills, so that everything can be read on white and on black.
Nothing has an id, so two outputs on a page cannot clash. What draws is loaded only when something is shown.
"""

from __future__ import annotations

from tinytensor.autograd.tensor import Tensor
from tinytensor.nn.module import Module


def _show_tensor(tensor: Tensor) -> str:
    from tinytensor.display.notebook import tensor_html

    return tensor_html(tensor)


def _show_module(module: Module) -> str:
    from tinytensor.display.notebook import module_html

    return module_html(module)


Tensor._repr_html_ = _show_tensor  # what a notebook shows
Module._repr_html_ = _show_module
