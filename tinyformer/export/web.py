"""A GPT's weights for a browser: one safetensors file, which ``tinyformer/javascript`` reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from safetensors.numpy import save

from tinyformer.common.errors import UserError
from tinyformer.models.gpt import GPT
from tinyformer.models.quantizing import refuse_additions, refuse_quantized
from tinyformer.tokenizers import CharTokenizer, Tokenizer
from tinytensor.device.backend import host
from tinytensor.nn import Module

FORMAT = "tinyformer.GPT"
LARGEST = 40_000_000  # bytes that a page is given


def web_weights(model: Module, tokenizer: Tokenizer | None = None, dtype: str = "float32") -> bytes:
    """The weights of a GPT as the bytes of a safetensors file, "float32" or "float16", by their names in ``state_dict``.

    The metadata are the ``format``, the ``config``, a JSON object with each setting of its GPTConfig, and with a
    ``CharTokenizer`` the ``characters``, a JSON list with the text of each id, then the ``special`` tokens' names.
    Raises UserError for any other model, a quantized one or one with additions to its weights; for more than 40 MB; and for
    weights that float16 cannot hold.
    """
    if type(model) is not GPT:  # a subclass may compute something else
        raise UserError(f"a page computes only a GPT, not a {type(model).__name__}")
    refuse_additions(model, "given to a page")
    refuse_quantized(model, "given to a page", "open it in float32")
    size = model.num_parameters() * host.dtype(dtype).itemsize
    if size > LARGEST:
        takes = f"the weights take {size / 1e6:,.1f} MB in {dtype}"
        raise UserError(f"{takes}: a page computes models of up to {LARGEST / 1e6:.0f} MB")
    metadata = {"format": FORMAT, "config": json.dumps(asdict(model.config))}
    if isinstance(tokenizer, CharTokenizer):
        metadata["characters"] = json.dumps([*tokenizer.characters, *tokenizer.special])
    return save({name: _array(name, tensor.numpy(), dtype) for name, tensor in model.state_dict().items()}, metadata)


def _array(name: str, values: Any, dtype: str) -> Any:
    if dtype == "float16" and abs(values).max(initial=0) > host.finfo(dtype).max:
        raise UserError(f"{name} has numbers that float16 cannot hold: take float32")
    return host.ascontiguousarray(values, dtype)
