"""Models as files of ONNX, which programs other than Python can run.

``export_onnx`` writes a model. ``tinyformer export RUN model.onnx`` writes the model of a run, and its tokenizer, and shows how
to run them.

The graph is built from the model's modules, layer by layer as their ``forward`` reads. A program that ``tt.trace`` writes down
would not do: in it, all lengths are fixed.
"""

from tinyformer.export.writing import export_onnx

__all__ = ["export_onnx"]
