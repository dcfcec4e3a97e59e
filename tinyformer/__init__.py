"""tinyformer: Transformers on tinytensor.

- ``models``: networks and the layers they are built from.
- ``tokenizers``: convert text to ids and back.
- ``data``: read files and make batches.
- ``audio``: convert WAV files to vectors.
- ``training``: the training loop, losses, evaluation, logs, run folders and checkpoints.
- ``decoding``: generate text from logits.
- ``word_vectors``: word vectors from counts and from word2vec.
- ``markov``: n-gram models that predict the next token from counts.
- ``pretrained``: load and save models in Hugging Face format.
- ``chat``: conversations with a model.
- ``plots``: plots of runs.
- ``export``: ONNX export. ``javascript``: run a GPT in a browser.
- ``explore``: the explorer. ``commands``: the ``tinyformer`` commands and their shared command-line code.
- ``common``: error messages, files, settings, progress, memory.

``from tinyformer import GPT`` works for every name below. It loads only the files that the name needs.
"""

from __future__ import annotations

__version__ = "0.3.0"

TYPE_CHECKING = False  # for type checkers; importing typing is slow
if TYPE_CHECKING:
    from typing import Any

# A script imports ``plain_errors`` from its own module first. Errors before that import print a traceback. Defer slow imports
# until they are needed.
_found: dict[str, str] = {}


def _homes() -> dict[str, str]:
    """Return the module of each public name, as listed in ``__init__.pyi``."""
    if not _found:
        import ast
        from pathlib import Path

        shown = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
        _found.update(
            (one.name, str(node.module)) for node in shown.body if isinstance(node, ast.ImportFrom) for one in node.names
        )
    return _found


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__all__":
        value: Any = sorted(_homes())
    elif not name.startswith("__") and name in _homes():
        value = getattr(importlib.import_module(_homes()[name]), name)
    else:
        raise AttributeError(f"module 'tinyformer' has no attribute {name!r}")
    globals()[name] = value  # the next access skips this function
    return value


def __dir__() -> list[str]:
    return sorted([*_homes(), *(name for name in globals() if name.startswith("__"))])
