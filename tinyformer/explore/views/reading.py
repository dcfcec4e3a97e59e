"""Forward pass over a passage: a Transformer's residual streams or a recurrent network's states."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.decoding.beam_search import log_softmax
from tinyformer.decoding.sampling import Sampling
from tinyformer.explore.views.passages import Passage
from tinyformer.explore.views.subjects import AT_ONCE, LONGEST, Subject, Subjects
from tinyformer.explore.views.writing import threads_for
from tinyformer.models.attribution import Pass, pass_over
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinyformer.models.recording import recording_outputs, residual_streams
from tinyformer.models.recurrent import RecurrentLM
from tinyformer.models.seq2seq import EncoderDecoder
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host
from tinytensor.device.forks import free_in_forks

Made = TypeVar("Made")


_MISSING = object()


class Kept:
    """A least-recently-used cache of answers about models, limited in bytes. The newest answer always stays. Answers about a
    model are dropped with the model."""

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes
        self._lock = free_in_forks(threading.Lock())
        self._entries: OrderedDict[tuple[int, Hashable], tuple[weakref.ref[Any], Any, int]] = OrderedDict()

    def get(self, model: Any, key: Hashable, make: Callable[[], Made], size: Callable[[Made], int]) -> Made:
        """Return the cached answer for a model and key, or compute it with ``make``. ``size`` returns its size in bytes."""
        answer = self.find(model, key, _MISSING)
        if answer is _MISSING:  # a cached answer may be None
            made = make()
            return self.add(model, key, made, size(made))
        return answer

    def find(self, model: Any, key: Hashable, missing: Any = None) -> Any:
        """Return the cached answer for a model and key, or ``missing``."""
        place = id(model), key
        with self._lock:
            owner, made, _ = self._entries.get(place, (lambda: None, None, 0))
            if owner() is not model:
                return missing
            self._entries.move_to_end(place)
            return made

    def add(self, model: Any, key: Hashable, made: Made, num_bytes: int) -> Made:
        """Cache an answer of ``num_bytes`` for a model and key, and return it."""
        place = id(model), key
        with self._lock:
            self._entries[place] = weakref.ref(model), made, num_bytes
            self._entries.move_to_end(place)
            for old in [name for name, (owner, _, _) in self._entries.items() if owner() is None]:
                del self._entries[old]
            while len(self._entries) > 1 and self.num_bytes > self.most_bytes:
                self._entries.popitem(last=False)
        return made

    @property
    def num_bytes(self) -> int:
        """The size of all answers in bytes."""
        return sum(size for _, _, size in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


MOST_KEPT = 256 * 2**20  # bytes
NOT_FINITE = "the model holds numbers that are NaN or infinite: its training diverged, or its weights are damaged"
_AT_ONCE = 64  # positions whose probabilities are computed together

_kept = Kept(MOST_KEPT)


@dataclass(frozen=True)
class Reading:
    """A model's values while reading ``ids``, the part of a passage that starts at position ``first``.

    - ``streams``: result of ``residual_streams`` without the batch axis: (length, width) for each block or layer.
    - ``of_gpt``: for a GPT, these streams and other results of ``pass_over``.
    - ``entropies`` and ``losses``: see ``uncertainty``. Empty if ``logits_of`` can compute predictions from the streams.
    """

    first: int
    ids: list[int]
    streams: Mapping[str, list[Tensor]]
    of_gpt: Pass | None = None
    entropies: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """The size of the arrays in bytes, plus an estimate for the rest."""
        arrays = (tensor.data for stack in self.streams.values() for tensor in stack)
        return 100 * len(self.ids) + (self.of_gpt.num_bytes if self.of_gpt else sum(array.nbytes for array in arrays))


def reading(subjects: Subjects, subject: Subject, passage: Passage) -> Reading:
    """Return the model's values after it has read a passage. Recent results are cached. The caller must hold the models' lock,
    which lets others have turns. Raises UserError for a passage that the model cannot read."""
    if isinstance(subject.model, GPT):
        ids = passage.ids[-min(subject.longest or LONGEST, LONGEST) :]
        return replace(reading_of_gpt(subject, tuple(ids)), first=len(passage.ids) - len(ids))

    def read() -> Reading:
        with threads_for(subject):
            return _checked(_read(subjects, subject, passage))

    key = (tuple(passage.ids), tuple(passage.source))
    return _kept.get(subject.model, key, read, lambda made: made.num_bytes)


def reading_of_gpt(subject: Subject, ids: tuple[int, ...]) -> Reading:
    """Return the same for a GPT that reads all of these ids."""
    model: Any = subject.model

    def read() -> Reading:
        with threads_for(subject):
            found = pass_over(model, ids)
        return _checked(Reading(0, list(ids), {"blocks": found.streams}, found))

    return _kept.get(model, (ids, ()), read, lambda made: made.num_bytes)


def _checked(found: Reading) -> Reading:
    """Return the argument. Raises UserError if it contains NaN or infinite values, which JSON cannot represent."""
    if all(host.isfinite(tensor.numpy()).all() for stack in found.streams.values() for tensor in stack):
        return found
    raise UserError(NOT_FINITE)


def _read(subjects: Subjects, subject: Subject, passage: Passage) -> Reading:
    if subject.kind == "translation":
        return _read_pair(subject, passage)
    model, ids = subject.model, passage.ids
    longest = min(subject.longest or LONGEST, LONGEST)
    if subject.kind != "language" and len(ids) > longest:  # nothing is cut off: a BERT needs the initial [CLS]
        raise UserError(f"the model reads at most {counted(longest, 'token')} at once, not {len(ids)}: shorten the text")
    first = max(0, len(ids) - longest)
    inputs: list[Any] = [_batch(ids[first:])]
    if first and isinstance(model, RecurrentLM):  # earlier tokens are in its state
        state = None
        for start in range(0, first, AT_ONCE):
            with tt.no_grad(), evaluating(model):
                _, state = model.step(_batch(ids[start : min(start + AT_ONCE, first)]), state)
            subjects.lock.let_others()
        inputs.append(state)
    return Reading(first, ids[first:], _without_batch(residual_streams(model, *inputs)))


def _read_pair(subject: Subject, passage: Passage) -> Reading:
    """Run an encoder-decoder. Its target begins with the start token, so nothing is cut off."""
    model, ids = subject.model, passage.ids
    _check_length(subject, max(len(ids), len(passage.source)))
    inputs = _batch(passage.source), _batch(ids)
    if not isinstance(model, EncoderDecoder):
        return Reading(0, ids, _without_batch(residual_streams(model, *inputs)))
    with recording_outputs(model, EncoderDecoder) as recorded:
        streams = residual_streams(model, *inputs)
    logits = recorded[""][0][0].numpy()
    return Reading(0, ids, _without_batch(streams), None, *uncertainty(subject, logits, ids[1:]))


def _check_length(subject: Subject, count: int) -> None:
    """Raise UserError for a sentence or translation that is too long for one pass of an encoder-decoder."""
    config = subject.model.config
    has_last = getattr(config, "positions", None) == "learned"
    longest = min(config.max_length, LONGEST) if has_last else LONGEST
    if count > longest:
        raise UserError(f"the model reads at most {counted(longest, 'token')} at once, not {count}: shorten the text")


def _batch(ids: list[int]) -> Tensor:
    return tt.tensor([ids], dtype=int)


def _without_batch(streams: Mapping[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    return {name: [x[0] for x in stack] for name, stack in streams.items()}


def is_recurrent(subject: Subject) -> bool:
    """Return True if the model is a recurrent network, whose streams are its states."""
    return isinstance(subject.model, (RecurrentLM, EncoderDecoder))


def predicting(subject: Subject, found: Reading) -> str | None:
    """Return the name of the stream from which ``logits_of`` makes predictions: a Transformer's last stream, or a recurrent
    language model's hidden state. Return None if a model has no such stream."""
    if subject.kind == "encoder" or isinstance(subject.model, EncoderDecoder):
        return None
    return "hidden" if is_recurrent(subject) else list(found.streams)[-1]


