"""The modules of tinyformer/javascript in a page, and weights of random GPTs for them."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import numpy as np
from browsing import ROOT

import tinytensor as tt
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.positions import RotaryScaling

Model = TypeVar("Model", bound=tt.nn.Module)
HOME = "http://modules.test/"
MODULES = ROOT / "tinyformer/javascript"
LLAMA3 = RotaryScaling("llama3", 8.0, original_length=64)  # some frequencies stay, some change, some are between
# All settings of a GPTConfig occur, with values that change the logits.
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "biases": {"bias": True, "activation": "gelu_exact"},
    "sinusoidal": {"positions": "sinusoidal", "activation": "relu", "tie_output": False},
    "odd width": {"positions": "sinusoidal", "d_model": 15, "num_heads": 3, "norm_eps": 1e-2},
    "rotary": {"positions": "rotary", "activation": "silu", "rotary_base": 500.0},
    "rotary, linear": {"positions": "rotary", "rotary_scaling": RotaryScaling("linear", 4.0)},
    "Llama 3": {
        "positions": "rotary",
        "rotary_scaling": LLAMA3,
        "d_head": 8,
        "rotary_base": 50.0,
        "norm": "rms",
        "activation": "swiglu",
        "num_key_value_heads": 2,
        "tie_output": False,
    },
    "Qwen 2": {"positions": "rotary", "norm": "rms", "query_key_value_bias": True, "num_key_value_heads": 1},
    "Qwen 3": {
        "positions": "rotary",
        "norm": "rms",
        "query_key_norm": True,
        "d_head": 6,
        "activation": "swiglu",
        "norm_eps": 1e-3,
    },
    "Gemma": {"positions": "rotary", "norm": "rms", "activation": "geglu", "scale_embeddings": True, "d_head": 6},
    "Mistral": {"positions": "rotary", "norm": "rms", "sliding_window": 5, "num_key_value_heads": 2, "d_ff": 20},
    "window": {"sliding_window": 3, "query_key_norm": True, "bias": True},
    "gated, with biases": {"activation": "swiglu", "bias": True, "norm_eps": 1e-2},
    "one of all": {"num_layers": 1, "num_heads": 1, "d_model": 2, "vocab_size": 1},
}


def random_gpt(seed: int = 0, **settings: Any) -> GPT:
    """A GPT whose weights are all random, those of norms and biases, too."""
    config = GPTConfig(**{"vocab_size": 13, "block_size": 24, "num_layers": 2, "num_heads": 4, "d_model": 16, **settings})
    return randomized(GPT(config), seed)


def randomized(model: Model, seed: int = 0) -> Model:
    """The model for evaluation, with random weights."""
    rng = np.random.default_rng(seed)
    for name, parameter in model.named_parameters():
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        parameter.assign(tt.tensor(rng.normal(mean, 0.4, parameter.shape).astype(np.float32)))
    return model.eval()


def page_of_modules(page: Any, files: dict[str, bytes]) -> Any:
    """Open an empty page, beside which there are the modules and these ``files``."""

    def answer(route: Any) -> None:
        name = route.request.url.removeprefix(HOME)
        if name in files:
            route.fulfill(body=files[name], content_type="application/octet-stream")
        elif (MODULES / name).is_file():
            route.fulfill(path=MODULES / name, content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html><title>modules</title>", content_type="text/html")

    page.route(f"{HOME}**", answer)
    page.goto(HOME)
    return page


def run(page: Any, script: str, **given: Any) -> Any:
    """What a script of JavaScript returns. It knows all that the modules export by name, and these:

    - ``given``: what is given.
    - ``bytes(name)`` and ``load(name)``: the content of a file, and the GPT in it.
    - ``program(name)``: the program in a file.
    - ``told(f)``: the error that a function throws.
    """
    body = """async (given) => {
      const names = ["safetensors", "ops", "program", "gpt", "writing"];
      const modules = await Promise.all(names.map((name) => import(`/${name}.js`)));
      const all = Object.assign({}, ...modules);
      const bytes = async (name) => (await fetch(`/${name}`)).arrayBuffer();
      const load = async (name) => new all.GPT(all.readSafetensors(await bytes(name)));
      const program = async (name) => {
        const { metadata, arrays } = all.readSafetensors(await bytes(name));
        return new all.Program(JSON.parse(metadata.program), arrays);
      };
      const told = (f) => {
        try {
          return f(), "nothing";
        } catch (error) {
          return `${error.constructor.name}: ${error.message}`;
        }
      };
      const AsyncFunction = (async () => {}).constructor;
      const script = new AsyncFunction(...Object.keys(all), "given", "bytes", "load", "program", "told", SCRIPT);
      return script(...Object.values(all), given, bytes, load, program, told);
    }"""
    return page.evaluate(body.replace("SCRIPT", json.dumps(script)), given)
