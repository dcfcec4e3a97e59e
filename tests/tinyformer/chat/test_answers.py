"""Which tokens of a conversation are learned: those of the answers, as the model would have to write them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from chat_templates import TEMPLATES

from tinyformer import BPETokenizer, ChatTemplate, SettingError, UserError
from tinyformer.chat import rendering, template as template_module
from tinyformer.chat.answers import rows_to_learn
from tinyformer.data.conversations import ConversationBatches, Row, conversations_in, is_conversation

TOKENIZER = BPETokenizer.train("the quick brown fox jumps over a lazy dog.\n" * 20, 300, special=["<|im_start|>", "<|im_end|>"])
TURNS = ChatTemplate(TEMPLATES["turns"])


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render templates in this process: a separate one takes a while."""
    monkeypatch.setattr(template_module, "_answer", lambda request, source: rendering.answer(json.loads(request)))


def conversation(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant") * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts)]


def learned(row: Row) -> str:
    ids, is_learned = row
    return TOKENIZER.decode([i for i, learn in zip(ids, is_learned) if learn])


def test_the_answers_alone_are_learned_with_what_ends_them():
    (row,) = rows_to_learn([conversation("the fox?", "jumps", "and the dog?", "is lazy", "left out")], TURNS, TOKENIZER)
    assert learned(row) == "jumps<|im_end|>\nis lazy<|im_end|>\n"
    assert TOKENIZER.decode(row[0]) == TURNS.render(conversation("the fox?", "jumps", "and the dog?", "is lazy"), False)


def test_an_answer_rendered_differently_later_has_its_own_row():
    shown = "{{ '(think) ' if loop.last and m.role == 'assistant' else '' }}{{ m.content }}"
    template = ChatTemplate(
        "{% for m in messages %}[{{ m.role }}]" + shown + "{% endfor %}{{ '[assistant]' * add_generation_prompt }}"
    )
    rows = rows_to_learn([conversation("a", "b", "c", "d"), conversation("e", "f")], template, TOKENIZER)
    assert list(map(learned, rows)) == ["(think) d", "(think) b", "(think) f"]


@pytest.mark.parametrize("name", sorted(set(TEMPLATES) - {"marked"}))  # which writes something behind all messages
def test_rows_are_what_the_template_shows(name):
    template = ChatTemplate(TEMPLATES[name], {"bos_token": "<s>", "eos_token": "</s>"})
    messages = conversation("the fox?", "jumps", "and the dog?", "is lazy")
    rows = rows_to_learn([messages], template, TOKENIZER)
    assert TOKENIZER.decode(rows[0][0]) == template.render(messages, False)
    text = "".join(map(learned, rows))
    assert all(answer in text for answer in ("jumps", "is lazy")) and not any(asked in text for asked in ("fox?", "dog?"))


def test_a_conversation_that_cannot_be_learned():
    with pytest.raises(UserError, match="conversation 2 has no message with the role 'assistant'"):
        rows_to_learn([conversation("a", "b"), conversation("a")], TURNS, TOKENIZER)
    opened = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>' if add_generation_prompt }}", source="x"
    )
    with pytest.raises(UserError, match="x: the answers of conversation 1 do not start where the prompt ends"):
        rows_to_learn([conversation("a", "b")], opened, TOKENIZER)


def batches_of(count: int, **settings: Any) -> ConversationBatches:
    rows = [([n, n + 1, n + 2, n + 3], [False, False, True, True]) for n in range(count)]
    return ConversationBatches(rows, **{"block_size": 8, "batch_size": 3, **settings})


def test_targets_are_the_answers():
    batch = batches_of(20).sample()
    inputs, targets = batch.inputs.numpy(), batch.targets.numpy()
    assert inputs.shape == targets.shape == (3, 3) and batch.num_targets == 6
    np.testing.assert_array_equal(targets[:, 1:], inputs[:, :1] + [2, 3])
    assert (targets[:, 0] == -100).all()


def test_splits_and_rows_that_are_cut():
    batches = batches_of(20, test_fraction=0.2)
    assert [len(part) for part in (batches.test, batches.training, batches.validation)] == [4, 14, 2]
    assert [row[0][0] for row in batches.with_test_split().validation] == [0, 1, 2, 3]
    assert sum(batch.num_targets for batch in batches.validation_batches(1)) == 4
    assert batches.opening() == ([19, 20], [21, 22])
    assert batches_of(20, block_size=2).sample().num_targets == 3  # the last token is cut off
    with pytest.raises(SettingError, match="no conversation has an answer within 1 token"):
        batches_of(20, block_size=1)
    longer = ConversationBatches([([1] * 9, [False] * 8 + [True]), ([1, 2], [False, True])] * 2, 4, 1)
    assert longer.left_out == 2


def test_conversations_are_distinguished_from_texts():
    messages = conversation("a", "b")
    assert is_conversation(messages) and not is_conversation([]) and not is_conversation(["a"]) and not is_conversation("[{}]")
    assert conversations_in("\n".join([json.dumps(messages)] * 2)) == [messages] * 2
    for text in ("[1]", "[{]", "a text", json.dumps(messages) + "\na text"):
        assert conversations_in(text) is None
