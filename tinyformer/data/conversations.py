"""Conversations as training data: one JSON list of messages per line, in batches where only the answers are targets."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.settings import check_counts
from tinyformer.data.batches import Batch, LabelledBatches, check_fraction, padded
from tinytensor.common.wording import counted

IGNORED = -100  # the target of a token that is not trained on
Row = tuple[list[int], list[bool]]  # the ids of a conversation, and whether to train on each


def is_conversation(value: Any) -> bool:
    """Return True for a list of messages, such as [{"role": "user", "content": "Hello!"}]."""
    return isinstance(value, list) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)


def conversations_in(text: str) -> list[list[dict[str, Any]]] | None:
    """Return the conversations of a file's text, one JSON list per line. Return None for any other text."""
    if not text.startswith("["):
        return None
    try:
        conversations = [json.loads(line) for line in text.split("\n")]
    except ValueError:
        return None
    return conversations if all(map(is_conversation, conversations)) else None


class ConversationBatches(LabelledBatches):
    """Padded batches of conversations, one per row. Training batches are random; validation uses every conversation in order.

    ``rows`` hold the ids of each conversation and a flag per id: whether to train on it. Rows are truncated to ``block_size`` +
    1 tokens. ``left_out`` counts rows dropped because truncation left nothing to train on. All other targets are -100.

    The last ``validation_fraction`` of the rows is the validation split, and the first ``test_fraction`` the test split. Raises
    UserError if a split is empty or a batch does not fit in memory.
    """

    unit = "conversation"

    def __init__(
        self,
        rows: Sequence[Row],
        block_size: int,
        batch_size: int,
        seed: int = 0,
        validation_fraction: float = 0.1,
        test_fraction: float = 0.0,
    ):
        check_counts(block_size=block_size)
        check_fraction(validation_fraction, test_fraction)
        cut = [(ids[: block_size + 1], learned[: block_size + 1]) for ids, learned in rows]
        kept = [(ids, learned) for ids, learned in cut if any(learned[1:])]
        self.block_size, self.left_out = block_size, len(rows) - len(kept)
        if not kept:
            raise SettingError(f"no conversation has an answer within {counted(block_size, 'token')}", "block_size")
        first, last = int(len(kept) * test_fraction), len(kept) - max(1, int(len(kept) * validation_fraction))
        self.test = kept[:first]
        if last <= first or (test_fraction and not first):
            raise UserError(f"{counted(len(kept), 'conversation')} cannot fill every split: pass more")
        super().__init__(kept[first:last], kept[last:], 0, batch_size, seed)

    def opening(self) -> tuple[list[int], list[int]]:
        """Return the ids of the last conversation before its last answer, and the ids of that answer."""
        ids, learned = self.validation[-1]
        end = len(learned) - learned[::-1].index(True)
        start = end - next((i for i, is_learned in enumerate(reversed(learned[:end])) if not is_learned), end)
        return list(ids[:start]), list(ids[start:end])

    def with_test_split(self) -> ConversationBatches:
        """Return the same batches with the test split used for validation."""
        testing = copy.copy(self)
        testing.validation = [*self.test]
        return testing

    def _batch(self, rows: Sequence[Any]) -> Batch:
        inputs = padded([ids[:-1] for ids, _ in rows], self.pad)
        answers = [[i if is_learned else IGNORED for i, is_learned in zip(ids[1:], learned[1:])] for ids, learned in rows]
        targets = padded(answers, IGNORED)
        return Batch(tt.tensor(inputs), tt.tensor(targets), int((targets != IGNORED).sum()))
