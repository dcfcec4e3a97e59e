"""Chat templates beside transformers': the same text of each conversation, and an error where there is one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from chat_templates import TEMPLATES, TOKENS, conversation

from tinyformer import ChatTemplate, UserError, find_chat_template
from tinyformer.chat import rendering, template as template_module

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")


def theirs_of(template: Any) -> Any:
    vocabulary = {token: i for i, token in enumerate([*TOKENS.values(), "a"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **TOKENS)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each would take a while."""
    monkeypatch.setattr(template_module, "_answer", lambda request, source: rendering.answer(json.loads(request)))


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = theirs_of(TEMPLATES[name])
    theirs.save_pretrained(tmp_path)
    ours = find_chat_template(tmp_path)
    assert ours is not None
    rng, failed = random.Random(0), 0
    for _ in range(200):
        messages, values = conversation(rng)
        try:
            expected = theirs.apply_chat_template(messages, tokenize=False, **values)
        except Exception:  # many kinds
            failed += 1
            with pytest.raises(UserError):
                ours.render(messages, **values)
        else:
            assert ours.render(messages, **values) == expected
    assert failed < 150


@pytest.mark.parametrize("name", ["tools", "dated"])
def test_a_process_of_its_own_gives_the_same(name: str) -> None:
    messages = [{"role": "user", "content": "ö🙂\ud800 <b>\r\n"}, {"role": "assistant", "content": "\x00", "thinking": "why"}]
    tools = [{"name": "a", "least": 1e300, "most": 10**400}]
    expected = theirs_of(TEMPLATES[name]).apply_chat_template(messages, tokenize=False, tools=tools)
    assert ChatTemplate(TEMPLATES[name], TOKENS).render(messages, add_generation_prompt=False, tools=tools) == expected


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("kind", ["text", "list", "both", "objects"])
def test_where_a_template_is_found(kind: str, tmp_path: Path) -> None:
    theirs_of(None).save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    texts = {"default": "A{{ bos_token }}\r\n{{ messages[0].content }}\n", "tool_use": "B", "rag": "C"}
    as_list = [{"name": name, "template": text} for name, text in texts.items()]
    config["chat_template"] = as_list if kind in ("list", "both") else texts["default"]
    if kind == "both":
        (tmp_path / "chat_template.jinja").write_text("D{{ eos_token }}\r\n\n", encoding="utf-8", newline="")
    if kind == "objects":
        for name, token in TOKENS.items():
            config[name] = {"__type": "AddedToken", "content": token, "lstrip": False, "normalized": False, "rstrip": False,
                            "single_word": False, "special": True}  # fmt: skip
    file.write_text(json.dumps(config), encoding="utf-8")
    messages = [{"role": "user", "content": "Hello"}]
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(messages, tokenize=False)
    ours = find_chat_template(tmp_path)
    assert ours is not None
    assert ours.render(messages, add_generation_prompt=False) == expected