def why_no_shares(subject: Subject) -> str | None:
    """Return a sentence on why a logit of this model is not a sum of layer contributions, or None if it is."""
    if isinstance(subject.model, GPT):
        return None
    if subject.kind == "encoder":
        return "This model predicts no tokens, so there are no logits to share out."
    if subject.kind == "masked":
        return (
            "A BERT's prediction passes one more layer with an activation and a norm after its last block, so a logit is no "
            "sum of what its layers wrote."
        )
    config = subject.model.config
    if not hasattr(config, "norm_first"):
        return "A recurrent network passes its state through gates, so a logit is no sum of what its layers wrote."
    if config.norm_first:
        return "Shares of a logit are shown for models without an encoder: here the decoder's layers read another text, too."
    return (
        "This model norms the residual stream after each sub-layer, so what a layer wrote is scaled again by all later ones, "
        "and a logit is no sum of their shares."
    )


def probabilities(subject: Subject, logits: Any) -> Any:
    """Return the probability of each token at each position, (positions, vocab_size) float64, from logits of this shape. Tokens
    that the model may not generate get 0."""
    if subject.forbidden:
        logits = logits.copy()
        logits[:, list(subject.forbidden)] = -host.inf
    return host.stack([Sampling().probabilities(row) for row in logits])


def uncertainty(subject: Subject, logits: Any, targets: list[int]) -> tuple[list[float], list[float | None]]:
    """Return the entropy in nats of the prediction at each position, for logits (positions, vocab_size), and the loss of the
    target there, -log(probability). The loss is None at the last positions, which have no target."""
    entropies: list[float] = []
    losses: list[float | None] = []
    for start in range(0, len(logits), _AT_ONCE):
        part = logits[start : start + _AT_ONCE]
        found = probabilities(subject, part)
        logs = host.log(found, out=host.zeros_like(found), where=found > 0)
        entropies += (-(found * logs).sum(-1)).tolist()
        rows = log_softmax(part.astype(host.float64))
        losses += [float(-row[target]) for row, target in zip(rows, targets[start:])]
    return entropies, losses + [None] * (len(logits) - len(losses))
