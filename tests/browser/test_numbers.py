"""The view "numbers" in a browser: every array of its forward pass, and every gradient, is the library's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import ROOT, Explorer, Tab, saved, wait_until
from explored import gpt_run
from javascript_modules import page_of_modules, run

import tinytensor as tt
from tinyformer.explore.views.passages import Named, weights
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.attention import recording_attention
from tinyformer.models.gpt import GPT
from tinyformer.models.positions import RotaryScaling
from tinyformer.training.checkpoints import save_checkpoint
from tinyformer.training.run_folder import RunFolder
from tinytensor.nn import recording_outputs

TEXT = "the quick fox"
LLAMA = {"positions": "rotary", "norm": "rms", "activation": "swiglu"}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"bias": True, "num_heads": 4},
    "relu": {"activation": "relu", "norm": "rms", "bias": True},
    "gelu": {"activation": "gelu_exact", "positions": "sinusoidal"},
    "silu": {"activation": "silu", "tie_output": False},
    "llama": {**LLAMA, "num_heads": 4, "num_key_value_heads": 2, "tie_output": False},
    "qwen": {**LLAMA, "query_key_norm": True, "query_key_value_bias": True, "num_key_value_heads": 1, "norm_eps": 1e-3},
    "head": {"d_head": 6, "positions": "rotary", "rotary_base": 100.0, "bias": True, "d_ff": 10},
    "window": {"sliding_window": 4, "positions": "sinusoidal", "num_layers": 3},
    "linear": {"positions": "rotary", "rotary_scaling": RotaryScaling("linear", 3.0)},
    "scaled": {"positions": "rotary", "rotary_scaling": RotaryScaling("llama3", 4.0, original_length=64), "rotary_base": 50.0},
    "one": {"num_layers": 1, "num_heads": 1, "d_model": 6, "query_key_norm": True},
}

FOUND: dict[Path, Any] = {}

# What the modules of the page find: all arrays, their gradients, and of some cells of each what is told about them.
RECORD = """async ([model, ids]) => {
  const load = (name) => import(new URL(name, document.baseURI));
  const names = ["api.js", "safetensors.js", "program.js", "pass.js"];
  const [{ bytes }, { readSafetensors }, { Program }, { Pass }] = await Promise.all(names.map(load));
  const file = readSafetensors(await bytes("weights", { model }));
  const pass = new Pass(new Program(JSON.parse(file.metadata.program), file.arrays), ids);
  const gradients = pass.gradients();
  const sum = (terms) => terms.reduce((total, { value }) => total + value, 0);
  const arrays = pass.arrays.map((array, n) => {
    const places = [...new Set([0, 5, 11, 29].map((i) => (i * (n + 3)) % array.values.length))];
    const told = (place) => {
      if (!array.source) return null;
      const { terms, lines } = pass.explain(array, place);
      const products = terms.map(({ factors, times }) => factors.reduce((x, [input, i]) => x * input.values[i], times));
      const multiplied = lines.length ? null : products.reduce((total, value) => total + value, 0);
      return { sum: sum(terms), value: lines.at(-1)?.value ?? sum(terms), products: multiplied };
    };
    const cells = places.filter((place) => Number.isFinite(array.values[place])).map((place) => ({
      place,
      told: told(place),
      terms: sum(pass.gradientTerms(gradients, array, place)),
      slope: array.kind === "constant" ? null : pass.finiteDifference(array, place).slope,
    }));
    const { name, kind, shape } = array;
    const asTexts = (values) => Array.from(values, String); // JSON has no infinity
    const [values, gradient] = [asTexts(array.values), asTexts(gradients.get(array))];
    return { name, kind, shape, values, gradient, cells, source: array.source ?? null };
  });
  return arrays;
}"""


def run_of(path: Path, **settings: Any) -> Path:
    """A run whose parameters are all different, biases among them."""
    gpt_run(path, latest=False, **settings)
    model = model_of(path)
    random = np.random.default_rng(len(str(settings)))
    for parameter in model.parameters():
        noise = random.normal(0.0, 0.2, parameter.shape).astype(np.float32)
        parameter.assign(tt.tensor(parameter.numpy() * 0.5 + noise))
    save_checkpoint(RunFolder(path).best, {"model": model.state_dict()}, {"kind": "best", "step": 0})
    return path


def recorded(tab: Tab, explorer: Explorer, path: Path) -> Any:
    """What RECORD finds of the text, once for each run."""
    if path not in FOUND:
        page = tab.open(explorer, "write", text=TEXT)
        FOUND[path] = page.evaluate(RECORD, [f"{path}: best", subject_of(path).encode(TEXT)])
    return FOUND[path]


def subject_of(path: Path) -> Any:
    return Subjects([path]).get("best")


def model_of(path: Path) -> GPT:
    model: GPT = subject_of(path).model
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("numbers")
    return {name: run_of(folder / name, **settings) for name, settings in CONFIGS.items()}


@pytest.fixture(scope="module")
def explorer(folders: dict[str, Path]) -> Iterator[Explorer]:
    started = Explorer(*folders.values())
    yield started
    started.stop()


def computed(given: GPT, ids: list[int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays that the library's recordings give, by the names that the page has for them, in float64; and the gradients of
    the loss."""
    model = given.astype(np.float64)
    with tt.no_grad(), recording_outputs(model) as outputs, recording_attention(model) as weights:
        logits = model(tt.tensor([ids], dtype=int)).numpy()[0]
    found = {name: kept[0].numpy() for name, kept in outputs.items() if name and len(kept) == 1 and hasattr(kept[0], "numpy")}
    outer = "attention", "feed_forward", "dropout"  # whose outputs are those of their last layers
    known = {name: array[0] if array.ndim == 3 else array for name, array in found.items() if not name.endswith(outer)}
    known |= {f"{name}.weights": kept[0].numpy()[0] for name, kept in weights.items()}
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    known |= {"logits": logits, "probabilities": shares / shares.sum(-1, keepdims=True)}
    loss = model.loss(tt.tensor([ids[:-1]], dtype=int), tt.tensor([ids[1:]], dtype=int))
    loss.backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert len(gradients) == len(list(model.parameters()))
    return {**known, "loss": loss.numpy().reshape(1)}, gradients


