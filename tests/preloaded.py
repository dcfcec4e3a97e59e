"""What the process that forks the explorers holds (see browsing.py): the library, whose kernels one computation has loaded."""

from __future__ import annotations

import explored  # noqa: F401

import tinyformer.commands.explore  # noqa: F401
import tinytensor as tt

tt.tensor([1.0, 2.0]).softmax(-1)
