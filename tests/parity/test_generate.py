"""Generated text compared with ``generate`` of Hugging Face's transformers: greedy, beam search, and sampling.

GPT-2 runs on both sides, with the same weights. Marian's logits come from transformers on both sides, so that its tests compare
the search and not the models. All weights are random, and large enough that texts differ and end at different lengths.

python tests/parity/test_generate.py 500   # so many random settings of a model
"""

import itertools
import json
import logging
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy
import pytest
import torch
from torch_models import gpt2_weights

import tinytensor as tt
from tinyformer import (
    GPT,
    GPTConfig,
    GPTDecoder,
    HuggingFaceRule,
    Sampling,
    TransformerDecoder,
    beam_search,
    from_pretrained,
    generate,
    read_writing,
    sample,
)
from tinyformer.commands.generate import written as written_by_the_program

transformers = pytest.importorskip("transformers")

GREEDY = Sampling(temperature=0.0)
torch.set_num_threads(1)  # the arrays here are small: more threads only wait for one another
PAD = 21  # in no prompt of GPT-2's
PENALTIES = [-1.0, 0.0, 0.6, 1.0, 2.0]
STOPPING = [False, True, "never"]


def theirs(model, inputs, max_tokens, **settings):
    """What ``generate`` returns for these settings and no others. An input equal to ``PAD`` is padding."""
    config = transformers.GenerationConfig(max_new_tokens=max_tokens, return_dict_in_generate=True, **settings)
    with torch.inference_mode():
        return model.generate(inputs, attention_mask=(inputs != PAD).long(), generation_config=config)


def texts(rows, ends):
    """Each row of tokens without its end and what follows."""
    return [tuple(itertools.takewhile(lambda i: i not in ends, row)) for row in rows.tolist()]


def steps_as_texts(steps, ends):
    return texts(numpy.array(list(steps)).T, ends)


def grouped(found, size):
    return [found[first : first + size] for first in range(0, len(found), size)]


def assert_same_beams(ours, written, scores, ends):
    """The same texts in the same order, with the same scores."""
    n_best = len(written) // len(ours)
    assert [[hypothesis.ids for hypothesis in row] for row in ours] == grouped(texts(written, ends), n_best)
    numpy.testing.assert_allclose([h.score for row in ours for h in row], scores, rtol=2e-5, atol=2e-5)


# ------------------------------------------------------------------------------------------------------------ Marian

END = 0
SOURCES = torch.tensor([[3, 4, 5, 6, END], [6, 5, 9, END, PAD], [4, 7, END, PAD, PAD], [12, END, PAD, PAD, PAD]])


class MarianDecoder:
    """tinyformer's protocol of a decoder, around transformers' model."""

    def __init__(self, model, sources):
        self.model = model
        self.mask = (sources != PAD).long()
        with torch.inference_mode():
            self.memory = model.get_encoder()(sources, attention_mask=self.mask).last_hidden_state
        self.ids = torch.zeros((len(sources), 0), dtype=torch.long)

    def next_logits(self, new):
        self.ids = torch.cat([self.ids, torch.tensor(new)], dim=1)
        encoded = transformers.modeling_outputs.BaseModelOutput(self.memory)
        with torch.inference_mode():
            outputs = self.model(encoder_outputs=encoded, attention_mask=self.mask, decoder_input_ids=self.ids)
        return outputs.logits[:, -1].float().numpy()

    def select(self, rows):
        self.ids, self.memory, self.mask = self.ids[rows], self.memory[rows], self.mask[rows]


