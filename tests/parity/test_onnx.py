"""Models as ONNX files: checked by onnx itself, and run by onnxruntime beside tinyformer."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import tinytensor as tt
from tinyformer import (
    GPT,
    BertConfig,
    BertForMaskedLM,
    GPTConfig,
    SentenceModel,
    Transformer,
    TransformerConfig,
    UserError,
    Vectors,
    export_onnx,
    fill_masks,
    from_pretrained,
    generate,
    load_tokenizer,
    load_weights,
)
from tinyformer.commands import export
from tinyformer.commands.command_line import run_command
from tinyformer.decoding.generation import GPTDecoder, TransformerDecoder
from tinyformer.decoding.sampling import Sampling
from tinyformer.export import writing
from tinyformer.export.runs import load_run
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.blocks import NORMS
from tinyformer.models.positions import KINDS, RotaryScaling
from tinyformer.models.sentences import Normalize, Projection
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.translation import trained_translator

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "commands" / "runs_of_before"

# Two batch sizes and two lengths, none of which is the length of something else.
SIZES = [(1, 7), (3, 13)]
WIDTHS = {"d_model": 24, "num_heads": 2}
# Each setting occurs with two values or, where it is a choice, with all of them: see the test below.
GPTS = [
    {},
    {"bias": True, "positions": "sinusoidal", "activation": "relu", "num_layers": 3},
    {"norm": "rms", "positions": "rotary", "activation": "swiglu", "num_heads": 3},
    {"norm": "rms", "bias": True, "activation": "swiglu", "d_model": 32, "block_size": 70},
    {"activation": "gelu_exact", "positions": "rotary", "vocab_size": 40},
    {"norm": "rms", "positions": "rotary", "num_heads": 6, "num_key_value_heads": 2, "query_key_norm": True, "norm_eps": 1e-2,
     "rotary_base": 500.0, "rotary_scaling": RotaryScaling("llama3", 8.0, original_length=20), "tie_output": False},
    {"num_heads": 4, "num_key_value_heads": 1, "d_head": 10, "query_key_value_bias": True, "activation": "silu", "d_ff": 50},
    {"norm": "rms", "positions": "rotary", "activation": "geglu", "scale_embeddings": True, "d_head": 10},
]  # fmt: skip
BERTS = [{}, {"positions": "sinusoidal", "norm_first": True, "num_layers": 3, "num_segments": 4, "d_ff": 40, "num_heads": 3},
         {"vocab_size": 40, "max_length": 30, "d_model": 32, "pad": 3, "activation": "relu", "norm_eps": 1e-2},
         {"positions": "sinusoidal_halves", "activation": "gelu_tanh"}, {"activation": "silu"},
         {"positions": "rotary", "query_key_norm": True, "norm_first": True},
         {"num_segments": 0, "pooler": "", "tie_output": False},
         {"skip_padding": True, "pad": 2, "num_segments": 1}, {"relative_ranges": 32, "max_length": 300}]  # fmt: skip
SENTENCES = [
    ({}, ["mean"], None),
    ({"skip_padding": True, "pad": 2}, ["cls", "max", "weightedmean"], [Normalize()]),
    ({"num_segments": 0}, ["lasttoken"], [Projection(24, 10, function="Tanh"), Normalize(), Projection(10, 6, False, "GELU")]),
    ({"positions": "rotary"}, ["mean_sqrt_len_tokens"], [Projection(24, 24, function=name) for name in Projection.FUNCTIONS]),
]
TRANSFORMERS = [
    {},
    {"norm_first": True, "norm": "rms", "activation": "swiglu", "positions": "learned", "tie_output": False, "max_length": 30},
    {"share_embeddings": True, "target_vocab_size": 40, "encoder_layers": 1, "decoder_layers": 3, "activation": "gelu_tanh"},
    {"activation": "gelu_exact", "d_model": 25, "num_heads": 5, "d_ff": 40, "source_vocab_size": 41, "source_pad": 2},
    {"positions": "sinusoidal_halves", "activation": "silu", "output_bias": True, "scale_embeddings": False, "norm_eps": 1e-2,
     "learn_padding": False},
    {"positions": "sinusoidal_halves", "d_model": 25, "num_heads": 5},
    {"positions": "rotary", "query_key_norm": True, "norm_first": True},
]  # fmt: skip
VECTORS = [
    {"source_vocab_size": 0, "source_features": 5, "activation": "geglu"},
    {"source_vocab_size": 0, "source_features": 6, "source_stride": 3, "positions": "learned"},
    {"source_vocab_size": 0, "source_features": 5, "source_stride": 2, "positions": "rotary"},
]


def gpt(**settings):
    return randomised(GPT(GPTConfig(**{"vocab_size": 50, "block_size": 60, "num_layers": 2, **WIDTHS, **settings})))


def bert(**settings):
    defaults = {"vocab_size": 50, "max_length": 20, "num_layers": 2, "d_ff": 48, **WIDTHS}
    return randomised(BertForMaskedLM(BertConfig(**{**defaults, **settings})))


def transformer(**settings):
    sizes = {"source_vocab_size": 40, "target_vocab_size": 50, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 48}
    return randomised(Transformer(TransformerConfig(**{**sizes, **WIDTHS, **settings})))


def randomised(model):
    """The model in evaluation mode, with biases and norms that are not 0 and 1, so that none can be left out unseen."""
    tt.seed(1)
    for parameter in model.parameters():
        parameter.data += 0.1 * tt.random.normal(parameter.shape).data
    if getattr(model, "output_bias", None) is not None:
        model.output_bias.data += tt.random.normal(model.output_bias.shape).data
    return model.eval()


# Settings of training alone, and of models that are not exported: these cases have one value of each.
UNLIKE_OTHERS = ("dropout", "head_dropout", "pooler_dropout", "sliding_window")
MODELS = [(gpt, case) for case in GPTS] + [(bert, case) for case in BERTS] + [(transformer, c) for c in TRANSFORMERS + VECTORS]


@pytest.mark.parametrize(
    ("cases", "make"),
    [(GPTS, gpt), (BERTS, bert), ([*TRANSFORMERS, *VECTORS], transformer)],
    ids=["gpt", "bert", "transformer"],
)
def test_every_setting_is_exported_with_several_values(cases, make):
    configs = [make(**case).config for case in cases]
    choices = {
        "norm": set(NORMS),
        "activation": set(ACTIVATIONS),
        "positions": set(KINDS) - ({"sinusoidal_halves"} if make is gpt else set()),
    }
    if make is bert:
        choices["activation"] -= {"swiglu", "geglu"}  # which its head cannot have
    for field in dataclasses.fields(configs[0]):
        values = {getattr(config, field.name) for config in configs}
        assert values >= choices.get(field.name, set()), field.name
        assert len(values) > 1 or field.name in UNLIKE_OTHERS, field.name


# ----------------------------------------------------------------------------------------------- running exported models


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)


def outputs(session, feed):
    """What a session computes, by name."""
    return dict(zip([out.name for out in session.get_outputs()], session.run(None, feed)))


def empty_past(session, batch):
    """The keys and values of no tokens, where the session takes any."""
    past = [x for x in session.get_inputs() if x.name.startswith("past") and ".encoder." not in x.name]
    return {x.name: numpy.zeros((batch, x.shape[1], 0, x.shape[3]), numpy.float32) for x in past}


def next_past(out):
    return {name.replace("present", "past_key_values"): value for name, value in out.items() if name.startswith("present")}


def ids_of(vocab_size, *shape, seed=0):
    """Ids from 4 on; those before are for padding."""
    return numpy.random.default_rng(seed).integers(4, vocab_size, shape)


def places_of(ids, start=0):
    return numpy.arange(start, start + ids.shape[1])[None].repeat(len(ids), 0)


def gpt_feed(ids, start=0):
    mask = numpy.ones((len(ids), start + ids.shape[1]), numpy.int64)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": places_of(ids, start)}


def close(ours, theirs):
    with tt.no_grad():
        numpy.testing.assert_allclose(theirs, ours.numpy(), atol=1e-4)


@pytest.mark.parametrize(("make", "case"), MODELS)
def test_onnx_finds_nothing_wrong(tmp_path, make, case):
    for path in export_onnx(make(**case), tmp_path / "model.onnx"):
        onnx.checker.check_model(str(path), full_check=True)
        model = onnx.load(path)
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        assert len(inferred.graph.value_info) > 20
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 20)]
        assert model.ir_version == 9
        assert {node.domain for node in model.graph.node} == {""}


@pytest.mark.parametrize("case", GPTS)
@pytest.mark.parametrize("cache", [True, False])
def test_the_logits_of_a_gpt(tmp_path, case, cache):
    model = gpt(**case)
    (path,) = export_onnx(model, tmp_path / "model.onnx", cache)
    ours = session(path)
    for batch, length in SIZES:
        ids = ids_of(model.config.vocab_size, batch, length)
        close(model(tt.tensor(ids)), outputs(ours, gpt_feed(ids) | empty_past(ours, batch))["logits"])


@pytest.mark.parametrize("case", BERTS)
def test_the_logits_of_a_bert(tmp_path, case):
    model = bert(**case)
    (path,) = export_onnx(model, tmp_path / "model.onnx")
    ours = session(path)
    for batch, length in SIZES:
        ids = ids_of(model.config.vocab_size, batch, length)
        ids[-1, 5:] = model.config.pad
        segments = (ids_of(6, batch, length, seed=1) - 4) % max(model.config.num_segments, 1)
        mask = (ids != model.config.pad).astype(numpy.int64)
        given = {"token_type_ids": segments} if model.config.num_segments else {}
        found = outputs(ours, {"input_ids": ids, "attention_mask": mask, **given})["logits"]
        close(model(tt.tensor(ids), *map(tt.tensor, given.values())), found)


@pytest.mark.parametrize(("case", "pooling", "layers"), SENTENCES)
def test_the_vectors_of_sentences(tmp_path, case, pooling, layers):
    model = randomised(SentenceModel(bert(**case).bert, pooling, layers))
    (path,) = export_onnx(model, tmp_path / "model.onnx")
    onnx.checker.check_model(str(path), full_check=True)
    ours, pad = session(path), model.encoder.config.pad
    for batch, length in SIZES:
        ids = ids_of(50, batch, length)
        ids[-1, 5:] = pad
        feed = {"input_ids": ids, "attention_mask": (ids != pad).astype(numpy.int64)}
        feed |= {"token_type_ids": numpy.zeros_like(ids)} if model.encoder.config.num_segments else {}
        found = outputs(ours, feed)["sentence_embedding"]
        close(model(tt.tensor(ids), tt.tensor(ids != pad)), found)
        assert found.shape == (batch, ours.get_outputs()[0].shape[1])


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_the_vectors_of_sentences_by_a_gpt(tmp_path, positions):
    model = randomised(SentenceModel(gpt(positions=positions), ["mean", "lasttoken"]))
    (path,) = export_onnx(model, tmp_path / "model.onnx")
    ours = session(path)
    for batch, length in SIZES:
        ids, mask = ids_of(50, batch, length), numpy.ones((batch, length), numpy.int64)
        mask[-1, 5:] = 0
        found = outputs(ours, {"input_ids": ids, "attention_mask": mask})["sentence_embedding"]
        close(model(tt.tensor(ids), tt.tensor(mask != 0)), found)


def test_a_window_that_is_shorter_than_the_texts(tmp_path):
    export_onnx(gpt(sliding_window=60), tmp_path / "model.onnx")
    with pytest.raises(UserError, match="sliding_window, as in Mistral, is not supported in ONNX"):
        export_onnx(gpt(sliding_window=4), tmp_path / "model.onnx")


def encode(encoder, feed):
    """What a decoder takes from the encoder."""
    out = outputs(encoder, feed)
    return {"encoder_attention_mask": out.pop("encoder_attention_mask", feed["attention_mask"]), **next_past(out)}


@pytest.mark.parametrize("case", TRANSFORMERS)
def test_the_logits_of_a_transformer(tmp_path, case):
    model = transformer(**case)
    encoder, decoder = map(session, export_onnx(model, tmp_path / "model.onnx"))
    for batch, length in SIZES:
        source = ids_of(model.config.source_vocab_size, batch, length)
        source[-1, 5:] = model.config.source_pad
        target = ids_of(model.config.target_vocab_size, batch, length + 3)
        mask = (source != model.config.source_pad).astype(numpy.int64)
        memory = encode(encoder, {"input_ids": source, "attention_mask": mask})
        found = outputs(decoder, {"input_ids": target, **memory, **empty_past(decoder, batch)})["logits"]
        close(model(tt.tensor(source), tt.tensor(target)), found)


@pytest.mark.parametrize("case", VECTORS)
def test_the_logits_of_a_transformer_that_reads_vectors(tmp_path, case):
    model = transformer(**case)
    encoder, decoder = map(session, export_onnx(model, tmp_path / "model.onnx"))
    for batch, length in SIZES:
        rng = numpy.random.default_rng(2)
        values = rng.normal(size=(batch, length, model.config.source_features)).astype(numpy.float32)
        lengths = numpy.array([length, 5, 1][:batch])
        target = ids_of(50, batch, 4)
        mask = (numpy.arange(length) < lengths[:, None]).astype(numpy.int64)
        memory = encode(encoder, {"input_features": values, "attention_mask": mask})
        found = outputs(decoder, {"input_ids": target, **memory, **empty_past(decoder, batch)})["logits"]
        close(model(Vectors(tt.tensor(values), tt.tensor(lengths)), tt.tensor(target)), found)


def test_the_reference_implementation_of_onnx_agrees(tmp_path):
    from onnx.reference import ReferenceEvaluator

    model = gpt(**GPTS[2])
    (path,) = export_onnx(model, tmp_path / "model.onnx")
    ids = ids_of(50, 2, 5)
    past = empty_past(session(path), 2)
    close(model(tt.tensor(ids)), ReferenceEvaluator(str(path)).run(["logits"], gpt_feed(ids) | past)[0])


# --------------------------------------------------------------------------------------------------------------- caches


@pytest.mark.parametrize("case", GPTS)
def test_fifty_tokens_of_a_gpt_with_the_cache(tmp_path, case):
    model = gpt(**case)
    (path,) = export_onnx(model, tmp_path / "model.onnx")
    ours, theirs = GPTDecoder(model), session(path)
    prompts = ids_of(model.config.vocab_size, 3, 4)
    ours_new = theirs_new = prompts
    past, start, written = empty_past(theirs, 3), 0, []
    for _ in range(50):
        expected = ours.next_logits(ours_new)
        out = outputs(theirs, gpt_feed(theirs_new, start) | past)
        numpy.testing.assert_allclose(out["logits"][:, -1], expected, atol=1e-4)
        past, start = next_past(out), start + theirs_new.shape[1]
        ours_new, theirs_new = expected.argmax(-1)[:, None], out["logits"][:, -1:].argmax(-1)
        assert (ours_new == theirs_new).all()
        written.append(expected)
    assert numpy.ptp(written, axis=0).max() > 0.1  # what was written before matters


@pytest.mark.parametrize("case", [*TRANSFORMERS[:1], *TRANSFORMERS[2:]])
def test_fifty_tokens_of_a_transformer_with_the_cache(tmp_path, case):
    model = transformer(**case)
    encoder, decoder = map(session, export_onnx(model, tmp_path / "model.onnx"))
    source = ids_of(40, 3, 9)
    source[1, 6:] = model.config.source_pad
    memory = encode(encoder, {"input_ids": source, "attention_mask": (source != model.config.source_pad).astype(numpy.int64)})
    ours = TransformerDecoder(model, source, 50)
    past, new, written = empty_past(decoder, 3), numpy.full((3, 1), 5), []
    for _ in range(50):
        expected = ours.next_logits(new)
        out = outputs(decoder, {"input_ids": new, **memory, **past})
        numpy.testing.assert_allclose(out["logits"][:, -1], expected, atol=1e-4)
        past, new = next_past(out), out["logits"][:, -1:].argmax(-1)
        assert (new[:, 0] == expected.argmax(-1)).all()
        written.append(expected)
    assert numpy.ptp(written, axis=0).max() > 0.1  # what was written before matters


def test_a_later_part_of_a_text_after_a_past_of_several_tokens(tmp_path):
    model = gpt(positions="rotary")
    (path,) = export_onnx(model, tmp_path / "model.onnx")
    ours, ids = session(path), ids_of(50, 2, 11)
    first = outputs(ours, gpt_feed(ids[:, :6]) | empty_past(ours, 2))
    second = outputs(ours, gpt_feed(ids[:, 6:], start=6) | next_past(first))
    assert second["present.1.value"].shape == (2, 2, 11, 12)
    close(model(tt.tensor(ids)), numpy.concatenate([first["logits"], second["logits"]], 1))


def test_a_pretrained_model(tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 60, "head_dim": 12}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    theirs = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, **heads)).eval()
    theirs.save_pretrained(tmp_path / "qwen")
    (path,) = export_onnx(from_pretrained(tmp_path / "qwen"), tmp_path / "model.onnx")
    ids, ours = ids_of(60, 3, 9), session(path)
    found = outputs(ours, gpt_feed(ids) | empty_past(ours, 3))["logits"]
    with torch.no_grad():
        numpy.testing.assert_allclose(found, theirs(torch.tensor(ids)).logits.numpy(), atol=1e-4)
    assert [x.shape[1:] for x in ours.get_inputs()][3] == [2, "past_length", 12]


# ------------------------------------------------------------------------------------------------------------- padding


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_padding_to_the_left_changes_nothing(tmp_path, positions):
    model = gpt(positions=positions)
    (path,) = export_onnx(model, tmp_path / "model.onnx")
    ours, long, short = session(path), ids_of(50, 1, 9, seed=1), ids_of(50, 1, 5, seed=2)
    ids = numpy.concatenate([long, numpy.pad(short, ((0, 0), (4, 0)))])
    mask = numpy.ones_like(ids)
    mask[1, :4] = 0
    places = numpy.maximum(mask.cumsum(1) - 1, 0)
    out = outputs(ours, {"input_ids": ids, "attention_mask": mask, "position_ids": places} | empty_past(ours, 2))
    assert numpy.isfinite(out["logits"]).all()
    close(model(tt.tensor(long)), out["logits"][:1])
    close(model(tt.tensor(short)), out["logits"][1:, 4:])

    new = ids_of(50, 2, 1, seed=3)
    mask = numpy.pad(mask, ((0, 0), (0, 1)), constant_values=1)
    later = {"input_ids": new, "attention_mask": mask, "position_ids": mask.sum(1, keepdims=True) - 1}
    found = outputs(ours, later | next_past(out))["logits"]
    close(model(tt.tensor(numpy.concatenate([short, new[1:]], 1)))[:, -1:], found[1:])


def test_a_source_of_nothing_but_padding(tmp_path):
    model = transformer()
    encoder, decoder = map(session, export_onnx(model, tmp_path / "model.onnx"))
    source, target = ids_of(40, 2, 5), ids_of(50, 2, 3)
    source[1] = model.config.source_pad
    memory = encode(encoder, {"input_ids": source, "attention_mask": (source != model.config.source_pad).astype(numpy.int64)})
    found = outputs(decoder, {"input_ids": target, **memory, **empty_past(decoder, 2)})["logits"]
    close(model(tt.tensor(source), tt.tensor(target)), found)


# --------------------------------------------------------------------------------------------------------------- files


def names(ports):
    return [port.name for port in ports]


def test_the_names_are_those_of_optimum(tmp_path):
    past = [f"past_key_values.{i}.{part}" for i in range(2) for part in ("key", "value")]
    present = [name.replace("past_key_values", "present") for name in past]
    inputs = ["input_ids", "attention_mask", "position_ids"]
    model = session(*export_onnx(gpt(), tmp_path / "gpt.onnx"))
    assert names(model.get_inputs()) == inputs + past
    assert names(model.get_outputs()) == ["logits", *present]
    assert [x.shape for x in model.get_inputs()][1:4] == [
        ["batch_size", "total_length"],
        ["batch_size", "length"],
        ["batch_size", 2, "past_length", 12],
    ]
    model = session(*export_onnx(gpt(), tmp_path / "gpt.onnx", cache=False))
    assert names(model.get_inputs()) == inputs
    assert names(model.get_outputs()) == ["logits"]
    model = session(*export_onnx(bert(), tmp_path / "bert.onnx"))
    assert names(model.get_inputs()) == ["input_ids", "attention_mask", "token_type_ids"]
    assert names(model.get_outputs()) == ["logits"]
    written = export_onnx(transformer(), tmp_path / "model.onnx")
    assert [path.name for path in written] == ["encoder_model.onnx", "decoder_model.onnx"]
    encoder, decoder = map(session, written)
    assert names(encoder.get_inputs()) == ["input_ids", "attention_mask"]
    cross = [f"present.{i}.encoder.{part}" for i in range(2) for part in ("key", "value")]
    assert names(encoder.get_outputs()) == ["last_hidden_state", *cross]
    kinds = [
        f"past_key_values.{i}.{kind}.{part}" for i in range(2) for kind in ("decoder", "encoder") for part in ("key", "value")
    ]
    assert names(decoder.get_inputs()) == ["input_ids", "encoder_attention_mask", *kinds]
    assert names(decoder.get_outputs()) == ["logits", *[name.replace("encoder", "decoder") for name in cross]]


def test_weights_that_one_file_cannot_hold(tmp_path, monkeypatch):
    model = gpt()
    monkeypatch.setattr(writing, "LARGEST_FILE", 10_000)
    path, data = export_onnx(model, tmp_path / "model.onnx")
    assert data == tmp_path / "model.onnx.data"
    assert sorted(tmp_path.iterdir()) == [path, data]
    weights = sum(p.numpy().nbytes for p in model.parameters())
    assert path.stat().st_size < 20_000 < weights < data.stat().st_size
    onnx.checker.check_model(str(path), full_check=True)
    ids = ids_of(50, 2, 6)
    ours = session(path)
    close(model(tt.tensor(ids)), outputs(ours, gpt_feed(ids) | empty_past(ours, 2))["logits"])


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_weights_of_another_dtype_are_written_as_float32(tmp_path, dtype):
    model = gpt().astype(dtype)
    (path,) = export_onnx(model, tmp_path / "model.onnx")
    assert {tensor.data_type for tensor in onnx.load(path).graph.initializer} == {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.INT64,
    }
    ids = ids_of(50, 2, 6)
    ours = session(path)
    close(model.astype("float32")(tt.tensor(ids)), outputs(ours, gpt_feed(ids) | empty_past(ours, 2))["logits"])


def test_a_file_that_cannot_be_written_leaves_the_other_whole(tmp_path, monkeypatch):
    (path,) = export_onnx(gpt(), tmp_path / "model.onnx")
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        export_onnx(gpt(num_layers=1), path)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == before


# ---------------------------------------------------------------------------------------------------- the command line


def exported(tmp_path, name, capsys, *flags):
    """What the command prints for a run, and what the lines in it print when they are run."""
    folder = tmp_path / "run"
    shutil.copytree(RUNS / name, folder)
    run_command(export.parse, [str(folder), str(tmp_path / "model.onnx"), *flags])
    printed = capsys.readouterr().out
    first, lines = printed.split(":\n\n", 1)
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    result = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "model.tokenizer.json" in first
    assert (tmp_path / "model.tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    return first, result.stdout.removesuffix("\n"), RunFolder(folder)


@pytest.mark.parametrize("flags", [[], ["--no-cache"]])
def test_a_run_of_char_gpt(tmp_path, capsys, flags):
    _, written, folder = exported(tmp_path, "char_gpt", capsys, *flags)
    model, tokenizer = GPT(folder.read_part("model", GPTConfig)), load_tokenizer(folder.tokenizer)
    load_weights(model, folder.best)
    prompt = tokenizer.encode(load_run(folder.path).text)
    count = model.config.block_size - len(prompt)
    ids = [*prompt, *generate(model, prompt, count, Sampling(temperature=0))]
    assert count > 5
    assert written == tokenizer.decode(ids)


def test_a_run_of_fill_mask(tmp_path, capsys):
    _, written, folder = exported(tmp_path, "fill_mask", capsys)
    model = BertForMaskedLM(folder.read_part("model", BertConfig))
    load_weights(model, folder.best)
    text = load_run(folder.path).text.removeprefix("[CLS]").removesuffix("[SEP]")
    assert "[MASK]" in text
    (found,) = fill_masks(model, load_tokenizer(folder.tokenizer), text)
    assert written == found[0][0]


def test_a_run_of_translate(tmp_path, capsys):
    first, written, folder = exported(tmp_path, "translate", capsys)
    assert "encoder_model.onnx" in first
    assert "decoder_model.onnx" in first
    assert written == trained_translator(folder).translate([load_run(folder.path).text])[0]
