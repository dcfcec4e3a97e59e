"""tinyformer: Transformers on tinytensor.

- ``models``: the networks, and the parts that they are built from.
- ``tokenizers``: from text to ids and back.
- ``data``: from files to batches.
- ``audio``: from WAV files to vectors.
- ``training``: the loop, losses, evaluation, logs; the folder of a run, its checkpoints, and the model in it.
- ``decoding``: from logits to text.
- ``word_vectors``: words as vectors, by counting and by word2vec.
- ``markov``: what comes next, by counting.
- ``pretrained``: models in Hugging Face's layout, in and out.
- ``chat``: conversations with a model.
- ``plots``: pictures of runs.
- ``export``: models as ONNX. ``javascript``: a GPT in a browser.
- ``explore``: the explorer. ``commands``: the commands of ``tinyformer``, and what their command lines share.
- ``common``: errors for people, files, settings, progress, memory.

``from tinyformer import GPT`` works for every name below, and loads only the files that the name needs.
"""

from __future__ import annotations

__version__ = "0.3.0"

TYPE_CHECKING = False  # for type checkers; to import typing takes a while
if TYPE_CHECKING:
    from typing import Any

# A script first imports ``plain_errors``, from its own module, and nothing before can tell its errors in a line. So what takes
# a while is done when it is needed.
_found: dict[str, str] = {}


def _homes() -> dict[str, str]:
    """The module of each public name, as ``__init__.pyi`` tells it."""
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
    globals()[name] = value  # so that the next use finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted([*_homes(), *(name for name in globals() if name.startswith("__"))])
