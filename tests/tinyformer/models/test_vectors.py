"""An encoder that reads vectors instead of ids: its convolution, padding, decoding, training, and mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainings import check_that_it_learns_and_resumes

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.vectors import Vectors, padded_vectors
from tinyformer.data.pairs import Specials, VectorPairBatch, vector_pair_batch
from tinyformer.decoding.beam_search import beam_search
from tinyformer.decoding.generation import TransformerDecoder
from tinyformer.models.attention import recording_attention
from tinyformer.models.transformer import StridedConvolution, Transformer, TransformerConfig, length_mask
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import translation_loss
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer
from tinytensor.transforms.gradcheck import gradcheck

FEATURES = 5
SPECIALS = Specials(8, 9, 10)
SMALL = {
    "source_vocab_size": 0,
    "target_vocab_size": 11,
    "d_model": 16,
    "num_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "d_ff": 24,
    "dropout": 0.0,
    "source_features": FEATURES,
}
STRIDES = (1, 2, 3)
each_stride = pytest.mark.parametrize("stride", STRIDES)


def make(seed: int = 0, **changes: object) -> Transformer:
    tt.seed(seed)
    return Transformer(TransformerConfig(**{**SMALL, **changes}))


def pairs(count: int = 4, seed: int = 0) -> list[tuple[np.ndarray, list[int]]]:
    """Sequences of 1 to 9 vectors. The target is the number of vectors that start with a positive value, twice."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        values = rng.standard_normal((rng.integers(1, 10), FEATURES)).astype(np.float32)
        found.append((values, [min(int((values[:, 0] > 0).sum()), 7)] * 2))
    return found


def batch_of(count: int = 4, seed: int = 0) -> VectorPairBatch:
    return vector_pair_batch(pairs(count, seed), SPECIALS)


# ------------------------------------------------------------------------------------------------------ convolution


@each_stride
def test_windows_are_centred_and_overlap(stride: int) -> None:
    tt.seed(0)
    layer = StridedConvolution(FEATURES, 6, stride)
    rng = np.random.default_rng(0)
    values, lengths = rng.standard_normal((3, 7, FEATURES)).astype(np.float32), [7, 4, 1]
    out, shortened = layer(Vectors(tt.tensor(values), tt.tensor(lengths)))
    weight, bias = layer.projection.weight.numpy(), layer.projection.bias.numpy()
    assert out.shape == (3, len(range(0, 7, stride)), 6)
    assert shortened.tolist() == [len(range(0, length, stride)) for length in lengths]
    for row, length in enumerate(lengths):
        known = {t: values[row, t] for t in range(length)}
        for place, centre in enumerate(range(0, 7, stride)):
            window = [known.get(t, np.zeros(FEATURES)) for t in range(centre - stride + 1, centre + stride)]
            np.testing.assert_allclose(out.numpy()[row, place], weight @ np.concatenate(window) + bias, rtol=1e-4, atol=1e-5)


@each_stride
def test_gradients_of_the_convolution(stride: int) -> None:
    layer = StridedConvolution(2, 3, stride).astype("float64")
    values = tt.tensor(np.random.default_rng(0).standard_normal((2, 5, 2)), requires_grad=True)
    gradcheck(lambda values: layer(Vectors(values, tt.tensor([5, 2]))).values, values)


def test_masks_of_lengths() -> None:
    assert length_mask(tt.tensor([2, 0, 3]), 3).tolist() == [[True, True, False], [False] * 3, [True] * 3]


# ---------------------------------------------------------------------------------------------------------- padding


@each_stride
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_padding_changes_nothing_whatever_it_holds(stride: int, positions: str) -> None:
    model = make(source_stride=stride, positions=positions, max_length=9)
    batch = batch_of(6)
    together = model(batch.source, batch.target_inputs).numpy()
    for fill in (np.nan, 1e30):
        values = batch.values.numpy().copy()
        for row, length in zip(values, batch.lengths.tolist()):
            row[length:] = fill
        assert model(Vectors(tt.tensor(values), batch.lengths), batch.target_inputs).numpy().tobytes() == together.tobytes()
    for i, (values, ids) in enumerate(pairs(6)):
        alone = model(padded_vectors([values]), tt.tensor([[SPECIALS.start, *ids]])).numpy()
        np.testing.assert_allclose(together[i, : len(ids) + 1], alone[0], rtol=1e-4, atol=1e-5)


