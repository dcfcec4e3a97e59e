# ruff: noqa: E501 (templates of published models have long lines, too)
"""Chat templates that use what those of published models use, and conversations for them. Each was written for these tests."""

from __future__ import annotations

import random
from typing import Any

# As those of SmolLM2 and other models whose turns have a start and an end: a system message of its own where there is none.
TURNS = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
Be short.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

# As TinyLlama's: branches on lines of their own, whose ends are trimmed.
BRANCHES = """{% for message in messages %}
  {% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
  {% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
  {% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
  {% endif %}
  {% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
  {% endif %}
{% endfor %}"""

# As Mistral's: turns must alternate, and the system's message goes into the first.
ALTERNATE = """{%- if messages[0]["role"] == "system" %}
    {%- set first = messages[0]["content"] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("After the optional system message, roles must alternate") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and first is defined %}
            {{- "[INST] " + first + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " ~ message.content ~ "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"] | trim + eos_token}}
    {%- endif %}
{%- endfor %}"""

# As Qwen's: tools, calls of them, their answers together, and what was thought before the last question left out.
TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<r>\\n' }}{{- content }}{{- '\\n</r>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

# As Llama 3's: the date, indented JSON, content in parts.
DATED = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {%- if message['content'] is mapping or message['content'] is iterable and message['content'] is not string %}
            {%- for content in message['content'] %}{%- if content['type'] == 'text' %}{{- content['text'] | trim }}{%- endif %}{%- endfor %}
        {%- else %}{{- message['content'] | trim }}{%- endif %}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("only single tool-calls") }}{%- endif %}
        {%- for name, value in message.tool_calls[0].function.arguments | items %}{{ name }}={{ value }}{% if not loop.last %}, {% endif %}{%- endfor %}
        {{- "<|eom_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}{{- message.content | tojson }}{{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

# Marks of what the model has said, loop controls, a macro, and a text that is set as a block.
MARKED = """{% macro turn(role, text, width=2) %}{{ '#' * width }}{{ role | title }}: {{ text | replace('<', '&lt;') | indent(2) }}{% endmacro %}
{% for message in messages %}
{% if message.role == 'tool' %}{% continue %}{% endif %}
{% if loop.index > 6 %}{% break %}{% endif %}
{% set shown %}{{ message.content or 'nothing' }}{% endset %}
{% if message.role == 'assistant' %}
{% generation %}{{ turn('assistant', shown, width=3) }}{{ eos_token }}{% endgeneration %}
{% else %}
{{ turn(message.role, shown) }}
{% endif %}
{% endfor %}
{{ [unk_token, pad_token, sep_token] | select('defined') | join(',') }}{{ tools | tojson(indent=2, sort_keys=true) }}
"""

TEMPLATES = {
    "turns": TURNS, "branches": BRANCHES, "alternate": ALTERNATE, "tools": TOOLS, "dated": DATED, "marked": MARKED,
}  # fmt: skip
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

_PIECES = [
    "Hello",
    " <b>&amp;'\"",
    "\n",
    "\r\n",
    "  ",
    "ö☃",
    "🙂",
    "</think>",
    "<think>",
    "{{ 1 }}",
    "\\",
    "\t",
    "",
    "<|im_end|>",
]
_TOOLS = [
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {"zone": {"type": "ö"}}}}},
    {"name": "<add>", "description": "a + b > 'c' & \"d\"", "strict": None, "least": 0.5, "flags": [True, False]},
]


def _text(rng: random.Random) -> str:
    return "".join(rng.choices(_PIECES, k=rng.randrange(6)))


def _call(rng: random.Random) -> dict[str, Any]:
    arguments = rng.choice([{"zone": _text(rng), "n": [1, 2.5, None]}, {}, '{"zone": 1}'])
    call = {"name": rng.choice(["now", "add"]), "arguments": arguments}
    return rng.choice([call, {"type": "function", "function": call}])


