"""The command ``tinyformer`` as a file. One in the package's folder would take its tokenizers/ for the package tokenizers."""

from __future__ import annotations

from tinyformer.commands.main import main

if __name__ == "__main__":  # spawned processes import this file, too
    main()
