"""Which tokens end a text, and which are never written."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

from tinyformer.common.errors import SettingError, UserError
from tinyformer.decoding.logits_rules import LogitsRule
from tinytensor.common.wording import counted
from tinytensor.device.backend import host


class TokenRules:
    """What sampling and beam search may write.

    - ``end``: a text ends with this token, or with any of these. None: no token ends a text.
    - ``forbidden``: these tokens are never written. Forbidding an end token keeps texts from ending with it.
    - ``rules``: what else changes the scores, by what was written so far; see ``logits_rules``.
    - ``force_end``: the last token that there is room for is an end token, whatever the model says.

    Raises SettingError for ids that are not integers of at least 0, and if an end is forced and there is none.
    """

    def __init__(
        self,
        end: int | Iterable[int] | None,
        forbidden: Iterable[int] = (),
        force_end: bool = False,
        rules: Iterable[LogitsRule] = (),
    ):
        ends = () if end is None else end
        self.ends = _checked("end", ends if isinstance(ends, Iterable) else (ends,))
        self.forbidden = _checked("forbidden", forbidden)
        self.force_end = force_end
        self.rules = tuple(rules)
        if force_end and not self.ends:
            raise SettingError("force_end needs an end token: pass its id as end", "force_end", "end")

    def restrict(self, scores: Any, is_last: bool, texts: Any = None, written: int = 0) -> Any:
        """The scores (batch, vocab_size) of the next tokens, logits or log-probabilities, with -inf for those that may not be
        written. ``is_last`` says that there is room for one token only. The ``rules`` need the ids of the ``texts`` so far
        (batch, length), and how many of them were ``written``.

        What is left of log-probabilities is not normalised again: the other tokens keep the model's probabilities. A forced end
        counts as certain; its score is 0. Hugging Face's ``generate`` does both in the same way. Raises UserError for ids
        outside the vocabulary, and if all of it is forbidden.
        """
        if is_last and self.force_end:
            _check_known(self.ends, scores.shape[1])
            forced = host.full_like(scores, -host.inf)
            forced[:, self.ends] = 0.0
            return forced
        if self.forbidden:
            _check_known(self.forbidden, scores.shape[1])
            if len(self.forbidden) == scores.shape[1]:
                raise UserError(f"every token of the vocabulary is forbidden, {scores.shape[1]:,} in all: allow at least one")
            scores = scores.copy()  # the decoder may go on using its logits
            scores[:, self.forbidden] = -host.inf
        for rule in self.rules:
            scores = rule(scores, texts, written)
        return scores


def _checked(name: str, ids: Iterable[int]) -> list[int]:
    """The distinct ids. Raises SettingError for what is no id."""
    ids = list(ids)
    wrong = [i for i in ids if not isinstance(i, numbers.Integral) or isinstance(i, bool) or i < 0]
    if wrong:
        raise SettingError(f"{name} must be ids of tokens, integers of at least 0, not {wrong[0]!r}")
    return sorted({int(i) for i in ids})


def _check_known(ids: list[int], vocab_size: int) -> None:
    if ids[-1] >= vocab_size:
        raise UserError(
            f"the token {ids[-1]} cannot be forbidden or forced: the vocabulary has only {counted(vocab_size, 'token')}"
        )
