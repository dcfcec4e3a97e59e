"""Chat templates: how the messages of a conversation become the text that a model goes on with."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tinyformer.chat import rendering
from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_file, read_json, read_utf8, write_json
from tinyformer.pretrained.folders import gguf_at, model_folder
from tinyformer.pretrained.gguf_tokenizers import gguf_chat_template
from tinyformer.pretrained.tokenizers import CLASSES, CONFIG, ROLES, class_name, json_of, settings_of
from tinytensor.common.wording import a_or_an, counted
from tinytensor.device.disk import write_text

FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"  # the first has the default one, the second others
LARGEST = 1 << 20  # bytes of a template; published ones have up to a few tens of thousands
SECONDS = 20  # by the clock, beside those of a processor in ``rendering``: a busy machine takes its time
_STOPPED = "it takes too long, and was stopped: take another model, or mend its template"
_REASONING = ("reasoning_content", "thinking", "reasoning")  # the names under which a message has what was thought before it
_AT_ONCE = 100  # conversations that a process renders; one alone takes it a few milliseconds
_MARK = "THE MESSAGE ENDS HERE "  # after a message that is continued; some templates strip the space
# The arguments of ``apply_chat_template`` that are about ids.
_OF_IDS = (
    "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs",
)  # fmt: skip
Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template, in Jinja's language, as models of Hugging Face have them.

    ``tokens`` are the special tokens by their names, such as {"bos_token": "<s>"}. ``source`` names the template in messages.
    ``named`` are all templates of a model that has several, by their names: a "tool_use" is the one for ``tools``.

    Raises UserError for a text of more than a million characters.

    >>> from tinyformer import ChatTemplate
    >>> text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    >>> template = ChatTemplate(text, {"eos_token": "</s>"})
    >>> template.render([{"role": "user", "content": "Hello!"}])
    '<user>Hello!</s>'
    """

    text: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    source: str | Path = "the chat template"
    named: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in (self.text, *self.named.values()):
            if len(text) > LARGEST:
                raise UserError(
                    f"{self.source}: the template has {counted(len(text), 'character')}, and {LARGEST:,} are the most"
                )

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        continue_final_message: bool | str = False,
        **values: Any,
    ) -> str:
        """The text of a conversation, the same as by ``apply_chat_template(messages, tokenize=False)`` of transformers.

        A message is such as {"role": "user", "content": "Hello!"}. With ``add_generation_prompt`` the text ends where the
        model's answer begins, and so it does by default. With ``continue_final_message`` it ends with the last message, for the
        model to continue; the name of another key than "content" has that continued. ``tools`` are descriptions of functions,
        as JSON schemas. ``chat_template`` is one of those that are ``named``, or a template itself. More ``values`` are for the
        template, such as enable_thinking=False for Qwen3.

        The template runs in a process of its own, which is stopped where it takes too long or too much memory. Raises UserError
        for a template that fails, for messages and values that it cannot be given, and for arguments of ``apply_chat_template``
        that are about ids; ImportError without ``jinja2``.
        """
        if of_ids := [name for name in _OF_IDS if values.pop(name, None)]:
            raise UserError(f"render makes text, not ids: leave out {', '.join(of_ids)}, and encode the text")
        if continue_final_message and add_generation_prompt:
            raise UserError("continue_final_message and add_generation_prompt cannot both be had: choose one")
        listed = {"messages": messages, "tools": tools or (), "documents": values.get("documents") or ()}
        for name, parts in listed.items():
            if wrong := [part for part in parts if not isinstance(part, Mapping)]:
                raise UserError(f"{name} must be dictionaries, got {a_or_an(type(wrong[0]).__name__)}")
        if not messages:
            raise UserError("messages is empty: give at least one")
        said = [_completed(message) for message in messages]
        text = self._chosen(tools, chat_template)
        if continue_final_message:
            said[-1], last = _marked(said[-1], continue_final_message, text)
        given = {
            **self.tokens,
            **values,
            "messages": said,
            "tools": tools,
            "documents": values.get("documents"),
            "add_generation_prompt": not continue_final_message if add_generation_prompt is None else add_generation_prompt,
        }
        (rendered,) = self._rendered(text, [given])
        return _cut(rendered, last) if continue_final_message else rendered

    def render_each(self, conversations: Sequence[tuple[Sequence[Message], bool]]) -> list[str]:
        """Return ``render`` of many conversations, each with its ``add_generation_prompt``, by few processes."""
        shared = {**self.tokens, "tools": None, "documents": None}
        values = [
            {**shared, "messages": [_completed(message) for message in messages], "add_generation_prompt": prompt}
            for messages, prompt in conversations
        ]
        parts = [values[first : first + _AT_ONCE] for first in range(0, len(values), _AT_ONCE)]
        bar = tqdm(parts, desc="reading conversations", leave=False, delay=1, disable=None)
        return [text for part in bar for text in self._rendered(self.text, part)]

    def _chosen(self, tools: Any, chat_template: str | None) -> str:
        """The text of the template that transformers takes of several."""
        if chat_template is not None:
            return self.named.get(chat_template, chat_template)
        return self.text if tools is None else self.named.get("tool_use", self.text)

    def _rendered(self, text: str, values: list[dict[str, Any]]) -> list[str]:
        try:
            request = json.dumps({"template": text, "values": values})
            if json.loads(request)["values"] != values:
                raise TypeError("no tuples, and no keys but text")
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"a template takes text, numbers, lists and dictionaries: {error}") from None
        answer = _answer(request, str(self.source))
        if "lacking" in answer:
            raise ImportError(f'a chat template needs the package {answer["lacking"]}: pip install "tinyformer[chat]"')
        if "error" in answer:
            raise UserError(f"{self.source}: {answer['error']}")
        return [str(text) for text in answer["texts"]]