def marian(seed):
    """A Marian in float64, whose rounding cannot part texts that are almost equally likely."""
    torch.manual_seed(seed)
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("attention_heads", 2))}
    config = transformers.MarianConfig(
        vocab_size=22, d_model=16, **sizes, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32,
        scale_embedding=True, pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD, forced_eos_token_id=None,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed_positions" not in name:  # those are the paper's waves
                parameter += (0.2 if "shared" in name else 0.5) * torch.randn_like(parameter)
        model.final_logits_bias += 0.3 * torch.randn_like(model.final_logits_bias)
        model.final_logits_bias[0, END] += 1.0
    return model


MARIAN = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD, "bad_words_ids": [[PAD]]}
STARTS = [[PAD]] * len(SOURCES)


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize("early_stopping", STOPPING)
@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_marian_with_beams(length_penalty, early_stopping, is_forced):
    found = set()
    for seed, n_best in [(0, 5), (1, 1), (2, 3), (3, 5), (4, 5)]:
        model = marian(seed)
        expected = theirs(
            model, SOURCES, 10, num_beams=5, num_return_sequences=n_best, length_penalty=length_penalty,
            early_stopping=early_stopping, forced_eos_token_id=END if is_forced else None, output_scores=True, **MARIAN,
        )  # fmt: skip
        rule = HuggingFaceRule(length_penalty, early_stopping)
        ours = beam_search(MarianDecoder(model, SOURCES), STARTS, END, 5, 10, n_best, rule, [PAD], is_forced)
        assert_same_beams(ours, expected.sequences[:, 1:], expected.sequences_scores, [END])
        found |= {hypothesis.ids for row in ours for hypothesis in row}
        assert not is_forced or all(hypothesis.end == END for row in ours for hypothesis in row)
    assert len(found) > 20


def test_each_way_to_stop_finds_other_texts():
    """So that the test above can tell them apart; and texts of many lengths."""
    found = {early_stopping: [] for early_stopping in STOPPING}
    for seed, early_stopping in itertools.product(range(5), STOPPING):
        rule = HuggingFaceRule(2.0, early_stopping)
        found[early_stopping].append(beam_search(MarianDecoder(marian(seed), SOURCES), STARTS, END, 5, 10, 5, rule, [PAD]))
    assert found[False] != found[True] != found["never"] != found[False]
    assert len({len(hypothesis.ids) for batch in found[True] for row in batch for hypothesis in row}) > 6


@pytest.mark.parametrize("beam", [2, 3, 7])
def test_marian_with_other_beams_and_lengths(beam):
    for seed, max_tokens in itertools.product(range(3), (1, 2, 20)):
        model = marian(seed)
        expected = theirs(model, SOURCES, max_tokens, num_beams=beam, num_return_sequences=beam, output_scores=True, **MARIAN)
        decoder = MarianDecoder(model, SOURCES)
        ours = beam_search(decoder, STARTS, END, beam, max_tokens, beam, HuggingFaceRule(), [PAD])
        assert_same_beams(ours, expected.sequences[:, 1:], expected.sequences_scores, [END])


@pytest.mark.parametrize("forced", [None, END])
def test_marian_greedily(forced):
    cut_off = 0
    for seed in range(12):
        model = marian(seed)
        written = theirs(model, SOURCES, 8, forced_eos_token_id=forced, **MARIAN).sequences[:, 1:]
        settings = {"forbidden": [PAD], "force_end": forced is not None}
        steps = sample(MarianDecoder(model, SOURCES), STARTS, 8, GREEDY, END, **settings)
        assert steps_as_texts(steps, [END]) == texts(written, [END])
        found = beam_search(MarianDecoder(model, SOURCES), STARTS, END, 1, 8, rule=HuggingFaceRule(), **settings)
        assert [row[0].ids for row in found] == texts(written, [END])
        cut_off += sum(row[0].end is None for row in found)
    assert (cut_off == 0) == (forced is not None)


