"""Conversations to learn from: what each line of a text of JSON holds, and batches in which only the answers are targets."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.settings import check_counts
from tinyformer.data.batches import Batch, check_batch_fits, check_fraction, padded
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

IGNORED = -100  # the target of a token that is not learned
Row = tuple[list[int], list[bool]]  # the ids of a conversation, and which of them are learned


def is_conversation(value: Any) -> bool:
    """Return True for a list of messages, such as [{"role": "user", "content": "Hello!"}]."""
    return isinstance(value, list) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)


def conversations_in(text: str) -> list[list[dict[str, Any]]] | None:
    """Return the conversations of a text with one on each line, in JSON. None for any other text."""
    if not text.startswith("["):
        return None
    try:
        conversations = [json.loads(line) for line in text.split("\n")]
    except ValueError:
        return None
    return conversations if all(map(is_conversation, conversations)) else None


class ConversationBatches:
    """Training batches are random conversations, one in each row. Validation takes the whole validation split, in order.

    ``rows`` are the ids of each conversation, and which of them are learned. A row is cut after ``block_size`` + 1 tokens, and
    left out if nothing before the cut is learned; ``left_out`` counts those. Targets that are not learned are -100.

    The last ``validation_fraction`` of the rows is the validation split, and the first ``test_fraction`` the test split. Raises
    UserError if a split has no row, and if a batch does not fit in memory.
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
        check_counts(block_size=block_size, batch_size=batch_size)
        check_fraction(validation_fraction, test_fraction)
        cut = [(ids[: block_size + 1], learned[: block_size + 1]) for ids, learned in rows]
        kept = [(ids, learned) for ids, learned in cut if any(learned[1:])]
        self.left_out = len(rows) - len(kept)
        if not kept:
            raise SettingError(f"no conversation has an answer within {counted(block_size, 'token')}", "block_size")
        first, last = int(len(kept) * test_fraction), len(kept) - max(1, int(len(kept) * validation_fraction))
        self.test, self.training, self.validation = kept[:first], kept[first:last], kept[last:]
        if not self.training or (test_fraction and not self.test):
            raise UserError(f"there are too few conversations for each split: {len(kept):,}")
        check_batch_fits(batch_size, min(len(ids) for ids, _ in self.training))
        self.block_size, self.batch_size = block_size, batch_size
        self._rng = host.random.default_rng(seed)

    def sample(self) -> Batch:
        """The next training batch."""
        return self._batch([self.training[i] for i in self._rng.integers(0, len(self.training), self.batch_size)])

    def largest_batch(self) -> int:
        """A lower bound for the number of tokens in the largest training batch."""
        return int(self.batch_size) * (min(len(ids) for ids, _ in self.training) - 1)

    def validation_batches(self, batch_size: int = 64) -> Iterator[Batch]:
        """Every validation row once, in order."""
        for first in range(0, len(self.validation), batch_size):
            yield self._batch(self.validation[first : first + batch_size])

    def opening(self) -> tuple[list[int], list[int]]:
        """The ids of the last conversation up to its last answer, and that answer."""
        ids, learned = self.validation[-1]
        end = len(learned) - learned[::-1].index(True)
        start = end - next((i for i, is_learned in enumerate(reversed(learned[:end])) if not is_learned), end)
        return list(ids[:start]), list(ids[start:end])

    def with_test_split(self) -> ConversationBatches:
        """The same batches, but the test split validates."""
        testing = copy.copy(self)
        testing.validation = self.test
        return testing

    def _batch(self, rows: Sequence[Row]) -> Batch:
        inputs = padded([ids[:-1] for ids, _ in rows], pad=0)
        answers = [[i if is_learned else IGNORED for i, is_learned in zip(ids[1:], learned[1:])] for ids, learned in rows]
        targets = padded(answers, pad=IGNORED)
        return Batch(tt.tensor(inputs), tt.tensor(targets), int((targets != IGNORED).sum()))

    def get_state(self) -> dict[str, Any]:
        """The state of the random choice of conversations, as values for JSON."""
        return dict(self._rng.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that ``get_state`` returned."""
        self._rng.bit_generator.state = state
