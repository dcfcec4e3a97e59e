"""The rules of generation_config.json beside transformers' own: the scores of each, and what whole models write.

The weights are random. They are large enough that texts repeat themselves, so that the rules have something to change.
"""

import itertools
import json

import numpy
import pytest
import torch
from parity.test_generate import PAD, SOURCES, SameNumbers, gpt2, marian, texts

from tinyformer import Sampling, generate, read_writing, save_pretrained
from tinyformer.decoding.sampling import (
    ForbiddenFirst,
    ForbiddenSequences,
    ForcedAfterStart,
    MinimalLength,
    NoRepeatedNgrams,
    Renormalized,
    RepetitionPenalty,
)
from tinyformer.training.translation import pretrained_translator

transformers = pytest.importorskip("transformers")
from transformers.generation import logits_process as theirs  # noqa: E402

torch.set_num_threads(1)
VOCABULARY, END = 21, 3

RULES = [
    *((RepetitionPenalty(p), lambda prompt, p=p: theirs.RepetitionPenaltyLogitsProcessor(p)) for p in (1.3, 0.7, 4.0)),
    *((NoRepeatedNgrams(n), lambda prompt, n=n: theirs.NoRepeatNGramLogitsProcessor(n)) for n in (1, 2, 3, 4)),
    (
        ForbiddenSequences(((1, 2), (4,), (0, 1, 5), (2, 2, 2, 2, 2, 2, 2, 2, 2, 0))),
        lambda prompt: theirs.NoBadWordsLogitsProcessor([[1, 2], [4], [0, 1, 5], [2] * 9 + [0]], [END]),
    ),
    (MinimalLength((END, 8), 5), lambda prompt: theirs.MinLengthLogitsProcessor(5, [END, 8])),
    (MinimalLength((END,), 0, 2), lambda prompt: theirs.MinNewTokensLengthLogitsProcessor(prompt, 2, [END])),
    (ForcedAfterStart(7), lambda prompt: theirs.ForcedBOSTokenLogitsProcessor(7)),
    (ForbiddenFirst((5, 6, 7)), lambda prompt: theirs.SuppressTokensAtBeginLogitsProcessor([5, 6, 7], prompt)),
    (Renormalized(), lambda prompt: theirs.LogitNormalization()),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "make"), RULES, ids=lambda rule: repr(rule) if hasattr(rule, "__dataclass_fields__") else "")
@pytest.mark.parametrize("of_logits", [True, False])
def test_the_scores_of_each_rule(ours, make, of_logits):
    rng = numpy.random.default_rng(0)
    for length, written in itertools.product((1, 2, 4, 9), (0, 1, 2)):
        if written >= length:
            continue
        ids = rng.integers(0, 6, (5, length))  # few, so that they repeat
        scores = (3 * rng.normal(size=(5, VOCABULARY))).astype(numpy.float32)
        scores = scores if of_logits else torch.tensor(scores).log_softmax(-1).numpy()
        scores[rng.random(scores.shape) < 0.1] = -numpy.inf
        expected = make(length - written)(torch.tensor(ids), torch.tensor(scores)).numpy()
        found = ours(scores, ids, written)
        if isinstance(ours, Renormalized):
            numpy.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        else:
            numpy.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("typical_p", [1.0, 0.9, 0.5, 0.1, 1e-6])
@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 8, 0.9), (1.7, 0, 0.95), (1.2, 5, 1.0)])
def test_which_tokens_are_sampled_from(temperature, top_k, top_p, min_p, typical_p):
    warpers = [theirs.TemperatureLogitsWarper(temperature)]
    warpers += [theirs.TopKLogitsWarper(top_k)] if top_k else []
    warpers += [theirs.TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [theirs.MinPLogitsWarper(min_p)]
    warpers += [theirs.TypicalLogitsWarper(typical_p)] if typical_p < 1 else []
    rng = numpy.random.default_rng(0)
    left_out = 0
    for size in (1, 2, 21, 300):
        for spread in (0.3, 1.0, 4.0):
            logits = spread * rng.normal(size=size)
            logits[1:][rng.random(size - 1) < 0.1] = -numpy.inf
            scores = torch.tensor(logits[None])
            for warper in warpers:
                scores = warper(torch.zeros((1, 1), dtype=torch.long), scores)
            sampling = Sampling(temperature, top_k, top_p, min_p=min_p, typical_p=typical_p)
            found = sampling.probabilities(logits)
            numpy.testing.assert_allclose(found, scores.softmax(-1).numpy()[0], atol=1e-12)
            left_out += numpy.count_nonzero(found[logits > -numpy.inf] == 0)
    assert bool(left_out) == ((top_k, top_p, min_p, typical_p) != (0, 1.0, 0.0, 1.0))


SETTINGS = [
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.8},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"suppress_tokens": [1, 4, 9, END, 99]},
    {"begin_suppress_tokens": list(range(0, VOCABULARY, 2))},
    {"min_new_tokens": 9},
    {"min_length": 11},
    {"bad_words_ids": [[5], [END], [1, 2, 3]] + [[i, j] for i in range(VOCABULARY) for j in range(1, VOCABULARY, 2)]},
    {"forced_bos_token_id": 5, "begin_suppress_tokens": [2, 4, 6, 8, 10]},
    {
        "repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "suppress_tokens": [6], "begin_suppress_tokens": [1, 2, 3],
        "min_length": 6, "min_new_tokens": 3, "bad_words_ids": [[4, 4], [12]], "renormalize_logits": True,
    },
]  # fmt: skip
named = pytest.mark.parametrize(
    "said", SETTINGS, ids=lambda said: ", ".join(f"{name} {value}"[:40] for name, value in said.items())
)


