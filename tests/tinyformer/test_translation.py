"""Sentences translated by a small Transformer, trained or not."""

from __future__ import annotations

import pytest
from trainings import check_that_it_learns

import tinytensor as tt
from tinyformer import (
    HuggingFaceRule,
    Seq2SeqConfig,
    SettingError,
    Specials,
    TransformerDecoder,
    TranslationConfig,
    Translator,
    UserError,
    WuRule,
    beam_search,
    padded,
    specials_of,
)
from tinyformer.tokenizers import BPETokenizer
from tinyformer.training.translation import ARCHITECTURES

PAIRS = [("red dog", "perro rojo"), ("blue cat sees é", "gato azul")]
SHAPE = {"d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 8}


RECURRENT_SHAPE = {"d_model": 8, "d_embedding": 8, "num_layers": 2}


def make(task: TranslationConfig, **shape: object) -> Translator:
    tokenizer = task.train_tokenizer(PAIRS)
    sizes = {"source_vocab_size": tokenizer.vocab_size, "target_vocab_size": tokenizer.vocab_size}
    make_model, kind = ARCHITECTURES[task.architecture]
    own = {**RECURRENT_SHAPE, "attention": task.architecture == "attention"} if kind is Seq2SeqConfig else SHAPE
    tt.seed(0)
    config = kind(**sizes, source_pad=specials_of(tokenizer).pad, **{**own, **shape})
    return Translator(make_model(config), tokenizer, task)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return make(TranslationConfig(vocab_size=270, max_tokens=12, lowercase=True))


def test_a_sentence_as_the_encoder_reads_it(translator: Translator) -> None:
    ids = translator.encode("  RED   dog ")
    assert translator.tokenizer.decode(ids[:-1]) == "red dog"
    assert ids[-1] == translator.specials.end
    for sentence, message in (
        ("  ", "the sentence is empty"),
        ("x" * 13, "the sentence has 13 tokens, more than the 12 that this model translates"),
    ):
        with pytest.raises(UserError, match=message):
            translator.encode(sentence)


def test_translations_come_in_the_order_of_the_sentences(translator: Translator) -> None:
    sentences = ["red dog", "a", "blue cat", "dog"] * 20  # more than are translated at once
    for beam in (1, 3):
        one_by_one = {s: translator.text(translator.search([s], beam)[0][0]) for s in set(sentences)}
        assert len(set(one_by_one.values())) > 1
        assert translator.translate(sentences, beam) == [one_by_one[s] for s in sentences]


def test_the_best_translations_of_many_sentences(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = ["red dog", "a", "blue cat", "dog", "b"]
    one_by_one = [translator.search([sentence], 2, 2)[0] for sentence in sentences]
    expected = [[hypothesis.ids for hypothesis in each] for each in one_by_one]
    room = 2 * 13  # for the tokens of a sentence with a beam of 2
    for tokens, batches in ((64 * room, [5]), (2 * room, [2, 2, 1]), (3 * room - 1, [2, 2, 1]), (1, [1] * 5)):
        monkeypatch.setattr("tinyformer.training.translation.TOKENS_AT_ONCE", tokens)
        done: list[int] = []
        found = translator.search_all(sentences, 2, 2, done.append)
        assert [[hypothesis.ids for hypothesis in each] for each in found] == expected
        assert done == batches
    assert translator.search_all([], 2) == []


def test_cores_share_the_sentences(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = ["red dog", "a", "blue cat", "dog", "b"]
    expected = [[hypothesis.ids for hypothesis in translator.search([sentence], 3, 2)[0]] for sentence in sentences]
    search, parts = translator.search, []
    monkeypatch.setattr(translator, "search", lambda part, *settings: parts.append(len(part)) or search(part, *settings))
    for cores, sizes in ((1, [5]), (2, [2, 3]), (4, [2, 3])):  # 15 beams are enough for two
        monkeypatch.setattr(tt.parallel, "default_shards", lambda cores=cores: cores)
        found = translator.search_all(sentences, 3, 2)
        assert [[hypothesis.ids for hypothesis in each] for each in found] == expected
        assert sorted(parts) == sizes
        parts.clear()


def test_the_best_translations_of_a_sentence(translator: Translator) -> None:
    steps: list[object] = []
    (hypotheses,) = translator.search(["red dog"], beam=4, n_best=3, watch=steps.append)
    assert [hypotheses] == translator.search(["red dog"], beam=4, n_best=3) and steps
    assert len(hypotheses) == 3
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    assert all(len(h.ids) <= 13 for h in hypotheses)


def test_a_translator_that_writes_as_another_library(translator: Translator) -> None:
    own = translator.specials
    specials, rule = Specials(own.pad, own.pad, own.end), HuggingFaceRule(1.0, True)
    other = Translator(translator.model, translator.tokenizer, translator.task, specials, rule, [own.pad, own.start], True)
    source = padded([translator.encode("red dog")], own.pad)
    found = {}
    for beam in (1, 4):
        decoder = TransformerDecoder(translator.model, source, 13)
        expected = beam_search(decoder, [[own.pad]], own.end, beam, 13, beam, rule, [own.pad, own.start], force_end=True)
        assert other.search(["red dog"], beam, beam) == expected != translator.search(["red dog"], beam, beam)
        found[beam] = expected[0]
        assert all(hypothesis.end == own.end and not {own.pad, own.start} & set(hypothesis.ids) for hypothesis in expected[0])
    attended = other.attended("red dog")
    assert attended.read[0] == "[PAD]"
    assert attended.written == translator.tokens([*found[1][0].ids, own.end])
    assert translator.rule == WuRule(translator.task.length_penalty)


def test_tokens_have_parts_of_characters_as_bytes(translator: Translator) -> None:
    assert "".join(translator.tokens(translator.encode("dog é"))) == "dog \\xc3\\xa9[EOS]"


@pytest.mark.parametrize("architecture", ["transformer", "attention", "lstm"])
def test_what_a_network_looked_at_when_it_wrote(architecture: str) -> None:
    translator = make(TranslationConfig(architecture, vocab_size=270, max_tokens=12), dropout=0.0)
    before = translator.attended("red dog")
    learn(translator, "red dog", "perro rojo")
    after = translator.attended("red dog")
    assert after.translation == "perro rojo"
    assert "".join(after.written) == "perro rojo[EOS]"
    assert len(before.written) == 13  # it found no end, and was cut
    assert "[EOS]" not in before.written
    for seen in (before, after):
        assert "".join(seen.source) == "red dog[EOS]"
        assert seen.read == ["[BOS]", *seen.written[:-1]]
        shapes = [weights.shape for weights in seen.alignments()]
        heads = {"transformer": [2], "attention": [1], "lstm": []}[architecture]
        assert shapes == [(count, len(seen.written), len(seen.source)) for count in heads]
    assert translator.has_attention() == (architecture != "lstm")
    # Each row is of the step that wrote the token of this row.
    logits = translator.model(*sides(translator, "red dog", "perro rojo")[:2])
    assert translator.tokens(int(i) for i in logits[0].argmax(-1).numpy()) == after.written


def sides(translator: Translator, source: str, target: str) -> list[tt.Tensor]:
    """What the encoder reads, what the decoder reads, and what it should write: ids (1, length)."""
    written = translator.encode(target)
    return [tt.tensor([ids]) for ids in (translator.encode(source), [translator.specials.start, *written[:-1]], written)]


def learn(translator: Translator, source: str, target: str) -> None:
    """Let the model learn one translation by heart."""
    batch, model = sides(translator, source, target), translator.model.train()
    check_that_it_learns(model, lambda: model.loss(*batch), below=0.03, lr=0.05)


def test_a_beam_is_no_wider_than_the_vocabulary(translator: Translator) -> None:
    size = translator.tokenizer.vocab_size
    translator.check_beam(1)
    translator.check_beam(size)
    for beam in (0, size + 1):
        with pytest.raises(UserError, match=f"the beam must be 1 to {size} wide"):
            translator.check_beam(beam)
    translator.check_beam(3, n_best=3)
    for n_best, message in ((4, "n_best must be at most beam, 3, got 4"), (0, "n_best must be at least 1, got 0")):
        with pytest.raises(SettingError, match=message):
            translator.check_beam(3, n_best)


def test_a_model_must_have_room_for_the_longest_sentence() -> None:
    task = TranslationConfig(vocab_size=270, max_tokens=12)
    make(task, positions="learned", max_length=13).check_length()
    with pytest.raises(SettingError, match="max_length must be more than 12, the longest sentence"):
        make(task, positions="learned", max_length=12).check_length()
    make(task, max_length=12).check_length()  # sinusoidal positions have no end
    with pytest.raises(UserError, match="a cache for this max_tokens needs at least"):
        make(TranslationConfig(vocab_size=270, max_tokens=10**15)).check_length()


def test_special_tokens_that_are_missing() -> None:
    tokenizer = BPETokenizer.train("red dog", 260, special=("[PAD]", "[EOS]"))
    with pytest.raises(UserError, match=r"the tokenizer lacks \[BOS\]: it is not one of a translation run"):
        specials_of(tokenizer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test": 0}, "test must be at least 1, got 0"),
        ({"length_penalty": 51.0}, "length_penalty must be from 0 to 50, got 51.0"),
        ({"label_smoothing": -0.1}, "label_smoothing must be from 0 to 1, got -0.1"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TranslationConfig(**settings)  # type: ignore[arg-type]
