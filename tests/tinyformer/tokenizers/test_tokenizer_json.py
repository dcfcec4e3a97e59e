"""tokenizer.json: how our tokenizers are written. What AutoTokenizer reads is in tests/parity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinyformer import pretrained_tokenizer, save_pretrained_tokenizer
from tinyformer.common.errors import UserError
from tinyformer.tokenizers import BPETokenizer, CharTokenizer, PipelineTokenizer, WordPieceTokenizer, WordTokenizer
from tinyformer.tokenizers.tokenizer_json import tokenizer_json


@pytest.mark.parametrize(
    "tokenizer",
    [
        BPETokenizer.train("low lower lowest", 270, ["<go>", "Ġ<t>"]),
        BPETokenizer.train("low lower lowest", 270, ["<go>"], pattern="[a-z]+"),
        BPETokenizer.train("low lower lowest", 270, ["<go>"], pattern=""),
        WordPieceTokenizer.train("low lower lowest", 60, ["<go>"], lowercase=False),
        CharTokenizer.train("low lower", ["<go>"]),
    ],
    ids=["bpe", "bpe with a pattern", "bpe of whole texts", "wordpiece", "char"],
)
def test_a_round_trip(tmp_path: Path, tokenizer: Any) -> None:
    save_pretrained_tokenizer(tokenizer, tmp_path)
    again: Any = pretrained_tokenizer(tmp_path)
    assert isinstance(again, CharTokenizer if isinstance(tokenizer, CharTokenizer) else PipelineTokenizer)
    assert (again.special, again.vocab_size) == (tokenizer.special, tokenizer.vocab_size)
    assert (again.before, again.after) == (tokenizer.before, tokenizer.after)
    for allow in (False, True):
        text = "low<go> lower" if allow or tokenizer.kind != "char" else "low lower"
        ids = tokenizer.encode(text, allow_special=allow)
        assert again.encode(text, allow_special=allow).tolist() == ids.tolist()
        assert again.decode(ids) == tokenizer.decode(ids)
        assert "".join(again.stream(ids)) == tokenizer.decode(ids)
    save_pretrained_tokenizer(again, tmp_path / "again")
    assert pretrained_tokenizer(tmp_path / "again").encode("low").tolist() == tokenizer.encode("low").tolist()


def test_what_cannot_be_written() -> None:
    with pytest.raises(UserError, match="cannot write a 'word' tokenizer for transformers"):
        tokenizer_json(WordTokenizer.train("a b"))
    with pytest.raises(UserError, match="cannot distinguish the special token 'lo'"):
        tokenizer_json(BPETokenizer.train("lolo lolo", 258, ["lo"]))
    with pytest.raises(UserError, match="cannot distinguish the special token 'a'"):
        tokenizer_json(CharTokenizer("ab", ["a"]))
