"""``python -m tinyformer`` runs the ``tinyformer`` command."""

from __future__ import annotations

from tinyformer.commands.main import main

if __name__ == "__main__":  # spawned processes also import this file
    main()
