"""Writing with recurrent models: a state instead of a cache, in batches, with beams, and in several threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.decoding.beam_search import WuRule, beam_search
from tinyformer.decoding.generation import (
    GPTDecoder,
    RecurrentDecoder,
    TransformerDecoder,
    generate,
    language_decoder,
    sample,
    translation_decoder,
)
from tinyformer.decoding.sampling import Sampling
from tinyformer.models.attention import recording_attention
from tinyformer.models.recurrent import RecurrentConfig, RecurrentLM
from tinyformer.models.seq2seq import AdditiveAttentionModel, ContextVectorModel, EncoderDecoder, Seq2SeqConfig
from tinyformer.models.transformer import Transformer, TransformerConfig

PAD, START, END = 0, 1, 2
GREEDY = Sampling(temperature=0.0)
CELLS = ["rnn", "gru", "lstm"]
KINDS = [(cell, attention) for cell in CELLS for attention in (False, True)]
each_cell = pytest.mark.parametrize("cell", CELLS)
each_kind = pytest.mark.parametrize(("cell", "attention"), KINDS)
SOURCE = np.array([[3, 4, 5, 6, 2], [7, 8, 2, 0, 0], [9, 2, 0, 0, 0], [5, 6, 7, 2, 0]])
LENGTHS = [5, 3, 2, 4]


def spread(model: Any) -> Any:
    """Make the logits differ clearly, as a trained model's do, and depend on the past."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            tt.nn.init.normal_(parameter, std=1.0 if name.startswith("output") else 0.7)
    return model


def language_model(cell: str, seed: int = 0, **changes: Any) -> RecurrentLM:
    tt.seed(seed)
    return spread(RecurrentLM(RecurrentConfig(11, cell, **{"num_layers": 2, "d_model": 12, **changes})))


def translator(cell: str, attention: bool, seed: int = 0, **changes: Any) -> EncoderDecoder:
    tt.seed(seed)
    sizes = {"d_model": 10, "d_embedding": 8, "num_layers": 2, "dropout": 0.0, "cell": cell, **changes}
    config = Seq2SeqConfig(11, 11, attention, **sizes)
    return spread(AdditiveAttentionModel(config) if attention else ContextVectorModel(config))


# ---------------------------------------------------------------------------------------------------- language models


@each_cell
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(top_k=5, seed=2), Sampling(top_p=0.9, seed=3)], ids=str)
def test_a_language_model_writes_what_it_writes_from_the_whole_text_each_time(cell: str, sampling: Sampling) -> None:
    model, written = language_model(cell), set()
    for prompt in ([4], [1, 2, 3], list(range(10))):
        rng, ids = np.random.default_rng(sampling.seed), list(prompt)
        with tt.no_grad():
            for _ in range(20):
                ids.append(sampling.pick(model(tt.tensor([ids]))[0].numpy()[0, -1], rng))
        assert list(generate(model, prompt, 20, sampling)) == ids[len(prompt) :]
        written |= set(ids[len(prompt) :])
    assert len(written) > 2


@each_cell
def test_a_batch_of_texts_is_written_as_each_alone(cell: str) -> None:
    model, prompts = language_model(cell), np.array([[1, 2], [3, 4], [5, 6]])
    together = np.array(list(sample(RecurrentDecoder(model), prompts, 12, GREEDY)))
    for row in range(3):
        assert list(generate(model, prompts[row], 12, GREEDY)) == list(together[:, row])
    assert len({tuple(text) for text in together.T}) == 3


def test_the_work_of_a_step_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = language_model("lstm"), []
    step = model.step
    monkeypatch.setattr(model, "step", lambda ids, state: (seen.append(ids.shape), step(ids, state))[1])
    decoder = RecurrentDecoder(model)
    list(sample(decoder, [[1, 2, 3]], 5, Sampling()))
    assert seen == [(1, 3), (1, 1), (1, 1), (1, 1), (1, 1)]
    arrays = [value for value in vars(decoder).values() if isinstance(value, (np.ndarray, tt.Tensor))]
    assert arrays == []  # nor is the text kept, which has no end
    assert decoder.num_tokens == 7


def test_the_first_tokens_may_come_in_parts_and_rows_be_chosen_before() -> None:
    model = language_model("gru")
    whole, parts = RecurrentDecoder(model), RecurrentDecoder(model)
    parts.select(np.array([1, 0]))  # nothing yet
    parts.next_logits([[1, 2], [3, 4]])
    expected = whole.next_logits(np.array([[1, 2, 5], [3, 4, 6]]))
    np.testing.assert_allclose(parts.next_logits([[5], [6]]), expected, rtol=1e-5, atol=1e-5)


# -------------------------------------------------------------------------------------------------------- translation


