"""Questions about neurons, the hidden units of feed-forward networks: what activates them and what they write."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.data.reading import STANDARD_LIBRARY, TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256, TextSource, kept_at
from tinyformer.explore.views.attributing import read_ids, recorded
from tinyformer.explore.views.inside import check_part
from tinyformer.explore.views.passages import Answer, Passage
from tinyformer.explore.views.reading import Kept, why_no_shares
from tinyformer.explore.views.subjects import LONGEST, Subject, Subjects
from tinyformer.models.blocks import FeedForward
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinyformer.models.quantizing import num_weights
from tinyformer.models.recording import below_output
from tinyformer.training.run_folder import RunFolder
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host
from tinytensor.nn import LayerNorm
from tinytensor.nn.hooks import hooked
from tinytensor.nn.weights import linear

BEST = 10  # neurons, tokens and positions per answer
MOST_TOKENS = 20_000  # of the data, read per neuron
MOST_SECONDS = 30.0  # of computing, before a search ends
WINDOW = 128  # tokens read together
AT_ONCE = 8  # windows per pass
SMALL = 16 * 2**20  # parameters; a larger model reads one window per pass to keep others from waiting
BEFORE, AFTER = 16, 8  # tokens of context to show


@dataclass(frozen=True)
class Place:
    """A position in a passage, counted from the first token that the model has read."""

    passage: Passage
    place: int


def neurons(subjects: Subjects, asked: Place) -> Answer:
    """Return a model's ``units``, the number of neurons per layer, and the ``best`` neurons at a position, each with ``layer``
    and ``unit``, from 0, and ``activation``. Neurons are ranked by how much they write there: the absolute activation times the
    norm of their output weights."""
    subject = asked.passage.subject(subjects)
    with subjects.for_long():
        layers = _layers(subject)
        ids = read_ids(subject, asked.passage) if subject.kind == "language" else asked.passage.ids
        check_part(1, asked.place, len(ids), 1, "tokens")
        if isinstance(subject.model, GPT):
            found = recorded(subject, ids, asked.place)
            active = found.neurons
        else:
            _check_length(subject, len(ids))
            active = [layer[0, asked.place] for layer in _activations(subject, tt.tensor([ids], dtype=int), layers)]
        written = [abs(x) * host.linalg.norm(layer.down.weight.numpy(), axis=0) for x, layer in zip(active, layers)]
    order = heapq.nlargest(BEST, ((float(x), i, j) for i, of in enumerate(written) for j, x in enumerate(of)))
    best = [{"layer": i, "unit": j, "activation": float(active[i][j])} for _, i, j in order]
    return {"units": [len(x) for x in active], "best": best}


@dataclass(frozen=True)
class Neuron:
    """A neuron of a model: a ``unit`` of a ``layer``, both from 0."""

    model: str
    layer: int
    unit: int


def neuron_tokens(subjects: Subjects, asked: Neuron) -> Answer:
    """Return the tokens whose logits a neuron's output weights raise and lower most: ``raised`` and ``lowered``, each with
    ``id``, ``text`` and ``value``. The value is the effect of one unit of activation on the logit, through the final norm's
    weight and the output layer, before the norm divides by its scale. The mean over all tokens, which changes no probability,
    is subtracted. If the model's logits are not a sum, both lists are null, and ``why`` gives the reason."""
    subject = subjects.get(asked.model)
    why = why_no_shares(subject)
    with subjects.lock:
        layer = _layer(subject, asked.layer, asked.unit)
        if why is not None:
            return {"raised": None, "lowered": None, "why": why}
        norm = subject.model.norm
        written = layer.down.weight.numpy()[:, asked.unit].astype(host.float32)
        if isinstance(norm, LayerNorm):
            written = written - written.mean()
        with tt.no_grad():
            direction = tt.tensor(written) * norm.weight
            values = linear(direction[None], subject.model.output_weight(), None).numpy()[0].astype(host.float64)
    values -= values.mean()
    forbidden = set(subject.forbidden)
    order = [int(i) for i in host.argsort(-values, kind="stable") if int(i) not in forbidden]

    def told(ids: list[int]) -> list[dict[str, Any]]:
        return [{"id": i, "text": text, "value": float(values[i])} for i, text in zip(ids, subject.texts(ids))]

    return {"raised": told(order[:BEST]), "lowered": told(order[: -BEST - 1 : -1]), "why": None}