def conversation(rng: random.Random) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Draw messages (some break a template's rules) and other arguments of ``apply_chat_template``."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": _text(rng)})
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": _text(rng)})
        if rng.random() < 0.3:
            calls = [_call(rng) for _ in range(rng.randrange(1, 3))]
            messages.append({"role": "assistant", "content": rng.choice([None, "", _text(rng)]), "tool_calls": calls})
            messages += [{"role": "tool", "content": _text(rng)} for _ in calls]
        thought = {rng.choice(["reasoning_content", "thinking", "reasoning"]): _text(rng)} if rng.random() < 0.3 else {}
        messages.append({"role": "assistant", "content": _text(rng), **thought})
    if rng.random() < 0.7:
        messages.append({"role": "user", "content": _text(rng)})
    if rng.random() < 0.1:
        messages.append({"role": "user", "content": [{"type": "text", "text": _text(rng)}, {"type": "image"}]})
    values: dict[str, Any] = {"add_generation_prompt": rng.random() < 0.6, "tools": rng.choice([None, None, [], _TOOLS])}
    if rng.random() < 0.4:
        values["enable_thinking"] = rng.random() < 0.5
    return messages, values


# ------------------------------------------------------------------------------------------- random models and arguments

# Templates that tell which they are, and show all that they are given.
SHOWING = {
    "default": """D{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token }}|{{ x }}
{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}""",
    "tool_use": """T{{ tools | tojson }}{% for m in messages %}{{ m.content | trim if m.content is string else m.content }}
{% endfor %}""",
    "rag": """R{{ documents }}{% for m in messages %}{{ m.reasoning_content }}{% for part in m.content %}{{ part.text }}
{% endfor %}{% endfor %}{{ add_generation_prompt }}""",
}
TEXTS = {**SHOWING, "turns": TURNS, "tools": TOOLS}
MODEL_TYPES = ["gpt2", "llama", "mistral", "qwen2", "qwen3"]
CLASSES = [None, "LlamaTokenizer", "LlamaTokenizerFast", "GPT2Tokenizer", "Qwen2TokenizerFast", "GPTNeoXTokenizer",
           "PreTrainedTokenizerFast", "TokenizersBackend"]  # fmt: skip


def _special(rng: random.Random) -> Any:
    text = rng.choice(["<a>", "<b>", "<|endoftext|>", "<s>"])
    rest = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    return rng.choice([text, text, {"content": text, **rest}, None])


def folder_of(rng: random.Random) -> dict[str, Any]:
    """The files of a model that are about its template and its tokens, by their names: text, or values of JSON."""
    names = ["bos_token", "eos_token", "unk_token", "pad_token"]
    config: dict[str, Any] = {name: _special(rng) for name in rng.sample(names, rng.randrange(4))}
    config = {name: {"__type": "AddedToken", **token} if isinstance(token, dict) else token for name, token in config.items()}
    if (kind := rng.choice(CLASSES)) is not None:
        config["tokenizer_class"] = kind
    if rng.random() < 0.4:
        config["added_tokens_decoder"] = {}
    files: dict[str, Any] = {"config.json": {"model_type": rng.choice(MODEL_TYPES)}}
    if rng.random() < 0.5:
        files["special_tokens_map.json"] = {name: _special(rng) for name in rng.sample(names, rng.randrange(1, 4))}
    texts = {name: TEXTS[name] for name in ["default"] * (rng.random() < 0.9) + rng.sample(sorted(TEXTS), rng.randrange(1, 4))}
    held = rng.choice(["text", "list", "file", "files", "both"])
    if held in ("text", "both"):
        config["chat_template"] = next(iter(texts.values()))
    if held == "list":
        config["chat_template"] = [{"name": name, "template": text} for name, text in texts.items()]
    if held in ("file", "files", "both"):
        files["chat_template.jinja"] = rng.choice(list(texts.values()))
    if held == "files":
        files |= {f"additional_chat_templates/{name}.jinja": text for name, text in texts.items() if name != "default"}
    return {**files, "tokenizer_config.json": config}


def arguments(rng: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """Return random messages and arguments of ``apply_chat_template``. Some of them are invalid."""
    messages, values = conversation(rng)
    if rng.random() < 0.4:
        values["continue_final_message"] = rng.choice([True, True, True, "content", "thinking", "reasoning_content", "name"])
        values["add_generation_prompt"] = rng.random() < 0.1
    others: dict[str, Any] = {
        "chat_template": rng.choice(["rag", "tool_use", "nothing", SHOWING["default"]]),
        "documents": rng.choice([[], [{"title": "a", "text": "b"}], ["a"], None]),
        "x": rng.choice([1, 0.5, True, None, "ö", [1, "a"], {"a": [None]}, (1, 2), {1: 2}]),
        "bos_token": "<other>",
        "padding": True,
        "max_length": 3,
        "return_dict": rng.random() < 0.5,
        "truncation": True,
        "sanitize_control_tokens": rng.random() < 0.5,
        "return_assistant_tokens_mask": rng.random() < 0.5,
        "return_tensors": "np",
        "tokenizer_kwargs": {},
    }
    values |= {name: others[name] for name in rng.sample(sorted(others), rng.choice([0, 0, 0, 1]))}
    values |= {name: others[name] for name in rng.sample(["x", "bos_token", "chat_template", "documents"], rng.randrange(3))}
    odd = rng.random()
    return [] if odd < 0.02 else [messages, messages] if odd < 0.04 else messages, values
