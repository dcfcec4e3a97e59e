"""Filling in hidden words with a BERT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.decoding.beam_search import log_softmax
from tinyformer.decoding.sampling import likeliest
from tinyformer.models.bert import BertForMaskedLM
from tinyformer.models.evaluating import evaluating
from tinyformer.tokenizers.special import MASK, mask_name
from tinyformer.tokenizers.texts import token_texts
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

if TYPE_CHECKING:
    from tinyformer.tokenizers import BPETokenizer, PipelineTokenizer, Tokenizer, WordPieceTokenizer

    FillingTokenizer = WordPieceTokenizer | BPETokenizer | PipelineTokenizer


def fill_masks(
    model: BertForMaskedLM, tokenizer: FillingTokenizer, sentence: str, best: int = 5
) -> list[list[tuple[str, float]]]:
    """For each [MASK] in the sentence, or <mask> of RoBERTa and MPNet, the ``best`` tokens, as ``token_texts`` shows them, with
    their probabilities, the likeliest first. Outputs of the model that are no tokens of the tokenizer have no probability: some
    published models have more outputs than tokens.

    Raises UserError for a sentence without a mask, or with more tokens than the model can read.
    """
    if not 1 <= best <= tokenizer.vocab_size:
        raise SettingError(f"best must be from 1 to {tokenizer.vocab_size}, not {best}")
    name = mask_name(tokenizer.special) or MASK
    mask = tokenizer.special.get(name)
    ids = [*tokenizer.before, *tokenizer.encode(sentence, allow_special=True).tolist(), *tokenizer.after]
    if mask not in ids:
        raise UserError(f"there is no {name} to fill in: {sentence!r}")
    places = [place for place, i in enumerate(ids) if i == mask]
    logits = filling_logits(model, ids, places)[:, : tokenizer.vocab_size]
    rows = log_softmax(logits.astype(host.float64))
    found = [likeliest(row, best) for row in rows]
    return [list(zip(token_texts(tokenizer, ids), host.exp(row[ids]).tolist())) for row, ids in zip(rows, found)]


def filling_logits(model: BertForMaskedLM, ids: Sequence[int], places: Sequence[int]) -> Any:
    """The logits of the tokens that could stand at n ``places`` of a text, a NumPy array (n, vocab_size). ``ids`` are those of
    the whole text, with [CLS] and [SEP]. Raises UserError for a text with more tokens than the model can read, and for a place
    that is not in it."""
    longest = model.bert.config.max_length
    if len(ids) > longest:
        raise UserError(
            f"the sentence has {counted(len(ids) - 2, 'token')}, more than the {longest - 2} that this model reads: shorten it"
        )
    wrong = [place for place in places if not 0 <= place < len(ids)]
    if wrong:
        raise UserError(f"there is no place {wrong[0]} in a text of {counted(len(ids), 'token')}")
    with tt.no_grad(), evaluating(model):
        return model(tt.tensor([ids]), places=([0] * len(places), list(places))).numpy()


def with_wordpieces(tokenizer: Tokenizer, path: str | Path) -> WordPieceTokenizer:
    """The tokenizer, which was read from ``path``. Raises UserError for one of another kind."""
    if tokenizer.kind != "wordpiece":
        raise UserError(f"{path} has no WordPieces: it is not the tokenizer of a BERT")
    return cast("WordPieceTokenizer", tokenizer)


def with_mask(tokenizer: Tokenizer, path: str | Path) -> FillingTokenizer:
    """The tokenizer, which was read from ``path``. Raises UserError for one without a token that hides another one."""
    if mask_name(getattr(tokenizer, "special", ())) is None or not hasattr(tokenizer, "before"):
        raise UserError(f"the tokenizer of {path} has no token [MASK] or <mask> among its special ones: it fills in nothing")
    return cast("FillingTokenizer", tokenizer)


def hide_words(text: str, passages: int = 4) -> list[str]:
    """The first passages of a text, of seven words each, with a [MASK] in the place of the fourth."""
    words = text.split()[: 7 * passages]
    return [" ".join([*words[i : i + 3], "[MASK]", *words[i + 4 : i + 7]]) for i in range(0, len(words) - 6, 7)]