def numbers(texts: list[str], shape: list[int]) -> Any:
    return np.array([float(text.replace("Infinity", "inf")) for text in texts]).reshape(shape)


def assert_near(found: Any, expected: Any, tolerance: float, what: str) -> None:
    assert found.shape == expected.shape, what
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max(), what


@pytest.mark.parametrize("name", CONFIGS)
def test_all_arrays_and_gradients_are_the_librarys(tab: Tab, explorer: Explorer, folders: dict[str, Path], name: str) -> None:
    found = {array["name"]: array for array in recorded(tab, explorer, folders[name])}
    known, gradients = computed(model_of(folders[name]), subject_of(folders[name]).encode(TEXT))
    compared = [array for array in known if array in found]
    layers = model_of(folders[name]).config.num_layers
    assert {"logits", "probabilities", "loss", "token_embedding", "norm"} < set(compared)
    assert {"attention_norm", "attention.query_key_value", "attention.weights", "attention.output", "feed_forward.down"} <= {
        array.partition(".")[2].partition(".")[2] for array in compared
    }
    assert len(compared) >= 5 + 8 * layers
    for array in compared:
        assert_near(numbers(found[array]["values"], found[array]["shape"]), known[array], 1e-5, array)
    for array, expected in gradients.items():
        assert_near(numbers(found[array]["gradient"], found[array]["shape"]), expected, 1e-5, array)


@pytest.mark.parametrize("name", CONFIGS)
def test_reported_values_add_up(tab: Tab, explorer: Explorer, folders: dict[str, Path], name: str) -> None:
    told = tried = 0
    for array in recorded(tab, explorer, folders[name]):
        values, gradient = (numbers(array[key], [-1]) for key in ("values", "gradient"))
        for cell in array["cells"]:
            what, place = f"{array['name']} at {cell['place']}", cell["place"]
            if cell["told"]:
                told += 1
                assert cell["told"]["value"] == pytest.approx(values[place], rel=1e-12, abs=1e-12), what
                if cell["told"]["products"] is not None:
                    assert cell["told"]["products"] == pytest.approx(cell["told"]["sum"], rel=1e-12, abs=1e-12), what
            if array["name"] != "loss":  # whose gradient is 1
                assert cell["terms"] == pytest.approx(gradient[place], rel=1e-9, abs=1e-15), what
            if cell["slope"] is not None:
                tried += 1
                assert abs(cell["slope"] - gradient[place]) <= 1e-6 * max(np.abs(gradient).max(), 1e-3), what
    assert told > 60 and tried > 80