def test_every_frame_reaches_every_logit_and_only_its_own_sequence() -> None:
    model = make(source_stride=3)
    batch = batch_of(3)
    before = model(batch.source, batch.target_inputs).numpy()
    for row, length in enumerate(batch.lengths.tolist()):
        for frame in range(length):
            values = batch.values.numpy().copy()
            values[row, frame] += 1
            after = model(Vectors(tt.tensor(values), batch.lengths), batch.target_inputs).numpy()
            assert (np.abs(after - before)[row].max(axis=-1) > 0).all()
            others = np.arange(3) != row
            assert after[others].tobytes() == before[others].tobytes()


@each_stride
def test_the_memory_has_a_place_for_each_step_of_the_stride(stride: int) -> None:
    batch = batch_of(6)
    memory, mask = make(source_stride=stride).encode(batch.source)
    longest = batch.values.shape[1]
    assert memory.shape == (6, -(-longest // stride), 16)
    assert mask.shape == (6, 1, 1, memory.shape[1])
    assert mask.sum(axis=-1).reshape(-1).tolist() == [-(-length // stride) for length in batch.lengths.tolist()]


# --------------------------------------------------------------------------------------------------------- the model


@each_stride
def test_parameter_count_and_gradients(stride: int) -> None:
    model = make(source_stride=stride)
    assert model.num_parameters() == model.config.num_parameters()
    ids = TransformerConfig(**{**SMALL, "source_features": 0, "source_vocab_size": 11})
    assert model.num_parameters() - ids.num_parameters() == 16 * ((2 * stride - 1) * FEATURES + 1 - 11)
    batch = batch_of()
    model.loss(batch.source, batch.target_inputs, batch.target_outputs, SPECIALS.pad).backward()
    for name, parameter in model.named_parameters():
        assert np.abs(parameter.grad.numpy()).max() > 0, name


def test_a_longer_stride_keeps_less_for_each_vector() -> None:
    kept = [TransformerConfig(**{**SMALL, "source_stride": stride}).saved_numbers() for stride in (1, 2, 4)]
    assert kept[0] > kept[1] > kept[2] > 0


@each_stride
def test_decoding_with_a_cache_without_and_in_a_batch_writes_the_same(stride: int) -> None:
    model = make(source_stride=stride, tie_output=False)
    batch = batch_of(5)
    found = {}
    for use_cache in (True, False):
        decoder = TransformerDecoder(model, batch.source, 6, use_cache)
        found[use_cache] = beam_search(decoder, [[SPECIALS.start]] * 5, SPECIALS.end, beam=3, max_tokens=6, n_best=2)
    for i, (values, _) in enumerate(pairs(5)):
        decoder = TransformerDecoder(model, padded_vectors([values]), 6)
        (alone,) = beam_search(decoder, [[SPECIALS.start]], SPECIALS.end, beam=3, max_tokens=6, n_best=2)
        for hypotheses in (found[True][i], found[False][i]):
            assert [h.ids for h in hypotheses] == [h.ids for h in alone]
            assert [h.score for h in hypotheses] == pytest.approx([h.score for h in alone], rel=1e-4)


def test_cross_attention_ignores_padding() -> None:
    model = make(source_stride=2).eval()
    batch = batch_of(4)
    with recording_attention(model) as recorded:
        model(batch.source, batch.target_inputs)
    (weights,) = recorded["decoder.blocks.1.cross_attention"]
    for row, length in enumerate(batch.lengths.tolist()):
        end = -(-length // 2)
        assert (weights.numpy()[row, :, :, end:] == 0).all()
        assert weights.numpy()[row, :, :, :end].sum(axis=-1) == pytest.approx(1)


# ---------------------------------------------------------------------------------------------------------- training


class Counting:
    """Batches of ``pairs``."""

    drawn = 0

    def sample(self) -> VectorPairBatch:
        self.drawn += 1
        return batch_of(6, self.drawn)

    def validation_batches(self) -> Iterator[VectorPairBatch]:
        return iter([batch_of(8, 10_000), batch_of(8, 10_001)])

    def get_state(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def set_state(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


def trainer(folder: Path, dropout: float = 0.1, **settings: Any) -> Trainer:
    folder.mkdir(exist_ok=True)
    given = {"steps": 20, "warmup": 3, "learning_rate": 2e-2, "eval_every": 10, "shards": 1, **settings}
    loss = translation_loss(0.0, SPECIALS.pad)
    return Trainer(make(source_stride=2, dropout=dropout), Counting(), TrainingConfig(**given), RunFolder(folder), loss)


def test_it_learns_and_resumes(tmp_path: Path) -> None:
    check_that_it_learns_and_resumes(lambda folder: trainer(tmp_path / folder), 15, 15, better=0.7)


@pytest.mark.parametrize("settings", [{"shards": 3}, {"workers": 2, "shards": 2}], ids=str)
def test_shards_and_workers_do_what_a_whole_batch_does(tmp_path: Path, settings: dict[str, int]) -> None:
    if settings.get("workers") and tt.backend_name != "numpy":
        pytest.skip("a process for each GPU")
    losses = {}
    for name, given in (("whole", {}), ("cut", settings)):
        run = trainer(tmp_path / name, dropout=0.0, steps=4, eval_every=2, **given)
        assert run.train()
        losses[name] = [row["validation_loss"] for row in run.rows if row["validation_loss"] is not None]
    assert losses["cut"] == pytest.approx(losses["whole"], rel=1e-4)


def test_batches_are_cut_into_rows() -> None:
    batch = batch_of(5)
    parts = batch.split(2)
    assert [part.values.shape[0] for part in parts] == [2, 3]
    assert [length for part in parts for length in part.lengths.tolist()] == batch.lengths.tolist()
    assert {part.num_targets for part in parts} == {batch.num_targets} == {15}
    assert batch.target_inputs[:, 0].tolist() == [SPECIALS.start] * 5
    assert batch.target_outputs[:, 2].tolist() == [SPECIALS.end] * 5


# ---------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_features": -1}, "source_features must be at least 0, got -1"),
        ({"source_stride": 0}, "source_stride must be at least 1, got 0"),
        ({"source_vocab_size": 11}, "with source_features, source_vocab_size must be 0"),
        ({"target_vocab_size": 0, "share_embeddings": True}, "share_embeddings off"),
        ({"source_features": 0}, "source_vocab_size must be at least 1, got 0"),
        ({"source_features": 0, "source_vocab_size": 5, "source_stride": 2}, "source_stride must be 1 without source_features"),
    ],
)
def test_settings_that_make_no_model(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TransformerConfig(**{**SMALL, **changes})


def test_sources_that_the_model_cannot_read() -> None:
    vectors, ids = batch_of().source, tt.tensor([[1, 2], [3, 4]])
    of_ids = make(source_features=0, source_vocab_size=5)
    for source, model, message in (
        (ids, make(), "this model reads Vectors, not ids"),
        (vectors, of_ids, "this model reads ids, not Vectors"),
        (vectors, make(source_features=4), r"must be \(batch, frames, 4\)"),
        (Vectors(vectors.values, vectors.lengths[:2]), make(), "with a length for each"),
        (Vectors(vectors.values[0], vectors.lengths), make(), r"must be \(batch, frames, 5\)"),
        (Vectors(vectors.values[:, :0], vectors.lengths), make(), r"must be \(batch, frames, 5\)"),
    ):
        for read in (model.encode, lambda source, model=model: TransformerDecoder(model, source, 5)):
            with pytest.raises(UserError, match=message):
                read(source)
    for length in (0, 100):
        with pytest.raises(UserError, match=f"a sequence cannot have {length} frames"):
            TransformerDecoder(make(), Vectors(vectors.values, tt.tensor([1, 1, length, 1])), 5)
