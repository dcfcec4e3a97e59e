"""Chat templates: convert the messages of a conversation to the text that a model continues."""

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

FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"  # files of the default template and of others
LARGEST = 1 << 20  # bytes of a template; published ones have tens of thousands
SECONDS = 20  # of wall time; a busy machine needs more than the processor time in ``rendering``
_STOPPED = "rendering took too long and was stopped: choose another model, or fix its template"
_REASONING = ("reasoning_content", "thinking", "reasoning")  # message keys for thoughts
_AT_ONCE = 100  # conversations per process; each takes a few milliseconds
_MARK = "THE MESSAGE ENDS HERE "  # follows a message to continue; some templates strip the space
# the arguments of ``apply_chat_template`` about ids
_OF_IDS = (
    "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs",
)  # fmt: skip
Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template in Hugging Face format.

    ``tokens`` maps roles to special tokens, such as {"bos_token": "<s>"}. ``source`` is the template's name in error messages.
    If a model has several templates, ``named`` maps their names to their texts. "tool_use" is for ``tools``.

    Raises UserError if the text exceeds a million characters.

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
                raise UserError(f"{self.source}: the template has {counted(len(text), 'character')}, the limit is {LARGEST:,}")

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        continue_final_message: bool | str = False,
        **values: Any,
    ) -> str:
        """Return the text of a conversation, equal to transformers' ``apply_chat_template(messages, tokenize=False)``.

        A message is a dictionary such as {"role": "user", "content": "Hello!"}. By default, and with ``add_generation_prompt``,
        the text ends where the model's answer begins. With ``continue_final_message``, it ends with the last message, for the
        model to continue. The name of another key than "content" continues that key. ``tools`` describe functions as JSON
        schemas. ``chat_template`` is a name in ``named`` or a template. Other ``values`` are passed to the template, such as
        enable_thinking=False for Qwen3.

        The template runs in a separate process with limited time and memory. Raises UserError if the template fails, messages
        or values cannot be passed to it, or arguments of ``apply_chat_template`` concern ids. Raises ImportError without
        ``jinja2``.
        """
        if of_ids := [name for name in _OF_IDS if values.pop(name, None)]:
            raise UserError(f"render returns text, not ids: leave out {', '.join(of_ids)}, and encode the text")
        if continue_final_message and add_generation_prompt:
            raise UserError("continue_final_message and add_generation_prompt exclude each other: choose one")
        listed = {"messages": messages, "tools": tools or (), "documents": values.get("documents") or ()}
        for name, parts in listed.items():
            if wrong := [part for part in parts if not isinstance(part, Mapping)]:
                raise UserError(f"{name} must be dictionaries, got {a_or_an(type(wrong[0]).__name__)}")
        if not messages:
            raise UserError("messages is empty: pass at least one")
        completed = [_completed(message) for message in messages]
        text = self._chosen(tools, chat_template)
        if continue_final_message:
            completed[-1], last = _marked(completed[-1], continue_final_message, text)
        arguments = {
            **self.tokens,
            **values,
            "messages": completed,
            "tools": tools,
            "documents": values.get("documents"),
            "add_generation_prompt": not continue_final_message if add_generation_prompt is None else add_generation_prompt,
        }
        (rendered,) = self._rendered(text, [arguments])
        return _cut(rendered, last) if continue_final_message else rendered

    def render_each(self, conversations: Sequence[tuple[Sequence[Message], bool]]) -> list[str]:
        """Render many conversations in few processes, each with its ``add_generation_prompt``."""
        shared = {**self.tokens, "tools": None, "documents": None}
        values = [
            {**shared, "messages": [_completed(message) for message in messages], "add_generation_prompt": prompt}
            for messages, prompt in conversations
        ]
        parts = [values[first : first + _AT_ONCE] for first in range(0, len(values), _AT_ONCE)]
        bar = tqdm(parts, desc="reading conversations", leave=False, delay=1, disable=None)
        return [text for part in bar for text in self._rendered(self.text, part)]

    def _chosen(self, tools: Any, chat_template: str | None) -> str:
        """Return the template that transformers would choose."""
        if chat_template is not None:
            return self.named.get(chat_template, chat_template)
        return self.text if tools is None else self.named.get("tool_use", self.text)

    def _rendered(self, text: str, values: list[dict[str, Any]]) -> list[str]:
        try:
            request = json.dumps({"template": text, "values": values})
            if json.loads(request)["values"] != values:
                raise TypeError("found a tuple or a non-string key")
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"a template takes strings, numbers, lists and dictionaries: {error}") from None
        answer = _answer(request, str(self.source))
        if "lacking" in answer:
            raise ImportError(f'a chat template needs the package {answer["lacking"]}: pip install "tinyformer[chat]"')
        if "error" in answer:
            raise UserError(f"{self.source}: {answer['error']}")
        return [str(text) for text in answer["texts"]]


def _completed(message: Message) -> dict[str, Any]:
    """Return a message as transformers passes it to a template: no None values, and thoughts under each key."""
    completed = {name: value for name, value in message.items() if value is not None}
    thought = next((completed[name] for name in _REASONING if name in completed), None)
    return completed if thought is None else {"thinking": thought, **completed, "reasoning_content": thought}