def test_each_line_of_source_is_there(tab: Tab, explorer: Explorer, folders: dict[str, Path]) -> None:
    lines = set()
    for path in folders.values():
        arrays = recorded(tab, explorer, path)
        unknown = [array["name"] for array in arrays if not array["source"] and array["kind"] != "parameter"]
        assert unknown in (["ids"], ["ids", "constant"])  # a table of positions
        lines |= {tuple(array["source"]) for array in arrays if array["source"]}
    assert len(lines) > 20
    for file, line, text in lines:
        assert (ROOT / file).read_text(encoding="utf-8").splitlines()[line - 1].strip() == text


def open_numbers(tab: Tab, explorer: Explorer, path: Path, text: str = TEXT, **chosen: str) -> Any:
    page = tab.open(explorer, "numbers", text=text, model=f"{path}: best", **chosen)
    page.wait_for_selector(".numbers:not([hidden])")
    return page


def number_in(page: Any, selector: str) -> float:
    return float(page.text_content(selector).replace("−", "-"))


def test_a_cell_shows_its_terms(tab: Tab, explorer: Explorer, folders: dict[str, Path]) -> None:
    page = open_numbers(tab, explorer, folders["biases"])
    known, gradients = computed(model_of(folders["biases"]), subject_of(folders["biases"]).encode(TEXT))
    page.select_option("#numbers-array", "blocks.1.feed_forward.up")
    page.locator(".numbers-map").press("ArrowDown")
    page.locator(".numbers-map").press("ArrowRight")
    expected = known["blocks.1.feed_forward.up"][1, 1]
    assert number_in(page, "#numbers-value") == pytest.approx(expected, rel=1e-5)
    assert page.text_content(".numbers .readout").startswith("blocks.1.feed_forward.up, token 1 “h”, number 1: ")
    page.click("text=smaller ones")
    terms = [float(text.replace("−", "-")) for text in page.locator(".terms td:first-child").all_text_contents()]
    assert len(terms) == 17 and [abs(term) for term in terms] == sorted(map(abs, terms), reverse=True)
    assert sum(terms) == pytest.approx(expected, abs=1e-4)
    file, _, line = page.text_content(".numbers-cell figcaption").partition(":")
    text = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert "self.up(x)" in text and page.text_content(".numbers-cell code") == text.strip()
    page.get_by_role("button", name="Gradients", exact=True).click()
    gradient = number_in(page, "#numbers-gradient")
    page.click("#numbers-try")
    slope = float(page.locator(".tried").get_attribute("data-slope"))
    assert slope == pytest.approx(gradient, rel=1e-5) and gradient != 0
    page.select_option("#numbers-array", "blocks.0.attention.output.bias")
    assert number_in(page, "#numbers-gradient") == pytest.approx(gradients["blocks.0.attention.output.bias"][0], rel=1e-5)


def test_the_chosen_cell_is_that_of_another_text(tab: Tab, explorer: Explorer, folders: dict[str, Path]) -> None:
    page = open_numbers(tab, explorer, folders["plain"])
    page.select_option("#numbers-array", "logits")
    page.locator(".numbers-map").press("ArrowDown")
    for text, place in (("lazy dogs", 1), ("The", 1), ("q", None)):
        page.fill("#text", text)
        page.wait_for_selector(f"#numbers-note:has-text('for {len(text)} token')")
        if place is None:
            wait_until(page, "document.querySelector('.numbers-cell').hidden")  # a text of one token has no second one
            continue
        known, _ = computed(model_of(folders["plain"]), subject_of(folders["plain"]).encode(text))
        assert page.text_content(".numbers .readout").startswith(f"logits, token {place} “{text[place]}”, token 0 “↵”: ")
        assert number_in(page, "#numbers-value") == pytest.approx(known["logits"][place, 0], rel=1e-5)


