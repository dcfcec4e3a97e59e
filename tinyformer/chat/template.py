"""Chat templates: how the messages of a conversation become the text that a model goes on with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyformer.chat import rendering
from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_json, read_utf8
from tinyformer.pretrained.adapter_settings import model_folder
from tinyformer.pretrained.folders import gguf_at
from tinyformer.pretrained.gguf_tokenizers import gguf_chat_template
from tinyformer.pretrained.tokenizer_classes import CONFIG

FILE = "chat_template.jinja"
SECONDS = 20  # by the clock, beside those of a processor in ``rendering``: a busy machine takes its time
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_STOPPED = "it takes too long, and was stopped: take another model, or mend its template"
_REASONING = ("reasoning_content", "thinking", "reasoning")  # the names under which a message has what was thought before it

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template, in Jinja's language, as models of Hugging Face have them.

    ``tokens`` are the names of special tokens, such as {"bos_token": "<s>"}. ``source`` names the template in messages.

    >>> from tinyformer import ChatTemplate
    >>> text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    >>> template = ChatTemplate(text, {"eos_token": "</s>"})
    >>> template.render([{"role": "user", "content": "Hello!"}])
    '<user>Hello!</s>'
    """

    text: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    source: str | Path = "the chat template"

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        """The text of a conversation, the same as by ``apply_chat_template(messages, tokenize=False)`` of transformers.

        A message is such as {"role": "user", "content": "Hello!"}. With ``add_generation_prompt`` the text ends where the
        model's answer begins. ``tools`` are descriptions of functions, as JSON schemas. Other ``values`` are for the template,
        such as enable_thinking=False for Qwen3.

        The template runs in a process of its own, which is stopped where it takes too long or too much memory. Raises UserError
        for a template that fails, and for values that are not those of JSON; ImportError without ``jinja2``.
        """
        given = {
            **self.tokens,
            **values,
            "messages": [_completed(message) for message in messages],
            "tools": tools,
            "documents": values.get("documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            request = json.dumps({"template": self.text, "values": given})
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"a template takes text, numbers, lists and dictionaries: {error}") from None
        answer = _answer(request, str(self.source))
        if "lacking" in answer:
            raise ImportError(f'a chat template needs the package {answer["lacking"]}: pip install "tinyformer[chat]"')
        if "error" in answer:
            raise UserError(f"{self.source}: {answer['error']}")
        return str(answer["text"])


def _completed(message: Message) -> dict[str, Any]:
    """A message as transformers hands it to a template: without what is None, and with what was thought under each name."""
    found = {name: value for name, value in message.items() if value is not None}
    thought = next((found[name] for name in _REASONING if name in found), None)
    return found if thought is None else {"thinking": thought, **found, "reasoning_content": thought}


def _answer(request: str, source: str) -> dict[str, Any]:
    """What ``rendering``, in a process of its own, answers to a request. Raises UserError where it is stopped."""
    command = [sys.executable, rendering.__file__]
    # In another session, so that Ctrl-C stops an answer, and not this.
    how: dict[str, Any] = {"capture_output": True, "timeout": SECONDS, "start_new_session": True, "check": False}
    try:
        done = subprocess.run(command, input=request.encode(), **how)
    except subprocess.TimeoutExpired:
        raise UserError(f"{source}: {_STOPPED}") from None
    if done.returncode:  # a signal's is below 0
        said = done.stderr.decode(errors="replace").split("\n")[-2:-1]
        raise UserError(f"{source}: {said[0] if said and done.returncode > 0 else _STOPPED}")
    return dict(json.loads(done.stdout))


# ------------------------------------------------------------------------------------------------------------------- files


def find_chat_template(path: str | Path) -> ChatTemplate | None:
    """The chat template of a pretrained model in Hugging Face's layout: chat_template.jinja, or else what
    tokenizer_config.json has as ``chat_template``, of several that with the name "default". In a GGUF file it is that of its
    metadata. An adapter that has none has its model's. None where there is none, as with models that were not trained to talk.
    Raises UserError for a damaged file."""
    folder = Path(path)
    found = _template_in(folder)
    if found is None and (base := model_folder(folder)) != folder:
        found = _template_in(base)
    return found


def _template_in(folder: Path) -> ChatTemplate | None:
    if (file := gguf_at(folder)) is not None:
        held = gguf_chat_template(file)
        return None if held is None else ChatTemplate(*held, file)
    config = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    if (folder / FILE).exists():
        return ChatTemplate(read_utf8(folder / FILE, "a template is text"), _tokens(config), folder / FILE)
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {part.get("name"): part.get("template") for part in found if isinstance(part, dict)}
        found = named.get("default")
        if found is None:
            raise UserError(f"{folder / CONFIG}: chat_template has none with the name 'default'")
    if found is not None and not isinstance(found, str):
        raise UserError(f"{folder / CONFIG}: chat_template must be text, not {shortened(repr(found), 40)}")
    return None if found is None else ChatTemplate(found, _tokens(config), folder / CONFIG)


def _tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a tokenizer_config.json names. Some are objects, with their text as ``content``."""
    found = {name: config.get(name) for name in _TOKENS}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
