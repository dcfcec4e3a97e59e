"""One vector per text: each pooling against its formula, and the layers after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import (
    GPT,
    Bert,
    BertConfig,
    BertForClassification,
    GPTConfig,
    GPTVectors,
    RecurrentConfig,
    RecurrentLM,
    SentenceModel,
    Transformer,
    TransformerConfig,
)
from tinyformer.common.errors import SettingError
from tinyformer.models.sentences import POOLINGS, Normalize, Pooling, Projection

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 6, 4)).astype("float32")
LENGTHS = (6, 4, 3)
MASK = np.arange(6) < np.array(LENGTHS)[:, None]
SKIPPED = 2  # tokens of a prompt
EXPECTED = {
    "cls": lambda x, first: x[first],
    "lasttoken": lambda x, first: x[-1],
    "max": lambda x, first: x[first:].max(0),
    "mean": lambda x, first: x[first:].mean(0),
    "mean_sqrt_len_tokens": lambda x, first: x[first:].sum(0) / np.sqrt(len(x) - first),
    "weightedmean": lambda x, first: np.average(x[first:], axis=0, weights=np.arange(first + 1, len(x) + 1)),
}


def bert(**changes: object) -> Bert:
    tt.seed(1)
    sizes = {"vocab_size": 20, "max_length": 12, "num_layers": 1, "num_heads": 2, "d_model": 8, "d_ff": 16, "dropout": 0.0}
    return Bert(BertConfig(**{**sizes, **changes}))  # type: ignore[arg-type]


def test_every_kind_of_pooling_has_its_formula() -> None:
    assert set(EXPECTED) == set(POOLINGS)


@pytest.mark.parametrize("skipped", [0, SKIPPED])
@pytest.mark.parametrize("kinds", [*[[kind] for kind in POOLINGS], ["mean", "cls", "max"]], ids=str)
def test_pooling(kinds: list[str], skipped: int) -> None:
    counted = MASK & (np.arange(6) >= skipped)
    found = Pooling(kinds)(tt.tensor(X), tt.tensor(MASK.astype("float32")), tt.tensor(counted.astype("float32")))
    rows = [np.concatenate([EXPECTED[kind](x[:n], skipped) for kind in kinds]) for x, n in zip(X, LENGTHS)]
    np.testing.assert_allclose(found.numpy(), rows, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", POOLINGS)
def test_gradients_reach_the_tokens_that_count_and_no_others(kind: str) -> None:
    x = tt.tensor(X, requires_grad=True)
    mask = tt.tensor(MASK.astype("float32"))
    (Pooling([kind])(x, mask, mask) * tt.tensor(RNG.standard_normal((3, 4)).astype("float32"))).sum().backward()
    reached = x.grad.numpy().any(-1)
    assert not reached[~MASK].any()
    ends = {"cls": [0] * 3, "lasttoken": [n - 1 for n in LENGTHS]}
    for row, n in enumerate(LENGTHS):
        wanted = [ends[kind][row]] if kind in ends else range(n)
        if kind != "max":
            assert set(np.flatnonzero(reached[row])) == set(wanted)


def test_a_kind_that_is_not_known() -> None:
    for kinds in (["median"], []):
        with pytest.raises(SettingError, match=r"unknown pooling .*: choose from cls, max, mean, mean_sqrt_len_tokens"):
            Pooling(kinds)
    with pytest.raises(SettingError, match="unknown function 'Cosine': choose from Identity, Tanh"):
        Projection(2, 3, function="Cosine")


@pytest.mark.parametrize("skip_padding", [False, True])
def test_padding_changes_nothing(skip_padding: bool) -> None:
    model = SentenceModel(bert(skip_padding=skip_padding), ["mean", "max", "lasttoken"]).eval()
    ids = RNG.integers(1, 20, (1, 5))
    padded = np.concatenate([ids, np.zeros((1, 4), int)], 1)
    found = model(tt.tensor(padded), tt.tensor(padded != 0)).numpy()
    np.testing.assert_allclose(found, model(tt.tensor(ids)).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("kind", [GPT, GPTVectors])
def test_a_gpt_as_the_encoder(kind: type[GPT | GPTVectors]) -> None:
    tt.seed(1)
    gpt = kind(GPTConfig(vocab_size=20, block_size=12, num_layers=1, num_heads=2, d_model=8)).eval()
    model = SentenceModel(gpt, ["lasttoken"], [])
    ids = RNG.integers(0, 20, (2, 7))
    expected = (gpt.vectors(tt.tensor(ids)) if isinstance(gpt, GPT) else gpt(tt.tensor(ids))).numpy()
    mask = np.arange(7) < [[7], [4]]
    np.testing.assert_allclose(model(tt.tensor(ids), tt.tensor(mask)).numpy(), expected[[0, 1], [6, 3]], rtol=1e-6)


def test_the_layers_that_follow() -> None:
    layers = [Projection(8, 5, function="ReLU"), Projection(5, 3, bias=False, function="Identity"), Normalize()]
    whole, pooled = SentenceModel(bert(), layers=layers).eval(), SentenceModel(bert(), layers=[]).eval()
    ids = tt.tensor(RNG.integers(1, 20, (4, 6)))
    x = np.maximum(pooled(ids).numpy() @ layers[0].linear.weight.numpy().T + layers[0].linear.bias.numpy(), 0.0)
    x = x @ layers[1].linear.weight.numpy().T
    expected = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(whole(ids).numpy(), expected, rtol=1e-4, atol=1e-6)


SIZES = {"num_layers": 1, "num_heads": 2, "d_model": 8}
MODELS = {
    "GPT": lambda ids, may: GPT(GPTConfig(9, block_size=4, **SIZES)).loss(ids, ids),
    "Bert": lambda ids, may: Bert(BertConfig(9, d_ff=8, **SIZES)).eval()(ids, mask=may),
    "a classifier": lambda ids, may: BertForClassification(BertConfig(9, d_ff=8, **SIZES), 3).eval()(ids),
    "sentences": lambda ids, may: SentenceModel(Bert(BertConfig(9, d_ff=8, **SIZES))).eval()(ids, may),
    "Transformer": lambda ids, may: Transformer(TransformerConfig(9, 9, 0, **SHORT)).eval().loss(ids, ids, ids),
    "recurrent": lambda ids, may: RecurrentLM(RecurrentConfig(9, cell="gru", d_model=8, num_layers=1)).eval().loss(ids, ids),
}
SHORT = {"d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 8}


@pytest.mark.parametrize("use", MODELS.values(), ids=MODELS)
def test_ids_masks_and_targets_may_be_numpys(use: Any) -> None:
    ids, may = np.array([[3, 4, 5], [6, 7, 0]]), np.array([[True, True, True], [True, True, False]])
    found = []
    for make in (np.asarray, tt.tensor):
        tt.seed(0)
        found.append(use(make(ids), make(may)).numpy())
    np.testing.assert_array_equal(*found)