def test_who_reads_on_in_the_cell_stays_there(tab: Tab, explorer: Explorer, folders: dict[str, Path]) -> None:
    page = open_numbers(tab, explorer, folders["plain"])
    page.select_option("#numbers-array", "blocks.0.feed_forward.up")
    page.wait_for_selector(".numbers-cell code")
    page.get_by_role("button", name=re.compile("show all")).press("Enter")
    focused = "[...document.querySelectorAll('.terms button')].indexOf(document.activeElement)"
    assert page.locator(".terms tbody tr").count() == 16
    assert page.evaluate(focused) == 2 * 12  # the first number of the first term that is new
    page.fill("#text", "the lazy fox")
    page.locator(".terms button").nth(27).focus()
    page.wait_for_selector("#numbers-note:has-text('for 12 token')")
    assert (page.locator(".terms tbody tr").count(), page.evaluate(focused)) == (16, 27)
    page.keyboard.press("Enter")  # to another cell, whose name is read
    page.wait_for_selector("#numbers-name:has-text('feed_forward.up.weight')")
    assert page.evaluate("document.activeElement.id") == "numbers-name"
    page.select_option("#numbers-array", "logits")
    assert page.locator(".terms tbody tr").count() == 12
    assert page.evaluate("document.activeElement.id") != "numbers-name"


def test_by_keyboard(tab: Tab, explorer: Explorer, folders: dict[str, Path]) -> None:
    page = open_numbers(tab, explorer, folders["plain"])
    box = page.locator(".numbers-map")
    assert box.get_attribute("role") == "application" and "forward pass" in box.get_attribute("aria-label")
    box.focus()
    page.keyboard.press("ArrowRight")
    assert page.input_value("#numbers-array") == "ids"
    for _ in range(2):
        page.keyboard.press("PageDown")
    assert page.text_content("#numbers-name").startswith("token_embedding 13 × 16")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")  # the embedding is a row of the table
    found = subject_of(folders["plain"]).encode(TEXT)[1]
    assert page.text_content("#numbers-name").startswith("token_embedding.weight")
    assert page.text_content(".numbers-cell .value").startswith(f"[{found}, 0] = ")
    page.keyboard.press("g")
    assert page.get_by_role("button", name="Gradients", exact=True).get_attribute("aria-pressed") == "true"
    page.keyboard.press("g")
    assert page.get_by_role("button", name="Gradients", exact=True).get_attribute("aria-pressed") == "false"
    drawn = "document.querySelector('.numbers-map canvas').toDataURL()"
    pictures = []
    for key in ("0", "+", "Shift+ArrowRight", "-", "z"):
        page.keyboard.press(key)
        pictures.append(page.evaluate(drawn))
    assert len(set(pictures)) == 5
    page.keyboard.press("Escape")
    assert page.locator(".numbers-cell").is_hidden()


def test_by_pointer(tab: Tab, explorer: Explorer, folders: dict[str, Path]) -> None:
    page = open_numbers(tab, explorer, folders["plain"])
    page.select_option("#numbers-array", "blocks.0.attention.weights")
    box = page.locator(".numbers-map").bounding_box()
    down = box["y"] + (box["height"] - 13 * 48) / 2  # the map's 13 rows of 48 pixels stand in the middle
    page.mouse.click(box["x"] + 60 + 1.5 * 48, down + 2.5 * 48)
    known, _ = computed(model_of(folders["plain"]), subject_of(folders["plain"]).encode(TEXT))
    assert page.text_content(".numbers-cell .value").startswith("[0, 2, 1] = ")
    assert number_in(page, "#numbers-value") == pytest.approx(known["blocks.0.attention.weights"][0, 2, 1], rel=1e-5)
    drawn = "document.querySelector('.numbers-map canvas').toDataURL()"
    before = page.evaluate(drawn)
    page.mouse.wheel(0, 300)
    wait_until(page, f"{drawn} !== {before!r}")
    between = page.evaluate(drawn)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 300)
    page.mouse.up()
    wait_until(page, f"{drawn} !== {between!r}")
    assert page.text_content(".numbers-cell .value").startswith("[0, 2, 1] = ")  # who drags chooses nothing
    name, content = saved(page, page.get_by_role("button", name=re.compile("Save PNG: All arrays")))
    assert name.endswith(".png") and content.startswith(b"\x89PNG") and len(content) > 5000


