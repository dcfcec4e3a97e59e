"""Reverse-mode differentiation: the tensor, what an op is, what a call records, and how gradients flow back.

Read engine.py first, then op.py and tensor.py. It imports device/ and common/.
"""

import typing

from tinytensor.common.missing import names_of as _names_of

__all__: list[str] = []  # its names are those of tinytensor

if not typing.TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
