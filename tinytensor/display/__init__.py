"""Display of tensors, modules and graphs in a notebook, as static HTML and SVG without scripts.

Text takes the color of the page and fills are translucent, to suit light and dark pages. Nothing has an id, so outputs on one
page cannot clash. Drawing code is loaded only when an object is displayed.
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


Tensor._repr_html_ = _show_tensor  # called by notebooks to display objects
Module._repr_html_ = _show_module
