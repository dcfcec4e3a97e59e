"""Models with more outputs than there are tokens, as some published ones have; and texts that are longer than a BERT reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import explored
import pytest

from tinyformer.common.errors import UserError
from tinyformer.decoding.filling import fill_masks
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.bert import BertConfig, BertForMaskedLM
from tinyformer.pretrained.loading import save_pretrained
from tinyformer.pretrained.tokenizers import save_pretrained_tokenizer
from tinyformer.tokenizers import WordPieceTokenizer

TEXT = "the [MASK] fox"
MORE = 4  # outputs


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    """A pretrained BERT whose likeliest output is no token."""
    folder: Path = tmp_path_factory.mktemp("padded")
    tokenizer = WordPieceTokenizer(explored.PIECES)
    config = BertConfig(tokenizer.vocab_size + MORE, num_layers=2, num_heads=2, d_model=16, d_ff=32, max_length=8)
    model = BertForMaskedLM(config)
    bias = model.bias.numpy().copy()
    bias[-MORE:] = 20.0
    model.bias.assign(bias)
    save_pretrained(model, folder)
    save_pretrained_tokenizer(tokenizer, folder)
    return Subjects([folder])


def passage(subjects: Subjects, text: str) -> dict[str, Any]:
    ids: Any = ask(subjects, "encode", {"model": "pretrained", "text": text})
    return {"model": "pretrained", "ids": ids["ids"]}


def test_a_mask_is_filled_with_tokens_alone(padded: Subjects) -> None:
    found: Any = ask(padded, "fill", {"passage": passage(padded, TEXT), "place": 2})
    subject = padded.get("pretrained")
    (expected,) = fill_masks(subject.model, subject.tokenizer, TEXT, 10)
    assert [token["text"] for token in found["best"]] == [text for text, _ in expected]
    assert [token["probability"] for token in found["best"]] == pytest.approx([p for _, p in expected])
    assert found["possible"] == len(explored.PIECES)


def test_the_lens_and_the_comparison_name_tokens_alone(padded: Subjects) -> None:
    asked = passage(padded, TEXT)
    filled: Any = ask(padded, "fill", {"passage": asked, "place": 2})
    lens: Any = ask(padded, "lens", {"passage": asked, "first": 0, "count": 5})
    assert lens["texts"][-1][2] == filled["best"][0]["text"]
    assert lens["probabilities"][-1][2] == pytest.approx(filled["best"][0]["probability"])
    two: Any = ask(padded, "divergence", {"a": asked, "b": asked})
    assert two["a"]["best"] == filled["best"]


def test_a_text_that_a_bert_cannot_read_is_not_cut(padded: Subjects) -> None:
    """Without its [CLS] the model would read something else than was asked about."""
    asked = passage(padded, "the fox the fox the fox the")
    for question in ("inside", "attention"):
        with pytest.raises(UserError, match=r"9 tokens, more than the 8|at most 8 tokens at once, not 9"):
            ask(padded, question, {"passage": asked})