def _completed(message: Message) -> dict[str, Any]:
    """A message as transformers hands it to a template: without what is None, and with what was thought under each name."""
    found = {name: value for name, value in message.items() if value is not None}
    thought = next((found[name] for name in _REASONING if name in found), None)
    return found if thought is None else {"thinking": thought, **found, "reasoning_content": thought}


def _marked(message: dict[str, Any], key: bool | str, template: str) -> tuple[dict[str, Any], str]:
    """A message with the mark behind the text that is continued, and that text."""
    key = key if isinstance(key, str) else "content"
    holder = marked = copy.deepcopy(message)
    names = [name for name in _REASONING if message.get(name) == message.get(key)] if key in _REASONING else [key]
    text = message.get(key)
    if not any(name in template for name in names):
        raise UserError(f"continue_final_message: the template does not show the {key} of a message")
    if isinstance(text, list):  # of blocks: the last one with text
        holder = next((part for part in reversed(marked[key]) if isinstance(part, dict) and "text" in part), {})
        names, text = ["text"], holder.get("text")
    if not isinstance(text, str):
        raise UserError(f"continue_final_message: the last message has no text in {key}")
    holder.update(dict.fromkeys(names, text + _MARK))
    return marked, text


def _cut(rendered: str, last: str) -> str:
    """A text up to the mark in it. Raises UserError where the template has not shown the message that is continued."""
    before, found, after = rendered.rpartition(_MARK.strip())
    if not found or last.strip() not in rendered:
        raise UserError("continue_final_message: the template leaves out the last message, or a part of it")
    return before if after.startswith(" ") else before.rstrip()


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


def save_chat_template(template: ChatTemplate, folder: str | Path) -> None:
    """Write a template beside the tokenizer of a pretrained model, and its special tokens to tokenizer_config.json."""
    folder = Path(folder)
    write_text(folder / FILE, template.text)
    config = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    write_json(folder / CONFIG, {**config, **template.tokens})


def _template_in(folder: Path) -> ChatTemplate | None:
    if (file := gguf_at(folder)) is not None:
        held = gguf_chat_template(file)
        return None if held is None else ChatTemplate(*held, file)
    config = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    files = {"default": folder / FILE, **{file.stem: file for file in sorted((folder / FOLDER).glob("*.jinja"))}}
    texts = {name: read_utf8(file, "a template is text", LARGEST) for name, file in files.items() if file.exists()}
    source = folder / FILE if texts else folder / CONFIG
    said: Any = (texts["default"] if list(texts) == ["default"] else texts) if texts else config.get("chat_template")
    if isinstance(said, list) and all(isinstance(part, dict) and isinstance(part.get("name"), str) for part in said):
        said = {part["name"]: part.get("template") for part in said}
    if said is None:
        return None
    named = said if isinstance(said, dict) else {"default": said}
    if named.get("default") is None:
        raise UserError(f"{source}: chat_template has none with the name 'default'")
    if wrong := [text for text in named.values() if not isinstance(text, str)]:
        raise UserError(f"{source}: chat_template must be text, not {shortened(repr(wrong[0]), 40)}")
    return ChatTemplate(named["default"], _tokens(folder), source, named if isinstance(said, dict) else {})


def _tokens(folder: Path) -> dict[str, str]:
    """The special tokens that transformers has for a folder: of the class of its tokenizer, of tokenizer_config.json, and of
    special_tokens_map.json where that is of an old version. Some are objects, with their text as ``content``."""
    settings, tokenizer = settings_of(folder), folder / "tokenizer.json"
    of_bytes = tokenizer.exists() and b'"ByteLevel"' in read_file(tokenizer)
    name = class_name(settings, json_of(folder, "config.json"), of_bytes).removeprefix("Code")  # CodeLlama's are Llama's
    usual = CLASSES[name].tokens if name in CLASSES else {}
    found = {**usual, **{name: settings.values[name] for name in ROLES if name in settings.values}}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
