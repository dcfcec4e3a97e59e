"""The command ``tinyformer`` as a file to run. In the package's own folder, its tokenizers/ would hide the package tokenizers."""

from __future__ import annotations

from tinyformer.programs.main import main

if __name__ == "__main__":  # spawned processes import this file, too
    main()
