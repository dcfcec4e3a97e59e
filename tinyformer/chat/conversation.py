"""A conversation with a model, whose turns each go on from what the model's cache keeps of those before."""

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

MAX_TOKENS = 512  # of an answer, where nobody says it
CONTEXT = 8192  # tokens of a conversation: models of longer contexts would need a cache of many gigabytes
USUAL = {"temperature": 0.3, "top_k": 50}  # where neither the caller nor the model's own settings say it
_ANSWER = "An answer."  # that is looked for in what a template makes of it


class Chat:
    """A conversation. ``say`` streams the answers, and ``messages`` is what was said so far.

    What a turn has in common with those before, the model does not read again: it is in the cache. The answers are the same as
    without one. An answer ends with an end token of the model, or with that which its template writes after an answer; the
    rules of ``writing`` are obeyed.

    A conversation has at most ``context`` tokens: as many as the model can read, or 8192 if that is less. One that has grown
    too long forgets the older half of its turns, the system's message excepted; ``forgotten`` says how many turns the last
    ``say`` has forgotten. ``is_cut`` says whether the last answer has ``max_tokens`` tokens, or all that there was room for,
    and might have gone on.

    ``system`` is the message that tells the model what it is. It can be changed at any time, and None leaves it to the
    template. ``values`` are for the template, too. ``answer_ids`` are the tokens of the last answer.
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
        more = range(tokenizer.vocab_size, model.config.vocab_size)  # some models have more outputs than there are tokens
        self._rules: dict[str, Any] = {"end": self._ends, "forbidden": [*writing.forbidden, *more], "rules": rules}
        self._decoder = self._new_decoder()
        self._saying: Callable[[], Generator[str, None, None] | None] = lambda: None  # the last answer, if it is still there

    def say(self, text: str) -> Generator[str, None, None]:
        """Say something, and iterate over the answer's text: pieces of it, each as soon as it is certain, without special
        tokens. Who stops iterating stops the answer, and so does who says more or begins anew; what there is of it counts as
        said.

        Raises UserError if the text alone is too long, and as ``ChatTemplate.render`` does: then nothing was said.
        """
        self._stop()
        message = {"role": "user", "content": text}
        messages, self.forgotten, self.is_cut = self.messages, 0, False
        while True:
            ids = self._encoded([*self._first(), *messages, message])
            room = self.context - len(ids)
            if room >= min(self.max_tokens, self.context // 2) or not messages:
                break
            turns = [place for place, said in enumerate(messages) if said["role"] == "user"]
            half = (len(turns) + 1) // 2
            self.forgotten += half
            messages = messages[turns[half] :] if half < len(turns) else []
        if not len(ids):
            raise UserError(f"{self.template.source}: it makes an empty text of a conversation")
        if room < 1:
            raise UserError(
                f"this has {counted(len(ids), 'token')}, and the model reads {self.context - 1:,}: say less at once"
            )
        self.messages = messages
        answer = self._answer(message, ids, min(room, self.max_tokens))
        self._saying = weakref.ref(answer)  # a strong one would keep an answer from ending where nobody iterates any more
        return answer

    def reset(self) -> None:
        """Begin anew: forget all that was said. The system's message stays."""
        self._stop()
        self.messages = []

    def _stop(self) -> None:
        """Stop the last answer, where somebody still has it and could go on: it would go on from the cache of another."""
        if (answer := self._saying()) is not None:
            answer.close()

    def _new_decoder(self) -> GPTDecoder:
        with renamed_settings(length="context"):
            return GPTDecoder(self.model, max_tokens=self.context)

    def _first(self) -> list[dict[str, Any]]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def _encoded(self, messages: Sequence[dict[str, Any]]) -> Any:
        """The ids of the conversation up to where the answer begins."""
        return self.tokenizer.encode(self.template.render(messages, **self.values), allow_special=True)

    def _answer(self, message: dict[str, Any], ids: Any, limit: int) -> Generator[str, None, None]:
        if self._decoder.cache is None:  # the last turn went beyond a sliding window
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
        """The ids of an answer, without the one that ends it."""
        for (i,) in steps:
            self.answer_ids.append(int(i))
            if i not in self._ends:
                yield int(i)

    def _end_of_turn(self) -> list[int]:
        """The first special token that the template writes after an answer, as [its id]; [] if there is none."""
        said = [*self._first(), {"role": "user", "content": "A question."}, {"role": "assistant", "content": _ANSWER}]
        _, found, after = self.template.render(said, add_generation_prompt=False, **self.values).rpartition(_ANSWER)
        special = set(self.tokenizer.special.values())
        ids = self.tokenizer.encode(after, allow_special=True).tolist() if found else []
        return [i for i in ids if i in special][:1]


class _Behind:
    """A decoder that has the first ``known`` tokens of its prompt already."""

    def __init__(self, decoder: GPTDecoder, known: int):
        self.decoder, self.known = decoder, known

    def next_logits(self, new: Any) -> Any:
        """The logits after the newest ids, of which the first call gets all."""
        known, self.known = self.known, 0
        return self.decoder.next_logits(new[:, known:])

    def select(self, rows: Any) -> None:
        """Go on with these rows of the batch."""
        self.decoder.select(rows)


def open_chat(path_or_name: str | Path, revision: str | None = None, dtype: str | None = None, **settings: Any) -> Chat:
    """A conversation with a pretrained model: a folder in Hugging Face's format, a GGUF file, or a name on its hub.

    ``revision`` is that of ``find_folder``, ``dtype`` that of ``from_pretrained``, and the other ``settings`` are those of
    ``Chat``, such as ``sampling`` and ``system``. Raises UserError for a model that does not continue texts, and for one
    without a chat template.
    """
    folder = find_folder(path_or_name, revision)
    read_settings(model_folder(folder))  # refuses a run
    template = find_chat_template(folder)
    if template is None:
        contents = contents_of(folder)
        command = contents.command if contents is not None else tinyformer_command("generate", str(folder))
        raise UserError(
            f"{folder} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): it was not "
            f"trained to talk. Take one that was, or use this one with {command}"
        )
    model = from_pretrained(folder, dtype=dtype)
    if not isinstance(model, GPT):
        raise UserError(f"{folder} holds {a_or_an(type(model).__name__)}, which does not talk: take a Llama, Mistral or Qwen")
    return Chat(model, pretrained_tokenizer(folder), template, read_writing(folder), **settings)
