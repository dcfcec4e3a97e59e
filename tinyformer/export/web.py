"""A model in a browser: a safetensors file with its program and weights for ``tinyformer/javascript``, and a self-contained
page."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from safetensors.numpy import save

from tinyformer.common.errors import UserError
from tinyformer.export.javascript import JAVASCRIPT, recorded_model, recorded_numbers
from tinyformer.export.models import Axes
from tinyformer.export.writing import check_path
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinyformer.models.quantizing import num_weights, refuse_additions, refuse_quantized
from tinyformer.tokenizers import CharTokenizer, Tokenizer
from tinyformer.training.opening import open_run
from tinyformer.training.run_folder import RunFolder
from tinytensor.common.wording import a_or_an, counted
from tinytensor.device.backend import host
from tinytensor.device.disk import atomic_write
from tinytensor.nn import Module

LARGEST = 40_000_000  # bytes of weights in a page
PAGE = resources.files("tinyformer.export") / "page"


def web_weights(
    model: Module,
    tokenizer: Tokenizer | None = None,
    dtype: str = "float32",
    inputs: Mapping[str, Axes] | None = None,
    numbers: bool = False,
) -> bytes:
    """Return a model's program and weights ("float32" or "float16") as the bytes of a safetensors file.

    The program computes the ``logits`` of ``forward`` from ``ids`` (1, length), or for a ``Transformer``, from ``source`` and
    ``target``. A GPT's program has a cache. If ``inputs`` is passed, it supports any module, as ``export_onnx`` does. If
    ``numbers`` is True, it is ``recorded_numbers`` of a GPT.

    The metadata holds the ``format``, the ``program``, and the ``config`` (a JSON object with the model's settings). With a
    ``CharTokenizer``, it adds ``characters``: a JSON list of each id's text, then the names of ``special`` tokens. Raises
    UserError for unsupported ops, quantized models, models with LoRA adapters, more than 40 MB, and weights that float16 cannot
    represent.
    """
    refuse_additions(model, "used in a page")
    refuse_quantized(model, "used in a page", "open it in float32")
    size = model.num_parameters() * host.dtype(dtype).itemsize
    if size > LARGEST:
        limit = f"{LARGEST / 1e6:.0f} MB"
        raise UserError(f"weights must take at most {limit} for a page, got {size / 1e6:,.1f} MB in {dtype}")
    with evaluating(model):
        description, constants = recorded_numbers(model) if numbers else recorded_model(model, inputs)
    loader = "GPT" if isinstance(model, GPT) and inputs is None else "Program"
    metadata = {"format": f"tinyformer.{loader}", "program": json.dumps(description, separators=(",", ":"))}
    if (config := getattr(model, "config", None)) is not None:
        metadata["config"] = json.dumps(asdict(config))
    if isinstance(tokenizer, CharTokenizer):
        metadata["characters"] = json.dumps([*tokenizer.characters, *tokenizer.special])
    weights = dict(model.named_parameters())  # position tables stay exact
    content = save({name: _array(name, x, dtype if name in weights else "float32") for name, x in constants.items()})
    end = 8 + int.from_bytes(content[:8], "little")
    # Added here because the safetensors library writes metadata in varying order.
    header = json.dumps({"__metadata__": metadata, **json.loads(content[8:end])}).encode()
    header += b" " * (-len(header) % 8)  # required by the format
    return len(header).to_bytes(8, "little") + header + content[end:]


def _array(name: str, values: Any, dtype: str) -> Any:
    if dtype == "float16" and (host.abs(values) > host.finfo(dtype).max).any():
        raise UserError(f"{name} has values that float16 cannot hold: use float32")
    return host.ascontiguousarray(values, dtype)


def web_page(path: str | Path) -> str:
    """Return a self-contained page with the best GPT of a run. It continues typed text, offline.

    The weights are float16. Raises UserError as ``web_weights`` does, if the run cannot be opened, or if its tokenizer is not
    character-level.
    """
    folder = RunFolder(path)
    opened = open_run(folder, use="exported as a page")
    if not isinstance(opened.model, GPT):
        raise UserError(f"only a GPT can be exported as a page, got {a_or_an(type(opened.model).__name__)}")
    weights = web_weights(opened.model, opened.tokenizer, "float16")
    if not isinstance(opened.tokenizer, CharTokenizer):
        name = a_or_an(type(opened.tokenizer).__name__)
        raise UserError(f"a page needs a run with a CharTokenizer, but {path} has {name}")
    size = counted(num_weights(opened.model), "parameter")
    about = f"A GPT with {size}, trained with tinyformer. It runs in this page, without any network."
    show = 'show(document.getElementById("model"), new GPT(file), file.metadata);'
    return _page(folder.path.resolve().name, about, weights, live_modules(), show)


def export_page(model: Module, path: str | Path, inputs: Mapping[str, Axes]) -> Path:
    """Write a self-contained page that runs any model, with a field for each input. Return the path.

    ``inputs`` are the arguments of ``forward``, as for ``export_onnx``. Scripts in the page call ``model.run(inputs)`` with
    nested arrays. Raises UserError as ``web_weights`` does, and if ``path`` does not end in .html or its folder does not exist.
    """
    path, name = check_path(path, ".html"), type(model).__name__
    weights = web_weights(model, inputs=inputs)
    modules = _script("safetensors", "functions", "products", "ops", "program") + _without_imports(PAGE / "runner.js")
    show = 'showProgram(document.getElementById("model"), new Program(JSON.parse(file.metadata.program), file.arrays));'
    about = f"A {name} with {counted(num_weights(model), 'parameter')}. It runs in this page, without any network."
    with atomic_write(path) as file:
        file.write(_page(name, about, weights, modules, show).encode())
    return path


def _page(title: str, about: str, weights: bytes, modules: str, show: str) -> str:
    return Template((PAGE / "index.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        about=escape(about),
        style=live_style(),
        weights=base64.b64encode(weights).decode(),
        modules=modules,
        show=show,
    )


def live_style() -> str:
    """Return the style sheet for ``live_modules``."""
    return (PAGE / "livegpt.css").read_text(encoding="utf-8")


def live_modules() -> str:
    """Return all modules as one self-contained script, without imports and exports."""
    modules = _script("safetensors", "functions", "products", "ops", "program", "gpt", "writing")
    return modules + _without_imports(PAGE / "livegpt.js")


def _script(*names: str) -> str:
    return "".join([_without_imports(JAVASCRIPT / f"{name}.js") + "\n" for name in names])


def _without_imports(file: Any) -> str:
    return re.sub(r"(?m)^(import .*\n|export )", "", file.read_text(encoding="utf-8"))