def settings_of(folder, said, **more):
    """Write generation_config.json; what transformers reads there."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END, "pad_token_id": 0, **said, **more}))
    return transformers.GenerationConfig.from_pretrained(folder)


def written_by(model, prompt, config, **more):
    with torch.inference_mode():
        found = model.generate(torch.tensor([prompt]), generation_config=config, max_new_tokens=14, **more)
    return texts(found[:, len(prompt) :], [END])[0]


def written_here(model, prompt, writing, sampling):
    ids = list(generate(model, prompt, 14, sampling, writing.ends, forbidden=writing.forbidden, rules=writing.rules()))
    return texts(numpy.array([ids]), [END])[0]


@named
def test_gpt2_writes_what_transformers_writes(said, tmp_path, monkeypatch):
    changed = 0
    for seed, prompt in itertools.product(range(3), ([7], [1, 5, 1, 5, 2])):
        model, their_model = gpt2(seed)
        their_model.generation_config = transformers.GenerationConfig()
        save_pretrained(model, tmp_path)
        plain = written_by(their_model, prompt, settings_of(tmp_path, {}))
        config = settings_of(tmp_path, said)
        writing = read_writing(tmp_path)
        assert not writing.unsupported
        expected = written_by(their_model, prompt, config)
        assert written_here(model, prompt, writing, Sampling(temperature=0)) == expected
        changed += expected != plain
        config = settings_of(tmp_path, said, do_sample=True, temperature=1.3, top_k=9, top_p=0.9, min_p=0.05, typical_p=0.8)
        monkeypatch.setattr("parity.test_generate.ENDS", [END])
        monkeypatch.setattr(torch, "multinomial", SameNumbers(seed, 1))
        sampling = Sampling(**read_writing(tmp_path).sampling(), seed=seed)
        assert written_here(model, prompt, writing, sampling) == written_by(their_model, prompt, config)
        monkeypatch.undo()
    assert changed


class Words:
    """A tokenizer whose tokens are numbers, for a translator."""

    special, vocab_size = {"</s>": 0}, 22

    def encode(self, text):
        return numpy.array([int(word) for word in text.split()])

    def decode(self, ids, skip_special=False):
        return " ".join(map(str, ids))


@named
@pytest.mark.parametrize("beams", [1, 4])
def test_marian_translates_what_transformers_translates(said, beams, tmp_path, monkeypatch):
    monkeypatch.setattr("tinyformer.training.translation.pretrained_tokenizer", lambda folder: Words())
    said = json.loads(json.dumps(said))
    if "bad_words_ids" in said:
        said["bad_words_ids"].append([PAD])
    more = {"bad_words_ids": [[PAD]], "decoder_start_token_id": PAD, "num_beams": beams, "max_length": 12}
    more |= {"eos_token_id": 0, "pad_token_id": PAD}
    changed = 0
    for seed in range(4):
        their_model = marian(seed).float()
        their_model.save_pretrained(tmp_path)
        written = []
        for settings in ({**more, **said}, more):
            (tmp_path / "generation_config.json").write_text(json.dumps(settings))
            config = transformers.GenerationConfig.from_pretrained(tmp_path)
            with torch.inference_mode():
                found = their_model.generate(SOURCES, attention_mask=(SOURCES != PAD).long(), generation_config=config)
            written.append(texts(found[:, 1:], [0]))
            translator = pretrained_translator(tmp_path)
            assert translator.beam == beams
            sentences = [" ".join(str(i) for i in row if i not in (0, PAD)) for row in SOURCES.tolist()]
            ours = translator.search(sentences, translator.beam)
            assert [row[0].ids for row in ours] == written[-1]
        changed += written[0] != written[1]
    assert changed
