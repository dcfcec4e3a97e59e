"""Training in bfloat16: the dtype of each array, and that training and resuming work as in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.data.text import TextBatches
from tinyformer.decoding.generation import generate
from tinyformer.decoding.sampling import Sampling
from tinyformer.models.bert import BertConfig, BertForClassification, BertForMaskedLM
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.recurrent import RecurrentConfig, RecurrentLM
from tinyformer.models.seq2seq import AdditiveAttentionModel, ContextVectorModel, Seq2SeqConfig
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.config import TrainingConfig
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer
from tinytensor import Tensor
from tinytensor.autograd.engine import Node
from tinytensor.nn import Module

needs_bfloat16 = pytest.mark.needs("cupy")


def ids(*shape: int) -> Tensor:
    """Ids from 1 to 10: without padding, which is 0."""
    return tt.tensor(np.random.default_rng(0).integers(1, 11, shape))


# ----------------------------------------------------------------------------------------------------- the whole graph


def gpt_loss(**choices: Any) -> tuple[Module, Any]:
    model = GPT(GPTConfig(**{"vocab_size": 11, "block_size": 8, "num_layers": 2, "num_heads": 2, "d_model": 16, **choices}))
    return model, lambda: model.loss(ids(3, 8), ids(3, 8), reduction="sum") / 24


def logits_loss(**choices: Any) -> tuple[Module, Any]:
    model = GPT(GPTConfig(**{"vocab_size": 11, "block_size": 8, "num_layers": 1, "num_heads": 2, "d_model": 16, **choices}))
    return model, lambda: tt.cross_entropy(model(ids(3, 8)), ids(3, 8), label_smoothing=0.1, ignore_index=3)


def transformer_loss(**choices: Any) -> tuple[Module, Any]:
    sizes = {"source_vocab_size": 11, "target_vocab_size": 11, "d_model": 16, "num_heads": 2, "d_ff": 24}
    model = Transformer(TransformerConfig(**{**sizes, "encoder_layers": 2, "decoder_layers": 2, **choices}))
    source = tt.concatenate([ids(3, 5), tt.zeros((3, 2), dtype="int64")], axis=1)
    return model, lambda: tt.cross_entropy(model(source, ids(3, 8)), ids(3, 8), label_smoothing=0.1)


BERT = {"vocab_size": 11, "max_length": 8, "num_layers": 2, "num_heads": 2, "d_model": 16, "d_ff": 24}


def masked_loss(**choices: Any) -> tuple[Module, Any]:
    model = BertForMaskedLM(BertConfig(**{**BERT, **choices}))
    places = tuple([tt.tensor(axis) for axis in np.nonzero(np.arange(24).reshape(3, 8) % 5 == 0)])  # as in training
    return model, lambda: tt.cross_entropy(model(ids(3, 8), places=places), ids(3, 8)[places])


def class_loss(**choices: Any) -> tuple[Module, Any]:
    model = BertForClassification(BertConfig(**{**BERT, **choices}), 3)
    return model, lambda: tt.cross_entropy(model(ids(3, 8)), tt.tensor([0, 1, 2]))


def recurrent_loss(cell: str, **choices: Any) -> tuple[Module, Any]:
    model = RecurrentLM(RecurrentConfig(11, cell, **{"num_layers": 2, "d_model": 16, **choices}))
    return model, lambda: model.loss(ids(3, 8), ids(3, 6), reduction="sum") / 18  # after a context of two


def recurrent_translation_loss(attention: bool, **choices: Any) -> tuple[Module, Any]:
    sizes = {"d_model": 16, "d_embedding": 12, "num_layers": 2, "dropout": 0.0}
    config = Seq2SeqConfig(11, 11, attention, **{**sizes, **choices})
    model = (AdditiveAttentionModel if attention else ContextVectorModel)(config)
    source = tt.concatenate([ids(3, 5), tt.zeros((3, 2), dtype="int64")], axis=1)
    return model, lambda: model.loss(source, ids(3, 8), ids(3, 8), label_smoothing=0.1)


MODELS = {
    "gpt": (gpt_loss, {"dropout": 0.2, "bias": True}),
    "gpt, rotary": (gpt_loss, {"positions": "rotary", "norm": "rms", "activation": "swiglu"}),
    "gpt, sinusoidal": (gpt_loss, {"positions": "sinusoidal", "activation": "gelu_exact"}),
    "gpt, logits": (logits_loss, {"activation": "relu"}),
    "transformer": (transformer_loss, {"dropout": 0.2}),
    "transformer, learned": (transformer_loss, {"positions": "learned", "max_length": 9, "norm_first": True}),
    "transformer, rotary": (transformer_loss, {"positions": "rotary", "query_key_norm": True}),
    "bert": (masked_loss, {"dropout": 0.2}),
    "bert, sinusoidal": (masked_loss, {"positions": "sinusoidal"}),
    "bert, rotary": (masked_loss, {"positions": "rotary", "query_key_norm": True}),
    "bert, classes": (class_loss, {}),
    "rnn": (recurrent_loss, {"cell": "rnn", "dropout": 0.2}),
    "gru": (recurrent_loss, {"cell": "gru"}),
    "lstm": (recurrent_loss, {"cell": "lstm", "dropout": 0.2}),
    "context vector": (recurrent_translation_loss, {"attention": False, "dropout": 0.2}),
    "additive attention": (recurrent_translation_loss, {"attention": True, "cell": "gru", "dropout": 0.2}),
}
LOSSES = {"linear_cross_entropy", "cross_entropy", "divide"}  # the last divides a sum of losses
SOFTMAX = {"astype", "where", "subtract", "exp", "sum"}  # of additive attention, in float32 as in the fused attention


def nodes_before(node: Node) -> Iterator[Node]:
    """All nodes of a graph, each once."""
    seen, waiting = {node}, [node]
    while waiting:
        node = waiting.pop()
        yield node
        new = {parent for parent in node.parents if parent is not None} - seen
        seen |= new
        waiting += new


@needs_bfloat16
@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize(("make", "choices"), MODELS.values(), ids=MODELS)
def test_all_but_the_loss_is_bfloat16(make: Any, choices: dict[str, Any], used_before: bool) -> None:
    tt.seed(0)
    model, compute = make(**choices)
    if used_before:  # tables made for float32 must not stay
        assert compute().dtype == "float32"
    model.astype("bfloat16")
    loss = compute()
    assert loss.node is not None
    found = {(node.op.name if node.op else "parameter", node.dtype.name) for node in nodes_before(loss.node)}
    wide = {name for name, dtype in found if dtype != "bfloat16"}
    assert wide and wide <= (LOSSES | SOFTMAX if choices.get("attention") else LOSSES)
    assert len(found) > 5
    loss.backward()
    assert {p.grad.dtype.name for p in model.parameters() if p.grad is not None} == {"bfloat16"}


@needs_bfloat16
@pytest.mark.parametrize(("make", "choices"), MODELS.values(), ids=MODELS)
def test_losses_and_gradients_are_near_those_of_float32(make: Any, choices: dict[str, Any]) -> None:
    """To within what 8 bits lose in a few layers: 1 % of the loss, 10 % of all gradients together, as ReLUs may switch."""
    tt.seed(0)
    model, compute = make(**{**choices, "dropout": 0.0})
    rounded = {name: t.astype("bfloat16").astype("float32") for name, t in model.state_dict().items()}
    model.load_state_dict(rounded)
    found = []
    for dtype in ("float32", "bfloat16"):
        model.astype(dtype)
        loss = compute()
        loss.backward()
        gradients = [p.grad.astype("float32").numpy().ravel() for p in model.parameters() if p.grad is not None]
        found.append((loss.item(), np.concatenate(gradients)))
    (expected, right), (actual, near) = found
    assert actual == pytest.approx(expected, rel=0.01)
    assert np.linalg.norm(near - right) < 0.1 * np.linalg.norm(right)


@needs_bfloat16
def test_ops_of_bfloat16_tensors_and_python_numbers_stay_in_it() -> None:
    x = tt.random.normal((4, 3)).astype("bfloat16")
    mask = tt.tensor(np.arange(3) % 2 == 0)
    results = {
        "number": x * 2.5, "left": 1.0 - x, "where": tt.where(mask, x, 0.0), "fill": x.masked_fill(mask, -1e30),
        "sum": x.sum(0), "mean": x.mean(), "softmax": x.softmax(), "log_softmax": x.log_softmax(), "logsumexp": x.logsumexp(1),
        "var": x.var(), "norm": x.norm(), "cumsum": x.cumsum(0), "integers": x * tt.arange(3), "power": abs(x) ** 1.5,
        "erf": x.erf(), "product": x @ x.T, "gelu": tt.gelu(x), "dropout": tt.dropout(x, 0.5), "clip": x.clip(0.0, 1.0),
    }  # fmt: skip
    assert {name: str(t.dtype) for name, t in results.items() if t.dtype != "bfloat16"} == {}
    others = {"wider": x + tt.ones(3), "astype": x.astype("float32"), "loss": tt.mse_loss(x, x * 2.0)}
    assert {str(t.dtype) for t in others.values()} == {"float32"}


@needs_bfloat16
def test_long_sums_do_not_stall() -> None:
    """Added up in bfloat16, ones stop counting at 256."""
    x = tt.ones((3000, 2)).astype("bfloat16")
    weight = tt.ones(2).astype("bfloat16")
    weight.requires_grad = True
    (x * weight).sum().backward()
    assert weight.grad is not None
    assert x.sum().item() == pytest.approx(6000, rel=0.004)
    assert weight.grad.tolist() == pytest.approx([3000, 3000], rel=0.004)
    assert x.sum(0).tolist() == pytest.approx([3000, 3000], rel=0.004)


# ------------------------------------------------------------------------------------------------------------ training


def make_trainer(path: Any, text_ids: np.ndarray, **settings: Any) -> Trainer:
    config = TrainingConfig(
        **{"steps": 60, "batch_size": 8, "eval_every": 20, "log_every": 1, "warmup": 5, "learning_rate": 3e-3, **settings}
    )
    tt.seed(config.seed)
    model = GPT(GPTConfig(11, 8, 2, 2, 32, dropout=0.1))
    folder = RunFolder(path)
    path.mkdir(exist_ok=True)
    return Trainer(model, TextBatches(text_ids, 8, config.batch_size, config.seed), config, folder)


@needs_bfloat16
def test_sixty_steps_learn_as_in_float32(tmp_path: Any, text_ids: np.ndarray) -> None:
    """The mean loss of the last ten of 60 steps, 1.515 after 2.42 at first, differs by less than 0.01; 0.0004 was measured."""
    last = {}
    for dtype in ("float32", "bfloat16"):
        trainer = make_trainer(tmp_path / dtype, text_ids, dtype=dtype)
        trainer.train()
        losses = [row["train_loss"] for row in trainer.rows if row["train_loss"] is not None]
        assert losses[0] == pytest.approx(2.4, abs=0.1)
        last[dtype] = np.mean(losses[-10:])
    assert last["float32"] < 1.8
    assert last["bfloat16"] == pytest.approx(last["float32"], abs=0.01)


@needs_bfloat16
def test_a_run_in_bfloat16_is_resumed_bit_for_bit(tmp_path: Any, text_ids: np.ndarray, bits: Any) -> None:
    whole = make_trainer(tmp_path / "whole", text_ids, dtype="bfloat16", steps=12, eval_every=4, average=2)
    whole.train()
    part = make_trainer(tmp_path / "part", text_ids, dtype="bfloat16", steps=12, eval_every=4, average=2)
    for _ in range(5):
        part.train_step()
    part._evaluate(Silent())  # between steps, weights may be averaged and put back
    part._try_average(Silent())
    part._save_latest()
    resumed = make_trainer(tmp_path / "part", text_ids, dtype="bfloat16", steps=12, eval_every=4, average=2)
    resumed.resume()
    resumed.train()
    files = [load_checkpoint(tmp_path / name / "latest.safetensors", "latest")[0] for name in ("whole", "part")]
    assert bits(files[0]["model"]) == bits(files[1]["model"])
    assert bits(files[0]["optimizer"]) == bits(files[1]["optimizer"])
    assert {t.dtype.name for t in files[0]["model"].values()} == {"bfloat16"}


class Silent:
    """A progress bar that shows nothing."""

    def write(self, text: str) -> None:
        pass

    def unpause(self) -> None:
        pass


@needs_bfloat16
def test_weights_are_averaged_in_float32(tmp_path: Any, text_ids: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 + 1 + 1 is 256 in bfloat16."""
    trainer = make_trainer(tmp_path / "run", text_ids, dtype="bfloat16", average=3)
    weight = trainer.model.token_embedding.weight
    own, averaged = weight.tolist(), []
    for step, value in enumerate((256.0, 1.0, 1.0), start=1):
        trainer.step = step
        weight.assign(tt.full(weight.shape, value))
        trainer._keep_weights()
    weight.assign(tt.tensor(own))
    monkeypatch.setattr("tinyformer.training.trainer.evaluate", lambda model, *_: averaged.append(weight.tolist()) or 9.0)
    trainer.best_loss = 1.0
    trainer._try_average(Silent())
    assert set(np.ravel(averaged)) == {86.0}
    assert weight.tolist() == own


