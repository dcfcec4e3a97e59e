"""Exports compute what the model's ``forward`` computes, for subclasses and for users' modules."""

from __future__ import annotations

from pathlib import Path

import numpy
import pages
import pytest

import tinytensor as tt
from tinyformer import (
    GPT,
    BertConfig,
    BertForClassification,
    BertForMaskedLM,
    GPTConfig,
    Transformer,
    TransformerConfig,
    UserError,
    export_onnx,
)
from tinytensor.nn import Linear, Module

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "onnx.md"
GPT_CONFIG = GPTConfig(vocab_size=50, block_size=30, num_layers=2, num_heads=2, d_model=24)
BERT_CONFIG = BertConfig(vocab_size=50, max_length=30, num_layers=2, num_heads=2, d_model=24, d_ff=48)
TRANSFORMER_CONFIG = TransformerConfig(40, 50, d_model=24, num_heads=2, encoder_layers=2, decoder_layers=2, d_ff=48)


def run(path, **feed):
    """What onnxruntime computes, by name."""
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path))
    empty = {
        x.name: numpy.zeros((len(feed["input_ids"]), x.shape[1], 0, x.shape[3]), numpy.float32)
        for x in session.get_inputs()
        if x.name.startswith("past") and x.name not in feed
    }
    return dict(zip([x.name for x in session.get_outputs()], session.run(None, {**feed, **empty})))


def close(ours, theirs):
    numpy.testing.assert_allclose(theirs, ours.numpy(), atol=1e-5, rtol=1e-5)


def ids_of(*shape):
    return numpy.random.default_rng(0).integers(1, 40, shape)


# --------------------------------------------------------------------- throwaway changes, which no back end knows of


class Scaled(Module):
    """An embedding times a number, as Gemma has it."""

    def __init__(self, embedding):
        self.embedding = embedding
        self.weight = embedding.weight

    def forward(self, ids):
        return self.embedding(ids) * 1.7


def capped(logits):
    """A soft cap, as Gemma 2 has it."""
    return tt.tanh(logits / 3.0) * 3.0


class ChangedGPT(GPT):
    def __init__(self, config):
        super().__init__(config)
        self.token_embedding = Scaled(self.token_embedding)

    def forward(self, *arguments):
        return capped(super().forward(*arguments))


class ChangedBert(BertForMaskedLM):
    def __init__(self, config):
        super().__init__(config)
        self.bert.token_embedding = Scaled(self.bert.token_embedding)

    def logits_of(self, x):
        return capped(super().logits_of(x))


class ChangedTransformer(Transformer):
    def __init__(self, config):
        super().__init__(config)
        self.source_embedding.tokens = Scaled(self.source_embedding.tokens)
        self.target_embedding.tokens = Scaled(self.target_embedding.tokens)

    def decode(self, target, memory, *others):
        """It reads the memory in another way, too: the encoder's output is then an input of the decoder."""
        return capped(super().decode(target, memory, *others) + memory.mean() * 20.0)


@pytest.mark.parametrize("cache", [True, False])
def test_a_gpt_with_another_forward(tmp_path, cache):
    tt.seed(0)
    model, ids = ChangedGPT(GPT_CONFIG).eval(), ids_of(2, 7)
    (path,) = export_onnx(model, tmp_path / "model.onnx", cache)
    places = numpy.arange(7)[None].repeat(2, 0)
    found = run(path, input_ids=ids, attention_mask=numpy.ones_like(ids), position_ids=places)
    close(model(tt.tensor(ids)), found["logits"])
    assert abs(GPT.forward(model, tt.tensor(ids)) - model(tt.tensor(ids))).max().item() > 0.001


def test_a_bert_with_another_forward(tmp_path):
    tt.seed(0)
    model, ids = ChangedBert(BERT_CONFIG).eval(), ids_of(2, 7)
    (path,) = export_onnx(model, tmp_path / "model.onnx")
    found = run(path, input_ids=ids, attention_mask=numpy.ones_like(ids), token_type_ids=numpy.zeros_like(ids))
    close(model(tt.tensor(ids)), found["logits"])