def test_marian_read_from_its_folder(tmp_path):
    """The whole way: tinyformer's own model, in float32, with its cache."""
    for seed in range(4):
        their_model = marian(seed).float()
        their_model.save_pretrained(tmp_path)
        settings = {"num_beams": 5, "num_return_sequences": 2, "forced_eos_token_id": END, "output_scores": True, **MARIAN}
        expected = theirs(their_model, SOURCES, 10, **settings)
        decoder = TransformerDecoder(from_pretrained(tmp_path), SOURCES.numpy(), 10)
        ours = beam_search(decoder, STARTS, END, 5, 10, 2, HuggingFaceRule(), [PAD], force_end=True)
        assert_same_beams(ours, expected.sequences[:, 1:], expected.sequences_scores, [END])


# -------------------------------------------------------------------------------------------------------------- GPT-2

ENDS = [3, 8]  # Llama has several end tokens, too
PROMPTS = numpy.random.default_rng(0).integers(0, 21, (3, 4))


def gpt2(seed):
    """tinyformer's GPT, and transformers' GPT-2 with its weights."""
    tt.seed(seed)
    ours = GPT(GPTConfig(vocab_size=21, block_size=32, num_layers=2, num_heads=2, d_model=16, bias=True))
    for parameter in ours.parameters():
        parameter.assign(parameter + tt.random.normal(parameter.shape, std=0.4))
    sizes = {"n_positions": 32, "n_layer": 2, "n_head": 2, "n_embd": 16}
    config = transformers.GPT2Config(vocab_size=21, **sizes, bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    weights = {name: value.numpy() for name, value in ours.state_dict().items()}
    model.transformer.load_state_dict({name: torch.tensor(array) for name, array in gpt2_weights(weights)})
    return ours, model


@pytest.mark.parametrize("ends", [[3], ENDS, [1, 2, 3]])
@pytest.mark.parametrize("early_stopping", STOPPING)
def test_gpt2_with_beams_after_prompts(early_stopping, ends):
    written = set()
    for seed, penalty in enumerate(PENALTIES):
        model, their_model = gpt2(seed)
        expected = theirs(
            their_model, torch.tensor(PROMPTS), 12, num_beams=5, num_return_sequences=4, length_penalty=penalty,
            early_stopping=early_stopping, eos_token_id=ends, pad_token_id=0, output_scores=True,
        )  # fmt: skip
        rule = HuggingFaceRule(penalty, early_stopping)
        ours = beam_search(GPTDecoder(model), PROMPTS, ends, beam=5, max_tokens=12, n_best=4, rule=rule)
        assert_same_beams(ours, expected.sequences[:, 4:], expected.sequences_scores, ends)
        for hypothesis, ids in zip(itertools.chain(*ours), expected.sequences[:, 4:].tolist()):
            assert hypothesis.end is None or ids[len(hypothesis.ids)] == hypothesis.end
        written |= {(h.end, len(h.ids)) for row in ours for h in row}
    assert {end for end, _ in written} >= {*ends, None}
    assert len(written) > 6


def test_gpt2_greedily():
    written = []
    for seed in range(12):
        model, their_model = gpt2(seed)
        settings = {"eos_token_id": ENDS, "pad_token_id": 0, "bad_words_ids": [[5], [6]]}
        expected = texts(theirs(their_model, torch.tensor(PROMPTS), 12, **settings).sequences[:, 4:], ENDS)
        assert steps_as_texts(sample(GPTDecoder(model), PROMPTS, 12, GREEDY, ENDS, [5, 6]), ENDS) == expected
        one = list(generate(model, PROMPTS[1], 12, GREEDY, ENDS, forbidden=[5, 6]))
        assert texts(numpy.array([one]), ENDS) == expected[1:2]
        written += expected
    assert len(set(written)) > 12
    assert len(set(map(len, written))) > 4


class SameNumbers:
    """torch.multinomial with the random numbers of tinyformer's sampling: one for each text that has not ended."""

    def __init__(self, seed, batch):
        self.rng = numpy.random.default_rng(seed)
        self.has_ended = [False] * batch

    def __call__(self, probabilities, num_samples):
        assert num_samples == 1
        picked = [0] * len(probabilities)
        for i, row in enumerate(probabilities.double().numpy()):
            if not self.has_ended[i]:
                cumulative = row.cumsum()
                picked[i] = int(numpy.searchsorted(cumulative, self.rng.random() * cumulative[-1], side="right"))
                self.has_ended[i] = picked[i] in ENDS
        return torch.tensor(picked)[:, None]


@pytest.mark.parametrize("forbidden", [[], [5, 6, 20]])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (4, 1.0), (0, 0.8), (0, 0.3), (6, 0.9), (3, 0.5), (1, 0.5), (99, 0.95)])
def test_gpt2_at_random(top_k, top_p, forbidden, monkeypatch):
    written = []
    for seed, temperature in enumerate([0.7, 1.0, 1.6, 0.1]):
        model, their_model = gpt2(seed)
        monkeypatch.setattr(torch, "multinomial", SameNumbers(seed, len(PROMPTS)))
        expected = theirs(
            their_model, torch.tensor(PROMPTS), 16, do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p,
            bad_words_ids=[[i] for i in forbidden] or None, eos_token_id=ENDS, pad_token_id=0,
        )  # fmt: skip
        steps = sample(GPTDecoder(model), PROMPTS, 16, Sampling(temperature, top_k, top_p, seed), ENDS, forbidden)
        written += steps_as_texts(steps, ENDS)
        assert written[-3:] == texts(expected.sequences[:, 4:], ENDS)
    assert len(set(written)) > 6
    assert not {i for ids in written for i in ids} & {*forbidden, *ENDS}


