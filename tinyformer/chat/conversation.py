"""A conversation with a model. Each turn continues from the cache of earlier turns."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinyformer.chat.template import ChatTemplate, find_chat_template
from tinyformer.common.errors import UserError, renamed_settings
from tinyformer.common.makers import contents_of, tinyformer_command
from tinyformer.common.settings import check_counts
from tinyformer.decoding.generation import GPTDecoder, sample
from tinyformer.decoding.sampling import Sampling
from tinyformer.models.gpt import GPT
from tinyformer.pretrained.folders import find_folder, model_folder, read_settings
from tinyformer.pretrained.loading import from_pretrained
from tinyformer.pretrained.tokenizers import pretrained_tokenizer
from tinyformer.pretrained.writing import Writing, read_writing
from tinyformer.tokenizers import Tokenizer
from tinytensor.common.wording import a_or_an, counted

MAX_TOKENS = 512  # default maximum tokens per answer
CONTEXT = 8192  # tokens per conversation; a longer context may need a cache of many gigabytes
USUAL = {"temperature": 0.3, "top_k": 50}  # unless the caller or the model's settings choose
_ANSWER = "An answer."  # used to find the end-of-turn token that a template writes after it


class Chat:
    """A conversation. ``say`` streams the answers, and ``messages`` holds the conversation so far.

    The model caches earlier turns and reads only new text. Answers are the same as without a cache. An answer ends with an end
    token of the model or its template, and follows the rules in ``writing``.

    When the conversation exceeds ``context`` tokens (at most the model's limit), the older half of the turns is dropped. The
    system prompt stays. ``forgotten`` counts the turns dropped by the last ``say``. ``is_cut`` is True if the last answer was
    cut off at ``max_tokens`` tokens or at the end of the context.

    ``system`` is the system prompt, which may change at any time (None: the template's default). ``values`` are passed to the
    template. ``answer_ids`` are the tokens of the last answer.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        writing: Writing | None = None,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        system: str | None = None,
        context: int = CONTEXT,
        **values: Any,
    ):
        writing = writing or Writing()
        self.max_tokens = max_tokens if max_tokens is not None else writing.max_new_tokens or MAX_TOKENS
        check_counts(max_tokens=self.max_tokens, context=context)
        self.model, self.tokenizer, self.template = model, tokenizer, template
        self.sampling = sampling or Sampling(**{**USUAL, **writing.sampling()})
        self.context = min(context, model.config.block_size)
        self.system, self.values = system, values
        self.messages: list[dict[str, Any]] = []
        self.forgotten, self.is_cut = 0, False
        self.answer_ids: list[int] = []
        self._ends = tuple(dict.fromkeys([*writing.ends, *self._end_of_turn()]))
        rules = replace(writing, ends=self._ends).rules()
        more = range(tokenizer.vocab_size, model.config.vocab_size)  # some models have more outputs than tokens
        self._rules: dict[str, Any] = {"end": self._ends, "forbidden": [*writing.forbidden, *more], "rules": rules}
        self._decoder = self._new_decoder()
        self._saying: Callable[[], Generator[str, None, None] | None] = lambda: None  # the last answer, if still referenced

    def say(self, text: str) -> Generator[str, None, None]:
        """Send a message and stream the answer without special tokens, each piece as soon as it is final. The answer stops when
        iteration stops, at the next ``say`` or at ``reset``. Its text so far stays in the conversation.

        Raises UserError if the message alone is too long, and as ``ChatTemplate.render`` does. In both cases, the conversation
        is unchanged.
        """
        self._stop()
        message = {"role": "user", "content": text}
        messages, self.forgotten, self.is_cut = self.messages, 0, False
        while True:
            ids = self._encoded([*self._first(), *messages, message])
            room = self.context - len(ids)
            if room >= min(self.max_tokens, self.context // 2) or not messages:
                break
            turns = [i for i, earlier in enumerate(messages) if earlier["role"] == "user"]
            half = (len(turns) + 1) // 2
            self.forgotten += half
            messages = messages[turns[half] :] if half < len(turns) else []
        if not len(ids):
            raise UserError(f"{self.template.source}: the rendered conversation is empty")
        if room < 1:
            raise UserError(
                f"the message has {counted(len(ids), 'token')}, the limit is {self.context - 1:,}: send a shorter one"
            )
        self.messages = messages
        answer = self._answer(message, ids, min(room, self.max_tokens))
        self._saying = weakref.ref(answer)  # a strong reference would keep an abandoned answer alive
        return answer

    def reset(self) -> None:
        """Start a new conversation with the same system prompt."""
        self._stop()
        self.messages = []

    def _stop(self) -> None:
        """Stop the last answer if it is still referenced. It could otherwise continue with another answer's cache."""
        if (answer := self._saying()) is not None:
            answer.close()

    def _new_decoder(self) -> GPTDecoder:
        with renamed_settings(length="context"):
            return GPTDecoder(self.model, max_tokens=self.context)

    def _first(self) -> list[dict[str, Any]]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def _encoded(self, messages: Sequence[dict[str, Any]]) -> Any:
        """Return the ids of the conversation up to the start of the answer."""
        return self.tokenizer.encode(self.template.render(messages, **self.values), allow_special=True)

    def _answer(self, message: dict[str, Any], ids: Any, limit: int) -> Generator[str, None, None]:
        if self._decoder.cache is None:  # the last turn exceeded a sliding window
            self._decoder = self._new_decoder()
        decoder = _Behind(self._decoder, self._decoder.keep_common(ids))
        steps = sample(decoder, ids[None], limit, self.sampling, **self._rules)
        self.answer_ids, pieces = [], []
        try:
            for piece in self.tokenizer.stream(self._noted(steps), skip_special=True):
                pieces.append(piece)
                yield piece
            self.is_cut = len(self.answer_ids) == limit and self.answer_ids[-1] not in self._ends
        finally:
            if self.answer_ids:
                self.messages = [*self.messages, message, {"role": "assistant", "content": "".join(pieces)}]

    def _noted(self, steps: Iterator[Any]) -> Iterator[int]:
        """Record the ids of an answer. Yield all but the end token."""
        for (i,) in steps:
            self.answer_ids.append(int(i))
            if i not in self._ends:
                yield int(i)

    def _end_of_turn(self) -> list[int]:
        """Return, as a list, the id of the first special token that the template writes after an answer, or [] if none."""
        turn = [*self._first(), {"role": "user", "content": "A question."}, {"role": "assistant", "content": _ANSWER}]
        _, answer, after = self.template.render(turn, add_generation_prompt=False, **self.values).rpartition(_ANSWER)
        special = set(self.tokenizer.special.values())
        ids = self.tokenizer.encode(after, allow_special=True).tolist() if answer else []
        return [i for i in ids if i in special][:1]


class _Behind:
    """A decoder that has already read the first ``known`` tokens of its prompt."""

    def __init__(self, decoder: GPTDecoder, known: int):
        self.decoder, self.known = decoder, known

    def next_logits(self, new: Any) -> Any:
        """Return the logits after the latest ids. The first call passes all ids."""
        known, self.known = self.known, 0
        return self.decoder.next_logits(new[:, known:])

    def select(self, rows: Any) -> None:
        """Keep these rows of the batch."""
        self.decoder.select(rows)


def open_chat(path_or_name: str | Path, revision: str | None = None, dtype: str | None = None, **settings: Any) -> Chat:
    """Start a conversation with a model from a folder in Hugging Face format, a GGUF file, or the Hugging Face hub.

    ``revision`` is passed to ``find_folder``, ``dtype`` to ``from_pretrained``, and ``settings``, such as ``sampling`` and
    ``system``, to ``Chat``. Raises UserError if the model does not generate text or has no chat template.
    """
    folder = find_folder(path_or_name, revision)
    read_settings(model_folder(folder))  # rejects runs
    template = find_chat_template(folder)
    if template is None:
        contents = contents_of(folder)
        command = contents.command if contents is not None else tinyformer_command("generate", str(folder))
        raise UserError(
            f"{folder} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json), so it was not "
            f"trained to chat: choose a chat model, or use this one with {command}"
        )
    model = from_pretrained(folder, dtype=dtype)
    if not isinstance(model, GPT):
        raise UserError(f"{folder} is {a_or_an(type(model).__name__)}, which cannot chat: choose a Llama, Mistral or Qwen")
    return Chat(model, pretrained_tokenizer(folder), template, read_writing(folder), **settings)
