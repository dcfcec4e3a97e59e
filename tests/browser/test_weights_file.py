"""Weights for a page: what Python writes, and what JavaScript reads of it, also of damaged files."""

from __future__ import annotations

import json
import struct
from typing import Any
from urllib.request import Request, urlopen

import ml_dtypes
import numpy as np
import pytest
from javascript_modules import CONFIGS, page_of_modules, random_gpt, run
from safetensors.numpy import load, save

import tinytensor as tt
from tinyformer import CharTokenizer, UserError, quantize
from tinyformer.explore.views.subjects import Subjects
from tinyformer.export.web import web_weights

READ = """
  const { metadata, arrays } = readSafetensors(await bytes("file"));
  const found = [...arrays].map(([name, { shape, values }]) => [name, shape, [...values].map(String), values.constructor.name]);
  return { metadata, found };
"""
NUMBERS = [0.0, -0.0, 1.0, -1.5, 1 / 3, 65504.0, 6e-8, -6e-8, 1e-5, 3e38, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8])
def test_numbers_of_each_dtype(tab: Any, dtype: Any) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.arange(-128, 128).astype(dtype) if dtype is np.int8 else np.array(NUMBERS).astype(dtype)
    arrays = {"one": numbers, "two": numbers[:4].reshape(2, 1, 2), "none": numbers[:0], "scalar": numbers[2:3].reshape(())}
    page = page_of_modules(tab.page, {"file": save(arrays, {"a": "b"})})
    read = run(page, READ)
    assert read["metadata"] == {"a": "b"}
    found = {name: (shape, [float(value) for value in values]) for name, shape, values, kind in read["found"]}
    assert {kind for *_, kind in read["found"]} == {"Float32Array"}
    assert found.keys() == arrays.keys()
    for name, values in arrays.items():
        assert found[name][0] == list(values.shape)
        np.testing.assert_array_equal(found[name][1], np.asarray(values, np.float32).ravel())


def test_all_halves(tab: Any) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    page = page_of_modules(tab.page, {"file": save({"x": halves})})
    found = run(page, "return [...readSafetensors(await bytes('file')).arrays.get('x').values].map(String)")
    np.testing.assert_array_equal([float(value) for value in found], halves.astype(np.float32))


def a_file(header: Any, values: bytes = b"\0" * 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + values


def described(**changed: Any) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changed}}


WHOLE = a_file(described())
DAMAGED = {
    b"": "this is not a whole safetensors file: its header is cut off",
    WHOLE[:7]: "this is not a whole safetensors file: its header is cut off",
    WHOLE[:20]: "this is not a whole safetensors file: its header is cut off",
    b"\xff" * 40: "this is not a whole safetensors file: its header is cut off",
    WHOLE[:-1]: "the file is cut off: x is not all there",
    a_file(b"{"): "this is not a safetensors file: its header is not JSON",
    a_file(b'{"\xff": 1}'): "this is not a safetensors file: its header is not JSON",
    a_file([]): "this is not a safetensors file: its header is not an object",
    a_file(b"null"): "this is not a safetensors file: its header is not an object",
    a_file({"x": 1}): "x is of the dtype undefined: only F32, F16, BF16, I8 can be read",
    a_file({"x": None}): "x is of the dtype undefined: only F32, F16, BF16, I8 can be read",
    a_file(described(dtype="F64")): "x is of the dtype F64: only F32, F16, BF16, I8 can be read",
    a_file(described(dtype="constructor")): "x is of the dtype constructor: only F32, F16, BF16, I8 can be read",
    a_file(described(shape=[3])): "x has another number of bytes than its shape needs",
    a_file(described(shape=[-2, -2])): "x has another number of bytes than its shape needs",
    a_file(described(shape=None)): "x has another number of bytes than its shape needs",
    a_file(described(data_offsets=None)): "x has another number of bytes than its shape needs",
    a_file(described(data_offsets=["0", "16"])): "x has another number of bytes than its shape needs",
    a_file(described(data_offsets=[0.5, 16.5])): "x has another number of bytes than its shape needs",
    a_file(described(data_offsets=[-16, 0])): "x has another number of bytes than its shape needs",
    a_file(described(data_offsets=[16, 32])): "the file is cut off: x is not all there",
}


def test_a_damaged_file_is_reported_in_one_line(tab: Any) -> None:
    files = {f"file{i}": content for i, content in enumerate(DAMAGED)}
    page = page_of_modules(tab.page, {**files, "whole": WHOLE})
    script = "const file = await bytes(given.name); return told(() => readSafetensors(file))"
    for name, message in zip(files, DAMAGED.values()):
        assert run(page, script, name=name) == f"DamagedFile: {message}"
    assert run(page, script, name="whole") == "nothing"


