"""Chat templates: where they are found, their errors, and how hostile ones are stopped. What they render is
compared with transformers in parity/test_chat_templates.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_templates import TEMPLATES, TOKENS

from tinyformer import ChatTemplate, UserError, find_chat_template
from tinyformer.chat import rendering, template as template_module

HELLO = [{"role": "user", "content": "Hello <b>"}]


def rendered(text: str, messages: Any = HELLO, **values: Any) -> str:
    return ChatTemplate(text, TOKENS, "my template").render(messages, **values)


def refused(text: str, messages: Any = HELLO, **values: Any) -> str:
    with pytest.raises(UserError) as told:
        rendered(text, messages, **values)
    return str(told.value)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each would take a while."""
    monkeypatch.setattr(template_module, "_answer", lambda request, source: rendering.answer(json.loads(request)))


def test_a_conversation_becomes_a_text() -> None:
    said = [{"role": "system", "content": "Sing."}, *HELLO]
    expected = "<|im_start|>system\nSing.<|im_end|>\n<|im_start|>user\nHello <b><|im_end|>\n"
    assert rendered(TEMPLATES["turns"], said, add_generation_prompt=False) == expected
    assert rendered(TEMPLATES["turns"], said) == expected + "<|im_start|>assistant\n"


@pytest.mark.usefixtures("in_this_process")
def test_what_a_template_is_given() -> None:
    assert (
        rendered("{{ bos_token }}{{ x }}{{ tools }}{{ documents }}{{ add_generation_prompt }}", x=[1]) == "<s>[1]NoneNoneTrue"
    )
    assert rendered("{{ bos_token }}{{ documents }}", bos_token="", documents=[]) == "[]"
    assert rendered("{{ messages[0] | tojson }}") == '{"role": "user", "content": "Hello <b>"}'
    assert rendered("{{ strftime_now('%Y') }}").isdigit()
    assert rendered("{{ messages[0] | tojson }}", [{"a": None, "reasoning": "x"}]) == (
        '{"thinking": "x", "reasoning": "x", "reasoning_content": "x"}'
    )


def test_where_it_is_found(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    assert find_chat_template(tmp_path) is None
    config.write_text(json.dumps({"bos_token": {"content": "<a>"}, "eos_token": "<b>", "sep_token": None}))
    assert find_chat_template(tmp_path) is None
    config.write_text(
        json.dumps({"bos_token": {"content": "<a>"}, "chat_template": "T", "eos_token": "<b>", "sep_token": None})
    )
    assert find_chat_template(tmp_path) == ChatTemplate("T", {"bos_token": "<a>", "eos_token": "<b>"}, config)
    several = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    config.write_text(json.dumps({"chat_template": several}))
    assert find_chat_template(tmp_path) == ChatTemplate("D", {}, config, {"rag": "R", "default": "D"})
    file = tmp_path / "chat_template.jinja"
    file.write_bytes(b"J\r\n")
    assert find_chat_template(tmp_path) == ChatTemplate("J\n", {}, file)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("U")
    assert find_chat_template(tmp_path) == ChatTemplate("J\n", {}, file, {"default": "J\n", "tool_use": "U"})


@pytest.mark.parametrize(
    ("model_type", "tokenizer_class", "expected"),
    [
        ("llama", "LlamaTokenizerFast", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
        ("gpt2", None, dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")),
        ("gemma", None, {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "pad", "mask")}),
        ("llama", "PreTrainedTokenizerFast", {}),
        ("mistral", "LlamaTokenizer", {}),
    ],
)
def test_tokens_that_only_the_class_of_the_tokenizer_names(
    model_type: str, tokenizer_class: str | None, expected: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "tokenizer_class": tokenizer_class}))
    (tmp_path / "chat_template.jinja").write_text("T")
    found = find_chat_template(tmp_path)
    assert found is not None and found.tokens == expected


@pytest.mark.parametrize(("config", "expected"), [({}, "<map>"), ({"added_tokens_decoder": {}}, "<config>")])
def test_tokens_that_only_the_map_of_old_versions_names(config: dict[str, Any], expected: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "T", "bos_token": "<config>", **config}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<map>"}}))
    found = find_chat_template(tmp_path)
    assert found is not None and found.tokens == {"bos_token": expected}