@pytest.mark.parametrize("forced", [None, END])
def test_marian_at_random(forced, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ENDS", [END])
    lengths = set()
    for seed in range(6):
        model = marian(seed)
        monkeypatch.setattr(torch, "multinomial", SameNumbers(seed, len(SOURCES)))
        expected = theirs(model, SOURCES, 10, do_sample=True, top_k=9, top_p=0.9, forced_eos_token_id=forced, **MARIAN)
        sampling = Sampling(top_k=9, top_p=0.9, seed=seed)
        steps = sample(MarianDecoder(model, SOURCES), STARTS, 10, sampling, END, [PAD], forced is not None)
        written = steps_as_texts(steps, [END])
        assert written == texts(expected.sequences[:, 1:], [END])
        lengths |= set(map(len, written))
    assert len(lengths) > 3
    assert (10 in lengths) == (forced is None)


# --------------------------------------------------------------------------------------------------- random settings

FIRST, PROMPT = 1, [4, 9, 12, 4]
ID = range(2, 21)
CHOICES = {
    "bad_words_ids": lambda r: [[r.choice(ID) for _ in range(r.choice([1, 1, 2, 3]))] for _ in range(r.randrange(1, 4))],
    "begin_suppress_tokens": lambda r: r.sample(ID, r.randrange(1, 5)),
    "diversity_penalty": lambda r: 0.0,
    "do_sample": lambda r: r.choice([False, False, None]),
    "early_stopping": lambda r: r.choice([True, False, "never"]),
    "encoder_no_repeat_ngram_size": lambda r: 0,
    "encoder_repetition_penalty": lambda r: 1.0,
    "eos_token_id": lambda r: r.choice([3, [3, 8], [3], [8, 5, 13]]),
    "epsilon_cutoff": lambda r: r.choice([0.0, 0.1]),
    "exponential_decay_length_penalty": lambda r: [r.randrange(3), 1.5],
    "forced_bos_token_id": lambda r: r.choice(ID),
    "forced_eos_token_id": lambda r: r.choice([3, 3, 8, [3, 8]]),
    "guidance_scale": lambda r: r.choice([1.0, 2.0]),
    "length_penalty": lambda r: r.choice([-1.0, 0.0, 0.5, 1.0, 2.0]),
    "max_length": lambda r: r.randrange(3, 16),
    "max_new_tokens": lambda r: r.randrange(1, 12),
    "min_length": lambda r: r.randrange(12),
    "min_new_tokens": lambda r: r.randrange(8),
    "no_repeat_ngram_size": lambda r: r.randrange(4),
    "num_beams": lambda r: r.randrange(1, 5),
    "num_return_sequences": lambda r: 1,
    "remove_invalid_values": lambda r: r.choice([False, True]),
    "renormalize_logits": lambda r: r.choice([True, False]),
    "repetition_penalty": lambda r: r.choice([0.7, 1.0, 1.3, 2.0]),
    "sequence_bias": lambda r: [[[r.choice(ID)], r.choice([-3.0, 3.0])]],
    "suppress_tokens": lambda r: r.sample(ID, r.randrange(1, 5)),
    "temperature": lambda r: 0.7,
    "token_healing": lambda r: False,
    "top_k": lambda r: r.choice([1, 7]),
    "top_p": lambda r: 0.5,
}
QUIET = {"temperature", "top_k", "top_p", "num_return_sequences"}  # of what is greedy or searched with beams


def random_settings(rng):
    chosen = rng.sample(sorted(CHOICES), rng.randrange(1, 7))
    found = {name: CHOICES[name](rng) for name in chosen}
    found = {name: value for name, value in found.items() if value is not None}
    return {"max_new_tokens": 10, "eos_token_id": 3, **found} if "max_length" not in found else {"eos_token_id": 3, **found}


def save_random_model(folder, rng):
    """A tiny GPT-2 or Llama of transformers, with random settings of how it writes."""
    sizes = {"vocab_size": 21, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if rng.random() < 0.5:
        config = transformers.GPT2Config(n_positions=32, n_layer=1, n_head=2, n_embd=16, **sizes)
    else:
        wide = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.LlamaConfig(max_position_embeddings=32, **wide, **sizes)
    torch.manual_seed(rng.randrange(10**6))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter += 0.5 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    settings = random_settings(rng)
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return settings


def same_settings(seed, folder, caplog_records):
    """What came of random settings: "equal", or "refused", where a message names them."""
    rng = random.Random(seed)
    settings = save_random_model(folder, rng)
    prompt = PROMPT[: rng.choice([1, 2, 4])]
    caplog_records.clear()
    writing = read_writing(folder, with_beams=True)
    messages = " ".join(record.getMessage() for record in caplog_records)
    try:
        their_model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        with torch.inference_mode():
            expected = their_model.generate(torch.tensor([prompt]), pad_token_id=0)[0, len(prompt) :].tolist()
    except Exception:  # they refuse some settings beside others
        return "theirs refuse"
    if writing.unsupported:
        assert set(writing.unsupported) <= set(settings) and all(name in messages for name in writing.unsupported)
        return "refused"
    length = writing.length(len(prompt), 100)
    greedy = Sampling(temperature=0.0)
    (ours,) = written_by_the_program(
        from_pretrained(folder), prompt, length, writing, greedy, writing.ends, writing.num_beams or 1
    )
    ours = list(ours)
    assert ours == [i for place, i in enumerate(expected) if place < len(ours)], (seed, settings, prompt, ours, expected)
    assert len(ours) == len(expected) or set(expected[len(ours) :]) == {0}, (seed, settings, prompt, ours, expected)
    return "equal"


def test_random_settings_are_obeyed_or_named(tmp_path, caplog):
    counts = Counter()
    for seed in range(30):
        (tmp_path / str(seed)).mkdir()
        counts[same_settings(seed, tmp_path / str(seed), caplog.records)] += 1
    assert counts["equal"] >= 15


if __name__ == "__main__":
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("tinyformer").addHandler(handler)
    transformers.logging.set_verbosity_error()
    totals = Counter()
    for number in range(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as path:
            totals[same_settings(number, Path(path), records)] += 1
    print(dict(totals))
