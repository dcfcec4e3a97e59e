"""The answers in conversations, as tokens to learn: what a model would have to write after the text that its template makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from tinyformer.chat.template import ChatTemplate, Message, find_chat_template, save_chat_template
from tinyformer.common.errors import UserError
from tinyformer.data.conversations import Row
from tinyformer.pretrained.folders import find_folder
from tinyformer.tokenizers import Tokenizer

_Span = tuple[int, int]  # where an answer begins and ends in a text


def template_of(init_from: str | Path) -> ChatTemplate:
    """The chat template of a pretrained model. Raises UserError for a model without one."""
    template = find_chat_template(find_folder(init_from))
    if template is None:
        raise UserError(f"{init_from} has no chat template, with which to learn conversations: name a model that has one")
    return template


def keep_template(init_from: str | Path, folder: Path) -> bool:
    """Write the chat template of the model that training began with to another model's folder. False if there is none, or if
    that model is gone."""
    try:
        template = find_chat_template(find_folder(init_from))
    except UserError:
        return False
    if template is not None:
        save_chat_template(template, folder)
    return template is not None


def rows_to_learn(conversations: Sequence[Sequence[Message]], template: ChatTemplate, tokenizer: Tokenizer) -> list[Row]:
    """Return the ids of each conversation, and which of them are in its answers.

    The messages after the last answer are left out. A template may show an answer in another way once others follow it, as
    those that hide earlier thoughts do. Such an answer is learned in a row of its own, which ends with it.

    Raises UserError for a conversation without an answer, for a template with which an answer does not begin where the text
    for the model ends, and as ``ChatTemplate.render``.
    """
    turns = [[i for i, message in enumerate(messages) if message["role"] == "assistant"] for messages in conversations]
    for number, places in enumerate(turns, start=1):
        if not places:
            raise UserError(f"conversation {number} has no message of the role 'assistant' to learn: leave it out")
    parts = [(messages[:i], messages[: i + 1]) for messages, places in zip(conversations, turns) for i in places]
    shown = template.render_each([(part, is_before) for pair in parts for part, is_before in zip(pair, (True, False))])
    pairs = iter(zip(shown[::2], shown[1::2]))
    rows: list[Row] = []
    for number, places in enumerate(tqdm(turns, desc="encoding", unit="conversation", leave=False, delay=1, disable=None), 1):
        of_one = [next(pairs) for _ in places]
        for before, answered in of_one:
            if not answered.startswith(before):
                raise UserError(
                    f"{template.source}: the answers of conversation {number} do not begin where the text for the model ends; "
                    "a model cannot learn them with this template"
                )
        rows += [_encoded(text, spans, tokenizer) for text, spans in _texts(of_one)]
    return rows


def _texts(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, list[_Span]]]:
    """The texts that together show each answer as the model writes it, and where the answers are."""
    text, spans = "", list[_Span]()
    for before, answered in reversed(pairs):
        if not text.startswith(answered):
            if spans:
                yield text, spans
            text, spans = answered, []
        spans.append((len(before), len(answered)))
    yield text, spans


def _encoded(text: str, spans: Sequence[_Span], tokenizer: Tokenizer) -> Row:
    """A text as ids, and which of them the spans have."""
    ids = tokenizer.encode(text, allow_special=True).tolist()
    learned = [False] * len(ids)
    for span in spans:
        first, last = [_common(ids, tokenizer.encode(text[:end], allow_special=True).tolist()) for end in span]
        learned[first:last] = [True] * (last - first)
    return ids, learned


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two texts begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