def test_an_encoder_decoder_with_another_decoder(tmp_path):
    tt.seed(0)
    model, source, target = ChangedTransformer(TRANSFORMER_CONFIG).eval(), ids_of(2, 7), ids_of(2, 5)
    encoder, decoder = export_onnx(model, tmp_path / "model.onnx")
    mask = numpy.ones_like(source)
    memory = run(encoder, input_ids=source, attention_mask=mask)
    past = {name.replace("present", "past_key_values"): x for name, x in memory.items() if name.startswith("present")}
    hidden = memory["last_hidden_state"]
    found = run(decoder, input_ids=target, encoder_attention_mask=mask, encoder_hidden_states=hidden, **past)
    close(model(tt.tensor(source), tt.tensor(target)), found["logits"])


# ------------------------------------------------------------------------------------------------ modules of one's own


class Tagger(Module):
    """A user's model: a convolution over three tokens, a gate, and pooling over the length."""

    def __init__(self):
        self.embedding = tt.nn.Embedding(40, 8)
        self.mix, self.out = Linear(24, 16), Linear(8, 3)
        self.norm = tt.nn.LayerNorm(8)

    def forward(self, ids):
        x = tt.pad(self.embedding(ids), ((0, 0), (1, 1), (0, 0)))
        windows = tt.concatenate([x[:, :-2], x[:, 1:-1], x[:, 2:]], axis=-1)
        tokens = self.norm(tt.glu(self.mix(windows)))
        weights = tt.softmax(tokens.sum(-1, keepdims=True) / ids.shape[1] ** 1, axis=1)
        return {"tags": self.out(tokens), "text": (weights * tokens).sum(1)}


def test_a_module_of_a_user(tmp_path):
    tt.seed(0)
    model = Tagger()
    (path,) = export_onnx(model, tmp_path / "tagger.onnx", inputs={"ids": ("int64", "batch", "length")})
    for shape in ((1, 2), (2, 9)):
        ids = ids_of(*shape)
        found, ours = run(path, ids=ids), model(tt.tensor(ids))
        assert list(found) == ["tags", "text"]
        for name in found:
            close(ours[name], found[name])
    assert [x.shape for x in onnxruntime.InferenceSession(str(path)).get_outputs()] == [["batch", "length", 3], ["batch", 8]]
    assert model.training


def test_the_module_of_the_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = [block for block in pages.blocks(GUIDE.read_text(encoding="utf-8"), "py") if "class Deep" in block]
    names = {}
    exec(code, names)
    x = ids_of(2, 32)
    outputs = run("deep.onnx", x=x)
    assert list(outputs) == ["logits"]
    close(names["model"](tt.tensor(x))["logits"], outputs["logits"])


def test_a_model_of_this_package_with_inputs(tmp_path):
    tt.seed(0)
    model = BertForClassification(BERT_CONFIG, 3).eval()
    axes = "int64", "batch", "length"
    (path,) = export_onnx(model, tmp_path / "model.onnx", inputs={"ids": axes, "segments": axes})
    ids = ids_of(2, 6)
    close(model(tt.tensor(ids), tt.tensor(ids % 2)), run(path, ids=ids, segments=ids % 2)["output"])


class Function(Module):
    """A function as a module."""

    def __init__(self, function):
        self.function = function

    def forward(self, **inputs):
        return self.function(**inputs)


def each(names):
    """Each of these functions of the inputs, by name."""
    return lambda **inputs: {f"out_{name}": getattr(tt, name)(*inputs.values()) for name in names.split()}


def reductions(x):
    names = "sum mean max min logsumexp var std norm prod".split()
    settings = [(None, False), (1, True), ((0, 1), False), (-1, False), ((), False), ((), True)]
    outputs = {f"{n}{axis}{keep}": getattr(tt, n)(x, axis=axis, keepdims=keep) for n in names for axis, keep in settings}
    return {**outputs, **{f"{n} of a scalar": getattr(tt, n)(-abs(x[0, 0]), axis=0) for n in names}}


