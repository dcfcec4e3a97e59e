"""A model that was opened from a folder, with what reads and writes its texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinyformer.decoding.sampling import LogitsRule
from tinyformer.tokenizers import Tokenizer

if TYPE_CHECKING:
    from tinyformer.pretrained.sentences import SentenceEncoder
    from tinyformer.training.translation import Translator


@dataclass(frozen=True)
class Opened:
    """A model of a run or of a pretrained folder, for evaluation, and the tokens around its texts.

    - ``kind``: what it does with texts: "language" (a GPT or a recurrent network, which continues them), "translation" (an
      encoder-decoder), "masked" (a BERT that fills in) or "encoder" (a BERT that predicts no tokens).
    - ``before`` and ``after``: ids that stand around every text, such as BERT's [CLS] and [SEP].
    - ``start``: the ids from which writing begins where there are none. An encoder-decoder's target always begins with them.
    - ``ends``: ids that end a text. ``forbidden``: ids that are never written. ``rules``: what else changes which
      tokens are written.
    - ``longest``: how many ids the model can read at once; None if there is no limit.
    - ``sentences``: makes what turns sentences into vectors, for a folder of sentence-transformers. Raises UserError.
    - ``translator``: that of an encoder-decoder. ``mask``: the id of BERT's [MASK].
    """

    kind: str
    model: Any
    tokenizer: Tokenizer
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()
    rules: tuple[LogitsRule, ...] = ()
    longest: int | None = None
    translator: Translator | None = None
    sentences: Callable[[], SentenceEncoder] | None = None
    mask: int | None = None


def without_tokens(outputs: int, tokenizer: Tokenizer) -> range:
    """The outputs of a model that belong to no token: some published models have more of them than there are tokens."""
    return range(len(getattr(tokenizer, "target_tokens", range(tokenizer.vocab_size))), outputs)