@each_kind
def test_sources_of_different_lengths_are_translated_as_each_alone(cell: str, attention: bool) -> None:
    written = set()
    for seed in range(4):
        model = translator(cell, attention, seed)
        starts = np.full((4, 1), START)
        together = np.array(list(sample(translation_decoder(model, SOURCE, 9), starts, 9, GREEDY)))
        for row, length in enumerate(LENGTHS):
            decoder = translation_decoder(model, SOURCE[row : row + 1, :length], 9)
            alone = np.array(list(sample(decoder, starts[:1], 9, GREEDY)))
            np.testing.assert_array_equal(alone[:, 0], together[:, row])
        written |= {tuple(text) for text in together.T}
    assert len(written) > 5


@each_kind
def test_beam_search_in_a_batch_finds_what_it_finds_alone(cell: str, attention: bool) -> None:
    different, settings = set(), {"beam": 4, "max_tokens": 7, "n_best": 4}
    for seed in range(4):
        model = translator(cell, attention, seed)
        together = beam_search(translation_decoder(model, SOURCE, 7), [[START]] * 4, END, **settings)
        for row, length in enumerate(LENGTHS):
            decoder = translation_decoder(model, SOURCE[row : row + 1, :length], 7)
            (alone,) = beam_search(decoder, [[START]], END, **settings)
            assert [h.ids for h in alone] == [h.ids for h in together[row]]
            np.testing.assert_allclose([h.score for h in alone], [h.score for h in together[row]], rtol=1e-4)
        different |= {h.ids for row in together for h in row}
    assert len(different) > 30


@each_kind
def test_the_score_of_a_beam_is_that_of_its_words(cell: str, attention: bool) -> None:
    """A beam that took another's state would have another's probabilities."""
    model = translator(cell, attention)
    decoder = translation_decoder(model, SOURCE, 6)
    found = beam_search(decoder, [[START]] * 4, END, beam=3, max_tokens=6, n_best=3, rule=WuRule(0.0))
    for source, length, hypotheses in zip(SOURCE, LENGTHS, found):
        for hypothesis in hypotheses:
            words = [START, *hypothesis.ids] + [END] * (len(hypothesis.ids) < 6)
            with tt.no_grad():
                logits = model(tt.tensor(source[None, :length]), tt.tensor([words[:-1]])).log_softmax(-1).numpy()[0]
            expected = sum(float(logits[i, word]) for i, word in enumerate(words[1:]))
            assert hypothesis.score == pytest.approx(expected, rel=1e-4)


@each_kind
def test_a_beam_of_one_is_greedy(cell: str, attention: bool) -> None:
    for seed in range(4):
        model = translator(cell, attention, seed)
        found = beam_search(translation_decoder(model, SOURCE, 8), [[START]] * 4, END, beam=1, max_tokens=8)
        steps = sample(translation_decoder(model, SOURCE, 8), np.full((4, 1), START), 8, GREEDY, end=END)
        for (hypothesis,), row in zip(found, np.array(list(steps)).T.tolist()):
            assert list(hypothesis.ids) == (row[: row.index(END)] if END in row else row)


@each_kind
def test_decoders_continue_with_the_selected_rows(cell: str, attention: bool) -> None:
    model = translator(cell, attention)
    decoders = [lambda: translation_decoder(model, SOURCE[:3], 4), lambda: RecurrentDecoder(language_model(cell))]
    for make in decoders:
        decoder, prompt = make(), np.array([[1, 2], [3, 4], [5, 6]])
        decoder.next_logits(prompt)
        decoder.select(np.array([2, 0, 0]))
        logits = decoder.next_logits(np.array([[7], [8], [9]]))
        for row, (old, new) in enumerate([(2, 7), (0, 8), (0, 9)]):
            other = make()
            other.next_logits(prompt)
            expected = other.next_logits(np.full((3, 1), new))[old]
            np.testing.assert_allclose(logits[row], expected, rtol=1e-4, atol=1e-4)
    decoder, other = decoders[0](), decoders[0]()
    decoder.select([2, 0])  # rows of the sources, before a token was written
    np.testing.assert_allclose(decoder.next_logits([[1], [1]]), other.next_logits([[1]] * 3)[[2, 0]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_attention_of_writing_is_recorded(cell: str) -> None:
    model = translator(cell, attention=True)
    with recording_attention(model) as recorded:
        list(sample(translation_decoder(model, SOURCE, 3), np.full((4, 1), START), 3, GREEDY))
    assert {name: [w.shape for w in weights] for name, weights in recorded.items()} == {"cross_attention": [(4, 1, 1, 5)] * 3}


# ------------------------------------------------------------------------------------------------- modes and threads


@each_kind
def test_dropout_and_guesses_are_for_training(cell: str, attention: bool) -> None:
    model = translator(cell, attention, dropout=0.5, teacher_forcing=0.0).train()
    state = tt.random.get_state()
    texts = [list(map(list, sample(translation_decoder(model, SOURCE, 6), [[START]] * 4, 6, GREEDY))) for _ in range(2)]
    assert texts[0] == texts[1]
    assert tt.random.get_state() == state
    lm = language_model(cell, dropout=0.5).train()
    state = tt.random.get_state()
    assert list(generate(lm, [1], 10, GREEDY)) == list(generate(lm, [1], 10, GREEDY))
    assert tt.random.get_state() == state
    for trained in (model, lm):
        assert all(module.training for module in trained.modules())
        assert all(p.grad is None for p in trained.parameters())


def test_several_threads_write_with_one_model() -> None:
    model, lm = translator("gru", attention=True, dropout=0.4).train(), language_model("lstm", dropout=0.4).train()

    def write(row: int) -> tuple[list[int], list[int]]:
        decoder = translation_decoder(model, SOURCE[row : row + 1], 20)
        translated = [int(ids[0]) for ids in sample(decoder, [[START]], 20, GREEDY)]
        return translated, list(generate(lm, [row], 20, GREEDY))

    expected = [write(row) for row in range(4)]
    found: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda row=row: found.update({row: write(row)})) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[row] for row in range(4)] == expected
    assert all(module.training for module in [*model.modules(), *lm.modules()])