@needs_bfloat16
def test_its_weights_write_text_in_float32_too(tmp_path: Any, text_ids: np.ndarray) -> None:
    """The same weights give nearly the same logits, and decoding takes either."""
    trainer = make_trainer(tmp_path / "run", text_ids, dtype="bfloat16", steps=20)
    trainer.train()
    weights = load_checkpoint(trainer.folder.best, "best")[0]["model"]
    model = GPT(GPTConfig(11, 8, 2, 2, 32))
    model.load_state_dict(weights)
    model.eval()
    trainer.model.eval()
    assert {p.dtype.name for p in model.parameters()} == {"float32"}
    with tt.no_grad():
        logits, narrow = model(ids(2, 8)).numpy(), trainer.model(ids(2, 8)).astype("float32").numpy()
    np.testing.assert_allclose(logits, narrow, atol=0.05 * np.abs(logits).max())
    for m in (model, trainer.model):
        assert len(list(generate(m, [1, 2], 12, Sampling(temperature=0.8, seed=1)))) == 12


@pytest.mark.needs("numpy")
def test_numpy_refuses_bfloat16(tmp_path: Any, text_ids: np.ndarray) -> None:
    with pytest.raises(UserError, match=r"needs a GPU.*TINYTENSOR_BACKEND=cupy"):
        make_trainer(tmp_path / "run", text_ids, dtype="bfloat16")


def test_an_unknown_dtype() -> None:
    with pytest.raises(UserError, match="dtype must be one of float32, bfloat16, got 'fp8'"):
        TrainingConfig(dtype="fp8")
