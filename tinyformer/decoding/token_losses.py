"""Per-token losses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.vectors import Vectors
from tinyformer.data.batches import check_ids
from tinyformer.decoding.generation import batch_of_ids
from tinyformer.models.bert import BertForMaskedLM
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinyformer.models.recurrent import RecurrentLM, State
from tinyformer.models.seq2seq import EncoderDecoder, Seq2SeqConfig
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinytensor import Tensor
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import Array, host

TOKENS_AT_ONCE = 4096
LOGITS_AT_ONCE = 2**26

TokenModel = GPT | RecurrentLM | Transformer | EncoderDecoder | BertForMaskedLM


def token_losses(model: TokenModel, ids: Any, source: Any = None, mask: int | None = None) -> Array:
    """Return each token's loss in nats given the tokens before it: (length,) float64, for ids (length,). The first is NaN.

    - A GPT reads a sequence longer than ``block_size`` in windows that overlap by half. Each token after the first window sees
      at least half a block of context.
    - A recurrent language model carries its state through the sequence.
    - An encoder-decoder reads the ``source``, ids (length,) or ``Vectors`` of one row. ``ids`` starts with the start token.
    - A ``BertForMaskedLM`` sees all other tokens: the id ``mask`` replaces each token in turn, including the first (Salazar et
      al. 2020). The negative sum of the losses is the sequence's pseudo-log-likelihood.

    Raises UserError for ids outside the vocabulary, an empty sequence, or a missing or unsupported ``source`` or ``mask``.

    >>> from tinyformer import GPT, GPTConfig, token_losses
    >>> model = GPT(GPTConfig(vocab_size=65, block_size=8, num_layers=1, d_model=32))
    >>> token_losses(model, range(20)).shape
    (20,)
    """
    return host.concatenate(list(token_losses_in_parts(model, ids, source, mask)))


def token_losses_in_parts(model: TokenModel, ids: Any, source: Any = None, mask: int | None = None) -> Iterator[Array]:
    """Yield the result of ``token_losses`` in chunks as they are computed, so that programs can show progress or stop. Raises
    UserError as ``token_losses`` does, before the first chunk.

    >>> from tinyformer import GPT, GPTConfig, token_losses_in_parts
    >>> model = GPT(GPTConfig(vocab_size=65, block_size=8, num_layers=1, d_model=32))
    >>> sum(len(part) for part in token_losses_in_parts(model, range(20)))
    20
    """
    _check(model, "source", source, (Transformer, EncoderDecoder))
    _check(model, "mask", mask, BertForMaskedLM)
    tokens = _ids(ids, "texts", _vocab_size(model.config))
    if isinstance(model, BertForMaskedLM):
        mask = int(mask or 0)
        check_ids(host.array([mask]), model.config.vocab_size)
        return _evaluated(model, _of_masked(model, tokens, mask))
    inputs, targets = tokens[:-1], tokens[1:]
    if isinstance(model, GPT):
        parts = _of_windows(model, inputs, targets)
    elif isinstance(model, RecurrentLM):
        parts = _of_parts(model, inputs, targets)
    else:
        if not isinstance(source, Vectors):
            source = _batch(_ids(source, "sources", model.config.source_vocab_size))
        parts = _of_target(model, source, inputs, targets)
    return itertools.chain([host.array([host.nan])], _evaluated(model, parts) if len(inputs) else ())


def _evaluated(model: TokenModel, parts: Iterator[Array]) -> Iterator[Array]:
    """Yield the chunks, each computed in evaluation mode without gradients. Restore the model's mode between chunks."""
    in_evaluation = evaluating(model)
    while True:
        with tt.no_grad(), in_evaluation:
            part = next(parts, None)
        if part is None:
            return
        yield part.astype(host.float64)


def _vocab_size(config: Any) -> int:
    """Return the output vocabulary size of a model with this configuration."""
    return int(config.target_vocab_size if isinstance(config, TransformerConfig | Seq2SeqConfig) else config.vocab_size)


def _check(model: TokenModel, name: str, value: Any, needed_by: Any) -> None:
    if (value is not None) != isinstance(model, needed_by):
        problem = "needs a" if value is None else "takes no"
        raise UserError(f"the loss of each token of {a_or_an(type(model).__name__)} {problem} {name}")


def _ids(ids: Any, name: str, vocab_size: int) -> Array:
    (tokens,) = batch_of_ids([ids.numpy() if isinstance(ids, Tensor) else ids], name)
    check_ids(tokens, vocab_size)
    return tokens


def _batch(ids: Array) -> Tensor:
    return tt.tensor(ids[None])


def _losses(logits: Tensor, targets: Array) -> Array:
    """Return the loss of each target (...) for logits (..., vocab_size)."""
    return tt.cross_entropy(logits, tt.tensor(targets), reduction="none").numpy()


def _rows_at_once(tokens: int, logits: int) -> int:
    """Return the batch size to compute in one call, given the number of tokens and logits per row."""
    return max(1, min(TOKENS_AT_ONCE // tokens, LOGITS_AT_ONCE // logits))


def _of_windows(model: GPT, inputs: Array, targets: Array) -> Iterator[Array]:
    """Yield the losses of all targets (length,) from windows of at most block_size inputs."""
    size = min(model.config.block_size, len(inputs))
    last = len(inputs) - size
    starts = [*range(0, last, size - size // 2), last]
    step = _rows_at_once(size, size * model.config.vocab_size)
    known = 0  # number of losses so far
    for first in range(0, len(starts), step):
        some = starts[first : first + step]
        windows = host.array(some)[:, None] + host.arange(size)
        for start, row in zip(some, _losses(model(tt.tensor(inputs[windows])), targets[windows])):
            yield row[known - start :]
            known = start + size


def _of_parts(model: RecurrentLM, inputs: Array, targets: Array) -> Iterator[Array]:
    """Yield the losses of all targets (length,). Read the inputs in chunks and carry the state along."""
    state: State | None = None
    for first in range(0, len(inputs), model.config.block_size):
        part = slice(first, first + model.config.block_size)
        logits, state = model(_batch(inputs[part]), state)
        yield _losses(logits, targets[None, part])[0]


def _of_target(model: Transformer | EncoderDecoder, source: Any, inputs: Array, targets: Array) -> Iterator[Array]:
    """Yield the losses of all targets (length,) in one chunk."""
    yield _losses(model(source, _batch(inputs)), targets[None])[0]


def _of_masked(model: BertForMaskedLM, ids: Array, mask: int) -> Iterator[Array]:
    """Yield the losses of all tokens (length,), masking one token at a time."""
    step = _rows_at_once(len(ids), model.config.vocab_size)
    for first in range(0, len(ids), step):
        positions = host.arange(first, min(first + step, len(ids)))
        rows = host.tile(ids, (len(positions), 1))
        rows[host.arange(len(positions)), positions] = mask
        hidden = tt.arange(len(positions)), tt.tensor(positions)
        yield _losses(model(tt.tensor(rows), places=hidden), ids[positions])
