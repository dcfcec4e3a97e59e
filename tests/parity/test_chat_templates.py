"""Chat templates compared with transformers': the same text for each conversation, or both raise an error.

python tests/parity/test_chat_templates.py 500   # this many random models and arguments
"""

from __future__ import annotations

import copy
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chat_templates import TEMPLATES, TOKENS, arguments, conversation, folder_of

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
def test_a_separate_process_computes_the_same(name: str) -> None:
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


# --------------------------------------------------------------------------------------------------- random models


def write_model(folder: Path, rng: random.Random) -> None:
    """A tokenizer of byte pairs, of bytes or of characters, and random files about its template and its tokens."""
    byte_level = rng.random() < 0.5
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "<|endoftext|>": 3, "a": 4, "b": 5, "ab": 6}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b")], unk_token="<unk>"))
    if byte_level:
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in folder_of(rng).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def compared(seed: int, folder: Path) -> str:
    """What came of a random model and random arguments: "equal", "both refuse", or "refused" here alone."""
    rng = random.Random(seed)
    write_model(folder, rng)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    messages, values = arguments(rng)
    before = copy.deepcopy(messages)
    try:
        expected = theirs.apply_chat_template(messages, **{"tokenize": False, **values})
    except Exception as error:  # many kinds
        expected = error
    assert messages == before
    try:
        ours = find_chat_template(folder)
        assert ours is not None
        found = ours.render(messages, **{"add_generation_prompt": False, **values})
    except UserError as error:
        assert messages == before
        if isinstance(expected, Exception):
            return "both refuse"
        assert any(name in str(error) for name in [*values, "messages", "'default'"]) or "no tuples" in str(error), error
        return "refused"
    assert messages == before
    assert found == expected, (seed, values)
    return "equal"


@pytest.mark.usefixtures("in_this_process")
def test_random_models_and_arguments_are_equal_or_refused_by_name(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(30):
        (tmp_path / str(seed)).mkdir()
        counts[compared(seed, tmp_path / str(seed))] += 1
    assert counts["equal"] >= 10 and set(counts) <= {"equal", "refused", "both refuse"}


if __name__ == "__main__":
    template_module._answer = lambda request, source: rendering.answer(json.loads(request))
    totals: Counter[str] = Counter()
    for number in range(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as path:
            totals[compared(number, Path(path))] += 1
    print(dict(totals))
