"""Answers in conversations as training tokens: the text that a model should generate after its template's prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from tinyformer.chat.template import ChatTemplate, Message, find_chat_template, save_chat_template
from tinyformer.common.errors import UserError
from tinyformer.data.conversations import Row
from tinyformer.pretrained.folders import find_folder
from tinyformer.tokenizers import Tokenizer

_Span = tuple[int, int]  # start and end of an answer in a text


def template_of(init_from: str | Path) -> ChatTemplate:
    """Return a pretrained model's chat template. Raises UserError if it has none."""
    template = find_chat_template(find_folder(init_from))
    if template is None:
        raise UserError(f"{init_from} has no chat template, which conversations need: choose a model that has one")
    return template


def keep_template(init_from: str | Path, folder: Path) -> bool:
    """Save the initial model's chat template to another model's folder. Return False if there is none, or if the initial model
    is missing."""
    try:
        template = find_chat_template(find_folder(init_from))
    except UserError:
        return False
    if template is not None:
        save_chat_template(template, folder)
    return template is not None


def rows_to_learn(conversations: Sequence[Sequence[Message]], template: ChatTemplate, tokenizer: Tokenizer) -> list[Row]:
    """Return the ids of each conversation, and for each id, whether it belongs to an answer.

    Messages after the last answer are dropped. Some templates change an answer once others follow, for example to hide earlier
    thoughts. Each such answer gets a separate row that ends with it.

    Raises UserError if a conversation has no answer or the template does not start an answer where the prompt ends, and as
    ``ChatTemplate.render`` does.
    """
    turns = [[i for i, message in enumerate(messages) if message["role"] == "assistant"] for messages in conversations]
    for number, positions in enumerate(turns, start=1):
        if not positions:
            raise UserError(f"conversation {number} has no message with the role 'assistant' to learn: leave it out")
    parts = [(messages[:i], messages[: i + 1]) for messages, positions in zip(conversations, turns) for i in positions]
    shown = template.render_each([(part, is_before) for pair in parts for part, is_before in zip(pair, (True, False))])
    pairs = iter(zip(shown[::2], shown[1::2]))
    rows: list[Row] = []
    bar = tqdm(turns, desc="encoding", unit="conversation", leave=False, delay=1, disable=None)
    for number, positions in enumerate(bar, start=1):
        of_one = [next(pairs) for _ in positions]
        for before, answered in of_one:
            if not answered.startswith(before):
                raise UserError(
                    f"{template.source}: the answers of conversation {number} do not start where the prompt ends, so a model "
                    "cannot learn them: use a model with another template"
                )
        rows += [_encoded(text, spans, tokenizer) for text, spans in _texts(of_one)]
    return rows


def _texts(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, list[_Span]]]:
    """Yield texts that together show each answer as the model writes it, with the spans of their answers."""
    text, spans = "", list[_Span]()
    for before, answered in reversed(pairs):
        if not text.startswith(answered):
            if spans:
                yield text, spans
            text, spans = answered, []
        spans.append((len(before), len(answered)))
    yield text, spans


def _encoded(text: str, spans: Sequence[_Span], tokenizer: Tokenizer) -> Row:
    """Return the ids of a text, and for each id, whether it is in a span."""
    ids = tokenizer.encode(text, allow_special=True).tolist()
    learned = [False] * len(ids)
    for span in spans:
        first, last = [_common(ids, tokenizer.encode(text[:end], allow_special=True).tolist()) for end in span]
        learned[first:last] = [True] * (last - first)
    return ids, learned


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
