"""Models as files of ONNX, which programs other than Python can run; and GPTs as pages, which a browser can.

``export_onnx`` writes a model. ``tinyformer export RUN model.onnx`` writes the model of a run, and its tokenizer, and shows how
to run them.

The graph is built from the model's modules, layer by layer as their ``forward`` reads. A program that ``tt.trace`` writes down
would not do: in it, all lengths are fixed.

``web_page`` writes a page with a GPT, which ``tinyformer/javascript`` computes: ``tinyformer export RUN --web page.html``.
"""

from tinyformer.export.writing import export_onnx

__all__ = ["export_onnx"]
