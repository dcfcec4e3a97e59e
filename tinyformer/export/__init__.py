"""Export models to ONNX files and web pages.

``export_onnx`` (``tinyformer export RUN model.onnx``) exports a model. ``web_page`` (``tinyformer export RUN --web page.html``)
writes a page that runs a GPT with ``tinyformer/javascript``. ``export_page`` writes a page for any model.

No model needs a second implementation. ``models.py`` runs its ``forward`` and records the ops, with named sizes
(``tinytensor/replay/recording.py``). ``program.py`` converts the recording to a graph, using the tables in ``operators.py``,
``attention.py`` and ``caches.py``.
"""

from tinyformer.export.web import export_page
from tinyformer.export.writing import export_onnx

__all__ = ["export_onnx", "export_page"]