@dataclass(frozen=True)
class Excited:
    """A neuron of the passage's model: a ``unit`` of a ``layer``, both from 0. If ``smallest`` is set, search for the most
    negative activations instead of the largest."""

    passage: Passage
    layer: int
    unit: int
    smallest: bool = False


def neuron_examples(subjects: Subjects, asked: Excited) -> Iterator[Answer]:
    """Search for the tokens that activate a neuron most. Each line has the number of tokens ``done`` out of ``tokens``, and the
    ``best`` so far, each with its ``value`` and the texts of the ``token`` and its context ``before`` and ``after``.

    The tokens come from the last tenth of the run's training corpus, which validates a GPT. ``text`` is its name. If there is
    no such corpus or it is unreadable, they come from the passage, and ``text`` is null. At most 20,000 tokens are read, in
    windows of 128, and a search ends after 30 seconds of computing. In that case, the last line has ``done`` below ``tokens``.
    """
    subject = asked.passage.subject(subjects)
    with subjects.lock:
        _layer(subject, asked.layer, asked.unit)
        found = validation_text(subjects, asked.passage.model, subject)
        ids = _without_ends(subject, asked.passage.ids)
        if found is not None:
            ids = [int(i) for i in subject.tokenizer.encode(found[0])][:MOST_TOKENS] or ids
        ids = ids[:MOST_TOKENS]
    sign = -1.0 if asked.smallest else 1.0
    best: list[tuple[float, int, int]] = []  # a heap: signed value, negated position, position
    spent, width = 0.0, _window(subject)
    for start in range(0, len(ids), _at_once(subject) * width):
        part = ids[start : start + _at_once(subject) * width]
        with subjects.for_long():
            begun = time.monotonic()
            values = sign * _of_unit(subject, asked.layer, asked.unit, part, width)
            spent += time.monotonic() - begun
        for i in host.argsort(-values, kind="stable")[:BEST].tolist():
            if host.isfinite(values[i]):
                heapq.heappush(best, (float(values[i]), -start - i, start + i))
        best = heapq.nlargest(BEST, best)
        heapq.heapify(best)
        yield {
            "text": None if found is None else found[1],
            "done": start + len(part),
            "tokens": len(ids),
            "best": [_example(subject, ids, place, sign * value) for value, _, place in sorted(best, reverse=True)],
        }
        if spent > MOST_SECONDS:
            return


def _without_ends(subject: Subject, ids: list[int]) -> list[int]:
    """Remove the ids around a sequence, which are added to each window anyway."""
    before, after = list(subject.before), list(subject.after)
    first = len(before) if ids[: len(before)] == before else 0
    last = len(ids) - (len(after) if after and ids[-len(after) :] == after else 0)
    return ids[first:last] or ids


def _example(subject: Subject, ids: list[int], place: int, value: float) -> dict[str, Any]:
    first = max(0, place - BEFORE)
    texts = subject.texts(ids[first : place + AFTER + 1])
    here = place - first
    return {"value": value, "before": texts[:here], "token": texts[here], "after": texts[here + 1 :]}


def _at_once(subject: Subject) -> int:
    return AT_ONCE if num_weights(subject.model) <= SMALL else 1


def _window(subject: Subject) -> int:
    """Return how many tokens of a text are read together, excluding those around them."""
    around = len(subject.before) + len(subject.after)
    return max(1, min(WINDOW, subject.longest or WINDOW) - around)


