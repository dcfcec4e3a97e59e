"""A model in a browser: its program and its weights as one safetensors file, which ``tinyformer/javascript`` runs; and a page
that holds a GPT with all that computes it."""

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

LARGEST = 40_000_000  # bytes that a page is given
PAGE = resources.files("tinyformer.export") / "page"


def web_weights(
    model: Module,
    tokenizer: Tokenizer | None = None,
    dtype: str = "float32",
    inputs: Mapping[str, Axes] | None = None,
    numbers: bool = False,
) -> bytes:
    """The program and the weights of a model as the bytes of a safetensors file. The weights are "float32" or "float16".

    The program is what the model's own ``forward`` computes from ``ids`` (1, length), or for a ``Transformer`` from ``source``
    and ``target``: the ``logits``. That of a GPT keeps keys and values in a cache. With ``inputs`` it is that of any module,
    as for ``export_onnx``. With ``numbers`` it is ``recorded_numbers`` of a GPT.

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
        description, constants = recorded_numbers(model) if numbers else recorded_model(model, inputs)
    kind = "GPT" if isinstance(model, GPT) and inputs is None else "Program"
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
    size = counted(num_weights(opened.model), "parameter")
    about = f"A GPT with {size}, trained with tinyformer. It runs in this page, without any network."
    show = 'show(document.getElementById("model"), new GPT(file), file.metadata);'
    return _page(folder.path.resolve().name, about, weights, live_modules(), show)


def export_page(model: Module, path: str | Path, inputs: Mapping[str, Axes]) -> Path:
    """Write a page, in one file, that runs any model: it has a field for each input, and shows the outputs. Returns the path.

    ``inputs`` are the arguments of the model's ``forward``, as for ``export_onnx``. Scripts in the page call
    ``model.run(inputs)`` with nested arrays. Raises UserError as ``web_weights``, and for a ``path`` that does not end in .html
    or whose folder does not exist.
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
    """The style sheet of what ``live_modules`` show."""
    return (PAGE / "livegpt.css").read_text(encoding="utf-8")


def live_modules() -> str:
    """All modules as one script, which needs no other file: without their imports and exports."""
    modules = _script("safetensors", "functions", "products", "ops", "program", "gpt", "writing")
    return modules + _without_imports(PAGE / "livegpt.js")


def _script(*names: str) -> str:
    return "".join([_without_imports(JAVASCRIPT / f"{name}.js") + "\n" for name in names])


def _without_imports(file: Any) -> str:
    return re.sub(r"(?m)^(import .*\n|export )", "", file.read_text(encoding="utf-8"))