def test_the_address_leads_to_the_same_cell(browser: Any, tab: Tab, explorer: Explorer, folders: dict[str, Path]) -> None:
    page = open_numbers(tab, explorer, folders["llama"])
    page.select_option("#numbers-array", "blocks.1.attention.keys_rotated")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "g"):
        page.locator(".numbers-map").press(key)
    wait_until(page, "location.hash.includes('gradients=1')")
    told = page.text_content(".numbers .readout")
    assert told.startswith("blocks.1.attention.keys_rotated, head 0, token 2 “e”, number 1: gradient ")
    other = Tab(browser)  # which knows nothing but the link
    other.page.goto(page.url)
    page.reload()
    for one in (page, other.page):
        one.wait_for_selector("#numbers-gradient")
        assert one.text_content(".numbers .readout") == told
    other.context.close()
    assert other.faults == []


def test_a_long_text_is_cut_and_one_token_has_no_loss(tab: Tab, explorer: Explorer, folders: dict[str, Path]) -> None:
    page = open_numbers(tab, explorer, folders["plain"], text="The quick brown fox jumps over the lazy dog.")
    assert "from token 12 on" in page.text_content("#numbers-note")
    assert page.locator("#numbers-array option").first.text_content() == "ids (32)"
    page = open_numbers(tab, explorer, folders["plain"], text="T")
    assert page.get_by_role("button", name="Gradients", exact=True).is_disabled()
    assert page.locator("#numbers-array option").last.text_content() == "probabilities (1 × 45)"


@pytest.mark.parametrize("kind", ["recurrent", "transformer", "masked"])
def test_other_models_say_why_not(tab: Tab, explorers: Any, kind: str) -> None:
    texts = {"text": "the", **({"source": "the fox"} if kind == "transformer" else {})}
    page = tab.open(explorers[kind], "numbers", **texts)
    tab.faults.clear()  # the browser notes each question that is refused
    page.wait_for_selector("#view-numbers .trouble:has-text('a page computes only a GPT')")
    assert page.locator(".numbers").is_hidden()
    tab.faults.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(browser: Any, explorers: Any, runs: dict[str, Path], scheme: str) -> None:
    phone = Tab(browser, width=360, scheme=scheme)
    page = phone.open(explorers["gpt"], "numbers", text=TEXT)
    page.wait_for_selector(".numbers:not([hidden])")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.select_option("#numbers-array", "logits")
    page.wait_for_selector("#numbers-value")
    known, _ = computed(model_of(runs["gpt"]), subject_of(runs["gpt"]).encode(TEXT))
    assert number_in(page, "#numbers-value") == pytest.approx(known["logits"][0, 0], rel=1e-5)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    phone.context.close()
    assert phone.faults == []


def test_a_picture_that_is_loaded_unseen_shows_the_cell_once_it_is_seen(
    tab: Tab, explorer: Explorer, folders: dict[str, Path]
) -> None:
    page = open_numbers(tab, explorer, folders["plain"])
    page.select_option("#numbers-array", "logits")
    page.locator(".numbers-map").press("ArrowRight")
    wait_until(page, "location.hash.includes('cell=')")
    asked: list[Any] = []
    page.route("**/ask/weights", lambda route: asked.append(route))
    page.reload()
    wait_until(page, "document.querySelector('#tab-numbers').getAttribute('aria-selected') === 'true'")
    for _ in range(100):
        if asked:
            break
        page.wait_for_timeout(50)
    page.click("#tab-write")
    asked[0].continue_()
    page.wait_for_selector("#numbers-value", state="attached")
    page.click("#tab-numbers")
    page.wait_for_timeout(300)
    colours = """(() => {
        const canvas = document.querySelector(".numbers-map canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size;
    })()"""
    assert page.evaluate(colours) > 20


def test_the_ids_are_the_text(tab: Tab, explorer: Explorer, folders: dict[str, Path]) -> None:
    page = open_numbers(tab, explorer, folders["plain"])
    page.select_option("#numbers-array", "ids")
    page.locator(".numbers-map").press("ArrowRight")
    page.wait_for_selector("#numbers-name:has-text('ids')")
    assert "the same for all texts" not in page.inner_text("#view-numbers")