def _marked(message: dict[str, Any], key: bool | str, template: str) -> tuple[dict[str, Any], str]:
    """Mark the end of the text to continue. Return the message and that text."""
    key = key if isinstance(key, str) else "content"
    holder = marked = copy.deepcopy(message)
    names = [name for name in _REASONING if message.get(name) == message.get(key)] if key in _REASONING else [key]
    text = message.get(key)
    if not any(name in template for name in names):
        raise UserError(f"continue_final_message: the template does not show the {key} of a message")
    if isinstance(text, list):  # a list of blocks: continue the last text block
        holder = next((part for part in reversed(marked[key]) if isinstance(part, dict) and "text" in part), {})
        names, text = ["text"], holder.get("text")
    if not isinstance(text, str):
        raise UserError(f"continue_final_message: the last message has no text in {key}")
    holder.update(dict.fromkeys(names, text + _MARK))
    return marked, text


def _cut(rendered: str, last: str) -> str:
    """Return the text up to the mark. Raises UserError if the template does not show the message to continue."""
    before, mark, after = rendered.rpartition(_MARK.strip())
    if not mark or last.strip() not in rendered:
        raise UserError("continue_final_message: the template leaves out the last message or part of it")
    return before if after.startswith(" ") else before.rstrip()


def _answer(request: str, source: str) -> dict[str, Any]:
    """Send a request to ``rendering`` in a separate process and return the response. Raises UserError if it is stopped."""
    command = [sys.executable, rendering.__file__]
    # In another session, so that Ctrl-C stops an answer but not the rendering.
    options: dict[str, Any] = {"capture_output": True, "timeout": SECONDS, "start_new_session": True, "check": False}
    try:
        done = subprocess.run(command, input=request.encode(), **options)
    except subprocess.TimeoutExpired:
        raise UserError(f"{source}: {_STOPPED}") from None
    if done.returncode:  # negative for a signal
        lines = done.stderr.decode(errors="replace").split("\n")[-2:-1]
        raise UserError(f"{source}: {lines[0] if lines and done.returncode > 0 else _STOPPED}")
    return dict(json.loads(done.stdout))


# ------------------------------------------------------------------------------------------------------------------- files


def find_chat_template(path: str | Path) -> ChatTemplate | None:
    """Return a pretrained model's chat template, or None if it has none because it was not trained to chat.

    The template is chat_template.jinja, or else ``chat_template`` in tokenizer_config.json (if there are several, "default"). A
    GGUF file stores the template in its metadata. An adapter without a template uses its base model's template. Raises
    UserError for a damaged file.
    """
    folder = Path(path)
    template = _template_in(folder)
    if template is None and (base := model_folder(folder)) != folder:
        template = _template_in(base)
    return template


def save_chat_template(template: ChatTemplate, folder: str | Path) -> None:
    """Save a template to a pretrained model's folder, and its special tokens to tokenizer_config.json."""
    folder = Path(folder)
    write_text(folder / FILE, template.text)
    config = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    write_json(folder / CONFIG, {**config, **template.tokens})


def _template_in(folder: Path) -> ChatTemplate | None:
    if (file := gguf_at(folder)) is not None:
        parts = gguf_chat_template(file)
        return None if parts is None else ChatTemplate(*parts, file)
    config = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    files = {"default": folder / FILE, **{file.stem: file for file in sorted((folder / FOLDER).glob("*.jinja"))}}
    texts = {name: read_utf8(file, "a template is text", LARGEST) for name, file in files.items() if file.exists()}
    source = folder / FILE if texts else folder / CONFIG
    content: Any = (texts["default"] if list(texts) == ["default"] else texts) if texts else config.get("chat_template")
    if isinstance(content, list) and all(isinstance(part, dict) and isinstance(part.get("name"), str) for part in content):
        content = {part["name"]: part.get("template") for part in content}
    if content is None:
        return None
    named = content if isinstance(content, dict) else {"default": content}
    if named.get("default") is None:
        raise UserError(f"{source}: chat_template has no template named 'default'")
    if wrong := [text for text in named.values() if not isinstance(text, str)]:
        raise UserError(f"{source}: chat_template must be a string, got {shortened(repr(wrong[0]), 40)}")
    return ChatTemplate(named["default"], _tokens(folder), source, named if isinstance(content, dict) else {})


def _tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens that transformers finds in a folder: from the tokenizer class, tokenizer_config.json, and an
    old version's special_tokens_map.json. Some are objects with their text as ``content``."""
    settings, tokenizer = settings_of(folder), folder / "tokenizer.json"
    of_bytes = tokenizer.exists() and b'"ByteLevel"' in read_file(tokenizer)
    name = class_name(settings, json_of(folder, "config.json"), of_bytes).removeprefix("Code")  # CodeLlama's are Llama's
    usual = CLASSES[name].tokens if name in CLASSES else {}
    values = {**usual, **{name: settings.values[name] for name in ROLES if name in settings.values}}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
