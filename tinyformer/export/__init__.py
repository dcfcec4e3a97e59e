"""Models as files of ONNX, which programs other than Python can run; and GPTs as pages, which a browser can.

``export_onnx`` writes a model. ``tinyformer export RUN model.onnx`` writes the model of a run, and its tokenizer, and shows how
to run them.

No model is written here a second time. ``models.py`` runs its ``forward`` and records the ops that it calls, with names in the
place of their lengths (``tinytensor/replay/recording.py``). ``program.py`` writes this as a graph. What each op becomes is said
by tables in ``operators.py``, ``attention.py`` and ``caches.py``.

``web_page`` writes a page with a GPT, which ``tinyformer/javascript`` computes: ``tinyformer export RUN --web page.html``.
``export_page`` writes a page that runs any model.
"""

from tinyformer.export.web import export_page
from tinyformer.export.writing import export_onnx

__all__ = ["export_onnx", "export_page"]