@pytest.mark.usefixtures("in_this_process")
def test_of_several_templates_the_one_for_tools_is_used_with_tools() -> None:
    template = ChatTemplate("D", named={"default": "D", "tool_use": "U", "rag": "R"})
    assert [template.render(HELLO, tools=tools) for tools in (None, [], [{"name": "add"}])] == ["D", "U", "U"]
    assert template.render(HELLO, tools=[], chat_template="rag") == "R"
    assert template.render(HELLO, chat_template="{{ messages[0].role }}") == "user"


@pytest.mark.usefixtures("in_this_process")
def test_the_last_message_is_continued() -> None:
    said = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Once "}, {"type": "image"}], "thinking": "Hm"}]
    text = "{% for m in messages %}<{{ m.role }}>{{ m.thinking }}{{ m.content if m.content is string else m.content[0].text }}"
    begun = "<user>Hello <b>;<assistant>Hm"
    assert rendered(text + ";{% endfor %}", said, continue_final_message=True) == begun + "Once "
    trimmed = text.replace("[0].text", "[0].text | trim") + ";{% endfor %}"
    assert rendered(trimmed, said, continue_final_message=True) == begun + "Once"
    assert rendered(text + ";{% endfor %}", said, continue_final_message="thinking") == begun


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "exclude each other: choose one"),
        ({"continue_final_message": "name"}, "continue_final_message: the template does not show the name of a message"),
        ({"continue_final_message": True, "messages": [{"content": 3}]}, "the last message has no text in content"),
        ({"continue_final_message": True, "messages": [{"content": "twice"}]}, "the template leaves out the last message"),
        ({"padding": True, "return_tensors": "np", "tokenize": False}, "leave out padding, return_tensors, and"),
        ({"messages": [HELLO]}, "messages must be dictionaries, got a list"),
        ({"tools": [print]}, "tools must be dictionaries, got a builtin_function_or_method"),
        ({"messages": []}, "messages is empty: pass at least one"),
        ({"x": [(1, 2)]}, "a template takes strings, numbers, lists and dictionaries: found a tuple or a non-string key"),
        ({"x": {1: 2}}, "a template takes strings, numbers, lists and dictionaries: found a tuple or a non-string key"),
    ],
)
def test_arguments_that_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    assert message in refused("{{ messages[0].content.startswith('twice') }}", **arguments)


def test_a_template_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("a" * (2**20 + 1))
    with pytest.raises(UserError, match=r"chat_template\.jinja is too large: a file of this kind has at most 1\.0 MB"):
        find_chat_template(tmp_path)
    with pytest.raises(UserError, match="the template has 1,048,577 characters, the limit is 1,048,576"):
        ChatTemplate("a" * (2**20 + 1))


@pytest.mark.parametrize("files", [{}, {"tokenizer_config.json": "{}"}])
def test_an_adapter_has_that_of_its_model_or_its_own(files: dict[str, str], tmp_path: Path) -> None:
    model, adapter = tmp_path / "model", tmp_path / "adapter"
    settings = {"model/config.json": "{}", "adapter/adapter_config.json": json.dumps({"base_model_name_or_path": str(model)})}
    for name, text in (settings | {f"adapter/{name}": text for name, text in files.items()}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert find_chat_template(adapter) is None
    (model / "chat_template.jinja").write_text("M")
    assert find_chat_template(adapter) == ChatTemplate("M", {}, model / "chat_template.jinja")
    (adapter / "chat_template.jinja").write_text("A")
    assert find_chat_template(adapter) == ChatTemplate("A", {}, adapter / "chat_template.jinja")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (3, "chat_template must be a string, got 3"),
        ([{"name": "rag", "template": "R"}], "chat_template has no template named 'default'"),
        ([{"name": "default", "template": [1]}], "chat_template must be a string, got [1]"),
        (["default"], "chat_template must be a string, got ['default']"),
        ([{"name": [1], "template": "T"}], "chat_template must be a string, got [{'name': [1], 'template': 'T'}]"),
    ],
)
def test_damaged_files(found: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": found}))
    with pytest.raises(UserError) as told:
        find_chat_template(tmp_path)
    assert str(told.value) == f"{tmp_path / 'tokenizer_config.json'}: {message}"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not UTF-8 text: a template is text"):
        find_chat_template(tmp_path)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ raise_exception('Only two roles!') }}", "Only two roles!"),
        ("\n{% if x %}", "line 2: Unexpected end of template."),
        ("{{ a.b.c }}", "'a' is undefined"),
        ("{{ 1 + 'a' }}", "unsupported operand type"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' | nothing }}", "line 1: No filter named 'nothing'."),
        ("{{ raise_exception('') }}", "TemplateError"),
        ("{{ raise_exception('a\x1b[2Jb\n' * 99) }}", r"a\x1b[2Jb\n"),
        ("{% include '/etc/passwd' %}", "no loader for this environment specified"),
    ],
)
def test_mistakes_of_a_template(text: str, message: str) -> None:
    told = refused(text)
    assert told.startswith(f"my template: {message}")
    assert len(told) < 900 and "\n" not in told