def _of_unit(subject: Subject, layer: int, unit: int, ids: list[int], width: int) -> Any:
    """Return the activations of a neuron at these tokens, read in windows. The last window may be shorter."""
    full = len(ids) // width * width
    parts = [ids[i : i + width] for i in range(0, full, width)]
    found = []
    for windows in filter(None, (parts, [ids[full:]] if full < len(ids) else [])):
        batch = tt.tensor([[*subject.before, *window, *subject.after] for window in windows], dtype=int)
        (values,) = _activations(subject, batch, [_layer(subject, layer, unit)], unit)
        first = len(subject.before)
        found.append(values[:, first : first + len(windows[0])].ravel())
    return host.concatenate(found)


def _activations(subject: Subject, batch: Tensor, layers: list[FeedForward], unit: int | None = None) -> list[Any]:
    """Return the hidden units of these feed-forward networks while the model reads a batch of ids: (batch, length, units) each,
    or (batch, length) for a single ``unit``."""
    kept: dict[int, Any] = {}

    def keep(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kept[id(module)] = inputs[0].numpy()[..., slice(None) if unit is None else unit].astype(host.float32)

    with hooked([(layer.down, "forward", keep) for layer in layers]), tt.no_grad(), evaluating(subject.model):
        below_output(subject.model)(batch)
    return [kept[id(layer.down)] for layer in layers]


def _layers(subject: Subject) -> list[FeedForward]:
    """Return a model's feed-forward networks, first to last. Raises UserError if its neurons cannot be shown."""
    if subject.kind == "translation":
        raise UserError("neurons are shown of models that read one text, not of an encoder-decoder")
    layers = [module for module in subject.model.modules() if isinstance(module, FeedForward)]
    if not layers:
        raise UserError("a recurrent network has no feed-forward networks: its units are shown as its state")
    return layers


def _layer(subject: Subject, layer: int, unit: int) -> FeedForward:
    layers = _layers(subject)
    check_part(1, layer, len(layers), 1, "layers")
    check_part(1, unit, layers[layer].down.weight.shape[1], 1, "neurons")
    return layers[layer]


def _check_length(subject: Subject, count: int) -> None:
    longest = min(subject.longest or LONGEST, LONGEST)
    if count > longest:
        raise UserError(f"the model reads at most {counted(longest, 'token')} at once, not {count:,}: shorten the text")


LARGEST_TEXT = 64 * 2**20  # bytes of files to read for it
LONGEST_TEXT = 200_000  # characters of the corpus to use
VALIDATES = 0.9  # start of the validation split, as in ``TextBatches``

_kept = Kept(4 * 2**20)  # bytes


def validation_text(subjects: Subjects, model: str, subject: Subject) -> tuple[str, str] | None:
    """Return the last tenth of a run's training corpus, at most LONGEST_TEXT characters, and its name. Return None for a
    pretrained model, and for an unknown, unreadable or changed corpus. Nothing is downloaded."""
    folder = subjects.folder(model)
    if folder is None:
        return None
    return _kept.get(subject.model, None, lambda: _text_of(folder), lambda found: 4 * len(found[0]) if found else 1)


def _text_of(folder: RunFolder) -> tuple[str, str] | None:
    try:
        source = folder.read_part("data", TextSource)
        path = folder.as_found(source.path)
        if not _is_at_hand(source, path):
            return None
        text = source.read_again(folder.path, path)
    except (UserError, OSError):
        return None
    begin = int(len(text) * VALIDATES)
    return text[begin : begin + LONGEST_TEXT], os.path.basename(source.name.rstrip("/")) or source.name


def _is_at_hand(source: TextSource, path: str | None) -> bool:
    """Return True if the corpus is on this computer and small enough."""
    if path is None:
        kept = kept_at(TINY_SHAKESPEARE, TINY_SHAKESPEARE_SHA256)
        return source.name == STANDARD_LIBRARY or (kept is not None and kept.is_file())
    if os.path.isfile(path):
        return os.path.getsize(path) <= LARGEST_TEXT
    return sum(os.path.getsize(os.path.join(base, file)) for base, _, files in os.walk(path) for file in files) <= LARGEST_TEXT