def truths(x):
    settings = [(None, False), (1, True), (0, False), ((), False)]
    return {f"{n}{axis}": getattr(tt, n)(x > 0, axis=axis, keepdims=k) for n in ("any", "all") for axis, k in settings}


def causal(x):
    seen = tt.tril(tt.ones((len(x), len(x)), dtype=bool), -1)  # the first row sees nothing
    added = tt.where(tt.causal_mask(len(x)), 0.0, float("-inf"))
    attend = tt.scaled_dot_product_attention
    masked = {"boolean": attend(x, x, x, seen), "added": attend(x, x, x, added), "hidden": attend(x, x, x, added, True)}
    return {**masked, "heads": tt.multi_head_attention(x[None], 2, is_causal=True), "batch": attend(*[x[:, None]] * 3)}


X, Y, N = ("float32", "n", 6), ("float32", "n", 6), ("int64", "n", 6)
MODULES = {
    "functions": (each("abs ceil floor round sign negative square exp exp2 tanh sigmoid erf sin cos tan sinh cosh arctan relu "
                       "silu gelu softplus logsigmoid leaky_relu elu softmax log_softmax isnan isinf isfinite copy glu"),
                  {"x": X}),
    "functions of positive numbers": (
        lambda x: each("sqrt rsqrt reciprocal log log2 log10")(x=abs(x) + 0.1), {"x": X}),
    "two tensors": (each("add subtract multiply divide maximum minimum remainder floor_divide equal not_equal less less_equal "
                         "greater greater_equal logical_and logical_or logical_xor swiglu"), {"x": X, "y": Y}),
    "integers": (lambda x, y: each("add subtract multiply divide maximum minimum remainder floor_divide equal less greater"
                                   )(x=x - 1, y=y * 2 - 3), {"x": N, "y": N}),
    "numbers": (lambda x: {
        "a": 2 - x, "b": x / 2, "c": x**2, "d": 2.0**x, "e": x > 0.5, "f": (x > 0) & (x < 1), "g": (x > 0) | ~(x < -1),
        "h": x // 2, "i": x % 2, "j": (x > 0) + (x < 1), "k": (x > 0) * 1.5, "l": (x > 0) ^ (x < 1), "m": x * len(x),
    }, {"x": X}),
    "integers and numbers": (lambda x: {
        "a": x * 2.5, "b": x / 2, "c": x > 0.5, "d": (x - 4) // 2, "e": (x - 4) % 3, "f": x.mean(), "g": x.sum(1),
        "h": x.max(0), "i": x.argmax(1), "j": x.astype("float32"), "k": x != 2, "l": x.astype(bool), "m": x & 1,
    }, {"x": N}),
    "reductions": (reductions, {"x": X}),
    "truths": (truths, {"x": X}),
    "places": (lambda x: {
        "a": x.argmax(), "b": tt.argmin(x, axis=1, keepdims=True), "c": tt.argmax(x, keepdims=True), "d": tt.cumsum(x, 1),
        "e": tt.var(x, 1, ddof=1), "f": tt.std(x, 0, ddof=1), "g": (x > 0).sum(1), "h": (x > 0).mean(),
    }, {"x": X}),
    "shapes": (lambda x: {
        "a": x.reshape(-1), "b": x.reshape(len(x), 2, 3), "c": x.reshape(2, -1, 3), "d": x.swapaxes(0, 1), "e": x.T,
        "f": x[:, None], "g": x[None, ..., None], "h": tt.broadcast_to(x[:, None], (len(x), 2, 6)), "i": tt.tile(x, (2, 1)),
        "j": tt.stack([x, x], 1), "k": tt.pad(x, ((1, 2), (0, 3))), "l": tt.flip(x, 0), "m": tt.squeeze(x[:, :1], 1),
        "n": tt.moveaxis(x[None], 0, 2), "o": x.reshape(len(x) * 2, 3), "p": tt.tril(x), "q": tt.triu(x, 1),
        "r": tt.zeros((len(x), 2)), "s": tt.arange(len(x)), "t": tt.split(x, [1, 3], 1)[1], "u": tt.hstack([x, x]),
    }, {"x": X}),
    "indices": (lambda x, i: {
        "a": x[0], "b": x[-1, 2], "c": x[:, 1:4], "d": x[:, ::-2], "e": x[1:], "f": x[:-1], "g": x[..., 0], "h": x[i],
        "j": x[:, i], "k": x[i, i], "l": x[i][:, None], "m": tt.take(x, i, 1), "n": x[len(x) - 1], "o": x[:, 0][:, None],
        "p": tt.embedding(i, x), "q": tt.one_hot(i, 3), "r": x[-2:], "s": x[0][None], "t": x[:, None, i],
        "u": x[tt.arange(len(i)), i], "v": tt.embedding(tt.arange(len(x)), x),
    }, {"x": X, "i": ("int64", 2)}),
    "products": (lambda x, y: {
        "a": x @ y.T, "b": tt.einsum("ij,kj->ik", x, y), "c": tt.einsum("ij->j", x), "d": x[0] @ y[0], "e": x @ y[0],
        "f": tt.outer(x[0], y[0]), "g": tt.tensordot(x, y, [[1], [1]]), "h": tt.layer_norm(x), "i": tt.group_norm(x, 2),
        "j": tt.layer_norm(x, y[0], y[1]), "k": tt.rms_norm(x), "l": tt.rotate_pairs(x, x[:, :3], x[:, 3:]),
        "m": tt.linear(x, y[:2]),
    }, {"x": X, "y": Y}),
    "choices": (lambda x: {
        "a": tt.where(x > 0, x, -1.0), "b": tt.clip(x, -0.5, 0.5), "c": tt.clip(x, None, 0.0), "d": tt.where(x > 0, 1, 0),
        "e": tt.masked_fill(x, x > 0, 0.0), "f": tt.where(x > 0, x > 1, x < -1),
    }, {"x": X}),
    "attention": (causal, {"x": X}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_every_op_of_the_table(tmp_path, name):
    function, inputs = MODULES[name]
    (path,) = export_onnx(Function(function), tmp_path / "model.onnx", inputs=inputs)
    rng = numpy.random.default_rng(0)
    for n in (4, 9):
        shapes = {key: [n if axis == "n" else axis for axis in axes] for key, (_, *axes) in inputs.items()}
        feed = {
            key: rng.integers(0, 3, shapes[key]) if dtype == "int64" else rng.normal(size=shapes[key]).astype(dtype)
            for key, (dtype, *_) in inputs.items()
        }
        ours, found = function(**{key: tt.tensor(x) for key, x in feed.items()}), run(path, **feed)
        for key, x in ours.items():
            assert (found[key].shape, found[key].dtype) == (x.shape, x.dtype), key
            close(x, found[key])


def test_a_floored_quotient_near_an_integer(tmp_path):
    """1 / 0.1 rounds to 10, but 0.1 is a little more than a tenth, so 1 // 0.1 is 9."""
    x, y = numpy.meshgrid(*[numpy.array([-6, -1, -0.3, 0, 0.1, 0.6, 1, 3.5, 100, numpy.inf], "float32")] * 2)
    axes = ("float32", "n", 10)
    (path,) = export_onnx(Function(lambda x, y: {"out": x // y}), tmp_path / "model.onnx", inputs={"x": axes, "y": axes})
    expected = (tt.tensor(x) // tt.tensor(y)).numpy()
    assert 9 in expected
    numpy.testing.assert_array_equal(run(path, x=x, y=y)["out"], expected)


def test_a_text_that_is_longer_than_a_table_is_an_error_when_the_graph_runs(tmp_path):
    bert = BertForMaskedLM(BERT_CONFIG)
    (path,) = export_onnx(bert, tmp_path / "model.onnx")
    ids = ids_of(1, 31)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match=r"'bert/Add_.*30 by 31"):
        run(path, input_ids=ids, attention_mask=numpy.ones_like(ids), token_type_ids=numpy.zeros_like(ids))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[x > 0], "which is no sum of the sizes"),
        (lambda x: x[::2], "which is no sum of the sizes"),
        (lambda x: x[None][tt.arange(1), tt.arange(1), 1:3], "several tensors in an index must be on the first axes"),
        (lambda x: x[tt.arange(1), None, tt.arange(1)], "several tensors in an index must be on the first axes"),
        (lambda x: x[0, tt.arange(2)], "an index with a number and a tensor is not supported: index twice"),
        (lambda x: x.astype("int8"), "the dtype must be one of .*, got int8"),
        (lambda x: {"x": x}, "the output 'x' has the name of an input or a weight"),
        (lambda x: tt.dropout(x), "would draw the same random numbers"),
    ],
)
def test_what_no_graph_can_be(tmp_path, function, message):
    with pytest.raises(UserError, match=f"^Function cannot be exported to ONNX: .*({message})"):
        export_onnx(Function(function), tmp_path / "model.onnx", inputs={"x": X})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:10],
        lambda x: x * (2.0 if len(x) > 10 else 1.0),
        lambda x: x + tt.tensor(numpy.minimum(numpy.arange(len(x)), 9))[:, None],
        lambda x: x + tt.tensor(x.data * 2),
        lambda x: x + x.data.mean(),
    ],
    ids=["crop", "branch", "array", "data", "mean of data"],
)
def test_what_differs_for_long_inputs_or_other_values_is_refused(tmp_path, function):
    with pytest.raises(UserError, match=r"^Function cannot be exported .* \(.*test_onnx_forward.py:\d+\): it gets"):
        export_onnx(Function(lambda x: function(x.T)), tmp_path / "model.onnx", inputs={"x": ("float32", 3, "n")})


