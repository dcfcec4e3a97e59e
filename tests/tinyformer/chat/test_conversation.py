"""Conversations: what the cache keeps of the turns before changes nothing, and how answers end."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from chat_templates import TEMPLATES

import tinytensor as tt
from tinyformer import (
    GPT,
    Bert,
    BertConfig,
    BPETokenizer,
    Chat,
    ChatTemplate,
    GPTConfig,
    GPTDecoder,
    Sampling,
    SettingError,
    UserError,
    Writing,
    generate,
    open_chat,
    save_pretrained,
    save_pretrained_tokenizer,
)
from tinyformer.chat import rendering, template as template_module

TEXT = "the quick brown fox jumps over a lazy dog, and then it sleeps.\n" * 20
GREEDY = Sampling(temperature=0)
TOKENIZER = BPETokenizer.train(TEXT, 300, special=["<|im_start|>", "<|im_end|>"])
START, END = (TOKENIZER.special[name] for name in ("<|im_start|>", "<|im_end|>"))
TURNS = ChatTemplate(TEMPLATES["turns"])


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render templates in this process: a separate one takes a while."""
    monkeypatch.setattr(template_module, "_answer", lambda request, source: rendering.answer(json.loads(request)))


def model_of(**settings: Any) -> GPT:
    """A model that writes all kinds of tokens."""
    tt.seed(0)
    usual = {"block_size": 400, "num_layers": 2, "num_heads": 2, "d_model": 16, "positions": "rotary", "tie_output": False}
    model = GPT(GPTConfig(**{"vocab_size": TOKENIZER.vocab_size, **usual, **settings}))
    for weight in (model.token_embedding.weight, model.output_weight()):
        weight.assign(weight * 10)
    return model.eval()


def chat_of(model: GPT | None = None, template: ChatTemplate = TURNS, writing: Writing | None = None, **settings: Any) -> Chat:
    settings = {"sampling": GREEDY, "max_tokens": 12, **settings}
    return Chat(model or model_of(), TOKENIZER, template, writing, **settings)


def from_nothing(chat: Chat, said: list[dict[str, Any]], length: int = 12, **how: Any) -> list[int]:
    """The ids of an answer to messages, computed without a cache."""
    first = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    ids = TOKENIZER.encode(chat.template.render([*first, *said]), allow_special=True).tolist()
    return list(generate(chat.model, ids, length, GREEDY, end=END, use_cache=False, **how))