# ------------------------------------------------------------------------------------------------- what does not fit


def test_which_decoder_a_model_gets(make_gpt: Any) -> None:
    transformer = Transformer(TransformerConfig(11, 11, d_model=8, num_heads=2, d_ff=8, encoder_layers=1, decoder_layers=1))
    assert isinstance(language_decoder(make_gpt()), GPTDecoder)
    assert isinstance(language_decoder(language_model("rnn")), RecurrentDecoder)
    assert isinstance(translation_decoder(transformer, SOURCE, 3), TransformerDecoder)
    assert isinstance(translation_decoder(translator("rnn", True), SOURCE, 3), RecurrentDecoder)


@pytest.mark.parametrize("attention", [False, True])
def test_decoders_refuse_what_does_not_fit_them(attention: bool) -> None:
    model = translator("lstm", attention)
    for source, message in [
        (np.zeros((2, 0), np.int64), "the source is empty"),
        ([3, 4], r"the sources must be \(batch, length\), got shape \(2,\)"),
        ([[3, 4], [5]], "the sources have from 1 to 2 tokens"),
        ([[3.0]], "token ids must be integers, got float64"),
        ([[3, 11]], "token id 11 is out of range: the vocabulary's ids are 0 to 10"),
        ([[3, -1]], "token id -1 is out of range"),
    ]:
        with pytest.raises(UserError, match=message):
            translation_decoder(model, source, 4)
    for wrong, message in [(0, "max_tokens must be at least 1, got 0"), (2.0, "max_tokens must be an integer, got 2.0")]:
        with pytest.raises(UserError, match=message):
            translation_decoder(model, SOURCE, wrong)

    decoder = translation_decoder(model, SOURCE[:3], 2)
    for rows in (1, 2, 4):  # one row would broadcast
        with pytest.raises(UserError, match=f"a decoder of 3 texts got ids for {rows}: pass one row for each"):
            decoder.next_logits(np.ones((rows, 1), np.int64))
    with pytest.raises(UserError, match="this decoder takes 2 tokens, not 3: pass it a larger max_tokens"):
        decoder.next_logits(np.ones((3, 3), np.int64))
    list(sample(decoder, [[1]] * 3, 2, Sampling()))
    with pytest.raises(UserError, match="this decoder takes 2 tokens, not 3: pass it a larger max_tokens"):
        decoder.next_logits(np.ones((3, 1), np.int64))

    decoder = RecurrentDecoder(language_model("gru"))
    list(sample(decoder, [[1]] * 3, 200, Sampling()))  # a text has no end of its own
    with pytest.raises(UserError, match="a decoder of 3 texts got ids for 2: pass one row for each"):
        list(sample(decoder, [[1]] * 2, 2, Sampling()))


def test_ids_out_of_range() -> None:
    for make in (
        lambda: language_decoder(language_model("lstm")),
        lambda: translation_decoder(translator("gru", True), SOURCE, 9),
    ):
        for wrong in (-1, 11):
            with pytest.raises(UserError, match=f"token id {wrong} is out of range"):
                make().next_logits(np.full((4, 1), wrong))
            if tt.backend_name != "numpy":  # where ids are trusted, as a look at them would wait for the GPU
                continue
            decoder, untouched = make(), make()
            for each in (decoder, untouched):
                each.next_logits(np.ones((4, 2), np.int64))
            with pytest.raises(IndexError, match=f"id {wrong} is outside the table of 11 rows"):
                decoder.next_logits(np.full((4, 1), wrong))
            # It goes on as if that had not been.
            new = np.full((4, 1), 3)
            assert decoder.num_tokens == untouched.num_tokens == 2
            np.testing.assert_array_equal(decoder.next_logits(new), untouched.next_logits(new))
    with pytest.raises(UserError, match="the prompt is empty"):
        RecurrentDecoder(language_model("rnn")).next_logits([[]])
    with pytest.raises(ValueError, match=r"the decoder needs a state to start from: pass model.encode\(source\)"):
        RecurrentDecoder(translator("rnn", False)).next_logits([[1]])