def test_constants_without_axes(tmp_path):
    two = tt.nn.Parameter(2.0)
    function = Function(lambda x: {"scaled": x.mean() * two, "row": x[numpy.int64(0)], "nan": tt.where(x > 0, x, float("nan"))})
    export_onnx(function, tmp_path / "model.onnx", inputs={"x": ("float32", "n", 6)})
    x = numpy.random.default_rng(0).standard_normal((5, 6), "float32")
    theirs = run(tmp_path / "model.onnx", x=x)
    for name, ours in function(x=tt.tensor(x)).items():
        close(ours, theirs[name])


WRONG_INPUTS = {
    "text": ({"x": "float32"}, r"inputs\['x'\] must be like"),
    "no dtype": ({"x": ("n", 3)}, r"inputs\['x'\] must be like"),
    "no axis": ({"x": ("float32", None)}, r"axes in inputs\['x'\] must be names or positive integers"),
    "no argument": ({"x": X, "y": X}, "unexpected keyword argument 'y'"),
}


@pytest.mark.parametrize("inputs, message", WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_inputs_that_cannot_be(tmp_path, inputs, message):
    with pytest.raises(UserError, match=message):
        export_onnx(Function(lambda x: x), tmp_path / "model.onnx", inputs=inputs)


@pytest.mark.parametrize("output", [None, 3, {}, (tt.ones(1), None), {0: tt.ones(1)}], ids=repr)
def test_outputs_that_cannot_be(tmp_path, output):
    with pytest.raises(UserError, match="forward must return a tensor, a list of tensors or a dict"):
        export_onnx(Function(lambda x: output), tmp_path / "model.onnx", inputs={"x": X})


def test_an_input_with_the_name_of_a_weight(tmp_path):
    class Named(Module):
        def __init__(self):
            self.scale = tt.nn.Parameter(tt.ones(6))

        def forward(self, scale):
            return self.scale * scale

    with pytest.raises(UserError, match=r"^Named cannot be exported .*: the input 'scale' has the name of a weight"):
        export_onnx(Named(), tmp_path / "model.onnx", inputs={"scale": X})
