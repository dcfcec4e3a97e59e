"""Fill in masked words with a BERT."""

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
    """Return the ``best`` tokens for each [MASK] in the sentence (<mask> for RoBERTa and MPNet), formatted by ``token_texts``,
    with their probabilities, most likely first. Some published models have more outputs than tokens. The extra outputs are
    ignored.

    Raises UserError if the sentence has no mask or exceeds the model's maximum length.
    """
    if not 1 <= best <= tokenizer.vocab_size:
        raise SettingError(f"best must be from 1 to {tokenizer.vocab_size}, got {best}")
    name = mask_name(tokenizer.special) or MASK
    mask = tokenizer.special.get(name)
    ids = [*tokenizer.before, *tokenizer.encode(sentence, allow_special=True).tolist(), *tokenizer.after]
    if mask not in ids:
        raise UserError(f"there is no {name} to fill in: {sentence!r}")
    positions = [position for position, i in enumerate(ids) if i == mask]
    logits = filling_logits(model, ids, positions)[:, : tokenizer.vocab_size]
    rows = [(row, likeliest(row, best)) for row in log_softmax(logits.astype(host.float64))]
    return [list(zip(token_texts(tokenizer, tokens), host.exp(row[tokens]).tolist())) for row, tokens in rows]


def filling_logits(model: BertForMaskedLM, ids: Sequence[int], positions: Sequence[int]) -> Any:
    """Return the logits at n ``positions`` as a NumPy array (n, vocab_size). ``ids`` include [CLS] and [SEP]. Raises UserError
    if the sequence exceeds the model's maximum length or a position is out of range."""
    longest = model.bert.config.max_length
    if len(ids) > longest:
        raise UserError(
            f"the sentence has {counted(len(ids) - 2, 'token')}, more than the {longest - 2} that this model reads: shorten it"
        )
    outside = [position for position in positions if not 0 <= position < len(ids)]
    if outside:
        raise UserError(f"there is no position {outside[0]} in a text of {counted(len(ids), 'token')}")
    with tt.no_grad(), evaluating(model):
        return model(tt.tensor([ids]), places=([0] * len(positions), list(positions))).numpy()


def with_wordpieces(tokenizer: Tokenizer, path: str | Path) -> WordPieceTokenizer:
    """Return the tokenizer, loaded from ``path``. Raises UserError if it is not a WordPiece tokenizer."""
    if tokenizer.kind != "wordpiece":
        raise UserError(f"{path} has no WordPieces: it is not the tokenizer of a BERT")
    return cast("WordPieceTokenizer", tokenizer)


def with_mask(tokenizer: Tokenizer, path: str | Path) -> FillingTokenizer:
    """Return the tokenizer, loaded from ``path``. Raises UserError if it has no mask token."""
    if mask_name(getattr(tokenizer, "special", ())) is None or not hasattr(tokenizer, "before"):
        raise UserError(f"the tokenizer of {path} has no special token [MASK] or <mask>, so there is nothing to fill in")
    return cast("FillingTokenizer", tokenizer)


def hide_words(text: str, passages: int = 4) -> list[str]:
    """Return the first ``passages`` passages of a text, seven words each, with the fourth word replaced by [MASK]."""
    words = text.split()[: 7 * passages]
    return [" ".join([*words[i : i + 3], "[MASK]", *words[i + 4 : i + 7]]) for i in range(0, len(words) - 6, 7)]