def test_arrays_that_do_not_start_where_numbers_do(tab: Any) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    content = a_file(header + b" " * (1 - len(header) % 4), np.array([1.5, -2.5], np.float32).tobytes())
    assert len(content) % 4
    page = page_of_modules(tab.page, {"file": content})
    assert run(page, READ)["found"] == [["x", [2], ["1.5", "-2.5"], "Float32Array"]]


def test_weights_that_do_not_fit_the_program_are_refused(tab: Any) -> None:
    content = web_weights(random_gpt(bias=True))
    metadata, arrays = metadata_of(content), load(content)
    less = {name: value for name, value in arrays.items() if name != "blocks.1.feed_forward.down.bias"}
    other = {**arrays, "norm.weight": np.zeros(3, np.float32)}
    newer = {**metadata, "program": metadata["program"].replace("gelu_tanh", "toString")}
    refused = {
        save(less, metadata): "the file does not have the weights blocks.1.feed_forward.down.bias",
        save(other, metadata): "the weights norm.weight are (3): the program needs (16)",
        save(arrays, newer): "there is no op toString: this page is older than the file",
        save(arrays): "these are not the weights of a GPT that tinyformer wrote for a page",
    }
    files = {f"file{i}": content for i, content in enumerate(refused)}
    page = page_of_modules(tab.page, files)
    script = "const file = readSafetensors(await bytes(given.name)); return told(() => new GPT(file))"
    for name, message in zip(files, refused.values()):
        assert run(page, script, name=name) == f"Error: {message}"


def metadata_of(content: bytes) -> dict[str, str]:
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length])["__metadata__"]


# ----------------------------------------------------------------------------------------------- what the explorer gives

GET = """async (model) => {
  const modules = await Promise.all(["api", "safetensors", "gpt"].map((name) => import(`./${name}.js`)));
  const { bytes, readSafetensors, GPT } = Object.assign({}, ...modules);
  const gpt = new GPT(readSafetensors(await bytes("weights", { model })));
  return [...gpt.forward([1, 2, 3])];
}"""
REFUSED = """async (model) => {
  const { bytes } = await import("./api.js");
  return bytes("weights", { model }).catch((error) => `${error.constructor.name}: ${error.message}`);
}"""


def test_the_explorer_gives_a_model_to_its_page(tab: Any, explorers: Any, runs: Any) -> None:
    subject = Subjects([runs["gpt"]]).get("best")
    with tt.no_grad():
        expected = subject.model(tt.tensor([[1, 2, 3]])).numpy()
    page = tab.open(explorers["gpt"])
    assert abs(np.array(page.evaluate(GET, "best")) - expected.ravel()).max() < 1e-5 * abs(expected).max()


@pytest.mark.parametrize(
    "name, kind", {"recurrent": "RecurrentLM", "masked": "BertForMaskedLM", "transformer": "Transformer"}.items()
)
def test_a_model_that_no_page_computes_is_refused_in_a_line(browser: Any, explorers: Any, name: str, kind: str) -> None:
    page = browser.new_page()
    page.goto(explorers[name].address)
    assert page.evaluate(REFUSED, "best") == f"Refusal: a page computes only a GPT, not a {kind}"
    page.close()


def test_the_bytes_are_a_file_as_any_program_gets_them(explorers: Any, runs: Any) -> None:
    asked = Request(f"{explorers['gpt'].address}ask/weights", b'{"model": "best"}', {"Content-Type": "application/json"})
    with urlopen(asked) as response:
        content = response.read()
        assert response.headers["Content-Type"] == "application/octet-stream"
    subject = Subjects([runs["gpt"]]).get("best")
    metadata = metadata_of(content)
    assert json.loads(metadata["characters"]) == subject.tokenizer.characters
    assert json.loads(metadata["config"])["d_model"] == 16
    assert metadata == metadata_of(web_weights(subject.model, subject.tokenizer, numbers=True))
    assert "characters" not in metadata_of(web_weights(subject.model))
    special = CharTokenizer("ab", special=("[END]",))
    assert json.loads(metadata_of(web_weights(subject.model, special))["characters"]) == ["a", "b", "[END]"]


def test_models_that_python_refuses() -> None:
    model = random_gpt(**CONFIGS["rotary"])
    model.norm.weight.assign(model.norm.weight * 1e6)
    assert web_weights(model)
    with pytest.raises(UserError, match=r"norm.weight has values that float16 cannot hold: use float32"):
        web_weights(model, dtype="float16")
    for dtype in ("int8", "int4", "bfloat16"):
        with pytest.raises(UserError, match=f"a model in {dtype} cannot be used in a page: open it in float32"):
            web_weights(quantize(random_gpt(), dtype))
    large = random_gpt(vocab_size=100_000, d_model=128, num_layers=1)
    with pytest.raises(UserError, match=r"weights must take at most 40 MB for a page, got 5\d\.\d MB in float32"):
        web_weights(large)
    assert len(web_weights(large, dtype="float16")) > 20_000_000
