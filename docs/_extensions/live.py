"""The trained GPT of the site: a script with its weights and what computes with them, which needs no server.

``docs/_static/touch/base.js`` tells how a page shows what can be touched. ``data-touch="livegpt"`` is a GPT that writes.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from tinyformer.export.web import live_modules, live_style

WEIGHTS = Path(__file__).parents[2] / "benchmarks" / "results" / "char_gpt" / "weights.safetensors"
# Modules cannot be loaded from a disk, but a script can. It does not run what it holds before a page has a place for it.
SCRIPT = """"use strict";
(() => {
%s
const weights = "%s";
touch.gpt = {
  /** A new copy of the model, and the metadata of its file. */
  load() {
    const file = readSafetensors(Uint8Array.from(atob(weights), (letter) => letter.charCodeAt(0)).buffer);
    return { model: new GPT(file), metadata: file.metadata };
  },
  Characters,
  Sampling,
};
touch.fill("livegpt", (place) => {
  const { model, metadata } = touch.gpt.load();
  show(place, model, metadata, place.dataset.text ?? "");
});
})();
"""


def write(app: Sphinx) -> None:
    """Sphinx's event: write the script and its style sheet to a folder of static files."""
    folder = Path(app.doctreedir) / "live"
    (folder / "touch").mkdir(parents=True, exist_ok=True)
    script = SCRIPT % (live_modules(), base64.b64encode(WEIGHTS.read_bytes()).decode())
    (folder / "touch" / "livegpt.js").write_text(script, encoding="utf-8")
    (folder / "livegpt.css").write_text(live_style(), encoding="utf-8")
    app.config.html_static_path.append(str(folder))
    app.add_css_file("livegpt.css")


def setup(app: Sphinx) -> dict[str, Any]:
    """Write when the build begins."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
