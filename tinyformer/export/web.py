"""A model in a browser: its program and its weights as one safetensors file, which ``tinyformer/javascript`` runs; and a page
that holds a GPT with all that computes it."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from safetensors.numpy import save

from tinyformer.common.errors import UserError
from tinyformer.export.javascript import recorded_model
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinyformer.models.quantizing import num_weights, refuse_additions, refuse_quantized
from tinyformer.runs.run_folder import RunFolder
from tinyformer.tasks.trained import open_run
from tinyformer.tokenizers import CharTokenizer, Tokenizer
from tinytensor.common.wording import a_or_an, counted
from tinytensor.device.backend import host
from tinytensor.nn import Module

LARGEST = 40_000_000  # bytes that a page is given
PAGE = resources.files("tinyformer.export") / "page"


def web_weights(model: Module, tokenizer: Tokenizer | None = None, dtype: str = "float32") -> bytes:
    """The program and the weights of a model as the bytes of a safetensors file. The weights are "float32" or "float16".

    The program is what the model's own ``forward`` computes from ``ids`` (1, length), or for a ``Transformer`` from ``source``
    and ``target``: the ``logits``. That of a GPT keeps keys and values in a cache.

    The metadata are the ``format``, the ``program``, the ``config``, a JSON object with each setting of the model's
    configuration, and with a ``CharTokenizer`` the ``characters``, a JSON list with the text of each id, then the ``special``
    tokens' names. Raises UserError for a model whose ``forward`` has an op that a page does not compute; for a quantized model
    and one with additions to its weights; for more than 40 MB; and for weights that float16 cannot hold.
    """
    refuse_additions(model, "given to a page")
    refuse_quantized(model, "given to a page", "open it in float32")
    size = model.num_parameters() * host.dtype(dtype).itemsize
    if size > LARGEST:
        takes = f"the weights take {size / 1e6:,.1f} MB in {dtype}"
        raise UserError(f"{takes}: a page computes models of up to {LARGEST / 1e6:.0f} MB")
    with evaluating(model):
        description, constants = recorded_model(model)
    kind = "GPT" if isinstance(model, GPT) else "Program"
    metadata = {"format": f"tinyformer.{kind}", "program": json.dumps(description, separators=(",", ":"))}
    if (config := getattr(model, "config", None)) is not None:
        metadata["config"] = json.dumps(asdict(config))
    if isinstance(tokenizer, CharTokenizer):
        metadata["characters"] = json.dumps([*tokenizer.characters, *tokenizer.special])
    weights = dict(model.named_parameters())  # tables of positions stay exact
    content = save({name: _array(name, x, dtype if name in weights else "float32") for name, x in constants.items()})
    end = 8 + int.from_bytes(content[:8], "little")
    # The metadata are added here, because the safetensors library writes them in a different order each time.
    header = json.dumps({"__metadata__": metadata, **json.loads(content[8:end])}).encode()
    header += b" " * (-len(header) % 8)  # as the format requires
    return len(header).to_bytes(8, "little") + header + content[end:]


def _array(name: str, values: Any, dtype: str) -> Any:
    if dtype == "float16" and (host.abs(values) > host.finfo(dtype).max).any():
        raise UserError(f"{name} has numbers that float16 cannot hold: take float32")
    return host.ascontiguousarray(values, dtype)


def web_page(path: str | Path) -> str:
    """A page, in one file, with the best GPT of the run in a folder: it writes on as one types, without any network.

    Its weights are in float16. Raises UserError as ``web_weights``, for a run that cannot be opened, and for one whose tokens
    are not characters.
    """
    folder = RunFolder(path)
    opened = open_run(folder, use="exported as a page")
    if not isinstance(opened.model, GPT):
        raise UserError(f"only a GPT writes in a page, not {a_or_an(type(opened.model).__name__)}")
    weights = web_weights(opened.model, opened.tokenizer, "float16")
    if not isinstance(opened.tokenizer, CharTokenizer):
        kind = type(opened.tokenizer).__name__
        raise UserError(f"{path} has {a_or_an(kind)}: only a run whose tokens are characters becomes a page")
    name = folder.path.resolve().name
    size = counted(num_weights(opened.model), "parameter")
    about = f"A GPT with {size}, trained with tinyformer. It runs in this page, without any network."
    return Template((PAGE / "index.html").read_text(encoding="utf-8")).substitute(
        title=escape(name),
        about=escape(about),
        style=live_style(),
        weights=base64.b64encode(weights).decode(),
        modules=live_modules(),
    )


def live_style() -> str:
    """The style sheet of what ``live_modules`` show."""
    return (PAGE / "livegpt.css").read_text(encoding="utf-8")


def live_modules() -> str:
    """All modules as one script, which needs no other file: without their imports and exports."""
    folder = resources.files("tinyformer.javascript")
    files = [*(folder / f"{name}.js" for name in ("safetensors", "functions", "products", "ops", "program", "gpt", "writing"))]
    files.append(PAGE / "livegpt.js")
    sources = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return re.sub(r"(?m)^(import .*\n|export )", "", sources)