def test_values_that_are_not_those_of_json() -> None:
    assert refused("", [{"role": "user", "content": {1, 2}}]).startswith(
        "a template takes strings, numbers, lists and dictionaries"
    )
    endless: list[Any] = []
    endless.append(endless)
    assert refused("", x=endless).startswith("a template takes strings")


@pytest.mark.parametrize("version", [None, "3.1.5"])
def test_without_the_package(version: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = "raise ImportError('none')" if version is None else f"__version__ = {version!r}"
    (tmp_path / "jinja2.py").write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    what = "jinja2" if version is None else "jinja2>=3.1.6, and has 3.1.5"
    with pytest.raises(ImportError) as told:
        rendered("")
    assert str(told.value) == f'a chat template needs the package {what}: pip install "tinyformer[chat]"'


# ------------------------------------------------------------------------------------------------------ hostile templates

TOO_LONG, TOO_MUCH, TOO_DEEP = "rendering took too long and was stopped", "it needs too much memory", "it is nested too deeply"
ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a power": "{{ 3 ** (3 ** 18) }}",
}
GROWING = {
    "a product": "{{ 'a' * 10**9 }}",
    "a list": "{{ [0] * 10**10 }}",
    "a format": "{{ '%1000000000d' | format(1) }}",
    "a format's method": "{{ '{:>1000000000}'.format(1) }}",
    "a filter": "{{ 'a' | center(10**9) }}",
    "an indent": "{{ [1] | tojson(indent=10**9) }}",
    "replacing": "{{ ('a' * 10**5).replace('a', 'b' * 10**5) }}",
    "joining": "{{ (('a' * 10**5) | list) | join('b' * 10**5) }}",
    "doubling": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling a list": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
}
DEEP = {
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a loop in itself": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "brackets": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "a list in itself": "{% set n = namespace(x=1) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
}


@pytest.mark.parametrize("kind", [*ENDLESS, *GROWING, *DEEP])
def test_a_template_that_loops_or_grows_is_stopped(kind: str) -> None:
    text = {**ENDLESS, **GROWING, **DEEP}[kind]
    expected = TOO_LONG if kind in ENDLESS else TOO_MUCH if kind in GROWING else TOO_DEEP
    assert refused(text).startswith(f"my template: {expected}")


def test_a_text_that_is_too_long() -> None:
    told = refused("{{ 'a' * 2**20 }}b")
    assert told == "my template: the rendered text is longer than 1,048,576 characters"


def test_where_the_system_does_not_stop_it_the_clock_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeping = tmp_path / "sleeping.py"
    sleeping.write_text("import time\ntime.sleep(100)\n")
    monkeypatch.setattr(rendering, "__file__", str(sleeping))
    monkeypatch.setattr(template_module, "SECONDS", 0.2)
    assert TOO_LONG in refused("")
    sleeping.write_text("raise MemoryError\n")
    monkeypatch.setattr(template_module, "SECONDS", 60)
    assert refused("") == "my template: MemoryError"


REACHING = [
    "{{ ().__class__.__base__.__subclasses__() }}",
    "{{ '' | attr('__class__') }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ ['a'] | map(attribute='__class__') | list }}",
    "{{ raise_exception.__globals__ }}{{ strftime_now.__globals__ }}",
    "{{ strftime_now.__globals__['__builtins__'] }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.mro() }}{{ dict.__subclasses__() }}",
    "{% set n = namespace() %}{% set n.__class__ = dict %}{{ n.__class__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(a=1) }}",
    "{% import 'os' as os %}{{ os }}",
]


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("text", REACHING)
def test_a_template_cannot_reach_python(text: str) -> None:
    try:
        found = rendered(text)
    except UserError as error:
        assert "unsafe" in str(error) or "no loader" in str(error)
    else:
        assert found in ("", "[Undefined]")