def fed_to(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list, to which the number of tokens is added that each call of the decoder computes."""
    counts: list[int] = []
    compute = GPTDecoder.next_logits

    def counted(self: GPTDecoder, new: Any) -> Any:
        counts.append(new.shape[1])
        return compute(self, new)

    monkeypatch.setattr(GPTDecoder, "next_logits", counted)
    return counts


def test_the_kept_cache_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = chat_of()
    counts = fed_to(chat, monkeypatch)
    lengths = []
    for turn in range(6):
        if turn == 3:
            chat.system = "sleep"  # which changes the beginning
        if turn == 5:
            chat.reset()
        asked = {"role": "user", "content": f"the lazy dog {turn} " * 5}
        counts.clear()
        before = list(chat.messages)
        text = "".join(chat.say(asked["content"]))
        first, *others = counts
        lengths.append(first)
        assert all(count == 1 for count in others)
        assert chat.answer_ids == from_nothing(chat, [*before, asked]), turn
        assert text == TOKENIZER.decode(chat.answer_ids, skip_special=True)
        assert chat.messages == [*before, asked, {"role": "assistant", "content": text}]
    assert len(chat.messages) == 2
    whole = len(TOKENIZER.encode(TURNS.render([{"role": "user", "content": "the lazy dog 0 " * 5}]), allow_special=True))
    assert lengths[0] == whole
    assert max(lengths[1:3] + lengths[4:5]) < 1.5 * whole  # a turn, not the conversation
    assert lengths[3] > 2 * whole  # all of it, as its beginning has changed


def test_an_answer_is_stopped_and_gone_on_from() -> None:
    chat = chat_of(max_tokens=50)
    pieces = list(islice(chat.say("the fox"), 4))
    whole = from_nothing(chat, [{"role": "user", "content": "the fox"}], 50)
    assert chat.answer_ids == whole[:4] and not chat.is_cut
    assert chat.messages[-1] == {"role": "assistant", "content": "".join(pieces)}
    before = list(chat.messages)
    list(chat.say("the dog"))
    assert chat.answer_ids == from_nothing(chat, [*before, {"role": "user", "content": "the dog"}], 50)
    untouched = list(chat.messages)
    chat.say("nobody iterates")
    assert chat.messages == untouched


def test_a_new_message_or_reset_stops_an_answer() -> None:
    """Also an answer that a variable keeps alive."""
    chat = chat_of()
    pieces = chat.say("the fox")
    begun = next(pieces)
    said = [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": begun}]
    others = chat.say("the dog")
    assert chat.messages == said and list(pieces) == []
    list(others)
    assert chat.answer_ids == from_nothing(chat, [*said, {"role": "user", "content": "the dog"}])
    pieces = chat.say("the fox")
    next(pieces)
    chat.reset()
    assert chat.messages == [] == list(pieces)


class Fails(Exception):
    pass


def test_the_server_survives_a_failure_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C: some blocks have the new keys in their cache, and others have not."""
    chat = chat_of()
    list(chat.say("the fox"))
    before, block = list(chat.messages), chat.model.blocks[1]

    def fail(*inputs: Any, **options: Any) -> Any:
        raise Fails

    with monkeypatch.context() as patch:
        patch.setattr(type(block), "forward", fail)
        with pytest.raises(Fails):
            list(chat.say("the dog"))
    assert chat.messages == before
    list(chat.say("the dog"))
    assert chat.answer_ids == from_nothing(chat, [*before, {"role": "user", "content": "the dog"}])


def only(*ids: int) -> tuple[int, ...]:
    """All other ids, so that a model has to write one of these."""
    return tuple(i for i in range(TOKENIZER.vocab_size) if i not in ids)


def test_an_end_token_of_the_model_ends_an_answer() -> None:
    whole = from_nothing(chat_of(), [{"role": "user", "content": "the fox"}])
    place = next(place for place, i in enumerate(whole) if i != whole[0])
    chat = chat_of(writing=Writing(ends=(299, whole[place])))
    assert "".join(chat.say("the fox")) == TOKENIZER.decode(whole[:place])
    assert chat.answer_ids == whole[: place + 1] and not chat.is_cut


def test_what_the_template_writes_after_an_answer_ends_one() -> None:
    for template, expected in ((TURNS, [END]), (ChatTemplate("{{ messages[-1].content }}\n"), [END] * 3)):
        chat = chat_of(template=template, writing=Writing(forbidden=only(END)), max_tokens=3)
        assert "".join(chat.say("the fox")) == ""
        assert chat.answer_ids == expected
        assert chat.is_cut == (len(expected) == 3)
        assert chat.messages[-1] == {"role": "assistant", "content": ""}


def test_special_tokens_are_cut() -> None:
    chat = chat_of(writing=Writing(forbidden=only(START)), max_tokens=3)
    assert "".join(chat.say("fox")) == ""
    assert chat.answer_ids == [START] * 3 and chat.is_cut


def test_the_models_own_rules_are_obeyed() -> None:
    writing = Writing(repetition_penalty=0.1, no_repeat_ngram_size=2, min_new_tokens=3, max_new_tokens=9, do_sample=False)
    chat = chat_of(writing=writing, max_tokens=None, sampling=None)
    asked = [{"role": "user", "content": "the fox"}]
    list(chat.say("the fox"))
    rules = Writing(**{**vars(writing), "ends": (END,)}).rules()
    assert chat.answer_ids == from_nothing(chat, asked, 9, rules=rules) != from_nothing(chat, asked, 9)


def test_outputs_that_are_no_tokens_are_never_written() -> None:
    chat = chat_of(model_of(vocab_size=3000), sampling=Sampling(temperature=5, seed=0), max_tokens=100)
    list(chat.say("fox"))
    assert max(chat.answer_ids) < TOKENIZER.vocab_size


def test_a_conversation_that_is_too_long_forgets_its_older_half() -> None:
    chat = chat_of(model_of(block_size=300), max_tokens=20, system="sleep")
    forgotten, turns = [], 0
    for turn in range(12):
        asked = {"role": "user", "content": f"the dog {turn}"}
        before = list(chat.messages)
        list(chat.say(asked["content"]))
        forgotten.append(chat.forgotten)
        assert chat.messages[-2] == asked
        kept = before[2 * chat.forgotten :]
        assert chat.messages[:-2] == kept
        assert chat.answer_ids == from_nothing(chat, [*kept, asked], 20)
        assert chat.forgotten in (0, (turns + 1) // 2)
        turns += 1 - chat.forgotten
    assert 2 <= sum(count > 0 for count in forgotten) <= 6
    before = list(chat.messages)
    with pytest.raises(UserError, match=r"the message has \d+ tokens, the limit is 299: send a shorter one"):
        chat.say("fox dog " * 200)
    assert chat.messages == before


def test_an_answer_has_the_room_that_there_is() -> None:
    chat = chat_of(model_of(block_size=150), max_tokens=1000)
    length = len(TOKENIZER.encode(TURNS.render([{"role": "user", "content": "the fox"}]), True))
    list(chat.say("the fox"))
    assert len(chat.answer_ids) == 150 - length or chat.answer_ids[-1] == END
    assert chat.is_cut == (chat.answer_ids[-1] != END)


def test_beyond_a_sliding_window() -> None:
    chat = chat_of(model_of(sliding_window=40), max_tokens=10)
    for turn in range(4):
        before = list(chat.messages)
        list(chat.say(f"the dog {turn}"))
        assert chat.answer_ids == from_nothing(chat, [*before, {"role": "user", "content": f"the dog {turn}"}], 10)
        if turn == 2:
            assert chat._decoder.cache is None
            chat.reset()


def test_mistakes() -> None:
    with pytest.raises(SettingError, match="max_tokens must be at least 1, got 0"):
        chat_of(max_tokens=0)
    with pytest.raises(UserError, match="the rendered conversation is empty"):
        chat_of(template=ChatTemplate("")).say("fox")
    chat = chat_of(template=ChatTemplate("{% if messages|length > 2 %}{{ raise_exception('Enough.') }}{% endif %}fox"))
    list(chat.say("fox"))
    before = list(chat.messages)
    with pytest.raises(UserError, match=r"Enough\."):
        chat.say("fox")
    assert chat.messages == before


def test_a_folder_becomes_a_chat(tmp_path: Path) -> None:
    model = model_of(norm="rms", activation="swiglu")
    save_pretrained(model, tmp_path / "model", Writing(ends=(END,), do_sample=False))
    save_pretrained_tokenizer(TOKENIZER, tmp_path / "model")
    with pytest.raises(UserError, match=r"has no chat template .* or use this one with tinyformer generate "):
        open_chat(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(TURNS.text)
    chat = open_chat(tmp_path / "model", max_tokens=12)
    list(chat.say("the fox"))
    assert chat.answer_ids == from_nothing(chat_of(model), [{"role": "user", "content": "the fox"}])
    bert = tmp_path / "bert"
    save_pretrained(Bert(BertConfig(300, 0, num_layers=1, num_heads=2, d_model=8, d_ff=8, max_length=8)), bert)
    (bert / "chat_template.jinja").write_text(TURNS.text)
    with pytest.raises(UserError, match="is a Bert, which cannot chat"):
        open_chat(bert)
