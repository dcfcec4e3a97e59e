"""Models as ONNX files, and as web pages.

``export_onnx`` (``tinyformer export RUN model.onnx``) writes a model. ``web_page`` (``tinyformer export RUN --web page.html``)
writes a page with a GPT, computed by ``tinyformer/javascript``, and ``export_page`` a page that runs any model.

No model is written a second time. ``models.py`` runs its ``forward`` and records the ops that it calls, with names in place of
lengths (``tinytensor/replay/recording.py``). ``program.py`` writes the recording as a graph, by the tables in ``operators.py``,
``attention.py`` and ``caches.py``.
"""

from tinyformer.export.web import export_page
from tinyformer.export.writing import export_onnx

__all__ = ["export_onnx", "export_page"]
