"""Reverse-mode differentiation: tensors, ops, and the engine that backpropagates gradients.

Read engine.py first, then op.py and tensor.py. This package imports device/ and common/.
"""

import typing

from tinytensor.common.missing import names_of as _names_of

__all__: list[str] = []  # tinytensor exports the names of this package

if not typing.TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
