"""Models as files of ONNX, which programs other than Python can run.

``export_onnx`` writes a model. ``python -m tinyformer.export RUN_FOLDER model.onnx`` writes the model of a run, and its
tokenizer, and shows how to run them.

The graph is built from the model's modules, layer by layer as their ``forward`` reads. A program that ``tt.trace`` writes down
would not do: in it, all lengths are fixed.
"""

from __future__ import annotations

TYPE_CHECKING = False  # for type checkers
if TYPE_CHECKING:
    from typing import Any

    from tinyformer.export.writing import export_onnx as export_onnx

__all__ = ["export_onnx"]


def __getattr__(name: str) -> Any:
    """``export_onnx``, imported when it is needed: python -m imports this file before it can tell an error in a line."""
    if name != "export_onnx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tinyformer.export.writing import export_onnx

    return export_onnx
