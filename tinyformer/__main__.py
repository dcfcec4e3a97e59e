"""``python -m tinyformer`` is the command ``tinyformer``."""

from __future__ import annotations

from tinyformer.commands.main import main

if __name__ == "__main__":  # spawned processes import this file, too
    main()