class Softened(GPT):
    """A GPT with settings that no page knows of: soft limits of the logits, and a scale for each number of the embeddings."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.scales = tt.nn.Parameter(np.linspace(0.5, 2.0, config.d_model, dtype=np.float32))

    def _residual_stream(self, ids: tt.Tensor, cache: Any = None) -> tt.Tensor:
        x = super()._residual_stream(ids, cache)
        both = tt.concatenate([x[..., 4:], -x[..., :4] / 2.0], axis=-1)
        positive = tt.square(both) + 0.5
        smooth = tt.log(positive) * tt.rsqrt(positive) + tt.sqrt(positive) - tt.minimum(both, self.scales) + positive**1.5
        shares = tt.softmax(both.reshape(*both.shape[:-1], 4, -1), axis=-2).reshape(both.shape)
        sums = tt.cumsum(both, axis=1) + shares - tt.silu(smooth).sum(axis=(0, -1), keepdims=True)
        return sums * tt.sigmoid(self.scales) - smooth.mean(axis=-1, keepdims=True)

    def logits_of(self, x: tt.Tensor) -> tt.Tensor:
        return tt.tanh(super().logits_of(x) * 0.25) / 0.25

    def loss(self, ids: tt.Tensor, targets: tt.Tensor, reduction: str = "mean") -> tt.Tensor:
        return tt.cross_entropy(self(ids), targets, reduction=reduction)


def test_a_subclass_of_gpt_is_shown_as_it_computes(
    tab: Tab, explorer: Explorer, folders: dict[str, Path], monkeypatch: Any
) -> None:
    subjects = Subjects([folders["plain"]])
    subject = subjects.get("best")
    model = Softened(subject.model.config)
    model.load_state_dict({**model.state_dict(), **subject.model.state_dict()})
    monkeypatch.setattr(Subjects, "get", lambda *_: replace(subject, model=model.eval()))
    ids = subject.encode(TEXT)
    content = weights(subjects, Named("best"))
    pages = page_of_modules(tab.page, {"file": content})
    script = """
      const { metadata, arrays } = readSafetensors(await bytes("file"));
      const { Pass } = await import("/pass.js");
      const pass = new Pass(new Program(JSON.parse(metadata.program), arrays), given.ids);
      const gradients = pass.gradients();
      const sum = (terms) => terms.reduce((total, { value }) => total + value, 0);
      return pass.arrays.map((array) => {
        const [{ name, kind, shape, source }, place] = [array, array.values.length >> 1];
        const [values, gradient] = [Array.from(array.values, String), Array.from(gradients.get(array), String)];
        const told = source ? pass.explain(array, place) : null;
        const value = told && (told.lines.at(-1)?.value ?? sum(told.terms));
        const terms = sum(pass.gradientTerms(gradients, array, place));
        const slope = kind === "constant" ? 0 : pass.finiteDifference(array, place).slope;
        return { name, kind, shape, source, values, gradient, place, value, terms, slope };
      });
    """
    arrays = {array["name"]: array for array in run(pages, script, ids=ids)}
    known, gradients = computed(model, ids)
    for name in ("blocks.1.attention.weights", "blocks.1.feed_forward.down", "norm", "logits", "probabilities", "loss"):
        assert_near(numbers(arrays[name]["values"], arrays[name]["shape"]), known[name], 1e-5, name)
    for name, expected in gradients.items():
        assert_near(numbers(arrays[name]["gradient"], arrays[name]["shape"]), expected, 1e-5, name)
    assert "scales" in gradients
    files = {Path(arrays[name]["source"][0]).name for name in ("tanh", "sigmoid", "square", "mean", "cumsum", "power")}
    assert files == {"test_numbers.py"}
    for name, array in arrays.items():
        value, gradient = (float(array[key][array["place"]].replace("Infinity", "inf")) for key in ("values", "gradient"))
        assert array["value"] is None or array["value"] == pytest.approx(value, rel=1e-12, abs=1e-12), name
        assert name == "loss" or array["terms"] == pytest.approx(gradient, rel=1e-9, abs=1e-15), name
        if array["kind"] != "constant":
            largest = np.abs(numbers(array["gradient"], [-1])).max()
            assert abs(array["slope"] - gradient) <= 1e-6 * max(largest, 1e-3), name
    tab.page.route("**/ask/weights", lambda route: route.fulfill(body=content, content_type="application/octet-stream"))
    page = open_numbers(tab, explorer, folders["plain"])
    page.select_option("#numbers-array", "power")
    assert number_in(page, "#numbers-value") == pytest.approx(float(arrays["power"]["values"][0]), rel=1e-5)
    assert "positive**1.5" in page.text_content(".numbers-cell code")
    page.select_option("#numbers-array", "scales")
    page.get_by_role("button", name="Gradients", exact=True).click()
    assert number_in(page, "#numbers-gradient") == pytest.approx(gradients["scales"][0], rel=1e-5)
