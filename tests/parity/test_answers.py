"""Which tokens of conversations are learned, beside transformers' mask of what stands between {% generation %} tags."""

from __future__ import annotations

import random

import pytest

from tinyformer import ChatTemplate
from tinyformer.chat.answers import rows_to_learn
from tinyformer.pretrained.tokenizers import pretrained_tokenizer

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEMPLATE = """{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant
{% generation %}{{ m.content }}<|im_end|>
{% endgeneration %}{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PIECES = ["the fox", " jumps", "ö☃", "🙂", " ", "\n", "12", "<|im_end|>", "a"]


def test_the_same_tokens_as_by_transformers(tmp_path):
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    theirs.train_from_iterator(["the fox jumps over the dog"] * 9, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=theirs, eos_token="<|im_end|>", chat_template=TEMPLATE)
    fast.save_pretrained(tmp_path)
    rng, conversations = random.Random(0), []
    for _ in range(30):
        texts = ["".join(rng.choices(PIECES, k=rng.randint(1, 5))) + "." for _ in range(2 * rng.randint(1, 3))]
        conversations.append([{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)])
    rows = rows_to_learn(conversations, ChatTemplate(TEMPLATE), pretrained_tokenizer(tmp_path))
    assert len(rows) == len(conversations)
    for messages, (ids, learned) in zip(conversations, rows):
        expected = fast.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
        assert ids == expected["input_ids"]
        assert [int(x) for x in learned] == expected["assistant_masks"]
